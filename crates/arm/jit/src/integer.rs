//! Arithmetic and logic of general registers.

use satori_arm_isa::{Op, logical_immediate};

use crate::asm::{Alu, RAX, RCX, RDX, Reg, Rm, cc, shift};
use crate::emit::{Emit, ZERO};

/// The host's condition for a condition of the guest, but for the two that always hold.
pub(crate) fn condition(code: u32) -> Option<u8> {
    const EVEN: [u8; 7] = [4, 3, 8, 0, 7, 0xd, 0xf];
    EVEN.get(code as usize >> 1).map(|even| even ^ (code as u8 & 1))
}

/// A second operand.
enum Second {
    Rm(Rm),
    Imm(u64),
}

/// A mask that a 32-bit immediate of the host expresses.
fn immediate(value: u64, wide: bool) -> Option<i32> {
    if wide { i32::try_from(value as i64).ok() } else { Some(value as u32 as i32) }
}

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(crate) fn integer(&mut self, op: Op) -> bool {
        let wide = self.bit(31);
        match op {
            Op::Adr | Op::Adrp => self.adr(op == Op::Adrp),
            Op::AddImm | Op::SubImm => self.add_immediate(op == Op::SubImm, wide),
            Op::AddsImm | Op::SubsImm => {
                let value = u64::from(self.bits(21, 10)) << (12 * self.bits(22, 22));
                self.with_flags(op == Op::SubsImm, wide, self.r_sp(5), Second::Imm(value));
            }
            Op::AndImm | Op::OrrImm | Op::EorImm | Op::AndsImm => self.logic_immediate(op, wide),
            Op::Movn | Op::Movz | Op::Movk => self.move_wide(op, wide),
            Op::Sbfm | Op::Ubfm | Op::Bfm => self.bitfield(op, wide),
            Op::Extr => self.extract(wide),
            Op::AndReg
            | Op::BicReg
            | Op::OrrReg
            | Op::OrnReg
            | Op::EorReg
            | Op::EonReg
            | Op::AndsReg
            | Op::BicsReg => self.logic_register(op, wide),
            Op::AddReg | Op::SubReg => {
                let second = self.shifted(wide);
                self.without_flags(op == Op::SubReg, wide, self.r(5), self.r(0), second);
            }
            Op::AddsReg | Op::SubsReg => {
                let second = self.shifted(wide);
                self.with_flags(op == Op::SubsReg, wide, self.r(5), Second::Rm(second));
            }
            Op::AddExt | Op::SubExt => {
                let second = self.extended(wide);
                self.without_flags(op == Op::SubExt, wide, self.r_sp(5), self.r_sp(0), second);
            }
            Op::AddsExt | Op::SubsExt => {
                let second = self.extended(wide);
                self.with_flags(op == Op::SubsExt, wide, self.r_sp(5), Second::Rm(second));
            }
            Op::Adc | Op::Adcs | Op::Sbc | Op::Sbcs => self.with_carry(op, wide),
            Op::CcmnReg | Op::CcmpReg | Op::CcmnImm | Op::CcmpImm => self.compare_if(op, wide),
            Op::Csel | Op::Csinc | Op::Csinv | Op::Csneg => self.select(op, wide),
            Op::Udiv | Op::Sdiv => self.divide(op == Op::Sdiv, wide),
            Op::Lslv | Op::Lsrv | Op::Asrv | Op::Rorv => self.shift_register(op, wide),
            Op::Rev32 | Op::Rev64 => return self.reverse(op, wide),
            Op::Madd | Op::Msub => self.multiply(op == Op::Msub, wide),
            Op::Smaddl | Op::Smsubl | Op::Umaddl | Op::Umsubl => self.multiply_long(op),
            Op::Smulh | Op::Umulh => self.multiply_high(op == Op::Smulh),
            _ => return false,
        }
        true
    }

    fn adr(&mut self, page: bool) {
        let offset = (u64::from(self.bits(23, 5)) << 2 | u64::from(self.bits(30, 29))) << 43;
        let offset = ((offset as i64) >> 43) as u64;
        let value = match page {
            true => (self.pc & !0xfff).wrapping_add(offset << 12),
            false => self.pc.wrapping_add(offset),
        };
        self.put_constant(self.r(0), value);
        self.flags = self.flags_before;
    }

    fn add_immediate(&mut self, sub: bool, wide: bool) {
        let (d, n) = (self.r_sp(0), self.r_sp(5));
        let value = i32::try_from(self.bits(21, 10) << (12 * self.bits(22, 22))).unwrap_or_default();
        let value = if sub { -value } else { value };
        self.flags = self.flags_before;
        if let Some(known) = self.known(n) {
            let sum = known.wrapping_add(value as u64);
            return self.put_constant(d, if wide { sum } else { sum & 0xffff_ffff });
        }
        let from = self.get(n, RCX);
        let to = self.target(d, &[]);
        match value {
            0 => self.asm.mov(wide, to, Rm::Reg(from)),
            _ => self.asm.lea(wide, to, Rm::At(from, value)),
        }
        self.put(d, to);
    }

    /// The second operand of a shifted register, perhaps in RDX.
    fn shifted(&mut self, wide: bool) -> Rm {
        let (m, kind, by) = (self.r(16), self.bits(23, 22), self.bits(15, 10));
        if by == 0 {
            return self.rm(m);
        }
        self.copy(m, RDX);
        const KINDS: [u8; 4] = [shift::SHL, shift::SHR, shift::SAR, shift::ROR];
        self.asm.shift(wide, KINDS[kind as usize & 3], RDX, by);
        Rm::Reg(RDX)
    }

    /// A register extended by `option` into `to`.
    pub(crate) fn extend(&mut self, m: u8, option: u32, to: Reg) {
        let from = Rm::Reg(self.get(m, to));
        match option {
            0 => self.asm.op8(&[0x0f, 0xb6], to, from),
            1 => self.asm.op(false, &[0x0f, 0xb7], to, from),
            2 => self.asm.mov(false, to, from),
            4 => self.extend_sign(1, true, to, from),
            5 => self.extend_sign(2, true, to, from),
            6 => self.extend_sign(4, true, to, from),
            _ if from == Rm::Reg(to) => {}
            _ => self.asm.mov(true, to, from),
        }
    }

    /// Sign-extends `size` bytes to 64 or 32 bits.
    pub(crate) fn extend_sign(&mut self, size: u32, wide: bool, to: Reg, from: Rm) {
        match size {
            // A register of 8 bits needs the prefix that only wide operands have by themselves.
            1 if wide || matches!(from, Rm::At(..)) => self.asm.op(wide, &[0x0f, 0xbe], to, from),
            1 => self.asm.op8(&[0x0f, 0xbe], to, from),
            2 => self.asm.op(wide, &[0x0f, 0xbf], to, from),
            4 if wide => self.asm.op(true, &[0x63], to, from),
            _ => self.asm.mov(wide, to, from),
        }
    }

    /// The second operand of an extended register.
    fn extended(&mut self, wide: bool) -> Rm {
        self.extend(self.r(16), self.bits(15, 13), RDX);
        self.asm.shift(wide, shift::SHL, RDX, self.bits(12, 10));
        Rm::Reg(RDX)
    }

    fn without_flags(&mut self, sub: bool, wide: bool, n: u8, d: u8, second: Rm) {
        if let (false, Rm::Reg(m)) = (sub, second) {
            let n = self.get(n, RCX);
            let to = self.target(d, &[]);
            self.asm.lea(wide, to, Rm::Sum(n, m, 0, 0));
            // Nothing changed flags but what shifted the second operand.
            self.flags = self.flags_before && m != RDX;
            return self.put(d, to);
        }
        let to = self.target(d, &[self.r(16)]);
        let first = self.rm(n);
        match n {
            ZERO => self.asm.constant(to, 0),
            _ if first == Rm::Reg(to) => {}
            _ => self.asm.mov(wide, to, first),
        }
        self.asm.alu(wide, if sub { Alu::Sub } else { Alu::Add }, to, second);
        self.put(d, to);
    }

    /// ADDS and SUBS; flags are those of the subtraction, or the complement of the sum's carry.
    fn with_flags(&mut self, sub: bool, wide: bool, n: u8, second: Second) {
        let d = self.r(0);
        self.flags_of(sub, wide, n, d, second);
        self.save_flags();
    }

    fn flags_of(&mut self, sub: bool, wide: bool, n: u8, d: u8, second: Second) {
        let what = match (sub, d) {
            (true, ZERO) => Alu::Cmp,
            (true, _) => Alu::Sub,
            (false, _) => Alu::Add,
        };
        let to = match what {
            Alu::Cmp => self.get(n, RCX),
            _ => {
                self.copy(n, RCX);
                RCX
            }
        };
        match second {
            Second::Rm(rm) => self.asm.alu(wide, what, to, rm),
            // 0xfff000 at most.
            Second::Imm(value) => self.asm.alu_imm(wide, what, Rm::Reg(to), value as i32),
        }
        if what != Alu::Cmp {
            self.put(d, RCX);
        }
        if !sub {
            // CMC
            self.asm.bytes(&[0xf5]);
        }
    }

    fn logic_immediate(&mut self, op: Op, wide: bool) {
        let mask = logical_immediate(self.bits(22, 22), self.bits(15, 10), self.bits(21, 16), wide);
        let (mask, n) = (mask.unwrap_or_default(), self.r(5));
        let sets = op == Op::AndsImm;
        let d = if sets { self.r(0) } else { self.r_sp(0) };
        if n == ZERO && op == Op::OrrImm {
            self.flags = self.flags_before;
            return self.put_constant(d, mask);
        }
        let what = match op {
            Op::OrrImm => Alu::Or,
            Op::EorImm => Alu::Xor,
            _ => Alu::And,
        };
        let to = if sets { RCX } else { self.target(d, &[]) };
        if self.rm(n) != Rm::Reg(to) {
            self.copy(n, to);
        }
        match immediate(mask, wide) {
            Some(mask) => self.asm.alu_imm(wide, what, Rm::Reg(to), mask),
            None => {
                self.asm.constant(RDX, mask);
                self.asm.alu(wide, what, to, Rm::Reg(RDX));
            }
        }
        self.put(d, to);
        if sets {
            // STC: C is 0.
            self.asm.bytes(&[0xf9]);
            self.save_flags();
        }
    }

    fn logic_register(&mut self, op: Op, wide: bool) {
        let (d, n, m) = (self.r(0), self.r(5), self.r(16));
        if op == Op::OrrReg && n == ZERO && self.bits(15, 10) == 0 {
            self.flags = self.flags_before;
            if let Some(known) = self.known(m) {
                return self.put_constant(d, if wide { known } else { known & 0xffff_ffff });
            }
            let to = self.target(d, &[]);
            self.asm.mov(wide, to, self.rm(m));
            return self.put(d, to);
        }
        let inverted = matches!(op, Op::BicReg | Op::OrnReg | Op::EonReg | Op::BicsReg);
        let mut second = self.shifted(wide);
        if inverted {
            if second != Rm::Reg(RDX) {
                self.copy(m, RDX);
                second = Rm::Reg(RDX);
            }
            self.asm.op(wide, &[0xf7], 2, second);
        }
        let sets = matches!(op, Op::AndsReg | Op::BicsReg);
        let what = match op {
            Op::OrrReg | Op::OrnReg => Alu::Or,
            Op::EorReg | Op::EonReg => Alu::Xor,
            _ => Alu::And,
        };
        if op == Op::OrnReg && n == ZERO {
            // MVN. The upper half is zero behind a NOT of 32 bits.
            return self.put(d, RDX);
        }
        let to = if sets { RCX } else { self.target(d, &[m]) };
        if self.rm(n) != Rm::Reg(to) {
            self.copy(n, to);
        }
        self.asm.alu(wide, what, to, second);
        self.put(d, to);
        if sets {
            self.asm.bytes(&[0xf9]);
            self.save_flags();
        }
    }

    fn move_wide(&mut self, op: Op, wide: bool) {
        let (d, up) = (self.r(0), self.bits(22, 21) * 16);
        let value = u64::from(self.bits(20, 5)) << up;
        self.flags = self.flags_before;
        match op {
            Op::Movz => self.put_constant(d, value),
            Op::Movn => self.put_constant(d, if wide { !value } else { !value & 0xffff_ffff }),
            _ => {
                let kept = !(0xffff << up);
                if let Some(known) = self.known(d) {
                    let value = known & kept | value;
                    return self.put_constant(d, if wide { value } else { value & 0xffff_ffff });
                }
                self.flags = false;
                self.copy(d, RCX);
                if !wide {
                    self.asm.mov(false, RCX, Rm::Reg(RCX));
                }
                self.asm.constant(RDX, kept);
                self.asm.alu(true, Alu::And, RCX, Rm::Reg(RDX));
                self.asm.constant(RDX, value);
                self.asm.alu(true, Alu::Or, RCX, Rm::Reg(RDX));
                self.put(d, RCX);
            }
        }
    }

    fn bitfield(&mut self, op: Op, wide: bool) {
        let (d, n, r, s) = (self.r(0), self.r(5), self.bits(21, 16), self.bits(15, 10));
        let top = if wide { 63 } else { 31 };
        // Up, so that the field's highest bit is the register's, and down to its place.
        let (up, down) = (top - s, (top - s + r) & top);
        if op == Op::Bfm {
            return self.insert(wide, up, down);
        }
        let signed = op == Op::Sbfm;
        let to = self.target(d, &[]);
        if r == 0 && matches!(s, 7 | 15 | 31) && (signed || s != 31) {
            let from = Rm::Reg(self.get(n, RCX));
            match (s, signed) {
                (7, false) => self.asm.op8(&[0x0f, 0xb6], to, from),
                (15, false) => self.asm.op(false, &[0x0f, 0xb7], to, from),
                _ => self.extend_sign((s + 1) / 8, wide, to, from),
            }
            self.flags = self.flags_before;
            return self.put(d, to);
        }
        if self.rm(n) != Rm::Reg(to) {
            self.copy(n, to);
        }
        if !wide && up == 0 && down == 0 {
            self.asm.mov(false, to, Rm::Reg(to));
        }
        self.asm.shift(wide, shift::SHL, to, up);
        self.asm.shift(wide, if signed { shift::SAR } else { shift::SHR }, to, down);
        self.put(d, to);
    }

    /// BFM.
    fn insert(&mut self, wide: bool, up: u32, down: u32) {
        let (d, n) = (self.r(0), self.r(5));
        let field = (u64::MAX >> (if wide { 0 } else { 32 })) << up;
        let mask = (if wide { field } else { field & 0xffff_ffff }) >> down;
        self.copy(n, RCX);
        self.asm.shift(wide, shift::SHL, RCX, up);
        self.asm.shift(wide, shift::SHR, RCX, down);
        if !wide {
            self.asm.mov(false, RCX, Rm::Reg(RCX));
        }
        let kept = if wide { !mask } else { !mask & 0xffff_ffff };
        self.asm.constant(RDX, kept);
        self.asm.alu(true, Alu::And, RDX, self.rm(d));
        self.asm.alu(true, Alu::Or, RCX, Rm::Reg(RDX));
        self.put(d, RCX);
    }

    fn extract(&mut self, wide: bool) {
        let (d, n, m, by) = (self.r(0), self.r(5), self.r(16), self.bits(15, 10));
        self.copy(m, RCX);
        if by == 0 && !wide {
            self.asm.mov(false, RCX, Rm::Reg(RCX));
        }
        if by != 0 {
            let high = self.get(n, RDX);
            // SHRD
            self.asm.op(wide, &[0x0f, 0xac], high, Rm::Reg(RCX));
            self.asm.bytes(&[by as u8]);
        }
        self.put(d, RCX);
    }

    fn with_carry(&mut self, op: Op, wide: bool) {
        let (d, n, m) = (self.r(0), self.r(5), self.r(16));
        let sub = matches!(op, Op::Sbc | Op::Sbcs);
        self.copy(n, RCX);
        self.load_flags();
        if !sub {
            self.asm.bytes(&[0xf5]);
        }
        let second = self.rm(m);
        self.asm.alu(wide, if sub { Alu::Sbb } else { Alu::Adc }, RCX, second);
        self.put(d, RCX);
        if matches!(op, Op::Adcs | Op::Sbcs) {
            if !sub {
                self.asm.bytes(&[0xf5]);
            }
            self.save_flags();
        }
    }

    fn compare_if(&mut self, op: Op, wide: bool) {
        let (n, m) = (self.r(5), self.r(16));
        let second = match op {
            Op::CcmnImm | Op::CcmpImm => Second::Imm(self.bits(20, 16).into()),
            _ => Second::Rm(self.rm(m)),
        };
        let done = self.asm.label();
        if let Some(holds) = condition(self.bits(15, 12)) {
            self.load_flags();
            let otherwise = u64::from(crate::flags::of(self.bits(3, 0) << 28));
            self.asm.constant(RAX, otherwise);
            self.asm.jump_if(holds ^ 1, done);
        }
        // ADD needs a register that it may change.
        self.flags_of(matches!(op, Op::CcmpReg | Op::CcmpImm), wide, n, ZERO, second);
        self.asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0]);
        self.asm.bind(done);
        self.keep_flags();
    }

    fn select(&mut self, op: Op, wide: bool) {
        let (d, n, m) = (self.r(0), self.r(5), self.r(16));
        let Some(holds) = condition(self.bits(15, 12)) else {
            self.flags = self.flags_before;
            self.asm.mov(wide, RCX, self.rm(n));
            return self.put(d, RCX);
        };
        self.load_flags();
        self.flags = true;
        if (n, m, op) == (ZERO, ZERO, Op::Csinc) {
            // CSET: SETcc CL; MOVZX ECX, CL
            self.asm.bytes(&[0x0f, 0x90 | holds ^ 1, 0xc1, 0x0f, 0xb6, 0xc9]);
            return self.put(d, RCX);
        }
        self.copy(m, RCX);
        if matches!(op, Op::Csinv | Op::Csneg) {
            self.asm.op(wide, &[0xf7], 2, Rm::Reg(RCX));
        }
        if matches!(op, Op::Csinc | Op::Csneg) {
            self.asm.lea(wide, RCX, Rm::At(RCX, 1));
        }
        let first = self.rm(n);
        self.asm.op(wide, &[0x0f, 0x40 | holds], RCX, first);
        self.put(d, RCX);
    }

    fn divide(&mut self, signed: bool, wide: bool) {
        let (d, n, m) = (self.r(0), self.r(5), self.r(16));
        let (done, negate, zero) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.copy(m, RCX);
        self.copy(n, RAX);
        self.asm.op(wide, &[0x85], RCX, Rm::Reg(RCX));
        self.asm.jump_if(cc::E, zero);
        if signed {
            // The least number by -1 is itself, not an error.
            self.asm.alu_imm(wide, Alu::Cmp, Rm::Reg(RCX), -1);
            self.asm.jump_if(cc::E, negate);
            // CQO or CDQ
            if wide {
                self.asm.bytes(&[0x48]);
            }
            self.asm.bytes(&[0x99]);
        } else {
            self.asm.alu(false, Alu::Xor, RDX, Rm::Reg(RDX));
        }
        self.asm.op(wide, &[0xf7], if signed { 7 } else { 6 }, Rm::Reg(RCX));
        self.asm.jump(done);
        self.asm.bind(negate);
        self.asm.op(wide, &[0xf7], 3, Rm::Reg(RAX));
        self.asm.jump(done);
        self.asm.bind(zero);
        self.asm.constant(RAX, 0);
        self.asm.bind(done);
        self.put(d, RAX);
    }

    fn shift_register(&mut self, op: Op, wide: bool) {
        let (d, n, m) = (self.r(0), self.r(5), self.r(16));
        let kind = match op {
            Op::Lslv => shift::SHL,
            Op::Lsrv => shift::SHR,
            Op::Asrv => shift::SAR,
            _ => shift::ROR,
        };
        self.copy(n, RDX);
        self.copy(m, RCX);
        self.asm.op(wide, &[0xd3], kind, Rm::Reg(RDX));
        if !wide {
            // A shift by 0 leaves the upper half.
            self.asm.mov(false, RDX, Rm::Reg(RDX));
        }
        self.put(d, RDX);
    }

    fn reverse(&mut self, op: Op, wide: bool) -> bool {
        if op == Op::Rev32 && wide {
            return false;
        }
        self.copy(self.r(5), RCX);
        // BSWAP RCX
        if wide {
            self.asm.bytes(&[0x48]);
        }
        self.asm.bytes(&[0x0f, 0xc9]);
        self.put(self.r(0), RCX);
        true
    }

    /// RCX added to a register or subtracted from it, into another.
    fn accumulate(&mut self, sub: bool, wide: bool) {
        let (d, a) = (self.r(0), self.r(10));
        match (a, sub) {
            (ZERO, false) => self.put(d, RCX),
            (_, false) => {
                self.asm.alu(wide, Alu::Add, RCX, self.rm(a));
                self.put(d, RCX);
            }
            _ => {
                self.copy(a, RDX);
                self.asm.alu(wide, Alu::Sub, RDX, Rm::Reg(RCX));
                self.put(d, RDX);
            }
        }
    }

    fn multiply(&mut self, sub: bool, wide: bool) {
        self.copy(self.r(5), RCX);
        self.asm.op(wide, &[0x0f, 0xaf], RCX, self.rm(self.r(16)));
        self.accumulate(sub, wide);
    }

    fn multiply_long(&mut self, op: Op) {
        let signed = matches!(op, Op::Smaddl | Op::Smsubl);
        for (field, to) in [(5, RCX), (16, RDX)] {
            self.extend(self.r(field), if signed { 6 } else { 2 }, to);
        }
        self.asm.op(true, &[0x0f, 0xaf], RCX, Rm::Reg(RDX));
        self.accumulate(matches!(op, Op::Smsubl | Op::Umsubl), true);
    }

    fn multiply_high(&mut self, signed: bool) {
        self.copy(self.r(5), RAX);
        self.asm.op(true, &[0xf7], if signed { 5 } else { 4 }, self.rm(self.r(16)));
        self.put(self.r(0), RDX);
    }
}
