//! Machines, processors and memory in QEMU's words.

use std::ffi::OsStr;

use anyhow::{Result, bail};

/// QEMU's memory where -m is missing, and the least that a guest has here.
pub(super) const MEMORY: u64 = 128 << 20;
/// Memory comes in multiples of this.
const STEP: u64 = 2 << 20;

/// Models of QEMU's, and the level of x86-64 that has what they have.
const MODELS: &[(&str, &str)] = &[
    ("max", "max"),
    ("host", "max"),
    ("qemu64", "x86-64-v1"),
    ("kvm64", "x86-64-v1"),
    ("Nehalem", "x86-64-v2"),
    ("Westmere", "x86-64-v2"),
    ("SandyBridge", "x86-64-v2"),
    ("IvyBridge", "x86-64-v2"),
    ("Haswell", "x86-64-v3"),
    ("Broadwell", "x86-64-v3"),
    ("Skylake-Client", "x86-64-v3"),
    ("EPYC", "x86-64-v3"),
    ("x86-64-v1", "x86-64-v1"),
    ("x86-64-v2", "x86-64-v2"),
    ("x86-64-v3", "x86-64-v3"),
];

/// Properties of -cpu that change nothing where nothing migrates and the topology is told by -smp.
const NOTHING: &[&str] = &["migratable", "topoext", "host-cache-info", "check", "enforce", "l3-cache"];

pub(super) fn models() -> String {
    let names = MODELS.iter().map(|(name, ours)| format!("x86 {name:<20} {ours} of Satori\n"));
    format!("Available CPUs:\n{}", names.collect::<String>())
}

pub(super) fn machines() -> String {
    "Supported machines are:\npc                   Satori's machine (default)\nq35                  Satori's machine\n".into()
}

pub(super) fn accels() -> String {
    "Accelerators supported in QEMU binary:\ntcg\nkvm\n".into()
}

/// Firmware that comes with QEMU, which finds it by these names.
const FIRMWARE: &[&str] =
    &["bios.bin", "bios-256k.bin", "bios-microvm.bin", "qboot.rom", "pvh.bin", "linuxboot_dma.bin"];

/// `-bios`: a kernel that is named needs no firmware, and whoever wrote the name of a file that is not there made a mistake.
pub(super) fn firmware(name: &OsStr) -> Result<()> {
    let own = FIRMWARE.iter().any(|known| name == *known);
    match std::fs::File::open(name) {
        Err(why) if !own => {
            bail!(
                "-bios {} cannot be read ({why}): leave it out, as the kernel is booted without",
                name.display()
            )
        }
        _ => Ok(()),
    }
}

/// `-cpu`: the model, and features as they are.
pub(super) fn cpu(text: &str) -> Result<String> {
    let mut parts = text.split(',');
    let model = parts.next().unwrap_or_default();
    let base =
        model.split_once("-v").filter(|_| !model.starts_with("x86-64")).map_or(model, |(base, _)| base);
    let Some((_, ours)) = MODELS.iter().find(|(name, _)| *name == base) else {
        bail!("-cpu {text}: there is no processor '{model}' here; '-cpu help' lists them");
    };
    let kept = parts.filter(|part| {
        let name = part.split('=').next().unwrap_or_default().trim_start_matches(['+', '-']);
        !NOTHING.contains(&name)
    });
    Ok(std::iter::once(*ours).chain(kept).collect::<Vec<_>>().join(","))
}

/// `-machine`: which accelerators it asks for.
pub(super) fn machine(text: &str) -> Result<Vec<String>> {
    let mut accels = Vec::new();
    for (at, part) in text.split(',').enumerate() {
        match part.split_once('=') {
            Some(("accel", list)) => accels.extend(list.split(':').map(str::to_owned)),
            Some(("type", name)) => known(text, name)?,
            Some((
                "usb" | "dump-guest-core" | "kernel-irqchip" | "mem-merge" | "vmport" | "graphics" | "smm"
                | "hpet",
                _,
            )) => {}
            None if at == 0 => known(text, part)?,
            _ => bail!("-machine {text}: '{part}' is not understood here: leave it out"),
        }
    }
    Ok(accels)
}

fn known(text: &str, name: &str) -> Result<()> {
    if ["pc", "q35"].contains(&name) || name.starts_with("pc-i440fx-") || name.starts_with("pc-q35-") {
        return Ok(());
    }
    bail!("-machine {text}: there is no '{name}' here: write pc or q35, which are one machine")
}

/// `-m`: bytes; a guest gets at least as much.
pub(super) fn memory(text: &str) -> Result<u64> {
    let size = text.split(',').next().unwrap_or_default();
    let size = size.strip_prefix("size=").unwrap_or(size);
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &size[digits.len()..] {
        "" | "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        "K" | "k" => 1 << 10,
        _ => bail!("-m {text}: write MiB, or a size such as 2G"),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= 1 << 40) else {
        bail!("-m {text}: write MiB, or a size such as 2G");
    };
    Ok(bytes.max(MEMORY).next_multiple_of(STEP))
}
