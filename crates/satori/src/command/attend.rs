//! One thread that attends to a command's guest from outside: signals, what is typed, limits, and what the
//! guest's init tells.

use std::io::{Read, Write, stdin};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use satori_machine::{Devices, Handle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::low_level::{emulate_default_handler, pipe};

use super::ended::End;
use crate::attend::{Limits, Stall, Stop};
use crate::escape::{self, Command, Escape};
use crate::say::{line, say};
use crate::terminal;

/// How long a guest may take to power off after its command has ended, or to end when it was told to.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon typed bytes that the guest had no room for are offered again.
const AGAIN: Duration = Duration::from_millis(20);
/// Typed bytes that are kept for a guest that does not read, and the longest line of its init.
const TYPED_AHEAD: usize = 4096;
const LINE_MAX: usize = 8192;
/// Signals that are passed on to the command.
const PASSED: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH];

/// What attends, before its thread runs.
pub(super) struct Attendant {
    duty: Duty,
    done: UnixStream,
    handlers: Vec<RawFd>,
}

/// The running attendant.
pub(super) struct Running {
    done: Option<UnixStream>,
    thread: JoinHandle<Told>,
}

/// What was heard.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The command ran.
    pub started: bool,
    /// How it ended.
    pub end: Option<End>,
    /// Who ended the guest, if somebody did.
    pub stopped: Option<Stop>,
}

struct Duty {
    handle: Handle,
    devices: Devices,
    control: UnixStream,
    /// What came of a line that is not whole yet.
    heard: Vec<u8>,
    control_open: bool,
    signals: Vec<(i32, UnixStream)>,
    typed: Option<OwnedFd>,
    escape: Escape,
    waiting: Vec<u8>,
    input_open: bool,
    done: UnixStream,
    deadline: Option<Instant>,
    stall: Option<Stall>,
    started: bool,
    /// Signals that came before the command was there.
    early: Vec<i32>,
    end: Option<End>,
    stopped: Option<Stop>,
}

impl Attendant {
    /// Gets ready. `typed` is where typed bytes go, if the streams are a terminal.
    pub(super) fn new(
        handle: Handle,
        devices: Devices,
        control: UnixStream,
        typed: Option<OwnedFd>,
        limits: Limits,
    ) -> Result<Attendant> {
        let (done, seen) = UnixStream::pair()?;
        let (mut handlers, mut signals) = (Vec::new(), Vec::new());
        for signal in PASSED.into_iter().chain([SIGTSTP]) {
            let (end, seen) = UnixStream::pair()?;
            handlers.push(end.as_raw_fd());
            pipe::register(signal, end)?;
            signals.push((signal, seen));
        }
        let duty = Duty {
            handle,
            devices,
            control,
            heard: Vec::new(),
            control_open: true,
            signals,
            typed,
            escape: Escape::default(),
            waiting: Vec::new(),
            input_open: true,
            done: seen,
            deadline: limits.timeout.map(|time| Instant::now() + time),
            stall: limits.stall.map(Stall::new),
            started: false,
            early: Vec::new(),
            end: None,
            stopped: None,
        };
        Ok(Attendant { duty, done, handlers })
    }

    /// The files that it needs from now on.
    pub(super) fn files(&self) -> Vec<RawFd> {
        let Attendant { duty, done, handlers } = self;
        let own = [done, &duty.done, &duty.control].map(AsRawFd::as_raw_fd);
        let signals = duty.signals.iter().map(|(_, stream)| stream.as_raw_fd());
        own.into_iter()
            .chain(signals)
            .chain(handlers.iter().copied())
            .chain(duty.typed.as_ref().map(AsRawFd::as_raw_fd))
            .collect()
    }

    /// Starts the thread.
    pub(super) fn start(self) -> Result<Running> {
        let Attendant { mut duty, done, .. } = self;
        let thread = std::thread::Builder::new().name("attendant".into()).spawn(move || duty.run())?;
        Ok(Running { done: Some(done), thread })
    }
}

impl Running {
    /// Ends the thread, which has heard everything that the guest told.
    pub(super) fn finish(mut self) -> Told {
        self.done.take();
        self.thread.join().unwrap_or_default()
    }
}

impl Duty {
    fn run(&mut self) -> Told {
        loop {
            let (done, signals, control, input) = self.wait();
            // Heard first: what the guest told last is there when the machine has ended.
            if control || done {
                self.hear(done);
            }
            if done {
                return Told { started: self.started, end: self.end.take(), stopped: self.stopped };
            }
            for index in signals {
                let (signal, stream) = &mut self.signals[index];
                let signal = *signal;
                let _ = stream.read(&mut [0; 64]);
                self.signal(signal);
            }
            if input {
                self.read();
            }
            self.offer();
            let moved = self.handle.moved();
            if self.is_running() && self.stall.as_mut().is_some_and(|stall| stall.is_over(moved)) {
                self.stop(Stop::Stalled);
            }
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                self.late();
            }
        }
    }

    /// Nobody has ended the guest yet, and its command has not ended either.
    fn is_running(&self) -> bool {
        self.stopped.is_none() && self.end.is_none()
    }

    fn wait(&self) -> (bool, Vec<usize>, bool, bool) {
        let input = stdin();
        let mut fds = vec![PollFd::new(&self.done, PollFlags::IN)];
        fds.extend(self.signals.iter().map(|(_, stream)| PollFd::new(stream, PollFlags::IN)));
        let control = fds.len();
        if self.control_open {
            fds.push(PollFd::new(&self.control, PollFlags::IN));
        }
        let typing = fds.len();
        if self.typed.is_some() && self.input_open {
            fds.push(PollFd::new(&input, PollFlags::IN));
        }
        let look = self.stall.as_ref().map(Stall::next).filter(|_| self.is_running());
        let first = self.deadline.into_iter().chain(look).min();
        let left = first.map(|at| at.saturating_duration_since(Instant::now()));
        let left = if self.waiting.is_empty() { left } else { Some(left.unwrap_or(AGAIN).min(AGAIN)) };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        if poll(&mut fds, left.as_ref()).is_err() {
            return Default::default();
        }
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let signals = (0..self.signals.len()).filter(|index| ready(index + 1)).collect();
        (ready(0), signals, self.control_open && ready(control), ready(typing))
    }

    /// Reads what the guest's init told; with `all` until there is no more.
    fn hear(&mut self, all: bool) {
        let _ = self.control.set_nonblocking(true);
        let mut buffer = [0; 4096];
        loop {
            match self.control.read(&mut buffer) {
                Ok(length @ 1..) => self.heard.extend(&buffer[..length]),
                Err(why) if why.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => break,
                _ => {
                    self.control_open = false;
                    break;
                }
            }
            if !all {
                break;
            }
        }
        while let Some(end) = self.heard.iter().position(|&b| b == b'\n') {
            let text: Vec<u8> = self.heard.drain(..=end).collect();
            self.told(String::from_utf8_lossy(&text).trim_end());
        }
        if self.heard.len() > LINE_MAX {
            // No init of ours: nothing that it says counts.
            self.control_open = false;
        }
    }

    fn told(&mut self, text: &str) {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (number, why) = rest.split_once(' ').unwrap_or((rest, ""));
        let number = number.parse::<u8>();
        let end = match (word, number) {
            ("started", _) => {
                self.started = true;
                return std::mem::take(&mut self.early).into_iter().for_each(|signal| self.signal(signal));
            }
            ("clock", _) => return self.tell_time(),
            ("note", _) => return say(format_args!("{}", crate::report::printable(rest))),
            ("exited", Ok(status)) => End::Exited(status),
            ("killed", Ok(signal)) => End::Killed(signal),
            ("failed", Ok(status)) => End::Failed(status, crate::report::printable(why)),
            _ => return,
        };
        // The first counts; the guest powers off by itself.
        if self.end.is_none() && self.stopped.is_none() {
            self.end = Some(end);
            // What the command wrote has left before the guest shuts its devices down. A reader may take its time,
            // as long as nobody who ends the guest comes.
            let (devices, limit) = (self.devices.clone(), self.deadline);
            devices.finish(&|| self.interrupted() || limit.is_some_and(|at| Instant::now() >= at));
            self.deadline = Some(Instant::now() + PATIENCE);
            self.ask("over");
        }
    }

    /// Whether a signal waits that ends.
    fn interrupted(&self) -> bool {
        let ending = self
            .signals
            .iter()
            .filter(|(signal, _)| !matches!(*signal, SIGTSTP | SIGWINCH | SIGUSR1 | SIGUSR2));
        let mut fds: Vec<_> = ending.map(|(_, stream)| PollFd::new(stream, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Passes a signal on. Before the command is there, one that would end it ends the guest.
    fn signal(&mut self, signal: i32) {
        if signal == SIGTSTP {
            // The guest as a whole stops, and sees nothing of how long the shell takes.
            self.handle.suspend();
            terminal::restore();
            let _ = emulate_default_handler(SIGTSTP);
            terminal::set_raw();
            self.handle.go_on();
            // Its clocks stood still, and the host's stamps on files did not.
            if self.started {
                self.tell_time();
            }
        } else if signal == SIGWINCH {
            if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdout()) {
                self.ask(&format!("size {} {}", size.ws_row, size.ws_col));
            }
        } else if self.started {
            self.ask(&format!("signal {signal}"));
        } else if matches!(signal, SIGUSR1 | SIGUSR2) {
            self.early.push(signal);
        } else {
            self.stop(Stop::Signal);
        }
    }

    /// What the host's clock shows.
    fn tell_time(&mut self) {
        if let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            self.ask(&format!("time {} {}", now.as_secs(), now.subsec_nanos()));
        }
    }

    fn ask(&mut self, text: &str) {
        // An init that does not read is no reason to wait.
        let _ = self.control.set_nonblocking(true);
        let _ = self.control.write_all(format!("{text}\n").as_bytes());
    }

    fn read(&mut self) {
        let mut buffer = [0; 512];
        let typed = match rustix::io::read(stdin(), &mut buffer) {
            Ok(length) if length > 0 => &buffer[..length],
            Err(Errno::INTR | Errno::AGAIN) => return,
            _ => return self.input_open = false,
        };
        for command in self.escape.feed(typed, &mut self.waiting) {
            match command {
                Command::Help => line(format_args!("\r\n{}", escape::HELP)),
                Command::Quit => self.stop(Stop::Quit),
                Command::PowerButton => {
                    line(format_args!("\r\nCtrl-A p is for a whole guest: end the command instead"))
                }
                // A command's terminal is no serial line.
                Command::Break(_) => line(format_args!("\r\nCtrl-A b is for a guest's serial port")),
            }
        }
    }

    fn offer(&mut self) {
        let Some(typed) = &self.typed else { return };
        if !self.waiting.is_empty() {
            let taken = rustix::io::write(typed, &self.waiting).unwrap_or(0);
            self.waiting.drain(..taken);
            self.waiting.truncate(TYPED_AHEAD);
        }
    }

    fn late(&mut self) {
        match (&self.end, self.stopped) {
            // The command has ended, and its guest does not: nothing is lost with it.
            (Some(_), None) => {
                self.handle.stop();
                self.stopped = Some(Stop::Timeout);
                self.deadline = Some(Instant::now() + PATIENCE);
            }
            (None, None) => self.stop(Stop::Timeout),
            (_, Some(reason)) => leave(reason),
        }
    }

    fn stop(&mut self, reason: Stop) {
        if let Some(before) = self.stopped {
            leave(before);
        }
        self.stopped = Some(reason);
        self.handle.stop();
        self.deadline = Some(Instant::now() + PATIENCE);
    }
}

/// Ends the process although the guest still runs.
fn leave(reason: Stop) -> ! {
    terminal::restore();
    say(format_args!("the guest did not end when told to"));
    std::process::exit(reason.status().code().into())
}
