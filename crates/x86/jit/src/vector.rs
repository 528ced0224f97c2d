//! Instructions on vector registers, which are copied as they are.
//!
//! While a block that uses them runs, XMM0 to XMM15, or YMM0 to YMM15, and MXCSR are the guest's own
//! in the host's registers of the same names. They are loaded where the first such block starts, and
//! stored by whatever goes on to code of the monitor. Code is translated so only while MXCSR masks
//! all exceptions and the instructions may execute at all: that is part of what tells code apart
//! ([`Derived::code_mode`](satori_soft::cpu::Derived::code_mode)).

use std::mem::offset_of;

use iced_x86::{EncodingKind, Instruction, Mnemonic, OpAccess, OpKind};
use satori_state::{CpuState, FpuState, Ymm};

use super::asm::{Alu, Asm, Label, Mem, Width, cc, field};
use super::copy::{ACCESSES, is_immediate, put_address, sized, writes};
use super::flags::Flags;
use super::lower::Lower;
use super::memory::Address;
use super::stubs::{self, GUEST_RAX, S1, S2};
use super::x87::is_x87;
use crate::Translating;
use satori_soft::code_mode::{AVX, BITS_64, SSE, X87};

/// What of the host's registers code works on as if they were the guest's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Units {
    pub vectors: bool,
    pub x87: bool,
}

impl Units {
    /// Those that `all` these instructions use under `code_mode`.
    pub(crate) fn of(all: &[Instruction], code_mode: u64) -> Self {
        let x87 = |insn| code_mode & X87 != 0 && (is_mmx(insn) || is_x87(insn));
        Units { vectors: all.iter().any(|insn| is_vector(insn, code_mode)), x87: all.iter().any(x87) }
    }
}

/// Whether `insn` works on MMX registers, and on none of vectors.
fn is_mmx(insn: &Instruction) -> bool {
    use Mnemonic::{Cvtpd2pi, Cvtps2pi, Cvttpd2pi, Cvttps2pi};
    if matches!(insn.mnemonic(), Cvtps2pi | Cvttps2pi | Cvtpd2pi | Cvttpd2pi) {
        // They work under MXCSR, also if they have no operand in a vector.
        return false;
    }
    let register = |op| insn.op_kind(op) == OpKind::Register;
    insn.mnemonic() == Mnemonic::Emms
        || insn.encoding() == EncodingKind::Legacy
            && (0..insn.op_count()).any(|op| register(op) && insn.op_register(op).is_mm())
            && (0..insn.op_count())
                .all(|op| !register(op) || insn.op_register(op).is_mm() || insn.op_register(op).is_gpr())
}

/// Whether `insn` is one that [`Lower::vector`] may copy under `code_mode`.
pub(crate) fn is_vector(insn: &Instruction, code_mode: u64) -> bool {
    use Mnemonic::*;
    let wanted = match insn.encoding() {
        EncodingKind::Legacy => SSE,
        EncodingKind::VEX => AVX,
        _ => return false,
    };
    if code_mode & wanted != wanted {
        return false;
    }
    match insn.mnemonic() {
        // In 32-bit code they have half of the registers.
        Vzeroupper | Vzeroall => return code_mode & BITS_64 != 0,
        // These concern the x87 state.
        Cvtpi2ps | Cvtpi2pd => return false,
        // What is not stored does not make a page dirty.
        Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq if insn.op0_kind() == OpKind::Memory => {
            return false;
        }
        _ => {}
    }
    let vector = |op| {
        let r = insn.op_register(op);
        r.is_xmm() || r.is_ymm()
    };
    let register = |op| insn.op_kind(op) == OpKind::Register;
    (0..insn.op_count()).any(|op| register(op) && vector(op))
        && (0..insn.op_count()).all(|op| !register(op) || vector(op) || insn.op_register(op).is_gpr())
}

/// Whether `insn` compares strings of as many elements as RAX and RDX say.
fn has_lengths(insn: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        insn.mnemonic(),
        Pcmpestri
            | Pcmpestri64
            | Pcmpestrm
            | Pcmpestrm64
            | Vpcmpestri
            | Vpcmpestri64
            | Vpcmpestrm
            | Vpcmpestrm64
    )
}

/// What the address of `insn`'s operand of `size` bytes must be a multiple of.
fn alignment(insn: &Instruction, size: u32) -> u32 {
    use Mnemonic::*;
    let aligned = if insn.encoding() == EncodingKind::VEX {
        let moves = matches!(
            insn.mnemonic(),
            Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
        );
        moves && size >= 16
    } else {
        size == 16
            && !matches!(insn.mnemonic(), Movups | Movupd | Movdqu | Lddqu | Pcmpistri | Pcmpistrm)
            && !has_lengths(insn)
    };
    if aligned { size } else { 1 }
}

impl Lower<'_> {
    /// Emits `insn` as a copy of itself if it is one on vector registers; false if that is not
    /// possible, whatever was emitted.
    pub(crate) fn vector(&mut self, insn: &Instruction) -> bool {
        let mmx = is_mmx(insn);
        if !(mmx && self.block.units.x87 || is_vector(insn, self.block.code_mode)) {
            return false;
        }
        let (mut general, mut memory) = (None, None);
        for op in 0..insn.op_count() {
            match insn.op_kind(op) {
                OpKind::Register if !insn.op_register(op).is_gpr() => {}
                OpKind::Register if general.is_none() => general = Some(op),
                OpKind::Memory if memory.is_none() => memory = Some(op),
                kind if is_immediate(kind) => {}
                _ => return false,
            }
        }
        let effect = self.block.effects[self.current.at];
        if effect.needs || general.is_some() && memory.is_some() {
            return false;
        }
        let lengths = has_lengths(insn);
        let access = |this: &mut Self, op: u32| {
            let info = this.info.info_options(insn, ACCESSES);
            [info.op0_access(), info.op1_access(), info.op2_access(), info.op3_access()][op as usize]
        };
        let held = self.places.held.take().filter(|_| memory.is_none() && general.is_none() && !lengths);
        let mut copy = *insn;
        if let Some(op) = memory {
            let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
            let size = insn.memory_size().size() as u32;
            if size == 0 || size > 32 {
                return false;
            }
            let write = writes(access(self, op));
            let (mut mem, _) =
                self.access(&address, size, write, if mmx { 1 } else { alignment(insn, size) });
            if lengths {
                self.asm.lea(S2, mem);
                mem = Mem::at(S2, 0);
            }
            put_address(&mut copy, mem);
        }
        if lengths {
            // S1 is RAX.
            if self.status.flags == Flags::Host {
                self.save_flags();
            }
            self.asm.mov(S1, GUEST_RAX);
        }
        let mut store = None;
        if let Some(op) = general {
            let r = insn.op_register(op);
            let guest = r.full_register().number();
            match self.home(guest) {
                Some(host) => copy.set_op_register(op, sized(host.0, r)),
                None => {
                    let access = access(self, op);
                    if access != OpAccess::Write {
                        self.asm.load(S2, stubs::gpr(guest));
                    }
                    store = writes(access).then_some(guest);
                    copy.set_op_register(op, sized(S2.0, r));
                }
            }
        }
        if !self.asm.copy(&copy) {
            return false;
        }
        if let Some(guest) = store {
            self.asm.store(stubs::gpr(guest), S2);
        }
        if effect.changes {
            self.flags_made(insn);
        }
        self.places.held = held;
        true
    }

    /// At the start of a block that uses vectors: tests whether the host's registers hold the guest's, and jumps to the first
    /// label, where [`Lower::emit_load`] puts the load, if not. The load comes back to the second.
    pub(crate) fn check_vectors(&mut self) -> (Label, Label) {
        let missing = self.asm.label();
        self.asm.alu_byte(Alu::Cmp, stubs::vectors(), 0);
        self.asm.jcc(cc::E, missing);
        (missing, self.asm.bound())
    }

    /// Emits the load behind the block: a call of the stub at `load`, and the jump back.
    pub(crate) fn emit_load(&mut self, (missing, loaded): (Label, Label), load: u64) {
        self.asm.bind(missing);
        self.asm.call_to(load);
        self.asm.jmp(loaded);
    }
}

/// The guest's vector register number `i`.
fn register(i: u8) -> Mem {
    fpu(offset_of!(FpuState, ymm) + usize::from(i) * size_of::<Ymm>())
}

pub(crate) fn fpu(offset: usize) -> Mem {
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, fpu) + offset)
}

/// A function that loads the guest's vector registers, whole if `wide`, and MXCSR. It changes nothing else, not even
/// flags.
pub(crate) fn emit_load(asm: &mut Asm, wide: bool) {
    if wide {
        emit_load_avx(asm);
    } else {
        for i in 0..16 {
            asm.load_vector(i, register(i), Width::Sse);
        }
    }
    asm.load_mxcsr(fpu(offset_of!(FpuState, mxcsr)));
    asm.store_byte(stubs::vectors(), 1);
    asm.ret();
}

/// Loads all registers. Upper halves that are zero are not loaded, but made so: only then does the
/// processor know it, and every legacy SSE instruction would have to wait for what its destination held
/// before, to keep the rest of it.
fn emit_load_avx(asm: &mut Asm) {
    let (wide, done) = (asm.label(), asm.label());
    // The flags, as `Lower::put_flags_away` does.
    asm.push(S1);
    asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0]);
    asm.push(S1);
    let high = offset_of!(Ymm, high) as i32;
    let half = |i: u8, offset: i32| Mem { disp: register(i).disp + high + offset, ..register(i) };
    asm.load(S1, half(0, 0));
    asm.alu_mem(Alu::Or, S1, half(0, 8));
    for i in 1..16 {
        asm.alu_mem(Alu::Or, S1, half(i, 0));
        asm.alu_mem(Alu::Or, S1, half(i, 8));
    }
    asm.jcc(cc::NE, wide);
    for i in 0..16 {
        asm.load_vector(i, register(i), Width::Low);
    }
    asm.jmp(done);
    asm.bind(wide);
    for i in 0..16 {
        asm.load_vector(i, register(i), Width::Whole);
    }
    asm.bind(done);
    asm.pop(S1);
    asm.bytes(&[0x04, 0x7f, 0x9e]);
    asm.pop(S1);
}

/// A function that stores them, and brings the host's MXCSR back. It changes nothing else.
pub(crate) fn emit_store(asm: &mut Asm, wide: bool) {
    for i in 0..16 {
        asm.store_vector(register(i), i, if wide { Width::Whole } else { Width::Sse });
    }
    asm.store_mxcsr(fpu(offset_of!(FpuState, mxcsr)));
    asm.load_mxcsr(stubs::host_mxcsr());
    if wide {
        // VZEROUPPER: code that knows nothing of AVX may be slow otherwise.
        asm.bytes(&[0xc5, 0xf8, 0x77]);
    }
    asm.store_byte(stubs::vectors(), 0);
    asm.ret();
}

/// Stores the guest's vectors if they are loaded; flags are lost.
pub(crate) fn emit_leave(asm: &mut Asm, store: u64) {
    let not_loaded = asm.label();
    asm.alu_byte(Alu::Cmp, stubs::vectors(), 0);
    asm.jcc(cc::E, not_loaded);
    asm.call_to(store);
    asm.bind(not_loaded);
}
