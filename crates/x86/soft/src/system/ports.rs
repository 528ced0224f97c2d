//! I/O instructions (SDM volume 1, chapter 19).

use iced_x86::{Instruction, OpKind, Register};
use satori_defs::x86::{cr0, rflags};
use satori_engine::{Exception, Exit, Resume};
use satori_state::reg;

use super::flags::iopl;
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::operands::truncate;

/// Offset of the I/O map base address in a 32-bit or 64-bit TSS (SDM figures 7-2 and 7-11).
pub(super) const TSS_IO_MAP_BASE: u64 = 0x66;
/// Smallest limit of a TSS that has the field.
pub(super) const TSS_MIN_LIMIT: u32 = 0x67;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    In => input,
    Out => output,
    Insb => |cpu, insn| string_input(cpu, insn, 1),
    Insw => |cpu, insn| string_input(cpu, insn, 2),
    Insd => |cpu, insn| string_input(cpu, insn, 4),
    Outsb => |cpu, insn| string_output(cpu, insn, 1),
    Outsw => |cpu, insn| string_output(cpu, insn, 2),
    Outsd => |cpu, insn| string_output(cpu, insn, 4),
});

/// Refuses ports that neither IOPL nor the TSS's I/O permission bit map allows.
fn require_ports(cpu: &mut Cpu, port: u16, size: u8) -> Exec<()> {
    let virtual_8086 = cpu.state.rflags & rflags::VM != 0;
    if cpu.state.cr0 & cr0::PE == 0 || (cpu.cpl() <= iopl(cpu) && !virtual_8086) {
        return Ok(());
    }
    let tr = cpu.state.tr;
    let wide = tr.rights & 0x0d == 9;
    if tr.unusable() || !tr.present() || !wide || tr.limit < TSS_MIN_LIMIT {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let map: u16 = cpu.read_system(tr.base.wrapping_add(TSS_IO_MAP_BASE))?;
    // Two bytes are always read, so that a port's bits may straddle them.
    let offset = u64::from(map) + u64::from(port / 8);
    if offset + 1 > u64::from(tr.limit) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let bits: u16 = cpu.read_system(tr.base.wrapping_add(offset))?;
    if bits >> (port & 7) & ((1 << size) - 1) != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    Ok(())
}

/// The port that operand `op`, DX or an immediate, names.
fn port(cpu: &Cpu, insn: &Instruction, op: u32) -> u16 {
    if insn.op_kind(op) == OpKind::Register {
        cpu.state.gpr[reg::RDX] as u16
    } else {
        insn.immediate8().into()
    }
}

/// What a device gave.
fn value_of(answer: Resume) -> u64 {
    match answer {
        Resume::Value(value) => value,
        // Nothing drives the bus.
        _ => u64::MAX,
    }
}

fn input(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (register, port) = (insn.op0_register(), port(cpu, insn, 1));
    let size = register.size() as u8;
    require_ports(cpu, port, size)?;
    cpu.port_exit(insn, port, size, None)?;
    let value = value_of(cpu.ask_once(Exit::IoRead { port, size })?);
    cpu.watch_ports(port, size);
    cpu.set_reg(register, truncate_bytes(value, size));
    Ok(())
}

fn output(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (register, port) = (insn.op1_register(), port(cpu, insn, 0));
    let size = register.size() as u8;
    require_ports(cpu, port, size)?;
    cpu.port_exit(insn, port, size, None)?;
    let value = cpu.reg(register) as u32;
    cpu.ask_once(Exit::IoWrite { port, size, value })?;
    cpu.watch_ports(port, size);
    Ok(())
}

fn truncate_bytes(value: u64, size: u8) -> u64 {
    value & (u64::MAX >> (64 - 8 * u32::from(size)))
}

/// The counter, index and address width of a string instruction.
struct Iteration {
    index: usize,
    bits: u32,
    repeated: bool,
}

impl Iteration {
    fn of(insn: &Instruction, op: u32, index: usize) -> Self {
        let bits = match insn.op_kind(op) {
            OpKind::MemorySegSI | OpKind::MemoryESDI => 16,
            OpKind::MemorySegESI | OpKind::MemoryESEDI => 32,
            _ => 64,
        };
        Iteration { index, bits, repeated: insn.has_rep_prefix() || insn.has_repne_prefix() }
    }

    /// A register of the address width.
    fn register(&self, index: usize) -> Register {
        let first = match self.bits {
            16 => Register::AX,
            32 => Register::EAX,
            _ => Register::RAX,
        };
        first + index as u32
    }

    fn count(&self, cpu: &Cpu) -> u64 {
        cpu.reg(self.register(reg::RCX))
    }

    fn done(&self, cpu: &Cpu) -> bool {
        self.repeated && self.count(cpu) == 0
    }

    /// Counts one element. While more remain the instruction comes to itself again, so that
    /// interrupts are taken between elements.
    fn advance(&self, cpu: &mut Cpu, size: u8) {
        let step = if cpu.state.rflags & rflags::DF != 0 { -i64::from(size) } else { i64::from(size) };
        let index = self.register(self.index);
        let moved = cpu.reg(index).wrapping_add_signed(step);
        cpu.set_reg(index, truncate(moved, self.bits));
        if self.repeated {
            let left = self.count(cpu) - 1;
            cpu.set_reg(self.register(reg::RCX), left);
            if left != 0 {
                cpu.next_rip = cpu.state.rip;
            }
            cpu.debug.repeats(cpu.state.rip, left != 0);
        }
    }
}

fn string_input(cpu: &mut Cpu, insn: &Instruction, size: u8) -> Exec<()> {
    let iteration = Iteration::of(insn, 0, reg::RDI);
    let port = cpu.state.gpr[reg::RDX] as u16;
    // Without a right to the port no repetition at all faults too.
    require_ports(cpu, port, size)?;
    if iteration.done(cpu) {
        return Ok(());
    }
    let linear = cpu.ea_write(insn, 0)?;
    cpu.port_exit(insn, port, size, Some(linear))?;
    // A fault must come before the device is read.
    cpu.probe_write(linear, size.into())?;
    let value = value_of(cpu.ask(Exit::IoRead { port, size })?);
    cpu.watch_ports(port, size);
    cpu.write_sized(linear, size.into(), value)?;
    iteration.advance(cpu, size);
    Ok(())
}

fn string_output(cpu: &mut Cpu, insn: &Instruction, size: u8) -> Exec<()> {
    let iteration = Iteration::of(insn, 1, reg::RSI);
    let port = cpu.state.gpr[reg::RDX] as u16;
    // Without a right to the port no repetition at all faults too.
    require_ports(cpu, port, size)?;
    if iteration.done(cpu) {
        return Ok(());
    }
    let linear = cpu.ea(insn, 1)?;
    cpu.port_exit(insn, port, size, Some(linear))?;
    let value = cpu.read_sized(linear, size.into())? as u32;
    cpu.ask(Exit::IoWrite { port, size, value })?;
    cpu.watch_ports(port, size);
    iteration.advance(cpu, size);
    Ok(())
}
