//! The smaller elements: what is booted, how the machine ends, features and devices.

use satori_hyperv::Enlightenment;
use satori_hyperv::choice::What;

use crate::domain::OnReboot;
use crate::names::{Spelled, by_spelling};
use crate::reader::Reader;
use crate::tree::Node;

pub(crate) fn os(reader: &mut Reader, node: &Node) {
    if let Some(firmware) = node.attribute("firmware") {
        reader
            .warn(firmware.at, "firmware is not honoured: there is none, kernels are booted directly".into());
    }
    reader.no_text(node);
    reader.children(node, "os");
}

pub(crate) fn os_type(reader: &mut Reader, node: &Node) {
    reader.only(node, &["arch", "machine"]);
    if !["hvm", ""].contains(&node.text.trim()) {
        reader.not_ours(node.at, format!("the type '{}' is none of ours: write hvm", node.text.trim()));
    }
    if let Some(arch) =
        node.attribute("arch").filter(|arch| !["x86_64", "i686"].contains(&arch.value.as_str()))
    {
        reader.not_ours(arch.at, format!("the architecture '{}' is not there: write x86_64", arch.value));
    }
    if let Some(machine) = node.attribute("machine") {
        reader.warn(
            machine.at,
            format!("machine='{}' is not honoured: the machine is Satori's own", machine.value),
        );
    }
}

fn file(reader: &mut Reader, node: &Node) -> Option<String> {
    let path = node.text.trim();
    if path.is_empty() {
        reader.wrong(node.at, format!("<{}> names no file: write its path", node.name));
        return None;
    }
    Some(path.into())
}

pub(crate) fn kernel(reader: &mut Reader, node: &Node) {
    reader.domain.kernel = file(reader, node);
}

pub(crate) fn initrd(reader: &mut Reader, node: &Node) {
    reader.domain.initrd = file(reader, node);
}

pub(crate) fn cmdline(reader: &mut Reader, node: &Node) {
    reader.domain.cmdline = Some(node.text.trim().into());
}

pub(crate) fn features(reader: &mut Reader, node: &Node) {
    let place = reader.place(node.at);
    reader.base.get_or_insert((node.tag(), place));
    reader.no_text(node);
    reader.children(node, "features");
}

pub(crate) fn apic(reader: &mut Reader, node: &Node) {
    reader.only(node, &["eoi"]);
    if let Some(eoi) = node.attribute("eoi").filter(|eoi| eoi.value == "on") {
        reader.warn(
            eoi.at,
            "eoi='on' is not honoured: KVM's own interface is not offered; <vapic> has another".into(),
        );
    }
}

pub(crate) fn pmu(reader: &mut Reader, node: &Node) {
    reader.only(node, &["state"]);
    let on = match node.attribute("state") {
        Some(_) => reader.state(node),
        None => Some(true),
    };
    if on == Some(true) {
        reader.warn(node.at, "<pmu> is not honoured: the processor has no performance counters yet".into());
    }
}

pub(crate) fn kvm(reader: &mut Reader, node: &Node) {
    reader.no_text(node);
    reader.children(node, "kvm");
}

pub(crate) fn hidden(reader: &mut Reader, node: &Node) {
    reader.only(node, &["state"]);
    if reader.state(node) == Some(false) {
        reader.warn(
            node.at,
            "<hidden state='off'> is not honoured: write --guest kvm, which offers KVM's interface".into(),
        );
    }
}

/// What is not there, and may be said not to be.
pub(crate) fn must_be_off(reader: &mut Reader, node: &Node) {
    if node.attribute("state").is_none_or(|state| state.value != "off") {
        reader.warn(node.at, format!("<{}> is not honoured: there is nothing of the kind", node.name));
    }
}

fn life(reader: &mut Reader, node: &Node, here: &str) -> bool {
    let known = ["destroy", "restart", "preserve", "rename-restart", "coredump-destroy", "coredump-restart"];
    let wanted = node.text.trim();
    if !known.contains(&wanted) {
        reader
            .wrong(node.at, format!("<{}> is {}, not '{wanted}': write {here}", node.name, known.join(", ")));
    }
    wanted == here
}

pub(crate) fn on_poweroff(reader: &mut Reader, node: &Node) {
    if !life(reader, node, "destroy") {
        reader.warn(node.at, "<on_poweroff> is not honoured: the run ends".into());
    }
}

pub(crate) fn on_reboot(reader: &mut Reader, node: &Node) {
    if life(reader, node, "restart") {
        reader.domain.on_reboot = Some(OnReboot::Restart);
    } else {
        reader.domain.on_reboot = Some(OnReboot::Destroy);
        if node.text.trim() != "destroy" {
            reader.warn(node.at, "<on_reboot> is taken for destroy: the run ends".into());
        }
    }
}

pub(crate) fn on_crash(reader: &mut Reader, node: &Node) {
    if !life(reader, node, "destroy") {
        reader.warn(node.at, "<on_crash> is not honoured: the run ends, with a report".into());
    }
}

pub(crate) fn devices(reader: &mut Reader, node: &Node) {
    reader.no_text(node);
    reader.children(node, "devices");
}

pub(crate) fn memballoon(reader: &mut Reader, node: &Node) {
    match node.attribute("model").map(|model| model.value.as_str()) {
        None | Some("none") => {}
        Some(model) if model.starts_with("virtio") => reader.domain.balloon = true,
        Some(_) => {
            let why = "<memballoon> is not honoured: there is no such model: write model='virtio'";
            reader.warn(node.at, why.into());
        }
    }
}

/// `<controller>`: bus 0 is there, and each device on virtio is a function of it.
pub(crate) fn controller(reader: &mut Reader, node: &Node) {
    let word = |name| node.attribute(name).map_or("", |attribute| attribute.value.trim());
    let why = match (word("type"), word("model")) {
        ("pci", "" | "pcie-root" | "pci-root") | ("usb", "none") | ("virtio-serial", _) => return,
        ("pci", _) => "all functions are on bus 0: leave it out",
        ("scsi" | "ide" | "sata" | "fdc" | "nvme", _) => {
            "disks are on virtio: write <target dev='vda' bus='virtio'/> in <disk>"
        }
        ("usb", _) => "there is no USB: leave it out",
        _ => "there is no such device yet",
    };
    reader.warn(node.at, format!("<controller> is not honoured: {why}"));
}

pub(crate) fn panic(reader: &mut Reader, node: &Node) {
    reader.only(node, &["model"]);
    let Some(model) = node.attribute("model") else { return };
    let one: Option<Enlightenment> = by_spelling(Spelled::Panic("hyperv"));
    match (model.value.as_str(), one) {
        ("hyperv", Some(one)) => reader.wish(What::Set(one, true), node),
        ("isa" | "pvpanic", _) => {}
        ("s390" | "pseries", _) => reader.warn(model.at, "it belongs to another kind of machine".into()),
        (other, _) => {
            reader.wrong(model.at, format!("the model is hyperv or isa, not '{other}': write model='hyperv'"))
        }
    }
}
