//! The elements that libvirt knows, and what becomes of each.

use crate::reader::Reader;
use crate::tree::Node;
use crate::{clock, cpu, devices, elements, hyperv, names, processors};

/// What becomes of an element.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// It is read.
    Read(fn(&mut Reader, &Node)),
    /// It changes nothing about a machine, or says what is so here anyway.
    Silent,
    /// It is not honoured, for this reason.
    Not(&'static str),
}

use What::{Not, Read, Silent};

/// An element, within which element it stands, and what becomes of it.
type Row = (&'static str, &'static str, What);

const NOT_SHAPED: What = Not("what a network does with frames is not shaped here");
const IMAGE: What = Not("an image is read and written as it is");
const SCHEDULING: What = Not("threads keep the host's default scheduling");
const OWN_THREADS: What = Not("disks that name no I/O thread share them in turn");
const NO_CGROUP: What = Not("limits of the host's control groups are set from outside");
const NO_FIRMWARE: What = Not("there is no firmware: kernels are booted directly");
const ALWAYS: What = Not("it is always there");
const NO_DEVICE: What = Not("there is no such device yet");
const NO_KVM: What = Not("the software CPU has no dirty ring; --guest kvm offers KVM's interface");
const OTHER_MACHINE: What = Not("it belongs to another kind of machine");

/// All but the children of `<hyperv>`, which [`names`] knows.
const TABLE: &[Row] = &[
    ("domain", "name", Silent),
    ("domain", "uuid", Silent),
    ("domain", "genid", Not("there is no generation ID device")),
    ("domain", "title", Silent),
    ("domain", "description", Silent),
    ("domain", "metadata", Silent),
    ("domain", "maxMemory", Not("memory cannot be plugged in later")),
    ("domain", "memory", Read(processors::memory)),
    ("domain", "currentMemory", Read(processors::current_memory)),
    ("domain", "memoryBacking", Not("the host's default backs the memory")),
    ("domain", "memtune", NO_CGROUP),
    ("domain", "blkiotune", NO_CGROUP),
    ("domain", "numatune", Read(devices::numatune)),
    ("domain", "vcpu", Read(processors::vcpu)),
    ("domain", "vcpus", Not("processors cannot be plugged in later")),
    ("domain", "iothreads", Read(devices::iothreads)),
    ("domain", "iothreadids", Read(devices::iothreadids)),
    ("domain", "defaultiothread", OWN_THREADS),
    ("domain", "throttlegroups", NO_CGROUP),
    ("domain", "cputune", Read(processors::cputune)),
    ("domain", "resource", NO_CGROUP),
    ("domain", "sysinfo", Not("SMBIOS says what this machine is")),
    ("domain", "bootloader", NO_FIRMWARE),
    ("domain", "bootloader_args", NO_FIRMWARE),
    ("domain", "os", Read(elements::os)),
    ("domain", "idmap", OTHER_MACHINE),
    ("domain", "features", Read(elements::features)),
    ("domain", "cpu", Read(cpu::cpu)),
    ("domain", "clock", Read(clock::clock)),
    ("domain", "on_poweroff", Read(elements::on_poweroff)),
    ("domain", "on_reboot", Read(elements::on_reboot)),
    ("domain", "on_crash", Read(elements::on_crash)),
    ("domain", "on_lockfailure", Silent),
    ("domain", "pm", Not("suspend-to-mem (S3) is always there, suspend-to-disk is not")),
    ("domain", "perf", Not("it is for the host's own counters; --report counts exits")),
    ("domain", "keywrap", OTHER_MACHINE),
    ("domain", "launchSecurity", Not("memory is not encrypted")),
    ("domain", "devices", Read(elements::devices)),
    ("domain", "seclabel", Not("--sandbox says what the process keeps")),
    ("os", "type", Read(elements::os_type)),
    ("os", "kernel", Read(elements::kernel)),
    ("os", "initrd", Read(elements::initrd)),
    ("os", "cmdline", Read(elements::cmdline)),
    ("os", "loader", NO_FIRMWARE),
    ("os", "nvram", NO_FIRMWARE),
    ("os", "varstore", NO_FIRMWARE),
    ("os", "firmware", NO_FIRMWARE),
    ("os", "shim", NO_FIRMWARE),
    ("os", "boot", NO_FIRMWARE),
    ("os", "bootmenu", NO_FIRMWARE),
    ("os", "bios", NO_FIRMWARE),
    ("os", "smbios", Not("SMBIOS says what this machine is")),
    ("os", "dtb", OTHER_MACHINE),
    ("os", "acpi", Not("the ACPI tables are this machine's own")),
    ("os", "init", OTHER_MACHINE),
    ("os", "initarg", OTHER_MACHINE),
    ("os", "initenv", OTHER_MACHINE),
    ("os", "initdir", OTHER_MACHINE),
    ("os", "inituser", OTHER_MACHINE),
    ("os", "initgroup", OTHER_MACHINE),
    ("features", "acpi", Silent),
    ("features", "apic", Read(elements::apic)),
    ("features", "pae", Silent),
    ("features", "pmu", Read(elements::pmu)),
    ("features", "hyperv", Read(hyperv::hyperv)),
    ("features", "kvm", Read(elements::kvm)),
    ("features", "vmport", Read(elements::must_be_off)),
    ("features", "smm", Read(elements::must_be_off)),
    ("features", "hap", Read(elements::must_be_off)),
    ("features", "pvspinlock", Read(elements::must_be_off)),
    ("features", "vmcoreinfo", Read(elements::must_be_off)),
    ("features", "ps2", ALWAYS),
    ("features", "ioapic", ALWAYS),
    ("features", "viridian", Not("that is Xen's switch for Hyper-V: write <hyperv mode='passthrough'/>")),
    ("features", "privnet", OTHER_MACHINE),
    ("features", "xen", OTHER_MACHINE),
    ("features", "gic", OTHER_MACHINE),
    ("features", "hpt", OTHER_MACHINE),
    ("features", "htm", OTHER_MACHINE),
    ("features", "nested-hv", OTHER_MACHINE),
    ("features", "capabilities", OTHER_MACHINE),
    ("features", "cfpc", OTHER_MACHINE),
    ("features", "sbbc", OTHER_MACHINE),
    ("features", "ibs", OTHER_MACHINE),
    ("features", "ccf-assist", OTHER_MACHINE),
    ("features", "ras", OTHER_MACHINE),
    ("features", "aia", OTHER_MACHINE),
    ("features", "msrs", Not("an MSR that does not exist is always #GP")),
    ("features", "tcg", Not("it is for QEMU's translator")),
    ("features", "async-teardown", Silent),
    ("kvm", "hidden", Read(elements::hidden)),
    ("kvm", "hint-dedicated", Read(elements::must_be_off)),
    ("kvm", "poll-control", Read(elements::must_be_off)),
    ("kvm", "pv-ipi", Read(elements::must_be_off)),
    ("kvm", "dirty-ring", NO_KVM),
    ("cpu", "arch", Silent),
    ("cpu", "model", Read(cpu::model)),
    ("cpu", "vendor", Read(cpu::vendor)),
    ("cpu", "topology", Read(cpu::topology)),
    ("cpu", "feature", Read(cpu::feature)),
    ("cpu", "numa", Read(devices::numa)),
    ("cpu", "cache", Not("CPUID tells of no caches of the host")),
    ("cpu", "maxphysaddr", Not("physical addresses have this machine's own width")),
    ("cpu", "signature", Silent),
    ("cpu", "microcode", Silent),
    ("cpu", "counter", Silent),
    ("numatune", "memory", Read(devices::placement)),
    ("numatune", "memnode", Read(devices::memnode)),
    ("clock", "timer", Read(clock::timer)),
    ("devices", "emulator", Not("Satori itself runs the guest")),
    ("devices", "panic", Read(elements::panic)),
    ("devices", "serial", Silent),
    ("devices", "console", Silent),
    ("devices", "disk", Read(devices::disk)),
    ("devices", "filesystem", Read(devices::filesystem)),
    ("devices", "controller", Read(elements::controller)),
    ("devices", "interface", Read(devices::interface)),
    ("devices", "input", NO_DEVICE),
    ("devices", "graphics", NO_DEVICE),
    ("devices", "video", NO_DEVICE),
    ("devices", "sound", NO_DEVICE),
    ("devices", "audio", NO_DEVICE),
    ("devices", "parallel", NO_DEVICE),
    ("devices", "channel", NO_DEVICE),
    ("devices", "hostdev", NO_DEVICE),
    ("devices", "redirdev", NO_DEVICE),
    ("devices", "redirfilter", NO_DEVICE),
    ("devices", "smartcard", NO_DEVICE),
    ("devices", "hub", NO_DEVICE),
    ("devices", "watchdog", NO_DEVICE),
    ("devices", "memballoon", Read(elements::memballoon)),
    ("devices", "rng", Read(devices::rng)),
    ("devices", "nvram", NO_DEVICE),
    ("devices", "shmem", NO_DEVICE),
    ("devices", "memory", Not("memory cannot be plugged in")),
    ("devices", "iommu", NO_DEVICE),
    ("devices", "vsock", Not("it needs a socket of the host: write --vsock PATH")),
    ("devices", "tpm", NO_DEVICE),
    ("devices", "lease", NO_DEVICE),
    ("devices", "crypto", NO_DEVICE),
    ("devices", "pstore", NO_DEVICE),
    ("cputune", "vcpupin", Read(processors::vcpupin)),
    ("cputune", "emulatorpin", Read(processors::emulatorpin)),
    ("cputune", "iothreadpin", Read(devices::iothreadpin)),
    ("cputune", "iothreadsched", SCHEDULING),
    ("cputune", "shares", NO_CGROUP),
    ("cputune", "period", NO_CGROUP),
    ("cputune", "quota", NO_CGROUP),
    ("cputune", "global_period", NO_CGROUP),
    ("cputune", "global_quota", NO_CGROUP),
    ("cputune", "emulator_period", NO_CGROUP),
    ("cputune", "emulator_quota", NO_CGROUP),
    ("cputune", "iothread_period", NO_CGROUP),
    ("cputune", "iothread_quota", NO_CGROUP),
    ("cputune", "vcpusched", SCHEDULING),
    ("cputune", "emulatorsched", SCHEDULING),
    ("cputune", "cachetune", NO_CGROUP),
    ("cputune", "memorytune", NO_CGROUP),
    ("interface", "driver", Read(devices::card_driver)),
    ("interface", "mac", Read(devices::mac)),
    ("interface", "portForward", Read(devices::port_forward)),
    ("interface", "source", Silent),
    ("interface", "target", Silent),
    ("interface", "model", Silent),
    ("interface", "backend", Silent),
    ("interface", "link", Silent),
    ("interface", "alias", Silent),
    ("interface", "address", Silent),
    ("interface", "boot", Silent),
    ("interface", "ip", Silent),
    ("interface", "rom", Silent),
    ("interface", "acpi", Silent),
    ("interface", "bandwidth", NOT_SHAPED),
    ("interface", "filterref", NOT_SHAPED),
    ("interface", "guest", NOT_SHAPED),
    ("interface", "mtu", NOT_SHAPED),
    ("interface", "port", NOT_SHAPED),
    ("interface", "route", NOT_SHAPED),
    ("interface", "coalesce", NOT_SHAPED),
    ("interface", "script", NOT_SHAPED),
    ("interface", "teaming", NOT_SHAPED),
    ("interface", "tune", NOT_SHAPED),
    ("interface", "virtualport", NOT_SHAPED),
    ("interface", "vlan", NOT_SHAPED),
    ("disk", "driver", Read(devices::disk_driver)),
    ("disk", "source", Read(devices::disk_source)),
    ("disk", "target", Read(devices::disk_target)),
    ("disk", "readonly", Read(devices::disk_readonly)),
    ("disk", "transient", Read(devices::disk_transient)),
    ("disk", "serial", Read(devices::disk_serial)),
    ("disk", "alias", Silent),
    ("disk", "address", Silent),
    ("disk", "boot", Silent),
    ("disk", "backingStore", Silent),
    ("disk", "acpi", Silent),
    ("disk", "geometry", Silent),
    ("disk", "blockio", Silent),
    ("disk", "vendor", Silent),
    ("disk", "product", Silent),
    ("disk", "wwn", Silent),
    ("disk", "auth", IMAGE),
    ("disk", "encryption", IMAGE),
    ("disk", "mirror", IMAGE),
    ("disk", "shareable", IMAGE),
    ("disk", "iotune", NO_CGROUP),
    ("disk", "throttlefilters", NO_CGROUP),
    ("filesystem", "driver", Silent),
    ("filesystem", "source", Silent),
    ("filesystem", "target", Silent),
    ("filesystem", "readonly", Silent),
    ("filesystem", "binary", Silent),
    ("filesystem", "alias", Silent),
    ("filesystem", "address", Silent),
    ("filesystem", "acpi", Silent),
    ("filesystem", "idmap", Not("files are the caller's, as many as there is room for")),
    ("filesystem", "space_hard_limit", Not("files are the caller's, as many as there is room for")),
    ("filesystem", "space_soft_limit", Not("files are the caller's, as many as there is room for")),
];

/// Names that look like libvirt's and are not, and what is meant.
const RENAMED: &[(&str, &str)] = &[
    ("kvm-hidden", "<kvm><hidden state='on'/></kvm>"),
    ("hidden-kvm", "<kvm><hidden state='on'/></kvm>"),
    ("hypervclock", "<clock><timer name='hypervclock' present='yes'/></clock>"),
    ("kvmclock", "<clock><timer name='kvmclock' present='yes'/></clock>"),
    ("time", "<clock><timer name='hypervclock' present='yes'/></clock>"),
    ("crash", "<devices><panic model='hyperv'/></devices>"),
    ("synthetic_timers", "<stimer state='on'/>"),
    ("hypervisor", "<cpu><feature policy='disable' name='hypervisor'/></cpu>"),
];

/// What is meant by a `name` that libvirt has otherwise.
pub(crate) fn renamed(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(wrong, _)| *wrong == name).map(|(_, right)| *right)
}

/// What becomes of `name` in `parent`, if libvirt knows it there.
pub(crate) fn find(parent: &str, name: &str) -> Option<What> {
    TABLE.iter().find(|(within, known, _)| (*within, *known) == (parent, name)).map(|(.., what)| *what)
}

/// The elements within which `name` may stand.
pub(crate) fn parents(name: &str) -> Vec<&'static str> {
    let mut parents: Vec<_> =
        TABLE.iter().filter(|(_, known, _)| *known == name).map(|(within, ..)| *within).collect();
    if names::in_hyperv().any(|known| known == name) {
        parents.push("hyperv");
    }
    // What can be had is rather meant than what cannot.
    let mut outer: Vec<_> = names::in_hyperv()
        .filter_map(|outer| {
            let inner = names::within(outer).find(|inner| *inner == name)?;
            let one = names::by_spelling(names::Spelled::Hyperv { outer, inner: Some(inner) })?;
            Some((one.row().refused.is_some() || one.row().nested, outer))
        })
        .collect();
    outer.sort_by_key(|(rare, _)| *rare);
    parents.extend(outer.into_iter().map(|(_, outer)| outer));
    parents
}

/// The elements that `parent` may have.
pub(crate) fn children(parent: &str) -> Vec<&'static str> {
    match parent {
        "hyperv" => names::in_hyperv().collect(),
        _ => TABLE.iter().filter(|(within, ..)| *within == parent).map(|(_, known, _)| *known).collect(),
    }
}

/// The element of `parent` that a wrong `name` was meant for, if at most `most` letters are wrong.
pub(crate) fn near(parent: &str, name: &str, most: usize) -> Option<&'static str> {
    if name.len() > 40 {
        return None;
    }
    let bare = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    let wanted = bare(name);
    let wanted = wanted.strip_prefix("hv").unwrap_or(&wanted);
    let candidates =
        children(parent).into_iter().map(|known| (satori_cpuid::distance(&bare(known), wanted), known));
    let (far, known) = candidates.min()?;
    let near = if wanted.len() > 4 { 2 } else { 1 };
    (far <= near.min(most) && wanted.len() > 1).then_some(known)
}
