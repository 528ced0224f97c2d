//! Far returns and returns from interrupts (SDM 5.8.6, 6.12; volume 2, RET, IRET).

use iced_x86::Instruction;
use satori_defs::x86::{cr0, rflags, vector};
use satori_engine::Exception;
use satori_rules::segment;
use satori_state::{Segment, reg, seg};

use super::descriptor::{null, rpl, selector_fault, unusable};
use super::far::{check_code, check_target, commit_code, paragraph_code};
use super::flags::{FlagsContext, loadable, require_virtual_flags, trapped};
use super::{task, v86};
use crate::cpu::{Cpu, Exec, Stop};
use crate::insn::{Row, rows};
use crate::operands::truncate;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Retf => retf,
    Iret => |cpu, insn| unblocking(cpu, insn, 2),
    Iretd => |cpu, insn| unblocking(cpu, insn, 4),
    Iretq => |cpu, insn| unblocking(cpu, insn, 8),
});

/// The code segment that a return leads to.
fn return_code(cpu: &mut Cpu, selector: u16) -> Exec<Segment> {
    if null(selector) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let mut found = cpu.require_descriptor(selector, vector::GP, 0)?;
    let code = found.descriptor;
    if !segment::code_for(code.rights(), cpu.cpl(), rpl(selector)) {
        return Err(cpu.raise(selector_fault(vector::GP, selector, 0)));
    }
    check_code(cpu, code, selector)?;
    cpu.mark_accessed(&mut found)?;
    Ok(found.descriptor.segment(selector, 0))
}

/// The stack segment that a return pops, for code in `cs`.
fn return_stack(cpu: &mut Cpu, cs: &Segment, selector: u16) -> Exec<Segment> {
    let cpl = rpl(cs.selector);
    if null(selector) {
        if cpu.state.long_mode() && cs.long() && cpl != 3 && rpl(selector) == cpl {
            return Ok(unusable(selector, cpl));
        }
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.outer_stack_segment(selector, cpl, vector::GP)
}

/// Makes the return: code, stack, and data segments that the outer level may not have.
fn commit(cpu: &mut Cpu, cs: Segment, rip: u64, stack: Option<(Segment, u64)>) {
    let outer = rpl(cs.selector) > cpu.cpl();
    if let Some((ss, rsp)) = stack {
        cpu.state.seg[seg::SS] = ss;
        cpu.state.gpr[reg::RSP] = rsp;
    }
    if outer {
        for index in [seg::ES, seg::DS, seg::FS, seg::GS] {
            let segment = &mut cpu.state.seg[index];
            let conforming = segment.rights & 0x0c == 0x0c;
            if segment.unusable() {
                segment.selector = 0;
            } else if !conforming && segment.dpl() < rpl(cs.selector) {
                *segment = Segment { base: segment.base, ..unusable(0, 0) };
            }
        }
    }
    commit_code(cpu, cs, rip);
}

/// A popped stack pointer, as far as the stack segment uses it.
fn stack_pointer(cpu: &Cpu, cs: &Segment, ss: &Segment, popped: u64) -> u64 {
    if (cpu.state.long_mode() && cs.long()) || ss.big() {
        popped
    } else {
        cpu.state.gpr[reg::RSP] & !0xffff | popped & 0xffff
    }
}

fn retf(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    // RSP moves by CS and RIP, and by the immediate.
    let release = if insn.op_count() == 0 { 0 } else { u64::from(insn.immediate16()) };
    let size = (insn.stack_pointer_increment().unsigned_abs() - release as u32) / 2;
    let bytes = u64::from(size);
    let rip = cpu.peek(0, size)?;
    let selector = cpu.peek(bytes, size)? as u16;
    let (sp, mask) = cpu.stack_pointer();
    if cpu.paragraph_selectors() {
        let cs = paragraph_code(cpu, selector);
        check_target(cpu, &cs, rip)?;
        cpu.set_stack_pointer(sp.wrapping_add(2 * bytes + release) & mask);
        commit_code(cpu, cs, rip);
        return Ok(());
    }
    let cs = return_code(cpu, selector)?;
    if rpl(selector) == cpu.cpl() {
        check_target(cpu, &cs, rip)?;
        cpu.set_stack_pointer(sp.wrapping_add(2 * bytes + release) & mask);
        commit(cpu, cs, rip, None);
        return Ok(());
    }
    let popped = cpu.peek(2 * bytes + release, size)?;
    let ss = cpu.peek(3 * bytes + release, size)? as u16;
    let ss = return_stack(cpu, &cs, ss)?;
    check_target(cpu, &cs, rip)?;
    // The immediate releases parameters from both stacks.
    let rsp = stack_pointer(cpu, &cs, &ss, popped);
    let long = cpu.state.long_mode() && cs.long();
    let released = rsp.wrapping_add(release);
    let rsp = if long {
        released
    } else if ss.big() {
        truncate(released, 32)
    } else {
        rsp & !0xffff | released & 0xffff
    };
    commit(cpu, cs, rip, Some((ss, rsp)));
    Ok(())
}

/// IRET ends the blocking of NMIs even if it causes a fault (SDM 6.7.1).
fn unblocking(cpu: &mut Cpu, insn: &Instruction, size: u32) -> Exec<()> {
    let outcome = iret(cpu, insn, size);
    if outcome != Err(Stop::Exit) {
        cpu.unblock_nmis();
    }
    if outcome.is_ok() {
        cpu.vmx.nmi_unblocked = false;
    }
    outcome
}

/// IRET of 16 bits in virtual-8086 mode under its extensions, with an IOPL below 3.
fn iret_virtual_flags(cpu: &mut Cpu) -> Exec<()> {
    let rip = cpu.peek(0, 2)?;
    let selector = cpu.peek(2, 2)? as u16;
    let image = cpu.peek(4, 2)?;
    let flags = v86::load_flags_image(cpu, image)?;
    let (sp, mask) = cpu.stack_pointer();
    cpu.set_stack_pointer(sp.wrapping_add(6) & mask);
    cpu.set_rflags(flags);
    commit_code(cpu, v86::segment(selector), rip);
    Ok(())
}

fn iret(cpu: &mut Cpu, insn: &Instruction, size: u32) -> Exec<()> {
    let bytes = u64::from(size);
    if trapped(cpu) {
        require_virtual_flags(cpu, size)?;
        return iret_virtual_flags(cpu);
    }
    if cpu.state.cr0 & cr0::PE != 0 && cpu.rflags() & rflags::NT != 0 && !cpu.virtual_8086() {
        if cpu.state.long_mode() {
            return Err(cpu.raise(Exception::gp(0)));
        }
        let back = cpu.next_ip(insn);
        cpu.next_rip = task::iret(cpu, back)?;
        return Ok(());
    }
    let rip = cpu.peek(0, size)?;
    let selector = cpu.peek(bytes, size)? as u16;
    let image = cpu.peek(2 * bytes, size)?;
    let (sp, mask) = cpu.stack_pointer();
    let context = FlagsContext::of(cpu);
    let flags = context.merge(cpu.rflags(), image, loadable(context, size));
    if cpu.paragraph_selectors() {
        let cs = paragraph_code(cpu, selector);
        check_target(cpu, &cs, rip)?;
        cpu.set_stack_pointer(sp.wrapping_add(3 * bytes) & mask);
        cpu.set_rflags(flags);
        commit_code(cpu, cs, rip);
        return Ok(());
    }
    if !cpu.state.long_mode() && size == 4 && image & rflags::VM != 0 && cpu.cpl() == 0 {
        cpu.next_rip = v86::enter(cpu, rip, selector, image)?;
        return Ok(());
    }
    let cs = return_code(cpu, selector)?;
    // 64-bit mode always pops SS:RSP.
    let stack = if cpu.derived.code64 || rpl(selector) > cpu.cpl() {
        let popped = cpu.peek(3 * bytes, size)?;
        let ss = cpu.peek(4 * bytes, size)? as u16;
        let ss = return_stack(cpu, &cs, ss)?;
        Some((ss, stack_pointer(cpu, &cs, &ss, popped)))
    } else {
        None
    };
    check_target(cpu, &cs, rip)?;
    // VIF and VIP are loaded at privilege level 0 only, and only by the wider forms.
    let virtual_flags = if context.cpl == 0 && size != 2 { rflags::VIF | rflags::VIP } else { 0 };
    let flags = flags & !virtual_flags | image & virtual_flags;
    if stack.is_none() {
        cpu.set_stack_pointer(sp.wrapping_add(3 * bytes) & mask);
    }
    commit(cpu, cs, rip, stack);
    cpu.set_rflags(flags);
    Ok(())
}
