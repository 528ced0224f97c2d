//! The host's side of one port: its streams, and the threads that wait for them.

mod saved;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use satori_host::io_thread::IoThread;
use satori_journal::{Journal, Source};
use satori_lock::Held;

use crate::{Link, lock};

use super::Port;
pub(super) use saved::SavedPort;

/// Bytes that are read or written at once.
const PIECE: usize = 64 << 10;

/// How often somebody who waits for the end looks whether he still should.
const LOOK: Duration = Duration::from_millis(20);

/// What a port tells its device.
pub(super) enum Told {
    /// The host's side is closed: the input ended, or nobody reads the output any more.
    Closed,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// The guest has it open.
    open: bool,
    /// The doorbells rang since the threads looked.
    room: bool,
    written: bool,
    /// What was read from the host and the guest had no room for.
    held: Vec<u8>,
    /// The input ended; the output was refused.
    ended: bool,
    refused: bool,
    /// Why the output was refused, if its reader is not merely gone.
    lost: Option<std::io::Error>,
    /// The machine is saved or restored: nothing may be handed over.
    still: bool,
    /// The device is gone, and its threads have to go.
    over: bool,
    /// Whether threads were started, and wait.
    reader: Thread,
    writer: Thread,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    None,
    Waits,
    Works,
    /// It waits for the host, with nothing in its hands.
    Reads,
}

pub(super) struct Host {
    id: u32,
    name: String,
    console: bool,
    input: Option<File>,
    output: Option<File>,
    /// On whose processors its own threads run.
    thread: IoThread,
    state: Mutex<State>,
    /// By which what comes in comes, where the run is recorded or played again.
    source: OnceLock<Source>,
    /// For the thread that reads, the one that writes, and who waits for the latter to be done.
    reader: Condvar,
    writer: Condvar,
    done: Condvar,
    tell: Box<dyn Fn(Told) + Send + Sync>,
}

impl Host {
    pub(super) fn new(
        id: u32,
        port: Port,
        thread: IoThread,
        tell: impl Fn(Told) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Host {
            id,
            name: port.name,
            console: port.console,
            input: port.input.map(File::from),
            output: port.output.map(File::from),
            thread,
            state: Mutex::default(),
            source: OnceLock::new(),
            reader: Condvar::new(),
            writer: Condvar::new(),
            done: Condvar::new(),
            tell: Box::new(tell),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn has_input(&self) -> bool {
        self.input.is_some()
    }

    pub(super) fn is_console(&self) -> bool {
        self.console
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &File> {
        self.input.iter().chain(&self.output)
    }

    /// Whether what comes in may be another thing the next time: a file and the null device do not change.
    pub(super) fn undetermined(&self) -> bool {
        let kind = |file: &File| file.metadata().map(|meta| meta.file_type());
        self.input.as_ref().is_some_and(|file| {
            !kind(file).is_ok_and(|kind| kind.is_file() || kind.is_char_device() && is_null(file))
        })
    }

    /// Has what comes in come by `journal`.
    pub(super) fn journalled(self: &Arc<Self>, journal: &Journal) {
        let (source, me) = (journal.source(&format!("port {}", self.name)), Arc::downgrade(self));
        source.to(move |bytes| me.upgrade().iter().for_each(|me| me.come(bytes)));
        let _ = self.source.set(source);
    }

    /// Bytes of the host, or the end, on the thread that runs the machine.
    fn come(&self, bytes: &[u8]) {
        let link = {
            let mut state = lock(&self.state);
            state.held.extend(bytes);
            state.ended |= bytes.is_empty();
            state.link.clone()
        };
        link.iter().for_each(|link| self.feed(link));
    }

    /// Reads what the host has for a journal, as far as the guest takes it.
    fn bring_on(&self, source: &Source) {
        let Some(mut input) = self.input.as_ref() else { return };
        let mut buffer = vec![0; PIECE];
        loop {
            let mut state = lock(&self.state);
            while state.held.len() > PIECE && !state.over {
                state = self.reader.wait_timeout(state, LOOK).held().0;
            }
            drop(state);
            let count = match input.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait_for_input(input);
                    continue;
                }
                Err(_) => 0,
            };
            source.bring(&buffer[..count]);
            if count == 0 {
                return;
            }
        }
    }

    /// Whether the host's side is open to the guest.
    pub(super) fn connected(&self) -> bool {
        let state = lock(&self.state);
        let reads = self.input.is_some() && (!state.ended || !state.held.is_empty());
        // A port of both directions is closed by the end of either.
        let ended = self.input.is_some() && !reads || state.refused;
        !ended && (self.input.is_some() || self.output.is_some())
    }

    fn input_queue(&self) -> u16 {
        2 * self.id as u16 + 2
    }

    fn output_queue(&self) -> u16 {
        2 * self.id as u16 + 3
    }

    pub(super) fn start(self: &Arc<Self>, link: &Arc<Link>) {
        let mut state = lock(&self.state);
        state.link = Some(link.clone());
        (state.open, state.room, state.written) = (false, true, true);
        if link.determined() {
            return;
        }
        if state.writer == Thread::None {
            state.writer = self.spawn("port writer", |host| host.write_on());
        }
        self.read_from_now_on(&mut state);
    }

    /// Has a thread read the input, if that is to be and none does.
    fn read_from_now_on(self: &Arc<Self>, state: &mut State) {
        let determined = state.link.as_ref().is_none_or(|link| link.determined());
        if state.reader == Thread::None && self.input.is_some() && !determined {
            state.reader = self.spawn("port reader", |host| host.read_on());
        }
    }

    fn spawn(self: &Arc<Self>, name: &str, work: impl FnOnce(Arc<Host>) + Send + 'static) -> Thread {
        let host = self.clone();
        // Detached: who waits for a terminal may wait for ever, also when the machine has ended.
        match self.thread.spawn(name, move || work(host)) {
            Ok(_) => Thread::Works,
            Err(error) => {
                tracing::warn!("port {}: no thread for it ({error}); it stays silent", self.name);
                Thread::None
            }
        }
    }

    pub(super) fn reset(&self) {
        let mut state = lock(&self.state);
        (state.link, state.open) = (None, false);
        self.done.notify_all();
    }

    /// The guest opened or closed it.
    pub(super) fn opened(self: &Arc<Self>, link: &Arc<Link>, open: bool) {
        lock(&self.state).open = open;
        self.room(link);
    }

    /// What comes in stays with the host's side, or goes to the guest again.
    pub(super) fn hold(&self, still: bool) {
        lock(&self.state).still = still;
        if !still {
            self.reader.notify_one();
            self.writer.notify_one();
        }
    }

    /// The guest has room for what comes in.
    pub(super) fn room(self: &Arc<Self>, link: &Arc<Link>) {
        if link.determined() {
            let mut state = lock(&self.state);
            if let Some(source) = self.source.get().filter(|source| !source.replays())
                && state.open
                && state.reader == Thread::None
            {
                let source = source.clone();
                state.reader = self.spawn("port reader", move |host| host.bring_on(&source));
            }
            drop(state);
            self.feed(link);
            return;
        }
        let mut state = lock(&self.state);
        state.room = true;
        if state.reader == Thread::Waits {
            self.reader.notify_one();
        }
    }

    /// The guest wrote.
    pub(super) fn written(&self, link: &Arc<Link>) {
        if link.determined() {
            self.drain(link);
            return;
        }
        let mut state = lock(&self.state);
        state.written = true;
        // A doorbell for one that is awake costs no system call.
        if state.writer == Thread::Waits {
            self.writer.notify_one();
        }
    }

    /// Hands all that the guest wrote to the host.
    fn drain(&self, link: &Arc<Link>) {
        let queue = self.output_queue();
        while let Some(chain) = link.pop(queue) {
            let (mut at, all) = (0, chain.readable_bytes());
            while at < all {
                let piece = chain.read(link.memory(), at, PIECE);
                at += piece.len();
                self.put(&piece);
            }
            link.give(queue, &chain, |_, _| 0);
        }
    }

    fn put(&self, bytes: &[u8]) {
        let Some(mut output) = self.output.as_ref().filter(|_| !lock(&self.state).refused) else { return };
        let (mut left, mut lost) = (bytes, None);
        while !left.is_empty() {
            match output.write(left) {
                Ok(0) => break,
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_room(output),
                Err(error) => {
                    let gone = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
                    lost = (!gone).then_some(error);
                    break;
                }
            }
        }
        if !left.is_empty() {
            // The guest's writers find nobody there, as those of a closed pipe do.
            let mut state = lock(&self.state);
            (state.refused, state.lost) = (true, lost);
            drop(state);
            (self.tell)(Told::Closed);
        }
    }

    fn write_on(self: Arc<Self>) {
        loop {
            let link = {
                let mut state = lock(&self.state);
                loop {
                    match &state.link {
                        _ if state.over => return,
                        Some(link) if state.written => {
                            let link = link.clone();
                            state.written = false;
                            break link;
                        }
                        _ => state = self.rest(state, false),
                    }
                }
            };
            self.drain(&link);
        }
    }

    fn read_on(self: Arc<Self>) {
        loop {
            let link = {
                let mut state = lock(&self.state);
                if state.ended && state.held.is_empty() {
                    state.reader = Thread::None;
                    self.done.notify_all();
                    return;
                }
                loop {
                    match &state.link {
                        _ if state.over => return,
                        Some(link) if state.room && state.open && !state.still => {
                            let link = link.clone();
                            state.room = false;
                            break link;
                        }
                        _ => state = self.rest(state, true),
                    }
                }
            };
            self.feed(&link);
        }
    }

    /// Sleeps until a doorbell rings.
    fn rest<'a>(&'a self, mut state: MutexGuard<'a, State>, reader: bool) -> MutexGuard<'a, State> {
        let thread = |state: &mut State, now| if reader { state.reader = now } else { state.writer = now };
        thread(&mut state, Thread::Waits);
        self.done.notify_all();
        let bell = if reader { &self.reader } else { &self.writer };
        let mut state = bell.wait(state).held();
        thread(&mut state, Thread::Works);
        state
    }

    /// Hands what the host has to the guest until one of them has no more.
    fn feed(&self, link: &Arc<Link>) {
        let Some(mut input) = self.input.as_ref() else { return };
        loop {
            {
                let mut state = lock(&self.state);
                while state.still && !state.over {
                    state = self.rest(state, true);
                }
                if !state.open || !state.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
                    return;
                }
                if state.held.is_empty() && state.ended {
                    drop(state);
                    (self.tell)(Told::Closed);
                    return;
                }
            }
            if !self.hand_over(link) {
                return;
            }
            if self.source.get().is_some() {
                if lock(&self.state).ended {
                    continue;
                }
                return;
            }
            let mut buffer = vec![0; PIECE];
            self.reads(link, Thread::Reads);
            let count = loop {
                match input.read(&mut buffer) {
                    Ok(count) => break count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_input(input),
                    // A terminal that is gone, as one at its end.
                    Err(_) => break 0,
                }
            };
            self.reads(link, Thread::Works);
            let mut state = lock(&self.state);
            state.ended |= count == 0;
            state.held.extend(&buffer[..count]);
        }
    }

    /// Notes what the thread that reads does; without one it is a vCPU's.
    fn reads(&self, link: &Arc<Link>, now: Thread) {
        if !link.determined() {
            lock(&self.state).reader = now;
            self.done.notify_all();
        }
    }

    /// Puts what is held into the guest's buffers; false if it has no room, for that or for more.
    fn hand_over(&self, link: &Arc<Link>) -> bool {
        let queue = self.input_queue();
        loop {
            let held = std::mem::take(&mut lock(&self.state).held);
            if held.is_empty() {
                return true;
            }
            let Some(chain) = link.pop(queue) else {
                lock(&self.state).held = held;
                return false;
            };
            let mut put = 0;
            link.give(queue, &chain, |chain, memory| {
                put = chain.write(memory, 0, &held);
                put
            });
            // What a driver that went away did not get is kept for the next one.
            lock(&self.state).held = held[put..].to_vec();
        }
    }

    /// The device is gone. A thread that waits for the host goes when the host has something.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        self.reader.notify_one();
        self.writer.notify_one();
    }

    /// Why the host did not take what the guest wrote, if that is no reader's doing.
    pub(super) fn lost(&self) -> Option<(String, std::io::Error)> {
        Some((self.name.clone(), lock(&self.state).lost.take()?))
    }

    /// Waits until what the guest wrote has left.
    pub(super) fn finish(&self, give_up: &dyn Fn() -> bool) {
        let mut state = lock(&self.state);
        if state.writer == Thread::None {
            return;
        }
        while state.link.is_some() && (state.written || state.writer == Thread::Works) && !give_up() {
            if state.writer == Thread::Waits {
                self.writer.notify_one();
            }
            let waited = self.done.wait_timeout(state, LOOK);
            state = waited.held().0;
        }
    }
}

fn is_null(file: &File) -> bool {
    let null = rustix::fs::stat("/dev/null").map(|stat| stat.st_rdev);
    let own = rustix::fs::fstat(file).map(|stat| stat.st_rdev);
    matches!((null, own), (Ok(null), Ok(own)) if null == own)
}

fn wait_for(file: &File, what: rustix::event::PollFlags) {
    let mut poll = [rustix::event::PollFd::new(file, what)];
    let _ = rustix::event::poll(&mut poll, None);
}

fn wait_for_room(file: &File) {
    wait_for(file, rustix::event::PollFlags::OUT);
}

fn wait_for_input(file: &File) {
    wait_for(file, rustix::event::PollFlags::IN);
}
