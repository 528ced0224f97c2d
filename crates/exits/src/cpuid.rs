//! CPUID: the partition's table.

use satori_cpuid::Registers;
use satori_engine::{CpuidResult, Resume};
use satori_lapic::Mode;

use crate::Context;

pub(crate) fn query(context: &mut Context<'_>, leaf: u32, subleaf: u32) -> Resume {
    let state = context.vcpu.state();
    let asker = satori_cpuid::Context {
        apic_id: context.lapic.id(),
        cr4: state.cr4,
        xcr0: state.xcr0,
        apic_enabled: context.lapic.mode() != Mode::Disabled,
        misc_enable: context.msrs.misc_enable(),
    };
    let Registers { eax, ebx, ecx, edx } = context.platform.cpuid.query(leaf, subleaf, &asker);
    Resume::Cpuid(CpuidResult { eax, ebx, ecx, edx })
}
