//! The linear addresses that a case finds, on the real processor and in the guest alike.
//!
//! Pages with different rights lie beside each other and beside nothing, so that operands and
//! instructions can reach from any into any.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 0x1000;
/// Address of the first page of [`PAGES`]; below 2 GiB, so that every addressing form reaches it.
pub(crate) const BASE: u64 = 0x2000_0000;

/// Rights of a page at privilege level 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Not present.
    Nothing,
    /// Readable.
    Read,
    /// Readable and writable.
    Write,
    /// Readable and executable.
    Execute,
}

/// What lies at [`BASE`], page by page.
pub(crate) const PAGES: [Rights; 13] = [
    Rights::Nothing,
    Rights::Write,
    Rights::Write,
    Rights::Nothing,
    Rights::Write,
    Rights::Read,
    Rights::Nothing,
    Rights::Execute,
    Rights::Execute,
    Rights::Nothing,
    Rights::Execute,
    Rights::Write,
    Rights::Nothing,
];

/// The pages that hold data, by their place in [`PAGES`]; writable ones first.
pub(crate) const DATA: [usize; 5] = [1, 2, 4, 11, 5];
/// How many of [`DATA`] can be written, and are compared.
pub(crate) const WRITABLE: usize = 4;
/// The pages that hold code, by their place in [`PAGES`].
pub(crate) const CODE: [usize; 3] = [7, 8, 10];

/// Bytes of a line, the unit in which memory is set and compared.
pub(crate) const LINE: usize = 64;
/// Lines of a page.
pub(crate) const PAGE_LINES: usize = PAGE as usize / LINE;
/// Lines that are compared.
pub(crate) const LINES: usize = WRITABLE * PAGE_LINES;

/// Address of the page at `place` of [`PAGES`].
pub(crate) const fn page(place: usize) -> u64 {
    BASE + place as u64 * PAGE
}

/// Address of compared line `index`.
pub(crate) const fn line_address(index: usize) -> u64 {
    page(DATA[index / PAGE_LINES]) + (index % PAGE_LINES * LINE) as u64
}

/// The compared line that holds `address`.
pub(crate) fn line_at(address: u64) -> Option<usize> {
    let place = usize::try_from(address.checked_sub(BASE)? / PAGE).ok()?;
    let page = DATA[..WRITABLE].iter().position(|data| *data == place)?;
    Some(page * PAGE_LINES + (address % PAGE) as usize / LINE)
}

/// The rights at `address`; nothing outside of [`PAGES`].
pub(crate) fn rights(address: u64) -> Option<Rights> {
    let place = address.checked_sub(BASE).and_then(|offset| usize::try_from(offset / PAGE).ok())?;
    PAGES.get(place).copied()
}

/// Whether `address` can be written.
pub(crate) fn writable(address: u64) -> bool {
    rights(address) == Some(Rights::Write)
}

/// What the data pages hold where a case says nothing else. Lines of the corpus depend on it: it
/// must not change.
pub(crate) fn background() -> Vec<u8> {
    let mut seed = 0x0123_4567_89ab_cdef_u64;
    let mut bytes = Vec::with_capacity(DATA.len() * PAGE as usize);
    for word in 0..DATA.len() * PAGE as usize / 8 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // Runs of equal bytes let repeated comparisons go on.
        let value = if word / 32 % 4 == 0 { 0 } else { seed };
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

/// What the rest of the code pages holds: INT3.
pub(crate) const FILL: u8 = 0xcc;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_addresses_are_inverse() {
        for index in 0..LINES {
            assert_eq!(line_at(line_address(index)), Some(index));
            assert_eq!(line_at(line_address(index) + 63), Some(index));
        }
        assert_eq!(line_at(page(0)), None);
        assert_eq!(line_at(page(5)), None, "cannot be written");
        assert!(DATA[..WRITABLE].iter().all(|place| PAGES[*place] == Rights::Write));
        assert!(CODE.iter().all(|place| PAGES[*place] == Rights::Execute));
    }
}
