//! What the compiler expects to find: block copies, and a place for panics to go.

use core::arch::asm;
use core::panic::PanicInfo;

use crate::console;

/// memcpy of the C library.
///
/// # Safety
/// As for C: both ranges are valid and do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for both ranges; DF is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack));
    }
    to
}

/// memmove of the C library.
///
/// # Safety
/// As for C: both ranges are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: a forward copy reads each byte before it is overwritten.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: backwards, from the last byte; DF is clear again afterwards.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") count => _,
            inout("rdi") to.wrapping_add(count).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(count).wrapping_sub(1) => _,
        );
    }
    to
}

/// memset of the C library.
///
/// # Safety
/// As for C: the range is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for the range; DF is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("eax") value, options(nostack));
    }
    to
}

/// memcmp of the C library.
///
/// # Safety
/// As for C: both ranges are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: `at` is below `count`.
        let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// bcmp of the C library.
///
/// # Safety
/// As for [`memcmp`].
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    // SAFETY: the caller vouches for both ranges.
    unsafe { memcmp(a, b, count) }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    // A panic in the middle of a line, or of a panic.
    if console::silence() {
        console::exit(console::Exit::Broken)
    }
    crate::println!("BROKEN {info}");
    console::exit(console::Exit::Broken)
}

/// The precompiled core library names it in unwind tables, which the linker drops.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
