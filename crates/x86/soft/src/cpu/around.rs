//! What a processor has around it: the clock, the others of its partition, who watches it, and where its random numbers come from.

use std::sync::Arc;

use satori_engine::{AtOnce, Doing, Entropy, Exit, Kick, Resume, TimeSource, Whereabouts, X86};

use super::{Cpu, Exec};
use crate::world::{Seat, World};

/// Nothing of it is the processor's state, and no instruction changes it.
pub(super) struct Around {
    /// The clock that it reads, and tells of what it retired.
    pub time: Arc<dyn TimeSource>,
    /// Its place among the partition's vCPUs, for instructions during which no other may execute.
    pub seat: Arc<Seat>,
    /// Other vCPUs run at the same time.
    pub parallel: bool,
    /// By which others make it look around.
    pub kick: Arc<Kick>,
    /// Where it says what it is doing.
    pub doing: Arc<Whereabouts>,
    /// The numbers behind RDRAND and RDSEED.
    pub entropy: Box<dyn Entropy>,
    /// Who answers exits that it need not come out for.
    pub at_once: Option<Arc<dyn AtOnce<X86>>>,
}

impl Cpu {
    /// The clock that it reads.
    #[inline(always)]
    pub fn time(&self) -> &Arc<dyn TimeSource> {
        &self.around.time
    }

    /// Whether other vCPUs run at the same time: then memory that they share needs the host's locked instructions.
    #[inline(always)]
    pub fn parallel(&self) -> bool {
        self.around.parallel
    }

    /// By which others make it look around.
    #[inline(always)]
    pub fn kick(&self) -> &Arc<Kick> {
        &self.around.kick
    }

    /// Where it says what it is doing.
    #[inline(always)]
    pub fn doing(&self) -> &Arc<Whereabouts> {
        &self.around.doing
    }

    /// Its place among the vCPUs, one of which may ask all others to stand aside.
    #[inline(always)]
    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.around.seat
    }

    /// The numbers behind RDRAND and RDSEED.
    pub(crate) fn entropy(&mut self) -> &mut dyn Entropy {
        &mut *self.around.entropy
    }

    /// Has `by` answer exits that it need not come out for.
    pub fn set_at_once(&mut self, by: Arc<dyn AtOnce<X86>>) {
        self.around.at_once = Some(by);
    }

    /// Asks the machine as [`Cpu::ask`] does, for an instruction that asks once and changes nothing before: it may be answered
    /// where it is, and then completes without being executed again.
    pub(crate) fn ask_once(&mut self, exit: Exit) -> Exec<Resume> {
        match self.answer_at_once(&exit) {
            Some(answer) => Ok(answer),
            None => self.ask(exit),
        }
    }

    /// The same for an access to a device by an instruction that is executed by itself, and may make others: it keeps
    /// the answer until it ends.
    pub(crate) fn ask_device(&mut self, exit: Exit) -> Exec<Resume> {
        if self.pending.by_itself
            && self.pending.next_is_new()
            && let Some(answer) = self.answer_at_once(&exit)
        {
            self.pending.answer(answer);
        }
        self.ask(exit)
    }

    /// The answer to an exit that the instruction at RIP need not stop for. It is an exit all the same, and what
    /// others wanted of the vCPU meanwhile is taken as behind any other.
    fn answer_at_once(&mut self, exit: &Exit) -> Option<Resume> {
        let by = self.around.at_once.as_ref()?;
        if self.pending.answers_nothing() {
            return None;
        }
        let doing = self.around.doing.get();
        self.around.doing.set(Doing::Exit);
        let answer = by.answer(exit, &self.state);
        self.around.doing.set(doing);
        if answer.is_some() {
            self.account(exit);
            self.debug.lent = std::mem::take(&mut self.debug.owned);
            if self.around.kick.pending() {
                self.pending.comes_out = true;
                self.windows.attention = true;
            }
        }
        answer
    }

    /// The seed of these numbers, if they follow from one.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.around.entropy.seed()
    }

    /// Puts it among these vCPUs, before it executes.
    pub(crate) fn join(&mut self, world: &Arc<World>) {
        self.around.seat = world.join(self.around.kick.clone());
    }

    /// For tests, which run one processor both ways: whether others run at the same time.
    pub fn set_parallel(&mut self, parallel: bool) {
        self.around.parallel = parallel;
    }

    /// For tests, whose clocks do what else happens at a reading.
    pub fn set_time(&mut self, time: Arc<dyn TimeSource>) {
        self.around.time = time;
    }
}
