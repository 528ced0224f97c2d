//! Breakpoints: those of the guest's debug registers (SDM 17.2), and those of a debugger outside.
//!
//! All are one list, and what is armed is kept off the hot paths. A page with a breakpoint on an
//! instruction has no blocks, so that its instructions are executed one at a time and looked at
//! first. A page with watched data has no tags that the data TLB's fast path would find; an
//! instruction that touches what is watched is executed by itself, and the hits are collected.

use satori_defs::x86::{cr4, dr6, dr7};
use satori_engine::{DebugCause, DebugPlan, Exit, WatchAccess, Watchpoint};
use satori_state::CpuState;

use crate::cpu::{Cpu, Exec, Stop};

/// What a breakpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The execution of the instruction at exactly this linear address.
    Code,
    /// Accesses to bytes at these linear addresses.
    Data(WatchAccess),
    /// Accesses to these ports.
    Ports,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The guest's debug register of this number.
    Guest(usize),
    /// The debugger's watchpoint of this number, or a breakpoint of it.
    Debugger(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    kind: Kind,
    owner: Owner,
    first: u64,
    last: u64,
}

impl Point {
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.first <= last && first <= self.last
    }
}

/// [`Debug::repeating`] of no instruction: not an address.
const NOWHERE: u64 = 1 << 63;

/// What a processor knows about debugging, apart from its architectural state.
pub(crate) struct Debug {
    points: Vec<Point>,
    /// The debug registers that `points` come from; none if they have to be derived anew.
    source: Option<([u64; 4], u64)>,
    plan: DebugPlan,
    code: bool,
    data: bool,
    ports: bool,
    /// The instruction is executed by itself: hits are collected.
    alone: bool,
    /// Data and I/O breakpoints that the current instruction or delivery met, as bits of DR6.
    hits: u64,
    /// What the current instruction met of the debugger's.
    watched: Option<Watchpoint>,
    /// An instruction was completed or an event delivered since the debugger asked for a step.
    moved: bool,
    /// RIP of a repeated string instruction between two of its iterations.
    repeating: u64,
    /// The guest holds the debug registers: an access exits only the first time.
    pub owned: bool,
    /// It held them until the last exit.
    pub lent: bool,
}

impl Debug {
    pub(crate) fn new() -> Self {
        Debug {
            points: Vec::new(),
            source: None,
            plan: DebugPlan::default(),
            code: false,
            data: false,
            ports: false,
            alone: false,
            hits: 0,
            watched: None,
            moved: false,
            repeating: NOWHERE,
            owned: false,
            lent: false,
        }
    }

    /// Takes a debugger's wishes.
    pub(crate) fn set_plan(&mut self, plan: DebugPlan) {
        self.plan = plan;
        self.source = None;
        self.moved = false;
        self.watched = None;
    }

    /// Whether code that looks at nothing may not run: data or ports are watched, or each instruction is.
    #[inline]
    pub(crate) fn hinders(&self) -> bool {
        self.data || self.ports || self.steps()
    }

    /// Whether a breakpoint on an instruction is armed.
    #[inline]
    pub(crate) fn code_armed(&self) -> bool {
        self.code
    }

    /// Whether each instruction is executed by itself.
    pub(crate) fn steps(&self) -> bool {
        self.plan.step || self.watched.is_some()
    }

    /// Whether the page at `linear` holds an instruction with a breakpoint.
    #[inline]
    pub(crate) fn code_page(&self, linear: u64) -> bool {
        self.code && self.on_page(linear, |kind| kind == Kind::Code)
    }

    /// Whether the page at `linear` holds watched data.
    #[inline]
    pub(crate) fn data_page(&self, linear: u64) -> bool {
        self.data && self.on_page(linear, |kind| matches!(kind, Kind::Data(_)))
    }

    fn on_page(&self, linear: u64, of: impl Fn(Kind) -> bool) -> bool {
        self.points.iter().any(|point| of(point.kind) && point.overlaps(linear & !0xfff, linear | 0xfff))
    }

    /// Starts an instruction that is executed by itself.
    pub(crate) fn begin(&mut self) {
        (self.alone, self.hits, self.watched) = (true, 0, None);
    }

    /// Ends it; what it met counts only if it was completed.
    pub(crate) fn end(&mut self, completed: bool) -> u64 {
        self.alone = false;
        if !completed {
            (self.hits, self.watched) = (0, None);
        }
        self.moved |= completed;
        std::mem::take(&mut self.hits)
    }

    /// An event was delivered; tells which data breakpoints its pushes met.
    pub(crate) fn delivered(&mut self) -> u64 {
        self.moved = true;
        self.repeating = NOWHERE;
        std::mem::take(&mut self.hits)
    }

    /// The string instruction at `rip` goes on with another iteration, or it does not.
    #[inline]
    pub(crate) fn repeats(&mut self, rip: u64, more: bool) {
        self.repeating = if more { rip } else { NOWHERE };
    }

    /// RIP of a repeated string instruction between two of its iterations; else what is no address.
    pub(crate) fn repeating(&self) -> u64 {
        self.repeating
    }

    /// Whether the instruction at `rip` is between two iterations.
    pub(crate) fn between_iterations(&self, rip: u64) -> bool {
        self.repeating == rip
    }

    /// Whether a debugger is to be told first of what the last instruction touched.
    pub(crate) fn met_watchpoint(&self) -> bool {
        self.watched.is_some()
    }

    /// The exit that a debugger waits for, once it is there.
    pub(crate) fn report(&mut self) -> Option<Exit> {
        let cause = match self.watched.take() {
            Some(watchpoint) => DebugCause::Watchpoint(watchpoint),
            None if self.plan.step && self.moved => DebugCause::Step,
            None => return None,
        };
        self.moved = false;
        Some(Exit::Debug(cause))
    }

    fn met(&mut self, owner: Owner) {
        match owner {
            Owner::Guest(number) => self.hits |= 1 << number,
            Owner::Debugger(number) => {
                self.watched = self.watched.or(self.plan.watchpoints.get(number).copied());
            }
        }
    }
}

/// The breakpoints that the debug registers describe (SDM 17.2.4).
fn of_registers(state: &CpuState) -> impl Iterator<Item = Point> {
    let (dr, dr7) = (state.dr, state.dr7);
    (0..4).filter_map(move |number| {
        if dr7 & dr7::ENABLED & 3 << (2 * number) == 0 {
            return None;
        }
        let field = dr7 >> (16 + 4 * number);
        let len = match field >> 2 & 3 {
            0 => 1,
            1 => 2,
            2 => 8,
            _ => 4,
        };
        let kind = match field & 3 {
            0 => Kind::Code,
            1 => Kind::Data(WatchAccess::Write),
            2 => Kind::Ports,
            _ => Kind::Data(WatchAccess::Any),
        };
        // Data and ports are matched by aligned ranges (SDM 17.2.5). The length of an instruction
        // breakpoint has to be 1; another one is ignored.
        let (first, last) = match kind {
            Kind::Code => (dr[number], dr[number]),
            _ => (dr[number] & !(len - 1), dr[number] | (len - 1)),
        };
        Some(Point { kind, owner: Owner::Guest(number), first, last })
    })
}

fn of_plan(plan: &DebugPlan) -> impl Iterator<Item = Point> {
    let code = plan.breakpoints.iter().enumerate().map(|(number, &at)| Point {
        kind: Kind::Code,
        owner: Owner::Debugger(number),
        first: at,
        last: at,
    });
    let data = plan.watchpoints.iter().enumerate().map(|(number, watchpoint)| Point {
        kind: Kind::Data(watchpoint.access),
        owner: Owner::Debugger(number),
        first: watchpoint.address,
        last: watchpoint.address.saturating_add(watchpoint.len.max(1) - 1),
    });
    code.chain(data)
}

impl Cpu {
    /// Arms what the debug registers and the debugger say, if that is news.
    pub fn arm(&mut self) {
        let source = Some((self.state.dr, self.state.dr7));
        if self.debug.source == source {
            return;
        }
        self.debug.source = source;
        let points: Vec<Point> = of_registers(&self.state).chain(of_plan(&self.debug.plan)).collect();
        if self.debug.points != points {
            let any = |of: fn(Kind) -> bool| points.iter().any(|point| of(point.kind));
            self.debug.code = any(|kind| kind == Kind::Code);
            self.debug.data = any(|kind| matches!(kind, Kind::Data(_)));
            self.debug.ports = any(|kind| kind == Kind::Ports);
            self.debug.points = points;
            // Blocks and fast tags of pages that are watched now, and slow ones of pages that are
            // not any more, must go.
            self.flush_tlb(false);
        }
    }

    /// What breaks before the instruction at RIP: the debugger's exit, or bits of DR6 for #DB.
    /// `masked` as by RFLAGS.RF, which concerns the guest's own only.
    pub fn code_breakpoint(&mut self, masked: bool) -> Result<u64, Exit> {
        if !self.debug.code || self.debug.between_iterations(self.state.rip) {
            return Ok(0);
        }
        let linear = self.code_linear(self.state.rip);
        let mut hits = 0;
        for point in self.debug.points.iter().filter(|p| p.kind == Kind::Code && p.first == linear) {
            match point.owner {
                Owner::Debugger(_) if self.debug.plan.nested.is_none_or(|guest| guest == self.vmx.guest) => {
                    return Err(Exit::Debug(DebugCause::Breakpoint));
                }
                Owner::Debugger(_) => {}
                Owner::Guest(number) => hits |= 1 << number,
            }
        }
        Ok(if masked { 0 } else { hits })
    }

    /// Tells of an access to data. One that is watched needs its instruction executed by itself.
    #[inline]
    pub fn watch(&mut self, linear: u64, size: u64, reads: bool, writes: bool) -> Exec<()> {
        if !self.debug.data {
            return Ok(());
        }
        self.watch_slow(linear, size, reads, writes)
    }

    #[cold]
    fn watch_slow(&mut self, linear: u64, size: u64, reads: bool, writes: bool) -> Exec<()> {
        let last = linear.saturating_add(size - 1);
        for index in 0..self.debug.points.len() {
            let point = self.debug.points[index];
            let concerned = match point.kind {
                Kind::Data(WatchAccess::Read) => reads,
                Kind::Data(WatchAccess::Write) => writes,
                Kind::Data(WatchAccess::Any) => true,
                Kind::Code | Kind::Ports => false,
            };
            if !concerned || !point.overlaps(linear, last) {
                continue;
            }
            if !self.debug.alone && !self.pending.delivering {
                return Err(Stop::Alone);
            }
            self.debug.met(point.owner);
        }
        Ok(())
    }

    /// Asks that the current instruction be executed by itself; it has changed nothing yet.
    pub fn execute_alone(&self) -> Exec<()> {
        if self.debug.alone { Ok(()) } else { Err(Stop::Alone) }
    }

    /// Tells of an access to `size` ports, whose instruction is completed by it. I/O instructions
    /// are always executed by themselves once they have their answer.
    pub fn watch_ports(&mut self, port: u16, size: u8) {
        if !self.debug.ports || self.state.cr4 & cr4::DE == 0 {
            return;
        }
        let (first, last) = (u64::from(port), u64::from(port) + u64::from(size) - 1);
        for index in 0..self.debug.points.len() {
            let point = self.debug.points[index];
            if point.kind == Kind::Ports && point.overlaps(first, last) {
                self.debug.met(point.owner);
            }
        }
    }
}

/// The #DB that reports `bits` of DR6.
pub(crate) const fn exception(bits: u64) -> satori_engine::Exception {
    satori_engine::Exception {
        vector: satori_defs::x86::vector::DB,
        code: None,
        payload: bits & dr6::WRITABLE,
    }
}

#[cfg(test)]
mod tests;
