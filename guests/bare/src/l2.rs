//! Code of a guest's guest.

/// Assembles code of a guest here, and gives its address.
#[macro_export]
macro_rules! l2 {
    ($($line:literal),+ $(,)?) => {{
        let at: u64;
        // SAFETY: nothing is executed here but an address computation.
        unsafe {
            core::arch::asm!(
                ".pushsection .rodata.code, \"ax\"",
                "778:",
                $($line,)+
                ".popsection",
                "lea {}, [rip + 778b]",
                out(reg) at,
                options(nomem, nostack, preserves_flags),
            );
        }
        at
    }};
}
