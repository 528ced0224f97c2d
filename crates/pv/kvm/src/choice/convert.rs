//! A choice in the spellings of others.

pub use satori_pv::Written;

use crate::{Config, Feature};

fn word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// QEMU's `-cpu`, behind the model and features of `cpu`. What QEMU turns on by itself is told either way.
pub fn to_qemu(cpu: &str, config: &Config) -> Written {
    let mut written = Written { text: format!("-cpu {cpu}"), left_out: Vec::new() };
    if config.set.is_empty() {
        written.text += ",kvm=off";
        return written;
    }
    for one in Feature::ALL.iter().filter(|one| **one != Feature::Base) {
        match one.row().qemu {
            Some(name) => written.text += &format!(",{name}={}", word(config.set.has(*one))),
            None if config.set.has(*one) => {
                written.left_out.push(format!("{}: QEMU has no such property", one.name()));
            }
            None => {}
        }
    }
    written.text += ",kvm-pv-enforce-cpuid=on";
    written
}

/// libvirt's elements: those within `<features>`, and the clock's timer.
pub fn to_libvirt(config: &Config) -> Written {
    let has = |one| config.set.has(one);
    let mut written = Written::default();
    let kvm = [
        ("hint-dedicated", Feature::HintDedicated),
        ("poll-control", Feature::PollControl),
        ("pv-ipi", Feature::PvIpi),
    ];
    let mut text = format!("<features>\n  <kvm>\n    <hidden state='{}'/>\n", word(config.set.is_empty()));
    for (name, one) in kvm {
        text += &format!("    <{name} state='{}'/>\n", word(has(one)));
    }
    text += &format!(
        "  </kvm>\n  <pvspinlock state='{}'/>\n  <apic eoi='{}'/>\n</features>\n",
        word(has(Feature::PvUnhalt)),
        word(has(Feature::PvEoi))
    );
    let present = if has(Feature::Clock) { "yes" } else { "no" };
    text += &format!("<clock offset='utc'>\n  <timer name='kvmclock' present='{present}'/>\n</clock>");
    written.text = text;
    let others = config.set.iter().filter(|one| one.row().libvirt.is_none());
    written.left_out = others.map(|one| format!("{}: libvirt has no element for it", one.name())).collect();
    written
}

/// `--guest` and `--kvm`.
pub fn to_satori(config: &Config) -> Written {
    let names: Vec<_> = config.set.iter().map(Feature::name).collect();
    let names = if names.is_empty() { "off".into() } else { names.join(",") };
    Written { text: format!("--guest kvm --kvm {names}"), left_out: Vec::new() }
}
