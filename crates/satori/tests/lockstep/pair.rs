//! Two machines side by side, equal but for their engine: the interpreter decides what is right, and
//! the translator, which makes host code of everything at once or of what is hot, has to agree.
//!
//! Both run under the virtual clock, so they do the same unless an engine is wrong. Each run of a
//! vCPU is cut at places that a seed chooses, and at each of them the register file, the exit and
//! the count of instructions must be equal; now and then all of memory. At some places the TLB
//! or the code of the page at RIP is dropped, on both alike. A difference is narrowed by running all
//! over again with one more cut, until no shorter piece of the run differs.
//!
//! Status flags may differ that the manual leaves undefined behind the last instructions (SDM volume 1, appendix A):
//! the interpreter executes the last few of each piece one by one, and tells which flags those left undefined. The translator
//! gets the interpreter's then and this is counted. Where saved flags came from is not known any more, so what a register or
//! a word of memory holds of them (PUSHF, SYSCALL) is compared without those six bits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::forward::forward_vcpu;
use satori_bus::ByteSink;
use satori_compare::{next_instruction, undefined};
use satori_defs::x86::rflags;
use satori_engine::{
    Capabilities, Engine, Exit, Partition, PartitionParts, Parts, Space, Until, Vcpu, VcpuParts, X86,
};
use satori_machine::{ClockMode, Config, EngineKind, Handle, Machine, Sinks};
use satori_memory::{Gpa, GuestMemory};
use satori_state::{CpuState, reg};

/// Bytes of memory that are summed up together.
const PIECE: u64 = 4096;

/// Instructions at the end of a piece that the interpreter executes one by one. Whoever wrote flags before these
/// may have left any of them undefined.
const LAST: u64 = 8;

/// How a run is cut and disturbed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Chooses the cuts and the disturbances.
    pub seed: u64,
    /// Instructions of all vCPUs after which it is enough.
    pub instructions: u64,
    /// Instructions between two looks at all of memory.
    pub memory_every: u64,
    /// One more cut: in the piece of this number, after so many instructions.
    cut: Option<(u64, u64)>,
    /// Look at all of memory after this piece.
    look: Option<u64>,
}

impl Plan {
    /// A run of so many instructions, with the cuts of `seed`.
    pub(crate) fn new(seed: u64, instructions: u64) -> Self {
        Plan { seed, instructions, memory_every: 25_000_000, cut: None, look: None }
    }
}

/// What a vCPU is after a piece of its run.
#[derive(Clone, Debug, PartialEq)]
struct Stand {
    vcpu: u32,
    exit: Exit,
    retired: u64,
    state: CpuState,
}

struct Record {
    /// Number of the piece that ended here, and its instructions.
    piece: u64,
    length: u64,
    begin: u64,
    stand: Stand,
    /// Status flags that may differ.
    undefined: u64,
    /// The last instructions, as they were found; the interpreter's side only.
    last: Vec<String>,
    /// Sums of the pages, if it was time to look.
    memory: Option<Vec<u64>>,
}

/// Where and how the engines came to differ.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    piece: u64,
    length: u64,
    /// RIP before the piece.
    begin: u64,
    /// The bytes there.
    bytes: Vec<u8>,
    /// The pieces since memory was last seen equal, where memory differs.
    since: Option<u64>,
    what: String,
}

/// What a comparison came to.
#[derive(Debug)]
pub(crate) struct Agreement {
    /// Places at which everything was equal.
    pub places: u64,
    /// Looks at all of memory.
    pub looks: u64,
    /// Instructions that both executed.
    pub instructions: u64,
    /// Of the places, those where status flags differed and nothing else.
    pub flags: u64,
    /// Disturbances.
    pub disturbed: u64,
    /// How both ended.
    pub ended: String,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// One of the two, as its vCPUs share it.
struct Side {
    plan: Plan,
    random: Random,
    pieces: u64,
    instructions: u64,
    looked: u64,
    disturbed: u64,
    report: Report,
}

enum Report {
    /// The interpreter tells.
    Tell(SyncSender<Record>),
    /// The translator compares.
    Compare {
        from: Receiver<Record>,
        equal: Option<u64>,
        places: u64,
        looks: u64,
        found: Option<Difference>,
        /// Places where only status flags differed.
        flags: u64,
    },
}

impl Side {
    /// Notes what `record` says; whether the run goes on.
    fn meet(&mut self, record: Record, memory: &GuestMemory, adopt: &mut Option<CpuState>) -> bool {
        match &mut self.report {
            Report::Tell(to) => to.send(record).is_ok(),
            Report::Compare { from, equal, places, looks, found, flags } => {
                let Ok(mut other) = from.recv() else { return false };
                if other.stand != record.stand {
                    let right = other.stand.state.clone();
                    forgive(&mut other.stand.state, &record.stand.state, other.undefined);
                    if other.stand == record.stand {
                        *adopt = Some(right);
                        *flags += 1;
                    }
                }
                let what = differ(&other, &record);
                if let Some((in_memory, mut what)) = what {
                    what += &format!(
                        "\nundefined flags {:#x}, behind {}",
                        other.undefined,
                        other.last.join("; ")
                    );
                    let mut bytes = vec![0; 48];
                    let _ = memory.read(Gpa(record.begin & 0xffff_ffff), &mut bytes);
                    *found = Some(Difference {
                        piece: record.piece,
                        length: record.length.max(other.length),
                        begin: record.begin,
                        bytes,
                        since: in_memory.then_some(equal.unwrap_or(0)),
                        what,
                    });
                    return false;
                }
                *places += 1;
                if record.memory.is_some() {
                    *looks += 1;
                    *equal = Some(record.piece);
                }
                true
            }
        }
    }

    /// Instructions until the next cut: mostly few, sometimes as many as a turn has.
    fn length(&mut self) -> u64 {
        let bits = self.random.next() % 16;
        1 + self.random.next() % (1 << bits)
    }
}

/// Gives `state` those status flags of `other` that are `undefined`, and all of what looks like a saved RFLAGS in
/// a register.
fn forgive(state: &mut CpuState, other: &CpuState, undefined: u64) {
    /// Bits that RFLAGS may have set (SDM volume 1, 3.4.3).
    const MAY: u64 = 0x3f_7fd7;
    if (state.rflags ^ other.rflags) & !undefined == 0 {
        state.rflags = other.rflags;
    }
    for (mine, theirs) in state.gpr.iter_mut().zip(other.gpr) {
        if *mine & !MAY == 0 && *mine & rflags::FIXED != 0 && (*mine ^ theirs) & !rflags::STATUS == 0 {
            *mine = theirs;
        }
    }
}

/// What differs, and whether it is memory.
fn differ(right: &Record, wrong: &Record) -> Option<(bool, String)> {
    if right.stand != wrong.stand {
        let mut what = String::new();
        let (a, b) = (&right.stand, &wrong.stand);
        if a.vcpu != b.vcpu || a.retired != b.retired {
            what += &format!("vCPU {} after {}, vCPU {} after {}\n", a.vcpu, a.retired, b.vcpu, b.retired);
        }
        if a.exit != b.exit {
            what += &format!("exit {:x?}, {:x?}\n", a.exit, b.exit);
        }
        let (a, b) = (format!("{:#x?}", a.state), format!("{:#x?}", b.state));
        for (a, b) in a.lines().zip(b.lines()).filter(|(a, b)| a != b) {
            what += &format!("{}   {}\n", a.trim(), b.trim());
        }
        return Some((false, what));
    }
    let (a, b) = (right.memory.as_ref()?, wrong.memory.as_ref()?);
    let pages: Vec<_> =
        (0..a.len()).filter(|i| a[*i] != b[*i]).map(|i| format!("{:#x}", i as u64 * PIECE)).collect();
    (!pages.is_empty()).then(|| (true, format!("memory at {}", pages[..pages.len().min(8)].join(", "))))
}

/// A sum of each page, FNV over words; 0 for what was never touched.
fn sums(memory: &GuestMemory) -> Vec<u64> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 2 << 20];
    for region in memory.regions() {
        let mut at = region.start.0;
        let end = at + region.len;
        all.resize((at / PIECE) as usize, 0);
        while at < end {
            let length = (end - at).min((2 << 20) - at % (2 << 20));
            let touched = memory.page(Gpa(at & !0x1f_ffff)).is_none_or(|page| page.state.touched());
            if touched && memory.read(Gpa(at), &mut buffer[..length as usize]).is_ok() {
                for page in buffer[..length as usize].chunks(PIECE as usize) {
                    let words = page
                        .chunks_exact(8)
                        .map(|word| u64::from_le_bytes(word.try_into().unwrap()) & !rflags::STATUS);
                    all.push(
                        words.fold(0, |sum: u64, word| {
                            (sum.rotate_left(5) ^ word).wrapping_mul(0x100_0000_01b3)
                        }),
                    );
                }
            } else {
                all.resize(all.len() + (length / PIECE) as usize, 0);
            }
            at += length;
        }
    }
    all
}

/// An engine that is watched.
#[derive(Clone)]
struct Watched {
    inner: Arc<dyn Engine<X86>>,
    side: Arc<Mutex<Side>>,
    over: Arc<AtomicBool>,
    handle: Arc<OnceLock<Handle>>,
}

impl Engine<X86> for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn create_partition(&self, parts: PartitionParts<X86>) -> std::io::Result<Box<dyn Partition<X86>>> {
        Ok(Box::new(WatchedPartition { inner: self.inner.create_partition(parts)?, watched: self.clone() }))
    }
}

struct WatchedPartition {
    inner: Box<dyn Partition<X86>>,
    watched: Watched,
}

impl Space for WatchedPartition {
    fn memory(&self) -> &GuestMemory {
        self.inner.memory()
    }
}

impl Partition<X86> for WatchedPartition {
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<X86>> {
        let Watched { side, over, handle, .. } = self.watched.clone();
        let tells = matches!(side.lock().unwrap().report, Report::Tell(_));
        Box::new(WatchedVcpu {
            index: parts.index,
            tells,
            memory: self.memory().clone(),
            inner: self.inner.create_vcpu(parts),
            side,
            over,
            handle,
        })
    }
}

struct WatchedVcpu {
    index: u32,
    /// Whether this is the interpreter's.
    tells: bool,
    memory: GuestMemory,
    inner: Box<dyn Vcpu<X86>>,
    side: Arc<Mutex<Side>>,
    over: Arc<AtomicBool>,
    handle: Arc<OnceLock<Handle>>,
}

impl WatchedVcpu {
    /// One piece of a run; whether there shall be more.
    fn piece(&mut self, until: Until, length: u64) -> Exit {
        let before = self.inner.retired();
        let begin = self.inner.state().rip;
        let begin = self.inner.translate(begin).unwrap_or(begin);
        let mut last = Vec::new();
        let (exit, undefined) = match self.tells {
            true => self.in_steps(until, length, &mut last),
            false => (self.inner.run(Until { instructions: Some(length), ..until }), 0),
        };
        let retired = self.inner.retired();
        let mut side = self.side.lock().unwrap();
        let piece = side.pieces;
        side.pieces += 1;
        side.instructions += retired - before;
        let mut state = self.inner.state().clone();
        // What stands behind the registers is the engine's own.
        state.gpr[reg::ZERO..].fill(0);
        let look = match side.plan.look {
            Some(at) => at == piece,
            None => side.instructions - side.looked >= side.plan.memory_every,
        };
        let memory = look.then(|| sums(&self.memory));
        if look {
            side.looked = side.instructions;
        }
        let stand = Stand { vcpu: self.index, exit, retired, state };
        let record = Record { piece, length: retired - before, begin, stand, undefined, last, memory };
        let mut adopt = None;
        let more = side.meet(record, &self.memory, &mut adopt) && side.instructions < side.plan.instructions;
        if !more {
            self.over.store(true, Ordering::Relaxed);
            self.handle.wait().stop();
        }
        let disturb = side.random.next();
        drop(side);
        if let Some(right) = adopt {
            let state = self.inner.state_mut(Parts::ALL);
            state.rflags = right.rflags;
            state.gpr[..reg::ZERO].copy_from_slice(&right.gpr[..reg::ZERO]);
        }
        if more {
            self.disturb(disturb);
        }
        exit
    }

    /// A piece whose last instructions are executed one by one; the status flags that these leave undefined.
    fn in_steps(&mut self, until: Until, length: u64, last: &mut Vec<String>) -> (Exit, u64) {
        let (mut left, mut undefined) = (length, rflags::STATUS);
        if length > LAST {
            let before = self.inner.retired();
            let exit = self.inner.run(Until { counter: None, instructions: Some(length - LAST) });
            left = left.saturating_sub(self.inner.retired() - before);
            if exit != Exit::Budget || left == 0 {
                return (exit, undefined);
            }
        }
        loop {
            let insn = next_instruction(&*self.inner, &self.memory);
            let (before, rcx) = (self.inner.retired(), self.inner.state().gpr[reg::RCX]);
            // The deadline was looked at where the whole piece would have looked at it.
            let counter = if left == 1 { until.counter } else { None };
            let exit = self.inner.run(Until { counter, instructions: Some(1) });
            last.extend(insn.map(|insn| format!("{:#x} {:?}", insn.ip(), insn.code())));
            undefined = match insn {
                Some(insn) => undefined::after(&insn, rcx, self.inner.state().rip, undefined),
                None => rflags::STATUS,
            };
            left = left.saturating_sub(self.inner.retired() - before);
            if exit != Exit::Budget || left == 0 {
                return (exit, undefined);
            }
        }
    }

    /// Drops what an engine may keep or not, so that it has to be got again here.
    fn disturb(&mut self, dice: u64) {
        let rip = self.inner.state().rip;
        match dice % 64 {
            0 => self.inner.flush_tlb(),
            1 => self.inner.flush_non_global(),
            2 => self.inner.flush_page(rip),
            3 => self.inner.flush_page(self.inner.state().gpr[reg::RSP]),
            4 => {
                // As if a device had written the page with what it holds already.
                let page = self.inner.translate(rip).and_then(|gpa| self.memory.page(Gpa(gpa)));
                if let Some(page) = page {
                    page.state.wrote();
                }
            }
            _ => return,
        }
        self.side.lock().unwrap().disturbed += 1;
    }
}

impl Vcpu<X86> for WatchedVcpu {
    fn run(&mut self, until: Until) -> Exit {
        let mut left = until.instructions.expect("a virtual clock counts instructions");
        loop {
            if self.over.load(Ordering::Relaxed) {
                // Stops at the machine's next look; its time has to go on until then.
                return self.inner.run(Until { instructions: Some(left), ..until });
            }
            let mut length = self.side.lock().unwrap().length().min(left);
            let before = self.inner.retired();
            let cut = {
                let side = self.side.lock().unwrap();
                side.plan.cut.filter(|(piece, at)| *piece == side.pieces && *at < length)
            };
            if let Some((_, at)) = cut {
                length = at;
            }
            let exit = self.piece(until, length);
            left = left.saturating_sub(self.inner.retired() - before);
            if exit != Exit::Budget || left == 0 {
                return exit;
            }
        }
    }

    fn fetch(&mut self, parts: Parts) {
        self.inner.fetch(parts);
    }
    fn state(&self) -> &CpuState {
        self.inner.state()
    }
    fn state_mut(&mut self, parts: Parts) -> &mut CpuState {
        self.inner.state_mut(parts)
    }
    forward_vcpu!();
}

/// A console that is kept.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl ByteSink for Kept {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

/// Runs `config` on both engines; what they agreed on, or the first difference.
fn once(config: &Config, kind: EngineKind, plan: Plan) -> Result<Agreement, Box<Difference>> {
    let (to, from) = sync_channel(256);
    let compare = Report::Compare { from, equal: None, places: 0, looks: 0, found: None, flags: 0 };
    let start = |engine, report| {
        let config = Config {
            engine,
            clock: ClockMode::VIRTUAL,
            timeout: Some(Duration::from_secs(1800)),
            ..config.clone()
        };
        let random = Random(plan.seed);
        let side = Side { plan, random, pieces: 0, instructions: 0, looked: 0, disturbed: 0, report };
        let (side, console) = (Arc::new(Mutex::new(side)), Kept::default());
        let (watched, sink) = (side.clone(), console.clone());
        let thread = std::thread::spawn(move || {
            let handle = Arc::new(OnceLock::new());
            let known = handle.clone();
            let sinks = Sinks { console: Box::new(sink), debugcon: None, code: None };
            let machine = Machine::with_engine(config, sinks, |inner| {
                Arc::new(Watched { inner, side: watched, over: Arc::default(), handle })
            })
            .expect("a machine");
            let _ = known.set(machine.handle());
            // The last of what tells is gone when this returns.
            format!("{:?}", machine.run().event)
        });
        (side, console, thread)
    };
    let (_told, right_console, right) = start(EngineKind::Interpreter, Report::Tell(to));
    let (compared, console, wrong) = start(kind, compare);
    // Whoever still tells is not heard any more once the other has ended.
    let ended = wrong.join().expect("the translator's machine");
    let mut side = compared.lock().unwrap();
    let nothing =
        Report::Compare { from: sync_channel(0).1, equal: None, places: 0, looks: 0, found: None, flags: 0 };
    let Report::Compare { from, places, looks, found, flags, .. } =
        std::mem::replace(&mut side.report, nothing)
    else {
        unreachable!("the translator compares")
    };
    drop(from);
    drop(_told);
    let right_ended = right.join().expect("the interpreter's machine");
    if let Some(found) = found {
        return Err(Box::new(found));
    }
    let (right, wrong) = (right_console.0.lock().unwrap(), console.0.lock().unwrap());
    let stopped = side.instructions >= plan.instructions;
    if !stopped && (right_ended != ended || *right != *wrong) {
        let what = format!(
            "ended by {right_ended}, {ended}; {} and {} bytes on the console",
            right.len(),
            wrong.len()
        );
        let piece = side.pieces;
        return Err(Box::new(Difference {
            piece,
            length: 0,
            begin: 0,
            bytes: Vec::new(),
            since: None,
            what,
        }));
    }
    Ok(Agreement { places, flags, looks, instructions: side.instructions, disturbed: side.disturbed, ended })
}

/// Runs `config` on both engines; a difference is narrowed and told in words.
pub(crate) fn compare(config: &Config, kind: EngineKind, plan: Plan) -> Result<Agreement, String> {
    let mut first = match once(config, kind, plan) {
        Ok(agreement) => return Ok(agreement),
        Err(difference) => *difference,
    };
    eprintln!(
        "lockstep: a difference in piece {} of {} instructions from physical {:#x}; narrowing it\n{}",
        first.piece, first.length, first.begin, first.what
    );
    let mut plan = plan;
    // Memory was equal after one piece, and is not after another one: which in between?
    if let Some(since) = first.since {
        let (mut equal, mut differs) = (since, first.piece);
        while differs - equal > 1 {
            let middle = equal + (differs - equal) / 2;
            match once(config, kind, Plan { look: Some(middle), ..plan }) {
                Err(found) if found.piece <= middle => (differs, first) = (middle, *found),
                _ => equal = middle,
            }
        }
        plan.look = Some(first.piece);
    }
    // Which is the shortest beginning of the piece after which there is a difference?
    let (piece, mut equal, mut differs) = (first.piece, 0, first.length);
    while differs - equal > 1 {
        let middle = equal + (differs - equal) / 2;
        match once(config, kind, Plan { cut: Some((piece, middle)), ..plan }) {
            Err(found) if found.piece == piece => (differs, first) = (middle, *found),
            _ => equal = middle,
        }
    }
    Err(format!(
        "seed {}, piece {piece}: equal after {equal} instructions, different after {differs} (interpreter first); the piece \
         begins at physical {:#x}, {:02x?}\n{}",
        plan.seed, first.begin, first.bytes, first.what
    ))
}
