//! MOV to CR0, CR4 and CR8.

use satori_cpuid::Feature;
use satori_defs::x86::{cr0, cr4, efer};
use satori_engine::{Exception, Resume};

use crate::Context;

/// CR4 bits that exist only with their feature (SDM 2.5).
const CR4_FEATURES: &[(u64, Feature)] = &[
    (cr4::VME | cr4::PVI, Feature::Vme),
    (cr4::TSD, Feature::Tsc),
    (cr4::DE, Feature::De),
    (cr4::PSE, Feature::Pse),
    (cr4::PAE, Feature::Pae),
    (cr4::MCE, Feature::Mce),
    (cr4::PGE, Feature::Pge),
    (cr4::OSFXSR, Feature::Fxsr),
    (cr4::OSXMMEXCPT, Feature::Sse),
    (cr4::UMIP, Feature::Umip),
    (cr4::LA57, Feature::La57),
    (cr4::FSGSBASE, Feature::Fsgsbase),
    (cr4::PCIDE, Feature::Pcid),
    (cr4::OSXSAVE, Feature::Xsave),
    (cr4::SMEP, Feature::Smep),
    (cr4::SMAP, Feature::Smap),
    (cr4::PKE, Feature::Pku),
];

/// CR4 bits of every processor that we model.
const CR4_ALWAYS: u64 = cr4::PCE;

pub(crate) fn write(context: &mut Context<'_>, register: u8, value: u64) -> Resume {
    let allowed = match register {
        0 => cr0_allowed(value),
        8 => value <= 15,
        _ => cr4_allowed(context, value),
    };
    if allowed { Resume::Done } else { Resume::Fault(Exception::gp(0)) }
}

/// The engine reads it from the register file, which holds it.
pub(crate) fn read_priority() -> Resume {
    Resume::Done
}

/// Paging needs protection, write-through control needs the cache control, and the upper half
/// is reserved (SDM volume 2, MOV to CR).
fn cr0_allowed(value: u64) -> bool {
    let has = |bit| value & bit != 0;
    value >> 32 == 0 && (!has(cr0::PG) || has(cr0::PE)) && (!has(cr0::NW) || has(cr0::CD))
}

fn cr4_allowed(context: &Context<'_>, value: u64) -> bool {
    let offered = CR4_FEATURES.iter().filter(|(_, feature)| context.platform.cpuid.has(*feature));
    let defined = offered.fold(CR4_ALWAYS, |bits, (bit, _)| bits | bit);
    let state = context.vcpu.state();
    let set = value & !state.cr4;
    let long = state.efer & efer::LMA != 0;
    let changed = value ^ state.cr4;
    value & !defined == 0
        && (!long || value & cr4::PAE != 0 && changed & cr4::LA57 == 0)
        && (set & cr4::PCIDE == 0 || long && state.cr3 & 0xfff == 0)
}
