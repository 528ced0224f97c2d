//! A cable that ends in a tap: the host's kernel takes and gives frames behind virtio's own header, and cuts segments and finishes
//! checksums where the driver or the other side cannot.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;

use satori_defs::virtio::net::HEADER;

use crate::frames::LONGEST;
use crate::{Cable, Card, Delivery};

/// Frames that are taken of one queue before the next has its turn.
const TURN: usize = 64;

/// Tells a queue of a tap what the guest can do itself: checksums, and TCP of IPv4 and of IPv6 that was not cut.
pub type Offload = Box<dyn Fn(&File, bool, bool, bool) -> std::io::Result<()> + Send + Sync>;

/// A network card on a tap.
pub struct TapCard {
    /// Its address.
    pub mac: [u8; 6],
    /// The tap, opened once for each pair of queues, so that nothing waits; a header of 12 bytes is before each frame.
    pub queues: Vec<File>,
    /// Tells the tap what the driver can do.
    pub offload: Offload,
}

impl fmt::Debug for TapCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapCard")
            .field("mac", &self.mac)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

/// What was read and the guest had no room for, and memory to read into.
#[derive(Default)]
pub(crate) struct Coming {
    buffer: Vec<u8>,
    /// The queue of the frame that waits in it, and its bytes with the header.
    waits: Option<(usize, usize)>,
    /// The queue whose turn it is.
    next: usize,
}

impl Coming {
    /// What waits is for nobody any more.
    pub(crate) fn forget(&mut self) {
        self.waits = None;
    }
}

impl TapCard {
    /// Gives a frame to the host's kernel, which drops what it has no room for.
    pub(crate) fn put(&self, header: &[u8; HEADER], frame: &[u8], pair: u16) {
        let Some(mut tap) = self.queues.get(usize::from(pair)) else { return };
        // It looks at the header itself, and refuses what makes no sense.
        if let Err(why) = tap.write(&[header, frame].concat()) {
            tracing::debug!("a frame could not be sent: {why}");
        }
    }

    /// Tells the tap what a driver can do.
    pub(crate) fn tell(&self, csum: bool, tso4: bool, tso6: bool) {
        for queue in &self.queues {
            if let Err(why) = (self.offload)(queue, csum, csum && tso4, csum && tso6) {
                tracing::warn!("the tap cannot be told what the guest can do ({why}): it does it itself");
            }
        }
    }
}

impl Cable {
    /// Takes the frames that are there, of each queue in turn, as far as the guest has room.
    pub(crate) fn receive_tap(
        &self,
        tap: &TapCard,
        card: &dyn Card,
        coming: &mut Coming,
    ) -> Result<(), String> {
        coming.buffer.resize(HEADER + LONGEST, 0);
        let mut silent = 0;
        while silent < tap.queues.len() {
            let (queue, mut file) = match coming.waits {
                Some((queue, _)) => (queue, &tap.queues[queue]),
                None => (coming.next, &tap.queues[coming.next]),
            };
            for turn in 0..TURN {
                let len = match coming.waits.take() {
                    Some((_, len)) => len,
                    None => match file.read(&mut coming.buffer) {
                        Ok(len) => len,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            silent = if turn == 0 { silent + 1 } else { 1 };
                            break;
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                        Err(error) => return Err(error.to_string()),
                    },
                };
                silent = 0;
                let Some((header, frame)) = coming.buffer[..len].split_first_chunk::<HEADER>() else {
                    continue;
                };
                // Set before the queue is looked at: who adds a buffer then rings the bell.
                self.starving.store(true, Ordering::SeqCst);
                if let Delivery::Wait = card.deliver(*header, Some(queue as u16), frame) {
                    coming.waits = Some((queue, len));
                    return Ok(());
                }
                self.starving.store(false, Ordering::SeqCst);
            }
            coming.next = (queue + 1) % tap.queues.len();
        }
        Ok(())
    }
}
