//! What can fail in the tool itself.

/// Failures of the tool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host refused something.
    #[error("cannot {what}: {why}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// The host's reason.
        why: std::io::Error,
    },
    /// A line of the corpus cannot be read.
    #[error("'{word}' is not part of a case: {why}")]
    Line {
        /// The part of the line.
        word: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Guest memory cannot be made.
    #[error(transparent)]
    Memory(#[from] satori_memory::Error),
    /// No case can be executed.
    #[error(
        "nothing can be compared on this host: a child process cannot execute even UD2 at the cases' addresses. \
         vm.mmap_min_addr, SELinux or seccomp may forbid its memory, whose code pages are shared and executable; an \
         emulator of programs may not give it the signals. Run it where these permit it"
    )]
    Unable,
    /// The engine cannot be had.
    #[error("{0}")]
    Engine(String),
    /// Nothing is left to compare.
    #[error("no instruction that can be compared matches '{0}'")]
    NoForm(String),
}

impl Error {
    /// The failure of the last system call.
    pub fn system(what: &'static str) -> Self {
        Error::System { what, why: std::io::Error::last_os_error() }
    }
}
