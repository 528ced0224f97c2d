//! The layered table and its answers.

use std::collections::BTreeMap;

use satori_defs::cpuid::{self, HYPERVISOR};
use satori_defs::hyperv;
use satori_defs::msr::misc_enable;
use satori_defs::x86::cr4;

use crate::{CpuSpec, Error, Feature, FeatureSet, Offered, PLATFORM_FEATURES, Register, Topology, Vendor};

/// The four registers of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is its register's name")]
pub struct Registers {
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

impl Registers {
    pub(crate) const ONES: Registers =
        Registers { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX };

    /// The value of one register.
    pub const fn get(&self, register: Register) -> u32 {
        match register {
            Register::Eax => self.eax,
            Register::Ebx => self.ebx,
            Register::Ecx => self.ecx,
            Register::Edx => self.edx,
        }
    }

    /// One register, for change.
    pub const fn get_mut(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::Eax => &mut self.eax,
            Register::Ebx => &mut self.ebx,
            Register::Ecx => &mut self.ecx,
            Register::Edx => &mut self.edx,
        }
    }
}

/// One answer and where it belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// EAX of the question.
    pub leaf: u32,
    /// ECX of the question; 0 for leaves without subleaves.
    pub subleaf: u32,
    /// The answer.
    pub value: Registers,
}

/// Who decided a bit; later layers win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// What the engine implements.
    Engine,
    /// What the platform has beside the engine: the local APIC, machine check, memory types.
    Platform,
    /// The processor model.
    Model,
    /// Processors and their numbering.
    Topology,
    /// The paravirtual interfaces.
    Hypervisor,
    /// The command line.
    User,
}

impl Layer {
    /// Every layer, the strongest last.
    pub const ALL: [Layer; 6] =
        [Layer::Engine, Layer::Platform, Layer::Model, Layer::Topology, Layer::Hypervisor, Layer::User];

    /// The name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Layer::Engine => "engine",
            Layer::Platform => "platform",
            Layer::Model => "model",
            Layer::Topology => "topology",
            Layer::Hypervisor => "enlightenments",
            Layer::User => "user",
        }
    }
}

const LAYERS: usize = Layer::ALL.len();

/// What a table is made of.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    /// The model and the user's changes.
    pub cpu: &'a CpuSpec,
    /// What the engine implements; [`PLATFORM_FEATURES`] come on top.
    pub engine_features: &'a [Feature],
    /// Those of all these that the host would have to have and does not. What cannot be without them is not had either.
    pub host_lacks: &'a [Feature],
    /// The processors.
    pub topology: Topology,
    /// Frequency of the TSC in Hz.
    pub tsc_hz: u64,
    /// Frequency of the local APIC's timer before its divider, in Hz: the crystal's.
    pub crystal_hz: u64,
    /// MAXPHYADDR.
    pub physical_bits: u8,
    /// Leaves of the paravirtual interfaces.
    pub hypervisor: Vec<Leaf>,
}

/// What an answer depends on beside the question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Initial APIC ID of the asking processor.
    pub apic_id: u32,
    /// Its CR4.
    pub cr4: u64,
    /// Its XCR0.
    pub xcr0: u64,
    /// Whether its local APIC is globally enabled.
    pub apic_enabled: bool,
    /// IA32_MISC_ENABLE.
    pub misc_enable: u64,
}

#[derive(Clone, Debug, Default)]
struct Row {
    value: Registers,
    /// The bits that each layer decided.
    decided: [Registers; LAYERS],
}

/// The table of a partition.
#[derive(Clone, Debug)]
pub struct CpuidTable {
    rows: BTreeMap<(u32, u32), Row>,
    pub(crate) max_basic: u32,
    pub(crate) max_extended: u32,
    vendor: Vendor,
    topology: Topology,
}

impl CpuidTable {
    /// Builds the table.
    pub fn new(params: Params<'_>) -> Result<Self, Error> {
        let CpuSpec { model, changes, identity } = params.cpu;
        let vendor = identity.vendor();
        let mut table = CpuidTable {
            rows: BTreeMap::new(),
            max_basic: if vendor == Vendor::Amd { cpuid::XSTATE } else { cpuid::TOPOLOGY_V2 },
            max_extended: if vendor == Vendor::Amd {
                cpuid::EXTENDED_FEATURES_2
            } else {
                cpuid::ADDRESS_SIZES
            },
            vendor,
            topology: params.topology,
        };
        let lacking = with_dependents(params.host_lacks);
        let platform = |f: &Feature| PLATFORM_FEATURES.contains(f);
        let known = |f: &Feature| params.engine_features.contains(f) || platform(f);
        let implemented = |f: &Feature| known(f) && !lacking.has(*f);
        for &feature in Feature::ALL.iter().filter(|f| known(f) && lacking.has(**f)) {
            table.feature(Layer::Engine, feature, false);
        }
        for &feature in Feature::ALL.iter().filter(|f| implemented(f)) {
            table.feature(if platform(&feature) { Layer::Platform } else { Layer::Engine }, feature, true);
            if vendor.lacks().contains(&feature) || !model.offers(feature) && !platform(&feature) {
                table.feature(Layer::Model, feature, false);
            }
        }
        if let Some(missing) = model.promises().find(|f| !implemented(f)) {
            let (model, feature) = (model.name(), missing.name());
            return Err(match lacking.has(missing) {
                true => Error::HostLacksOfModel { model, feature },
                false => Error::ModelNeeds { model, feature },
            });
        }
        for &(feature, on) in changes {
            if on && !implemented(&feature) {
                return Err(match known(&feature) {
                    true => Error::HostLacks(feature.name()),
                    false => Error::NotImplemented(feature.name()),
                });
            }
            let other = match feature {
                Feature::Vmx => vendor == Vendor::Amd,
                Feature::Svm => vendor != Vendor::Amd,
                _ => false,
            };
            if on && other {
                let vendor = String::from_utf8_lossy(&identity.vendor).into_owned();
                return Err(Error::VendorLacks { feature: feature.name(), vendor });
            }
            table.change(feature, on);
        }
        for &(feature, _) in changes.iter().filter(|(feature, on)| *on && table.has(*feature)) {
            let mut missing = Vec::new();
            let mut left: Vec<_> = feature.needs().collect();
            while let Some(needed) = left.pop() {
                if !table.has(needed) && !missing.contains(&needed.name()) {
                    missing.insert(0, needed.name());
                    left.extend(needed.needs());
                }
            }
            if !missing.is_empty() {
                return Err(Error::FeatureNeeds { feature: feature.name(), missing });
            }
        }
        table.identity(&params);
        table.topology_leaves();
        table.xstate();
        for leaf in &params.hypervisor {
            table.set(Layer::Hypervisor, leaf.leaf, leaf.subleaf, leaf.value, Registers::ONES);
        }
        Ok(table)
    }

    /// Answers the question (`leaf`, `subleaf`). A leaf above the highest one answers as the highest
    /// basic leaf on an Intel processor (SDM volume 2A, CPUID), and as zeros on one of AMD's.
    pub fn query(&self, leaf: u32, subleaf: u32, context: &Context) -> Registers {
        // IA32_MISC_ENABLE[22] limits the leaves for operating systems that cannot bear many.
        let max_basic = match context.misc_enable & misc_enable::LIMIT_CPUID {
            0 => self.max_basic,
            _ => cpuid::DESCRIPTORS.min(self.max_basic),
        };
        let leaf = match self.in_range(leaf, max_basic) {
            true => leaf,
            false if self.vendor == Vendor::Amd => return Registers::default(),
            false => max_basic,
        };
        let row = self.rows.get(&(leaf, subleaf)).or_else(|| {
            // Leaves without subleaves ignore ECX.
            if has_subleaves(leaf) { None } else { self.rows.get(&(leaf, 0)) }
        });
        let mut value = row.map_or(Registers::default(), |row| row.value);
        match leaf {
            cpuid::VENDOR => value.eax = max_basic,
            cpuid::SIGNATURE => {
                value.ebx |= (context.apic_id & 0xff) << 24;
                if context.cr4 & cr4::OSXSAVE != 0 {
                    value.ecx |= OSXSAVE;
                }
                if !context.apic_enabled {
                    value.edx &= !APIC;
                }
            }
            cpuid::EXTENDED_FEATURES if subleaf == 0 && context.cr4 & cr4::PKE != 0 => value.ecx |= OSPKE,
            // Beyond the last level, too; AMD's processors have no leaf 0x1f.
            cpuid::TOPOLOGY | cpuid::TOPOLOGY_V2
                if self.vendor != Vendor::Amd || self.rows.contains_key(&(leaf, 0)) =>
            {
                value.edx = context.apic_id;
                value.ecx |= subleaf & 0xff;
            }
            cpuid::XSTATE => self.xstate_sizes(subleaf, context, &mut value),
            cpuid::EXTENDED_SIGNATURE => {
                if context.misc_enable & misc_enable::XD_DISABLE != 0 {
                    value.edx &= !NX;
                }
                // AMD repeats leaf 1 here.
                if self.vendor == Vendor::Amd && !context.apic_enabled {
                    value.edx &= !APIC;
                }
            }
            cpuid::AMD_TOPOLOGY if row.is_some() => {
                let topology = self.topology;
                let in_package = context.apic_id & ((1 << topology.package_shift()) - 1);
                value.eax = context.apic_id;
                value.ebx |= in_package >> topology.core_shift() & 0xff;
                value.ecx |= context.apic_id >> topology.die_shift() & 0xff;
            }
            _ => {}
        }
        value
    }

    /// The bits of an answer that follow the asking processor and its state, not the table.
    pub fn dynamic(&self, leaf: u32, subleaf: u32) -> Registers {
        let all = u32::MAX;
        let [eax, ebx, ecx, edx] = match leaf {
            cpuid::SIGNATURE => [0, 0xff << 24, OSXSAVE, APIC],
            cpuid::EXTENDED_FEATURES if subleaf == 0 => [0, 0, OSPKE, 0],
            cpuid::TOPOLOGY | cpuid::TOPOLOGY_V2 => [0, 0, 0, all],
            cpuid::XSTATE if subleaf < 2 => [0, all, 0, 0],
            cpuid::AMD_TOPOLOGY => [all, 0xff, 0xff, 0],
            _ => [0; 4],
        };
        Registers { eax, ebx, ecx, edx }
    }

    /// The table's own answer, whoever asks.
    pub(crate) fn value(&self, leaf: u32, subleaf: u32) -> Registers {
        self.rows.get(&(leaf, subleaf)).map_or(Registers::default(), |row| row.value)
    }

    /// Family, model and stepping, as leaf 1 tells them in EAX.
    pub fn signature(&self) -> u32 {
        self.value(cpuid::SIGNATURE, 0).eax
    }

    /// Who made the processor.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The processors that it describes.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Whether the table offers `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        let (leaf, subleaf, register, bit) = feature.place();
        self.rows.get(&(leaf, subleaf)).is_some_and(|row| row.value.get(register) & 1 << bit != 0)
    }

    /// Whether Hyper-V's interface recommends the enlightened VMCS (TLFS 2.4.5), which not every control goes with.
    pub fn enlightened_vmcs(&self) -> bool {
        self.value(hyperv::leaf::RECOMMENDATIONS, 0).eax & hyperv::EVMCS_RECOMMENDED != 0
    }

    /// What the table offers, for the engine to enforce. The bits that the answer takes from the
    /// asking processor's state do not matter.
    pub fn offered(&self) -> Offered {
        Offered {
            vendor: self.vendor,
            features: Feature::ALL.iter().copied().filter(|f| self.has(*f)).collect(),
        }
    }

    /// The layer that decided a bit, set or clear; none if it is clear because nobody set it.
    pub fn origin(&self, leaf: u32, subleaf: u32, register: Register, bit: u8) -> Option<Layer> {
        let row = self.rows.get(&(leaf, subleaf))?;
        let decided = |layer: Layer| row.decided[layer as usize].get(register);
        Layer::ALL.into_iter().rev().find(|&layer| decided(layer) >> (bit & 31) & 1 != 0)
    }

    /// Every leaf of the table as it stands, ascending.
    pub fn leaves(&self) -> impl Iterator<Item = Leaf> + '_ {
        self.rows.iter().map(|(&(leaf, subleaf), row)| Leaf { leaf, subleaf, value: row.value })
    }

    fn in_range(&self, leaf: u32, max_basic: u32) -> bool {
        match leaf {
            // Hypervisor leaves come in classes of 256, each with its own highest leaf.
            HYPERVISOR..=0x4fff_ffff => {
                self.rows.get(&(leaf & !0xff, 0)).is_some_and(|class| leaf <= class.value.eax)
            }
            cpuid::EXTENDED..=0xbfff_ffff => leaf <= self.max_extended,
            _ => leaf <= max_basic,
        }
    }

    /// Sets the bits of `mask` to those of `value`, unless a later layer decided them.
    pub(crate) fn set(&mut self, layer: Layer, leaf: u32, subleaf: u32, value: Registers, mask: Registers) {
        let row = self.rows.entry((leaf, subleaf)).or_default();
        for register in [Register::Eax, Register::Ebx, Register::Ecx, Register::Edx] {
            let later = row.decided[layer as usize + 1..].iter().fold(0, |bits, d| bits | d.get(register));
            let ours = mask.get(register) & !later;
            let target = row.value.get_mut(register);
            *target = *target & !ours | value.get(register) & ours;
            *row.decided[layer as usize].get_mut(register) |= mask.get(register);
        }
    }

    fn feature(&mut self, layer: Layer, feature: Feature, on: bool) {
        let (leaf, subleaf, register, bit) = feature.place();
        let mut mask = Registers::default();
        *mask.get_mut(register) = 1 << bit;
        self.set(layer, leaf, subleaf, if on { mask } else { Registers::default() }, mask);
    }

    /// A change of the user's. What cannot be without a feature goes with it, and comes back only by
    /// its own name.
    fn change(&mut self, feature: Feature, on: bool) {
        self.feature(Layer::User, feature, on);
        if !on {
            feature.dependents().for_each(|dependent| self.change(dependent, false));
        }
    }

    /// Sets whole registers that hold no features.
    pub(crate) fn row(
        &mut self,
        layer: Layer,
        leaf: u32,
        subleaf: u32,
        [eax, ebx, ecx, edx]: [Option<u32>; 4],
    ) {
        let bits = |value: Option<u32>| (value.unwrap_or(0), value.map_or(0, |_| u32::MAX));
        let [a, b, c, d] = [eax, ebx, ecx, edx].map(bits);
        let value = Registers { eax: a.0, ebx: b.0, ecx: c.0, edx: d.0 };
        let mask = Registers { eax: a.1, ebx: b.1, ecx: c.1, edx: d.1 };
        self.set(layer, leaf, subleaf, value, mask);
    }
}

/// `features`, and all that cannot be without one of them.
fn with_dependents(features: &[Feature]) -> FeatureSet {
    let mut set = FeatureSet::EMPTY;
    let mut left = features.to_vec();
    while let Some(feature) = left.pop() {
        set.set(feature, true);
        left.extend(feature.dependents());
    }
    set
}

const APIC: u32 = 1 << 9;
const NX: u32 = 1 << 20;
const OSXSAVE: u32 = 1 << 27;
const OSPKE: u32 = 1 << 4;

/// Whether the answer to `leaf` depends on ECX.
pub fn has_subleaves(leaf: u32) -> bool {
    matches!(
        leaf,
        cpuid::CACHES
            | cpuid::EXTENDED_FEATURES
            | cpuid::TOPOLOGY
            | cpuid::XSTATE
            | cpuid::TOPOLOGY_V2
            | cpuid::AMD_CACHES
    )
}

#[cfg(test)]
pub(crate) mod tests;
