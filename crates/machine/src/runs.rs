//! A vCPU as those see it that run it: threads, turns of virtual time, a debugger that holds it. They know no instruction set.

use satori_bus::Nanos;
use satori_save::Saved;
use satori_seam::{DebugCause, DebugPlan, Doing, Until};

use crate::control::Control;
use crate::{Event, VirtualClock};

/// What to do with a vCPU next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Enter it, at most until the partition's counter is this.
    Run { deadline: Option<u64> },
    /// Enter it for one instruction: the answer to the last exit is still to be taken, and an
    /// event waits behind it.
    Finish,
    /// It sleeps until it is woken, or until the partition's counter is this.
    Sleep { deadline: Option<u64> },
}

/// What an exit asks of whoever runs the vCPU, beyond being entered again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// It spins: let others run.
    Yield,
    /// The machine ends by this.
    Ends(Event),
    /// A debugger waits for this.
    Debug(DebugCause),
}

/// A vCPU with all that belongs to it.
pub(crate) trait Runs: Send + Sized {
    /// Its number in the partition.
    fn index(&self) -> u32;

    /// Its place among the machine's.
    fn slot(&self) -> usize {
        self.index() as usize
    }

    /// Takes what came in since the last exit, injects what can be, and tells what to do with it.
    fn prepare(&mut self) -> Entry;

    /// Whether an instruction of its waits for the answer that it was given: [`Entry::Finish`] executes that.
    fn owes(&self) -> bool {
        false
    }

    /// Enters the vCPU, and handles the exit.
    fn enter(&mut self, until: Until) -> After;

    /// Ends the time of the exit that was the last.
    fn finish(&mut self, now: Nanos);

    /// Value of the partition's counter at which a timer of its own expires next.
    fn deadline(&self) -> Option<u64>;

    /// Instructions that it retired.
    fn retired(&self) -> u64;

    /// Linear address of its next instruction.
    fn at(&self) -> u64;

    /// Whether it executes a kernel.
    fn in_kernel(&self) -> bool;

    /// Says what it does while it is not in the engine.
    fn does(&self, doing: Doing);

    /// Whether it halts in the engine, so that nobody here sees when it does.
    fn halts_inside(&self) -> bool {
        false
    }

    /// Takes a waiting kick: what was signalled before it is seen by the next
    /// [`Runs::prepare`], what comes after it ends the next entry.
    fn take_kick(&self) -> bool;

    /// Whether a kick waits.
    fn kicked(&self) -> bool;

    /// Takes a waiting kick, and counts what it is to a vCPU that executes. However many there were, they are one.
    fn be_kicked(&mut self);

    /// Its turn begins, under a virtual clock, on a host that ticks so often: counts what took a vCPU that executes out of the
    /// guest while it was another's turn.
    fn begin_turn(&mut self, tick: Option<Nanos>);

    /// Its turn ends behind an exit that is handled: a vCPU that executes is in the guest again meanwhile.
    fn go_on(&mut self);

    /// The guest time that its exits took since this was asked last, as instructions that one of so many vCPUs
    /// could have executed meanwhile. What is less than one is told with the next.
    fn take_stalled(&mut self, clock: &VirtualClock, vcpus: u64) -> u64;

    /// Hands on what a debugger asks; events hold off if `quiet`.
    fn set_debug(&mut self, plan: DebugPlan, quiet: bool);

    /// The state of the machine that `control` holds still.
    fn save_machine(_control: &Control<Self>) -> Result<Saved, satori_save::Error> {
        Err(unsaved())
    }

    /// Gives it back to a machine that `control` holds still.
    fn restore_machine(_control: &Control<Self>, _saved: Saved) -> Result<(), satori_save::Error> {
        Err(unsaved())
    }
}

fn unsaved() -> satori_save::Error {
    satori_save::Error::refused("a machine of this instruction set", "it has no saved states")
}
