//! Files' numbers, as the guest's programs see them: no two of a folder are the same.

/// Numbers of files that only the guest has begin here. They fit into 32 bits, since stat() of a 32-bit program without large
/// files fails with EOVERFLOW at any that does not; those of the host that are up here, which need four billion files, make way.
const CHANGES: u64 = 0xf000_0000;
const END: u64 = 1 << 32;

/// The number of a host's file on the folder's `device`th file system: those of others could meet those of the root's.
pub(super) fn of_host(number: u64, device: usize) -> u64 {
    let number = if (CHANGES..END).contains(&number) { number | 1 << 47 } else { number };
    number ^ ((device as u64 & 0x7fff) << 48)
}

/// The number of the `count`th file that the guest came to know, if the host has nothing of it.
pub(super) fn of_change(count: u64) -> u64 {
    match CHANGES + count {
        number if number < END => number,
        number => 1 << 63 | number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_have_numbers_of_32_bits_that_no_host_file_has() {
        for count in [1, 2, END - CHANGES - 1] {
            let own = of_change(count);
            assert!(u32::try_from(own).is_ok());
            assert_ne!(of_host(own, 0), own);
            assert_ne!(of_host(own, 1), own);
        }
        assert_ne!(of_change(END - CHANGES), of_change(END - CHANGES + 1));
        assert!(of_change(END - CHANGES) > END);
        assert_eq!(of_host(247_493, 0), 247_493, "a host's number is kept");
    }
}
