//! Why a vCPU left its guest, as numbers and names of its instruction set.
//!
//! Whoever counts or writes exits keys them by a [`Reason`] and asks nothing else of the instruction set. A processor has far
//! fewer than [`Reason::NUMBERS`], so that what is counted by reason is an array.

use std::cmp::Ordering;
use std::fmt;

/// What an exit is about, whichever the processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The guest has nothing to do: its time is no cost.
    Idle,
    /// An access to a device's memory; some processors do not tell it from a fault.
    Mmio,
    /// The host gives or protects a page.
    Memory,
    /// An access to a port.
    Port,
    /// A write of a system register; some processors do not tell it from a read.
    RegisterWrite,
    /// A read of a system register.
    RegisterRead,
    /// An interrupt of the host's, or a kick.
    HostInterrupt,
    /// The guest takes interrupts again: one is injected. Not where the processor delivers virtual interrupts.
    Window,
    /// The guest lowers its task priority, on which an interrupt waits. Not where the processor delivers them either.
    Priority,
    /// A register of the vCPU's interrupt controller that the processor does not virtualise whole.
    Controller,
    /// The end of an interrupt that the host wants to know of.
    Eoi,
    /// An interrupt to a virtual processor that does not run.
    Ipi,
    /// A call of the hypervisor.
    Hypercall,
    /// A loop that waits for another processor: a lock whose holder may not run.
    Pause,
    /// A debug register.
    Debug,
    /// A deadline of the guest's own timer.
    Timer,
    /// A guest that is a hypervisor itself.
    Nested,
    /// The guest asks which processor it has.
    Identity,
    /// A register that controls the processor: its modes, tables and extended state.
    Control,
    /// Whatever else.
    Other,
}

impl Class {
    /// Every class.
    pub const ALL: &'static [Class] = &[
        Class::Idle,
        Class::Mmio,
        Class::Memory,
        Class::Port,
        Class::RegisterWrite,
        Class::RegisterRead,
        Class::HostInterrupt,
        Class::Window,
        Class::Priority,
        Class::Controller,
        Class::Eoi,
        Class::Ipi,
        Class::Hypercall,
        Class::Pause,
        Class::Debug,
        Class::Timer,
        Class::Nested,
        Class::Identity,
        Class::Control,
        Class::Other,
    ];
}

/// A row of an instruction set's table of reasons.
#[derive(Clone, Copy, Debug)]
pub struct ReasonRow {
    /// Its number in the manual, or beyond those of the manual; below [`Reason::NUMBERS`].
    pub number: u8,
    /// Its name in reports: as `perf kvm stat` has it.
    pub name: &'static str,
    /// What such exits are about.
    pub class: Class,
}

/// Why a vCPU left its guest: a row of its instruction set's table ([`Isa::REASONS`](crate::Isa::REASONS)). Two are the same
/// if their numbers are; reasons of different instruction sets are not compared.
#[derive(Clone, Copy)]
pub struct Reason(&'static ReasonRow);

impl Reason {
    /// All numbers are below this.
    pub const NUMBERS: usize = 128;

    /// The reason that a row is of.
    pub const fn of(row: &'static ReasonRow) -> Self {
        assert!((row.number as usize) < Self::NUMBERS, "a reason's number is small");
        Reason(row)
    }

    /// The reason of that number in a table.
    pub fn find(table: &[Reason], number: u16) -> Option<Self> {
        table.iter().copied().find(|reason| reason.number() == number)
    }

    /// The reason of that name in a table, in capitals or not.
    pub fn named(table: &[Reason], name: &str) -> Option<Self> {
        table.iter().copied().find(|reason| reason.name().eq_ignore_ascii_case(name))
    }

    /// Its number, as the instruction set's manual has it where that has one.
    pub const fn number(self) -> u16 {
        self.0.number as u16
    }

    /// Its number as a place in an array of [`Reason::NUMBERS`].
    #[inline]
    pub const fn index(self) -> usize {
        self.0.number as usize
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// What it is about.
    pub const fn class(self) -> Class {
        self.0.class
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Reason {}

impl PartialOrd for Reason {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Reason {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.number.cmp(&other.0.number)
    }
}
