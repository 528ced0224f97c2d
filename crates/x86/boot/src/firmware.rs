//! What a BIOS leaves in low memory, for whatever enters real mode: interrupt vectors, its data area, and a place to
//! jump to for a reset.
//!
//! There is no firmware, so its services do nothing: those that could answer say that they do not exist. But its
//! interrupt handlers are what every PC has when the first interrupt comes, whenever that is, and its data area is
//! what kernels read to find out how much low memory there is.

use satori_defs::chipset::port;
use satori_memory::{Error, Gpa, GuestMemory};

use crate::layout::{EBDA, LEGACY_HOLE_END, REAL_MODE_END};

/// The segment of the BIOS, and where it lies.
const SEGMENT: u16 = 0xf000;
const BASE: u64 = (SEGMENT as u64) << 4;
/// Offset of the handlers in it.
const HANDLERS: u16 = 0xfe00;
/// Offset at which a processor of 16 bits began (SDM volume 3, 9.1.4): `reboot=bios` of Linux jumps there.
const RESET_VECTOR: u16 = 0xfff0;
/// Offset of the model byte, and the one of a PC/AT.
const MODEL: (u16, u8) = (0xfffe, 0xfc);

/// One handler: the vectors that lead to it, and its 16-bit code.
struct Handler {
    vectors: &'static [u8],
    code: &'static [u8],
}

/// Vectors without a row here lead to the first.
const HANDLER_TABLE: [Handler; 9] = [
    // iret
    Handler { vectors: &[], code: &[0xcf] },
    // The timer. push ax; push ds; xor ax, ax; mov ds, ax; inc dword [46ch]; int 1ch; mov al, 20h; out 20h, al;
    // pop ds; pop ax; iret
    Handler {
        vectors: &[0x08],
        code: &[
            0x50, 0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0x66, 0xff, 0x06, 0x6c, 0x04, 0xcd, 0x1c, 0xb0, 0x20, 0xe6,
            0x20, 0x1f, 0x58, 0xcf,
        ],
    },
    // The keyboard, whose key is lost. push ax; in al, 60h; mov al, 20h; out 20h, al; pop ax; iret
    Handler { vectors: &[0x09], code: &[0x50, 0xe4, 0x60, 0xb0, 0x20, 0xe6, 0x20, 0x58, 0xcf] },
    // Others of the master 8259A. push ax; mov al, 20h; out 20h, al; pop ax; iret
    Handler {
        vectors: &[0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f],
        code: &[0x50, 0xb0, 0x20, 0xe6, 0x20, 0x58, 0xcf],
    },
    // The real-time clock, whose register C must be read. push ax; mov al, 0ch; out 70h, al; in al, 71h; mov al, 20h;
    // out 0a0h, al; out 20h, al; pop ax; iret
    Handler {
        vectors: &[0x70],
        code: &[0x50, 0xb0, 0x0c, 0xe6, 0x70, 0xe4, 0x71, 0xb0, 0x20, 0xe6, 0xa0, 0xe6, 0x20, 0x58, 0xcf],
    },
    // Others of the slave. push ax; mov al, 20h; out 0a0h, al; out 20h, al; pop ax; iret
    Handler {
        vectors: &[0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77],
        code: &[0x50, 0xb0, 0x20, 0xe6, 0xa0, 0xe6, 0x20, 0x58, 0xcf],
    },
    // The list of equipment. push ds; xor ax, ax; mov ds, ax; mov ax, [410h]; pop ds; iret
    Handler { vectors: &[0x11], code: &[0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0xa1, 0x10, 0x04, 0x1f, 0xcf] },
    // KiB of low memory. push ds; xor ax, ax; mov ds, ax; mov ax, [413h]; pop ds; iret
    Handler { vectors: &[0x12], code: &[0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0xa1, 0x13, 0x04, 0x1f, 0xcf] },
    // Disks, system services and the clock: AH=86h, carry. push bp; mov bp, sp; or byte [bp+6], 1; pop bp; mov ah, 86h;
    // iret
    Handler {
        vectors: &[0x13, 0x15, 0x1a],
        code: &[0x55, 0x89, 0xe5, 0x80, 0x4e, 0x06, 0x01, 0x5d, 0xb4, 0x86, 0xcf],
    },
];

/// Resets the machine, by the keyboard controller and by port CF9h. mov al, 0feh; out 64h, al; mov dx, 0cf9h; mov al, 6;
/// out dx, al; hlt; jmp $-1
const RESET: [u8; 13] = [
    0xb0,
    0xfe,
    0xe6,
    port::I8042_COMMAND as u8,
    0xba,
    port::RESET_CONTROL as u8,
    (port::RESET_CONTROL >> 8) as u8,
    0xb0,
    0x06,
    0xee,
    0xf4,
    0xeb,
    0xfd,
];

/// Words of the BIOS data area, from 400h on.
const DATA_AREA: [(u64, u16); 9] = [
    // The first serial port.
    (0x400, port::COM1),
    (0x40e, (EBDA >> 4) as u16),
    // The list of equipment: x87, one serial port, no screen that it knows.
    (0x410, 0x0202),
    // KiB of low memory, up to the extended data area.
    (0x413, (EBDA >> 10) as u16),
    // The keyboard's buffer: head and tail, first and last.
    (0x41a, 0x1e),
    (0x41c, 0x1e),
    (0x480, 0x1e),
    (0x482, 0x3e),
    // Bits of the keyboard: 101 keys.
    (0x496, 0x10),
];

/// The vectors and the data area: the first page.
fn first_page(offsets: &[u16]) -> Vec<u8> {
    let mut page = vec![0; REAL_MODE_END as usize];
    for (vector, entry) in page[..0x400].chunks_exact_mut(4).enumerate() {
        let place = HANDLER_TABLE.iter().position(|h| h.vectors.contains(&(vector as u8))).unwrap_or(0);
        entry[..2].copy_from_slice(&offsets[place].to_le_bytes());
        entry[2..].copy_from_slice(&SEGMENT.to_le_bytes());
    }
    for (at, word) in DATA_AREA {
        page[at as usize..][..2].copy_from_slice(&word.to_le_bytes());
    }
    page
}

/// Writes all of it. What a kernel has of its own there is to be written after it.
pub(crate) fn write(memory: &GuestMemory) -> Result<(), Error> {
    let mut code = Vec::new();
    let mut offsets = Vec::new();
    for handler in &HANDLER_TABLE {
        offsets.push(HANDLERS + code.len() as u16);
        code.extend(handler.code);
    }
    let reset = HANDLERS + code.len() as u16;
    code.extend(RESET);
    memory.write(Gpa(0), &first_page(&offsets))?;
    // KiB of the extended data area.
    memory.write(Gpa(EBDA), &[1])?;
    memory.write(Gpa(BASE + u64::from(HANDLERS)), &code)?;
    let [low, high] = reset.to_le_bytes();
    let [segment_low, segment_high] = SEGMENT.to_le_bytes();
    let jump = [0xea, low, high, segment_low, segment_high];
    memory.write(Gpa(BASE + u64::from(RESET_VECTOR)), &jump)?;
    memory.write(Gpa(BASE + u64::from(MODEL.0)), &[MODEL.1])
}

const _: () = assert!(BASE + 0x1_0000 == LEGACY_HOLE_END && RESET_VECTOR > HANDLERS);

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    #[test]
    fn every_vector_leads_to_a_handler_and_the_reset_vector_to_the_reset() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 2 << 20 }]).unwrap();
        write(&memory).unwrap();
        let bytes = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            memory.read(Gpa(at), &mut bytes).unwrap();
            bytes
        };
        let far = |at: u64| {
            let b = bytes(at, 4);
            let word = |i: usize| u64::from(u16::from_le_bytes([b[i], b[i + 1]]));
            (word(2) << 4) + word(0)
        };
        for vector in 0..256 {
            let handler = far(vector * 4);
            let table = HANDLER_TABLE.iter().find(|h| h.vectors.contains(&(vector as u8)));
            let code = table.unwrap_or(&HANDLER_TABLE[0]).code;
            assert_eq!(bytes(handler, code.len()), code, "vector {vector:#x}");
            assert_eq!(code.last(), Some(&0xcf), "it ends with IRET");
        }
        assert_eq!(bytes(0xf_fff0, 1), [0xea]);
        assert_eq!(bytes(far(0xf_fff1), RESET.len()), RESET);
        assert_eq!(bytes(0x413, 2), 639u16.to_le_bytes());
        assert_eq!(bytes(0x40e, 2), 0x9fc0u16.to_le_bytes());
    }

    #[test]
    fn no_vector_has_two_handlers() {
        let mut vectors: Vec<_> = HANDLER_TABLE.iter().flat_map(|h| h.vectors).collect();
        let count = vectors.len();
        vectors.sort_unstable();
        vectors.dedup();
        assert_eq!(vectors.len(), count);
    }
}
