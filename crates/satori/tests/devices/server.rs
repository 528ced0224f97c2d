//! A file server of two files, just enough of FUSE (linux/fuse.h) for a stock guest to read them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// The files in the root, from node 2 on.
pub(crate) const FILES: [&str; 2] = ["hello", "large"];

/// What is in file `index`.
pub(crate) fn content(index: usize) -> Vec<u8> {
    match index {
        0 => b"hello from the host\n".to_vec(),
        _ => (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
    }
}

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// struct fuse_attr of `node`.
fn attributes(node: u64) -> Vec<u8> {
    let root = node == 1;
    let size = if root { 0 } else { content(node as usize - 2).len() as u64 };
    let mut attr = Vec::new();
    [node, size, size.div_ceil(512), 0, 0, 0].iter().for_each(|field| attr.extend(field.to_le_bytes()));
    let mode = if root { 0o040_755 } else { 0o100_644 };
    [0, 0, 0, mode, 1_u32, 0, 0, 0, 4096, 0].iter().for_each(|field| attr.extend(field.to_le_bytes()));
    attr
}

/// The body of the reply to a request, or the error.
fn answer(opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
    match opcode {
        // LOOKUP
        1 => {
            let name = body.split(|&byte| byte == 0).next().unwrap_or_default();
            let index = FILES.iter().position(|file| file.as_bytes() == name).ok_or(ENOENT)?;
            let node = index as u64 + 2;
            let mut entry = Vec::new();
            [node, 0, 0, 0, 0].iter().for_each(|field| entry.extend(field.to_le_bytes()));
            entry.extend(attributes(node));
            Ok(entry)
        }
        // GETATTR
        3 => Ok([vec![0; 16], attributes(node)].concat()),
        // OPEN, OPENDIR
        14 | 27 => Ok(vec![0; 16]),
        // READ
        15 => {
            let (offset, size) = (number(body, 8) as usize, word(body, 16) as usize);
            let all = content(node as usize - 2);
            Ok(all.into_iter().skip(offset).take(size).collect())
        }
        // RELEASE, FLUSH, RELEASEDIR, DESTROY
        18 | 25 | 29 | 38 => Ok(Vec::new()),
        // INIT: version 7.31, and pages of a reply.
        26 => {
            let mut init = Vec::new();
            [7_u32, 31, 128 << 10, 1 << 22].iter().for_each(|field| init.extend(field.to_le_bytes()));
            init.extend([16_u16, 12].iter().flat_map(|field| field.to_le_bytes()));
            [1_u32 << 20, 1].iter().for_each(|field| init.extend(field.to_le_bytes()));
            init.extend(256_u16.to_le_bytes());
            init.resize(64, 0);
            Ok(init)
        }
        _ => Err(ENOSYS),
    }
}

/// Serves until the other side is closed.
pub(crate) fn serve(mut socket: UnixStream) {
    loop {
        let mut head = [0; 40];
        if socket.read_exact(&mut head).is_err() {
            return;
        }
        let mut body = vec![0; word(&head, 0) as usize - 40];
        socket.read_exact(&mut body).expect("a whole request");
        let opcode = word(&head, 4);
        // FORGET, BATCH_FORGET
        if opcode == 2 || opcode == 42 {
            continue;
        }
        let (error, body) = match answer(opcode, number(&head, 16), &body) {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let mut reply = (16 + body.len() as u32).to_le_bytes().to_vec();
        reply.extend(error.to_le_bytes());
        reply.extend(&head[8..16]);
        reply.extend(body);
        if socket.write_all(&reply).is_err() {
            return;
        }
    }
}
