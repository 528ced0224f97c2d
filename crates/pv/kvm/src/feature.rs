//! The one table of KVM's features.

use satori_cpuid::Register;
use satori_defs::kvm::{call, msr};

/// A bit of leaf 0x40000001, counted from wherever KVM's leaves begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuidBit {
    /// EAX, the features, or EDX, the hints.
    pub register: Register,
    /// The bit.
    pub bit: u8,
}

const fn bit(bit: u8) -> CpuidBit {
    CpuidBit { register: Register::Eax, bit }
}

/// Everything that is known of one feature.
#[derive(Debug)]
pub struct Row {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// QEMU's CPU property, if it has one.
    pub qemu: Option<&'static str>,
    /// libvirt's element, if it has one.
    pub libvirt: Option<&'static str>,
    /// The bits that announce it.
    pub cpuid: &'static [CpuidBit],
    /// The MSRs that answer when it is on.
    pub msrs: &'static [u32],
    /// The hypercalls that answer when it is on.
    pub calls: &'static [u64],
    /// A use that is neither an MSR access nor a hypercall.
    pub used: Option<&'static str>,
    /// What must be on as well; all need `base`.
    pub needs: &'static [Feature],
    /// What it does not go well with, and what then happens.
    pub conflicts: &'static [(Feature, &'static str)],
    /// Whether `auto` turns it on.
    pub default: bool,
    /// Why the default is what it is.
    pub why: &'static str,
    /// What it brings.
    pub brings: &'static str,
    /// What it costs.
    pub costs: &'static str,
    /// Why it cannot be had, if it cannot.
    pub refused: Option<&'static str>,
    /// How a guest shows that it uses it.
    pub proof: &'static str,
}

impl Row {
    /// What a row says of which nothing else is told.
    const PLAIN: Row = Row {
        name: "",
        qemu: None,
        libvirt: None,
        cpuid: &[],
        msrs: &[],
        calls: &[],
        used: None,
        needs: &[],
        conflicts: &[],
        default: false,
        why: "",
        brings: "",
        costs: "",
        refused: None,
        proof: "",
    };
}

macro_rules! features {
    ($($(#[$doc:meta])* $ident:ident Row { $($field:tt)* };)*) => {
        /// A feature of KVM's guest interface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Feature { $($(#[$doc])* $ident,)* }

        impl Feature {
            /// Every feature, in the order of the table.
            pub const ALL: &'static [Feature] = &[$(Feature::$ident,)*];

            /// Its row of the table.
            pub const fn row(self) -> &'static Row {
                match self { $(Feature::$ident => { const ROW: Row = Row { $($field)* ..Row::PLAIN }; &ROW })* }
            }
        }
    };
}

const NO_ASYNC: &str = "asynchronous page faults tell a guest that its host fetches a page; this one has all pages of RAM \
                        at once";
const DEDICATED: &str = "Linux leaves it alone where a vCPU has its processor for itself";

features! {
    /// The signature and the hypercalls that are always there.
    Base Row {
        name: "base",
        qemu: Some("kvm"),
        libvirt: Some("<kvm><hidden state='off'/></kvm>"),
        calls: &[call::VAPIC_POLL_IRQ, call::CLOCK_PAIRING],
        default: true,
        why: "without it there is no interface: kvm=off hides it, as users know it",
        brings: "the guest knows that it is a KVM guest; ptp_kvm reads the host's clock by a hypercall",
        costs: "nothing",
        proof: "dmesg: Hypervisor detected: KVM",
    };
    /// System time and wall clock, by both pairs of MSRs.
    Clock Row {
        name: "clock",
        qemu: Some("kvmclock"),
        libvirt: Some("<timer name='kvmclock' present='yes'/>"),
        cpuid: &[bit(0), bit(3)],
        msrs: &[msr::WALL_CLOCK, msr::SYSTEM_TIME, msr::WALL_CLOCK_OLD, msr::SYSTEM_TIME_OLD],
        default: true,
        why: "the guest knows the TSC's frequency without a calibration, and the wall clock without the RTC",
        brings: "time without an exit, and right over changes of the TSC's frequency",
        costs: "32 bytes a vCPU, which are written when the vCPU tells where they are",
        proof: "dmesg: kvm-clock: Using msrs 4b564d01 and 4b564d00",
    };
    /// The same parameters hold on all vCPUs.
    StableBit Row {
        name: "stable-bit",
        qemu: Some("kvmclock-stable-bit"),
        cpuid: &[bit(24)],
        needs: &[Feature::Clock],
        default: true,
        why: "the counters of all vCPUs are one; without it there is no clock in the vDSO",
        brings: "clock_gettime without a system call",
        costs: "nothing",
        proof: "dmesg: kvm-clock: using sched offset of ... cycles; no system call behind clock_gettime",
    };
    /// No delay behind port accesses.
    Nopiodelay Row {
        name: "nopiodelay",
        qemu: Some("kvm-nopiodelay"),
        cpuid: &[bit(1)],
        default: true,
        why: "no device here needs the time that a write to port 0x80 takes",
        brings: "no exit behind each port access of old drivers",
        costs: "nothing",
        proof: "no exit at port 0x80 (or 0xed)",
    };
    /// Time that the vCPU would have run and did not.
    StealTime Row {
        name: "steal-time",
        qemu: Some("kvm-steal-time"),
        cpuid: &[bit(5)],
        msrs: &[msr::STEAL_TIME],
        default: true,
        why: "a guest's accounting is wrong by what its host gave to others, if nobody tells",
        brings: "steal in /proc/stat and top; the preempted flag, by which others know that a vCPU sleeps",
        costs: "64 bytes a vCPU, which are written once in a millisecond at most",
        proof: "dmesg: kvm-guest: stealtime: cpu 0, msr ...; steal in /proc/stat",
    };
    /// An interrupt is ended without an exit.
    PvEoi Row {
        name: "pv-eoi",
        qemu: Some("kvm-pv-eoi"),
        libvirt: Some("<apic eoi='on'/>"),
        cpuid: &[bit(6)],
        msrs: &[msr::PV_EOI_EN],
        used: Some("EOIs without an exit"),
        default: true,
        why: "spares the exit of most EOIs where the processor does not virtualise the APIC; does nothing where it does, as in KVM",
        brings: "fewer exits with --processor no-apicv",
        costs: "4 bytes a vCPU, which are written at entries behind an interrupt",
        proof: "the report: EOIs without an exit",
    };
    /// A vCPU that waits for a lock sleeps until it is kicked.
    PvUnhalt Row {
        name: "pv-unhalt",
        qemu: Some("kvm-pv-unhalt"),
        libvirt: Some("<pvspinlock state='on'/>"),
        cpuid: &[bit(7)],
        calls: &[call::KICK_CPU],
        default: true,
        why: "who waits for a lock whose holder does not run should not spin",
        brings: "locks of a guest with more vCPUs than the host has processors",
        costs: "an exit for each waiter that sleeps, and one to wake it",
        proof: "dmesg: kvm-guest: PV spinlocks enabled",
    };
    /// A vCPU that sleeps flushes its TLB when it goes on.
    PvTlbFlush Row {
        name: "pv-tlb-flush",
        qemu: Some("kvm-pv-tlb-flush"),
        cpuid: &[bit(9)],
        used: Some("flushes at entry"),
        needs: &[Feature::StealTime],
        default: true,
        why: "a vCPU that sleeps need not be woken to flush its TLB",
        brings: "no IPI to vCPUs that do not run",
        costs: "nothing",
        proof: "dmesg: kvm-guest: KVM setup pv remote TLB flush",
    };
    /// One hypercall for IPIs to many.
    PvIpi Row {
        name: "pv-ipi",
        qemu: Some("kvm-pv-ipi"),
        libvirt: Some("<kvm><pv-ipi state='on'/></kvm>"),
        cpuid: &[bit(11)],
        calls: &[call::SEND_IPI],
        default: true,
        why: "an IPI to many vCPUs is one exit and not one each",
        brings: "fewer exits for flushes and calls on all vCPUs",
        costs: "an exit also where the processor virtualises IPIs",
        proof: "dmesg: kvm-guest: setup PV IPIs",
    };
    /// The guest says whether the host may poll.
    PollControl Row {
        name: "poll-control",
        qemu: Some("kvm-poll-control"),
        libvirt: Some("<kvm><poll-control state='on'/></kvm>"),
        cpuid: &[bit(12)],
        msrs: &[msr::POLL_CONTROL],
        why: "this host never polls on HLT, so there is nothing to forbid",
        brings: "Linux' haltpoll governor loads, with hint-dedicated",
        costs: "a guest that polls keeps its processor busy",
        proof: "/sys/devices/system/cpu/cpuidle/current_governor: haltpoll, with hint-dedicated",
    };
    /// The caller gives its time to a vCPU that it waits for.
    SchedYield Row {
        name: "sched-yield",
        qemu: Some("kvm-pv-sched-yield"),
        cpuid: &[bit(13)],
        calls: &[call::SCHED_YIELD],
        needs: &[Feature::StealTime],
        default: true,
        why: "who sent an IPI to a vCPU that does not run should let it run",
        brings: "calls on other vCPUs end sooner where there are more vCPUs than processors",
        costs: "an exit each",
        proof: "dmesg: kvm-guest: setup PV sched yield",
    };
    /// Fifteen bits of destination in messages of devices.
    MsiExtDestId Row {
        name: "msi-ext-dest-id",
        qemu: Some("kvm-msi-ext-dest-id"),
        cpuid: &[bit(15)],
        why: "no machine here has a vCPU with an APIC ID beyond 255",
        brings: "devices interrupt vCPUs with APIC IDs up to 32767 without interrupt remapping",
        costs: "nothing",
        proof: "the bit in CPUID; message addresses with bits 11:5",
    };
    /// The guest says whether it can be migrated.
    MigrationControl Row {
        name: "migration-control",
        cpuid: &[bit(17)],
        msrs: &[msr::MIGRATION_CONTROL],
        why: "only guests with encrypted memory have a reason to forbid it; Linux clears it at a reboot",
        brings: "nothing to guests whose memory is not encrypted",
        costs: "nothing",
        proof: "MSR 0x4b564d08 reads 1",
    };
    /// Each vCPU has a processor of its own.
    HintDedicated Row {
        name: "hint-dedicated",
        qemu: Some("kvm-hint-dedicated"),
        libvirt: Some("<kvm><hint-dedicated state='on'/></kvm>"),
        cpuid: &[CpuidBit { register: Register::Edx, bit: 0 }],
        conflicts: &[
            (Feature::PvUnhalt, DEDICATED),
            (Feature::PvTlbFlush, DEDICATED),
            (Feature::SchedYield, DEDICATED),
        ],
        why: "true only where somebody pins the vCPUs, as <vcpupin> does",
        brings: "no paravirtual locks, flushes and yields, which cost more than they bring there",
        costs: "locks spin if it is not true",
        proof: "dmesg: kvm-guest: PV spinlocks disabled with KVM_HINTS_REALTIME hints",
    };
    /// A page that the host fetches is told to the guest.
    AsyncPf Row {
        name: "asyncpf",
        qemu: Some("kvm-asyncpf"),
        cpuid: &[bit(4)],
        msrs: &[msr::ASYNC_PF_EN],
        refused: Some(NO_ASYNC),
        why: "see refused",
    };
    /// The same as an exit of a nested guest.
    AsyncPfVmexit Row {
        name: "asyncpf-vmexit",
        qemu: Some("kvm-asyncpf-vmexit"),
        cpuid: &[bit(10)],
        refused: Some(NO_ASYNC),
        why: "see refused",
    };
    /// That a page came is told by an interrupt.
    AsyncPfInt Row {
        name: "asyncpf-int",
        qemu: Some("kvm-asyncpf-int"),
        cpuid: &[bit(14)],
        msrs: &[msr::ASYNC_PF_INT, msr::ASYNC_PF_ACK],
        refused: Some(NO_ASYNC),
        why: "see refused",
    };
    /// The encryption of pages.
    MapGpaRange Row {
        name: "map-gpa-range",
        cpuid: &[bit(16)],
        calls: &[call::MAP_GPA_RANGE],
        refused: Some("it tells a host which pages of an encrypted guest are shared; no memory is encrypted here"),
        why: "see refused",
    };
}

impl Feature {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The feature called `name`, in this table's or QEMU's spelling, underscores for hyphens or not.
    pub fn by_name(name: &str) -> Option<Self> {
        let wanted = name.replace('_', "-");
        let bare = wanted.strip_prefix("kvm-").unwrap_or(&wanted);
        let matches = |row: &Row| row.name == bare || row.qemu == Some(&wanted);
        Self::ALL.iter().copied().find(|one| matches(one.row()))
    }

    /// Its name with QEMU's prefix, as messages call it.
    pub fn property(self) -> String {
        self.row().qemu.map_or_else(|| format!("kvm-{}", self.name()), Into::into)
    }

    /// The feature that `msr` belongs to.
    pub fn of_msr(msr: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.row().msrs.contains(&msr))
    }

    /// The feature that hypercall `number` belongs to.
    pub fn of_call(number: u64) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.row().calls.contains(&number))
    }
}
