//! Delivery of interrupts and exceptions through the IDT (SDM 6.12, 6.14) or, in real-address
//! mode, the interrupt vector table (SDM 20.1.4).

use satori_defs::x86::{cr0, rflags, vector};
use satori_engine::Exception;
use satori_rules::segment;
use satori_state::{DescriptorTable, Segment, reg, seg};

use super::descriptor::{Descriptor, Found, null, rpl, selector_fault, system_type, unusable};
use super::stack::Stack;
use super::{task, v86};
use crate::cpu::{Cpu, Exec};
use crate::mmu::canonical;

/// Bit 0 of an error code: the event was external to the program.
const EXT: u32 = 1;
/// Bit 1 of an error code: the selector index is a vector.
const IDT: u32 = 2;
/// Flags that every gate clears.
const GATE_CLEARS: u64 = rflags::TF | rflags::NT | rflags::RF | rflags::VM;

/// An interrupt or exception on its way.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Vector.
    pub vector: u8,
    /// Error code to push.
    pub code: Option<u32>,
    /// INT n, INT3 or INTO: the gate's DPL counts.
    pub software: bool,
    /// Faults on the way have EXT set: it is no software event, and on AMD's processors no exception either (APM 8.4.1).
    pub external: bool,
    /// RFLAGS.RF is set in the pushed image; else it is as it is.
    pub resume: bool,
    /// Instruction pointer to push.
    pub rip: u64,
}

impl Delivery {
    /// EXT in the error codes of faults on the way.
    pub const fn ext(&self) -> u32 {
        if self.external { EXT } else { 0 }
    }
    const fn gate_fault(&self, vector: u8) -> Exception {
        Exception::with_code(vector, (self.vector as u32) << 3 | IDT | self.ext())
    }
}

/// The code segment that a gate leads to.
struct Target {
    cs: Segment,
    found: Found,
    cpl: u8,
}

/// Delivers through the IDT. Registers change only if everything succeeds, or if a task switch
/// does. Returns where to go on; RIP itself is left to the caller.
pub(super) fn deliver(cpu: &mut Cpu, event: &Delivery) -> Exec<u64> {
    if cpu.state.cr0 & cr0::PE == 0 {
        return deliver_real(cpu, event);
    }
    if cpu.state.long_mode() {
        return deliver_long(cpu, event);
    }
    deliver_protected(cpu, event)
}

/// The RFLAGS image that is pushed.
fn image(cpu: &Cpu, event: &Delivery) -> u64 {
    cpu.rflags() | if event.resume { rflags::RF } else { 0 }
}

fn deliver_real(cpu: &mut Cpu, event: &Delivery) -> Exec<u64> {
    let DescriptorTable { base, limit } = cpu.state.idtr;
    let offset = u64::from(event.vector) * 4;
    if offset + 3 > u64::from(limit) {
        return Err(cpu.raise(event.gate_fault(vector::GP)));
    }
    let entry: u32 = cpu.read_system(base.wrapping_add(offset))?;
    let mut stack = Stack::legacy(cpu.state.seg[seg::SS], cpu.state.gpr[reg::RSP], 0, 0, false);
    stack.push(cpu, 2, cpu.rflags())?;
    stack.push(cpu, 2, cpu.state.seg[seg::CS].selector.into())?;
    stack.push(cpu, 2, event.rip)?;
    let selector = (entry >> 16) as u16;
    let cs = &mut cpu.state.seg[seg::CS];
    (cs.selector, cs.base) = (selector, u64::from(selector) << 4);
    cpu.state.gpr[reg::RSP] = stack.rsp(cpu);
    cpu.set_rflags(cpu.rflags() & !(rflags::IF | rflags::TF | rflags::AC | rflags::RF));
    Ok(u64::from(entry & 0xffff))
}

/// The gate descriptor's first eight bytes, checked as far as all modes agree.
fn gate(cpu: &mut Cpu, event: &Delivery, size: u64, types: &[u32]) -> Exec<(Descriptor, u64)> {
    let DescriptorTable { base, limit } = cpu.state.idtr;
    let offset = u64::from(event.vector) * size;
    if offset + size - 1 > u64::from(limit) {
        return Err(cpu.raise(event.gate_fault(vector::GP)));
    }
    let linear = base.wrapping_add(offset);
    let gate = Descriptor(cpu.read_system(linear)?);
    if !gate.system() || !types.contains(&gate.kind()) || (event.software && gate.dpl() < cpu.cpl()) {
        return Err(cpu.raise(event.gate_fault(vector::GP)));
    }
    if !gate.present() {
        return Err(cpu.raise(event.gate_fault(vector::NP)));
    }
    Ok((gate, linear))
}

/// The gate's code segment and the privilege level it runs at.
fn target(cpu: &mut Cpu, event: &Delivery, selector: u16) -> Exec<Target> {
    let ext = event.ext();
    if null(selector) {
        return Err(cpu.raise(Exception::gp(ext)));
    }
    let found = cpu.require_descriptor(selector, vector::GP, ext)?;
    let code = found.descriptor;
    let cpl = cpu.cpl();
    let shape = !cpu.state.long_mode() || (code.long() && !code.big());
    if !code.code() || code.dpl() > cpl || !shape {
        return Err(cpu.raise(selector_fault(vector::GP, selector, ext)));
    }
    if !code.present() {
        return Err(cpu.raise(selector_fault(vector::NP, selector, ext)));
    }
    let cpl = if code.conforming() { cpl } else { code.dpl() };
    let cs = code.segment(selector & !3 | u16::from(cpl), 0);
    Ok(Target { cs, found, cpl })
}

/// A stack pointer of the 64-bit TSS at `offset` (SDM 7.7).
fn tss_pointer(cpu: &mut Cpu, event: &Delivery, offset: u64) -> Exec<u64> {
    let tr = cpu.state.tr;
    if offset + 7 > u64::from(tr.limit) {
        return Err(cpu.raise(selector_fault(vector::TS, tr.selector, event.ext())));
    }
    cpu.read_system(tr.base.wrapping_add(offset))
}

fn deliver_long(cpu: &mut Cpu, event: &Delivery) -> Exec<u64> {
    let types = [system_type::INTERRUPT_GATE, system_type::TRAP_GATE];
    let (gate, linear) = gate(cpu, event, 16, &types)?;
    let high: u64 = cpu.read_system(linear.wrapping_add(8))?;
    let rip = gate.gate_offset() | (high & 0xffff_ffff) << 32;
    let mut target = target(cpu, event, gate.gate_selector())?;
    let (old_ss, old_rsp, cpl) = (cpu.state.seg[seg::SS], cpu.state.gpr[reg::RSP], cpu.cpl());
    let inner = target.cpl < cpl;
    let ss = if inner { unusable(target.cpl.into(), target.cpl) } else { old_ss };
    let rsp = if gate.gate_ist() != 0 {
        tss_pointer(cpu, event, 0x1c + 8 * gate.gate_ist())?
    } else if inner {
        tss_pointer(cpu, event, 4 + 8 * u64::from(target.cpl))?
    } else {
        old_rsp
    };
    if !canonical(rsp) {
        return Err(cpu.raise(Exception::with_code(vector::SS, event.ext())));
    }
    if !canonical(rip) {
        return Err(cpu.raise(Exception::gp(event.ext())));
    }
    let mut stack = Stack::long(ss, rsp & !15, target.cpl, event.ext());
    stack.push(cpu, 8, old_ss.selector.into())?;
    stack.push(cpu, 8, old_rsp)?;
    stack.push(cpu, 8, image(cpu, event))?;
    stack.push(cpu, 8, cpu.state.seg[seg::CS].selector.into())?;
    stack.push(cpu, 8, event.rip)?;
    if let Some(code) = event.code {
        stack.push(cpu, 8, code.into())?;
    }
    cpu.mark_accessed(&mut target.found)?;
    commit(cpu, &target, &stack, gate.kind());
    Ok(rip)
}

/// The stack for privilege level `cpl` from the 16-bit or 32-bit TSS (SDM 5.8.5), checked.
pub(super) fn inner_stack(cpu: &mut Cpu, cpl: u8, ext: u32) -> Exec<Stack> {
    let tr = cpu.state.tr;
    let wide = tr.rights & 8 != 0;
    let (offset, size) = if wide { (4 + 8 * u64::from(cpl), 6) } else { (2 + 4 * u64::from(cpl), 4) };
    if offset + size - 1 > u64::from(tr.limit) {
        return Err(cpu.raise(selector_fault(vector::TS, tr.selector, ext)));
    }
    let linear = tr.base.wrapping_add(offset);
    let (sp, selector) = if wide {
        (u64::from(cpu.read_system::<u32>(linear)?), cpu.read_system::<u16>(linear.wrapping_add(4))?)
    } else {
        (u64::from(cpu.read_system::<u16>(linear)?), cpu.read_system::<u16>(linear.wrapping_add(2))?)
    };
    if null(selector) {
        return Err(cpu.raise(Exception::with_code(vector::TS, ext)));
    }
    let mut found = cpu.require_descriptor(selector, vector::TS, ext)?;
    let stack = found.descriptor;
    if !segment::stack(stack.rights(), cpl, rpl(selector)) {
        return Err(cpu.raise(selector_fault(vector::TS, selector, ext)));
    }
    if !stack.present() {
        return Err(cpu.raise(selector_fault(vector::SS, selector, ext)));
    }
    cpu.mark_accessed(&mut found)?;
    Ok(Stack::legacy(found.descriptor.segment(selector, 0), sp, cpl, ext, true))
}

fn deliver_protected(cpu: &mut Cpu, event: &Delivery) -> Exec<u64> {
    let types = [
        system_type::TASK_GATE,
        system_type::INTERRUPT_GATE16,
        system_type::TRAP_GATE16,
        system_type::INTERRUPT_GATE,
        system_type::TRAP_GATE,
    ];
    let (gate, _) = gate(cpu, event, 8, &types)?;
    if gate.kind() == system_type::TASK_GATE {
        let flags = image(cpu, event);
        return task::event(cpu, event, gate, flags);
    }
    let wide = gate.kind() & 8 != 0;
    let size = if wide { 4 } else { 2 };
    let rip = if wide { gate.gate_offset() } else { gate.gate_offset() & 0xffff };
    let (virtual_8086, ext) = (cpu.virtual_8086(), event.ext());
    let mut target = target(cpu, event, gate.gate_selector())?;
    if virtual_8086 {
        v86::require_level0(cpu, target.cpl, gate.gate_selector(), ext)?;
    }
    let (old_ss, old_rsp) = (cpu.state.seg[seg::SS], cpu.state.gpr[reg::RSP]);
    let inner = target.cpl < cpu.cpl();
    let mut stack = if inner {
        inner_stack(cpu, target.cpl, ext)?
    } else {
        Stack::legacy(old_ss, old_rsp, target.cpl, ext, false)
    };
    // Everything that can be pushed; what does not apply is left out at either end.
    let [gs, fs, ds, es] = v86::outgoing(cpu);
    let (flags, cs) = (image(cpu, event), cpu.state.seg[seg::CS].selector.into());
    let code = event.code.unwrap_or(0).into();
    let frame = [gs, fs, ds, es, old_ss.selector.into(), old_rsp, flags, cs, event.rip, code];
    let first = if virtual_8086 {
        0
    } else if inner {
        4
    } else {
        6
    };
    let frame = &frame[first..if event.code.is_some() { 10 } else { 9 }];
    stack.require(cpu, frame.len() as u64, size)?;
    if rip > u64::from(target.cs.limit) {
        return Err(cpu.raise(Exception::gp(ext)));
    }
    for value in frame {
        stack.push(cpu, size, *value)?;
    }
    cpu.mark_accessed(&mut target.found)?;
    if virtual_8086 {
        for index in [seg::ES, seg::DS, seg::FS, seg::GS] {
            cpu.state.seg[index] = unusable(0, 0);
        }
    }
    commit(cpu, &target, &stack, gate.kind());
    Ok(rip)
}

/// Enters the handler: nothing can fail any more.
fn commit(cpu: &mut Cpu, target: &Target, stack: &Stack, kind: u32) {
    cpu.state.seg[seg::CS] = target.found.descriptor.segment(target.cs.selector, 0);
    cpu.state.seg[seg::SS] = stack.segment;
    cpu.state.gpr[reg::RSP] = stack.rsp(cpu);
    // Interrupt gates have even types.
    let clears = GATE_CLEARS | if kind & 1 == 0 { rflags::IF } else { 0 };
    cpu.set_rflags(cpu.rflags() & !clears);
}
