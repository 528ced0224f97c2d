//! Loads and stores: the look into the vCPU's table of pages is inline, and what it does not answer the interpreter executes.

use satori_arm_isa::Op;
use satori_arm_soft::layout;
use satori_arm_state::SP;
use satori_memory::PageState;

use crate::asm::{Alu, Label, PAGES, RAX, RCX, RDX, Reg, Rm, cc, shift};
use crate::emit::{Emit, place};

/// How an address is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Base and offset.
    Offset(i32),
    /// The base, which becomes the sum.
    Post(i32),
    /// The sum, which the base becomes.
    Pre(i32),
    /// Base and register.
    Register,
    /// A constant.
    Literal(u64),
}

/// What is loaded or stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Store,
    Zeros,
    /// To 64 bits.
    Sign,
    /// To 32 bits.
    Sign32,
    VectorStore,
    VectorLoad,
}

/// The entry's bits of an address in 31:0 are behind so many.
const ENTRY_SHIFT: u32 = 12 - layout::SIZE.trailing_zeros();
const ENTRY_MASK: i32 = ((layout::ENTRIES - 1) * layout::SIZE) as i32;

impl Emit<'_> {
    /// Translates the instruction, if it is one of these. Vectors need the floating-point unit to be there.
    pub(crate) fn memory(&mut self, op: Op, fp: bool) -> bool {
        if matches!(op, Op::Prfm | Op::Prfum | Op::PrfmReg | Op::PrfmLit) {
            self.flags = self.flags_before;
            return true;
        }
        if let Some((what, bytes)) = self.pair(op) {
            if matches!(what, What::VectorLoad | What::VectorStore) && !fp {
                return false;
            }
            let offset = ((self.bits(21, 15) << 25) as i32 >> 25) * bytes as i32;
            let form = match self.bits(24, 23) {
                1 => Form::Post(offset),
                3 => Form::Pre(offset),
                _ => Form::Offset(offset),
            };
            self.access(what, bytes, true, form);
            return true;
        }
        let Some((what, bytes, form)) = self.single(op) else { return false };
        if matches!(what, What::VectorLoad | What::VectorStore) && !fp {
            return false;
        }
        self.access(what, bytes, false, form);
        true
    }

    fn pair(&self, op: Op) -> Option<(What, u32)> {
        Some(match op {
            Op::Stp32 => (What::Store, 4),
            Op::Ldp32 => (What::Zeros, 4),
            Op::Ldpsw => (What::Sign, 4),
            Op::Stp64 => (What::Store, 8),
            Op::Ldp64 => (What::Zeros, 8),
            Op::StpS => (What::VectorStore, 4),
            Op::LdpS => (What::VectorLoad, 4),
            Op::StpD => (What::VectorStore, 8),
            Op::LdpD => (What::VectorLoad, 8),
            Op::StpQ => (What::VectorStore, 16),
            Op::LdpQ => (What::VectorLoad, 16),
            _ => return None,
        })
    }

    fn single(&self, op: Op) -> Option<(What, u32, Form)> {
        let size = self.bits(31, 30);
        let small = (self.bits(20, 12) << 23) as i32 >> 23;
        let literal =
            Form::Literal(self.pc.wrapping_add(((u64::from(self.bits(23, 5)) << 45) as i64 >> 43) as u64));
        let what = match op {
            Op::LdrLitW => return Some((What::Zeros, 4, literal)),
            Op::LdrLitX => return Some((What::Zeros, 8, literal)),
            Op::LdrswLit => return Some((What::Sign, 4, literal)),
            Op::LdrLitS => return Some((What::VectorLoad, 4, literal)),
            Op::LdrLitD => return Some((What::VectorLoad, 8, literal)),
            Op::LdrLitQ => return Some((What::VectorLoad, 16, literal)),
            Op::StUns | Op::StUnscaled | Op::StPost | Op::StPre | Op::StReg => What::Store,
            Op::LdUns | Op::LdUnscaled | Op::LdPost | Op::LdPre | Op::LdReg => What::Zeros,
            Op::LdSxUns | Op::LdSxUnscaled | Op::LdSxPost | Op::LdSxPre | Op::LdSxReg => What::Sign,
            Op::LdSwUns | Op::LdSwUnscaled | Op::LdSwPost | Op::LdSwPre | Op::LdSwReg => What::Sign32,
            Op::StVUns | Op::StVUnscaled | Op::StVPost | Op::StVPre | Op::StVReg => What::VectorStore,
            Op::StQUns | Op::StQUnscaled | Op::StQPost | Op::StQPre | Op::StQReg => What::VectorStore,
            Op::LdVUns | Op::LdVUnscaled | Op::LdVPost | Op::LdVPre | Op::LdVReg => What::VectorLoad,
            Op::LdQUns | Op::LdQUnscaled | Op::LdQPost | Op::LdQPre | Op::LdQReg => What::VectorLoad,
            _ => return None,
        };
        // The vector registers' 16 bytes are told by opc.
        let size = if self.bit(26) && self.bit(23) { 4 } else { size };
        let form = match (self.bit(24), self.bit(21), self.bits(11, 10)) {
            (true, ..) => Form::Offset((self.bits(21, 10) << size) as i32),
            (_, true, _) => Form::Register,
            (_, _, 1) => Form::Post(small),
            (_, _, 3) => Form::Pre(small),
            _ => Form::Offset(small),
        };
        Some((what, 1 << size, form))
    }

    /// Makes the address in RAX; what the base register becomes is told by its displacement.
    fn address(&mut self, form: Form, bytes: u32, cold: Label) -> Option<i32> {
        let n = self.r_sp(5);
        if let Form::Literal(address) = form {
            self.asm.constant(RAX, address);
            return None;
        }
        self.check_stack(n, cold);
        let base = self.get(n, RAX);
        match form {
            Form::Offset(0) | Form::Post(_) if base == RAX => {}
            Form::Offset(0) | Form::Post(_) => self.asm.mov(true, RAX, Rm::Reg(base)),
            Form::Offset(by) | Form::Pre(by) => self.asm.lea(true, RAX, Rm::At(base, by)),
            Form::Register => {
                let up = if self.bit(12) { bytes.trailing_zeros() } else { 0 };
                self.extend(self.r(16), self.bits(15, 13), RCX);
                if up > 3 {
                    self.asm.shift(true, shift::SHL, RCX, up);
                }
                self.asm.lea(true, RAX, Rm::Sum(base, RCX, if up > 3 { 0 } else { up as u8 }, 0));
            }
            Form::Literal(_) => {}
        }
        match form {
            Form::Post(by) | Form::Pre(by) => Some(by),
            _ => None,
        }
    }

    /// Leaves for `cold` if the base is a stack pointer that is not aligned.
    pub(crate) fn check_stack(&mut self, base: u8, cold: Label) {
        if usize::from(base) == SP {
            // TEST byte [sp], 15
            self.asm.op8(&[0xf6], 0, place(base));
            self.asm.bytes(&[15]);
            self.asm.jump_if(cc::NE, cold);
        }
    }

    /// The state of the page that [`Emit::look_up`] found in RDX.
    pub(crate) fn load_state(&mut self) {
        self.asm.mov(true, RDX, Rm::Sum(PAGES, RCX, 0, layout::STATE as i32));
    }

    /// Tells the state in RDX of a write, if it wants to know.
    pub(crate) fn notice(&mut self) {
        let (noticed, behind) = self.or_wrote();
        // TEST byte [state], WATCHED
        self.asm.op8(&[0xf6], 0, Rm::At(RDX, 0));
        self.asm.bytes(&[PageState::WATCHED as u8]);
        self.asm.jump_if(cc::NE, noticed);
        self.asm.bind(behind);
    }

    /// From an address in RAX to the host's: RCX is the entry's offset.
    pub(crate) fn look_up(&mut self, bytes: u32, write: bool, cold: Label) {
        self.asm.mov(false, RCX, Rm::Reg(RAX));
        self.asm.shift(false, shift::SHR, RCX, ENTRY_SHIFT);
        self.asm.alu_imm(false, Alu::And, Rm::Reg(RCX), ENTRY_MASK);
        match bytes {
            1 => self.asm.mov(true, RDX, Rm::Reg(RAX)),
            _ => self.asm.lea(true, RDX, Rm::At(RAX, bytes as i32 - 1)),
        }
        self.asm.alu_imm(true, Alu::And, Rm::Reg(RDX), -4096);
        let tag = if write { layout::WRITE } else { layout::READ };
        self.asm.alu(true, Alu::Cmp, RDX, Rm::Sum(PAGES, RCX, 0, tag as i32));
        self.asm.jump_if(cc::NE, cold);
        self.asm.alu(true, Alu::Add, RAX, Rm::Sum(PAGES, RCX, 0, layout::DISTANCE as i32));
    }

    fn access(&mut self, what: What, bytes: u32, pair: bool, form: Form) {
        let write = matches!(what, What::Store | What::VectorStore);
        let vectors = self.vectors_of(what, pair);
        let (cold, back) = self.or_step();
        let moved = self.address(form, bytes, cold);
        let total = if pair { 2 * bytes } else { bytes };
        self.look_up(total, write, cold);
        let second = pair.then_some(bytes as i32);
        let registers = [Some((0, 0)), second.map(|at| (10, at))];
        let base = self.r_sp(5);
        if write {
            for (low, at) in registers.into_iter().flatten() {
                match what {
                    What::Store => self.store(self.r(low), bytes, at),
                    _ => self.store_vector(vectors[usize::from(low != 0)], bytes, at),
                }
            }
            self.load_state();
            self.write_back(base, moved);
            self.notice();
        } else if what == What::VectorLoad {
            self.write_back(base, moved);
            for (low, at) in registers.into_iter().flatten() {
                let to = vectors[usize::from(low != 0)];
                self.load_vector(to, bytes, at);
                self.put_vector(self.bits(low + 4, low), to, bytes as u8);
            }
        } else {
            let size = bytes;
            // Both are loaded before a register changes, as the second may be what the first one's address is made of.
            let targets = if pair { [RCX, RDX] } else { [RCX, RCX] };
            for ((_, at), to) in registers.into_iter().flatten().zip(targets) {
                let from = Rm::At(RAX, at);
                match (what, size) {
                    (What::Sign, _) => self.extend_sign(size, true, to, from),
                    (What::Sign32, _) => self.extend_sign(size, false, to, from),
                    (_, 1) => self.asm.op(false, &[0x0f, 0xb6], to, from),
                    (_, 2) => self.asm.op(false, &[0x0f, 0xb7], to, from),
                    _ => self.asm.mov(size == 8, to, from),
                }
            }
            self.write_back(base, moved);
            for ((low, _), from) in registers.into_iter().flatten().zip(targets) {
                self.put(self.r(low), from);
            }
        }
        self.over(back);
    }

    /// The host registers of one or two vectors: those that are stored, or those that are loaded.
    fn vectors_of(&mut self, what: What, pair: bool) -> [Reg; 2] {
        let of = |emit: &mut Self, low, needed: bool| match what {
            _ if !needed => 0,
            What::VectorStore => emit.vector_at(low),
            What::VectorLoad => emit.fresh(),
            _ => 0,
        };
        [of(self, 0, true), of(self, 10, pair)]
    }

    fn write_back(&mut self, base: u8, moved: Option<i32>) {
        let Some(by) = moved else { return };
        let rm = self.rm(base);
        self.changed(base);
        self.asm.alu_imm(true, Alu::Add, rm, by);
    }

    fn store(&mut self, from: u8, bytes: u32, at: i32) {
        let to = Rm::At(RAX, at);
        let from = self.get(from, RDX);
        match bytes {
            1 => self.asm.op8(&[0x88], from, to),
            2 => self.asm.op_with(0x66, false, &[0x89], from, to),
            _ => self.asm.store(bytes == 8, to, from),
        }
    }

    pub(crate) fn store_vector(&mut self, from: Reg, bytes: u32, at: i32) {
        let to = Rm::At(RAX, at);
        match bytes {
            // MOVUPS, MOVQ, MOVD
            16 => self.asm.op(false, &[0x0f, 0x11], from, to),
            8 => self.asm.op_with(0x66, false, &[0x0f, 0xd6], from, to),
            4 => self.asm.op_with(0x66, false, &[0x0f, 0x7e], from, to),
            _ => {
                self.asm.op_with(0x66, false, &[0x0f, 0x7e], from, Rm::Reg(RDX));
                match bytes {
                    1 => self.asm.op8(&[0x88], RDX, to),
                    _ => self.asm.op_with(0x66, false, &[0x89], RDX, to),
                }
            }
        }
    }

    pub(crate) fn load_vector(&mut self, to: Reg, bytes: u32, at: i32) {
        let from = Rm::At(RAX, at);
        match bytes {
            16 => self.asm.op(false, &[0x0f, 0x10], to, from),
            // MOVQ, MOVD: the rest becomes zero.
            8 => self.asm.op_with(0xf3, false, &[0x0f, 0x7e], to, from),
            4 => self.asm.op_with(0x66, false, &[0x0f, 0x6e], to, from),
            _ => {
                self.asm.op(false, &[0x0f, if bytes == 1 { 0xb6 } else { 0xb7 }], RCX, from);
                self.asm.op_with(0x66, false, &[0x0f, 0x6e], to, Rm::Reg(RCX));
            }
        }
    }
}
