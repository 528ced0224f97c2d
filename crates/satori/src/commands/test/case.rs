//! One case: `satori run` as a process of its own, and what came of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use satori_results::{Reader, Results};
use serde::{Deserialize, Serialize};

use super::matrix::Case;
use super::pool::Children;
use crate::late::plain;
use crate::report::printable;

/// How much of a stream is kept in a result; the files of `--out` have all.
const TAIL: usize = 16 << 10;
/// What a result's file says it is.
const FORMAT: &str = "satori-test-case";
const VERSION: u32 = 1;

/// One run of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// Why it failed; none if it passed.
    pub(crate) why: Option<String>,
    /// How long it took.
    pub(crate) seconds: f64,
    /// The exit status, if it was not killed.
    pub(crate) status: Option<i32>,
    /// The last of what it and its guest said on standard error, or else on standard output; of one that failed.
    #[serde(default)]
    pub(crate) told: String,
    /// The results that it told as KTAP.
    pub(crate) results: Option<Results>,
}

/// What became of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    format: String,
    version: u32,
    /// As in the plan.
    pub(crate) number: usize,
    /// As in the plan.
    pub(crate) name: String,
    /// The words that it ran.
    pub(crate) words: Vec<String>,
    /// Its runs, the last of which decides.
    pub(crate) attempts: Vec<Attempt>,
}

/// In short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// Each of its runs passed.
    Passed,
    /// One passed and one failed.
    Flaky,
    /// None passed.
    Failed,
}

impl Ended {
    /// Of runs that were made, or of none.
    pub(crate) fn new(case: &Case, attempts: Vec<Attempt>) -> Ended {
        let (name, words) = (case.name.clone(), case.words.clone());
        Ended { format: FORMAT.into(), version: VERSION, number: case.number, name, words, attempts }
    }

    /// What a file holds, if it is a result's.
    pub(crate) fn read(path: &Path) -> Result<Option<Ended>> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Other JSON may lie beside it.
        let ended: Option<Ended> = serde_json::from_str(&text).ok();
        Ok(ended.filter(|ended| ended.format == FORMAT && ended.version == VERSION))
    }

    /// Writes it, so that a reader finds all or nothing.
    pub(crate) fn write(&self, folder: &Path, case: &Case) -> Result<()> {
        let path = folder.join(format!("{}.json", case.file()));
        let new = path.with_extension("json.new");
        let written = std::fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|why| {
            anyhow::anyhow!(
                "cannot write {} ({}): make room, or name another place",
                path.display(),
                plain(&why)
            )
        })
    }

    /// In short.
    pub(crate) fn verdict(&self) -> Verdict {
        let passed = self.attempts.iter().filter(|attempt| attempt.why.is_none()).count();
        match passed {
            0 => Verdict::Failed,
            all if all == self.attempts.len() => Verdict::Passed,
            _ => Verdict::Flaky,
        }
    }

    /// Why runs failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.why.is_some())
    }

    /// How long all runs took.
    pub(crate) fn time(&self) -> Duration {
        Duration::try_from_secs_f64(self.attempts.iter().map(|attempt| attempt.seconds).sum())
            .unwrap_or_default()
    }
}

/// Where a case leaves files.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// What was said stays there.
    pub(crate) keep: bool,
}

/// What `--status-file` says.
#[derive(Deserialize)]
struct Told {
    who: String,
    how: String,
    status: u8,
}

/// Runs a case once.
pub(crate) fn attempt(case: &Case, number: usize, place: &Place, children: &Children) -> Result<Attempt> {
    let stem = if number == 1 { case.file() } else { format!("{}.{number}", case.file()) };
    let file = |end: &str| place.folder.join(format!("{stem}.{end}"));
    let status = std::path::absolute(file("status"))?;
    let (out, err) = match place.keep {
        true => (Some(File::create(file("stdout"))?), Some(File::create(file("stderr"))?)),
        false => (None, None),
    };
    let begun = Instant::now();
    let mut command = Command::new("/proc/self/exe");
    command.args(case.arguments(&status)).current_dir(&case.dir);
    // A group of its own: what interrupts us is passed on by us, and once.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().context("cannot start satori")?;
    let pid = Pid::from_raw(child.id() as i32).context("a process has a number")?;
    children.add(case.number, pidfd_open(pid, PidfdFlags::empty()));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let said = std::thread::spawn(move || stderr.map(|stream| Stream::default().drain(stream, err)));
    let streamed = stdout.map(|stream| {
        Stream { ktap: case.ktap.then(Reader::default), ..Stream::default() }.drain(stream, out)
    });
    let ended = child.wait();
    children.remove(case.number);
    let said = said.join().ok().flatten().unwrap_or_default();
    let mut streamed = streamed.unwrap_or_default();
    let told = std::fs::read_to_string(&status).ok().and_then(|text| serde_json::from_str(&text).ok());
    let _ = std::fs::remove_file(&status);
    let ended = ended.context("cannot wait for satori")?;
    let results = streamed.ktap.take().and_then(Reader::finish);
    let why = judged(case, ended, told.as_ref(), results.as_ref(), &said.text());
    // What it printed is told where it said nothing else: results stand by themselves.
    let told = match (&why, said.text(), &results) {
        (None, ..) => String::new(),
        (_, said, None) if said.is_empty() => streamed.text(),
        (_, said, _) => said,
    };
    Ok(Attempt { why, seconds: begun.elapsed().as_secs_f64(), status: ended.code(), told, results })
}

/// Why a run is no success.
fn judged(
    case: &Case,
    ended: ExitStatus,
    told: Option<&Told>,
    results: Option<&Results>,
    said: &str,
) -> Option<String> {
    let last = || said.lines().rev().find_map(|line| line.strip_prefix("satori: ")).map(printable);
    let first = || said.lines().find_map(|line| line.strip_prefix("satori: ")).map(printable);
    let Some(told) = told else {
        return Some(match (ended.code(), first()) {
            (Some(code), Some(message)) => format!("it could not be run (status {code}): {message}"),
            (Some(code), None) => format!("it could not be run: status {code}"),
            (None, _) => "Satori was killed".into(),
        });
    };
    if told.who != "command" || told.how == "not-started" {
        return Some(last().unwrap_or_else(|| format!("{}: {}", told.who, told.how)));
    }
    if told.status != case.expect {
        return Some(match case.expect {
            0 => format!("exit status {}", told.status),
            expected => format!("exit status {} instead of {expected}", told.status),
        });
    }
    match results {
        None if case.ktap => Some("it told no results: 'ktap' wants KTAP on standard output".into()),
        Some(results) if results.counts().failed > 0 => Some(results.counts().to_string()),
        _ => None,
    }
}

/// What is read of one of a case's streams.
#[derive(Default)]
struct Stream {
    ktap: Option<Reader>,
    tail: Vec<u8>,
}

impl Stream {
    /// Reads to the end. A file that takes no more does not stop the case.
    fn drain(mut self, mut from: impl Read, mut to: Option<File>) -> Stream {
        let mut buffer = [0; 8192];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => return self,
                Ok(length) => length,
                Err(why) if why.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return self,
            };
            let piece = &buffer[..length];
            if let Some(file) = &mut to {
                let _ = file.write_all(piece);
            }
            if let Some(ktap) = &mut self.ktap {
                ktap.feed(piece);
            }
            self.tail.extend_from_slice(piece);
            if self.tail.len() > 2 * TAIL {
                self.tail.drain(..self.tail.len() - TAIL);
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.tail[self.tail.len().saturating_sub(TAIL)..]).into_owned()
    }
}
