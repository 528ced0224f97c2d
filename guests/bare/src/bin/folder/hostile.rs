//! What no kernel asks.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use satori_guests::defs::virtio::fs::{IN_HEADER, OUT_HEADER};
use satori_guests::defs::virtio::split::{NEXT, WRITE};
use satori_guests::harness::option;
use satori_guests::place::{Random, load, put, store, take};
use satori_guests::virtio::within;
use satori_guests::{Test, paging, smp};

use crate::client::{Client, ENTRY, ROOT, error, mode, op, writable};

/// Names that are none, or of another place.
const NAMES: [&[u8]; 9] =
    [b"..", b".", b"", b"../secret", b"dir/..", b"dir/../..", b"/etc/passwd", b"/", b"./file"];

pub fn as_it_should_be(t: &mut Test) {
    let mut client = Client::new();
    t.holds("the file is read", client.works());
    t.eq("one that is not there", client.lookup(ROOT, "nobody"), Err(error::NOENT));
    let dir = client.lookup(ROOT, "dir").unwrap_or(0);
    t.holds(("a directory", dir), dir > ROOT);
    if writable() {
        let made = client.ask(op::MKDIR, dir, &[&0o700_u32.to_le_bytes(), &[0; 4], b"made\0"]);
        t.eq("a directory is made", made, Ok(ENTRY));
        t.eq("and removed", client.ask(op::RMDIR, dir, &[b"made\0"]), Ok(0));
    }
}

/// Requests with one name each, as pieces before and behind it.
fn with_name(name: &[u8], mut ask: impl FnMut(u32, &[&[u8]])) {
    let zero = [0; 16];
    ask(op::LOOKUP, &[name, b"\0"]);
    ask(op::UNLINK, &[name, b"\0"]);
    ask(op::RMDIR, &[name, b"\0"]);
    ask(op::MKDIR, &[&0o700_u32.to_le_bytes(), &zero[..4], name, b"\0"]);
    ask(op::MKNOD, &[&0o100_600_u32.to_le_bytes(), &zero[..12], name, b"\0"]);
    ask(op::CREATE, &[&0o102_u32.to_le_bytes(), &0o600_u32.to_le_bytes(), &zero[..8], name, b"\0"]);
    ask(op::SYMLINK, &[name, b"\0text\0"]);
    ask(op::RENAME, &[&ROOT.to_le_bytes(), b"dir\0", name, b"\0"]);
    ask(op::RENAME, &[&ROOT.to_le_bytes(), name, b"\0taken\0"]);
}

pub fn names(t: &mut Test) {
    let mut client = Client::new();
    let file = client.lookup(ROOT, "file").unwrap_or(0);
    let dir = client.lookup(ROOT, "dir").unwrap_or(0);
    for name in NAMES {
        for directory in [ROOT, dir] {
            with_name(name, |opcode, body| {
                let answer = client.ask(opcode, directory, body);
                let refused = matches!(answer, Err(error::INVAL | error::ROFS));
                t.holds(("a name", opcode, name, answer), refused);
            });
            let answer = client.ask(op::LINK, directory, &[&file.to_le_bytes(), name, b"\0"]);
            t.holds(("a link", name, answer), matches!(answer, Err(error::INVAL | error::ROFS)));
        }
    }
    // Without an end, with a NUL in it, and longer than a name may be.
    let endless = client.put(op::LOOKUP, ROOT, &[b"file"]);
    t.eq("endless", client.send(endless, 8192), Some(Err(error::INVAL)));
    for name in [[b'x'; 256].as_slice(), &[b'x'; 4000]] {
        let answer = client.ask(op::LOOKUP, ROOT, &[name, b"\0"]);
        t.holds(("long", name.len(), answer), answer.is_err());
    }
    t.holds("it goes on", client.works());
}

pub fn links(t: &mut Test) {
    let mut client = Client::new();
    for name in ["up", "away", "circle"] {
        let Ok(link) = client.lookup(ROOT, name) else {
            t.holds(("a link", name), false);
            continue;
        };
        for beneath in ["secret", "file", "etc", "dir"] {
            let answer = client.lookup(link, beneath);
            t.holds(
                ("through a link", name, beneath, answer),
                matches!(answer, Err(error::NOTDIR | error::LOOP | error::NOENT)),
            );
        }
        for flags in [0, 1, 2, 0o1000, 0o200_000, 0o10_000_000] {
            let answer = client.open(link, flags);
            t.holds(("a link is opened", name, flags, answer), answer.is_err());
        }
        t.holds(("as a directory", name), client.ask(op::OPENDIR, link, &[&[0; 8]]).is_err());
        with_name(b"planted", |opcode, body| {
            t.holds(("beneath a link", name, opcode), client.ask(opcode, link, body).is_err());
        });
        // Its text is the guest's own affair.
        t.holds(("its text", name), client.ask(op::READLINK, link, &[]).is_ok_and(|len| len > 1));
    }
    if writable() {
        // One that the guest makes leads no further.
        let made = client.ask(op::SYMLINK, ROOT, &[b"own\0/\0"]);
        t.eq("a link is made", made, Ok(ENTRY));
        let own = client.word(0);
        t.holds("through it", client.lookup(own, "etc").is_err() && client.open(own, 0).is_err());
        let target = [0o100_u32.to_le_bytes(), 0o600_u32.to_le_bytes()];
        let over = client.ask(op::CREATE, ROOT, &[&target[0], &target[1], &[0; 8], b"up\0"]);
        t.holds(("a file in a link's place", over), over.is_err());
        t.eq("it is removed", client.ask(op::UNLINK, ROOT, &[b"own\0"]), Ok(0));
    }
    t.holds("it goes on", client.works());
}

/// Opcodes that ask for a node.
const OF_NODES: [u32; 20] = [
    op::LOOKUP,
    op::GETATTR,
    op::SETATTR,
    op::READLINK,
    op::SYMLINK,
    op::MKNOD,
    op::MKDIR,
    op::UNLINK,
    op::RMDIR,
    op::RENAME,
    op::LINK,
    op::OPEN,
    op::OPENDIR,
    op::CREATE,
    21, // SETXATTR
    22, // GETXATTR
    23, // LISTXATTR
    24, // REMOVEXATTR
    34, // ACCESS, which nobody need serve
    45, // RENAME2
];

pub fn forged_nodes(t: &mut Test) {
    let mut client = Client::new();
    let zeroes = [0; 96];
    for node in [0, 1 << 20, 1 << 32, 1 << 40, u64::MAX, u64::MAX - 1, 1 << 63] {
        for opcode in OF_NODES {
            for body in [&[&zeroes[..], b"file\0file\0"][..], &[b"file\0file\0"], &[]] {
                t.holds(("nobody's", opcode, node), client.ask(opcode, node, body).is_err());
            }
        }
        // In the other places where a node stands.
        let number = node.to_le_bytes();
        t.holds(("to nobody's", node), client.ask(op::RENAME, ROOT, &[&number, b"file\0moved\0"]).is_err());
        t.holds(("from nobody's", node), client.ask(op::LINK, ROOT, &[&number, b"linked\0"]).is_err());
    }
    // What does not exist at all.
    for opcode in [0, 7, 19, 33, 60, 100, 4096, 0x8000_0000, u32::MAX] {
        t.holds(("no such request", opcode), client.ask(opcode, ROOT, &[&zeroes]).is_err());
    }
    t.holds("it goes on", client.works());
}

pub fn forged_handles(t: &mut Test) {
    let mut client = Client::new();
    let node = client.lookup(ROOT, "file").unwrap_or(0);
    for handle in [0, 77, 1 << 32, u64::MAX] {
        let number = handle.to_le_bytes();
        let read = client.six(node, handle);
        t.holds(("a handle", handle, read), matches!(read, Err(error::BADF)));
        let size = 3_u32.to_le_bytes();
        let write: [&[u8]; 5] = [&number, &[0; 8], &size, &[0; 20], b"bad"];
        let wrote = client.ask(op::WRITE, node, &write);
        t.holds(("a handle to write", handle, wrote), wrote.is_err());
        for opcode in [op::READDIR, op::READDIRPLUS, 43, 46] {
            let body: [&[u8]; 3] = [&number, &[0; 8], &[0xff; 24]];
            t.holds(("a handle", opcode, handle), client.ask(opcode, ROOT, &body).is_err());
        }
    }
    // A good one, and places and lengths at the end of numbers.
    let flags = if writable() { 2 } else { 0 };
    let handle = client.open(node, flags).unwrap_or(0).to_le_bytes();
    for (offset, size) in [(u64::MAX, 6), (u64::MAX - 3, 6), (1 << 63, 1), (0, u32::MAX), (0, 1 << 31)] {
        let (place, size) = (u64::to_le_bytes(offset), u32::to_le_bytes(size));
        let read = client.ask(op::READ, node, &[&handle, &place, &size, &[0; 20]]);
        t.holds(("a read", offset, size, read), read.is_err() || read.is_ok_and(|len| len <= 8192));
        let wrote = client.ask(op::WRITE, node, &[&handle, &place, &size, &[0; 20]]);
        t.holds(("a write of what is not there", offset, size, wrote), wrote.is_err());
    }
    if writable() {
        let (place, size) = ((u64::MAX - 1).to_le_bytes(), 2_u32.to_le_bytes());
        let wrote = client.ask(op::WRITE, node, &[&handle, &place, &size, &[0; 20], b"xx"]);
        t.holds(("beyond all files", wrote), matches!(wrote, Err(error::FBIG | error::INVAL)));
    }
    t.holds("it goes on", client.works());
}

pub fn counts_of_forgetting(t: &mut Test) {
    let mut client = Client::new();
    for _ in 0..3 {
        let node = client.lookup(ROOT, "dir").unwrap_or(0);
        let number = node.to_le_bytes();
        t.holds("a node", client.ask(op::GETATTR, node, &[&[0; 16]]).is_ok());
        for (opcode, count) in [(op::FORGET, u64::MAX), (op::FORGET, 1), (op::FORGET, 0)] {
            let len = client.put(opcode, node, &[&count.to_le_bytes()]);
            t.holds(("forgotten", opcode, count), client.send(len, 64).is_some());
        }
        // More than the message has, and the root.
        let head = [u32::MAX.to_le_bytes(), [0; 4]];
        let (root, many) = (ROOT.to_le_bytes(), u64::MAX.to_le_bytes());
        let body: [&[u8]; 6] = [&head[0], &head[1], &number, &many, &root, &many];
        let len = client.put(op::BATCH_FORGET, 0, &body);
        t.holds("many are forgotten", client.send(len, 64).is_some());
        // What a copy-on-write layer has changed it keeps.
        let gone = client.ask(op::GETATTR, node, &[&[0; 16]]).is_err();
        t.holds("it is gone", gone || mode() == "cow");
        t.holds("the root is not", client.ask(op::GETATTR, ROOT, &[&[0; 16]]).is_ok());
    }
    for number in [0, 1, u64::MAX] {
        let len = client.put(op::INTERRUPT, 0, &[&u64::to_le_bytes(number)]);
        t.holds(("given up", number), client.send(len, 64).is_some());
    }
    // A session that ends and begins, twice.
    for _ in 0..2 {
        let _ = client.ask(op::DESTROY, 0, &[]);
        client.begin();
    }
    t.holds("it goes on", client.works());
}

pub fn lengths(t: &mut Test) {
    let mut client = Client::new();
    let len = client.put(op::LOOKUP, ROOT, &[b"file\0"]);
    for told in [0, 1, 39, 40, len - 1, len + 1, 0x1000, 1 << 30, u32::MAX] {
        store(client.request, told);
        t.eq(("a length that is not its own", told), client.send(len, 8192), Some(Err(error::INVAL)));
    }
    for given in [1, 4, 16, 39] {
        store(client.request, given);
        let answer = client.send(given, 8192);
        t.holds(("no whole header", given, answer), answer.is_some_and(|answer| answer.is_err()));
    }
    // Longer than the longest: 2 MiB of the same page.
    let most = 8192_u32;
    store(client.request, 15 * most);
    (0..15).for_each(|index| client.queue.descriptor(index, client.request, most, NEXT, index + 1));
    client.queue.descriptor(15, client.reply, 4096, WRITE, 0);
    t.holds("pieces", client.queue.request(&client.device, 0));
    // Replies for which there is no room, or hardly.
    let _ = client.put(op::LOOKUP, ROOT, &[b"file\0"]);
    for room in [1, 8, 15, 16, 17, 100, OUT_HEADER as u32 + ENTRY - 1] {
        let tail = client.reply + u64::from(room);
        store(tail, 0x7777_7777_7777_7777_u64);
        t.holds(("room", room), client.send(len, room).is_some());
        t.eq(("not a byte more", room), load::<u64>(tail), 0x7777_7777_7777_7777);
    }
    t.eq("just enough", client.send(len, OUT_HEADER as u32 + ENTRY), Some(Ok(ENTRY)));
    // No reply at all, and a request that is its own reply.
    client.queue.descriptor(0, client.request, len, 0, 0);
    t.holds("nothing to write to", client.queue.request(&client.device, 0));
    client.queue.descriptor(0, client.request, len, NEXT, 1);
    client.queue.descriptor(1, client.request, 4096, WRITE, 0);
    t.holds("in its own place", client.queue.request(&client.device, 0));
    t.holds("it goes on", client.works());
}

pub fn numbers_that_are_alike(t: &mut Test) {
    let mut client = Client::new();
    let replies = paging::pages(1);
    let len = client.put(op::GETATTR, ROOT, &[&[0; 16]]);
    for number in [0, 1, u64::MAX] {
        store(client.request + 8, number);
        for index in 0..8_u16 {
            client.queue.descriptor(2 * index, client.request, len, NEXT, 2 * index + 1);
            client.queue.descriptor(2 * index + 1, replies + 512 * u64::from(index), 512, WRITE, 0);
            store(replies + 512 * u64::from(index), 0_u64);
            client.queue.offer(2 * index);
        }
        client.device.ring(client.queue.number);
        t.holds(("eight of one number", number), client.queue.done(&client.device));
        for index in 0..8 {
            let at = replies + 512 * index;
            t.eq(("each its reply", number, index), (load::<u32>(at + 4), load::<u64>(at + 8)), (0, number));
        }
    }
    t.holds("it goes on", client.works());
}

pub fn read_only(t: &mut Test) {
    let mut client = Client::new();
    if writable() {
        t.holds("it is not", client.works());
        return;
    }
    with_name(b"planted", |opcode, body| {
        let answer = client.ask(opcode, ROOT, body);
        t.holds(("nothing is changed", opcode, answer), opcode == op::LOOKUP || answer == Err(error::ROFS));
    });
    let node = client.lookup(ROOT, "file").unwrap_or(0);
    // To write, to cut, to create and to append.
    for flags in [1, 2, 3, 0o1000, 0o1001, 0o2001, 0o20_200_002] {
        let Ok(handle) = client.open(node, flags) else {
            t.holds(("refused", flags), true);
            continue;
        };
        // Access mode 3 of Linux's neither reads nor writes.
        let body: [&[u8]; 5] = [&handle.to_le_bytes(), &[0; 8], &3_u32.to_le_bytes(), &[0; 20], b"bad"];
        let wrote = client.ask(op::WRITE, node, &body);
        t.holds(("opened to write", flags, wrote), flags == 3 && wrote.is_err());
    }
    let handle = client.open(node, 0).unwrap_or(0).to_le_bytes();
    let size = 3_u32.to_le_bytes();
    let wrote = client.ask(op::WRITE, node, &[&handle, &[0; 8], &size, &[0; 20], b"bad"]);
    t.holds(("by a handle to read", wrote), wrote.is_err());
    for valid in [1_u32, 2, 4, 8, 1 << 4, 1 << 5, 0x3f, u32::MAX] {
        let answer = client.ask(op::SETATTR, node, &[&valid.to_le_bytes(), &[0; 84]]);
        t.eq(("attributes", valid), answer, Err(error::ROFS));
    }
    t.holds("it goes on", client.works());
}

static OVER: AtomicBool = AtomicBool::new(false);
static REQUEST: AtomicU64 = AtomicU64::new(0);

/// Changes what a request says, its length first of all.
fn change(_: usize) {
    let mut random = Random(0xf0_5e);
    let at = REQUEST.load(Ordering::Relaxed);
    while !OVER.load(Ordering::Relaxed) {
        match random.below(4) {
            0 => store(at, random.of(&[45_u32, 44, 46, 0, u32::MAX, 4096])),
            // Not such as change what the next ones ask for.
            1 => store(
                at + 4,
                random.of(&[
                    op::LOOKUP,
                    op::GETATTR,
                    op::READLINK,
                    op::READ,
                    op::READDIR,
                    17,
                    22,
                    23,
                    25,
                    34,
                    46,
                ]),
            ),
            2 => store(at + 16, random.of(&[ROOT, 0, 2, 3, u64::MAX])),
            _ => put(at + IN_HEADER as u64, &random.of(&[*b"file", *b"..\0\0", *b"a/b\0", *b"up\0\0"])),
        }
    }
}

pub fn messages_that_change(t: &mut Test) {
    let mut client = Client::new();
    REQUEST.store(client.request, Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    let raced = smp::count() > 1;
    let mut came = 0;
    for round in 0..1500 {
        let len = client.put(op::LOOKUP, ROOT, &[b"file\0"]);
        if raced && round == 0 {
            smp::begin(1, change);
        }
        came += u32::from(client.send(len, 8192).is_some());
    }
    OVER.store(true, Ordering::Relaxed);
    if raced {
        smp::wait(1);
    }
    t.eq("all came back", came, 1500);
    client.begin();
    t.holds("it goes on", client.works());
}

pub fn anything(t: &mut Test) {
    let mut client = Client::new();
    let mut random = Random(0x0dd5);
    let mut bytes = [0; 256];
    let mut came = 0;
    for round in 0..3000 {
        bytes
            .iter_mut()
            .for_each(|byte| *byte = if random.below(3) == 0 { random.number() as u8 } else { 0 });
        let words: [&[u8]; 4] = [b"file\0", b"up\0secret\0", b"..\0..\0", b"dir\0new\0"];
        let (count, name) = (random.below(200) as usize / 8 * 8, random.of(&words));
        let other = random.number();
        let node = random.of(&[ROOT, ROOT, 2, 3, 4, other]);
        // What would end the folder's content is left to the other cases.
        let opcode = match random.below(52) as u32 {
            op::UNLINK | op::RMDIR | op::RENAME | 45 | op::WRITE | op::SETATTR | 43 => op::LOOKUP,
            op::OPEN | op::CREATE if writable() => op::GETATTR,
            opcode => opcode,
        };
        let len = client.put(opcode, node, &[&bytes[..count], name]);
        came += u32::from(client.send(len, random.of(&[8192, 16, 200])).is_some());
        if round % 1000 == 999 {
            client.begin();
            t.holds(("it goes on", round), client.works());
        }
    }
    t.eq("all came back", came, 3000);
}

/// A directory that the host makes a link to the parent and a directory again, while it is gone through.
pub fn swapped(t: &mut Test) {
    let mut client = Client::new();
    if option("swap").is_none() {
        t.holds("nobody swaps", client.works());
        return;
    }
    let (mut secrets, mut entered, mut refused) = (0_u32, 0_u32, 0_u32);
    // Until both were seen, and then as long again.
    let mut rounds = 2000_u32;
    let seen = within(|| {
        rounds = rounds.saturating_sub(1);
        let Ok(swap) = client.lookup(ROOT, "swap") else { return false };
        match client.lookup(swap, "secret") {
            Err(error::NOENT) => entered += 1,
            Err(_) => refused += 1,
            Ok(node) => {
                secrets += 1;
                let read = client.open(node, 0).and_then(|handle| client.six(node, handle));
                t.holds(("what is outside was read", read), read != Ok(*b"secret"));
            }
        }
        if let Ok(handle) = client.ask(op::OPENDIR, swap, &[&[0; 8]]).map(|_| client.word(0)) {
            let body: [&[u8]; 4] = [&handle.to_le_bytes(), &[0; 8], &4096_u32.to_le_bytes(), &[0; 20]];
            let len = client.ask(op::READDIR, swap, &body).unwrap_or(0);
            let listed =
                (0..u64::from(len)).any(|at| take(client.reply + OUT_HEADER as u64 + at) == *b"secret");
            secrets += u32::from(listed);
            let _ = client.ask(29, swap, &[&handle.to_le_bytes(), &[0; 16]]);
        }
        let forget = client.put(op::FORGET, swap, &[&u64::MAX.to_le_bytes()]);
        let _ = client.send(forget, 64);
        rounds == 0 && entered > 0 && refused > 0
    });
    t.holds(("both were seen", entered, refused), seen);
    t.eq("nothing outside", secrets, 0);
    t.holds("it goes on", client.works());
}
