//! The rules of `satori advise`.

use satori_hyperv::Enlightenment as E;

use super::{Also, Guest, Rule, When};
use satori_seam::Class;

use crate::reasons::Isa;

/// Exits that a processor with virtual interrupt delivery in use does not have (SDM 30.2).
const INJECTED: &[Class] = &[Class::Priority, Class::Window];
/// Exits by which a guest uses the Hyper-V interface.
const INTERFACE: &[Class] = &[Class::Hypercall, Class::RegisterWrite, Class::RegisterRead];
/// Devices that the monitor may emulate in user space.
const USER_SPACE: &[Class] = &[Class::Mmio, Class::Port];
/// Microseconds from which on an exit may have gone to the monitor's process. KVM's own devices and doorbells (ioeventfd) take
/// one to three.
const PROCESS_US: f64 = 4.0;
/// "The traps of using Hyper-V features in KVM environment", Liang Li, 2021.
const TRAPS: &str = "L. Li, The traps of using Hyper-V features in KVM environment, 2021";
/// What tells which MSRs are written and read.
const WHICH_MSR: &str = "host: perf record -e kvm:kvm_msr -a sleep 5; perf script | grep -o 'msr_[a-z]* [0-9a-f]*' | sort | uniq -c | sort -rn | head";

const fn host(text: &'static str) -> Also {
    Also { libvirt: None, qemu: None, host: Some(text) }
}

const NO_HPET: Also =
    Also { libvirt: Some("<timer name='hpet' present='no'/>"), qemu: Some("-machine hpet=off"), host: None };
const DOORBELLS: Also = Also {
    libvirt: Some(
        "<driver name='vhost' ioeventfd='on'/> in an <interface>, <driver iothread='1' ioeventfd='on'/> in a <disk>",
    ),
    qemu: Some(
        "-netdev tap,vhost=on, -object iothread,id=io1, -device virtio-blk-pci,iothread=io1,ioeventfd=on",
    ),
    host: None,
};
const HUGE_PAGES: Also = Also {
    libvirt: Some("<memoryBacking><hugepages/><allocation mode='immediate'/></memoryBacking>"),
    qemu: Some(
        "-object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,prealloc=on -machine memory-backend=ram",
    ),
    host: Some(
        "host: cat /sys/kernel/mm/transparent_hugepage/enabled; grep Huge /proc/meminfo; KSM, ballooning and migration split huge pages",
    ),
};
const PINNED: Also = Also {
    libvirt: Some("<cputune><vcpupin vcpu='0' cpuset='2'/>...</cputune>"),
    qemu: None,
    host: Some(
        "host: compare the vCPUs of all guests with its processors; steal time in the guest tells the rest",
    ),
};

pub(crate) const RULES: &[Rule] = &[
    Rule {
        id: "unknown-exits",
        title: "the exits have names that no rule knows",
        when: &[When::Unknown(5.0)],
        advice: "judge these by hand: rules know Intel's and AMD's exits, not ARM's, nor what perf calls UNKNOWN",
        also: &[host(
            "host: UNKNOWN is another hypervisor's exit, or a perf older than the kernel: take perf of the same version",
        )],
        why: "advice on one machine's exits says nothing of another's",
        source: "Linux arch/x86/include/uapi/asm/{vmx,svm}.h, arch/arm64/include/asm/kvm_arm.h",
        ..Rule::PLAIN
    },
    Rule {
        id: "few-exits",
        title: "there are too few exits to judge",
        when: &[When::Few(1000)],
        advice: "record longer, and while the guest does what it is slow at",
        also: &[host("host: perf kvm stat record -p PID sleep 30; perf kvm stat report")],
        why: "shares of some hundred exits change from one second to the next",
        source: "none needed",
        ..Rule::PLAIN
    },
    Rule {
        id: "mostly-idle",
        title: "the guest sleeps nearly all the time",
        when: &[When::Idle(95.0)],
        advice: "look at the other findings only if the host is busy while this guest is idle; then it is wake-ups that cost",
        also: &[
            host(
                "host: cat /sys/module/kvm/parameters/halt_poll_ns; polling before a sleep shows as the vCPU's time, 0 ends it",
            ),
            host(
                "guest: fewer timers (Linux: nohz, HZ=100; Windows: powercfg /energy tells who asks for a fast timer)",
            ),
        ],
        why: "time in HLT is the guest's own rest, of which an exit's share in percent tells nothing",
        source: "Linux Documentation/virt/kvm/halt-polling.rst",
        ..Rule::PLAIN
    },
    Rule {
        id: "user-space-timer",
        title: "the guest's timer, or another device that the monitor emulates in user space, costs most",
        when: &[
            When::Time(USER_SPACE, 25.0),
            When::Slow(USER_SPACE, PROCESS_US),
            When::NotOn(E::Stimer),
            When::Guest(Guest::Windows),
        ],
        advice: "for a Windows guest: offer synthetic timers, which interrupt directly, and take the HPET away",
        offer: &[E::StimerDirect, E::Apicv],
        also: &[NO_HPET],
        why: "without a synthetic timer Windows takes HPET (by MMIO) or RTC (by ports); a stimer costs an MSR write \
              that the kernel handles",
        saves: USER_SPACE,
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "auto-eoi-apicv",
        title: "synic's auto-EOI switches APICv off: interrupts are injected, each with an exit",
        when: &[
            // A guest that uses the task priority and calls is Windows.
            When::Likely(E::Synic, &[Class::Hypercall, Class::Priority]),
            When::NotOn(E::Apicv),
            When::Apicv,
            When::Some(INJECTED),
            When::Exits(&[Class::HostInterrupt, Class::Priority, Class::Window], 10.0),
        ],
        advice: "offer apicv: auto-EOI is deprecated by CPUID 0x40000004.EAX[9]",
        offer: &[E::Apicv],
        why: "KVM inhibits APICv for the whole machine while a SINT has auto-EOI; then an IPI to a running vCPU is an \
              EXTERNAL_INTERRUPT there, and TPR and interrupt window exits come back",
        saves: &[Class::HostInterrupt, Class::Priority, Class::Window],
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "apic-access-hint",
        title: "the guest is told to use the APIC's MSRs, which bypass APICv's registers",
        when: &[
            When::Likely(E::Vapic, &[Class::Hypercall, Class::Priority]),
            When::NotOn(E::Apicv),
            When::Apicv,
            When::Exits(&[Class::RegisterWrite], 10.0),
        ],
        advice: "clear the recommendation to access the APIC by MSRs: apicv beside vapic does it",
        offer: &[E::Apicv],
        why: "CPUID 0x40000004.EAX[3] makes every EOI, TPR and ICR write of the guest an MSR write, where APICv would \
              virtualise the register",
        saves: &[Class::RegisterWrite],
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "apicv-not-in-force",
        title: "interrupts are injected with exits: APICv (AMD: AVIC) is not in force, whatever the processor has",
        when: &[When::Injected, When::Apicv],
        advice: "look whether the host has it, and what switches it off",
        also: &[
            host(
                "host: cat /sys/module/kvm_intel/parameters/enable_apicv, or /sys/module/kvm_amd/parameters/avic",
            ),
            host(
                "host: perf record -e kvm:kvm_apicv_inhibit_changed while the guest starts names the reason",
            ),
        ],
        why: "with virtual interrupt delivery no guest has these exits; a SINT with auto-EOI, a PIT that reinjects, nested guests and \
              debugging inhibit it",
        saves: &[Class::Priority, Class::Window],
        source: "Intel SDM volume 3, 30.2; AMD APM volume 2, 15.29; Linux enum kvm_apicv_inhibit",
        ..Rule::PLAIN
    },
    Rule {
        id: "hypervisor-hidden",
        title: "the hypervisor is hidden: no enlightenment is in use",
        when: &[When::Hidden],
        advice: "show the hypervisor again, and offer direct timers, IPIs and flushes with apicv",
        offer: &[E::StimerDirect, E::Ipi, E::Tlbflush, E::Apicv],
        why: "hiding gives the guest the local APIC timer and keeps APICv on, so exits are few; but hv-ipi, \
              hv-tlbflush, hv-spinlocks and the rest are lost. With auto-EOI deprecated there is nothing to hide from",
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "nothing-offered",
        title: "no enlightenment is offered",
        when: &[When::Nothing, When::Guest(Guest::Windows)],
        advice: "take --hyperv auto, or for KVM what 'satori hyperv convert --to libvirt' writes",
        offer: &[
            E::Relaxed,
            E::Vapic,
            E::Spinlocks,
            E::StimerDirect,
            E::Frequencies,
            E::Ipi,
            E::Tlbflush,
            E::Apicv,
        ],
        why: "a guest that sees a hypervisor but no interface of it has the slowest timers and clocks",
        saves: &[Class::Mmio],
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "interface-unused",
        title: "the guest asks the Hyper-V interface for nothing: none is offered",
        when: &[
            When::Untold,
            When::None(INTERFACE),
            When::Time(USER_SPACE, 25.0),
            When::Slow(USER_SPACE, PROCESS_US),
            When::Guest(Guest::Windows),
        ],
        advice: "offer enlightenments: for KVM what 'satori hyperv convert --to libvirt' writes of --hyperv auto",
        offer: &[
            E::Relaxed,
            E::Vapic,
            E::Spinlocks,
            E::StimerDirect,
            E::Frequencies,
            E::Ipi,
            E::Tlbflush,
            E::Apicv,
        ],
        why: "a guest that sees a hypervisor without an interface takes HPET or RTC; with all features the talk's guest \
              spends a fifth of the time in exits",
        saves: USER_SPACE,
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "looks-hidden",
        title: "the guest takes the local APIC's timer and no enlightenment: the hypervisor is hidden, it seems",
        when: &[
            When::Untold,
            When::None(INTERFACE),
            When::Less(USER_SPACE, 25.0),
            When::Exits(&[Class::Controller], 10.0),
            When::Guest(Guest::Windows),
        ],
        advice: "show the hypervisor, and offer direct timers, spinlocks, IPIs and flushes with apicv",
        offer: &[E::StimerDirect, E::Spinlocks, E::Ipi, E::Tlbflush, E::Apicv],
        why: "hiding keeps APICv in use and spares the guest HPET and RTC, so exits are few; but hv-ipi, hv-tlbflush, \
              hv-spinlocks and the rest are lost, and with auto-EOI deprecated there is nothing to hide from",
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "as-repaired",
        title: "the guest uses the interface while APICv stays in use: what performs best",
        when: &[
            When::Likely(E::Apicv, &[Class::Hypercall]),
            When::Some(&[Class::Hypercall]),
            When::Exits(&[Class::Controller], 10.0),
            When::None(INJECTED),
            When::Less(USER_SPACE, 25.0),
        ],
        advice: "keep the enlightenments as they are",
        why: "no interrupt is injected with an exit, and none of the timers is emulated in user space: after these repairs \
              all features together had the fewest exits",
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "stimer-messages",
        title: "each message of a synthetic timer costs an EOI-induced exit",
        when: &[
            When::On(E::Stimer),
            When::NotOn(E::StimerDirect),
            When::Apicv,
            When::Exits(&[Class::Eoi], 1.0),
        ],
        advice: "offer stimer_direct",
        offer: &[E::StimerDirect],
        why: "KVM keeps the vector of every SINT in the EOI-exit bitmap; a direct timer has a vector without a SINT",
        saves: &[Class::Eoi],
        source: "Linux 6.16 arch/x86/kvm/hyperv.c, synic_update_vector and kvm_hv_synic_send_eoi",
        ..Rule::PLAIN
    },
    Rule {
        id: "ipi-missing",
        title: "many writes of APIC registers, and no hypercall for IPIs to several vCPUs",
        when: &[When::Off(E::Ipi), When::Exits(&[Class::Controller, Class::Ipi], 15.0)],
        advice: "offer ipi",
        offer: &[E::Ipi],
        why: "an IPI to a subset of vCPUs is one hypercall instead of an ICR write for each",
        saves: &[Class::Controller, Class::Ipi],
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "ipi-virtualization",
        title: "what is left is mostly the guest's writes of the ICR",
        when: &[
            When::Exits(&[Class::Controller], 30.0),
            When::NotInjected,
            When::Isa(Isa::Vmx),
            When::NoIpiVirtualization,
        ],
        advice: "run it on a processor with IPI virtualisation (Sapphire Rapids and later)",
        also: &[host(
            "guest: with one vCPU it is the local APIC timer's register instead: the TSC deadline (hv-stimer-direct) is cheaper",
        )],
        why: "APICv is in use and cannot send; IPI virtualisation posts an IPI to one vCPU without an exit",
        saves: &[Class::Controller],
        source: "Intel SDM volume 3, 30.1.6 IPI virtualization",
        ..Rule::PLAIN
    },
    Rule {
        id: "ipi-hypercalls",
        title: "IPIs are hypercalls, where this processor would send most of them without an exit",
        when: &[When::On(E::Ipi), When::IpiVirtualization, When::Exits(&[Class::Hypercall], 15.0)],
        advice: "leave ipi out and compare: with IPI virtualisation an IPI to one vCPU does not exit",
        without: &[E::Ipi],
        why: "a guest that is offered the hypercall takes it, Linux for every IPI; IPI virtualisation handles \
              writes of the ICR that name one vCPU, and nothing else",
        saves: &[Class::Hypercall],
        source: "Intel SDM volume 3, 30.1.6 IPI virtualization; Linux arch/x86/hyperv/hv_apic.c",
        ..Rule::PLAIN
    },
    Rule {
        id: "sleeping-targets",
        title: "IPIs go to vCPUs that do not run",
        when: &[When::Exits(&[Class::Ipi], 15.0)],
        advice: "give each vCPU a processor of its own",
        also: &[PINNED],
        why: "AVIC sends an IPI to a running vCPU without an exit, and leaves one that sleeps or waits for a processor to KVM",
        saves: &[Class::Ipi],
        source: "AMD APM volume 2, 15.29.9 AVIC IPI delivery not completed",
        ..Rule::PLAIN
    },
    Rule {
        id: "apicv-deprecation-alone",
        title: "auto-EOI is deprecated for the sake of APICv, and this processor has none",
        when: &[
            When::NoApicv,
            When::On(E::Apicv),
            // Kernels before 5.15 mapped the APIC's page without APICv, too, and so have APIC_ACCESS.
            When::Exits(&[Class::Memory, Class::Controller, Class::RegisterWrite], 15.0),
        ],
        advice: "leave apicv out on this processor",
        without: &[E::Apicv],
        why: "without APICv nothing is inhibited: auto-EOI spares the guest an EOI for each message, which is an exit \
              here",
        saves: &[Class::Memory, Class::Controller, Class::RegisterWrite],
        source: TRAPS,
        ..Rule::PLAIN
    },
    Rule {
        id: "msr-writes",
        title: "most exits are accesses to MSRs: of a Linux guest mostly deadlines of its timer (0x6e0)",
        when: &[When::Exits(&[Class::RegisterWrite], 25.0)],
        advice: "let the host tell which: 6e0 is the TSC deadline, 830 an IPI and 80b an EOI of x2APIC, 400000b0 on synthetic timers, \
                 40000070 to 72 the APIC that hv-vapic recommends",
        also: &[
            host(WHICH_MSR),
            host(
                "guest: against deadlines fewer wake-ups (nohz, HZ=100, idle=poll or cpuidle-haltpoll); against x2APIC's APICv or AVIC",
            ),
        ],
        why: "an exit says that an MSR was written, not which one; the remedies differ",
        saves: &[Class::RegisterWrite],
        source: "Intel SDM volume 3, 11.5.4.1 TSC-Deadline Mode and 11.12 x2APIC; Linux include/trace/events/kvm.h",
        ..Rule::PLAIN
    },
    Rule {
        id: "clock-reads",
        title: "the guest reads MSRs often, and has no clock page",
        when: &[When::Exits(&[Class::RegisterRead], 20.0), When::Off(E::Time)],
        advice: "offer time",
        offer: &[E::Time],
        why: "the reference TSC page tells the time without an exit",
        saves: &[Class::RegisterRead],
        source: "Hyper-V TLFS, Partition Reference Time Enlightenment",
        ..Rule::PLAIN
    },
    Rule {
        id: "msr-reads",
        title: "the guest reads MSRs often",
        when: &[When::Exits(&[Class::RegisterRead], 40.0), When::Isa(Isa::Vmx)],
        advice: "let the host tell which: 40000020 is Hyper-V's reference counter, read by a guest that does not trust the TSC page",
        offer: &[E::Time],
        also: &[
            host(WHICH_MSR),
            host(
                "host: cat /sys/devices/system/clocksource/clocksource0/current_clocksource must say tsc, or the page is not used",
            ),
        ],
        why: "a guest with a usable TSC page reads no clock by an exit",
        saves: &[Class::RegisterRead],
        source: "Hyper-V TLFS, Partition Reference Time Enlightenment",
        ..Rule::PLAIN
    },
    Rule {
        id: "port-devices",
        title: "ports of emulated devices cost much",
        when: &[When::Time(&[Class::Port], 20.0)],
        advice: "let the host tell which: 608 or b008 is the ACPI timer (a guest without hypervclock or kvmclock), 70 and 71 the RTC, 40 to 43 \
                 the PIT, 3f8 the serial console, 3c0 to 3df VGA, 1f0 to 1f7 IDE, cf8 PCI's configuration",
        also: &[
            host("host: perf kvm stat record -p PID sleep 10; perf kvm stat report --event=ioport"),
            host(
                "then: a clock page instead of the ACPI timer, a virtio console instead of serial, virtio or no display instead of VGA, virtio-blk instead of IDE",
            ),
        ],
        why: "each access to a port of a device that the monitor's process emulates is a switch to that process and back",
        saves: &[Class::Port],
        source: "Linux tools/perf/Documentation/perf-kvm.txt; Intel SDM volume 3, 26.1.3",
        ..Rule::PLAIN
    },
    Rule {
        id: "mmio-devices",
        title: "registers of emulated devices cost much",
        when: &[When::Time(&[Class::Mmio], 20.0), When::Isa(Isa::Vmx)],
        advice: "let the host tell which: fed00000 is the HPET, fee00000 the local APIC; addresses of a PCI device are its doorbells",
        also: &[
            host("host: perf kvm stat record -p PID sleep 10; perf kvm stat report --event=mmio"),
            DOORBELLS,
        ],
        why: "a doorbell with ioeventfd ends in the kernel in about 2 us, with vhost nothing else is needed; any other register goes to the \
              monitor's process",
        saves: &[Class::Mmio],
        source: "Linux Documentation/virt/kvm/api.rst, KVM_IOEVENTFD",
        ..Rule::PLAIN
    },
    Rule {
        id: "memory-faults",
        title: "the host hands out the guest's memory page by page while it runs",
        when: &[When::Time(&[Class::Memory], 20.0), When::Isa(Isa::Vmx)],
        advice: "give the guest huge pages, allocated beforehand",
        also: &[HUGE_PAGES],
        why: "a first touch of a 4 KiB page costs one EPT_VIOLATION; a huge page costs one for 512",
        saves: &[Class::Memory],
        source: "Linux Documentation/admin-guide/mm/transhuge.rst; Intel SDM volume 3, 29.3.3.2 EPT Violations",
        ..Rule::PLAIN
    },
    Rule {
        id: "nested-page-faults",
        title: "nested page faults cost much: pages that the host hands out, or registers of emulated devices",
        when: &[When::Time(&[Class::Memory], 20.0), When::Isa(Isa::Svm)],
        advice: "let the host tell which; against faults huge pages, against devices doorbells in the kernel",
        also: &[
            host("host: perf kvm stat record -p PID sleep 10; perf kvm stat report --event=mmio"),
            HUGE_PAGES,
            DOORBELLS,
        ],
        why: "AMD has one exit for both, npf; what --event=mmio lists are devices, the rest is memory",
        saves: &[Class::Memory],
        source: "AMD APM volume 2, 15.25.6 Nested versus Guest Page Faults",
        ..Rule::PLAIN
    },
    Rule {
        id: "nested-guest",
        title: "the guest is a hypervisor: its own guests' exits cost most",
        when: &[When::Exits(&[Class::Nested], 10.0)],
        advice: "for Hyper-V as the guest on Intel: offer the enlightened VMCS; else run its guests beside it instead of within",
        also: &[Also {
            libvirt: Some(
                "<features><hyperv><vapic state='on'/><evmcs state='on'/></hyperv></features> (Intel), <emsr_bitmap state='on'/>",
            ),
            qemu: Some("-cpu ...,hv-vapic,hv-evmcs (Intel),hv-emsr-bitmap,hv-tlbflush-direct"),
            host: Some(
                "guest: Windows runs on its own Hyper-V where WSL2, Credential Guard or core isolation are on; without them it does not",
            ),
        }],
        why: "every entry to and exit from a nested guest is several exits here",
        saves: &[Class::Nested],
        source: "V. Kuznetsov, A slightly different nesting, FOSDEM 2018; QEMU docs/system/i386/hyperv.rst",
        ..Rule::PLAIN
    },
    Rule {
        id: "host-interrupts",
        title: "most time goes to interrupts on the host's processors: its ticks and devices, and kicks of vCPUs",
        when: &[When::Time(&[Class::HostInterrupt], 30.0), When::NotInjected],
        advice: "isolate the host's processors that run vCPUs: nohz_full=, IRQ affinity, pinned threads",
        also: &[
            host(
                "host: perf stat -e 'irq_vectors:*_entry' -a sleep 5 tells ticks (local_timer) from kicks (reschedule, posted interrupts)",
            ),
            PINNED,
        ],
        why: "no enlightenment changes ticks and devices of the host; kicks are few where APICv or AVIC is in force",
        saves: &[Class::HostInterrupt],
        source: "Linux Documentation/timers/no_hz.rst; Intel SDM volume 3, 26.2 Other causes of VM exits",
        ..Rule::PLAIN
    },
    Rule {
        id: "debug-registers",
        title: "the guest uses debug registers",
        when: &[When::Exits(&[Class::Debug], 1.0)],
        advice: "nothing to configure: look whether a debugger, a profiler or a copy protection runs in the guest",
        why: "KVM traps the first access after each entry and gives the registers then",
        saves: &[Class::Debug],
        source: "Linux 6.16 arch/x86/kvm/vmx/vmx.c, handle_dr",
        ..Rule::PLAIN
    },
    Rule {
        id: "spins",
        title: "the guest spins on locks whose holders do not run",
        when: &[When::Exits(&[Class::Pause], 5.0), When::NotOn(E::Spinlocks), When::Guest(Guest::Windows)],
        advice: "for a Windows guest: offer spinlocks, and look whether there are more vCPUs than processors",
        offer: &[E::Spinlocks],
        why: "pause-loop exiting guesses; a guest that tells of a long spin knows. Linux makes no such call",
        saves: &[Class::Pause],
        source: "Hyper-V TLFS, HvCallNotifyLongSpinWait",
        ..Rule::PLAIN
    },
    Rule {
        id: "pause-loops",
        title: "many loops of PAUSE exit: vCPUs wait for others that do not run",
        when: &[When::Exits(&[Class::Pause], 5.0)],
        advice: "give vCPUs processors of their own, or fewer vCPUs; where none waits for a processor widen the window",
        also: &[
            PINNED,
            host(
                "host: modprobe kvm_intel ple_window=16384, or ple_gap=0 to end these exits (kvm_amd: pause_filter_count)",
            ),
        ],
        why: "a PAUSE loop longer than the window is taken for a lock whose holder lost its processor; alone on its processor a \
              vCPU gains nothing by the exit",
        saves: &[Class::Pause],
        source: "Intel SDM volume 3, 26.1.3, PAUSE-loop exiting; Linux arch/x86/kvm/vmx/vmx.c, ple_window",
        ..Rule::PLAIN
    },
    Rule {
        id: "cpuid-loop",
        title: "the guest executes CPUID very often",
        when: &[When::Time(&[Class::Identity], 20.0)],
        advice: "find the program in the guest that does: benchmarks, runtimes and copy protections use CPUID to serialise",
        also: &[host(
            "host: perf record -e kvm:kvm_cpuid -a sleep 5; perf script tells leaves and addresses",
        )],
        why: "CPUID always exits; no configuration changes that",
        saves: &[Class::Identity],
        source: "Intel SDM volume 3, 26.1.2 Instructions That Cause VM Exits Unconditionally",
        ..Rule::PLAIN
    },
    Rule {
        id: "unused",
        title: "something is offered that this guest never used",
        when: &[When::Unused],
        advice: "nothing need be done; what no guest of yours uses can be left out",
        why: "an offer that is not used costs nothing here, but it is state that a migration must carry",
        source: "the report's own table of what was offered and used",
        ..Rule::PLAIN
    },
];
