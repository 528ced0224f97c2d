//! The files that the guest knows, as plain data. The host's are found again by their places when they are needed; what is not the same
//! file there is ESTALE, and so is what had no name any more.

use std::cell::Cell;

use serde::{Deserialize, Serialize};

use super::{Lower, NODES, Node, Nodes, ROOT};
use crate::content::Budget;
use crate::cow::{Change, SavedChange};
use crate::lower::{Place, Places, SavedPlace, SavedSlot};
use crate::saved::{Contents, failed, unfit, unless};

/// Numbers are below this, so that counting on comes to no end.
const NUMBERS: u64 = 1 << 62;

/// All nodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedNodes {
    places: Vec<SavedPlace>,
    all: Vec<SavedNode>,
    next: u64,
    devices: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedNode {
    id: u64,
    lookups: u64,
    ino: u64,
    /// The host's file, and whether it is hidden. The root is whatever folder is served.
    lower: Option<(SavedSlot, bool)>,
    change: Option<SavedChange>,
}

impl Nodes {
    /// What the guest knows; contents go behind `contents`.
    pub(crate) fn save(&self, contents: &mut Vec<u8>) -> Result<SavedNodes, satori_save::Error> {
        let mut places = Places::default();
        let mut ids: Vec<_> = self.all.iter().collect();
        ids.sort_unstable_by_key(|(id, _)| **id);
        let mut all = Vec::with_capacity(ids.len());
        for (&id, node) in ids {
            let change = node.change.as_ref().map(|change| change.save(contents)).transpose();
            let lower = node.lower.as_ref().map(|lower| (places.save(&lower.slot), lower.hidden));
            let change = change.map_err(failed)?;
            all.push(SavedNode { id, lookups: node.lookups, ino: node.ino, lower, change });
        }
        Ok(SavedNodes { places: places.all, all, next: self.next, devices: self.devices.clone() })
    }

    /// The guest knows what was saved, and nothing of what it knew; the host's folder is the one of now.
    pub(crate) fn restore(
        &mut self,
        saved: SavedNodes,
        contents: &mut Contents<'_>,
        budget: &Budget,
    ) -> Result<(), satori_save::Error> {
        let SavedNodes { places, all, next, devices } = saved;
        unless(all.len() <= NODES && (ROOT + 1..NUMBERS).contains(&next), "it counts files otherwise")?;
        unless(!devices.is_empty() && devices.len() <= NODES, "it is on no device")?;
        self.all.retain(|id, _| *id == ROOT);
        self.by_key.retain(|_, id| *id == ROOT);
        (self.top, self.next, self.devices) = (Place::root(), next, devices);
        let places = Places::restore(places, &self.top)?;
        let mut root = false;
        for SavedNode { id, lookups, ino, lower, change } in all {
            let change =
                change.map(|change| Change::restore(change, contents, budget).map(Box::new)).transpose()?;
            if id == ROOT {
                let own = self.get_mut(ROOT).map_err(failed)?;
                (own.lookups, own.ino, own.change) = (lookups, ino, change);
                root = true;
                continue;
            }
            unless(lower.is_some() || change.is_some(), "a file is neither the host's nor the guest's")?;
            let lower = lower.map(|(slot, hidden)| {
                let twice = self.by_key.insert(slot.key, id).is_some();
                unless(!twice, "it has one of the host's files twice")?;
                let slot = self.pool.closed_slot(&slot, &places)?;
                Ok(Lower { slot, roots: self.roots, hidden, checked: Cell::new(false) })
            });
            let node = Node { lookups, ino, lower: lower.transpose()?, change };
            unless(id < next && self.all.insert(id, node).is_none(), "it numbers files otherwise")?;
        }
        unless(root, "it has no root")?;
        let entries = self.all.values().filter_map(|node| node.change.as_ref());
        let mut named = entries.flat_map(|change| change.entries.values().flatten());
        match named.all(|id| self.all.contains_key(id)) {
            true => Ok(()),
            false => Err(unfit("a name stands for nothing")),
        }
    }
}
