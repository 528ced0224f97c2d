//! From a decoded instruction to its generic implementation: one table by mnemonic.
//!
//! Each file of instructions has its rows ([`rows`]); this module puts them in order of their mnemonics, when the
//! first instruction is decoded. Rows of one mnemonic are asked in the order of [`SECTIONS`]: the
//! first one whose condition holds for the operands has the handler.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use satori_engine::Exception;

use crate::cpu::{Cpu, Exec, Handler};
use crate::{fpu, integer, simd, system};

/// Which instructions a row is for.
#[derive(Clone, Copy)]
pub(crate) enum Names {
    /// All with one of these names.
    Mnemonics(&'static [Mnemonic]),
    /// All that were made of these of SSE: their names with a V.
    Vex(&'static [Mnemonic]),
    /// Encodings.
    Codes(&'static [Code]),
}

/// Some instructions, and what chooses their handler by operands.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Which instructions.
    pub names: Names,
    /// Whether `choose` may have none for some operands: then a later row may.
    #[cfg(test)]
    pub conditional: bool,
    /// The handler, unless the operands are another row's.
    pub choose: fn(&Instruction) -> Option<Handler>,
}

/// Rows under one condition.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    /// Whether an instruction with one of their names is theirs at all; none: always.
    pub when: Option<fn(&Instruction) -> bool>,
    /// The rows.
    pub rows: &'static [Row],
}

impl Section {
    /// Rows without a common condition.
    pub(crate) const fn of(rows: &'static [Row]) -> Self {
        Section { when: None, rows }
    }

    /// Rows for the instructions for which `when` holds.
    pub(crate) const fn when(when: fn(&Instruction) -> bool, rows: &'static [Row]) -> Self {
        Section { when: Some(when), rows }
    }
}

/// Rows as they are written: `rows!(insn { Name | Name if condition => handler, .. })`. The condition and the
/// handler may name `insn`; `rows!(vex insn { .. })` has SSE's names for AVX's instructions, and `rows!(codes insn { .. })`
/// the decoder's names of encodings.
macro_rules! rows {
    (vex $insn:ident $rows:tt) => { $crate::insn::rows!(@rows Vex Mnemonic $insn $rows) };
    (codes $insn:ident $rows:tt) => { $crate::insn::rows!(@rows Codes Code $insn $rows) };
    ($insn:ident $rows:tt) => { $crate::insn::rows!(@rows Mnemonics Mnemonic $insn $rows) };
    (@rows $names:ident $name_of:ident $insn:ident {
        $($($name:ident)|+ $(if $condition:expr)? => $handler:expr,)*
    }) => {
        &[$($crate::insn::Row {
            names: $crate::insn::Names::$names(&[$(iced_x86::$name_of::$name),+]),
            #[cfg(test)]
            conditional: $crate::insn::rows!(@conditional $($condition)?),
            choose: |$insn: &iced_x86::Instruction| {
                let _ = $insn;
                $(if !($condition) { return None; })?
                let handler: $crate::cpu::Handler = $handler;
                Some(handler)
            },
        }),*]
    };
    (@conditional) => { false };
    (@conditional $condition:expr) => { true };
}
pub(crate) use rows;

/// All that is implemented, in the order in which rows of one mnemonic are asked.
const SECTIONS: &[&[Section]] =
    &[integer::SECTIONS, system::SECTIONS, simd::AVX, simd::SECTIONS, fpu::SECTIONS];

/// A row under one of its mnemonics.
#[derive(Clone, Copy)]
struct Candidate {
    when: Option<fn(&Instruction) -> bool>,
    code: Option<Code>,
    row: Row,
}

impl Candidate {
    fn handler(&self, insn: &Instruction) -> Option<Handler> {
        let asked =
            self.code.is_none_or(|code| code == insn.code()) && self.when.is_none_or(|when| when(insn));
        if asked { (self.row.choose)(insn) } else { None }
    }
}

/// The rows in order of their mnemonics.
struct Table {
    candidates: Vec<Candidate>,
    /// Where those of each mnemonic begin; one more tells where the last ones end.
    begins: Vec<usize>,
}

impl Table {
    fn new() -> Self {
        let mut found: Vec<(Mnemonic, Candidate)> = Vec::with_capacity(2 * Mnemonic::values().len());
        for section in SECTIONS.iter().copied().flatten() {
            for row in section.rows {
                let candidate = Candidate { when: section.when, code: None, row: *row };
                match row.names {
                    Names::Mnemonics(names) => found.extend(names.iter().map(|name| (*name, candidate))),
                    Names::Vex(names) => {
                        found
                            .extend(names.iter().filter_map(|name| Some((RELATIVES.vex(*name)?, candidate))));
                    }
                    Names::Codes(codes) => found.extend(
                        codes
                            .iter()
                            .map(|code| (code.mnemonic(), Candidate { code: Some(*code), ..candidate })),
                    ),
                }
            }
        }
        // Rows of one mnemonic stay in their order.
        let mut begins = vec![0; Mnemonic::values().len() + 1];
        found.iter().for_each(|(mnemonic, _)| begins[*mnemonic as usize + 1] += 1);
        for at in 1..begins.len() {
            begins[at] += begins[at - 1];
        }
        let mut next = begins.clone();
        let mut order = vec![0; found.len()];
        for (at, (mnemonic, _)) in found.iter().enumerate() {
            let place = &mut next[*mnemonic as usize];
            order[*place] = at;
            *place += 1;
        }
        Table { candidates: order.into_iter().map(|at| found[at].1).collect(), begins }
    }

    fn of(&self, mnemonic: Mnemonic) -> &[Candidate] {
        &self.candidates[self.begins[mnemonic as usize]..self.begins[mnemonic as usize + 1]]
    }
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

/// Instructions of SSE and those of AVX that were made of them: their names with a V.
struct Relatives {
    /// By mnemonic of AVX.
    legacy: Vec<Option<Mnemonic>>,
    /// By mnemonic of SSE.
    vex: Vec<Option<Mnemonic>>,
}

static RELATIVES: LazyLock<Relatives> = LazyLock::new(Relatives::new);

impl Relatives {
    /// Every run makes this anew: names are hashed instead of sorted, and lie in one text.
    fn new() -> Self {
        let mut text = String::new();
        let ends: Vec<usize> = Mnemonic::values()
            .map(|mnemonic| {
                // A string takes all that is written to it.
                let _ = write!(text, "{mnemonic:?}");
                text.len()
            })
            .collect();
        text.make_ascii_lowercase();
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let names = || {
            Mnemonic::values().zip(begins.clone().zip(&ends)).map(|(one, (from, to))| (&text[from..*to], one))
        };
        let known: HashMap<&str, Mnemonic> = names().collect();
        let mut relatives = Relatives { legacy: vec![None; ends.len()], vex: vec![None; ends.len()] };
        for (name, vex) in names() {
            if let Some(legacy) = name.strip_prefix('v').and_then(|name| known.get(name)) {
                relatives.legacy[vex as usize] = Some(*legacy);
                relatives.vex[*legacy as usize] = Some(vex);
            }
        }
        relatives
    }

    fn vex(&self, legacy: Mnemonic) -> Option<Mnemonic> {
        self.vex[legacy as usize]
    }
}

/// The instruction of SSE that an instruction of AVX was made of: its name without the V.
pub(crate) fn legacy(mnemonic: Mnemonic) -> Option<Mnemonic> {
    RELATIVES.legacy[mnemonic as usize]
}

/// The generic implementation of `insn`, whether offered or not; #UD for what there is none of.
pub(crate) fn handler(insn: &Instruction) -> Handler {
    if insn.is_invalid() {
        return undefined;
    }
    TABLE.of(insn.mnemonic()).iter().find_map(|candidate| candidate.handler(insn)).unwrap_or(undefined)
}

/// What the processor does not have.
pub(crate) fn undefined(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    Err(cpu.raise(Exception::ud()))
}

/// Whether operand `op` is a register of a kind.
pub(crate) fn is_register(insn: &Instruction, op: u32, kind: fn(Register) -> bool) -> bool {
    insn.op_kind(op) == OpKind::Register && kind(insn.op_register(op))
}

/// Whether the first operand is in memory.
pub(crate) fn to_memory(insn: &Instruction) -> bool {
    insn.op0_kind() == OpKind::Memory
}

/// Whether the second operand is in memory.
pub(crate) fn from_memory(insn: &Instruction) -> bool {
    insn.op1_kind() == OpKind::Memory
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row behind one that takes all operands of a mnemonic is never asked.
    #[test]
    fn no_row_stands_behind_one_that_takes_all() {
        for mnemonic in Mnemonic::values() {
            let [before @ .., _] = TABLE.of(mnemonic) else { continue };
            for candidate in before {
                assert!(
                    candidate.when.is_some() || candidate.code.is_some() || candidate.row.conditional,
                    "{mnemonic:?} has a row that nothing reaches"
                );
            }
        }
    }

    /// Names with a V exist for all rows that are shared with SSE, but for those that AVX has no such relative of.
    #[test]
    fn an_instruction_of_avx_is_found_by_its_relative() {
        assert_eq!(legacy(Mnemonic::Vpaddb), Some(Mnemonic::Paddb));
        assert_eq!(RELATIVES.vex(Mnemonic::Addsd), Some(Mnemonic::Vaddsd));
        assert!(TABLE.of(Mnemonic::Vpaddb).len() == 1 && TABLE.of(Mnemonic::Vpmovzxbw).len() == 1);
    }
}
