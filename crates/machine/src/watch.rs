//! Who watches a running machine: a socket on which each line that is received is answered by one of JSON
//! ([`Live`]).
//!
//! The socket is opened before the guest runs. A thread accepts from it, and each connection has one of its own, which
//! asks the control plane where the vCPUs count, and takes copies.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use satori_lock::Held;
use satori_profile::{Live, Watched};
use satori_symbols::Symbols;

use crate::SymbolSource;
use crate::control::Control;
use crate::saved::Rooms;
use crate::sockets::listen;
use crate::x86::MachineVcpu;

/// Connections at once; more are closed.
const MOST: usize = 8;
/// How long somebody who does not read is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How soon a connection hears of the machine's end.
const LOOK: Duration = Duration::from_millis(250);
/// The least time between two answers on a connection, so that watching costs the guest little.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a kernel that had no names is not asked again: looking goes through all of its memory.
const AGAIN: Duration = Duration::from_secs(5);

/// An open socket on which watchers are awaited.
#[derive(Debug)]
pub struct WatchListener(UnixListener);

impl WatchListener {
    /// Opens a socket at `path`; one that a former run left is replaced, any other file is not.
    pub fn open(path: &Path) -> io::Result<Self> {
        listen(path).map(WatchListener)
    }
}

/// What a sandbox has to keep open.
impl AsFd for WatchListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Names of a life's kernel.
#[derive(Default)]
struct Names {
    /// Of which life.
    of: Weak<Rooms>,
    symbols: Option<Arc<Symbols>>,
    /// When they were looked for.
    looked: Option<Instant>,
}

struct Context {
    control: Arc<Control<MachineVcpu>>,
    names: Mutex<Names>,
    wanted: SymbolSource,
    connections: AtomicUsize,
    ended: AtomicBool,
}

impl Context {
    /// A line for who asked.
    fn line(&self) -> String {
        let live = match self.control.counted() {
            Some((rooms, vcpus)) => self.live(&rooms, &vcpus),
            None => Live::new(0, &[], |_| None),
        };
        // Strings and numbers under string keys.
        let mut line = serde_json::to_string(&live).unwrap_or_default();
        line.push('\n');
        line
    }

    fn live(&self, rooms: &Arc<Rooms>, vcpus: &[Watched]) -> Live {
        let platform = &rooms.platform;
        let symbols = self.names.lock().held().of(rooms, &self.wanted);
        // Before the vCPUs are looked at: what they wait for lasted at least until now.
        let now = platform.clock.now();
        let vcpus: Vec<_> = vcpus.iter().map(|vcpu| vcpu.lock().clone()).collect();
        let name = |rip| symbols.as_ref().map(|symbols| symbols.resolve(rip).to_string());
        let mut live = Live::new(now, &vcpus, name);
        if let Some(partition) = &platform.hyperv {
            let used = partition.usage().into_iter().filter(|used| used.count > 0);
            live.hyperv = used.map(|used| (used.name.to_owned(), used.ways.into_iter().collect())).collect();
        }
        for (name, value) in rooms.counts.iter().flat_map(|counts| counts.counts()) {
            *live.engine.entry(name.to_owned()).or_default() += value;
        }
        live
    }
}

impl Names {
    /// Those of the kernel of this life, if it has any yet.
    fn of(&mut self, rooms: &Arc<Rooms>, wanted: &SymbolSource) -> Option<Arc<Symbols>> {
        if !std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(rooms)) {
            *self = Names { of: Arc::downgrade(rooms), ..Names::default() };
        }
        if self.symbols.is_none() && self.looked.is_none_or(|at| at.elapsed() >= AGAIN) {
            self.symbols = wanted.of(&rooms.platform.memory);
            self.looked = Some(Instant::now());
        }
        self.symbols.clone()
    }
}

/// The socket of a running machine.
pub(crate) struct Server {
    context: Arc<Context>,
    listener: Arc<WatchListener>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Starts to serve.
    pub(crate) fn start(
        listener: WatchListener,
        wanted: SymbolSource,
        control: &Arc<Control<MachineVcpu>>,
    ) -> io::Result<Self> {
        control.count();
        let context = Arc::new(Context {
            control: Arc::clone(control),
            names: Mutex::default(),
            wanted,
            connections: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let listener = Arc::new(listener);
        let (accepting, shared) = (listener.clone(), context.clone());
        let thread =
            std::thread::Builder::new().name("watch".into()).spawn(move || accept(&accepting.0, &shared))?;
        Ok(Server { context, listener, thread })
    }

    /// The machine has ended.
    pub(crate) fn end(self) {
        self.context.ended.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = self.thread.join();
    }
}

fn accept(listener: &UnixListener, context: &Arc<Context>) {
    while !context.ended.load(Ordering::Acquire) {
        let Ok((stream, _)) = listener.accept() else {
            // The end's doing, a connection that was gone already, or files that are scarce.
            std::thread::sleep(PAUSE);
            continue;
        };
        if context.connections.fetch_add(1, Ordering::AcqRel) >= MOST {
            context.connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let shared = context.clone();
        let serve = move || {
            serve(stream, &shared);
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("watcher".into()).spawn(serve).is_err() {
            context.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Answers one watcher until it leaves, does not read, or the machine ends.
fn serve(mut stream: UnixStream, context: &Context) {
    if stream.set_write_timeout(Some(PATIENCE)).and_then(|()| stream.set_read_timeout(Some(LOOK))).is_err() {
        return;
    }
    let mut bytes = [0; 64];
    loop {
        let asked = match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(length) => bytes[..length].iter().filter(|byte| **byte == b'\n').count(),
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(_) => return,
        };
        for _ in 0..asked {
            if context.ended.load(Ordering::Acquire) || stream.write_all(context.line().as_bytes()).is_err() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        if context.ended.load(Ordering::Acquire) {
            return;
        }
    }
}
