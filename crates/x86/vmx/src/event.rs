//! Interruption information: of injection, of exits, and of the event whose delivery an exit ended (SDM 24.8.3, 24.9.2).

/// The information is there.
pub const VALID: u32 = 1 << 31;
/// An error code comes with it.
pub const ERROR_CODE: u32 = 1 << 11;
/// NMI blocking was lifted by the IRET that an exit belongs to.
pub const NMI_UNBLOCKED: u32 = 1 << 12;

/// The type of an event: bits 10:8.
pub mod kind {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const EXTERNAL_INTERRUPT: u32 = 0;
    pub const NMI: u32 = 2;
    pub const HARDWARE_EXCEPTION: u32 = 3;
    pub const SOFTWARE_INTERRUPT: u32 = 4;
    pub const PRIVILEGED_SOFTWARE_EXCEPTION: u32 = 5;
    pub const SOFTWARE_EXCEPTION: u32 = 6;
    pub const OTHER: u32 = 7;
}

/// An event as information about an interruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interruption {
    /// The 32-bit information.
    pub info: u32,
    /// The error code, if one comes with it.
    pub code: u32,
}

impl Interruption {
    /// An event of `kind`.
    pub const fn new(vector: u8, kind: u32, code: Option<u32>) -> Self {
        let flag = if code.is_some() { ERROR_CODE } else { 0 };
        let code = match code {
            Some(code) => code,
            None => 0,
        };
        Interruption { info: VALID | flag | kind << 8 | vector as u32, code }
    }

    /// The vector.
    pub const fn vector(self) -> u8 {
        self.info as u8
    }

    /// The type.
    pub const fn kind(self) -> u32 {
        self.info >> 8 & 7
    }

    /// The error code, if there is one.
    pub const fn error_code(self) -> Option<u32> {
        if self.info & ERROR_CODE != 0 { Some(self.code) } else { None }
    }
}

/// Whether the exception with this vector pushes an error code, on a processor without CET.
pub const fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17)
}

/// Whether VM entry may inject `info` with an error code `code` and instruction length `length` (SDM 26.2.1.3). `protected`:
/// the guest's CR0.PE, or that it is not unrestricted.
pub const fn injectable(info: u32, code: u32, length: u32, protected: bool) -> bool {
    if info & VALID == 0 {
        return true;
    }
    let (vector, kind, with_code) = (info as u8, info >> 8 & 7, info & ERROR_CODE != 0);
    let typed = match kind {
        1 => false,
        kind::NMI => vector == 2,
        kind::HARDWARE_EXCEPTION => vector < 32,
        // The monitor trap flag.
        kind::OTHER => vector == 0,
        _ => true,
    };
    let wants = kind == kind::HARDWARE_EXCEPTION && has_error_code(vector) && protected;
    let software = matches!(
        kind,
        kind::SOFTWARE_INTERRUPT | kind::PRIVILEGED_SOFTWARE_EXCEPTION | kind::SOFTWARE_EXCEPTION
    );
    typed
        && with_code == wants
        && info & 0x7fff_f000 == 0
        && (!with_code || code & 0xffff_0000 == 0)
        && (!software || length <= 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_event_can_be_is_injected() {
        assert!(injectable(0, !0, !0, true), "nothing is injected");
        assert!(injectable(VALID | 0x20, 0, 0, true), "an interrupt");
        assert!(injectable(VALID | 2 << 8 | 2, 0, 0, true) && !injectable(VALID | 2 << 8 | 3, 0, 0, true));
        assert!(injectable(VALID | ERROR_CODE | 3 << 8 | 14, 7, 0, true));
        assert!(!injectable(VALID | 3 << 8 | 14, 7, 0, true), "#PF without its error code");
        assert!(injectable(VALID | 3 << 8 | 13, 0, 0, false), "none in real mode");
        assert!(injectable(VALID | ERROR_CODE | 3 << 8 | 13, 0xffff, 0, true));
        assert!(!injectable(VALID | ERROR_CODE | 3 << 8 | 13, 0x1_0000, 0, true), "16 bits");
        assert!(!injectable(VALID | 1 << 8, 0, 0, true) && !injectable(VALID | 3 << 8 | 32, 0, 0, true));
        assert!(injectable(VALID | 6 << 8 | 3, 0, 1, true) && !injectable(VALID | 6 << 8 | 3, 0, 16, true));
        assert!(injectable(VALID | 7 << 8, 0, 0, true) && !injectable(VALID | 7 << 8 | 1, 0, 0, true));
        for bit in 12..31 {
            assert!(!injectable(VALID | 1 << bit | 0x20, 0, 0, true), "bit {bit} is reserved");
        }
    }
}
