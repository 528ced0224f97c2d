//! What a guest's results come to: `--ktap` judges them, `--junit` writes them down.

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use satori_bus::ByteSink;
use satori_lock::lock;
use satori_results::{Outcome, Reader, Results, junit};

use crate::cli;
use crate::late::plain;
use crate::opened::Opened;
use crate::say::{line, say};
use crate::status::Status;

/// Failed tests that are named on standard error; the file has all.
const NAMED: usize = 10;

/// Listens to where results are told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ear(Arc<Mutex<Reader>>);

impl Ear {
    /// Hears a piece of it.
    pub(crate) fn hear(&self, bytes: &[u8]) {
        lock(&self.0).feed(bytes);
    }

    fn results(&self) -> Option<Results> {
        std::mem::take(&mut *lock(&self.0)).finish()
    }
}

/// A console that is listened to.
struct Heard {
    inner: Box<dyn ByteSink>,
    ear: Ear,
}

/// `inner`, to which `judge` listens if there is one.
pub(crate) fn heard(judge: Option<&Judge>, inner: Box<dyn ByteSink>) -> Box<dyn ByteSink> {
    match judge {
        Some(judge) => Box::new(Heard { inner, ear: judge.ear() }),
        None => inner,
    }
}

impl ByteSink for Heard {
    fn put(&mut self, bytes: &[u8]) {
        self.ear.hear(bytes);
        self.inner.put(bytes);
    }
}

/// Judges what was heard when the guest has ended.
#[derive(Debug)]
pub(crate) struct Judge {
    ear: Ear,
    /// What was run.
    name: String,
    /// Without results it failed.
    must: bool,
    junit: Option<File>,
    begun: Instant,
}

impl Judge {
    /// One that the flags ask for, if they do.
    pub(crate) fn open(flags: &cli::Machine, name: String, opened: &mut Opened) -> Result<Option<Judge>> {
        let junit = flags.junit.as_deref().map(|path| opened.file("--junit", path)).transpose()?;
        let wanted = flags.ktap || junit.is_some();
        let judge = || Judge { ear: Ear::default(), name, must: flags.ktap, junit, begun: Instant::now() };
        Ok(wanted.then(judge))
    }

    /// What listens.
    pub(crate) fn ear(&self) -> Ear {
        self.ear.clone()
    }

    /// Writes down what was heard, and says which tests failed. A guest whose tests failed is no success, and what it made of that
    /// itself comes first. `told` are the guest's last words.
    pub(crate) fn judge(self, status: Status, told: &str) -> Status {
        let results = self.ear.results();
        let why = match status.code() {
            0 if self.must && results.is_none() => "it told no results".to_owned(),
            0 => String::new(),
            code => format!("exit status {code}"),
        };
        let failures = results.iter().flat_map(Results::failures).collect::<Vec<_>>();
        // A command's own end leaves nothing to see on the console.
        let told = if matches!(status, Status::Command(_)) { "" } else { told };
        if let Some(mut file) = self.junit {
            let outcome = if why.is_empty() { Outcome::Passed } else { Outcome::Failed };
            let (name, time) = (self.name.as_str(), self.begun.elapsed());
            let suite =
                junit::Suite { name, time, outcome, why: &why, told, flaky: &[], results: results.as_ref() };
            if let Err(why) = file.write_all(junit::write(&[suite]).as_bytes()) {
                say(format_args!(
                    "--junit cannot be written ({}): make room, or name another place",
                    plain(&why)
                ));
                return status.or_lost(true);
            }
        }
        if let Some(results) = results.as_ref().filter(|_| !failures.is_empty()) {
            say(format_args!("{}:", results.counts()));
            for (name, why) in failures.iter().take(NAMED) {
                let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
                line(format_args!("  {}{}", crate::report::printable(name), crate::report::printable(&why)));
            }
            if failures.len() > NAMED {
                line(format_args!("  and {} more", failures.len() - NAMED));
            }
        } else if self.must && results.is_none() {
            say(format_args!(
                "there were no results: --ktap reads them where the guest prints KTAP (docs/test.md); leave it out for other programs"
            ));
        }
        match status.code() {
            0 if !failures.is_empty() || !why.is_empty() => Status::Short,
            _ => status,
        }
    }
}
