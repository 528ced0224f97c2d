//! PKRU, the rights by protection key (SDM 4.6.2).

use iced_x86::Instruction;
use satori_defs::x86::cr4;
use satori_engine::Exception;
use satori_state::reg;

use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Rdpkru => rdpkru,
    Wrpkru => wrpkru,
});

impl Cpu {
    /// Sets PKRU.
    pub fn set_pkru(&mut self, pkru: u32) {
        self.state.pkru = pkru;
        self.mmu.tlb.set_pkru(pkru);
    }

    /// #UD without CR4.PKE, #GP(0) unless the low half of RCX is 0.
    fn require_pkru(&mut self) -> Exec<()> {
        if self.state.cr4 & cr4::PKE == 0 {
            return Err(self.raise(Exception::ud()));
        }
        if self.state.gpr[reg::RCX] as u32 != 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        Ok(())
    }
}

fn rdpkru(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_pkru()?;
    cpu.state.gpr[reg::RAX] = cpu.state.pkru.into();
    cpu.state.gpr[reg::RDX] = 0;
    Ok(())
}

fn wrpkru(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_pkru()?;
    if cpu.state.gpr[reg::RDX] as u32 != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.set_pkru(cpu.state.gpr[reg::RAX] as u32);
    Ok(())
}
