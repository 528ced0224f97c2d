//! Finds why outcomes that differ need not be equal. Where the manual leaves something open, either side may be the
//! one that does it: the host on which a rule was written is not the host on which it is used.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use satori_cpuid::Vendor;
use satori_defs::fpu::fsw;
use satori_defs::x86::{rflags, vector};
use satori_state::reg;

use crate::case::{Case, Fpu, Outcome};
use crate::diff::{Difference, NAMES};
use crate::exclude::is_prefix;
use crate::exclusions::Exclusion;
use crate::generate::{MASKMOV, effective, masks_memory};
use crate::host;
use crate::lawful;
use crate::layout::{LINE, PAGE, line_address, writable};
use crate::of_intel;
use crate::undefined;

const UD: u32 = vector::UD as u32;
const SS: u32 = vector::SS as u32;
const GP: u32 = vector::GP as u32;
const PF: u32 = vector::PF as u32;
const AC: u32 = vector::AC as u32;
const BP: u32 = vector::BP as u32;

/// Both outcomes of a case, and what differs in them.
struct Pair<'a> {
    case: &'a Case,
    insn: &'a Instruction,
    real: &'a Outcome,
    engine: &'a Outcome,
    found: &'a [Difference],
}

/// Why `real` and `engine` need not be equal in what was `found`.
pub(crate) fn reason(
    case: &Case,
    insn: &Instruction,
    real: &Outcome,
    engine: &Outcome,
    found: &[Difference],
) -> Option<Exclusion> {
    let pair = Pair { case, insn, real, engine, found };
    pair.fetched()
        .or_else(|| pair.masked())
        .or_else(|| lawful::both(case, insn, real, engine).then_some(Exclusion::FaultOrder))
        .or_else(|| pair.orders())
        .or_else(|| pair.alignment())
        .or_else(|| pair.reserved_encodings())
        .or_else(|| pair.left_behind())
        .or_else(|| pair.of_the_host())
}

impl Pair<'_> {
    fn is(&self, mnemonics: &[Mnemonic]) -> bool {
        mnemonics.contains(&self.insn.mnemonic())
    }

    fn both(&self, holds: impl Fn(&Outcome) -> bool) -> bool {
        holds(self.real) && holds(self.engine)
    }

    /// Whether `one` holds of either outcome and `other` of the other one.
    fn either(&self, one: impl Fn(&Outcome) -> bool, other: impl Fn(&Outcome) -> bool) -> bool {
        one(self.real) && other(self.engine) || one(self.engine) && other(self.real)
    }

    /// Whether nothing differs but what `holds`.
    fn only(&self, holds: impl Fn(&str) -> bool) -> bool {
        self.found.iter().all(|difference| holds(&difference.what))
    }

    /// How many bytes of an instruction are read before it is refused.
    fn fetched(&self) -> Option<Exclusion> {
        let at = self.case.at;
        let fetches = |o: &Outcome| o.vector == PF && o.cr2 & (PAGE - 1) == 0 && o.rip == at;
        let refused = |o: &Outcome| matches!(o.vector, UD | GP) && o.rip == at;
        (self.insn.is_invalid() && self.either(fetches, refused)).then_some(Exclusion::FetchedBytes)
    }

    /// Stores and loads of selected elements.
    fn masked(&self) -> Option<Exclusion> {
        let faults = |o: &Outcome| (12..=14).contains(&o.vector);
        let either_faults = faults(self.real) || faults(self.engine);
        if masks_memory(self.insn) && !self.insn.is_vsib() && either_faults && leaves_elements_alone(self) {
            return Some(Exclusion::MaskedElements);
        }
        if !self.is(&MASKMOV) {
            return None;
        }
        let halves = self.insn.mnemonic() != Mnemonic::Maskmovq && matches!(self.engine.vector, 12 | 13 | 17);
        if of_amd() && halves && self.real.vector != self.engine.vector {
            return Some(Exclusion::MaskedHalves);
        }
        if either_faults && leaves_bytes_alone(self.case, self.insn) {
            return Some(Exclusion::MaskedBytes);
        }
        let alike = self.real.vector == self.engine.vector
            && (self.real.vector != PF || self.real.cr2 == self.engine.cr2);
        let mmx = self.real.fpu.ftw & 0xff == 0xff && top(&self.real.fpu) == 0;
        (alike && (12..=17).contains(&self.real.vector) && mmx).then_some(Exclusion::MmxBeforeFault)
    }

    /// Which of several faults comes first, where the list of lawful ones does not hold both.
    fn orders(&self) -> Option<Exclusion> {
        use Mnemonic::{Call, Iret, Iretd, Iretq, Jmp, Mov, Retf};
        // The target that CALL pops into nothing is not among its operands.
        if self.is(&[Call]) && self.either(|o| o.vector == PF, |o| o.vector == GP) {
            return Some(Exclusion::FaultOrder);
        }
        if self.is(&[Retf, Iret, Iretd, Iretq, Jmp, Call]) && self.both(|o| matches!(o.vector, 11..=14 | 17))
        {
            return Some(Exclusion::FarOrder);
        }
        let system = |register: Register| register.is_cr() || register.is_dr() || register.is_tr();
        let moves = self.is(&[Mov]) && (system(self.insn.op0_register()) || system(self.insn.op1_register()));
        if moves && self.both(|o| matches!(o.vector, UD | GP)) {
            return Some(Exclusion::SystemRegister);
        }
        let nothing = undefined::shifts_nothing(self.insn, self.case.gpr[reg::RCX]);
        let written = |o: &Outcome| matches!(o.vector, 12..=14 | 17);
        (nothing && (written(self.real) || written(self.engine))).then_some(Exclusion::ShiftByNothing)
    }

    /// What must be aligned, where the manual leaves it open.
    fn alignment(&self) -> Option<Exclusion> {
        let (insn, case) = (self.insn, self.case);
        let checked = |o: &Outcome| o.vector == AC;
        let one_checks = checked(self.real) != checked(self.engine);
        if state_area(insn) && (one_checks || checked(self.real)) {
            return Some(Exclusion::AreaAlignment);
        }
        if insn.mnemonic() == Mnemonic::Enter && one_checks {
            return Some(Exclusion::EnterAlignment);
        }
        let wide = insn.memory_size().size() >= 10;
        let misaligned = !effective(case, insn).is_multiple_of(32);
        (wide && misaligned && one_checks && case.rflags & rflags::AC != 0)
            .then_some(Exclusion::WideAlignment)
    }

    /// Encodings that are reserved, or that processors read differently.
    fn reserved_encodings(&self) -> Option<Exclusion> {
        let (code, invalid) = (self.case.code(), self.insn.is_invalid());
        let executes = |o: &Outcome| matches!(o.vector, BP | 12..=14 | 17);
        let refused_here = invalid && self.engine.vector == UD;
        let two = code.contains(&0x66) && code.iter().any(|b| matches!(b, 0xf2 | 0xf3));
        if of_amd() && two && refused_here && executes(self.real) {
            return Some(Exclusion::TwoPrefixes);
        }
        if of_amd() && refused_here && is_vpermq_without_w(code) {
            return Some(Exclusion::VpermqW);
        }
        if of_amd() && refused_here && executes(self.real) && is_of_masks(code) {
            return Some(Exclusion::MaskNumbers);
        }
        let element = matches!(self.insn.mnemonic(), Mnemonic::Vpinsrd | Mnemonic::Vpextrd);
        if of_amd() && self.case.bits == 32 && element && self.real.vector == UD {
            return Some(Exclusion::VpinsrqW);
        }
        if of_amd() && code.contains(&0xf0) && refused_here && executes(self.real) {
            return Some(Exclusion::LockedSystem);
        }
        (refused_here && self.real.vector != UD && may_be_newer(code, self.case.bits))
            .then_some(Exclusion::Newer)
    }

    /// What an instruction leaves in registers and memory, where the manual does not say.
    fn left_behind(&self) -> Option<Exclusion> {
        use Mnemonic::{Bsf, Bsr, Call, Enter, Popa, Popad, Push, Pusha, Pushad};
        if self.is(&[Popa, Popad]) && self.real.vector == PF {
            return Some(Exclusion::PopaRegisters);
        }
        if self.is(&[Bsf, Bsr]) && self.real.rflags & rflags::ZF != 0 {
            let destination = self.insn.op0_register().full_register().number() & 15;
            if self.only(|what| what == NAMES[destination]) {
                return Some(Exclusion::NothingToFind);
            }
        }
        let faulted = |o: &Outcome| matches!(o.vector, 11..=14 | 17);
        let memory = |what: &str| what.starts_with("0x");
        if self.insn.is_vsib() && self.both(faulted) {
            let vector = |what: &str| what.starts_with("xmm") || what.starts_with("ymm");
            return self.only(vector).then_some(Exclusion::GatherProgress);
        }
        let parts = state_area(self.insn) || self.is(&[Enter, Pusha, Pushad, Call]);
        if parts && self.both(faulted) && self.only(memory) {
            return Some(Exclusion::PartlyStored);
        }
        let selector = self.is(&[Push]) && self.insn.op0_register().is_segment_register()
            || self.is(&[Call]) && self.insn.op0_kind() != OpKind::Memory && self.insn.is_call_far();
        let pushed = |what: &str| {
            let line = |at: u64| line_address_of(at).is_some_and(|line| format!("{line:#x}") == what);
            let rsp = self.case.gpr[reg::RSP];
            line(rsp.wrapping_sub(1)) || line(rsp.wrapping_sub(8))
        };
        (selector && self.only(pushed)).then_some(Exclusion::SelectorSlot)
    }

    /// What this host's processor, or its kernel, does by itself.
    fn of_the_host(&self) -> Option<Exclusion> {
        use Mnemonic::{Fxrstor, Fxrstor64, Ldmxcsr, Lsl, Vldmxcsr};
        let (real, engine) = (self.real, self.engine);
        let based = matches!(self.insn.memory_segment(), Register::FS | Register::GS);
        if of_amd() && based && real.vector == GP && matches!(engine.vector, PF | AC) {
            return Some(Exclusion::BasedSum);
        }
        let loads = self.is(&[Fxrstor, Fxrstor64, Ldmxcsr, Vldmxcsr]);
        if of_amd() && loads && engine.vector == GP {
            return Some(Exclusion::Mxcsr17);
        }
        if !of_amd()
            && let Some(why) = of_intel::reason(self.case, self.insn, real, engine, self.found)
        {
            return Some(why);
        }
        let beyond = real.vector == PF && !lawful::canonical(real.cr2);
        let base = self.is(&[Mnemonic::Wrfsbase, Mnemonic::Wrgsbase]) && real.vector == BP;
        if host::get().la57 && matches!(engine.vector, GP | SS) && (beyond || base) {
            return Some(Exclusion::WideAddresses);
        }
        // Of all the segments that it may see, only this one has a limit of 0 in the guest.
        let loaded = self.insn.op0_register().full_register().number() & 15;
        (self.is(&[Lsl]) && engine.gpr[loaded] & 0xffff == 0 && real.vector == engine.vector)
            .then_some(Exclusion::LimitOfProcessor)
    }
}

/// Whether AMD made this processor: what only theirs do is no excuse for another.
fn of_amd() -> bool {
    host::vendor() == Vendor::Amd
}

/// Address of the line that holds `at`, as differences name it.
fn line_address_of(at: u64) -> Option<u64> {
    crate::layout::line_at(at).map(line_address).filter(|line| at - line < LINE as u64)
}

/// Whether no byte that MASKMOV writes lies where it cannot be written.
fn leaves_bytes_alone(case: &Case, insn: &Instruction) -> bool {
    let register = insn.op2_register();
    let (mask, size) = match register.is_mm() {
        // The area has x87 registers by their distance from the top.
        true => (case.fpu.st[(register.number() + 8 - top(&case.fpu)) & 7], 8),
        false => (case.fpu.xmm[register.number() & 15], 16),
    };
    let width = if case.bits == 64 { u64::MAX } else { u64::from(u32::MAX) };
    let start = effective(case, insn);
    (0..size)
        .filter(|byte| mask >> (8 * byte + 7) & 1 != 0)
        .all(|byte| writable(start.wrapping_add(byte) & width))
}

/// Whether VMASKMOV leaves some element of its operand alone.
fn leaves_elements_alone(pair: &Pair) -> bool {
    let wide = matches!(pair.insn.mnemonic(), Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq);
    // The mask is the first source, whichever way the elements move.
    let mask = pair.insn.op1_register().number() & 15;
    let halves = [pair.case.fpu.xmm[mask], pair.case.ymm_high[mask]];
    let used = if pair.insn.memory_size().size() == 32 { 2 } else { 1 };
    let bits = if wide { 64 } else { 32 };
    halves[..used].iter().any(|half| (0..128 / bits).any(|i| half >> (bits * i + bits - 1) & 1 == 0))
}

/// The x87 register that is ST0.
fn top(fpu: &Fpu) -> usize {
    usize::from((fpu.fsw & fsw::TOP) >> fsw::TOP_SHIFT)
}

fn is_vpermq_without_w(code: &[u8]) -> bool {
    let vex = code.iter().position(|byte| *byte == 0xc4).unwrap_or(code.len());
    matches!(code[vex..], [_, map, rest, 0 | 1, ..] if map & 0x1f == 3 && rest == 0x7d)
}

/// Whether an opcode is one of AVX-512's that work on mask registers alone, which VEX encodes.
fn is_of_masks(code: &[u8]) -> bool {
    let opcode = &code[code.iter().take_while(|byte| is_prefix(**byte)).count()..];
    match *opcode {
        [0xc5, _, 0x41..=0x4b | 0x90..=0x93 | 0x98 | 0x99, ..] => true,
        [0xc4, map, _, 0x41..=0x4b | 0x90..=0x93 | 0x98 | 0x99, ..] => map & 0x1f == 1,
        [0xc4, map, _, 0x30..=0x33, ..] => map & 0x1f == 3,
        _ => false,
    }
}

/// Whether an encoding that the decoder does not know lies where vendors put new instructions.
fn may_be_newer(code: &[u8], bits: u32) -> bool {
    let opcode = &code[code.iter().take_while(|byte| is_prefix(**byte)).count()..];
    let registers = |modrm: u8| modrm >= 0xc0;
    match *opcode {
        [0x0f, 0x01 | 0xae | 0xc7, modrm, ..] => registers(modrm),
        [0x0f, 0x18..=0x1f | 0x36..=0x3f, ..] => true,
        // Maps 4 and beyond of VEX, EVEX, and REX2.
        [0xc4, map, ..] => (bits == 64 || registers(map)) && map & 0x1f > 3,
        [0x62, ..] => true,
        [0xd5, ..] => bits == 64,
        _ => false,
    }
}

/// Whether the operand is an area of processor state.
fn state_area(insn: &Instruction) -> bool {
    use Mnemonic::{Fldenv, Fnsave, Fnstenv, Frstor, Fxrstor, Fxrstor64, Fxsave, Fxsave64};
    matches!(insn.mnemonic(), Fldenv | Fnsave | Fnstenv | Frstor | Fxrstor | Fxrstor64 | Fxsave | Fxsave64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_masks_are_known_by_both_prefixes() {
        assert!(is_of_masks(&[0xc5, 0x1d, 0x42, 0xce]) && is_of_masks(&[0x66, 0xc4, 0xe1, 0x7c, 0x93, 0xc0]));
        assert!(is_of_masks(&[0xc4, 0xe3, 0x79, 0x30, 0xc0, 1]));
        assert!(!is_of_masks(&[0xc5, 0xfc, 0x28, 0xc0]) && !is_of_masks(&[0xc4, 0xe2, 0x79, 0x41, 0xc0]));
    }

    #[test]
    fn new_instructions_come_where_there_is_room() {
        // RMPUPDATE in 32-bit code, which the decoder knows in 64-bit code only.
        assert!(may_be_newer(&[0xf2, 0x0f, 0x01, 0xfe], 32));
        assert!(may_be_newer(&[0xd5, 0x10, 0x01], 64) && !may_be_newer(&[0xd5, 0x10], 32));
        assert!(!may_be_newer(&[0x0f, 0x01, 0x3e], 32), "INVLPG has been there for long");
        assert!(!may_be_newer(&[0x0f, 0x28], 64) && !may_be_newer(&[0xf0, 0x01], 64));
    }
}
