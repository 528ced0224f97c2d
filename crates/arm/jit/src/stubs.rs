//! Code that all blocks share: the way in, the way out, and calls of the interpreter.

use std::mem::offset_of;

use satori_arm_soft::Cpu;
use satori_arm_state::CpuState;

use crate::asm::{Alu, Asm, FILE, LEFT, PAGES, RAX, RCX, RDI, RDX, RSI, RSP, Rm, cc, shift};
use crate::constants;
use crate::emit::{PINNED, Places, field, pin, place, reason};

/// Offsets of the stubs in their code.
pub(crate) struct Stubs {
    pub code: Vec<u8>,
    pub enter: u64,
    pub places: Places,
}

fn spill(asm: &mut Asm, tables: Rm) {
    for guest in PINNED {
        if let Some(host) = pin(guest) {
            asm.store(true, place(guest), host);
        }
    }
    asm.store(true, field(offset_of!(Cpu, left)), LEFT);
    // MXCSR becomes the host's, and FPSR has the flags. X6 and X7 are saved.
    let own = asm.label();
    asm.alu_imm(false, Alu::Cmp, field(offset_of!(Cpu, mxcsr_is_guest)), 0);
    asm.jump_if(cc::E, own);
    let status = field(offset_of!(Cpu, mxcsr));
    // STMXCSR
    asm.op(false, &[0x0f, 0xae], 3, status);
    asm.mov(false, RSI, status);
    asm.mov(false, RDI, Rm::Reg(RSI));
    // Invalid is IOC; division by zero, overflow, underflow and inexact are a bit above DZC, OFC, UFC and IXC. Denormal is none.
    asm.alu_imm(false, Alu::And, Rm::Reg(RSI), 1);
    asm.shift(false, shift::SHR, RDI, 1);
    asm.alu_imm(false, Alu::And, Rm::Reg(RDI), 0x1e);
    asm.alu(false, Alu::Or, RSI, Rm::Reg(RDI));
    asm.op(false, &[0x09], RSI, field(offset_of!(Cpu, s) + offset_of!(CpuState, fpsr)));
    load_mxcsr(asm, tables);
    asm.op(false, &[0xc7], 0, field(offset_of!(Cpu, mxcsr_is_guest)));
    asm.bytes(&[0; 4]);
    asm.bind(own);
}

/// MXCSR when no guest's code executes, and by FPCR.RMode: all exceptions masked, no flag set.
const MXCSR: [u32; 5] = [0x1f80, 0x1f80, 0x1f80 | 2 << 13, 0x1f80 | 1 << 13, 0x1f80 | 3 << 13];

fn load_mxcsr(asm: &mut Asm, from: Rm) {
    // LDMXCSR
    asm.op(false, &[0x0f, 0xae], 2, from);
}

fn reload(asm: &mut Asm) {
    for guest in PINNED {
        if let Some(host) = pin(guest) {
            asm.mov(true, host, Rm::At(FILE, (i32::from(guest) - 16) * 8));
        }
    }
    asm.mov(true, LEFT, field(offset_of!(Cpu, left)));
}

/// The stubs of a vCPU, for code memory that is executed at `origin`. `step` and `wrote` are called with `jit` and what translated code
/// has for them.
pub(crate) fn stubs(origin: u64, jit: u64, step: u64, wrote: u64) -> Stubs {
    let mut asm = Asm::new(origin);
    let constants = origin;
    asm.bytes(&constants::bytes());
    let tables = Rm::Near(origin + asm.code.len() as u64);
    MXCSR.iter().for_each(|value| asm.bytes(&value.to_le_bytes()));
    let enter = origin + asm.code.len() as u64;
    // enter(file, pages, left, code): what the convention preserves is kept, and the stack is aligned to 16 bytes.
    asm.bytes(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
    asm.alu_imm(true, Alu::Sub, Rm::Reg(RSP), 8);
    asm.mov(true, FILE, Rm::Reg(RDI));
    asm.mov(true, PAGES, Rm::Reg(RSI));
    reload(&mut asm);
    // The caller stored LEFT; its code is in RCX.
    asm.op(false, &[0xff], 4, Rm::Reg(RCX));
    // The way out: reason in EAX, datum in EDX.
    let exit = origin + asm.code.len() as u64;
    spill(&mut asm, tables);
    let leave = asm.label();
    asm.bind(leave);
    asm.alu_imm(true, Alu::Add, Rm::Reg(RSP), 8);
    asm.bytes(&[0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    // One instruction by the interpreter: its Call is in RAX.
    let place_of_step = origin + asm.code.len() as u64;
    let stopped = asm.label();
    spill(&mut asm, tables);
    asm.alu_imm(true, Alu::Sub, Rm::Reg(RSP), 8);
    asm.constant(RDI, jit);
    asm.mov(true, RSI, Rm::Reg(RAX));
    asm.constant(RAX, step);
    asm.op(false, &[0xff], 2, Rm::Reg(RAX));
    asm.alu_imm(true, Alu::Add, Rm::Reg(RSP), 8);
    asm.op(false, &[0x85], RAX, Rm::Reg(RAX));
    asm.jump_if(cc::NE, stopped);
    reload(&mut asm);
    asm.bytes(&[0xc3]);
    asm.bind(stopped);
    // The return address into the block.
    asm.alu_imm(true, Alu::Add, Rm::Reg(RSP), 8);
    asm.constant(RAX, reason::STOPPED.into());
    asm.jump(leave);
    // A page was written: its state is in RDX.
    let place_of_wrote = origin + asm.code.len() as u64;
    spill(&mut asm, tables);
    asm.alu_imm(true, Alu::Sub, Rm::Reg(RSP), 8);
    asm.mov(true, RDI, Rm::Reg(RDX));
    asm.constant(RAX, wrote);
    asm.op(false, &[0xff], 2, Rm::Reg(RAX));
    asm.alu_imm(true, Alu::Add, Rm::Reg(RSP), 8);
    reload(&mut asm);
    asm.bytes(&[0xc3]);
    // MXCSR becomes the guest's.
    let environment = origin + asm.code.len() as u64;
    asm.mov(false, RAX, field(offset_of!(Cpu, s) + offset_of!(CpuState, fpcr)));
    asm.shift(false, shift::SHR, RAX, 22);
    asm.alu_imm(false, Alu::And, Rm::Reg(RAX), 3);
    asm.lea(true, RCX, tables);
    load_mxcsr(&mut asm, Rm::Sum(RCX, RAX, 2, 4));
    asm.op(false, &[0xc7], 0, field(offset_of!(Cpu, mxcsr_is_guest)));
    asm.bytes(&1_u32.to_le_bytes());
    asm.bytes(&[0xc3]);
    asm.resolve();
    let (step, wrote) = (place_of_step, place_of_wrote);
    let places = Places { exit, step, wrote, environment, constants, targets: 0 };
    Stubs { code: asm.code, enter, places }
}
