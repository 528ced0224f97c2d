//! Watches of the guest, and the events that they bring.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::message::{HEADER, Header, kind};
use crate::permissions::READ;
use crate::store::Errno;
use crate::tree::Tree;
use crate::{GUEST, path, quota};

/// Bytes of the longest path of an event by itself, such as `@releaseDomain`.
const SPECIAL_MAX: usize = 2048;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Watch {
    /// What is watched: an absolute path, or an event by itself, as the host alone has them.
    path: String,
    token: Vec<u8>,
    /// It was named by a relative path, and so are its events.
    relative: bool,
}

/// The guest's watches, and what it has not heard yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Watches {
    all: Vec<Watch>,
    events: VecDeque<Vec<u8>>,
    /// Bytes of them.
    bytes: usize,
}

impl Watch {
    fn new(path: &[u8], token: &[u8]) -> Result<Self, Errno> {
        let special = path.starts_with(b"@");
        let text = match std::str::from_utf8(path) {
            Ok(text) if special && text.len() <= SPECIAL_MAX => text.to_string(),
            _ => path::absolute(path)?,
        };
        Ok(Watch { path: text, token: token.to_vec(), relative: !special && !path.starts_with(b"/") })
    }

    /// The event that tells of `path`.
    fn event(&self, path: &str) -> Vec<u8> {
        let shown = match path.strip_prefix(&path::home()).filter(|_| self.relative) {
            Some(rest) => rest.trim_start_matches('/'),
            None if path.is_empty() => "/",
            None => path,
        };
        let header = Header { kind: kind::WATCH_EVENT, request: 0, transaction: 0, len: 0 };
        header.with(kind::WATCH_EVENT, &[shown.as_bytes(), b"\0", &self.token, b"\0"].concat())
    }
}

impl Watches {
    /// Begins one, which brings an event at once.
    pub(crate) fn add(&mut self, path: &[u8], token: &[u8]) -> Result<(), Errno> {
        let watch = Watch::new(path, token)?;
        if self.all.contains(&watch) {
            return Err(Errno::EEXIST);
        }
        if self.all.len() >= quota::WATCHES {
            return Err(Errno::E2BIG);
        }
        let event = watch.event(&watch.path);
        self.all.push(watch);
        self.tell(event);
        Ok(())
    }

    /// Ends one.
    pub(crate) fn end(&mut self, path: &[u8], token: &[u8]) -> Result<(), Errno> {
        let watch = Watch::new(path, token)?;
        let at = self.all.iter().position(|one| *one == watch).ok_or(Errno::ENOENT)?;
        self.all.remove(at);
        Ok(())
    }

    /// Ends all, with what they brought.
    pub(crate) fn clear(&mut self) {
        *self = Watches::default();
    }

    /// The node at `path` has changed, or is gone. Who watches something above hears of that, unless `exact`; who may not read it
    /// hears nothing.
    pub(crate) fn fire(&mut self, tree: &Tree, path: &str, exact: bool) {
        let readable = match tree.get(path) {
            Some(node) => node.permissions.allow(GUEST, READ),
            // Of one that is gone: what is above it decides.
            None => !matches!(tree.allowed(GUEST, path, READ), Err(Errno::EACCES)),
        };
        if !readable {
            return;
        }
        let hears = |watch: &&Watch| if exact { watch.path == path } else { path::within(path, &watch.path) };
        let events: Vec<_> = self.all.iter().filter(hears).map(|watch| watch.event(path)).collect();
        events.into_iter().for_each(|event| self.tell(event));
    }

    fn tell(&mut self, event: Vec<u8>) {
        if self.bytes + event.len() <= quota::EVENTS {
            self.bytes += event.len();
            self.events.push_back(event);
        }
    }

    /// The next event, as a message.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let event = self.events.pop_front()?;
        self.bytes -= event.len();
        Some(event)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.bytes
    }

    pub(crate) fn fit(&self) -> bool {
        let bytes: usize = self.events.iter().map(Vec::len).sum();
        self.all.len() <= quota::WATCHES
            && self.bytes == bytes
            && bytes <= quota::EVENTS
            && self.events.iter().all(|event| event.len() >= HEADER)
    }
}
