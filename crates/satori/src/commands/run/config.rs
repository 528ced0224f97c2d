//! Flags to the machine that they describe.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use satori_libvirt::OnReboot;
use satori_machine::{
    BootProtocol, Charges, ClockMode, CodeNames, Config, EngineKind, OnReset, PerfFile, ProtocolChoice,
    SymbolSource,
};
use satori_symbols::Symbols;
use satori_xen::Kind;

use super::Boot;
use crate::choose::Processors;
use crate::commands::costs;
use crate::inputs::{Room, read};
use crate::{cli, engine, unpacked};

/// Ticks a second of the modelled host: CONFIG_HZ of most distributions' kernels.
const HOST_TICK: u32 = 250;

/// Refuses to report on a vCPU that there is not, in a form that has no choice of one, or nothing to a
/// file.
pub(crate) fn report_of(flags: &cli::Machine, cpus: u32) -> Result<()> {
    match flags.report_vcpu {
        Some(vcpu) if vcpu >= cpus => {
            bail!("--report-vcpu {vcpu}: there are {cpus} vCPUs, count from 0")
        }
        Some(_) if flags.report != cli::Report::Text => {
            bail!("--report-vcpu chooses for --report text only: leave one of the two out")
        }
        _ if flags.report == cli::Report::Off && flags.engine_stats => {
            bail!("--engine-stats are part of the report: leave --report off out")
        }
        _ if flags.report == cli::Report::Html && flags.report_file.is_none() => {
            bail!("--report html makes a page for a browser: add --report-file FILE")
        }
        _ if flags.report == cli::Report::Off && flags.costs.is_some() && !flags.charge_costs => {
            bail!("--report off leaves nothing for --costs: leave one of the two out")
        }
        _ if flags.report == cli::Report::Off && flags.report_file.is_some() => {
            bail!("--report off leaves nothing for --report-file: leave one of the two out")
        }
        _ => Ok(()),
    }
}

/// What exits take of guest time, if that is wanted.
fn charges(flags: &cli::Machine) -> Result<Option<Charges>> {
    if !flags.charge_costs {
        return Ok(None);
    }
    if flags.clock != cli::Clock::Virtual {
        bail!(
            "--charge-costs: under --clock real exits take what they take: add --clock virtual, or leave it out"
        );
    }
    let costs = costs::of(flags.costs.as_deref())?;
    let processor = flags.processor.vmx.unwrap_or_default();
    Ok(Some(Charges::new(satori_machine::REASONS, |reason, apicv| {
        let (reason, name) = (reason.name(), Some(processor.name()));
        let entry = if apicv { costs.of(reason, name) } else { costs.without_apicv(reason, name) };
        // A float's conversion saturates.
        entry.map_or(0, |entry| entry.ns.round() as u64)
    })))
}

/// What the guest reads of `--input FILE`.
pub(crate) fn input(flags: &cli::Machine) -> Result<Vec<u8>> {
    const MOST: u64 = 64 << 20;
    let Some(path) = flags.input_file() else { return Ok(Vec::new()) };
    if std::fs::metadata(path).is_ok_and(|file| file.len() > MOST) {
        bail!("--input {} is larger than 64 MiB: put it into the --initrd", path.display());
    }
    Room::own().read("--input", path)
}

/// Ticks a second of the modelled host, which there is under the virtual clock alone.
fn host_tick(flags: &cli::Machine) -> Result<u32> {
    match flags.host_tick {
        Some(_) if flags.clock != cli::Clock::Virtual => {
            bail!(
                "--host-tick: under --clock real the host's own ticks come: add --clock virtual, or leave it out"
            )
        }
        ticks => Ok(ticks.unwrap_or(HOST_TICK)),
    }
}

/// Refuses a balloon that asks for all of the guest's memory.
pub(crate) fn balloon(flags: &cli::Machine, memory: u64) -> Result<()> {
    match flags.balloon.filter(|bytes| *bytes >= memory) {
        Some(bytes) => bail!(
            "--balloon={}M: the guest has {} MiB of memory: ask it for less, or for none (--balloon)",
            bytes >> 20,
            memory >> 20
        ),
        None => Ok(()),
    }
}

/// The machine that the flags describe.
pub(crate) fn config(boot: Boot, flags: &cli::Machine, processors: &Processors) -> Result<Config> {
    let xen = processors.xen.as_ref().map(|chosen| chosen.config);
    let memory = processors.memory(flags.memory, flags.processor.libvirt.as_deref())?;
    balloon(flags, memory)?;
    let mut config = Config {
        kernel_unpacked: unpacked::find(&boot.kernel),
        kernel: boot.kernel,
        kernel_name: boot.kernel_name,
        initrds: boot.initrds,
        cmdline: boot.cmdline,
        // Who enters at the PVH note is a PVH guest, and nobody else is.
        protocol: match (boot.protocol, xen.map(|xen| xen.kind)) {
            (ProtocolChoice::Auto, Some(Kind::Pvh)) => ProtocolChoice::Only(BootProtocol::Pvh),
            (ProtocolChoice::Auto, Some(Kind::Hvm)) => ProtocolChoice::NotPvh,
            (wanted, _) => wanted,
        },
        smbios: crate::smbios::all(&flags.smbios),
        memory,
        topology: processors.topology,
        cpu_model: Some(processors.cpu.clone()),
        hyperv: processors.hyperv.config.clone(),
        kvm: processors.kvm.config,
        xen,
        processor: flags.processor.vmx.unwrap_or_default(),
        host_tick: host_tick(flags)?,
        charges: charges(flags)?,
        pins: processors.pins.clone(),
        tsc_hz: processors.domain.tsc_hz,
        host_without: flags.host_without.clone(),
        clock: match flags.clock {
            cli::Clock::Real => ClockMode::Real,
            cli::Clock::Virtual => ClockMode::VIRTUAL,
        },
        on_reset: match (flags.on_reset, processors.domain.on_reboot) {
            (Some(cli::OnReset::Exit), _) | (None, Some(OnReboot::Destroy)) => OnReset::Exit,
            (Some(cli::OnReset::Restart), _) | (None, _) => OnReset::Restart,
        },
        panic_pattern: flags.panic_pattern.clone(),
        testdev: flags.testdev.contains(&cli::Testdev::Suite),
        profile: flags.report != cli::Report::Off,
        engine_stats: flags.engine_stats,
        ends_process: true,
        guest_timeout: flags.guest_timeout,
        symbols: symbols(&flags.symbols)?,
        // Looking for them goes through the guest's memory, and the text names none.
        names: matches!(flags.report, cli::Report::Json | cli::Report::Html),
        tsc_changes: flags.tsc_change.clone(),
        ..Config::default()
    };
    engine::choose(&mut config, flags)?;
    Ok(config)
}

/// The file of `--perf`.
pub(crate) fn code_names(flags: &cli::Machine, engine: EngineKind) -> Result<Option<Arc<CodeNames>>> {
    let kind = match flags.perf {
        Some(_) if engine == EngineKind::Interpreter => {
            bail!("--perf names translated code, and the interpreter makes none: leave one of the two out")
        }
        Some(cli::Perf::Map) => PerfFile::Map,
        Some(cli::Perf::Jitdump) => PerfFile::Dump,
        None => return Ok(None),
    };
    let names = CodeNames::open(kind, symbols(&flags.symbols)?)
        .map_err(|why| anyhow!("--perf: cannot make its file in /tmp ({why})"))?;
    Ok(Some(Arc::new(names)))
}

/// Where names of functions come from.
fn symbols(wanted: &OsStr) -> Result<SymbolSource> {
    match wanted.to_str() {
        Some("auto") => Ok(SymbolSource::Auto),
        Some("off") => Ok(SymbolSource::Off),
        _ => {
            let path = Path::new(wanted);
            let content = read("--symbols", path)?;
            let name = path.display().to_string();
            let symbols =
                Symbols::parse(&content, &name).map_err(|why| anyhow!("--symbols {name}: {why}"))?;
            Ok(SymbolSource::Table(Arc::new(symbols)))
        }
    }
}
