//! The comparison itself: batches of cases on the real processor and on an engine.

use std::collections::BTreeMap;

use iced_x86::Instruction;
use satori_cpuid::CpuidTable;
use satori_engine::{Engine, X86};

use crate::allowed;
use crate::case::{Case, Ending, Outcome};
use crate::diff::{Difference, differences};
use crate::error::Error;
use crate::exclude;
use crate::exclusions::Exclusion;
use crate::forms::decode;
use crate::guest::{Guest, Way};
use crate::line;
use crate::native::{BATCH, Native};
use crate::undefined;

/// The ways in which an engine executes every case.
const WAYS: [Way; 2] = [Way::Block, Way::Alone];

/// A case whose outcomes differ.
pub struct Failure {
    /// The case.
    pub case: Case,
    /// Its instruction.
    pub insn: Instruction,
    /// How the engine executed it.
    pub way: Way,
    /// What differs.
    pub differences: Vec<Difference>,
}

/// The real processor and an engine, side by side.
pub struct Comparison {
    native: Native,
    guests: [(Guest, Vec<Outcome>); 2],
    waiting: Vec<(Case, Instruction)>,
    /// Cases that were compared.
    pub compared: u64,
    /// Cases that were left out, by reason.
    pub skipped: BTreeMap<Exclusion, u64>,
    /// Compared cases by the vector that ended them.
    pub vectors: [u64; 32],
}

impl Comparison {
    /// Compares `engine`.
    pub fn new(engine: &dyn Engine<X86>) -> Result<Self, Error> {
        Self::with(engine, None)
    }

    /// Compares an engine whose guests execute on the host's processor, and find this CPUID.
    pub fn on_host(engine: &dyn Engine<X86>, cpuid: &CpuidTable) -> Result<Self, Error> {
        Self::with(engine, Some(cpuid))
    }

    fn with(engine: &dyn Engine<X86>, cpuid: Option<&CpuidTable>) -> Result<Self, Error> {
        let guest = |way| -> Result<_, Error> { Ok((Guest::new(engine, way, cpuid)?, Vec::new())) };
        Ok(Comparison {
            native: Native::new()?,
            guests: [guest(WAYS[0])?, guest(WAYS[1])?],
            waiting: Vec::with_capacity(BATCH),
            compared: 0,
            skipped: BTreeMap::new(),
            vectors: [0; 32],
        })
    }

    /// Takes one more case. What differs in a full batch comes back.
    pub fn push(&mut self, case: Case, insn: Instruction) -> Result<Vec<Failure>, Error> {
        if let Some(why) = reason(&case, &insn) {
            *self.skipped.entry(why).or_default() += 1;
            return Ok(Vec::new());
        }
        let place = self.waiting.len();
        for (guest, outcomes) in &mut self.guests {
            if outcomes.len() <= place {
                outcomes.push(*Outcome::new());
            }
            guest.execute(&case, &mut outcomes[place])?;
        }
        // What does not end on the engine might not end on the real processor either.
        if self.guests.iter().any(|(_, outcomes)| outcomes[place].ending == Ending::RanOn) {
            *self.skipped.entry(Exclusion::Endless).or_default() += 1;
            return Ok(Vec::new());
        }
        self.waiting.push((case, insn));
        if self.waiting.len() == BATCH { self.flush() } else { Ok(Vec::new()) }
    }

    /// Compares the cases that wait for their batch to be full.
    pub fn flush(&mut self) -> Result<Vec<Failure>, Error> {
        let waiting = std::mem::take(&mut self.waiting);
        for (slot, (case, _)) in self.native.cases().iter_mut().zip(&waiting) {
            *slot = *case;
        }
        self.native.execute(waiting.len())?;
        let mut failures = Vec::new();
        for (place, (case, insn)) in waiting.iter().enumerate() {
            let real = &self.native.outcomes()[place];
            for (way, (_, outcomes)) in WAYS.into_iter().zip(&self.guests) {
                let differences = differences(case, insn, real, &outcomes[place]);
                if !differences.is_empty() {
                    if let Some(why) = allowed::reason(case, insn, real, &outcomes[place], &differences) {
                        *self.skipped.entry(why).or_default() += 1;
                        break;
                    }
                    failures.push(Failure { case: *case, insn: *insn, way, differences });
                    break;
                }
            }
            if let Some(count) = self.vectors.get_mut(real.vector as usize) {
                *count += 1;
            }
        }
        self.compared += waiting.len() as u64;
        self.waiting = waiting;
        self.waiting.clear();
        Ok(failures)
    }

    /// Children that were lost with a case.
    pub fn lost(&self) -> u64 {
        self.native.lost
    }

    /// Executes one case now.
    pub fn one(&mut self, case: &Case) -> Result<Option<Failure>, Error> {
        let mut case = *case;
        case.make_possible();
        let insn = decode(case.code(), case.bits, case.at);
        let mut failures = self.push(case, insn)?;
        failures.extend(self.flush()?);
        Ok(failures.pop())
    }

    /// A simpler case that fails in the same way.
    pub fn minimise(&mut self, failure: &Failure) -> Result<Failure, Error> {
        let (compared, vectors, skipped) = (self.compared, self.vectors, self.skipped.clone());
        let kind = |failure: &Failure| failure.differences.iter().map(|d| d.what.clone()).collect::<Vec<_>>();
        let mut best = Failure {
            case: failure.case,
            insn: failure.insn,
            way: failure.way,
            differences: failure.differences.clone(),
        };
        loop {
            let mut improved = false;
            // From the last to the first, so that places stay right as lines are taken away.
            let mut at = line::simpler(&best.case).len();
            while at > 0 {
                at -= 1;
                let Some(simple) = line::simpler(&best.case).get(at).copied() else { continue };
                if let Some(found) = self.one(&simple)?
                    && kind(&found) == kind(&best)
                {
                    best = found;
                    improved = true;
                }
            }
            if !improved {
                (self.compared, self.vectors, self.skipped) = (compared, vectors, skipped);
                return Ok(best);
            }
        }
    }
}

/// Why a case is not compared.
fn reason(case: &Case, insn: &Instruction) -> Option<Exclusion> {
    exclude::case_reason(case, insn)
        .or_else(|| if insn.is_invalid() { None } else { exclude::reason(insn) })
        .or_else(|| undefined::result(insn, case))
}
