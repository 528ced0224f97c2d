//! VMRUN as L1 sees it: what a guest leaves behind, and that no VMCB is too much.

use satori_defs::svm::ExitCode;
use satori_defs::x86::efer;
use satori_engine::{Exit, Resume, Until};
use satori_memory::Gpa;
use satori_state::{reg, seg};
use satori_svm::vmcb::{Descriptor, USED, interrupt};
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
