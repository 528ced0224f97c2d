//! Machine code of every mode on the software CPU, run twice: as blocks, and an instruction at a
//! time. Both must end in the same state.

use std::cell::RefCell;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use satori_cpuid::{Offered, Vendor};
use satori_defs::fpu::{fcw, xsave};
use satori_defs::x86::{cr0, cr4, efer, pte, rflags};
use satori_engine::{
    CpuidResult, Engine, Entropy, Exception, Exit, PartitionParts, Parts, Resume, TimeSource, Until, Vcpu,
    VcpuParts, X86,
};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_soft::Interpreter;
use satori_state::{Activity, CpuState, DescriptorTable, Segment, Ymm, seg};

/// RAM from 0.
pub(super) const RAM: u64 = 0x4_0000;
/// GDT, IDT (32 gates), TSS, page tables, code, data.
const GDT: u64 = 0x1000;
const IDT: u64 = 0x1800;
const TSS: u64 = 0x2000;
pub(super) const PML4: u64 = 0x4000;
const PDPT: u64 = 0x5000;
const PD: u64 = 0x6000;
const PT: u64 = 0x7000;
const PD32: u64 = 0x8000;
pub(super) const HANDLERS: u64 = 0x9000;
pub(super) const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;
/// Instructions of one run.
const BUDGET: u64 = 200;

/// Time that stands still.
struct Frozen;

impl TimeSource for Frozen {
    fn counter(&self) -> u64 {
        0x1234_5678
    }
    fn retired(&self, _instructions: u64) {}
}

/// Numbers that are not random at all.
struct Constant;

impl Entropy for Constant {
    fn next(&mut self) -> Option<u64> {
        Some(0x0123_4567_89ab_cdef)
    }
}

thread_local! {
    static MEMORY: RefCell<Option<GuestMemory>> = const { RefCell::new(None) };
}

/// The modes that code runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Real,
    Protected16,
    Protected32,
    Paged32,
    Virtual8086,
    Compatibility,
    Long,
}

const MODES: [Mode; 7] = [
    Mode::Real,
    Mode::Protected16,
    Mode::Protected32,
    Mode::Paged32,
    Mode::Virtual8086,
    Mode::Compatibility,
    Mode::Long,
];

/// A processor and memory to start from.
pub(super) struct Case {
    pub state: CpuState,
    pub offered: Offered,
    pub ram: Vec<u8>,
    /// Answers to exits, in turn.
    pub answers: Vec<u64>,
    /// Where code ends.
    pub end: u64,
}

/// Any machine code, in any mode, with operands where they do most.
pub fn instructions(data: &[u8]) {
    let mut u = Unstructured::new(data);
    if let Ok(case) = case(&mut u) {
        compare(&case);
    }
}

/// Code alone, in 64-bit mode and at every place of a page: what finds its way through decoding.
pub fn decoder(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let mut run = || -> Result<()> {
        let mode = *u.choose(&[Mode::Long, Mode::Long, Mode::Protected32, Mode::Real])?;
        let at = CODE + 0xfff - u64::from(u.arbitrary::<u8>()?);
        let mut case = start(mode, false);
        case.state.rip = at - case.state.seg[seg::CS].base;
        let code = u.take_rest_of(64);
        case.ram[at as usize..at as usize + code.len()].copy_from_slice(code);
        compare(&case);
        Ok(())
    };
    let _too_short = run();
}

/// The rest of an input, up to a length.
trait TakeRest<'a> {
    fn take_rest_of(&mut self, max: usize) -> &'a [u8];
}

impl<'a> TakeRest<'a> for Unstructured<'a> {
    fn take_rest_of(&mut self, max: usize) -> &'a [u8] {
        let len = self.len().min(max);
        self.bytes(len).unwrap_or_default()
    }
}

fn case(u: &mut Unstructured<'_>) -> Result<Case> {
    let mode = *u.choose(&MODES)?;
    case_in(u, mode)
}

/// Registers, tables and code of one mode.
pub(super) fn case_in(u: &mut Unstructured<'_>, mode: Mode) -> Result<Case> {
    let user = mode == Mode::Virtual8086 || u.arbitrary()?;
    let mut case = start(mode, user);
    let state = &mut case.state;
    // A few bits of the modes themselves.
    let bits: u16 = u.arbitrary()?;
    let flip = |bit: u16, register: &mut u64, value: u64| {
        if bits & 1 << bit != 0 {
            *register ^= value;
        }
    };
    flip(0, &mut state.cr0, cr0::WP);
    flip(1, &mut state.cr0, cr0::TS);
    flip(2, &mut state.cr0, cr0::EM);
    flip(3, &mut state.cr0, cr0::AM);
    flip(4, &mut state.cr4, cr4::SMEP);
    flip(5, &mut state.cr4, cr4::SMAP);
    flip(6, &mut state.cr4, cr4::OSFXSR);
    flip(7, &mut state.cr4, cr4::FSGSBASE);
    flip(8, &mut state.cr4, cr4::DE);
    flip(9, &mut state.cr4, cr4::TSD);
    flip(10, &mut state.cr4, cr4::OSXSAVE);
    flip(11, &mut state.cr4, cr4::UMIP);
    if bits & 1 << 12 != 0 {
        case.offered.vendor = Vendor::Amd;
    }
    let state = &mut case.state;
    if bits & 1 << 13 != 0 {
        state.xcr0 = xsave::X87 | xsave::SSE | xsave::AVX;
    }
    let flags = u.arbitrary::<u32>()? as u64
        & (rflags::STATUS | rflags::DF | rflags::TF | rflags::RF | rflags::AC | rflags::NT | rflags::ID);
    // A trap after every instruction hides the rest: seldom.
    let flags = if u.ratio(1, 16)? { flags } else { flags & !rflags::TF };
    state.rflags |= flags;
    for register in 0..16 {
        state.gpr[register] = match u.int_in_range(0..=5)? {
            0 => DATA + u64::from(u.arbitrary::<u16>()?),
            1 => DATA + 0xfff8 + u64::from(u.arbitrary::<u8>()? & 15),
            2 => u64::from(u.arbitrary::<u8>()?),
            3 => u.arbitrary::<i8>()? as u64,
            4 => CODE + u64::from(u.arbitrary::<u8>()?),
            _ => u.arbitrary()?,
        };
    }
    if u.ratio(3, 4)? {
        state.gpr[4] = DATA + 0x8000 - if mode == Mode::Real || mode == Mode::Virtual8086 { DATA } else { 0 };
    }
    state.fpu.mxcsr = u32::from(u.arbitrary::<u16>()?);
    // Its other bits are what they are (SDM 1, 8.1.5).
    state.fpu.fcw = u.arbitrary::<u16>()? & fcw::WRITABLE | fcw::FIXED;
    state.fpu.ftw = u.arbitrary()?;
    for index in 0..4 {
        let low: u128 = u.arbitrary()?;
        state.fpu.ymm[index] = Ymm { low, high: low.rotate_left(40) };
    }
    if u.ratio(1, 8)? {
        state.dr7 = 0x400 | u64::from(u.arbitrary::<u8>()?) | u64::from(u.arbitrary::<u16>()?) << 16;
        for register in 0..4 {
            state.dr[register] = *u.choose(&[CODE, DATA, DATA + 0x7ff8, CODE + 3])?;
        }
    }
    // Entries of the tables, spoilt.
    for _ in 0..u.int_in_range(0..=3)? {
        let table = *u.choose(&[PML4, PDPT, PD, PT, PT + 8 * 0x10, PT + 8 * 0x20, PD32, GDT, IDT, TSS])?;
        let at = table + 8 * u64::from(u.arbitrary::<u8>()? & 31);
        let bit = u.int_in_range(0..=63)?;
        case.ram[at as usize + bit / 8] ^= 1 << (bit % 8);
    }
    for _ in 0..u.int_in_range(0..=4)? {
        case.answers.push(u.arbitrary()?);
    }
    let at = CODE + if u.ratio(1, 4)? { 0xff0 + u64::from(u.arbitrary::<u8>()? & 15) } else { 0 };
    case.state.rip = at - case.state.seg[seg::CS].base;
    let code = u.take_rest_of(256);
    case.ram[at as usize..at as usize + code.len()].copy_from_slice(code);
    case.end = at + code.len() as u64;
    Ok(case)
}

fn descriptor(base: u64, limit: u64, rights: u64) -> u64 {
    (limit & 0xffff)
        | (base & 0xff_ffff) << 16
        | (rights & 0xf0ff) << 40
        | (limit >> 16 & 0xf) << 48
        | (base >> 24 & 0xff) << 56
}

/// Memory and registers of `mode`, at privilege level 3 if `user`.
pub(super) fn start(mode: Mode, user: bool) -> Case {
    let mut ram = vec![0; RAM as usize];
    // HLT where there is no code: zeros would be long blocks of ADD.
    ram[CODE as usize..DATA as usize].fill(0xf4);
    let mut put = |at: u64, value: u64, size: usize| {
        ram[at as usize..at as usize + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    let long = matches!(mode, Mode::Compatibility | Mode::Long);
    // 8 code 32, 10 data, 18 code 64, 20 code 16, 28 data 16, 33 code 32 user, 3b data user, 43 code
    // 64 user, 4b code 16 user, 50 TSS.
    let gdt = [
        0,
        descriptor(0, 0xf_ffff, 0xc09b),
        descriptor(0, 0xf_ffff, 0xc093),
        descriptor(0, 0xf_ffff, 0xa09b),
        descriptor(CODE, 0xffff, 0x009b),
        descriptor(0, 0xffff, 0x0093),
        descriptor(0, 0xf_ffff, 0xc0fb),
        descriptor(0, 0xf_ffff, 0xc0f3),
        descriptor(0, 0xf_ffff, 0xa0fb),
        descriptor(CODE, 0xffff, 0x00fb),
        descriptor(TSS, 0x1fff, 0x008b),
        0,
    ];
    for (index, entry) in gdt.into_iter().enumerate() {
        put(GDT + 8 * index as u64, entry, 8);
    }
    for vector in 0..32u64 {
        let handler = HANDLERS + 16 * vector;
        if long {
            put(IDT + 16 * vector, handler & 0xffff | 0x18 << 16 | 0xee00 << 32, 8);
        } else if mode == Mode::Real {
            put(4 * vector, handler, 4);
        } else {
            put(IDT + 8 * vector, handler & 0xffff | 8 << 16 | 0xee00 << 32, 8);
        }
        // HLT: the run has said enough.
        put(handler, 0xf4, 1);
    }
    if long {
        put(TSS + 4, DATA + 0xf000, 8);
    } else {
        put(TSS + 4, DATA + 0xf000, 4);
        put(TSS + 8, 0x10, 2);
        put(TSS + 0x66, 0x68, 2);
    }
    let open = pte::P | pte::W | pte::U;
    put(PML4, PDPT | open, 8);
    put(PDPT, PD | open, 8);
    put(PD, PT | open, 8);
    put(PD32, 0x83 | pte::U, 4);
    for page in 0..RAM >> 12 {
        put(PT + 8 * page, page << 12 | open, 8);
    }
    let mut state = CpuState::default();
    let data = if user { Segment::flat(0x3b, 0xc0f3) } else { Segment::flat(0x10, 0xc093) };
    let ring = if user { 0x60 } else { 0 };
    let pick = |supervisor: u16, of_user: u16| if user { of_user } else { supervisor };
    let small = |selector, base| Segment { selector, base, limit: 0xffff, rights: 0x93 | ring };
    state.seg = [data; 6];
    state.seg[seg::CS] = match mode {
        Mode::Long => Segment::flat(pick(0x18, 0x43), 0xa09b | ring),
        Mode::Compatibility | Mode::Protected32 | Mode::Paged32 => {
            Segment::flat(pick(8, 0x33), 0xc09b | ring)
        }
        Mode::Protected16 => Segment { rights: 0x9b | ring, ..small(pick(0x20, 0x4b), CODE) },
        Mode::Real | Mode::Virtual8086 => small((CODE >> 4) as u16, CODE),
    };
    if matches!(mode, Mode::Real | Mode::Virtual8086) {
        for index in [seg::ES, seg::SS, seg::DS, seg::FS, seg::GS] {
            state.seg[index] = small((DATA >> 4) as u16, DATA);
        }
    }
    state.gdtr = DescriptorTable { base: GDT, limit: 8 * 12 - 1 };
    state.idtr = DescriptorTable { base: if mode == Mode::Real { 0 } else { IDT }, limit: 0x1ff };
    state.tr = Segment { selector: 0x50, base: TSS, limit: 0x1fff, rights: 0x8b };
    state.cr0 = cr0::NE | cr0::ET | if mode == Mode::Real { 0 } else { cr0::PE };
    state.cr4 = cr4::OSFXSR | cr4::OSXMMEXCPT;
    state.rflags = rflags::FIXED;
    match mode {
        Mode::Paged32 => {
            state.cr0 |= cr0::PG;
            state.cr3 = PD32;
            state.cr4 |= cr4::PSE;
        }
        Mode::Virtual8086 => state.rflags |= rflags::VM,
        Mode::Compatibility | Mode::Long => {
            state.cr0 |= cr0::PG | cr0::WP;
            state.cr3 = PML4;
            state.cr4 |= cr4::PAE;
            state.efer = efer::LME | efer::LMA | efer::NXE | efer::SCE;
        }
        Mode::Real | Mode::Protected16 | Mode::Protected32 => {}
    }
    state.activity = Activity::Active;
    Case { state, offered: Offered::EVERYTHING, ram, answers: Vec::new(), end: CODE }
}

/// Runs `case` in blocks and in single steps, and compares.
pub(super) fn compare(case: &Case) {
    MEMORY.with_borrow_mut(|memory| {
        let memory = memory.get_or_insert_with(|| {
            GuestMemory::new(&[Region { start: Gpa(0), len: RAM }]).expect("256 KiB can be reserved")
        });
        let blocks = run(case, memory, BUDGET);
        let steps = run(case, memory, 1);
        if blocks != steps {
            panic!(
                "{:#x?}\nanswers {:x?}\nin blocks against in steps:\n{}",
                case.state,
                case.answers,
                differences(&blocks, &steps)
            );
        }
    });
}

/// What a run leaves.
#[derive(PartialEq)]
struct Left {
    state: CpuState,
    retired: u64,
    ram: Vec<u8>,
    exits: Vec<Exit>,
}

/// What is not the same, a line each.
fn differences(blocks: &Left, steps: &Left) -> String {
    let lines = |left: &Left| format!("{:#x?}\nretired {}\n{:x?}", left.state, left.retired, left.exits);
    let (one, other) = (lines(blocks), lines(steps));
    let mut all: Vec<String> = one
        .lines()
        .zip(other.lines())
        .enumerate()
        .filter(|(_, (one, other))| one != other)
        .map(|(number, (one, other))| format!("line {number}: {one} against {other}"))
        .collect();
    let memory = blocks.ram.iter().zip(&steps.ram).enumerate().filter(|(_, (one, other))| one != other);
    all.extend(memory.map(|(at, (one, other))| format!("{at:#x}: {one:#x} against {other:#x}")));
    all.join("\n")
}

/// Runs `case` for [`BUDGET`] instructions, `at_once` at a time.
fn run(case: &Case, memory: &GuestMemory, at_once: u64) -> Left {
    let mut vcpu = vcpu(&Interpreter, case, memory);
    let mut exits = Vec::new();
    let mut answers = case.answers.iter().cycle();
    // Exits that complete nothing are bounded too.
    while vcpu.retired() < BUDGET && exits.len() < 400 {
        let left = (BUDGET - vcpu.retired()).min(at_once);
        let exit = vcpu.run(Until { counter: None, instructions: Some(left) });
        if exit == Exit::Budget {
            continue;
        }
        exits.push(exit);
        match answered(exit, answers.next().copied().unwrap_or(0x55)) {
            Some(answer) => vcpu.resume(answer),
            None => break,
        }
    }
    let mut ram = vec![0; RAM as usize];
    memory.read(Gpa(0), &mut ram).expect("it is RAM");
    let mut state = vcpu.state().clone();
    // The last slot is the engine's own.
    state.gpr[17] = 0;
    Left { state, retired: vcpu.retired(), ram, exits }
}

/// A vCPU of `engine` at the beginning of `case`.
pub(super) fn vcpu(engine: &dyn Engine<X86>, case: &Case, memory: &GuestMemory) -> Box<dyn Vcpu<X86>> {
    memory.write(Gpa(0), &case.ram).expect("it is RAM");
    if let Some(page) = memory.page(Gpa(0)) {
        page.state.touch();
    }
    let parts = PartitionParts {
        memory: memory.clone(),
        time: Arc::new(Frozen),
        parallel: false,
        offered: case.offered.into(),
    };
    let partition = engine.create_partition(parts).expect("a software CPU needs nothing of the host");
    let mut vcpu = partition.create_vcpu(VcpuParts { index: 0, entropy: Box::new(Constant) });
    *vcpu.state_mut(Parts::ALL) = case.state.clone();
    vcpu
}

/// What `exit` is answered with, chosen by `answer`; nothing if the run ends with it.
pub(super) fn answered(exit: Exit, answer: u64) -> Option<Resume> {
    Some(match exit {
        Exit::Cpuid { .. } => {
            Resume::Cpuid(CpuidResult { eax: answer as u32, ebx: 2, ecx: 3, edx: (answer >> 32) as u32 })
        }
        Exit::MsrRead { .. }
        | Exit::IoRead { .. }
        | Exit::MmioRead { .. }
        | Exit::ApicRead { .. }
        | Exit::Rdpmc { .. } => {
            if answer & 15 == 9 {
                Resume::Fault(Exception::gp(0))
            } else {
                Resume::Value(answer)
            }
        }
        Exit::MsrWrite { .. } if answer & 15 == 9 => Resume::Fault(Exception::gp(0)),
        Exit::VmxInstruction(_) | Exit::Monitor | Exit::Mwait => Resume::Fault(Exception::ud()),
        Exit::Hlt | Exit::TripleFault => return None,
        Exit::Pause | Exit::ExternalInterrupt | Exit::PreemptionTimer | Exit::TprBelowThreshold => {
            Resume::Continue
        }
        _ => Resume::Done,
    })
}
