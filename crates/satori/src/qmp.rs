//! `--qmp`: a part of QEMU's machine protocol (docs/interop/qmp-spec of QEMU), for tools that steer a guest by it.

use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::{Result, anyhow, bail};
use satori_lock::lock;
use satori_machine::{Handle, unix_listener};
use serde_json::{Deserializer, Value, json};

use crate::late::plain;

/// Where somebody who speaks it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl Address {
    /// The Unix socket's name.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Address::Unix(path) => Some(path),
            Address::Tcp(_) => None,
        }
    }
}

/// Reads a `--qmp`: `unix:PATH` or `tcp:HOST:PORT`.
pub fn address(text: &str) -> Result<Address, String> {
    match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
        Some(("tcp", place))
            if place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
        {
            // QEMU has no host for this one.
            Ok(Address::Tcp(place.strip_prefix(':').map_or(place.into(), |port| format!("127.0.0.1:{port}"))))
        }
        _ => Err(format!("'{text}': write unix:PATH or tcp:127.0.0.1:PORT")),
    }
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket that listens, and is not answered yet.
#[derive(Debug)]
pub struct Qmp(Listener);

impl Qmp {
    /// Listens. What was made for that is to be taken back if the run is refused.
    pub fn open(address: &Address) -> Result<Qmp> {
        let wrong = |place: String, why: std::io::Error| {
            anyhow!("cannot listen on --qmp {place} ({}): name another place", plain(&why))
        };
        Ok(Qmp(match address {
            Address::Unix(path) => Listener::Unix(
                unix_listener(path).map_err(|why| wrong(format!("unix:{}", path.display()), why))?,
            ),
            Address::Tcp(place) => {
                Listener::Tcp(TcpListener::bind(place).map_err(|why| wrong(format!("tcp:{place}"), why))?)
            }
        }))
    }

    /// What a sandbox has to keep open.
    pub fn descriptor(&self) -> RawFd {
        match &self.0 {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener) => listener.as_raw_fd(),
        }
    }

    /// Answers from now on, one after the other, for a machine that runs by /dev/kvm or not.
    pub fn start(self, handle: Handle, by_kvm: bool) -> Result<Running> {
        let state = Arc::new(Mutex::new(State { by_kvm, ..State::default() }));
        let ours = state.clone();
        let serve = move || {
            loop {
                let accepted = match &self.0 {
                    Listener::Unix(listener) => listener.accept().map(|(socket, _)| OwnedFd::from(socket)),
                    Listener::Tcp(listener) => listener.accept().map(|(socket, _)| OwnedFd::from(socket)),
                };
                let Ok(socket) = accepted else { return };
                // Who does not read holds nobody up but himself, and the end of the run for its last word.
                let _ = speak(socket.into(), &handle, &ours);
                lock(&ours).client = None;
            }
        };
        // Detached, as somebody may stay connected for ever.
        std::thread::Builder::new().name("qmp".into()).spawn(serve).map_err(|why| anyhow!("{why}"))?;
        Ok(Running(state))
    }
}

#[derive(Default)]
struct State {
    by_kvm: bool,
    /// Who is connected and wants events.
    client: Option<std::fs::File>,
    /// The guest stands still because somebody said so.
    stopped: bool,
    /// It was told to end.
    quit: bool,
}

/// Answers come; when it is dropped, who is connected is told of the end.
pub struct Running(Arc<Mutex<State>>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        let (guest, reason) = if state.quit { (false, "host-qmp-quit") } else { (true, "guest-shutdown") };
        tell(&mut state, "SHUTDOWN", json!({ "guest": guest, "reason": reason }));
    }
}

/// Tells who is connected of an event.
fn tell(state: &mut State, event: &str, data: Value) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let stamp = json!({ "seconds": now.as_secs(), "microseconds": now.subsec_micros() });
    let mut told = json!({ "timestamp": stamp, "event": event });
    if !data.is_null() {
        told["data"] = data;
    }
    if let Some(client) = &mut state.client {
        let _ = send(client, &told);
    }
}

fn send(mut to: impl Write, value: &Value) -> std::io::Result<()> {
    to.write_all(format!("{value}\r\n").as_bytes())
}

fn version() -> Value {
    json!({ "qemu": { "major": 7, "minor": 2, "micro": 0 }, "package": concat!("Satori ", env!("CARGO_PKG_VERSION")) })
}

fn failure(class: &str, text: impl Into<String>) -> Value {
    json!({ "class": class, "desc": text.into() })
}

const COMMANDS: [&str; 10] = [
    "cont",
    "qmp_capabilities",
    "query-commands",
    "query-kvm",
    "query-name",
    "query-status",
    "query-version",
    "quit",
    "stop",
    "system_powerdown",
];

/// Speaks with one client until it goes.
fn speak(socket: std::fs::File, handle: &Handle, state: &Mutex<State>) -> std::io::Result<()> {
    let greeting = json!({ "QMP": { "version": version(), "capabilities": [] } });
    send(&socket, &greeting)?;
    let mut agreed = false;
    // Commands may follow one another without anything between them.
    let commands = Deserializer::from_reader(BufReader::new(Lines(&socket))).into_iter::<Value>();
    for command in commands {
        let Ok(command) = command else {
            return send(&socket, &json!({ "error": failure("GenericError", "Invalid JSON syntax") }));
        };
        let name = command["execute"].as_str().unwrap_or_default();
        let mut after = None;
        let done = match name {
            "" => Err(failure("GenericError", "QMP input lacks member 'execute'")),
            "qmp_capabilities" if agreed => Err(failure(
                "CommandNotFound",
                "Capabilities negotiation is already complete, command ignored",
            )),
            "qmp_capabilities" => {
                agreed = true;
                lock(state).client = socket.try_clone().ok();
                Ok(json!({}))
            }
            _ if !agreed => {
                Err(failure("CommandNotFound", "Expecting capabilities negotiation with 'qmp_capabilities'"))
            }
            _ => execute(name, handle, state, &mut after),
        };
        let mut answer = match done {
            Ok(value) => json!({ "return": value }),
            Err(error) => json!({ "error": error }),
        };
        if let Some(id) = command.get("id") {
            answer["id"] = id.clone();
        }
        {
            let mut state = lock(state);
            if let Some(event) = after {
                tell(&mut state, event, Value::Null);
            }
            send(&socket, &answer)?;
        }
        if name == "quit" && agreed {
            handle.stop();
        }
    }
    Ok(())
}

/// Does a command; `event` is what it gives rise to.
fn execute(
    name: &str,
    handle: &Handle,
    state: &Mutex<State>,
    event: &mut Option<&'static str>,
) -> Result<Value, Value> {
    match name {
        "query-version" => Ok(version()),
        "query-status" => {
            let stopped = lock(state).stopped;
            let status = if stopped { "paused" } else { "running" };
            Ok(json!({ "status": status, "running": !stopped, "singlestep": false }))
        }
        "query-kvm" => {
            let by_kvm = lock(state).by_kvm;
            Ok(json!({ "enabled": by_kvm, "present": by_kvm }))
        }
        "query-name" => Ok(json!({})),
        "query-commands" => Ok(COMMANDS.map(|name| json!({ "name": name })).to_vec().into()),
        "stop" | "cont" => {
            let stops = name == "stop";
            if std::mem::replace(&mut lock(state).stopped, stops) != stops {
                if stops {
                    handle.suspend()
                } else {
                    handle.go_on()
                }
                *event = Some(if stops { "STOP" } else { "RESUME" });
            }
            Ok(json!({}))
        }
        "system_powerdown" => {
            if handle.press_power_button() {
                *event = Some("POWERDOWN");
            }
            Ok(json!({}))
        }
        "quit" => {
            lock(state).quit = true;
            Ok(json!({}))
        }
        _ => Err(failure("CommandNotFound", format!("The command {name} has not been found"))),
    }
}

/// Reads of a socket, in which a signal is no error.
struct Lines<'a>(&'a std::fs::File);

impl Read for Lines<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match (&mut &*self.0).read(buffer) {
                Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

/// `-qmp`'s value, as QEMU has it, in our words.
pub fn of_qemu(text: &str) -> Result<String> {
    let mut parts = text.split(',');
    let place = parts.next().unwrap_or_default();
    let mut server = false;
    for part in parts {
        match part {
            "server" | "server=on" => server = true,
            "nowait" | "wait=off" | "nodelay" => {}
            "wait=on" | "wait" => bail!("-qmp {text}: nobody is waited for; write wait=off"),
            _ => bail!("-qmp {text}: '{part}' is not understood here: leave it out"),
        }
    }
    if !server {
        bail!("-qmp {text}: Satori listens, and connects to nobody; write server=on,wait=off");
    }
    address(place).map_err(|why| anyhow!("-qmp {why}"))?;
    Ok(place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_ours_or_qemus() {
        assert_eq!(address("unix:/a/b"), Ok(Address::Unix("/a/b".into())));
        assert_eq!(address("tcp::4444"), Ok(Address::Tcp("127.0.0.1:4444".into())));
        assert_eq!(of_qemu("tcp:127.0.0.1:4444,server,nowait").unwrap(), "tcp:127.0.0.1:4444");
        assert_eq!(of_qemu("unix:/a,server=on,wait=off").unwrap(), "unix:/a");
        for (wrong, told) in [
            ("unix:/a", "server=on"),
            ("unix:/a,server=on,wait=on", "wait=off"),
            ("stdio,server", "unix:PATH"),
        ] {
            assert!(of_qemu(wrong).unwrap_err().to_string().contains(told), "{wrong}");
        }
    }
}
