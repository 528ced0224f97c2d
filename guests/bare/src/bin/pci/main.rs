//! PCI as no kernel uses it: configuration space in odd sizes, base addresses that are sized, moved over each other, over memory and
//! over other devices, an MSI-X table with anything in it. Memory and other devices stay what they are, and functions come back.
//!
//! It needs a disk and a source of random bytes, both on virtio.

#![no_std]
#![no_main]

mod bases;
mod messages;
mod space;

use bases::{moved_while_it_is_used, moving, over_others, sizing};
use messages::{forged_messages, masks, pins, table, table_that_changes};
use space::{absent, capabilities, mechanism_1, odd_accesses, what_is_read_only};

use satori_guests::guest;

guest!(
    "pci",
    mechanism_1,
    absent,
    odd_accesses,
    what_is_read_only,
    capabilities,
    sizing,
    moving,
    over_others,
    moved_while_it_is_used,
    table,
    masks,
    forged_messages,
    table_that_changes,
    pins,
);
