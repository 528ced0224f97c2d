//! The A64 instruction set as one table.
//!
//! A [`Row`] is an instruction: its [`Op`], its mnemonics, the pattern of its word, and what of the words that match is
//! reserved ([`Row::limit`]). Decoding ([`decode()`]), messages ([`text()`]), random words for comparison and fuzzing
//! ([`Row::sample`]) and the engine's choice of what executes it all come from this table. What is in no row is UNDEFINED.
//!
//! The table is of Armv8.2 with LSE, CRC32, RDM, DotProd, AES, SHA-1 and SHA-256. Absent, and so UNDEFINED: AArch32, SVE, arithmetic on
//! half precision, and what came with Armv8.3 and later. Encodings are of the Arm Architecture Reference Manual, chapter C4.

#![forbid(unsafe_code)]

mod decode;
mod limit;
mod pattern;
mod table;
mod text;

pub use decode::{decode, logical_immediate};
pub use pattern::{Field, Pattern, fields};
pub use table::{Op, ROWS};
pub use text::text;

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it does.
    pub op: Op,
    /// Its mnemonics, with slashes between them if size or form chooses one.
    pub names: &'static str,
    /// Which words it has, as it is written in the table.
    pub written: &'static str,
    /// The same as mask and value.
    pub pattern: Pattern,
    /// What of these words is reserved.
    pub limit: fn(u32) -> bool,
}

impl Row {
    /// Whether `word` is this instruction.
    pub fn matches(&self, word: u32) -> bool {
        self.pattern.matches(word) && (self.limit)(word)
    }

    /// A word of this instruction whose free bits are of `random`, unless that one is reserved.
    pub fn sample(&self, random: u32) -> Option<u32> {
        let word = random & !self.pattern.mask | self.pattern.value;
        (self.limit)(word).then_some(word)
    }

    /// The word with these values in its fields, which are named as in the table; the others are 0. None if there is no such field, a
    /// value does not fit, or the word is reserved.
    pub fn word(&self, values: &[(char, u32)]) -> Option<u32> {
        let named = fields(self.written);
        let placed = values.iter().map(|&(name, value)| {
            let field = named.iter().find(|field| field.name == name)?;
            (u64::from(value) < 1 << field.width).then(|| value << field.low)
        });
        let word = placed.sum::<Option<u32>>()? | self.pattern.value;
        self.matches(word).then_some(word)
    }
}

/// The row of an instruction.
pub fn row(op: Op) -> &'static Row {
    &ROWS[op as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_made_of_fields() {
        let add = row(Op::AddImm);
        assert_eq!(add.word(&[('f', 1), ('i', 16), ('n', 31), ('d', 3)]), Some(0x9100_43e3));
        assert_eq!(add.word(&[('i', 1 << 12)]), None, "it does not fit");
        assert_eq!(add.word(&[('q', 0)]), None, "no such field");
        assert_eq!(row(Op::Eret).word(&[]), Some(0xd69f_03e0));
    }
}
