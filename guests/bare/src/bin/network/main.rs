//! A network card as no kernel uses it: frames whose lengths, headers, checksums and offloads are wrong, addresses that are others',
//! buffers that are too small. The other end goes on, closed addresses stay closed, and frames that are right are answered.
//!
//! It needs `--net user`, and on its command line `closed=PORT`, a port of the host's loopback at which nobody may arrive.

#![no_std]
#![no_main]

mod card;
mod frames;
mod hostile;

use hostile::*;
use satori_guests::guest;

guest!(
    "network",
    as_it_should_be,
    lengths,
    offloads,
    packets,
    packets_of_version_6,
    segments,
    closed_addresses,
    connections_without_end,
    datagrams,
    neighbours,
    small_buffers,
    other_queues,
    anything,
);
