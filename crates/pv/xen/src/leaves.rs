//! The CPUID leaves, and the hypercall page.

use satori_cpuid::{Leaf, Registers};
use satori_defs::xen::SIGNATURE;
use satori_memory::{Gpa, PAGE_SIZE};
use satori_pv::signature;

use crate::version::{MAJOR, MINOR};
use crate::{Config, Domain, Feature, TscMode};

/// Leaf 4, EAX: EBX has the vCPU's number.
const VCPU_ID: u32 = 1 << 3;
/// Leaf 4, EAX: ECX has the domain's.
const DOMAIN_ID: u32 = 1 << 4;
/// Leaf 4, EAX: each vCPU can have a vector for events.
const UPCALL_VECTOR: u32 = 1 << 6;
/// Leaf 3, EAX: the TSC is emulated.
const TSC_EMULATED: u32 = 1;
/// Leaf 3, EAX: the TSC can be relied on.
const TSC_RELIABLE: u32 = 1 << 1;

/// The number of the guest's domain.
pub(crate) const DOMID: u16 = 1;

/// The leaves, for a TSC of `tsc_hz`. What is told of a vCPU is that of vCPU 0: see [`Config::vcpu_leaf`].
pub fn leaves(config: &Config, tsc_hz: u64) -> Vec<Leaf> {
    let leaf = |number, [eax, ebx, ecx, edx]: [u32; 4]| Leaf {
        leaf: config.base() + number,
        subleaf: 0,
        value: Registers { eax, ebx, ecx, edx },
    };
    let khz = u32::try_from(tsc_hz / 1000).unwrap_or(u32::MAX);
    let tsc = TSC_RELIABLE | if config.tsc == TscMode::Emulate { TSC_EMULATED } else { 0 };
    let vector = if config.has(Feature::UpcallVector) { UPCALL_VECTOR } else { 0 };
    vec![
        signature(config.base(), 4, SIGNATURE),
        leaf(1, [MAJOR << 16 | MINOR, 0, 0, 0]),
        leaf(2, [1, config.page_msr(), 0, 0]),
        leaf(3, [tsc, config.tsc.number(), khz, 0]),
        leaf(4, [VCPU_ID | DOMAIN_ID | vector, 0, DOMID.into(), 0]),
    ]
}

impl Domain {
    /// WRMSR of [`Config::page_msr`]: copies the hypercall page, a stub of 32 bytes a call, into the guest's page at `value`. False
    /// if there is no such page.
    #[must_use]
    pub fn write_page(&self, value: u64) -> bool {
        /// iret, which a guest with hardware's memory management does by itself.
        const IRET: u32 = 23;
        let mut page = [0xcc; PAGE_SIZE as usize];
        for (number, slot) in (0u32..).zip(page.chunks_exact_mut(32)) {
            let [a, b, c, d] = number.to_le_bytes();
            match number {
                IRET => slot[..2].copy_from_slice(&[0x0f, 0x0b]),
                // mov eax, number; vmcall, or vmmcall; ret
                _ => slot[..9].copy_from_slice(&[
                    0xb8,
                    a,
                    b,
                    c,
                    d,
                    0x0f,
                    0x01,
                    if self.amd { 0xd9 } else { 0xc1 },
                    0xc3,
                ]),
            }
        }
        self.memory.write(Gpa(value & !(PAGE_SIZE - 1)), &page).is_ok()
    }
}
