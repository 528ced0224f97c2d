//! What a port is between two doorbells: what the guest knows of it, and how far its input was read.
//!
//! The threads of a run by the real clock are no part of that: a port is saved once they rest or wait for the host, and is held still
//! meanwhile, so that what comes in stays with the host's side. It is there for the guest if that goes on, and for no other.

use std::fs::File;
use std::io::{Error as HostError, Seek, SeekFrom};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use satori_lock::Held;
use satori_save::{Error, State as _};
use serde::{Deserialize, Serialize};

use super::super::SavedConsole;
use super::{Host, LOOK, PIECE, State, Thread};
use crate::lock;

/// How long the threads may take to come to rest: they wait for no guest.
const REST: Duration = Duration::from_secs(1);

/// A port's state.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct SavedPort {
    name: String,
    /// The guest has it open.
    open: bool,
    /// The guest made room since the input was looked at.
    room: bool,
    /// The input ended; the output was refused, with this number if its reader is not merely gone.
    ended: bool,
    refused: bool,
    lost: Option<i32>,
    /// Bytes that were read and the guest has no room for.
    held: usize,
    /// Where the input goes on, if it is a file.
    at: Option<u64>,
}

impl Host {
    /// Its state; what it holds goes behind `bytes`. It is refused while the host does not take what left.
    pub(in super::super) fn save(&self, bytes: &mut Vec<u8>) -> Result<SavedPort, Error> {
        let state = self.at_rest()?;
        let at = self
            .file()
            .map(|mut file| file.stream_position())
            .transpose()
            .map_err(|why| self.refused(&why))?;
        bytes.extend(&state.held);
        Ok(SavedPort {
            name: self.name.clone(),
            open: state.open,
            room: state.room || state.reader == Thread::Reads,
            ended: state.ended,
            refused: state.refused,
            lost: state.lost.as_ref().and_then(HostError::raw_os_error),
            held: state.held.len(),
            at,
        })
    }

    /// Takes a state back; what it holds is taken from the front of `bytes`.
    pub(in super::super) fn restore(
        self: &Arc<Self>,
        saved: SavedPort,
        bytes: &mut &[u8],
    ) -> Result<(), Error> {
        let unless = |fits, why| Error::unless(fits, SavedConsole::NAME, why);
        unless(saved.name == self.name, "a port has another name")?;
        unless(saved.at.is_some() == self.file().is_some(), "one of a port's two inputs is no file")?;
        let held = bytes.split_off(..saved.held).filter(|held| held.len() <= PIECE);
        let Some(held) = held else { return unless(false, "a port holds more than was read") };
        // What its device's start asked of the threads is no part of the state that comes back.
        {
            let mut state = lock(&self.state);
            (state.room, state.written) = (false, false);
        }
        let mut state = self.at_rest()?;
        if let (Some(mut file), Some(at)) = (self.file(), saved.at) {
            file.seek(SeekFrom::Start(at)).map_err(|why| self.refused(&why))?;
        }
        state.held = held.to_vec();
        (state.open, state.room, state.written) = (saved.open, saved.room, false);
        (state.ended, state.refused) = (saved.ended, saved.refused);
        state.lost = saved.lost.map(HostError::from_raw_os_error);
        // The one that was there may have gone with the end of its input.
        self.read_from_now_on(&mut state);
        Ok(())
    }

    /// The input, if it is a file and so has a place.
    fn file(&self) -> Option<&File> {
        self.input.as_ref().filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))
    }

    /// Its state once its threads rest: nothing but a doorbell wakes them then.
    fn at_rest(&self) -> Result<MutexGuard<'_, State>, Error> {
        let until = Instant::now() + REST;
        let mut state = lock(&self.state);
        loop {
            let wakes = state.link.is_some();
            let writes =
                state.writer == Thread::Works || state.writer == Thread::Waits && wakes && state.written;
            // A file is never waited for.
            let reads = state.reader == Thread::Works
                || state.reader == Thread::Reads && (self.file().is_some() || !state.still)
                || state.reader == Thread::Waits && wakes && state.room && state.open && !state.still;
            if !writes && !reads {
                return Ok(state);
            }
            if Instant::now() >= until {
                return Err(self.refused(&match writes {
                    true => "the host does not take what was written",
                    false => "something may come in at any moment",
                }));
            }
            state = self.done.wait_timeout(state, LOOK).held().0;
        }
    }

    fn refused(&self, why: &dyn std::fmt::Display) -> Error {
        let name = &self.name;
        Error::refused(
            "the ports of a virtio console",
            format!("port {name}: {why}; let it be a file, or save later"),
        )
    }
}
