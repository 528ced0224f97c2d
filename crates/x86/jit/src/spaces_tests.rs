//! Address spaces whose translations are kept while others are current, on both engines.

use satori_defs::x86::{cr4, pte};
use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::reg;

use satori_rules as rules;
use satori_soft::testing::{Numbers, PD, SCRATCH};

use crate::testing::{Machine, machine64};
use crate::{Host, Jit, Manner, Pool};

const SPACES: usize = 3;
/// Pages of one address space, at addresses of its own, and behind them those that are global.
const PAGES: usize = 4;
const GLOBALS: usize = 2;
const FRAMES: u64 = 5;
/// Where Linux has programs that may be anywhere, and where code stays.
const BASES: [u64; 2] = [1 << 40, 0xffff_8000_0000_0000];
/// Where code begins that goes on in the next page, and where it does so.
const LEAVES: u64 = 0x20;
const ARRIVES: u64 = 0x30;
const OPEN: u64 = pte::P | pte::W;
/// The table of address space `n`, and the tables above it.
const fn table(n: usize, level: u64) -> u64 {
    0x8_0000 + 0x4000 * n as u64 + 0x1000 * level
}

/// What the guest does with its registers, each piece with a HLT behind it.
const CALL: &[u8] = &[0xff, 0xd3]; // call rbx
const READ: &[u8] = &[0x8b, 0x83, 0, 8, 0, 0]; // mov eax, [rbx+0x800]
const WRITE: &[u8] = &[0x89, 0x4b, 1, 0x89, 0x8b, 0, 8, 0, 0]; // mov [rbx+1], ecx; mov [rbx+0x800], ecx
const LOAD: &[u8] = &[0x0f, 0x22, 0xd8]; // mov cr3, rax
const INVLPG: &[u8] = &[0x0f, 0x01, 0x3b]; // invlpg [rbx]
const INVPCID: &[u8] = &[0x66, 0x0f, 0x38, 0x82, 0x07]; // invpcid rax, [rdi]
const PIECES: [&[u8]; 6] = [CALL, READ, WRITE, LOAD, INVLPG, INVPCID];

struct Guest {
    cpu: Machine,
    /// One of [`BASES`].
    base: u64,
    /// The frame of each page, by address space; of global ones in the first.
    frames: [[u64; PAGES + GLOBALS]; SPACES],
    /// What the code in each frame returns, and its data are.
    values: [u32; FRAMES as usize],
    current: usize,
    /// Address spaces that may not keep anything when they are entered.
    stale: [bool; SPACES],
}

impl Guest {
    fn new(translates: bool, base: u64) -> Self {
        let mut cpu = machine64();
        let write = |at: u64, value: u64| cpu.memory().write(Gpa(at), &value.to_le_bytes()).expect("RAM");
        for n in 0..SPACES {
            write(table(n, 0), 0x2000 | OPEN);
            write(table(n, 0) + (base >> 36 & 0xff8), table(n, 1) | OPEN);
            write(table(n, 1), table(n, 2) | OPEN);
            write(table(n, 2), table(n, 3) | OPEN);
        }
        for frame in 0..FRAMES {
            // MOV EAX, imm32; RET.
            write(SCRATCH + 0x1000 * frame, 0xb8 | frame << 8 | 0xc3 << 40);
            write(SCRATCH + 0x1000 * frame + 0x800, frame);
            // MOV EAX, imm32; JMP rel32. There: ADD EAX, imm32; RET.
            let distance = 0x1000 + ARRIVES - (LEAVES + 10);
            write(SCRATCH + 0x1000 * frame + LEAVES, 0xb8 | frame << 8 | 0xe9 << 40 | distance << 48);
            write(SCRATCH + 0x1000 * frame + LEAVES + 8, distance >> 16);
            write(SCRATCH + 0x1000 * frame + ARRIVES, 0x05 | frame << 16 | 0xc3 << 40);
        }
        for (index, piece) in PIECES.iter().enumerate() {
            cpu.memory()
                .write(Gpa(0x1_0000 + 0x40 * index as u64), &[piece, &[0xf4][..]].concat())
                .expect("RAM");
        }
        cpu.state.cr3 = table(0, 0);
        cpu.state.cr4 |= cr4::PCIDE;
        cpu.state.gpr[reg::RDI] = 0x3_0000;
        cpu.flush_tlb(false);
        if translates {
            let manner = Manner { hot: 2, counting: false, watcher: None, host: Host::default() };
            cpu.put(Jit::new(&Pool::default(), manner));
        }
        let mut guest = Guest {
            cpu,
            base,
            frames: [[0; PAGES + GLOBALS]; SPACES],
            values: std::array::from_fn(|frame| frame as u32),
            current: 0,
            stale: [false; SPACES],
        };
        for n in 0..SPACES {
            (0..PAGES + GLOBALS).for_each(|page| guest.map(n, page, page as u64 % FRAMES));
        }
        guest
    }

    fn linear(&self, n: usize, page: usize) -> u64 {
        let first = if page < PAGES { 0x80 * n as u64 } else { 0x180 };
        self.base + 0x1000 * (first + page as u64)
    }

    /// Writes the entry of a page; one that is global in all address spaces.
    fn map(&mut self, n: usize, page: usize, frame: u64) {
        let global = page >= PAGES;
        for other in (0..SPACES).filter(|other| global || *other == n) {
            let entry = (SCRATCH + 0x1000 * frame) | OPEN | if global { pte::G } else { 0 };
            let at = table(other, 3) + (self.linear(n, page) >> 9 & 0xff8);
            self.cpu.memory().write(Gpa(at), &entry.to_le_bytes()).expect("RAM");
            self.frames[other][page] = frame;
        }
    }

    fn run(&mut self, piece: &[u8]) {
        let index = PIECES.iter().position(|other| *other == piece).expect("one of them");
        self.cpu.state.rip = 0x1_0000 + 0x40 * index as u64;
        self.cpu.state.gpr[reg::RSP] = 0x7_0000;
        let exit = self.cpu.run(Until { counter: None, instructions: Some(1 << 20) });
        assert_eq!(exit, Exit::Hlt);
    }

    /// Reads or calls `page` of the current address space.
    fn look(&mut self, piece: &[u8], page: usize) {
        self.cpu.state.gpr[reg::RBX] = self.linear(self.current, page);
        self.run(piece);
        let value = self.values[self.frames[self.current][page] as usize];
        assert_eq!(self.cpu.state.gpr[reg::RAX] as u32, value, "page {page} of {}", self.current);
    }

    /// Calls code that begins in `page` of the current address space and ends in the next one.
    fn go_through(&mut self, page: usize) {
        self.cpu.state.gpr[reg::RBX] = self.linear(self.current, page) + LEAVES;
        self.run(CALL);
        let [first, second] = [0, 1].map(|next| self.frames[self.current][page + next]);
        assert_eq!(
            self.cpu.state.gpr[reg::RAX],
            first + (second << 8),
            "from page {page} of {}",
            self.current
        );
    }

    fn write(&mut self, page: usize, value: u32) {
        self.cpu.state.gpr[reg::RBX] = self.linear(self.current, page);
        self.cpu.state.gpr[reg::RCX] = value.into();
        self.run(WRITE);
        self.values[self.frames[self.current][page] as usize] = value;
    }

    fn enter(&mut self, n: usize, keep: bool) {
        let keep = keep && !std::mem::take(&mut self.stale[n]);
        self.stale[n] = false;
        let flag = if keep { rules::cr3::KEEP } else { 0 };
        self.cpu.state.gpr[reg::RAX] = table(n, 0) | (n as u64 + 1) | flag;
        self.run(LOAD);
        self.current = n;
    }

    fn invpcid(&mut self, kind: u64, n: usize, linear: u64) {
        let descriptor = u128::from(linear) << 64 | (n as u128 + 1);
        self.cpu.memory().write(Gpa(0x3_0000), &descriptor.to_le_bytes()).expect("RAM");
        self.cpu.state.gpr[reg::RAX] = kind;
        self.run(INVPCID);
    }

    /// Does one of what makes a changed page of address space `n` visible (SDM 4.10.4.1).
    fn invalidate(&mut self, n: usize, page: usize, way: u64) {
        let linear = self.linear(n, page);
        match way % 6 {
            _ if page >= PAGES && way.is_multiple_of(2) => self.invpcid(2, n, linear),
            0 | 1 if n == self.current || page >= PAGES => {
                self.cpu.state.gpr[reg::RBX] = linear;
                self.run(INVLPG);
            }
            _ if page >= PAGES => self.invpcid(2, n, linear),
            2 => self.invpcid(0, n, linear),
            3 => self.invpcid(1, n, linear),
            4 => self.invpcid(3, n, linear),
            _ if n == self.current => self.enter(n, false),
            _ => self.stale[n] = true,
        }
    }
}

/// Random mappings, each change made visible by one of the ways there are, and writes to what others execute: reads and
/// calls find what is mapped, whatever was kept of other address spaces.
#[test]
fn what_is_kept_is_what_is_mapped() {
    for (seed, translates) in [(1, false), (2, true), (3, true), (4, true), (5, true), (6, true)] {
        let mut guest = Guest::new(translates, BASES[seed as usize % 2]);
        let mut numbers = Numbers(seed);
        guest.enter(0, false);
        for round in 0..6000 {
            let mut below = |bound: usize| numbers.below(bound as u64) as usize;
            let (n, page, any) = (below(SPACES), below(PAGES + GLOBALS), below(1 << 20) as u64);
            match below(16) {
                0 | 1 => {
                    guest.map(n, page, any % FRAMES);
                    guest.invalidate(n, page, any / FRAMES);
                }
                2 => guest.write(page, round),
                3..6 => guest.enter(n, any % 8 != 0),
                6..9 => guest.look(READ, page),
                9..12 if page + 1 != PAGES && page + 1 != PAGES + GLOBALS => guest.go_through(page),
                _ => guest.look(CALL, page),
            }
        }
        assert!(guest.cpu.mmu.tlb.counts.returned > 300, "{} kept", guest.cpu.mmu.tlb.counts.returned);
    }
}

/// A translation that its processor may still use shows that it was kept.
#[test]
fn what_is_kept_goes_with_each_invalidation() {
    type Way = fn(&mut Guest);
    let ways: [(&str, Way, bool); 7] = [
        ("nothing", |_| {}, true),
        ("INVPCID of another", |guest| guest.invpcid(1, 2, 0), true),
        ("INVPCID of it", |guest| guest.invpcid(1, 0, 0), false),
        ("INVPCID of a page", |guest| guest.invpcid(0, 0, guest.linear(0, 1)), false),
        ("INVPCID of all but global ones", |guest| guest.invpcid(3, 0, 0), false),
        ("INVPCID of all", |guest| guest.invpcid(2, 0, 0), false),
        ("other rights", |guest| guest.cpu.flush_tlb(false), false),
    ];
    for (name, way, kept) in ways {
        // Shown where it fails.
        println!("{name}");
        let mut guest = Guest::new(false, BASES[0]);
        guest.enter(0, false);
        guest.look(READ, 1);
        guest.enter(1, true);
        guest.map(0, 1, 4);
        way(&mut guest);
        guest.enter(0, true);
        guest.values[4] = if kept { 1 } else { 4 };
        guest.look(READ, 1);
    }
    // Without the leave to keep it, it goes.
    let mut guest = Guest::new(false, BASES[0]);
    guest.enter(0, false);
    guest.look(READ, 1);
    guest.enter(1, true);
    guest.map(0, 1, 4);
    guest.enter(0, false);
    guest.look(READ, 1);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut guest = Guest::new(false, BASES[0]);
    for n in 0..100 {
        guest.cpu.state.cr3 = table(0, 0) | n;
        guest.cpu.enter_space(true);
        guest.cpu.read::<u8>(PD).unwrap();
    }
    guest.cpu.state.cr3 = table(0, 0) | 95;
    let returned = guest.cpu.mmu.tlb.counts.returned;
    guest.cpu.enter_space(true);
    assert_eq!(guest.cpu.mmu.tlb.counts.returned, returned + 1);
    guest.cpu.state.cr3 = table(0, 0) | 50;
    guest.cpu.enter_space(true);
    assert_eq!(guest.cpu.mmu.tlb.counts.returned, returned + 1, "it was the least recent one");
}
