//! An instruction set, as a family of types.

use std::fmt::Debug;

use crate::Reason;

/// What is an instruction set's own at the seam. One that comes is one more implementation, and no type becomes wider.
pub trait Isa: Copy + Debug + Send + Sync + 'static {
    /// The register file of a vCPU.
    type State: Clone + Debug + PartialEq + Send;
    /// Parts of the register file, as a set.
    type Parts: Copy + Debug;
    /// Why a vCPU stopped.
    type Exit: Copy + Debug + PartialEq + Send;
    /// What an exit is answered.
    type Answer: Copy + Debug + PartialEq + Send;
    /// What can be injected.
    type Event: Copy + Debug + PartialEq + Send;
    /// What the machine would carry out at a vCPU, unless that makes something else of it: a reset, a start.
    type Signal: Copy + Debug;
    /// A moment in which an event of one kind can be taken.
    type Window: Copy + Debug;
    /// What of the processor the machine sets beside its registers.
    type Controls: Debug;
    /// The state of a vCPU's interrupt controller.
    type Controller: Clone + Debug + Send;
    /// What a guest is offered of the instruction set. What is not offered does not exist.
    type Offered: Clone + Debug + Send + Sync;

    /// Every reason for which a vCPU leaves its guest, by ascending number.
    const REASONS: &'static [Reason];

    /// Why `exit` is an exit of the modelled processor, as far as that follows from it alone; none if it is not one.
    fn reason(exit: &Self::Exit) -> Option<Reason>;

    /// Whether a vCPU in `state` could take an event of `window`'s kind now.
    fn can_take(state: &Self::State, window: Self::Window) -> bool;
}
