//! Instructions that need the machine, or concern the processor as a whole.

use std::sync::atomic::{Ordering, fence};

use iced_x86::Instruction;
use satori_cpuid::Feature;
use satori_defs::vmx::ExitReason;
use satori_defs::x86::{cr4, rflags};
use satori_engine::{Exception, Exit, Resume};
use satori_state::{Activity, reg};

use super::msr::{edx_eax, set_edx_eax};
use crate::cpu::{Cpu, Exec, Stop};
use crate::insn::{Row, rows};
use crate::simd;

/// What is implemented here. UD0, UD1, UD2 and RSM outside system-management mode are #UD, like all that nobody
/// implements. VMX instructions: outside VMX operation as the guest sees it, the machine answers #UD.
pub(super) const ROWS: &[Row] = rows!(insn {
    Cpuid => cpuid,
    Hlt => hlt,
    Pause => pause,
    Wbinvd | Wbnoinvd => |cpu, _| ask_supervisor(cpu, Exit::Wbinvd),
    Invd => |cpu, _| ask_supervisor(cpu, Exit::Invd),
    Vmcall => vmcall,
    Vmmcall => |cpu, _| cpu.ask(Exit::Vmcall).map(drop),
    Monitor => |cpu, _| ask_wait(cpu, Exit::Monitor),
    Mwait => |cpu, _| ask_wait(cpu, Exit::Mwait),
    Xsetbv => xsetbv,
    Xgetbv => xgetbv,
    Rdrand | Rdseed => random,
    Lfence | Mfence | Sfence | Serialize => |_, _| {
        barrier();
        Ok(())
    },
    Clflush | Clflushopt | Clwb => flush_line,
    Vmclear => |cpu, _| ask_vmx(cpu, ExitReason::Vmclear),
    Vmlaunch => |cpu, _| ask_vmx(cpu, ExitReason::Vmlaunch),
    Vmresume => |cpu, _| ask_vmx(cpu, ExitReason::Vmresume),
    Vmptrld => |cpu, _| ask_vmx(cpu, ExitReason::Vmptrld),
    Vmptrst => |cpu, _| ask_vmx(cpu, ExitReason::Vmptrst),
    Vmread => |cpu, _| ask_vmx(cpu, ExitReason::Vmread),
    Vmwrite => |cpu, _| ask_vmx(cpu, ExitReason::Vmwrite),
    Vmxoff => |cpu, _| ask_vmx(cpu, ExitReason::Vmoff),
    Vmxon => |cpu, _| ask_vmx(cpu, ExitReason::Vmon),
    Invept => |cpu, _| ask_vmx(cpu, ExitReason::Invept),
    Invvpid => |cpu, _| ask_vmx(cpu, ExitReason::Invvpid),
    Vmfunc => |cpu, _| ask_vmx(cpu, ExitReason::Vmfunc),
});

/// A hypercall. Where nobody serves it, a guest in VMX root operation finds what a processor without a second monitor does.
fn vmcall(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    match cpu.ask(Exit::Vmcall) {
        Err(Stop::Fault) if cpu.pending.fault == Some(Exception::ud()) && cpu.in_vmx_root() => {
            cpu.vmcall_in_root()
        }
        outcome => outcome.map(drop),
    }
}

/// A VMX instruction exits whatever the privilege level, but is #UD where it does not exist.
fn ask_vmx(cpu: &mut Cpu, reason: ExitReason) -> Exec<()> {
    if cpu.paragraph_selectors() || (cpu.state.long_mode() && !cpu.derived.code64) {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.ask(Exit::VmxInstruction(reason)).map(drop)
}

fn ask_supervisor(cpu: &mut Cpu, exit: Exit) -> Exec<()> {
    cpu.require_supervisor()?;
    cpu.ask(exit).map(drop)
}

/// MONITOR and MWAIT, which are #UD outside privilege level 0.
fn ask_wait(cpu: &mut Cpu, exit: Exit) -> Exec<()> {
    if cpu.cpl() != 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.ask(exit).map(drop)
}

fn cpuid(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let (leaf, subleaf) = (cpu.state.gpr[reg::RAX] as u32, cpu.state.gpr[reg::RCX] as u32);
    if let Resume::Cpuid(answer) = cpu.ask_once(Exit::Cpuid { leaf, subleaf })? {
        cpu.state.gpr[reg::RAX] = answer.eax.into();
        cpu.state.gpr[reg::RBX] = answer.ebx.into();
        cpu.state.gpr[reg::RCX] = answer.ecx.into();
        cpu.state.gpr[reg::RDX] = answer.edx.into();
    }
    Ok(())
}

fn hlt(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    cpu.complete(insn);
    cpu.state.activity = Activity::Halted;
    Err(cpu.exit(Exit::Hlt))
}

/// PAUSE-loop exiting counts at privilege level 0 only (SDM 25.1.3).
fn pause(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    // Who spins may be waited for: translated code looks up only after some thousand instructions.
    if cpu.kick().take() {
        cpu.windows.attention = true;
        cpu.complete(insn);
        return Err(cpu.exit(Exit::ExternalInterrupt));
    }
    let window = cpu.controls.ple_window;
    if cpu.cpl() != 0 || window == 0 {
        return Ok(());
    }
    let now = cpu.retired_now();
    if !cpu.count.pause(now, window) {
        return Ok(());
    }
    cpu.complete(insn);
    Err(cpu.exit(Exit::Pause))
}

fn require_xsave(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr4 & cr4::OSXSAVE == 0 { Err(cpu.raise(Exception::ud())) } else { Ok(()) }
}

fn xsetbv(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    require_xsave(cpu)?;
    cpu.require_supervisor()?;
    let value = edx_eax(cpu);
    cpu.ask(Exit::Xsetbv { value })?;
    // XCR0 is the only one. The machine has seen whether it can have this value.
    if cpu.state.gpr[reg::RCX] as u32 != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.state.xcr0 = value;
    cpu.mode_changed();
    Ok(())
}

/// XGETBV of XCR0, and of what of it is in use.
fn xgetbv(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    require_xsave(cpu)?;
    let xcr0 = cpu.state.xcr0;
    let value = match cpu.state.gpr[reg::RCX] as u32 {
        0 => xcr0,
        1 if cpu.offers(Feature::Xgetbv1) => xcr0 & simd::in_use_with_mxcsr(cpu),
        _ => return Err(cpu.raise(Exception::gp(0))),
    };
    set_edx_eax(cpu, value);
    Ok(())
}

/// RDRAND and RDSEED: CF tells that there is a number, which else is 0; the other status flags are
/// cleared.
fn random(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = cpu.entropy().next();
    cpu.set_reg(insn.op0_register(), value.unwrap_or(0));
    cpu.flags.set_bits(if value.is_some() { rflags::CF } else { 0 });
    Ok(())
}

/// What comes next waits for everything before: reads of the time, too.
pub(super) fn barrier() {
    fence(Ordering::SeqCst);
    // That orders accesses to memory only.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has LFENCE.
    unsafe {
        std::arch::x86_64::_mm_lfence()
    };
}

/// Caches are not modelled; the address is checked as for a load of a byte.
fn flush_line(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let linear = cpu.ea(insn, 0)?;
    cpu.probe_read(linear)
}
