//! Who watches a running machine: a socket on which each line that is received is answered by one of JSON
//! ([`Live`]).
//!
//! The socket is opened before the guest runs. A thread accepts from it, and each connection has one of its own, which
//! takes copies of what the vCPUs count.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use satori_exits::Platform;
use satori_profile::{Live, Watched};
use satori_symbols::Symbols;

use crate::SymbolSource;
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

/// A life that is watched.
struct Source {
    platform: Arc<Platform>,
    vcpus: Vec<Watched>,
    symbols: Option<Arc<Symbols>>,
    /// When symbols were looked for.
    looked: Option<Instant>,
}

struct Context {
    /// None between two lives.
    source: Mutex<Option<Source>>,
    wanted: SymbolSource,
    connections: AtomicUsize,
    ended: AtomicBool,
}

impl Context {
    fn source(&self) -> MutexGuard<'_, Option<Source>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line for who asked.
    fn line(&self) -> String {
        let mut source = self.source();
        let live = match &mut *source {
            Some(source) => source.live(&self.wanted),
            None => Live::new(0, &[], |_| None),
        };
        drop(source);
        // Strings and numbers under string keys.
        let mut line = serde_json::to_string(&live).unwrap_or_default();
        line.push('\n');
        line
    }
}

impl Source {
    fn live(&mut self, wanted: &SymbolSource) -> Live {
        if self.symbols.is_none() && self.looked.is_none_or(|at| at.elapsed() >= AGAIN) {
            self.symbols = wanted.of(&self.platform.memory);
            self.looked = Some(Instant::now());
        }
        // Before the vCPUs are looked at: what they wait for lasted at least until now.
        let now = self.platform.clock.now();
        let vcpus: Vec<_> = self.vcpus.iter().map(|vcpu| vcpu.lock().clone()).collect();
        let name = |rip| self.symbols.as_ref().map(|symbols| symbols.resolve(rip).to_string());
        let mut live = Live::new(now, &vcpus, name);
        if let Some(partition) = &self.platform.hyperv {
            let used = partition.usage().into_iter().filter(|used| used.count > 0);
            live.hyperv =
                used.map(|used| (used.what.name().to_owned(), used.ways.into_iter().collect())).collect();
        }
        live
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
    pub fn start(listener: WatchListener, wanted: SymbolSource) -> io::Result<Self> {
        let context = Arc::new(Context {
            source: Mutex::new(None),
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

    /// From now on this life is watched.
    pub fn watch(&self, vps: &mut [MachineVcpu]) {
        let vcpus: Vec<_> = vps
            .iter_mut()
            .map(|vp| {
                let watched = Watched::default();
                vp.set_watched(watched.clone());
                watched
            })
            .collect();
        let Some(first) = vps.first() else { return };
        *self.context.source() =
            Some(Source { platform: first.platform(), vcpus, symbols: None, looked: None });
    }

    /// The life is over: its memory is let go.
    pub fn forget(&self) {
        *self.context.source() = None;
    }

    /// The machine has ended.
    pub fn end(self) {
        self.context.ended.store(true, Ordering::Release);
        self.forget();
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
