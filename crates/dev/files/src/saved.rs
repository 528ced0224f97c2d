//! A guest's session as a value, and back: which files it knows, what it holds open, and what was changed in memory.
//!
//! The host's folder is not in it. A file of the host's is found again by the names that led to it, if it still is the same file; of
//! one that is not, or that had no name any more, the guest is told ESTALE.

use std::io::{self, Write};

use rustix::io::Errno;
use satori_defs::share::{KIND, NOTE, REFUSED, TAKE, TAKEN, TELL, TOLD};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::Mode;
use crate::handles::{Handles, SavedHandles};
use crate::nodes::SavedNodes;
use crate::plan9::SavedFids;
use crate::server::Server;

/// A session. The bytes of its value are contents that were changed, behind each other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSession {
    /// What the guest may do.
    mode: String,
    nodes: SavedNodes,
    handles: SavedHandles,
    /// It was told that no file has to be opened.
    #[serde(default)]
    by_node: bool,
    /// What it holds besides, if it asks by 9P.
    fids: Option<SavedFids>,
}

impl State for SavedSession {
    const NAME: &'static str = "file server";
    const VERSION: u32 = 1;
}

/// What somebody else wrote cannot be.
pub(crate) fn unfit(why: &str) -> Error {
    Error::unfit(SavedSession::NAME, why)
}

pub(crate) fn unless(fits: bool, why: &str) -> Result<(), Error> {
    Error::unless(fits, SavedSession::NAME, why)
}

/// What the host refused, as what somebody else wrote cannot be.
pub(crate) fn unless_done<T>(done: Result<T, Errno>, why: &str) -> Result<T, Error> {
    done.map_err(|errno| unfit(&format!("{why} ({errno})")))
}

/// What the host refused when a session was saved.
pub(crate) fn failed(errno: Errno) -> Error {
    Error::refused("a shared folder", format!("its server: {errno}; try again"))
}

/// Contents, as far as they were not taken.
#[derive(Debug)]
pub(crate) struct Contents<'a>(&'a [u8]);

impl<'a> Contents<'a> {
    pub(crate) fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| unfit("contents are missing"))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// What serves a guest, and can be given its session.
pub(crate) trait Session {
    /// The session. The host's folder may change behind it.
    fn save(&mut self) -> Result<Value, Error>;
    /// Takes one back instead of its own. One that refuses it has none.
    fn restore(&mut self, value: &Value) -> Result<(), Error>;
}

impl Server {
    /// The session, of which `fids` are a part.
    pub(crate) fn saved(&self, fids: Option<SavedFids>) -> Result<Value, Error> {
        let mut contents = Vec::new();
        let nodes = self.nodes.save(&mut contents)?;
        let handles = self.handles.save()?;
        let (mode, by_node) = (self.mode.name().into(), self.by_node);
        Value::with_bytes(&SavedSession { mode, nodes, handles, by_node, fids }, contents)
    }

    /// Takes one back; the fids that are a part of it.
    pub(crate) fn take_back(&mut self, value: &Value) -> Result<Option<SavedFids>, Error> {
        let SavedSession { mode, nodes, handles, by_node, fids } = value.state()?;
        unless(mode == self.mode.name(), "what the guest may do with the folder is not the same")?;
        unless(!by_node || self.mode == Mode::Cow, "files that are changed have to be opened")?;
        self.by_node = by_node;
        self.recent.clear();
        self.handles = Handles::default();
        let mut contents = Contents(value.bytes());
        let budget = self.budget.clone();
        self.nodes.restore(nodes, &mut contents, &budget)?;
        unless(contents.0.is_empty(), "contents are left over")?;
        let open = |node, flags| self.open_lower(self.nodes.get(node).ok()?, flags).ok();
        self.handles = Handles::restore(handles, self.mode == Mode::Rw, open)?;
        Ok(fids)
    }
}

impl Session for Server {
    fn save(&mut self) -> Result<Value, Error> {
        self.saved(None)
    }

    fn restore(&mut self, value: &Value) -> Result<(), Error> {
        unless(self.take_back(value)?.is_none(), "the guest spoke another protocol")
    }
}

/// Answers a note of the device's, whose word without its mark is `word`.
pub(crate) fn answer(
    session: &mut dyn Session,
    word: u32,
    told: &[u8],
    to: &mut impl Write,
) -> io::Result<()> {
    let done = match word & KIND {
        TELL => session.save().and_then(|value| value.pack()).map(|packed| (TOLD, packed)),
        TAKE => Value::unpack(told, SavedSession::NAME)
            .and_then(|value| session.restore(&value))
            .map(|()| (TAKEN, Vec::new())),
        _ => Err(unfit("there is no such note")),
    };
    let (kind, told) = done.unwrap_or_else(|why| (REFUSED, why.to_string().into_bytes()));
    to.write_all(&(NOTE | word & !KIND | kind).to_le_bytes())?;
    to.write_all(&(told.len() as u64).to_le_bytes())?;
    to.write_all(&told)
}
