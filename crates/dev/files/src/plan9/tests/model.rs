//! The random operations of the folder's model as 9P has them: the same succeed, and the same trees in the end.

use proptest::prelude::*;
use rustix::io::Errno;

use super::{Guest, body, kind};
use super::{ROOT, Text};
use crate::Mode;
use crate::tests::Folder;
use crate::tests::model::{Op, Tree, operation, plain, plain_tree, populate, through_link};

/// P9_SETATTR_MODE, P9_SETATTR_SIZE.
const MODE: u32 = 1;
const SIZE: u32 = 8;

type Done = Result<String, Errno>;

impl Guest {
    fn parent<'a>(&mut self, path: &'a str) -> Result<(u32, &'a str), Errno> {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.walk(folders).map(|fid| (fid, name))
    }

    fn set(&mut self, path: &str, which: u32, mode: u32, size: u64) -> Result<(), Errno> {
        let fid = self.walk(path)?;
        let request = body().u32(fid).u32(which).u32(mode).u32(0).u32(0).u64(size).bytes(&[0; 32]);
        self.ask(kind::SETATTR, request).map(drop)
    }

    fn put(&mut self, path: &str, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let fid = match self.walk(path) {
            Err(Errno::NOENT) => {
                let (directory, name) = self.parent(path)?;
                self.ask(kind::LCREATE, body().u32(directory).text(name).u32(2).u32(0o644).u32(0))?;
                directory
            }
            found => {
                let fid = found?;
                self.ask(kind::LOPEN, body().u32(fid).u32(2))?;
                fid
            }
        };
        let written = self.write(fid, at, bytes)?;
        assert_eq!(written as usize, bytes.len());
        Ok(())
    }

    fn get(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        let fid = self.open(path, 0)?;
        self.read(fid, 0, 1 << 16)
    }

    fn perform(&mut self, op: &Op) -> Done {
        let made = |told: Result<Vec<u8>, Errno>| told.map(|_| String::new());
        match op {
            Op::Mkdir(path) => {
                let (directory, name) = self.parent(path)?;
                made(self.ask(kind::MKDIR, body().u32(directory).text(name).u32(0o755).u32(0)))
            }
            Op::Put(path, at, bytes) => self.put(path, *at, bytes).map(|()| String::new()),
            Op::Get(path) => self.get(path).map(|bytes| format!("{bytes:?}")),
            Op::Unlink(path) | Op::Rmdir(path) => {
                let (directory, name) = self.parent(path)?;
                let flags = if matches!(op, Op::Rmdir(_)) { 0x200 } else { 0 };
                made(self.ask(kind::UNLINKAT, body().u32(directory).text(name).u32(flags)))
            }
            Op::Rename(old, new, _) => {
                let ((from, old), (to, new)) = (self.parent(old)?, self.parent(new)?);
                made(self.ask(kind::RENAMEAT, body().u32(from).text(old).u32(to).text(new)))
            }
            Op::Link(old, new) => {
                let (target, (directory, name)) = (self.walk(old)?, self.parent(new)?);
                made(self.ask(kind::LINK, body().u32(directory).u32(target).text(name)))
            }
            Op::Symlink(text, path) => {
                let (directory, name) = self.parent(path)?;
                made(self.ask(kind::SYMLINK, body().u32(directory).text(name).text(text).u32(0)))
            }
            Op::Truncate(path, size) => self.set(path, SIZE, 0, *size).map(|()| String::new()),
            Op::Chmod(path, mode) => self.set(path, MODE, *mode, 0).map(|()| String::new()),
            Op::List(path) => {
                let fid = self.open(path, 0)?;
                self.ask(kind::READDIR, body().u32(fid).u64(0).u32(100)).map(|_| String::new())
            }
            Op::Nameless(..) | Op::Host(..) | Op::Forget(..) => unreachable!("9P has none"),
        }
    }

    /// Gives back every so many of the fids that it has.
    fn clunk_some(&mut self, step: usize) {
        let mut known: Vec<u32> = self.server.fids.keys().copied().filter(|&fid| fid != ROOT).collect();
        known.sort_unstable();
        for fid in known.into_iter().step_by(step) {
            self.clunk(fid).unwrap();
        }
    }

    fn tree(&mut self, prefix: &str, tree: &mut Tree) {
        for name in self.names(prefix.trim_end_matches('/'), 1 << 12) {
            let path = format!("{prefix}{name}");
            if name == "." || name == ".." {
                continue;
            }
            let fid = self.walk(&path).unwrap();
            let (mode, _, _) = self.stat(fid).unwrap();
            let holds = match mode >> 12 {
                4 => {
                    self.tree(&format!("{path}/"), tree);
                    String::new()
                }
                8 => format!("{:?}", self.get(&path).unwrap()),
                _ => String::new(),
            };
            tree.insert(path, (mode, 0, holds));
        }
    }
}

/// Linux itself refuses to move a directory into itself.
fn into_itself(op: &Op) -> bool {
    let within = |one: &str, two: &str| one.starts_with(&format!("{two}/"));
    matches!(op, Op::Rename(old, new, _) if within(old, new) || within(new, old))
}

fn compare(mode: Mode, ops: &[Op]) -> Result<(), TestCaseError> {
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let (ours, theirs) = (Folder::new(), Folder::new());
    populate(&ours);
    populate(&theirs);
    let mut guest = Guest::new(&ours, mode);
    for op in ops {
        // 9P2000.L has neither flags of renames nor files without names.
        let op = match op {
            Op::Rename(old, new, _) => &Op::Rename(old.clone(), new.clone(), 0),
            Op::Forget(_, step) => {
                guest.clunk_some(*step as usize);
                continue;
            }
            other => other,
        };
        if through_link(&theirs, op) || into_itself(op) || matches!(op, Op::Nameless(..)) {
            continue;
        }
        let told = match op {
            Op::Host(..) if mode == Mode::Cow => continue,
            Op::Host(..) => plain(&ours, op),
            _ => guest.perform(op),
        };
        let (told, wanted) = (told.ok(), plain(&theirs, op).ok());
        match op {
            Op::List(_) => prop_assert_eq!(told.is_some(), wanted.is_some(), "{:?}", op),
            _ => prop_assert_eq!(told, wanted, "{:?}", op),
        }
    }
    let (mut seen, mut expected) = (Tree::new(), Tree::new());
    guest.tree("", &mut seen);
    plain_tree(&theirs.0, "", &mut expected);
    for (mode, links, holds) in expected.values_mut() {
        *links = 0;
        if *mode >> 12 == 10 {
            holds.clear();
        }
    }
    prop_assert_eq!(seen, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_folder_by_9p_is_a_folder(ops in prop::collection::vec(operation(), 1..60), cow: bool) {
        compare(if cow { Mode::Cow } else { Mode::Rw }, &ops)?;
    }
}
