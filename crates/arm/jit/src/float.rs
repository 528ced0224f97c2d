//! Floating point, scalars and vectors: the host's operation where it is the same.
//!
//! Arm's results and flags are IEEE 754's as the host's are, but for these, for which the interpreter executes the instruction anew:
//! a NaN as a result, of which there is another default and another order of operands; and a product, quotient or
//! narrowed number that is the least normal one, as Arm looks at tininess before rounding and the host behind it. Until then the host
//! raised no flag that Arm does not. The maximum, conversions to integers and comparisons look at their operands in advance, where
//! the host would raise one. With FPCR.FZ the interpreter computes; FPCR.DN changes only NaNs.

mod convert;

use satori_arm_isa::Op;

use crate::asm::{Label, RAX, RCX, RDX, Reg, Rm, Vector, cc};
use crate::constants::Constant;
use crate::emit::Emit;
use crate::integer::condition;
use crate::jit::Unit;

/// What of a result the interpreter has to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Nan,
    /// That it may be the least normal number, too.
    Least,
}

/// An opcode of the map 0x0f.
pub(crate) const fn vex(prefix: u8, opcode: u8) -> Vector {
    Vector { prefix, map: 1, wide: false, opcode }
}

/// One of 0x0f38, with prefix 0x66.
pub(crate) const fn vex38(opcode: u8) -> Vector {
    Vector { prefix: 1, map: 2, wide: false, opcode }
}

/// One of 0x0f3a, with prefix 0x66.
pub(crate) const fn vex3a(opcode: u8) -> Vector {
    Vector { prefix: 1, map: 3, wide: false, opcode }
}

/// Host opcodes of arithmetic.
mod opcode {
    pub(super) const SQRT: u8 = 0x51;
    pub(super) const AND: u8 = 0x54;
    pub(super) const OR: u8 = 0x56;
    pub(super) const ADD: u8 = 0x58;
    pub(super) const MUL: u8 = 0x59;
    pub(super) const SUB: u8 = 0x5c;
    pub(super) const MIN: u8 = 0x5d;
    pub(super) const DIV: u8 = 0x5e;
    pub(super) const MAX: u8 = 0x5f;
    pub(super) const COMPARE: u8 = 0xc2;
}

/// Predicates of VCMPPS: which is true of unordered operands, and those that are ordered; all but EQ signal quiet NaNs.
mod predicate {
    pub(super) const EQ: u8 = 0;
    pub(super) const LT: u8 = 1;
    pub(super) const LE: u8 = 2;
    pub(super) const UNORDERED: u8 = 3;
    pub(super) const GE: u8 = 0xd;
    pub(super) const GT: u8 = 0xe;
}

/// The shape of an instruction's operands.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    double: bool,
    scalar: bool,
    /// All 16 bytes.
    full: bool,
}

impl Shape {
    /// Bytes of a result.
    fn size(self) -> u8 {
        match self {
            Shape { scalar: true, double, .. } => 4 << u8::from(double),
            Shape { full: true, .. } => 16,
            _ => 8,
        }
    }

    /// An operation of this shape: PS, PD, SS or SD.
    fn of(self, opcode: u8) -> Vector {
        vex(2 * u8::from(self.scalar) + u8::from(self.double), opcode)
    }

    /// A fused one: of vectors, or the next opcode of scalars.
    fn fused(self, opcode: u8) -> Vector {
        Vector { wide: self.double, ..vex38(opcode + u8::from(self.scalar)) }
    }

    fn pick(self, single: Constant, double: Constant) -> Constant {
        if self.double { double } else { single }
    }
}

impl Emit<'_> {
    fn shape(&self) -> Shape {
        Shape { double: self.bit(22), scalar: self.bit(28), full: self.bit(30) }
    }

    /// An instruction of vectors.
    pub(crate) fn vop(&mut self, op: Vector, to: Reg, first: Reg, second: Reg) {
        self.asm.vector(op, to, first, Rm::Reg(second), None);
    }

    /// One with an immediate.
    pub(crate) fn vop_imm(&mut self, op: Vector, to: Reg, first: Reg, second: Reg, immediate: u8) {
        self.asm.vector(op, to, first, Rm::Reg(second), Some(immediate));
    }

    /// One whose second operand is a constant.
    pub(crate) fn vop_constant(&mut self, op: Vector, to: Reg, first: Reg, constant: Constant) {
        let place = constant.at(self.places.constants);
        self.asm.vector(op, to, first, place, None);
    }

    /// VMOVAPS
    pub(crate) fn vmove(&mut self, to: Reg, from: Reg) {
        if to != from {
            self.asm.vector(vex(0, 0x28), to, 0, Rm::Reg(from), None);
        }
    }

    /// VPXOR: zero.
    pub(crate) fn vzero(&mut self, to: Reg) {
        self.vop(vex(1, 0xef), to, to, to);
    }

    /// Everything behind the first `size` bytes becomes zero.
    pub(crate) fn narrow_to(&mut self, size: u8, to: Reg, from: Reg) {
        match size {
            16 => self.vmove(to, from),
            // VMOVQ
            8 => self.vop(vex(2, 0x7e), to, 0, from),
            // VINSERTPS
            _ => self.vop_imm(vex3a(0x21), to, from, from, 0x0e),
        }
    }

    /// VMOVD or VMOVQ to a general register, and from one.
    pub(crate) fn move_to_general(&mut self, wide: bool, to: Reg, from: Reg) {
        self.asm.vector(Vector { wide, ..vex(1, 0x7e) }, from, 0, Rm::Reg(to), None);
    }

    pub(crate) fn move_from_general(&mut self, wide: bool, to: Reg, from: Rm) {
        self.asm.vector(Vector { wide, ..vex(1, 0x6e) }, to, 0, from, None);
    }

    /// An operand: of half a register it is doubled, so that what is in the other half raises nothing.
    fn operand(&mut self, shape: Shape, from: Reg, scratch: Reg) -> Reg {
        if shape.scalar || shape.full {
            return from;
        }
        // VPUNPCKLQDQ
        self.vop(vex(1, 0x6c), scratch, from, from);
        scratch
    }

    /// Translates the instruction, if it is one of these.
    pub(crate) fn float(&mut self, op: Op, unit: Unit) -> bool {
        if self.moves(op) {
            return true;
        }
        if unit != Unit::On {
            return false;
        }
        let shape = self.shape();
        self.arithmetic(op, shape) || self.ordering(op, shape) || self.fused(op, shape) || self.convert(op)
    }

    fn arithmetic(&mut self, op: Op, shape: Shape) -> bool {
        use opcode::{ADD, DIV, MUL, SQRT, SUB};
        let (opcode, check) = match op {
            Op::Fadd | Op::FaddVec => (ADD, Check::Nan),
            Op::Fsub | Op::FsubVec | Op::FabdVec | Op::FabdScalar => (SUB, Check::Nan),
            Op::Fmul | Op::FmulVec | Op::Fnmul | Op::FmulElem | Op::FmulElemScalar => (MUL, Check::Least),
            Op::Fdiv | Op::FdivVec => (DIV, Check::Least),
            Op::Fsqrt | Op::FsqrtVec => (SQRT, Check::Nan),
            Op::FaddpVec => return self.pairwise(shape, ADD),
            Op::FaddpScalar => {
                self.need_environment();
                let (n, to) = (self.vector_at(5), self.fresh());
                let (cold, back) = self.or_step();
                // VPERMILPD or VMOVSHDUP
                match shape.double {
                    true => self.vop_imm(vex3a(5), 0, 0, n, 1),
                    false => self.vop(vex(2, 0x16), 0, 0, n),
                }
                self.vop(shape.of(ADD), to, n, 0);
                self.narrow_to(shape.size(), to, to);
                self.check(shape, Check::Nan, to, cold);
                self.put_vector(self.bits(4, 0), to, shape.size());
                self.over(back);
                return true;
            }
            _ => return false,
        };
        self.need_environment();
        let element = matches!(op, Op::FmulElem | Op::FmulElemScalar);
        let (first, second) = match opcode {
            SQRT => (self.vector_at(5), None),
            _ => (self.vector_at(5), Some(self.vector_at(16))),
        };
        let to = self.fresh();
        let (cold, back) = self.or_step();
        let mut n = self.operand(shape, first, 0);
        let mut m = match second {
            Some(m) if element => self.element(shape, m, 1),
            Some(m) => self.operand(shape, m, 1),
            None => n,
        };
        let clean = |emit: &Self, from| emit.size_of(from) <= shape.size();
        if shape.scalar && matches!(opcode, ADD | MUL) && !clean(self, n) && clean(self, m) {
            (n, m) = (m, n);
        }
        let narrow = shape.size() != 16 && !(shape.scalar && clean(self, n));
        match shape.scalar || opcode != SQRT {
            true => self.vop(shape.of(opcode), to, n, m),
            false => self.vop(shape.of(opcode), to, 0, m),
        }
        if narrow {
            self.narrow_to(shape.size(), to, to);
        }
        self.check(shape, check, to, cold);
        match op {
            Op::Fnmul => self.sign(shape, to, to, true),
            Op::FabdVec | Op::FabdScalar => self.sign(shape, to, to, false),
            _ => {}
        }
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// Turns the signs of one or two lanes or all, or clears them. What is zero behind them stays.
    fn sign(&mut self, shape: Shape, to: Reg, from: Reg, turn: bool) {
        let (op, constant) = match turn {
            true => (vex(0, 0x57), shape.pick(Constant::Sign32, Constant::Sign64)),
            false => (vex(0, 0x54), shape.pick(Constant::Magnitude32, Constant::Magnitude64)),
        };
        self.vop_constant(op, to, from, constant);
        if turn && shape.size() != 16 {
            self.narrow_to(shape.size(), to, to);
        }
    }

    /// Leaves for `cold` if a result is what the interpreter has to look at. Changes RAX, XMM2 and XMM3.
    fn check(&mut self, shape: Shape, check: Check, result: Reg, cold: Label) {
        let Shape { double, scalar, .. } = shape;
        if scalar {
            // VUCOMISS or VUCOMISD
            self.vop(vex(u8::from(double), 0x2e), result, 0, result);
            self.asm.jump_if(cc::P, cold);
            if check == Check::Least {
                self.move_to_general(double, RAX, result);
                self.asm.op(double, &[0x01], RAX, Rm::Reg(RAX));
                let least = shape.pick(Constant::Least32, Constant::Least64).at(self.places.constants);
                self.asm.alu(double, crate::asm::Alu::Cmp, RAX, least);
                self.asm.jump_if(cc::E, cold);
            }
            return;
        }
        self.vop_imm(shape.of(opcode::COMPARE), 2, result, result, predicate::UNORDERED);
        if check == Check::Least {
            // VPADDD or VPADDQ; VPCMPEQD or VPCMPEQQ; VPOR
            self.vop(vex(1, if double { 0xd4 } else { 0xfe }), 3, result, result);
            let equal = if double { vex38(0x29) } else { vex(1, 0x76) };
            self.vop_constant(equal, 3, 3, shape.pick(Constant::Least32, Constant::Least64));
            self.vop(vex(1, 0xeb), 2, 2, 3);
        }
        self.leave_if_any(2, cold);
    }

    /// Leaves for `cold` if any bit is set: VPTEST.
    pub(crate) fn leave_if_any(&mut self, of: Reg, cold: Label) {
        self.vop(vex38(0x17), of, 0, of);
        self.asm.jump_if(cc::NE, cold);
    }

    /// A lane of the second operand, in all lanes.
    fn element(&mut self, shape: Shape, m: Reg, to: Reg) -> Reg {
        let (high, low) = (self.bits(11, 11) as u8, self.bits(21, 21) as u8);
        let lane = match shape.double {
            true => 0x44 + high * 0xaa,
            false => (high << 1 | low) * 0x55,
        };
        // VPSHUFD
        self.vop_imm(vex(1, 0x70), to, 0, m, lane);
        to
    }

    /// Neighbours of both operands, the even and the odd ones, in XMM0 and XMM1; of half registers they are doubled.
    fn pairs(&mut self, shape: Shape, n: Reg, m: Reg) {
        // VUNPCKLPD and VUNPCKHPD, or VSHUFPS.
        match shape {
            Shape { double: true, .. } => {
                self.vop(vex(1, 0x14), 0, n, m);
                self.vop(vex(1, 0x15), 1, n, m);
            }
            Shape { full: true, .. } => {
                self.vop_imm(vex(0, 0xc6), 0, n, m, 0x88);
                self.vop_imm(vex(0, 0xc6), 1, n, m, 0xdd);
            }
            _ => {
                self.vop(vex(1, 0x6c), 1, n, m);
                self.vop_imm(vex(0, 0xc6), 0, 1, 1, 0x88);
                self.vop_imm(vex(0, 0xc6), 1, 1, 1, 0xdd);
            }
        }
    }

    fn pairwise(&mut self, shape: Shape, opcode: u8) -> bool {
        self.need_environment();
        let (n, m, to) = (self.vector_at(5), self.vector_at(16), self.fresh());
        let (cold, back) = self.or_step();
        self.pairs(shape, n, m);
        match opcode {
            opcode::ADD => {
                self.vop(shape.of(opcode), to, 0, 1);
                self.check(shape, Check::Nan, to, cold);
            }
            _ => self.extreme(shape, opcode, to, 0, 1, cold),
        }
        if shape.size() != 16 {
            self.narrow_to(shape.size(), to, to);
        }
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// The greater or lesser of `n` and `m`: of zeros that differ the AND of both orders is the positive one, the OR the negative.
    fn extreme(&mut self, shape: Shape, opcode: u8, to: Reg, n: Reg, m: Reg, cold: Label) {
        self.vop_imm(shape.of(opcode::COMPARE), 2, n, m, predicate::UNORDERED);
        if shape.scalar {
            self.narrow_to(shape.size(), 2, 2);
        }
        self.leave_if_any(2, cold);
        self.vop(shape.of(opcode), to, n, m);
        self.vop(shape.of(opcode), 2, m, n);
        let both = if opcode == opcode::MAX { opcode::AND } else { opcode::OR };
        self.vop(vex(0, both), to, to, 2);
    }

    /// Comparisons, the greater and the lesser.
    fn ordering(&mut self, op: Op, shape: Shape) -> bool {
        use predicate::{EQ, GE, GT, LE, LT};
        let (predicate, zero, magnitude) = match op {
            Op::Fcmp | Op::FcmpZero => {
                self.compare_numbers(shape, op == Op::FcmpZero);
                return true;
            }
            Op::Fccmp => {
                self.compare_numbers_if(shape);
                return true;
            }
            Op::Fmax | Op::FmaxVec | Op::Fmaxnm | Op::FmaxnmVec => return self.extremes(shape, opcode::MAX),
            Op::Fmin | Op::FminVec | Op::Fminnm | Op::FminnmVec => return self.extremes(shape, opcode::MIN),
            Op::FmaxpVec | Op::FmaxnmpVec => return self.pairwise(shape, opcode::MAX),
            Op::FminpVec | Op::FminnmpVec => return self.pairwise(shape, opcode::MIN),
            Op::FcmeqVec | Op::FcmeqScalar => (EQ, false, false),
            Op::FcmgeVec | Op::FcmgeScalar => (GE, false, false),
            Op::FcmgtVec | Op::FcmgtScalar => (GT, false, false),
            Op::FacgeVec | Op::FacgeScalar => (GE, false, true),
            Op::FacgtVec | Op::FacgtScalar => (GT, false, true),
            Op::FcmeqZeroVec | Op::FcmeqZeroScalar => (EQ, true, false),
            Op::FcmgeZeroVec | Op::FcmgeZeroScalar => (GE, true, false),
            Op::FcmgtZeroVec | Op::FcmgtZeroScalar => (GT, true, false),
            Op::FcmleZeroVec | Op::FcmleZeroScalar => (LE, true, false),
            Op::FcmltZeroVec | Op::FcmltZeroScalar => (LT, true, false),
            _ => return false,
        };
        self.need_environment();
        let n = self.vector_at(5);
        let m = if zero { 1 } else { self.vector_at(16) };
        let to = self.fresh();
        if zero {
            self.vzero(1);
        }
        let (mut n, mut m) = (self.operand(shape, n, 0), self.operand(shape, m, 1));
        if magnitude {
            let constant = shape.pick(Constant::Magnitude32, Constant::Magnitude64);
            self.vop_constant(vex(0, 0x54), 0, n, constant);
            self.vop_constant(vex(0, 0x54), 1, m, constant);
            (n, m) = (0, 1);
        }
        self.vop_imm(shape.of(opcode::COMPARE), to, n, m, predicate);
        self.narrow_to(shape.size(), to, to);
        self.put_vector(self.bits(4, 0), to, shape.size());
        true
    }

    fn extremes(&mut self, shape: Shape, opcode: u8) -> bool {
        self.need_environment();
        let (n, m, to) = (self.vector_at(5), self.vector_at(16), self.fresh());
        let (cold, back) = self.or_step();
        let (n, m) = (self.operand(shape, n, 0), self.operand(shape, m, 1));
        self.extreme(shape, opcode, to, n, m, cold);
        self.narrow_to(shape.size(), to, to);
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// The host's flags become those of a comparison, as the guest's are behind a subtraction.
    fn flags_of_comparison(&mut self, shape: Shape, zero: bool) {
        let n = self.vector_at(5);
        let m = match zero {
            true => {
                self.vzero(1);
                1
            }
            false => self.vector_at(16),
        };
        // VUCOMISS, or VCOMISS, which signals quiet NaNs.
        self.vop(vex(u8::from(shape.double), 0x2e + u8::from(self.bit(4))), n, 0, m);
        let (cold, back) = self.or_unordered();
        self.asm.jump_if(cc::P, cold);
        // SETA AL; SBB AL, 0: 1, 0 or -1; ADD AL, AL carries if it is less.
        self.asm.bytes(&[0x0f, 0x97, 0xc0, 0x1c, 0x00, 0x00, 0xc0]);
        self.asm.bind(back);
    }

    fn compare_numbers(&mut self, shape: Shape, zero: bool) {
        self.need_environment();
        self.flags_of_comparison(shape, zero);
        self.save_flags();
    }

    fn compare_numbers_if(&mut self, shape: Shape) {
        self.need_environment();
        // Both registers are there whatever the condition is.
        let _ = (self.vector_at(5), self.vector_at(16));
        let done = self.asm.label();
        if let Some(holds) = condition(self.bits(15, 12)) {
            self.load_flags();
            self.asm.constant(RAX, u64::from(crate::flags::of(self.bits(3, 0) << 28)));
            self.asm.jump_if(holds ^ 1, done);
        }
        self.flags_of_comparison(shape, false);
        // LAHF; SETO AL
        self.asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0]);
        self.asm.bind(done);
        self.keep_flags();
    }

    /// Multiplications with an addition, rounded once.
    fn fused(&mut self, op: Op, shape: Shape) -> bool {
        // VFMADD231, VFMSUB231, VFNMADD231, VFNMSUB231
        let opcode = match op {
            Op::Fmadd | Op::FmlaVec | Op::FmlaElem | Op::FmlaElemScalar => 0xb8,
            Op::Fmsub | Op::FmlsVec | Op::FmlsElem | Op::FmlsElemScalar => 0xbc,
            Op::Fnmsub => 0xba,
            Op::Fnmadd => 0xbe,
            _ => return false,
        };
        self.need_environment();
        let addend = if matches!(op, Op::Fmadd | Op::Fmsub | Op::Fnmsub | Op::Fnmadd) { 10 } else { 0 };
        let (n, m, a) = (self.vector_at(5), self.vector_at(16), self.vector_at(addend));
        let to = self.fresh();
        let (cold, back) = self.or_step();
        let n = self.operand(shape, n, 0);
        let m = match op {
            Op::FmlaElem | Op::FmlsElem | Op::FmlaElemScalar | Op::FmlsElemScalar => {
                self.element(shape, m, 1)
            }
            _ => self.operand(shape, m, 1),
        };
        match self.operand(shape, a, to) {
            doubled if doubled == to => {}
            from if self.size_of(from) <= shape.size() => self.vmove(to, from),
            from => self.narrow_to(shape.size(), to, from),
        }
        self.vop(shape.fused(opcode), to, n, m);
        self.check(shape, Check::Least, to, cold);
        if !shape.scalar {
            self.narrow_to(shape.size(), to, to);
        }
        self.put_vector(self.bits(4, 0), to, shape.size());
        self.over(back);
        true
    }

    /// Moves, signs and selections, which compute nothing.
    fn moves(&mut self, op: Op) -> bool {
        let (d, shape) = (self.bits(4, 0), self.shape());
        match op {
            Op::FmovReg => {
                let (n, to) = (self.vector_at(5), self.fresh());
                self.narrow_to(shape.size(), to, n);
                self.put_vector(d, to, shape.size());
                self.flags = self.flags_before;
            }
            Op::Fabs | Op::Fneg | Op::FabsVec | Op::FnegVec => {
                let (n, to) = (self.vector_at(5), self.fresh());
                self.sign(shape, to, n, matches!(op, Op::Fneg | Op::FnegVec));
                if matches!(op, Op::Fabs | Op::FabsVec) {
                    self.narrow_to(shape.size(), to, to);
                }
                self.put_vector(d, to, shape.size());
                self.flags = self.flags_before;
            }
            Op::Fcsel => self.choose(shape),
            Op::FmovImm => {
                let to = self.fresh();
                let value = expand(self.bits(20, 13), shape.double);
                self.asm.constant(RCX, value);
                self.move_from_general(shape.double, to, Rm::Reg(RCX));
                self.put_vector(d, to, shape.size());
                self.flags = self.flags_before;
            }
            Op::FmovFromGeneral => {
                let (wide, to) = (self.bit(31), self.fresh());
                self.move_from_general(wide, to, self.rm(self.r(5)));
                self.put_vector(d, to, 4 << u8::from(wide));
                self.flags = self.flags_before;
            }
            Op::FmovTopFromGeneral => {
                let (old, to) = (self.v(d), self.fresh());
                let from = self.rm(self.r(5));
                // VPINSRQ
                self.asm.vector(Vector { wide: true, ..vex3a(0x22) }, to, old, from, Some(1));
                self.put_vector(d, to, 16);
                self.flags = self.flags_before;
            }
            Op::FmovToGeneral => {
                let n = self.vector_at(5);
                let to = self.target(self.r(0), &[]);
                self.move_to_general(self.bit(31), to, n);
                self.put(self.r(0), to);
                self.flags = self.flags_before;
            }
            Op::FmovTopToGeneral => {
                let n = self.vector_at(5);
                let to = self.target(self.r(0), &[]);
                // VPEXTRQ
                self.asm.vector(Vector { wide: true, ..vex3a(0x16) }, n, 0, Rm::Reg(to), Some(1));
                self.put(self.r(0), to);
                self.flags = self.flags_before;
            }
            _ => return false,
        }
        true
    }

    /// FCSEL.
    fn choose(&mut self, shape: Shape) {
        let (n, m, to) = (self.vector_at(5), self.vector_at(16), self.fresh());
        let Some(holds) = condition(self.bits(15, 12)) else {
            self.narrow_to(shape.size(), to, n);
            return self.put_vector(self.bits(4, 0), to, shape.size());
        };
        self.load_flags();
        self.flags = true;
        self.move_to_general(shape.double, RCX, m);
        self.move_to_general(shape.double, RDX, n);
        self.asm.op(shape.double, &[0x0f, 0x40 | holds], RCX, Rm::Reg(RDX));
        self.move_from_general(shape.double, to, Rm::Reg(RCX));
        self.put_vector(self.bits(4, 0), to, shape.size());
    }
}

/// VFPExpandImm.
pub(crate) fn expand(imm8: u32, double: bool) -> u64 {
    let (sign, b, rest) = (u64::from(imm8 >> 7), imm8 >> 6 & 1 != 0, u64::from(imm8 & 0x3f));
    match double {
        true => sign << 63 | (if b { 0x3fc0 } else { 0x4000 }) << 48 | rest << 48,
        false => sign << 31 | (if b { 0x3e00 } else { 0x4000 }) << 16 | rest << 19,
    }
}
