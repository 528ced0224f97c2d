//! What becomes of every exit: [`dispatch`] takes an [`Exit`] and gives its [`Resume`].
//!
//! One file per kind of exit. Nothing here names an engine or a device: handlers see the
//! vCPU, its local APIC and MSRs, and the partition's maps and tables through [`Context`].
//!
//! That every exit is also counted needs no care here: whoever runs the vCPU counts by
//! [`Exit::reason`], an exhaustive match over the same type, so that an exit without a counter
//! and an exit without a handler both do not compile.

#![forbid(unsafe_code)]

mod apic;
mod at_once;
mod cache;
mod context;
mod cpuid;
mod cr;
mod dr;
mod ept;
mod hlt;
mod io;
mod mmio;
mod msr;
mod reason;
mod refused;
#[cfg(test)]
mod tests;
pub mod told;
mod vmcall;
mod window;
mod xsetbv;

pub use at_once::{AT_ONCE, Answered, AtOnce};
pub use context::{Asked, Context, EoiSink, Platform, Runtime};
pub use msr::Refused;
pub use reason::View;

use satori_engine::{Exit, Resume};

/// Handles `exit` and answers it.
pub fn dispatch(exit: Exit, context: &mut Context<'_>) -> Resume {
    context.platform.settle();
    match exit {
        Exit::Cpuid { leaf, subleaf } => cpuid::query(context, leaf, subleaf),
        Exit::MsrRead { msr } => msr::read(context, msr),
        Exit::MsrWrite { msr, value } => msr::write(context, msr, value),
        Exit::IoRead { port, size } => io::read(context.platform, port, size),
        Exit::IoWrite { port, size, value } => io::write(context.platform, port, size, value),
        Exit::MmioRead { gpa, size } => mmio::read(context.platform, gpa, size),
        Exit::MmioWrite { gpa, size, value } => mmio::write(context.platform, gpa, size, value),
        Exit::ApicRead { offset, size } => apic::read(context, offset, size),
        Exit::ApicWrite { offset, size, value } => apic::write(context, offset, size, value),
        Exit::EptViolation { gpa } => ept::violation(context, gpa),
        Exit::Hlt => hlt::halt(),
        Exit::Pause => hlt::pause(),
        Exit::Vmcall => vmcall::call(context),
        Exit::NestedFlush { block } => vmcall::nested_flush(context, block),
        Exit::CrWrite { register, value } => cr::write(context, register, value),
        Exit::Cr8Read => cr::read_priority(),
        Exit::DrAccess => dr::access(),
        Exit::Xsetbv { value } => xsetbv::set(context, value),
        Exit::Wbinvd | Exit::Invd => cache::write_back(),
        Exit::Rdpmc { .. } => refused::counter(),
        Exit::Monitor | Exit::Mwait | Exit::VmxInstruction(_) => refused::undefined(),
        Exit::InterruptWindow => window::interrupt(context),
        Exit::NmiWindow => window::nmi(context),
        Exit::EoiInduced { vector } => apic::ended(context, vector),
        Exit::TprBelowThreshold => window::look_again(),
        Exit::ExternalInterrupt | Exit::PreemptionTimer => window::look_again(),
        Exit::TaskSwitch | Exit::TripleFault | Exit::Debug(_) | Exit::Failed(_) | Exit::Budget => {
            Resume::Continue
        }
    }
}
