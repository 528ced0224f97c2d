//! What programs rely on, one by one.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use rustix::io::Errno;

use super::Folder;
use super::client::{Client, body};
use crate::Mode;
use crate::attr::{S_IFDIR, S_IFIFO, S_IFMT, S_IFSOCK};
use crate::wire::op;

/// FATTR_UID | FATTR_GID, FATTR_ATIME | FATTR_MTIME.
const OWNER: u32 = 6;
const TIMES: u32 = 48;

#[test]
fn read_only_refuses_every_change() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "x").unwrap();
    let mut client = Client::new(&folder, Mode::Ro);
    for result in [
        client.mkdir("d", 0o755),
        client.symlink("a", "s"),
        client.mknod("p", S_IFIFO | 0o600),
        client.link("a", "b"),
        client.unlink("a"),
        client.rmdir("a"),
        client.rename("a", "b", 0),
        client.setattr("a", 1, 0, 0o600, 0),
        client.open("a", 1).map(drop),
        client.open("a", 0o1000).map(drop),
        client.create("n", 2, 0o600).map(drop),
    ] {
        assert_eq!(result, Err(Errno::ROFS));
    }
    let node = client.stat("a").unwrap().node;
    let request = body().u32(1).u32(0).name("user.x").bytes(b"1");
    assert_eq!(client.ask(op::SETXATTR, node, request), Err(Errno::ROFS));
    assert_eq!(client.ask(op::REMOVEXATTR, node, body().name("user.x")), Err(Errno::ROFS));
    let handle = client.open("a", 0).unwrap();
    assert_eq!(client.pwrite(handle, 0, b"y"), Err(Errno::ROFS));
    assert_eq!(client.get("a").unwrap(), b"x");
}

#[test]
fn files_of_who_serves_may_be_roots() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "x").unwrap();
    // Root may have the files be another one's; others serve their own.
    let of = |meta: fs::Metadata| (meta.uid(), meta.gid());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.join("a"), Some(4321), Some(4322)).unwrap();
    }
    let me = fs::metadata(folder.join("a")).map(of).unwrap();
    for mode in [Mode::Ro, Mode::Cow, Mode::Rw] {
        let mut client = Client::with(&folder, mode, 1 << 20, Some(me));
        let seen = client.stat("a").unwrap();
        assert_eq!((seen.uid, seen.gid), (0, 0), "{mode:?}");
        let given = client.setattr("a", OWNER, 0, 0, 0);
        assert_eq!(given, if mode == Mode::Ro { Err(Errno::ROFS) } else { Ok(()) });
        assert_eq!(fs::metadata(folder.join("a")).map(of).unwrap(), me, "{mode:?}");
    }
    let mut other = Client::with(&folder, Mode::Ro, 1 << 20, Some((me.0 + 1, me.1 + 1)));
    let seen = other.stat("a").unwrap();
    assert_eq!((seen.uid, seen.gid), me);
}

#[test]
fn owners_that_the_caller_cannot_set_are_kept_over_the_folder() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "x").unwrap();
    let before = fs::metadata(folder.join("a")).unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    client.setattr("a", OWNER, 0, 0, 4321).unwrap();
    client.setattr("a", 1, 0, 0o4755, 0).unwrap();
    client.setattr("a", TIMES, 0, 0, 0).unwrap();
    let seen = client.stat("a").unwrap();
    assert_eq!((seen.uid, seen.gid, seen.mode & 0o7777, seen.mtime), (4321, 4321, 0o4755, 6));
    (client.uid, client.gid) = (1234, 1235);
    client.put("n", 0, b"").unwrap();
    let seen = client.stat("n").unwrap();
    assert_eq!((seen.uid, seen.gid), (1234, 1235));
    let after = fs::metadata(folder.join("a")).unwrap();
    assert_eq!((before.uid(), before.mode(), before.mtime()), (after.uid(), after.mode(), after.mtime()));
    assert!(!folder.join("n").exists());
}

#[test]
fn a_group_is_inherited_where_the_directory_says_so() {
    let folder = Folder::new();
    let mut client = Client::new(&folder, Mode::Cow);
    client.mkdir("d", 0o755).unwrap();
    client.setattr("d", OWNER, 0, 0, 55).unwrap();
    client.setattr("d", 1, 0, 0o2755, 0).unwrap();
    client.mkdir("d/e", 0o755).unwrap();
    client.put("d/f", 0, b"x").unwrap();
    let seen = client.stat("d/e").unwrap();
    assert_eq!((seen.gid, seen.mode & 0o7777), (55, 0o2755));
    assert_eq!(client.stat("d/f").unwrap().gid, 55);
}

#[test]
fn a_file_that_was_unlinked_can_be_used_while_it_is_open() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "before").unwrap();
    for mode in [Mode::Cow, Mode::Rw] {
        let mut client = Client::new(&folder, mode);
        client.put("t", 0, b"one").unwrap();
        let handle = client.open("t", 2).unwrap();
        client.unlink("t").unwrap();
        client.pwrite(handle, 3, b"two").unwrap();
        assert_eq!(client.pread(handle, 0, 100).unwrap(), b"onetwo");
        assert_eq!(client.stat("t"), Err(Errno::NOENT));
        client.release(handle);
    }
}

/// Does `work` with what a user may do who is not root, whoever runs the tests.
fn as_anybody(work: impl FnOnce() + Send) {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let without = || {
        let mut sets = capabilities(None).expect("this thread's rights");
        sets.effective = CapabilitySet::empty();
        set_capabilities(None, sets).expect("fewer rights");
        work();
    };
    std::thread::scope(|scope| scope.spawn(without).join().expect("no panic"));
}

/// Git makes its objects with 0444 and writes them then.
#[test]
fn a_file_is_written_by_who_makes_it_whatever_its_permissions() {
    as_anybody(|| {
        for mode in [Mode::Cow, Mode::Rw] {
            let folder = Folder::new();
            let mut client = Client::new(&folder, mode);
            for permissions in [0o444, 0] {
                let name = format!("of-{permissions:o}");
                let handle = client.create(&name, 2, permissions).unwrap();
                assert_eq!(client.pwrite(handle, 0, b"object"), Ok(6), "{mode:?}");
                assert_eq!(client.pread(handle, 0, 9).unwrap(), b"object");
                client.release(handle);
                let seen = client.stat(&name).unwrap();
                assert_eq!((seen.mode & 0o7777, seen.size), (permissions, 6), "{mode:?}");
            }
            if mode == Mode::Rw {
                assert_eq!(client.open("of-0", 0), Err(Errno::ACCESS));
            }
        }
    });
}

#[test]
fn a_file_without_a_name_is_given_one_once() {
    for mode in [Mode::Cow, Mode::Rw] {
        let folder = Folder::new();
        let mut client = Client::new(&folder, mode);
        let request = body().u32(2).u32(0o600).u32(0).u32(0).name("#1");
        let reply = match client.ask(op::TMPFILE, 1, request) {
            // A host's file system may have none.
            Err(Errno::OPNOTSUPP) if mode == Mode::Rw => continue,
            other => other.unwrap(),
        };
        let word = |at: usize| u64::from_le_bytes(reply[at..at + 8].try_into().unwrap());
        let (node, handle) = (word(0), word(128));
        client.pwrite(handle, 0, b"nameless").unwrap();
        assert_eq!(client.list("").unwrap(), []);
        let named =
            |client: &mut Client, name: &str| client.ask(op::LINK, 1, body().u64(node).name(name)).map(drop);
        assert_eq!(named(&mut client, "n"), Ok(()), "{mode:?}");
        let seen = client.stat("n").unwrap();
        assert_eq!((seen.node, seen.nlink, seen.size, seen.mode & 0o7777), (node, 1, 8, 0o600));
        client.unlink("n").unwrap();
        assert_eq!(named(&mut client, "again"), Err(Errno::NOENT), "{mode:?}");
        client.release(handle);
    }
}

#[test]
fn a_hole_takes_no_room() {
    let folder = Folder::new();
    let mut client = Client::new(&folder, Mode::Cow);
    let handle = client.create("s", 2, 0o600).unwrap();
    client.pwrite(handle, 1 << 30, b"x").unwrap();
    let node = client.stat("s").unwrap().node;
    // fuse_attr.blocks, behind how long the answer holds.
    let told = client.ask(op::GETATTR, node, body().u32(0).u32(0).u64(0)).unwrap();
    let blocks = u64::from_le_bytes(told[32..40].try_into().unwrap());
    assert!((1..=64).contains(&blocks), "{blocks}");
}

#[test]
fn who_reads_sees_what_was_written_after_it_opened() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "before").unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    let handle = client.open("a", 0).unwrap();
    assert_eq!(client.pread(handle, 0, 10).unwrap(), b"before");
    client.put("a", 2, b"XX").unwrap();
    assert_eq!(client.pread(handle, 0, 10).unwrap(), b"beXXre");
    assert_eq!(client.pwrite(handle, 0, b"no"), Err(Errno::BADF));
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"before");
}

/// Three files may be open for the sake of those that the guest knows.
/// FUSE_ATOMIC_O_TRUNC.
const EMPTIED_AS_IT_IS_OPENED: u32 = 1 << 3;

#[test]
fn over_a_folder_files_are_read_and_written_that_nobody_opened() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "one").unwrap();
    fs::create_dir(folder.join("d")).unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    client.server.reads_all = true;
    assert_eq!(client.mount() & EMPTIED_AS_IT_IS_OPENED, 0);
    assert_eq!(client.get("a").unwrap(), b"one");
    assert!(client.by_node);
    let (file, directory) = (client.stat("a").unwrap().node, client.stat("d").unwrap().node);
    let read = || body().u64(0).u64(0).u32(64).u32(0).u64(0).u32(0).u32(0);
    let write = || body().u64(0).u64(1).u32(1).u32(0).u64(0).u32(0).u32(0).bytes(b"!");
    assert_eq!(client.ask(op::READ, directory, read()), Err(Errno::ISDIR));
    assert_eq!(client.ask(op::WRITE, directory, write()), Err(Errno::BADF));
    assert_eq!(client.ask(op::READ, 999, read()), Err(Errno::STALE));
    // What is read last stays open, and what is written lies over it at once.
    client.ask(op::WRITE, file, write()).unwrap();
    assert_eq!(client.ask(op::READ, file, read()).unwrap(), b"o!e");
    assert_eq!(client.open("a", 0o1002).map(drop), Ok(()));
    assert_eq!(client.get("a").unwrap(), b"");
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"one");
    // Other folders' files are opened by who may do so.
    for (mode, reads_all) in [(Mode::Cow, false), (Mode::Rw, true), (Mode::Ro, true)] {
        let mut client = Client::new(&folder, mode);
        client.server.reads_all = reads_all;
        assert_ne!(client.mount() & EMPTIED_AS_IT_IS_OPENED, 0);
        assert_eq!(client.get("a").unwrap(), b"one");
        assert!(!client.by_node);
        let node = client.stat("a").unwrap().node;
        assert_eq!(client.ask(op::READ, node, read()), Err(Errno::BADF));
        assert!(matches!(client.ask(op::WRITE, node, write()), Err(Errno::BADF | Errno::ROFS)));
    }
}

#[test]
fn a_guest_knows_more_files_than_may_be_open() {
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    for mode in [Mode::Ro, Mode::Cow, Mode::Rw] {
        let folder = Folder::new();
        for number in 0..300 {
            let path = folder.join(format!("d{}/e", number % 10));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(number.to_string()), number.to_string()).unwrap();
        }
        let mut client = Client::new(&folder, mode);
        let before = open();
        let path = |number: u32| format!("d{}/e/{number}", number % 10);
        let nodes: Vec<_> = (0..300).map(|number| client.stat(&path(number)).unwrap().node).collect();
        // Other tests' threads open some, too.
        assert!(open() < before + 150, "{mode:?}");
        for (number, node) in nodes.into_iter().enumerate() {
            let reply = client.ask(op::OPEN, node, body().u32(0).u32(0)).unwrap();
            let handle = u64::from_le_bytes(reply[..8].try_into().unwrap());
            assert_eq!(client.pread(handle, 0, 9).unwrap(), number.to_string().as_bytes(), "{mode:?}");
            client.release(handle);
        }
    }
}

#[test]
fn a_file_that_was_closed_meanwhile_is_found_where_it_is_now_or_not_at_all() {
    for mode in [Mode::Cow, Mode::Rw] {
        let folder = Folder::new();
        fs::create_dir_all(folder.join("d/e")).unwrap();
        for name in ["d/e/a", "d/e/b", "d/e/linked", "other-0", "other-1", "other-2", "other-3", "gone"] {
            fs::write(folder.join(name), name).unwrap();
        }
        fs::hard_link(folder.join("d/e/linked"), folder.join("second")).unwrap();
        let mut client = Client::new(&folder, mode);
        let others =
            |client: &mut Client| (0..4).for_each(|i| _ = client.stat(&format!("other-{i}")).unwrap());
        let [a, b, linked, gone] =
            ["d/e/a", "d/e/b", "d/e/linked", "gone"].map(|name| client.stat(name).unwrap().node);
        others(&mut client);
        client.rename("d/e", "n", 0).unwrap();
        client.rename("n/a", "n/c", 0).unwrap();
        client.rename("n/c", "n/b", 2).unwrap();
        client.unlink("n/linked").unwrap();
        others(&mut client);
        let read = |client: &mut Client, node| {
            let reply = client.ask(op::OPEN, node, body().u32(0).u32(0))?;
            let handle = u64::from_le_bytes(reply[..8].try_into().unwrap());
            let read = client.pread(handle, 0, 20);
            client.release(handle);
            read
        };
        for (node, was) in [(a, "d/e/a"), (b, "d/e/b"), (linked, "d/e/linked")] {
            others(&mut client);
            assert_eq!(read(&mut client, node).unwrap(), was.as_bytes(), "{mode:?}");
        }
        // The host's doing: another file of that name is another file.
        fs::write(folder.join("new"), "another").unwrap();
        fs::rename(folder.join("new"), folder.join("gone")).unwrap();
        others(&mut client);
        assert_eq!(read(&mut client, gone), Err(Errno::STALE), "{mode:?}");
        assert_eq!(client.get("gone").unwrap(), b"another");
    }
}

/// A rename of a name to itself, or to another of the file's names, changes nothing; what the file holds, or is in it, is found later.
#[test]
fn renames_that_change_nothing_lose_no_file() {
    let folder = Folder::new();
    fs::create_dir_all(folder.join("d/e")).unwrap();
    for name in ["a", "d/b", "other-0", "other-1", "other-2", "other-3"] {
        fs::write(folder.join(name), name).unwrap();
    }
    fs::hard_link(folder.join("a"), folder.join("linked")).unwrap();
    let mut client = Client::new(&folder, Mode::Rw);
    let others = |client: &mut Client| (0..4).for_each(|i| _ = client.stat(&format!("other-{i}")).unwrap());
    for name in ["a", "d/b"] {
        client.stat(name).unwrap();
    }
    client.rename("d", "d", 0).unwrap();
    client.rename("a", "linked", 0).unwrap();
    client.rename("d/b", "d/e/b", 0).unwrap();
    others(&mut client);
    assert_eq!(client.get("d/e/b").unwrap(), b"d/b");
    client.rename("linked", "d/c", 0).unwrap();
    others(&mut client);
    assert_eq!(client.get("a").unwrap(), b"a");
    assert_eq!(client.get("d/c").unwrap(), b"a");
}

#[test]
fn hard_links_change_together() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "x").unwrap();
    fs::hard_link(folder.join("a"), folder.join("b")).unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    client.put("a", 0, b"y").unwrap();
    assert_eq!(client.get("b").unwrap(), b"y");
    client.unlink("a").unwrap();
    assert_eq!(client.stat("b").unwrap().nlink, 1);
}

#[test]
fn a_directory_that_moves_takes_what_is_in_it_along() {
    let folder = Folder::new();
    fs::create_dir_all(folder.join("d/e")).unwrap();
    fs::write(folder.join("d/e/f"), "x").unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    client.rename("d", "n", 0).unwrap();
    client.put("n/e/g", 0, b"y").unwrap();
    assert_eq!(client.get("n/e/f").unwrap(), b"x");
    client.mkdir("d", 0o755).unwrap();
    assert_eq!(client.list("d").unwrap(), [], "a new directory shows nothing of the old one");
    assert_eq!(client.list("n/e").unwrap().len(), 2);
}

#[test]
fn changes_end_with_their_budget() {
    let folder = Folder::new();
    fs::write(folder.join("large"), vec![1; 200 << 10]).unwrap();
    let mut client = Client::with_budget(&folder, Mode::Cow, 100 << 10);
    assert_eq!(client.open("large", 2), Err(Errno::NOSPC));
    client.put("a", 0, &[1; 80 << 10]).unwrap();
    assert_eq!(client.put("b", 0, &[1; 40 << 10]), Err(Errno::NOSPC));
    // What is removed makes room, and a hole takes none.
    client.unlink("a").unwrap();
    (2..20).for_each(|node| client.forget(node));
    client.put("b", 0, &[1; 40 << 10]).unwrap();
    // df(1) shows what there is: free and available blocks, and their size.
    let told = client.ask(op::STATFS, 1, body()).unwrap();
    let number = |at: usize| u64::from_le_bytes(told[at..at + 8].try_into().unwrap());
    let block = number(48) as u32;
    assert_eq!([number(8), number(16)], [(60 << 10) / u64::from(block); 2]);
    client.setattr("b", 1 << 3, 1 << 40, 0, 0).unwrap();
    assert_eq!(client.stat("b").unwrap().size, 1 << 40);
}

#[test]
fn extended_attributes_are_changed_over_the_folder() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "x").unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    let node = client.stat("a").unwrap().node;
    let get =
        |client: &mut Client, name: &str| client.ask(op::GETXATTR, node, body().u32(100).u32(0).name(name));
    let set = |value: &[u8], flags| body().u32(value.len() as u32).u32(flags).name("user.n").bytes(value);
    assert_eq!(get(&mut client, "user.n"), Err(Errno::NODATA));
    assert_eq!(client.ask(op::SETXATTR, node, set(b"v", 2)), Err(Errno::NODATA));
    client.ask(op::SETXATTR, node, set(b"value", 1)).unwrap();
    assert_eq!(client.ask(op::SETXATTR, node, set(b"v", 1)), Err(Errno::EXIST));
    assert_eq!(get(&mut client, "user.n").unwrap(), b"value");
    assert_eq!(client.ask(op::LISTXATTR, node, body().u32(100).u32(0)).unwrap(), b"user.n\0");
    assert_eq!(client.ask(op::LISTXATTR, node, body().u32(3).u32(0)), Err(Errno::RANGE));
    client.ask(op::REMOVEXATTR, node, body().name("user.n")).unwrap();
    assert_eq!(get(&mut client, "user.n"), Err(Errno::NODATA));
    for name in ["of.none", "system.posix_acl_access", "plain"] {
        let request = body().u32(1).u32(0).name(name).bytes(b"v");
        assert_eq!(client.ask(op::SETXATTR, node, request), Err(Errno::OPNOTSUPP), "{name}");
    }
    let rest = set(&vec![0; 1 << 17], 0);
    assert_eq!(client.ask(op::SETXATTR, node, rest), Err(Errno::NOSPC));
}

#[test]
fn the_hosts_processes_are_not_shown() {
    let folder = Folder("/".into());
    let mut client = Client::new(&folder, Mode::Ro);
    std::mem::forget(folder);
    let seen = client.stat("proc").unwrap();
    assert_eq!(seen.mode & S_IFMT, S_IFDIR);
    assert_eq!(client.list("proc").unwrap(), []);
    assert_eq!(client.stat("proc/self"), Err(Errno::NOENT));
}

#[test]
fn pipes_and_sockets_are_made_and_devices_in_memory_only() {
    for mode in [Mode::Cow, Mode::Rw] {
        let folder = Folder::new();
        let mut client = Client::new(&folder, mode);
        client.mknod("p", S_IFIFO | 0o600).unwrap();
        client.mknod("s", S_IFSOCK | 0o600).unwrap();
        assert_eq!(client.mknod("d", 0), Err(Errno::PERM));
        for (name, device) in [("c", 0o020_600), ("b", 0o060_600)] {
            let request = body().u32(device).u32(0x0030_0105).u32(0).u32(0).name(name);
            let made = client.ask(op::MKNOD, 1, request);
            // `rdev` in fuse_entry_out.
            let told = made.map(|reply| u32::from_le_bytes(reply[116..120].try_into().unwrap()));
            assert_eq!(told, if mode == Mode::Cow { Ok(0x0030_0105) } else { Err(Errno::PERM) });
        }
        // It would wait for a writer, for ever; and devices are the guest's own affair.
        for name in ["p", "c", "b"].into_iter().take(if mode == Mode::Cow { 3 } else { 1 }) {
            let node = client.stat(name).unwrap().node;
            assert_eq!(client.ask(op::OPEN, node, body().u32(0).u32(0)), Err(Errno::NXIO));
        }
    }
}

#[test]
fn symbolic_links_are_followed_by_nobody_here() {
    let folder = Folder::new();
    symlink("/etc", folder.join("out")).unwrap();
    let mut client = Client::new(&folder, Mode::Rw);
    let node = client.stat("out").unwrap().node;
    assert_eq!(client.readlink("out").unwrap(), "/etc");
    assert_eq!(client.lookup(node, "passwd"), Err(Errno::NOTDIR));
    let request = body().u32(2).u32(0o644).u32(0).u32(0).name("out");
    assert_eq!(client.ask(op::CREATE, 1, request), Err(Errno::NXIO));
}

/// The host moves directories into each other, and the guest, which has them open, sees one within the other before it sees where that is.
#[test]
fn directories_that_the_host_turns_around_are_found_and_nobody_hangs() {
    let folder = Folder::new();
    fs::create_dir_all(folder.join("a/b")).unwrap();
    fs::write(folder.join("a/f"), "x").unwrap();
    let mut client = Client::new(&folder, Mode::Rw);
    let (a, b) = (client.stat("a").unwrap().node, client.stat("a/b").unwrap().node);
    let f = client.stat("a/f").unwrap().node;
    fs::rename(folder.join("a/b"), folder.join("b")).unwrap();
    fs::rename(folder.join("a"), folder.join("b/a")).unwrap();
    assert_eq!(client.lookup(b, "a").map(|seen| seen.node), Ok(a));
    // Others are used until these had to be closed.
    for name in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        client.mkdir(name, 0o755).unwrap();
        client.stat(name).unwrap();
    }
    // Who has them open asks by their numbers, before anybody looks for their names.
    let getattr = || body().u32(0).u32(0).u64(0);
    assert!(client.ask(op::GETATTR, a, getattr()).is_ok());
    assert!(client.ask(op::GETATTR, b, getattr()).is_err_and(|why| why == Errno::STALE));
    assert_eq!(client.stat("b/a").map(|seen| seen.node), Ok(a));
    assert_eq!(client.stat("b/a/f").map(|seen| seen.node), Ok(f));
    assert_eq!(client.get("b/a/f").unwrap(), b"x");
    assert_eq!(client.list("b").unwrap(), [("a".to_owned(), 4)]);
}
