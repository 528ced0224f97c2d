//! RDMSR and WRMSR: which part of the machine owns the register.
//!
//! Registers that the MSR bitmap passes through (FS, GS and KERNEL_GS base, SYSENTER_*, reads of
//! the TSC) never come here.

use satori_cpuid::Feature;
use satori_defs::hyperv::msr as synthetic;
use satori_defs::msr::*;
use satori_defs::x86::{cr0, efer};
use satori_engine::{Exception, Resume};
use satori_hyperv::Partition;

use crate::Context;

pub(crate) fn read(context: &mut Context<'_>, msr: u32) -> Resume {
    match get(context, msr) {
        Ok(value) => Resume::Value(value),
        Err(Gp) => {
            tracing::debug!(msr = format_args!("{msr:#x}"), "RDMSR refused");
            Resume::Fault(Exception::gp(0))
        }
    }
}

pub(crate) fn write(context: &mut Context<'_>, msr: u32, value: u64) -> Resume {
    match set(context, msr, value) {
        Ok(()) => Resume::Done,
        Err(Gp) => {
            let (msr, value) = (format_args!("{msr:#x}"), format_args!("{value:#x}"));
            tracing::debug!(msr, value, "WRMSR refused");
            Resume::Fault(Exception::gp(0))
        }
    }
}

fn get(context: &mut Context<'_>, msr: u32) -> Result<u64, Gp> {
    let tsc = context.platform.clock.tsc();
    let state = context.vcpu.state();
    Ok(match msr {
        X2APIC_BASE..=X2APIC_LAST => {
            context.load_tpr();
            context.lapic.msr_read(msr, tsc)?
        }
        IA32_APIC_BASE => context.lapic.base(),
        IA32_TSC_DEADLINE => context.lapic.tsc_deadline(tsc),
        IA32_TSC => tsc.wrapping_add(state.tsc_offset),
        // WRMSR to either register moves both by the same amount (SDM 18.17.3).
        IA32_TSC_ADJUST => state.tsc_offset,
        IA32_EFER => state.efer,
        IA32_STAR => state.star,
        IA32_LSTAR => state.lstar,
        IA32_CSTAR => state.cstar,
        IA32_FMASK => state.fmask,
        IA32_PAT => state.pat,
        IA32_TSC_AUX => state.tsc_aux,
        synthetic::EOI..=synthetic::TPR => {
            offered(context, msr)?;
            context.load_tpr();
            context.lapic.synthetic_read(msr)?
        }
        _ if Partition::is_synthetic(msr) => {
            context.platform.hyperv.as_ref().ok_or(Gp)?.msr_read(context.hyperv, msr)?
        }
        _ => context.msrs.read(msr)?,
    })
}

fn set(context: &mut Context<'_>, msr: u32, value: u64) -> Result<(), Gp> {
    let tsc = context.platform.clock.tsc();
    match msr {
        X2APIC_BASE..=X2APIC_LAST => {
            context.load_tpr();
            let ended = context.lapic.msr_write(msr, value, tsc)?;
            context.store_tpr();
            context.broadcast_eoi(ended);
        }
        IA32_APIC_BASE => context.lapic.write_base(value)?,
        IA32_TSC_DEADLINE => context.lapic.set_tsc_deadline(value, tsc),
        IA32_TSC => set_tsc_offset(context, value.wrapping_sub(tsc), tsc),
        IA32_TSC_ADJUST => set_tsc_offset(context, value, tsc),
        IA32_EFER => set_efer(context, value)?,
        IA32_STAR => context.vcpu.state_mut().star = value,
        IA32_LSTAR => context.vcpu.state_mut().lstar = canonical(value)?,
        IA32_CSTAR => context.vcpu.state_mut().cstar = canonical(value)?,
        IA32_FMASK => context.vcpu.state_mut().fmask = low_half(value)?,
        IA32_PAT => context.vcpu.state_mut().pat = memory_types(value)?,
        IA32_TSC_AUX => context.vcpu.state_mut().tsc_aux = low_half(value)?,
        synthetic::EOI..=synthetic::TPR => {
            offered(context, msr)?;
            context.load_tpr();
            let ended = context.lapic.synthetic_write(msr, value, tsc)?;
            context.store_tpr();
            context.broadcast_eoi(ended);
        }
        _ if Partition::is_synthetic(msr) => {
            let hyperv = context.platform.hyperv.as_ref().ok_or(Gp)?;
            let outcome = hyperv.msr_write(context.hyperv, msr, value)?;
            context.act(outcome);
        }
        _ => context.msrs.write(msr, value)?,
    }
    Ok(())
}

/// Whether the Hyper-V interface has `msr`, which the local APIC then answers.
fn offered(context: &Context<'_>, msr: u32) -> Result<(), Gp> {
    let hyperv = context.platform.hyperv.as_ref();
    if hyperv.is_some_and(|partition| partition.offers(msr)) { Ok(()) } else { Err(Gp) }
}

fn set_tsc_offset(context: &mut Context<'_>, offset: u64, tsc: u64) {
    context.vcpu.state_mut().tsc_offset = offset;
    context.lapic.set_tsc_offset(offset, tsc);
}

/// LMA is the processor's, LME cannot change while paging is on, bits without their feature and
/// all others are reserved (SDM 2.2.1, 10.8.5).
fn set_efer(context: &mut Context<'_>, value: u64) -> Result<(), Gp> {
    let state = context.vcpu.state();
    let features = [(efer::SCE, Feature::Syscall), (efer::LME, Feature::Lm), (efer::NXE, Feature::Nx)];
    let offered = features.into_iter().filter(|&(_, feature)| context.platform.cpuid.has(feature));
    let writable = offered.fold(0, |bits, (bit, _)| bits | bit);
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
