//! Accesses as instructions make them: page boundaries, holes, alignment, what stays cached, and
//! races with other vCPUs.

use std::sync::Arc;

use satori_cpuid::Offered;
use satori_defs::x86::{cr0, cr4, efer, pf, pte, rflags, vector};
use satori_engine::{Exception, Exit, PartitionParts, Resume, Until, VcpuParts};
use satori_memory::Gpa;
use satori_state::{reg, seg};

use super::{Access, Mode};
use crate::cpu::{Cpu, Stop};
use crate::insn;
use crate::testing::{Machine, Numbers, decode, execute, machine32, machine64};
use crate::world::World;

/// Where pages of 4 KiB are mapped one by one, and the tables for that.
const L: u64 = 0x80_0000_0000;
const PDPT: u64 = 0x2_0000;
const PD: u64 = 0x2_1000;
const PT: u64 = 0x2_2000;
/// Frames that are no neighbours.
const FRAMES: [u64; 2] = [0x3_0000, 0x3_4000];
const CODE: u64 = 0x5_0000;
const OPEN: u64 = pte::P | pte::W | pte::U;

fn put(cpu: &Cpu, at: u64, value: u64) {
    cpu.memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
}

fn get(cpu: &Cpu, at: u64) -> u64 {
    cpu.memory.read_u64(Gpa(at)).unwrap()
}

/// A 64-bit machine with pages at [`L`], the first two mapped, at a privilege level.
fn paged(cpl: u8) -> Machine {
    let mut cpu = machine64();
    put(&cpu, cpu.state.cr3 + 8, PDPT | OPEN);
    put(&cpu, PDPT, PD | OPEN);
    put(&cpu, PD, PT | OPEN);
    put(&cpu, PT, FRAMES[0] | OPEN);
    put(&cpu, PT + 8, FRAMES[1] | OPEN);
    for register in [seg::CS, seg::SS] {
        cpu.state.seg[register].rights |= u32::from(cpl) << 5;
    }
    cpu.mode_changed();
    cpu
}

/// Executes one instruction by its generic implementation.
fn generic(cpu: &mut Cpu, bytes: &[u8]) -> Option<Exception> {
    let insn = decode(cpu, bytes);
    match execute(cpu, &insn, insn::handler(&insn)) {
        Ok(()) => None,
        Err(stop) => {
            assert_eq!(stop, Stop::Fault);
            cpu.pending.fault.take()
        }
    }
}

/// Executes one instruction as the first of a block; the vector of its exception.
fn in_block(cpu: &mut Machine, bytes: &[u8]) -> Option<u8> {
    let mut code = bytes.to_vec();
    // CPUID ends the block.
    code.extend([0x0f, 0xa2]);
    cpu.memory.write(Gpa(CODE), &code).unwrap();
    cpu.state.rip = CODE;
    cpu.state.idtr.limit = 0;
    let before = *cpu.count.exceptions();
    match cpu.run(Until::default()) {
        Exit::Cpuid { .. } => {
            cpu.resume(Resume::Continue);
            None
        }
        // Without an IDT the second exception is a #GP; if that is the first it counts twice.
        Exit::TripleFault => {
            cpu.state.activity = Default::default();
            let new: Vec<u8> = (0..32)
                .filter(|&v| cpu.count.exceptions()[usize::from(v)] != before[usize::from(v)])
                .collect();
            Some(*new.iter().find(|v| ![vector::GP, vector::DF].contains(v)).unwrap_or(&vector::GP))
        }
        exit => panic!("{exit:?}"),
    }
}

/// `instruction [rdi]` and the like: stores, read-modify-writes, vectors, strings.
const WRITES: [&[u8]; 8] = [
    &[0x48, 0x89, 0x07],             // mov [rdi], rax
    &[0x48, 0x01, 0x07],             // add [rdi], rax
    &[0xf0, 0x48, 0x0f, 0xc1, 0x07], // lock xadd [rdi], rax
    &[0x48, 0x87, 0x07],             // xchg [rdi], rax
    &[0x0f, 0x11, 0x07],             // movups [rdi], xmm0
    &[0x48, 0xab],                   // stosq
    &[0xdd, 0x1f],                   // fstp qword [rdi]
    &[0x48, 0xff, 0x07],             // inc qword [rdi]
];

#[test]
fn a_write_into_a_faulting_page_changes_nothing_in_front_of_it() {
    for user in [false, true] {
        for (entry, present) in [(0, 0), (FRAMES[1] | pte::P | pte::U, pf::P)] {
            for bytes in WRITES {
                let mut cpu = paged(if user { 3 } else { 0 });
                put(&cpu, PT + 8, entry);
                put(&cpu, FRAMES[0] + 0xff8, 0x1122_3344_5566_7788);
                cpu.state.gpr[reg::RAX] = u64::MAX;
                cpu.state.gpr[reg::RDI] = L + 0xffc;
                // FLD1, so that FSTP has something.
                assert_eq!(generic(&mut cpu, &[0xd9, 0xe8]), None);
                cpu.state.fpu.ymm[0].low = u128::MAX;
                let mut before = cpu.state.clone();
                let fault = generic(&mut cpu, bytes).unwrap_or_else(|| panic!("{bytes:x?}"));
                let code = present | pf::W | if user { pf::U } else { 0 };
                assert_eq!(fault, Exception::pf(L + 0x1000, code), "{bytes:x?}");
                assert_eq!(cpu.state, before, "{bytes:x?}");
                assert_eq!(in_block(&mut cpu, bytes), Some(vector::PF), "{bytes:x?}");
                assert_eq!(cpu.state.cr2, L + 0x1000);
                assert_eq!(get(&cpu, FRAMES[0] + 0xff8), 0x1122_3344_5566_7788, "{bytes:x?}");
                before.rip = CODE;
                assert_eq!(cpu.state.gpr[..16], before.gpr[..16], "{bytes:x?}");
            }
        }
    }
}

#[test]
fn of_two_missing_pages_the_first_is_told() {
    let mut cpu = paged(0);
    put(&cpu, PT, 0);
    put(&cpu, PT + 8, 0);
    assert_eq!(cpu.read::<u64>(L + 0xffc), Err(Stop::Fault));
    assert_eq!(cpu.pending.fault.take(), Some(Exception::pf(L + 0xffc, 0)));
    assert_eq!(cpu.probe_write(L + 0xf00, 0x200), Err(Stop::Fault));
    assert_eq!(cpu.pending.fault.take(), Some(Exception::pf(L + 0xf00, pf::W)));
}

#[test]
fn addresses_are_canonical_as_a_whole_before_they_are_translated() {
    // mov rax, [rdi]; the page in front of the hole is not mapped.
    let load: &[u8] = &[0x48, 0x8b, 0x07];
    let mut cpu = paged(0);
    for (linear, fault) in [
        (0x7fff_ffff_fffc, Some(vector::GP)),
        (0x7fff_ffff_fff8, Some(vector::PF)),
        (0x8000_0000_0000, Some(vector::GP)),
        (0xffff_7fff_ffff_fffc, Some(vector::GP)),
        (0xffff_8000_0000_0000, Some(vector::PF)),
        // Around the end of the address space there is no hole.
        (0xffff_ffff_ffff_fffc, Some(vector::PF)),
        (L, None),
    ] {
        cpu.state.gpr[reg::RDI] = linear;
        assert_eq!(generic(&mut cpu, load).map(|fault| fault.vector), fault, "{linear:x}");
        assert_eq!(in_block(&mut cpu, load), fault, "{linear:x}");
    }
    // push rax; mov rax, [rsp]; mov rax, [rbp]: through SS.
    for bytes in [&[0x50u8][..], &[0x48, 0x8b, 0x04, 0x24], &[0x48, 0x8b, 0x45, 0]] {
        cpu.state.gpr[reg::RSP] = 0x8000_0000_0004;
        cpu.state.gpr[reg::RBP] = 0x8000_0000_0004;
        assert_eq!(generic(&mut cpu, bytes), Some(Exception::with_code(vector::SS, 0)), "{bytes:x?}");
        assert_eq!(in_block(&mut cpu, bytes), Some(vector::SS), "{bytes:x?}");
    }
}

#[test]
fn an_access_goes_around_the_end_of_the_address_space() {
    let mut cpu = paged(0);
    let pml4 = cpu.state.cr3;
    put(&cpu, pml4 + 8 * 511, PDPT | OPEN);
    put(&cpu, PDPT + 8 * 511, PD | OPEN);
    put(&cpu, PD + 8 * 511, PT | OPEN);
    put(&cpu, PT + 8 * 511, FRAMES[1] | OPEN);
    put(&cpu, FRAMES[1] + 0xff8, 0x1234_5678 << 32);
    put(&cpu, 0, 0x9abc_def0);
    assert_eq!(cpu.read::<u64>(u64::MAX - 3), Ok(0x9abc_def0_1234_5678));
    cpu.write(u64::MAX - 3, u64::MAX).unwrap();
    assert_eq!((get(&cpu, FRAMES[1] + 0xff8) >> 32, get(&cpu, 0)), (0xffff_ffff, 0xffff_ffff));
}

#[test]
fn alignment_is_checked_as_by_the_host() {
    // What an AMD processor of family 1Ah does, on `[rdi]`, at an offset from 16-byte alignment.
    const CASES: &[(&[u8], u64, Option<u8>)] = &[
        (&[0x8a, 0x07], 1, None),                   // mov al
        (&[0x66, 0x8b, 0x07], 1, Some(vector::AC)), // mov ax
        (&[0x8b, 0x07], 2, Some(vector::AC)),       // mov eax
        (&[0x8b, 0x07], 4, None),
        (&[0x48, 0x8b, 0x07], 4, Some(vector::AC)),       // mov rax
        (&[0x48, 0x01, 0x07], 4, Some(vector::AC)),       // add
        (&[0xf0, 0x01, 0x07], 1, Some(vector::AC)),       // lock add
        (&[0x0f, 0xa3, 0x07], 2, Some(vector::AC)),       // bt
        (&[0x0f, 0xc7, 0x0f], 4, Some(vector::AC)),       // cmpxchg8b
        (&[0x48, 0x0f, 0xc7, 0x0f], 8, Some(vector::GP)), // cmpxchg16b
        (&[0x0f, 0x10, 0x07], 8, Some(vector::AC)),       // movups
        (&[0x0f, 0x28, 0x07], 8, Some(vector::GP)),       // movaps
        (&[0x0f, 0x58, 0x07], 4, Some(vector::GP)),       // addps
        (&[0xf2, 0x0f, 0x10, 0x07], 4, Some(vector::AC)), // movsd
        (&[0x66, 0x0f, 0xf7, 0xc0], 1, Some(vector::AC)), // maskmovdqu, nothing to store
        (&[0x66, 0x0f, 0x38, 0x30, 0x07], 4, Some(vector::AC)), // pmovzxbw
        (&[0x66, 0x0f, 0x3a, 0x63, 0x07, 0], 1, Some(vector::AC)), // pcmpistri
        (&[0xdb, 0x2f], 4, Some(vector::AC)),             // fld tbyte
        (&[0xdb, 0x2f], 8, None),
        (&[0xdd, 0x37], 2, Some(vector::AC)), // fnsave
        (&[0xdd, 0x37], 4, None),
        (&[0xd9, 0x37], 2, Some(vector::AC)),       // fnstenv
        (&[0xd9, 0x3f], 1, Some(vector::AC)),       // fnstcw
        (&[0x0f, 0xae, 0x1f], 2, Some(vector::AC)), // stmxcsr
        (&[0xa4], 1, None),                         // movsb
        (&[0xf3, 0xa4], 1, None),                   // rep movsb
        (&[0xf3, 0x48, 0xa5], 1, Some(vector::AC)), // rep movsq
        (&[0x0f, 0xae, 0x3f], 1, None),             // clflush
    ];
    for &(bytes, offset, fault) in CASES {
        for (cpl, am, ac) in [(3, true, true), (3, false, true), (3, true, false), (0, true, true)] {
            let checked = (cpl, am, ac) == (3, true, true);
            let mut cpu = paged(cpl);
            cpu.state.cr0 |= if am { cr0::AM } else { 0 };
            cpu.state.rflags |= if ac { rflags::AC } else { 0 };
            cpu.mode_changed();
            cpu.state.gpr[reg::RDI] = L + 0x100 + offset;
            cpu.state.gpr[reg::RSI] = L + 0x200 + offset;
            cpu.state.gpr[reg::RCX] = 5;
            let expected = fault.filter(|vector| checked || *vector != vector::AC);
            let tell = format!("{bytes:x?} at {offset}, {cpl} {am} {ac}");
            // Again on what is cached by now.
            for _ in 0..2 {
                assert_eq!(generic(&mut cpu, bytes).map(|fault| fault.vector), expected, "{tell}");
                cpu.state.gpr[reg::RDI] = L + 0x100 + offset;
                cpu.state.gpr[reg::RSI] = L + 0x200 + offset;
            }
            assert_eq!(in_block(&mut cpu, bytes), expected, "{tell}");
        }
    }
}

#[test]
fn alignment_comes_behind_the_address_and_in_front_of_its_translation() {
    let mut cpu = paged(3);
    cpu.state.cr0 |= cr0::AM;
    cpu.state.rflags |= rflags::AC;
    cpu.mode_changed();
    let load: &[u8] = &[0x48, 0x8b, 0x07];
    for (linear, fault) in [
        (0x8000_0000_0001, Exception::gp(0)),
        (L + 0x2001, Exception::with_code(vector::AC, 0)),
        (L + 0x2008, Exception::pf(L + 0x2008, pf::U)),
    ] {
        cpu.state.gpr[reg::RDI] = linear;
        assert_eq!(generic(&mut cpu, load), Some(fault));
    }
    // The stack, too: push rax. The processor's own accesses are not checked.
    cpu.state.gpr[reg::RSP] = L + 0x104;
    assert_eq!(generic(&mut cpu, &[0x50]), Some(Exception::with_code(vector::AC, 0)));
    assert_eq!(cpu.state.gpr[reg::RSP], L + 0x104);
    assert!(cpu.read_system::<u64>(L + 0x101).is_ok());
}

#[test]
fn a_page_fault_drops_what_was_cached_for_its_address() {
    let mut cpu = paged(0);
    assert_eq!(cpu.read::<u8>(L), Ok(0));
    put(&cpu, PT, 0);
    // The manual allows the stale answer, until a fault (SDM 4.10.4.1).
    assert_eq!(cpu.read::<u8>(L), Ok(0));
    assert_eq!(cpu.write(L, 1u8), Err(Stop::Fault));
    assert_eq!(cpu.read::<u8>(L), Err(Stop::Fault));
}

#[test]
fn more_rights_need_no_invalidation() {
    let mut cpu = paged(3);
    put(&cpu, PT, FRAMES[0] | pte::P);
    assert_eq!(cpu.read_system::<u8>(L), Ok(0));
    assert_eq!(cpu.read::<u8>(L), Err(Stop::Fault));
    put(&cpu, PT, FRAMES[0] | OPEN);
    assert_eq!((cpu.read::<u8>(L), cpu.write(L, 7u8)), (Ok(0), Ok(())));
}

#[test]
fn tables_where_there_is_no_memory_hold_nothing() {
    let mut cpu = paged(0);
    put(&cpu, PD, 0x1234_5678_9000 & !0xfff | OPEN);
    assert_eq!(cpu.write(L, 1u8), Err(Stop::Fault));
    assert_eq!(cpu.pending.fault.take().map(|fault| fault.code), Some(Some(pf::W)));
    put(&cpu, PDPT, 0x3_ffff_f000 | OPEN);
    assert_eq!(cpu.read::<u8>(L), Err(Stop::Fault));
    assert_eq!(cpu.pending.fault.take().map(|fault| fault.code), Some(Some(0)));
}

#[test]
fn wrpkru_takes_and_gives_rights_at_once() {
    let mut cpu = paged(3);
    assert_eq!(generic(&mut cpu, &[0x0f, 0x01, 0xef]), Some(Exception::ud()), "CR4.PKE is clear");
    cpu.state.cr4 |= cr4::PKE;
    cpu.flush_tlb(false);
    put(&cpu, PT, FRAMES[0] | OPEN | 5 << pte::KEY_SHIFT);
    let set = |cpu: &mut Cpu, pkru: u64| {
        cpu.state.gpr[reg::RAX] = pkru | 0xdead << 32;
        (cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::RDX]) = (7 << 32, 7 << 32);
        assert_eq!(generic(cpu, &[0x0f, 0x01, 0xef]), None);
        assert_eq!(generic(cpu, &[0x0f, 0x01, 0xee]), None);
        assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.gpr[reg::RDX]), (pkru, 0));
    };
    let mut code = |pkru: u64, write: bool| {
        set(&mut cpu, pkru);
        let outcome = if write { cpu.write(L, 1u8) } else { cpu.read::<u8>(L).map(drop) };
        outcome.is_err().then(|| cpu.pending.fault.take().and_then(|fault| fault.code).unwrap())
    };
    assert_eq!((code(0, false), code(0, true)), (None, None));
    assert_eq!((code(2 << 10, false), code(2 << 10, true)), (None, Some(pf::P | pf::U | pf::W | pf::PK)));
    assert_eq!(code(1 << 10, false), Some(pf::P | pf::U | pf::PK));
    assert_eq!(code(!(3u64 << 10) & 0xffff_ffff, true), None, "the rights of other keys do not matter");
    for (rcx, rdx, bytes) in
        [(1, 0, [0x0f, 0x01, 0xef]), (0, 1, [0x0f, 0x01, 0xef]), (1, 0, [0x0f, 0x01, 0xee])]
    {
        (cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::RDX]) = (rcx, rdx);
        assert_eq!(generic(&mut cpu, &bytes), Some(Exception::gp(0)));
    }
}

#[test]
fn pae_paging_latches_its_pointers() {
    // MOV CR3, RAX; MOV CR4, RAX.
    const TO_CR3: &[u8] = &[0x0f, 0x22, 0xd8];
    const TO_CR4: &[u8] = &[0x0f, 0x22, 0xe0];
    let mut cpu = machine32();
    put(&cpu, PDPT, PD | pte::P);
    put(&cpu, PD, PT | OPEN);
    put(&cpu, PT, FRAMES[0] | OPEN);
    // PT's first page is at 0, the code's there too: identity for the rest of the piece.
    cpu.state.cr4 = cr4::PAE;
    cpu.state.cr0 |= cr0::PG;
    cpu.state.gpr[reg::RAX] = PDPT;
    assert_eq!(generic(&mut cpu, TO_CR3), None);
    assert_eq!(cpu.state.pdpte, [PD | pte::P, 0, 0, 0]);
    put(&cpu, PDPT, 0);
    cpu.flush_page(0);
    assert_eq!(cpu.read::<u8>(0), Ok(0), "INVLPG reloads nothing");
    cpu.state.gpr[reg::RAX] = cr4::PAE | cr4::PGE;
    assert_eq!(generic(&mut cpu, TO_CR4), None);
    assert_eq!(cpu.read::<u8>(0), Err(Stop::Fault), "a change of CR4.PGE does");
    assert_eq!(cpu.pending.fault.take(), Some(Exception::pf(0, 0)));
    for reserved in [1 << 1, 1 << 2, 1 << 5, 1 << 8, 1 << 46, 1 << 52, pte::NX] {
        put(&cpu, PDPT + 24, PD | pte::P | reserved);
        cpu.state.gpr[reg::RAX] = PDPT;
        assert_eq!(generic(&mut cpu, TO_CR3), Some(Exception::gp(0)), "{reserved:x}");
        put(&cpu, PDPT + 24, PD | reserved & !pte::P);
        assert_eq!(generic(&mut cpu, TO_CR3), None, "{reserved:x} in what is not present");
    }
    // A table where there is no memory.
    cpu.state.gpr[reg::RAX] = 0xfee0_0000;
    assert_eq!(generic(&mut cpu, TO_CR3), Some(Exception::gp(0)));
    assert_eq!(cpu.state.cr3, PDPT);
}

#[test]
fn without_its_feature_a_page_size_does_not_exist() {
    use satori_cpuid::Feature;
    let mut offered = Offered::EVERYTHING;
    offered.features.set(Feature::Pdpe1gb, false);
    offered.features.set(Feature::Pse36, false);
    let mut cpu = crate::testing::machine64_with(offered);
    put(&cpu, cpu.state.cr3 + 8, PDPT | OPEN);
    put(&cpu, PDPT, OPEN | pte::PS);
    let read = Access { write: false, user: false, fetch: false, ac: false };
    assert_eq!(cpu.walk(L, read).unwrap_err().code, Some(pf::P | pf::RSVD));
    (cpu.state.efer, cpu.state.cr4, cpu.state.cr3) = (efer::NXE, cr4::PSE, PD);
    cpu.state.seg[seg::CS].rights = 0xc09b;
    cpu.mode_changed();
    put(&cpu, PD, OPEN | pte::PS | 1 << 13);
    assert_eq!(cpu.walk(0x1234, read).unwrap_err().code, Some(pf::P | pf::RSVD));
    put(&cpu, PD, OPEN | pte::PS);
    assert_eq!(cpu.walk(0x1234, read).unwrap().gpa, 0x1234);
}

/// A vCPU of its own on the memory and with the registers of another.
fn sibling(cpu: &Cpu, world: &Arc<World>) -> Machine {
    let mut other = Cpu::new(
        PartitionParts {
            memory: cpu.memory.clone(),
            time: cpu.time().clone(),
            parallel: true,
            offered: Offered::EVERYTHING.into(),
        },
        VcpuParts { index: 1, entropy: Box::new(Numbers(1)) },
    );
    other.join(world);
    other.state = cpu.state.clone();
    Machine::new(other)
}

#[test]
fn a_lock_across_pages_is_atomic_against_everybody() {
    const ROUNDS: u64 = 100_000;
    const MORE: u64 = 20 * ROUNDS;
    let cpu = paged(0);
    let world = Arc::new(World::default());
    // lock inc qword [rdi]; lock inc word [rdi]; lock inc dword [rdi + 4]; each with
    // dec ecx; jnz: the first across the pages, the others within one.
    let loops: [(&[u8], u64); 4] = [
        (&[0xf0, 0x48, 0xff, 0x07, 0xff, 0xc9, 0x75, 0xf8, 0x0f, 0xa2], ROUNDS),
        (&[0xf0, 0x48, 0xff, 0x07, 0xff, 0xc9, 0x75, 0xf8, 0x0f, 0xa2], ROUNDS),
        (&[0xf0, 0x66, 0xff, 0x07, 0xff, 0xc9, 0x75, 0xf8, 0x0f, 0xa2], MORE),
        (&[0xf0, 0xff, 0x47, 0x04, 0xff, 0xc9, 0x75, 0xf8, 0x0f, 0xa2], MORE),
    ];
    let start = std::sync::Barrier::new(loops.len());
    std::thread::scope(|scope| {
        for (index, (code, rounds)) in loops.into_iter().enumerate() {
            let at = CODE + 0x1000 * index as u64;
            cpu.memory.write(Gpa(at), code).unwrap();
            let mut vcpu = sibling(&cpu, &world);
            vcpu.state.rip = at;
            vcpu.state.gpr[reg::RDI] = L + 0xffc;
            vcpu.state.gpr[reg::RCX] = rounds;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                assert!(matches!(vcpu.run(Until::default()), Exit::Cpuid { .. }));
            });
        }
    });
    let low = get(&cpu, FRAMES[0] + 0xff8) >> 32;
    let value = get(&cpu, FRAMES[1]) << 32 | low;
    // The word wraps around by itself.
    let carried = (value & 0xffff) == (2 * ROUNDS + MORE) & 0xffff;
    assert!(carried, "the low word lost a step: {value:x}");
    assert_eq!(value >> 32, MORE, "the high half lost a step: {value:x}");
}

#[test]
fn accessed_and_dirty_bits_race_with_stores_to_the_entry() {
    const ROUNDS: u64 = 50_000;
    let cpu = paged(0);
    let world = Arc::new(World::default());
    std::thread::scope(|scope| {
        for write in [false, true] {
            let mut vcpu = sibling(&cpu, &world);
            scope.spawn(move || {
                vcpu.mode_changed();
                let access = Access::data(Mode::Supervisor, write);
                for _ in 0..ROUNDS {
                    assert!(vcpu.walk(L, access).is_ok());
                }
            });
        }
        // Counts in bits 58:52, which are the software's, and clears A and D each time.
        let mut other = sibling(&cpu, &world);
        scope.spawn(move || {
            other.mode_changed();
            for _ in 0..ROUNDS {
                let step = |entry: u64| {
                    let count = (entry >> 52).wrapping_add(1) & 0x7f;
                    entry & !(0x7f << 52 | pte::A | pte::D) | count << 52
                };
                other.update(PT, true, step).unwrap();
            }
        });
    });
    let entry = get(&cpu, PT);
    assert_eq!(entry >> 52 & 0x7f, ROUNDS & 0x7f, "a step was overwritten");
    assert_eq!(entry & !(0x7f << 52 | pte::A | pte::D), FRAMES[0] | OPEN);
}
