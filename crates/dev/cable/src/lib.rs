//! A network card's cable: where frames of a guest go, and come from, whichever bus the card is on.
//!
//! The other end is somebody else's process, ours (`satori-net`) or passt, behind a socket; or the host's kernel, behind a tap. A
//! frame is sent on the thread that brings it if the other end takes it; a thread of the cable's own sends what waits and brings what
//! comes. While the other end is behind, what the guest sends stays where its card has it; while the guest is behind, what comes stays in
//! the socket. So between the two nothing is lost but what nobody listens to.
//!
//! Of a saved machine's cable nothing is saved but which connections its guest had (`saved`): what was on it is lost when that state is
//! taken back, as where a cable is pulled.
//!
//! Before each frame is a header as virtio's cards have it (virtio 1.2, 5.1.6), which other cards translate.

#![forbid(unsafe_code)]

mod checksum;
mod frames;
mod plug;
mod saved;
mod stream;
mod tap;
mod waiting;

pub use frames::{LONGEST, SHORTEST};
pub use plug::{Cable, Card, Delivery, Error, MTU, Nic, PAIRS_MAX};
pub use stream::{Incoming, Outgoing, bring_all};
pub use tap::{Offload, TapCard};
