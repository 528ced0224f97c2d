//! VMRUN as L1 sees it: what a guest leaves behind, and that no VMCB is too much.

use satori_defs::svm::{ENLIGHTENED, ExitCode, TRAP_AFTER_FLUSH};
use satori_defs::x86::{efer, rflags};
use satori_engine::{Exit, Resume, Until};
use satori_memory::Gpa;
use satori_state::{reg, seg};
use satori_svm::vmcb::{Descriptor, USED, VMLOAD_VMSAVE, interrupt};
use satori_svm::{INVALID, Place, Vmcb};

use super::enter::descriptor;
use crate::testing::{LOW_LEN, Machine, Numbers, machine64};

/// Where L1 executes VMRUN, again and again.
const HOST: u64 = 0x1_0000;
const VMCB: u64 = 0x2_0000;
/// The guest's code.
const GUEST: u64 = 0x3_0000;
/// VMRUN; JMP to it, or to itself.
const LOOP: &[u8] = &[0x0f, 0x01, 0xd8, 0xeb, 0xfb];
const ONCE: &[u8] = &[0x0f, 0x01, 0xd8, 0xeb, 0xfe];
const THIRD: Place = Place { at: 0xc, size: 4 };
const FOURTH: Place = Place { at: 0x10, size: 4 };

/// A host, and the VMCB of a guest in its own mode on its own tables.
fn host(code: &[u8]) -> (Machine, Vmcb) {
    let mut cpu = machine64();
    cpu.state.efer |= efer::SVME;
    cpu.memory.write(Gpa(HOST), LOOP).unwrap();
    cpu.memory.write(Gpa(GUEST), code).unwrap();
    cpu.state.rip = HOST;
    cpu.state.gpr[reg::RAX] = VMCB;
    let mut vmcb = Vmcb::default();
    let state = &cpu.state;
    for (place, value) in [
        (FOURTH, 1),
        (Place::ASID, 1),
        (Place::EFER, state.efer),
        (Place::CR0, state.cr0),
        (Place::CR3, state.cr3),
        (Place::CR4, state.cr4),
        (Place::DR6, 0xffff_0ff0),
        (Place::DR7, 0x400),
        (Place::RFLAGS, 2),
        (Place::RIP, GUEST),
        (Place::RSP, 0x8_0000),
    ] {
        vmcb.set(place, value);
    }
    for (index, which) in [
        (seg::ES, Descriptor::Es),
        (seg::CS, Descriptor::Cs),
        (seg::SS, Descriptor::Ss),
        (seg::DS, Descriptor::Ds),
    ] {
        vmcb.set_segment(which, descriptor(&state.seg[index]));
    }
    (cpu, vmcb)
}

fn instructions(n: u64) -> Until {
    Until { counter: None, instructions: Some(n) }
}

/// Runs the guest once; the VMCB behind it.
fn left(cpu: &mut Machine, vmcb: &Vmcb) -> Vmcb {
    cpu.memory.write(Gpa(HOST), ONCE).unwrap();
    cpu.memory.write(Gpa(VMCB), vmcb.bytes()).unwrap();
    (cpu.state.rip, cpu.state.gpr[reg::RAX], cpu.svm.gif) = (HOST, VMCB, true);
    for _ in 0..100 {
        let exit = cpu.run(instructions(1));
        assert_eq!(exit, Exit::Budget);
        if cpu.state.rip == HOST + 3 {
            break;
        }
    }
    assert_eq!((cpu.state.rip, cpu.svm.gif, cpu.vmx.guest), (HOST + 3, false, false));
    let mut bytes = [0; USED];
    cpu.memory.read(Gpa(VMCB), &mut bytes).unwrap();
    Vmcb::new(bytes)
}

#[test]
fn a_guest_leaves_by_what_it_was_told_to_leave_by() {
    // MOV EAX,5; HLT.
    let (mut cpu, mut vmcb) = host(&[0xb8, 5, 0, 0, 0, 0xf4]);
    vmcb.set(THIRD, 1 << 24);
    let seen = left(&mut cpu, &vmcb);
    let told =
        [Place::EXIT_CODE, Place::RIP, Place::NEXT_RIP, Place::RAX, Place::EXIT_EVENT].map(|p| seen.get(p));
    assert_eq!(told, [ExitCode::Hlt as u64, GUEST + 5, GUEST + 6, 5, 0]);
    assert_eq!(cpu.state.gpr[reg::RAX], VMCB, "the host's own is back");
    vmcb.set(Place::ASID, 0);
    assert_eq!(left(&mut cpu, &vmcb).get(Place::EXIT_CODE), INVALID);
}

#[test]
fn blocks_of_a_guest_leave_by_what_they_have() {
    // MOV ECX,1000; PUSHFQ; POPFQ; LOOP; INT1.
    let (mut cpu, mut vmcb) = host(&[0xb9, 0xe8, 3, 0, 0, 0x9c, 0x9d, 0xe2, 0xfc, 0xf1]);
    for (third, code, at) in
        [(0, ExitCode::Icebp, 9), (1 << 16, ExitCode::Pushf, 5), (1 << 17, ExitCode::Popf, 6)]
    {
        vmcb.set(THIRD, third);
        vmcb.set(FOURTH, 1 | 1 << 8);
        cpu.memory.write(Gpa(VMCB), vmcb.bytes()).unwrap();
        (cpu.state.rip, cpu.state.gpr[reg::RAX], cpu.svm.gif) = (HOST, VMCB, true);
        cpu.memory.write(Gpa(HOST), ONCE).unwrap();
        let before = cpu.steps();
        assert_eq!(cpu.run(instructions(5000)), Exit::Budget);
        let told = [Place::EXIT_CODE, Place::RIP]
            .map(|place| cpu.memory.read_u64(Gpa(VMCB + place.at as u64)).unwrap());
        assert_eq!(told, [code as u64, GUEST + at]);
        let alone = cpu.steps() - before;
        assert!(alone < 100, "{code:?}: {alone} instructions were executed alone");
    }
}

#[test]
fn a_virtual_interrupt_waits_for_its_priority() {
    // NOPs, and HLT.
    let (mut cpu, mut vmcb) = host(&[0x90, 0x90, 0xf4]);
    vmcb.set(THIRD, 1 << 24 | 1 << 4);
    vmcb.set(Place::RFLAGS, 0x202);
    let pending = interrupt::PENDING | 5 << interrupt::PRIORITY_SHIFT;
    for (control, code) in [
        (pending | 4, ExitCode::Vintr),
        (pending | 5, ExitCode::Hlt),
        (pending | 5 | interrupt::IGNORE_TPR, ExitCode::Vintr),
        (pending & !interrupt::PENDING, ExitCode::Hlt),
    ] {
        vmcb.set(Place::INTERRUPT_CONTROL, control);
        assert_eq!(left(&mut cpu, &vmcb).get(Place::EXIT_CODE), code as u64, "{control:#x}");
    }
}

#[test]
fn nested_tables_tell_what_they_refuse() {
    // MOV [0x50000],EAX; HLT.
    let (mut cpu, mut vmcb) = host(&[0x89, 0x04, 0x25, 0, 0, 5, 0, 0xf4]);
    vmcb.set(THIRD, 1 << 24);
    vmcb.set(Place::NESTED, 1);
    vmcb.set(Place::PAT, 0x0007_0406_0007_0406);
    // Tables of 4 KiB pages for the first 2 MiB, each to itself, at 0x100000.
    const TABLES: u64 = 0x10_0000;
    vmcb.set(Place::NESTED_CR3, TABLES);
    let entry = |cpu: &Machine, at: u64, value: u64| cpu.memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
    for level in 0..3 {
        entry(&cpu, TABLES + 0x1000 * level, (TABLES + 0x1000 * (level + 1)) | 7);
    }
    let page = |number: u64| TABLES + 0x3000 + 8 * number;
    for number in 0..512 {
        entry(&cpu, page(number), number << 12 | 7);
    }
    assert_eq!(left(&mut cpu, &vmcb).get(Place::EXIT_CODE), ExitCode::Hlt as u64);
    let marked = cpu.memory.read_u64(Gpa(page(0x50))).unwrap();
    assert_eq!(marked & 0x60, 0x60, "accessed and dirty");
    for (value, code) in [(0, 0x1_0000_0006), (0x5_0000 | 5, 0x1_0000_0007), (0x5_0000 | 3, 0x1_0000_0007)] {
        entry(&cpu, page(0x50), value);
        vmcb.set(Place::TLB_CONTROL, 3);
        let seen = left(&mut cpu, &vmcb);
        let told =
            [Place::EXIT_CODE, Place::EXIT_INFO_1, Place::EXIT_INFO_2, Place::RIP].map(|p| seen.get(p));
        assert_eq!(told, [ExitCode::Npf as u64, code, 0x5_0000, GUEST], "{value:#x}");
    }
    // The guest's own tables, which are walked as if they were written.
    entry(&cpu, page(0x50), 0x5_0000 | 7);
    entry(&cpu, page(1), 0x1000 | 5);
    let seen = left(&mut cpu, &vmcb);
    assert_eq!(seen.get(Place::EXIT_INFO_1) & !(1 << 4), 0x2_0000_0007);
    assert_eq!(seen.get(Place::EXIT_INFO_2) >> 12, 1);
}

/// The bits of the third word of intercepts that these are, HLT's among them.
fn third(bits: &[u32]) -> u64 {
    bits.iter().fold(1 << 24, |word, bit| word | 1 << bit)
}

#[test]
fn an_exit_tells_the_operands_of_its_instruction() {
    const CR0_WRITE: (Place, u64) = (Place { at: 0, size: 4 }, 1 << 16);
    const DR7_READ: (Place, u64) = (Place { at: 4, size: 4 }, 1 << 7);
    for (code, (place, bits), told) in [
        // MOV CR0,R9.
        (&[0x41, 0x0f, 0x22, 0xc1][..], CR0_WRITE, [0x10, 1 << 63 | 9, 0, 4]),
        // CLTS, which has no operand.
        (&[0x0f, 0x06], CR0_WRITE, [0x10, 0, 0, 2]),
        // MOV RBX,DR7.
        (&[0x0f, 0x21, 0xfb], DR7_READ, [0x27, 3, 0, 3]),
        // INVLPG [0x1234]; INT 0x42; OUT 0x80,EAX.
        (&[0x0f, 0x01, 0x3c, 0x25, 0x34, 0x12, 0, 0], (THIRD, third(&[25])), [0x79, 0x1234, 0, 8]),
        (&[0xcd, 0x42], (THIRD, third(&[21])), [0x75, 0x42, 0, 2]),
        (&[0xe7, 0x80], (THIRD, third(&[27])), [0x7b, 0x80_0240, GUEST + 2, 2]),
    ] {
        let (mut cpu, mut vmcb) = host(code);
        // Every port leaves the guest.
        cpu.memory.write(Gpa(0x4_0000), &[0xff; 0x3000]).unwrap();
        vmcb.set(Place::IO_MAP, 0x4_0000);
        vmcb.set(place, bits);
        let seen = left(&mut cpu, &vmcb);
        let is =
            [Place::EXIT_CODE, Place::EXIT_INFO_1, Place::EXIT_INFO_2, Place::NEXT_RIP].map(|p| seen.get(p));
        assert_eq!(is, [told[0], told[1], told[2], GUEST + told[3]], "{code:x?}");
    }
}

#[test]
fn a_page_fault_tells_the_bytes_of_its_instruction() {
    // MOV EAX,[100000000000], where nothing is, at the end of a page.
    let load = [0xa1, 0, 0, 0, 0, 0, 0x10, 0, 0];
    const NOWHERE: u64 = 0x1000_0000_0000;
    let (mut cpu, mut vmcb) = host(&[]);
    cpu.memory.write(Gpa(GUEST + 0xffc), &load).unwrap();
    cpu.memory.write(Gpa(GUEST + 0x1005), &[0x11; 16]).unwrap();
    vmcb.set(Place::RIP, GUEST + 0xffc);
    vmcb.set(Place { at: 8, size: 4 }, 1 << 14);
    let seen = left(&mut cpu, &vmcb);
    let told = [Place::EXIT_CODE, Place::EXIT_INFO_2, Place::NEXT_RIP, Place::FETCHED].map(|p| seen.get(p));
    assert_eq!(told, [ExitCode::ExceptionPf as u64, NOWHERE, 0, 15]);
    assert_eq!(seen.bytes()[0xd1..0xda], load);
    assert_eq!(seen.bytes()[0xda..0xe0], [0x11; 6]);
    // One that cannot be fetched has none.
    vmcb.set(Place::RIP, NOWHERE);
    let seen = left(&mut cpu, &vmcb);
    assert_eq!([Place::EXIT_CODE, Place::FETCHED].map(|p| seen.get(p)), [ExitCode::ExceptionPf as u64, 0]);
}

#[test]
fn a_guest_has_an_interrupt_flag_and_nmis_of_its_own() {
    // CLGI; NOP; STGI; NOP; HLT.
    let code = [0x0f, 0x01, 0xdd, 0x90, 0x0f, 0x01, 0xdc, 0x90, 0xf4];
    let (mut cpu, mut vmcb) = host(&code);
    let pending = interrupt::PENDING | interrupt::IGNORE_TPR;
    vmcb.set(THIRD, third(&[4, 1]));
    vmcb.set(Place::RFLAGS, 0x202);
    vmcb.set(Place::RIP, GUEST + 3);
    vmcb.set(Place::INTERRUPT_CONTROL, pending | interrupt::GIF_ENABLE);
    let seen = left(&mut cpu, &vmcb);
    // The virtual interrupt comes behind STGI.
    let told = |seen: &Vmcb| [Place::EXIT_CODE, Place::RIP].map(|p| seen.get(p));
    assert_eq!(told(&seen), [ExitCode::Vintr as u64, GUEST + 7]);
    assert_ne!(seen.get(Place::INTERRUPT_CONTROL) & interrupt::GIF, 0);
    // CLGI holds it, and leaves the host's own flag alone.
    vmcb.set(Place::RIP, GUEST);
    vmcb.set(Place::INTERRUPT_CONTROL, interrupt::GIF | interrupt::GIF_ENABLE);
    assert_eq!(told(&left(&mut cpu, &vmcb)), [ExitCode::Hlt as u64, GUEST + 8]);
    // A virtual NMI: its delivery without an IDT is a shutdown, its mask holds it.
    vmcb.set(THIRD, third(&[1, 31]));
    let virtual_nmi = interrupt::NMI | interrupt::NMI_ENABLE;
    vmcb.set(Place::INTERRUPT_CONTROL, virtual_nmi | interrupt::NMI_MASK);
    let seen = left(&mut cpu, &vmcb);
    assert_eq!(told(&seen)[0], ExitCode::Hlt as u64);
    let kept = virtual_nmi | interrupt::NMI_MASK;
    assert_eq!(seen.get(Place::INTERRUPT_CONTROL) & kept, kept);
    vmcb.set(Place::INTERRUPT_CONTROL, virtual_nmi);
    let seen = left(&mut cpu, &vmcb);
    assert_eq!(told(&seen)[0], ExitCode::Shutdown as u64);
    assert_eq!(seen.get(Place::INTERRUPT_CONTROL) & kept, interrupt::NMI_ENABLE | interrupt::NMI_MASK);
    vmcb.set(THIRD, third(&[]));
    assert_eq!(
        left(&mut cpu, &vmcb).get(Place::EXIT_CODE),
        INVALID,
        "virtual NMIs, and real ones not intercepted"
    );
}

#[test]
fn the_time_of_a_guest_has_a_ratio_and_an_offset() {
    // RDTSC; HLT.
    let (mut cpu, mut vmcb) = host(&[0x0f, 0x31, 0xf4]);
    vmcb.set(THIRD, third(&[]));
    vmcb.set(Place::TSC_OFFSET, 0);
    cpu.svm.ratio = 0;
    assert_eq!(left(&mut cpu, &vmcb).get(Place::RAX), 0);
    vmcb.set(Place::TSC_OFFSET, 77);
    assert_eq!(left(&mut cpu, &vmcb).get(Place::RAX), 77);
}

#[test]
fn a_guest_that_turns_svm_off_does_not_become_its_host() {
    // MOV ECX,c0000080; MOV EAX,500; XOR EDX,EDX; WRMSR, which nobody intercepts; HLT.
    let code = [0xb9, 0x80, 0, 0, 0xc0, 0xb8, 0, 5, 0, 0, 0x31, 0xd2, 0x0f, 0x30, 0xf4];
    let (mut cpu, mut vmcb) = host(&code);
    vmcb.set(THIRD, third(&[]));
    let seen = left(&mut cpu, &vmcb);
    assert_eq!([Place::EXIT_CODE, Place::RIP].map(|p| seen.get(p)), [ExitCode::Shutdown as u64, GUEST + 12]);
}

#[test]
fn a_host_that_steps_is_told_of_vmrun_behind_it() {
    let (mut cpu, mut vmcb) = host(&[0x90, 0x90, 0xf4]);
    vmcb.set(THIRD, third(&[]));
    vmcb.set(Place { at: 8, size: 4 }, 1 << 1);
    cpu.memory.write(Gpa(VMCB), vmcb.bytes()).unwrap();
    cpu.state.rflags |= rflags::TF;
    cpu.state.idtr.limit = 0;
    // There is no IDT for the trap, which comes before the host's next instruction.
    assert_eq!(cpu.run(instructions(100)), Exit::TripleFault);
    assert_eq!(cpu.state.rip, HOST + 3);
    assert_eq!(cpu.memory.read_u64(Gpa(VMCB + 0x70)).unwrap(), ExitCode::Hlt as u64);
}

#[test]
fn vmload_of_a_guest_passes_its_nested_tables() {
    // VMLOAD; HLT.
    let (mut cpu, mut vmcb) = host(&[0x0f, 0x01, 0xda, 0xf4]);
    vmcb.set(THIRD, third(&[]));
    vmcb.set(Place::NESTED, 1);
    vmcb.set(Place::PAT, 0x0007_0406_0007_0406);
    vmcb.set(Place::VIRTUALIZED, VMLOAD_VMSAVE);
    vmcb.set(Place::RAX, 0x7_0000);
    // 2 MiB at 0, to themselves; 0x70000 is not there.
    const TABLES: u64 = 0x10_0000;
    vmcb.set(Place::NESTED_CR3, TABLES);
    let entry = |cpu: &Machine, at: u64, value: u64| cpu.memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
    for level in 0..3 {
        entry(&cpu, TABLES + 0x1000 * level, (TABLES + 0x1000 * (level + 1)) | 7);
    }
    for number in 0..512 {
        entry(&cpu, TABLES + 0x3000 + 8 * number, number << 12 | if number == 0x70 { 0 } else { 7 });
    }
    let seen = left(&mut cpu, &vmcb);
    let told =
        [Place::EXIT_CODE, Place::EXIT_INFO_1, Place::EXIT_INFO_2, Place::FETCHED].map(|p| seen.get(p));
    assert_eq!(told, [ExitCode::Npf as u64, 0x1_0000_0004, 0x7_0000, 15]);
    // Elsewhere it loads what is there.
    entry(&cpu, TABLES + 0x3000 + 8 * 0x70, 0x7_1000 | 7);
    entry(&cpu, 0x7_1000 + 0x608, 0x1234_5678);
    vmcb.set(Place::TLB_CONTROL, 3);
    assert_eq!(left(&mut cpu, &vmcb).get(Place::EXIT_CODE), ExitCode::Hlt as u64);
    assert_eq!(cpu.state.lstar, 0x1234_5678);
}

#[test]
fn no_vmcb_and_no_guest_stops_the_host_from_being_executed() {
    let mut numbers = Numbers(0x5e_ed);
    let mut entered = 0;
    for _ in 0..400 {
        let code: Vec<u8> = (0..64).map(|_| numbers.any() as u8).collect();
        let (mut cpu, mut vmcb) = host(&code);
        for _ in 0..numbers.below(12) {
            let at = if numbers.below(2) == 0 { numbers.below(0xd8) } else { 0x400 + numbers.below(0x270) };
            let size = [1, 2, 4, 8][numbers.below(4) as usize].min(USED - at as usize);
            let value = if numbers.below(2) == 0 { numbers.any() } else { numbers.below(LOW_LEN) };
            vmcb.set(Place { at: at as usize, size }, value);
        }
        // The host's own code and tables stay, as those of nobody else.
        vmcb.set(FOURTH, vmcb.get(FOURTH) | 1);
        cpu.memory.write(Gpa(VMCB), vmcb.bytes()).unwrap();
        let before = cpu.count.retired;
        while cpu.count.retired < before + 2_000 {
            match cpu.run(instructions(500)) {
                Exit::Budget => {}
                Exit::TripleFault | Exit::Hlt => break,
                _ => cpu.resume(Resume::Continue),
            }
            cpu.count.retired += 1;
        }
        entered += cpu.svm.account.entries.min(1);
    }
    assert!(entered > 50, "{entered} were entered");
}

#[test]
fn a_flush_is_served_below_the_host_that_allows_it() {
    const ASSIST: u64 = 0x6_0000;
    const LOCKS: u64 = 0x6_1000;
    // MOV ECX,2; MOV EDX,40000; VMMCALL; HLT.
    let code = [0xb9, 2, 0, 0, 0, 0xba, 0, 0, 4, 0, 0x0f, 0x01, 0xd9, 0xf4];
    for (allowed, locks, wanted) in [
        (1, 0, [ExitCode::Hlt as u64, 0, GUEST + 13]),
        (1, 7, [ENLIGHTENED, TRAP_AFTER_FLUSH, GUEST + 13]),
        (0, 0, [ExitCode::Vmmcall as u64, 0, GUEST + 10]),
    ] {
        let (mut cpu, mut vmcb) = host(&code);
        (cpu.controls.nesting.direct_flush, cpu.controls.nesting.assist) = (true, Some(ASSIST));
        cpu.memory.write(Gpa(ASSIST + 32), &[1]).unwrap();
        cpu.memory.write(Gpa(LOCKS), &[locks]).unwrap();
        vmcb.set(THIRD, 1 << 24);
        vmcb.set(FOURTH, 3);
        vmcb.set(Place::ENLIGHTENMENTS, allowed);
        vmcb.set(Place::PARTITION_ASSIST, LOCKS);
        cpu.memory.write(Gpa(HOST), ONCE).unwrap();
        cpu.memory.write(Gpa(VMCB), vmcb.bytes()).unwrap();
        let mut served = 0;
        while cpu.state.rip != HOST + 3 {
            match cpu.run(instructions(1)) {
                Exit::NestedFlush { block } => {
                    assert_eq!(block, Some(0x4_0000));
                    cpu.resume(Resume::Done);
                    served += 1;
                }
                exit => assert_eq!(exit, Exit::Budget),
            }
        }
        let mut bytes = [0; USED];
        cpu.memory.read(Gpa(VMCB), &mut bytes).unwrap();
        let seen = Vmcb::new(bytes);
        let told = [Place::EXIT_CODE, Place::EXIT_INFO_1, Place::RIP].map(|place| seen.get(place));
        assert_eq!((told, served), (wanted, allowed), "{allowed} {locks}");
    }
}
