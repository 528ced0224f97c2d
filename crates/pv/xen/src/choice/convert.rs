//! A choice in the spellings of others.

pub use satori_pv::Written;

use crate::version::{MAJOR, MINOR};
use crate::{Config, FEATURES, Feature, Kind, TscMode};

/// QEMU's accelerator, whose Xen guests on KVM are HVM guests, and the processors of `cpu`.
pub fn to_qemu(cpu: &str, config: &Config) -> Written {
    let version = MAJOR << 16 | MINOR;
    let text = format!("-accel kvm,xen-version={version:#x},kernel-irqchip=split -cpu {cpu}");
    let mut left_out = Vec::new();
    if config.kind == Kind::Pvh {
        left_out.push("xen-pvh: QEMU's Xen guests on KVM are HVM guests".to_string());
    }
    for row in FEATURES {
        match (row.what, config.has(row.what)) {
            (Feature::Fifo, true) => {
                left_out.push("fifo: QEMU has the two-level ABI of event channels".into());
            }
            (Feature::Fifo, false) | (_, true) => {}
            (_, false) => left_out.push(format!("-{}: QEMU always offers it", row.name)),
        }
    }
    if config.tsc != TscMode::Default {
        left_out.push(format!("tsc={}: QEMU has no property for it", config.tsc.name()));
    }
    Written { text, left_out }
}

/// libvirt's elements of a domain of type `xen`.
pub fn to_libvirt(config: &Config) -> Written {
    let kind = match config.kind {
        Kind::Pvh => "machine='xenpvh'>xenpvh",
        Kind::Hvm => "machine='xenfv'>hvm",
    };
    let mode = match config.tsc {
        TscMode::Default => "auto",
        TscMode::Emulate => "emulate",
        TscMode::Never => "native",
    };
    let features = if config.behind { "<features>\n  <viridian/>\n</features>\n" } else { "" };
    let text = format!(
        "<os>\n  <type arch='x86_64' {kind}</type>\n</os>\n{features}<clock offset='utc'>\n  <timer name='tsc' mode='{mode}'/>\n</clock>"
    );
    let off = FEATURES.iter().filter(|row| !config.has(row.what));
    let left_out = off.map(|row| format!("-{}: libvirt has no element for it", row.name)).collect();
    Written { text, left_out }
}

/// `--guest` and `--xen`.
pub fn to_satori(config: &Config) -> Written {
    let kind = match config.kind {
        Kind::Pvh => "xen-pvh",
        Kind::Hvm => "xen-hvm",
    };
    let off = FEATURES.iter().filter(|row| !config.has(row.what)).map(|row| format!("-{}", row.name));
    let mut words: Vec<_> = off.collect();
    if config.tsc != TscMode::Default {
        words.push(format!("tsc={}", config.tsc.name()));
    }
    let words = if words.is_empty() { "auto".into() } else { words.join(",") };
    let beside = if config.behind { "+hyperv" } else { "" };
    Written { text: format!("--guest {kind}{beside} --xen {words}"), left_out: Vec::new() }
}
