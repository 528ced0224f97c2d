//! The CPUID leaves, built from the table.

use satori_cpuid::{Leaf, Registers};
use satori_defs::hyperv::{EVMCS_VERSIONS, INTERFACE_SIGNATURE, leaf};

use crate::{Config, CpuidBit, Enlightenment, SPIN_NEVER, Version};

/// Fewest virtual processors that leaf 0x40000005 promises, as QEMU does.
const MIN_PROCESSORS: u32 = 64;

impl Config {
    /// The leaves for a partition of `cpus` virtual processors; none if everything is off.
    pub fn leaves(&self, cpus: u32) -> Vec<Leaf> {
        if self.set.is_empty() {
            return Vec::new();
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| self.vendor[at + i]));
        let mut leaves: Vec<Leaf> = (leaf::VENDOR..=leaf::NESTED)
            .map(|number| Leaf { leaf: number, subleaf: 0, value: Registers::default() })
            .collect();
        let mut set = |number: u32, [eax, ebx, ecx, edx]: [u32; 4]| {
            leaves[(number - leaf::VENDOR) as usize].value = Registers { eax, ebx, ecx, edx };
        };
        set(leaf::VENDOR, [leaf::NESTED, word(0), word(4), word(8)]);
        set(leaf::INTERFACE, [INTERFACE_SIGNATURE, 0, 0, 0]);
        let Version { build, major, minor, service_pack, branch, number } = self.version;
        let version = u32::from(major) << 16 | u32::from(minor);
        set(leaf::VERSION, [build, version, service_pack, u32::from(branch) << 24 | number & 0xff_ffff]);
        let spins = self.set.has(Enlightenment::Spinlocks);
        set(leaf::RECOMMENDATIONS, [0, if spins { self.spin_retries } else { SPIN_NEVER }, 0, 0]);
        set(leaf::LIMITS, [cpus.max(MIN_PROCESSORS), 0, 0, 0]);
        let offered = |bit: &&CpuidBit| bit.unless.is_none_or(|other| !self.set.has(other));
        for bit in self.set.iter().flat_map(|one| one.row().cpuid).filter(offered) {
            *leaves[(bit.leaf - leaf::VENDOR) as usize].value.get_mut(bit.register) |= 1 << bit.bit;
        }
        if self.set.has(Enlightenment::Evmcs) {
            leaves[(leaf::NESTED - leaf::VENDOR) as usize].value.eax |= EVMCS_VERSIONS;
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_give_the_bits_that_linux_prints() {
        let leaves = Config::auto().leaves(4);
        let value = |number: u32| leaves.iter().find(|l| l.leaf == number).unwrap().value;
        let vendor = value(0x4000_0000);
        assert_eq!(vendor.eax, 0x4000_000a);
        assert_eq!((vendor.ebx, vendor.ecx, vendor.edx), (0x7263_694d, 0x666f_736f, 0x7648_2074));
        assert_eq!(value(0x4000_0001).eax, 0x3123_7648);
        let features = value(0x4000_0003);
        assert_eq!(
            (features.eax, features.ebx, features.ecx, features.edx),
            (0x2e7f, 0x10_0030, 0, 0x8_c530)
        );
        assert_eq!((value(0x4000_0004).eax, value(0x4000_0004).ebx), (0xc2c, 4095));
        assert_eq!(value(0x4000_000a), Registers::default());
    }

    #[test]
    fn a_hypervisor_among_guests_finds_the_version_and_the_features_for_it() {
        let config = Config::of_nested();
        let value = |number: u32| config.leaves(1).iter().find(|l| l.leaf == number).unwrap().value;
        assert_eq!(value(leaf::RECOMMENDATIONS).eax >> 14 & 1, 1);
        assert_eq!(value(leaf::NESTED).eax, 1 << 22 | 1 << 19 | 1 << 18 | 1 << 17 | 0x0101);
    }

    #[test]
    fn an_apic_that_is_virtualised_takes_the_hint_to_bypass_it_away() {
        let hints = |words: &str| words.parse::<Config>().unwrap().leaves(1)[4].value.eax;
        assert_eq!(hints("vapic"), 1 << 3);
        assert_eq!(hints("vapic,hv-avic"), 1 << 9);
        assert_eq!(hints("tlbflush") & hints("ipi"), 1 << 11);
    }

    #[test]
    fn spin_retries_are_told_only_where_the_call_is() {
        let retries = |words: &str| words.parse::<Config>().unwrap().leaves(1)[4].value.ebx;
        assert_eq!((retries("base"), retries("spinlocks")), (u32::MAX, 4095));
    }

    #[test]
    fn off_leaves_nothing_and_any_feature_brings_the_mandatory_bits() {
        assert!(Config::off().leaves(4).is_empty());
        let reset: Config = "reset".parse().unwrap();
        assert_eq!(reset.leaves(1)[3].value.eax, 1 << 5 | 1 << 6 | 1 << 7);
    }
}
