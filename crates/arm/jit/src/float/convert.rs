//! Conversions between numbers, integers and integral numbers.

use satori_arm_isa::Op;

use super::{Check, Shape, vex, vex3a};
use crate::asm::{Alu, Label, RAX, RCX, Reg, Rm, Vector, cc};
use crate::constants::Constant;
use crate::emit::Emit;

/// VROUNDSD's modes: that of MXCSR, and that no inexactness is raised.
const CURRENT: u8 = 4;
const QUIET: u8 = 8;

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(super) fn convert(&mut self, op: Op) -> bool {
        let shape = self.shape();
        match op {
            Op::Fcvt => self.between(shape),
            Op::FcvtlVec if shape.double => self.lengthen(),
            Op::FcvtnVec if shape.double => self.shorten(),
            Op::FcvtInt => {
                // To nearest, up, down, to zero.
                const MODES: [u8; 4] = [0, 2, 1, 3];
                let mode = MODES[self.bits(20, 19) as usize];
                self.make_integer(shape, mode, self.bit(31), self.bit(16))
            }
            Op::ScvtfGeneral => self.of_integer(shape),
            Op::ScvtfScalar => self.of_lane(shape),
            Op::ScvtfVec => self.of_lanes(shape),
            Op::FcvtzScalar => self.lane_of_integer(shape),
            Op::FcvtzVec => self.lanes_of_integers(shape),
            Op::Frintn | Op::FrintnVec => self.integral(shape, QUIET),
            Op::Frintm | Op::FrintmVec => self.integral(shape, 1 | QUIET),
            Op::Frintp | Op::FrintpVec => self.integral(shape, 2 | QUIET),
            Op::Frintz | Op::FrintzVec => self.integral(shape, 3 | QUIET),
            Op::Frintx | Op::FrintxVec => self.integral(shape, CURRENT),
            Op::Frinti | Op::FrintiVec => self.integral(shape, CURRENT | QUIET),
            _ => false,
        }
    }

    /// Between single and double.
    fn between(&mut self, shape: Shape) -> bool {
        let (from, to) = (self.bits(23, 22), self.bits(16, 15));
        let (result, check) = match (from, to) {
            (0, 1) => (Shape { double: true, ..shape }, Check::Nan),
            (1, 0) => (Shape { double: false, ..shape }, Check::Least),
            _ => return false,
        };
        self.need_environment();
        let (n, to) = (self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        self.vzero(0);
        // VCVTSS2SD or VCVTSD2SS
        self.vop(shape.of(0x5a), to, 0, n);
        self.check(result, check, to, cold);
        self.put_vector(self.bits(4, 0), to, result.size());
        self.over(back);
        true
    }

    /// FCVTL of two singles.
    fn lengthen(&mut self) -> bool {
        self.need_environment();
        let (n, to) = (self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        let from = match self.bit(30) {
            // VPERMILPD
            true => {
                self.vop_imm(vex3a(5), 0, 0, n, 1);
                0
            }
            false => n,
        };
        // VCVTPS2PD
        self.vop(vex(0, 0x5a), to, 0, from);
        self.check(Shape { double: true, scalar: false, full: true }, Check::Nan, to, cold);
        self.put_vector(self.bits(4, 0), to, 16);
        self.over(back);
        true
    }

    /// FCVTN of two doubles.
    fn shorten(&mut self) -> bool {
        self.need_environment();
        let (n, high, d) = (self.vector_at(5), self.bit(30), self.bits(4, 0));
        let old = if high { self.v(d) } else { 0 };
        let to = self.fresh();
        let (cold, back) = self.or_step();
        // VCVTPD2PS: the upper half becomes zero.
        self.vop(vex(1, 0x5a), to, 0, n);
        self.check(Shape { double: false, scalar: false, full: true }, Check::Least, to, cold);
        if high {
            self.vop(vex(1, 0x6c), to, old, to);
        }
        self.put_vector(d, to, if high { 16 } else { 8 });
        self.over(back);
        true
    }

    /// To a general register: in range by the number's bits, so that nothing but inexactness can be raised.
    fn make_integer(&mut self, shape: Shape, mode: u8, wide: bool, unsigned: bool) -> bool {
        self.need_environment();
        let n = self.vector_at(5);
        let (cold, back) = self.or_step();
        let bits = if wide { 63 } else { 31 + u32::from(unsigned) };
        // What is rounded up may leave the range's upper half.
        self.leave_unless_within(shape, n, bits - u32::from(mode != 3), unsigned, cold);
        let from = match mode {
            3 => n,
            _ => {
                self.vop_imm(vex3a(0x0a + u8::from(shape.double)), 0, n, n, mode);
                0
            }
        };
        let to = self.target(self.r(0), &[]);
        // VCVTTSS2SI or VCVTTSD2SI
        self.convert_to_general(shape, wide || unsigned, to, from);
        self.put(self.r(0), to);
        self.over(back);
        true
    }

    fn convert_to_general(&mut self, shape: Shape, wide: bool, to: Reg, from: Reg) {
        self.vop(Vector { wide, ..shape.of(0x2c) }, to, 0, from);
    }

    /// Leaves for `cold` unless the number's magnitude is below 2 to the power of `bits`; one without a sign may not be negative.
    /// Changes RAX and RCX.
    fn leave_unless_within(&mut self, shape: Shape, n: Reg, bits: u32, unsigned: bool, cold: Label) {
        let double = shape.double;
        self.move_to_general(double, RAX, n);
        let least = match double {
            true => u64::from(1023 + bits) << 52,
            false => u64::from(127 + bits) << 23,
        };
        if !unsigned {
            self.asm.op(double, &[0x01], RAX, Rm::Reg(RAX));
        }
        let least = if unsigned { least } else { least << 1 };
        match double {
            true => {
                self.asm.constant(RCX, least);
                self.asm.alu(true, Alu::Cmp, RAX, Rm::Reg(RCX));
            }
            false => self.asm.alu_imm(false, Alu::Cmp, Rm::Reg(RAX), least as u32 as i32),
        }
        self.asm.jump_if(cc::AE, cold);
    }

    /// SCVTF and UCVTF of a general register.
    fn of_integer(&mut self, shape: Shape) -> bool {
        self.need_environment();
        let (wide, unsigned, to) = (self.bit(31), self.bit(16), self.fresh());
        let (cold, back) = self.or_step();
        let n = self.r(5);
        let mut from = self.rm(n);
        if unsigned {
            self.asm.mov(wide, RCX, from);
            if wide {
                self.asm.op(true, &[0x85], RCX, Rm::Reg(RCX));
                self.asm.jump_if(8, cold);
            }
            from = Rm::Reg(RCX);
        }
        self.vzero(to);
        // VCVTSI2SS or VCVTSI2SD
        let op = Vector { wide: wide || unsigned, ..shape.of(0x2a) };
        self.asm.vector(op, to, to, from, None);
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// Of a lane of the same size.
    fn of_lane(&mut self, shape: Shape) -> bool {
        self.need_environment();
        let (unsigned, n, to) = (self.bit(29), self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        self.move_to_general(shape.double, RCX, n);
        if unsigned && shape.double {
            self.asm.op(true, &[0x85], RCX, Rm::Reg(RCX));
            self.asm.jump_if(8, cold);
        }
        self.vzero(to);
        let op = Vector { wide: shape.double || unsigned, ..shape.of(0x2a) };
        self.vop(op, to, to, RCX);
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// Of lanes: signed words at once, and two of 64 bits one behind the other.
    fn of_lanes(&mut self, shape: Shape) -> bool {
        let unsigned = self.bit(29);
        if unsigned && !shape.double {
            return false;
        }
        self.need_environment();
        let (n, to) = (self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        if shape.double {
            let scalar = Shape { scalar: true, ..shape };
            for lane in 0..2 {
                // VPEXTRQ
                self.asm.vector(Vector { wide: true, ..vex3a(0x16) }, n, 0, Rm::Reg(RCX), Some(lane));
                if unsigned {
                    self.asm.op(true, &[0x85], RCX, Rm::Reg(RCX));
                    self.asm.jump_if(8, cold);
                }
                self.vzero(lane);
                self.vop(Vector { wide: true, ..scalar.of(0x2a) }, lane, lane, RCX);
            }
            self.vop(vex(1, 0x6c), to, 0, 1);
        } else {
            let from = self.operand(shape, n, 0);
            // VCVTDQ2PS
            self.vop(vex(0, 0x5b), to, 0, from);
            self.narrow_to(shape.size(), to, to);
        }
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// FCVTZS and FCVTZU to a lane of the same size.
    fn lane_of_integer(&mut self, shape: Shape) -> bool {
        self.need_environment();
        let (unsigned, n, to) = (self.bit(29), self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        let bits = if shape.double { 63 } else { 31 + u32::from(unsigned) };
        self.leave_unless_within(shape, n, bits, unsigned, cold);
        self.convert_to_general(shape, shape.double || unsigned, RCX, n);
        self.move_from_general(shape.double, to, Rm::Reg(RCX));
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// To signed lanes.
    fn lanes_of_integers(&mut self, shape: Shape) -> bool {
        if self.bit(29) {
            return false;
        }
        self.need_environment();
        let (n, to) = (self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        if shape.double {
            let scalar = Shape { scalar: true, ..shape };
            self.vop_imm(vex3a(5), 1, 0, n, 1);
            for (lane, from) in [(0, n), (1, 1)] {
                self.leave_unless_within(scalar, from, 63, false, cold);
                self.convert_to_general(scalar, true, RCX, from);
                self.move_from_general(true, lane, Rm::Reg(RCX));
            }
            self.vop(vex(1, 0x6c), to, 0, 1);
        } else {
            let from = self.operand(shape, n, 0);
            // VCVTTPS2DQ, whose result for what is out of range is the lowest; VPCMPEQD
            self.vop(vex(2, 0x5b), to, 0, from);
            self.vop_constant(vex(1, 0x76), 2, to, Constant::Lowest32);
            self.leave_if_any(2, cold);
            self.narrow_to(shape.size(), to, to);
        }
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// FRINT.
    fn integral(&mut self, shape: Shape, mode: u8) -> bool {
        self.need_environment();
        let (n, to) = (self.vector_at(5), self.fresh());
        let (cold, back) = self.or_step();
        let n = self.operand(shape, n, 0);
        // VROUNDPS, PD, SS, SD
        let op = vex3a(8 + 2 * u8::from(shape.scalar) + u8::from(shape.double));
        match shape.scalar {
            true => {
                self.vzero(1);
                self.vop_imm(op, to, 1, n, mode);
            }
            false => self.vop_imm(op, to, 0, n, mode),
        }
        self.check(shape, Check::Nan, to, cold);
        if !shape.scalar {
            self.narrow_to(shape.size(), to, to);
        }
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }
}
