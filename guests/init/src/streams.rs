//! The command's standard streams: pipes, or a pseudo-terminal, and threads that carry them to the ports.
//!
//! A port opens only once, and its file belongs to root. The command gets pipes that belong to its user, so that
//! it can open /dev/stdout again, as can whoever it becomes, and that end as pipes do.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ports;
use crate::spec::Spec;
use crate::sys;
use crate::wanted;

/// What the command gets, and who carries it.
#[derive(Debug)]
pub struct Streams {
    /// Standard input, output and error.
    pub command: [OwnedFd; 3],
    /// Those that end when the command and its children have closed theirs.
    pub carriers: Vec<JoinHandle<()>>,
    /// The terminal's own side.
    pub terminal: Option<File>,
}

/// How long a port may be without its host after it was opened; the host connects a moment after the port has
/// its name, and one that has left already looks the same.
const CONNECTING: Duration = Duration::from_millis(200);

/// Makes them.
pub fn make(spec: &Spec) -> Result<Streams, String> {
    match spec.terminal {
        Some(size) => terminal(spec, size),
        None => pipes(spec),
    }
}

fn pipes(spec: &Spec) -> Result<Streams, String> {
    let pipe = || -> Result<(OwnedFd, OwnedFd), String> {
        let (read, write) = std::io::pipe().map_err(|why| format!("no pipe can be made ({why})"))?;
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        let _ = sys::change_owner(&write, spec.uid, spec.gid);
        let write = File::from(write);
        // Only who has it finds it, and may be another user by then.
        let _ = write.set_permissions(Permissions::from_mode(0o666));
        Ok((read, OwnedFd::from(write)))
    };
    let nothing = || File::open("/dev/null").map_err(|why| format!("/dev/null cannot be opened ({why})"));
    let (input, to_input) = match spec.no_input {
        true => (nothing()?.into(), None),
        false => pipe().map(|(read, write)| (read, Some(write)))?,
    };
    let (from_output, output) = pipe()?;
    let (from_error, error) = pipe()?;
    if let Some(to_input) = to_input {
        let others = wanted::Others::now();
        // It ends with the guest: nobody waits for it.
        std::thread::spawn(move || {
            // The host reads nothing before the port is open.
            wanted::wait(&to_input, &others);
            match ports::open("satori.stdin") {
                Ok(port) => into_command(port, to_input.into()),
                Err(why) => crate::control::console(&why),
            }
        });
    }
    let mut carriers = Vec::new();
    for (from, name) in [(from_output, "satori.stdout"), (from_error, "satori.stderr")] {
        let port = ports::open(name)?;
        sys::set_nonblocking(&port).map_err(|why| format!("{name} cannot be used ({why})"))?;
        carriers.push(std::thread::spawn(move || carry(from.into(), port)));
    }
    Ok(Streams { command: [input, output, error], carriers, terminal: None })
}

fn terminal(spec: &Spec, (rows, columns): (u16, u16)) -> Result<Streams, String> {
    let wrong = |why: std::io::Error| format!("no terminal can be made ({why})");
    let (ours, theirs) = sys::pseudo_terminal().map_err(wrong)?;
    sys::set_size(&ours, rows, columns).map_err(wrong)?;
    let _ = sys::change_owner(&theirs, spec.uid, 5);
    let again = |fd: &OwnedFd| fd.try_clone().map_err(wrong);
    let ours = File::from(ours);
    let (from, to) = (ours.try_clone().map_err(wrong)?, ours.try_clone().map_err(wrong)?);
    let port = ports::open("satori.tty")?;
    let out = port.try_clone().map_err(wrong)?;
    std::thread::spawn(move || into_command(port, to));
    let carriers = vec![std::thread::spawn(move || carry(from, out))];
    Ok(Streams { command: [again(&theirs)?, again(&theirs)?, theirs], carriers, terminal: Some(ours) })
}

/// From the command to the host, until no process has the other end open, or nobody reads at the host's: the command's
/// next write is then that to a pipe without readers.
fn carry(mut from: File, port: File) {
    ports::await_host(&port, CONNECTING);
    let mut buffer = [0; 1 << 15];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if ports::put(&port, &buffer[..length]).is_err() {
            return;
        }
    }
}

/// From the host to the command, until the host closes.
fn into_command(mut port: File, mut to: File) {
    ports::await_host(&port, CONNECTING);
    let mut buffer = [0; 1 << 15];
    loop {
        match port.read(&mut buffer) {
            Ok(length @ 1..) if to.write_all(&buffer[..length]).is_ok() => {}
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}
