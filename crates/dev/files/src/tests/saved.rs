//! Guests that are saved, and go on with another server.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use satori_save::Value;
use serde_json::Value as Tree;

use super::Folder;
use super::client::{Client, body};
use super::model::populate;
use crate::Mode;
use crate::saved::Session as _;
use crate::wire::op;

/// A large content: a file of the host's memory, with a hole.
const FAR: u64 = 3 << 20;

/// A guest with all that a session has, and its open files: of the host's, written, and a directory's.
fn busy(folder: &Folder, mode: Mode) -> (Client, [u64; 3]) {
    populate(folder);
    let mut client = Client::new(folder, mode);
    let read = client.open("a/a", 0).unwrap();
    let written = client.create("new", 2, 0o640).unwrap();
    client.pwrite(written, 0, b"begin").unwrap();
    client.pwrite(written, FAR, b"end").unwrap();
    client.symlink("where", "c/link").unwrap();
    client.rename("a", "moved", 0).unwrap();
    client.unlink("c/b").unwrap();
    let node = client.stat("new").unwrap().node;
    let value = body().u32(5).u32(0).name("user.one").bytes(b"value");
    // Not every host's folders have attributes.
    assert!(matches!(client.ask(op::SETXATTR, node, value), Ok(_) | Err(Errno::OPNOTSUPP)));
    let listed = client.stat("moved").unwrap().node;
    let directory = client.ask(op::OPENDIR, listed, body().u32(0).u32(0)).unwrap();
    let directory = u64::from_le_bytes(directory[..8].try_into().unwrap());
    (client, [read, written, directory])
}

fn next_entry(client: &mut Client, directory: u64, offset: u64) -> Vec<u8> {
    client.ask(op::READDIR, 1, body().u64(directory).u64(offset).u32(32).u32(0).u64(0).u32(0).u32(0)).unwrap()
}

#[test]
fn a_guest_goes_on_with_all_that_it_has() {
    for mode in [Mode::Rw, Mode::Cow] {
        let folder = Folder::new();
        let (mut before, [read, written, directory]) = busy(&folder, mode);
        let nodes = ["moved/a", "moved/b/c", "new", "c/link"].map(|path| before.stat(path).unwrap());
        let first = next_entry(&mut before, directory, 2);
        let xattr = before.ask(op::GETXATTR, nodes[2].node, body().u32(9).u32(0).name("user.one"));
        // Another server, and the one that it has, which has gone on meanwhile.
        let other = before.moved(&folder, |_| ()).unwrap();
        let saved = before.server.save().unwrap();
        if mode == Mode::Cow {
            before.put("new", 0, b"later").unwrap();
            before.unlink("moved/a").unwrap();
            before.release(read);
        }
        before.server.restore(&saved).unwrap();
        for mut client in [other, before] {
            assert_eq!(client.server.save().unwrap(), saved, "what is taken back is what was given");
            assert_eq!(client.pread(read, 1, 9), Ok(b"ne".to_vec()));
            assert_eq!(client.pread(written, 0, 5), Ok(b"begin".to_vec()));
            assert_eq!(client.pread(written, FAR - 1, 9), Ok(b"\0end".to_vec()));
            assert_eq!(client.pwrite(written, 0, b"begin"), Ok(5));
            assert_eq!(client.pwrite(read, 0, b"x"), Err(Errno::BADF), "it is open for reading");
            assert_eq!(next_entry(&mut client, directory, 2), first);
            for (path, seen) in ["moved/a", "moved/b/c", "new", "c/link"].iter().zip(&nodes) {
                let now = client.stat(path).unwrap();
                assert_eq!(
                    (now.node, now.ino, now.mode, now.size),
                    (seen.node, seen.ino, seen.mode, seen.size)
                );
            }
            assert_eq!(client.readlink("c/link").unwrap(), "where");
            assert_eq!(client.stat("c/b").map(drop), Err(Errno::NOENT));
            assert_eq!(client.ask(op::GETXATTR, nodes[2].node, body().u32(9).u32(0).name("user.one")), xattr);
            // Numbers that are given from now on are new ones.
            client.mkdir("later", 0o755).unwrap();
            let later = client.stat("later").unwrap();
            assert!(nodes.iter().all(|seen| seen.node != later.node && seen.ino != later.ino));
            client.rmdir("later").unwrap();
        }
    }
}

#[test]
fn room_that_changes_take_is_charged_once() {
    let folder = Folder::new();
    let (mut client, [_, written, _]) = busy(&folder, Mode::Cow);
    let room =
        |client: &Client| (1..=64 << 20).rev().step_by(4096).find(|&n| client.server.budget.room(n).is_ok());
    let before = room(&client);
    let saved = client.server.save().unwrap();
    client.pwrite(written, 1 << 20, &[1; 1 << 20]).unwrap();
    for _ in 0..3 {
        client.server.restore(&saved).unwrap();
        assert_eq!(room(&client), before);
    }
    assert_eq!(room(&client.moved(&folder, |_| ()).unwrap()), before);
}

/// Who looks for a file of the host's that is another one now, or none, is told so, and finds what is there by its name.
#[test]
fn what_is_not_found_again_is_stale() {
    let folder = Folder::new();
    populate(&folder);
    let mut client = Client::new(&folder, Mode::Rw);
    let [deleted, replaced] = ["b", "a/a"].map(|path| client.open(path, 2).unwrap());
    let node = client.stat("a/a").unwrap().node;
    client.unlink("b").unwrap();
    client.unlink("c/b").unwrap();
    assert_eq!(client.pread(deleted, 0, 9), Ok(b"three".to_vec()), "here it is open");
    fs::rename(folder.join("a/a"), folder.join("kept")).unwrap();
    fs::write(folder.join("a/a"), "another").unwrap();
    let mut client = client.moved(&folder, |_| ()).unwrap();
    for handle in [deleted, replaced] {
        assert_eq!(client.pread(handle, 0, 9), Err(Errno::STALE));
        assert_eq!(client.pwrite(handle, 0, b"x"), Err(Errno::STALE));
        client.release(handle);
    }
    assert_eq!(client.ask(op::GETATTR, node, body()), Err(Errno::STALE));
    assert_eq!(client.get("a/a").unwrap(), b"another");
    assert_eq!(client.stat("kept").unwrap().node, node, "it is found by its new name");
    assert!(client.ask(op::GETATTR, node, body()).is_ok());
}

/// Each field of a session, as something else.
fn damages(tree: &Tree) -> Vec<(String, Tree)> {
    let mut all = Vec::new();
    let mut left = vec![(String::new(), tree)];
    while let Some((at, tree)) = left.pop() {
        match tree {
            Tree::Object(fields) => {
                left.extend(fields.iter().map(|(name, tree)| (format!("{at}/{name}"), tree)))
            }
            Tree::Array(items) => {
                left.extend(items.iter().enumerate().map(|(index, tree)| (format!("{at}/{index}"), tree)));
            }
            _ => {}
        }
        let others: [Tree; 9] = [
            Tree::Null,
            0.into(),
            1.into(),
            (1_u64 << 62).into(),
            u64::MAX.into(),
            true.into(),
            Tree::Array(vec![]),
            // Names: `..`, and one with a slash.
            vec![46, 46].into(),
            vec![97, 47, 98].into(),
        ];
        all.extend(others.into_iter().filter(|other| other != tree).map(|other| (at.clone(), other)));
    }
    all
}

/// Whatever is in a session, it is refused or served, and the folder's outside is not reached.
#[test]
fn damaged_sessions_are_refused_or_served() {
    for mode in [Mode::Rw, Mode::Cow] {
        let outer = Folder::new();
        let folder = Folder(outer.join("inner"));
        fs::create_dir(&folder.0).unwrap();
        let (mut client, _) = busy(&folder, mode);
        let before = fs::metadata(&outer.0).unwrap().mtime_nsec();
        let (all, mut refused) = (damages(client.server.save().unwrap().tree()), 0);
        let count = all.len();
        for (at, other) in all {
            let damage = |value: &mut Value| *value.tree_mut().pointer_mut(&at).unwrap() = other;
            let Ok(mut other) = client.moved(&folder, damage) else {
                refused += 1;
                continue;
            };
            for node in 0..12 {
                for opcode in [op::GETATTR, op::READLINK, op::OPENDIR, op::LISTXATTR, op::STATFS, op::OPEN] {
                    let _ = other.ask(opcode, node, body().u64(0).u64(0));
                }
                let _ = other.lookup(node, "a");
                let _ = (other.pread(node, 0, 64), other.pread(node, u64::MAX, 64));
            }
            let _ = (other.list(""), other.put("x", FAR, b"x"), other.unlink("x"), other.server.save());
        }
        assert!(refused * 2 > count, "{refused} of {count}");
        assert_eq!(fs::metadata(&outer.0).unwrap().mtime_nsec(), before);
    }
    // Contents that are too short, or too long, or of nobody; and a session of another kind.
    let folder = Folder::new();
    let (mut client, _) = busy(&folder, Mode::Cow);
    let len = client.server.save().unwrap().bytes().len();
    for other in [0, len - 1, len + 1] {
        assert!(client.moved(&folder, |value| value.set_bytes(vec![0; other])).is_err());
    }
    let saved = client.server.save().unwrap();
    let refused = Client::new(&folder, Mode::Rw).server.restore(&saved).unwrap_err();
    assert!(refused.to_string().contains("what the guest may do"), "{refused}");
    let tight = Client::with_budget(&folder, Mode::Cow, 4096).server.restore(&saved).unwrap_err();
    assert!(tight.to_string().contains("does not fit"), "{tight}");
}
