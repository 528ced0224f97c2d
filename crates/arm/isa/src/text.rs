//! Instructions in messages.

use crate::{decode, fields};

/// `word` as a person may read it: the instruction's mnemonics and the fields of its pattern, `add f=1 h=0 i=0x13 n=1 d=2`, or
/// that it is UNDEFINED.
pub fn text(word: u32) -> String {
    let Some(row) = decode(word) else { return format!("UNDEFINED ({word:08x})") };
    let mut text = row.names.to_owned();
    for field in fields(row.written).into_iter().filter(|field| field.name != 'x') {
        let value = field.of(word);
        let shown = if value < 32 { value.to_string() } else { format!("{value:#x}") };
        text.push_str(&format!(" {}={shown}", field.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn words_are_shown_by_their_rows() {
        assert_eq!(text(0x9101_0422), "add f=1 h=0 i=0x41 n=1 d=2");
        assert_eq!(text(0xd65f_03c0), "ret n=30");
        assert_eq!(text(0), "UNDEFINED (00000000)");
    }
}
