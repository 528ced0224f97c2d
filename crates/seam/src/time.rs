//! A partition's time, and when a run ends by it.

/// When a run must end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// Value of the partition's counter ([`TimeSource::tsc`]) at which the vCPU's timer exits.
    pub tsc: Option<u64>,
    /// Instructions after which the run ends, exactly, where an engine can
    /// ([`Capability::ExactStop`](crate::Capability::ExactStop)).
    pub instructions: Option<u64>,
}

/// The partition's time, as an engine needs it.
pub trait TimeSource: Send + Sync {
    /// The partition's time-stamp counter.
    fn tsc(&self) -> u64;
    /// What a guest's time-stamp counter shows, before a vCPU's own offset: the partition's, unless
    /// its frequency was changed.
    fn guest_tsc(&self) -> u64 {
        self.tsc()
    }
    /// Tells that the calling vCPU retired `instructions` more. Called before every
    /// [`TimeSource::tsc`] and at the end of every run; virtual time advances by it.
    fn retired(&self, instructions: u64);
}
