//! Whether a block is worth being decoded.

/// Instructions that may be decoded beyond those executed. Programs that run for the first time and
/// fault page by page need some thousands.
const MOST: u64 = 1 << 16;

/// Instructions that may be decoded: one for each that was executed.
///
/// Usually every instruction of a block is executed, and most of them often. But where each exits to the
/// machine, or writes the page that it stands on, a whole block would be decoded to execute one. Without
/// credit, instructions are executed one by one, which earns the next block.
pub(super) struct Credit {
    left: u64,
    /// Retired instructions when it was looked at last.
    retired: u64,
}

impl Credit {
    pub(super) const fn new() -> Self {
        Credit { left: MOST, retired: 0 }
    }

    /// Whether a block may be decoded, when `retired` instructions have been executed.
    pub(super) fn any(&mut self, retired: u64) -> bool {
        // A saved state may have fewer.
        let executed = retired.saturating_sub(self.retired);
        self.left = MOST.min(self.left.saturating_add(executed));
        self.retired = retired;
        self.left >= super::decode::MAX_INSTRUCTIONS as u64
    }

    /// A block of `instructions` was decoded.
    pub(super) fn spend(&mut self, instructions: u32) {
        self.left = self.left.saturating_sub(instructions.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_decoded_than_was_executed() {
        let mut credit = Credit::new();
        let (mut decoded, mut alone) = (0, 0);
        for retired in 0..10 * MOST {
            if credit.any(retired) {
                credit.spend(48);
                decoded += 48;
            } else {
                alone += 1;
            }
        }
        assert!(decoded <= 11 * MOST, "{decoded} decoded");
        assert!(decoded + alone >= 10 * MOST, "{decoded} decoded, {alone} alone");
    }

    #[test]
    fn executing_earns_it_back() {
        let mut credit = Credit::new();
        while credit.any(0) {
            credit.spend(40);
        }
        assert!(credit.any(100));
        assert!(credit.any(10 * MOST));
        credit.spend(MOST as u32);
        assert!(!credit.any(10 * MOST), "what was executed long ago is forgotten");
    }
}
