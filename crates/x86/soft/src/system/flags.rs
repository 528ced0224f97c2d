//! Instructions on RFLAGS as a whole and on its system bits (SDM volume 1, 3.4.3; volume 2).

use iced_x86::Instruction;
use satori_defs::x86::{cr0, cr4, rflags};
use satori_engine::Exception;

use super::v86;
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Cli => cli,
    Sti => sti,
    Pushf => |cpu, _| pushf(cpu, 2),
    Pushfd => |cpu, _| pushf(cpu, 4),
    Pushfq => |cpu, _| pushf(cpu, 8),
    Popf => |cpu, _| popf(cpu, 2),
    Popfd => |cpu, _| popf(cpu, 4),
    Popfq => |cpu, _| popf(cpu, 8),
    Clac => |cpu, _| set_ac(cpu, false),
    Stac => |cpu, _| set_ac(cpu, true),
});

/// What decides which flags may be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlagsContext {
    /// Current privilege level.
    pub cpl: u8,
    /// I/O privilege level.
    pub iopl: u8,
}

impl FlagsContext {
    /// The context now.
    pub(super) fn of(cpu: &Cpu) -> Self {
        FlagsContext { cpl: cpu.cpl(), iopl: iopl(cpu) }
    }

    /// `old` with the bits of `mask` from `new`.
    pub(super) const fn merge(self, old: u64, new: u64, mask: u64) -> u64 {
        old & !mask | new & mask
    }
}

/// The I/O privilege level.
pub(super) fn iopl(cpu: &Cpu) -> u8 {
    ((cpu.state.rflags & rflags::IOPL) >> 12) as u8
}

/// Bits of RFLAGS that exist.
pub(super) const DEFINED: u64 = 0x3f_7fd7;

/// Flags that POPF and IRET of `size` bytes load (SDM volume 2, table 4-17), RF included.
pub(super) const fn loadable(context: FlagsContext, size: u32) -> u64 {
    let mut mask = rflags::STATUS | rflags::TF | rflags::DF | rflags::NT;
    if size != 2 {
        mask |= rflags::RF | rflags::AC | rflags::ID;
    }
    if context.cpl <= context.iopl {
        mask |= rflags::IF;
    }
    if context.cpl == 0 {
        mask |= rflags::IOPL;
    }
    mask
}

/// PUSHF's image shows RF and VM clear.
fn pushf(cpu: &mut Cpu, size: u32) -> Exec<()> {
    if trapped(cpu) {
        require_virtual_flags(cpu, size)?;
        return cpu.push(size, v86::flags_image(cpu));
    }
    cpu.push(size, cpu.rflags() & !(rflags::RF | rflags::VM))
}

fn popf(cpu: &mut Cpu, size: u32) -> Exec<()> {
    if trapped(cpu) {
        require_virtual_flags(cpu, size)?;
        let image = cpu.peek(0, size)?;
        let flags = v86::load_flags_image(cpu, image)?;
        cpu.pop(size)?;
        cpu.set_rflags(flags);
        return Ok(());
    }
    let context = FlagsContext::of(cpu);
    let image = cpu.pop(size)?;
    // RF is cleared whatever the image says.
    let flags = context.merge(cpu.rflags(), image & !rflags::RF, loadable(context, size) | rflags::RF);
    cpu.set_rflags(flags);
    Ok(())
}

/// Whether virtual-8086 mode protects IF from this program.
pub(super) fn trapped(cpu: &Cpu) -> bool {
    cpu.virtual_8086() && iopl(cpu) < 3
}

/// Where [`trapped`], only the 16-bit forms of PUSHF, POPF and IRET execute, and those only under
/// the virtual-8086 mode extensions (SDM 21.3.3.4).
pub(super) fn require_virtual_flags(cpu: &mut Cpu, size: u32) -> Exec<()> {
    if size == 2 && cpu.state.cr4 & cr4::VME != 0 { Ok(()) } else { Err(cpu.raise(Exception::gp(0))) }
}

/// Which flag CLI and STI act on.
enum Target {
    Real,
    /// VIF, under the virtual-8086 mode extensions or protected-mode virtual interrupts.
    Virtual,
}

fn interrupt_target(cpu: &mut Cpu) -> Exec<Target> {
    let protected = cpu.state.cr0 & cr0::PE != 0;
    if !protected || cpu.cpl() <= iopl(cpu) {
        return Ok(Target::Real);
    }
    let extension = if cpu.virtual_8086() { cr4::VME } else { cr4::PVI };
    if cpu.cpl() == 3 && cpu.state.cr4 & extension != 0 {
        return Ok(Target::Virtual);
    }
    Err(cpu.raise(Exception::gp(0)))
}

fn cli(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let flag = match interrupt_target(cpu)? {
        Target::Real => rflags::IF,
        Target::Virtual => rflags::VIF,
    };
    cpu.state.rflags &= !flag;
    Ok(())
}

fn sti(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    match interrupt_target(cpu)? {
        Target::Real => {
            if cpu.state.rflags & rflags::IF == 0 {
                cpu.state.rflags |= rflags::IF;
                cpu.shadow_interrupts();
            }
        }
        Target::Virtual => {
            if cpu.state.rflags & rflags::VIP != 0 {
                return Err(cpu.raise(Exception::gp(0)));
            }
            cpu.state.rflags |= rflags::VIF;
        }
    }
    Ok(())
}

fn set_ac(cpu: &mut Cpu, ac: bool) -> Exec<()> {
    if cpu.cpl() != 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.state.rflags = cpu.state.rflags & !rflags::AC | if ac { rflags::AC } else { 0 };
    cpu.mode_changed();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_decides_which_flags_are_loaded() {
        let user = FlagsContext { cpl: 3, iopl: 0 };
        assert_eq!(loadable(user, 8) & (rflags::IF | rflags::IOPL), 0);
        assert_ne!(loadable(user, 8) & rflags::AC, 0);
        assert_eq!(loadable(user, 2) & (rflags::AC | rflags::ID | rflags::RF), 0);
        let driver = FlagsContext { cpl: 3, iopl: 3 };
        assert_eq!(loadable(driver, 4) & (rflags::IF | rflags::IOPL), rflags::IF);
        let kernel = FlagsContext { cpl: 0, iopl: 0 };
        assert_eq!(loadable(kernel, 8) & (rflags::IF | rflags::IOPL), rflags::IF | rflags::IOPL);
        for context in [user, driver, kernel] {
            for size in [2, 4, 8] {
                assert_eq!(loadable(context, size) & (rflags::VM | rflags::VIF | rflags::VIP), 0);
            }
        }
        assert_eq!(
            kernel.merge(rflags::VIF | rflags::CF, rflags::ZF, rflags::CF | rflags::ZF),
            rflags::VIF | rflags::ZF
        );
    }
}
