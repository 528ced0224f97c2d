//! Transactions: a copy of the tree that is worked on, and taken over if nobody has changed what it touched.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::path;
use crate::quota;
use crate::store::Errno;
use crate::tree::Tree;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transaction {
    pub tree: Tree,
    /// When each node that was looked at was last changed, as the transaction began; and whether it was changed in it.
    touched: BTreeMap<String, (Option<u64>, bool)>,
    /// What is to be told, in order: a path, and whether only to who watches exactly that.
    pub told: Vec<(String, bool)>,
}

impl Transaction {
    pub(crate) fn new(tree: &Tree) -> Self {
        Transaction { tree: tree.clone(), touched: BTreeMap::new(), told: Vec::new() }
    }

    /// `path` is looked at, as `before` it was. The error is that it is one too many.
    pub(crate) fn look(&mut self, path: &str) -> Result<(), Errno> {
        if !self.touched.contains_key(path) {
            if self.touched.len() >= quota::TOUCHED {
                return Err(Errno::ENOSPC);
            }
            let changed = self.tree.get(path).map(|node| node.changed);
            self.touched.insert(path.into(), (changed, false));
        }
        Ok(())
    }

    /// These paths were changed, and those above them got or lost a child. Nodes that were not looked at are new, or went with what is
    /// above them.
    pub(crate) fn changed(&mut self, before: &Tree, paths: &[String]) {
        for path in paths {
            let node = |path: &str| before.get(path).map(|node| node.changed);
            self.touched.entry(path.clone()).or_insert_with(|| (node(path), true)).1 = true;
            if let Some(parent) = path::parent(path) {
                self.touched.entry(parent.into()).or_insert_with(|| (node(parent), false));
            }
        }
    }

    /// Takes what was changed over into `tree`, if what was touched is there as it was.
    pub(crate) fn commit(&self, tree: &mut Tree) -> Result<(), Errno> {
        let same = |(path, (was, _)): (&String, &(Option<u64>, bool))| {
            tree.get(path).map(|node| node.changed) == *was
        };
        if !self.touched.iter().all(same) {
            return Err(Errno::EAGAIN);
        }
        let mut next = tree.clone();
        for (path, _) in self.touched.iter().filter(|(_, (_, changed))| *changed) {
            next.take_over(path, &self.tree);
            let parent = path::parent(path).filter(|parent| !self.touched.get(*parent).is_some_and(|p| p.1));
            if let Some(parent) = parent {
                next.touch(parent);
            }
        }
        if next.guests() > quota::NODES && next.guests() > tree.guests() {
            return Err(Errno::ENOSPC);
        }
        *tree = next;
        Ok(())
    }

    pub(crate) fn fits(&self) -> bool {
        self.tree.fits() && self.touched.len() <= 4 * quota::TOUCHED && self.told.len() <= 4 * quota::TOUCHED
    }
}
