//! The rows, in the order in which users see them.

use satori_defs::hyperv::{call, msr};

use super::{Auto, EX_PROCESSOR_MASKS, Row, feature, hint, nested, privilege, privilege_high};

enlightenments! {
    /// The hypercall MSRs, without which guests refuse the whole interface.
    Base Row {
        name: "base",
        qemu: None,
        libvirt: None,
        cpuid: &[privilege(5)],
        msrs: &[msr::GUEST_OS_ID, msr::HYPERCALL],
        hypercalls: &[],
        needs: &[Enlightenment::Vpindex],
        default: Auto::On,
        why: "Linux refuses Hyper-V altogether without it, and Windows silently the TSC page",
        brings: "the guest sees a Hyper-V partition and can make hypercalls",
        costs: "one page that covers a page of the guest",
        proof: "dmesg: Hypervisor detected: Microsoft Hyper-V",
    };
    /// VP_INDEX.
    Vpindex Row {
        name: "vpindex",
        qemu: Some("hv-vpindex"),
        libvirt: Some("<vpindex state='on'/>"),
        cpuid: &[privilege(6)],
        msrs: &[msr::VP_INDEX],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "as mandatory as base; everything that addresses a virtual processor builds on it",
        brings: "the guest knows its virtual processors by the numbers that hypercalls take",
        costs: "one exit a virtual processor, at its start",
        proof: "dmesg: Hyper-V: privilege flags low 0x..., with bit 6",
    };
    /// Reference counter and reference TSC page.
    Time Row {
        name: "time",
        qemu: Some("hv-time"),
        libvirt: Some("<timer name='hypervclock' present='yes'/>"),
        cpuid: &[privilege(1), privilege(9)],
        msrs: &[msr::TIME_REF_COUNT, msr::REFERENCE_TSC],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "the guest reads the clock without an exit, from the vDSO too",
        brings: "clock reads take neither an exit nor a system call",
        costs: "a page that covers a page of the guest; wants a stable TSC",
        measured: &[
            "clock_gettime, Linux 6.1, 1 vCPU, exits counted: 1.00 an operation with the HPET, none with the TSC page",
            "the same on the translator of a 2-core AMD EPYC guest, medians of 11 runs (satori bench talks): 762 ns with the HPET, \
             30 ns with the TSC page",
        ],
        proof: "current_clocksource: hyperv_clocksource_tsc_page",
    };
    /// TSC_FREQUENCY and APIC_FREQUENCY.
    Frequencies Row {
        name: "frequencies",
        qemu: Some("hv-frequencies"),
        libvirt: Some("<frequencies state='on'/>"),
        cpuid: &[privilege(11), feature(8)],
        msrs: &[msr::TSC_FREQUENCY, msr::APIC_FREQUENCY],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "the guest need not calibrate TSC and APIC timer, which is slow and inexact",
        brings: "a boot without calibration loops",
        costs: "two exits at the start",
        proof: "dmesg: Hyper-V: LAPIC Timer Frequency: 0x...",
    };
    /// Crash parameters and notification.
    Crash Row {
        name: "crash",
        qemu: Some("hv-crash"),
        libvirt: Some("<panic model='hyperv'/>"),
        cpuid: &[feature(10)],
        msrs: &[
            msr::CRASH_P0,
            msr::CRASH_P0 + 1,
            msr::CRASH_P0 + 2,
            msr::CRASH_P0 + 3,
            msr::CRASH_P4,
            msr::CRASH_CTL,
        ],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "a guest that dies says why; costs nothing before",
        brings: "the report of a panic has the guest's own registers and message",
        costs: "nothing until the guest dies",
        proof: "a crash of the guest ends the run with its parameters",
    };
    /// The hint that watchdogs should be patient.
    Relaxed Row {
        name: "relaxed",
        qemu: Some("hv-relaxed"),
        libvirt: Some("<relaxed state='on'/>"),
        cpuid: &[hint(5)],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "a virtual processor may be late: the guest should not take that for a hang",
        brings: "no false alarm of a watchdog on a host with more virtual processors than processors",
        costs: "nothing",
        proof: "dmesg: Hyper-V: privilege flags ..., hints 0x..., with bit 5",
    };
    /// The local APIC's EOI, ICR and TPR as MSRs, and the VP assist page.
    ///
    /// The hint that guests should use these MSRs goes where APICv is announced: they bypass it.
    Vapic Row {
        name: "vapic",
        qemu: Some("hv-vapic"),
        libvirt: Some("<vapic state='on'/>"),
        cpuid: &[privilege(4), hint(3).unless(Enlightenment::Apicv)],
        msrs: &[msr::EOI, msr::ICR, msr::TPR, msr::VP_ASSIST_PAGE],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "Linux writes VP_ASSIST_PAGE whether offered or not, and warns if that faults",
        brings: "an EOI is a WRMSR in xAPIC mode too, where the page of registers takes a slower exit",
        costs: "one page a virtual processor; bypasses an APIC that the processor virtualises, see apicv",
        proof: "dmesg: Hyper-V: Using enlightened APIC (xapic mode), or (x2apic mode)",
    };
    /// Auto-EOI is deprecated, and the APIC's own registers are the faster ones.
    Apicv Row {
        name: "apicv",
        qemu: Some("hv-apicv"),
        aliases: &["hv-avic"],
        conflicts: &[(Enlightenment::Vapic, "guests leave the enlightened APIC alone and use its own registers")],
        libvirt: Some("<avic state='on'/>"),
        cpuid: &[hint(9)],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::WithApicv,
        why: "where the modelled processor virtualises the APIC (--processor haswell and later, as the default is) the APIC's own registers are the faster ones; elsewhere they are not",
        brings: "no SINT with auto-EOI, which turns APICv off for all of a machine, and no APIC MSRs, which bypass it",
        costs: "takes the enlightened APIC of vapic away",
        proof: "dmesg: Hyper-V: ... hints 0x..., with bit 9 and without bit 3; no Using enlightened APIC",
    };
    /// How often a guest tries a lock before it tells of a long spin.
    Spinlocks Row {
        name: "spinlocks",
        qemu: Some("hv-spinlocks"),
        value: Some("N"),
        libvirt: Some("<spinlocks state='on' retries='4095'/>"),
        cpuid: &[],
        msrs: &[],
        hypercalls: &[call::NOTIFY_LONG_SPIN_WAIT],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "a processor that spins gives its time to the one that holds the lock",
        brings: "less time lost where virtual processors outnumber the host's",
        costs: "nothing",
        measured: &[
            "two guests of 4 vCPUs on one processor, a contended fair lock each, medians of 11 runs (satori bench talks): 2.2 \
             times the locks that they take without help, 5.0 times with pause-loop exiting too, and as many with that alone",
        ],
        proof: "calls of HvCallNotifyLongSpinWait in the report; Linux makes none",
    };
    /// VP_RUNTIME.
    Runtime Row {
        name: "runtime",
        qemu: Some("hv-runtime"),
        libvirt: Some("<runtime state='on'/>"),
        cpuid: &[privilege(0)],
        msrs: &[msr::VP_RUNTIME],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "costs nothing before it is read",
        brings: "the guest can tell the time it ran from the time that was stolen from it",
        costs: "nothing until it is read",
        proof: "reads of MSR 0x40000010 in the report; Linux makes none",
    };
    /// Flushes of other processors' TLBs by hypercall.
    Tlbflush Row {
        name: "tlbflush",
        qemu: Some("hv-tlbflush"),
        libvirt: Some("<tlbflush state='on'/>"),
        cpuid: &[hint(2), EX_PROCESSOR_MASKS],
        msrs: &[],
        hypercalls: &[
            call::FLUSH_VIRTUAL_ADDRESS_SPACE,
            call::FLUSH_VIRTUAL_ADDRESS_LIST,
            call::FLUSH_VIRTUAL_ADDRESS_SPACE_EX,
            call::FLUSH_VIRTUAL_ADDRESS_LIST_EX,
        ],
        needs: &[Enlightenment::Vpindex],
        default: Auto::On,
        why: "one call instead of an interrupt to each processor, and none waits for one that does not run",
        brings: "no interrupt to each processor, and no wait for one that the host does not run",
        costs: "an exit for each flush of others",
        measured: &[
            "64 threads that map and unmap, Linux 6.1, on 2 processors, medians of 11 pairs (satori bench talks), flush interrupts: \
             661, 576 and 616 on 2, 4 and 6 vCPUs without, none with",
            "time of the same, without and with: 0.447 and 0.458 s on 2 vCPUs, 0.690 and 0.643 on 4, 0.769 and 0.718 on 6; 4, 8 and 9 \
             pairs of 11 were faster with it",
        ],
        proof: "dmesg: Hyper-V: Using hypercall for remote TLB flush",
    };
    /// Extended ranges in the lists of flushes.
    TlbflushExt Row {
        name: "tlbflush_ext",
        qemu: Some("hv-tlbflush-ext"),
        libvirt: Some("<tlbflush state='on'><extended state='on'/></tlbflush>"),
        cpuid: &[feature(14)],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Tlbflush],
        default: Auto::On,
        why: "costs nothing",
        brings: "one entry of a list can name large pages",
        costs: "nothing",
        proof: "flushes with extended ranges in the report; Linux makes none",
    };
    /// Interprocessor interrupts by hypercall.
    Ipi Row {
        name: "ipi",
        qemu: Some("hv-ipi"),
        libvirt: Some("<ipi state='on'/>"),
        cpuid: &[hint(10), EX_PROCESSOR_MASKS],
        msrs: &[],
        hypercalls: &[call::SEND_SYNTHETIC_CLUSTER_IPI, call::SEND_SYNTHETIC_CLUSTER_IPI_EX],
        needs: &[Enlightenment::Vpindex],
        default: Auto::On,
        why: "one call interrupts any set of processors",
        brings: "one exit where the APIC needs a write for each cluster",
        costs: "nothing",
        measured: &[
            "an interrupt to half of 12 vCPUs by xAPIC, exits counted: 5.9 to send it without, 1.6 with; to half of 4 by x2APIC: 1.7 and 1.1",
        ],
        proof: "dmesg: Hyper-V: Using IPI hypercalls",
    };
    /// Parameters of fast hypercalls in XMM registers.
    XmmInput Row {
        name: "xmm-input",
        qemu: Some("hv-xmm-input"),
        libvirt: Some("<xmm_input state='on'/>"),
        cpuid: &[feature(4)],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "costs nothing",
        brings: "up to 112 bytes of parameters without a page in memory",
        costs: "nothing",
        proof: "fast calls of more than 16 bytes in the report; Linux makes none",
    };
    /// Output of fast hypercalls in XMM registers.
    XmmOutput Row {
        name: "xmm-output",
        qemu: None,
        libvirt: None,
        cpuid: &[feature(15)],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "costs nothing",
        brings: "results without a page in memory",
        costs: "nothing",
        proof: "fast calls of HvExtCallQueryCapabilities in the report; Linux makes none",
    };
    /// Extended hypercalls, of which there is the query of capabilities.
    ExtendedCalls Row {
        name: "extended-calls",
        qemu: None,
        libvirt: None,
        cpuid: &[privilege_high(20)],
        msrs: &[],
        hypercalls: &[call::EXT_QUERY_CAPABILITIES],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "costs nothing",
        brings: "the guest can ask which extended calls there are: none beyond the question",
        costs: "nothing",
        proof: "calls of HvExtCallQueryCapabilities in the report",
    };
    /// The guest idle MSR.
    Idle Row {
        name: "idle",
        qemu: None,
        libvirt: None,
        cpuid: &[privilege(10), feature(5)],
        msrs: &[msr::GUEST_IDLE],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "a processor that waits for a lock sleeps",
        brings: "whoever frees a lock wakes the one that waits for it, which burns no time meanwhile",
        costs: "two exits for each such sleep",
        proof: "dmesg: Hyper-V: PV spinlocks enabled",
    };
    /// Notice of a changed TSC frequency, and the old one emulated meanwhile.
    Reenlightenment Row {
        name: "reenlightenment",
        qemu: Some("hv-reenlightenment"),
        libvirt: Some("<reenlightenment state='on'/>"),
        cpuid: &[privilege(13)],
        msrs: &[
            msr::REENLIGHTENMENT_CONTROL,
            msr::TSC_EMULATION_CONTROL,
            msr::TSC_EMULATION_STATUS,
        ],
        hypercalls: &[],
        needs: &[Enlightenment::Frequencies, Enlightenment::Time],
        default: Auto::On,
        why: "costs nothing before the frequency changes",
        brings: "a guest that hosts guests learns of a new frequency before its own guests do",
        costs: "nothing: the software CPU emulates the old frequency for free",
        proof: "/proc/interrupts: HRE, once kvm is loaded and the frequency changed",
    };
    /// The guest's consent to an invariant TSC.
    TscInvariant Row {
        name: "tsc-invariant",
        qemu: None,
        libvirt: None,
        cpuid: &[privilege(15)],
        msrs: &[msr::TSC_INVARIANT_CONTROL],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::Off,
        conflicts: &[(Enlightenment::Time, "Linux prefers its own tsc to the TSC page")],
        why: "off: with it Linux prefers its own tsc clocksource to the TSC page",
        brings: "the guest uses the TSC itself, without the page",
        costs: "a changed frequency of the TSC is not corrected",
        proof: "current_clocksource: tsc",
    };
    /// Virtual processors share cores only as the topology says.
    NoNonarchCoresharing Row {
        name: "no-nonarch-coresharing",
        qemu: Some("hv-no-nonarch-coresharing"),
        value: Some("on|off|auto"),
        libvirt: None,
        cpuid: &[hint(18)],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::Off,
        why: "off: the host may run two vCPU threads on one core's siblings unless they are pinned",
        brings: "the guest can leave out barriers against its own processors",
        costs: "wrong, and so unsafe, unless vCPU threads are pinned",
        proof: "dmesg: Hyper-V: ... hints 0x..., with bit 18",
    };
    /// The synthetic interrupt controller, its messages and its event flags.
    Synic Row {
        name: "synic",
        qemu: Some("hv-synic"),
        libvirt: Some("<synic state='on'/>"),
        cpuid: &[privilege(2), privilege_high(4), privilege_high(5)],
        msrs: &[
            msr::SCONTROL,
            msr::SVERSION,
            msr::SIEFP,
            msr::SIMP,
            msr::EOM,
            msr::SINT0,
            msr::SINT0 + 1,
            msr::SINT0 + 2,
            msr::SINT0 + 3,
            msr::SINT0 + 4,
            msr::SINT0 + 5,
            msr::SINT0 + 6,
            msr::SINT0 + 7,
            msr::SINT0 + 8,
            msr::SINT0 + 9,
            msr::SINT0 + 10,
            msr::SINT0 + 11,
            msr::SINT0 + 12,
            msr::SINT0 + 13,
            msr::SINT0 + 14,
            msr::SINT15,
        ],
        hypercalls: &[call::POST_MESSAGE, call::SIGNAL_EVENT],
        needs: &[Enlightenment::Vpindex],
        default: Auto::On,
        why: "the synthetic timers and all devices of Hyper-V build on it; costs nothing until it is used",
        brings: "interrupts with a message or an event flag, also from hypercalls",
        costs: "a source with auto-EOI keeps a processor's own interrupt delivery (APICv) off",
        proof: "writes of SCONTROL in the report; stock Linux makes them once hv_vmbus is loaded",
    };
    /// The synthetic timers.
    Stimer Row {
        name: "stimer",
        qemu: Some("hv-stimer"),
        libvirt: Some("<stimer state='on'/>"),
        cpuid: &[privilege(3)],
        msrs: &[
            msr::STIMER0_CONFIG,
            msr::STIMER0_CONFIG + 1,
            msr::STIMER0_CONFIG + 2,
            msr::STIMER0_CONFIG + 3,
            msr::STIMER0_CONFIG + 4,
            msr::STIMER0_CONFIG + 5,
            msr::STIMER0_CONFIG + 6,
            msr::STIMER3_COUNT,
        ],
        needs: &[Enlightenment::Synic, Enlightenment::Time],
        default: Auto::On,
        why: "Windows without them keeps half a core busy while it is idle",
        brings: "timers in the units of the reference clock, four a processor",
        costs: "each message costs an exit more than a direct timer's interrupt",
        proof: "writes of STIMER0_CONFIG in the report; /proc/interrupts: HYP rises once hv_vmbus is loaded, HVS with direct timers",
    };
    /// Synthetic timers that interrupt directly.
    StimerDirect Row {
        name: "stimer_direct",
        qemu: Some("hv-stimer-direct"),
        libvirt: Some("<stimer state='on'><direct state='on'/></stimer>"),
        cpuid: &[feature(19)],
        needs: &[Enlightenment::Stimer],
        default: Auto::On,
        why: "an expiry is an interrupt, without a message to take and a slot to empty",
        brings: "Linux uses the timer from the start, and without a VMBus",
        costs: "nothing",
        proof: "/proc/interrupts: HVS rises; clockevent0 is Hyper-V clockevent",
    };
    /// The vendor's name in leaf 0x40000000.
    VendorId Row {
        name: "vendor_id",
        qemu: Some("hv-vendor-id"),
        libvirt: Some("<vendor_id state='on' value='...'/>"),
        cpuid: &[],
        msrs: &[],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "'Microsoft Hv' is the name that Linux looks for; Windows looks at leaf 0x40000001",
        brings: "another name for software that compares names",
        costs: "Linux takes only 'Microsoft Hv' for Hyper-V",
        value: Some("TEXT"),
        proof: "CPUID leaf 0x40000000: EBX, ECX, EDX",
    };
    /// The reset MSR.
    Reset Row {
        name: "reset",
        qemu: Some("hv-reset"),
        libvirt: Some("<reset state='on'/>"),
        cpuid: &[privilege(7)],
        msrs: &[msr::RESET],
        hypercalls: &[],
        needs: &[Enlightenment::Base],
        default: Auto::Off,
        why: "off, as Hyper-V itself does not offer it to its guests: ACPI resets as well",
        brings: "a reset without ACPI or the keyboard controller",
        costs: "nothing",
        proof: "the run ends, or restarts, when the guest reboots through MSR 0x40000003",
    };
    /// The version in leaf 0x40000002.
    VersionId Row {
        name: "version_id",
        qemu: Some("hv-version-id-build"),
        aliases: &[
            "hv-version-id-major",
            "hv-version-id-minor",
            "hv-version-id-spack",
            "hv-version-id-sbranch",
            "hv-version-id-snumber",
        ],
        value: Some("N"),
        needs: &[Enlightenment::Base],
        default: Auto::On,
        why: "10.0, build 14393, as QEMU says: Windows Server 2016, which guests know",
        brings: "the version of a hypervisor that the guest's software wants to meet",
        costs: "nothing",
        proof: "dmesg: Hyper-V: Host Build 10.0.14393.0-0",
    };
    /// The enlightened VMCS.
    Evmcs Row {
        name: "evmcs",
        qemu: Some("hv-evmcs"),
        libvirt: Some("<evmcs state='on'/>"),
        cpuid: &[hint(14)],
        needs: &[Enlightenment::Vapic],
        why: "it is for hypervisors only, and takes VMX's preemption timer and TSC scaling from them",
        brings: "a nested hypervisor reads and writes its guest's VMCS in memory: no VMREAD, no VMWRITE",
        costs: "no posted interrupts, preemption timer, VMFUNC, PML or TSC scaling in the nested hypervisor",
        nested: true,
        proof: "dmesg in the guest hypervisor: KVM: vmx: using Hyper-V Enlightened VMCS",
    };
    /// The enlightened MSR bitmap.
    EmsrBitmap Row {
        name: "emsr_bitmap",
        qemu: Some("hv-emsr-bitmap"),
        libvirt: Some("<emsr_bitmap state='on'/>"),
        cpuid: &[nested(19)],
        needs: &[Enlightenment::Vapic],
        why: "it is for hypervisors only, which use it with an enlightened VMCS or VMCB",
        brings: "a hypervisor below looks at a nested guest's MSR bitmap only when it changed",
        costs: "nothing",
        nested: true,
        proof: "Hyper-V: Nested features: 0x..., with bit 19",
    };
    /// TLB flushes of a nested guest that the lowest hypervisor serves.
    TlbflushDirect Row {
        name: "tlbflush_direct",
        qemu: Some("hv-tlbflush-direct"),
        libvirt: Some("<tlbflush state='on'><direct state='on'/></tlbflush>"),
        cpuid: &[nested(17)],
        needs: &[Enlightenment::Vapic],
        why: "a nested hypervisor has to ask for it, with an enlightened VMCS or VMCB",
        brings: "a nested guest's flush takes one exit instead of several",
        costs: "nothing",
        nested: true,
        proof: "Hyper-V: Nested features: 0x..., with bit 17",
    };
    /// Flushes of what is translated through a hypervisor's tables for its guests.
    GpaFlush Row {
        name: "gpa_flush",
        cpuid: &[nested(18)],
        hypercalls: &[call::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE, call::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST],
        needs: &[Enlightenment::Vapic],
        why: "it is for hypervisors only; Hyper-V offers it, KVM does not",
        brings: "a nested hypervisor that changes its guest's second tables tells all processors by one call, instead of an IPI and an INVEPT on each",
        costs: "nothing",
        nested: true,
        proof: "Hyper-V: Nested features: 0x..., with bit 18; the report counts HvCallFlushGuestPhysicalAddressSpace",
    };
    /// Nested tables of SVM whose translations go by hypercall only.
    EnlightenedTlb Row {
        name: "enlightened_tlb",
        cpuid: &[nested(22)],
        needs: &[Enlightenment::GpaFlush],
        why: "it is for hypervisors only, which ask for it in an enlightened VMCB; Hyper-V offers it, KVM does not",
        brings: "kvm_amd flushes what its guests' nested tables translate by gpa_flush's call; a new ASID costs no less here than without",
        costs: "nothing",
        nested: true,
        proof: "dmesg in the guest hypervisor: kvm: Hyper-V enlightened NPT TLB flush enabled",
    };
    /// Synthetic debugging.
    Syndbg Row {
        name: "syndbg",
        qemu: Some("hv-syndbg"),
        needs: &[Enlightenment::Base],
        why: "nothing to be had",
        brings: "Windows' kernel debugger through hypercalls",
        costs: "every interrupt of the debugger's transport is polled",
        refused: Some("it carries Windows' kernel debugger over a network; here --gdb debugs every guest"),
        proof: "none: Linux has no driver for it",
    };
}
