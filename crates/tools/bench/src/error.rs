/// What keeps a benchmark from running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Satori was built without the program.
    #[error("this satori was built without its benchmark program: {0}; then build satori again")]
    NoProgram(&'static str),
    /// A row or group that there is not.
    #[error("there is no row or group '{0}': 'satori bench --list' names them")]
    UnknownRow(String),
    /// A kernel without an ELF file inside.
    #[error("the kernel cannot be unpacked ({0}): name a Debian kernel")]
    Kernel(#[from] satori_boot::Error),
    /// A parameter of the talk's guest that is wrong.
    #[error("{0}")]
    Parameter(String),
    /// A guest that did not do what it was to do.
    #[error("a run failed: {0}")]
    Run(String),
    /// The user ended it.
    #[error("ended before it was done")]
    Stopped,
}
