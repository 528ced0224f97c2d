//! `satori-exit N`: ends the guest by a write of N to its debug exit, QEMU's isa-debug-exit at port 0xf4.
//!
//! With `satori run --testdev exit=value` N is the exit status of the run; without it, and with QEMU, that is
//! `(N << 1) | 1`.

use std::ffi::{c_int, c_ulong};

/// The first port of the debug exit, in which Linux lets a process with CAP_SYS_RAWIO write after ioperm(2).
const DEBUG_EXIT: u16 = 0xf4;

unsafe extern "C" {
    fn ioperm(from: c_ulong, ports: c_ulong, on: c_int) -> c_int;
    fn sync();
}

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let value = match words.as_slice() {
        [word] => word.parse::<u8>().ok(),
        _ => None,
    };
    let Some(value) = value else {
        eprintln!("usage: satori-exit N, 0 to 255: ends this guest with N at its debug exit (port 0xf4)");
        std::process::exit(2);
    };
    // SAFETY: neither takes a pointer; what a port write does is up to the next block.
    let refused = unsafe {
        sync();
        ioperm(DEBUG_EXIT.into(), 1, 1) != 0
    };
    if refused {
        let why = std::io::Error::last_os_error();
        eprintln!(
            "satori-exit: port 0xf4 is not permitted ({why}): call it as root, on a kernel that is not locked down"
        );
        std::process::exit(1);
    }
    // SAFETY: OUT writes no memory of ours and no flag; the port is open to us.
    unsafe {
        std::arch::asm!("out dx, al", in("dx") DEBUG_EXIT, in("al") value, options(nomem, nostack, preserves_flags));
    }
    eprintln!("satori-exit: there is no debug exit at port 0xf4");
    std::process::exit(1);
}
