//! Where bytes of serial ports and of a virtio console's ports go, in QEMU's words.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{stderr, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use satori_machine::Port;

use super::words::Wishes;
use crate::channel::Channel;
use crate::cli::Front;
use crate::late::plain;

/// Where bytes of a guest's port go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Char {
    Stdio,
    Null,
    File(PathBuf),
    Socket(PathBuf),
    /// A host's name or address, and a port: for a monitor.
    Tcp(String),
}

/// A port of a virtio console.
#[derive(Debug)]
pub(super) struct WantedPort {
    name: String,
    /// The guest's kernel makes hvc0 of it.
    console: bool,
    /// The `-chardev`, which may come later.
    id: String,
}

impl Wishes {
    pub(super) fn char_of(&self, text: &str) -> Result<Char> {
        Ok(match text.split_once(':').unwrap_or((text, "")) {
            ("stdio", _) | ("mon", "stdio") => Char::Stdio,
            ("none" | "null" | "vc", _) => Char::Null,
            ("file", path) => Char::File(path.into()),
            ("unix", rest) => {
                let (path, more) = Wishes::parts(rest);
                socket(text, path, &more)?
            }
            ("chardev", id) => self.char_by("-serial", text, id)?,
            _ => bail!("-serial {text}: write stdio, null, file:FILE, unix:PATH,server=on or chardev:ID"),
        })
    }

    fn char_by(&self, option: &str, text: &str, id: &str) -> Result<Char> {
        match self.chars.get(id) {
            Some(end) => Ok(end.clone()),
            None => bail!("{option} {text}: there is no -chardev with id={id}"),
        }
    }

    pub(super) fn chardev(&mut self, text: &str) -> Result<()> {
        let (kind, parts) = Wishes::parts(text);
        let find = |key: &str| parts.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        let Some(id) = find("id") else { bail!("-chardev {text}: write id=NAME") };
        let end = match (kind, find("path")) {
            ("stdio", _) => Char::Stdio,
            ("null", _) => Char::Null,
            ("file", Some(path)) => Char::File(path.into()),
            ("socket", Some(path)) => socket(text, path, &parts)?,
            ("socket", None) if find("port").is_some() => {
                serves(text, &parts)?;
                Char::Tcp(format!(
                    "{}:{}",
                    find("host").unwrap_or_default(),
                    find("port").unwrap_or_default()
                ))
            }
            _ => bail!(
                "-chardev {text}: write stdio, null, file or socket, with path=PATH for the last two, or host=HOST,port=PORT"
            ),
        };
        self.chars.insert(id.into(), end);
        Ok(())
    }

    /// `-mon`: a monitor on the terminal that the console is on. Nobody answers there, as nothing leads to it: Ctrl-A c is none of our keys.
    pub(super) fn monitor(&mut self, text: &str) -> Result<()> {
        let parts: Vec<_> =
            text.split(',').map(|part| part.split_once('=').unwrap_or((part, "on"))).collect();
        let find = |key: &str| parts.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        if find("mode") == Some("control") {
            let place: OsString = match self.char_by("-mon", text, find("chardev").unwrap_or_default())? {
                Char::Socket(path) => [OsStr::new("--qmp=unix:"), path.as_os_str()].iter().copied().collect(),
                Char::Tcp(place) => {
                    let place = format!("tcp:{place}");
                    crate::qmp::address(&place).map_err(|why| anyhow!("-mon {text}: {why}"))?;
                    format!("--qmp={place}").into()
                }
                _ => bail!(
                    "-mon {text}: QMP is answered where its -chardev is a socket: socket,path=PATH,server=on,wait=off"
                ),
            };
            self.plain.push(place);
            return Ok(());
        }
        match self.char_by("-mon", text, find("chardev").unwrap_or_default())? {
            Char::Stdio => Ok(()),
            _ => bail!("-mon {text}: there is no monitor: leave it out"),
        }
    }

    /// `-device virtserialport` and `virtconsole`, by their properties.
    pub(super) fn port(
        &mut self,
        text: &str,
        name: Option<&str>,
        id: Option<&str>,
        console: bool,
    ) -> Result<()> {
        let name = match name {
            Some(name) => name.to_owned(),
            None if console => format!("console{}", self.ports.len()),
            None => bail!("-device {text}: write name=NAME"),
        };
        let Some(id) = id else { bail!("-device {text}: write chardev=ID") };
        self.ports.push(WantedPort { name, console, id: id.to_owned() });
        Ok(())
    }

    /// What all ports name is there.
    pub(super) fn check_ports(&self) -> Result<()> {
        for port in &self.ports {
            let text = format!("virtserialport,name={},chardev={}", port.name, port.id);
            if let Char::Tcp(place) = self.char_by("-device", &text, &port.id)? {
                bail!("-device {text}: only monitors are at TCP ports such as {place}");
            }
        }
        Ok(())
    }

    /// The ports with what they lead to opened.
    pub(super) fn open_ports(&self) -> Result<Front> {
        let (mut all, mut channels) = (Vec::new(), Vec::new());
        for port in &self.ports {
            let (input, output) = match &self.chars[&port.id] {
                Char::Stdio => (Some(again(stdin().as_fd())?), Some(again(stdout().as_fd())?)),
                // Ports that lead to TCP were refused.
                Char::Null | Char::Tcp(_) => (None, Some(create(Path::new("/dev/null"))?)),
                Char::File(path) => (None, Some(create(path)?)),
                Char::Socket(path) => {
                    let (channel, end) = Channel::open(path).map_err(|why| {
                        anyhow!("cannot listen at {} ({}): name another socket", path.display(), plain(&why))
                    })?;
                    channels.push(Arc::new(channel));
                    (Some(again(end.as_fd())?), Some(end))
                }
            };
            all.push(Port { name: port.name.clone(), console: port.console, input, output });
        }
        Ok(Front { ports: all.into(), channels })
    }
}

/// A file to write, emptied. Our own streams are themselves: opened anew, each would have its own place in the file.
pub(super) fn create(path: &Path) -> Result<OwnedFd> {
    let stream =
        path.to_str().and_then(|text| text.strip_prefix("/proc/self/fd/").or(text.strip_prefix("/dev/fd/")));
    match (stream, path.to_str()) {
        (Some("1"), _) | (_, Some("/dev/stdout")) => again(stdout().as_fd()),
        (Some("2"), _) | (_, Some("/dev/stderr")) => again(stderr().as_fd()),
        _ => match File::create(path) {
            Ok(file) => Ok(file.into()),
            Err(why) => Err(anyhow!("cannot write {} ({}): name another file", path.display(), plain(&why))),
        },
    }
}

fn again(stream: BorrowedFd<'_>) -> Result<OwnedFd> {
    Ok(stream.try_clone_to_owned()?)
}

fn socket(text: &str, path: &str, parts: &[(&str, &str)]) -> Result<Char> {
    serves(text, parts)?;
    Ok(Char::Socket(path.into()))
}

/// Refuses sockets that are called, or waited for.
fn serves(text: &str, parts: &[(&str, &str)]) -> Result<()> {
    let on = |key: &str| parts.iter().any(|(known, value)| *known == key && *value == "on");
    if !on("server") {
        bail!("{text}: a port listens and does not call: write server=on,wait=off");
    }
    if !parts.iter().any(|(key, value)| *key == "nowait" || *key == "wait" && *value == "off") {
        bail!("{text}: the guest does not wait for whom it serves: write wait=off");
    }
    Ok(())
}
