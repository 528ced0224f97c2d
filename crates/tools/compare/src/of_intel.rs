//! What Intel's processors do otherwise than AMD's, where the manual leaves it open. The engine does as the one or
//! the other; each rule says all that may differ, and holds both outcomes to it.

use iced_x86::{Instruction, Mnemonic, OpKind};
use satori_defs::fpu::{fsw, mxcsr};
use satori_defs::x86::{pf, rflags, vector};
use satori_state::{reg, seg};

use crate::case::{Case, Fpu, Outcome};
use crate::diff::{COMPATIBILITY, Difference, differences};
use crate::exclusions::Exclusion;
use crate::generate::effective;
use crate::lawful;

const SS: u32 = vector::SS as u32;
const GP: u32 = vector::GP as u32;
const NP: u32 = vector::NP as u32;
const PF: u32 = vector::PF as u32;
const AC: u32 = vector::AC as u32;
const BP: u32 = vector::BP as u32;
const XM: u32 = vector::XM as u32;

/// Why `real` and `engine` need not be equal in what was `found`, on one of Intel's processors.
pub(crate) fn reason(
    case: &Case,
    insn: &Instruction,
    real: &Outcome,
    engine: &Outcome,
    found: &[Difference],
) -> Option<Exclusion> {
    let only = |holds: &dyn Fn(&str) -> bool| found.iter().all(|difference| holds(&difference.what));
    if compares(insn) && only(&|what| what == "rflags") {
        return Some(Exclusion::ComparedFlags);
    }
    if insn.mnemonic() == Mnemonic::Pause && only(&|what| matches!(what, "rax" | "r8")) {
        return Some(Exclusion::PauseOrXchg);
    }
    if stored_number(case, insn, real, engine) {
        return Some(Exclusion::StoredNumber);
    }
    if insn.mnemonic() == Mnemonic::Vcvtps2ph && only(&|what| what == "mxcsr") {
        return if converted(real, engine) {
            Some(Exclusion::ConvertedNumber)
        } else {
            denormal_halves(case, insn, real, engine).then_some(Exclusion::DenormalHalves)
        };
    }
    if only(&of_mmx) && mmx_mode(case, insn, real, engine) {
        return Some(Exclusion::MmxBeforeFault);
    }
    if pops_selector(case, insn, real, engine) {
        return Some(Exclusion::SelectorPopped);
    }
    if insn.mnemonic() == Mnemonic::Bound && bound_exceeded(case, insn, real, engine) {
        return Some(Exclusion::FaultOrder);
    }
    if returns_to_compatibility(case, insn, real, engine) {
        return Some(Exclusion::NarrowReturn);
    }
    if unaligned_halves(case, insn, real, engine) {
        return Some(Exclusion::HalvesAlignment);
    }
    narrow_counts(case, insn, real, engine)
}

fn compares(insn: &Instruction) -> bool {
    use Mnemonic::{Fcomi, Fcomip, Fucomi, Fucomip};
    matches!(insn.mnemonic(), Fcomi | Fcomip | Fucomi | Fucomip)
}

/// A fault that the engine raises instead of executing the instruction.
fn refused(case: &Case, engine: &Outcome) -> bool {
    matches!(engine.vector, PF | AC | GP | SS) && engine.rip == case.at
}

/// The number that is stored raises an unmasked exception, and the operand in memory is not looked at. x87's is
/// pending then, and the next x87 instruction's.
fn stored_number(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    use Mnemonic::{Fbstp, Fist, Fistp, Fisttp, Fst, Fstp};
    if !refused(case, engine) || real.changed != engine.changed {
        return false;
    }
    match insn.mnemonic() {
        Fbstp | Fist | Fistp | Fisttp | Fst | Fstp => {
            let fetch = real.vector == PF && real.error & u64::from(pf::I) != 0;
            let completed =
                real.vector == BP && real.rip == insn.next_ip() + 1 || fetch && real.rip == insn.next_ip();
            completed && real.fpu.fsw & fsw::ES != 0 && engine.fpu.fsw & fsw::ES == 0
        }
        Mnemonic::Vcvtps2ph => real.vector == XM,
        _ => false,
    }
}

/// The flags of a conversion whose result cannot be stored.
fn converted(real: &Outcome, engine: &Outcome) -> bool {
    let (held, unmasked) = (engine.fpu.mxcsr & mxcsr::FLAGS, !real.fpu.mxcsr >> mxcsr::MASK_SHIFT);
    let fresh = (real.fpu.mxcsr ^ engine.fpu.mxcsr) & !held;
    matches!(real.vector, PF | AC | GP | SS)
        && (real.fpu.mxcsr ^ engine.fpu.mxcsr) == fresh
        && fresh & !mxcsr::FLAGS == 0
        && fresh & unmasked == 0
}

/// A tiny half of a denormal float is inexact although underflow is unmasked.
fn denormal_halves(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    let register = insn.op1_register().number() & 15;
    let halves = [case.fpu.xmm[register], case.ymm_high[register]];
    let used = if insn.op1_register().is_ymm() { 2 } else { 1 };
    let denormal = halves[..used].iter().any(|half| {
        (0..4).map(|i| (half >> (32 * i)) as u32).any(|float| matches!(float & 0x7fff_ffff, 1..0x0080_0000))
    });
    let unmasked = case.fpu.mxcsr & mxcsr::UE << mxcsr::MASK_SHIFT == 0;
    let inexact = real.fpu.mxcsr == engine.fpu.mxcsr | mxcsr::PE;
    denormal && unmasked && inexact && real.vector == XM && real.fpu.mxcsr & mxcsr::UE != 0
}

/// The x87 registers as FXSAVE has them, and the word that tells where they begin.
fn of_mmx(what: &str) -> bool {
    what == "fsw" || what.starts_with("st")
}

/// A store of an MMX register set TOP to 0 before it faulted, and changed nothing else.
fn mmx_mode(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    let faults = matches!(real.vector, PF | AC | GP | SS) && real.rip == case.at;
    let uses =
        (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Register && insn.op_register(op).is_mm());
    let (a, b) = (&real.fpu, &engine.fpu);
    let registers = |fpu: &Fpu| -> [u128; 8] {
        // By their own numbers, and not from the top.
        std::array::from_fn(|i| fpu.st[(i + 8 - top(fpu)) & 7] & ((1 << 80) - 1))
    };
    let others = !fsw::TOP;
    let entered = top(a) == 0 && a.fsw & others == b.fsw & others && registers(a) == registers(b);
    faults && uses && insn.op0_kind() == OpKind::Memory && entered
}

/// The x87 register that is ST0.
fn top(fpu: &Fpu) -> usize {
    usize::from((fpu.fsw & fsw::TOP) >> fsw::TOP_SHIFT)
}

/// The lower bound is exceeded, and the upper one, which cannot be read, is not looked at.
fn bound_exceeded(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    let upper = effective(case, insn) + insn.memory_size().size() as u64 / 2;
    let read = matches!(engine.vector, GP | SS | AC) || engine.vector == PF && engine.cr2 >= upper;
    real.vector == u32::from(vector::BR) && refused(case, engine) && read
}

/// Alignment is not checked where four halves become floats or the other way about.
fn unaligned_halves(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    let halves = matches!(insn.mnemonic(), Mnemonic::Vcvtph2ps | Mnemonic::Vcvtps2ph);
    let misaligned = case.rflags & rflags::AC != 0 && !effective(case, insn).is_multiple_of(8);
    halves && misaligned && engine.vector == AC && matches!(real.vector, BP | PF | GP | SS | XM)
}

/// A far return from 64-bit to 32-bit code takes the lower half of its offset, whatever the upper one holds.
fn returns_to_compatibility(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    let returned = insn.mnemonic() == Mnemonic::Retf && case.bits == 64 && real.rip != case.at;
    let narrow = real.selectors[seg::CS] == COMPATIBILITY && real.rip < 1 << 32;
    returned && narrow && engine.vector == GP && engine.error == 0 && refused(case, engine)
}

/// POP of a segment register reads the two bytes of the selector, whatever the stack pointer moves by.
fn pops_selector(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    if insn.mnemonic() != Mnemonic::Pop || !insn.op0_register().is_segment_register() {
        return false;
    }
    let stack = case.gpr[reg::RSP];
    let behind = engine.vector == PF && engine.cr2.wrapping_sub(stack) >= 2;
    let beyond = matches!(engine.vector, GP | SS) && lawful::canonical(stack.wrapping_add(1));
    let misaligned = engine.vector == AC && stack.is_multiple_of(2) && case.rflags & rflags::AC != 0;
    let loads = matches!(real.vector, GP | NP | SS) || real.rip != case.at;
    refused(case, engine) && (behind || beyond || misaligned) && loads
}

/// Repetitions with 32-bit addresses, in 64-bit code, clear the upper halves of their registers even if they do
/// nothing, or fault, before the first element.
fn narrow_counts(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> Option<Exclusion> {
    let narrow = (0..insn.op_count()).any(|op| {
        matches!(insn.op_kind(op), OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI)
    });
    let repeats = insn.has_rep_prefix() || insn.has_repne_prefix();
    if case.bits != 64 || !narrow || !repeats {
        return None;
    }
    let mut kept = *real;
    for register in [reg::RCX, reg::RSI, reg::RDI] {
        let (before, after) = (case.gpr[register], real.gpr[register]);
        if after == before & 0xffff_ffff {
            kept.gpr[register] = before;
        }
    }
    if kept.gpr == real.gpr {
        return None;
    }
    let alike = differences(case, insn, &kept, engine).is_empty() || lawful::both(case, insn, &kept, engine);
    alike.then_some(Exclusion::NarrowCounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Ending;
    use crate::forms::decode;
    use crate::line;

    /// What the rules say of two outcomes that `change` makes of what `text` begins with.
    fn judged(text: &str, change: impl Fn(&Case, &mut Outcome, &mut Outcome)) -> Option<Exclusion> {
        let case = line::read(text).unwrap();
        let insn = decode(case.code(), case.bits, case.at);
        let start = || {
            let mut outcome = Outcome::new();
            outcome.ending = Ending::Exception;
            (outcome.gpr, outcome.rip, outcome.fpu) = (case.gpr, case.at, case.fpu);
            outcome
        };
        let (mut real, mut engine) = (start(), start());
        change(&case, &mut real, &mut engine);
        let found = differences(&case, &insn, &real, &engine);
        assert!(!found.is_empty(), "{text}");
        reason(&case, &insn, &real, &engine, &found)
    }

    #[test]
    fn only_the_upper_halves_of_counts_may_differ() {
        let text = "64 code=67f3ab rcx=100000002 rdi=1";
        let fault = |cleared: &'static [usize], low: u64| {
            judged(text, move |_, real, engine| {
                for outcome in [&mut *real, engine] {
                    (outcome.vector, outcome.error, outcome.cr2) = (PF, 6, 1);
                }
                for register in cleared {
                    real.gpr[*register] &= 0xffff_ffff;
                }
                real.gpr[reg::RCX] -= low;
            })
        };
        assert_eq!(fault(&[reg::RCX], 0), Some(Exclusion::NarrowCounts));
        assert_eq!(fault(&[reg::RCX], 1), None, "an element was done");
        assert_eq!(fault(&[], 1), None, "the upper half was kept");
        let whole = judged("64 code=f3ab rcx=100000002 rdi=1", |_, real, _| real.gpr[reg::RCX] = 2);
        assert_eq!(whole, None, "addresses have 64 bits");
    }

    #[test]
    fn a_number_is_stored_before_its_place_is_looked_at_only_with_an_exception() {
        let store = |es: bool, behind: u64| {
            judged("64 code=d918 rax=1 fcw=340", move |case, real, engine| {
                (engine.vector, engine.error, engine.cr2) = (PF, 6, 1);
                (real.vector, real.rip) = (BP, case.at + behind);
                real.fpu.fsw |= if es { fsw::ES | fsw::B | 0x10 } else { 0 };
            })
        };
        assert_eq!(store(true, 3), Some(Exclusion::StoredNumber));
        assert_eq!(store(false, 3), None, "nothing is pending");
        assert_eq!(store(true, 4), None, "it went elsewhere");
    }

    #[test]
    fn mmx_mode_is_told_from_changed_registers() {
        let store = |value: u128| {
            judged("32 code=2e0f7e00 rax=20001000 fsw=800 st0=5 st7=7", move |_, real, engine| {
                (real.vector, engine.vector) = (GP, GP);
                real.fpu.fsw &= !fsw::TOP;
                real.fpu.st.rotate_right(1);
                real.fpu.st[1] = value;
            })
        };
        assert_eq!(store(5), Some(Exclusion::MmxBeforeFault));
        assert_eq!(store(6), None);
    }

    #[test]
    fn far_returns_and_pops_are_told_from_other_refusals() {
        let far = |selector: u16| {
            judged("64 code=48cb", move |_, real, engine| {
                engine.vector = GP;
                (real.vector, real.rip, real.selectors[seg::CS]) = (BP, 0x2000_8eb4, selector);
            })
        };
        assert_eq!(far(COMPATIBILITY), Some(Exclusion::NarrowReturn));
        assert_eq!(far(0x33), None, "64-bit code has no limit");
        let pop = |stack: &str, cr2: u64| {
            judged(&format!("32 code=1f rsp={stack}"), move |_, real, engine| {
                (engine.vector, engine.error, engine.cr2) = (PF, 4, cr2);
                (real.vector, real.error) = (GP, 0x8004);
            })
        };
        assert_eq!(pop("20005ffe", 0x2000_6000), Some(Exclusion::SelectorPopped));
        assert_eq!(pop("20005fff", 0x2000_6000), None, "the selector itself is not there");
    }
}
