//! Code that all blocks share: the way in, the way out, and calls of the interpreter.

use std::mem::offset_of;

use satori_arm_soft::Cpu;

use crate::asm::{Asm, FILE, LEFT, PAGES, RAX, RCX, RDI, RDX, RSI, RSP, Rm, cc};
use crate::emit::{PINNED, Places, field, pin, place, reason};

/// Offsets of the stubs in their code.
pub(crate) struct Stubs {
    pub code: Vec<u8>,
    pub enter: u64,
    pub places: Places,
}

fn spill(asm: &mut Asm) {
    for guest in PINNED {
        if let Some(host) = pin(guest) {
            asm.store(true, place(guest), host);
        }
    }
    asm.store(true, field(offset_of!(Cpu, left)), LEFT);
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
    // enter(file, pages, left, code): what the convention preserves is kept, and the stack is aligned to 16 bytes.
    asm.bytes(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
    asm.alu_imm(true, crate::asm::Alu::Sub, Rm::Reg(RSP), 8);
    asm.mov(true, FILE, Rm::Reg(RDI));
    asm.mov(true, PAGES, Rm::Reg(RSI));
    reload(&mut asm);
    // The caller stored LEFT; its code is in RCX.
    asm.op(false, &[0xff], 4, Rm::Reg(RCX));
    // The way out: reason in EAX, datum in EDX.
    let exit = origin + asm.code.len() as u64;
    spill(&mut asm);
    let leave = asm.label();
    asm.bind(leave);
    asm.alu_imm(true, crate::asm::Alu::Add, Rm::Reg(RSP), 8);
    asm.bytes(&[0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    // One instruction by the interpreter: its Call is in RAX.
    let place_of_step = origin + asm.code.len() as u64;
    let stopped = asm.label();
    spill(&mut asm);
    asm.alu_imm(true, crate::asm::Alu::Sub, Rm::Reg(RSP), 8);
    asm.constant(RDI, jit);
    asm.mov(true, RSI, Rm::Reg(RAX));
    asm.constant(RAX, step);
    asm.op(false, &[0xff], 2, Rm::Reg(RAX));
    asm.alu_imm(true, crate::asm::Alu::Add, Rm::Reg(RSP), 8);
    asm.op(false, &[0x85], RAX, Rm::Reg(RAX));
    asm.jump_if(cc::NE, stopped);
    reload(&mut asm);
    asm.bytes(&[0xc3]);
    asm.bind(stopped);
    // The return address into the block.
    asm.alu_imm(true, crate::asm::Alu::Add, Rm::Reg(RSP), 8);
    asm.constant(RAX, reason::STOPPED.into());
    asm.jump(leave);
    // A page was written: its state is in RDX.
    let place_of_wrote = origin + asm.code.len() as u64;
    spill(&mut asm);
    asm.alu_imm(true, crate::asm::Alu::Sub, Rm::Reg(RSP), 8);
    asm.mov(true, RDI, Rm::Reg(RDX));
    asm.constant(RAX, wrote);
    asm.op(false, &[0xff], 2, Rm::Reg(RAX));
    asm.alu_imm(true, crate::asm::Alu::Add, Rm::Reg(RSP), 8);
    reload(&mut asm);
    asm.bytes(&[0xc3]);
    asm.resolve();
    let places = Places { exit, step: place_of_step, wrote: place_of_wrote, targets: 0 };
    Stubs { code: asm.code, enter: origin, places }
}
