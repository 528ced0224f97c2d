//! The modelled VMX processor: what it can do, and what KVM makes of that.
//!
//! "KVM" is arch/x86/kvm of Linux 6.1, looked up in 6.1.192. It takes APICv as a whole (`hardware_setup`,
//! `cpu_has_vmx_apicv`): a processor that lacks one of its parts has none. That holds here, too.
//!
//! The control "virtualize APIC accesses" goes with the TPR shadow (flexpriority), but acts on a page that is mapped only. 6.1
//! maps none while APICv is inhibited or absent: `x86.c`, `kvm_apicv_init` (enable_apicv=0 is an inhibition, too) and
//! `__kvm_set_or_clear_apicv_inhibit`, which takes the mapping away; `mmu/mmu.c`, `kvm_faultin_pfn`, which emulates the access and
//! makes no mapping. So an access in xAPIC mode is an EPT_VIOLATION each time then. Kernels before 5.15 left the page mapped:
//! there it was an APIC_ACCESS. Without a TPR shadow there is no such page (`vmx_create_vcpu`), and it is an EPT_MISCONFIG.

use std::fmt;
use std::str::FromStr;

/// A processor, by its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmxProcessor {
    name: &'static str,
    on: u32,
}

/// A feature of the modelled processor, or a choice of KVM about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Vmx {
    /// Reads of the virtual-APIC page, and writes that need no emulation, do not exit.
    ApicRegisterVirtualization,
    /// The processor delivers pending interrupts and evaluates EOIs.
    VirtualInterruptDelivery,
    /// An interrupt for a vCPU that executes is delivered without an exit.
    PostedInterrupts,
    /// EOIs of SINT vectors exit.
    SintEoiExits,
    /// IPIs are sent without an exit.
    IpiVirtualization,
    /// The task priority is virtual, and so are accesses to the local APIC's page, while that is mapped.
    TprShadow,
    /// The local APIC's timer is the VMX preemption timer.
    PreemptionTimer,
    /// Loops of PAUSE exit.
    PauseLoopExiting,
}

/// A row of the table of controls.
pub struct VmxRow {
    /// The feature.
    pub what: Vmx,
    /// Its name in `--processor`.
    pub name: &'static str,
    /// The control, as Linux's `vmx.h` names it.
    pub control: &'static str,
    /// When KVM sets it.
    pub when: &'static str,
    /// Where Linux 6.1 does so.
    pub source: &'static str,
}

/// Which control KVM sets when.
pub const CONTROLS: &[VmxRow] = &[
    VmxRow {
        what: Vmx::ApicRegisterVirtualization,
        name: "apic-register-virtualization",
        control: "SECONDARY_EXEC_APIC_REGISTER_VIRT",
        when: "APICv is whole and not inhibited",
        source: "vmx/vmx.c: setup_vmcs_config (not without a TPR shadow), vmx_secondary_exec_control, vmx_refresh_apicv_exec_ctrl",
    },
    VmxRow {
        what: Vmx::VirtualInterruptDelivery,
        name: "virtual-interrupt-delivery",
        control: "SECONDARY_EXEC_VIRTUAL_INTR_DELIVERY",
        when: "APICv is whole and not inhibited; a SINT with auto-EOI inhibits it",
        source: "vmx/vmx.c: vmx_secondary_exec_control, vmx_refresh_apicv_exec_ctrl; hyperv.c: synic_update_vector \
                 (APICV_INHIBIT_REASON_HYPERV)",
    },
    VmxRow {
        what: Vmx::PostedInterrupts,
        name: "posted-interrupts",
        control: "PIN_BASED_POSTED_INTR",
        when: "APICv is whole and not inhibited",
        source: "vmx/vmx.c: vmx_pin_based_exec_ctrl, vmx_deliver_posted_interrupt",
    },
    VmxRow {
        what: Vmx::SintEoiExits,
        name: "sint-eoi-exits",
        control: "EOI_EXIT_BITMAP, the vectors of SINTs",
        when: "KVM always, with those of level-triggered interrupts and the RTC's; our default spares them, as a message \
               that waits is followed by a write to EOM",
        source: "x86.c: vcpu_load_eoi_exitmap (vec_bitmap of the synic); ioapic.c: kvm_ioapic_scan_entry",
    },
    VmxRow {
        what: Vmx::IpiVirtualization,
        name: "ipi-virtualization",
        control: "TERTIARY_EXEC_IPI_VIRT",
        when: "APICv is whole and not inhibited",
        source: "vmx/vmx.c: hardware_setup, vmx_tertiary_exec_control, vmx_refresh_apicv_exec_ctrl, \
                 vmx_alloc_ipiv_pid_table",
    },
    VmxRow {
        what: Vmx::TprShadow,
        name: "tpr-shadow",
        control: "CPU_BASED_TPR_SHADOW, SECONDARY_EXEC_VIRTUALIZE_APIC_ACCESSES or _X2APIC_MODE",
        when: "always with a local APIC in the kernel; without it CPU_BASED_CR8_LOAD_EXITING and _STORE_EXITING. The APIC's page is \
               mapped, so that its accesses are known, while APICv is in force",
        source: "vmx/vmx.c: vmx_exec_control, vmx_set_virtual_apic_mode, cpu_need_virtualize_apic_accesses; \
                 vmx/capabilities.h: cpu_need_tpr_shadow, cpu_has_vmx_flexpriority; mmu/mmu.c: kvm_faultin_pfn",
    },
    VmxRow {
        what: Vmx::PreemptionTimer,
        name: "preemption-timer",
        control: "PIN_BASED_VMX_PREEMPTION_TIMER",
        when: "always, with a value that never comes unless the local APIC's timer runs; else, and for stimers, a timer of \
               the host interrupts",
        source: "vmx/vmx.c: vmx_pin_based_exec_ctrl, vmx_set_hv_timer, vmx_update_hv_timer; lapic.c: start_hv_timer; \
                 hyperv.c: stimer_start",
    },
    VmxRow {
        what: Vmx::PauseLoopExiting,
        name: "ple",
        control: "SECONDARY_EXEC_PAUSE_LOOP_EXITING",
        when: "always, unless user space lets the guest pause (KVM_X86_DISABLE_EXITS_PAUSE)",
        source: "vmx/vmx.c: vmx_secondary_exec_control, handle_pause, grow_ple_window",
    },
];

const fn bits(features: &[Vmx]) -> u32 {
    let (mut bits, mut i) = (0, 0);
    while i < features.len() {
        bits |= 1 << features[i] as u8;
        i += 1;
    }
    bits
}

const OLD: u32 = bits(&[Vmx::TprShadow, Vmx::PreemptionTimer, Vmx::PauseLoopExiting]);
const APICV: u32 =
    bits(&[Vmx::ApicRegisterVirtualization, Vmx::VirtualInterruptDelivery, Vmx::PostedInterrupts]);

/// The named processors. IPI virtualization came with Sapphire Rapids.
const PRESETS: &[VmxProcessor] = &[
    VmxProcessor { name: "haswell", on: OLD | APICV },
    VmxProcessor { name: "skylake", on: OLD | APICV },
    VmxProcessor { name: "sapphire-rapids", on: OLD | APICV | bits(&[Vmx::IpiVirtualization]) },
    VmxProcessor { name: "no-apicv", on: OLD },
];

impl VmxProcessor {
    /// A processor without APICv.
    pub const NO_APICV: VmxProcessor = PRESETS[3];

    /// The presets' names.
    pub const NAMES: &[&str] = &["haswell", "skylake", "sapphire-rapids", "no-apicv"];

    /// Its preset's name, by which costs are found.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it has `feature`.
    pub const fn has(&self, feature: Vmx) -> bool {
        self.on >> feature as u8 & 1 != 0
    }

    /// Whether KVM uses APICv on it (`cpu_has_vmx_apicv`, and the TPR shadow that it rests on).
    pub const fn apicv(&self) -> bool {
        self.on & APICV == APICV && self.has(Vmx::TprShadow)
    }
}

/// Skylake's: APICv without IPI virtualization is what servers from Ivy Bridge-EP to Ice Lake have, so most of those that
/// run guests, and what the talk was measured on; KVM uses it wherever it is. It is what enlightenments have to be right for.
impl Default for VmxProcessor {
    fn default() -> Self {
        PRESETS[1]
    }
}

impl fmt::Display for VmxProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let preset = PRESETS.iter().find(|preset| preset.name == self.name).map_or(0, |preset| preset.on);
        CONTROLS
            .iter()
            .filter(|row| (self.on ^ preset) >> row.what as u8 & 1 != 0)
            .try_for_each(|row| write!(f, ",{}{}", if self.has(row.what) { '+' } else { '-' }, row.name))
    }
}

/// A processor that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoProcessor {
    /// The first word is no preset.
    #[error("no processor is called '{0}'; there are haswell, skylake, sapphire-rapids and no-apicv")]
    Name(String),
    /// A later word is no feature.
    #[error("'{0}' is no feature with a sign; there are {names}", names = names())]
    Feature(String),
}

fn names() -> String {
    CONTROLS.iter().map(|row| row.name).chain(["apicv"]).collect::<Vec<_>>().join(", ")
}

impl FromStr for VmxProcessor {
    type Err = NoProcessor;

    /// `NAME[,+FEATURE|-FEATURE]..`; `apicv` is its three parts.
    fn from_str(text: &str) -> Result<Self, NoProcessor> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let preset = PRESETS.iter().find(|preset| preset.name == name);
        let mut processor = *preset.ok_or_else(|| NoProcessor::Name(name.into()))?;
        for word in words {
            let unknown = || NoProcessor::Feature(word.into());
            let (sign, feature) = word.split_at_checked(1).ok_or_else(unknown)?;
            let bits = match CONTROLS.iter().find(|row| row.name == feature) {
                Some(row) => 1 << row.what as u8,
                None if feature == "apicv" => APICV,
                None => return Err(unknown()),
            };
            match sign {
                "+" => processor.on |= bits,
                "-" => processor.on &= !bits,
                _ => return Err(unknown()),
            }
        }
        Ok(processor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        let parse = |text: &str| text.parse::<VmxProcessor>();
        assert!(parse("haswell").unwrap().apicv());
        for part in ["-posted-interrupts", "-virtual-interrupt-delivery", "-tpr-shadow", "-apicv"] {
            assert!(!parse(&format!("haswell,{part}")).unwrap().apicv(), "{part}");
        }
        let changed = parse("no-apicv,+apicv,-ple").unwrap();
        assert!(changed.apicv() && parse(&changed.to_string()) == Ok(changed));
        assert!(parse("sapphire-rapids").unwrap().has(Vmx::IpiVirtualization));
    }

    #[test]
    fn the_names_are_those_of_the_presets() {
        assert!(PRESETS.iter().map(|preset| preset.name).eq(VmxProcessor::NAMES.iter().copied()));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for text in ["", "pentium", "haswell,", "haswell,ple", "haswell,+nothing", "haswell,é"] {
            assert!(text.parse::<VmxProcessor>().is_err(), "{text}");
        }
    }
}
