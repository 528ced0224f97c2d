//! LZO1X, and the lzop framing around it.
//!
//! Own code because the one pure Rust crate panics on damaged input and bounds nothing. The
//! instructions are those of Linux's Documentation/staging/lzo.rst, bitstream version 0.

/// Magic of an lzop file.
pub(crate) const MAGIC: [u8; 9] = [0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a];

/// lzop header flags that add fields (lzop's conf.h).
mod flags {
    pub(super) const ADLER32_D: u32 = 1 << 0;
    pub(super) const ADLER32_C: u32 = 1 << 1;
    pub(super) const EXTRA_FIELD: u32 = 1 << 6;
    pub(super) const CRC32_D: u32 = 1 << 8;
    pub(super) const CRC32_C: u32 = 1 << 9;
    pub(super) const FILTER: u32 = 1 << 11;
}

/// The first lzop version with a level and a high word of the time.
const VERSION_LEVEL: u16 = 0x0940;

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (head, rest) = self.0.split_at_checked(len).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(head)
    }
    fn u8(&mut self) -> Result<usize, &'static str> {
        Ok(usize::from(self.take(1)?[0]))
    }
    fn be16(&mut self) -> Result<u16, &'static str> {
        Ok(self.take(2)?.iter().fold(0, |n, &byte| n << 8 | u16::from(byte)))
    }
    fn be32(&mut self) -> Result<u32, &'static str> {
        Ok(self.take(4)?.iter().fold(0, |n, &byte| n << 8 | u32::from(byte)))
    }
    fn le16(&mut self) -> Result<usize, &'static str> {
        Ok(self.u8()? | self.u8()? << 8)
    }
    /// A length of which the instruction holds `short`; 0 there means that it follows.
    fn length(&mut self, short: usize, base: usize) -> Result<usize, &'static str> {
        if short != 0 {
            return Ok(short);
        }
        let mut length = base;
        loop {
            match self.u8()? {
                0 => length += 255,
                last => return Ok(length + last),
            }
        }
    }
}

/// Unpacks an lzop file, at most `max` bytes.
pub(crate) fn unpack_lzop(data: &[u8], max: usize) -> Result<Vec<u8>, &'static str> {
    let mut input = Input(data);
    if input.take(MAGIC.len())? != MAGIC {
        return Err("it has no lzop header");
    }
    let version = input.be16()?;
    input.take(2)?;
    if version >= VERSION_LEVEL {
        input.take(2 + 1 + 1)?;
    } else {
        input.take(1)?;
    }
    let present = input.be32()?;
    if present & (flags::FILTER | flags::EXTRA_FIELD) != 0 {
        return Err("it uses a filter or an extra field");
    }
    input.take(if version >= VERSION_LEVEL { 12 } else { 8 })?;
    let name = input.u8()?;
    input.take(name + 4)?;
    let mut out = Vec::new();
    loop {
        let unpacked = input.be32()? as usize;
        if unpacked == 0 {
            return Ok(out);
        }
        let packed = input.be32()? as usize;
        if unpacked > max - out.len() {
            return Err("it unpacks to more than is allowed");
        }
        let checksums = |mask: u32| 4 * (present & mask).count_ones() as usize;
        input.take(checksums(flags::ADLER32_D | flags::CRC32_D))?;
        if packed < unpacked {
            input.take(checksums(flags::ADLER32_C | flags::CRC32_C))?;
        }
        let block = input.take(packed)?;
        let end = out.len() + unpacked;
        if packed >= unpacked {
            out.extend_from_slice(block);
        } else {
            unpack_block(block, &mut out, end)?;
        }
        if out.len() != end {
            return Err("a block has the wrong length");
        }
    }
}

fn unpack_block(block: &[u8], out: &mut Vec<u8>, end: usize) -> Result<(), &'static str> {
    let start = out.len();
    let mut input = Input(block);
    // How many literals the last instruction copied: 4 stands for four and more.
    let mut state = 0;
    if block.first().is_some_and(|&first| first > 17) {
        let literals = input.u8()? - 17;
        copy_literals(&mut input, out, end, literals)?;
        state = literals.min(4);
    }
    loop {
        let code = input.u8()?;
        let (length, distance, literals) = match code {
            0..=15 if state == 0 => {
                let literals = input.length(code, 15)? + 3;
                copy_literals(&mut input, out, end, literals)?;
                state = 4;
                continue;
            }
            0..=15 => {
                let distance = (input.u8()? << 2) + (code >> 2) + 1;
                if state == 4 { (3, distance + 2048, code & 3) } else { (2, distance, code & 3) }
            }
            16..=31 => {
                let length = input.length(code & 7, 7)? + 2;
                let low = input.le16()?;
                let distance = 16384 + ((code & 8) << 11) + (low >> 2);
                if distance == 16384 {
                    return Ok(());
                }
                (length, distance, low & 3)
            }
            32..=63 => {
                let length = input.length(code & 31, 31)? + 2;
                let low = input.le16()?;
                (length, (low >> 2) + 1, low & 3)
            }
            _ => {
                let length = if code < 128 { 3 + (code >> 5 & 1) } else { 5 + (code >> 5 & 3) };
                (length, (input.u8()? << 3) + (code >> 2 & 7) + 1, code & 3)
            }
        };
        if distance > out.len() - start {
            return Err("a copy reaches before the block");
        }
        if length > end - out.len() {
            return Err("a block unpacks to more than it says");
        }
        for _ in 0..length {
            out.push(out[out.len() - distance]);
        }
        copy_literals(&mut input, out, end, literals)?;
        state = literals;
    }
}

fn copy_literals(input: &mut Input, out: &mut Vec<u8>, end: usize, len: usize) -> Result<(), &'static str> {
    if len > end - out.len() {
        return Err("a block unpacks to more than it says");
    }
    out.extend_from_slice(input.take(len)?);
    Ok(())
}
