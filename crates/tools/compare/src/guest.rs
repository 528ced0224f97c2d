//! A guest around one case: the layout in page tables, privilege level 3, and an IDT whose
//! handlers halt, so that any engine can execute cases and show what came of them.

use std::sync::Arc;

use satori_cpuid::{CpuSpec, CpuidTable, Feature, Offered, PHYSICAL_BITS, Params, Topology};
use satori_defs::fpu::xsave;
use satori_defs::x86::{cr0, cr4, efer, pte, rflags};
use satori_engine::{
    Engine, Entropy, Exception, Exit, PartitionParts, Parts, Processor, Resume, TimeSource, Until, Vcpu,
    VcpuParts, X86,
};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_seam::OfHost;
use satori_state::{Activity, CpuState, DescriptorTable, FpuState, Segment, Ymm, reg, seg};

use crate::case::{Case, Ending, Fpu, Outcome};
use crate::error::Error;
use crate::host;
use crate::layout::{self, CODE, DATA, FILL, LINE, LINES, PAGE, PAGES, Rights, WRITABLE, page};

/// Bytes of the guest's RAM, from 0.
const RAM: u64 = 0x20_0000;
const PML4: u64 = 0x1000;
const LOW_PDPT: u64 = 0x2000;
const LOW_PD: u64 = 0x3000;
const LOW_PT: u64 = 0x4000;
const HIGH_PDPT: u64 = 0x5000;
const HIGH_PD: u64 = 0x6000;
const HIGH_PT: u64 = 0x7000;
/// Physical pages that are mapped at [`HIGH`] for privilege level 0.
const GDT: u64 = 0x8000;
const IDT: u64 = 0x9000;
const TSS: u64 = 0xa000;
const STACK: u64 = 0xb000;
const HANDLERS: u64 = 0xc000;
/// Physical addresses of the data and of the code pages.
const DATA_AT: u64 = 0x10_0000;
const CODE_AT: u64 = 0x11_0000;
/// The kernel's half of the address space.
const HIGH: u64 = 0xffff_8000_0000_0000;
/// Bytes between two handlers.
const HANDLER: u64 = 16;
const STACK_TOP: u64 = HIGH + STACK + 0xff0;

/// Instructions that a case may take: repetitions end at the end of a page, the rest sooner.
const LIMIT: u64 = 20_000;

/// Time that stands still.
struct Frozen;

impl TimeSource for Frozen {
    fn counter(&self) -> u64 {
        0
    }
    fn retired(&self, _instructions: u64) {}
}

impl Entropy for Frozen {
    fn next(&mut self) -> Option<u64> {
        None
    }
}

/// The host's own time, for an engine that executes on its processor.
struct Ticking;

/// The frequency that it is taken to have, in Hz: it only says when a case that does not end is given up.
const TICKING_HZ: u64 = 1_000_000_000;

impl TimeSource for Ticking {
    fn counter(&self) -> u64 {
        // SAFETY: every x86-64 processor has RDTSC, and Linux lets programs use it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    fn of_host(&self) -> Option<OfHost> {
        Some(OfHost { ahead: 0, hz: TICKING_HZ })
    }
    fn retired(&self, _instructions: u64) {}
}

/// CPUID of a guest on the host's processor, with all that `lacks` leaves of it.
pub fn cpuid_of_host(lacks: &[Feature]) -> Result<CpuidTable, Error> {
    let params = Params {
        cpu: &CpuSpec::default(),
        engine_features: Feature::ALL,
        host_lacks: lacks,
        topology: Topology::default(),
        tsc_hz: TICKING_HZ,
        crystal_hz: TICKING_HZ,
        physical_bits: PHYSICAL_BITS,
        hypervisor: Vec::new(),
    };
    let system = |why| Error::System { what: "make a table of CPUID", why };
    CpuidTable::new(params).map_err(|why| system(std::io::Error::other(why.to_string())))
}

/// How an engine is made to execute the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As part of a block of code.
    Block,
    /// By itself: under an interrupt shadow.
    Alone,
}

/// One way for an engine to execute cases.
pub struct Guest {
    vcpu: Box<dyn Vcpu<X86>>,
    memory: GuestMemory,
    template: CpuState,
    background: Vec<u8>,
    buffer: Vec<u8>,
    way: Way,
    /// Where time is the host's, which ends a case that does not end.
    ticking: bool,
}

/// Linux's GDT as far as privilege level 3 can see it.
fn gdt() -> [u64; 16] {
    let mut gdt = [0; 16];
    gdt[1] = 0x00cf_9b00_0000_ffff;
    gdt[2] = 0x00af_9b00_0000_ffff;
    gdt[3] = 0x00cf_9300_0000_ffff;
    gdt[4] = 0x00cf_fb00_0000_ffff;
    gdt[5] = 0x00cf_f300_0000_ffff;
    gdt[6] = 0x00af_fb00_0000_ffff;
    // The TSS.
    let base = HIGH + TSS;
    gdt[8] = 0x0000_8b00_0000_0067 | (base & 0xff_ffff) << 16 | (base >> 24 & 0xff) << 56;
    gdt[9] = base >> 32;
    // The processor's number, as a limit.
    gdt[15] = 0x0040_f500_0000_0000;
    gdt
}

fn put(memory: &GuestMemory, at: u64, words: &[u64]) -> Result<(), Error> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(memory.write(Gpa(at), &bytes)?)
}

fn tables(memory: &GuestMemory) -> Result<(), Error> {
    let open = pte::P | pte::W | pte::U;
    let index = |address: u64, level: u32| (address >> (12 + 9 * level) & 511) * 8;
    put(memory, PML4 + index(page(0), 3), &[LOW_PDPT | open])?;
    put(memory, LOW_PDPT + index(page(0), 2), &[LOW_PD | open])?;
    put(memory, LOW_PD + index(page(0), 1), &[LOW_PT | open])?;
    for (place, rights) in PAGES.iter().enumerate() {
        let entry = match rights {
            Rights::Nothing => continue,
            Rights::Read => pte::P | pte::U | pte::NX,
            Rights::Write => open | pte::NX,
            Rights::Execute => pte::P | pte::U,
        };
        let physical = match (DATA, CODE) {
            (data, _) if data.contains(&place) => {
                DATA_AT + data.iter().take_while(|p| **p != place).count() as u64 * PAGE
            }
            (_, code) => CODE_AT + code.iter().take_while(|p| **p != place).count() as u64 * PAGE,
        };
        put(memory, LOW_PT + index(page(place), 0), &[entry | physical])?;
    }
    let closed = pte::P | pte::W;
    put(memory, PML4 + index(HIGH, 3), &[HIGH_PDPT | closed])?;
    put(memory, HIGH_PDPT, &[HIGH_PD | closed])?;
    put(memory, HIGH_PD, &[HIGH_PT | closed])?;
    for physical in [GDT, IDT, TSS, STACK, HANDLERS] {
        put(memory, HIGH_PT + index(physical, 0), &[physical | closed])?;
    }
    Ok(())
}

fn descriptors(memory: &GuestMemory) -> Result<(), Error> {
    put(memory, GDT, &gdt())?;
    for vector in 0..32 {
        let handler = HIGH + HANDLERS + HANDLER * vector;
        // As Linux has them: INT3 and INTO may be raised by programs.
        let dpl = if matches!(vector, 3 | 4) { 3 } else { 0 };
        let low = handler & 0xffff | 0x10 << 16 | (0x8e00 | dpl << 13) << 32 | (handler >> 16 & 0xffff) << 48;
        put(memory, IDT + 16 * vector, &[low, handler >> 32])?;
        // HLT.
        memory.write(Gpa(HANDLERS + HANDLER * vector), &[0xf4])?;
    }
    // RSP0, four bytes into the TSS, and an I/O permission bitmap beyond its limit.
    memory.write(Gpa(TSS + 4), &STACK_TOP.to_le_bytes())?;
    Ok(memory.write(Gpa(TSS + 0x66), &[0x68, 0])?)
}

fn template() -> CpuState {
    let flat = |selector, rights| Segment::flat(selector, rights);
    let mut state = CpuState {
        cr0: cr0::PE | cr0::MP | cr0::ET | cr0::NE | cr0::WP | cr0::AM | cr0::PG,
        cr3: PML4,
        cr4: cr4::PAE | cr4::PGE | cr4::OSFXSR | cr4::OSXMMEXCPT | cr4::FSGSBASE | cr4::DE | cr4::OSXSAVE,
        xcr0: xsave::X87 | xsave::SSE | xsave::AVX,
        efer: efer::LME | efer::LMA | efer::NXE | efer::SCE,
        gdtr: DescriptorTable { base: HIGH + GDT, limit: 0x7f },
        idtr: DescriptorTable { base: HIGH + IDT, limit: 0x1ff },
        tr: Segment { selector: 0x40, rights: 0x8b, limit: 0x67, base: HIGH + TSS },
        ldtr: Segment { selector: 0, rights: Segment::UNUSABLE, limit: 0, base: 0 },
        ..CpuState::default()
    };
    state.gpr = [0; 18];
    state.seg = [Segment { selector: 0, rights: Segment::UNUSABLE, limit: 0, base: 0 }; 6];
    state.seg[seg::SS] = flat(0x2b, 0xc0f3);
    state
}

impl Guest {
    /// A guest on a vCPU of `engine`; with a table of CPUID, one that executes on the host's processor.
    pub fn new(engine: &dyn Engine<X86>, way: Way, of_host: Option<&CpuidTable>) -> Result<Self, Error> {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: RAM }])?;
        if let Some(page) = memory.page(Gpa(0)) {
            page.state.touch();
        }
        tables(&memory)?;
        descriptors(&memory)?;
        let background = layout::background();
        memory.write(Gpa(DATA_AT), &background)?;
        memory.write(Gpa(CODE_AT), &vec![FILL; CODE.len() * PAGE as usize])?;
        let partition = engine
            .create_partition(PartitionParts {
                memory: memory.clone(),
                time: if of_host.is_some() { Arc::new(Ticking) } else { Arc::new(Frozen) },
                parallel: false,
                offered: match of_host {
                    None => Offered { vendor: host::vendor(), ..Offered::EVERYTHING }.into(),
                    Some(table) => {
                        Processor { offered: table.offered(), cpuid: Some(Arc::new(table.clone())) }
                    }
                },
            })
            .map_err(|why| Error::System { what: "make a partition", why })?;
        let vcpu = partition.create_vcpu(VcpuParts { index: 0, entropy: Box::new(Frozen) });
        let buffer = vec![0; WRITABLE * PAGE as usize];
        Ok(Guest { vcpu, memory, template: template(), background, buffer, way, ticking: of_host.is_some() })
    }

    /// Executes `case`.
    pub fn execute(&mut self, case: &Case, outcome: &mut Outcome) -> Result<(), Error> {
        self.enter(case)?;
        let until = match self.ticking {
            false => Until { counter: None, instructions: Some(LIMIT) },
            true => Until { counter: Some(Ticking.counter() + TICKING_HZ), instructions: None },
        };
        let mut exit = self.vcpu.run(until);
        if let Exit::VmxInstruction(_) = exit {
            // Not offered, as the machine would say.
            self.vcpu.resume(Resume::Fault(Exception::ud()));
            exit = self.vcpu.run(until);
        }
        outcome.ending = match exit {
            Exit::Hlt if self.vcpu.state().rip >= HIGH => Ending::Exception,
            Exit::Budget | Exit::PreemptionTimer => Ending::RanOn,
            _ => Ending::Left,
        };
        self.vcpu.fetch(Parts::ALL);
        if outcome.ending == Ending::Exception {
            self.record(outcome)?;
        }
        self.restore(case, outcome)
    }

    fn enter(&mut self, case: &Case) -> Result<(), Error> {
        for (line, bytes) in case.patches() {
            self.memory.write(Gpa(DATA_AT + (line * LINE) as u64), bytes)?;
        }
        self.write_code(case, case.code())?;
        let state = self.vcpu.state_mut(Parts::ALL);
        state.clone_from(&self.template);
        state.gpr[..16].copy_from_slice(&case.gpr);
        state.rip = case.at;
        state.rflags = case.rflags | rflags::FIXED | rflags::IF;
        if case.bits == 64 {
            state.seg[seg::CS] = Segment::flat(0x33, 0xa0fb);
        } else {
            state.seg[seg::CS] = Segment::flat(0x23, 0xc0fb);
            state.seg[seg::DS] = Segment::flat(0x2b, 0xc0f3);
            state.seg[seg::ES] = Segment::flat(0x2b, 0xc0f3);
        }
        state.seg[seg::FS].base = case.fs_base;
        state.seg[seg::GS].base = case.gs_base;
        state.fpu = state_of(case);
        state.interrupt_shadow = self.way == Way::Alone;
        Ok(())
    }

    /// Writes `bytes` where the instruction lies, as far as that is a code page.
    fn write_code(&self, case: &Case, bytes: &[u8]) -> Result<(), Error> {
        let mut bytes = bytes;
        let mut at = case.at;
        while !bytes.is_empty() {
            let room = (PAGE - (at & (PAGE - 1))) as usize;
            let (here, rest) = bytes.split_at(room.min(bytes.len()));
            if let Some(index) = CODE.iter().position(|place| page(*place) == at & !(PAGE - 1)) {
                self.memory.write(Gpa(CODE_AT + index as u64 * PAGE + (at & (PAGE - 1))), here)?;
            }
            at = at.wrapping_add(here.len() as u64);
            bytes = rest;
        }
        Ok(())
    }

    /// Takes registers, from the handler's stack where the exception put them.
    fn record(&self, outcome: &mut Outcome) -> Result<(), Error> {
        let state = self.vcpu.state();
        outcome.vector = ((state.rip - HIGH - HANDLERS) / HANDLER) as u32;
        let mut words = [0; 6];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.memory.read_u64(Gpa(STACK_TOP - HIGH - 48 + 8 * i as u64))?;
        }
        let [error, rip, cs, flags, rsp, ss] = words;
        outcome.error = if matches!(outcome.vector, 8 | 10..=14 | 17 | 21) { error } else { 0 };
        outcome.cr2 = if outcome.vector == 14 { state.cr2 } else { 0 };
        outcome.gpr.copy_from_slice(&state.gpr[..16]);
        outcome.gpr[reg::RSP] = rsp;
        outcome.rip = rip;
        outcome.rflags = flags;
        outcome.fs_base = state.seg[seg::FS].base;
        outcome.gs_base = state.seg[seg::GS].base;
        for (selector, segment) in outcome.selectors.iter_mut().zip(&state.seg) {
            *selector = segment.selector;
        }
        outcome.selectors[seg::CS] = cs as u16;
        outcome.selectors[seg::SS] = ss as u16;
        outcome.fpu = image_of(&state.fpu);
        outcome.ymm_high = state.fpu.ymm.map(|ymm| ymm.high);
        debug_assert_eq!(state.activity, Activity::Halted);
        Ok(())
    }

    /// Notes the lines that do not hold the background, and puts it back; also in the code pages.
    fn restore(&mut self, case: &Case, outcome: &mut Outcome) -> Result<(), Error> {
        self.memory.read(Gpa(DATA_AT), &mut self.buffer)?;
        outcome.changed = [0; LINES / 64];
        let lines = self.buffer.chunks_exact(LINE).zip(self.background.chunks_exact(LINE));
        for (line, (now, background)) in lines.enumerate() {
            if now != background {
                outcome.changed[line / 64] |= 1 << (line % 64);
                outcome.lines[line].copy_from_slice(now);
                self.memory.write(Gpa(DATA_AT + (line * LINE) as u64), background)?;
            }
        }
        self.write_code(case, &[FILL; 16][..case.code().len()])
    }
}

fn state_of(case: &Case) -> FpuState {
    let fpu = &case.fpu;
    FpuState {
        ymm: std::array::from_fn(|i| Ymm { low: fpu.xmm[i], high: case.ymm_high[i] }),
        st: fpu.st,
        fcw: fpu.fcw,
        fsw: fpu.fsw,
        ftw: fpu.ftw as u8,
        fop: fpu.fop,
        fip: fpu.fip,
        fdp: fpu.fdp,
        mxcsr: fpu.mxcsr,
    }
}

fn image_of(state: &FpuState) -> Fpu {
    Fpu {
        fcw: state.fcw,
        fsw: state.fsw,
        ftw: state.ftw.into(),
        fop: state.fop,
        fip: state.fip,
        fdp: state.fdp,
        mxcsr: state.mxcsr,
        mxcsr_mask: 0,
        st: state.st,
        xmm: state.ymm.map(|ymm| ymm.low),
    }
}
