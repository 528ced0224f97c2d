//! Patterns of instruction words, as they are written in the table.
//!
//! From bit 31 down: digits are bits that must be so; a letter begins a field, with its width behind it. Without a width `d`,
//! `n`, `m` and `a` are 5 bits (registers), other letters 1. Blanks only separate.

/// Which bits of a word are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The given bits.
    pub mask: u32,
    /// Their values.
    pub value: u32,
}

/// A field of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its letter.
    pub name: char,
    /// Its lowest bit.
    pub low: u32,
    /// Bits it has.
    pub width: u32,
}

impl Field {
    /// Its value in `word`.
    pub fn of(self, word: u32) -> u32 {
        word >> self.low & ((1 << self.width) - 1)
    }
}

impl Pattern {
    /// Reads a pattern. One that is not of 32 bits does not compile.
    pub const fn read(written: &str) -> Self {
        let (text, mut at, mut bits) = (written.as_bytes(), 0, 0_u32);
        let (mut mask, mut value) = (0_u64, 0_u64);
        while at < text.len() {
            let (width, next) = token(text, at);
            if width > 0 {
                let fixed = text[at] == b'0' || text[at] == b'1';
                mask = mask << width | fixed as u64;
                value = value << width | (text[at] == b'1') as u64;
                bits += width;
            }
            at = next;
        }
        assert!(bits == 32, "a pattern has 32 bits");
        Pattern { mask: mask as u32, value: value as u32 }
    }

    /// Whether `word` has the given bits.
    pub const fn matches(self, word: u32) -> bool {
        word & self.mask == self.value
    }
}

/// Width of what begins at `at`, and where the next begins. A blank has no bits.
const fn token(text: &[u8], at: usize) -> (u32, usize) {
    let mut next = at + 1;
    match text[at] {
        b' ' => (0, next),
        b'0' | b'1' => (1, next),
        letter => {
            let mut width = 0;
            while next < text.len() && text[next].is_ascii_digit() {
                width = width * 10 + (text[next] - b'0') as u32;
                next += 1;
            }
            if width == 0 {
                width = match letter {
                    b'd' | b'n' | b'm' | b'a' => 5,
                    _ => 1,
                };
            }
            (width, next)
        }
    }
}

/// The fields of a pattern, from the highest bit down.
pub fn fields(written: &str) -> Vec<Field> {
    let (text, mut at, mut left) = (written.as_bytes(), 0, 32);
    let mut found = Vec::new();
    while at < text.len() {
        let (width, next) = token(text, at);
        left -= width;
        if text[at].is_ascii_alphabetic() {
            found.push(Field { name: text[at].into(), low: left, width });
        }
        at = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_give_masks_values_and_fields() {
        let written = "f 0 0 100010 h i12 n d";
        assert_eq!(Pattern::read(written), Pattern { mask: 0x7f80_0000, value: 0x1100_0000 });
        let names: Vec<_> = fields(written).iter().map(|f| (f.name, f.of(0x9100_4c22))).collect();
        assert_eq!(names, [('f', 1), ('h', 0), ('i', 0x13), ('n', 1), ('d', 2)]);
    }
}
