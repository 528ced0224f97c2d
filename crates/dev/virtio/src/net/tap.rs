//! A card whose cable is a tap: the host's kernel takes and gives frames behind virtio's own header, and cuts segments and finishes
//! checksums where the driver or the other side cannot.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use satori_defs::virtio::net::*;

use super::frames::{LONGEST, SHORTEST};
use super::{Delivery, Net};
use crate::Link;

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
pub(super) struct Coming {
    buffer: Vec<u8>,
    /// The queue of the frame that waits in it, and its bytes with the header.
    waits: Option<(usize, usize)>,
    /// The queue whose turn it is.
    next: usize,
}

impl TapCard {
    /// Gives the frames that the driver sends to the host's kernel, which drops what it has no room for.
    pub(super) fn transmit(&self, link: &Arc<Link>, queue: u16) {
        let Some(mut tap) = self.queues.get(usize::from(queue / 2)) else { return };
        while let Some(chain) = link.pop(queue) {
            let bytes = chain.read(link.memory(), 0, HEADER + LONGEST + 1);
            link.give(queue, &chain, |_, _| 0);
            if (HEADER + SHORTEST..=HEADER + LONGEST).contains(&bytes.len()) {
                // It looks at the header itself, and refuses what makes no sense.
                if let Err(why) = tap.write(&bytes) {
                    tracing::debug!("a frame could not be sent: {why}");
                }
            }
        }
    }

    /// Tells the tap what a driver that accepted `features` can do.
    pub(super) fn offload(&self, features: u64) {
        let has = |bit: u64| features & bit != 0;
        let csum = has(GUEST_CSUM);
        for queue in &self.queues {
            if let Err(why) = (self.offload)(queue, csum, csum && has(GUEST_TSO4), csum && has(GUEST_TSO6)) {
                tracing::warn!("the tap cannot be told what the guest can do ({why}): it does it itself");
            }
        }
    }
}

impl Net {
    /// Takes the frames that are there, of each queue in turn, as far as the guest has room.
    pub(super) fn receive_tap(&self, card: &TapCard, coming: &mut Coming) -> Result<(), String> {
        coming.buffer.resize(HEADER + LONGEST, 0);
        let mut silent = 0;
        while silent < card.queues.len() {
            let (queue, mut tap) = match coming.waits {
                Some((queue, _)) => (queue, &card.queues[queue]),
                None => (coming.next, &card.queues[coming.next]),
            };
            for turn in 0..TURN {
                let len = match coming.waits.take() {
                    Some((_, len)) => len,
                    None => match tap.read(&mut coming.buffer) {
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
                if let Delivery::Wait = self.deliver_with(*header, Some(queue as u16), frame) {
                    coming.waits = Some((queue, len));
                    return Ok(());
                }
                self.starving.store(false, Ordering::SeqCst);
            }
            coming.next = (queue + 1) % card.queues.len();
        }
        Ok(())
    }
}
