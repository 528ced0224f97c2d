//! Hardware task switches (SDM volume 3, chapter 8).
//!
//! A switch checks first, then writes the old task's state and loads the new one's; what is found
//! wrong with the new task's segments after that is raised in the new task.

use satori_defs::x86::{cr0, dr6, dr7, rflags, vector};
use satori_engine::Exception;
use satori_rules::segment;
use satori_state::{reg, seg};

use super::control::load_cr3;
use super::deliver::Delivery;
use super::descriptor::{Descriptor, Found, null, rpl, selector_fault, system_type, unusable};
use super::{flags, v86};
use crate::cpu::{Cpu, Exec};
use crate::mmu::Mode;

/// Bit of a TSS descriptor's type: the task is busy.
const BUSY: u8 = 2;
/// In a 32-bit TSS: a switch to it raises a debug exception.
const TRAP: u64 = 0x64;

/// Where a TSS has its fields (SDM figures 8-2 and 8-10).
struct Layout {
    wide: bool,
    /// Smallest limit.
    min_limit: u32,
    /// EIP, EFLAGS and the general registers, in encoding order.
    registers: u64,
    /// Selectors, in encoding order.
    selectors: u64,
    /// How many of them there are: a 16-bit TSS has no FS and GS.
    segments: usize,
    ldt: u64,
}

const WIDE: Layout =
    Layout { wide: true, min_limit: 0x67, registers: 0x20, selectors: 0x48, segments: 6, ldt: 0x60 };
const NARROW: Layout =
    Layout { wide: false, min_limit: 0x2b, registers: 0x0e, selectors: 0x22, segments: 4, ldt: 0x2a };
/// CR3 in a 32-bit TSS.
const CR3: u64 = 0x1c;
/// Selector of the previous task.
const LINK: u64 = 0;

impl Layout {
    /// That of a TSS whose descriptor has type `kind`.
    const fn of(kind: u32) -> &'static Layout {
        if kind & 8 != 0 { &WIDE } else { &NARROW }
    }
    const fn width(&self) -> u64 {
        if self.wide { 4 } else { 2 }
    }
}

/// What makes the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A far jump: the old task is left for good.
    Jump,
    /// A far call: the new task is nested in the old one.
    Call,
    /// IRET from a nested task.
    Return,
    /// An interrupt or exception: as for a call.
    Event,
}

impl Cause {
    /// The new task gets a link to the old one.
    const fn nests(self) -> bool {
        matches!(self, Cause::Call | Cause::Event)
    }
}

/// A switch on its way.
pub(super) struct Switch {
    pub cause: Cause,
    /// Selector of the new task's TSS.
    pub selector: u16,
    /// Instruction pointer and flags to save.
    pub rip: u64,
    pub flags: u64,
    /// EXT, in the error codes.
    pub ext: u32,
}

/// Runs `access` with the rights of the processor itself.
fn as_system<T>(cpu: &mut Cpu, access: impl FnOnce(&mut Cpu) -> Exec<T>) -> Exec<T> {
    let mode = std::mem::replace(&mut cpu.derived.mode, Mode::Supervisor);
    let outcome = access(cpu);
    cpu.derived.mode = mode;
    outcome
}

/// Follows a far jump or call to the TSS or task gate `descriptor`, found by `selector`.
pub(super) fn branch(
    cpu: &mut Cpu,
    cause: Cause,
    descriptor: Descriptor,
    selector: u16,
    rip: u64,
) -> Exec<u64> {
    if descriptor.dpl() < cpu.cpl() || descriptor.dpl() < rpl(selector) {
        return Err(cpu.raise(selector_fault(vector::GP, selector, 0)));
    }
    let mut target = selector;
    if descriptor.kind() == system_type::TASK_GATE {
        if !descriptor.present() {
            return Err(cpu.raise(selector_fault(vector::NP, selector, 0)));
        }
        target = descriptor.gate_selector();
    }
    switch(cpu, &Switch { cause, selector: target, rip, flags: cpu.rflags(), ext: 0 })
}

/// Delivers `event` through the task gate `gate`. Returns where to go on.
pub(super) fn event(cpu: &mut Cpu, event: &Delivery, gate: Descriptor, flags: u64) -> Exec<u64> {
    let ext = event.ext();
    let selector = gate.gate_selector();
    let rip = switch(cpu, &Switch { cause: Cause::Event, selector, rip: event.rip, flags, ext })?;
    if let Some(code) = event.code {
        let size = if cpu.state.tr.rights & 8 != 0 { 4 } else { 2 };
        let outcome = cpu.push(size, code.into());
        if outcome.is_err()
            && let Some(Exception { vector: vector::SS, code: Some(code), .. }) = &mut cpu.pending.fault
        {
            *code |= ext;
        }
        if outcome.is_err() {
            cpu.arrive_and_fault(rip);
        }
        outcome?;
    }
    Ok(rip)
}

/// IRET with NT set: back to the task that the link names.
pub(super) fn iret(cpu: &mut Cpu, rip: u64) -> Exec<u64> {
    let tr = cpu.state.tr;
    let selector = cpu.read_system(tr.base.wrapping_add(LINK))?;
    let flags = cpu.rflags() & !rflags::NT;
    switch(cpu, &Switch { cause: Cause::Return, selector, rip, flags, ext: 0 })
}

/// The new TSS's descriptor, of the right type and present.
fn new_tss(cpu: &mut Cpu, switch: &Switch) -> Exec<Found> {
    let &Switch { selector, ext, .. } = switch;
    let returns = switch.cause == Cause::Return;
    let invalid = selector_fault(if returns { vector::TS } else { vector::GP }, selector, ext);
    // A null selector is that of the first descriptor, which is no TSS.
    if selector & 4 != 0 || null(selector) {
        return Err(cpu.raise(invalid));
    }
    let Some(found) = cpu.find_descriptor(selector)? else { return Err(cpu.raise(invalid)) };
    let wanted = if returns {
        [system_type::TSS_BUSY, system_type::TSS16_BUSY]
    } else {
        [system_type::TSS, system_type::TSS16]
    };
    if !found.descriptor.system() || !wanted.contains(&found.descriptor.kind()) {
        return Err(cpu.raise(invalid));
    }
    if !found.descriptor.present() {
        return Err(cpu.raise(selector_fault(vector::NP, selector, ext)));
    }
    if found.descriptor.limit() < Layout::of(found.descriptor.kind()).min_limit {
        return Err(cpu.raise(selector_fault(vector::TS, selector, ext)));
    }
    Ok(found)
}

/// Touches what the switch will read and write, so that page faults come while nothing has changed.
fn probe(cpu: &mut Cpu, switch: &Switch, found: &Found, old: &Layout) -> Exec<()> {
    let tr = cpu.state.tr;
    let new = found.descriptor.base();
    as_system(cpu, |cpu| {
        cpu.probe_write(tr.base.wrapping_add(old.registers), u64::from(old.min_limit) + 1 - old.registers)?;
        let last = u64::from(Layout::of(found.descriptor.kind()).min_limit);
        cpu.read::<u8>(new)?;
        cpu.read::<u8>(new.wrapping_add(last))?;
        if switch.cause.nests() {
            cpu.probe_write(new.wrapping_add(LINK), 2)?;
        }
        cpu.probe_write(found.linear.wrapping_add(5), 1)?;
        if let Some(linear) = cpu.descriptor_address(tr.selector, 8) {
            cpu.probe_write(linear.wrapping_add(5), 1)?;
        }
        Ok(())
    })
}

/// Writes the current task's state to its TSS.
fn save(cpu: &mut Cpu, switch: &Switch, layout: &Layout) -> Exec<()> {
    let base = cpu.state.tr.base;
    let mut at = base.wrapping_add(layout.registers);
    let size = layout.width() as u32;
    for value in [switch.rip, switch.flags].into_iter().chain(cpu.state.gpr.into_iter().take(8)) {
        cpu.write_sized(at, size, value)?;
        at = at.wrapping_add(layout.width());
    }
    at = base.wrapping_add(layout.selectors);
    for index in 0..layout.segments {
        cpu.write(at, cpu.state.seg[index].selector)?;
        at = at.wrapping_add(layout.width());
    }
    Ok(())
}

/// What a TSS holds of a task.
struct Task {
    cr3: Option<u64>,
    rip: u64,
    flags: u64,
    registers: [u64; 8],
    selectors: [u16; 6],
    ldt: u16,
    trap: bool,
}

fn load(cpu: &mut Cpu, base: u64, layout: &Layout) -> Exec<Task> {
    let mut at = base.wrapping_add(layout.registers);
    let mut words = [0; 10];
    for word in &mut words {
        *word = cpu.read_sized(at, layout.width() as u32)?;
        at = at.wrapping_add(layout.width());
    }
    at = base.wrapping_add(layout.selectors);
    let mut selectors = [0; 6];
    for selector in &mut selectors[..layout.segments] {
        *selector = cpu.read(at)?;
        at = at.wrapping_add(layout.width());
    }
    let ldt = cpu.read(base.wrapping_add(layout.ldt))?;
    let (cr3, trap) = if layout.wide {
        let trap: u8 = cpu.read(base.wrapping_add(TRAP))?;
        (Some(cpu.read::<u32>(base.wrapping_add(CR3))?.into()), trap & 1 != 0)
    } else {
        (None, false)
    };
    let [rip, flags, registers @ ..] = words;
    Ok(Task { cr3, rip, flags, registers, selectors, ldt, trap })
}

/// Switches tasks. Returns where the new one goes on. What fails once its state is loaded is the
/// new task's: RIP is then its own.
pub(super) fn switch(cpu: &mut Cpu, switch: &Switch) -> Exec<u64> {
    if !cpu.pending.delivering {
        // Breakpoints on what is read once the old task is left have to be collected.
        cpu.execute_alone()?;
    }
    let mut found = new_tss(cpu, switch)?;
    let source: u64 = match switch.cause {
        Cause::Call => 0,
        Cause::Return => 1,
        Cause::Jump => 2,
        Cause::Event => 3,
    };
    cpu.leave_for_task(switch.selector, source)?;
    let tr = cpu.state.tr;
    let old = Layout::of(tr.rights);
    if tr.unusable() || tr.limit < old.min_limit {
        return Err(cpu.raise(selector_fault(vector::TS, tr.selector, switch.ext)));
    }
    probe(cpu, switch, &found, old)?;
    let layout = Layout::of(found.descriptor.kind());
    let task = as_system(cpu, |cpu| {
        if !switch.cause.nests()
            && let Some(linear) = cpu.descriptor_address(tr.selector, 8)
        {
            cpu.update(linear.wrapping_add(5), true, |kind: u8| kind & !BUSY)?;
        }
        save(cpu, switch, old)?;
        if switch.cause.nests() {
            cpu.write(found.descriptor.base().wrapping_add(LINK), tr.selector)?;
        }
        load(cpu, found.descriptor.base(), layout)
    })?;
    if switch.cause != Cause::Return {
        cpu.mark_descriptor(&mut found, BUSY)?;
    }
    cpu.state.tr = found.descriptor.segment(switch.selector, 0);
    // Under VMX it would be an exit; that follows, as the switch is the engine's own matter.
    cpu.pending.task_switches += 1;
    cpu.windows.attention = true;
    // From here on it is too late to ask the machine: the instruction cannot begin anew.
    let delivering = std::mem::replace(&mut cpu.pending.delivering, true);
    let entered = enter(cpu, switch, &task);
    cpu.pending.delivering = delivering;
    match entered {
        Ok(()) => {
            if task.trap {
                cpu.state.pending_debug |= dr6::BT;
            }
            Ok(task.rip)
        }
        Err(stop) => {
            cpu.arrive_and_fault(task.rip);
            Err(stop)
        }
    }
}

/// Makes `task` the current one.
fn enter(cpu: &mut Cpu, switch: &Switch, task: &Task) -> Exec<()> {
    let state = &mut cpu.state;
    state.cr0 |= cr0::TS;
    state.dr7 &= !dr7::LOCAL;
    state.gpr[..8].copy_from_slice(&task.registers);
    state.ldtr = unusable(task.ldt, 0);
    let virtual_8086 = task.flags & rflags::VM != 0;
    let cpl = rpl(task.selectors[seg::CS]);
    for (segment, selector) in state.seg.iter_mut().zip(task.selectors) {
        *segment = if virtual_8086 { v86::segment(selector) } else { unusable(selector, cpl) };
    }
    let nested = if switch.cause.nests() { rflags::NT } else { 0 };
    cpu.arm();
    // Privilege is that of CS; the stack segment stands for it here.
    cpu.set_rflags(task.flags & flags::DEFINED | nested);
    if let Some(cr3) = task.cr3
        && cpu.state.cr0 & cr0::PG != 0
    {
        load_cr3(cpu, cr3, false)?;
    }
    load_ldt(cpu, task.ldt, switch.ext)?;
    if !virtual_8086 {
        load_segments(cpu, &task.selectors, switch.ext)?;
    }
    if task.rip > u64::from(cpu.state.seg[seg::CS].limit) {
        return Err(cpu.raise(Exception::gp(switch.ext)));
    }
    Ok(())
}

fn load_ldt(cpu: &mut Cpu, selector: u16, ext: u32) -> Exec<()> {
    if null(selector) {
        return Ok(());
    }
    let invalid = selector_fault(vector::TS, selector, ext);
    if selector & 4 != 0 {
        return Err(cpu.raise(invalid));
    }
    let descriptor = cpu.require_descriptor(selector, vector::TS, ext)?.descriptor;
    if !descriptor.system() || descriptor.kind() != system_type::LDT || !descriptor.present() {
        return Err(cpu.raise(invalid));
    }
    cpu.state.ldtr = descriptor.segment(selector, 0);
    Ok(())
}

/// Loads the segment registers of a protected-mode task (SDM table 8-1).
fn load_segments(cpu: &mut Cpu, selectors: &[u16; 6], ext: u32) -> Exec<()> {
    let cpl = rpl(selectors[seg::CS]);
    for index in [seg::CS, seg::SS, seg::DS, seg::ES, seg::FS, seg::GS] {
        let selector = selectors[index];
        let invalid = selector_fault(vector::TS, selector, ext);
        if null(selector) {
            if matches!(index, seg::CS | seg::SS) {
                return Err(cpu.raise(invalid));
            }
            cpu.state.seg[index] = unusable(selector, 0);
            continue;
        }
        let mut found = cpu.require_descriptor(selector, vector::TS, ext)?;
        let descriptor = found.descriptor;
        let (rights, rpl) = (descriptor.rights(), rpl(selector));
        let (valid, absent) = match index {
            seg::CS => (segment::code(rights, cpl, rpl), vector::NP),
            seg::SS => (segment::stack(rights, cpl, rpl), vector::SS),
            _ => (segment::data(rights, cpl, rpl), vector::NP),
        };
        if !valid {
            return Err(cpu.raise(invalid));
        }
        if !descriptor.present() {
            return Err(cpu.raise(selector_fault(absent, selector, ext)));
        }
        cpu.mark_accessed(&mut found)?;
        cpu.state.seg[index] = found.descriptor.segment(selector, 0);
        cpu.mode_changed();
    }
    Ok(())
}

const _: () = assert!(reg::RDI == 7, "a TSS has the first eight registers in encoding order");
