//! A choice in the spellings of others.

pub use satori_pv::Written;

use super::VersionField;
use super::words::plain;
use crate::{Config, Enlightenment, Version};

/// The members of `config` that have words of their own: the base comes with any.
fn named(config: &Config) -> impl Iterator<Item = Enlightenment> {
    config.set.iter().filter(|one| !matches!(one, Enlightenment::Base | Enlightenment::VersionId))
}

/// QEMU's `-cpu`, behind the model and features of `cpu`.
pub fn to_qemu(cpu: &str, config: &Config) -> Written {
    let mut written = Written { text: format!("-cpu {cpu}"), left_out: Vec::new() };
    for one in named(config) {
        let Some(name) = one.row().qemu else {
            written.left_out.push(format!("{}: QEMU has no such property", one.name()));
            continue;
        };
        written.text += &match plain(one.name()).as_str() {
            "vendor-id" if config.vendor == Config::off().vendor => String::new(),
            "vendor-id" => format!(",{name}={}", vendor(config).replace(',', ",,")),
            "spinlocks" => format!(",{name}={:#x}", config.spin_retries),
            _ => format!(",{name}{}", if one.row().value.is_some() { "=on" } else { "" }),
        };
    }
    written.text += &version(config);
    written.text = quoted(&written.text, "-cpu ");
    if cpu.starts_with("x86-64-v") {
        written.left_out.push(format!("the model {cpu}: QEMU has none of this name, choose one of its own"));
    }
    written
}

/// `--cpu` and `--hyperv`.
pub fn to_satori(cpu: &str, config: &Config) -> Written {
    let mut words = Vec::new();
    let mut cpu = cpu.to_string();
    for one in named(config) {
        words.push(match plain(one.name()).as_str() {
            "vendor-id" if config.vendor == Config::off().vendor => one.name().into(),
            // A list knows no comma within a name, nor spaces around it; QEMU's syntax does.
            "vendor-id" if vendor(config).contains(',') || vendor(config).trim() != vendor(config) => {
                cpu += &format!(",hv-vendor-id={}", vendor(config).replace(',', ",,"));
                one.name().into()
            }
            "vendor-id" => format!("{}={}", one.name(), vendor(config)),
            "spinlocks" => format!("{}={:#x}", one.name(), config.spin_retries),
            _ => one.name().to_string(),
        });
    }
    cpu += &version(config);
    let list = if config.set.is_empty() { "off".into() } else { words.join(",") };
    let text = format!(
        "{} {}",
        quoted(&format!("--cpu {cpu}"), "--cpu "),
        quoted(&format!("--hyperv {list}"), "--hyperv ")
    );
    Written { text, left_out: Vec::new() }
}

/// The vendor's name.
fn vendor(config: &Config) -> String {
    String::from_utf8_lossy(&config.vendor).trim_end_matches('\0').into()
}

/// Those parts of the version that are not QEMU's default.
fn version(config: &Config) -> String {
    let same = |field: &VersionField| field.get(&config.version) == field.get(&Version::default());
    let parts = VersionField::ALL.iter().filter(|(field, ..)| !same(field));
    let on = config.set.has(Enlightenment::VersionId);
    parts
        .filter(|_| on)
        .map(|(field, name, _)| format!(",hv-version-id-{name}={}", field.get(&config.version)))
        .collect()
}

/// `text` with what stands behind `option` in quotes, if a shell would take it apart.
fn quoted(text: &str, option: &str) -> String {
    let value = text.strip_prefix(option).unwrap_or(text);
    let safe = |c: char| c.is_ascii_alphanumeric() || ",=+-_.:/@".contains(c);
    match value.chars().all(safe) {
        true => text.into(),
        false => format!("{option}'{}'", value.replace('\'', "'\\''")),
    }
}
