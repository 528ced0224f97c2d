//! What VMRUN accepts (APM 15.5.1): everything else is VMEXIT_INVALID.

use satori_defs::x86::{cr0, cr4, efer};
use satori_rules as rules;

use crate::event::injectable;
use crate::vmcb::{Descriptor, interrupt};
use crate::{Intercept, Place, Vmcb, cpuid};

/// What beside the VMCB decides.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Bits of CR4 that exist.
    pub cr4: u64,
    /// Bits of EFER that exist, LMA among them.
    pub efer: u64,
    /// Bits of a physical address.
    pub address_bits: u32,
    /// Whether the host translates with the tables of long mode, the only ones that nested paging has here.
    pub long: bool,
}

/// Bytes of the permission maps.
const IO_MAP: u64 = 0x3000;
const MSR_MAP: u64 = 0x2000;

/// Whether VMRUN of `vmcb` succeeds.
pub fn accepts(vmcb: &Vmcb, around: Around) -> bool {
    controls(vmcb, around) && state(vmcb, around)
}

fn controls(vmcb: &Vmcb, around: Around) -> bool {
    let asid = vmcb.get(Place::ASID);
    let map = |place, bytes| (vmcb.get(place) & !0xfff).saturating_add(bytes) <= 1 << around.address_bits;
    let nested = vmcb.get(Place::NESTED) & 1 != 0;
    vmcb.has(Intercept::VMRUN)
        && (1..u64::from(cpuid::ASIDS)).contains(&asid)
        && (!vmcb.has(Intercept::IO) || map(Place::IO_MAP, IO_MAP))
        && (!vmcb.has(Intercept::MSR) || map(Place::MSR_MAP, MSR_MAP))
        && injectable(vmcb.get(Place::INJECT))
        && (vmcb.has(Intercept::NMI) || vmcb.get(Place::INTERRUPT_CONTROL) & interrupt::NMI_ENABLE == 0)
        && (!nested || around.long && vmcb.get(Place::NESTED_CR3) >> around.address_bits == 0)
        && (!nested || rules::memory_type::pat(vmcb.get(Place::PAT)))
}

fn state(vmcb: &Vmcb, around: Around) -> bool {
    let get = |place| vmcb.get(place);
    let (efer, cr0, cr4) = (get(Place::EFER), get(Place::CR0), get(Place::CR4));
    let paged = cr0 & cr0::PG != 0;
    let long = efer & efer::LME != 0 && paged;
    let code = vmcb.segment(Descriptor::Cs).rights();
    let high = |place: Place| get(place) >> 32;
    efer & efer::SVME != 0
        && efer & !around.efer == 0
        && cr0 >> 32 == 0
        && cr0 & (cr0::CD | cr0::NW) != cr0::NW
        && cr4 & !around.cr4 == 0
        && (!long || get(Place::CR3) >> around.address_bits == 0)
        && high(Place::DR6) == 0
        && high(Place::DR7) == 0
        && (!long || cr4 & cr4::PAE != 0)
        && (!long || cr0 & cr0::PE != 0)
        && (!long || rules::segment::one_size(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AROUND: Around = Around { cr4: cr4::PAE | cr4::PGE, efer: 0x1d01, address_bits: 40, long: true };

    /// One of a guest in long mode.
    fn valid() -> Vmcb {
        let mut vmcb = Vmcb::default();
        for (place, value) in [
            (Place { at: 0x10, size: 4 }, 1),
            (Place::ASID, 1),
            (Place::EFER, efer::SVME | efer::LME | efer::LMA),
            (Place::CR0, cr0::PG | cr0::PE),
            (Place::CR4, cr4::PAE),
            (Place::CR3, 0x1000),
            (Place::DR6, 0xffff_0ff0),
            (Place::DR7, 0x400),
        ] {
            vmcb.set(place, value);
        }
        vmcb
    }

    #[test]
    fn each_rule_refuses_by_itself() {
        assert!(accepts(&valid(), AROUND));
        let io = (Place { at: 0xc, size: 4 }, 1 << 27);
        for (what, changes) in [
            ("no intercept of VMRUN", vec![(Place { at: 0x10, size: 4 }, 2)]),
            ("the host's ASID", vec![(Place::ASID, 0)]),
            ("an ASID that there is not", vec![(Place::ASID, 0x100)]),
            ("no SVM", vec![(Place::EFER, efer::LME)]),
            ("a bit of EFER", vec![(Place::EFER, efer::SVME | 1 << 20)]),
            ("a bit of CR4", vec![(Place::CR4, cr4::PAE | 1 << 30)]),
            ("NW without CD", vec![(Place::CR0, cr0::PG | cr0::PE | cr0::NW)]),
            ("the high half of CR0", vec![(Place::CR0, cr0::PG | cr0::PE | 1 << 40)]),
            ("the high half of DR6", vec![(Place::DR6, 1 << 32)]),
            ("the high half of DR7", vec![(Place::DR7, 1 << 63)]),
            ("long mode without PAE", vec![(Place::CR4, 0)]),
            ("paging without protection", vec![(Place::CR0, cr0::PG)]),
            ("a CR3 beyond memory", vec![(Place::CR3, 1 << 41)]),
            ("code that is long and big", vec![(Place { at: 0x412, size: 2 }, 0x600)]),
            ("an event that is none", vec![(Place::INJECT, 1 << 31 | 7 << 8)]),
            ("nested tables beyond memory", vec![(Place::NESTED, 1), (Place::NESTED_CR3, 1 << 41)]),
            ("a memory type that is none", vec![(Place::NESTED, 1), (Place::PAT, 2)]),
            ("virtual NMIs, and real ones not intercepted", vec![(Place::INTERRUPT_CONTROL, 1 << 26)]),
            ("a map beyond memory", vec![io, (Place::IO_MAP, (1 << 40) - 0x1000)]),
        ] {
            let mut vmcb = valid();
            for (place, value) in changes {
                vmcb.set(place, value);
            }
            assert!(!accepts(&vmcb, AROUND), "{what}");
        }
        let mut flat = valid();
        flat.set(Place::CR0, cr0::PE);
        flat.set(Place::CR4, 0);
        assert!(accepts(&flat, AROUND), "LME without paging");
        flat.set(Place::NESTED, 1);
        assert!(accepts(&flat, AROUND) && !accepts(&flat, Around { long: false, ..AROUND }));
    }
}
