//! One thread that attends to everything from outside while a guest runs: what is typed,
//! signals, the clock of `--timeout`, and a standard output that nobody reads any more.

use std::collections::VecDeque;
use std::io::{Read, Write, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use satori_machine::Handle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::{emulate_default_handler, pipe};

use crate::escape::{self, Command, Escape};
use crate::output::{Gone, Shared};
use crate::say::{line, say};
use crate::status::Status;
use crate::terminal;

/// How long a guest that was told to end may take before we leave without it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a guest whose power button was pressed by SIGTERM may take to power off.
const POWERING_OFF: Duration = Duration::from_secs(10);

/// Bytes kept for a guest that does not read.
const TYPED_AHEAD: usize = 4096;

/// Bytes that are read of an input that is no terminal: what it has beyond belongs to whoever reads it next.
const BLOCK: usize = 16;

/// How soon bytes that the guest had no room for are offered again.
const AGAIN: Duration = Duration::from_millis(20);

/// The guest, seen from outside.
pub trait Guest: Send + 'static {
    /// Offers typed bytes to the guest's console; returns how many it took.
    fn input(&mut self, bytes: &[u8]) -> usize;
    /// Sends a break to the guest's console, behind what it took.
    fn send_break(&mut self);
    /// How many bytes the guest waits for.
    fn ready(&self) -> usize;
    /// `told` is called when the guest begins to wait.
    fn on_ready(&self, told: Box<dyn Fn() + Send>);
    /// Has the guest and its clock stand still.
    fn suspend(&mut self);
    /// Lets it go on.
    fn go_on(&mut self);
    /// Grows whenever the guest does something that is seen from outside.
    fn moved(&self) -> u64;
    /// Presses the guest's power button; false if its machine has none.
    fn press_power_button(&mut self) -> bool;
    /// Makes the run end soon.
    fn stop(&mut self);
}

impl Guest for Handle {
    fn input(&mut self, bytes: &[u8]) -> usize {
        Handle::input(self, bytes)
    }
    fn send_break(&mut self) {
        Handle::send_break(self);
    }
    fn ready(&self) -> usize {
        Handle::ready(self)
    }
    fn on_ready(&self, told: Box<dyn Fn() + Send>) {
        Handle::on_ready(self, told);
    }
    fn suspend(&mut self) {
        Handle::suspend(self);
    }
    fn go_on(&mut self) {
        Handle::go_on(self);
    }
    fn moved(&self) -> u64 {
        Handle::moved(self)
    }
    fn press_power_button(&mut self) -> bool {
        Handle::press_power_button(self)
    }
    fn stop(&mut self) {
        Handle::stop(self);
    }
}

/// How long a run may last.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all.
    pub timeout: Option<Duration>,
    /// Without a sign of life.
    pub stall: Option<Duration>,
}

/// Why the guest was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-A x.
    Quit,
    /// SIGINT, SIGTERM, SIGHUP or SIGQUIT; where SIGTERM is the power button, a second one or what follows it.
    Signal,
    /// Nobody reads standard output any more.
    OutputClosed,
    /// Standard output cannot be written.
    OutputFailed,
    /// `--timeout` ran out.
    Timeout,
    /// `--stall-timeout` ran out.
    Stalled,
}

/// `--stall-timeout`: a guest that sends nothing, and whose devices answer nothing, for so long.
#[derive(Debug)]
pub struct Stall {
    limit: Duration,
    /// What was counted last, and when that was new.
    seen: (u64, Instant),
    next: Instant,
}

/// Looks in the time of a limit: by so much it may be late.
const LOOKS: u32 = 16;

impl Stall {
    /// Begins to look.
    pub fn new(limit: Duration) -> Stall {
        let now = Instant::now();
        Stall { limit, seen: (0, now), next: now + limit / LOOKS }
    }

    /// When to look again.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether the guest, which has moved so often, has stood still for too long.
    pub fn is_over(&mut self, moved: u64) -> bool {
        let now = Instant::now();
        if moved != self.seen.0 {
            self.seen = (moved, now);
        }
        self.next = now + self.limit / LOOKS;
        now.saturating_duration_since(self.seen.1) >= self.limit
    }
}

impl Stop {
    /// The exit status it leads to.
    pub fn status(self) -> Status {
        match self {
            Stop::Timeout => Status::Timeout,
            Stop::Stalled => Status::Stalled,
            Stop::OutputFailed => Status::Internal,
            Stop::Quit | Stop::Signal | Stop::OutputClosed => Status::User,
        }
    }
}

/// The running attendant; dropping it ends the thread.
#[derive(Debug)]
pub struct Attendant {
    done: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    stopped: Arc<OnceLock<Stop>>,
}

/// An attendant that has all it needs, and has not started its thread.
pub struct Ready<G> {
    duty: Duty<G>,
    done: UnixStream,
    /// The signal handlers' ends.
    handlers: Vec<RawFd>,
}

impl<G: Guest> Ready<G> {
    /// Gets ready to attend to `guest`, which hears of standard input if `input` says so. `raw` tells that the
    /// terminal is in raw mode, where Ctrl-A has its meaning. With `button` the first SIGTERM presses the power button.
    pub fn new(
        guest: G,
        console: Arc<Shared>,
        input: bool,
        raw: bool,
        button: bool,
        limits: Limits,
    ) -> Result<Ready<G>> {
        let mut handlers = Vec::new();
        let (done, done_seen) = UnixStream::pair()?;
        let (end, end_seen) = UnixStream::pair()?;
        let (term, term_seen) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            let end = if signal == SIGTERM { term.try_clone()? } else { end.try_clone()? };
            handlers.push(end.as_raw_fd());
            pipe::register(signal, end)?;
        }
        let (wake, wake_seen) = UnixStream::pair()?;
        handlers.push(wake.as_raw_fd());
        wake.set_nonblocking(true)?;
        if input && !raw {
            let wake = wake.try_clone()?;
            handlers.push(wake.as_raw_fd());
            // Where it is full, a byte is there already.
            guest.on_ready(Box::new(move || drop((&wake).write(&[0]))));
        }
        console.wake(wake);
        let (suspend, suspend_seen) = UnixStream::pair()?;
        handlers.push(suspend.as_raw_fd());
        pipe::register(SIGTSTP, suspend)?;
        let duty = Duty {
            guest,
            console,
            escape: raw.then(Escape::default),
            input_open: input,
            waiting: Vec::new(),
            breaks: VecDeque::new(),
            stopped: Arc::new(OnceLock::new()),
            deadline: limits.timeout.map(|t| Instant::now() + t),
            stall: limits.stall.map(Stall::new),
            done: done_seen,
            end: end_seen,
            term: term_seen,
            button,
            powering_off: None,
            suspend: suspend_seen,
            wake: wake_seen,
        };
        Ok(Ready { duty, done, handlers })
    }

    /// The files that it needs from now on.
    pub fn files(&self) -> Vec<RawFd> {
        let Ready { duty, done, handlers } = self;
        let streams = [done, &duty.done, &duty.end, &duty.term, &duty.suspend, &duty.wake];
        streams.into_iter().map(AsRawFd::as_raw_fd).chain(handlers.iter().copied()).collect()
    }

    /// Starts the thread.
    pub fn start(self) -> Result<Attendant> {
        let Ready { mut duty, done, .. } = self;
        let stopped = duty.stopped.clone();
        let thread = std::thread::Builder::new().name("attendant".into()).spawn(move || duty.run())?;
        Ok(Attendant { done: Some(done), thread: Some(thread), stopped })
    }
}

impl Attendant {
    /// Why the guest was told to end, if it was.
    pub fn stopped(&self) -> Option<Stop> {
        self.stopped.get().copied()
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.done.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Duty<G> {
    guest: G,
    console: Arc<Shared>,
    escape: Option<Escape>,
    input_open: bool,
    /// Typed bytes that the guest had no room for.
    waiting: Vec<u8>,
    /// Breaks between them: how many bytes come before each.
    breaks: VecDeque<usize>,
    stopped: Arc<OnceLock<Stop>>,
    deadline: Option<Instant>,
    stall: Option<Stall>,
    done: UnixStream,
    end: UnixStream,
    /// SIGTERM's.
    term: UnixStream,
    /// That signal is the power button, and when whom it was pressed for has to be off.
    button: bool,
    powering_off: Option<Instant>,
    suspend: UnixStream,
    /// The console's, when it cannot be written any more, and the guest's, when it waits for input.
    wake: UnixStream,
}

/// What poll(2) saw.
#[derive(Default)]
struct Seen {
    done: bool,
    end: bool,
    term: bool,
    suspend: bool,
    wake: bool,
    output_closed: bool,
    input: bool,
}

impl<G: Guest> Duty<G> {
    fn run(&mut self) {
        loop {
            let seen = self.wait();
            if seen.done {
                return;
            }
            if seen.end {
                drain(&mut self.end);
                self.stop(Stop::Signal);
            }
            if seen.term {
                drain(&mut self.term);
                self.terminated();
            }
            if self.powering_off.is_some_and(|at| Instant::now() >= at) && self.stopped.get().is_none() {
                self.stop(Stop::Signal);
            }
            if seen.suspend {
                drain(&mut self.suspend);
                // The shell may take hours, which the guest does not see.
                self.guest.suspend();
                terminal::restore();
                let _ = emulate_default_handler(SIGTSTP);
                terminal::set_raw();
                self.guest.go_on();
            }
            if seen.wake {
                drain(&mut self.wake);
            }
            // Whatever else ends the guest has been told already: this is the loss of what it says then.
            match self.console.gone() {
                _ if self.stopped.get().is_some() => {}
                Some(Gone::Failed(_)) => self.stop(Stop::OutputFailed),
                Some(Gone::Reader) => self.stop(Stop::OutputClosed),
                None if seen.output_closed => self.stop(Stop::OutputClosed),
                None => {}
            }
            if seen.input {
                self.read();
            }
            self.offer();
            let moved = self.guest.moved();
            if self.stopped.get().is_none() && self.stall.as_mut().is_some_and(|stall| stall.is_over(moved)) {
                self.stop(Stop::Stalled);
            }
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                match self.stopped.get() {
                    None => self.stop(Stop::Timeout),
                    Some(reason) => leave(*reason),
                }
            }
        }
    }

    fn wait(&self) -> Seen {
        let (input, output) = (stdin(), stdout());
        let mut fds = vec![
            PollFd::new(&self.done, PollFlags::IN),
            PollFd::new(&self.end, PollFlags::IN),
            PollFd::new(&self.suspend, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.term, PollFlags::IN),
        ];
        // An end that was seen would be seen for ever.
        let watch_output = self.stopped.get().is_none();
        if watch_output {
            fds.push(PollFd::new(&output, PollFlags::empty()));
        }
        if self.wants_input() {
            fds.push(PollFd::new(&input, PollFlags::IN));
        }
        let look = self.stall.as_ref().map(Stall::next).filter(|_| self.stopped.get().is_none());
        let off = self.powering_off.filter(|_| self.stopped.get().is_none());
        let first = self.deadline.into_iter().chain(look).chain(off).min();
        let left = first.map(|at| at.saturating_duration_since(Instant::now()));
        let left = if self.waiting.is_empty() { left } else { Some(left.unwrap_or(AGAIN).min(AGAIN)) };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        if poll(&mut fds, left.as_ref()).is_err() {
            return Seen::default();
        }
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        Seen {
            done: ready(0),
            end: ready(1),
            suspend: ready(2),
            wake: ready(3),
            term: ready(4),
            output_closed: watch_output && ready(5),
            input: self.wants_input() && ready(fds.len() - 1),
        }
    }

    /// Whether to read more. A pipe waits until the guest does; a person is always heard,
    /// or Ctrl-A x would not work on a guest that hangs.
    fn wants_input(&self) -> bool {
        // A guest that was told to end takes nothing any more.
        let waits = || self.waiting.is_empty() && self.stopped.get().is_none() && self.guest.ready() > 0;
        self.input_open && (self.escape.is_some() || waits())
    }

    fn offer(&mut self) {
        loop {
            let end = self.breaks.front().map_or(self.waiting.len(), |at| *at).min(self.waiting.len());
            if end > 0 {
                let taken = self.guest.input(&self.waiting[..end]).min(end);
                self.waiting.drain(..taken);
                self.breaks.iter_mut().for_each(|at| *at = at.saturating_sub(taken));
                if taken < end {
                    break;
                }
            }
            if self.breaks.pop_front().is_none() {
                break;
            }
            self.guest.send_break();
        }
        // What a person types into a guest that never reads is not kept for ever.
        self.waiting.truncate(TYPED_AHEAD);
        self.breaks.truncate(TYPED_AHEAD);
    }

    fn read(&mut self) {
        let mut buffer = [0; 512];
        // No more than the guest takes now: what is read and not taken is lost for others.
        let most = if self.escape.is_some() { buffer.len() } else { self.guest.ready().min(BLOCK) };
        if most == 0 {
            return;
        }
        let typed = match rustix::io::read(stdin().as_fd(), &mut buffer[..most]) {
            Ok(length) if length > 0 => &buffer[..length],
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return,
            // The end of input never ends the guest.
            _ => return self.input_open = false,
        };
        let commands = match &mut self.escape {
            Some(escape) => escape.feed(typed, &mut self.waiting),
            None => {
                self.waiting.extend(typed);
                Vec::new()
            }
        };
        for command in commands {
            match command {
                Command::Help => line(format_args!("\r\n{}", escape::HELP)),
                Command::Quit => self.stop(Stop::Quit),
                Command::PowerButton => {
                    self.guest.press_power_button();
                }
                Command::Break(at) => self.breaks.push_back(at),
            }
        }
    }

    /// SIGTERM: a guest with something to lose is asked to power off, and ended if it does not, or if that is asked again.
    fn terminated(&mut self) {
        if self.button && self.powering_off.is_none() && self.guest.press_power_button() {
            self.powering_off = Some(Instant::now() + POWERING_OFF);
        } else {
            self.stop(Stop::Signal);
        }
    }

    /// Tells the guest to end; who asks again does not want to wait.
    fn stop(&mut self, reason: Stop) {
        if self.stopped.set(reason).is_err() {
            if matches!(reason, Stop::Quit | Stop::Signal) {
                leave(reason);
            }
            return;
        }
        self.console.mute();
        self.guest.stop();
        self.deadline = Some(Instant::now() + PATIENCE);
    }
}

/// Ends the process although the guest still runs.
fn leave(reason: Stop) -> ! {
    terminal::restore();
    say(format_args!("the guest did not end when told to; leaving without a report"));
    std::process::exit(reason.status().code().into())
}

fn drain(stream: &mut UnixStream) {
    // One byte a signal; what is left makes the next poll return at once.
    let _ = stream.read(&mut [0; 64]);
}
