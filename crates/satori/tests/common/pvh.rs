//! Guests of a few bytes, entered at their PVH note in 32-bit protected mode.

/// Where the guest's only segment is loaded, and entered.
pub(crate) const BASE: u32 = 0x10_0000;
/// Where `lidt` finds an empty table: the last bytes of the page.
const ZEROS: u32 = BASE + 0xff0;

/// `out %al, $port` with `value` in AL.
fn out(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0xb0, value, 0x66, 0xba, low, high, 0xee]
}

/// A kernel that runs `code` and then halts for ever.
pub(crate) fn kernel(code: &[u8]) -> Vec<u8> {
    // cli; 1: hlt; jmp 1b
    let mut page = [code, &[0xfa, 0xf4, 0xeb, 0xfd]].concat();
    assert!(page.len() < 0xff0);
    page.resize(0x1000, 0);

    // ELFNOTE "Xen", XEN_ELFNOTE_PHYS32_ENTRY (18): the entry's physical address.
    let note: Vec<u8> = [4, 4, 18].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
    let note = [&note[..], b"Xen\0", &BASE.to_le_bytes()].concat();

    let (phoff, note_at, code_at) = (64u64, 64 + 2 * 56, 0x1000u64);
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2u16, 62].iter().flat_map(|n| n.to_le_bytes())); // ET_EXEC, EM_X86_64
    elf.extend(1u32.to_le_bytes());
    elf.extend([u64::from(BASE), phoff, 0].iter().flat_map(|n| n.to_le_bytes()));
    elf.extend(0u32.to_le_bytes());
    elf.extend([64u16, 56, 2, 64, 0, 0].iter().flat_map(|n| n.to_le_bytes()));
    for (kind, at, address, size) in
        [(1u32, code_at, u64::from(BASE), 0x1000), (4, note_at, 0, note.len() as u64)]
    {
        elf.extend(kind.to_le_bytes());
        elf.extend(7u32.to_le_bytes());
        elf.extend([at, address, address, size, size, 4].iter().flat_map(|n: &u64| n.to_le_bytes()));
    }
    elf.extend(note);
    elf.resize(code_at as usize, 0);
    elf.extend(page);
    elf
}

/// Halts with interrupts off.
pub(crate) fn halt() -> Vec<u8> {
    kernel(&[])
}

/// Writes `value` to isa-debug-exit.
pub(crate) fn debug_exit(value: u8) -> Vec<u8> {
    kernel(&out(0xf4, value))
}

/// Writes `text` to the text screen of a PC, and leaves through isa-debug-exit.
pub(crate) fn screen(text: &str) -> Vec<u8> {
    // movb $byte, address
    let cells = text.bytes().zip((0xb_8000_u32..).step_by(2));
    let mut code: Vec<u8> =
        cells.flat_map(|(byte, at)| [&[0xc6, 0x05][..], &at.to_le_bytes(), &[byte]].concat()).collect();
    code.extend(out(0xf4, 0));
    kernel(&code)
}

/// Asks for a reset through port 0xcf9.
pub(crate) fn reset() -> Vec<u8> {
    kernel(&out(0xcf9, 6))
}

/// Tells pvpanic that it panicked.
pub(crate) fn pvpanic() -> Vec<u8> {
    kernel(&out(0x505, 1))
}

/// Faults with an empty IDT.
pub(crate) fn triple_fault() -> Vec<u8> {
    kernel(&[&[0x0f, 0x01, 0x1d], &ZEROS.to_le_bytes()[..], &[0x0f, 0x0b]].concat())
}

/// Prints `text` on the serial port, then halts.
pub(crate) fn print(text: &str) -> Vec<u8> {
    kernel(&text.bytes().flat_map(|byte| out(0x3f8, byte)).collect::<Vec<_>>())
}

/// Prints `text` on the serial port, then writes `value` to isa-debug-exit.
pub(crate) fn print_and_exit(text: &str, value: u8) -> Vec<u8> {
    let print = text.bytes().flat_map(|byte| out(0x3f8, byte));
    kernel(&print.chain(out(0xf4, value)).collect::<Vec<_>>())
}

/// Prints `text` on the serial port, then powers off: SLP_EN and the type of S5 to the PM1a control block.
pub(crate) fn power_off(text: &str) -> Vec<u8> {
    power_off_at(0x3f8, text)
}

/// The same at another serial port.
pub(crate) fn power_off_at(port: u16, text: &str) -> Vec<u8> {
    let print = text.bytes().flat_map(|byte| out(port, byte));
    // mov $0x3400, %ax; mov $0x604, %dx; out %ax, %dx
    let off = [0x66, 0xb8, 0x00, 0x34, 0x66, 0xba, 0x04, 0x06, 0x66, 0xef];
    kernel(&print.chain(off).collect::<Vec<_>>())
}

/// Prints for ever.
pub(crate) fn chatter() -> Vec<u8> {
    // Back over itself: the jump's own two bytes count too.
    kernel(&[&out(0x3f8, b'x')[..], &[0xeb, 0xf7]].concat())
}

/// Prints "ready", then sends back what it receives.
pub(crate) fn echo() -> Vec<u8> {
    let hello: Vec<u8> = b"ready".iter().flat_map(|&byte| out(0x3f8, byte)).collect();
    // 1: in 0x3fd; test $1; jz 1b; in 0x3f8; out 0x3f8; jmp 1b
    let send = [
        0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf7, 0x66, 0xba, 0xf8, 0x03, 0xec, 0xee, 0xeb, 0xef,
    ];
    kernel(&[&hello[..], &send].concat())
}
