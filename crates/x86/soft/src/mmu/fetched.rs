//! Which pages code was fetched from, so that INVLPG drops nothing where there was none.

use super::fetch::Scope;

/// Pages that were translated for fetches since all translations of their [`Scope`] became void. They are
/// hashed twice, so the answer may be "yes" too often, never "no". A kernel and a compiler both have some thousands of
/// them. A wrong "yes" costs a part of all that is known of code, and processors that flush for each other, and programs
/// that page, ask often.
pub(super) struct Fetched([Pages; 2]);

/// Words of a set.
const WORDS: usize = 1024;

/// The pages of one scope.
struct Pages {
    words: Box<[u64; WORDS]>,
    /// Which words are not zero, so that few pages are forgotten by few stores.
    used: [u64; WORDS / 64],
}

/// What was taken out of a set: its words that are not zero, and which these are.
pub(super) type Aside = Box<[(u16, u64)]>;

impl Pages {
    fn new() -> Self {
        Pages { words: Box::new([0; WORDS]), used: [0; WORDS / 64] }
    }

    fn places(linear: u64) -> [(usize, u64); 2] {
        let hash = (linear >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [hash >> 40, hash >> 16 & 0xff_ffff].map(|hash| ((hash >> 6) as usize % WORDS, 1 << (hash & 63)))
    }

    fn put(&mut self, word: usize, bits: u64) {
        self.words[word] |= bits;
        self.used[word / 64] |= 1 << (word % 64);
    }

    /// Makes each word that is not zero so, and tells `each` of it.
    fn drain(&mut self, mut each: impl FnMut(usize, u64)) {
        for (index, used) in self.used.iter_mut().enumerate() {
            let mut rest = std::mem::take(used);
            while rest != 0 {
                let word = 64 * index + rest.trailing_zeros() as usize;
                each(word, std::mem::take(&mut self.words[word]));
                rest &= rest - 1;
            }
        }
    }
}

impl Fetched {
    /// None yet.
    pub(super) fn new() -> Self {
        Fetched([Pages::new(), Pages::new()])
    }

    /// Code was fetched from the page of `linear`, whose translation is of `scope`.
    pub(super) fn insert(&mut self, scope: Scope, linear: u64) {
        let pages = &mut self.0[scope as usize];
        for (word, bit) in Pages::places(linear) {
            pages.put(word, bit);
        }
    }

    /// Whether it may have been.
    pub(super) fn contains(&self, scope: Scope, linear: u64) -> bool {
        let words = &self.0[scope as usize].words;
        Pages::places(linear).into_iter().all(|(word, bit)| words[word] & bit != 0)
    }

    /// Takes out the pages of `scope`.
    pub(super) fn take(&mut self, scope: Scope) -> Aside {
        let mut aside = Vec::new();
        self.0[scope as usize].drain(|word, bits| aside.push((word as u16, bits)));
        aside.into()
    }

    /// Has what [`Fetched::take`] took out of `scope` again, beside what was inserted since.
    pub(super) fn put_back(&mut self, scope: Scope, aside: &Aside) {
        for &(word, bits) in aside {
            self.0[scope as usize].put(usize::from(word), bits);
        }
    }

    /// All translations of `scope` are void.
    pub(super) fn clear(&mut self, scope: Scope) {
        self.0[scope as usize].drain(|_, _| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_of_their_scope_until_it_is_cleared() {
        let mut fetched = Fetched::new();
        fetched.insert(Scope::Global, 0xffff_ffff_8100_0123);
        fetched.insert(Scope::Local, 0x40_1000);
        assert!(fetched.contains(Scope::Global, 0xffff_ffff_8100_0fff));
        assert!(!fetched.contains(Scope::Local, 0xffff_ffff_8100_0123));
        assert!(fetched.contains(Scope::Local, 0x40_1fff));
        fetched.clear(Scope::Local);
        assert!(!fetched.contains(Scope::Local, 0x40_1000));
        assert!(fetched.contains(Scope::Global, 0xffff_ffff_8100_0123));
    }

    #[test]
    fn pages_come_back_with_their_address_space() {
        let mut fetched = Fetched::new();
        let pages = (0..300).map(|page| 0x5555_5555_0000 + page * 0x1000);
        pages.clone().for_each(|page| fetched.insert(Scope::Local, page));
        let aside = fetched.take(Scope::Local);
        assert!(pages.clone().all(|page| !fetched.contains(Scope::Local, page)));
        fetched.insert(Scope::Local, 0x40_1000);
        fetched.clear(Scope::Local);
        fetched.put_back(Scope::Local, &aside);
        assert!(pages.clone().all(|page| fetched.contains(Scope::Local, page)));
        assert!(!fetched.contains(Scope::Local, 0x40_1000));
    }

    #[test]
    fn a_compiler_s_text_hides_few_pages_of_its_data() {
        let mut fetched = Fetched::new();
        (0..6000).for_each(|page| fetched.insert(Scope::Local, 0x40_0000 + page * 0x1000));
        let wrong = (0..1000).filter(|page| fetched.contains(Scope::Local, 0x7f12_3400_0000 + page * 0x1000));
        assert!(wrong.count() < 60);
    }

    #[test]
    fn a_kernel_s_text_hides_few_pages_of_programs() {
        let mut fetched = Fetched::new();
        for page in 0..2000 {
            fetched.insert(Scope::Global, 0xffff_ffff_8100_0000 + page * 0x1000);
        }
        let wrong =
            (0..1000).filter(|page| fetched.contains(Scope::Global, 0x7f12_3400_0000 + page * 0x1000));
        assert!(wrong.count() < 15);
    }
}
