//! What a meter has counted, as plain data: the report of a machine that goes on is that of its whole life.

use satori_bus::Nanos;
use satori_save::{Error, State, Value};
use satori_seam::Reason;
use serde::{Deserialize, Serialize};

use crate::hot::SavedPlace;
use crate::meter::{Meter, Passed, Running};
use crate::timeline::SavedTimeline;
use crate::{Recorded, Samples};

/// Counts beyond this are nobody's, and from them none overflows.
pub(crate) const COUNT: u64 = 1 << 62;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMeter {
    /// By number of the reason, of those that occurred.
    exits: Vec<(u16, Samples)>,
    timeline: SavedTimeline,
    hot: Vec<SavedPlace>,
    interrupts: Vec<u64>,
    /// The exit that is not over: reason, whether APICv was in force, the address, and since when.
    running: Option<(u16, bool, u64, Nanos)>,
    /// Exits that were not timed and for which none stands yet: all, and those without APICv.
    passed: Vec<(u16, u64, u64)>,
}

impl State for SavedMeter {
    const NAME: &'static str = "exits";
    const VERSION: u32 = 1;
}

/// The reason of that number.
pub(crate) fn reason(table: &[Reason], number: u16) -> Result<Reason, Error> {
    Reason::find(table, number)
        .ok_or_else(|| Error::unfit(SavedMeter::NAME, format!("no exit has the reason {number}")))
}

/// Refuses what no meter can have counted.
pub(crate) fn unless(fits: bool, why: &str) -> Result<(), Error> {
    Error::unless(fits, SavedMeter::NAME, why)
}

impl Meter {
    /// What it counted so far, and the exit that is not over.
    pub fn save(&self) -> Result<Value, Error> {
        let (recorded, passed) = self.counted();
        let Recorded { exits, timeline, hot, interrupts, waiting: _ } = recorded;
        let passed = passed.iter().zip(0..).filter(|(passed, _)| passed.all > 0);
        Value::of(&SavedMeter {
            exits: exits.rows().into_iter().map(|(reason, samples)| (reason.number(), samples)).collect(),
            timeline: timeline.save(),
            hot: hot.save(),
            interrupts,
            running: self.running.map(|r| (r.reason.number(), r.apicv, r.pc, r.since)),
            passed: passed.map(|(passed, number)| (number, passed.all, passed.bare)).collect(),
        })
    }

    /// Goes on from a state. A meter that is off stays so.
    pub fn restore(&mut self, value: &Value) -> Result<(), Error> {
        let saved: SavedMeter = value.state()?;
        let table = self.reasons;
        let mut recorded = Recorded::default();
        for (number, samples) in &saved.exits {
            recorded.exits.set(reason(table, *number)?, *samples);
        }
        recorded.timeline.restore(&saved.timeline, table)?;
        recorded.hot.restore(&saved.hot, table)?;
        unless(matches!(saved.interrupts.len(), 0 | 256), "there are 256 vectors")?;
        unless(saved.interrupts.iter().all(|count| *count < COUNT), "no vector is injected so often")?;
        recorded.interrupts = saved.interrupts;
        let running = saved.running.map(|(number, apicv, pc, since)| {
            reason(table, number).map(|reason| Running { reason, apicv, pc, since })
        });
        let running = running.transpose()?;
        let mut passed = Vec::new();
        for (number, all, bare) in saved.passed {
            unless(all < COUNT && bare <= all, "no reason occurs so often")?;
            passed.push((reason(table, number)?, Passed { all, bare }));
        }
        self.go_on_from(recorded, running, &passed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Timing;
    use crate::testing::{ALL, HLT, IDENTITY};

    #[test]
    fn a_meter_goes_on_where_another_was_saved() {
        let counted = |meter: &mut Meter, from: u64| {
            for at in from..from + 300 {
                let reason = if at % 3 == 0 { HLT } else { IDENTITY };
                meter.exit(reason, at % 2 == 0, 0x1000 + at % 7, || at * 2_000_000);
                meter.entry(|| at * 2_000_000 + 5);
                meter.interrupt(0x31);
            }
            // One that is not over.
            meter.exit(HLT, true, 0x99, || (from + 300) * 2_000_000);
        };
        let mut whole = Meter::new(ALL, true, Timing::Each);
        counted(&mut whole, 0);
        let mut rest = Meter::new(ALL, true, Timing::Each);
        rest.restore(&whole.save().unwrap()).unwrap();
        assert_eq!(rest.save(), whole.save());
        for meter in [&mut whole, &mut rest] {
            counted(meter, 301);
            meter.entry(|| 2_000_000_000);
        }
        assert_eq!(rest.recorded(), whole.recorded());
        assert_eq!(rest.recorded().exits.sum().count, 602);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut meter = Meter::new(ALL, true, Timing::Each);
        meter.exit(HLT, true, 0x99, || 5);
        meter.entry(|| 7);
        let value = meter.save().unwrap();
        let with = |pointer: &str, number: u64| {
            let mut value = value.clone();
            *value.tree_mut().pointer_mut(pointer).unwrap() = number.into();
            Meter::new(ALL, true, Timing::Each).restore(&value)
        };
        assert_eq!(with("/exits/0/1/min", 1), Ok(()));
        for (pointer, number) in [
            ("/exits/0/0", 60_000),
            ("/timeline/width", 0),
            ("/timeline/width", u64::MAX),
            ("/timeline/at", 256),
            ("/timeline/rows/0/0", 60_000),
            ("/hot/0/slot", 1 << 20),
        ] {
            let refused = with(pointer, number);
            assert!(matches!(refused, Err(Error::Unfit { .. })), "{pointer}: {refused:?}");
        }
    }
}
