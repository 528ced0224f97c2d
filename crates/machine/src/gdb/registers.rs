//! The registers as gdb knows them: one table for the target description and every packet.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::LazyLock;

use gdbstub::arch::{Arch, RegId, Registers};
use satori_cpuid::PHYSICAL_BITS;
use satori_defs::fpu::fcw;
use satori_defs::x86::{cr0, rflags};
use satori_rules as rules;
use satori_state::{CpuState, reg, seg};

type Get = fn(&CpuState) -> u128;
type Set = fn(&mut CpuState, u128);

/// One register: name, bits, gdb's type, and how it stands in the register file.
struct Register(&'static str, usize, &'static str, Get, Set);

/// A feature of the target description, by gdb's name for it (gdb's manual, i386 features).
struct Feature(&'static str, &'static [Register]);

macro_rules! gpr {
    ($name:literal, $index:ident, $kind:literal) => {
        Register($name, 64, $kind, |s| s.gpr[reg::$index].into(), |s, v| s.gpr[reg::$index] = v as u64)
    };
}
macro_rules! word {
    ($name:literal, $bits:literal, $kind:literal, $($field:tt)+) => {
        Register($name, $bits, $kind, |s| u128::from(s.$($field)+), |s, v| s.$($field)+ = v as _)
    };
}
/// A register that takes a value which the rule has legal, and stays as it is for others.
macro_rules! legal {
    ($name:literal, $kind:literal, $rule:expr, $($field:tt)+) => {
        Register($name, 64, $kind, |s| s.$($field)+.into(), |s, v| {
            if $rule(s, v as u64) {
                s.$($field)+ = v as u64;
            }
        })
    };
}
/// A register that cannot be set by itself: what hangs on it could not follow.
macro_rules! shown {
    ($name:literal, $bits:literal, $kind:literal, $get:expr) => {
        Register($name, $bits, $kind, $get, |_, _| {})
    };
}
macro_rules! selector {
    ($name:literal, $index:ident) => {
        shown!($name, 32, "int32", |s| s.seg[seg::$index].selector.into())
    };
}
macro_rules! st {
    ($name:literal, $index:literal) => {
        Register($name, 80, "i387_ext", |s| s.fpu.st[$index] & ST_BITS, |s, v| s.fpu.st[$index] = v & ST_BITS)
    };
}

const ST_BITS: u128 = (1 << 80) - 1;

const CORE: &[Register] = &[
    gpr!("rax", RAX, "int64"),
    gpr!("rbx", RBX, "int64"),
    gpr!("rcx", RCX, "int64"),
    gpr!("rdx", RDX, "int64"),
    gpr!("rsi", RSI, "int64"),
    gpr!("rdi", RDI, "int64"),
    gpr!("rbp", RBP, "data_ptr"),
    gpr!("rsp", RSP, "data_ptr"),
    gpr!("r8", R8, "int64"),
    gpr!("r9", R9, "int64"),
    gpr!("r10", R10, "int64"),
    gpr!("r11", R11, "int64"),
    gpr!("r12", R12, "int64"),
    gpr!("r13", R13, "int64"),
    gpr!("r14", R14, "int64"),
    gpr!("r15", R15, "int64"),
    word!("rip", 64, "code_ptr", rip),
    Register(
        "eflags",
        32,
        "i386_eflags",
        |s| s.rflags.into(),
        |s, v| {
            // The mode of the processor hangs on VM.
            s.rflags = v as u64 & u64::from(u32::MAX) & !rflags::VM | s.rflags & rflags::VM | rflags::FIXED
        },
    ),
    selector!("cs", CS),
    selector!("ss", SS),
    selector!("ds", DS),
    selector!("es", ES),
    selector!("fs", FS),
    selector!("gs", GS),
    st!("st0", 0),
    st!("st1", 1),
    st!("st2", 2),
    st!("st3", 3),
    st!("st4", 4),
    st!("st5", 5),
    st!("st6", 6),
    st!("st7", 7),
    // Its other bits are what they are.
    Register(
        "fctrl",
        32,
        "int",
        |s| s.fpu.fcw.into(),
        |s, v| s.fpu.fcw = v as u16 & fcw::WRITABLE | fcw::FIXED,
    ),
    word!("fstat", 32, "int", fpu.fsw),
    Register("ftag", 32, "int", |s| full_tags(s.fpu.ftw), |s, v| s.fpu.ftw = abridged_tags(v)),
    shown!("fiseg", 32, "int", |_| 0),
    word!("fioff", 32, "int", fpu.fip),
    shown!("foseg", 32, "int", |_| 0),
    word!("fooff", 32, "int", fpu.fdp),
    word!("fop", 32, "int", fpu.fop),
];

macro_rules! xmm {
    ($($name:literal $index:literal,)*) => { &[
        $(Register($name, 128, "vec128", |s| s.fpu.ymm[$index].low, |s, v| s.fpu.ymm[$index].low = v),)*
        // A reserved bit set there would have to fault.
        Register("mxcsr", 32, "i386_mxcsr", |s| s.fpu.mxcsr.into(), |s, v| s.fpu.mxcsr = v as u32 & 0xffff),
    ] };
}

const SSE: &[Register] = xmm! {
    "xmm0" 0, "xmm1" 1, "xmm2" 2, "xmm3" 3, "xmm4" 4, "xmm5" 5, "xmm6" 6, "xmm7" 7, "xmm8" 8, "xmm9" 9,
    "xmm10" 10, "xmm11" 11, "xmm12" 12, "xmm13" 13, "xmm14" 14, "xmm15" 15,
};

macro_rules! ymm {
    ($($name:literal $index:literal,)*) => {
        &[$(Register($name, 128, "uint128", |s| s.fpu.ymm[$index].high, |s, v| s.fpu.ymm[$index].high = v),)*]
    };
}

/// The upper halves, of which gdb makes `$ymm0` and so on with the registers of SSE.
const AVX: &[Register] = ymm! {
    "ymm0h" 0, "ymm1h" 1, "ymm2h" 2, "ymm3h" 3, "ymm4h" 4, "ymm5h" 5, "ymm6h" 6, "ymm7h" 7, "ymm8h" 8,
    "ymm9h" 9, "ymm10h" 10, "ymm11h" 11, "ymm12h" 12, "ymm13h" 13, "ymm14h" 14, "ymm15h" 15,
};

/// A base that is not canonical would be #GP for the guest, too (SDM 5.8.8, WRFSBASE).
fn linear(_: &CpuState, value: u64) -> bool {
    rules::canonical(value)
}

fn table_base(state: &CpuState, value: u64) -> bool {
    !state.long_mode() || rules::cr3::legal(value, PHYSICAL_BITS)
}

const SEGMENTS: &[Register] = &[
    legal!("fs_base", "int", linear, seg[seg::FS].base),
    legal!("gs_base", "int", linear, seg[seg::GS].base),
];

const SYSTEM: &[Register] = &[
    legal!("k_gs_base", "int64", linear, kernel_gs_base),
    shown!("cr0", 64, "int64", |s| (s.cr0 | cr0::ET).into()),
    word!("cr2", 64, "int64", cr2),
    legal!("cr3", "int64", table_base, cr3),
    shown!("cr4", 64, "int64", |s| s.cr4.into()),
    shown!("cr8", 64, "int64", |s| (s.tpr >> 4).into()),
    shown!("efer", 64, "int64", |s| s.efer.into()),
    shown!("dr0", 64, "int64", |s| s.dr[0].into()),
    shown!("dr1", 64, "int64", |s| s.dr[1].into()),
    shown!("dr2", 64, "int64", |s| s.dr[2].into()),
    shown!("dr3", 64, "int64", |s| s.dr[3].into()),
    shown!("dr6", 64, "int64", |s| s.dr6.into()),
    shown!("dr7", 64, "int64", |s| s.dr7.into()),
];

const FEATURES: &[Feature] = &[
    Feature("org.gnu.gdb.i386.core", CORE),
    Feature("org.gnu.gdb.i386.sse", SSE),
    Feature("org.gnu.gdb.i386.avx", AVX),
    Feature("org.gnu.gdb.i386.segments", SEGMENTS),
    Feature("org.satori.i386.system", SYSTEM),
];

/// The x87 tag word of two bits a register: 3 for an empty one, else 0, as QEMU tells it.
fn full_tags(abridged: u8) -> u128 {
    (0..8).filter(|i| abridged >> i & 1 == 0).map(|i| 3 << (2 * i)).sum()
}

fn abridged_tags(full: u128) -> u8 {
    (0..8).filter(|i| full >> (2 * i) & 3 != 3).map(|i| 1 << i).sum()
}

fn table() -> impl Iterator<Item = &'static Register> {
    FEATURES.iter().flat_map(|feature| feature.1)
}

/// Types that the table names and gdb does not have by itself.
const TYPES: &str = r#"
<flags id="i386_eflags" size="4">
<field name="CF" start="0" end="0"/><field name="" start="1" end="1"/><field name="PF" start="2" end="2"/>
<field name="AF" start="4" end="4"/><field name="ZF" start="6" end="6"/><field name="SF" start="7" end="7"/>
<field name="TF" start="8" end="8"/><field name="IF" start="9" end="9"/><field name="DF" start="10" end="10"/>
<field name="OF" start="11" end="11"/><field name="NT" start="14" end="14"/><field name="RF" start="16" end="16"/>
<field name="VM" start="17" end="17"/><field name="AC" start="18" end="18"/><field name="VIF" start="19" end="19"/>
<field name="VIP" start="20" end="20"/><field name="ID" start="21" end="21"/>
</flags>"#;

const SSE_TYPES: &str = r#"
<vector id="v4f" type="ieee_single" count="4"/><vector id="v2d" type="ieee_double" count="2"/>
<vector id="v16i8" type="int8" count="16"/><vector id="v8i16" type="int16" count="8"/>
<vector id="v4i32" type="int32" count="4"/><vector id="v2i64" type="int64" count="2"/>
<union id="vec128"><field name="v4_float" type="v4f"/><field name="v2_double" type="v2d"/>
<field name="v16_int8" type="v16i8"/><field name="v8_int16" type="v8i16"/>
<field name="v4_int32" type="v4i32"/><field name="v2_int64" type="v2i64"/>
<field name="uint128" type="uint128"/></union>
<flags id="i386_mxcsr" size="4">
<field name="IE" start="0" end="0"/><field name="DE" start="1" end="1"/><field name="ZE" start="2" end="2"/>
<field name="OE" start="3" end="3"/><field name="UE" start="4" end="4"/><field name="PE" start="5" end="5"/>
<field name="DAZ" start="6" end="6"/><field name="IM" start="7" end="7"/><field name="DM" start="8" end="8"/>
<field name="ZM" start="9" end="9"/><field name="OM" start="10" end="10"/><field name="UM" start="11" end="11"/>
<field name="PM" start="12" end="12"/><field name="FZ" start="15" end="15"/>
</flags>"#;

fn description() -> String {
    let mut xml = String::from(
        r#"<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target version="1.0"><architecture>i386:x86-64</architecture>"#,
    );
    for Feature(name, registers) in FEATURES {
        let types = match *name {
            "org.gnu.gdb.i386.core" => TYPES,
            "org.gnu.gdb.i386.sse" => SSE_TYPES,
            _ => "",
        };
        let _ = write!(xml, "<feature name=\"{name}\">{types}");
        for Register(name, bits, kind, ..) in *registers {
            let _ = write!(xml, "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"/>");
        }
        xml += "</feature>";
    }
    xml + "</target>"
}

/// The register file in gdb's eyes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Image(pub CpuState);

impl Registers for Image {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.0.rip
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for Register(_, bits, _, get, _) in table() {
            get(&self.0).to_le_bytes()[..bits / 8].iter().for_each(|byte| write_byte(Some(*byte)));
        }
    }

    fn gdb_deserialize(&mut self, mut bytes: &[u8]) -> Result<(), ()> {
        for Register(_, bits, _, _, set) in table() {
            let (value, rest) = bytes.split_at_checked(bits / 8).ok_or(())?;
            set(&mut self.0, number(value));
            bytes = rest;
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u128 {
    let mut value = [0; 16];
    value[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(value)
}

/// A register's place in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(usize);

impl Number {
    fn row(self) -> Option<&'static Register> {
        table().nth(self.0)
    }

    /// Puts the register's bytes into `buffer`, and tells how many they are.
    pub(super) fn read(self, state: &CpuState, buffer: &mut [u8]) -> Option<usize> {
        let Register(_, bits, _, get, _) = self.row()?;
        buffer.get_mut(..bits / 8)?.copy_from_slice(&get(state).to_le_bytes()[..bits / 8]);
        Some(bits / 8)
    }

    pub(super) fn write(self, state: &mut CpuState, bytes: &[u8]) -> Option<()> {
        let Register(_, bits, _, _, set) = self.row()?;
        set(state, number(bytes.get(..bits / 8)?));
        Some(())
    }
}

impl RegId for Number {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let Register(_, bits, ..) = Number(id).row()?;
        Some((Number(id), NonZeroUsize::new(bits / 8)))
    }
}

/// x86-64 with the system registers that QEMU also shows.
#[derive(Debug)]
pub(crate) enum X86 {}

impl Arch for X86 {
    type Usize = u64;
    type Registers = Image;
    type BreakpointKind = usize;
    type RegId = Number;

    fn target_description_xml() -> Option<&'static str> {
        static XML: LazyLock<String> = LazyLock::new(description);
        Some(&XML)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_can_be_written_back() {
        let mut state = CpuState { rip: 0xffff_ffff_8100_0000, ..CpuState::default() };
        state.gpr[reg::R9] = 9;
        state.fpu.st[2] = 0x3fff_8000_0000_0000_0000;
        state.fpu.ymm[15].low = u128::MAX - 1;
        state.fpu.ymm[14].high = 14 << 100;
        state.fpu.ftw = 0x85;
        let mut bytes = Vec::new();
        Image(state.clone()).gdb_serialize(|byte| bytes.push(byte.unwrap()));
        assert_eq!(bytes.len(), table().map(|row| row.1 / 8).sum::<usize>());
        let mut image = Image(CpuState { cr0: state.cr0, ..CpuState::default() });
        image.gdb_deserialize(&bytes).unwrap();
        assert_eq!(image.0, state);
        assert_eq!(image.gdb_deserialize(&bytes[1..]), Err(()));
    }

    #[test]
    fn a_base_that_the_processor_refuses_is_not_set() {
        let mut image = Image(CpuState { efer: satori_defs::x86::efer::LMA, ..CpuState::default() });
        let number = |name: &str| Number(table().position(|row| row.0 == name).unwrap());
        for (name, bad, good) in [
            ("fs_base", 1_u64 << 47, 0xffff_8000_0000_1000_u64),
            ("gs_base", 1 << 63, 0x7fff_ffff_f000),
            ("k_gs_base", 0x8000_0000_0000, 0xffff_ffff_8000_0000),
            ("cr3", 1 << 46, 0x1fff_ffff_f000),
        ] {
            number(name).write(&mut image.0, &good.to_le_bytes()).unwrap();
            number(name).write(&mut image.0, &bad.to_le_bytes()).unwrap();
            let mut buffer = [0; 16];
            number(name).read(&image.0, &mut buffer).unwrap();
            assert_eq!(buffer[..8], good.to_le_bytes(), "{name}");
        }
    }

    #[test]
    fn reserved_bits_stay_as_they_are() {
        let mut image = Image(CpuState::default());
        image.gdb_deserialize(&vec![0xff; table().map(|row| row.1 / 8).sum()]).unwrap();
        assert_eq!((image.0.fpu.fcw, image.0.fpu.mxcsr), (0x1f7f, 0xffff));
        assert_eq!((image.0.rflags & rflags::VM, image.0.cr0), (0, CpuState::default().cr0));
    }

    #[test]
    fn numbers_follow_the_description() {
        let xml = X86::target_description_xml().unwrap();
        let names: Vec<_> =
            xml.split("<reg name=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(names.len(), table().count());
        assert_eq!((names[16], names[40], names[56], names[72]), ("rip", "xmm0", "mxcsr", "ymm15h"));
        let mut buffer = [0; 16];
        let state = CpuState { rip: 0x1234, ..CpuState::default() };
        assert_eq!(Number(16).read(&state, &mut buffer), Some(8));
        assert_eq!(buffer[..2], [0x34, 0x12]);
        assert!(Number::from_raw_id(names.len()).is_none());
    }
}
