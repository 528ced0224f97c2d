//! Frame times, measured by the guest in its own time.
//!
//! Each vCPU renders frame after frame: a frame is a number of rounds of the game's loop, drawn evenly between the
//! parameters' two, and the first frames of each vCPU count, the same ones in every run. In a run of its own every exit takes the guest time that the cost file says (`satori run --charge-costs`), so a frame
//! takes as long as its rounds, the guest's own interrupt handlers, and the exits that fell into it. `native` is the
//! repaired guest where exits take no time: what is left are its own rounds and handlers.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::runs::{Host, Job, Run};
use super::{Machine, Plan};
use crate::Error;

/// Frames of a guest: how long they are, and how many are in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frames {
    /// How many ended within the run.
    pub count: u64,
    /// Their average in milliseconds.
    pub average_ms: f64,
    /// Per cent of them that took less than 1/55 s.
    pub above_55: f64,
}

impl Frames {
    /// What the guest told of as many frames as were `wanted` of it.
    fn told(run: &Run, wanted: u64) -> Result<Frames, Error> {
        let number = |name: &str| run.told.get(name).and_then(|text| text.parse::<u64>().ok());
        match (number("frames"), number("frame-ns"), number("in-time")) {
            (Some(count), Some(ns), Some(in_time)) if count == wanted && count > 0 => Ok(Frames {
                count,
                average_ms: ns as f64 / count as f64 / 1e6,
                above_55: in_time as f64 / count as f64 * 100.0,
            }),
            (count, ..) => Err(Error::Run(format!(
                "the guest rendered {} of {wanted} frames: give it more --time",
                count.unwrap_or(0)
            ))),
        }
    }
}

/// What exits take of a guest's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Nothing.
    Nothing,
    /// What the cost file says.
    Costs,
    /// The same, and half of it for EOIs.
    CheapEoi,
}

/// One measurement that is to be made.
pub struct Shot {
    /// The guest.
    pub job: Job,
    /// What its exits take.
    pub charge: Charge,
}

/// Rates that disturb a round.
const DISTURBING: [(&str, u64); 8] = [
    ("ipis", 0),
    ("clock-reads", 0),
    ("debug", 0),
    ("spins", 0),
    ("io", 0),
    ("flushes", 0),
    ("masked", 0),
    ("priority", 0),
];
/// Guest time in which undisturbed rounds are counted.
const CALIBRATION_MS: u64 = 20;

/// The frames of each shot, and before them the native ones of `quiet`.
pub fn frames(
    plan: &Plan,
    quiet: &Machine,
    shots: Vec<Shot>,
    host: &Host,
) -> Result<(Frames, Vec<Frames>), Error> {
    let files = files(host)?;
    let parameters = plan.parameters.but(&DISTURBING);
    let vcpus = parameters.get("vcpus");
    let alone = Job { machine: quiet.clone(), parameters, ms: CALIBRATION_MS };
    let counted = host.play(&alone, &[])?;
    let rounds: u64 = counted.told.get("rounds").and_then(|text| text.parse().ok()).unwrap_or(0);
    let round_ps = (CALIBRATION_MS * 1_000_000_000 * vcpus)
        .checked_div(rounds)
        .filter(|ps| *ps > 0)
        .ok_or_else(|| Error::Run("the guest does not tell its rounds".into()))?;
    // Twice the time that the longest take, so that every vCPU ends them, whatever its share of the time is.
    let each = (plan.ms * 1000).checked_div(plan.parameters.get("frame-most") * 2).unwrap_or(0).max(1);
    let native = Job { machine: quiet.clone(), parameters: plan.parameters.clone(), ms: plan.ms };
    let mut all = vec![Shot { job: native, charge: Charge::Nothing }];
    all.extend(shots);
    let mut told = host.all(&all, |Shot { job, charge }| {
        let mut job = job.clone();
        job.machine.rules += &format!(" round-ps={round_ps} frames={each}");
        let file = match charge {
            Charge::Nothing => None,
            Charge::Costs => Some(&files[0]),
            Charge::CheapEoi => Some(&files[1]),
        };
        let charged = file.map(|file| ["--charge-costs".into(), "--costs".into(), shown(file)]);
        Frames::told(&host.play(&job, charged.as_ref().map_or(&[][..], |words| words))?, each * vcpus)
    })?;
    let native = told.remove(0);
    Ok((native, told))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Cost files: the one that is in force, and one in which an exit for an EOI costs half.
fn files(host: &Host) -> Result<[PathBuf; 2], Error> {
    let text = host.costs.to_json();
    let mut cheap: Value = serde_json::from_str(&text).unwrap_or_default();
    for entry in cheap["entries"].as_array_mut().into_iter().flatten() {
        if entry["reason"] == "EOI_INDUCED" {
            let half = entry["ns"].as_f64().unwrap_or(0.0) / 2.0;
            entry["ns"] = half.into();
        }
    }
    let made = |name: &str, text: &str| {
        let path = host.folder.join(name);
        std::fs::write(&path, text).map(|()| path).map_err(|why| Error::Run(format!("{name}: {why}")))
    };
    Ok([made("costs.json", &text)?, made("cheap-eoi.json", &cheap.to_string())?])
}
