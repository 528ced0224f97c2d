//! Who the processor says it is: vendor, family, model, stepping, name.
//!
//! The default is the signature of Saltwell (GenuineIntel, family 6, model 0x36, "Cedarview"). Linux
//! lists it as NO_SPECULATION and NO_ITLB_MULTIHIT in `cpu_vuln_whitelist`
//! (arch/x86/kernel/cpu/common.c, 6.1 and 6.12): every file in
//! `/sys/devices/system/cpu/vulnerabilities` says "Not affected", so there is no page-table
//! isolation, no retpoline, no return thunk, no VERW, no RSB filling and no LFENCE after SWAPGS. A
//! newer signature with every `_NO` bit would still be listed under Spectre v1 and v2. Neither
//! kernel has quirks for the model (performance events, cpufreq, RAPL and TSC calibration match
//! other ones), and stepping 1 is the one that was sold. Guests that do not know the list read the
//! same from IA32_ARCH_CAPABILITIES.
//!
//! AMD has no such core with 64 bits, so AuthenticAMD is a current one (family 0x1a, Zen 5), whose
//! kernels know most of the old weaknesses to be repaired.

use satori_defs::cpuid::arch_capabilities as cap;

use crate::Feature::{self, *};
use crate::{CpuModel, Error, Vendor};

/// IA32_ARCH_CAPABILITIES of every model: immune to everything that has a bit.
pub const ARCH_CAPABILITIES: u64 = cap::RDCL_NO
    | cap::IBRS_ALL
    | cap::SKIP_L1DFL_VMENTRY
    | cap::SSB_NO
    | cap::MDS_NO
    | cap::PSCHANGE_MC_NO
    | cap::TAA_NO
    | cap::SBDR_SSDP_NO
    | cap::FBSDP_NO
    | cap::PSDP_NO
    | cap::BHI_NO
    | cap::PBRSB_NO
    | cap::GDS_NO
    | cap::RFDS_NO
    | cap::ITS_NO;

impl Vendor {
    /// Features of the platform that this vendor's processors do not have.
    pub const fn lacks(self) -> &'static [Feature] {
        match self {
            Vendor::Amd => &[ArchCapabilities, SpecCtrl, Stibp, Ssbd],
            Vendor::Intel | Vendor::Other => &[
                Topoext,
                Ibpb,
                Ibrs,
                AmdStibp,
                AmdSsbd,
                AmdNoSsb,
                NoNestedDataBp,
                LfenceAlwaysSerializing,
                NullSelClrBase,
                AutoIbrs,
                SrsoNo,
            ],
        }
    }
}

/// What the user said of the identity; the rest follows from the vendor and the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `vendor=`: the twelve bytes of leaf 0, in the order EBX, EDX, ECX.
    pub vendor: [u8; 12],
    /// `family=`, with the extended family added in: 0 to 270.
    pub family: Option<u32>,
    /// `model=`, with the extended model in front: 0 to 255.
    pub model: Option<u32>,
    /// `stepping=`: 0 to 15.
    pub stepping: Option<u32>,
    /// `model-id=`: at most 48 bytes, 47 of which Linux shows.
    pub model_id: Option<String>,
}

impl Default for Identity {
    fn default() -> Self {
        Identity { vendor: *b"GenuineIntel", family: None, model: None, stepping: None, model_id: None }
    }
}

impl Identity {
    /// Whose rules hold.
    pub fn vendor(&self) -> Vendor {
        Vendor::of(&self.vendor)
    }

    /// CPUID.1:EAX (SDM volume 2A, figure 3-6).
    pub fn signature(&self) -> u32 {
        let [family, model, stepping] = match self.vendor() {
            Vendor::Amd => [0x1a, 2, 1],
            Vendor::Intel | Vendor::Other => [6, 0x36, 1],
        };
        let family = self.family.unwrap_or(family);
        let model = self.model.unwrap_or(model);
        let stepping = self.stepping.unwrap_or(stepping);
        family.saturating_sub(15) << 20
            | model >> 4 << 16
            | family.min(15) << 8
            | (model & 15) << 4
            | stepping
    }

    /// Whether anything of the signature or name is the user's.
    pub(crate) fn is_default(&self) -> bool {
        *self == Identity::default()
    }

    /// The brand string, padded with zeros.
    pub(crate) fn brand(&self, model: CpuModel) -> [u8; 48] {
        let text = match &self.model_id {
            Some(text) => text.clone(),
            None => format!("Satori {} virtual processor", model.name()),
        };
        let mut brand = [0; 48];
        let bytes = text.as_bytes();
        let length = bytes.len().min(brand.len());
        brand[..length].copy_from_slice(&bytes[..length]);
        brand
    }

    /// Takes `name=value` if it is one of the identity's; returns whether it was.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        let number = |name, most, wants| {
            let parsed = match value.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => value.parse(),
            };
            parsed.ok().filter(|&n| n <= most).map(Some).ok_or(Error::Value { name, wants })
        };
        match name {
            "vendor" => self.vendor = vendor(value)?,
            // The base family's 15 and the extended family's 255.
            "family" => self.family = number("family", 270, "a number from 0 to 270")?,
            "model" => self.model = number("model", 255, "a number from 0 to 255")?,
            "stepping" => self.stepping = number("stepping", 15, "a number from 0 to 15")?,
            "model-id" | "model_id" => {
                if value.len() > 48 || value.chars().any(char::is_control) {
                    return Err(Error::Value { name: "model-id", wants: "a text of at most 48 bytes" });
                }
                self.model_id = Some(value.into());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The vendor string that is asked for.
fn vendor(text: &str) -> Result<[u8; 12], Error> {
    let text = match text {
        // QEMU's older names.
        "intel" => "GenuineIntel",
        "amd" => "AuthenticAMD",
        other => other,
    };
    let name = <[u8; 12]>::try_from(text.as_bytes()).ok();
    name.filter(|name| name.iter().all(|byte| (b' '..=b'~').contains(byte)))
        .ok_or(Error::Value { name: "vendor", wants: "GenuineIntel, AuthenticAMD or any twelve characters" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_put_together_as_the_manual_has_it() {
        let of = |pairs: &[(&str, &str)]| {
            let mut identity = Identity::default();
            for (name, value) in pairs {
                assert_eq!(identity.set(name, value), Ok(true));
            }
            identity.signature()
        };
        assert_eq!(of(&[]), 0x0003_0661);
        assert_eq!(of(&[("vendor", "AuthenticAMD")]), 0x00b0_0f21);
        assert_eq!(of(&[("family", "6"), ("model", "0x9e"), ("stepping", "10")]), 0x0009_06ea);
        assert_eq!(of(&[("family", "15"), ("model", "107"), ("stepping", "1")]), 0x0006_0fb1);
        assert_eq!(of(&[("family", "270"), ("model", "255"), ("stepping", "15")]), 0x0fff_0fff);
    }
}
