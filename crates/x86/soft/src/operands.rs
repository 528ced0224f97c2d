//! Operands of decoded instructions: registers, immediates, addresses.

use iced_x86::{Instruction, OpKind, Register};
use satori_defs::x86::rflags;
use satori_engine::Exception;
use satori_state::{reg, seg};

use crate::cpu::{Cpu, Exec};
use crate::mmu::canonical;

/// Keeps the low `bits` (16, 32 or 64) of an offset.
pub(crate) const fn truncate(value: u64, bits: u32) -> u64 {
    if bits == 64 { value } else { value & ((1 << bits) - 1) }
}

/// Whether an operand of this kind is an immediate.
pub(crate) fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

impl Cpu {
    /// The general-purpose register file index and byte shift of `r`.
    fn locate(r: Register) -> (usize, u32) {
        let shift =
            if matches!(r, Register::AH | Register::CH | Register::DH | Register::BH) { 8 } else { 0 };
        (r.full_register().number() & 15, shift)
    }

    /// A general-purpose register of any size, zero-extended; a selector for a segment register.
    pub fn reg(&self, r: Register) -> u64 {
        if r.is_segment_register() {
            return self.state.seg[r.number()].selector.into();
        }
        let (index, shift) = Self::locate(r);
        let value = self.state.gpr[index] >> shift;
        match r.size() {
            1 => value & 0xff,
            2 => value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        }
    }

    /// Writes a general-purpose register of any size; 32-bit writes clear the upper half.
    pub fn set_reg(&mut self, r: Register, value: u64) {
        let (index, shift) = Self::locate(r);
        let slot = &mut self.state.gpr[index];
        *slot = match r.size() {
            1 => *slot & !(0xff << shift) | (value & 0xff) << shift,
            2 => *slot & !0xffff | value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        };
    }

    /// The address after `insn`.
    pub fn next_ip(&self, insn: &Instruction) -> u64 {
        truncate(self.state.rip.wrapping_add(insn.len() as u64), self.ip_bits())
    }

    /// Width of the instruction pointer.
    fn ip_bits(&self) -> u32 {
        if self.derived.code64 { 64 } else { 32 }
    }

    /// The target of a near direct branch. Instructions are decoded as if at address 0.
    pub fn branch_target(&self, insn: &Instruction) -> u64 {
        let relative = insn.near_branch_target().wrapping_sub(insn.ip());
        let bits = match insn.op0_kind() {
            OpKind::NearBranch16 => 16,
            OpKind::NearBranch32 => 32,
            _ => 64,
        };
        truncate(self.state.rip.wrapping_add(relative), bits)
    }

    /// Goes on at `rip` once the instruction completes.
    pub fn jump(&mut self, rip: u64) -> Exec<()> {
        let fits = if self.derived.code64 {
            canonical(rip)
        } else {
            rip <= u64::from(self.state.seg[seg::CS].limit)
        };
        if !fits {
            return Err(self.raise(Exception::gp(0)));
        }
        self.next_rip = rip;
        Ok(())
    }

    /// The effective address of the memory operand, without its segment.
    pub fn offset(&self, insn: &Instruction) -> u64 {
        if insn.is_ip_rel_memory_operand() {
            let displacement = insn.ip_rel_memory_address().wrapping_sub(insn.next_ip());
            let bits = if insn.memory_base() == Register::EIP { 32 } else { 64 };
            return truncate(self.next_ip(insn).wrapping_add(displacement), bits);
        }
        let value = |r: Register| if r == Register::None { 0 } else { self.reg(r) };
        let base = value(insn.memory_base());
        let index = value(insn.memory_index()).wrapping_mul(insn.memory_index_scale().into());
        let sum = base.wrapping_add(index).wrapping_add(insn.memory_displacement64());
        truncate(sum, self.address_bits(insn))
    }

    /// Address size in bits.
    pub fn address_bits(&self, insn: &Instruction) -> u32 {
        let by_register = |r: Register| (r != Register::None).then(|| r.size() as u32 * 8);
        by_register(insn.memory_base()).or_else(|| by_register(insn.memory_index())).unwrap_or(
            match insn.memory_displ_size() {
                2 => 16,
                4 if !self.derived.code64 => 32,
                8 => 64,
                _ => self.bits(),
            },
        )
    }

    /// The linear address of memory operand `op`, checked against its segment for reading.
    pub fn ea(&mut self, insn: &Instruction, op: u32) -> Exec<u64> {
        self.checked_ea(insn, op, false)
    }

    /// The linear address of `size` bytes that begin `at` bytes into the memory operand, checked against
    /// its segment. Instructions that access an operand in parts meet the faults of a part before
    /// they look at the next. The manual leaves the order open (SDM volume 3, table 6-2); AMD's processors
    /// do it this way with far pointers, BOUND's pairs and values of 80 bits.
    pub fn ea_part(&mut self, insn: &Instruction, at: u64, size: u64, write: bool) -> Exec<u64> {
        let offset = self.offset(insn).wrapping_add(at);
        self.segment_linear(insn.memory_segment().number(), offset, size, write)
    }

    /// The linear address of memory operand `op`, checked against its segment for writing.
    pub fn ea_write(&mut self, insn: &Instruction, op: u32) -> Exec<u64> {
        self.checked_ea(insn, op, true)
    }

    fn checked_ea(&mut self, insn: &Instruction, op: u32, write: bool) -> Exec<u64> {
        let size = self.operand_size(insn, op);
        match insn.op_kind(op) {
            OpKind::Memory => {
                let offset = self.offset(insn);
                self.segment_linear(insn.memory_segment().number(), offset, size.into(), write)
            }
            kind => self.string_ea(insn, kind, size, write),
        }
    }

    /// The address of a string operand (SI or DI).
    fn string_ea(&mut self, insn: &Instruction, kind: OpKind, size: u32, write: bool) -> Exec<u64> {
        let (index, bits, source) = match kind {
            OpKind::MemorySegSI => (reg::RSI, 16, true),
            OpKind::MemorySegESI => (reg::RSI, 32, true),
            OpKind::MemorySegRSI => (reg::RSI, 64, true),
            OpKind::MemorySegDI => (reg::RDI, 16, true),
            OpKind::MemorySegEDI => (reg::RDI, 32, true),
            OpKind::MemorySegRDI => (reg::RDI, 64, true),
            OpKind::MemoryESDI => (reg::RDI, 16, false),
            OpKind::MemoryESEDI => (reg::RDI, 32, false),
            _ => (reg::RDI, 64, false),
        };
        let offset = truncate(self.state.gpr[index], bits);
        let segment = if source { insn.memory_segment().number() } else { seg::ES };
        self.segment_linear(segment, offset, size.into(), write)
    }

    /// The linear address of `size` bytes at `offset` in `segment`: canonical in 64-bit code,
    /// else within the limit and of a fitting type.
    pub fn segment_linear(&mut self, segment: usize, offset: u64, size: u64, write: bool) -> Exec<u64> {
        if self.derived.code64 {
            let base = if segment >= seg::FS { self.state.seg[segment].base } else { 0 };
            let linear = base.wrapping_add(offset);
            if !canonical(linear) || !canonical(linear.wrapping_add(size.max(1) - 1)) {
                return Err(self.refuse_address(segment));
            }
            return Ok(linear);
        }
        let register = self.state.seg[segment];
        let last = offset.wrapping_add(size.max(1) - 1);
        let code = register.rights & 8 != 0;
        let expands_down = !code && register.rights & 4 != 0;
        let real = self.state.cr0 & satori_defs::x86::cr0::PE == 0 || self.state.rflags & rflags::VM != 0;
        let within = if expands_down && !real {
            let top = if register.big() { 0xffff_ffff } else { 0xffff };
            offset > u64::from(register.limit) && last <= top
        } else {
            last <= u64::from(register.limit)
        };
        // Bit 1 of the type: data can be written, code can be read. Real-address mode looks at
        // neither, and in virtual-8086 mode all segments can be written.
        let right = real || if write { !code && register.rights & 2 != 0 } else { register.rights & 10 != 8 };
        if register.unusable() || !within || !right || last < offset {
            return Err(self.refuse_address(segment));
        }
        Ok(register.base.wrapping_add(offset) & 0xffff_ffff)
    }

    /// Bytes of operand `op`.
    pub fn operand_size(&self, insn: &Instruction, op: u32) -> u32 {
        match insn.op_kind(op) {
            OpKind::Register => insn.op_register(op).size() as u32,
            OpKind::Immediate8 | OpKind::Immediate8_2nd => 1,
            OpKind::Immediate16 | OpKind::Immediate8to16 => 2,
            OpKind::Immediate32 | OpKind::Immediate8to32 => 4,
            OpKind::Immediate64 | OpKind::Immediate8to64 | OpKind::Immediate32to64 => 8,
            OpKind::NearBranch16 => 2,
            OpKind::NearBranch32 => 4,
            OpKind::NearBranch64 => 8,
            _ => insn.memory_size().size() as u32,
        }
    }

    /// Operand `op` of 1, 2, 4 or 8 bytes; immediates are sign-extended, the rest zero-extended.
    pub fn operand(&mut self, insn: &Instruction, op: u32) -> Exec<u64> {
        match insn.op_kind(op) {
            OpKind::Register => Ok(self.reg(insn.op_register(op))),
            kind if is_immediate(kind) => Ok(insn.immediate(op)),
            _ => {
                let linear = self.ea(insn, op)?;
                self.read_sized(linear, self.operand_size(insn, op))
            }
        }
    }

    /// Writes operand `op` of 1, 2, 4 or 8 bytes.
    pub fn set_operand(&mut self, insn: &Instruction, op: u32, value: u64) -> Exec<()> {
        if insn.op_kind(op) == OpKind::Register {
            self.set_reg(insn.op_register(op), value);
            return Ok(());
        }
        let size = self.operand_size(insn, op);
        let linear = self.ea_write(insn, op)?;
        self.write_sized(linear, size, value)
    }

    /// The stack pointer and the mask of its width.
    pub fn stack_pointer(&self) -> (u64, u64) {
        let mask = if self.derived.code64 {
            u64::MAX
        } else if self.state.seg[seg::SS].big() {
            0xffff_ffff
        } else {
            0xffff
        };
        (self.state.gpr[reg::RSP] & mask, mask)
    }

    /// Sets the stack pointer, keeping what its width does not cover.
    pub fn set_stack_pointer(&mut self, sp: u64) {
        let (_, mask) = self.stack_pointer();
        let rsp = &mut self.state.gpr[reg::RSP];
        *rsp = if mask == 0xffff { *rsp & !0xffff | sp & mask } else { sp & mask };
    }
}
