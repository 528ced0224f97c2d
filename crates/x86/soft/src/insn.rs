//! From a decoded instruction to its generic implementation: one table by mnemonic.
//!
//! Each file of instructions has its rows ([`rows`]); this module puts them in order of their mnemonics, when the
//! first instruction is decoded. Rows of one mnemonic are asked in the order of [`SECTIONS`]: the
//! first one whose condition holds for the operands has the handler.

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
        let vex = with_v();
        let mut found: Vec<(Mnemonic, Candidate)> = Vec::new();
        for section in SECTIONS.iter().copied().flatten() {
            for row in section.rows {
                let candidate = Candidate { when: section.when, code: None, row: *row };
                match row.names {
                    Names::Mnemonics(names) => found.extend(names.iter().map(|name| (*name, candidate))),
                    Names::Vex(names) => {
                        found.extend(names.iter().filter_map(|name| Some((vex[*name as usize]?, candidate))));
                    }
                    Names::Codes(codes) => found.extend(
                        codes
                            .iter()
                            .map(|code| (code.mnemonic(), Candidate { code: Some(*code), ..candidate })),
                    ),
                }
            }
        }
        // Stable: rows of one mnemonic stay in their order.
        found.sort_by_key(|(mnemonic, _)| *mnemonic as usize);
        let begins = (0..=Mnemonic::values().len())
            .map(|number| found.partition_point(|(mnemonic, _)| (*mnemonic as usize) < number))
            .collect();
        Table { candidates: found.into_iter().map(|(_, candidate)| candidate).collect(), begins }
    }

    fn of(&self, mnemonic: Mnemonic) -> &[Candidate] {
        &self.candidates[self.begins[mnemonic as usize]..self.begins[mnemonic as usize + 1]]
    }
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

/// For each instruction of SSE the one of AVX that was made of it: its name with a V.
fn with_v() -> Vec<Option<Mnemonic>> {
    let mut found = vec![None; Mnemonic::values().len()];
    for (mnemonic, legacy) in Mnemonic::values().zip(LEGACY.iter()) {
        if let Some(legacy) = legacy {
            found[*legacy as usize] = Some(mnemonic);
        }
    }
    found
}

static LEGACY: LazyLock<Vec<Option<Mnemonic>>> = LazyLock::new(|| {
    let mut names: Vec<(String, Mnemonic)> =
        Mnemonic::values().map(|mnemonic| (format!("{mnemonic:?}").to_ascii_lowercase(), mnemonic)).collect();
    names.sort();
    let find = |name: &str| {
        let at = names.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        Some(names[at].1)
    };
    Mnemonic::values()
        .map(|mnemonic| find(format!("{mnemonic:?}").to_ascii_lowercase().strip_prefix('v')?))
        .collect()
});

/// The instruction of SSE that an instruction of AVX was made of: its name without the V.
pub(crate) fn legacy(mnemonic: Mnemonic) -> Option<Mnemonic> {
    LEGACY[mnemonic as usize]
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
        assert_eq!(with_v()[Mnemonic::Addsd as usize], Some(Mnemonic::Vaddsd));
        assert!(TABLE.of(Mnemonic::Vpaddb).len() == 1 && TABLE.of(Mnemonic::Vpmovzxbw).len() == 1);
    }
}
