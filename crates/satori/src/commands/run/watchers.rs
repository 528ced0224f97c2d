//! Who looks on while a guest runs: a debugger, `satori top`, a trace.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use anyhow::{Result, anyhow, bail};
use satori_machine::{GdbListener, Machine, WatchListener};

use crate::cli;
use crate::late::plain;
use crate::opened::Opened;
use crate::places::unix_socket;
use crate::qmp::{Address, Qmp};
use crate::say::say;

/// What those who look on need, opened, as a sandbox permits nothing to be opened later.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// Where a debugger connects.
    gdb: Option<String>,
    /// Descriptors that a sandbox has to keep open, beside those of [`Opened`].
    pub keep: Vec<RawFd>,
    /// Who is to answer QEMU's protocol.
    pub qmp: Option<Qmp>,
    /// Whether connections come while the guest runs.
    pub listening: bool,
}

impl Watchers {
    /// Opens what the flags name, and tells the machine of it.
    pub(crate) fn open(flags: &cli::Machine, machine: &mut Machine, opened: &mut Opened) -> Result<Watchers> {
        let (mut watchers, listener) = Watchers::of_any(flags, opened)?;
        listener.into_iter().for_each(|listener| machine.debug(listener, flags.gdb_wait));
        if let Some(path) = &flags.stats_socket {
            let wrong = |why| {
                anyhow!(
                    "cannot listen on --stats-socket {} ({}): name another place",
                    path.display(),
                    plain(&why)
                )
            };
            let listener = WatchListener::open(path).map_err(wrong)?;
            opened.socket(path)?;
            watchers.keep.push(listener.as_fd().as_raw_fd());
            machine.watch(listener);
        }
        if let Some(spec) = &flags.trace {
            machine.trace(opened.file("--trace", &spec.file)?, spec.filter.clone());
        }
        let sockets = flags.serial.iter().any(|text| unix_socket(text).is_some());
        watchers.listening |= flags.stats_socket.is_some() || sockets || !flags.channels().is_empty();
        Ok(watchers)
    }

    /// Opens what a machine of any kind has: where a debugger connects, if one is awaited, and who speaks QEMU's protocol.
    pub(crate) fn of_any(
        flags: &cli::Machine,
        opened: &mut Opened,
    ) -> Result<(Watchers, Option<GdbListener>)> {
        let mut watchers = Watchers::default();
        let listener = gdb(flags)?;
        if let Some(listener) = &listener {
            flags.gdb.as_deref().and_then(unix_socket).map(|path| opened.socket(path)).transpose()?;
            watchers.gdb = Some(listener.address().to_owned());
            watchers.keep.push(listener.as_fd().as_raw_fd());
            watchers.listening = true;
        }
        watchers.qmp = flags.qmp.as_ref().map(Qmp::open).transpose()?;
        flags.qmp.as_ref().and_then(Address::path).map(|path| opened.socket(path)).transpose()?;
        watchers.keep.extend(watchers.qmp.iter().map(Qmp::descriptor));
        watchers.listening |= watchers.qmp.is_some();
        Ok((watchers, listener))
    }

    /// Says how they connect.
    pub(crate) fn tell(&self, flags: &cli::Machine) {
        if let Some(address) = &self.gdb {
            let waits = if flags.gdb_wait { "; the guest waits for it" } else { "" };
            say(format_args!("gdb: 'target remote {address}' connects{waits}"));
        }
        if let Some(path) = &flags.stats_socket {
            say(format_args!("'satori top {}' watches", path.display()));
        }
    }
}

/// The socket on which a debugger is awaited, if one is.
fn gdb(flags: &cli::Machine) -> Result<Option<GdbListener>> {
    let address = flags.gdb.as_deref().or(flags.gdb_default.then_some(OsStr::new("tcp::1234")));
    match address {
        Some(address) => Ok(Some(GdbListener::open(address).map_err(|why| anyhow!("--gdb: {why}"))?)),
        None if flags.gdb_wait => bail!("-S (--gdb-wait) waits for a debugger: add --gdb tcp::1234, or -s"),
        None => Ok(None),
    }
}
