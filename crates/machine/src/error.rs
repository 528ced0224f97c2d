//! Why a machine could not be made.

/// Failures of [`Machine::new`](crate::Machine::new); the text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part of the configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// Guest memory could not be reserved.
    #[error(transparent)]
    Memory(#[from] satori_memory::Error),
    /// The host refused a thread.
    #[error("cannot start a thread: {0}; use fewer --cpus")]
    Thread(std::io::Error),
}
