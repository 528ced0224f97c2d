//! Model-specific registers and the time-stamp counter. What KVM's MSR bitmap passes through is
//! answered here, IA32_SPEC_CTRL as soon as it has held a bit (Linux, arch/x86/kvm/vmx/vmx.c); everything else is an exit.

use iced_x86::Instruction;
use satori_cpuid::controls;
use satori_defs::msr;
use satori_defs::x86::cr4;
use satori_engine::{Exception, Exit, Resume};
use satori_rules as rules;
use satori_state::{reg, seg};

use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::mmu::canonical;
use crate::system::machine::barrier;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Rdmsr => rdmsr,
    Wrmsr => wrmsr,
    Rdtsc => rdtsc,
    Rdtscp => rdtscp,
    Rdpid => rdpid,
    Rdpmc => rdpmc,
});

/// Puts a value into EDX:EAX.
pub(super) fn set_edx_eax(cpu: &mut Cpu, value: u64) {
    cpu.state.gpr[reg::RAX] = value & 0xffff_ffff;
    cpu.state.gpr[reg::RDX] = value >> 32;
}

/// The value in EDX:EAX.
pub(super) fn edx_eax(cpu: &Cpu) -> u64 {
    cpu.state.gpr[reg::RDX] << 32 | cpu.state.gpr[reg::RAX] & 0xffff_ffff
}

/// A register that reads and writes pass through to.
fn passed_through(cpu: &mut Cpu, number: u32) -> Option<&mut u64> {
    let speculation = cpu.speculation_passed;
    let state = &mut cpu.state;
    Some(match number {
        msr::IA32_FS_BASE => &mut state.seg[seg::FS].base,
        msr::IA32_GS_BASE => &mut state.seg[seg::GS].base,
        msr::IA32_KERNEL_GS_BASE => &mut state.kernel_gs_base,
        msr::IA32_SYSENTER_CS => &mut state.sysenter_cs,
        msr::IA32_SYSENTER_ESP => &mut state.sysenter_esp,
        msr::IA32_SYSENTER_EIP => &mut state.sysenter_eip,
        msr::IA32_SPEC_CTRL if speculation => &mut state.spec_ctrl,
        _ => return None,
    })
}

fn rdmsr(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    let number = cpu.state.gpr[reg::RCX] as u32;
    let value = if number == msr::IA32_TSC {
        cpu.read_tsc()?
    } else if let Some(register) = passed_through(cpu, number) {
        *register
    } else {
        match cpu.ask(Exit::MsrRead { msr: number })? {
            Resume::Value(value) => value,
            _ => 0,
        }
    };
    set_edx_eax(cpu, value);
    Ok(())
}

fn wrmsr(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    let (number, value) = (cpu.state.gpr[reg::RCX] as u32, edx_eax(cpu));
    let speculation = number == msr::IA32_SPEC_CTRL;
    let exist = if speculation { controls::spec_ctrl(|feature| cpu.offers(feature)) } else { 0 };
    if let Some(register) = passed_through(cpu, number) {
        // SYSENTER_CS is a selector; the others hold linear addresses.
        let legal = match number {
            msr::IA32_SYSENTER_CS => true,
            msr::IA32_SPEC_CTRL => rules::within(value, exist),
            _ => canonical(value),
        };
        if !legal {
            return Err(cpu.raise(Exception::gp(0)));
        }
        *register = value;
    } else {
        cpu.ask(Exit::MsrWrite { msr: number, value })?;
        if number == msr::IA32_EFER {
            // The exit changed IA32_EFER; NXE is part of every cached translation.
            cpu.flush_tlb(false);
        }
        cpu.speculation_passed |= speculation && value != 0;
    }
    cpu.mode_changed();
    Ok(())
}

fn require_tsc(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr4 & cr4::TSD != 0 { cpu.require_supervisor() } else { Ok(()) }
}

fn rdtsc(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    require_tsc(cpu)?;
    let tsc = cpu.read_tsc()?;
    set_edx_eax(cpu, tsc);
    Ok(())
}

/// Reads behind everything before it (SDM 2B, RDTSCP).
fn rdtscp(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    barrier();
    rdtsc(cpu, insn)?;
    cpu.state.gpr[reg::RCX] = cpu.state.tsc_aux & 0xffff_ffff;
    Ok(())
}

fn rdpid(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.set_reg(insn.op0_register(), cpu.state.tsc_aux & 0xffff_ffff);
    Ok(())
}

fn rdpmc(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    if cpu.state.cr4 & cr4::PCE == 0 {
        cpu.require_supervisor()?;
    }
    let counter = cpu.state.gpr[reg::RCX] as u32;
    if let Resume::Value(value) = cpu.ask(Exit::Rdpmc { counter })? {
        set_edx_eax(cpu, value);
    }
    Ok(())
}
