//! Runs the subjects in turn, round after round.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::Error;
use crate::catalog::Row;
use crate::line::Line as Said;
use crate::results::{Boot, Cell, Line, Results, Table};
use crate::session::{self, Ended};
use crate::subject::{Devices, Entry, Files, GUEST_BUSYBOX, Job, Setting, Subject};

/// After this many rounds for each that was asked for, a noisy row stays noisy.
const ROUNDS_MAX: usize = 3;
/// How often a run is begun again, without the row at which it ended if it came that far.
const RESTARTS_MAX: usize = 4;
/// How long the program waits at its end, so that its monitor can be looked at.
const LINGER: Duration = Duration::from_millis(300);

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The files.
    pub files: Files,
    /// The host first, then Satori, then peers.
    pub subjects: Vec<Subject>,
    /// A table each.
    pub settings: Vec<Setting>,
    /// The rows.
    pub rows: Vec<&'static Row>,
    /// Whether boots are measured, too.
    pub boot: bool,
    /// Processors of the rows that are on several.
    pub cpus: u32,
    /// The guests' memory in bytes.
    pub memory: u64,
    /// Runs that agree.
    pub repetitions: usize,
    /// The time of a row in a run, in milliseconds.
    pub budget_ms: u64,
    /// How long a row may take before it is given up.
    pub patience: Duration,
}

/// Who is told how far it is, and who can end it.
pub struct Watch<'a> {
    /// Told a line now and then.
    pub tell: &'a mut dyn FnMut(&str),
    /// Becomes true when the user wants it to end.
    pub stop: &'a AtomicBool,
}

/// Measures all that `plan` asks for, or what there is time for until the user ends it.
pub fn measure(plan: &Plan, watch: &mut Watch) -> Result<Results, Error> {
    let above = vec![Vec::new(); plan.subjects.len()];
    let mut measuring =
        Measuring { plan, watch, tsc_khz: 0, notes: Vec::new(), stumbles: Vec::new(), above, stopped: false };
    let ended = measuring.session(0, Setting::Defaults, 1, Entry::Pvh, "boot".into())?;
    for line in ended.lines {
        if let Said::Init(khz) = line {
            measuring.tsc_khz = khz;
        }
    }
    let mut tables = Vec::new();
    for &setting in &plan.settings {
        let mut lines = Vec::new();
        for several in [false, true] {
            let rows: Vec<_> = plan.rows.iter().copied().filter(|row| row.several == several).collect();
            lines.extend(measuring.rows(setting, if several { plan.cpus } else { 1 }, &rows)?);
        }
        let mut boots = if plan.boot { measuring.boots(setting)? } else { Vec::new() };
        if measuring.stopped {
            lines.retain(|line| line.to_native().is_some());
            boots.retain(|boot| !boot.runs.is_empty());
        }
        if !measuring.stopped || !lines.is_empty() || !boots.is_empty() {
            tables.push(Table { setting, lines, boots });
        }
        if measuring.stopped {
            break;
        }
    }
    let Measuring { mut notes, stumbles, above, stopped, .. } = measuring;
    notes.sort();
    notes.dedup();
    if stopped {
        if tables.is_empty() {
            return Err(Error::Stopped);
        }
        notes.insert(0, "ended by the user: these are the rows that were measured until then".into());
    }
    Ok(Results {
        host: String::new(),
        date: String::new(),
        kernel: String::new(),
        subjects: plan.subjects.iter().map(Subject::name).collect(),
        notes,
        repetitions: plan.repetitions,
        budget_ms: plan.budget_ms,
        cpus: plan.cpus,
        tables,
        stumbles,
        above,
        memory: plan.memory,
        stopped,
    })
}

struct Measuring<'a, 'w> {
    plan: &'a Plan,
    watch: &'a mut Watch<'w>,
    tsc_khz: u64,
    notes: Vec<String>,
    stumbles: Vec<(usize, String)>,
    above: Vec<Vec<f64>>,
    /// The user ended it.
    stopped: bool,
}

impl Measuring<'_, '_> {
    fn session(
        &mut self,
        subject: usize,
        setting: Setting,
        cpus: u32,
        entry: Entry,
        words: String,
    ) -> Result<Ended, Error> {
        let Plan { files, memory, patience, .. } = self.plan;
        let job = Job { files, setting, cpus, memory: *memory, entry, tsc_khz: self.tsc_khz, words };
        let subject = &self.plan.subjects[subject];
        let guest = (*subject != Subject::Native).then_some(*memory);
        // The program itself ends a row that takes too long; this is for a guest that cannot.
        session::run(subject.command(&job), guest, *patience + Duration::from_secs(30), self.watch.stop)
    }

    fn rows(&mut self, setting: Setting, cpus: u32, rows: &[&'static Row]) -> Result<Vec<Line>, Error> {
        let subjects = self.plan.subjects.len();
        let mut lines: Vec<Line> =
            rows.iter().map(|row| Line { row, cells: vec![Cell::default(); subjects] }).collect();
        let repetitions = self.plan.repetitions;
        let rounds = (0..repetitions * ROUNDS_MAX).flat_map(|round| (0..subjects).map(move |it| (round, it)));
        for (round, subject) in rounds {
            if self.stopped {
                break;
            }
            // A row is repeated where it was noisy, and left alone where its runs agree.
            let open = |line: &Line| !line.cells[subject].settled(repetitions);
            let wanted: Vec<usize> = (0..lines.len()).filter(|&i| open(&lines[i])).collect();
            if wanted.is_empty() {
                continue;
            }
            let name = self.plan.subjects[subject].name();
            (self.watch.tell)(&format!(
                "{}, {cpus} vCPU, round {}: {name}, {} rows",
                setting.name(),
                round + 1,
                wanted.len()
            ));
            match self.run(setting, cpus, subject, &mut lines, wanted) {
                Err(Error::Stopped) => self.stopped = true,
                done => done?,
            }
        }
        Ok(lines)
    }

    /// One run of the rows `left` on one subject; a row that ends the run is left out, and the others are
    /// begun again.
    fn run(
        &mut self,
        setting: Setting,
        cpus: u32,
        subject: usize,
        lines: &mut [Line],
        mut left: Vec<usize>,
    ) -> Result<(), Error> {
        for attempt in 0.. {
            if left.is_empty() {
                break;
            }
            let names: Vec<_> = left.iter().map(|&i| lines[i].row.name).collect();
            let words = self.words(&names, cpus);
            let entry = self.plan.subjects[subject].entry();
            let ended = self.session(subject, setting, cpus, entry, words)?;
            if let Some(resident) = ended.resident.filter(|_| cpus == 1) {
                self.above[subject].push(resident.above() as f64);
            }
            let unfinished = ended.unfinished().map(str::to_string);
            for line in ended.lines {
                self.note(subject, cpus, &line);
                let (Said::Row(name, ..) | Said::Absent(name, _) | Said::Failed(name, _)) = &line else {
                    continue;
                };
                let Some(place) = left.iter().position(|&i| lines[i].row.name == name) else { continue };
                let cell = &mut lines[left.remove(place)].cells[subject];
                match line {
                    Said::Row(_, reading) => cell.add(reading, self.plan.repetitions),
                    Said::Absent(_, why) => cell.absent = Some(why),
                    Said::Failed(_, why) => cell.failed = Some(why),
                    _ => {}
                }
            }
            let Some(wrong) = ended.wrong else { break };
            (self.watch.tell)(&format!("{}: {wrong}", self.plan.subjects[subject].name()));
            let guilty = unfinished.and_then(|name| left.iter().position(|&i| lines[i].row.name == name));
            match guilty {
                Some(place) => lines[left.remove(place)].cells[subject].failed = Some(wrong),
                // It did not come as far as a row: a guest's kernel can fail to come up on a busy host.
                None if attempt < RESTARTS_MAX => self.stumbles.push((subject, wrong)),
                None => {
                    left.iter().for_each(|&i| lines[i].cells[subject].failed = Some(wrong.clone()));
                    break;
                }
            }
        }
        Ok(())
    }

    fn words(&self, rows: &[&str], cpus: u32) -> String {
        format!(
            "run --rows {} --budget {} --limit {} --cpus {cpus} --busybox {GUEST_BUSYBOX} --linger {}{}",
            rows.join(","),
            self.plan.budget_ms,
            self.plan.patience.as_secs().max(1),
            LINGER.as_millis(),
            self.plan.files.devices.as_ref().map_or_else(String::new, Devices::words),
        )
    }

    /// What is worth telling of where a subject runs.
    fn note(&mut self, subject: usize, cpus: u32, line: &Said) {
        if let Said::Found { kernel, clocksource, cpus: had } = line {
            let name = self.plan.subjects[subject].name();
            self.notes.push(format!("{name}: Linux {kernel}, {cpus} vCPU: clock source {clocksource}"));
            if u64::from(cpus) > *had {
                self.notes.push(format!("{name}: only {had} processors where {cpus} were wanted"));
            }
        }
    }

    fn boots(&mut self, setting: Setting) -> Result<Vec<Boot>, Error> {
        let mut boots: Vec<Boot> = Vec::new();
        for (subject, kind) in self.plan.subjects.iter().enumerate() {
            for &entry in kind.boots() {
                boots.push(Boot::new(subject, entry));
            }
        }
        let repetitions = self.plan.repetitions;
        for round in 0..repetitions * ROUNDS_MAX {
            let open: Vec<_> = boots.iter_mut().filter(|boot| !boot.settled(repetitions)).collect();
            if open.is_empty() || self.stopped {
                break;
            }
            (self.watch.tell)(&format!("{}, round {}: {} boots", setting.name(), round + 1, open.len()));
            for boot in open {
                for attempt in 0..=1 {
                    let ended = match self.session(boot.subject, setting, 1, boot.entry, "boot".into()) {
                        Err(Error::Stopped) => {
                            self.stopped = true;
                            break;
                        }
                        ended => ended?,
                    };
                    let wrong = match (ended.wrong, ended.to_init) {
                        (None, Some(to_init)) => {
                            let ms = |time: Duration| time.as_secs_f64() * 1e3;
                            boot.add(ms(ended.whole), ms(to_init), repetitions);
                            break;
                        }
                        (wrong, _) => wrong.unwrap_or("never reached init".into()),
                    };
                    match attempt {
                        0 => self.stumbles.push((boot.subject, wrong)),
                        _ => boot.failed = Some(wrong),
                    }
                }
            }
        }
        Ok(boots)
    }
}
