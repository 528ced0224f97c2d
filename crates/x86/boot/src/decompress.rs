//! Unpacks the payload of a bzImage on the host, so that the guest need not.
//!
//! The format is found by its magic. Every payload ends in its unpacked length, 4 bytes: as
//! gzip's own ISIZE, or appended by Linux's build (scripts/Makefile.lib, size_append). It bounds
//! what is unpacked and proves that all of it was.

use std::io::Read;
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use satori_lock::Held;

use crate::kernel::KERNEL_MAX;
use crate::{BadKernel, bzimage, lzo};

/// How a kernel is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// DEFLATE in gzip's framing.
    Gzip,
    /// LZMA2 in xz's framing, with or without the x86 filter.
    Xz,
    /// LZMA in the framing of before xz.
    Lzma,
    /// bzip2.
    Bzip2,
    /// LZO1X in lzop's framing.
    Lzo,
    /// LZ4 in its legacy framing, as `lz4 -l` writes it.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// Magic of LZ4's legacy framing, little-endian.
const LZ4_LEGACY_MAGIC: [u8; 4] = 0x184c_2102_u32.to_le_bytes();
/// Every block of LZ4's legacy framing but the last unpacks to this.
const LZ4_LEGACY_BLOCK: usize = 8 << 20;
/// Threads that unpack, at most: memory is the limit then.
const THREADS: usize = 4;
/// Largest window that a zstd frame may ask for: what `zstd -22 --ultra` uses.
const ZSTD_WINDOW_MAX: u64 = 128 << 20;
/// Memory in KiB that an LZMA dictionary may take; Linux's build uses 128 MiB of it.
const LZMA_MEMORY_KIB: u32 = 256 << 10;

/// (first bytes, format); Linux's lib/decompress.c has the same list.
const MAGICS: &[(&[u8], Compression)] = &[
    (&[0x1f, 0x8b], Compression::Gzip),
    (&[0x1f, 0x9e], Compression::Gzip),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
    (&[0x5d, 0x00, 0x00], Compression::Lzma),
    (b"BZh", Compression::Bzip2),
    (&lzo::MAGIC, Compression::Lzo),
    (&LZ4_LEGACY_MAGIC, Compression::Lz4),
    (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
    (b"\x7fELF", Compression::None),
];

impl Compression {
    /// Recognises `data` by its first bytes.
    pub fn of(data: &[u8]) -> Option<Self> {
        MAGICS.iter().find(|(magic, _)| data.starts_with(magic)).map(|&(_, format)| format)
    }

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::None => "uncompressed",
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
            Compression::Lzma => "lzma",
            Compression::Bzip2 => "bzip2",
            Compression::Lzo => "lzo",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

/// The payload of a bzImage, as it is packed.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// How it is packed.
    pub compression: Compression,
    /// How many bytes it says that it unpacks to.
    pub length: u32,
}

impl<'a> Packed<'a> {
    /// The payload of `file`, if that is a bzImage with one.
    pub fn of(file: &'a [u8]) -> Option<Self> {
        let bytes = bzimage::recognise(file).then(|| bzimage::parse(file).ok()).flatten()?.1?;
        let compression = Compression::of(bytes).filter(|format| *format != Compression::None)?;
        Some(Packed { bytes, compression, length: u32::from_le_bytes(*bytes.last_chunk()?) })
    }

    /// Unpacks it.
    pub fn unpack(&self) -> Result<Vec<u8>, BadKernel> {
        unpack(self.bytes, KERNEL_MAX).map(|(_, unpacked)| unpacked)
    }
}

/// Unpacks `payload`, at most `max` bytes of it.
pub(crate) fn unpack(payload: &[u8], max: u64) -> Result<(Compression, Vec<u8>), BadKernel> {
    let Some(format) = Compression::of(payload) else {
        let mut magic = [0; 6];
        payload.iter().zip(&mut magic).for_each(|(&from, to)| *to = from);
        return Err(BadKernel::Compression { magic });
    };
    if format == Compression::None {
        return Ok((format, payload.to_vec()));
    }
    let damaged = |why: String| BadKernel::Payload { format: format.name(), why };
    let Some((packed, trailer)) = payload.split_last_chunk::<4>() else {
        return Err(damaged("it ends too early".into()));
    };
    let length = u32::from_le_bytes(*trailer);
    if u64::from(length) > max {
        return Err(BadKernel::PayloadTooLarge { max });
    }
    let length = length as usize;
    let text = |error: &'static str| error.to_string();
    let unpacked = match format {
        Compression::None => Ok(Vec::new()),
        // gzip's trailer is part of it.
        Compression::Gzip => bounded(flate2::read::GzDecoder::new(payload), length),
        Compression::Xz => {
            bounded(lzma_rust2::XzReader::new_mem_limit(packed, false, LZMA_MEMORY_KIB), length)
        }
        Compression::Lzma => lzma_rust2::LzmaReader::new_mem_limit(packed, LZMA_MEMORY_KIB, None)
            .map_err(|e| e.to_string())
            .and_then(|reader| bounded(reader, length)),
        Compression::Bzip2 => bounded(bzip2::read::BzDecoder::new(packed), length),
        Compression::Lzo => lzo::unpack_lzop(packed, length).map_err(text),
        Compression::Lz4 => unpack_lz4_legacy(packed, length),
        Compression::Zstd => {
            ruzstd::decoding::StreamingDecoder::new_with_max_window_size(packed, ZSTD_WINDOW_MAX)
                .map_err(|e| e.to_string())
                .and_then(|reader| bounded(reader, length))
        }
    };
    let unpacked = unpacked.map_err(damaged)?;
    if unpacked.len() != length {
        return Err(damaged(format!("it unpacks to {} bytes, its trailer says {length}", unpacked.len())));
    }
    Ok((format, unpacked))
}

/// The first bytes, at most `length`, of what a gzip file holds, as far as it is sound.
pub(crate) fn gzip_begin(file: &[u8], length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    // Who unpacks the whole finds the damage again.
    let _ = flate2::read::GzDecoder::new(file).take(length as u64).read_to_end(&mut out);
    out
}

/// Reads to the end, but stops one byte after `length`.
fn bounded(reader: impl Read, length: usize) -> Result<Vec<u8>, String> {
    // The length comes from the file, within what its caller allows: until something is there, the room takes no memory.
    let mut out = Vec::new();
    out.try_reserve_exact(length + 1).map_err(|e| e.to_string())?;
    reader.take(length as u64 + 1).read_to_end(&mut out).map_err(|e| e.to_string())?;
    Ok(out)
}

/// Unpacks a sequence of (u32 length, LZ4 block) after the magic.
fn unpack_lz4_legacy(packed: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let blocks = lz4_blocks(&packed[LZ4_LEGACY_MAGIC.len()..])?;
    if blocks.len() == length.div_ceil(LZ4_LEGACY_BLOCK)
        && let Some(out) = unpack_whole_blocks(&blocks, length)
    {
        return Ok(out);
    }
    // Frames that were concatenated have shorter blocks in between; or something is wrong with them.
    let mut out = Vec::new();
    for block in blocks {
        let start = out.len();
        out.resize(start + LZ4_LEGACY_BLOCK.min(length - start), 0);
        let got = lz4_flex::block::decompress_into(block, &mut out[start..]).map_err(|e| e.to_string())?;
        out.truncate(start + got);
    }
    Ok(out)
}

fn lz4_blocks(mut rest: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut blocks = Vec::new();
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        // Concatenated frames repeat the magic.
        if *size == LZ4_LEGACY_MAGIC {
            rest = after;
            continue;
        }
        let size = u32::from_le_bytes(*size) as usize;
        let (block, after) = after.split_at_checked(size).ok_or("a block ends too early")?;
        blocks.push(block);
        rest = after;
    }
    if rest.is_empty() { Ok(blocks) } else { Err("a block length ends too early".into()) }
}

/// Unpacks blocks on some threads at a time, each to where it belongs if all but the last have the usual length;
/// nothing if one does not.
fn unpack_whole_blocks(blocks: &[&[u8]], length: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; length];
    let work = Mutex::new(blocks.iter().zip(out.chunks_mut(LZ4_LEGACY_BLOCK)));
    let unpack = || {
        loop {
            let next = work.lock().held().next();
            let Some((block, place)) = next else { return true };
            let expected = place.len();
            if lz4_flex::block::decompress_into(block, place).ok() != Some(expected) {
                return false;
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(blocks.len()).min(THREADS);
    let whole = thread::scope(|scope| {
        // Where there can be no more threads, this one does it all.
        let spawned: Vec<_> =
            (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, unpack).ok()).collect();
        let own = unpack();
        spawned.into_iter().all(|thread| thread.join().unwrap_or(false)) && own
    });
    whole.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text, runs, noise and relative calls (for the x86 filter), as the fixtures were packed.
    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        let mut noise = 0x1234_5678_u32;
        for i in 0..600_u32 {
            out.extend_from_slice(b"the quick brown fox ");
            out.push(0xe8);
            out.extend_from_slice(&(0x4000_u32.wrapping_sub(out.len() as u32)).to_le_bytes());
            if i % 100 == 0 {
                out.extend(std::iter::repeat_n(0x90, 700));
                for _ in 0..8 {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    out.extend_from_slice(&noise.to_le_bytes());
                }
            }
        }
        out
    }

    /// The sample packed by the host tools with the flags of Linux's build, each file ending in
    /// the length: `gzip -n -9`, `xz --check=crc32 --x86 --lzma2=dict=128MiB`, `lzma -9`,
    /// `bzip2 -9`, `lzop -9`, `lz4 -l -9`, `zstd -22 --ultra` from a pipe.
    const FIXTURES: [(Compression, &[u8]); 7] = [
        (Compression::Gzip, include_bytes!("testdata/sample.gz")),
        (Compression::Xz, include_bytes!("testdata/sample.xz")),
        (Compression::Lzma, include_bytes!("testdata/sample.lzma")),
        (Compression::Bzip2, include_bytes!("testdata/sample.bz2")),
        (Compression::Lzo, include_bytes!("testdata/sample.lzo")),
        (Compression::Lz4, include_bytes!("testdata/sample.lz4")),
        (Compression::Zstd, include_bytes!("testdata/sample.zst")),
    ];

    #[test]
    fn every_format_unpacks_to_the_sample() {
        for (format, packed) in FIXTURES {
            let (found, unpacked) = unpack(packed, 1 << 20).unwrap();
            assert_eq!(found, format);
            assert!(unpacked == sample(), "{} differs", format.name());
        }
    }

    #[test]
    fn a_wrong_trailer_truncation_and_a_bomb_are_refused() {
        for (format, packed) in FIXTURES {
            let name = format.name();
            assert_eq!(unpack(packed, 100), Err(BadKernel::PayloadTooLarge { max: 100 }), "{name}");
            for delta in [1, u32::MAX] {
                let (body, trailer) = packed.split_last_chunk::<4>().unwrap();
                let length = u32::from_le_bytes(*trailer).wrapping_add(delta);
                let changed = [body, &length.to_le_bytes()].concat();
                assert!(unpack(&changed, 1 << 20).is_err(), "{name} {delta}");
            }
            for cut in [5, packed.len() / 2, packed.len() - 5] {
                let (_, trailer) = packed.split_last_chunk::<4>().unwrap();
                let changed = [&packed[..cut], trailer].concat();
                assert!(unpack(&changed, 1 << 20).is_err(), "{name} cut at {cut}");
            }
        }
    }

    #[test]
    fn no_changed_byte_panics_or_unpacks_without_bound() {
        for (_, packed) in FIXTURES {
            for at in 0..packed.len() - 4 {
                for value in [0x00, 0xff, packed[at] ^ 0x10] {
                    let mut changed = packed.to_vec();
                    changed[at] = value;
                    if let Ok((_, unpacked)) = unpack(&changed, 1 << 20) {
                        assert!(unpacked.len() <= 1 << 20);
                    }
                }
            }
        }
    }

    #[test]
    fn lz4_blocks_beyond_the_first_are_joined() {
        let whole = |byte: u8| vec![byte; LZ4_LEGACY_BLOCK];
        // The last is what concatenated frames have in between.
        for parts in [
            vec![whole(7), sample()],
            vec![whole(1), whole(2), whole(3), whole(4), whole(5)],
            vec![sample(), whole(6)],
        ] {
            let mut packed = LZ4_LEGACY_MAGIC.to_vec();
            for part in &parts {
                let block = lz4_flex::block::compress(part);
                packed.extend_from_slice(&(block.len() as u32).to_le_bytes());
                packed.extend_from_slice(&block);
            }
            let length: usize = parts.iter().map(Vec::len).sum();
            packed.extend_from_slice(&(length as u32).to_le_bytes());
            let (_, unpacked) = unpack(&packed, 1 << 30).unwrap();
            assert!(unpacked == parts.concat());
            let last = packed.len() - 5;
            packed[last] ^= 0xff;
            assert_ne!(unpack(&packed, 1 << 30).map(|(_, unpacked)| unpacked == parts.concat()), Ok(true));
        }
    }
}
