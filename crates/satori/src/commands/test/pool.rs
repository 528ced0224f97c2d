//! Cases, several at a time.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Signal, pidfd_send_signal};
use satori_lock::lock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::case::{Ended, Place, Verdict, attempt};
use super::matrix::Case;

/// How often the bar is drawn, and an interruption looked for.
const LOOK: Duration = Duration::from_millis(100);

/// The processes that run.
#[derive(Debug, Default)]
pub(crate) struct Children {
    all: Mutex<BTreeMap<usize, OwnedFd>>,
    over: AtomicBool,
}

impl Children {
    fn all(&self) -> MutexGuard<'_, BTreeMap<usize, OwnedFd>> {
        lock(&self.all)
    }

    /// One more, by its case's number; without a descriptor of it it ends by itself.
    pub(crate) fn add(&self, number: usize, process: Result<OwnedFd, rustix::io::Errno>) {
        let Ok(process) = process else { return };
        if self.over.load(Ordering::SeqCst) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
        self.all().insert(number, process);
    }

    /// It has ended.
    pub(crate) fn remove(&self, number: usize) {
        self.all().remove(&number);
    }

    /// Ends all of them, and those that are still to come. A guest has nothing to lose.
    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.all().values().for_each(|process| _ = pidfd_send_signal(process, Signal::KILL));
    }
}

/// How cases are run.
#[derive(Debug)]
pub(crate) struct How {
    /// So many at a time.
    pub(crate) jobs: usize,
    /// Each so often; more than once means to the end, whatever comes of it.
    pub(crate) repeat: u32,
    /// Where they leave files.
    pub(crate) place: Place,
    /// A bar is drawn.
    pub(crate) bar: bool,
}

enum News {
    Begins(usize),
    Ended(usize, Result<Ended>),
}

/// Runs all cases, and calls `each` when one has ended. None if it was interrupted.
pub(crate) fn run(
    cases: &[Case],
    how: &How,
    each: &mut dyn FnMut(&Ended) -> Result<()>,
) -> Result<Option<Vec<Ended>>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let (children, next) = (Children::default(), AtomicUsize::new(0));
    let (news, heard) = channel();
    let mut ended: BTreeMap<usize, Ended> = BTreeMap::new();
    let mut bar =
        Bar { drawn: false, wanted: how.bar, all: cases.len(), running: BTreeMap::new(), failed: 0 };
    let outcome = std::thread::scope(|scope| {
        for _ in 0..how.jobs.min(cases.len()) {
            let news = news.clone();
            let (children, next) = (&children, &next);
            scope.spawn(move || work(cases, how, children, next, &news));
        }
        drop(news);
        loop {
            match heard.recv_timeout(LOOK) {
                Ok(News::Begins(index)) => _ = bar.running.insert(index, cases[index].name.clone()),
                Ok(News::Ended(index, one)) => {
                    bar.clear();
                    bar.running.remove(&index);
                    let told = one.and_then(|one| {
                        if !children.over.load(Ordering::SeqCst) {
                            each(&one)?;
                        }
                        Ok(one)
                    });
                    match told {
                        Ok(one) => {
                            bar.failed += usize::from(one.verdict() == Verdict::Failed);
                            ended.insert(index, one);
                        }
                        Err(why) => {
                            children.end();
                            return Err(why);
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if interrupted.load(Ordering::SeqCst) && !children.over.load(Ordering::SeqCst) {
                children.end();
            }
            bar.draw(ended.len());
        }
        Ok(())
    });
    bar.clear();
    outcome?;
    Ok((!interrupted.load(Ordering::SeqCst)).then(|| ended.into_values().collect()))
}

fn work(cases: &[Case], how: &How, children: &Children, next: &AtomicUsize, news: &Sender<News>) {
    while !children.over.load(Ordering::SeqCst) {
        let index = next.fetch_add(1, Ordering::SeqCst);
        let Some(case) = cases.get(index) else { return };
        let _ = news.send(News::Begins(index));
        let ended = whole(case, how, children);
        let _ = news.send(News::Ended(index, ended));
    }
}

/// All runs of a case.
fn whole(case: &Case, how: &How, children: &Children) -> Result<Ended> {
    let mut attempts = Vec::new();
    loop {
        attempts.push(attempt(case, attempts.len() + 1, &how.place, children)?);
        let failed = attempts.last().is_some_and(|last| last.why.is_some());
        let again = match how.repeat {
            1 => failed && attempts.len() <= case.retries as usize,
            repeat => attempts.len() < repeat as usize,
        };
        if !again || children.over.load(Ordering::SeqCst) {
            return Ok(Ended::new(case, attempts));
        }
    }
}

/// How far all cases are, on the last line of a terminal.
struct Bar {
    drawn: bool,
    wanted: bool,
    all: usize,
    running: BTreeMap<usize, String>,
    failed: usize,
}

/// Marks of a full bar.
const MARKS: usize = 20;

impl Bar {
    fn draw(&mut self, done: usize) {
        if !self.wanted {
            return;
        }
        let columns =
            rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| usize::from(size.ws_col));
        let text = self.text(done, columns.saturating_sub(1));
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        self.drawn = true;
    }

    fn text(&self, done: usize, columns: usize) -> String {
        let marks = done * MARKS / self.all.max(1);
        let failed = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        let running = self.running.values().map(String::as_str).collect::<Vec<_>>().join(", ");
        let text = format!(
            "[{}{}] {done} of {}{failed}; {running}",
            "#".repeat(marks),
            ".".repeat(MARKS - marks),
            self.all
        );
        text.chars().map(|c| if c.is_control() { '.' } else { c }).take(columns).collect()
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fits_its_terminal() {
        let running = BTreeMap::from([(0, "a/6.12".to_owned()), (1, "b\n".to_owned())]);
        let bar = Bar { drawn: false, wanted: true, all: 8, running, failed: 1 };
        assert_eq!(bar.text(2, 100), "[#####...............] 2 of 8, 1 failed; a/6.12, b.");
        assert_eq!(bar.text(8, 10), "[#########");
    }
}
