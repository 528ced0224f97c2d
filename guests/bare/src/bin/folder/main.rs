//! A shared folder as no kernel uses it: FUSE messages as bytes through the device's queues, with names that lead elsewhere, numbers
//! that nobody was given, lengths that are wrong, and messages that change meanwhile. Whatever is asked, nothing outside the folder
//! is seen or changed, and the server goes on.
//!
//! The folder (`--share`, with `mode=ro`, `rw` or `cow` on the command line) has `file` with "inside", a directory `dir`, the symbolic
//! links `up` to "..", `away` to the absolute path of its parent and `circle` to itself; beside it is `secret`. `swap` is sometimes
//! a directory and sometimes a link to the parent, as the host changes it meanwhile, where `swap=yes` says so.

#![no_std]
#![no_main]

mod client;
mod hostile;

use hostile::*;
use satori_guests::guest;

guest!(
    "folder",
    as_it_should_be,
    names,
    links,
    forged_nodes,
    forged_handles,
    counts_of_forgetting,
    lengths,
    numbers_that_are_alike,
    read_only,
    messages_that_change,
    anything,
    swapped,
);
