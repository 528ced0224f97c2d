//! The rules of `satori advise`.

use satori_hyperv::Enlightenment as E;

use crate::advise::{Rule, When};

/// Exits that a processor with virtual interrupt delivery in use does not have (SDM 30.2).
const INJECTED: &[&str] = &["TPR_BELOW_THRESHOLD", "INTERRUPT_WINDOW"];
/// Exits by which a guest uses the Hyper-V interface.
const INTERFACE: &[&str] = &["VMCALL", "MSR_WRITE", "MSR_READ"];
/// Devices that the monitor emulates in user space.
const USER_SPACE: &[&str] = &["EPT_MISCONFIG", "IO_INSTRUCTION"];
/// "The traps of using Hyper-V features in KVM environment", Liang Li, 2021.
const TRAPS: &str = "L. Li, The traps of using Hyper-V features in KVM environment, 2021";

pub(crate) const RULES: &[Rule] = &[
    Rule {
        id: "user-space-timer",
        title: "the guest's timer, or another device that the monitor emulates in user space, costs most",
        when: &[When::Time(USER_SPACE, 25.0), When::NotOn(E::Stimer)],
        advice: "offer stimer and stimer_direct together with apicv (hv-stimer, hv-stimer-direct, hv-apicv)",
        why: "without a synthetic timer Windows takes HPET (by MMIO) or RTC (by ports); a stimer costs an MSR write \
              that the kernel handles",
        saves: USER_SPACE,
        source: TRAPS,
    },
    Rule {
        id: "auto-eoi-apicv",
        title: "synic's auto-EOI switches APICv off: interrupts are injected, each with an exit",
        when: &[
            // A guest that uses the task priority and calls is Windows.
            When::Likely(E::Synic, &["VMCALL", "TPR_BELOW_THRESHOLD"]),
            When::NotOn(E::Apicv),
            When::Apicv,
            When::Some(INJECTED),
            When::Exits(&["EXTERNAL_INTERRUPT", "TPR_BELOW_THRESHOLD", "INTERRUPT_WINDOW"], 10.0),
        ],
        advice: "offer apicv (hv-apicv, hv-avic): auto-EOI is deprecated by CPUID 0x40000004.EAX[9]",
        why: "KVM inhibits APICv for the whole machine while a SINT has auto-EOI; then an IPI to a running vCPU is an \
              EXTERNAL_INTERRUPT there, and TPR and interrupt window exits come back",
        saves: &["EXTERNAL_INTERRUPT", "TPR_BELOW_THRESHOLD", "INTERRUPT_WINDOW"],
        source: TRAPS,
    },
    Rule {
        id: "apic-access-hint",
        title: "the guest is told to use the APIC's MSRs, which bypass APICv's registers",
        when: &[
            When::Likely(E::Vapic, &["VMCALL", "TPR_BELOW_THRESHOLD"]),
            When::NotOn(E::Apicv),
            When::Apicv,
            When::Exits(&["MSR_WRITE"], 10.0),
        ],
        advice: "clear the recommendation to access the APIC by MSRs: apicv (hv-apicv) beside vapic does it",
        why: "CPUID 0x40000004.EAX[3] makes every EOI, TPR and ICR write of the guest an MSR write, where APICv would \
              virtualise the register",
        saves: &["MSR_WRITE"],
        source: TRAPS,
    },
    Rule {
        id: "hypervisor-hidden",
        title: "the hypervisor is hidden: no enlightenment is in use",
        when: &[When::Hidden],
        advice: "show the hypervisor again, and offer stimer, stimer_direct, ipi and tlbflush with apicv",
        why: "hiding gives the guest the local APIC timer and keeps APICv on, so exits are few; but hv-ipi, \
              hv-tlbflush, hv-spinlocks and the rest are lost. With auto-EOI deprecated there is nothing to hide from",
        saves: &[],
        source: TRAPS,
    },
    Rule {
        id: "nothing-offered",
        title: "no enlightenment is offered",
        when: &[When::Nothing],
        advice: "take --hyperv auto, or for KVM what 'satori hyperv convert --to libvirt' writes",
        why: "a guest that sees a hypervisor but no interface of it has the slowest timers and clocks",
        saves: &["EPT_MISCONFIG"],
        source: TRAPS,
    },
    Rule {
        id: "interface-unused",
        title: "the guest asks the Hyper-V interface for nothing: none is offered",
        when: &[When::Untold, When::None(INTERFACE), When::Time(USER_SPACE, 25.0)],
        advice: "offer enlightenments: for KVM what 'satori hyperv convert --to libvirt' writes of --hyperv auto",
        why: "a guest that sees a hypervisor without an interface takes HPET or RTC; with all features the talk's guest \
              spends a fifth of the time in exits",
        saves: USER_SPACE,
        source: TRAPS,
    },
    Rule {
        id: "looks-hidden",
        title: "the guest takes the local APIC's timer and no enlightenment: the hypervisor is hidden, it seems",
        when: &[
            When::Untold,
            When::None(INTERFACE),
            When::Less(USER_SPACE, 25.0),
            When::Exits(&["APIC_WRITE", "APIC_ACCESS"], 10.0),
        ],
        advice: "show the hypervisor, and offer stimer, stimer_direct, spinlocks, ipi and tlbflush with apicv",
        why: "hiding keeps APICv in use and spares the guest HPET and RTC, so exits are few; but hv-ipi, hv-tlbflush, \
              hv-spinlocks and the rest are lost, and with auto-EOI deprecated there is nothing to hide from",
        saves: &[],
        source: TRAPS,
    },
    Rule {
        id: "as-repaired",
        title: "the guest uses the interface while APICv stays in use: what performs best",
        when: &[
            When::Likely(E::Apicv, &["VMCALL"]),
            When::Some(&["VMCALL"]),
            When::Exits(&["APIC_WRITE"], 10.0),
            When::None(INJECTED),
            When::Less(USER_SPACE, 25.0),
        ],
        advice: "keep the enlightenments as they are",
        why: "no interrupt is injected with an exit, and none of the timers is emulated in user space: after these repairs \
              all features together had the fewest exits",
        saves: &[],
        source: TRAPS,
    },
    Rule {
        id: "stimer-messages",
        title: "each message of a synthetic timer costs an EOI-induced exit",
        when: &[
            When::On(E::Stimer),
            When::NotOn(E::StimerDirect),
            When::Apicv,
            When::Exits(&["EOI_INDUCED"], 1.0),
        ],
        advice: "offer stimer_direct (hv-stimer-direct)",
        why: "KVM keeps the vector of every SINT in the EOI-exit bitmap; a direct timer has a vector without a SINT",
        saves: &["EOI_INDUCED"],
        source: "Linux 6.16 arch/x86/kvm/hyperv.c, synic_update_vector and kvm_hv_synic_send_eoi",
    },
    Rule {
        id: "ipi-missing",
        title: "many writes of APIC registers, and no hypercall for IPIs to several vCPUs",
        when: &[When::Off(E::Ipi), When::Exits(&["APIC_WRITE", "APIC_ACCESS"], 15.0)],
        advice: "offer ipi (hv-ipi)",
        why: "an IPI to a subset of vCPUs is one hypercall instead of an ICR write for each",
        saves: &["APIC_WRITE", "APIC_ACCESS"],
        source: TRAPS,
    },
    Rule {
        id: "ipi-virtualization",
        title: "what is left is mostly the guest's writes of the ICR",
        when: &[When::Exits(&["APIC_WRITE"], 30.0), When::None(INJECTED), When::NoIpiVirtualization],
        advice: "run it on a processor with IPI virtualisation (Sapphire Rapids and later)",
        why: "APICv is in use and cannot send; IPI virtualisation posts an IPI to one vCPU without an exit",
        saves: &["APIC_WRITE"],
        source: "Intel SDM volume 3, 30.1.6 IPI virtualization",
    },
    Rule {
        id: "ipi-hypercalls",
        title: "IPIs are hypercalls, where this processor would send most of them without an exit",
        when: &[When::On(E::Ipi), When::IpiVirtualization, When::Exits(&["VMCALL"], 15.0)],
        advice: "leave ipi out (hv-ipi) and compare: with IPI virtualisation an IPI to one vCPU does not exit",
        why: "a guest that is offered the hypercall takes it, Linux for every IPI; IPI virtualisation handles \
              writes of the ICR that name one vCPU, and nothing else",
        saves: &["VMCALL"],
        source: "Intel SDM volume 3, 30.1.6 IPI virtualization; Linux arch/x86/hyperv/hv_apic.c",
    },
    Rule {
        id: "apicv-deprecation-alone",
        title: "auto-EOI is deprecated for the sake of APICv, and this processor has none",
        when: &[
            When::NoApicv,
            When::On(E::Apicv),
            // Kernels before 5.15 mapped the APIC's page without APICv, too, and so have APIC_ACCESS.
            When::Exits(&["EPT_VIOLATION", "APIC_ACCESS", "MSR_WRITE"], 15.0),
        ],
        advice: "leave apicv out (hv-apicv, hv-avic) on this processor",
        why: "without APICv nothing is inhibited: auto-EOI spares the guest an EOI for each message, which is an exit \
              here",
        saves: &["EPT_VIOLATION", "APIC_ACCESS", "MSR_WRITE"],
        source: TRAPS,
    },
    Rule {
        id: "host-interrupts",
        title: "with APICv in use, most time goes to interrupts of the host",
        when: &[When::Time(&["EXTERNAL_INTERRUPT"], 30.0), When::None(INJECTED)],
        advice: "isolate the host's processors that run vCPUs: nohz_full=, IRQ affinity, pinned threads",
        why: "these are ticks, devices and kicks of the host; no enlightenment changes them",
        saves: &["EXTERNAL_INTERRUPT"],
        source: "Linux Documentation/timers/no_hz.rst; Intel SDM volume 3, 26.2 Other causes of VM exits",
    },
    Rule {
        id: "debug-registers",
        title: "the guest uses debug registers",
        when: &[When::Exits(&["DR_ACCESS"], 1.0)],
        advice: "nothing to configure: look whether a debugger, a profiler or a copy protection runs in the guest",
        why: "KVM traps the first access after each entry and gives the registers then",
        saves: &["DR_ACCESS"],
        source: "Linux 6.16 arch/x86/kvm/vmx/vmx.c, handle_dr",
    },
    Rule {
        id: "spins",
        title: "the guest spins on locks whose holders do not run",
        when: &[When::Exits(&["PAUSE_INSTRUCTION"], 5.0), When::NotOn(E::Spinlocks)],
        advice: "offer spinlocks (hv-spinlocks=0xfff), and look whether there are more vCPUs than processors",
        why: "pause-loop exiting guesses; a guest that tells of a long spin knows",
        saves: &["PAUSE_INSTRUCTION"],
        source: "Hyper-V TLFS, HvCallNotifyLongSpinWait",
    },
    Rule {
        id: "clock-reads",
        title: "the guest reads MSRs often, and has no clock page",
        when: &[When::Exits(&["MSR_READ"], 20.0), When::Off(E::Time)],
        advice: "offer time (hv-time, libvirt's hypervclock)",
        why: "the reference TSC page tells the time without an exit",
        saves: &["MSR_READ"],
        source: "Hyper-V TLFS, Partition Reference Time Enlightenment",
    },
    Rule {
        id: "unused",
        title: "something is offered that this guest never used",
        when: &[When::Unused],
        advice: "nothing need be done; what no guest of yours uses can be left out",
        why: "an offer that is not used costs nothing here, but it is state that a migration must carry",
        saves: &[],
        source: "the report's own table of what was offered and used",
    },
];
