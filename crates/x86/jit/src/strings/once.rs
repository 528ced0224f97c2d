//! String instructions that are not repeated: accesses through RSI and RDI, which are then moved on.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};
use satori_defs::x86::rflags;
use satori_state::{reg, seg};

use super::{RDI, RSI};
use crate::asm::{Mem, Reg, cc};
use crate::copy::{put_address, sized};
use crate::lower::Lower;
use crate::memory::Address;
use crate::narrow::is_flat;
use crate::reason;
use crate::stubs::{self, GUEST_RAX, S1, S2};

/// What is done with elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Movs,
    Stos,
    Lods,
    Cmps,
    Scas,
}

/// What an element goes through.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Load,
    Store,
    Compare,
}

/// What `insn` does, and the binary logarithm of its elements' size; nothing for others.
fn kind(insn: &Instruction) -> Option<(Kind, u8)> {
    Some(match insn.code() {
        Code::Movsb_m8_m8 => (Kind::Movs, 0),
        Code::Movsw_m16_m16 => (Kind::Movs, 1),
        Code::Movsd_m32_m32 => (Kind::Movs, 2),
        Code::Movsq_m64_m64 => (Kind::Movs, 3),
        Code::Stosb_m8_AL => (Kind::Stos, 0),
        Code::Stosw_m16_AX => (Kind::Stos, 1),
        Code::Stosd_m32_EAX => (Kind::Stos, 2),
        Code::Stosq_m64_RAX => (Kind::Stos, 3),
        Code::Lodsb_AL_m8 => (Kind::Lods, 0),
        Code::Lodsw_AX_m16 => (Kind::Lods, 1),
        Code::Lodsd_EAX_m32 => (Kind::Lods, 2),
        Code::Lodsq_RAX_m64 => (Kind::Lods, 3),
        Code::Cmpsb_m8_m8 => (Kind::Cmps, 0),
        Code::Cmpsw_m16_m16 => (Kind::Cmps, 1),
        Code::Cmpsd_m32_m32 => (Kind::Cmps, 2),
        Code::Cmpsq_m64_m64 => (Kind::Cmps, 3),
        Code::Scasb_AL_m8 => (Kind::Scas, 0),
        Code::Scasw_AX_m16 => (Kind::Scas, 1),
        Code::Scasd_EAX_m32 => (Kind::Scas, 2),
        Code::Scasq_RAX_m64 => (Kind::Scas, 3),
        _ => return None,
    })
}

impl Lower<'_> {
    /// Emits `insn` if it is a string instruction without a repetition; nothing is emitted otherwise.
    pub(super) fn once(&mut self, insn: &Instruction) -> bool {
        let Some((kind, shift)) = kind(insn) else { return false };
        let (from, to) = match self.narrow() {
            true => (OpKind::MemorySegESI, OpKind::MemoryESEDI),
            false => (OpKind::MemorySegRSI, OpKind::MemoryESRDI),
        };
        let usual = insn.op_kinds().all(|kind| kind == OpKind::Register || kind == from || kind == to);
        if !usual || insn.has_rep_prefix() || insn.has_repne_prefix() {
            return false;
        }
        let source = insn.memory_segment().number();
        let reads = matches!(kind, Kind::Movs | Kind::Lods | Kind::Cmps);
        let mode = self.block.code_mode;
        if self.narrow() && (reads && !is_flat(mode, source) || kind != Kind::Lods && !is_flat(mode, seg::ES))
        {
            return false;
        }
        let segment = matches!(source, seg::FS | seg::GS).then_some(source);
        let source = Address { base: Some(reg::RSI), segment, ..Address::stack(mode, 0) };
        let target = Address { base: Some(reg::RDI), ..Address::stack(mode, 0) };
        self.save_flags();
        let down = self.step(reason::STEP);
        self.asm.test_at(stubs::rflags_high(), (rflags::DF >> 8) as u8);
        self.asm.jcc(cc::NE, down);
        let size = 1 << shift;
        if matches!(kind, Kind::Movs | Kind::Cmps) {
            let (mem, _) = self.access(&source, size, false, 1);
            self.element(Way::Load, shift, S2, mem);
            self.asm.store(stubs::temporary(), S2);
        }
        let (way, place, value) = match kind {
            Kind::Movs => (Way::Store, &target, S2),
            Kind::Stos => (Way::Store, &target, GUEST_RAX),
            Kind::Lods => (Way::Load, &source, GUEST_RAX),
            Kind::Cmps => (Way::Compare, &target, S2),
            Kind::Scas => (Way::Compare, &target, GUEST_RAX),
        };
        let (mut mem, _) = self.access(place, size, kind == Kind::Movs || kind == Kind::Stos, 1);
        if value == S2 {
            if mem.index == Some((S2, 0)) {
                self.asm.lea(S1, mem);
                mem = Mem::at(S1, 0);
            }
            self.asm.load(S2, stubs::temporary());
        }
        self.element(way, shift, value, mem);
        if reads {
            self.move_on(RSI, size as i32);
        }
        if kind != Kind::Lods {
            self.move_on(RDI, size as i32);
        }
        if matches!(way, Way::Compare) {
            self.flags_made(insn);
        }
        true
    }

    /// Adds `by` to a register that elements are at; flags stay.
    fn move_on(&mut self, register: Reg, by: i32) {
        let sum = Mem::at(register, by);
        if self.narrow() { self.asm.lea32(register, sum) } else { self.asm.lea(register, sum) }
    }

    /// Does something with an element of `1 << shift` bytes at `mem` and the register `value`.
    pub(super) fn element(&mut self, way: Way, shift: u8, value: Reg, mem: Mem) {
        const LIKE: [Register; 4] = [Register::AL, Register::AX, Register::EAX, Register::RAX];
        const LOAD: [Code; 4] =
            [Code::Mov_r8_rm8, Code::Mov_r16_rm16, Code::Mov_r32_rm32, Code::Mov_r64_rm64];
        const STORE: [Code; 4] =
            [Code::Mov_rm8_r8, Code::Mov_rm16_r16, Code::Mov_rm32_r32, Code::Mov_rm64_r64];
        const COMPARE: [Code; 4] =
            [Code::Cmp_r8_rm8, Code::Cmp_r16_rm16, Code::Cmp_r32_rm32, Code::Cmp_r64_rm64];
        let shift = usize::from(shift);
        let register = sized(value.0, LIKE[shift]);
        let memory = MemoryOperand::with_base(Register::RAX);
        let made = match way {
            Way::Load => Instruction::with2(LOAD[shift], register, memory),
            Way::Store => Instruction::with2(STORE[shift], memory, register),
            Way::Compare => Instruction::with2(COMPARE[shift], register, memory),
        };
        let copied = made.is_ok_and(|mut insn| {
            put_address(&mut insn, mem);
            self.asm.copy(&insn)
        });
        debug_assert!(copied, "every size has a form for a register and memory");
    }
}
