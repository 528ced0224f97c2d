//! Tables as scripts/kallsyms.c lays them out, without its compression: every character is its own token,
//! and those that no name has are other tokens.

/// Where the parts stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Until early updates of Linux 6.1.
    Old,
    /// Later updates of Linux 6.1, until 6.3: with the order of names.
    Ordered,
    /// Since Linux 6.4.
    New,
}

pub(crate) const BASE: u64 = 0xffff_ffff_9a00_0000;

pub(crate) struct Table {
    pub bytes: Vec<u8>,
    /// Where the tokens of digits are.
    pub digits: usize,
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// `symbols` are an address, or an absolute value below 2 GiB, and type and name.
pub(crate) fn table(symbols: &[(u64, &str)], layout: Layout) -> Table {
    let mut bytes = vec![0xcc; 40];
    let offsets = |bytes: &mut Vec<u8>| {
        for &(address, _) in symbols {
            let offset = match i32::try_from(address) {
                Ok(absolute) => absolute,
                Err(_) => -1 - (address - BASE) as i32,
            };
            bytes.extend(offset.to_le_bytes());
        }
        pad(bytes);
        bytes.extend(BASE.to_le_bytes());
    };
    if layout != Layout::New {
        offsets(&mut bytes);
    }
    bytes.extend((symbols.len() as u64).to_le_bytes());
    let begin = bytes.len();
    let mut markers = Vec::new();
    for (number, (_, name)) in symbols.iter().enumerate() {
        if number % 256 == 0 {
            markers.push((bytes.len() - begin) as u32);
        }
        match name.len() {
            short @ 0..0x80 => bytes.push(short as u8),
            long => bytes.extend([(long & 0x7f) as u8 | 0x80, (long >> 7) as u8]),
        }
        bytes.extend(name.bytes());
    }
    pad(&mut bytes);
    markers.iter().for_each(|marker| bytes.extend(marker.to_le_bytes()));
    pad(&mut bytes);
    if layout == Layout::Ordered {
        (0..symbols.len() as u32).rev().for_each(|n| bytes.extend(&n.to_be_bytes()[1..]));
        pad(&mut bytes);
    }
    let (begin, mut digits, mut index) = (bytes.len(), 0, Vec::new());
    for byte in 0..=255u8 {
        index.push((bytes.len() - begin) as u16);
        if byte == b'0' {
            digits = bytes.len();
        }
        match byte {
            b'!'..=b'~' => bytes.push(byte),
            _ => bytes.extend(b"__x64_sys_"),
        }
        bytes.push(0);
    }
    pad(&mut bytes);
    index.iter().for_each(|at| bytes.extend(at.to_le_bytes()));
    if layout == Layout::New {
        offsets(&mut bytes);
    }
    bytes.resize(bytes.len() + 64, 0xcc);
    Table { bytes, digits }
}
