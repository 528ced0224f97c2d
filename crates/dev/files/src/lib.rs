//! The file server: one of the host's folders, offered to a guest as FUSE or 9P messages on a socket.
//!
//! It is a process of its own ([`start`]), which gives away what serving does not need ([`main`]) before it reads
//! the first message: whoever breaks into it through a message finds that folder and nothing else. What holds
//! for the guest holds here and not in the guest's mount: a read-only folder refuses every change, and
//! in a copy-on-write folder changes stay in this process's memory.
//!
//! A request names a file by the number that an earlier reply gave it, and one component of a path: `..`, `/`
//! and symbolic links lead nowhere, as names are opened with openat2(2) and the guest's kernel follows links
//! itself. Numbers, handles and counts are guest input.

#![forbid(unsafe_code)]

mod attr;
mod changes;
mod content;
mod cow;
mod handles;
mod host;
mod lower;
mod nodes;
mod plan9;
mod process;
mod read;
mod saved;
mod server;
pub mod testing;
#[cfg(test)]
mod tests;
mod waiting;
mod wire;

pub use process::{COMMAND, Error, Share, main, start};
pub use satori_sandbox::helper::Helper;

/// What a guest may do with a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Read it.
    #[default]
    Ro,
    /// Read it and change it.
    Rw,
    /// Read it and change what it sees of it, in memory; the folder stays as it is.
    Cow,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Ro, Mode::Rw, Mode::Cow];

    /// As options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Ro => "ro",
            Mode::Rw => "rw",
            Mode::Cow => "cow",
        }
    }
}

/// In which words a guest asks for files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// FUSE, as virtiofs has it.
    #[default]
    Fuse,
    /// 9P2000.L.
    Plan9,
}

impl Protocol {
    /// Both.
    pub const ALL: [Protocol; 2] = [Protocol::Fuse, Protocol::Plan9];

    /// As options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Fuse => "virtiofs",
            Protocol::Plan9 => "9p",
        }
    }
}
