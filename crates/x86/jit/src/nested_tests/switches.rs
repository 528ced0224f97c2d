//! What entries and exits leave of translations: all of both sides with a VPID, until an invalidation reaches them.

use super::*;

const VPID: u64 = 5;
/// What either reads: the guest's EPT leads there, or to the page behind.
const DATA: u64 = 0x3_0000;
const RESUME: u64 = 0x1_3000;
const DESCRIPTOR: u64 = POINTERS + 0x10;
const EPTP: u64 = EPT | 3 << 3 | 6;

/// A guest that reads [`DATA`] and leaves, of a hypervisor that reads there too; 1 is there, and 2 in the page behind.
fn machine(translates: bool, more: u32) -> Machine {
    let controls = u64::from(PROC2 | proc2::EPT | more);
    let vpid = if more & proc2::VPID != 0 { VPID } else { 0 };
    let changes = [(Field::ProcControls2, controls), (Field::Eptp, EPTP), (Field::Vpid, vpid)];
    // MOV AL,[30000]; CPUID
    let cpu = hypervisor(translates, &[0x8a, 0x04, 0x25, 0, 0, 3, 0, 0x0f, 0xa2], &changes);
    // MOV BL,[30000]; HLT
    cpu.memory().write(Gpa(HANDLER), &[0x8a, 0x1c, 0x25, 0, 0, 3, 0, 0xf4]).unwrap();
    cpu.memory().write(Gpa(DATA), &[1]).unwrap();
    cpu.memory().write(Gpa(DATA + 0x1000), &[2]).unwrap();
    cpu
}

/// Bytes of the opcodes of INVEPT and INVVPID.
const OF_EPT: u8 = 0x80;
const OF_VPID: u8 = 0x81;

/// Enters the guest again, behind INVEPT or INVVPID of a type, of `word` and an address; what the guest read, and what its
/// hypervisor did.
fn again(cpu: &mut Machine, invalidation: Option<(u8, u8, u64)>) -> (u64, u64) {
    let mut code = Vec::new();
    if let Some((opcode, kind, word)) = invalidation {
        let address = if opcode == OF_VPID { DATA } else { 0 };
        cpu.memory().write(Gpa(DESCRIPTOR), &[word, address].map(u64::to_le_bytes).concat()).unwrap();
        code.extend([0xb8, kind, 0, 0, 0, 0x66, 0x0f, 0x38, opcode, 0x04, 0x25, 0x10, 0, 7, 0]);
    }
    code.extend([0x0f, 0x01, 0xc3, 0xf4]);
    cpu.memory().write(Gpa(RESUME), &code).unwrap();
    cpu.memory().page(Gpa(RESUME)).unwrap().state.wrote();
    cpu.vmcs_mut().set(Field::GuestRip, GUEST);
    cpu.state.rip = RESUME;
    assert_eq!(run(cpu), HANDLER + 8);
    assert_eq!(told(cpu).0, 10);
    (cpu.state.gpr[0] & 0xff, cpu.state.gpr[3] & 0xff)
}

#[test]
fn an_invalidation_reaches_what_a_guest_left_behind() {
    let cases = [
        ("nothing", proc2::VPID, None, 1),
        ("INVEPT of its EPT", proc2::VPID, Some((OF_EPT, 1, EPTP)), 2),
        ("INVEPT of another", proc2::VPID, Some((OF_EPT, 1, EPTP + 0x1000)), 1),
        ("INVEPT of all", proc2::VPID, Some((OF_EPT, 2, 0)), 2),
        ("INVVPID of its address", proc2::VPID, Some((OF_VPID, 0, VPID)), 2),
        ("INVVPID of it", proc2::VPID, Some((OF_VPID, 1, VPID)), 2),
        ("INVVPID of another", proc2::VPID, Some((OF_VPID, 1, VPID + 1)), 1),
        ("INVVPID of all", proc2::VPID, Some((OF_VPID, 2, 0)), 2),
        ("an entry without VPIDs", 0, None, 2),
    ];
    both(|translates| {
        for (name, more, invalidation, seen) in cases {
            let mut cpu = machine(translates, more);
            run(&mut cpu);
            assert_eq!(again(&mut cpu, None), (1, 1), "{name}");
            let entry = EPT + 0x3000 + 8 * (DATA >> 12);
            cpu.memory().write(Gpa(entry), &((DATA + 0x1000) | 0x37).to_le_bytes()).unwrap();
            assert_eq!(again(&mut cpu, invalidation), (seen, 1), "{name}");
            // One address is another page for each of both, whoever was there last.
            assert_eq!(again(&mut cpu, Some((OF_EPT, 2, 0))), (2, 1), "{name}");
            assert_eq!(again(&mut cpu, None), (2, 1), "{name}");
        }
    });
}

#[test]
fn an_exit_and_an_entry_translate_nothing_anew() {
    both(|translates| {
        let mut cpu = machine(translates, proc2::VPID);
        run(&mut cpu);
        for _ in 0..3 {
            again(&mut cpu, None);
        }
        let known =
            |cpu: &Machine| (cpu.mmu.tlb.counts.fills, cpu.mmu.fetches.fills, cpu.mmu.tlb.counts.returned);
        let before = known(&cpu);
        for _ in 0..20 {
            assert_eq!(again(&mut cpu, None), (1, 1));
        }
        assert_eq!(known(&cpu), before, "fills, code pages, and what was put back");
    });
}

#[test]
fn a_fault_in_a_delivery_leaves_before_it_is_a_double_fault() {
    // #SS is injected where the IDT is empty: #GP, then #DF, then a shutdown, whichever its hypervisor wants first.
    let [gp, df] = [1 << 13, 1 << 8];
    both(|translates| {
        for (wanted, [reason, interruption, code, vectoring]) in [
            (gp | df, [0, 0x8000_0b0d, 12 * 8 + 3, 0x8000_0b0c]),
            (df, [0, 0x8000_0b08, 0, 0]),
            (0, [2, 0, 0, 0]),
        ] {
            let changes = [
                (Field::GuestIdtrLimit, 0),
                (Field::ExceptionBitmap, 1 << 12 | wanted),
                (Field::EntryInterruption, 0x8000_0b0c),
                (Field::EntryErrorCode, 0),
            ];
            let mut cpu = hypervisor(translates, &[0x0f, 0xa2], &changes);
            run(&mut cpu);
            let told =
                [Field::ExitReason, Field::ExitInterruption, Field::ExitErrorCode, Field::IdtVectoring];
            assert_eq!(told.map(|field| cpu.vmcs().get(field)), [reason, interruption, code, vectoring]);
        }
    });
}

#[test]
fn what_the_ept_withholds_is_saved_with_rf() {
    both(|translates| {
        let mut cpu = machine(translates, proc2::VPID);
        cpu.memory().write(Gpa(EPT + 0x3000 + 8 * (DATA >> 12)), &[0; 8]).unwrap();
        run(&mut cpu);
        assert_eq!(told(&cpu).0, 48);
        assert_eq!(cpu.vmcs().get(Field::GuestRflags) & rflags::RF, rflags::RF);
    });
}
