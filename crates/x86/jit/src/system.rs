//! Instructions on the processor's own state that only read it, or change no more than a base.

use std::mem::offset_of;

use iced_x86::{Code, Instruction, OpKind, Register};
use satori_defs::x86::cr4;
use satori_state::{CpuState, Segment, seg};

use super::asm::{Alu, Label, Mem, Reg, cc, field};
use super::cold::Cold;
use super::copy::sized;
use super::lower::Lower;
use super::memory::Address;
use super::reason;
use super::stubs::{self, GUEST_RAX, S1, S2};
use crate::Translating;
use satori_soft::isa::Isa;

const RCX: Reg = Reg(1);
const RDX: Reg = Reg(2);

pub(crate) fn state(offset: usize) -> Mem {
    field(offset_of!(Translating, cpu.state) + offset)
}

/// A field of segment register `i`.
pub(crate) fn segment(i: usize, offset: usize) -> Mem {
    state(offset_of!(CpuState, seg) + i * size_of::<Segment>() + offset)
}

impl Lower<'_> {
    /// Emits `insn` if it is one that this file knows; false otherwise, whatever was emitted.
    pub(crate) fn system(&mut self, isa: &Isa, insn: &Instruction) -> bool {
        match insn.code() {
            Code::Mov_rm16_Sreg | Code::Mov_r32m16_Sreg | Code::Mov_r64m16_Sreg => self.selector(insn),
            Code::Rdfsbase_r32 | Code::Rdfsbase_r64 => self.read_base(isa, insn, seg::FS),
            Code::Rdgsbase_r32 | Code::Rdgsbase_r64 => self.read_base(isa, insn, seg::GS),
            Code::Rdpkru => self.read_keys(isa, insn),
            Code::Rdtsc | Code::Rdtscp => self.time_stamp(isa, insn),
            _ => false,
        }
    }

    /// Goes to the generic implementation if `bit` of CR4 is `set`.
    fn other_if_cr4(&mut self, bit: u64, set: bool, other: Label) {
        let byte = bit.trailing_zeros() / 8;
        self.asm.test_at(state(offset_of!(CpuState, cr4) + byte as usize), (bit >> (8 * byte)) as u8);
        self.asm.jcc(if set { cc::NE } else { cc::E }, other);
    }

    /// Puts `from` into the guest's register `to`.
    fn load_guest(&mut self, to: usize, from: Mem, wide: bool) {
        let host = self.home(to).unwrap_or(S2);
        if wide {
            self.asm.load(host, from);
        } else {
            self.asm.load32(host, from);
        }
        if self.home(to).is_none() {
            self.asm.store(stubs::gpr(to), host);
        }
    }

    /// MOV from a segment register.
    fn selector(&mut self, insn: &Instruction) -> bool {
        let from = segment(insn.op1_register().number(), offset_of!(Segment, selector));
        if insn.op0_kind() == OpKind::Register {
            let to = insn.op0_register();
            let Some(host) = self.home(to.full_register().number()) else { return false };
            if to.size() >= 4 {
                self.asm.load16(host, from);
                return true;
            }
            self.asm.load16(S2, from);
            let part = Instruction::with2(Code::Mov_r16_rm16, sized(host.0, to), sized(S2.0, to));
            return part.is_ok_and(|part| self.asm.copy(&part));
        }
        let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
        let (mem, spare) = self.access(&address, 2, true, 1);
        let mem = if spare {
            mem
        } else {
            self.asm.lea(S1, mem);
            Mem::at(S1, 0)
        };
        self.asm.load16(S2, from);
        self.asm.store16(mem, S2);
        true
    }

    /// RDFSBASE and RDGSBASE.
    fn read_base(&mut self, isa: &Isa, insn: &Instruction, from: usize) -> bool {
        self.save_flags();
        let (other, back) = (self.asm.label(), self.asm.label());
        self.other_if_cr4(cr4::FSGSBASE, false, other);
        let to: Register = insn.op0_register();
        let from = segment(from, offset_of!(Segment, base));
        self.load_guest(to.full_register().number(), from, to.size() == 8);
        self.otherwise(isa, insn, other, back);
        true
    }

    /// WRFSBASE and WRGSBASE with 64 bits, which end their block.
    pub(crate) fn write_base(&mut self, insn: &Instruction, to: usize, next: u64) {
        self.save_flags();
        let other = self.step(reason::STEP);
        self.other_if_cr4(cr4::FSGSBASE, false, other);
        let from = insn.op0_register().number();
        match self.home(from) {
            Some(host) => self.asm.mov(S2, host),
            None => self.asm.load(S2, stubs::gpr(from)),
        }
        self.unless_canonical(S2, other);
        self.asm.store(segment(to, offset_of!(Segment, base)), S2);
        self.asm.store(stubs::segment_base(to), S2);
        self.link(next);
    }

    /// Goes to `other` unless bits 63 to 47 of `address` are all the same. S1 is lost.
    pub(crate) fn unless_canonical(&mut self, address: Reg, other: Label) {
        self.asm.mov(S1, address);
        self.asm.sar(S1, 47);
        self.asm.alu_imm(Alu::Add, S1, 1);
        self.asm.alu_imm(Alu::Cmp, S1, 1);
        self.asm.jcc(cc::A, other);
    }

    /// RDPKRU.
    fn read_keys(&mut self, isa: &Isa, insn: &Instruction) -> bool {
        self.save_flags();
        let (other, back) = (self.asm.label(), self.asm.label());
        self.other_if_cr4(cr4::PKE, false, other);
        self.asm.alu_imm32(Alu::Cmp, RCX, 0);
        self.asm.jcc(cc::NE, other);
        self.asm.load32(GUEST_RAX, state(offset_of!(CpuState, pkru)));
        self.asm.constant(RDX, 0);
        self.otherwise(isa, insn, other, back);
        true
    }

    /// RDTSC and RDTSCP.
    fn time_stamp(&mut self, isa: &Isa, insn: &Instruction) -> bool {
        self.save_flags();
        let (other, back) = (self.asm.label(), self.asm.label());
        if !self.block.privileged {
            self.other_if_cr4(cr4::TSD, true, other);
        }
        if insn.code() == Code::Rdtscp {
            // LFENCE: it reads behind everything before it (SDM 2B).
            self.asm.bytes(&[0x0f, 0xae, 0xe8]);
        }
        self.asm.constant(S1, self.current.rest.into());
        self.asm.call_to(self.stubs.time_stamp);
        self.reload_vectors();
        self.asm.alu_byte(Alu::Cmp, stubs::due(), 0);
        self.asm.jcc(cc::NE, other);
        self.asm.mov32(GUEST_RAX, S1);
        self.asm.shr(S1, 32);
        self.asm.mov(RDX, S1);
        if insn.code() == Code::Rdtscp {
            self.asm.load32(RCX, state(offset_of!(CpuState, tsc_aux)));
        }
        self.otherwise(isa, insn, other, back);
        true
    }

    /// The generic implementation of `insn`, out of the way at `other`; what comes next is at `back`.
    pub(crate) fn otherwise(&mut self, isa: &Isa, insn: &Instruction, other: Label, back: Label) {
        self.asm.bind(back);
        let site = self.site(isa, insn);
        self.seldom(Cold::Generic { label: other, back, site });
    }

    /// BT, BTS, BTR and BTC of a bit string in memory: the register's upper bits choose the word.
    pub(crate) fn bit_string(&mut self, insn: &Instruction) -> bool {
        let (shift, size) = match insn.code() {
            Code::Bt_rm32_r32 | Code::Bts_rm32_r32 | Code::Btr_rm32_r32 | Code::Btc_rm32_r32 => (5, 4),
            Code::Bt_rm64_r64 | Code::Bts_rm64_r64 | Code::Btr_rm64_r64 | Code::Btc_rm64_r64 => (6, 8),
            _ => return false,
        };
        if insn.op0_kind() != OpKind::Memory {
            return false;
        }
        let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
        if address.short && (!address.narrow || address.segment.is_some()) {
            return false;
        }
        self.places.held = None;
        self.save_flags();
        self.effective(S2, &address, 0);
        let bit = insn.op1_register().full_register().number();
        self.bit_number(bit);
        if size == 4 {
            // The offset is signed.
            self.asm.extend(S1);
        }
        self.asm.sar(S1, shift);
        let scale = if size == 4 { 2 } else { 3 };
        let word = Mem { cpu: false, base: Some(S2), index: Some((S1, scale)), disp: 0 };
        if address.narrow {
            self.asm.lea32(S2, word)
        } else {
            self.asm.lea(S2, word)
        }
        self.asm.store(stubs::computed(), S2);
        let write = !matches!(insn.code(), Code::Bt_rm32_r32 | Code::Bt_rm64_r64);
        let (mem, _) = self.access(&Address::computed(), size, write, 1);
        self.asm.lea(S2, mem);
        self.bit_number(bit);
        self.asm.alu_imm32(Alu::And, S1, (1 << shift) - 1);
        let mut copy = *insn;
        super::copy::put_address(&mut copy, Mem::at(S2, 0));
        copy.set_op1_register(if size == 4 { Register::EAX } else { Register::RAX });
        if !self.asm.copy(&copy) {
            return false;
        }
        // The carry flag goes to the others; SETC AL; MOVZX EAX, AL.
        self.asm.bytes(&[0x0f, 0x92, 0xc0, 0x0f, 0xb6, 0xc0]);
        self.asm.imul32(S1, S1, 0x100);
        self.asm.load(S2, stubs::flags());
        self.asm.alu_imm(Alu::And, S2, !0x100);
        self.asm.alu(Alu::Or, S2, S1);
        self.asm.store(stubs::flags(), S2);
        true
    }

    fn bit_number(&mut self, bit: usize) {
        match self.home(bit) {
            Some(host) => self.asm.mov(S1, host),
            None => self.asm.load(S1, stubs::gpr(bit)),
        }
    }
}

/// Called by translated code: the guest's time-stamp counter, `rest` instructions before the end of
/// what was paid for.
pub(crate) extern "sysv64" fn time_stamp(vcpu: &mut Translating, rest: u64) -> u64 {
    vcpu.settle_retired(rest as i64);
    vcpu.cpu.tsc()
}
