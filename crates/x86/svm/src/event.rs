//! Events as EVENTINJ and EXITINTINFO have them (APM 15.7.2, 15.20).

/// There is one.
pub const VALID: u64 = 1 << 31;
/// An error code comes with it, in bits 63:32.
pub const ERROR_CODE: u64 = 1 << 11;

/// The type of an event: bits 10:8.
pub mod kind {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const INTERRUPT: u64 = 0;
    pub const NMI: u64 = 2;
    pub const EXCEPTION: u64 = 3;
    pub const SOFTWARE_INTERRUPT: u64 = 4;
}

/// The type of `event`.
pub const fn kind_of(event: u64) -> u64 {
    event >> 8 & 7
}

/// Whether VMRUN may inject `event` (APM 15.20): its type exists, and an exception has an exception's vector.
pub const fn injectable(event: u64) -> bool {
    if event & VALID == 0 {
        return true;
    }
    let vector = event & 0xff;
    match kind_of(event) {
        kind::INTERRUPT | kind::NMI | kind::SOFTWARE_INTERRUPT => true,
        kind::EXCEPTION => vector < 32 && vector != 2,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_event_is_cannot_be_injected() {
        assert!(injectable(0x700), "nothing is injected");
        assert!(injectable(VALID | kind::EXCEPTION << 8 | 14 | ERROR_CODE));
        assert!(injectable(VALID | kind::INTERRUPT << 8 | 255));
        assert!(!injectable(VALID | kind::EXCEPTION << 8 | 2), "an NMI is no exception");
        assert!(!injectable(VALID | kind::EXCEPTION << 8 | 32));
        assert!((1..8).filter(|kind| injectable(VALID | kind << 8 | 3)).eq([2, 3, 4]));
    }
}
