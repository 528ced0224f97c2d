//! A choice as a fragment of a domain.

use satori_cpuid::{CpuSpec, Topology};
use satori_hyperv::choice::convert::Written;
use satori_hyperv::{Config, Enlightenment, Version};

use crate::names::{Spelled, spelled};

/// What libvirt calls the processors and enlightenments: `<vcpu>`, `<cpu>`, `<features>`, `<clock>` and
/// `<devices>`, as they stand in a `<domain>`.
pub fn write(cpu: &CpuSpec, topology: Topology, config: &Config) -> Written {
    let mut written = Written::default();
    let (mut hyperv, mut clock, mut devices) = (String::new(), String::new(), String::new());
    for one in config.set.iter() {
        match spelled(one) {
            // Written with the element that they stand in.
            Some(Spelled::Hyperv { inner: Some(_), .. }) => {}
            Some(Spelled::Hyperv { outer, inner: None }) => hyperv += &element(one, outer, config),
            Some(Spelled::Timer(name)) => clock += &format!("  <timer name='{name}' present='yes'/>\n"),
            Some(Spelled::Panic(model)) => devices += &format!("  <panic model='{model}'/>\n"),
            None if one == Enlightenment::Base => {}
            None if one == Enlightenment::VersionId && config.version == Version::default() => {}
            None => written.left_out.push(format!("{}: libvirt has no such element", one.name())),
        }
    }
    let Topology { sockets, dies, cores, threads } = topology;
    let mut features = String::new();
    for (feature, on) in &cpu.changes {
        let policy = if *on { "require" } else { "disable" };
        features += &format!("  <feature policy='{policy}' name='{}'/>\n", feature.name());
    }
    let mode = match cpu.model {
        satori_cpuid::CpuModel::Max => "<cpu mode='maximum'>".to_string(),
        model => format!("<cpu mode='custom' match='exact'>\n  <model>{}</model>", model.name()),
    };
    written.text = format!(
        "<vcpu>{}</vcpu>
{mode}
  <topology sockets='{sockets}' dies='{dies}' cores='{cores}' threads='{threads}'/>
{features}</cpu>
",
        topology.cpus()
    );
    written.text += &if config.set.is_empty() {
        "<features>\n  <acpi/>\n  <apic/>\n</features>".to_string()
    } else {
        format!(
            "<features>\n  <acpi/>\n  <apic/>\n  <hyperv mode='custom'>\n{hyperv}  </hyperv>\n</features>\n\
             <clock offset='utc'>\n{clock}</clock>\n<devices>\n{devices}</devices>"
        )
    };
    if cpu.identity != Default::default() {
        written.left_out.push("vendor, family, model, stepping and model-id of the processor".into());
    }
    written
}

fn element(one: Enlightenment, outer: &'static str, config: &Config) -> String {
    let inner = config.set.iter().filter_map(|other| match spelled(other) {
        Some(Spelled::Hyperv { outer: within, inner: Some(inner) }) if within == outer => Some(inner),
        _ => None,
    });
    let inner: String = inner.map(|inner| format!("<{inner} state='on'/>")).collect();
    let vendor = String::from_utf8_lossy(&config.vendor);
    let value = match one {
        Enlightenment::VendorId => {
            let name = vendor.trim_end_matches('\0');
            let name =
                if name.is_empty() { String::new() } else { quick_xml::escape::escape(name).into_owned() };
            format!(" value='{name}'")
        }
        Enlightenment::Spinlocks => format!(" retries='{}'", config.spin_retries),
        _ => String::new(),
    };
    match inner.is_empty() {
        true => format!("    <{outer} state='on'{value}/>\n"),
        false => format!("    <{outer} state='on'{value}>{inner}</{outer}>\n"),
    }
}
