//! One run of the program: a process, watched until it ends or says nothing any more.

use std::io::Read;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::line::{self, Line};
use crate::memory::{self, Resident};

/// How often a wish to stop is looked for.
const TICK: Duration = Duration::from_millis(100);
/// Longer lines are none of the program's.
const LINE_MAX: usize = 4096;

/// What a run left.
#[derive(Debug, Default)]
pub struct Ended {
    /// What the program said, in order.
    pub lines: Vec<Line>,
    /// Resident memory when all rows were done.
    pub resident: Option<Resident>,
    /// From the start of the process to its end.
    pub whole: Duration,
    /// From the start of the process to init.
    pub to_init: Option<Duration>,
    /// Why the run is no good, if it is not.
    pub wrong: Option<String>,
}

impl Ended {
    /// The row that was being measured when the run ended.
    pub fn unfinished(&self) -> Option<&str> {
        let mut open = None;
        for line in &self.lines {
            match line {
                Line::Start(row) => open = Some(row.as_str()),
                Line::Row(..) | Line::Absent(..) | Line::Failed(..) | Line::End => open = None,
                _ => {}
            }
        }
        open
    }
}

/// Runs `command` to its end. It is killed when it has said nothing of use for `patience`, or when `stop`
/// becomes true. `guest` is the size of its guest's memory, if it has one.
pub fn run(
    mut command: Command,
    guest: Option<u64>,
    patience: Duration,
    stop: &AtomicBool,
) -> Result<Ended, Error> {
    let start = Instant::now();
    let mut ended = Ended::default();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) => {
            let program = command.get_program().to_string_lossy().into_owned();
            ended.wrong = Some(format!("{program} cannot be started ({why})"));
            return Ok(ended);
        }
    };
    let (send, lines) = mpsc::channel();
    if let Some(mut out) = child.stdout.take() {
        thread::spawn(move || read_lines(&mut out, &mut |text| send.send(text).is_ok()));
    }
    let complaints = child.stderr.take().map(|mut err| {
        thread::spawn(move || {
            let mut last = String::new();
            read_lines(&mut err, &mut |text| {
                if !text.trim().is_empty() {
                    last = text;
                }
                true
            });
            last
        })
    });

    let (mut heard, mut last) = (Instant::now(), String::new());
    loop {
        if stop.load(Relaxed) {
            end(&mut child);
            return Err(Error::Stopped);
        }
        match lines.recv_timeout(TICK) {
            Ok(text) => match line::parse(&text) {
                Some(line) => {
                    heard = Instant::now();
                    match (&line, guest) {
                        (Line::End, Some(size)) => ended.resident = memory::of(child.id(), size),
                        (Line::Init(_), _) => ended.to_init = Some(start.elapsed()),
                        _ => {}
                    }
                    ended.lines.push(line);
                }
                None if !text.trim().is_empty() => last = text,
                None => {}
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if heard.elapsed() > patience {
            ended.wrong = Some(format!("said nothing of use for {} s", patience.as_secs()));
            end(&mut child);
            break;
        }
    }
    // It closed its output, so it is about to end; one that does not is ended.
    let closed = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if closed.elapsed() < Duration::from_secs(10) => {
                thread::sleep(Duration::from_millis(1));
            }
            _ => {
                end(&mut child);
                break None;
            }
        }
    };
    ended.whole = start.elapsed();
    let complaint = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let done = ended.lines.iter().any(|line| matches!(line, Line::End | Line::Init(_)));
    if let Some(Line::Refused(why)) = ended.lines.iter().find(|line| matches!(line, Line::Refused(_))) {
        ended.wrong = Some(format!("the program refused its command line: {why}"));
    } else if ended.wrong.is_none() && !done {
        let status = status.map_or("no status".into(), |status| status.to_string());
        let words = if last.is_empty() { complaint } else { last };
        ended.wrong = Some(format!("ended too early ({status}): {}", printable(words.trim())));
    }
    Ok(ended)
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Hands over each line of `from` until it ends or `take` wants no more.
fn read_lines(from: &mut impl Read, take: &mut dyn FnMut(String) -> bool) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        for &byte in &buffer[..length] {
            if byte != b'\n' {
                if line.len() < LINE_MAX {
                    line.push(byte);
                }
                continue;
            }
            if !take(String::from_utf8_lossy(&line).into_owned()) {
                return;
            }
            line.clear();
        }
    }
    take(String::from_utf8_lossy(&line).into_owned());
}

/// A guest's text without what could command our terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn shell(script: &str) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(command, None, Duration::from_secs(1), &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn a_run_that_ends_is_read_to_its_end() {
        let ended = shell("echo 'satori-bench: {\"start\":\"fib\"}'; printf 'satori-bench: {\"end\":true}'");
        assert_eq!(ended.lines, [Line::Start("fib".into()), Line::End]);
        assert_eq!(ended.wrong, None);
    }

    #[test]
    fn a_crash_names_the_row_and_the_last_words() {
        let ended = shell("echo 'satori-bench: {\"start\":\"fib\"}'; echo 'Kernel panic'; exit 3");
        assert_eq!(ended.unfinished(), Some("fib"));
        let wrong = ended.wrong.unwrap();
        assert!(wrong.contains("exit status: 3") && wrong.ends_with("Kernel panic"), "{wrong}");
    }

    #[test]
    fn chatter_is_no_sign_of_life() {
        let ended = shell("echo 'satori-bench: {\"start\":\"fib\"}'; while sleep 0.1; do echo x; done");
        assert!(ended.wrong.unwrap().contains("nothing of use"));
        assert_eq!(ended.lines.len(), 1);
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let ended =
            run(Command::new("/nowhere/x"), None, Duration::from_secs(1), &AtomicBool::new(false)).unwrap();
        assert!(ended.wrong.unwrap().contains("/nowhere/x cannot be started"));
    }
}
