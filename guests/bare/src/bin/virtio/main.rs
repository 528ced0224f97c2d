//! Virtual devices as no driver uses them: queues that lead in circles, out of memory and into each other, tables that change
//! meanwhile, registers out of order, drivers that go away in the middle. A device that a rule was broken towards stands still and
//! is as new after a reset; nothing else is harmed.
//!
//! It needs a disk of 1 MiB that it may write. With `few=yes` on the command line what is done many times is done less often, for a
//! clock by which a request takes long.

#![no_std]
#![no_main]

mod disk;
mod every;
mod raced;
mod rules;
mod setup;

use raced::{comes_and_goes, counts_that_run_away, rings_in_each_other, tables_that_change};
use rules::{addresses, heads_and_indices, indirect, lengths, loops, order};
use setup::{features_and_status, queue_registers, registers_of_every_size, window};

use disk::{delays, requests};
use every::{every_device, every_queue_of_garbage};
use satori_guests::guest;
use satori_guests::harness::option;

/// `many`, or less.
fn rounds(many: u32) -> u32 {
    if option("few") == Some("yes") { many.min(100) } else { many }
}

guest!(
    "virtio",
    requests,
    loops,
    addresses,
    lengths,
    order,
    indirect,
    heads_and_indices,
    features_and_status,
    queue_registers,
    registers_of_every_size,
    window,
    tables_that_change,
    counts_that_run_away,
    rings_in_each_other,
    comes_and_goes,
    every_device,
    every_queue_of_garbage,
    delays,
);
