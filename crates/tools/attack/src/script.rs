//! Guests put together from a fuzzer's bytes: machine code for 32-bit protected mode that does
//! what reaches the monitor.

use arbitrary::{Result, Unstructured};

/// Where the code is loaded and entered.
pub(crate) const BASE: u32 = 0x10_0000;
/// Ports with a device behind them, or next to one.
const PORTS: &[u16] = &[
    0x20, 0x21, 0x40, 0x41, 0x42, 0x43, 0x60, 0x61, 0x64, 0x70, 0x71, 0x80, 0x92, 0xa0, 0xa1, 0xe9, 0x3f8,
    0x3f9, 0x3fa, 0x3fb, 0x3fc, 0x3fd, 0x3fe, 0x4d0, 0x4d1, 0x505, 0x510, 0x511, 0x514, 0x600, 0x602, 0x604,
    0x608, 0xcf8, 0xcfa, 0xcfc, 0xcfe,
];
/// Physical addresses of devices and of the edges of RAM.
const PLACES: &[u32] = &[
    0xfec0_0000,
    0xfec0_0010,
    0xfec0_0040,
    0xfed0_0000,
    0xfed0_0010,
    0xfed0_0020,
    0xfed0_00f0,
    0xfed0_0100,
    0xfed0_0108,
    0xfee0_0000,
    0xfee0_0080,
    0xfee0_00b0,
    0xfee0_00f0,
    0xfee0_0300,
    0xfee0_0310,
    0xfee0_0320,
    0xfee0_0380,
    0xfee0_03e0,
    0xe000_0000,
    0xb000_0000,
    0x07ff_f000,
    0x000a_0000,
    0xffff_fff0,
];
/// MSRs with an answer, or next to one.
const MSRS: &[u32] = &[
    0x10,
    0x1b,
    0x3a,
    0x3b,
    0x48,
    0x8b,
    0xce,
    0xfe,
    0x174,
    0x179,
    0x17a,
    0x1a0,
    0x1d9,
    0x200,
    0x250,
    0x277,
    0x2ff,
    0x400,
    0x6e0,
    0x800,
    0x802,
    0x808,
    0x80b,
    0x80f,
    0x830,
    0x832,
    0x838,
    0x83e,
    0xda0,
    0x4000_0000,
    0x4000_0001,
    0x4000_0002,
    0x4000_0020,
    0x4000_0021,
    0x4000_0022,
    0x4000_0070,
    0x4000_0073,
    0x4000_0080,
    0x4000_0083,
    0x4000_0090,
    0x4000_00b0,
    0x4000_0100,
    0x4000_0105,
    0xc000_0080,
    0xc000_0081,
    0xc000_0103,
    0xc001_0015,
];

fn near<T: Copy>(
    u: &mut Unstructured<'_>,
    known: &[T],
    any: fn(&mut Unstructured<'_>) -> Result<T>,
) -> Result<T> {
    if u.ratio(7, 8)? { Ok(*u.choose(known)?) } else { any(u) }
}

fn load(code: &mut Vec<u8>, opcode: u8, value: u32) {
    code.push(opcode);
    code.extend(value.to_le_bytes());
}

/// Appends one act.
fn act(u: &mut Unstructured<'_>, code: &mut Vec<u8>) -> Result<()> {
    let eax = |code: &mut Vec<u8>, u: &mut Unstructured<'_>| -> Result<()> {
        load(code, 0xb8, u.arbitrary()?);
        Ok(())
    };
    match u.int_in_range(0..=11)? {
        // MOV DX, port; OUT or IN of 1, 2 or 4 bytes.
        0 | 1 => {
            eax(code, u)?;
            load(code, 0xba, near(u, PORTS, |u| u.arbitrary())?.into());
            code.extend(*u.choose(&[
                &[0xee][..],
                &[0xef],
                &[0x66, 0xef],
                &[0xec],
                &[0xed],
                &[0x66, 0xed],
            ])?);
        }
        // MOV to or from memory at EDI, of 1, 2 or 4 bytes.
        2 | 3 => {
            eax(code, u)?;
            let offset = u32::from(u.arbitrary::<u16>()? >> u.int_in_range(4..=15)?);
            load(code, 0xbf, near(u, PLACES, |u| u.arbitrary())?.wrapping_add(offset));
            code.extend(*u.choose(&[
                &[0x89, 0x07][..],
                &[0x88, 0x07],
                &[0x66, 0x89, 0x07],
                &[0x8b, 0x07],
                &[0xf0, 0x0f, 0xc1, 0x07],
            ])?);
        }
        // WRMSR or RDMSR.
        4 | 5 => {
            eax(code, u)?;
            load(code, 0xba, if u.ratio(1, 4)? { u.arbitrary()? } else { 0 });
            load(code, 0xb9, near(u, MSRS, |u| u.arbitrary())?);
            code.extend([0x0f, *u.choose(&[0x30, 0x30, 0x32])?]);
        }
        // CPUID, VMCALL, VMMCALL, XSETBV, WBINVD, HLT with and without interrupts, PAUSE.
        6 => {
            eax(code, u)?;
            load(code, 0xb9, u.int_in_range(0..=4)?);
            code.extend(*u.choose(&[
                &[0x0f, 0xa2][..],
                &[0x0f, 0x01, 0xc1],
                &[0x0f, 0x01, 0xd9],
                &[0x0f, 0x01, 0xd1],
                &[0x0f, 0x09],
                &[0xfb, 0xf4],
                &[0xfb, 0x90, 0xfa],
                &[0xf3, 0x90],
            ])?);
        }
        // REP INS and OUTS between a port and memory.
        7 => {
            load(code, 0xba, near(u, PORTS, |u| u.arbitrary())?.into());
            load(code, 0xbf, near(u, PLACES, |u| u.arbitrary())?);
            load(code, 0xbe, near(u, PLACES, |u| u.arbitrary())?);
            load(code, 0xb9, u.int_in_range(0..=64)?);
            code.extend([0xf3, *u.choose(&[0x6c, 0x6d, 0x6e, 0x6f, 0xa4, 0xa5])?]);
        }
        // MOV to CR0, CR3, CR4, a debug register.
        8 => {
            eax(code, u)?;
            code.extend(*u.choose(&[
                &[0x0f, 0x22, 0xc0][..],
                &[0x0f, 0x22, 0xd8],
                &[0x0f, 0x22, 0xe0],
                &[0x0f, 0x23, 0xf8],
            ])?);
        }
        // LIDT or LGDT from the code itself.
        9 => {
            code.extend([0x0f, 0x01, *u.choose(&[0x15, 0x1d])?]);
            code.extend((BASE + u32::from(u.arbitrary::<u8>()?)).to_le_bytes());
        }
        // Back to an earlier instruction, now and then.
        10 => {
            eax(code, u)?;
            code.extend([0x85, 0xc0, 0x75, 0x80 | u.arbitrary::<u8>()?]);
        }
        _ => code.extend(u.bytes(4)?),
    }
    Ok(())
}

/// A program of acts, as long as the bytes last.
pub(crate) fn program(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut code = Vec::new();
    while !u.is_empty() && code.len() < 0xf00 && act(u, &mut code).is_ok() {}
    code.extend([0xfb, 0xf4, 0xeb, 0xfc]); // 1: STI; HLT; JMP 1b
    code
}

/// A kernel with a PVH note whose only segment is `code`.
pub(crate) fn kernel(code: &[u8]) -> Vec<u8> {
    let note: Vec<u8> = [4, 4, 18].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
    let note = [&note[..], b"Xen\0", &BASE.to_le_bytes()].concat();
    let (headers, note_at, code_at) = (64u64, 64 + 2 * 56, 0x1000u64);
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2u16, 62].iter().flat_map(|n| n.to_le_bytes())); // ET_EXEC, EM_X86_64
    elf.extend(1u32.to_le_bytes());
    elf.extend([u64::from(BASE), headers, 0].iter().flat_map(|n| n.to_le_bytes()));
    elf.extend(0u32.to_le_bytes());
    elf.extend([64u16, 56, 2, 64, 0, 0].iter().flat_map(|n| n.to_le_bytes()));
    let parts = [(1u32, code_at, u64::from(BASE), code.len()), (4, note_at, 0, note.len())];
    for (kind, at, address, size) in parts {
        elf.extend(kind.to_le_bytes());
        elf.extend(7u32.to_le_bytes());
        elf.extend(
            [at, address, address, size as u64, size as u64, 4].iter().flat_map(|n: &u64| n.to_le_bytes()),
        );
    }
    elf.extend(note);
    elf.resize(code_at as usize, 0);
    elf.extend(code);
    elf
}
