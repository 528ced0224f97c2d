//! Configuration space.

use satori_guests::defs::chipset::mmio::{ECAM, ECAM_SIZE};
use satori_guests::defs::pci::*;
use satori_guests::pci::{ADDRESS, DATA, Function, functions};
use satori_guests::place::{Random, load, read, write};
use satori_guests::{Test, insn};

pub fn mechanism_1(t: &mut Test) {
    for function in functions() {
        for register in [VENDOR_ID, CLASS_CODE & !3, BAR0, CAPABILITIES_POINTER] {
            let (ports, memory) = (function.read_by_ports(register), function.read(register, 4));
            t.eq(("both ways", function, register), ports, memory);
        }
    }
    // The address is a double word at its own port: bytes of it are others' ports.
    insn::out32(ADDRESS, 0x8000_0000);
    for port in ADDRESS..ADDRESS + 4 {
        if port != 0xcf9 {
            insn::out8(port, 0x55);
        }
    }
    t.eq("no byte of it is written", insn::in32(ADDRESS), 0x8000_0000);
    insn::out32(ADDRESS, u32::MAX);
    t.eq("bits that there are not", insn::in32(ADDRESS), 0x80ff_fffc);
    t.eq("bus 255", insn::in32(DATA), u32::MAX);
    insn::out32(ADDRESS, 0);
    t.eq("not enabled", insn::in32(DATA), u32::MAX);
    insn::out32(DATA, 0);
    // Bytes of the data register are bytes of configuration space.
    insn::out32(ADDRESS, 0x8000_0000);
    let id = insn::in32(DATA).to_le_bytes();
    let bytes = [0, 1, 2, 3].map(|at| insn::in8(DATA + at));
    t.eq("bytes", bytes, id);
}

pub fn absent(t: &mut Test) {
    let there: u32 = functions().count() as u32;
    t.holds(("bridge, disk, random bytes", there), there >= 3);
    let mut gone = 0;
    for function in (0..=255).map(Function).filter(|function| function.id().0 == 0xffff) {
        for register in [0, 4, 0x10, 0x3c, 0xfc, 0xffc] {
            function.write(register, 4, 0);
            gone += u32::from(function.read(register, 4) != u32::MAX);
        }
    }
    t.eq("who is not there", gone, 0);
    // Behind the one bus there is no other.
    for at in [ECAM + ECAM_SIZE, ECAM + ECAM_SIZE + 0xffc, ECAM + (1 << 24)] {
        t.eq(("no bus 1", at), load::<u32>(at), u32::MAX);
        write(at, 4, 0);
    }
}

pub fn odd_accesses(t: &mut Test) {
    for function in functions() {
        let whole = function.read(0, 4);
        for size in [2, 4, 8] {
            for at in 1..u64::from(size) {
                let ones = u64::MAX >> (64 - 8 * u32::from(size).min(4));
                let got = read(function.ecam() + at, size);
                let ok = got & ones == ones || at % u64::from(size) == 0;
                t.holds(("not aligned", function, size, at, got), ok);
                write(function.ecam() + at, size, 0);
            }
        }
        write(function.ecam(), 8, 0);
        // Over the end of one function into the next one's.
        write(function.ecam() + 0xffe, 4, u64::MAX);
        write(function.ecam() + 0xffc, 8, u64::MAX);
        t.eq(("what it is", function), function.read(0, 4), whole);
        t.eq(("no extended capabilities", function), function.read(0x100, 4), 0);
    }
}

/// Random writes everywhere but for base addresses and commands, which are other cases: identity stays.
pub fn what_is_read_only(t: &mut Test) {
    let mut random = Random(0xc0_0c);
    for function in functions() {
        let before: [u32; 64] = core::array::from_fn(|word| function.read(4 * word, 4));
        for _ in 0..2000 {
            let size = random.of(&[1, 2, 4]);
            let at = 0x28 + random.below(0x400) as usize / size as usize * size as usize;
            function.write(at, size, random.number() as u32);
        }
        for (word, before) in before.iter().enumerate() {
            let now = function.read(4 * word, 4);
            let writable = match word {
                0x3c_usize.. => 0,
                0xf => 0xff,
                0x10.. => now ^ before,
                _ => 0,
            };
            t.eq(("read-only", function, word), now & !writable, before & !writable);
        }
        // Lists of capabilities and what they are cannot be written.
        for at in function.capabilities() {
            t.eq(("a capability", function, at), function.read(at, 2), before[at / 4] & 0xffff);
        }
        (0x10..64).for_each(|word| function.write(4 * word, 4, before[word]));
    }
}

pub fn capabilities(t: &mut Test) {
    for function in functions() {
        let (mut last, mut count) = (0, 0);
        for at in function.capabilities() {
            t.holds(("where one is", function, at), at >= HEADER_END && at % 4 == 0 && at > last);
            (last, count) = (at, count + 1);
        }
        t.holds(("the list ends", function, count), count < 48);
    }
}
