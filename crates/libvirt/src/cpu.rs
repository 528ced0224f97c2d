//! `<cpu>`: model, features and topology.

use satori_cpuid::{CpuModel, Feature, MAX_CPUS, Topology};

use crate::reader::Reader;
use crate::tree::Node;
use crate::values::count;

pub(crate) fn cpu(reader: &mut Reader, node: &Node) {
    reader.only(node, &["mode", "match", "check", "migratable", "deprecated_features"]);
    reader.no_text(node);
    let mode = node.attribute("mode").map_or("custom", |mode| &mode.value);
    match mode {
        "custom" => {}
        "maximum" => reader.domain.cpu.model = Some("max"),
        "host-passthrough" | "host-model" => {
            reader.domain.cpu.model = Some("max");
            let at = node.attribute("mode").map_or(node.at, |mode| mode.at);
            reader.warn(at, format!("mode='{mode}': the guest gets the software CPU, max, not the host's"));
        }
        other => {
            let at = node.attribute("mode").map_or(node.at, |mode| mode.at);
            let right = ["custom", "host-model", "host-passthrough", "maximum"];
            let near = right.iter().min_by_key(|known| satori_cpuid::distance(known, &short(other)));
            let near = near.copied().unwrap_or("maximum");
            reader.wrong(at, format!("mode is {}, not '{other}': write mode='{near}'", right.join(", ")));
        }
    }
    reader.children(node, "cpu");
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

pub(crate) fn model(reader: &mut Reader, node: &Node) {
    reader.only(node, &["fallback", "vendor_id"]);
    if let Some(vendor) = node.attribute("vendor_id") {
        match satori_hyperv::choice::vendor(&vendor.value) {
            Ok(_) if vendor.value.len() == 12 && !vendor.value.contains(',') => {
                reader.domain.cpu.vendor = Some(vendor.value.clone());
            }
            _ => reader.wrong(vendor.at, "vendor_id has twelve characters, as GenuineIntel".into()),
        }
    }
    let name = node.text.trim();
    if name.is_empty() {
        return;
    }
    match CpuModel::ALL.iter().find(|model| model.name() == name) {
        Some(model) => reader.domain.cpu.model = Some(model.name()),
        None => {
            let known: Vec<_> = CpuModel::ALL.iter().map(|model| model.name()).collect();
            let known = known.join(", ");
            reader
                .warn(node.at, format!("the model '{name}' is not modelled, max is used; there are {known}"));
            reader.domain.cpu.model = Some("max");
        }
    }
}

pub(crate) fn vendor(reader: &mut Reader, node: &Node) {
    match node.text.trim() {
        "Intel" => reader.domain.cpu.vendor = Some("GenuineIntel".into()),
        "AMD" => reader.domain.cpu.vendor = Some("AuthenticAMD".into()),
        other => {
            reader.warn(node.at, format!("the vendor '{other}' is not modelled; there are Intel and AMD"))
        }
    }
}

pub(crate) fn topology(reader: &mut Reader, node: &Node) {
    let names = ["sockets", "dies", "clusters", "cores", "threads", "modules"];
    reader.only(node, &names);
    let mut counts = [1; 6];
    for (slot, name) in counts.iter_mut().zip(names) {
        let Some(attribute) = node.attribute(name) else {
            if ["sockets", "cores", "threads"].contains(&name) {
                reader.wrong(node.at, format!("<topology> needs {name}: write {name}='1'"));
            }
            continue;
        };
        match count(&attribute.value).filter(|number| *number <= MAX_CPUS) {
            Some(number) => *slot = number,
            None if count(&attribute.value).is_some() => reader.not_ours(
                attribute.at,
                format!("{name} is a number from 1 to {MAX_CPUS}, not '{}'", attribute.value),
            ),
            None => reader.wrong(
                attribute.at,
                format!("{name} is a number from 1 to {MAX_CPUS}, not '{}'", attribute.value),
            ),
        }
    }
    let [sockets, dies, clusters, cores, threads, modules] = counts;
    if clusters > 1 || modules > 1 {
        reader.warn(node.at, "clusters and modules are not modelled: their cores count for the die".into());
    }
    let all = [clusters, modules, sockets, dies, cores, threads];
    let product: u64 = all.iter().map(|number| u64::from(*number)).product();
    if product > u64::from(MAX_CPUS) {
        reader.not_ours(node.at, format!("{product} processors are too many: use at most {MAX_CPUS}"));
        return;
    }
    // The product is at most 255, so this is too.
    let cores = cores * clusters * modules;
    reader.domain.topology = Some((Topology { sockets, dies, cores, threads }, reader.place(node.at)));
}

pub(crate) fn feature(reader: &mut Reader, node: &Node) {
    reader.only(node, &["policy", "name"]);
    let Some(name) = node.attribute("name") else {
        reader.wrong(node.at, "<feature> needs a name: write name='hypervisor'".into());
        return;
    };
    let policy = node.attribute("policy").map_or("require", |policy| &policy.value);
    let on = match policy {
        "force" | "require" | "optional" => true,
        "disable" | "forbid" => false,
        other => {
            let at = node.attribute("policy").map_or(node.at, |policy| policy.at);
            reader.wrong(
                at,
                format!("policy is force, require, optional, disable or forbid, not '{other}': write policy='require'"),
            );
            return;
        }
    };
    let Some(known) = Feature::by_name(&name.value) else {
        let near = Feature::near(&short(&name.value));
        match near.first() {
            // libvirt knows more features than any list here: one that is required may be a right one.
            Some(near) => {
                reader.not_ours(name.at, format!("unknown CPU feature '{}': write {near}", name.value))
            }
            None if policy == "require" => reader.not_ours(
                name.at,
                format!("unknown CPU feature '{}': 'satori cpu --features' lists all", name.value),
            ),
            None if on => reader.warn(name.at, format!("the CPU feature '{}' is not modelled", name.value)),
            None => {}
        }
        return;
    };
    if on && !reader.offered(known) {
        match policy {
            "require" => reader.not_ours(
                name.at,
                format!("the engine has no '{}': leave it out, or write policy='optional'", known.name()),
            ),
            "force" => {
                reader.warn(name.at, format!("the engine has no '{}': it is not offered", known.name()))
            }
            _ => {}
        }
        return;
    }
    reader.domain.cpu.features.push((known, on));
}
