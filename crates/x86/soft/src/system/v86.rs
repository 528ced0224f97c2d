//! Virtual-8086 mode (SDM volume 3, chapter 21): entering it, and its software interrupts.

use satori_defs::x86::{cr4, rflags, vector};
use satori_engine::Exception;
use satori_state::{Segment, seg};

use super::descriptor::selector_fault;
use super::flags::iopl;
use super::ports::{TSS_IO_MAP_BASE, TSS_MIN_LIMIT};
use crate::cpu::{Cpu, Exec};

/// Access rights of every segment in virtual-8086 mode (SDM 27.3.1.2).
const RIGHTS: u32 = 0xf3;
/// Bytes of the software interrupt redirection bit map, which ends where the I/O map begins.
const REDIRECTION: u64 = 32;

impl Cpu {
    /// In virtual-8086 mode.
    pub(super) fn virtual_8086(&self) -> bool {
        self.state.rflags & rflags::VM != 0
    }
}

/// A segment register in virtual-8086 mode.
pub(super) const fn segment(selector: u16) -> Segment {
    Segment { selector, rights: RIGHTS, limit: 0xffff, base: (selector as u64) << 4 }
}

/// Which way INT n goes in virtual-8086 mode (SDM table 21-2).
pub(super) enum Route {
    /// Through the IDT, as from any other code.
    Idt,
    /// Through the interrupt vector table at linear address 0: where it leads.
    Program { selector: u16, rip: u64 },
}

/// Decides about INT `number`, which IOPL and the redirection bit map may refuse.
pub(super) fn route(cpu: &mut Cpu, number: u8) -> Exec<Route> {
    if cpu.state.cr4 & cr4::VME != 0 && !redirected_to_idt(cpu, number)? {
        let entry: u32 = cpu.read_system(4 * u64::from(number))?;
        return Ok(Route::Program { selector: (entry >> 16) as u16, rip: u64::from(entry & 0xffff) });
    }
    if iopl(cpu) < 3 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    Ok(Route::Idt)
}

/// The bit of interrupt `number` in the redirection bit map of the TSS.
fn redirected_to_idt(cpu: &mut Cpu, number: u8) -> Exec<bool> {
    let tr = cpu.state.tr;
    let refused = Exception::gp(0);
    if tr.limit < TSS_MIN_LIMIT {
        return Err(cpu.raise(refused));
    }
    let map: u16 = cpu.read_system(tr.base.wrapping_add(TSS_IO_MAP_BASE))?;
    let offset = (u64::from(map) + u64::from(number / 8)).wrapping_sub(REDIRECTION);
    if offset > u64::from(tr.limit) {
        return Err(cpu.raise(refused));
    }
    let bits: u8 = cpu.read_system(tr.base.wrapping_add(offset))?;
    Ok(bits >> (number & 7) & 1 != 0)
}

/// The low half of EFLAGS as code in virtual-8086 mode sees it: with an IOPL below 3 the virtual
/// interrupt flag is in the place of IF, and IOPL reads as 3 (SDM 21.3.3.4).
pub(super) fn flags_image(cpu: &Cpu) -> u64 {
    let flags = cpu.rflags() & 0xffff;
    if iopl(cpu) == 3 {
        return flags;
    }
    let enabled = cpu.state.rflags & rflags::VIF != 0;
    flags & !rflags::IF | rflags::IOPL | if enabled { rflags::IF } else { 0 }
}

/// RFLAGS after POPF or IRET of 16 bits loaded `image` under the extensions, with an IOPL below 3.
pub(super) fn load_flags_image(cpu: &mut Cpu, image: u64) -> Exec<u64> {
    let enables = image & rflags::IF != 0;
    if image & rflags::TF != 0 || (enables && cpu.state.rflags & rflags::VIP != 0) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let loaded = rflags::STATUS | rflags::TF | rflags::DF | rflags::NT;
    let flags = cpu.rflags() & !(loaded | rflags::VIF | rflags::RF) | image & loaded;
    Ok(flags | if enables { rflags::VIF } else { 0 })
}

/// Makes INT n go to the 8086 program's own handler. Returns where.
pub(super) fn interrupt_program(cpu: &mut Cpu, selector: u16, rip: u64, back: u64) -> Exec<u64> {
    let image = flags_image(cpu);
    let mut stack = super::far::current_stack(cpu, false);
    stack.push(cpu, 2, image)?;
    stack.push(cpu, 2, cpu.state.seg[seg::CS].selector.into())?;
    stack.push(cpu, 2, back)?;
    let interrupts = if iopl(cpu) == 3 { rflags::IF } else { rflags::VIF };
    cpu.state.gpr[satori_state::reg::RSP] = stack.rsp(cpu);
    cpu.state.seg[seg::CS] = segment(selector);
    cpu.set_rflags(cpu.rflags() & !(interrupts | rflags::TF | rflags::RF));
    Ok(rip)
}

/// IRET to virtual-8086 mode: pops everything that an interrupt from there pushed.
pub(super) fn enter(cpu: &mut Cpu, rip: u64, code: u16, flags: u64) -> Exec<u64> {
    let mut frame = [0; 6];
    for (i, value) in frame.iter_mut().enumerate() {
        *value = cpu.peek(12 + 4 * i as u64, 4)?;
    }
    if rip > 0xffff {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let [esp, ss, es, ds, fs, gs] = frame;
    for (index, selector) in
        [(seg::CS, code.into()), (seg::SS, ss), (seg::ES, es), (seg::DS, ds), (seg::FS, fs), (seg::GS, gs)]
    {
        cpu.state.seg[index] = segment(selector as u16);
    }
    cpu.state.gpr[satori_state::reg::RSP] = esp;
    cpu.set_rflags(flags & super::flags::DEFINED);
    Ok(rip)
}

/// What an interrupt handler at privilege level 0 finds on its stack, deepest first, beyond the
/// frame that every handler finds; and what it is refused with if it is not at level 0.
pub(super) fn outgoing(cpu: &Cpu) -> [u64; 4] {
    [seg::GS, seg::FS, seg::DS, seg::ES].map(|index| cpu.state.seg[index].selector.into())
}

/// Only handlers at privilege level 0 can interrupt virtual-8086 mode (SDM 21.3.1).
pub(super) fn require_level0(cpu: &mut Cpu, handler: u8, selector: u16, ext: u32) -> Exec<()> {
    if handler == 0 { Ok(()) } else { Err(cpu.raise(selector_fault(vector::GP, selector, ext))) }
}
