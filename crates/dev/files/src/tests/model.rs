//! Random operations on a served folder and on a plain one: the same answers, and the same trees in the end.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags, linkat, renameat_with};
use rustix::io::Errno;

use super::Folder;
use super::client::Client;
use crate::Mode;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Mkdir(String),
    Put(String, u64, Vec<u8>),
    Get(String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u32),
    Link(String, String),
    Symlink(String, String),
    Truncate(String, u64),
    Chmod(String, u32),
    List(String),
    /// O_TMPFILE in a directory, and a name for what was made.
    Nameless(String, String, Vec<u8>),
    /// The host renames, behind the guest's back.
    Host(String, String, u32),
    /// The guest forgets every so many nodes, from the so many-th on.
    Forget(u64, u64),
}

fn path() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        2 => name().prop_map(str::to_owned),
        3 => (name(), name()).prop_map(|(one, two)| format!("{one}/{two}")),
        1 => (name(), name(), name()).prop_map(|(one, two, three)| format!("{one}/{two}/{three}")),
    ]
}

pub(crate) fn operation() -> impl Strategy<Value = Op> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let flags = || prop::sample::select(vec![0, 0, 0, 1, 2]);
    prop_oneof![
        3 => path().prop_map(Op::Mkdir),
        3 => (path(), 0..40_u64, bytes()).prop_map(|(path, at, bytes)| Op::Put(path, at, bytes)),
        2 => path().prop_map(Op::Get),
        2 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        4 => (path(), path(), flags()).prop_map(|(old, new, flags)| Op::Rename(old, new, flags)),
        2 => (path(), path()).prop_map(|(old, new)| Op::Link(old, new)),
        1 => (path(), path()).prop_map(|(text, path)| Op::Symlink(text, path)),
        1 => (path(), 0..60_u64).prop_map(|(path, size)| Op::Truncate(path, size)),
        1 => (path(), 0..0o1000_u32).prop_map(|(path, mode)| Op::Chmod(path, mode | 0o700)),
        1 => path().prop_map(Op::List),
        1 => (path(), path(), bytes()).prop_map(|(at, new, bytes)| Op::Nameless(at, new, bytes)),
        2 => (path(), path(), flags()).prop_map(|(old, new, flags)| Op::Host(old, new, flags)),
        2 => (2..30_u64, 1..5_u64).prop_map(|(from, step)| Op::Forget(from, step)),
    ]
}

/// What an operation tells, as text.
pub(crate) type Told = Result<String, Errno>;

fn served(client: &mut Client, op: &Op) -> Told {
    match op {
        Op::Mkdir(path) => client.mkdir(path, 0o755).map(|()| String::new()),
        Op::Put(path, at, bytes) => client.put(path, *at, bytes).map(|()| String::new()),
        Op::Get(path) => client.get(path).map(|bytes| format!("{bytes:?}")),
        Op::Unlink(path) => client.unlink(path).map(|()| String::new()),
        Op::Rmdir(path) => client.rmdir(path).map(|()| String::new()),
        Op::Rename(old, new, flags) => client.rename(old, new, *flags).map(|()| String::new()),
        Op::Link(old, new) => client.link(old, new).map(|()| String::new()),
        Op::Symlink(text, path) => client.symlink(text, path).map(|()| String::new()),
        Op::Truncate(path, size) => client.setattr(path, 1 << 3, *size, 0, 0).map(|()| String::new()),
        Op::Chmod(path, mode) => client.setattr(path, 1, 0, *mode, 0).map(|()| String::new()),
        Op::List(path) => client.list(path).map(|names| format!("{names:?}")),
        Op::Nameless(at, new, bytes) => client.nameless(at, new, bytes).map(|()| String::new()),
        Op::Host(..) => unreachable!("the host does it"),
        Op::Forget(from, step) => {
            (*from..200).step_by(*step as usize).for_each(|node| client.forget(node));
            Ok(String::new())
        }
    }
}

pub(crate) fn plain(root: &Folder, op: &Op) -> Told {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).expect("an error of the host");
    let at = |path: &str| root.join(path);
    // What the client refuses as Linux would, on a symbolic link, before it asks.
    let is_link = |path: &str| fs::symlink_metadata(at(path)).is_ok_and(|m| m.is_symlink());
    let write = |path: &str| {
        let mut options = fs::File::options();
        options.read(true).write(true);
        if is_link(path) { Err(Errno::LOOP) } else { Ok(options) }
    };
    let nothing = |()| String::new();
    match op {
        Op::Mkdir(path) => fs::create_dir(at(path)).map(nothing).map_err(errno),
        Op::Put(path, offset, bytes) => {
            let file = write(path)?.create(true).truncate(false).open(at(path)).map_err(errno)?;
            file.write_all_at(bytes, *offset).map(nothing).map_err(errno)
        }
        Op::Get(path) if is_link(path) => Err(Errno::LOOP),
        Op::Get(path) if at(path).is_dir() => Err(Errno::NXIO),
        Op::Get(path) => fs::read(at(path)).map(|bytes| format!("{bytes:?}")).map_err(errno),
        Op::Unlink(path) => fs::remove_file(at(path)).map(nothing).map_err(errno),
        Op::Rmdir(path) => fs::remove_dir(at(path)).map(nothing).map_err(errno),
        Op::Rename(old, new, flags) => {
            renameat_with(CWD, at(old), CWD, at(new), RenameFlags::from_bits_retain(*flags)).map(nothing)
        }
        Op::Link(old, new) => fs::hard_link(at(old), at(new)).map(nothing).map_err(errno),
        Op::Symlink(text, path) => symlink(text, at(path)).map(nothing).map_err(errno),
        Op::Truncate(path, size) => {
            if at(path).is_dir() && !is_link(path) {
                return Err(Errno::ISDIR);
            }
            if is_link(path) {
                return Err(Errno::LOOP);
            }
            write(path)?.open(at(path)).and_then(|file| file.set_len(*size)).map(nothing).map_err(errno)
        }
        Op::Chmod(path, _) if is_link(path) => Err(Errno::LOOP),
        Op::Chmod(path, mode) => {
            fs::set_permissions(at(path), PermissionsExt::from_mode(*mode)).map(nothing).map_err(errno)
        }
        Op::List(path) if is_link(path) => Err(Errno::LOOP),
        Op::List(path) => list(&at(path)).map(|names| format!("{names:?}")).map_err(errno),
        Op::Nameless(path, new, bytes) => {
            let how = OFlags::TMPFILE | OFlags::RDWR;
            let made = rustix::fs::open(at(path), how, 0o644.into())?;
            rustix::io::pwrite(&made, bytes, 0)?;
            let name = format!("/proc/self/fd/{}", made.as_raw_fd());
            linkat(CWD, name, CWD, at(new), AtFlags::SYMLINK_FOLLOW).map(nothing)
        }
        Op::Host(old, new, flags) => {
            renameat_with(CWD, at(old), CWD, at(new), RenameFlags::from_bits_retain(*flags)).map(nothing)
        }
        Op::Forget(..) => Ok(String::new()),
    }
}

fn list(path: &Path) -> std::io::Result<Vec<(String, u32)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.metadata()?.mode() >> 12;
        all.push((entry.file_name().into_string().unwrap(), kind));
    }
    all.sort();
    Ok(all)
}

/// Paths with a symbolic link among their folders are not compared: Linux follows those itself.
pub(crate) fn through_link(root: &Folder, op: &Op) -> bool {
    let paths: Vec<&String> = match op {
        Op::Rename(one, two, _) | Op::Link(one, two) | Op::Nameless(one, two, _) | Op::Host(one, two, _) => {
            vec![one, two]
        }
        Op::Forget(..) => vec![],
        Op::Mkdir(path) | Op::Put(path, ..) | Op::Get(path) | Op::Unlink(path) | Op::Rmdir(path) => {
            vec![path]
        }
        Op::Symlink(_, path) | Op::Truncate(path, _) | Op::Chmod(path, _) | Op::List(path) => vec![path],
    };
    let is_link = |path: &Path| fs::symlink_metadata(root.join(path)).is_ok_and(|m| m.is_symlink());
    // Nor are those on a link itself that would follow it.
    let follows =
        matches!(op, Op::Truncate(..) | Op::Chmod(..) | Op::List(_) | Op::Put(..) | Op::Nameless(..));
    paths.iter().any(|path| Path::new(path).ancestors().skip(usize::from(!follows)).any(is_link))
}

/// Everything that is seen of a tree: by path its mode, its number of links, and what it holds.
pub(crate) type Tree = BTreeMap<String, (u32, u64, String)>;

pub(crate) fn plain_tree(root: &Path, prefix: &str, tree: &mut Tree) {
    for (name, _) in list(root).unwrap() {
        let path = root.join(&name);
        let seen = fs::symlink_metadata(&path).unwrap();
        let holds = if seen.is_symlink() {
            format!("{:?}", fs::read_link(&path).unwrap())
        } else if seen.is_file() {
            format!("{:?}", fs::read(&path).unwrap())
        } else {
            plain_tree(&path, &format!("{prefix}{name}/"), tree);
            String::new()
        };
        // How many links a directory has is the file system's own affair.
        let links = if seen.is_dir() { 0 } else { seen.nlink() };
        tree.insert(format!("{prefix}{name}"), (seen.mode(), links, holds));
    }
}

fn served_tree(client: &mut Client, prefix: &str, tree: &mut Tree) {
    let folder = prefix.trim_end_matches('/');
    for (name, kind) in client.list(folder).unwrap() {
        let path = format!("{prefix}{name}");
        let seen = client.stat(&path).unwrap();
        let holds = match kind {
            10 => format!("{:?}", client.readlink(&path).unwrap()),
            8 => format!("{:?}", client.get(&path).unwrap()),
            _ => {
                served_tree(client, &format!("{path}/"), tree);
                String::new()
            }
        };
        let links = if kind == 4 { 0 } else { u64::from(seen.nlink) };
        tree.insert(path, (seen.mode, links, holds));
    }
}

/// Something that is there from the beginning.
pub(crate) fn populate(folder: &Folder) {
    fs::create_dir_all(folder.join("a/b")).unwrap();
    fs::create_dir(folder.join("c")).unwrap();
    fs::write(folder.join("a/a"), "one").unwrap();
    fs::write(folder.join("a/b/c"), "two").unwrap();
    fs::write(folder.join("b"), "three").unwrap();
    fs::hard_link(folder.join("b"), folder.join("c/b")).unwrap();
    symlink("a", folder.join("c/a")).unwrap();
}

/// What becomes of a guest between two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    /// Its caches are small: it knows nothing but the root.
    Forgets,
    /// It is saved, and goes on with another server.
    Moves,
}

fn between() -> impl Strategy<Value = Between> {
    prop::sample::select(vec![Between::Nothing, Between::Forgets, Between::Moves])
}

fn compare(mode: Mode, ops: &[Op], between: Between) -> Result<(), TestCaseError> {
    // What the client asks for is what plain calls make under this mask, whatever the tester's.
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let (ours, theirs) = (Folder::new(), Folder::new());
    populate(&ours);
    populate(&theirs);
    let mut before = Tree::new();
    plain_tree(&ours.0, "", &mut before);
    let mut client = Client::new(&ours, mode);
    client.server.reads_all = true;
    client.mount();
    for op in ops {
        if through_link(&theirs, op) {
            continue;
        }
        let told = match op {
            // What lies over a folder knows nothing of what becomes of it.
            Op::Host(..) if mode == Mode::Cow => continue,
            Op::Host(..) => plain(&ours, op),
            _ => served(&mut client, op),
        };
        prop_assert_eq!(told, plain(&theirs, op), "{:?}", op);
        match between {
            Between::Nothing => {}
            Between::Forgets => (2..200).for_each(|node| client.forget(node)),
            Between::Moves => client = client.moved(&ours, |_| ()).unwrap(),
        }
    }
    let (mut seen, mut expected) = (Tree::new(), Tree::new());
    served_tree(&mut client, "", &mut seen);
    plain_tree(&theirs.0, "", &mut expected);
    prop_assert_eq!(&seen, &expected);
    let mut after = Tree::new();
    plain_tree(&ours.0, "", &mut after);
    match mode {
        Mode::Cow => prop_assert_eq!(after, before, "the host's folder changed"),
        _ => prop_assert_eq!(after, expected),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn copy_on_write_is_a_folder(ops in prop::collection::vec(operation(), 1..60), between in between()) {
        compare(Mode::Cow, &ops, between)?;
    }

    #[test]
    fn read_and_write_is_a_folder(ops in prop::collection::vec(operation(), 1..60), between in between()) {
        compare(Mode::Rw, &ops, between)?;
    }
}
