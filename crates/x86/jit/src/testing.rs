//! Machines of the processor's tests, whose hot code may be translated.

use std::ops::{Deref, DerefMut};

use satori_engine::{Exit, Until};
use satori_soft::block::Blocks;
use satori_soft::cpu::Cpu;
use satori_soft::execute::{Interpreting, run};
use satori_soft::testing;

use crate::{Jit, Translating};

/// A processor that one of the two engines executes.
pub(crate) enum Machine {
    Interpreting(Box<Interpreting>),
    Translating(Box<Translating>),
    /// Only while it is changed.
    Neither,
}

/// [`testing::machine64`], interpreted.
pub(crate) fn machine64() -> Machine {
    Machine::Interpreting(Box::new(testing::machine64()))
}

impl Deref for Machine {
    type Target = Cpu;

    fn deref(&self) -> &Cpu {
        match self {
            Machine::Interpreting(one) => &one.cpu,
            Machine::Translating(one) => &one.cpu,
            Machine::Neither => unreachable!("nobody sees it"),
        }
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Cpu {
        match self {
            Machine::Interpreting(one) => &mut one.cpu,
            Machine::Translating(one) => &mut one.cpu,
            Machine::Neither => unreachable!("nobody sees it"),
        }
    }
}

impl Machine {
    /// Executes until something needs the machine.
    pub(crate) fn run(&mut self, until: Until) -> Exit {
        match self {
            Machine::Interpreting(one) => run(&mut **one, until),
            Machine::Translating(one) => run(&mut **one, until),
            Machine::Neither => unreachable!("nobody sees it"),
        }
    }

    /// Goes on with `jit`, or without; nothing is decoded then.
    pub(crate) fn put(&mut self, jit: Option<Box<Jit>>) {
        let cpu = match std::mem::replace(self, Machine::Neither) {
            Machine::Interpreting(one) => one.cpu,
            Machine::Translating(one) => one.cpu,
            Machine::Neither => unreachable!("nobody sees it"),
        };
        *self = match jit {
            Some(jit) => Machine::Translating(Box::new(Translating::new(cpu, jit))),
            None => Machine::Interpreting(Box::new(Interpreting::new(cpu))),
        };
    }

    /// What it has decoded.
    pub(crate) fn blocks(&self) -> &Blocks {
        match self {
            Machine::Interpreting(one) => &one.blocks,
            Machine::Translating(one) => &one.blocks,
            Machine::Neither => unreachable!("nobody sees it"),
        }
    }

    pub(crate) fn jit(&self) -> Option<&Jit> {
        match self {
            Machine::Translating(one) => Some(&one.jit),
            _ => None,
        }
    }

    pub(crate) fn jit_mut(&mut self) -> Option<&mut Jit> {
        match self {
            Machine::Translating(one) => Some(&mut one.jit),
            _ => None,
        }
    }
}
