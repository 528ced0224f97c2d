//! Which machine the options ask for: first what the file of `--libvirt` says, then what the others do.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use satori_cpuid::{CpuSpec, Feature, Topology};
use satori_hyperv::choice::{self, By, Choice, Chosen};
use satori_libvirt::{Domain, Whose};
use satori_machine::{ClockMode, Config, OfferedCpu, Pins, host_processors};

use crate::cli;
use crate::guest::{self, Guest};
use crate::say::say;
use crate::units;
use crate::{inputs, io_threads, pins};

/// The processors, all options and defaults considered, and what else a file said.
#[derive(Clone, Debug)]
pub struct Processors {
    /// How many there are, and how they make up cores, dies and sockets.
    pub topology: Topology,
    /// Model, features and identity, as `cpuid::CpuSpec` parses them.
    pub cpu: String,
    /// What is offered of Hyper-V, and who decided it.
    pub hyperv: Chosen,
    /// The interfaces that the guest finds.
    pub guest: Guest,
    /// What is offered of KVM's guest interface, and who decided it.
    pub kvm: satori_kvm::choice::Chosen,
    /// The same of Xen's, if it is offered.
    pub xen: Option<satori_xen::choice::Chosen>,
    /// The host's processors for each thread.
    pub pins: Pins,
    /// What the file of `--libvirt` says.
    pub domain: Domain,
    /// What a person should know before the guest runs, and may not have meant.
    pub warnings: Vec<String>,
}

/// What `flags` ask for, of a guest that is to run here.
pub fn processors(flags: &cli::CpuFlags) -> Result<Processors> {
    chosen(&flags.model, Faces::of(flags), false)
}

/// What `flags` ask for of processors, and of the host's for threads.
pub fn machine(flags: &cli::Machine) -> Result<Processors> {
    let mut chosen = processors(&flags.processor)?;
    io_threads::share_out(&mut chosen.pins, flags)?;
    pins::share_out(&mut chosen.pins, flags, chosen.topology.cpus())?;
    Ok(chosen)
}

/// What `flags` come to of a guest that another program may run: what that has and Satori does not is a warning.
pub fn foreign(flags: &cli::CpuFlags) -> Result<Processors> {
    chosen(&flags.model, Faces::of(flags), true)
}

/// What `flags` come to, as [`foreign`] has it, of a guest that finds the interfaces that every guest does.
pub fn foreign_model(flags: &cli::ModelFlags) -> Result<Processors> {
    chosen(flags, Faces::default(), true)
}

/// What is asked for of interfaces beside Hyper-V's.
#[derive(Default)]
struct Faces<'a> {
    guest: Option<&'a Guest>,
    kvm: Option<&'a str>,
    xen: Option<&'a str>,
}

impl<'a> Faces<'a> {
    fn of(flags: &'a cli::CpuFlags) -> Self {
        Faces { guest: flags.guest.as_ref(), kvm: flags.kvm.as_deref(), xen: flags.xen.as_deref() }
    }
}

fn chosen(flags: &cli::ModelFlags, faces: Faces<'_>, foreign: bool) -> Result<Processors> {
    let Faces { guest: interfaces, kvm: list, xen } = faces;
    let mut choice = Choice::on(flags.vmx.unwrap_or_default().apicv());
    let domain = match &flags.libvirt {
        Some(path) => read(path, foreign)?,
        None => Domain::default(),
    };
    if let Some(path) = &flags.libvirt {
        choice.apply(&path.display().to_string(), &domain.wishes)?;
    }
    let guest = interfaces.cloned().unwrap_or_default();
    guest.begin(&mut choice)?;
    if let Some(list) = &flags.hyperv {
        choice.apply("--hyperv", &choice::list(list)?)?;
    }
    let (mut not_ours, mut of_kvm) = (Vec::new(), Vec::new());
    let mut cpu = domain.cpu.words().unwrap_or_else(|| "max".into());
    if let Some(text) = &flags.cpu {
        let option = match foreign {
            true => {
                let (option, others) = choice::foreign_cpu_option(text)?;
                not_ours.extend(others.iter().map(ToString::to_string));
                option
            }
            false => choice::cpu_option(text)?,
        };
        choice.apply("--cpu", &option.wishes)?;
        (cpu, of_kvm) = satori_kvm::choice::cpu_option(&option.rest, text)?;
    }
    match flags.nested {
        Some(cli::Nested::Vmx) => cpu.push_str(",+vmx"),
        Some(cli::Nested::Svm) => cpu.push_str(",+svm"),
        Some(cli::Nested::Off) => cpu.push_str(",-vmx,-svm"),
        None => {}
    }
    let of_file = domain.topology.map(|(topology, _)| topology);
    let of_file = of_file.or(domain.vcpus.map(|(vcpus, _)| Topology::flat(vcpus)));
    let topology = flags.cpus.or(of_file).unwrap_or_default();
    // What another program's guests can be is not known here.
    let asks = |feature| cpu.parse::<CpuSpec>().is_ok_and(|spec| spec.asks(feature));
    let svm = !foreign && asks(Feature::Svm);
    let hyperv = choice.nested(foreign || svm || asks(Feature::Vmx)).of_svm(svm).finish()?;
    guest.agrees(interfaces.is_some(), &hyperv)?;
    let kvm = guest::kvm(&guest, list, &of_kvm)?;
    let xen = guest::xen(&guest, xen)?;
    let mut warnings: Vec<_> = domain.warnings.iter().map(ToString::to_string).chain(not_ours).collect();
    if foreign && let Err(why) = cpu.parse::<CpuSpec>() {
        warnings.push(format!("{why}; only Hyper-V's part of it is judged"));
    }
    // A list of --hyperv is documented to bring what it needs. QEMU refuses what lacks it.
    let listed = |by: &By| matches!(by, By::Words { within, .. } if within == "--hyperv");
    let added = hyperv.added.iter().filter(|added| !listed(&added.by));
    warnings.extend(added.map(|added| format!("{added}: added")));
    warnings.extend(kvm.added.iter().filter(|_| list.is_none()).map(|added| format!("{added}: added")));
    let pins = of_domain(&domain, topology, flags, &mut warnings)?;
    Ok(Processors { topology, cpu, hyperv, guest, kvm, xen, pins, domain, warnings })
}

pub(crate) fn read(path: &Path, foreign: bool) -> Result<Domain> {
    let bytes = inputs::read("--libvirt", path)?;
    let shown = path.display().to_string();
    let text = String::from_utf8(bytes)
        .map_err(|_| anyhow!("--libvirt {shown} is no text in UTF-8: name a domain's XML file"))?;
    // Time is none of a feature's matters; the virtual clock is at hand at once.
    let max = OfferedCpu::new(&Config { clock: ClockMode::VIRTUAL, ..Config::default() })?.cpuid;
    // What max leaves to those who ask for it can be asked for here, too.
    let offered = |feature: Feature| max.has(feature) || matches!(feature, Feature::Vmx | Feature::Svm);
    let read = if foreign { satori_libvirt::read_foreign } else { satori_libvirt::read };
    Ok(read(&shown, &text, &offered)?)
}

/// The processors of this host that the file gives to threads; those that there are not are told.
fn of_domain(
    domain: &Domain,
    topology: Topology,
    flags: &cli::ModelFlags,
    warnings: &mut Vec<String>,
) -> Result<Pins> {
    let mut pins = Pins::default();
    pins.io.resize(domain.iothreads.len(), Vec::new());
    if domain.pins.is_empty() {
        return Ok(pins);
    }
    let file = flags.libvirt.as_deref().unwrap_or(Path::new("")).display();
    let here = host_processors();
    pins.vcpus.resize(topology.cpus() as usize, Vec::new());
    // What is said of one vCPU comes after what is said of all.
    let mut wanted: Vec<_> = domain.pins.iter().collect();
    wanted.sort_by_key(|pin| pin.whose != Whose::Vcpus);
    for pin in wanted {
        let (cpus, missing): (Vec<u32>, Vec<u32>) = pin.cpus.iter().partition(|cpu| here.contains(cpu));
        if !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(u32::to_string).collect();
            let left = if cpus.is_empty() { ": the thread is not pinned" } else { "" };
            warnings.push(format!(
                "{file}:{}: this process has no processor {} of the host{left}",
                pin.place,
                missing.join(", ")
            ));
        }
        if cpus.is_empty() {
            continue;
        }
        match pin.whose {
            Whose::Vcpus => pins.vcpus.fill(cpus),
            Whose::Emulator => pins.timers = cpus,
            // The reader refuses those that there are not.
            Whose::IoThread(id) => {
                let index = domain.iothreads.iter().position(|known| *known == id);
                index
                    .and_then(|index| pins.io.get_mut(index))
                    .into_iter()
                    .for_each(|slot| slot.clone_from(&cpus));
            }
            Whose::Vcpu(index) => match pins.vcpus.get_mut(index as usize) {
                Some(slot) => *slot = cpus,
                None => bail!(
                    "{file}:{}: there is no vCPU {index} to pin, there are {}, count from 0",
                    pin.place,
                    topology.cpus()
                ),
            },
        }
    }
    Ok(pins)
}

impl Processors {
    /// Whether CPUID tells the guest that there is a hypervisor.
    pub fn announced(&self) -> bool {
        let words = || self.cpu.split(',').map(str::trim);
        match self.cpu.parse::<CpuSpec>() {
            Ok(spec) => {
                let last = spec.changes.iter().rev().find(|(feature, _)| *feature == Feature::Hypervisor);
                last.is_none_or(|(_, on)| *on)
            }
            // Another program's models and features.
            Err(_) => !words().any(|word| matches!(word, "-hypervisor" | "hypervisor=off")),
        }
    }

    /// Says what a person should know before the guest runs.
    pub fn warn(&self) {
        for warning in &self.warnings {
            say(format_args!("warning: {warning}"));
        }
        for conflict in self.hyperv.conflicts.iter().chain(&self.kvm.conflicts) {
            tracing::info!("{conflict}");
        }
    }

    /// Bytes of memory: those of `--memory`, else those of the file, else 512 MiB.
    pub fn memory(&self, flag: Option<u64>, file: Option<&Path>) -> Result<u64> {
        match (flag, self.domain.memory) {
            (Some(bytes), _) => Ok(bytes),
            (None, None) => Ok(512 << 20),
            (None, Some((bytes, place))) => {
                // As libvirt rounds up to what its hypervisor can give.
                let bytes = bytes.checked_next_multiple_of(units::STEP).unwrap_or(u64::MAX);
                let file = file.unwrap_or(Path::new("")).display();
                units::checked_memory(bytes).map_err(|why| anyhow!("{file}:{place}: {why}"))
            }
        }
    }
}
