//! RDMSR and WRMSR: which part of the machine owns the register.
//!
//! Registers that the MSR bitmap passes through (FS, GS and KERNEL_GS base, SYSENTER_*, reads of
//! the TSC) never come here.

use std::collections::BTreeSet;
use std::sync::Mutex;

use satori_bus::Clock;
use satori_cpuid::Feature;
use satori_cpuid::msrs::{self, Owner};
use satori_defs::apic::base;
use satori_defs::hyperv::{REFERENCE_HZ, msr as synthetic};
use satori_defs::msr::*;
use satori_defs::x86::{cr0, efer};
use satori_engine::{Exception, Resume};

use crate::{Asked, Context};

pub(crate) fn read(context: &mut Context<'_>, msr: u32) -> Resume {
    match get(context, msr) {
        Ok(value) => Resume::Value(value),
        Err(Gp) => {
            if context.msrs.row(msr).is_none() {
                context.platform.refused.tell("reads", msr);
            }
            tracing::debug!(msr = format_args!("{msr:#x}"), "RDMSR refused");
            Resume::Fault(Exception::gp(0))
        }
    }
}

pub(crate) fn write(context: &mut Context<'_>, msr: u32, value: u64) -> Resume {
    match set(context, msr, value) {
        Ok(()) => Resume::Done,
        Err(Gp) => {
            if context.msrs.row(msr).is_none() {
                context.platform.refused.tell("writes", msr);
            }
            let (msr, value) = (format_args!("{msr:#x}"), format_args!("{value:#x}"));
            tracing::debug!(msr, value, "WRMSR refused");
            Resume::Fault(Exception::gp(0))
        }
    }
}

/// The MSRs that were refused, each told of once: a guest that needs one may need it to exist.
#[derive(Debug, Default)]
pub struct Refused(Mutex<BTreeSet<u32>>);

/// A guest that asks for more than these is looking for trouble, not for a register.
const REFUSED_MAX: usize = 200;

impl Refused {
    fn tell(&self, what: &str, msr: u32) {
        let mut told = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if told.len() < REFUSED_MAX && told.insert(msr) {
            match msrs::find(msr) {
                Some(row) => tracing::info!("the guest {what} MSR {msr:#x} ({}), not offered: #GP", row.name),
                None => tracing::info!("the guest {what} MSR {msr:#x}, which is not known: #GP"),
            }
        }
    }
}

/// Who answers, by the table; #GP if the register does not exist.
fn owner(context: &Context<'_>, msr: u32) -> Result<Owner, Gp> {
    context.msrs.row(msr).map(|row| row.owner).ok_or(Gp)
}

fn get(context: &mut Context<'_>, msr: u32) -> Result<u64, Gp> {
    match owner(context, msr)? {
        Owner::Platform { .. } => context.msrs.read(msr),
        Owner::Engine(_) => engine_register(context, msr),
        Owner::Lapic(_) => {
            let tsc = context.platform.clock.tsc();
            match msr {
                IA32_APIC_BASE => Ok(context.lapic.base()),
                IA32_TSC_DEADLINE => {
                    let value = context.lapic.tsc_deadline(tsc);
                    Ok(deadline(context, value, |clock, at| clock.to_guest(at)))
                }
                _ => {
                    context.load_tpr();
                    context.lapic.msr_read(msr, tsc)
                }
            }
        }
        Owner::Hyperv => synthetic_register(context, msr),
    }
}

fn engine_register(context: &Context<'_>, msr: u32) -> Result<u64, Gp> {
    let state = context.vcpu.state();
    Ok(match msr {
        IA32_TSC => context.platform.clock.guest_tsc().wrapping_add(state.tsc_offset),
        // WRMSR to either register moves both by the same amount (SDM 18.17.3).
        IA32_TSC_ADJUST => state.tsc_offset,
        IA32_EFER => state.efer,
        IA32_STAR => state.star,
        IA32_LSTAR => state.lstar,
        IA32_CSTAR => state.cstar,
        IA32_FMASK => state.fmask,
        IA32_PAT => state.pat,
        IA32_XSS => state.xss,
        IA32_TSC_AUX => state.tsc_aux,
        _ => return Err(Gp),
    })
}

fn set(context: &mut Context<'_>, msr: u32, value: u64) -> Result<(), Gp> {
    match owner(context, msr)? {
        Owner::Platform { .. } if msr == IA32_MISC_ENABLE => set_misc_enable(context, value),
        Owner::Platform { .. } => context.msrs.write(msr, value),
        Owner::Engine(_) => set_engine_register(context, msr, value),
        Owner::Lapic(_) => {
            let tsc = context.platform.clock.tsc();
            match msr {
                // Where x2APIC mode is not offered, its bit is reserved.
                IA32_APIC_BASE if value & base::EXTD != 0 && !context.platform.cpuid.has(Feature::X2apic) => {
                    return Err(Gp);
                }
                IA32_APIC_BASE => context.lapic.write_base(value)?,
                IA32_TSC_DEADLINE => {
                    let value = deadline(context, value, |clock, at| clock.of_guest(at));
                    context.lapic.set_tsc_deadline(value, tsc);
                }
                _ => {
                    context.load_tpr();
                    let ended = context.lapic.msr_write(msr, value, tsc)?;
                    context.store_tpr();
                    context.broadcast_eoi(ended);
                }
            }
            Ok(())
        }
        Owner::Hyperv if (synthetic::EOI..=synthetic::TPR).contains(&msr) => {
            context.platform.hyperv.as_ref().ok_or(Gp)?.permit(msr)?;
            let tsc = context.platform.clock.tsc();
            context.load_tpr();
            let ended = context.lapic.synthetic_write(msr, value, tsc)?;
            context.store_tpr();
            context.broadcast_eoi(ended);
            Ok(())
        }
        Owner::Hyperv => {
            let hyperv = context.platform.hyperv.as_ref().ok_or(Gp)?;
            let outcome = hyperv.msr_write(context.hyperv, msr, value)?;
            context.act(outcome);
            Ok(())
        }
    }
}

/// A value of IA32_TSC_DEADLINE, which the local APIC has in units of the partition's TSC; the
/// guest's own runs at another frequency once that was changed. 0 is no deadline.
fn deadline(context: &Context<'_>, value: u64, convert: impl Fn(&dyn Clock, u64) -> u64) -> u64 {
    let offset = context.vcpu.state().tsc_offset;
    match value {
        0 => 0,
        _ => convert(&*context.platform.clock, value.wrapping_sub(offset)).wrapping_add(offset),
    }
}

fn set_engine_register(context: &mut Context<'_>, msr: u32, value: u64) -> Result<(), Gp> {
    match msr {
        IA32_TSC => {
            let tsc = context.platform.clock.tsc();
            let guest = context.platform.clock.to_guest(tsc);
            set_tsc_offset(context, value.wrapping_sub(guest), tsc);
        }
        IA32_TSC_ADJUST => {
            let tsc = context.platform.clock.tsc();
            set_tsc_offset(context, value, tsc);
        }
        IA32_EFER => set_efer(context, value)?,
        IA32_STAR => context.vcpu.state_mut().star = value,
        IA32_LSTAR => context.vcpu.state_mut().lstar = canonical(value)?,
        IA32_CSTAR => context.vcpu.state_mut().cstar = canonical(value)?,
        IA32_FMASK => context.vcpu.state_mut().fmask = low_half(value)?,
        IA32_PAT => context.vcpu.state_mut().pat = memory_types(value)?,
        // No component is for the supervisor alone: all of its bits are reserved.
        IA32_XSS if value == 0 => {
            context.vcpu.state_mut().xss = value;
        }
        IA32_TSC_AUX => context.vcpu.state_mut().tsc_aux = low_half(value)?,
        _ => return Err(Gp),
    }
    Ok(())
}

/// Execute-disable cannot be taken away while it is in use, and only where it is offered.
fn set_misc_enable(context: &mut Context<'_>, value: u64) -> Result<(), Gp> {
    let in_use = context.vcpu.state().efer & efer::NXE != 0;
    let possible = context.platform.cpuid.has(Feature::Nx) && !in_use;
    if value & misc_enable::XD_DISABLE != 0 && !possible {
        return Err(Gp);
    }
    context.msrs.write(IA32_MISC_ENABLE, value)
}

/// What the Hyper-V interface has, but the local APIC or the machine answers, and the rest.
fn synthetic_register(context: &mut Context<'_>, msr: u32) -> Result<u64, Gp> {
    let hyperv = context.platform.hyperv.as_ref().ok_or(Gp)?;
    match msr {
        synthetic::EOI..=synthetic::TPR => {
            hyperv.permit(msr)?;
            context.load_tpr();
            context.lapic.synthetic_read(msr)
        }
        synthetic::VP_RUNTIME => {
            hyperv.permit(msr)?;
            let ran = context.platform.runtime.ran(context.vcpu.retired());
            Ok(ran * REFERENCE_HZ / 1_000_000_000)
        }
        synthetic::GUEST_IDLE => {
            hyperv.permit(msr)?;
            context.asked = Asked::Idle;
            Ok(0)
        }
        _ => hyperv.msr_read(context.hyperv, msr),
    }
}

fn set_tsc_offset(context: &mut Context<'_>, offset: u64, tsc: u64) {
    context.vcpu.state_mut().tsc_offset = offset;
    context.lapic.set_tsc_offset(offset, tsc);
}

/// LMA is the processor's, LME cannot change while paging is on, bits without their feature and
/// all others are reserved (SDM 2.2.1, 10.8.5).
fn set_efer(context: &mut Context<'_>, value: u64) -> Result<(), Gp> {
    let state = context.vcpu.state();
    let features = [
        (efer::SCE, Feature::Syscall),
        (efer::LME, Feature::Lm),
        (efer::NXE, Feature::Nx),
        (efer::AIBRSE, Feature::AutoIbrs),
    ];
    let offered = features.into_iter().filter(|&(_, feature)| context.platform.cpuid.has(feature));
    let hidden = if context.msrs.misc_enable() & misc_enable::XD_DISABLE != 0 { efer::NXE } else { 0 };
    let writable = offered.fold(0, |bits, (bit, _)| bits | bit) & !hidden;
    let reserved = value & !(writable | efer::LMA) != 0;
    let paging = state.cr0 & cr0::PG != 0;
    if reserved || paging && (value ^ state.efer) & efer::LME != 0 {
        return Err(Gp);
    }
    let kept = state.efer & efer::LMA;
    context.vcpu.state_mut().efer = value & writable | kept;
    Ok(())
}

/// Bits 63:47 are alike.
fn canonical(value: u64) -> Result<u64, Gp> {
    let sign_extended = (value << 16) as i64 >> 16;
    if sign_extended as u64 == value { Ok(value) } else { Err(Gp) }
}

/// Bits 63:32 are reserved.
fn low_half(value: u64) -> Result<u64, Gp> {
    if value >> 32 == 0 { Ok(value) } else { Err(Gp) }
}

/// Each byte is UC, WC, WT, WP, WB or UC- (SDM table 12-10).
fn memory_types(value: u64) -> Result<u64, Gp> {
    let known = |byte: u8| matches!(byte, 0 | 1 | 4..=7);
    if value.to_le_bytes().into_iter().all(known) { Ok(value) } else { Err(Gp) }
}
