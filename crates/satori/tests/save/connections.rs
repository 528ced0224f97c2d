//! A machine with a user network and sockets to the host, by the real clock: who is saved and goes on keeps its connections; who goes
//! back, and who is built anew with others behind its devices, finds them reset, and calls again.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use satori_cpuid::Topology;
use satori_machine::{
    ClockMode, Cmdline, Config, DeviceConfig, Devices, EngineKind, Event, Handle, Machine, Module, Nic,
    Outcome, Saved, Sockets,
};
use satori_sandbox::Mode;

use crate::common::{self, SATORI, drivers};
use crate::trial::{Console, machine};

const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];
/// A boot on a busy host.
const PATIENCE: Duration = Duration::from_secs(100);

/// Who is called, and how a machine is made.
struct Host {
    tcp: TcpListener,
    vsock: UnixListener,
    /// Where the guest's sockets are.
    place: PathBuf,
    kernel: String,
    initrd: Vec<u8>,
}

/// A machine that runs, and who serves its devices.
struct Running {
    handle: Handle,
    console: Console,
    thread: JoinHandle<Outcome>,
    _helpers: (satori_net::Helper, satori_vsock::Helper),
}

/// Both connections of a guest.
type Called = (TcpStream, UnixStream);

fn within<T>(what: &str, console: &Console, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let began = Instant::now();
    loop {
        match look() {
            Some(found) => return Ok(found),
            None if began.elapsed() > PATIENCE => {
                return Err(format!("waited for {what}:\n{}", console.text()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn program() -> Vec<u8> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/connections.c");
    let program = common::scratch("connections");
    let built = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(built.is_ok_and(|s| s.success()), "cc cannot build {source}: install gcc and libc6-dev");
    std::fs::read(program).expect("the program that was built")
}

impl Host {
    fn new() -> Host {
        let kernel = common::fetch(&["kernel", "6.1"]);
        let busybox = std::fs::read(common::fetch(&["busybox"])).expect("busybox");
        let (modules, program) = (drivers::connected(Path::new(&kernel)), program());
        let mut extra: Vec<(&str, &[u8])> =
            modules.iter().map(|(name, data)| (name.as_str(), &data[..])).collect();
        extra.push(("connections", &program));
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = tcp.local_addr().expect("its number").port();
        let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();
        let script = include_str!("connections.sh");
        let script = script.replace("MODULES", &names.join(" ")).replace("PORT", &port.to_string());
        let place = common::scratch("sock");
        let served = format!("{}_99", place.display());
        let _ = std::fs::remove_file(&served);
        let vsock = UnixListener::bind(served).expect("a socket");
        tcp.set_nonblocking(true).expect("a listener");
        vsock.set_nonblocking(true).expect("a listener");
        Host { tcp, vsock, place, kernel, initrd: satori::initramfs::build(&busybox, &script, &extra) }
    }

    /// A machine, of a saved state if there is one, that runs with helpers of its own.
    fn start(&self, saved: Option<Saved>) -> Result<Running, String> {
        let options = satori_net::Options { loopback: true, ..satori_net::Options::default() };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let net = satori_net::start(SATORI.as_ref(), &options, MAC, Mode::Auto).map_err(|e| text(&e))?;
        let vsock = satori_vsock::start(SATORI.as_ref(), &self.place, 5, Mode::Auto).map_err(|e| text(&e))?;
        let end = |socket: &UnixStream| socket.try_clone().map_err(|e| text(&e));
        let devices = DeviceConfig {
            nics: vec![Nic { mac: MAC, pairs: 2, socket: end(&net.socket)?, ours: true }],
            vsock: Some(Sockets { cid: 5, socket: end(&vsock.socket)? }),
            ..DeviceConfig::default()
        };
        let config = Config {
            kernel: std::fs::read(&self.kernel).map_err(|e| text(&e))?,
            initrds: vec![Module { data: self.initrd.clone(), ..Module::default() }],
            cmdline: Cmdline::Added("panic=-1 quiet".into()),
            memory: 256 << 20,
            topology: Topology::flat(2),
            devices: Devices::new(devices).map_err(|e| text(&e))?,
            clock: ClockMode::Real,
            tsc_hz: Some(1_000_000_000),
            engine: EngineKind::Translator,
            timeout: Some(PATIENCE),
            ..Config::default()
        };
        let console = Console::default();
        let mut machine: Machine = machine(config, console.clone());
        if let Some(saved) = saved {
            machine = machine.restored(saved).map_err(|e| text(&e))?;
        }
        let handle = machine.handle();
        let thread = std::thread::spawn(move || machine.run());
        Ok(Running { handle, console, thread, _helpers: (net, vsock) })
    }

    /// Both calls of a guest.
    fn called(&self, console: &Console) -> Result<Called, String> {
        let tcp = within("a call by TCP", console, || self.tcp.accept().ok())?.0;
        let vsock = within("a call by vsock", console, || self.vsock.accept().ok())?.0;
        Ok((tcp, vsock))
    }
}

impl Running {
    /// Waits until its console has these lines, each behind the one before, somewhere from `from` on.
    fn shows(&self, from: usize, lines: &[&str]) -> Result<(), String> {
        within(&format!("{lines:?}"), &self.console, || {
            let text = self.console.text();
            let mut all = text[from..].lines().map(str::trim_end);
            lines.iter().all(|line| all.any(|shown| shown == *line)).then_some(())
        })
    }

    /// The machine has just taken a state back: its guest finds both connections reset, calls anew, and is told an end.
    fn calls_anew(&self, host: &Host, from: usize) -> Result<(), String> {
        let gone = ["tcp: reset", "vsock: reset", "call 2"];
        let (mut tcp, mut vsock) = host.called(&self.console)?;
        self.shows(from, &gone)?;
        let sent = tcp.write_all(b"again").and_then(|()| vsock.write_all(b"again"));
        sent.map_err(|error| format!("the new connections: {error}"))?;
        self.shows(from, &[&gone[..], &["tcp: again", "vsock: again"]].concat())?;
        drop((tcp, vsock));
        self.shows(from, &["tcp:", "vsock:", "address inet addr:10.0.2.15", "done"])
    }
}

/// Runs it; tells what was not as it should be.
pub(crate) fn run() -> Result<String, String> {
    let host = Host::new();
    let one = host.start(None)?;
    let (mut tcp, mut vsock) = host.called(&one.console)?;
    one.shows(0, &["call 1"])?;
    one.handle.suspend();
    let saved = one.handle.save().map_err(|error| error.to_string())?;
    one.handle.go_on();
    let sent = tcp.write_all(b"still").and_then(|()| vsock.write_all(b"still"));
    sent.map_err(|error| format!("the connections of who goes on: {error}"))?;
    one.shows(0, &["call 1", "tcp: still", "vsock: still"])?;

    one.handle.suspend();
    let from = one.console.text().len();
    one.handle.restore(saved.clone()).map_err(|error| error.to_string())?;
    one.handle.go_on();
    one.calls_anew(&host, from).map_err(|why| format!("back in time: {why}"))?;
    let first = one.thread.join().expect("the machine's thread").event;
    drop((tcp, vsock, one._helpers));

    let other = host.start(Some(saved.clone()))?;
    other.calls_anew(&host, 0).map_err(|why| format!("built anew: {why}"))?;
    let second = other.thread.join().expect("the machine's thread").event;
    match (first, second) {
        (Event::PowerOff, Event::PowerOff) => {}
        others => return Err(format!("they ended by {others:?}")),
    }
    let bytes: usize = saved.iter().map(|(_, value)| value.bytes().len()).sum();
    Ok(format!("kept by who goes on, reset back in time and in a new machine; {} KiB", bytes >> 10))
}
