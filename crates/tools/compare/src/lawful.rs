//! The faults that an instruction may raise on a case, whichever the processor looks for first.
//!
//! Faults of executing one instruction are one class, within which the order is the processor's own (SDM volume 3,
//! priority among concurrent events; APM volume 2, 8.5). Where two outcomes name different ones, both are right if
//! both are in this list, which is made from the layout and the manual alone.

use iced_x86::{
    CodeSize, Instruction, InstructionInfoFactory, InstructionInfoOptions, OpAccess, Register, UsedMemory,
};
use satori_defs::x86::{pf, rflags, vector};

use crate::case::{Case, Outcome};
use crate::diff::USER_END;
use crate::generate::MASKMOV;
use crate::layout::{self, Rights};

/// Bytes that no operand here exceeds, where the decoder knows no size: FXSAVE's area.
const LARGEST: u64 = 512;
/// Behind the last byte that 32 bits address.
const END32: u64 = 1 << 32;
/// Behind the last byte that 16 bits address.
const END16: u64 = 1 << 16;

/// A run of bytes that the instruction may touch.
struct Run {
    start: u64,
    size: u64,
    reads: bool,
    writes: bool,
    /// Behind the last byte that addresses of this size reach, outside of 64-bit code.
    end: u64,
    /// Addresses have 32 bits at most.
    narrow: bool,
    /// The segment has no descriptor: every access is refused.
    null: bool,
}

/// Whether `real` and `engine` are both faults that the instruction may raise, and did nothing before them.
pub(crate) fn both(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> bool {
    let unchanged = real.gpr == engine.gpr && real.rip == case.at && engine.rip == case.at;
    unchanged && {
        let runs = runs(case, insn, real);
        [real, engine].iter().all(|outcome| may_raise(case, insn, &runs, outcome))
    }
}

/// What the instruction touches with the registers of `outcome`, which a repetition has moved on.
fn runs(case: &Case, insn: &Instruction, outcome: &Outcome) -> Vec<Run> {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info_options(insn, InstructionInfoOptions::NO_REGISTER_USAGE);
    let mut runs = Vec::new();
    for memory in info.used_memory() {
        let size = match memory.memory_size().size() as u64 {
            0 => LARGEST,
            size => size,
        };
        let reads = matches!(
            memory.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let writes = matches!(
            memory.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        // One that both reads and writes reads with the intention to write: its faults are a write's.
        let only_write = memory.access() == OpAccess::ReadWrite;
        let null = case.bits == 32 && matches!(memory.segment(), Register::FS | Register::GS);
        let end = if memory.address_size() == CodeSize::Code16 { END16 } else { END32 };
        let narrow = memory.address_size() != CodeSize::Code64;
        let elements = if memory.is_vsib() { 8 } else { 1 };
        for element in 0..elements {
            let Some(start) = address(case, outcome, memory, element) else { continue };
            runs.push(Run { start, size, reads: reads && !only_write, writes, end, narrow, null });
        }
    }
    runs
}

trait Vsib {
    fn is_vsib(&self) -> bool;
}

impl Vsib for UsedMemory {
    fn is_vsib(&self) -> bool {
        self.index().is_vector_register()
    }
}

fn address(case: &Case, outcome: &Outcome, memory: &UsedMemory, element: usize) -> Option<u64> {
    let linear = memory.virtual_address(element, |register, index, size| match register {
        Register::FS => Some(case.fs_base),
        Register::GS => Some(case.gs_base),
        r if r.is_segment_register() => Some(0),
        r if r.is_vector_register() => {
            let (low, high) = (case.fpu.xmm[r.number() & 15], case.ymm_high[r.number() & 15]);
            let (half, bits) = (16 / size.max(1), 8 * size as u32);
            let value = (if index < half { low } else { high }) >> (bits * (index % half) as u32);
            Some(if size == 4 { i64::from(value as i32) as u64 } else { value as u64 })
        }
        r => {
            let whole = outcome.gpr[r.full_register().number() & 15];
            Some(whole & (u64::MAX >> (64 - 8 * r.size().clamp(1, 8))))
        }
    })?;
    Some(if case.bits == 64 { linear } else { linear & (END32 - 1) })
}

fn may_raise(case: &Case, insn: &Instruction, runs: &[Run], outcome: &Outcome) -> bool {
    let parts = MASKMOV.contains(&insn.mnemonic()) || runs.iter().any(|run| run.size == LARGEST);
    let Ok(raised) = u8::try_from(outcome.vector) else { return false };
    match raised {
        vector::PF => runs.iter().any(|run| page_fault(case, run, parts, outcome)),
        vector::AC => {
            case.rflags & rflags::AC != 0
                && outcome.error == 0
                && runs.iter().any(|run| !run.start.is_multiple_of(natural(run.size)))
        }
        vector::GP | vector::SS => {
            outcome.error == 0
                && (raised == vector::GP && (insn.is_privileged() || leaves_canonical(case, insn))
                    || runs.iter().any(|run| refused(case, run)))
        }
        _ => false,
    }
}

/// The alignment that an operand of `size` bytes may have to have: pieces of large ones count by themselves.
fn natural(size: u64) -> u64 {
    match size {
        0 | 1 => 1,
        2..=3 => 2,
        4..=7 => 4,
        8..=15 => 8,
        16..=31 => 16,
        _ => 32,
    }
}

/// Whether a near branch may lead where no instruction can be.
fn leaves_canonical(case: &Case, insn: &Instruction) -> bool {
    case.bits == 64 && (insn.is_call_near_indirect() || insn.is_jmp_near_indirect() || insn.is_call_near())
}

/// #GP(0) or #SS(0): no descriptor, not canonical, beyond the segment, or large and not aligned.
fn refused(case: &Case, run: &Run) -> bool {
    let last = run.start.wrapping_add(run.size - 1);
    let beyond = match case.bits {
        64 => [run.start, last].iter().any(|at| !canonical(*at)) || last < run.start,
        _ => last >= END32,
    };
    run.null || beyond || run.size >= 16 && !run.start.is_multiple_of(natural(run.size))
}

/// Whether bits 63 to 47 are alike.
pub(crate) fn canonical(address: u64) -> bool {
    ((address << 16) as i64 >> 16) as u64 == address
}

/// Whether `outcome` is a page fault that a byte of `run` may raise.
fn page_fault(case: &Case, run: &Run, parts: bool, outcome: &Outcome) -> bool {
    let last = run.start.wrapping_add(run.size - 1);
    let at = outcome.cr2;
    // What crosses the end of 16 or of 32 bits may go on at 0; in 64-bit code what has parts with addresses of
    // their own.
    let wraps = case.bits == 32 || run.narrow && parts;
    let wrapped = wraps && last >= run.end && at <= last - run.end;
    if at.wrapping_sub(run.start) >= run.size && !wrapped {
        return false;
    }
    let rights = layout::rights(at);
    let kinds = [(run.reads, 0), (run.writes, u64::from(pf::W))];
    kinds.iter().any(|(done, write)| {
        let allowed = match rights {
            Some(Rights::Write) => true,
            Some(Rights::Read | Rights::Execute) => *write == 0,
            _ => false,
        };
        let present = !matches!(rights, None | Some(Rights::Nothing));
        let error = u64::from(pf::U) | write | if present { u64::from(pf::P) } else { 0 };
        // Linux tells programs that every page of the kernel is present.
        let told = if at >= USER_END { u64::from(pf::P) } else { 0 };
        *done && !allowed && outcome.error | told == error | told
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Ending;
    use crate::forms::decode;
    use crate::line;

    /// A fault before anything was done.
    fn fault(case: &Case, vector: u8, error: u32, cr2: u64) -> Box<Outcome> {
        let mut outcome = Outcome::new();
        outcome.ending = Ending::Exception;
        (outcome.vector, outcome.error, outcome.cr2) = (vector.into(), error.into(), cr2);
        (outcome.gpr, outcome.rip) = (case.gpr, case.at);
        outcome
    }

    /// Whether each of `faults` may take the place of each other one.
    fn alike(text: &str, faults: &[(u8, u32, u64)]) -> bool {
        let case = line::read(text).unwrap();
        let insn = decode(case.code(), case.bits, case.at);
        let outcomes: Vec<_> = faults.iter().map(|(v, e, a)| fault(&case, *v, *e, *a)).collect();
        outcomes.iter().all(|one| outcomes.iter().all(|other| both(&case, &insn, one, other)))
    }

    #[test]
    fn either_operand_of_a_string_instruction_may_fault_first() {
        let (pf, gp, ac) = (vector::PF, vector::GP, vector::AC);
        for text in ["32 code=67a7 rsi=1", "32 code=a7 rsi=1", "64 code=a7 rsi=1", "64 code=67a7 rsi=1"] {
            assert!(alike(text, &[(pf, pf::U, 0), (pf, pf::U, 1)]), "{text}");
            assert!(!alike(text, &[(pf, pf::U, 0), (pf, pf::U, 8)]), "{text}: neither operand is there");
            assert!(!alike(text, &[(pf, pf::U, 0), (pf, pf::U | pf::W, 1)]), "{text}: nothing is written");
            assert!(!alike(text, &[(pf, pf::U, 0), (gp, 0, 0)]), "{text}: all is canonical");
            assert!(!alike(text, &[(pf, pf::U, 0), (ac, 0, 0)]), "{text}: alignment is not checked");
        }
        assert!(alike("32 code=6467a7 rsi=1", &[(pf, pf::U, 0), (gp, 0, 0)]), "FS is null");
        assert!(alike("32 code=67a7 rdi=1 rflags=40000", &[(pf, pf::U, 0), (ac, 0, 0)]));
        assert!(alike("64 code=a5 rsi=1", &[(pf, pf::U, 1), (pf, pf::U | pf::W, 0)]));
        assert!(!alike("64 code=a5 rsi=1", &[(pf, pf::U, 1), (pf, pf::U, 0)]), "the store is a write");
    }

    #[test]
    fn any_byte_of_an_operand_may_fault_first_and_no_other() {
        let text = "64 code=0fae08 rax=20002f80";
        assert!(alike(text, &[(vector::PF, pf::U, 0x2000_3000), (vector::PF, pf::U, 0x2000_3040)]));
        assert!(!alike(text, &[(vector::PF, pf::U, 0x2000_3000), (vector::PF, pf::U, 0x2000_2f80)]));
        let text = "32 code=670fae8d1104 rdi=1ffffbdf";
        assert!(
            alike(text, &[(vector::PF, pf::U, 0xfff0), (vector::PF, pf::U, 0x1ef)]),
            "16-bit addresses wrap"
        );
        assert!(!alike(text, &[(vector::PF, pf::U, 0xfff0), (vector::PF, pf::U, 0x1f0)]));
    }

    #[test]
    fn what_was_done_before_a_fault_is_no_order_of_faults() {
        let case = line::read("64 code=a5 rsi=1").unwrap();
        let insn = decode(case.code(), case.bits, case.at);
        let one = fault(&case, vector::PF, pf::U, 1);
        let mut other = fault(&case, vector::PF, pf::U | pf::W, 0);
        assert!(both(&case, &insn, &one, &other));
        other.gpr[1] ^= 1;
        assert!(!both(&case, &insn, &one, &other));
    }
}
