//! The nodes, by path.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::permissions::{Permissions, READ, WRITE};
use crate::store::Errno;
use crate::{GUEST, path, quota};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Node {
    pub value: Vec<u8>,
    pub permissions: Permissions,
    /// When it was last changed, or got or lost a child.
    pub changed: u64,
}

/// All of them; a path begins with a slash and ends with none, and the root is the empty one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
    /// Counts changes.
    now: u64,
}

impl Tree {
    /// A root that everybody may read.
    pub(crate) fn new() -> Self {
        let root = Node { value: Vec::new(), permissions: Permissions::new(0, READ), changed: 0 };
        Tree { nodes: [(String::new(), root)].into(), now: 0 }
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// Paths of all nodes below `path`.
    pub(crate) fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a String> {
        // '0' is the character behind '/'.
        let (first, behind) = (format!("{path}/"), format!("{path}0"));
        self.nodes.range(first..behind).map(|(path, _)| path)
    }

    /// Names of the children of `path`.
    pub(crate) fn children(&self, path: &str) -> Vec<&str> {
        let depth = path.len() + 1;
        self.below(path).map(|child| &child[depth..]).filter(|name| !name.contains('/')).collect()
    }

    /// Nodes that are the guest's.
    pub(crate) fn guests(&self) -> usize {
        self.nodes.values().filter(|node| node.permissions.owner() == GUEST).count()
    }

    /// The node at `path`, with which `domain` may do `what`. Who may not even know whether there is one hears that it may not.
    pub(crate) fn allowed(&self, domain: u16, path: &str, what: u8) -> Result<&Node, Errno> {
        match self.nodes.get(path) {
            Some(node) if node.permissions.allow(domain, what) => Ok(node),
            Some(_) => Err(Errno::EACCES),
            None => {
                let mut above = path::parent(path);
                while let Some(parent) = above {
                    if let Some(node) = self.nodes.get(parent) {
                        return Err(match node.permissions.allow(domain, what) {
                            true => Errno::ENOENT,
                            false => Errno::EACCES,
                        });
                    }
                    above = path::parent(parent);
                }
                Err(Errno::EACCES)
            }
        }
    }

    /// The node at `path` is another one now.
    pub(crate) fn touch(&mut self, path: &str) {
        self.now += 1;
        if let Some(node) = self.nodes.get_mut(path) {
            node.changed = self.now;
        }
    }

    /// Makes the node at `path` and those above it, as far as they are not there; the paths of those that it made.
    pub(crate) fn make(&mut self, domain: u16, path: &str) -> Result<Vec<String>, Errno> {
        let mut missing = Vec::new();
        let mut at = path;
        let permissions = loop {
            match self.nodes.get(at) {
                Some(node) if missing.is_empty() || node.permissions.allow(domain, WRITE) => {
                    break node.permissions.inherited(domain);
                }
                Some(_) => return Err(Errno::EACCES),
                None => missing.push(at.to_string()),
            }
            at = path::parent(at).ok_or(Errno::EINVAL)?;
        };
        if !missing.is_empty() {
            if domain == GUEST && self.guests() + missing.len() > quota::NODES {
                return Err(Errno::ENOSPC);
            }
            self.touch(at);
        }
        for path in &missing {
            self.now += 1;
            let node = Node { value: Vec::new(), permissions: permissions.clone(), changed: self.now };
            self.nodes.insert(path.clone(), node);
        }
        Ok(missing)
    }

    /// Sets the value of the node at `path`, which it makes if need be; the paths of those that it made.
    pub(crate) fn write(&mut self, domain: u16, path: &str, value: &[u8]) -> Result<Vec<String>, Errno> {
        if domain == GUEST && value.len() > quota::VALUE {
            return Err(Errno::ENOSPC);
        }
        if self.nodes.get(path).is_some_and(|node| !node.permissions.allow(domain, WRITE)) {
            return Err(Errno::EACCES);
        }
        let made = self.make(domain, path)?;
        if let Some(node) = self.nodes.get_mut(path) {
            node.value = value.to_vec();
        }
        self.touch(path);
        Ok(made)
    }

    /// Removes the node at `path` and all below it; their paths, the lower ones first.
    pub(crate) fn remove(&mut self, domain: u16, path: &str) -> Result<Vec<String>, Errno> {
        let parent = path::parent(path).ok_or(Errno::EINVAL)?;
        if !self.nodes.contains_key(path) {
            // Who wants it gone has what it wants, if there is a place where it could be.
            return self.allowed(domain, parent, WRITE).map(|_| Vec::new());
        }
        self.allowed(domain, path, WRITE)?;
        let mut gone: Vec<String> = self.below(path).cloned().collect();
        gone.reverse();
        gone.push(path.into());
        gone.iter().for_each(|path| drop(self.nodes.remove(path)));
        self.touch(parent);
        Ok(gone)
    }

    /// Sets who may do what with the node at `path`.
    pub(crate) fn permit(&mut self, domain: u16, path: &str, to: Permissions) -> Result<(), Errno> {
        let node = self.nodes.get(path).ok_or_else(|| match self.allowed(domain, path, READ) {
            Err(why) => why,
            Ok(_) => Errno::ENOENT,
        })?;
        if domain != 0 && node.permissions.owner() != domain {
            return Err(Errno::EACCES);
        }
        // Only the host gives nodes away.
        if domain != 0 && to.owner() != domain {
            return Err(Errno::EPERM);
        }
        if let Some(node) = self.nodes.get_mut(path) {
            node.permissions = to;
        }
        self.touch(path);
        Ok(())
    }

    /// Takes over what `other` has at `path`, or has not.
    pub(crate) fn take_over(&mut self, path: &str, other: &Tree) {
        let Some(node) = other.nodes.get(path) else {
            self.nodes.remove(path);
            return;
        };
        let mut node = node.clone();
        self.now += 1;
        node.changed = self.now;
        self.nodes.insert(path.into(), node);
    }

    /// Whether a store can have it: a node above each, and no more than a guest may have.
    pub(crate) fn fits(&self) -> bool {
        let whole = |path: &String| {
            path::parent(path).map_or(path.is_empty(), |parent| self.nodes.contains_key(parent))
        };
        let sized = |node: &Node| node.permissions.fit() && node.value.len() <= crate::PAYLOAD_MAX;
        self.nodes.keys().all(whole)
            && self.nodes.contains_key("")
            && self.nodes.values().all(sized)
            && self.guests() <= quota::NODES
            && self.nodes.len() <= 2 * quota::NODES
            && self.now < 1 << 62
    }
}
