//! The engine of a run: what `--engine` says, and what `auto` takes on this host for these options.
//!
//! `auto` takes KVM if a trial of /dev/kvm went well and KVM can do all that the options ask for; else the better software
//! engine, and the machine's first line says why. The variable [`VARIABLE`] stands for `auto` where it is set, so that tests
//! that count exits have the same engine on every host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use satori_hyperv::Enlightenment;
use satori_machine::{Apics, Config, EngineKind, OfferedCpu};

use crate::commands::engines::{self, Answer};
use crate::debian::cache;
use crate::late::plain;
use crate::say::say;
use crate::{cli, probe};

/// The environment's word for what `auto` takes.
pub(crate) const VARIABLE: &str = "SATORI_ENGINE";
/// The device of KVM.
const DEVICE: &str = "/dev/kvm";

/// What is wanted, where `auto` is what [`VARIABLE`] says.
pub(crate) fn wanted(flag: cli::Engine) -> Result<cli::Engine> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| flag == cli::Engine::Auto && !text.is_empty())
    else {
        return Ok(flag);
    };
    let text = text.to_string_lossy();
    cli::Engine::from_str(&text, false).ok().with_context(|| {
        format!("{VARIABLE}={text}: write auto, software, interpreter, translator or kvm, or unset it")
    })
}

/// The engine that `auto` takes for options that any engine can do, where KVM works or not.
pub(crate) fn of_auto(kvm_works: bool) -> Result<EngineKind> {
    match wanted(cli::Engine::Auto)? {
        cli::Engine::Kvm => Ok(EngineKind::Kvm),
        cli::Engine::Auto if kvm_works => Ok(EngineKind::Kvm),
        flag => software(flag),
    }
}

/// The software engine that `wanted` names: the better one where it names none.
pub(crate) fn software(wanted: cli::Engine) -> Result<EngineKind> {
    match wanted {
        cli::Engine::Auto | cli::Engine::Software | cli::Engine::Kvm => Ok(EngineKind::best()),
        cli::Engine::Interpreter => Ok(EngineKind::Interpreter),
        cli::Engine::Translator | cli::Engine::Eager => match EngineKind::translator_works() {
            Ok(()) if wanted == cli::Engine::Eager => Ok(EngineKind::EagerTranslator),
            Ok(()) => Ok(EngineKind::Translator),
            Err(error) => bail!(
                "--engine translator: this host gives no memory for code ({error}); use --engine interpreter or auto"
            ),
        },
    }
}

/// The word for `satori run --engine` by which a benchmark's guests run: `auto` is Satori's own processor, which is what is measured.
/// What 'satori run' would refuse, each of them would.
pub(crate) fn of_bench(flag: cli::Engine) -> Result<String> {
    let flag = if flag == cli::Engine::Auto { cli::Engine::Software } else { flag };
    software(flag)?;
    if flag == cli::Engine::Kvm
        && let Err(why) = works()
    {
        bail!("--engine kvm: no guest runs by it here ({why}); leave it out, or ask 'satori engines'");
    }
    Ok(flag.to_possible_value().map_or_else(|| "software".into(), |value| value.get_name().to_string()))
}

/// Gives `config` its engine, and with KVM the processor whose exits are counted.
pub(crate) fn choose(config: &mut Config, flags: &cli::Machine) -> Result<()> {
    let wanted = wanted(flags.engine)?;
    let software = software(wanted)?;
    config.kvm_exits = flags.report != cli::Report::Off || flags.stats_socket.is_some();
    config.apics = match flags.apic {
        cli::Apic::Auto if flags.gdb.is_none() && !flags.gdb_default => Apics::Auto,
        cli::Apic::Auto | cli::Apic::Satori => Apics::Machine,
        cli::Apic::Kernel => Apics::Kernel,
    };
    match (wanted, beyond_kvm(flags)) {
        (cli::Engine::Kvm, Some(what)) => {
            bail!("{what}, which kvm does not; use --engine translator, or leave it out")
        }
        (cli::Engine::Kvm, None) => by_kvm(config)?,
        (cli::Engine::Auto, beyond) => {
            let (modelled, hyperv) = (config.processor, config.hyperv.clone());
            let beyond = beyond.or(flags.gdb.is_some().then_some("--gdb has four breakpoints there"));
            let tried = beyond.map_or_else(|| tried(config), |what| Err(what.into()));
            if let Err(why) = tried {
                (config.engine, config.processor, config.hyperv) = (software, modelled, hyperv);
                config.engine_instead = Some(format!("not kvm: {why}"));
            }
        }
        _ => config.engine = software,
    }
    Ok(())
}

/// The flags that ask for what KVM cannot do; the machine knows of its own.
fn beyond_kvm(flags: &cli::Machine) -> Option<&'static str> {
    let asked = [
        (flags.processor.vmx.is_some(), "--processor models what exits"),
        (flags.perf.is_some(), "--perf names translated code"),
        (!flags.host_without.is_empty(), "--host-without takes instructions from translated code"),
    ];
    asked.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what)
}

/// Puts `config` on KVM, where all that comes to Satori is an exit of the host's.
fn by_kvm(config: &mut Config) -> Result<()> {
    config.engine = EngineKind::Kvm;
    // What guests are told of the local APIC follows from whether a processor virtualises it.
    let virtualised = config.apics_on_kvm()? == Apics::Kernel && virtualises_apic();
    let processor = if virtualised { "haswell" } else { "no-apicv" };
    if config.apics_on_kvm()? == Apics::Kernel {
        leave_to_the_kernel(&mut config.hyperv);
    }
    config.processor = format!("{processor},-tpr-shadow,-preemption-timer,-ple").parse()?;
    Ok(())
}

/// Takes out of an interface that nobody chose what the kernel's local APICs do without an exit to Satori: IPIs and timers.
fn leave_to_the_kernel(hyperv: &mut satori_hyperv::Config) {
    use Enlightenment::{Ipi, Stimer, StimerDirect};
    if [false, true].iter().any(|apicv| hyperv.set == satori_hyperv::Config::auto_on(*apicv).set) {
        hyperv.set = hyperv.set.iter().filter(|one| ![Ipi, Stimer, StimerDirect].contains(one)).collect();
    }
}

/// Whether the host's KVM has the processor virtualise local APICs.
pub(crate) fn virtualises_apic() -> bool {
    const SAYS: [&str; 2] =
        ["/sys/module/kvm_intel/parameters/enable_apicv", "/sys/module/kvm_amd/parameters/avic"];
    SAYS.iter().any(|file| fs::read(file).is_ok_and(|text| text.starts_with(b"Y") || text.starts_with(b"1")))
}

/// Puts `config` on KVM if that works here; else tells why not, in a few words.
fn tried(config: &mut Config) -> Result<(), String> {
    if !Path::new(DEVICE).exists() {
        return Err(format!("there is no {DEVICE}"));
    }
    by_kvm(config).map_err(|error| format!("{error:#}"))?;
    // What the options alone forbid is known before anything is tried, and what the processor lacks afterwards.
    if let Some(what) = config.beyond_kvm() {
        return Err(what.into());
    }
    if let Some(Hang(file)) = Hang::of_this_boot().filter(Hang::is_known) {
        let file = file.display();
        return Err(format!("{DEVICE} hung when it was tried before (until 'satori engines' or no {file})"));
    }
    works()?;
    OfferedCpu::new(config).map(|_| ()).map_err(|error| error.to_string())
}

/// Whether the trial of /dev/kvm goes well; a hang is remembered, so that it costs its two seconds once.
fn works() -> Result<(), String> {
    if let Err(error) = fs::File::options().read(true).write(true).open(DEVICE) {
        return Err(format!("{DEVICE}: {}", plain(&error)));
    }
    let answer = tried_now();
    if answer.hung {
        say(format_args!("{DEVICE} does not answer, and is left alone until this host starts anew"));
    }
    if answer.works() { Ok(()) } else { Err(format!("{DEVICE}: {}", answer.first())) }
}

/// What came of trying /dev/kvm just now.
pub(crate) fn tried_now() -> Answer {
    let answer = engines::probe(probe::KVM);
    if let Some(hang) = Hang::of_this_boot() {
        hang.remember(answer.hung);
    }
    answer
}

/// The file that tells that /dev/kvm hung since this host started.
struct Hang(PathBuf);

impl Hang {
    /// Another kernel may not hang, and is another boot.
    fn of_this_boot() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Hang(cache::folder().ok()?.join(format!("kvm-hung-{}", boot.trim()))))
    }

    fn is_known(&self) -> bool {
        self.0.exists()
    }

    /// Without it each run tries anew: nothing is lost but time.
    fn remember(&self, hung: bool) {
        if hung {
            let _ = self.0.parent().map(fs::create_dir_all);
            let _ = fs::write(&self.0, "");
        } else {
            let _ = fs::remove_file(&self.0);
        }
    }
}
