//! The checks of VM entry once more, from the manual's bullets alone (SDM 26.2, 26.3.1), and random VMCSs that both judge.

use super::tests::{AROUND, Verdict, fine, verdict};
use super::*;

/// A generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// The rules of a group, by the words that a failure is to be told in; each holds or not.
type Rules = Vec<(&'static str, bool)>;

fn broken(rules: Rules) -> Vec<&'static str> {
    rules.into_iter().filter(|(_, holds)| !holds).map(|(name, _)| name).collect()
}

const WIDTH: u32 = 46;

fn canonical(address: u64) -> bool {
    matches!(address >> 47, 0 | 0x1_ffff)
}

fn page(address: u64) -> bool {
    address & 0xfff == 0 && address < 1 << WIDTH
}

fn pats(value: u64) -> bool {
    value.to_le_bytes().into_iter().all(|kind| matches!(kind, 0 | 1 | 4 | 5 | 6 | 7))
}

struct View<'a>(&'a Vmcs);

impl View<'_> {
    fn get(&self, field: Field) -> u64 {
        self.0.get(field)
    }
    fn pin(&self, bit: u32) -> bool {
        self.get(PinControls) >> bit & 1 != 0
    }
    fn primary(&self, bit: u32) -> bool {
        self.get(ProcControls) >> bit & 1 != 0
    }
    fn secondary(&self, bit: u32) -> bool {
        self.primary(31) && self.get(ProcControls2) >> bit & 1 != 0
    }
    fn exit(&self, bit: u32) -> bool {
        self.get(ExitControls) >> bit & 1 != 0
    }
    fn entry(&self, bit: u32) -> bool {
        self.get(EntryControls) >> bit & 1 != 0
    }
    fn reserved(&self, field: Field, must: u32, may: u32) -> bool {
        let value = self.get(field) as u32;
        (0..32).all(|bit| {
            let set = value >> bit & 1 != 0;
            if set { may >> bit & 1 != 0 } else { must >> bit & 1 == 0 }
        })
    }
    fn area(&self, count: Field, address: Field) -> bool {
        let (count, address) = (self.get(count), self.get(address));
        let last = u128::from(address) + u128::from(count) * 16 - u128::from(count != 0);
        count == 0 || address & 0xf == 0 && address < 1 << WIDTH && last < 1 << WIDTH
    }
    fn real_or_v86(&self) -> bool {
        self.get(GuestCr0) & 1 == 0
    }
}

fn control_rules(v: &View<'_>) -> Rules {
    let all = capability::Controls::ALL;
    let eptp = v.get(Eptp);
    let shadow = v.primary(21);
    vec![
        ("pin", v.reserved(PinControls, all.pin.must, all.pin.may)),
        ("primary", v.reserved(ProcControls, all.proc.must, all.proc.may)),
        ("secondary", !v.primary(31) || v.reserved(ProcControls2, all.proc2.must, all.proc2.may)),
        ("exit", v.reserved(ExitControls, all.exit.must, all.exit.may)),
        ("entry", v.reserved(EntryControls, all.entry.must, all.entry.may)),
        ("CR3 targets", v.get(Cr3TargetCount) <= 4),
        ("I/O bitmaps", !v.primary(25) || page(v.get(IoBitmapA)) && page(v.get(IoBitmapB))),
        ("MSR bitmap", !v.primary(28) || page(v.get(MsrBitmap))),
        ("virtual-APIC page", !shadow || page(v.get(VirtualApic))),
        ("TPR threshold", !shadow || v.secondary(9) || v.get(TprThreshold) < 16),
        ("no TPR shadow", shadow || !(v.secondary(4) || v.secondary(8) || v.secondary(9))),
        ("virtual NMIs", v.pin(3) || !v.pin(5)),
        ("NMI window", v.pin(5) || !v.primary(22)),
        ("APIC-access page", !v.secondary(0) || page(v.get(ApicAccess))),
        ("x2APIC", !(v.secondary(4) && v.secondary(0))),
        ("virtual interrupts", !v.secondary(9) || v.pin(0)),
        (
            "posted interrupts",
            !v.pin(7)
                || v.secondary(9)
                    && v.exit(15)
                    && v.get(PostedVector) < 256
                    && v.get(PostedDescriptor) & 0x3f == 0
                    && v.get(PostedDescriptor) < 1 << WIDTH,
        ),
        ("VPID", !v.secondary(5) || v.get(Vpid) != 0),
        (
            "EPTP",
            !v.secondary(1)
                || matches!(eptp & 7, 0 | 6)
                    && eptp >> 3 & 7 == 3
                    && eptp >> 7 & 0x1f == 0
                    && eptp < 1 << WIDTH,
        ),
        ("PML", !v.secondary(17) || v.secondary(1) && page(v.get(PmlAddress))),
        ("unrestricted", !v.secondary(7) || v.secondary(1)),
        ("mode-based execution", !v.secondary(22) || v.secondary(1)),
        ("VM functions", !v.secondary(13) || v.get(VmFunctions) & !1 == 0),
        (
            "EPTP switching",
            !v.secondary(13) || v.get(VmFunctions) & 1 == 0 || v.secondary(1) && page(v.get(EptpList)),
        ),
        ("shadow", !v.secondary(14) || page(v.get(VmreadBitmap)) && page(v.get(VmwriteBitmap))),
        ("save timer", !v.exit(22) || v.pin(6)),
        ("exit store area", v.area(ExitMsrStoreCount, ExitMsrStore)),
        ("exit load area", v.area(ExitMsrLoadCount, ExitMsrLoad)),
        ("entry load area", v.area(EntryMsrLoadCount, EntryMsrLoad)),
        ("injection", injection_rules(v)),
    ]
}

fn injection_rules(v: &View<'_>) -> bool {
    let info = v.get(EntryInterruption);
    if info >> 31 & 1 == 0 {
        return true;
    }
    let (vector, kind, deliver) = (info & 0xff, info >> 8 & 7, info >> 11 & 1 != 0);
    let protected = !(v.secondary(7) && v.real_or_v86());
    let pushes = kind == 3 && matches!(vector, 8 | 10 | 11 | 12 | 13 | 14 | 17) && protected;
    kind != 1
        && (kind != 2 || vector == 2)
        && (kind != 3 || vector < 32)
        && (kind != 7 || vector == 0)
        && deliver == pushes
        && info >> 12 & 0x7_ffff == 0
        && (!deliver || v.get(EntryErrorCode) >> 16 == 0)
        && (!matches!(kind, 4..=6) || v.get(EntryInstructionLength) <= 15)
}

fn host_rules(v: &View<'_>) -> Rules {
    let wide = v.exit(9);
    let (cr0, cr4, efer) = (v.get(HostCr0), v.get(HostCr4), v.get(HostEfer));
    let mut rules = vec![
        ("CR0", cr0 & 0x8000_0021 == 0x8000_0021 && cr0 >> 32 == 0),
        ("CR4", cr4 & 1 << 13 != 0 && cr4 & !AROUND.cr4 == 0),
        ("CR3", v.get(HostCr3) < 1 << WIDTH),
        ("SYSENTER", canonical(v.get(HostSysenterEsp)) && canonical(v.get(HostSysenterEip))),
        ("PAT", !v.exit(19) || pats(v.get(HostPat))),
        (
            "EFER",
            !v.exit(21)
                || efer & !AROUND.efer == 0 && (efer >> 10 & 1 != 0) == wide && (efer >> 8 & 1 != 0) == wide,
        ),
        ("CS and TR", v.get(HostCs) != 0 && v.get(HostTr) != 0),
        ("SS", wide || v.get(HostSs) != 0),
        ("in IA-32e mode", wide),
        ("PAE", cr4 & 1 << 5 != 0),
        ("RIP", canonical(v.get(HostRip))),
    ];
    for selector in [HostEs, HostCs, HostSs, HostDs, HostFs, HostGs, HostTr] {
        rules.push(("a selector", v.get(selector) & 7 == 0));
    }
    for base in [HostFsBase, HostGsBase, HostGdtrBase, HostIdtrBase, HostTrBase] {
        rules.push(("a base", canonical(v.get(base))));
    }
    rules
}

/// Segment registers, in the order of their fields.
const NAMES: [&str; 6] = ["ES", "CS", "SS", "DS", "FS", "GS"];

fn segment_rules(v: &View<'_>) -> Rules {
    let mut rules = Rules::new();
    let v86 = v.get(GuestRflags) >> 17 & 1 != 0;
    let (wide, unrestricted) = (v.entry(9), v.secondary(7));
    let rights = |index: usize| v.get(GuestEsRights.plus(index));
    let selector = |index: usize| v.get(GuestEs.plus(index));
    let base = |index: usize| v.get(GuestEsBase.plus(index));
    let limit = |index: usize| v.get(GuestEsLimit.plus(index));
    let usable = |index: usize| rights(index) >> 16 & 1 == 0;
    let (kind, dpl) = (|index: usize| rights(index) & 15, |index: usize| rights(index) >> 5 & 3);
    let granularity = |index: usize| {
        let set = rights(index) >> 15 & 1 != 0;
        (limit(index) & 0xfff == 0xfff || !set) && (limit(index) >> 20 == 0 || set)
    };
    let reserved = |index: usize| rights(index) >> 8 & 15 == 0 && rights(index) >> 17 == 0;
    // Selector fields.
    rules.push(("TR's TI", selector(7) & 4 == 0));
    rules.push(("LDTR's TI", !usable(6) || selector(6) & 4 == 0));
    rules.push(("SS's RPL", v86 || unrestricted || selector(2) & 3 == selector(1) & 3));
    // Base addresses.
    for (index, name) in NAMES.into_iter().enumerate() {
        rules.push(("a base in virtual-8086 mode", !v86 || base(index) == selector(index) << 4));
        let fits = match index {
            4 | 5 => canonical(base(index)),
            1 => base(index) >> 32 == 0,
            _ => !usable(index) || base(index) >> 32 == 0,
        };
        rules.push((name, fits));
    }
    rules.push(("TR's base", canonical(base(7))));
    rules.push(("LDTR's base", !usable(6) || canonical(base(6))));
    for index in 0..6 {
        if v86 {
            rules.push((
                "a limit and rights in virtual-8086 mode",
                limit(index) == 0xffff && rights(index) == 0xf3,
            ));
            continue;
        }
        let checked = index == 1 || usable(index);
        let s = rights(index) >> 4 & 1 != 0;
        let p = rights(index) >> 7 & 1 != 0;
        rules.push(("S, P, reserved bits, G", !checked || s && p && reserved(index) && granularity(index)));
        match index {
            1 => {
                let fits = match kind(1) {
                    3 => unrestricted && dpl(1) == 0,
                    9 | 11 => dpl(1) == dpl(2),
                    13 | 15 => dpl(1) <= dpl(2),
                    _ => false,
                };
                rules.push(("CS's type and DPL", fits));
                let both = rights(1) >> 13 & 1 != 0 && rights(1) >> 14 & 1 != 0;
                rules.push(("CS's D and L", !(wide && both)));
            }
            2 => {
                rules.push(("SS's type", !usable(2) || matches!(kind(2), 3 | 7)));
                rules.push(("SS's DPL and RPL", unrestricted || dpl(2) == selector(2) & 3));
                let level0 = kind(1) == 3 || v.real_or_v86();
                rules.push(("SS's DPL", !level0 || dpl(2) == 0));
            }
            _ => {
                let accessed = kind(index) & 1 != 0;
                let readable = kind(index) & 8 == 0 || kind(index) & 2 != 0;
                rules.push(("data's type", !usable(index) || accessed && readable));
                let deep = unrestricted || kind(index) > 11 || dpl(index) >= selector(index) & 3;
                rules.push(("data's DPL", !usable(index) || deep));
            }
        }
    }
    rules.push(("TR's type", kind(7) == 11 || !wide && kind(7) == 3));
    for (index, checked) in [(7, true), (6, usable(6))] {
        let fits = rights(index) >> 4 & 1 == 0
            && rights(index) >> 7 & 1 != 0
            && reserved(index)
            && granularity(index);
        rules.push(("TR or LDTR", !checked || fits));
    }
    rules.push(("TR is usable", usable(7)));
    rules.push(("LDTR's type", !usable(6) || kind(6) == 2));
    rules
}

fn register_rules(v: &View<'_>) -> Rules {
    let (cr0, cr4, efer) = (v.get(GuestCr0), v.get(GuestCr4), v.get(GuestEfer));
    let wide = v.entry(9);
    let fixed = if v.secondary(7) { 0x20 } else { 0x8000_0021 };
    let (pg, pe) = (cr0 >> 31 & 1 != 0, cr0 & 1 != 0);
    vec![
        ("CR0", cr0 & fixed == fixed && cr0 >> 32 == 0),
        ("PG without PE", !pg || pe),
        ("CR4", cr4 & 1 << 13 != 0 && cr4 & !AROUND.cr4 == 0),
        ("IA-32e mode's CR0 and CR4", !wide || pg && cr4 >> 5 & 1 != 0),
        ("PCIDE", wide || cr4 >> 17 & 1 == 0),
        ("CR3", v.get(GuestCr3) < 1 << WIDTH),
        ("DR7", !v.entry(2) || v.get(GuestDr7) >> 32 == 0),
        ("SYSENTER", canonical(v.get(GuestSysenterEsp)) && canonical(v.get(GuestSysenterEip))),
        ("PAT", !v.entry(14) || pats(v.get(GuestPat))),
        (
            "EFER",
            !v.entry(15)
                || efer & !AROUND.efer == 0
                    && (efer >> 10 & 1 != 0) == wide
                    && (!pg || efer >> 10 & 1 == efer >> 8 & 1),
        ),
        ("GDTR and IDTR", canonical(v.get(GuestGdtrBase)) && canonical(v.get(GuestIdtrBase))),
        ("their limits", v.get(GuestGdtrLimit) < 1 << 16 && v.get(GuestIdtrLimit) < 1 << 16),
    ]
}

fn flag_rules(v: &View<'_>) -> Rules {
    let (rip, flags) = (v.get(GuestRip), v.get(GuestRflags));
    let (wide, code64) = (v.entry(9), v.get(GuestCsRights) >> 13 & 1 != 0);
    let info = v.get(EntryInterruption);
    let (injects, kind, vector) = (info >> 31 & 1 != 0, info >> 8 & 7, info & 0xff);
    let (activity, shadow) = (v.get(GuestActivity), v.get(GuestInterruptibility));
    let (sti, ss, smi) = (shadow & 1 != 0, shadow >> 1 & 1 != 0, shadow >> 2 & 1 != 0);
    let interrupt_flag = flags >> 9 & 1 != 0;
    let pending = v.get(GuestPendingDebug);
    let stepped = flags >> 8 & 1 != 0 && v.get(GuestDebugctl) >> 1 & 1 == 0;
    let held = sti || ss || activity == 1;
    vec![
        ("RIP", if wide && code64 { canonical(rip) } else { rip >> 32 == 0 }),
        ("RFLAGS", flags >> 22 == 0 && flags & 0x8028 == 0 && flags >> 1 & 1 != 0),
        ("VM", flags >> 17 & 1 == 0 || !wide && v.get(GuestCr0) & 1 != 0),
        ("IF", !(injects && kind == 0) || interrupt_flag),
        ("activity", matches!(activity, 0 | 1 | 3)),
        ("HLT's DPL", activity != 1 || v.get(GuestSsRights) >> 5 & 3 == 0),
        ("activity in a shadow", !(sti || ss) || activity == 0),
        (
            "what is injected into HLT",
            !(injects && activity == 1)
                || match kind {
                    0 | 2 => true,
                    3 => matches!(vector, 1 | 18),
                    7 => vector == 0,
                    _ => false,
                },
        ),
        ("what is injected into a wait for SIPI", !(injects && activity == 3)),
        ("interruptibility", shadow >> 4 == 0 && !smi),
        ("STI and MOV SS", !(sti && ss)),
        ("STI", !sti || interrupt_flag),
        ("an interrupt in a shadow", !(injects && kind == 0) || !sti && !ss),
        ("an NMI in a shadow", !(injects && kind == 2 && ss)),
        ("pending debug", pending & !0x500f == 0),
        ("BS", !held || (pending >> 14 & 1 != 0) == stepped),
    ]
}

/// What the manual makes of `vmcs`, and which of its rules are broken.
fn model(vmcs: &Vmcs) -> (Verdict, Vec<&'static str>) {
    let v = View(vmcs);
    let found = broken(control_rules(&v));
    if !found.is_empty() {
        return (Verdict::Controls, found);
    }
    let found = broken(host_rules(&v));
    if !found.is_empty() {
        return (Verdict::Host, found);
    }
    let found = broken([register_rules(&v), segment_rules(&v), flag_rules(&v)].concat());
    if !found.is_empty() {
        return (Verdict::Guest(0), found);
    }
    let info = vmcs.get(EntryInterruption);
    let nmi = info >> 31 & 1 != 0 && info >> 8 & 7 == 2;
    if nmi && v.pin(5) && vmcs.get(GuestInterruptibility) >> 3 & 1 != 0 {
        return (Verdict::Guest(3), vec!["a virtual NMI that is blocked"]);
    }
    if vmcs.get(LinkPointer) != u64::MAX {
        return (Verdict::Guest(4), vec!["the link pointer"]);
    }
    let pae = vmcs.get(GuestCr0) >> 31 & 1 != 0 && vmcs.get(GuestCr4) >> 5 & 1 != 0 && !v.entry(9);
    let legal = |entry: u64| entry & 1 == 0 || entry & 0x1e6 == 0 && entry < 1 << WIDTH;
    if pae && v.secondary(1) && !(0..4).all(|index| legal(vmcs.get(GuestPdpte0.plus(index)))) {
        return (Verdict::Guest(2), vec!["a PDPTE"]);
    }
    (Verdict::Fine, Vec::new())
}

/// A value that is likely to matter, for a field that holds `before`.
fn spoilt(random: &mut Random, before: u64) -> u64 {
    match random.below(8) {
        0..=2 => before ^ 1 << random.below(64),
        3 | 4 => before ^ 1 << random.below(32) ^ 1 << random.below(16),
        5 => {
            [0, 1, 2, 3, 0x16, 0x93, 0x9b, 0xf3, 0xffff, 0x1000, 1 << 46, 1 << 47, u64::MAX][random.below(13)]
        }
        6 => random.next() & random.next() & random.next(),
        _ => u64::from(VALID) | random.next() & 0xfff,
    }
}

/// Other guests than [`fine`]'s: of 32 bits, in virtual-8086 mode, in real mode, with what of a local APIC is virtual.
fn dressed(random: &mut Random) -> Vmcs {
    let mut vmcs = fine();
    match random.below(6) {
        0 => {
            vmcs.set(EntryControls, vmcs.get(EntryControls) & !u64::from(entry::IA32E));
            vmcs.set(GuestEfer, 0);
            vmcs.set(GuestCsRights, 0xc09b);
        }
        1 => {
            vmcs.set(EntryControls, vmcs.get(EntryControls) & !u64::from(entry::IA32E));
            vmcs.set(GuestEfer, 0);
            vmcs.set(GuestRflags, 2 | rflags::VM);
            for index in 0..6 {
                vmcs.set(GuestEsRights.plus(index), 0xf3);
                vmcs.set(GuestEsLimit.plus(index), 0xffff);
                vmcs.set(GuestEsBase.plus(index), vmcs.get(GuestEs.plus(index)) << 4);
            }
        }
        2 => {
            vmcs.set(EntryControls, vmcs.get(EntryControls) & !u64::from(entry::IA32E));
            vmcs.set(GuestEfer, 0);
            vmcs.set(GuestCr0, 0x20);
            vmcs.set(GuestCsRights, 0x93);
            vmcs.set(GuestCsLimit, 0xffff);
        }
        3 => {
            vmcs.set(PinControls, vmcs.get(PinControls) | 0x81);
            vmcs.set(ProcControls, vmcs.get(ProcControls) | 1 << 21);
            vmcs.set(ProcControls2, vmcs.get(ProcControls2) | 0x310);
            vmcs.set(ExitControls, vmcs.get(ExitControls) | 1 << 15);
            vmcs.set(PostedVector, 0xf2);
        }
        _ => {}
    }
    if random.below(3) == 0 {
        vmcs.set(ProcControls2, vmcs.get(ProcControls2) & !u64::from(proc2::UNRESTRICTED));
    }
    vmcs
}

#[test]
fn random_entries_end_as_the_manual_says() {
    let mut random = Random(0x5a70);
    let mut seen = [0_u32; 6];
    for _ in 0..400_000 {
        let mut vmcs = dressed(&mut random);
        let mut spoils = Vec::new();
        for _ in 0..random.below(4) {
            let field = Field::ALL[random.below(Field::ALL.len())];
            let value = spoilt(&mut random, vmcs.get(field));
            vmcs.set(field, value);
            spoils.push((field, value));
        }
        let (expected, rules) = model(&vmcs);
        assert_eq!(verdict(&vmcs), expected, "{rules:?} {spoils:x?}");
        seen[match expected {
            Verdict::Controls => 0,
            Verdict::Host => 1,
            Verdict::Guest(0) => 2,
            Verdict::Guest(4) => 3,
            Verdict::Guest(_) => 4,
            Verdict::Fine => 5,
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 20), "each kind comes: {seen:?}");
}
