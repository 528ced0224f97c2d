//! The flags of `satori run -- COMMAND`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};

/// A command that is run in the guest, and what it finds there.
#[derive(Debug, Args)]
pub struct RunCommand {
    /// A command to run in the guest, on this machine's own files, as the user who calls. Its streams and its status
    /// are passed through; what it changes stays in memory, unless --rw or --rwdir say otherwise
    #[arg(last = true, value_name = "COMMAND")]
    pub words: Vec<OsString>,
    /// The folder that is the command's root, instead of this machine's own [with --arch arm64: Debian's busybox]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "words")]
    pub root: Option<PathBuf>,
    /// Let the command change the root itself
    #[arg(long, requires = "words")]
    pub rw: bool,
    /// Let the command change this folder itself. May be given several times
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "words")]
    pub rwdir: Vec<PathBuf>,
    /// Who the command is in the guest, by name or number; root may mount and change what the caller may not, where changes
    /// stay in memory [default: the user who calls]
    #[arg(long, value_name = "USER", requires = "words")]
    pub user: Option<String>,
    /// Where the kernel's modules are [default: beside the kernel, in its package, its build tree or /lib/modules]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "words")]
    pub modules: Option<PathBuf>,
    /// Write how the run ended to FILE, as JSON: who ended it (command, guest, satori, user), how, the number
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "words")]
    pub status_file: Option<PathBuf>,
}
