//! The store: messages to what they do, and back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::message::{Header, PAYLOAD_MAX, kind};
use crate::permissions::{Permissions, READ, WRITE};
use crate::transaction::Transaction;
use crate::tree::Tree;
use crate::watches::Watches;
use crate::{GUEST, path, quota};

/// Errors, which an answer has by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::upper_case_acronyms, reason = "names of the interface")]
#[allow(missing_docs)]
pub enum Errno {
    EINVAL,
    EACCES,
    EEXIST,
    ENOENT,
    ENOSPC,
    ENOSYS,
    EAGAIN,
    E2BIG,
    EPERM,
}

/// The store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    tree: Tree,
    watches: Watches,
    transactions: BTreeMap<u32, Transaction>,
    /// The last transaction's number.
    last: u32,
    /// What the guest changed and the host has not heard of.
    #[serde(skip)]
    changed: Vec<String>,
}

/// What an answer has.
type Answer = Result<Vec<u8>, Errno>;

const OK: &[u8] = b"OK\0";

/// Strings that each end with a NUL; the last one need not.
fn strings(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    payload.strip_suffix(b"\0").unwrap_or(payload).split(|byte| *byte == 0)
}

/// The one string of a payload.
fn string(payload: &[u8]) -> Result<&[u8], Errno> {
    let text = payload.strip_suffix(b"\0").ok_or(Errno::EINVAL)?;
    if text.contains(&0) { Err(Errno::EINVAL) } else { Ok(text) }
}

impl Default for Store {
    fn default() -> Self {
        Store {
            tree: Tree::new(),
            watches: Watches::default(),
            transactions: BTreeMap::new(),
            last: 0,
            changed: Vec::new(),
        }
    }
}

impl Store {
    /// The value at `path`, absolute, as the host sees it.
    pub fn get(&self, path: &str) -> Option<&[u8]> {
        self.tree.get(path).map(|node| &*node.value)
    }

    /// The same as text that is a number, or whatever else can be read of it.
    pub fn read<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        std::str::from_utf8(self.get(path)?).ok()?.trim().parse().ok()
    }

    /// Sets the value at `path` for the host, with nodes above it.
    pub fn set(&mut self, path: &str, value: &str) {
        // The host may write everywhere.
        let made = self.tree.write(0, path, value.as_bytes()).unwrap_or_default();
        debug_assert!(self.get(path).is_some(), "{path}: {made:?}");
        self.watches.fire(&self.tree, path, false);
    }

    /// Gives `path`, which is there, to the guest; or lets the guest read what is the host's.
    pub fn give(&mut self, path: &str, owned: bool) {
        let to = if owned { Permissions::new(GUEST, 0) } else { Permissions::new(0, 0).with_reader(GUEST) };
        let given = self.tree.permit(0, path, to);
        debug_assert!(given.is_ok(), "{path}");
    }

    /// Removes `path` and what is below, for the host.
    pub fn remove(&mut self, path: &str) {
        if let Ok(gone) = self.tree.remove(0, path) {
            self.tell_gone(path, &gone);
        }
    }

    /// Paths that the guest changed since they were last asked for.
    pub fn take_changed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.changed)
    }

    /// The next event of the guest's watches, as a message.
    pub fn event(&mut self) -> Option<Vec<u8>> {
        self.watches.next()
    }

    /// Bytes of events that wait.
    pub fn events(&self) -> usize {
        self.watches.waiting()
    }

    /// The guest begins anew: its watches and transactions are over.
    pub fn disconnect(&mut self) {
        self.watches.clear();
        self.transactions.clear();
    }

    /// Whether it is one that can be.
    pub fn fits(&self) -> bool {
        self.tree.fits()
            && self.watches.fit()
            && self.transactions.len() <= quota::TRANSACTIONS
            && self.transactions.values().all(Transaction::fits)
    }

    /// Does what the guest's message asks for, and gives the answer, a whole message.
    pub fn request(&mut self, header: Header, payload: &[u8]) -> Vec<u8> {
        let answer = match payload.len() <= PAYLOAD_MAX {
            true => self.serve(&header, payload),
            false => Err(Errno::EINVAL),
        };
        match answer {
            Ok(answer) if answer.len() <= PAYLOAD_MAX => header.with(header.kind, &answer),
            Ok(_) => header.with(kind::ERROR, b"E2BIG\0"),
            Err(why) => header.with(kind::ERROR, format!("{why:?}\0").as_bytes()),
        }
    }

    fn serve(&mut self, header: &Header, payload: &[u8]) -> Answer {
        match header.kind {
            kind::WATCH | kind::UNWATCH => {
                let mut parts = strings(payload);
                let (Some(path), Some(token), None) = (parts.next(), parts.next(), parts.next()) else {
                    return Err(Errno::EINVAL);
                };
                match header.kind {
                    kind::WATCH => self.watches.add(path, token)?,
                    _ => self.watches.end(path, token)?,
                }
            }
            kind::RESET_WATCHES => self.watches.clear(),
            kind::TRANSACTION_START => return self.begin(header.transaction),
            kind::TRANSACTION_END => self.end(header.transaction, payload)?,
            kind::GET_DOMAIN_PATH => {
                let domain: u16 = number(string(payload)?)?;
                return Ok(format!("/local/domain/{domain}\0").into_bytes());
            }
            kind::IS_DOMAIN_INTRODUCED => {
                let domain: u16 = number(string(payload)?)?;
                return Ok(if domain <= GUEST { b"T\0".to_vec() } else { b"F\0".to_vec() });
            }
            hosts if kind::HOSTS.contains(&hosts) => return Err(Errno::EACCES),
            _ => return self.node(header, payload),
        }
        Ok(OK.to_vec())
    }

    fn begin(&mut self, within: u32) -> Answer {
        if within != 0 {
            return Err(Errno::EINVAL);
        }
        if self.transactions.len() >= quota::TRANSACTIONS {
            return Err(Errno::ENOSPC);
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.transactions.contains_key(&self.last) {
                break;
            }
        }
        self.transactions.insert(self.last, Transaction::new(&self.tree));
        Ok(format!("{}\0", self.last).into_bytes())
    }

    fn end(&mut self, number: u32, payload: &[u8]) -> Result<(), Errno> {
        let commit = match string(payload)? {
            b"T" => true,
            b"F" => false,
            _ => return Err(Errno::EINVAL),
        };
        let transaction = self.transactions.remove(&number).ok_or(Errno::ENOENT)?;
        if commit {
            transaction.commit(&mut self.tree)?;
            transaction.told.iter().for_each(|(path, exact)| self.tell(path, *exact));
        }
        Ok(())
    }

    /// A message about a node, in the transaction that it names.
    fn node(&mut self, header: &Header, payload: &[u8]) -> Answer {
        let (first, rest) = match payload.iter().position(|byte| *byte == 0) {
            Some(end) => (&payload[..end], &payload[end + 1..]),
            None => return Err(Errno::EINVAL),
        };
        let path = path::absolute(first)?;
        let tree = match header.transaction {
            0 => &self.tree,
            number => {
                let transaction = self.transactions.get_mut(&number).ok_or(Errno::ENOENT)?;
                transaction.look(&path)?;
                &transaction.tree
            }
        };
        match header.kind {
            kind::READ if rest.is_empty() => Ok(tree.allowed(GUEST, &path, READ)?.value.clone()),
            kind::GET_PERMS if rest.is_empty() => Ok(tree.allowed(GUEST, &path, READ)?.permissions.text()),
            kind::DIRECTORY if rest.is_empty() => {
                tree.allowed(GUEST, &path, READ)?;
                Ok(names(tree, &path))
            }
            kind::DIRECTORY_PART => {
                let from: usize = number(string(rest)?)?;
                let changed = tree.allowed(GUEST, &path, READ)?.changed;
                part(changed, &names(tree, &path), from)
            }
            kind::WRITE => self.change(header.transaction, &path, |tree| {
                tree.write(GUEST, &path, rest).map(|made| made.into_iter().chain([path.clone()]).collect())
            }),
            kind::MKDIR if rest.is_empty() => self.change(header.transaction, &path, |tree| {
                if let Some(there) = tree.get(&path) {
                    return match there.permissions.allow(GUEST, WRITE) {
                        true => Ok(Vec::new()),
                        false => Err(Errno::EACCES),
                    };
                }
                tree.make(GUEST, &path)
            }),
            kind::SET_PERMS => {
                let to = Permissions::read(strings(rest))?;
                self.change(header.transaction, &path, |tree| {
                    tree.permit(GUEST, &path, to).map(|()| vec![path.clone()])
                })
            }
            kind::RM if rest.is_empty() => self.remove_for_guest(header.transaction, &path),
            kind::READ | kind::GET_PERMS | kind::DIRECTORY | kind::MKDIR | kind::RM => Err(Errno::EINVAL),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Changes the tree, or that of a transaction; `change` tells which nodes are others now, if any, and that is told of `path`.
    fn change(
        &mut self,
        transaction: u32,
        path: &str,
        change: impl FnOnce(&mut Tree) -> Result<Vec<String>, Errno>,
    ) -> Answer {
        let told = (path.to_string(), false);
        match self.transactions.get_mut(&transaction).filter(|_| transaction != 0) {
            Some(own) => {
                let before = own.tree.clone();
                let paths = change(&mut own.tree)?;
                own.changed(&before, &paths);
                if !paths.is_empty() {
                    own.told.retain(|one| *one != told);
                    own.told.push(told);
                }
            }
            None => {
                if !change(&mut self.tree)?.is_empty() {
                    self.tell(path, false);
                }
            }
        }
        Ok(OK.to_vec())
    }

    fn remove_for_guest(&mut self, transaction: u32, path: &str) -> Answer {
        match self.transactions.get_mut(&transaction).filter(|_| transaction != 0) {
            Some(own) => {
                let before = own.tree.clone();
                let gone = own.tree.remove(GUEST, path)?;
                own.changed(&before, &gone);
                let told = gone.iter().map(|one| (one.clone(), one != path));
                own.told.retain(|(one, _)| !gone.contains(one));
                own.told.extend(told);
            }
            None => {
                let gone = self.tree.remove(GUEST, path)?;
                self.tell_gone(path, &gone);
                self.changed.extend(gone);
            }
        }
        Ok(OK.to_vec())
    }

    /// `path` went, and the nodes `gone`, which it and those below it were.
    fn tell_gone(&mut self, path: &str, gone: &[String]) {
        gone.iter().for_each(|one| self.watches.fire(&self.tree, one, one != path));
    }

    /// The guest changed `path`.
    fn tell(&mut self, path: &str, exact: bool) {
        self.watches.fire(&self.tree, path, exact);
        self.changed.push(path.into());
    }
}

fn names(tree: &Tree, path: &str) -> Vec<u8> {
    tree.children(path).iter().flat_map(|name| name.bytes().chain([0])).collect()
}

/// A part of a list of names from byte `from` on, behind what tells whether all parts are of one list. The last part ends with a NUL
/// more.
fn part(changed: u64, names: &[u8], from: usize) -> Answer {
    let mut answer = format!("{changed}\0").into_bytes();
    let rest = names.get(from..).ok_or(Errno::EINVAL)?;
    let room = PAYLOAD_MAX - answer.len() - 1;
    if rest.len() <= room {
        answer.extend(rest);
        answer.push(0);
    } else {
        // Whole names only.
        let end = rest[..room].iter().rposition(|byte| *byte == 0).ok_or(Errno::E2BIG)?;
        answer.extend(&rest[..=end]);
    }
    Ok(answer)
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Result<T, Errno> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Errno::EINVAL)
}
