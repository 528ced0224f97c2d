//! Which connections a guest has through a user network of ours, when its machine is saved and when it goes on from there.
//!
//! Connections stay behind: they are sockets of the host's. The user network is asked for them when a card is saved, and hears of
//! them when the state is taken back, so that it resets them even if it has never seen them. Frames that come before it has heard of
//! that are for another guest, and are dropped. Whoever else is at the other end is told nothing.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use satori_defs::cable::{ANEW, ASK, CONNECTION, CONNECTIONS_MAX, TOLD};
use satori_lock::lock;
use satori_save::Error;

use crate::Cable;
use crate::frames::note;
use crate::plug::{End, Work};

/// How long the user network may take to tell its connections: it waits for nobody.
const ANSWER: Duration = Duration::from_secs(5);

impl Cable {
    /// What its thread does for the guest stands still, or goes on.
    pub fn hold(&self, still: bool) {
        lock(&self.work).still = still;
        if !still {
            self.look();
        }
    }

    /// The guest's connections, as a user network of ours tells them, while the cable is held. What else comes is kept for the guest.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        let End::Stream { socket, ours: true } = &self.end else { return Ok(Vec::new()) };
        let mut work = lock(&self.work);
        if self.dead() {
            return Ok(Vec::new());
        }
        let refused =
            |why: &str| Error::refused("a network card", format!("the user network: {why}; try again"));
        work.asked = work.asked.wrapping_add(1);
        let number = work.asked;
        lock(&self.sending).outgoing.put(&note(ASK, number, &[]));
        let until = Instant::now() + ANSWER;
        loop {
            let mut wanted = PollFlags::IN;
            match lock(&self.sending).outgoing.send(socket) {
                Ok(true) => {}
                Ok(false) => wanted |= PollFlags::OUT,
                Err(why) => return Err(refused(&why.to_string())),
            }
            if let Some(told) = answer(&mut work, socket, number).map_err(|why| refused(&why))? {
                return Ok(told);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(refused("it does not answer"));
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(socket, wanted)], Some(&timeout));
        }
    }

    /// The guest is one that was saved with these connections, of which `name` is the part that has them. Once the cable is let go,
    /// its card is asked to go on: nobody rings again for what the guest had sent and the card had not taken.
    pub fn restore(&self, told: &[u8], name: &'static str) -> Result<(), Error> {
        let fit = told.len() <= CONNECTIONS_MAX * CONNECTION && told.len().is_multiple_of(CONNECTION);
        Error::unless(fit, name, "there are no such connections")?;
        let mut work = lock(&self.work);
        work.coming.forget();
        self.starving.store(false, Ordering::SeqCst);
        lock(&self.sending).stalled = true;
        if self.ours() && !self.dead() {
            work.asked = work.asked.wrapping_add(1);
            work.awaited = Some(work.asked);
            lock(&self.sending).outgoing.put(&note(ANEW, work.asked, told));
            self.send();
        }
        Ok(())
    }
}

/// Reads what is there; the answer, if it is among it.
fn answer(work: &mut Work, socket: &UnixStream, number: u32) -> Result<Option<Vec<u8>>, String> {
    match work.frames.read(socket) {
        Ok(0) => return Err("it closed its connection".into()),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(error) => return Err(error.to_string()),
    }
    Ok(work.frames.find(TOLD, number)?.map(<[u8]>::to_vec))
}
