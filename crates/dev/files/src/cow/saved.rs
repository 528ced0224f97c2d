//! Changes as plain data. Contents are kept apart, behind each other.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Change, Data};
use crate::attr::Attr;
use crate::content::{Budget, Content};
use crate::saved::{Contents, unless, unless_done};
use crate::wire::component;

/// Names, and what belongs to each.
type Named<T> = Vec<(Vec<u8>, T)>;

/// A change.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedChange {
    attr: Attr,
    data: SavedData,
    xattrs: Option<Named<Vec<u8>>>,
    pub entries: Named<Option<u64>>,
    nameless: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum SavedData {
    Lower,
    /// The content's size, and where it has bytes: place and length of each piece.
    File {
        size: u64,
        pieces: Vec<(u64, u64)>,
    },
    Link(Vec<u8>),
}

impl Change {
    /// What it is; contents go behind `contents`.
    pub(crate) fn save(&self, contents: &mut Vec<u8>) -> Result<SavedChange, Errno> {
        let data = match &self.data {
            Data::Lower => SavedData::Lower,
            Data::Link(text) => SavedData::Link(text.clone()),
            Data::File(content) => {
                let (size, pieces) = content.save(contents)?;
                SavedData::File { size, pieces }
            }
        };
        let named = |all: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>| {
            all.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        Ok(SavedChange {
            attr: self.attr,
            data,
            xattrs: self.xattrs.as_ref().map(named),
            entries: self.entries.iter().map(|(name, id)| (name.clone(), *id)).collect(),
            nameless: self.nameless,
        })
    }

    /// The change that was saved, charged to `budget`.
    pub(crate) fn restore(
        saved: SavedChange,
        contents: &mut Contents<'_>,
        budget: &Budget,
    ) -> Result<Change, satori_save::Error> {
        let SavedChange { attr, data, xattrs, entries, nameless } = saved;
        unless(entries.iter().all(|(name, _)| component(name).is_ok()), "a name in it is none")?;
        let data = match data {
            SavedData::Lower => Data::Lower,
            SavedData::Link(text) => Data::Link(text),
            SavedData::File { size, pieces } => {
                let pieces = pieces.into_iter().map(|(at, len)| Ok((at, contents.take(len)?)));
                let pieces = pieces.collect::<Result<Vec<_>, satori_save::Error>>()?;
                let content = Content::restore(budget, size, pieces.into_iter());
                Data::File(unless_done(content, "a content does not fit")?)
            }
        };
        let xattrs = xattrs.map(|all| all.into_iter().collect());
        Ok(Change { attr, data, xattrs, entries: entries.into_iter().collect(), nameless })
    }
}
