//! LD1 and ST1: of one to four registers, of a lane, and of one that all lanes become.

use satori_arm_isa::Op;

use super::permute::{broadcast, extract, insert};
use crate::asm::{Alu, Label, RAX, RCX, Reg, Rm};
use crate::emit::Emit;

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(super) fn structures(&mut self, op: Op) -> bool {
        let registers = match op {
            Op::St1x1 | Op::St1x1Post => 1,
            Op::St1x2 | Op::St1x2Post => 2,
            Op::St1x3 | Op::St1x3Post => 3,
            Op::St1x4 | Op::St1x4Post => 4,
            Op::StLane | Op::StLanePost => return self.lane(),
            _ => return false,
        };
        let (load, bytes, first) = (self.bit(22), if self.bit(30) { 16 } else { 8 }, self.bits(4, 0));
        let hosts: Vec<Reg> =
            (0..registers).map(|at| if load { self.fresh() } else { self.v((first + at) % 32) }).collect();
        let (cold, back) = self.or_step();
        let total = registers * bytes;
        self.plain_address(cold);
        self.look_up(total, !load, cold);
        for (at, &host) in (0..).zip(&hosts) {
            let offset = (at * bytes) as i32;
            match load {
                true => self.load_vector(host, bytes, offset),
                false => self.store_vector(host, bytes, offset),
            }
        }
        self.finish_structure(load, total);
        if load {
            for (at, &host) in (0..).zip(&hosts) {
                self.put_vector((first + at) % 32, host, bytes as u8);
            }
        }
        self.over(back);
        true
    }

    /// The base becomes what is behind, and a written page is noticed.
    fn finish_structure(&mut self, load: bool, total: u32) {
        if !load {
            self.load_state();
        }
        if self.bit(23) {
            let base = self.r_sp(5);
            let to = self.rm(base);
            self.changed(base);
            match self.bits(20, 16) {
                31 => self.asm.alu_imm(true, Alu::Add, to, total as i32),
                register => {
                    let by = self.get(register as u8, RCX);
                    self.asm.op(true, &[0x01], by, to);
                }
            }
        }
        if !load {
            self.notice();
        }
    }

    /// One element: LD1, ST1 of a lane, LD1R.
    fn lane(&mut self) -> bool {
        let (opcode, s, low) = (self.bits(15, 13), self.bits(12, 12), self.bits(11, 10));
        if opcode & 1 != 0 || self.bit(21) {
            return false;
        }
        let (load, q, d) = (self.bit(22), self.bits(30, 30), self.bits(4, 0));
        let replicate = opcode == 6;
        let (size, index) = match opcode >> 1 {
            0 => (0, q << 3 | s << 2 | low),
            1 => (1, q << 2 | s << 1 | low >> 1),
            2 if low & 1 == 0 => (2, q << 1 | s),
            2 => (3, q),
            _ => (low, 0),
        };
        let old = if replicate { 0 } else { self.v(d) };
        let to = if load { self.fresh() } else { old };
        let (cold, back) = self.or_step();
        self.plain_address(cold);
        self.look_up(1 << size, !load, cold);
        let place = Rm::At(RAX, 0);
        match (load, replicate) {
            (true, true) => self.asm.vector(broadcast(size), to, 0, place, None),
            (true, false) => self.asm.vector(insert(size), to, old, place, Some(index as u8)),
            _ => self.asm.vector(extract(size), old, 0, place, Some(index as u8)),
        }
        self.finish_structure(load, 1 << size);
        if load {
            let bytes = if replicate && q == 0 { 8 } else { 16 };
            self.narrow_to(bytes, to, to);
            self.put_vector(d, to, bytes);
        }
        self.over(back);
        true
    }

    /// The base in RAX.
    fn plain_address(&mut self, cold: Label) {
        let base = self.r_sp(5);
        self.check_stack(base, cold);
        self.copy(base, RAX);
    }
}
