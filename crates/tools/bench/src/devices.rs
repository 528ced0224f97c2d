//! What rows of devices are measured on: an image, a folder, and who answers at the other end of a network.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

/// The modules of Debian's kernels that a guest of either monitor needs for them.
pub const DRIVERS: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "virtiofs", "9pnet_virtio", "9p"];

/// The image's blocks, of 4 KiB.
const BLOCKS: u64 = 32 << 10;
const BLOCK: usize = 4096;
/// Files of 1 KiB, and folders of a hundred of them.
const FILES: u64 = 5_000;
const EACH: u64 = 100;
/// Bytes of the large file.
const LARGE: usize = 16 << 20;
/// What a sender and a receiver of the network's rows agree on.
const PIECE: usize = 1 << 20;

/// Writes an image of 128 MiB, of which each block begins with a number of its own (`guests/bench/src/rows/disk.rs`).
pub fn image(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(PIECE, File::create(path)?);
    let mut block = [0; BLOCK];
    for number in 0..BLOCKS {
        let stamp = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        block[..8].copy_from_slice(&stamp.to_le_bytes());
        file.write_all(&block)?;
    }
    file.flush()
}

/// Fills a folder with files that begin with their number, and a large one.
pub fn folder(path: &Path) -> io::Result<()> {
    let mut content = [7; 1024];
    for number in 0..FILES {
        let folder = path.join((number / EACH).to_string());
        if number % EACH == 0 {
            fs::create_dir_all(&folder)?;
        }
        content[..8].copy_from_slice(&number.to_le_bytes());
        fs::write(folder.join(number.to_string()), content)?;
    }
    fs::write(path.join("large"), vec![7; LARGE])
}

/// Answers on a port of an address of this host's for as long as this process runs.
pub fn answer(address: Ipv4Addr) -> io::Result<u16> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    let all = move || {
        for stream in listener.incoming().flatten() {
            // One that goes wrong ends; who measures sees it.
            std::thread::spawn(move || drop(serve(stream)));
        }
    };
    std::thread::Builder::new().name("answers".into()).spawn(all)?;
    Ok(port)
}

/// Does what the connection's first byte asks for: echo, sink, source, or its end.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut what = [0];
    stream.read_exact(&mut what)?;
    let mut piece = vec![4; PIECE];
    loop {
        match what {
            [b'e'] => {
                let count = stream.read(&mut piece)?;
                if count == 0 {
                    return Ok(());
                }
                stream.write_all(&piece[..count])?;
            }
            [b's'] => {
                stream.read_exact(&mut piece)?;
                stream.write_all(&piece[PIECE - 1..])?;
            }
            [b'r'] => {
                stream.read_exact(&mut [0])?;
                stream.write_all(&piece)?;
            }
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_connects_is_answered() {
        let port = answer(Ipv4Addr::LOCALHOST).unwrap();
        let connect = |what: u8| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream.write_all(&[what]).unwrap();
            stream
        };
        let (mut echo, mut byte) = (connect(b'e'), [0]);
        echo.write_all(&[9]).unwrap();
        echo.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [9]);
        let mut sink = connect(b's');
        sink.write_all(&vec![3; PIECE]).unwrap();
        sink.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [3]);
        let (mut source, mut piece) = (connect(b'r'), vec![0; PIECE]);
        source.write_all(&[1]).unwrap();
        source.read_exact(&mut piece).unwrap();
        assert!(piece.iter().all(|byte| *byte == 4));
        assert_eq!(connect(b'c').read(&mut byte).unwrap(), 0);
    }
}
