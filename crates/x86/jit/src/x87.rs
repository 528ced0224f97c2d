//! x87 and MMX instructions, which are copied as they are.
//!
//! While they run, the x87 registers are the guest's own in the host, as vectors are, with the
//! guest's control word; all its exceptions are masked. What the guest's last instruction and operand
//! were is kept in the register file, as the host would tell of its own. Code of the monitor
//! that does not look at these registers leaves them loaded.

#[cfg(test)]
mod tests;

use std::mem::offset_of;

use iced_x86::{Code, Instruction, OpKind, Register};
use satori_defs::fpu::{fcw, fxsave};
use satori_state::FpuState;

use super::Context;
use super::asm::{Alu, Asm, Label, Mem, Reg, cc, field};
use super::lower::Lower;
use super::memory::Address;
use super::reason;
use super::stubs::{self, GUEST_RAX, S1, S2};
use super::vector::fpu;
use crate::Translating;
use satori_soft::fpu::{Image, computes};

/// The x87 part of an XSAVE area.
#[repr(C, align(64))]
pub(crate) struct Area {
    image: Image,
    /// XSTATE_BV and the rest of the header.
    header: [u64; 8],
}

impl Area {
    pub(crate) fn new() -> Self {
        Area { image: Image::new(&FpuState::default()), header: [1, 0, 0, 0, 0, 0, 0, 0] }
    }
}

const _: () = assert!(offset_of!(Area, header) == fxsave::SIZE);

/// Whether `insn` is one of the x87 that [`Lower::x87`] may copy if exceptions are masked.
pub(crate) fn is_x87(insn: &Instruction) -> bool {
    is_control(insn) || computes(insn)
}

/// Instructions that are not recorded as the last one.
fn is_control(insn: &Instruction) -> bool {
    matches!(insn.code(), Code::Fldcw_m2byte | Code::Fnstcw_m2byte | Code::Fnstsw_m2byte | Code::Fnstsw_AX)
}

impl Translating {
    /// Brings the register file up to date with x87 registers that translated code stored.
    #[inline(always)]
    pub(crate) fn collect_x87(&mut self) {
        if self.context.x87_stored != 0 {
            self.context.x87_stored = 0;
            self.context.x87.image.store(&mut self.cpu.state.fpu);
        }
    }
}

/// Called by translated code: writes down the x87 registers so that it can load them.
extern "sysv64" fn prepare(vcpu: &mut Translating, _: u64) -> u64 {
    vcpu.collect_x87();
    vcpu.context.x87 = Area { image: Image::new(&vcpu.cpu.state.fpu), ..Area::new() };
    0
}

impl Lower<'_> {
    /// Emits `insn` as a copy of itself if it is one of the x87 without other registers; false if
    /// that is not possible, whatever was emitted.
    pub(crate) fn x87(&mut self, insn: &Instruction) -> bool {
        if !self.block.units.x87 || !is_x87(insn) {
            return false;
        }
        let held = self.places.held.take();
        if insn.code() == Code::Fldcw_m2byte {
            return self.load_control(insn);
        }
        let effect = self.block.effects[self.current.at];
        let mut copy = *insn;
        if insn.op0_kind() == OpKind::Memory {
            let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
            let size = insn.memory_size().size() as u32;
            if size == 0 || size > 16 || effect.needs {
                return false;
            }
            let info = self.info.info_options(insn, super::copy::ACCESSES);
            let write = super::copy::writes(info.op0_access());
            let (mem, _) = self.access(&address, size, write, 1);
            super::copy::put_address(&mut copy, mem);
            if !self.asm.copy(&copy) {
                return false;
            }
            if !is_control(insn) {
                // The offset, without a segment's base.
                self.effective(S2, &Address { segment: None, ..address }, 0);
                self.asm.store(fpu(offset_of!(FpuState, fdp)), S2);
            }
        } else if insn.op0_register() == Register::AX {
            self.save_flags();
            self.asm.mov(S1, GUEST_RAX);
            self.asm.copy(&copy);
            self.asm.mov(GUEST_RAX, S1);
            self.places.held = held;
        } else {
            if effect.needs {
                self.restore_flags();
            }
            if !self.asm.copy(&copy) {
                return false;
            }
            if effect.changes {
                self.flags_made(insn);
            }
            self.places.held = held;
        }
        // Behind a store to code, the next instruction may never come.
        if !is_control(insn) && (self.current.stores || !self.current.noted_by_next) {
            match i32::try_from(self.current.rip as i64) {
                Ok(short) if !self.asm.moves() => self.asm.store_imm(fpu(offset_of!(FpuState, fip)), short),
                _ => {
                    self.places.held = None;
                    self.asm.linear(S2, self.current.rip);
                    self.asm.store(fpu(offset_of!(FpuState, fip)), S2);
                }
            }
        }
        true
    }

    /// FLDCW, as around each conversion to an integer that cuts off. A word that does not mask all exceptions is left to the interpreter.
    fn load_control(&mut self, insn: &Instruction) -> bool {
        let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
        let (mem, _) = self.access(&address, size_of::<u16>() as u32, false, 1);
        self.asm.load16(S2, mem);
        self.spare_flags();
        let unmasks = self.step(reason::STEP);
        self.asm.mov32(S1, S2);
        self.asm.alu_imm32(Alu::And, S1, fcw::MASKS.into());
        self.asm.alu_imm32(Alu::Cmp, S1, fcw::MASKS.into());
        self.asm.jcc(cc::NE, unmasks);
        self.asm.alu_imm32(Alu::And, S2, fcw::WRITABLE.into());
        self.asm.alu_imm32(Alu::Or, S2, fcw::FIXED.into());
        // The word is the register file's at any time: `Image::store` does not take it from the host.
        self.asm.store16(fpu(offset_of!(FpuState, fcw)), S2);
        self.asm.load_x87_control(fpu(offset_of!(FpuState, fcw)));
        true
    }

    /// At the start of a block that uses the x87: tests whether the host's x87 holds the guest's state, and jumps to the first label,
    /// where [`Lower::emit_load`] puts the load, if not. The load comes back to the second.
    pub(crate) fn check_x87(&mut self) -> (Label, Label) {
        let missing = self.asm.label();
        self.asm.alu_byte(Alu::Cmp, loaded(), 0);
        self.asm.jcc(cc::E, missing);
        (missing, self.asm.bound())
    }
}

/// Whether `next` is certain to be recorded as the last instruction, so that the one before need not be.
pub(crate) fn notes(next: &Instruction) -> bool {
    computes(next) && next.op0_kind() != OpKind::Memory
}

macro_rules! context {
    ($field:ident) => {
        field(offset_of!(Translating, context) + offset_of!(Context, $field))
    };
}

fn loaded() -> Mem {
    context!(x87_loaded)
}

const RDX: Reg = Reg(2);

/// A function that loads the x87 registers. Flags, scratch registers and vectors are lost.
pub(crate) fn emit_load(asm: &mut Asm, store_vectors: u64) {
    let prepared = asm.label();
    super::vector::emit_leave(asm, store_vectors);
    asm.alu_imm(Alu::Sub, Reg(4), 8);
    asm.call(prepared);
    asm.alu_imm(Alu::Add, Reg(4), 8);
    only_x87(asm, |asm| asm.restore_state(context!(x87)));
    asm.store_byte(loaded(), 1);
    asm.ret();
    asm.bind(prepared);
    stubs::call(asm, prepare as *const () as u64, &[S1]);
}

/// A function that stores them, and clears the host's. It changes nothing else.
pub(crate) fn emit_store(asm: &mut Asm) {
    asm.store(context!(spare), S1);
    only_x87(asm, |asm| asm.save_state(context!(x87)));
    // FNINIT.
    asm.bytes(&[0xdb, 0xe3]);
    asm.load(S1, context!(spare));
    asm.store_byte(loaded(), 0);
    asm.store_byte(context!(x87_stored), 1);
    asm.ret();
}

/// Has `state` work on the x87's component only; S1 is lost.
fn only_x87(asm: &mut Asm, state: impl FnOnce(&mut Asm)) {
    asm.store(context!(temporary), RDX);
    asm.constant(S1, 1);
    asm.constant(RDX, 0);
    state(asm);
    asm.load(RDX, context!(temporary));
}

/// Stores the x87 registers if they are loaded; flags are lost.
pub(crate) fn emit_leave(asm: &mut Asm, store: u64) {
    let not_loaded = asm.label();
    asm.alu_byte(Alu::Cmp, loaded(), 0);
    asm.jcc(cc::E, not_loaded);
    asm.call_to(store);
    asm.bind(not_loaded);
}
