//! The leaves that are not features: identity, caches, topology, extended state.

use satori_defs::cpuid;
use satori_defs::fpu::xsave::{self, COMPONENTS};
use satori_svm::cpuid as svm;

use crate::table::{Context, CpuidTable, Layer, Params, Registers};
use crate::{Feature, Vendor};

/// Frequency in Hz that leaf 0x15 gives for the core crystal, which Linux also takes for the
/// APIC timer's: so the timer has to run at it.
///
/// It is the TSC's own frequency (halved until it fits), because Linux computes the TSC in kHz
/// from the crystal's kHz with 32-bit arithmetic: any lower crystal would lose precision.
pub fn crystal_hz(tsc_hz: u64) -> u64 {
    tsc_hz >> (64 - tsc_hz.leading_zeros()).saturating_sub(32)
}

/// `tsc_hz` as a multiple of `crystal_hz`: a fraction by which Linux computes in 32 bits what the TSC's frequency is, in kHz
/// (arch/x86/kernel/tsc.c, native_calibrate_tsc). Exact where the frequencies allow it, as [`crystal_hz`] does; else the nearest.
fn ratio(tsc_hz: u64, crystal_hz: u64) -> (u32, u32) {
    let most = (u32::MAX as u64 / (crystal_hz / 1000).max(1)).max(1);
    // Continued fractions: each convergent is nearer than any other fraction of numbers that small.
    let (mut numerators, mut denominators) = ((0, 1), (1, 0));
    let (mut above, mut below) = (tsc_hz, crystal_hz.max(1));
    while below != 0 {
        let whole = above / below;
        let next = |(before, last): (u64, u64)| (last, whole.saturating_mul(last).saturating_add(before));
        let (numerator, denominator) = (next(numerators), next(denominators));
        if numerator.1 > most {
            break;
        }
        (numerators, denominators) = (numerator, denominator);
        (above, below) = (below, above % below);
    }
    (numerators.1 as u32, denominators.1.max(1) as u32)
}

fn word(text: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes([0, 1, 2, 3].map(|i| text[at + i])))
}

/// Features of leaf 1's EDX that AMD repeats in leaf 0x80000001's (APM volume 3, E.4.2).
const AMD_ALIASES: u32 = 0x0183_f3ff;
const CMP_LEGACY: u32 = 1 << 1;
const HTT: u32 = 1 << 28;

impl CpuidTable {
    pub(crate) fn identity(&mut self, params: &Params<'_>) {
        let identity = &params.cpu.identity;
        let layer = if identity.is_default() { Layer::Model } else { Layer::User };
        let amd = self.vendor() == Vendor::Amd;
        let name = &identity.vendor;
        let [b, d, c] = [0, 4, 8].map(|at| word(name, at));
        self.row(layer, cpuid::VENDOR, 0, [None, b, c, d]);
        let signature = Some(identity.signature());
        self.row(layer, cpuid::SIGNATURE, 0, [signature, None, None, None]);
        let brand = identity.brand(params.cpu.model);
        for part in 0..3 {
            let at = part * 16;
            let words = [0, 4, 8, 12].map(|offset| word(&brand, at + offset));
            self.row(layer, cpuid::BRAND + part as u32, 0, words);
        }
        let layer = Layer::Model;
        self.row(layer, cpuid::VENDOR, 0, [Some(self.max_basic), None, None, None]);
        // No PMU: version 0.
        self.row(layer, cpuid::PERFMON, 0, [Some(0); 4]);
        let sizes = Some(u32::from(params.physical_bits) | 48 << 8);
        self.row(layer, cpuid::ADDRESS_SIZES, 0, [sizes, None, None, None]);
        if amd {
            self.row(layer, cpuid::EXTENDED, 0, [Some(self.max_extended), b, c, d]);
            self.row(layer, cpuid::EXTENDED_SIGNATURE, 0, [signature, None, None, None]);
            let aliases = Registers { edx: AMD_ALIASES, ..Registers::default() };
            if self.has(Feature::Svm) {
                let (revision, asids) = (Some(svm::REVISION), Some(svm::ASIDS));
                self.row(layer, cpuid::AMD_SVM, 0, [revision, asids, Some(0), Some(svm::FEATURES)]);
            }
            let edx = self.value(cpuid::SIGNATURE, 0).edx;
            self.set(layer, cpuid::EXTENDED_SIGNATURE, 0, Registers { edx, ..aliases }, aliases);
            return;
        }
        self.row(layer, cpuid::EXTENDED, 0, [Some(self.max_extended), Some(0), Some(0), Some(0)]);
        // Descriptor 0xff: see leaf 4. 0xfe: no TLB descriptors here.
        self.row(layer, cpuid::DESCRIPTORS, 0, [Some(0x00fe_ff01), Some(0), Some(0), Some(0)]);
        let (numerator, denominator) = ratio(params.tsc_hz, params.crystal_hz);
        let crystal = Some(params.crystal_hz as u32);
        self.row(layer, cpuid::TSC, 0, [Some(denominator), Some(numerator), crystal, Some(0)]);
        let mhz = Some((params.tsc_hz / 1_000_000).min(0xffff) as u32);
        self.row(layer, cpuid::FREQUENCY, 0, [mhz, mhz, Some(100), Some(0)]);
    }

    /// Processors, their numbering, and which of them share a cache.
    pub(crate) fn topology_leaves(&mut self) {
        let layer = Layer::Topology;
        let amd = self.vendor() == Vendor::Amd;
        let topology = self.topology();
        let (core, die, package) = (topology.core_shift(), topology.die_shift(), topology.package_shift());
        let alone = topology.package() == 1;
        // Byte 1: CLFLUSH line in quadwords. Byte 2: addressable IDs in the package on Intel's
        // processors, how many there are on AMD's.
        let ids = if amd { topology.package() } else { 1 << package };
        self.row(layer, cpuid::SIGNATURE, 0, [None, Some(ids.min(0xff) << 16 | 8 << 8), None, None]);
        self.flag(layer, cpuid::SIGNATURE, |registers| &mut registers.edx, HTT, !alone);

        let leaf = if amd { cpuid::AMD_CACHES } else { cpuid::CACHES };
        for (subleaf, cache) in CACHES.iter().enumerate() {
            let sharing = (1u32 << if cache.shared { die } else { core }) - 1;
            // AMD counts the cores of the package elsewhere.
            let cores = if amd { 0 } else { (1u32 << (package - core)) - 1 };
            let eax = cache.kind | cache.level << 5 | 1 << 8 | sharing.min(0xfff) << 14 | cores.min(63) << 26;
            let ebx = (LINE - 1) | (cache.ways - 1) << 22;
            let sets = cache.kib * 1024 / LINE / cache.ways;
            self.row(layer, leaf, subleaf as u32, [Some(eax), Some(ebx), Some(sets - 1), Some(0)]);
        }
        // L2 of 1024 KiB in KiB, 16-way (8), one line a tag. Intel's processors tell of it too.
        let l2 = CACHES[2].kib << 16 | 8 << 12 | u32::from(amd) << 8 | LINE;
        let l3 = if amd { (CACHES[3].kib / 512) << 18 | 8 << 12 | 1 << 8 | LINE } else { 0 };
        self.row(layer, cpuid::EXTENDED_L2, 0, [Some(0), Some(0), Some(l2), Some(l3)]);

        let levels = [(core, topology.threads, 1), (package, topology.package(), 2)];
        self.levels(cpuid::TOPOLOGY, &levels);
        if !amd {
            let levels = [levels[0], (die, topology.die(), 2), (package, topology.package(), 5)];
            self.levels(cpuid::TOPOLOGY_V2, if topology.dies > 1 { &levels } else { &levels[..2] });
            return;
        }
        let l1 = |cache: &Cache| Some(cache.kib << 24 | cache.ways << 16 | 1 << 8 | LINE);
        self.row(layer, cpuid::EXTENDED_L1, 0, [Some(0), Some(0), l1(&CACHES[0]), l1(&CACHES[1])]);
        self.flag(layer, cpuid::EXTENDED_SIGNATURE, |registers| &mut registers.ecx, CMP_LEGACY, !alone);
        // Threads in the package less one, and how many bits of an APIC ID number them.
        let sizes = (topology.package() - 1).min(0xff) | package << 12;
        self.row(layer, cpuid::ADDRESS_SIZES, 0, [None, None, Some(sizes), None]);
        if self.has(Feature::Topoext) {
            let threads = Some(((topology.threads - 1) & 0xff) << 8);
            let nodes = Some(((topology.dies - 1) & 7) << 8);
            self.row(layer, cpuid::AMD_TOPOLOGY, 0, [Some(0), threads, nodes, Some(0)]);
        }
    }

    /// Levels as right shift, processors in one, and type (SDM volume 2A, CPUID.0BH and 1FH).
    fn levels(&mut self, leaf: u32, levels: &[(u32, u32, u32)]) {
        for (subleaf, &(shift, count, kind)) in (0..).zip(levels) {
            self.row(Layer::Topology, leaf, subleaf, [Some(shift), Some(count), Some(kind << 8), Some(0)]);
        }
    }

    fn flag(&mut self, layer: Layer, leaf: u32, of: fn(&mut Registers) -> &mut u32, bit: u32, on: bool) {
        let mut mask = Registers::default();
        *of(&mut mask) = bit;
        self.set(layer, leaf, 0, if on { mask } else { Registers::default() }, mask);
    }

    /// The components of XCR0, where XSAVE is offered.
    pub(crate) fn xstate(&mut self) {
        if !self.has(Feature::Xsave) {
            return;
        }
        let layer = Layer::Model;
        let offered: Vec<_> = COMPONENTS.iter().filter(|c| self.has(feature(c))).collect();
        let states = offered.iter().fold(xsave::X87 | xsave::SSE, |states, c| states | c.bit) as u32;
        let size = offered.iter().map(|c| c.offset + c.size).max().unwrap_or(xsave::EXTENDED) as u32;
        self.row(layer, cpuid::XSTATE, 0, [Some(states), Some(0), Some(size), Some(0)]);
        self.row(layer, cpuid::XSTATE, 1, [None, Some(0), Some(0), Some(0)]);
        for component in offered {
            let (size, offset) = (component.size as u32, component.offset as u32);
            let aligned = u32::from(component.aligned) << 1;
            let subleaf = component.bit.trailing_zeros();
            self.row(layer, cpuid::XSTATE, subleaf, [Some(size), Some(offset), Some(aligned), Some(0)]);
        }
    }

    /// EBX of leaf 0xd: what the states that are enabled now take, each in its place, or behind one
    /// another where XSAVEC is offered (SDM volume 1, 13.2).
    pub(crate) fn xstate_sizes(&self, subleaf: u32, context: &Context, value: &mut Registers) {
        if !self.has(Feature::Xsave) {
            return;
        }
        let enabled = COMPONENTS.iter().filter(|c| context.xcr0 & c.bit != 0);
        if subleaf == 0 {
            value.ebx = enabled.map(|c| c.offset + c.size).max().unwrap_or(xsave::EXTENDED) as u32;
        } else if subleaf == 1 && (self.has(Feature::Xsavec) || self.has(Feature::Xsaves)) {
            let place = |end: usize, c: &xsave::Component| {
                (if c.aligned { end.next_multiple_of(64) } else { end }) + c.size
            };
            value.ebx = enabled.fold(xsave::EXTENDED, place) as u32;
        }
    }
}

/// What offers a component.
fn feature(component: &xsave::Component) -> Feature {
    match component.bit {
        xsave::AVX => Feature::Avx,
        _ => Feature::Pku,
    }
}

/// Bytes of a cache line.
const LINE: u32 = 64;

struct Cache {
    /// 1 data, 2 instruction, 3 unified.
    kind: u32,
    level: u32,
    kib: u32,
    ways: u32,
    /// By the processors of a die, not only by those of a core.
    shared: bool,
}

const CACHES: [Cache; 4] = [
    Cache { kind: 1, level: 1, kib: 32, ways: 8, shared: false },
    Cache { kind: 2, level: 1, kib: 32, ways: 8, shared: false },
    Cache { kind: 3, level: 2, kib: 1024, ways: 16, shared: false },
    Cache { kind: 3, level: 3, kib: 16384, ways: 16, shared: true },
];
