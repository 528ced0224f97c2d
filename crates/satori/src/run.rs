//! `satori run`: flags to a machine, the machine's outcome to a status and a report.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, stderr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use satori_hyperv::choice::Mistakes;
use satori_libvirt::OnReboot;
use satori_machine::{
    Charges, ClockMode, Cmdline, CodeNames, Config, EngineKind, Event, GdbListener, Handle, KERNEL_MAX,
    Machine, Module, OnReset, PerfFile, ProtocolChoice, SerialPorts, Sinks, SymbolSource, WatchListener,
};
use satori_sandbox::{Measure, Mode, Needs};
use satori_symbols::Symbols;

use crate::attend::{Guest, Ready};
use crate::choose::{self, Processors};
use crate::cli;
use crate::command;
use crate::costs;
use crate::devices;
use crate::late::{LateFile, plain};
use crate::modules;
use crate::origin;
use crate::output::{Gone, Output};
use crate::places::unix_socket;
use crate::report;
use crate::say::say;
use crate::status::Status;
use crate::terminal::{self, RawMode};

/// Ticks a second of the modelled host: CONFIG_HZ of most distributions' kernels.
const HOST_TICK: u32 = 250;

/// Does what `satori run` was told.
pub fn run(flags: &cli::Run) -> Status {
    if !flags.command.words.is_empty() {
        return command::run(flags);
    }
    let boot = || {
        let chosen = choose::processors(&flags.machine.processor)?;
        let (of_file, ramdisk) = (chosen.domain.kernel.as_deref(), chosen.domain.initrd.as_deref());
        flags.places().reads("<kernel>", of_file).reads("<initrd>", ramdisk).check()?;
        let memory = chosen.memory(flags.machine.memory, flags.machine.processor.libvirt.as_deref())?;
        let (name, kernel) = match (&flags.kernel, &chosen.domain.kernel) {
            (Some(path), _) => (path.clone(), read("--kernel", path)?),
            (None, Some(path)) => (path.into(), read("<kernel>", Path::new(path))?),
            (None, None) => {
                bail!("the file of --libvirt names no kernel: add <os><kernel> to it, or --kernel FILE")
            }
        };
        let boot = Boot {
            kernel,
            kernel_name: name.display().to_string(),
            initrds: modules(flags, chosen.domain.initrd.as_deref(), memory)?,
            cmdline: cmdline(flags, chosen.domain.cmdline.as_deref()),
            protocol: flags.boot.wanted(),
        };
        Ok((boot, chosen))
    };
    match boot() {
        Ok((boot, chosen)) => start(boot, &flags.machine, &chosen),
        Err(error) => refuse(&error),
    }
}

/// What a machine boots.
#[derive(Debug)]
pub struct Boot {
    /// The kernel file's bytes.
    pub kernel: Vec<u8>,
    /// Its name, for a multiboot kernel.
    pub kernel_name: String,
    /// Initial ramdisks or modules, in order.
    pub initrds: Vec<Module>,
    /// The kernel's command line.
    pub cmdline: Cmdline,
    /// How the kernel is entered.
    pub protocol: ProtocolChoice,
}

/// The command line of the flags; without them that of the file, to which --append adds.
fn cmdline(flags: &cli::Run, file: Option<&str>) -> Cmdline {
    match (&flags.cmdline.whole, file) {
        (None, Some(file)) => {
            let more = flags.cmdline.append.as_deref().map_or_else(String::new, |more| format!(" {more}"));
            Cmdline::Whole(format!("{file}{more}"))
        }
        _ => match (flags.cmdline.text(), terminal::size()) {
            (Cmdline::Added(text), Some(size)) if flags.machine.input == "stdin" => Cmdline::On(text, size),
            (text, _) => text,
        },
    }
}

/// The initial ramdisks and modules of the flags; without the former that of the file. All together fit into `memory`.
fn modules(flags: &cli::Run, file: Option<&str>, memory: u64) -> Result<Vec<Module>> {
    let mut room = Room { bytes: memory, of: "the memory that the guest has left, --memory" };
    let mut all = Vec::new();
    if let Some(path) = file.filter(|_| flags.initrd.is_empty()) {
        all.push(Module {
            data: full("<initrd>", room.read("<initrd>", Path::new(path))?, path)?,
            ..Module::default()
        });
    }
    for text in &flags.initrd {
        all.extend(modules::initrds(text, &mut room)?);
    }
    for text in &flags.module {
        all.push(modules::module(text, &mut room)?);
    }
    Ok(all)
}

/// How many bytes files may have, of what. A file is asked for its size before a byte is read.
#[derive(Debug)]
pub struct Room {
    /// What is left.
    pub bytes: u64,
    /// What it is, in words.
    pub of: &'static str,
}

impl Room {
    /// For a file of its own, of which none is larger than a kernel may be.
    fn own() -> Self {
        Room { bytes: KERNEL_MAX, of: "any such file has" }
    }

    /// The content of the file that `flag` names, which takes its room.
    pub fn read(&mut self, flag: &str, path: &Path) -> Result<Vec<u8>> {
        let shown = path.display();
        let cannot = |why: std::io::Error| {
            anyhow!("cannot read {flag} {shown} ({}): name a file that can be read", plain(&why))
        };
        // Also a directory opens; and a fifo or a device would be read for ever.
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            bail!("{flag} {shown} is no regular file: name one");
        }
        let file = File::open(path).map_err(cannot)?;
        let size = file.metadata().map_err(cannot)?.len();
        if size > self.bytes {
            bail!("{flag} {shown} is too large: {size} bytes, more than {} ({})", self.of, self.bytes);
        }
        let mut bytes = Vec::with_capacity(size as usize);
        // It may grow meanwhile.
        file.take(self.bytes).read_to_end(&mut bytes).map_err(cannot)?;
        self.bytes -= bytes.len() as u64;
        Ok(bytes)
    }
}

/// `bytes`, of which the file that `flag` names has some.
pub fn full(flag: &str, bytes: Vec<u8>, path: impl AsRef<Path>) -> Result<Vec<u8>> {
    if bytes.is_empty() {
        bail!("{flag} {} is empty: name another file", path.as_ref().display());
    }
    Ok(bytes)
}

/// The content of the file that `flag` names, which has some.
pub fn read(flag: &str, path: &Path) -> Result<Vec<u8>> {
    full(flag, Room::own().read(flag, path)?, path)
}

/// Boots, runs to the end and reports.
pub fn start(boot: Boot, flags: &cli::Machine, chosen: &Processors) -> Status {
    log(flags.verbose);
    let origin = origin::origin(&boot, flags.report);
    let output = Output::new(flags.console_newlines);
    let console = output.shared();
    let written = console.clone();
    let (mut names, mut opened) = (None, devices::Opened::default());
    let mut serials = SerialPorts::default();
    let prepared = config(boot, flags, chosen).and_then(|mut config| {
        config.devices = devices::devices(flags)?;
        config.input = input(flags)?;
        serials = devices::serials(flags, &mut opened)?;
        config.serials = serials.clone();
        report_of(flags, chosen.topology.cpus())?;
        let costs = costs::of(flags.costs.as_deref())?;
        // The debug console is the guest's console too: what has no serial driver prints there.
        names = perf(flags)?;
        let code = names.clone().map(|names| names as _);
        let sinks = Sinks { console: Box::new(output.clone()), debugcon: Some(Box::new(output)), code };
        let mut machine = Machine::new(config, sinks)?;
        // Last, so that a refused input leaves no file behind.
        let file =
            flags.report_file.as_deref().map(|path| LateFile::open("--report-file", path)).transpose()?;
        let dump =
            match flags.crash_dump.as_deref().map(|path| LateFile::open("--crash-dump", path)).transpose() {
                Ok(dump) => dump,
                Err(error) => {
                    file.into_iter().for_each(LateFile::take_back);
                    return Err(error);
                }
            };
        let listener = match gdb(flags) {
            Ok(listener) => listener,
            Err(error) => {
                file.into_iter().chain(dump).for_each(LateFile::take_back);
                return Err(error);
            }
        };
        let address = listener.as_ref().map(|l| (l.address().to_owned(), l.as_fd().as_raw_fd()));
        if let Some(listener) = listener {
            machine.debug(listener, flags.gdb_wait);
        }
        let observers = match observers(flags, &mut machine) {
            Ok(observers) => observers,
            Err(error) => {
                file.into_iter().chain(dump).for_each(LateFile::take_back);
                return Err(error);
            }
        };
        chosen.warn();
        Ok((machine, file, dump, address, costs, observers))
    });
    let (mut machine, file, dump, gdb, costs, observers) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            names.inspect(|names| names.take_back());
            opened.take_back();
            return refuse(&error);
        }
    };
    if let Some(names) = &names {
        say(format_args!("perf: names of translated code go to {}", names.path().display()));
    }

    let sockets = sockets(flags);
    say(format_args!("{}", machine.engine()));
    if let Some((address, _)) = &gdb {
        let waits = if flags.gdb_wait { "; the guest waits for it" } else { "" };
        say(format_args!("gdb: 'target remote {address}' connects{waits}"));
    }
    if let Some(path) = &flags.stats_socket {
        say(format_args!("'satori top {}' watches", path.display()));
    }
    let input = flags.input == "stdin";
    let shown = report::is_shown();
    let raw = if input { RawMode::enter() } else { None };
    if raw.is_some() {
        say(format_args!("{}", crate::escape::HELP));
    }
    let guest = Running(machine.handle());
    let attendant = Ready::new(guest, console, input, raw.is_some(), flags.limits()).and_then(|ready| {
        let written = file.iter().chain(&dump).map(|file| file.file.as_raw_fd()).chain(opened.descriptors());
        let debugger = gdb.map(|(_, socket)| socket);
        let code = names.as_ref().map(|names| names.descriptor());
        let others = [debugger, code].into_iter().flatten();
        let others = others.chain(observers).chain(machine.files());
        let keep: Vec<_> = ready.files().into_iter().chain(written).chain(others).collect();
        let listening = debugger.is_some() || listens(flags);
        if let Err(error) = sandbox(flags, &keep, listening, chosen.pins.any()) {
            return Ok(Err(error));
        }
        ready.start().map(Ok)
    });
    let attendant = match attendant {
        Ok(Ok(attendant)) => attendant,
        Ok(Err(refused)) => {
            drop(raw);
            file.into_iter().chain(dump).for_each(LateFile::take_back);
            opened.take_back();
            names.inspect(|names| names.take_back());
            sockets.iter().for_each(|path| drop(std::fs::remove_file(path)));
            return refuse(&refused);
        }
        Err(error) => {
            drop(raw);
            say(format_args!("cannot watch the terminal and signals: {error:#}"));
            return Status::Internal;
        }
    };
    let file = file.map(LateFile::begin);
    if let Some(dump) = dump {
        machine.crash_dump(dump.begin());
    }
    let outcome = machine.run();
    let broken = match written.gone() {
        Some(Gone::Failed(why)) => Some(format!("standard output cannot be written ({why})")),
        Some(Gone::Reader) | None => None,
    };
    // In the sandbox there is no way to them: they stay, and the next run replaces them.
    if flags.sandbox == cli::Sandbox::Off {
        sockets.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
    let stopped = attendant.stopped();
    // Terminal first: everything below is ordinary text.
    drop(raw);
    drop(attendant);

    let status = match &outcome.event {
        Event::PowerOff => Status::Ok,
        Event::Reset(_) => Status::Reset,
        Event::DebugExit(value) if flags.testdev.contains(&cli::Testdev::ExitValue) => {
            Status::ExitValue(*value)
        }
        Event::DebugExit(value) => Status::DebugExit(*value),
        Event::Panic(_) => Status::Panic,
        Event::TripleFault { .. } => Status::TripleFault,
        Event::Timeout => Status::Timeout,
        Event::Stopped => stopped.map_or(Status::User, |stop| stop.status()),
        Event::Failed(_) => Status::Internal,
    };
    // What is missing in a file that was asked for is our failure, where the guest has none of its own.
    let cut = serials.lost();
    let lost = broken.is_some() || cut.is_some() || report::is_cut(&outcome);
    let status = status.or_lost(lost);
    report::tell(&outcome, status, broken.as_deref(), shown && broken.is_none());
    if let Some((port, why)) = cut {
        say(format_args!(
            "what the guest sent to {port} is not complete ({}): make room, or name another place",
            plain(&why)
        ));
    }
    let (form, vcpu) = (flags.report, flags.report_vcpu);
    let wanted = report::Wanted {
        form,
        vcpu,
        counters: flags.engine_stats,
        processor: flags.processor.vmx.unwrap_or_default().to_string(),
        costs: &costs,
        origin,
    };
    match report::write(&outcome, status, &wanted, file) {
        Ok(()) => status,
        Err(error) => {
            let status = status.or_lost(true);
            say(format_args!("cannot write the report: {}; exit status {}", plain(&error), status.code()));
            status
        }
    }
}

/// How much of the sandbox must be had.
pub(crate) fn sandbox_mode(flags: &cli::Machine) -> Mode {
    match flags.sandbox {
        cli::Sandbox::Off => Mode::Off,
        cli::Sandbox::Auto => Mode::Auto,
        cli::Sandbox::Require => Mode::Require,
    }
}

/// Gives away what running the guest does not need, and tells at `-v` what was achieved.
pub(crate) fn sandbox(flags: &cli::Machine, keep: &[RawFd], listening: bool, pinned: bool) -> Result<()> {
    let mode = sandbox_mode(flags);
    if mode == Mode::Off {
        tracing::info!("sandbox: off, as asked: the process keeps all that it has");
    }
    let status = Status::Internal.code().into();
    let needs = Needs { keep, listening, pinned, status, farewell: terminal::restore_if_free };
    for Measure { name, outcome } in satori_sandbox::enter(mode, &needs)? {
        match outcome {
            Ok(what) => tracing::info!("sandbox: {name}: {what}"),
            Err(why) => tracing::info!("sandbox: {name}: NOT had: {why}"),
        }
    }
    Ok(())
}

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

struct Running(Handle);

impl Guest for Running {
    fn input(&mut self, bytes: &[u8]) -> usize {
        self.0.input(bytes)
    }
    fn send_break(&mut self) {
        self.0.send_break();
    }
    fn ready(&self) -> usize {
        self.0.ready()
    }
    fn on_ready(&self, told: Box<dyn Fn() + Send>) {
        self.0.on_ready(told);
    }
    fn suspend(&mut self) {
        self.0.suspend();
    }
    fn go_on(&mut self) {
        self.0.go_on();
    }
    fn moved(&self) -> u64 {
        self.0.moved()
    }
    fn stop(&mut self) {
        self.0.stop();
    }
}

/// One line for each thing that is wrong, and the status that goes with it.
pub fn refuse(error: &anyhow::Error) -> Status {
    if let Some(Mistakes(mistakes)) = error.downcast_ref() {
        mistakes.iter().for_each(|mistake| say(format_args!("{mistake}")));
        return Status::Usage;
    }
    // One line, whatever a library put into its text.
    let text = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    say(format_args!("{text}"));
    Status::Usage
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
    Ok(Some(Charges::new(|reason, apicv| {
        let (reason, name) = (reason.name(), Some(processor.name()));
        let entry = if apicv { costs.of(reason, name) } else { costs.without_apicv(reason, name) };
        // A float's conversion saturates.
        entry.map_or(0, |entry| entry.ns.round() as u64)
    })))
}

/// What the guest reads of `--input FILE`.
fn input(flags: &cli::Machine) -> Result<Vec<u8>> {
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

/// The machine that the flags describe.
pub(crate) fn config(boot: Boot, flags: &cli::Machine, processors: &Processors) -> Result<Config> {
    Ok(Config {
        kernel: boot.kernel,
        kernel_name: boot.kernel_name,
        initrds: boot.initrds,
        cmdline: boot.cmdline,
        protocol: boot.protocol,
        memory: processors.memory(flags.memory, flags.processor.libvirt.as_deref())?,
        topology: processors.topology,
        cpu_model: Some(processors.cpu.clone()),
        hyperv: processors.hyperv.config.clone(),
        processor: flags.processor.vmx.unwrap_or_default(),
        host_tick: host_tick(flags)?,
        charges: charges(flags)?,
        pins: processors.pins.clone(),
        tsc_hz: processors.domain.tsc_hz,
        engine: engine(flags.engine)?,
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
        guest_timeout: flags.guest_timeout,
        symbols: symbols(&flags.symbols)?,
        // Looking for them goes through the guest's memory, and the text names none.
        names: matches!(flags.report, cli::Report::Json | cli::Report::Html),
        tsc_changes: flags.tsc_change.clone(),
        ..Config::default()
    })
}

/// The file of `--perf`.
fn perf(flags: &cli::Machine) -> Result<Option<Arc<CodeNames>>> {
    let kind = match flags.perf {
        Some(_) if engine(flags.engine)? == EngineKind::Interpreter => {
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

/// Opens what those who look on need, as the sandbox permits nothing to be opened later, and tells the
/// machine of them. What a sandbox has to keep open.
pub(crate) fn observers(flags: &cli::Machine, machine: &mut Machine) -> Result<Vec<RawFd>> {
    let mut keep = Vec::new();
    // Before the file of the trace, so that a refused socket leaves none behind.
    if let Some(path) = &flags.stats_socket {
        let wrong = |why| {
            anyhow!(
                "cannot listen on --stats-socket {} ({}): name another place",
                path.display(),
                plain(&why)
            )
        };
        let listener = WatchListener::open(path).map_err(wrong)?;
        keep.push(listener.as_fd().as_raw_fd());
        machine.watch(listener);
    }
    if let Some(spec) = &flags.trace {
        let wrong = |why| {
            anyhow!("cannot write --trace {} ({}): name another place", spec.file.display(), plain(&why))
        };
        let file = match File::create(&spec.file).map_err(wrong) {
            Ok(file) => file,
            Err(error) => {
                flags.stats_socket.iter().for_each(|path| drop(std::fs::remove_file(path)));
                return Err(error);
            }
        };
        keep.push(file.as_raw_fd());
        machine.trace(file, spec.filter.clone());
    }
    Ok(keep)
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

/// The socket on which a debugger is awaited, if one is.
pub(crate) fn gdb(flags: &cli::Machine) -> Result<Option<GdbListener>> {
    let address = flags.gdb.as_deref().or(flags.gdb_default.then_some(OsStr::new("tcp::1234")));
    match address {
        Some(address) => Ok(Some(GdbListener::open(address).map_err(|why| anyhow!("--gdb: {why}"))?)),
        None if flags.gdb_wait => bail!("-S (--gdb-wait) waits for a debugger: add --gdb tcp::1234, or -s"),
        None => Ok(None),
    }
}

/// The files of the sockets that are listened on, absolute as that of the report.
fn sockets(flags: &cli::Machine) -> Vec<PathBuf> {
    let gdb = flags.gdb.as_deref().and_then(unix_socket);
    let serials = flags.serial.iter().filter_map(|text| unix_socket(text));
    let all = gdb.into_iter().chain(flags.stats_socket.as_deref()).chain(serials);
    all.filter_map(|path| std::path::absolute(path).ok()).collect()
}

/// Whether connections come while the guest runs, beside those of a debugger.
pub(crate) fn listens(flags: &cli::Machine) -> bool {
    flags.stats_socket.is_some() || flags.serial.iter().any(|text| unix_socket(text).is_some())
}

/// The engine that is wanted. `auto` is the best one that works; what /dev/kvm promises is not
/// believed, and nothing runs on it yet, so it is not even asked.
pub(crate) fn engine(wanted: cli::Engine) -> Result<EngineKind> {
    match wanted {
        cli::Engine::Auto => Ok(EngineKind::best()),
        cli::Engine::Interpreter => Ok(EngineKind::Interpreter),
        cli::Engine::Translator | cli::Engine::Eager => match EngineKind::translator_works() {
            Ok(()) if wanted == cli::Engine::Eager => Ok(EngineKind::EagerTranslator),
            Ok(()) => Ok(EngineKind::Translator),
            Err(error) => bail!(
                "--engine translator: this host gives no memory for code ({error}); use --engine interpreter or auto"
            ),
        },
        cli::Engine::Kvm => {
            bail!(
                "--engine kvm: this version cannot drive /dev/kvm yet; use --engine interpreter or auto ('satori \
                 engines' tells more)"
            )
        }
    }
}

pub(crate) fn log(verbose: u8) {
    use tracing_subscriber::filter::LevelFilter;
    let level = [LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    let level = level[usize::from(verbose).min(level.len() - 1)];
    // Without colours: what is logged is read in files more than on terminals, and NO_COLOR holds.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(stderr)
        .without_time()
        .with_ansi(false)
        .try_init();
}
