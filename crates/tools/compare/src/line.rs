//! Cases as lines of text, which the corpus keeps: what differs from [`Case::new`], a word each.
//!
//! ```text
//! 64 at=20008ff0 code=0fa2 rax=1 rflags=8c5 xmm3=1f mem@20001040=00ff..
//! ```

use std::fmt::Write;

use crate::case::Case;
use crate::diff::NAMES;
use crate::error::Error;
use crate::layout::{LINE, LINES, line_address, line_at};

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).collect()
}

/// The registers that a line can set, by name.
fn fields(case: &mut Case) -> Vec<(String, Field<'_>)> {
    let mut fields = Vec::new();
    let mut add = |name: String, field| fields.push((name, field));
    add("at".into(), Field::U64(&mut case.at));
    for (name, value) in NAMES.iter().zip(&mut case.gpr) {
        add((*name).into(), Field::U64(value));
    }
    add("rflags".into(), Field::U64(&mut case.rflags));
    add("fs_base".into(), Field::U64(&mut case.fs_base));
    add("gs_base".into(), Field::U64(&mut case.gs_base));
    add("fcw".into(), Field::U16(&mut case.fpu.fcw));
    add("fsw".into(), Field::U16(&mut case.fpu.fsw));
    add("ftw".into(), Field::U16(&mut case.fpu.ftw));
    add("fop".into(), Field::U16(&mut case.fpu.fop));
    add("fip".into(), Field::U64(&mut case.fpu.fip));
    add("fdp".into(), Field::U64(&mut case.fpu.fdp));
    add("mxcsr".into(), Field::U32(&mut case.fpu.mxcsr));
    for (i, value) in case.fpu.st.iter_mut().enumerate() {
        add(format!("st{i}"), Field::U128(value));
    }
    for (i, value) in case.fpu.xmm.iter_mut().enumerate() {
        add(format!("xmm{i}"), Field::U128(value));
    }
    for (i, value) in case.ymm_high.iter_mut().enumerate() {
        add(format!("ymm{i}h"), Field::U128(value));
    }
    fields
}

/// A register of a case.
enum Field<'a> {
    U16(&'a mut u16),
    U32(&'a mut u32),
    U64(&'a mut u64),
    U128(&'a mut u128),
}

impl Field<'_> {
    fn get(&self) -> u128 {
        match self {
            Field::U16(value) => u128::from(**value),
            Field::U32(value) => u128::from(**value),
            Field::U64(value) => u128::from(**value),
            Field::U128(value) => **value,
        }
    }

    fn set(&mut self, new: u128) -> bool {
        match self {
            Field::U16(value) => **value = new as u16,
            Field::U32(value) => **value = new as u32,
            Field::U64(value) => **value = new as u64,
            Field::U128(value) => **value = new,
        }
        self.get() == new
    }
}

/// Simpler cases, each with one thing as in [`Case::new`].
pub(crate) fn simpler(case: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for at in 0..case.patches as usize {
        let mut simple = *case;
        simple.unpatch(at);
        cases.push(simple);
    }
    let (mut plain, mut copy) = (Case::new(case.bits), *case);
    let wanted: Vec<u128> = fields(&mut plain).iter().map(|(_, field)| field.get()).collect();
    let present: Vec<u128> = fields(&mut copy).iter().map(|(_, field)| field.get()).collect();
    for (i, (wanted, present)) in wanted.iter().zip(&present).enumerate() {
        // Zero, or only the low bits.
        for value in [*wanted, 0, 1, *present & 0xff, *present & 0xffff_ffff] {
            if *present != *wanted && (value < *present || value == *wanted) {
                let mut simple = *case;
                fields(&mut simple)[i].1.set(value);
                cases.push(simple);
            }
        }
    }
    cases
}

/// The line of `case`.
pub fn write(case: &Case) -> String {
    let mut text = format!("{} code={}", case.bits, hex(case.code()));
    let (mut plain, mut copy) = (Case::new(case.bits), *case);
    for ((name, value), (_, plain)) in fields(&mut copy).iter().zip(fields(&mut plain)) {
        if value.get() != plain.get() {
            let _ = write!(text, " {name}={:x}", value.get());
        }
    }
    for (line, bytes) in case.patches() {
        let _ = write!(text, " mem@{:x}={}", line_address(line), hex(bytes));
    }
    text
}

/// The case of a line.
pub fn read(text: &str) -> Result<Case, Error> {
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or_default();
    let wrong = |word: &str, why| Error::Line { word: word.into(), why };
    let mut case = match first {
        "64" => Case::new(64),
        "32" => Case::new(32),
        _ => return Err(wrong(first, "a line begins with 64 or 32, the size of code")),
    };
    for word in words {
        let (name, value) = word.split_once('=').ok_or(wrong(word, "a word is name=value"))?;
        if name == "code" {
            let bytes = unhex(value).filter(|b| b.len() < 16);
            case.set_code(&bytes.ok_or(wrong(word, "code is at most 15 bytes of hexadecimal digits"))?);
        } else if let Some(address) = name.strip_prefix("mem@") {
            let line = u64::from_str_radix(address, 16).ok().and_then(line_at);
            let line = line.ok_or(wrong(word, "there is no writable line at this address"))?;
            let bytes = unhex(value).and_then(|b| <[u8; LINE]>::try_from(b).ok());
            debug_assert!(line < LINES);
            case.patch(line, bytes.ok_or(wrong(word, "a line is 64 bytes"))?);
        } else {
            let value =
                u128::from_str_radix(value, 16).map_err(|_| wrong(word, "not a hexadecimal number"))?;
            let mut fields = fields(&mut case);
            let field = fields.iter_mut().find(|(field, _)| field == name);
            if !field.ok_or(wrong(word, "no such register"))?.1.set(value) {
                return Err(wrong(word, "the value does not fit"));
            }
        }
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Generator;

    #[test]
    fn lines_are_read_as_they_were_written() {
        for bits in [32, 64] {
            let generator = Generator::new(bits, 5, "");
            for index in 0..200 {
                let case = generator.case(index).0;
                let again = read(&write(&case)).unwrap();
                assert_eq!(write(&again), write(&case));
                assert_eq!((again.fpu, again.ymm_high), (case.fpu, case.ymm_high));
            }
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in ["", "16", "64 code=0", "64 foo=1", "64 fcw=10000", "64 mem@1000=00", "64 rax=x"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
