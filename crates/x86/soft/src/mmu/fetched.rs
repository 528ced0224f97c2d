//! Which pages code was fetched from, so that INVLPG drops nothing where there was none.

use super::fetch::Scope;

/// Pages that were translated for fetches since all translations of their [`Scope`] became void. They are
/// hashed twice, so the answer may be "yes" too often, never "no". Global ones are mostly the kernel's:
/// many, and seldom forgotten. A wrong "yes" costs a part of all that is known of code, and processors that
/// flush for each other ask often.
pub struct Fetched {
    local: Box<[u64]>,
    global: Box<[u64]>,
}

impl Fetched {
    /// None yet.
    pub fn new() -> Self {
        Fetched { local: vec![0; 64].into(), global: vec![0; 1024].into() }
    }

    fn set(&mut self, scope: Scope) -> &mut [u64] {
        match scope {
            Scope::Local => &mut self.local,
            Scope::Global => &mut self.global,
        }
    }

    fn places(set: &[u64], linear: u64) -> [(usize, u64); 2] {
        let hash = (linear >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [hash >> 40, hash >> 16 & 0xff_ffff].map(|hash| ((hash >> 6) as usize % set.len(), 1 << (hash & 63)))
    }

    /// Code was fetched from the page of `linear`, whose translation is of `scope`.
    pub fn insert(&mut self, scope: Scope, linear: u64) {
        let set = self.set(scope);
        for (word, bit) in Self::places(set, linear) {
            set[word] |= bit;
        }
    }

    /// Whether it may have been.
    pub fn contains(&self, scope: Scope, linear: u64) -> bool {
        let set = match scope {
            Scope::Local => &self.local,
            Scope::Global => &self.global,
        };
        Self::places(set, linear).into_iter().all(|(word, bit)| set[word] & bit != 0)
    }

    /// Takes out the pages of `scope`.
    pub fn take(&mut self, scope: Scope) -> Box<[u64]> {
        let none = Fetched::new();
        match scope {
            Scope::Local => std::mem::replace(&mut self.local, none.local),
            Scope::Global => std::mem::replace(&mut self.global, none.global),
        }
    }

    /// Has what [`Fetched::take`] took out of `scope` again.
    pub fn put_back(&mut self, scope: Scope, pages: Box<[u64]>) {
        match scope {
            Scope::Local => self.local = pages,
            Scope::Global => self.global = pages,
        }
    }

    /// All translations of `scope` are void.
    pub fn clear(&mut self, scope: Scope) {
        self.set(scope).fill(0);
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
