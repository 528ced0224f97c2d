//! Requests as bytes (include/uapi/linux/fuse.h).

use satori_guests::defs::virtio::feature::{INDIRECT_DESC, VERSION_1};
use satori_guests::defs::virtio::fs::{IN_HEADER, OUT_HEADER};
use satori_guests::defs::virtio::kind;
use satori_guests::defs::virtio::split::{NEXT, WRITE};
use satori_guests::harness::option;
use satori_guests::paging;
use satori_guests::place::{load, put, store};
use satori_guests::virtio::{Device, Queue};

/// Opcodes.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const FORGET: u32 = 2;
    pub const BATCH_FORGET: u32 = 42;
    pub const READDIRPLUS: u32 = 44;
}

/// Errors, as a reply has them.
pub mod error {
    pub const NOENT: i32 = -2;
    pub const BADF: i32 = -9;
    pub const NOTDIR: i32 = -20;
    pub const INVAL: i32 = -22;
    pub const FBIG: i32 = -27;
    pub const ROFS: i32 = -30;
    pub const LOOP: i32 = -40;
}

/// The folder's root.
pub const ROOT: u64 = 1;
/// Bytes of `fuse_entry_out`.
pub const ENTRY: u32 = 128;

/// A device, its queue of requests, and room for a request and a reply of two pages each.
pub struct Client {
    pub device: Device,
    pub queue: Queue,
    pub request: u64,
    pub reply: u64,
    unique: u64,
}

impl Client {
    pub fn new() -> Client {
        let device = Device::find(kind::FS).expect("a shared folder");
        let (request, reply) = (paging::pages(2), paging::pages(2));
        let mut client = Client { device, queue: Queue::new(1, 16), request, reply, unique: 1 };
        client.begin();
        client
    }

    /// A reset, and the session's beginning.
    pub fn begin(&mut self) {
        assert!(self.device.begin(VERSION_1 | INDIRECT_DESC, [&mut self.queue]), "it does not begin");
        let begun = self.ask(op::INIT, 0, &[b"\x07\0\0\0", b"\x1f\0\0\0", &[0; 8]]);
        assert!(begun.is_ok(), "no session: {begun:?}");
    }

    /// Writes a request, whose bytes behind the header are those of `body`, and tells its length.
    pub fn put(&mut self, opcode: u32, node: u64, body: &[&[u8]]) -> u32 {
        let mut at = self.request + IN_HEADER as u64;
        for piece in body {
            put(at, piece);
            at += piece.len() as u64;
        }
        let len = (at - self.request) as u32;
        self.unique += 2;
        store(self.request, len);
        store(self.request + 4, opcode);
        store(self.request + 8, self.unique);
        store(self.request + 16, node);
        // Of root's, who is asked for nothing here.
        (24..40).step_by(4).for_each(|at| store(self.request + at, 0_u32));
        len
    }

    /// Sends it with room for a reply: the reply's length behind the header, or the error; `None` if nothing came back.
    pub fn send(&mut self, len: u32, room: u32) -> Option<Result<u32, i32>> {
        (0..u64::from(room).min(OUT_HEADER as u64)).for_each(|at| store(self.reply + at, 0xee_u8));
        self.queue.descriptor(0, self.request, len, NEXT, 1);
        self.queue.descriptor(1, self.reply, room, WRITE, 0);
        if !self.queue.request(&self.device, 0) {
            return None;
        }
        let (_, written) = self.queue.entry(self.queue.offered.wrapping_sub(1));
        if written < OUT_HEADER as u32 {
            return Some(Ok(0));
        }
        let (len, error) = (load::<u32>(self.reply), load::<u32>(self.reply + 4) as i32);
        Some(if error == 0 { Ok(len - OUT_HEADER as u32) } else { Err(error) })
    }

    /// Asks: the reply's length, or the error.
    pub fn ask(&mut self, opcode: u32, node: u64, body: &[&[u8]]) -> Result<u32, i32> {
        let len = self.put(opcode, node, body);
        self.send(len, 8192).unwrap_or(Err(0))
    }

    /// A word of the last reply.
    pub fn word(&self, at: u64) -> u64 {
        load(self.reply + OUT_HEADER as u64 + at)
    }

    /// The node of a name.
    pub fn lookup(&mut self, directory: u64, name: &str) -> Result<u64, i32> {
        self.ask(op::LOOKUP, directory, &[name.as_bytes(), b"\0"])?;
        // A name that is not there is an answer as well, of no node, that may be remembered.
        match self.word(0) {
            0 => Err(error::NOENT),
            node => Ok(node),
        }
    }

    /// Opens a node with these flags: its handle.
    pub fn open(&mut self, node: u64, flags: u32) -> Result<u64, i32> {
        self.ask(op::OPEN, node, &[&flags.to_le_bytes(), &[0; 4]]).map(|_| self.word(0))
    }

    /// Reads six bytes.
    pub fn six(&mut self, node: u64, handle: u64) -> Result<[u8; 6], i32> {
        let body: [&[u8]; 4] = [&handle.to_le_bytes(), &[0; 8], &6_u32.to_le_bytes(), &[0; 20]];
        self.ask(op::READ, node, &body)?;
        Ok(satori_guests::place::take(self.reply + OUT_HEADER as u64))
    }

    /// Whether everything is as it should be: the folder's file is read.
    pub fn works(&mut self) -> bool {
        let Ok(node) = self.lookup(ROOT, "file") else { return false };
        let Ok(handle) = self.open(node, 0) else { return false };
        self.six(node, handle) == Ok(*b"inside")
    }
}

/// How the folder is shared.
pub fn mode() -> &'static str {
    option("mode").unwrap_or("ro")
}

/// Whether it can be written.
pub fn writable() -> bool {
    mode() != "ro"
}
