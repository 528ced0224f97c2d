//! `satori cpu`: what CPUID answers, and who decided each bit.

use std::io::Write;

use anyhow::{Result, bail};
use satori_cpuid::{Context, CpuidTable, Feature, Layer, Register, Registers};
use satori_machine::{Config, OfferedCpu};
use serde_json::{Map, Value, json};

use crate::{choose, cli};

const REGISTERS: [(Register, &str); 4] =
    [(Register::Eax, "eax"), (Register::Ebx, "ebx"), (Register::Ecx, "ecx"), (Register::Edx, "edx")];

/// The processors that `flags` ask for.
pub fn processor(flags: &cli::CpuFlags) -> Result<OfferedCpu> {
    let chosen = choose::processors(flags)?;
    let config = Config {
        topology: chosen.topology,
        cpu_model: Some(chosen.cpu),
        hyperv: chosen.hyperv.config,
        kvm: chosen.kvm.config,
        xen: chosen.xen.map(|chosen| chosen.config),
        tsc_hz: chosen.domain.tsc_hz,
        ..Config::default()
    };
    Ok(OfferedCpu::new(&config)?)
}

/// Does what `satori cpu` was told.
pub fn show(flags: &cli::Cpu, out: &mut dyn Write) -> Result<()> {
    let OfferedCpu { cpuid, msrs, tsc_hz } = processor(&flags.processor)?;
    let topology = cpuid.topology();
    if flags.vcpu >= topology.cpus() {
        bail!("--vcpu {}: there are {} vCPUs, count from 0", flags.vcpu, topology.cpus());
    }
    let asker = Context {
        apic_id: topology.apic_id(flags.vcpu),
        apic_enabled: true,
        xcr0: 1,
        misc_enable: msrs.misc_enable(),
        ..Context::default()
    };
    if flags.features {
        return features(&cpuid, flags.format, out);
    }
    let leaves = cpuid.leaves().map(|leaf| {
        let value = cpuid.query(leaf.leaf, leaf.subleaf, &asker);
        (leaf.leaf, leaf.subleaf, value)
    });
    match flags.format {
        cli::CpuForm::Raw => {
            for (leaf, subleaf, value) in leaves {
                writeln!(out, "{}", raw(leaf, subleaf, &value))?;
            }
        }
        cli::CpuForm::Text => {
            writeln!(
                out,
                "{}; TSC at {} MHz\nvCPU {} has APIC ID {:#x}. Bits are listed under the layer that decided them; - is \
                 cleared.",
                topology,
                tsc_hz / 1_000_000,
                flags.vcpu,
                asker.apic_id
            )?;
            for (leaf, subleaf, value) in leaves {
                writeln!(out, "\n{}", raw(leaf, subleaf, &value))?;
                for (register, name) in REGISTERS {
                    let bits = by_decider(&cpuid, leaf, subleaf, register, value.get(register));
                    let words: Vec<_> = bits.iter().map(|(who, bits)| format!("{who}: {bits}")).collect();
                    if !words.is_empty() {
                        writeln!(out, "  {name}  {}", words.join("; "))?;
                    }
                }
            }
        }
        cli::CpuForm::Json => {
            let leaves: Vec<Value> = leaves.map(|(l, s, value)| object(&cpuid, l, s, &value)).collect();
            let head = json!({
                "vcpu": flags.vcpu,
                "apic_id": asker.apic_id,
                "tsc_hz": tsc_hz,
                "sockets": topology.sockets,
                "dies": topology.dies,
                "cores": topology.cores,
                "threads": topology.threads,
                "leaves": leaves,
            });
            writeln!(out, "{head:#}")?;
        }
    }
    Ok(())
}

fn raw(leaf: u32, subleaf: u32, value: &Registers) -> String {
    let Registers { eax, ebx, ecx, edx } = value;
    format!("{leaf:#010x} {subleaf:#04x}: eax={eax:#010x} ebx={ebx:#010x} ecx={ecx:#010x} edx={edx:#010x}")
}

/// Who decided a bit, and its name if it has one.
fn bit(
    table: &CpuidTable,
    leaf: u32,
    subleaf: u32,
    register: Register,
    bit: u8,
) -> (&'static str, Option<String>) {
    let dynamic = table.dynamic(leaf, subleaf).get(register) >> bit & 1 != 0;
    let who = match table.origin(leaf, subleaf, register, bit) {
        _ if dynamic => "dynamic",
        Some(layer) => layer.name(),
        None => "",
    };
    let known = Feature::ALL.iter().find(|f| f.place() == (leaf, subleaf, register, bit));
    let name = known.map(|feature| feature.name().to_string()).or_else(|| other_name(leaf, register, bit));
    (who, name)
}

/// Names of bits that are no features: those that follow CR4, topology, and enlightenments.
fn other_name(leaf: u32, register: Register, bit: u8) -> Option<String> {
    Some(match (leaf, register, bit) {
        (1, Register::Ecx, 27) => "osxsave".into(),
        (1, Register::Edx, 28) => "ht".into(),
        (7, Register::Ecx, 4) => "ospke".into(),
        (0x8000_0001, Register::Ecx, 1) => "cmp-legacy".into(),
        _ => satori_hyperv::Enlightenment::ALL
            .iter()
            .find(|one| one.row().cpuid.iter().any(|b| (b.leaf, b.register, b.bit) == (leaf, register, bit)))?
            .row()
            .name
            .into(),
    })
}

/// The named bits and the rest of a register, under the name of who decided them.
fn by_decider(
    table: &CpuidTable,
    leaf: u32,
    subleaf: u32,
    register: Register,
    value: u32,
) -> Vec<(&'static str, String)> {
    let deciders = Layer::ALL.iter().map(|layer| layer.name()).chain(["dynamic"]);
    deciders
        .filter_map(|decider| {
            let (mut words, mut plain) = (Vec::new(), 0u32);
            for number in 0..32 {
                let (who, name) = bit(table, leaf, subleaf, register, number);
                let set = value >> number & 1 != 0;
                match name {
                    _ if who != decider => {}
                    Some(name) if set => words.push(name),
                    Some(name) => words.push(format!("-{name}")),
                    None => plain |= 1 << number,
                }
            }
            if plain != 0 && value & plain != 0 {
                words.push(format!("{:#x}", value & plain));
            }
            (!words.is_empty()).then(|| (decider, words.join(" ")))
        })
        .collect()
}

fn object(table: &CpuidTable, leaf: u32, subleaf: u32, value: &Registers) -> Value {
    let mut object = Map::new();
    object.insert("leaf".into(), leaf.into());
    object.insert("subleaf".into(), subleaf.into());
    for (register, name) in REGISTERS {
        object.insert(name.into(), value.get(register).into());
    }
    let mut bits = Vec::new();
    for (register, register_name) in REGISTERS {
        for number in 0..32 {
            let (who, name) = bit(table, leaf, subleaf, register, number);
            let set = value.get(register) >> number & 1 != 0;
            if !who.is_empty() && (set || name.is_some()) {
                bits.push(
                    json!({ "register": register_name, "bit": number, "name": name, "set": set, "by": who }),
                );
            }
        }
    }
    object.insert("bits".into(), bits.into());
    object.into()
}

/// Every feature name with what became of it; in the raw form the names of those that are offered.
fn features(table: &CpuidTable, form: cli::CpuForm, out: &mut dyn Write) -> Result<()> {
    let mut objects = Vec::new();
    for &feature in Feature::ALL {
        let (leaf, subleaf, register, bit) = feature.place();
        let (offered, layer) = (table.has(feature), table.origin(leaf, subleaf, register, bit));
        let by = layer.map(|layer| layer.name());
        match form {
            cli::CpuForm::Text => {
                let state = match (offered, by) {
                    (true, Some(layer)) => format!("on, by {layer}"),
                    (true, None) => "on".into(),
                    (false, Some(layer)) => format!("off, by {layer}"),
                    (false, None) => "not implemented".into(),
                };
                writeln!(out, "{:<26} {state}", feature.name())?;
            }
            cli::CpuForm::Raw if offered => writeln!(out, "{}", feature.name())?,
            cli::CpuForm::Raw => {}
            cli::CpuForm::Json => {
                let register = REGISTERS.iter().find(|(one, _)| *one == register).map(|(_, name)| name);
                objects.push(json!({
                    "name": feature.name(), "offered": offered, "by": by,
                    "leaf": leaf, "subleaf": subleaf, "register": register, "bit": bit,
                }));
            }
        }
    }
    if form == cli::CpuForm::Json {
        writeln!(out, "{:#}", json!({ "features": objects }))?;
    }
    Ok(())
}
