//! The paging matrix: the walk, the TLB and the fetch path against the model of `model.rs`.

use satori_defs::x86::{cr0, cr4, efer, rflags, vector};
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::seg;

use super::Mode;
use super::model_tests::{Asked, Controls, Outcome, translate};
use crate::cpu::{Cpu, Stop};
use crate::testing::{Machine, Numbers, machine32, machine64};

/// Where the tables stand, the highest first. None of them is a table of [`machine64`].
const TABLES: [u64; 4] = [0x2_0000, 0x2_1000, 0x2_2000, 0x2_3000];
/// PAE's page-directory-pointer table.
const PDPT: u64 = 0x2_4000;
/// Where every leaf leads to, from any size of page.
const TARGET: u64 = 0x10_0000;

const P: u64 = 1;
const W: u64 = 2;
const U: u64 = 4;
const A: u64 = 0x20;
const D: u64 = 0x40;
const PS: u64 = 0x80;
const NX: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bits32,
    Pae,
    FourLevel,
}

/// A mode, how deep its leaf lies, and the address that is translated.
#[derive(Clone, Copy, Debug)]
struct Layout {
    kind: Kind,
    depth: usize,
    linear: u64,
}

const LAYOUTS: [Layout; 7] = [
    Layout { kind: Kind::FourLevel, depth: 4, linear: 0xffff_9234_4010_0000 },
    Layout { kind: Kind::FourLevel, depth: 3, linear: 0x0000_1234_4010_0000 },
    Layout { kind: Kind::FourLevel, depth: 2, linear: 0x0000_7234_4010_0000 },
    Layout { kind: Kind::Pae, depth: 2, linear: 0xc010_0000 },
    Layout { kind: Kind::Pae, depth: 1, linear: 0x8010_0000 },
    Layout { kind: Kind::Bits32, depth: 2, linear: 0xc010_0000 },
    Layout { kind: Kind::Bits32, depth: 1, linear: 0x8010_0000 },
];

impl Layout {
    fn levels(&self) -> usize {
        if self.kind == Kind::FourLevel { 4 } else { 2 }
    }

    fn width(&self) -> u64 {
        if self.kind == Kind::Bits32 { 4 } else { 8 }
    }

    fn bits(&self) -> u32 {
        if self.kind == Kind::Bits32 { 10 } else { 9 }
    }

    /// Levels below the entry at `index`.
    fn left(&self, index: usize) -> u32 {
        (self.levels() - 1 - index) as u32
    }

    /// Where the entry at `index` stands.
    fn at(&self, index: usize) -> u64 {
        let slot = self.linear >> (12 + self.left(index) * self.bits()) & ((1 << self.bits()) - 1);
        TABLES[index] + slot * self.width()
    }

    /// The address part of the entry at `index`, and the page-size bit of a large leaf.
    fn address(&self, index: usize) -> u64 {
        if index + 1 < self.depth {
            return TABLES[index + 1];
        }
        let shift = 12 + self.left(index) * self.bits();
        let ps = if self.left(index) > 0 { PS } else { 0 };
        TARGET >> shift << shift | ps
    }

    /// Bits of which each alone is reserved in the entry at `index`, however the rest looks.
    fn reserved(&self, index: usize) -> &'static [u64] {
        let leaf = index + 1 == self.depth;
        match (self.kind, self.left(index)) {
            (Kind::FourLevel, 3) => &[1 << 46, 1 << 51, PS],
            (Kind::FourLevel, 2) if leaf => &[1 << 13, 1 << 29, 1 << 46, 1 << 51],
            (Kind::FourLevel, 1) if leaf => &[1 << 13, 1 << 20, 1 << 50],
            (Kind::FourLevel, _) => &[1 << 46, 1 << 51],
            (Kind::Pae, 1) if leaf => &[1 << 13, 1 << 20, 1 << 51, 1 << 52, 1 << 62],
            (Kind::Pae, _) => &[1 << 46, 1 << 51, 1 << 52, 1 << 62],
            (Kind::Bits32, 1) if leaf => &[1 << 21],
            // No bit is reserved.
            (Kind::Bits32, _) => &[0],
        }
    }

    fn machine(&self) -> Machine {
        let mut cpu = if self.kind == Kind::FourLevel { machine64() } else { machine32() };
        let pdpte = TABLES[0] | P;
        for i in 0..4 {
            cpu.memory.write(Gpa(PDPT + 8 * i), &pdpte.to_le_bytes()).unwrap();
        }
        cpu.state.pdpte = [pdpte; 4];
        cpu.state.cr3 = if self.kind == Kind::Pae { PDPT } else { TABLES[0] };
        cpu
    }

    fn put(&self, cpu: &Cpu, entries: &[u64]) {
        for (index, entry) in entries.iter().enumerate() {
            let bytes = entry.to_le_bytes();
            cpu.memory.write(Gpa(self.at(index)), &bytes[..self.width() as usize]).unwrap();
        }
    }

    fn get(&self, cpu: &Cpu) -> Vec<u64> {
        let read = |index| {
            let mut bytes = [0; 8];
            cpu.memory.read(Gpa(self.at(index)), &mut bytes[..self.width() as usize]).unwrap();
            u64::from_le_bytes(bytes)
        };
        (0..self.depth).map(read).collect()
    }
}

/// All controls that matter to a mode.
fn all_controls(layout: &Layout) -> Vec<Controls> {
    let mut all = Vec::new();
    // With four levels: no keys, or each pair of rights. Else keys must not matter.
    let keys = if layout.kind == Kind::FourLevel { 5 } else { 2 };
    for bits in 0..32u32 {
        for key in 0..keys {
            let has = |n: u32| bits >> n & 1 != 0;
            all.push(Controls {
                wp: has(0),
                nxe: has(1),
                smep: has(2),
                smap: has(3),
                ac: has(4),
                pae: layout.kind != Kind::Bits32,
                long: layout.kind == Kind::FourLevel,
                pse: true,
                pke: key != 0,
                pkru: pkru_of(if keys == 2 { 3 } else { key.max(1) - 1 }),
            });
        }
    }
    all
}

/// PKRU in which [`KEY`] has `rights`, and its neighbours the opposite.
fn pkru_of(rights: u32) -> u32 {
    let other = !rights & 3;
    (0..16).fold(0, |pkru, key| pkru | if key == KEY { rights } else { other } << (2 * key))
}

const KEY: u32 = 11;

/// All accesses.
fn all_asked() -> Vec<Asked> {
    let mut all = Vec::new();
    for cpl3 in [false, true] {
        for (write, fetch) in [(false, false), (true, false), (false, true)] {
            all.push(Asked { write, fetch, cpl3, implicit: false });
        }
        for write in [false, true] {
            all.push(Asked { write, fetch: false, cpl3, implicit: true });
        }
    }
    all
}

/// Puts controls in force without touching what is cached.
fn apply(cpu: &mut Cpu, c: &Controls) {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    cpu.state.cr0 = cr0::PE | cr0::PG | cr0::ET | bit(c.wp, cr0::WP);
    cpu.state.cr4 = bit(c.pae, cr4::PAE)
        | bit(c.pse, cr4::PSE)
        | bit(c.smep, cr4::SMEP)
        | bit(c.smap, cr4::SMAP)
        | bit(c.pke, cr4::PKE);
    cpu.state.efer = bit(c.long, efer::LME | efer::LMA) | bit(c.nxe, efer::NXE);
    cpu.state.rflags = rflags::FIXED | bit(c.ac, rflags::AC);
    cpu.state.pkru = c.pkru;
    cpu.mode_changed();
}

/// Makes one access; the page fault if it raised one.
fn access(cpu: &mut Cpu, layout: &Layout, asked: &Asked) -> Option<Exception> {
    let dpl = if asked.cpl3 { 3 << 5 } else { 0 };
    for register in [seg::CS, seg::SS] {
        let rights = &mut cpu.state.seg[register].rights;
        *rights = *rights & !(3 << 5) | dpl;
    }
    cpu.mode_changed();
    if asked.implicit {
        cpu.derived.mode = Mode::Supervisor;
    }
    let outcome = if asked.fetch {
        cpu.state.rip = layout.linear;
        cpu.fetch_one().map(drop)
    } else if asked.write {
        cpu.write(layout.linear, 0x90u8)
    } else {
        cpu.read::<u8>(layout.linear).map(drop)
    };
    match outcome {
        Ok(()) => None,
        Err(stop) => {
            assert_eq!(stop, Stop::Fault);
            let fault = cpu.pending.fault.take().expect("a fault carries its exception");
            assert_eq!((fault.vector, fault.payload), (vector::PF, layout.linear));
            Some(fault)
        }
    }
}

/// Makes an access on the machine and in the model, with entries `before`. The entries after.
fn check(cpu: &mut Cpu, layout: &Layout, c: &Controls, asked: &Asked, before: &Vec<u64>) -> Vec<u64> {
    let error = access(cpu, layout, asked).map(|fault| fault.code.expect("page faults have a code"));
    let got = Outcome { error, entries: layout.get(cpu) };
    let expected = translate(c, asked, before);
    assert_eq!(got, expected, "{layout:x?} {c:x?} {asked:?} {before:x?}");
    got.entries
}

/// Each level's bits in every combination while the other levels allow everything, under every
/// combination of controls, by every kind of access.
#[test]
fn every_bit_of_every_level_decides_as_the_manual_says() {
    for layout in &LAYOUTS {
        let mut cpu = layout.machine();
        let open: Vec<u64> = (0..layout.depth).map(|i| layout.address(i) | P | W | U).collect();
        let key = if layout.kind == Kind::FourLevel { u64::from(KEY) << 59 } else { 0 };
        let wide = layout.kind != Kind::Bits32;
        let (controls, asked) = (all_controls(layout), all_asked());
        for level in 0..layout.depth {
            for bits in 0..if wide { 32 } else { 16u32 } {
                let has = |n: u32, bit: u64| if bits >> n & 1 != 0 { bit } else { 0 };
                for reserved in if bits & 8 != 0 { layout.reserved(level) } else { &[0] } {
                    let entry =
                        layout.address(level) | has(0, P) | has(1, W) | has(2, U) | reserved | has(4, NX);
                    let mut entries = open.clone();
                    entries[layout.depth - 1] |= key;
                    entries[level] = entry | if level + 1 == layout.depth { key } else { 0 };
                    layout.put(&cpu, &entries);
                    for c in &controls {
                        apply(&mut cpu, c);
                        for asked in &asked {
                            cpu.flush_tlb(true);
                            if check(&mut cpu, layout, c, asked, &entries) != entries {
                                layout.put(&cpu, &entries);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Random bits at all levels at once; then, without a flush, more accesses at other privilege
/// levels, under another PKRU and RFLAGS.AC: what is cached must not change any answer.
#[test]
fn what_is_cached_answers_as_a_walk_would() {
    let mut numbers = Numbers(0x9a6e);
    for layout in &LAYOUTS {
        let mut cpu = layout.machine();
        let controls = all_controls(layout);
        let asked = all_asked();
        for _ in 0..15_000 {
            let entry = |index: usize, numbers: &mut Numbers| {
                let mut entry = layout.address(index) | P | W | U;
                for (bit, one_in) in [(P, 16), (W, 4), (U, 4)] {
                    if numbers.below(one_in) == 0 {
                        entry &= !bit;
                    }
                }
                let nx = if layout.kind == Kind::Bits32 { 0 } else { NX };
                let reserved = layout.reserved(index);
                let odd = reserved[numbers.below(reserved.len() as u64) as usize];
                // G, which CR4 does not enable.
                for (bit, one_in) in [(A, 2), (D, 4), (nx, 4), (odd, 32), (0x100, 8)] {
                    // Bit 6 means nothing in what is no leaf.
                    if numbers.below(one_in) == 0 {
                        entry |= bit;
                    }
                }
                if layout.kind == Kind::FourLevel {
                    entry |= numbers.below(16) << 59;
                }
                entry
            };
            let mut entries: Vec<u64> = (0..layout.depth).map(|i| entry(i, &mut numbers)).collect();
            let mut c = controls[numbers.below(controls.len() as u64) as usize];
            layout.put(&cpu, &entries);
            apply(&mut cpu, &c);
            cpu.flush_tlb(true);
            for _ in 0..6 {
                if numbers.below(2) == 0 {
                    c.pkru = numbers.any() as u32;
                    c.ac = numbers.below(2) == 0;
                    apply(&mut cpu, &c);
                }
                let asked = &asked[numbers.below(asked.len() as u64) as usize];
                entries = check(&mut cpu, layout, &c, asked, &entries);
            }
        }
    }
}
