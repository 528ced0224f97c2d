//! Host code that an engine makes, for whoever keeps its names.

use std::fmt::Debug;

use satori_memory::GuestMemory;

/// Host code that an engine has just made.
#[derive(Clone, Copy)]
pub struct Made<'a> {
    /// Where it will be executed.
    pub address: u64,
    /// Its bytes as they are now; jumps in them may be led elsewhere later.
    pub code: &'a [u8],
    /// What it was made of.
    pub origin: Origin<'a>,
}

/// What host code was made of.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// Of nothing of the guest's: it is the engine's own, of this name.
    Engine(&'static str),
    /// Of guest code.
    Guest {
        /// Its linear address.
        pc: u64,
        /// It runs at privilege level 3.
        user: bool,
        /// The guest's RAM, in which names may be found.
        memory: &'a GuestMemory,
    },
}

/// Is told of all host code that engines make, by the threads that make it.
pub trait CodeWatcher: Debug + Send + Sync {
    /// `made` will be executed from now on, until other code is made at its address.
    fn made(&self, made: &Made<'_>);
}
