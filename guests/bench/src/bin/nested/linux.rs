//! Linux as L2: loaded and entered by its 64-bit protocol (Documentation/arch/x86/boot.rst), on a machine that has KVM's interrupt
//! controllers and timer, and of devices one port, by which it tells what it does.

use crate::Failure;
use crate::kvm::{Exit, Kvm, Machine, Registers};

/// What init of L2 writes its bytes to.
pub const PORT: u16 = 0xf4;

const MEMORY: usize = 192 << 20;
const CMDLINE: usize = 0x2_0000;
const PARAMETERS: usize = 0x7000;
const TABLES: usize = 0x9000;
const KERNEL: usize = 0x100_0000;
const INITRD: usize = 0x800_0000;
/// What a machine that has no firmware, no PCI and no keyboard spares its kernel.
const QUIET: &str =
    "quiet panic=-1 acpi=off pci=off i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd no_timer_check";

/// A machine with `kernel`, a bzImage, and `initrd`, whose init gets `words`.
pub fn machine(kvm: &Kvm, kernel: &[u8], initrd: &[u8], words: &str) -> Result<Machine, Failure> {
    /// Of the header: its begin and the byte that tells its end; 512-byte sectors of real mode.
    const HEADER: usize = 0x1f1;
    const END: usize = 0x201;
    const MAGIC: usize = 0x202;
    if kernel.get(MAGIC..MAGIC + 4) != Some(b"HdrS") || INITRD + initrd.len() > MEMORY {
        return Err("the kernel of L2 is no bzImage, or its initramfs is too large".into());
    }
    let machine = kvm.machine_with_chips(MEMORY)?;
    let memory = &mut *machine.memory;
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    let (sectors, end) = (usize::from(kernel[HEADER]), MAGIC + usize::from(kernel[END]));
    put(PARAMETERS + HEADER, &kernel[HEADER..end]);
    // Loader, and where initramfs and command line are.
    put(PARAMETERS + 0x210, &[0xff]);
    for (field, value) in [(0x218, INITRD), (0x21c, initrd.len()), (0x228, CMDLINE)] {
        put(PARAMETERS + field, &(value as u32).to_le_bytes());
    }
    // Two stretches of RAM.
    put(PARAMETERS + 0x1e8, &[2]);
    for (index, [start, end]) in [[0, 0x9_f000], [0x10_0000, MEMORY]].into_iter().enumerate() {
        let entry = [start as u64, (end - start) as u64].map(u64::to_le_bytes).concat();
        put(PARAMETERS + 0x2d0 + 20 * index, &entry);
        put(PARAMETERS + 0x2d0 + 20 * index + 16, &1_u32.to_le_bytes());
    }
    put(CMDLINE, format!("{QUIET} -- {words}\0").as_bytes());
    put(KERNEL, &kernel[512 * (sectors + 1)..]);
    put(INITRD, initrd);
    // The first GiB at its own addresses, in pages of 2 MiB.
    put(TABLES, &(TABLES as u64 + 0x1003).to_le_bytes());
    put(TABLES + 0x1000, &(TABLES as u64 + 0x2003).to_le_bytes());
    for page in 0..512 {
        put(TABLES + 0x2000 + 8 * page, &((page as u64) << 21 | 0x83).to_le_bytes());
    }
    let registers =
        Registers { rsi: PARAMETERS as u64, rip: KERNEL as u64 + 0x200, rflags: 2, ..Registers::default() };
    machine.set(&registers, |system| {
        for (index, segment) in system.segments.iter_mut().enumerate().take(6) {
            let code = index == 0;
            (segment.base, segment.limit, segment.selector) = (0, u32::MAX, if code { 0x10 } else { 0x18 });
            (segment.kind, segment.present, segment.s, segment.g) = (if code { 11 } else { 3 }, 1, 1, 1);
            (segment.l, segment.db) = (code.into(), (!code).into());
        }
        (system.cr0, system.cr3, system.cr4, system.efer) = (0x8000_0011, TABLES as u64, 0x20, 0x500);
    })?;
    Ok(machine)
}

/// Lets L2 run until it tells something.
pub fn next(machine: &mut Machine) -> Result<u8, Failure> {
    loop {
        match machine.enter()? {
            Exit::Out(PORT, byte) => return Ok(byte),
            Exit::Out(..) => {}
            // The clock's registers are 0, whose update is over; nothing else is there.
            Exit::In(port) => machine.answer(if matches!(port, 0x70 | 0x71) { 0 } else { 0xff }),
            Exit::Memory => machine.answer_memory(),
            Exit::Other(reason) => return Err(format!("L2 stopped, KVM's exit reason is {reason}")),
        }
    }
}
