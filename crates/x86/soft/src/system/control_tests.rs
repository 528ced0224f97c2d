//! What control registers refuse, and what their instructions do to translations.

use satori_defs::x86::{cr0, cr4, efer, pte};
use satori_engine::{Exception, Resume};
use satori_memory::Gpa;
use satori_state::{reg, seg};

use crate::cpu::{Cpu, Stop};
use crate::insn;
use crate::testing::{decode, execute, machine32, machine64};

/// MOV CRn, RAX.
const TO_CR0: &[u8] = &[0x0f, 0x22, 0xc0];
const TO_CR3: &[u8] = &[0x0f, 0x22, 0xd8];
const TO_CR4: &[u8] = &[0x0f, 0x22, 0xe0];
/// INVPCID RAX, [RDI].
const INVPCID: &[u8] = &[0x66, 0x0f, 0x38, 0x82, 0x07];
const GP: Option<Exception> = Some(Exception::gp(0));

/// Executes one instruction, for which the machine agrees to everything.
fn run(cpu: &mut Cpu, bytes: &[u8]) -> Option<Exception> {
    let insn = decode(cpu, bytes);
    loop {
        match execute(cpu, &insn, insn::handler(&insn)) {
            Ok(()) => {
                cpu.resume(Resume::Continue);
                return None;
            }
            Err(Stop::Exit) => cpu.resume(Resume::Done),
            Err(stop) => {
                assert_eq!(stop, Stop::Fault);
                cpu.resume(Resume::Continue);
                return cpu.pending.fault.take();
            }
        }
    }
}

fn with_rax(cpu: &mut Cpu, bytes: &[u8], rax: u64) -> Option<Exception> {
    cpu.state.gpr[reg::RAX] = rax;
    run(cpu, bytes)
}

#[test]
fn cr0_refuses_what_contradicts_itself() {
    let mut cpu = machine64();
    let state = cpu.state.clone();
    for value in [state.cr0 & !cr0::PE, state.cr0 & !cr0::PG, state.cr0 | cr0::NW, state.cr0 | 1 << 32] {
        assert_eq!(with_rax(&mut cpu, TO_CR0, value), GP, "{value:x}");
        assert_eq!(cpu.state.cr0, state.cr0);
    }
    // Reserved bits of the low half are ignored.
    assert_eq!(with_rax(&mut cpu, TO_CR0, state.cr0 | 1 << 15 | 1 << 28), None);
    assert_eq!(cpu.state.cr0, state.cr0);
}

#[test]
fn entering_long_mode_is_checked() {
    type Spoil = fn(&mut Cpu);
    let cases: [(Spoil, bool); 4] = [
        (|_| {}, true),
        (|cpu| cpu.state.cr4 = 0, false),
        (|cpu| cpu.state.seg[seg::CS].rights |= 1 << 13, false),
        (|cpu| cpu.state.tr.rights = 0x83, false),
    ];
    for (spoil, enters) in cases {
        let mut cpu = machine32();
        cpu.state.efer = efer::LME;
        cpu.state.cr4 = cr4::PAE;
        spoil(&mut cpu);
        cpu.mode_changed();
        let value = cpu.state.cr0 | cr0::PG;
        assert_eq!(with_rax(&mut cpu, TO_CR0, value).is_none(), enters);
        assert_eq!(cpu.state.efer & efer::LMA != 0, enters);
        assert_eq!(cpu.state.cr0 & cr0::PG != 0, enters);
    }
}

#[test]
fn process_contexts_have_their_rules() {
    let mut cpu = machine64();
    let (cr3, cr4) = (cpu.state.cr3, cpu.state.cr4);
    assert_eq!(with_rax(&mut cpu, TO_CR3, cr3 | 1 << 63), GP, "bit 63 is reserved without CR4.PCIDE");
    assert_eq!(with_rax(&mut cpu, TO_CR3, cr3 | 1 << 46), GP);
    assert_eq!(with_rax(&mut cpu, TO_CR3, cr3 | 5), None);
    assert_eq!(with_rax(&mut cpu, TO_CR4, cr4 | cr4::PCIDE), GP, "CR3 names a context already");
    assert_eq!(with_rax(&mut cpu, TO_CR3, cr3), None);
    assert_eq!(with_rax(&mut cpu, TO_CR4, cr4 | cr4::PCIDE), None);
    assert_eq!(with_rax(&mut cpu, TO_CR3, cr3 | 5 | 1 << 63), None);
    assert_eq!(cpu.state.cr3, cr3 | 5, "bit 63 is not kept");
    assert_eq!(with_rax(&mut cpu, TO_CR3, cr3 | 1 << 62), GP);
    // Out of 64-bit code, paging cannot be left with contexts in use.
    cpu.state.seg[seg::CS].rights = 0xc09b;
    cpu.mode_changed();
    let value = cpu.state.cr0 & !cr0::PG;
    assert_eq!(with_rax(&mut cpu, TO_CR0, value), GP);
    let mut cpu = machine32();
    assert_eq!(with_rax(&mut cpu, TO_CR4, cr4::PAE | cr4::PCIDE), GP, "nor entered outside long mode");
}

#[test]
fn invpcid_refuses_bad_descriptors() {
    let at = 0x3_0000u64;
    let mut cpu = machine64();
    let invpcid = |cpu: &mut Cpu, kind: u64, pcid: u64, address: u64| {
        cpu.memory.write(Gpa(at), &(u128::from(address) << 64 | u128::from(pcid)).to_le_bytes()).unwrap();
        cpu.state.gpr[reg::RDI] = at;
        with_rax(cpu, INVPCID, kind)
    };
    for kind in 0..4 {
        assert_eq!(invpcid(&mut cpu, kind, 0, 0), None);
        assert_eq!(invpcid(&mut cpu, kind, 1 << 12, 0), GP, "reserved bits, type {kind}");
        let individual = if kind < 2 { GP } else { None };
        assert_eq!(invpcid(&mut cpu, kind, 5, 0), individual, "without CR4.PCIDE, type {kind}");
        let addressed = if kind == 0 { GP } else { None };
        assert_eq!(invpcid(&mut cpu, kind, 0, 1 << 47), addressed, "not canonical, type {kind}");
    }
    assert_eq!(invpcid(&mut cpu, 4, 0, 0), GP);
    assert_eq!(invpcid(&mut cpu, 1 << 32, 0, 0), GP);
    cpu.state.cr4 |= cr4::PCIDE;
    assert_eq!(invpcid(&mut cpu, 0, 5, 0), None);
    cpu.state.seg[seg::SS].rights |= 3 << 5;
    cpu.mode_changed();
    assert_eq!(invpcid(&mut cpu, 2, 0, 0), GP, "privilege level 3");
}

/// The page at 0x200000, which is large, is put where another frame shows.
#[test]
fn global_translations_survive_what_they_should() {
    // The page directory of the first gigabyte.
    let entry_at = Gpa(0x3008);
    let linear = 0x20_0000u64;
    let cases: [(&[u8], u64, bool); 5] = [
        (TO_CR3, 0x1000, true),
        (INVPCID, 1, true),
        (INVPCID, 3, true),
        (INVPCID, 2, false),
        (&[0x0f, 0x01, 0x3f], 0, false), // invlpg [rdi]
    ];
    for (bytes, rax, survives) in cases {
        for global in [false, true] {
            let mut cpu = machine64();
            let entry = cpu.memory.read_u64(entry_at).unwrap();
            let g = if global { pte::G } else { 0 };
            cpu.memory.write(entry_at, &(entry | g).to_le_bytes()).unwrap();
            cpu.memory.write(Gpa(linear + 0x5000), &[7]).unwrap();
            assert_eq!(cpu.read::<u8>(linear + 0x5000), Ok(7));
            cpu.memory.write(entry_at, &0u64.to_le_bytes()).unwrap();
            cpu.state.gpr[reg::RDI] = if bytes == INVPCID { 0x3_0000 } else { linear };
            let rax = if bytes == TO_CR3 { cpu.state.cr3 } else { rax };
            assert_eq!(with_rax(&mut cpu, bytes, rax), None);
            let found = cpu.read::<u8>(linear + 0x5000).is_ok();
            assert_eq!(found, global && survives, "{bytes:x?} {rax:x} global {global}");
        }
    }
}

#[test]
fn umip_keeps_tables_from_every_level_but_0() {
    // sgdt, sidt [rdi]; sldt, str, smsw eax.
    let prevented: [&[u8]; 5] = [
        &[0x0f, 0x01, 0x07],
        &[0x0f, 0x01, 0x0f],
        &[0x0f, 0x00, 0xc0],
        &[0x0f, 0x00, 0xc8],
        &[0x0f, 0x01, 0xe0],
    ];
    for cpl in 0..4u32 {
        for umip in [0, cr4::UMIP] {
            let mut cpu = machine64();
            cpu.state.cr4 |= umip;
            for register in [seg::CS, seg::SS] {
                cpu.state.seg[register].rights |= cpl << 5;
            }
            cpu.mode_changed();
            cpu.state.gpr[reg::RDI] = 0x3_0000;
            for bytes in prevented {
                let expected = if umip != 0 && cpl != 0 { GP } else { None };
                assert_eq!(run(&mut cpu, bytes), expected, "{bytes:x?} at level {cpl}");
            }
        }
    }
}
