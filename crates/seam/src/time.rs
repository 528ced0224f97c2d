//! A partition's time, and when a run ends by it.

/// When a run must end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// Value of the partition's counter ([`TimeSource::counter`]) at which the vCPU's timer exits.
    pub counter: Option<u64>,
    /// Instructions after which the run ends, exactly, where an engine can
    /// ([`Capability::ExactStop`](crate::Capability::ExactStop)).
    pub instructions: Option<u64>,
}

/// How the partition's counter follows from the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfHost {
    /// Added to the host's counter, modulo 2^64.
    pub ahead: u64,
    /// Frequency of both, in Hz.
    pub hz: u64,
}

/// The partition's time, as an engine needs it.
pub trait TimeSource: Send + Sync {
    /// The partition's counter, as its instruction set reads the clock.
    fn counter(&self) -> u64;
    /// What a guest's counter shows, before a vCPU's own offset: the partition's, unless
    /// its frequency was changed.
    fn guest_counter(&self) -> u64 {
        self.counter()
    }
    /// How that follows from the host's own, for who executes on the host's processor; none if it does not tick with it.
    fn of_host(&self) -> Option<OfHost> {
        None
    }
    /// Tells that the calling vCPU retired `instructions` more. Called before every
    /// [`TimeSource::counter`] and at the end of every run; virtual time advances by it.
    fn retired(&self, instructions: u64);
}
