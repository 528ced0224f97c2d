//! RDMSR and WRMSR: which part of the machine owns the register.
//!
//! Registers that the MSR bitmap passes through (FS, GS and KERNEL_GS base, SYSENTER_*, reads of
//! the TSC) never come here.

use std::collections::BTreeSet;
use std::sync::Mutex;

use satori_bus::Clock;
use satori_cpuid::Feature;
use satori_cpuid::controls::{self, EferWrite};
use satori_cpuid::msrs::{self, Apic, Owner, Register, Synthetic};
use satori_defs::hyperv::REFERENCE_HZ;
use satori_defs::msr::{Gp, misc_enable};
use satori_defs::x86::cr0;
use satori_engine::{Exception, Parts, Resume};
use satori_lapic::Lapic;
use satori_lock::Held;
use satori_rules as rules;
use satori_state::CpuState;

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
        let mut told = self.0.lock().held();
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
        Owner::File(register, _) => Ok(file(context, register)),
        // The engine answers for them, and asks nobody.
        Owner::Passed(_) => Err(Gp),
        Owner::Lapic(Apic::Base, _) => Ok(context.lapic.base()),
        Owner::Lapic(Apic::Deadline, _) => {
            let value = context.lapic.tsc_deadline(context.platform.clock.counter());
            Ok(deadline(context, value, |clock, at| clock.to_guest(at)))
        }
        Owner::Lapic(Apic::X2apic, _) => {
            let tsc = context.platform.clock.counter();
            context.load_tpr();
            context.lapic.msr_read(msr, tsc)
        }
        Owner::HypervOrXen if of_xen(context, msr).is_some() => Ok(0),
        Owner::Xen => of_xen(context, msr).map(|_| 0).ok_or(Gp),
        Owner::HypervOrXen => get_synthetic(context, Synthetic::Own, msr),
        Owner::Hyperv(synthetic) => get_synthetic(context, synthetic, msr),
        Owner::Kvm => context.platform.kvm.as_ref().ok_or(Gp)?.msr_read(context.kvm, msr),
    }
}

/// Xen's interface, if `msr` puts its hypercall page in place.
fn of_xen<'a>(context: &'a Context<'_>, msr: u32) -> Option<&'a satori_xen::Domain> {
    context.platform.xen.as_deref().filter(|xen| xen.config().page_msr() == msr)
}

fn set(context: &mut Context<'_>, msr: u32, value: u64) -> Result<(), Gp> {
    match owner(context, msr)? {
        Owner::Platform { .. } => context.msrs.write(msr, value),
        Owner::File(register, _) => set_file(context, register, value),
        Owner::Passed(_) => Err(Gp),
        Owner::Lapic(Apic::Base, _) => {
            context.lapic.write_base(value, context.platform.cpuid.has(Feature::X2apic))
        }
        Owner::Lapic(Apic::Deadline, _) => {
            let tsc = context.platform.clock.counter();
            let value = deadline(context, value, |clock, at| clock.of_guest(at));
            context.lapic.set_tsc_deadline(value, tsc);
            Ok(())
        }
        Owner::Lapic(Apic::X2apic, _) => apic_write(context, |lapic, tsc| lapic.msr_write(msr, value, tsc)),
        Owner::HypervOrXen | Owner::Xen => match of_xen(context, msr) {
            Some(xen) if xen.write_page(value) => Ok(()),
            None if satori_hyperv::Partition::is_synthetic(msr) => set_own(context, msr, value),
            _ => Err(Gp),
        },
        Owner::Kvm => {
            let kvm = context.platform.kvm.as_ref().ok_or(Gp)?;
            context.vcpu.fetch(Parts::MSRS);
            kvm.msr_write(context.kvm, msr, value, context.vcpu.state().tsc_offset)
        }
        Owner::Hyperv(Synthetic::Apic) => {
            context.platform.hyperv.as_ref().ok_or(Gp)?.permit(msr)?;
            apic_write(context, |lapic, tsc| lapic.synthetic_write(msr, value, tsc))
        }
        Owner::Hyperv(Synthetic::Own | Synthetic::Runtime | Synthetic::Idle) => set_own(context, msr, value),
    }
}

/// Writes a register that the Hyper-V interface answers for.
fn set_own(context: &mut Context<'_>, msr: u32, value: u64) -> Result<(), Gp> {
    let hyperv = context.platform.hyperv.as_ref().ok_or(Gp)?;
    let outcome = hyperv.msr_write(context.hyperv, msr, value)?;
    context.act(outcome);
    Ok(())
}

/// Writes a register of the local APIC, by whichever number, and does what follows from an EOI.
fn apic_write(
    context: &mut Context<'_>,
    write: impl FnOnce(&mut Lapic, u64) -> Result<Option<u8>, Gp>,
) -> Result<(), Gp> {
    let tsc = context.platform.clock.counter();
    context.load_tpr();
    let took = context.lapic.software_enabled();
    let ended = write(context.lapic, tsc)?;
    context.store_tpr();
    context.apic_enabled(took);
    context.broadcast_eoi(ended);
    Ok(())
}

/// A value of IA32_TSC_DEADLINE, which the local APIC has in units of the partition's TSC; the
/// guest's own runs at another frequency once that was changed. 0 is no deadline.
fn deadline(context: &mut Context<'_>, value: u64, convert: impl Fn(&dyn Clock, u64) -> u64) -> u64 {
    context.vcpu.fetch(Parts::MSRS);
    let offset = context.vcpu.state().tsc_offset;
    match value {
        0 => 0,
        _ => convert(&*context.platform.clock, value.wrapping_sub(offset)).wrapping_add(offset),
    }
}

/// What a register of the register file reads as.
fn file(context: &mut Context<'_>, register: Register) -> u64 {
    context.vcpu.fetch(Parts::MSRS);
    let state = context.vcpu.state();
    match register {
        Register::Tsc => context.platform.clock.guest_counter().wrapping_add(state.tsc_offset),
        // WRMSR to either register moves both by the same amount (SDM 18.17.3).
        Register::TscAdjust => state.tsc_offset,
        Register::Efer => state.efer,
        Register::Star => state.star,
        Register::Lstar => state.lstar,
        Register::Cstar => state.cstar,
        Register::Fmask => state.fmask,
        Register::Pat => state.pat,
        Register::Xss => state.xss,
        Register::TscAux => state.tsc_aux,
        Register::SpecCtrl => state.spec_ctrl,
    }
}

/// Writes a register of the register file, if the rules have the value legal.
fn set_file(context: &mut Context<'_>, register: Register, value: u64) -> Result<(), Gp> {
    let (legal, place): (bool, fn(&mut CpuState) -> &mut u64) = match register {
        Register::Tsc => {
            let tsc = context.platform.clock.counter();
            let guest = context.platform.clock.to_guest(tsc);
            set_tsc_offset(context, value.wrapping_sub(guest), tsc);
            return Ok(());
        }
        Register::TscAdjust => {
            let tsc = context.platform.clock.counter();
            set_tsc_offset(context, value, tsc);
            return Ok(());
        }
        Register::Efer => return set_efer(context, value),
        Register::Star => (true, |state| &mut state.star),
        Register::Lstar => (rules::canonical(value), |state| &mut state.lstar),
        Register::Cstar => (rules::canonical(value), |state| &mut state.cstar),
        Register::Fmask => (rules::low_half(value), |state| &mut state.fmask),
        Register::Pat => (rules::memory_type::pat(value), |state| &mut state.pat),
        // No component is for the supervisor alone: all of its bits are reserved.
        Register::Xss => (rules::within(value, 0), |state| &mut state.xss),
        Register::TscAux => (rules::low_half(value), |state| &mut state.tsc_aux),
        Register::SpecCtrl => {
            let exist = controls::spec_ctrl(|feature| context.platform.cpuid.has(feature));
            (rules::within(value, exist), |state| &mut state.spec_ctrl)
        }
    };
    if !legal {
        return Err(Gp);
    }
    *place(context.vcpu.state_mut(Parts::MSRS)) = value;
    Ok(())
}

fn set_tsc_offset(context: &mut Context<'_>, offset: u64, tsc: u64) {
    context.vcpu.state_mut(Parts::MSRS).tsc_offset = offset;
    context.lapic.set_tsc_offset(offset, tsc);
    if let Some(kvm) = &context.platform.kvm {
        kvm.tsc_moved(context.kvm.index(), offset);
    }
    if let Some(xen) = &context.platform.xen {
        xen.tsc_moved(context.xen.index(), offset);
    }
}

fn set_efer(context: &mut Context<'_>, value: u64) -> Result<(), Gp> {
    let state = context.vcpu.state();
    let paging = state.cr0 & cr0::PG != 0;
    let nx_hidden = context.msrs.misc_enable() & misc_enable::XD_DISABLE != 0;
    let write = EferWrite { old: state.efer, value, paging, nx_hidden };
    let written = write.written(|feature| context.platform.cpuid.has(feature)).ok_or(Gp)?;
    context.vcpu.state_mut(Parts::SYSTEM).efer = written;
    Ok(())
}

/// What the Hyper-V interface has, whoever answers for it.
fn get_synthetic(context: &mut Context<'_>, synthetic: Synthetic, msr: u32) -> Result<u64, Gp> {
    let hyperv = context.platform.hyperv.as_ref().ok_or(Gp)?;
    match synthetic {
        Synthetic::Own => hyperv.msr_read(context.hyperv, msr),
        Synthetic::Apic => {
            hyperv.permit(msr)?;
            context.load_tpr();
            context.lapic.synthetic_read(msr)
        }
        Synthetic::Runtime => {
            hyperv.permit(msr)?;
            let ran = context.platform.runtime.ran(context.vcpu.retired());
            Ok(ran * REFERENCE_HZ / 1_000_000_000)
        }
        Synthetic::Idle => {
            hyperv.permit(msr)?;
            context.asked = Asked::Idle;
            Ok(0)
        }
    }
}
