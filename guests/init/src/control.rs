//! The port on which host and init talk.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::{ports, sys};

/// How long the host may take to connect to the port, once that has its name.
const CONNECTING: Duration = Duration::from_secs(5);
/// How often the host's clock is asked for, and what is exact enough.
const CLOCK_TRIES: usize = 5;
const CLOCK_EXACT: Duration = Duration::from_millis(1);

/// The open port; all threads have the same.
#[derive(Clone, Debug)]
pub struct Control(Arc<Port>);

#[derive(Debug)]
struct Port {
    output: File,
    /// What the host says, and lines of it that came while the clock was waited for.
    input: Mutex<(BufReader<Incoming>, Vec<String>)>,
    /// Whether the host has heard the end, or has left and will not.
    over: Mutex<bool>,
    bell: Condvar,
}

/// What the host says. A read waits until there is something, or the host has left, which is the end.
#[derive(Debug)]
struct Incoming(File);

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(why) if why.kind() == ErrorKind::WouldBlock => sys::await_input(&self.0),
                done => return done,
            }
        }
    }
}

/// What the host asks for.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Send the command a signal.
    Signal(i32),
    /// The terminal has another size: rows and columns.
    Size(u16, u16),
}

impl Control {
    /// Waits for the port, which comes a moment after its device.
    pub fn open() -> Result<Control, String> {
        let output = ports::open("satori.control")?;
        ports::await_host(&output, CONNECTING);
        sys::set_nonblocking(&output).map_err(|why| why.to_string())?;
        let input = Incoming(output.try_clone().map_err(|why| why.to_string())?);
        let input = Mutex::new((BufReader::new(input), Vec::new()));
        Ok(Control(Arc::new(Port { output, input, over: Mutex::default(), bell: Condvar::new() })))
    }

    /// Tells the host a line, if it has not left.
    pub fn tell(&self, line: &str) {
        let line = format!("{}\n", line.replace('\n', " "));
        // What a host does not hear that has left is no loss.
        let _ = ports::put(&self.0.output, line.as_bytes());
    }

    /// Tells of something that could not be had.
    pub fn note(&self, text: &str) {
        self.tell(&format!("note {text}"));
    }

    /// Sets the clock to the host's, which stamps what changes in folders. A kernel has its time from a clock that counts
    /// seconds, and adds half of one: what was just written would often be of the future, and make(1) warns of that.
    pub fn set_clock(&self) {
        let mut best: Option<(Duration, Duration, Instant)> = None;
        // On a busy host an answer may take its time; the one that took least counts.
        for _ in 0..CLOCK_TRIES {
            let asked = Instant::now();
            let Some(told) = self.ask_time() else { break };
            let (way, heard) = (asked.elapsed(), Instant::now());
            if best.is_none_or(|(shortest, ..)| way < shortest) {
                best = Some((way, told, heard));
            }
            if way < CLOCK_EXACT {
                break;
            }
        }
        if let Some((way, told, heard)) = best {
            // The whole way there and back is added: a clock that is a moment ahead disturbs nobody.
            self.set_time(told + way + heard.elapsed());
        }
    }

    /// The host's clock. What else comes meanwhile is kept.
    fn ask_time(&self) -> Option<Duration> {
        self.tell("clock");
        let mut input = self.0.input.lock().ok()?;
        let (reader, early) = &mut *input;
        for line in reader.lines() {
            let line = line.ok()?;
            match line.strip_prefix("time ") {
                Some(now) => return time(now),
                None => early.push(line),
            }
        }
        None
    }

    fn set_time(&self, now: Duration) {
        if let Err(why) = sys::set_time(now) {
            self.note(&format!("the clock cannot be set ({why})"));
        }
    }

    /// Does what the host asks for, until it closes.
    pub fn serve(&self, mut perform: impl FnMut(Request)) {
        if let Ok(mut input) = self.0.input.lock() {
            let (reader, early) = &mut *input;
            for line in std::mem::take(early).into_iter().map(Ok).chain(reader.lines()) {
                let Ok(line) = line else { break };
                self.heard(&line, &mut perform);
            }
        }
        // A host that has left does not say so.
        self.over();
    }

    fn over(&self) {
        if let Ok(mut over) = self.0.over.lock() {
            *over = true;
            self.0.bell.notify_all();
        }
    }

    fn heard(&self, line: &str, perform: &mut impl FnMut(Request)) {
        let mut words = line.split(' ');
        let word = words.next();
        let mut number = || words.next().and_then(|word| word.parse::<u16>().ok());
        match word {
            Some("signal") => {
                if let Some(signal) = number() {
                    perform(Request::Signal(signal.into()));
                }
            }
            Some("size") => {
                if let (Some(rows), Some(columns)) = (number(), number()) {
                    perform(Request::Size(rows, columns));
                }
            }
            Some("time") => {
                if let Some(now) = line.split_once(' ').and_then(|(_, now)| time(now)) {
                    self.set_time(now);
                }
            }
            Some("over") => self.over(),
            _ => {}
        }
    }

    /// Waits until the host has all that was written, however slow its readers are: what a device that is shut down has
    /// not taken yet is lost. It does not wait for a host that has left.
    pub fn wait_for_host(&self) {
        if let Ok(over) = self.0.over.lock() {
            drop(self.0.bell.wait_while(over, |over| !*over));
        }
    }
}

/// Seconds and nanoseconds since 1970.
fn time(text: &str) -> Option<Duration> {
    let (seconds, nanoseconds) = text.split_once(' ')?;
    Some(Duration::new(seconds.parse().ok()?, nanoseconds.parse().ok().filter(|&part| part < 1_000_000_000)?))
}

/// Tells whoever reads the kernel's console, where the host cannot be told otherwise.
pub fn console(text: &str) {
    if let Ok(mut console) = File::options().write(true).open("/dev/console") {
        let _ = writeln!(console, "satori-init: {text}");
    }
}
