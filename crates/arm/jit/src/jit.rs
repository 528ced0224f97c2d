//! Blocks of a vCPU: finding, making and executing them. All unsafe code but that of code memory is here.

use std::collections::HashMap;
use std::mem::offset_of;

use satori_arm_isa::Op;
use satori_arm_soft::{Cpu, Execute, Flow, MODE_COUNT, Source, Stop};
use satori_code::Arena;
use satori_lock::Held;
use satori_memory::PageState;
use satori_seam::Stat;

use crate::emit::{Call, Calls, Emit, FILE_AT, Places, reason};
use crate::engine::Pool;
use crate::stubs::stubs;
use crate::{TARGETS, branch, flags};

/// Instructions of a block at most.
const LONGEST: usize = 64;
/// Bytes of code that a block has at most, far more than it can.
const ROOM: usize = 64 << 10;
const SLOTS: usize = 1024;
/// Bytes of a vCPU's code memory.
pub(crate) const SIZE: usize = 32 << 20;

/// What the floating-point unit may be used for in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Unit {
    /// Its use traps.
    Off,
    /// What the host computes alike.
    On,
    /// Denormals are flushed (FPCR.FZ).
    Flush,
}

/// How many there are.
const UNITS: usize = 3;

/// All that a translation depends on beside the code: guest-physical and own address of its page, mode, floating-point unit.
type Key = (u64, u64, u8);

/// The blocks of a page.
struct Page {
    value: u32,
    /// Offsets of their code; 0 where there is none.
    code: Box<[u32; SLOTS]>,
    /// How often one was interpreted.
    heat: Box<[u8; SLOTS]>,
    calls: Calls,
}

impl Page {
    fn new(value: u32) -> Self {
        Page { value, code: Box::new([0; SLOTS]), heat: Box::new([0; SLOTS]), calls: Vec::new() }
    }
}

#[derive(Clone, Copy, Default)]
struct Counts {
    blocks: u64,
    instructions: u64,
    interpreted: u64,
    bytes: u64,
    entered: u64,
    steps: u64,
    flushes: u64,
}

/// A target of branches: an address, and where its code is. One that matches nothing leads out.
type Target = [u64; 2];

/// What translated code returns.
#[repr(C)]
#[derive(Clone, Copy)]
struct Left {
    reason: u64,
    datum: u64,
}

/// The translator of a vCPU. Its address is in its code, so it stays where it is.
pub(crate) struct Jit {
    arena: Option<Arena>,
    pool: Pool,
    hot: u8,
    enter: u64,
    places: Places,
    /// The host has the instructions that floating point and vectors are translated to.
    computes: bool,
    /// Where the next block goes, and the first one does.
    next: usize,
    first: usize,
    pages: HashMap<Key, usize>,
    all: Vec<Page>,
    /// The page found last.
    last: Option<(Key, usize)>,
    targets: Box<[[Target; TARGETS]]>,
    /// Those that were noted since all were forgotten.
    noted: Vec<(u8, u16)>,
    /// What `Cpu::changes` and `PageState::invalidations` were when targets were forgotten last.
    changes: u64,
    invalidations: u64,
    /// While code is executed: the vCPU, its mode, and what stopped it.
    cpu: *mut Cpu,
    key: u8,
    stop: Option<Stop>,
    counts: Counts,
}

// SAFETY: the pointer is to the vCPU that calls `execute`, and is used only while that lasts.
unsafe impl Send for Jit {}

/// Whether the host has what floating point, vectors and ciphers are translated to.
fn host_computes() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
}

fn unit_of(cpu: &Cpu) -> Unit {
    const FZ: u32 = 1 << 24;
    match (cpu.fp_enabled_now(), cpu.s.fpcr & FZ) {
        (false, _) => Unit::Off,
        (_, 0) => Unit::On,
        _ => Unit::Flush,
    }
}

fn key_of(cpu: &Cpu) -> u8 {
    cpu.mode as u8 * UNITS as u8 + unit_of(cpu) as u8
}

/// The interpreter executes one instruction for translated code: 0 if that goes on behind it.
///
/// # Safety
///
/// `jit` executes code, of which `call` is a part.
unsafe extern "sysv64" fn step(jit: *mut Jit, call: *const Call) -> u64 {
    // SAFETY: the caller's promise; the code that runs meanwhile is what called, and `execute` looks at neither until it has left.
    let (jit, call) = unsafe { (&mut *jit, &*call) };
    // SAFETY: `execute` set it, and has lent its vCPU to the code.
    let cpu = unsafe { &mut *jit.cpu };
    jit.counts.steps += 1;
    cpu.left += call.rest;
    cpu.s.pc = call.pc;
    cpu.s.pstate.nzcv = flags::nzcv(cpu.flags);
    let flow = cpu.step(&call.insn);
    cpu.flags = flags::of(cpu.s.pstate.nzcv).into();
    match flow {
        Ok(Flow::Next) if key_of(cpu) == jit.key && cpu.changes() == jit.changes => {
            cpu.left -= call.rest;
            0
        }
        Ok(flow) => {
            if flow == Flow::Next {
                cpu.s.pc = cpu.s.pc.wrapping_add(4);
            }
            cpu.left -= 1;
            1
        }
        Err(stop) => {
            jit.stop = Some(stop);
            1
        }
    }
}

/// Translated code wrote to the page of `state`.
///
/// # Safety
///
/// `state` is of a page in the vCPU's table.
unsafe extern "sysv64" fn wrote(state: *const PageState) {
    // SAFETY: the caller's promise; it lives as long as the memory.
    unsafe { (*state).wrote() };
}

impl Jit {
    /// The translator of `cpu`'s code.
    pub(crate) fn new(cpu: &Cpu, arena: Arena, pool: Pool, hot: u8) -> Box<Self> {
        let mut jit = Box::new(Jit {
            arena: Some(arena),
            pool,
            hot,
            enter: 0,
            places: Places::default(),
            computes: host_computes(),
            next: 0,
            first: 0,
            pages: HashMap::new(),
            all: Vec::new(),
            last: None,
            targets: vec![[[0; 2]; TARGETS]; MODE_COUNT * UNITS].into_boxed_slice(),
            noted: Vec::new(),
            changes: cpu.changes(),
            invalidations: PageState::invalidations(),
            cpu: std::ptr::null_mut(),
            key: 0,
            stop: None,
            counts: Counts::default(),
        });
        let own = (&raw mut *jit).expose_provenance() as u64;
        let step: unsafe extern "sysv64" fn(*mut Jit, *const Call) -> u64 = step;
        let wrote: unsafe extern "sysv64" fn(*const PageState) = wrote;
        let arena = jit.arena.as_mut().expect("it was just given");
        let mut stubs = stubs(arena.address(0), own, step as usize as u64, wrote as usize as u64);
        // Leaves with the target that was not found: what entries that match nothing lead to.
        arena.write(0, &stubs.code);
        let unknown = stubs.code.len();
        let mut asm = crate::asm::Asm::new(arena.address(unknown));
        let pc = offset_of!(Cpu, s) + offset_of!(satori_arm_state::CpuState, pc);
        asm.store(true, crate::emit::field(pc), crate::asm::RAX);
        asm.constant(crate::asm::RAX, reason::TARGET.into());
        asm.far(0xe9, stubs.places.exit);
        arena.write(unknown, &asm.code);
        let unknown_at = arena.address(unknown);
        stubs.places.targets = unknown_at;
        jit.first = (unknown + asm.code.len()).next_multiple_of(64);
        jit.next = jit.first;
        (jit.enter, jit.places) = (stubs.enter, stubs.places);
        for target in jit.targets.iter_mut().flatten() {
            *target = [u64::MAX, unknown_at];
        }
        jit
    }

    fn arena(&mut self) -> &mut Arena {
        self.arena.as_mut().expect("it is taken when the translator is dropped")
    }

    /// Forgets where branches lead.
    fn forget_targets(&mut self) {
        for (mode, slot) in self.noted.drain(..) {
            self.targets[usize::from(mode)][usize::from(slot)] = [u64::MAX, self.places.targets];
        }
    }

    /// Forgets them if addresses or code changed.
    fn refresh(&mut self, cpu: &Cpu) {
        let (changes, invalidations) = (cpu.changes(), PageState::invalidations());
        if (changes, invalidations) != (self.changes, self.invalidations) {
            (self.changes, self.invalidations) = (changes, invalidations);
            self.forget_targets();
        }
    }

    /// Forgets all code.
    fn flush(&mut self) {
        self.counts.flushes += 1;
        self.forget_targets();
        self.pages.clear();
        self.all.clear();
        self.last = None;
        self.next = self.first;
    }

    /// The blocks of the page, valid now.
    fn page(&mut self, source: &Source, key: Key) -> usize {
        let at = match self.last {
            Some((last, at)) if last == key => at,
            _ => {
                let count = self.all.len();
                let at = *self.pages.entry(key).or_insert(count);
                if at == count {
                    self.all.push(Page::new(source.value));
                }
                self.last = Some((key, at));
                at
            }
        };
        if self.all[at].value != source.value {
            self.forget_targets();
            self.all[at] = Page::new(source.value);
        }
        at
    }

    /// Makes the block at `pc`; the offset of its code.
    fn translate(&mut self, source: &Source, at: usize, pc: u64, unit: Unit, key: u8) -> usize {
        let first = (pc >> 2) as usize % SLOTS;
        let mut words: Vec<(u32, Option<Op>)> = Vec::new();
        for slot in (first..SLOTS).take(LONGEST) {
            let word = source.word(slot);
            let op = satori_arm_isa::decode(word).map(|row| row.op);
            words.push((word, op));
            if branch::ends(op) {
                break;
            }
        }
        let offset = self.next;
        let origin = self.arena().address(offset);
        let targets = self.targets[usize::from(key)].as_ptr() as u64;
        let places = Places { targets, ..self.places };
        let mut calls = std::mem::take(&mut self.all[at].calls);
        let mut emit = Emit::new(origin, offset, places, &mut calls);
        let count = words.len() as u64;
        let start = pc;
        let short = emit.enter(count);
        let (known, arena) = (&self.all[at].code, self.arena.as_ref());
        let code = |to: u64| match (to, known[(to >> 2) as usize % SLOTS]) {
            _ if to == start => Some(origin),
            (_, 0) => None,
            (_, offset) => arena.map(|arena| arena.address(offset as usize)),
        };
        let mut ended = false;
        let computes = self.computes;
        for (index, &(word, op)) in words.iter().enumerate() {
            (emit.word, emit.pc) = (word, start.wrapping_add(4 * index as u64));
            emit.rest = count - index as u64;
            emit.flags_before = std::mem::take(&mut emit.flags);
            emit.begin_vectors();
            match op {
                Some(op) if branch::is_branch(op) => {
                    emit.branch(op, &code);
                    ended = true;
                }
                Some(op) if emit.integer(op) || emit.memory(op, unit != Unit::Off) => {}
                Some(op) if emit.atomic(op) || emit.system(op) => {}
                Some(op) if unit != Unit::Off && computes && (emit.float(op, unit) || emit.simd(op)) => {}
                _ => emit.step(),
            }
        }
        if !ended {
            emit.settle_vectors();
            let next = start.wrapping_add(4 * count);
            emit.go(next, code(next));
        }
        let bytes = emit.finish(start, count, short);
        self.all[at].calls = calls;
        self.counts.blocks += 1;
        self.counts.instructions += count;
        self.counts.bytes += bytes.len() as u64;
        self.arena().write(offset, &bytes);
        self.next = (offset + bytes.len()).next_multiple_of(16);
        self.all[at].code[first] = offset as u32;
        offset
    }

    /// The code of the block at the program counter, if it is worth to be made.
    fn find(&mut self, cpu: &mut Cpu) -> Result<Option<usize>, Stop> {
        let pc = cpu.s.pc;
        let source = cpu.source()?;
        let key = key_of(cpu);
        if self.next + ROOM > SIZE {
            self.flush();
        }
        let at = self.page(&source, (source.gpa, pc & !0xfff, key));
        let slot = (pc >> 2) as usize % SLOTS;
        if self.all[at].code[slot] != 0 {
            return Ok(Some(self.all[at].code[slot] as usize));
        }
        let heat = &mut self.all[at].heat[slot];
        if *heat < self.hot {
            *heat += 1;
            return Ok(None);
        }
        Ok(Some(self.translate(&source, at, pc, unit_of(cpu), key)))
    }

    /// Executes from `code` on.
    fn enter(&mut self, cpu: &mut Cpu, code: u64) -> Left {
        self.counts.entered += 1;
        self.key = key_of(cpu);
        cpu.flags = flags::of(cpu.s.pstate.nzcv).into();
        let pages = cpu.table(cpu.mode);
        let cpu: *mut Cpu = cpu;
        self.cpu = cpu;
        // SAFETY: the stub at this address has this signature, and code memory is executable.
        let enter: extern "sysv64" fn(*mut u8, u64, u64, u64) -> Left =
            unsafe { std::mem::transmute(std::ptr::with_exposed_provenance::<u8>(self.enter as usize)) };
        let left = enter(cpu.cast::<u8>().wrapping_add(FILE_AT), pages, 0, code);
        // SAFETY: the vCPU is the caller's, which lent it; code that had it has returned.
        let cpu = unsafe { &mut *cpu };
        cpu.s.pstate.nzcv = flags::nzcv(cpu.flags);
        left
    }
}

impl Execute for Jit {
    fn execute(&mut self, cpu: &mut Cpu) -> Option<Stop> {
        // A jump that is to lead to the block found next.
        let mut link = None;
        let mut note = false;
        while cpu.left > 0 {
            self.refresh(cpu);
            let flushes = self.counts.flushes;
            let found = match self.find(cpu) {
                Ok(found) => found,
                Err(stop) => return Some(cpu.counted(stop)),
            };
            let jump = link.take().filter(|_| flushes == self.counts.flushes);
            let Some(offset) = found else {
                note = false;
                let before = cpu.left;
                let stop = cpu.interpret_block();
                self.counts.interpreted += before - cpu.left;
                if stop.is_some() {
                    return stop;
                }
                continue;
            };
            let code = self.arena().address(offset);
            if let Some(jump) = jump {
                let distance = offset as i64 - (jump as i64 + 4);
                self.arena().write(jump, &(distance as i32).to_le_bytes());
            }
            if std::mem::take(&mut note) {
                let (mode, slot) = (key_of(cpu), (cpu.s.pc >> 2) as usize % TARGETS);
                self.targets[usize::from(mode)][slot] = [cpu.s.pc, code];
                self.noted.push((mode, slot as u16));
            }
            let before = cpu.left;
            let left = self.enter(cpu, code);
            match left.reason as u32 {
                reason::LINK => link = Some(left.datum as usize),
                reason::TARGET => note = true,
                reason::BUDGET => {
                    while cpu.left > 0 {
                        if let Some(stop) = cpu.interpret_block() {
                            return Some(stop);
                        }
                    }
                }
                _ => {}
            }
            if cpu.left < before {
                cpu.progressed();
            }
            if let Some(stop) = self.stop.take() {
                return Some(cpu.counted(stop));
            }
        }
        None
    }

    fn stats(&self) -> Vec<Stat> {
        let counts = &self.counts;
        vec![
            ("translated blocks", counts.blocks),
            ("translated instructions", counts.instructions),
            ("translated bytes", counts.bytes),
            ("interpreted before translation", counts.interpreted),
            ("translated code entered", counts.entered),
            ("interpreted within translated code", counts.steps),
            ("code memory flushed", counts.flushes),
        ]
    }
}

impl Drop for Jit {
    fn drop(&mut self) {
        self.pool.lock().held().extend(self.arena.take());
    }
}
