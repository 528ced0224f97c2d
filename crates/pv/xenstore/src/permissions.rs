//! Who may do what with a node: its owner everything, the others what they are named with, or what the first entry says.

use serde::{Deserialize, Serialize};

use crate::store::Errno;
use crate::{GUEST, quota};

/// Reading and writing, as bits.
pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;

/// Entries: a domain, and what it may do. The first is the owner, with what those may do who are in no entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Permissions(Vec<(u16, u8)>);

impl Permissions {
    /// Those of a node of `owner`'s, with which others may do `others`.
    pub(crate) fn new(owner: u16, others: u8) -> Self {
        Permissions(vec![(owner, others)])
    }

    /// The same, and `domain` may read.
    pub(crate) fn with_reader(mut self, domain: u16) -> Self {
        self.0.push((domain, READ));
        self
    }

    /// Whether a node can have them.
    pub(crate) fn fit(&self) -> bool {
        (1..=quota::PERMISSIONS).contains(&self.0.len())
    }

    pub(crate) fn owner(&self) -> u16 {
        self.0.first().map_or(0, |(owner, _)| *owner)
    }

    /// Whether `domain` may do all of `what`.
    pub(crate) fn allow(&self, domain: u16, what: u8) -> bool {
        let Some(((owner, others), named)) = self.0.split_first() else { return domain == 0 };
        let may = named.iter().find(|(of, _)| *of == domain).map_or(*others, |(_, may)| *may);
        domain == 0 || domain == *owner || may & what == what
    }

    /// What a node has that `domain` makes below one that has these.
    pub(crate) fn inherited(&self, domain: u16) -> Self {
        let mut own = self.clone();
        if domain == GUEST
            && let Some(first) = own.0.first_mut()
        {
            first.0 = domain;
        }
        own
    }

    /// As text: each entry a letter and a number.
    pub(crate) fn text(&self) -> Vec<u8> {
        let letter = |may| match may {
            0 => 'n',
            READ => 'r',
            WRITE => 'w',
            _ => 'b',
        };
        self.0.iter().flat_map(|(of, may)| format!("{}{of}\0", letter(*may)).into_bytes()).collect()
    }

    /// Reads that.
    pub(crate) fn read<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Result<Self, Errno> {
        let mut all = Vec::new();
        for entry in entries {
            let text = std::str::from_utf8(entry).map_err(|_| Errno::EINVAL)?;
            let may = match text.chars().next() {
                Some('n') => 0,
                Some('r') => READ,
                Some('w') => WRITE,
                Some('b') => READ | WRITE,
                _ => return Err(Errno::EINVAL),
            };
            if all.len() == quota::PERMISSIONS {
                return Err(Errno::ENOSPC);
            }
            all.push((text[1..].parse().map_err(|_| Errno::EINVAL)?, may));
        }
        if all.is_empty() { Err(Errno::EINVAL) } else { Ok(Permissions(all)) }
    }
}
