//! The layered table and its answers.

use std::collections::BTreeMap;

use satori_defs::cpuid::{self, HYPERVISOR};
use satori_defs::x86::cr4;

use crate::model::{self, CpuModel, CpuSpec, Error};
use crate::{Feature, Offered, PLATFORM_FEATURES, Register, Vendor};

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
    const ONES: Registers = Registers { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX };

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
    /// What the engine and the platform implement.
    Engine,
    /// The processor model.
    Model,
    /// Processors and their numbering.
    Topology,
    /// The paravirtual interfaces.
    Hypervisor,
    /// The command line.
    User,
}

const LAYERS: usize = 5;

/// What a table is made of.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    /// The model and the user's changes.
    pub cpu: &'a CpuSpec,
    /// What the engine implements; [`PLATFORM_FEATURES`] come on top.
    pub engine_features: &'a [Feature],
    /// Number of processors. The APIC ID of each is its index.
    pub cpus: u32,
    /// Frequency of the TSC in Hz.
    pub tsc_hz: u64,
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
    max_basic: u32,
    max_extended: u32,
}

/// Frequency in Hz that leaf 0x15 gives for the core crystal, which Linux also takes for the
/// APIC timer's: so the timer has to run at it.
///
/// It is the TSC's own frequency (halved until it fits), because Linux computes the TSC in kHz
/// from the crystal's kHz with 32-bit arithmetic: any lower crystal would lose precision.
pub fn crystal_hz(tsc_hz: u64) -> u64 {
    tsc_hz >> crystal_shift(tsc_hz)
}

fn crystal_shift(tsc_hz: u64) -> u32 {
    (64 - tsc_hz.leading_zeros()).saturating_sub(32)
}

impl CpuidTable {
    /// Builds the table.
    pub fn new(params: Params<'_>) -> Result<Self, Error> {
        let mut table = CpuidTable {
            rows: BTreeMap::new(),
            max_basic: cpuid::FREQUENCY,
            max_extended: cpuid::ADDRESS_SIZES,
        };
        let CpuSpec { model, changes } = params.cpu;
        let implemented = |f: &Feature| params.engine_features.contains(f) || PLATFORM_FEATURES.contains(f);
        for &feature in Feature::ALL.iter().filter(|f| implemented(f)) {
            table.feature(Layer::Engine, feature, true);
            if !model.offers(feature) && !PLATFORM_FEATURES.contains(&feature) {
                table.feature(Layer::Model, feature, false);
            }
        }
        if let Some(missing) = model.promises().find(|f| !implemented(f)) {
            return Err(Error::ModelNeeds { model: model.name(), feature: missing.name() });
        }
        for &(feature, on) in changes {
            if on && !implemented(&feature) {
                return Err(Error::NotImplemented(feature.name()));
            }
            table.feature(Layer::User, feature, on);
        }
        table.model(*model, &params);
        table.topology(params.cpus.max(1));
        if table.has(Feature::Xsave) {
            table.xstate();
        }
        for leaf in &params.hypervisor {
            table.set(Layer::Hypervisor, leaf.leaf, leaf.subleaf, leaf.value, Registers::ONES);
        }
        Ok(table)
    }

    /// Answers the question (`leaf`, `subleaf`) as an Intel processor does: a leaf above the
    /// highest one answers as the highest basic leaf.
    pub fn query(&self, leaf: u32, subleaf: u32, context: &Context) -> Registers {
        let leaf = if self.in_range(leaf) { leaf } else { self.max_basic };
        let row = self.rows.get(&(leaf, subleaf)).or_else(|| {
            // Leaves without subleaves ignore ECX.
            if has_subleaves(leaf) { None } else { self.rows.get(&(leaf, 0)) }
        });
        let mut value = row.map_or(Registers::default(), |row| row.value);
        match leaf {
            cpuid::SIGNATURE => {
                value.ebx |= (context.apic_id & 0xff) << 24;
                if context.cr4 & cr4::OSXSAVE != 0 {
                    value.ecx |= OSXSAVE;
                }
                if !context.apic_enabled {
                    value.edx &= !(1 << 9);
                }
            }
            cpuid::EXTENDED_FEATURES if subleaf == 0 && context.cr4 & cr4::PKE != 0 => value.ecx |= OSPKE,
            cpuid::TOPOLOGY => {
                value.edx = context.apic_id;
                value.ecx |= subleaf & 0xff;
            }
            cpuid::XSTATE if row.is_some() && subleaf == 0 => {
                value.ebx = if context.xcr0 & XCR0_AVX != 0 { XSAVE_AVX } else { XSAVE_LEGACY };
            }
            _ => {}
        }
        value
    }

    /// Whether the table offers `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        let (leaf, subleaf, register, bit) = feature.place();
        self.rows.get(&(leaf, subleaf)).is_some_and(|row| row.value.get(register) & 1 << bit != 0)
    }

    /// What the table offers, for the engine to enforce. The bits that the answer takes from the
    /// asking processor's state do not matter.
    pub fn offered(&self) -> Offered {
        let vendor = self.rows.get(&(cpuid::VENDOR, 0)).map_or(Vendor::Other, |row| {
            let words = [Register::Ebx, Register::Edx, Register::Ecx].map(|r| row.value.get(r).to_le_bytes());
            let mut string = [0; 12];
            string.copy_from_slice(words.as_flattened());
            Vendor::of(&string)
        });
        Offered { vendor, features: Feature::ALL.iter().copied().filter(|f| self.has(*f)).collect() }
    }

    /// The layer that decided a bit, set or clear; none if it is clear because nobody set it.
    pub fn origin(&self, leaf: u32, subleaf: u32, register: Register, bit: u8) -> Option<Layer> {
        let row = self.rows.get(&(leaf, subleaf))?;
        let layers = [Layer::User, Layer::Hypervisor, Layer::Topology, Layer::Model, Layer::Engine];
        let decided = |layer: Layer| row.decided[layer as usize].get(register);
        layers.into_iter().find(|&layer| decided(layer) >> (bit & 31) & 1 != 0)
    }

    /// Every leaf of the table as it stands, ascending.
    pub fn leaves(&self) -> impl Iterator<Item = Leaf> + '_ {
        self.rows.iter().map(|(&(leaf, subleaf), row)| Leaf { leaf, subleaf, value: row.value })
    }

    fn in_range(&self, leaf: u32) -> bool {
        match leaf {
            // Hypervisor leaves come in classes of 256, each with its own highest leaf.
            HYPERVISOR..=0x4fff_ffff => {
                self.rows.get(&(leaf & !0xff, 0)).is_some_and(|class| leaf <= class.value.eax)
            }
            cpuid::EXTENDED..=0xbfff_ffff => leaf <= self.max_extended,
            _ => leaf <= self.max_basic,
        }
    }

    /// Sets the bits of `mask` to those of `value`, unless a later layer decided them.
    fn set(&mut self, layer: Layer, leaf: u32, subleaf: u32, value: Registers, mask: Registers) {
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

    /// Sets whole registers that hold no features.
    fn row(&mut self, layer: Layer, leaf: u32, subleaf: u32, [eax, ebx, ecx, edx]: [Option<u32>; 4]) {
        let bits = |value: Option<u32>| (value.unwrap_or(0), value.map_or(0, |_| u32::MAX));
        let [a, b, c, d] = [eax, ebx, ecx, edx].map(bits);
        let value = Registers { eax: a.0, ebx: b.0, ecx: c.0, edx: d.0 };
        let mask = Registers { eax: a.1, ebx: b.1, ecx: c.1, edx: d.1 };
        self.set(layer, leaf, subleaf, value, mask);
    }

    fn model(&mut self, model: CpuModel, params: &Params<'_>) {
        let layer = Layer::Model;
        let word = |text: &[u8], at: usize| Some(u32::from_le_bytes([0, 1, 2, 3].map(|i| text[at + i])));
        let vendor = b"GenuineIntel";
        let names = [word(vendor, 0), word(vendor, 8), word(vendor, 4)];
        self.row(layer, cpuid::VENDOR, 0, [Some(self.max_basic), names[0], names[1], names[2]]);
        self.row(layer, cpuid::SIGNATURE, 0, [Some(model::SIGNATURE), None, None, None]);
        // Descriptor 0xff: see leaf 4. 0xfe: no TLB descriptors here.
        self.row(layer, cpuid::DESCRIPTORS, 0, [Some(0x00fe_ff01), Some(0), Some(0), Some(0)]);
        // No PMU: version 0.
        self.row(layer, cpuid::PERFMON, 0, [Some(0); 4]);
        let crystal = crystal_hz(params.tsc_hz) as u32;
        let ratio = 1 << crystal_shift(params.tsc_hz);
        self.row(layer, cpuid::TSC, 0, [Some(1), Some(ratio), Some(crystal), Some(0)]);
        let mhz = Some((params.tsc_hz / 1_000_000).min(0xffff) as u32);
        self.row(layer, cpuid::FREQUENCY, 0, [mhz, mhz, Some(100), Some(0)]);
        self.row(layer, cpuid::EXTENDED, 0, [Some(self.max_extended), Some(0), Some(0), Some(0)]);
        let mut brand = [0u8; 48];
        let text = format!("Satori {} virtual processor", model.name());
        brand[..text.len()].copy_from_slice(text.as_bytes());
        for part in 0..3 {
            let at = part * 16;
            let words = [0, 4, 8, 12].map(|word_at| word(&brand, at + word_at));
            self.row(layer, cpuid::BRAND + part as u32, 0, words);
        }
        // L2 of 1024 KiB, 16-way, 64-byte lines.
        self.row(layer, cpuid::EXTENDED_L2, 0, [Some(0), Some(0), Some(1024 << 16 | 8 << 12 | 64), Some(0)]);
        let sizes = Some(u32::from(params.physical_bits) | 48 << 8);
        self.row(layer, cpuid::ADDRESS_SIZES, 0, [sizes, None, Some(0), Some(0)]);
    }

    /// One package, one thread a core; APIC IDs are indices.
    fn topology(&mut self, cpus: u32) {
        let layer = Layer::Topology;
        let shift = cpus.next_power_of_two().trailing_zeros();
        // Byte 1: CLFLUSH line in quadwords. Byte 2: addressable IDs in the package.
        let ids = (1u32 << shift).min(0xff);
        self.row(layer, cpuid::SIGNATURE, 0, [None, Some(ids << 16 | 8 << 8), None, None]);
        let htt = Registers { edx: 1 << 28, ..Registers::default() };
        let more = if cpus > 1 { htt } else { Registers::default() };
        self.set(layer, cpuid::SIGNATURE, 0, more, htt);

        for (subleaf, cache) in CACHES.iter().enumerate() {
            let sharing = if cache.shared { (1u32 << shift.min(12)) - 1 } else { 0 };
            let cores = ((1u32 << shift) - 1).min(63);
            let eax = cache.kind | cache.level << 5 | 1 << 8 | sharing << 14 | cores << 26;
            let ebx = 63 | (cache.ways - 1) << 22;
            let sets = cache.kib * 1024 / 64 / cache.ways;
            self.row(layer, cpuid::CACHES, subleaf as u32, [Some(eax), Some(ebx), Some(sets - 1), Some(0)]);
        }

        self.row(layer, cpuid::TOPOLOGY, 0, [Some(0), Some(1), Some(1 << 8), Some(0)]);
        self.row(layer, cpuid::TOPOLOGY, 1, [Some(shift), Some(cpus), Some(2 << 8), Some(0)]);
    }

    fn xstate(&mut self) {
        let avx = self.has(Feature::Avx);
        let (states, size) = if avx { (0b111, XSAVE_AVX) } else { (0b11, XSAVE_LEGACY) };
        self.row(Layer::Model, cpuid::XSTATE, 0, [Some(states), Some(0), Some(size), Some(0)]);
        self.row(Layer::Model, cpuid::XSTATE, 1, [None, Some(0), Some(0), Some(0)]);
        if avx {
            // The upper halves of YMM0..15, right behind the XSAVE header.
            let at = Some(XSAVE_LEGACY);
            self.row(Layer::Model, cpuid::XSTATE, 2, [Some(XSAVE_AVX - XSAVE_LEGACY), at, Some(0), Some(0)]);
        }
    }
}

const OSXSAVE: u32 = 1 << 27;
const OSPKE: u32 = 1 << 4;
const XCR0_AVX: u64 = 1 << 2;
/// Bytes of an XSAVE area: legacy region and header, and with the YMM state.
const XSAVE_LEGACY: u32 = 576;
const XSAVE_AVX: u32 = 832;

fn has_subleaves(leaf: u32) -> bool {
    matches!(leaf, cpuid::CACHES | cpuid::EXTENDED_FEATURES | cpuid::TOPOLOGY | cpuid::XSTATE)
}

struct Cache {
    /// 1 data, 2 instruction, 3 unified.
    kind: u32,
    level: u32,
    kib: u32,
    ways: u32,
    shared: bool,
}

const CACHES: [Cache; 4] = [
    Cache { kind: 1, level: 1, kib: 32, ways: 8, shared: false },
    Cache { kind: 2, level: 1, kib: 32, ways: 8, shared: false },
    Cache { kind: 3, level: 2, kib: 1024, ways: 16, shared: false },
    Cache { kind: 3, level: 3, kib: 16384, ways: 16, shared: true },
];

#[cfg(test)]
mod tests;
