//! The text screen of a PC, as memory holds it: the last words of a guest that speaks to nobody else.
//!
//! There is no display, and nothing is read before the guest has ended. Without one that memory is RAM like any
//! other, and what the guest put there stays.

use satori_defs::chipset::text_screen::{COLUMNS, ROWS, START};
use satori_memory::{Gpa, GuestMemory};

/// What the bytes from 80h on show (IBM code page 437).
const UPPER: &str = "\
ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■ ";

/// Its rows without the blanks at their ends, from the first to the last that holds something.
pub(crate) fn lines(memory: &GuestMemory) -> Vec<String> {
    let mut cells = vec![0; 2 * COLUMNS * ROWS];
    if memory.read(Gpa(START), &mut cells).is_err() {
        return Vec::new();
    }
    let row = |cells: &[u8]| cells.iter().step_by(2).map(|&byte| shown(byte)).collect::<String>();
    let rows: Vec<_> = cells.chunks(2 * COLUMNS).map(|cells| row(cells).trim_end().to_string()).collect();
    let Some(first) = rows.iter().position(|row| !row.is_empty()) else { return Vec::new() };
    let last = rows.iter().rposition(|row| !row.is_empty()).unwrap_or(first);
    rows[first..=last].to_vec()
}

/// What a screen shows for `byte`. The pictures below 20h are as good as a dot.
fn shown(byte: u8) -> char {
    match byte {
        0 => ' ',
        1..0x20 | 0x7f => '.',
        0x20..0x7f => char::from(byte),
        _ => UPPER.chars().nth(usize::from(byte - 0x80)).unwrap_or(' '),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    #[test]
    fn rows_end_at_their_last_character_and_empty_ones_around_are_left_out() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 1 << 20 }]).unwrap();
        assert_eq!(lines(&memory), Vec::<String>::new());
        let put = |row: usize, column: usize, text: &[u8]| {
            for (byte, at) in text.iter().zip(column..) {
                memory.write(Gpa(START + 2 * (row * COLUMNS + at) as u64), &[*byte, 7]).unwrap();
            }
        };
        put(2, 1, b"\xc9\xcd hi\x01 ");
        put(4, 79, b"\xdb");
        assert_eq!(lines(&memory), [" ╔═ hi.".to_string(), String::new(), " ".repeat(79) + "█"]);
        assert_eq!(UPPER.chars().count(), 0x80);
        // No RAM where it would be.
        let high = GuestMemory::new(&[Region { start: Gpa(1 << 32), len: 1 << 20 }]).unwrap();
        assert_eq!(lines(&high), Vec::<String>::new());
    }
}
