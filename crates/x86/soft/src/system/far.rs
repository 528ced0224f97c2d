//! Far jumps and calls, and software interrupts (SDM 5.8; volume 2, JMP, CALL, INT).

use iced_x86::{Code, Instruction, Mnemonic, OpKind};
use satori_defs::x86::vector;
use satori_engine::Exception;
use satori_rules::segment;
use satori_state::{Segment, reg, seg};

use super::deliver::{Delivery, deliver, inner_stack};
use super::descriptor::{Descriptor, Found, null, rpl, selector_fault, system_type, unusable};
use super::stack::Stack;
use super::task::{self, Cause};
use super::v86::{self, Route};
use satori_vmx::event::Interruption;

use crate::cpu::{Cpu, Exec, Stop};
use crate::insn::{Row, rows};
use crate::mmu::canonical;
use crate::operands::truncate;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Jmp if insn.is_jmp_far() || insn.is_jmp_far_indirect() => jump,
    Call if insn.is_call_far() || insn.is_call_far_indirect() => call,
    Int => numbered,
    Int3 => |cpu, insn| software_interrupt(cpu, insn, vector::BP, true),
    // INT1 ignores the gate's DPL (SDM volume 2, INT).
    Int1 => |cpu, insn| software_interrupt(cpu, insn, vector::DB, false),
    Into => into,
});

/// INT n. In virtual-8086 mode it may be refused, or be the program's own affair.
fn numbered(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let number = insn.immediate8();
    if cpu.virtual_8086()
        && let Route::Program { selector, rip } = v86::route(cpu, number)?
    {
        let back = cpu.next_ip(insn);
        cpu.next_rip = v86::interrupt_program(cpu, selector, rip, back)?;
        return Ok(());
    }
    software_interrupt(cpu, insn, number, true)
}

fn software_interrupt(cpu: &mut Cpu, insn: &Instruction, vector: u8, software: bool) -> Exec<()> {
    if insn.mnemonic() != Mnemonic::Int {
        cpu.leave_for_software_exception(vector, insn.len() as u32)?;
    }
    let event = Delivery {
        vector,
        code: None,
        software,
        external: !software && cpu.exceptions_external(),
        resume: false,
        rip: cpu.next_ip(insn),
    };
    cpu.software_vectoring(insn, vector);
    let outcome = deliver(cpu, &event);
    // A fault of the delivery, and only that, has something to tell of the event.
    if outcome != Err(Stop::Fault) {
        cpu.vmx.vectoring = Interruption::default();
    }
    cpu.next_rip = outcome?;
    Ok(())
}

fn into(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if cpu.flags.of() { software_interrupt(cpu, insn, vector::OF, true) } else { Ok(()) }
}

/// Selector, offset and operand size in bytes of a far branch.
fn far_pointer(cpu: &mut Cpu, insn: &Instruction) -> Exec<(u16, u64, u32)> {
    match insn.op0_kind() {
        OpKind::FarBranch16 => Ok((insn.far_branch_selector(), insn.far_branch16().into(), 2)),
        OpKind::FarBranch32 => Ok((insn.far_branch_selector(), insn.far_branch32().into(), 4)),
        _ => {
            let size = match insn.code() {
                Code::Jmp_m1616 | Code::Call_m1616 => 2,
                Code::Jmp_m1632 | Code::Call_m1632 => 4,
                _ => 8,
            };
            let linear = cpu.ea_part(insn, 0, size.into(), false)?;
            let offset = cpu.read_sized(linear, size)?;
            let linear = cpu.ea_part(insn, size.into(), 2, false)?;
            let selector = cpu.read(linear)?;
            Ok((selector, offset, size))
        }
    }
}

/// Whether `cs` makes 64-bit code.
fn long_code(cpu: &Cpu, cs: &Segment) -> bool {
    cpu.state.long_mode() && cs.long()
}

/// Whether code can run at `rip` in `cs`; else #GP(0).
pub(super) fn check_target(cpu: &mut Cpu, cs: &Segment, rip: u64) -> Exec<()> {
    let fits = if long_code(cpu, cs) { canonical(rip) } else { rip <= u64::from(cs.limit) };
    if fits { Ok(()) } else { Err(cpu.raise(Exception::gp(0))) }
}

/// Goes on in another code segment. Nothing can fail any more.
pub(super) fn commit_code(cpu: &mut Cpu, cs: Segment, rip: u64) {
    cpu.state.seg[seg::CS] = cs;
    cpu.mode_changed();
    cpu.next_rip = rip;
}

/// CS in real-address and virtual-8086 mode.
pub(super) fn paragraph_code(cpu: &Cpu, selector: u16) -> Segment {
    Segment { selector, base: u64::from(selector) << 4, ..cpu.state.seg[seg::CS] }
}

/// A code segment's form and presence, for every kind of transfer.
pub(super) fn check_code(cpu: &mut Cpu, code: Descriptor, selector: u16) -> Exec<()> {
    if cpu.state.long_mode() && !segment::one_size(code.rights()) {
        return Err(cpu.raise(selector_fault(vector::GP, selector, 0)));
    }
    if !code.present() {
        return Err(cpu.raise(selector_fault(vector::NP, selector, 0)));
    }
    Ok(())
}

/// The segment register for a direct transfer to a code segment: the privilege level stays.
fn direct_code(cpu: &mut Cpu, found: &mut Found, selector: u16) -> Exec<Segment> {
    let (code, cpl) = (found.descriptor, cpu.cpl());
    if !segment::code(code.rights(), cpl, rpl(selector)) {
        return Err(cpu.raise(selector_fault(vector::GP, selector, 0)));
    }
    check_code(cpu, code, selector)?;
    cpu.mark_accessed(found)?;
    Ok(found.descriptor.segment(selector & !3 | u16::from(cpl), 0))
}

/// The descriptor of a far branch's selector.
fn branch_descriptor(cpu: &mut Cpu, selector: u16) -> Exec<Found> {
    if null(selector) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.require_descriptor(selector, vector::GP, 0)
}

/// A call gate: where it leads, at which privilege level.
struct Gate {
    found: Found,
    selector: u16,
    rip: u64,
    /// Bytes that it pushes at a time.
    size: u32,
    parameters: u64,
}

/// Follows a call gate (SDM 5.8.3). `jumps`: it must not lead to another privilege level.
fn follow_gate(cpu: &mut Cpu, gate: Descriptor, selector: u16, jumps: bool) -> Exec<Gate> {
    let long = cpu.state.long_mode();
    let refused = selector_fault(vector::GP, selector, 0);
    let size = match gate.kind() {
        _ if !gate.system() => return Err(cpu.raise(refused)),
        system_type::CALL_GATE if long => 8,
        system_type::CALL_GATE => 4,
        system_type::CALL_GATE16 if !long => 2,
        _ => return Err(cpu.raise(refused)),
    };
    if gate.dpl() < cpu.cpl() || gate.dpl() < rpl(selector) {
        return Err(cpu.raise(refused));
    }
    if !gate.present() {
        return Err(cpu.raise(selector_fault(vector::NP, selector, 0)));
    }
    let high = if long { cpu.descriptor_high(selector)? } else { 0 };
    let target = gate.gate_selector();
    if null(target) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let found = cpu.require_descriptor(target, vector::GP, 0)?;
    let code = found.descriptor;
    let cpl = cpu.cpl();
    let level = code.dpl() <= cpl && (!jumps || code.conforming() || code.dpl() == cpl);
    if !code.code() || !level || (long && (!code.long() || code.big())) {
        return Err(cpu.raise(selector_fault(vector::GP, target, 0)));
    }
    check_code(cpu, code, target)?;
    let rip = truncate(gate.gate_offset() | (high & 0xffff_ffff) << 32, size * 8);
    let parameters = if long { 0 } else { gate.gate_parameters() };
    Ok(Gate { found, selector: target, rip, size, parameters })
}

/// Goes to `rip` in `cs` if code can run there.
fn jump_here(cpu: &mut Cpu, cs: Segment, rip: u64) -> Exec<()> {
    check_target(cpu, &cs, rip)?;
    commit_code(cpu, cs, rip);
    Ok(())
}

fn jump(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (selector, rip, _) = far_pointer(cpu, insn)?;
    if cpu.paragraph_selectors() {
        let cs = paragraph_code(cpu, selector);
        return jump_here(cpu, cs, rip);
    }
    let mut found = branch_descriptor(cpu, selector)?;
    if found.descriptor.code() {
        let cs = direct_code(cpu, &mut found, selector)?;
        return jump_here(cpu, cs, rip);
    }
    if leads_to_task(cpu, found.descriptor) {
        let back = cpu.next_ip(insn);
        cpu.next_rip = task::branch(cpu, Cause::Jump, found.descriptor, selector, back)?;
        return Ok(());
    }
    // A jump through a gate cannot raise the privilege level.
    let mut gate = follow_gate(cpu, found.descriptor, selector, true)?;
    let cpl = cpu.cpl();
    cpu.mark_accessed(&mut gate.found)?;
    let cs = gate.found.descriptor.segment(gate.selector & !3 | u16::from(cpl), 0);
    jump_here(cpu, cs, gate.rip)
}

/// Whether a descriptor is a TSS or a task gate, which only exist outside IA-32e mode as targets.
fn leads_to_task(cpu: &Cpu, descriptor: Descriptor) -> bool {
    use system_type::{TASK_GATE, TSS, TSS_BUSY, TSS16, TSS16_BUSY};
    !cpu.state.long_mode()
        && descriptor.system()
        && matches!(descriptor.kind(), TASK_GATE | TSS | TSS_BUSY | TSS16 | TSS16_BUSY)
}

/// The current stack, for pushes that only count once the transfer is certain.
pub(super) fn current_stack(cpu: &Cpu, long: bool) -> Stack {
    let (ss, rsp, cpl) = (cpu.state.seg[seg::SS], cpu.state.gpr[reg::RSP], cpu.cpl());
    if long { Stack::long(ss, rsp, cpl, 0) } else { Stack::legacy(ss, rsp, cpl, 0, false) }
}

fn call(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (selector, rip, size) = far_pointer(cpu, insn)?;
    let back = cpu.next_ip(insn);
    if cpu.paragraph_selectors() {
        let cs = paragraph_code(cpu, selector);
        return call_here(cpu, cs, rip, size, back);
    }
    let mut found = branch_descriptor(cpu, selector)?;
    if found.descriptor.code() {
        let cs = direct_code(cpu, &mut found, selector)?;
        return call_here(cpu, cs, rip, size, back);
    }
    if leads_to_task(cpu, found.descriptor) {
        cpu.next_rip = task::branch(cpu, Cause::Call, found.descriptor, selector, back)?;
        return Ok(());
    }
    let mut gate = follow_gate(cpu, found.descriptor, selector, false)?;
    let (code, cpl) = (gate.found.descriptor, cpu.cpl());
    let target_cpl = if code.conforming() { cpl } else { code.dpl() };
    cpu.mark_accessed(&mut gate.found)?;
    let cs = gate.found.descriptor.segment(gate.selector & !3 | u16::from(target_cpl), 0);
    if target_cpl == cpl {
        return call_here(cpu, cs, gate.rip, gate.size, back);
    }
    call_inner(cpu, &gate, cs, target_cpl, back)
}

/// A far call without a change of privilege.
fn call_here(cpu: &mut Cpu, cs: Segment, rip: u64, size: u32, back: u64) -> Exec<()> {
    let mut stack = current_stack(cpu, cpu.derived.code64 || long_code(cpu, &cs));
    stack.require(cpu, 2, size)?;
    check_target(cpu, &cs, rip)?;
    stack.push(cpu, size, cpu.state.seg[seg::CS].selector.into())?;
    stack.push(cpu, size, back)?;
    cpu.state.gpr[reg::RSP] = stack.rsp(cpu);
    commit_code(cpu, cs, rip);
    Ok(())
}

/// A far call through a gate to an inner privilege level.
fn call_inner(cpu: &mut Cpu, gate: &Gate, cs: Segment, cpl: u8, back: u64) -> Exec<()> {
    let (old_ss, old_rsp) = (cpu.state.seg[seg::SS], cpu.state.gpr[reg::RSP]);
    let mut stack = if gate.size == 8 {
        let offset = 4 + 8 * u64::from(cpl);
        let tr = cpu.state.tr;
        if offset + 7 > u64::from(tr.limit) {
            return Err(cpu.raise(selector_fault(vector::TS, tr.selector, 0)));
        }
        let rsp = cpu.read_system(tr.base.wrapping_add(offset))?;
        Stack::long(unusable(cpl.into(), cpl), rsp, cpl, 0)
    } else {
        inner_stack(cpu, cpl, 0)?
    };
    stack.require(cpu, 4 + gate.parameters, gate.size)?;
    check_target(cpu, &cs, gate.rip)?;
    stack.push(cpu, gate.size, old_ss.selector.into())?;
    stack.push(cpu, gate.size, old_rsp)?;
    for i in (0..gate.parameters).rev() {
        let parameter = cpu.peek(i * u64::from(gate.size), gate.size)?;
        stack.push(cpu, gate.size, parameter)?;
    }
    stack.push(cpu, gate.size, cpu.state.seg[seg::CS].selector.into())?;
    stack.push(cpu, gate.size, back)?;
    cpu.state.seg[seg::SS] = stack.segment;
    cpu.state.gpr[reg::RSP] = stack.rsp(cpu);
    commit_code(cpu, cs, gate.rip);
    Ok(())
}
