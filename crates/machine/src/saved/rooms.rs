//! What is a machine's own: time, who has how much of it, input, the console's end.

use std::sync::{Arc, Weak};

use satori_bus::{Armed, Timer};
use satori_save::{Error, State};
use serde::{Deserialize, Serialize};

use super::Rooms;
use crate::guest_counter::Since;
use crate::life::Time;
use crate::shared::SavedInput;

/// Guest time beyond which no machine runs: half of what its numbers hold, so that none overflows.
const LONGEST: u64 = 1 << 62;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedMachine {
    /// What the machine was made of.
    identity: Vec<(String, String)>,
    /// Instructions under a virtual clock, of which `rate` make a second; else nanoseconds.
    ran: u64,
    rate: u64,
    /// The guest's TSC since its frequency was changed.
    guest_tsc: Option<Since>,
    /// What each vCPU's next turns lack.
    turns: Vec<u64>,
    /// By timer of the machine itself.
    timers: Vec<Vec<Armed>>,
    /// Which changes of the TSC's frequency were made.
    changed: Vec<bool>,
    input: SavedInput,
    /// How much of the panic pattern the console has matched, its last lines, and whether the last one goes on.
    console: (usize, Vec<Vec<u8>>, bool),
}

impl State for SavedMachine {
    const NAME: &'static str = "machine";
    const VERSION: u32 = 2;
}

fn weak(timer: &Arc<dyn Timer>) -> Weak<dyn Timer> {
    Arc::downgrade(timer)
}

impl Rooms {
    pub(super) fn save(&self) -> SavedMachine {
        let (ran, rate, guest_tsc) = match &self.time {
            Time::Virtual(clock) => (clock.gone(), clock.rate(), clock.guest.save()),
            Time::Real(clock) => (clock.gone(), 0, clock.guest.save()),
        };
        SavedMachine {
            identity: self.identity.clone(),
            ran,
            rate,
            guest_tsc,
            turns: self.turns.get(),
            timers: self.own_timers.iter().map(|timer| self.timers.armed(&weak(timer))).collect(),
            changed: self.changes.iter().map(|change| change.done()).collect(),
            input: self.shared.save_input(),
            console: self.console.save(),
        }
    }

    pub(super) fn restore(&self, saved: SavedMachine) -> Result<(), Error> {
        let unless = |fits, why: &str| Error::unless(fits, SavedMachine::NAME, why);
        let settings = self.identity.iter().zip(&saved.identity);
        if let Some(((name, setting), (_, was))) = settings.clone().find(|(own, saved)| own != saved) {
            return Err(Error::unfit(SavedMachine::NAME, format!("{name} is {setting} here and was {was}")));
        }
        unless(self.identity.len() == saved.identity.len(), "it was made of something else")?;
        unless(saved.ran < LONGEST, "no machine runs that long")?;
        unless(saved.turns.iter().all(|debt| *debt < LONGEST), "no turn lacks so much")?;
        let same = saved.timers.len() == self.own_timers.len() && saved.changed.len() == self.changes.len();
        unless(same, "it has other changes of the TSC's frequency, or another time limit")?;
        let changed = match &self.time {
            Time::Virtual(clock) => {
                unless(clock.rate() == saved.rate, "so many instructions are not a second here")?;
                clock.set_gone(saved.ran);
                clock.guest.restore(saved.guest_tsc)
            }
            Time::Real(clock) => {
                clock.set_gone(saved.ran);
                clock.guest.restore(saved.guest_tsc)
            }
        };
        unless(changed, "nothing runs at no frequency")?;
        self.turns.set(saved.turns);
        for (timer, armed) in self.own_timers.iter().zip(&saved.timers) {
            self.timers.restore(&weak(timer), armed);
        }
        self.changes.iter().zip(saved.changed).for_each(|(change, done)| change.set_done(done));
        self.shared.restore_input(saved.input);
        let (matched, lines, open) = saved.console;
        unless(self.console.restore(matched, lines, open), "no console has such lines")
    }
}
