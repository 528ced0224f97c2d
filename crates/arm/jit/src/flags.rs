//! N, Z, C and V in the form that translated code keeps them in: AH as LAHF leaves it behind a subtraction, whose CF is the
//! complement of C, and OF in AL.

/// Of N, Z, C and V in bits 31:28.
pub(crate) fn of(nzcv: u32) -> u32 {
    let bit = |at: u32| nzcv >> at & 1;
    bit(31) << 15 | bit(30) << 14 | (bit(29) ^ 1) << 8 | bit(28)
}

/// Back.
pub(crate) fn nzcv(flags: u64) -> u32 {
    let bit = |at: u32| (flags >> at & 1) as u32;
    bit(15) << 31 | bit(14) << 30 | (bit(8) ^ 1) << 29 | bit(0) << 28
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_flags_come_back() {
        for nzcv in (0..16).map(|value| value << 28) {
            assert_eq!(super::nzcv(super::of(nzcv).into()), nzcv);
        }
    }
}
