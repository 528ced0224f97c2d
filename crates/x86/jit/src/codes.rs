//! Where the translation of an address is that was found before: a cache in one line of the host's.
//!
//! After each switch to another process, and in each new one, jumps between pages and the targets of indirect branches are found
//! anew, tens of thousands of them. Through the decoded block each would touch six lines of the host's cache, few of which are
//! there. Here it is one, by the page on the host and the offset in it.
//!
//! What moves with its page is found by its offset, what does not by its linear address, as in the table of all translations
//! ([`place_in_table`](super::moving::place_in_table)). One that was closed or retired is forgotten, and with a piece of the code
//! memory all are.

use satori_soft::code_mode::CodeKey;
use satori_soft::mmu::Mode;

/// Places: as many as a compiler has jumps between pages.
const PLACES: usize = 1 << 16;

/// A translation that was found.
#[derive(Clone, Copy)]
pub(crate) struct Code {
    /// The page's first byte on the host; 0 in a free place.
    host: usize,
    /// Its offset in the page or its linear address, and mode.
    key: CodeKey,
    /// Where its code is.
    pub code: u64,
    /// One more than the number of its group or anchor; 0 if it has none.
    home: u32,
    /// A bit for each mode whose table had it as a target, as its home remembers.
    targets: u32,
}

const _: () = assert!(size_of::<Code>() == 32, "two lie in a line of the host's cache");

impl Code {
    /// The group that it is moved with, or its anchor.
    pub(crate) fn home(&self) -> Option<u32> {
        self.home.checked_sub(1)
    }
}

/// See the module.
pub(crate) struct Codes(Box<[Code]>);

impl Codes {
    pub(crate) fn new() -> Self {
        // SAFETY: all zeroes is a Code, and takes none of the host's memory until it is written.
        Codes(unsafe { Box::<[Code]>::new_zeroed_slice(PLACES).assume_init() })
    }

    /// The place of what has `key` of the page at `host`. Which of them share one depends on how far pages are from each other
    /// alone, and not on where the host has guest memory: under the virtual clock what is counted is the same in each run.
    fn place(host: *const u8, key: CodeKey) -> usize {
        const SPREAD: usize = 0x9e37;
        (host as usize >> 12).wrapping_mul(SPREAD).wrapping_add(key.offset() as usize) % PLACES
    }

    fn at(&mut self, host: *const u8, key: CodeKey) -> Option<&mut Code> {
        let one = &mut self.0[Self::place(host, key)];
        (one.host == host as usize && one.key == key).then_some(one)
    }

    /// The translation of what has `key` of the page at `host`.
    pub(crate) fn find(&self, host: *const u8, key: CodeKey) -> Option<Code> {
        let one = self.0[Self::place(host, key)];
        (one.host == host as usize && one.key == key).then_some(one)
    }

    /// Notes that translation.
    pub(crate) fn note(&mut self, host: *const u8, key: CodeKey, code: u64, home: Option<u32>) {
        let home = home.map_or(0, |home| home + 1);
        self.0[Self::place(host, key)] = Code { host: host as usize, key, code, home, targets: 0 };
    }

    /// Whether it is the first time that it is noted as a target of `mode`.
    pub(crate) fn is_new_target(&mut self, host: *const u8, key: CodeKey, mode: Mode) -> bool {
        let Some(one) = self.at(host, key) else { return true };
        let before = one.targets;
        one.targets |= 1 << mode as u32;
        before != one.targets
    }

    /// Forgets the translation of what has `key` of the page at `host`.
    pub(crate) fn forget(&mut self, host: *const u8, key: CodeKey) {
        if let Some(one) = self.at(host, key) {
            one.host = 0;
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        // What is free stays without memory.
        self.0.iter_mut().filter(|one| one.host != 0).for_each(|one| one.host = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translation_is_found_by_page_offset_and_mode_until_it_is_forgotten() {
        let page = |number: usize| (0x7f00_0000_0000 + (number << 12)) as *const u8;
        let key = |offset: u64, mode: u64| CodeKey::of(offset, mode);
        let user = satori_soft::code_mode::USER;
        let mut codes = Codes::new();
        assert!(codes.find(page(1), key(8, user)).is_none());
        codes.note(page(1), key(8, user), 100, Some(1));
        codes.note(page(2), key(8, user), 200, None);
        codes.note(page(1), key(16, user), 300, Some(1));
        let found = |codes: &Codes, host, key| codes.find(host, key).map(|one| (one.code, one.home()));
        assert_eq!(found(&codes, page(1), key(8, user)), Some((100, Some(1))));
        assert_eq!(found(&codes, page(2), key(8, user)), Some((200, None)));
        assert_eq!(found(&codes, page(1), key(8, 0)), None);
        assert!(codes.is_new_target(page(2), key(8, user), Mode::User));
        assert!(!codes.is_new_target(page(2), key(8, user), Mode::User));
        assert!(codes.is_new_target(page(2), key(8, user), Mode::Supervisor));
        codes.forget(page(2), key(8, user));
        assert_eq!(found(&codes, page(2), key(8, user)), None);
        assert_eq!(found(&codes, page(1), key(16, user)), Some((300, Some(1))));
        codes.clear();
        assert_eq!(found(&codes, page(1), key(8, user)), None);
    }
}
