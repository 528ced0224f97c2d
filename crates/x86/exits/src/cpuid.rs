//! CPUID: the partition's table.

use satori_cpuid::Registers;
use satori_defs::cpuid::EXTENDED_POWER;
use satori_engine::{CpuidResult, Parts, Resume};
use satori_lapic::Mode;

use crate::{Context, Platform};

/// In EDX of [`EXTENDED_POWER`].
const INVARIANT_TSC: u32 = 1 << 8;

pub(crate) fn query(context: &mut Context<'_>, leaf: u32, subleaf: u32) -> Resume {
    context.vcpu.fetch(Parts::EXTENDED);
    let state = context.vcpu.state();
    let asker = satori_cpuid::Context {
        apic_id: context.lapic.id(),
        cr4: state.cr4,
        xcr0: state.xcr0,
        apic_enabled: context.lapic.mode() != Mode::Disabled,
        misc_enable: context.msrs.misc_enable(),
    };
    answer(context.platform, context.xen.index(), (leaf, subleaf), &asker)
}

/// What vCPU `vcpu` is answered, of which `asker` tells what matters.
pub(crate) fn answer(
    platform: &Platform,
    vcpu: u32,
    (leaf, subleaf): (u32, u32),
    asker: &satori_cpuid::Context,
) -> Resume {
    let Registers { eax, mut ebx, ecx, mut edx } = platform.cpuid.query(leaf, subleaf, asker);
    if leaf == EXTENDED_POWER && platform.hyperv.as_ref().is_some_and(|hyperv| !hyperv.shows_invariant_tsc())
    {
        edx &= !INVARIANT_TSC;
    }
    if platform.xen.as_ref().is_some_and(|xen| leaf == xen.config().vcpu_leaf()) {
        ebx = vcpu;
    }
    Resume::Cpuid(CpuidResult { eax, ebx, ecx, edx })
}
