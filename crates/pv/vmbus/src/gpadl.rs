//! Lists of guest pages (GPADLs), which come in several messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use satori_memory::GuestMemory;
use serde::{Deserialize, Serialize};

use crate::{Bytes as _, Pages, SavedPages};

/// Most lists, and most pages in all of them: 4 GiB.
const LISTS: usize = 1024;
const FRAMES: usize = 1 << 20;

/// What became of a message about one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// More pages follow.
    Goes,
    /// It is whole; of this channel.
    Done(u32),
    /// It cannot be.
    Refused(u32),
    /// There is none of this number.
    Unknown,
}

struct List {
    relid: u32,
    offset: u64,
    len: u64,
    wanted: usize,
    frames: Vec<u64>,
    pages: Option<Arc<Pages>>,
}

/// All lists of a guest.
#[derive(Default)]
pub(crate) struct Gpadls {
    lists: BTreeMap<u32, List>,
    frames: usize,
}

/// A list as plain data: its channel, what its header said of it (offset, length, frames), the frames that came, and the pages if it is
/// whole.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedList {
    relid: u32,
    offset: u64,
    len: u64,
    wanted: usize,
    frames: Vec<u64>,
    pages: Option<SavedPages>,
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl Gpadls {
    /// GPADL_HEADER.
    pub(crate) fn header(&mut self, message: &[u8], memory: &GuestMemory) -> Made {
        let (relid, id) = (message.u32_at(8), message.u32_at(12));
        let (range, ranges) = (usize::from(message.u16_at(16)), message.u16_at(18));
        let (len, offset) = (message.u32_at(20), message.u32_at(24));
        let wanted = range.saturating_sub(8) / 8;
        let full = self.lists.len() >= LISTS || self.frames + wanted > FRAMES;
        // A list in use is not replaced. Nobody makes one of several ranges.
        if full || ranges != 1 || wanted == 0 || self.lists.contains_key(&id) {
            return Made::Refused(relid);
        }
        self.frames += wanted;
        let list =
            List { relid, offset: offset.into(), len: len.into(), wanted, frames: Vec::new(), pages: None };
        self.lists.insert(id, list);
        self.more(id, message.get(28..).unwrap_or_default(), memory)
    }

    /// GPADL_BODY.
    pub(crate) fn body(&mut self, message: &[u8], memory: &GuestMemory) -> Made {
        self.more(message.u32_at(12), message.get(16..).unwrap_or_default(), memory)
    }

    fn more(&mut self, id: u32, bytes: &[u8], memory: &GuestMemory) -> Made {
        let Some(list) = self.lists.get_mut(&id).filter(|list| list.pages.is_none()) else {
            return Made::Unknown;
        };
        let missing = list.wanted - list.frames.len();
        list.frames.extend(words(bytes).take(missing));
        if list.frames.len() < list.wanted {
            return Made::Goes;
        }
        let relid = list.relid;
        let frames = std::mem::take(&mut list.frames);
        match Pages::new(memory.clone(), list.offset, list.len, &frames) {
            Some(pages) => {
                list.pages = Some(Arc::new(pages));
                Made::Done(relid)
            }
            None => {
                self.remove(id);
                Made::Refused(relid)
            }
        }
    }

    /// All of them, by number.
    pub(crate) fn save(&self) -> Vec<(u32, SavedList)> {
        let list = |list: &List| SavedList {
            relid: list.relid,
            offset: list.offset,
            len: list.len,
            wanted: list.wanted,
            frames: list.frames.clone(),
            pages: list.pages.as_ref().map(|pages| pages.save()),
        };
        self.lists.iter().map(|(id, one)| (*id, list(one))).collect()
    }

    /// Those that were saved; none if a guest cannot have made them.
    pub(crate) fn restored(saved: Vec<(u32, SavedList)>, memory: &GuestMemory) -> Option<Self> {
        let mut all = Gpadls::default();
        if saved.len() > LISTS {
            return None;
        }
        for (id, SavedList { relid, offset, len, wanted, frames, pages }) in saved {
            let pages = match pages {
                Some(pages) => Some(Arc::new(Pages::restored(memory.clone(), &pages)?)),
                None if frames.len() >= wanted => return None,
                None => None,
            };
            all.frames = all.frames.checked_add(wanted).filter(|frames| *frames <= FRAMES && wanted > 0)?;
            let list = List { relid, offset, len, wanted, frames, pages };
            if all.lists.insert(id, list).is_some() {
                return None;
            }
        }
        Some(all)
    }

    /// The whole list `id` of channel `relid`.
    pub(crate) fn pages(&self, relid: u32, id: u32) -> Option<Arc<Pages>> {
        self.lists.get(&id).filter(|list| list.relid == relid).and_then(|list| list.pages.clone())
    }

    /// Forgets it.
    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(list) = self.lists.remove(&id) {
            self.frames -= list.wanted;
        }
    }
}
