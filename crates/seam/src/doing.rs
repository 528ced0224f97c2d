//! What a vCPU is doing at this moment, for whoever samples it from another thread.

use std::sync::atomic::{AtomicU8, Ordering};

/// What the time of a vCPU goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Doing {
    /// The machine handles an exit, or prepares an entry.
    Exit,
    /// It sleeps until something wakes it.
    Asleep,
    /// It is another vCPU's turn, under a virtual clock.
    Waiting,
    /// It interprets, decodes, and looks for what to execute next.
    Interpreting,
    /// It executes translated code.
    Translated,
    /// Translated code called the generic implementation of an instruction.
    Helping,
    /// Translated code's access missed the TLB.
    Missing,
    /// Guest code becomes host code.
    Translating,
}

impl Doing {
    /// All of them, in the order of their numbers.
    pub const ALL: [Doing; 8] = [
        Doing::Exit,
        Doing::Asleep,
        Doing::Waiting,
        Doing::Interpreting,
        Doing::Translated,
        Doing::Helping,
        Doing::Missing,
        Doing::Translating,
    ];

    /// A name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Doing::Exit => "exits",
            Doing::Asleep => "asleep",
            Doing::Waiting => "not its turn",
            Doing::Interpreting => "interpreter and dispatch",
            Doing::Translated => "translated code",
            Doing::Helping => "helpers called by it",
            Doing::Missing => "MMU misses of it",
            Doing::Translating => "translation",
        }
    }
}

/// The place where a vCPU's thread says what it does. Telling is one store of a byte, so nobody asks
/// first whether anyone looks.
#[derive(Debug, Default)]
pub struct Whereabouts(AtomicU8);

impl Whereabouts {
    /// From now on it does this.
    #[inline(always)]
    pub fn set(&self, doing: Doing) {
        self.0.store(doing as u8, Ordering::Relaxed);
    }

    /// What it does, as far as another thread can tell.
    pub fn get(&self) -> Doing {
        let number = self.0.load(Ordering::Relaxed);
        Doing::ALL.get(usize::from(number)).copied().unwrap_or(Doing::Exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_last_is_told() {
        let whereabouts = Whereabouts::default();
        assert_eq!(whereabouts.get(), Doing::Exit);
        for (number, doing) in Doing::ALL.into_iter().enumerate() {
            assert_eq!(doing as usize, number, "ALL is in the order of the numbers");
            whereabouts.set(doing);
            assert_eq!(whereabouts.get(), doing);
        }
    }
}
