//! `satori run -- COMMAND`: one command in a guest, on the caller's own files.
//!
//! The guest's root is a folder of the host, served by a process of its own (`satori-files`) and mounted through
//! virtiofs; streams, signals and the command's end go through ports of a virtio console. What sets all that up in
//! the guest is `guests/init/`, which this binary carries.

mod attend;
mod busybox;
mod ended;
pub mod flags;
mod initramfs;
pub(crate) mod kernel;
mod machine;
pub(crate) mod modules;
mod options;
mod tee;
mod user;

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use satori_bus::ByteSink;
use satori_files::Protocol;
use satori_machine::{
    Cmdline, DeviceConfig, Devices, Event, Module, Pins, Port, ProtocolChoice, SerialPorts,
};

use crate::commands::costs;
use crate::commands::run::{self, Boot};
use crate::devices::DeviceBus;
use crate::judge::Judge;
use crate::late::plain;
use crate::network::NetSpec;
use crate::opened::Opened;
use crate::recording::Recording;
use crate::say::say;
use crate::status::Status;
use crate::terminal::RawMode;
use crate::{cli, origin, report};

use attend::Attendant;
use ended::{End, StatusFile};
use initramfs::{Found, Way};
use machine::Computer;
use options::Folders;
use tee::Tee;

/// Memory of a guest that runs a command: what is not used costs nothing.
const MEMORY: u64 = 1 << 30;

/// What the kernel is told beside `--append`: only what is wrong, to end when it panics, and not to try its ciphers
/// against known answers, which is more than half of what it executes until the command runs.
const CMDLINE: &str = "quiet panic=-1 cryptomgr.notests=1";

/// The modules that the guest needs before it reaches its root.
const NEEDED: &[&str] = &["virtio_pci", "virtio_console", "virtiofs"];

/// Does what `satori run -- COMMAND` was told.
pub fn run(flags: &cli::Run) -> Status {
    run::log(flags.machine.verbose);
    let (mut status_file, mut opened) = (None, Opened::default());
    let prepared = options::check(flags).and_then(|()| {
        let prepared = prepare(flags, output()?, &mut opened)?;
        // Last, so that a refused input leaves no file behind.
        status_file = flags.command.status_file.as_deref().map(StatusFile::open).transpose()?;
        Ok(prepared)
    });
    let status = prepared.and_then(|prepared| start(flags, prepared, &mut status_file, &mut opened));
    status.unwrap_or_else(|error| {
        status_file.into_iter().for_each(StatusFile::take_back);
        run::refuse(&error)
    })
}

/// A machine that is ready to run, and the host's ends of what leads into it.
struct Prepared {
    machine: Computer,
    /// The machine's devices.
    devices: Devices,
    serials: SerialPorts,
    control: UnixStream,
    /// Who judges the command's results, and listens to them.
    judge: Option<Judge>,
    tee: Option<Tee>,
    /// Where typed bytes go, if the streams are one terminal.
    typed: Option<OwnedFd>,
    costs: satori_report::costs::Costs,
    /// The release of a kernel whose modules were looked for and not found.
    bare: Option<String>,
    origin: satori_report::Origin,
}

/// The machine of a command, its devices, and the host's end of its control port, for who runs it in his own process and attends to it
/// himself. What the command writes to its standard output goes to `output`.
pub fn machine_of(
    flags: &cli::Run,
    output: OwnedFd,
) -> Result<(satori_machine::Machine, Devices, UnixStream)> {
    options::check(flags)?;
    let Prepared { machine, devices, control, .. } = prepare(flags, output, &mut Opened::default())?;
    match machine {
        Computer::X86(machine, _) => Ok((*machine, devices, control)),
        Computer::Arm(..) => bail!("machines of arm64 have a handle of their own"),
    }
}

fn prepare(flags: &cli::Run, output: OwnedFd, opened: &mut Opened) -> Result<Prepared> {
    let wanted = machine::Wanted::of(flags)?;
    let mut folders = Folders::of(flags)?;
    // Debian builds the drivers of these into no kernel.
    let mut drivers = Vec::new();
    let disk = |bus| flags.machine.disk.iter().any(|disk| disk.bus == bus);
    let net = |bus| flags.machine.net.as_ref().is_some_and(|net| net.bus == bus);
    drivers.extend(disk(DeviceBus::Virtio).then_some("virtio_blk"));
    drivers.extend(net(DeviceBus::Virtio).then_some("virtio_net"));
    if flags.machine.has_vmbus() {
        drivers.extend(["hv_vmbus", "hv_utils"]);
    }
    if disk(DeviceBus::Vmbus) {
        drivers.extend(["hv_storvsc", "sd_mod"]);
    }
    drivers.extend(net(DeviceBus::Vmbus).then_some("hv_netvsc"));
    drivers.extend(disk(DeviceBus::Xen).then_some("xen_blkfront"));
    drivers.extend(net(DeviceBus::Xen).then_some("xen_netfront"));
    drivers.extend(flags.machine.vsock.is_some().then_some("vmw_vsock_virtio_transport"));
    drivers.extend(flags.machine.balloon.is_some().then_some("virtio_balloon"));
    if folders.all().iter().any(|place| place.folder.share.protocol == Protocol::Plan9) {
        drivers.extend(["9pnet_virtio", "9p"]);
    }
    let find = if drivers.is_empty() { kernel::find } else { kernel::with_modules };
    let kernel = find(flags.arch, flags.kernel.as_deref(), flags.command.modules.as_deref())?;
    let (modules, missing) = match &kernel.modules {
        Some(modules) => modules.closure(&NEEDED.iter().copied().chain(drivers).collect::<Vec<_>>())?,
        None => Default::default(),
    };
    for name in &missing {
        tracing::warn!("the kernel has no module {name}: without it the guest may not reach its root");
    }
    let mut recording = Recording::open(&flags.machine, opened)?;
    // A record has no terminal: it is played again where there may be none.
    let terminal = terminal_size().filter(|_| flags.machine.input == "stdin" && recording.is_none());
    let network = flags.machine.net.as_ref().map(NetSpec::inside);
    let words = &flags.command.words;
    let found = kernel.modules.as_ref().zip(kernel.release.as_deref()).and_then(|(modules, release)| {
        let here = flags.arch == cli::Arch::X86 && flags.command.root.is_none() && !flags.command.rw;
        let folder = modules.indexed(release)?;
        Some(Found { release, way: if here { Way::Root(folder) } else { folders.add_modules(folder) } })
    });
    let initramfs = initramfs::pack(flags.arch, words, &folders, &modules, terminal, network, found)?;
    let initramfs = recording.as_ref().and_then(Recording::ramdisk).unwrap_or(initramfs);
    let costs = costs::of(flags.machine.costs.as_deref())?;
    let name = flags.command.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let judge = Judge::open(&flags.machine, name, opened)?;
    let (output, tee) = match &judge {
        Some(judge) => Tee::new(output, judge.ear()).map(|(tee, input)| (input, Some(tee)))?,
        None => (output, None),
    };
    let (devices, control, typed) =
        devices(flags, wanted.pins(), &folders, output, terminal.is_some(), recording.as_ref())?;
    let append = flags.cmdline.append.as_deref().map_or_else(String::new, |more| format!(" {more}"));
    let boot = Boot {
        kernel: kernel.image,
        kernel_name: kernel.path.display().to_string(),
        initrds: vec![Module { data: initramfs, ..Module::default() }],
        cmdline: match &flags.cmdline.whole {
            Some(whole) => Cmdline::Whole(whole.clone()),
            None => Cmdline::Added(format!("{CMDLINE}{append}")),
        },
        protocol: ProtocolChoice::Auto,
    };
    let bare = kernel.modules.is_none().then(|| kernel.release.clone()).flatten();
    let release = kernel.release.unwrap_or_else(|| "of an unknown release".into());
    tracing::info!(
        "kernel {}, {release}; {} modules are loaded before the root",
        kernel.path.display(),
        modules.len()
    );
    let origin = origin::origin(&boot, flags.machine.report);
    let origin = match &mut recording {
        Some(recording) => recording.settle(origin),
        None => origin,
    };
    let serials = crate::devices::serials(&flags.machine, opened)?;
    let console = Box::new(Quiet { shown: flags.machine.verbose > 0 });
    let machine =
        wanted.build(flags, boot, (devices.clone(), serials.clone()), console, recording.as_ref(), opened)?;
    Ok(Prepared { machine, devices, serials, control, judge, tee, typed, costs, bare, origin })
}

/// The caller's standard output.
fn output() -> Result<OwnedFd> {
    Ok(std::io::stdout().as_fd().try_clone_to_owned()?)
}

/// The size of the terminal, if standard input, output and error are one.
fn terminal_size() -> Option<(u16, u16)> {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    if !(input.is_terminal() && output.is_terminal() && error.is_terminal()) {
        return None;
    }
    let name = |fd: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|stat| stat.st_rdev);
    let one = name(input.as_fd());
    if one != name(output.as_fd()) || one != name(error.as_fd()) {
        return None;
    }
    rustix::termios::tcgetwinsize(&output).ok().map(|size| (size.ws_row, size.ws_col))
}

/// The folders' servers, the ports, and the host's ends of control and terminal.
fn devices(
    flags: &cli::Run,
    pins: &Pins,
    folders: &Folders,
    output: OwnedFd,
    terminal: bool,
    recording: Option<&Recording>,
) -> Result<(Devices, UnixStream, Option<OwnedFd>)> {
    let shares = folders.all().iter().map(|place| place.folder.serve(&flags.machine));
    let shares = shares.collect::<Result<Vec<_>>>()?;
    let (control, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let again = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let port =
        |name: &str, input, output| Port { name: format!("satori.{name}"), console: false, input, output };
    let mut ports = vec![port("control", Some(theirs.try_clone()?), Some(theirs))];
    let mut typed = None;
    if terminal {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&write, true)?;
        ports.push(port("tty", Some(read), Some(output)));
        typed = Some(write);
    } else {
        let input = match flags.machine.input.to_str() {
            Some("stdin") => again(std::io::stdin().as_fd())?,
            Some("none") => File::open("/dev/null")?.into(),
            _ => {
                let path = std::path::Path::new(&flags.machine.input);
                let wrong =
                    || format!("cannot read --input {}: name a file that can be read", path.display());
                File::open(path).with_context(wrong)?.into()
            }
        };
        ports.push(port("stdin", Some(input), None));
        ports.push(port("stdout", None, Some(output)));
        ports.push(port("stderr", None, Some(again(std::io::stderr().as_fd())?)));
    }
    crate::devices::buses(&flags.machine)?;
    let devices = Devices::new(DeviceConfig {
        ports,
        shares,
        disks: crate::devices::disks(&flags.machine, DeviceBus::Virtio)?,
        nics: crate::network::nics(&flags.machine, DeviceBus::Virtio)?,
        taps: crate::network::taps(&flags.machine, DeviceBus::Virtio)?,
        xen_disks: crate::devices::xen_disks(&flags.machine)?,
        xen_nics: crate::network::nics(&flags.machine, DeviceBus::Xen)?,
        xen_taps: crate::network::taps(&flags.machine, DeviceBus::Xen)?,
        vsock: crate::vsock::sockets(&flags.machine)?,
        rng: true,
        balloon: flags.machine.balloon,
        vmbus: crate::devices::vmbus(&flags.machine)?,
        pins: pins.clone(),
        journal: recording.map(Recording::journal),
    })?;
    Ok((devices, control, typed))
}

fn start(
    flags: &cli::Run,
    prepared: Prepared,
    status_file: &mut Option<StatusFile>,
    opened: &mut Opened,
) -> Result<Status> {
    let Prepared { mut machine, devices, serials, control, judge, tee, typed, costs, bare, origin } =
        prepared;
    let on_terminal = typed.is_some();
    let report_file = flags.machine.report_file.as_deref();
    let report_file = report_file.map(|path| opened.file("--report-file", path)).transpose()?;
    let dumps = flags.machine.crash_dumps(opened)?;
    let watchers = machine.watched(&flags.machine, opened)?;
    let raw = if on_terminal { RawMode::enter() } else { None };
    let attendant = Attendant::new(machine.handle(), devices.clone(), control, typed, flags.machine.limits());
    let attendant = attendant.context("cannot watch the terminal and signals")?;
    let written = status_file.iter().map(StatusFile::descriptor);
    let files =
        report_file.iter().chain(dumps.iter().flatten()).map(AsRawFd::as_raw_fd).chain(opened.descriptors());
    let files = files.chain(tee.iter().flat_map(Tee::files));
    let others = files.chain(watchers.keep).chain(written);
    let keep: Vec<_> = machine.files().into_iter().chain(attendant.files()).chain(others).collect();
    run::sandbox(&flags.machine, machine.runs_by_kvm(), &keep, watchers.listening, machine.is_pinned())?;
    opened.begin(flags.machine.sandbox != cli::Sandbox::Off);
    machine.crash_dumps(dumps);
    let attendant = attendant.start().context("cannot start a thread")?;
    let by_kvm = machine.runs_by_kvm();
    let qmp = watchers.qmp.map(|qmp| qmp.start(machine.handle(), by_kvm)).transpose();
    let qmp = qmp.context("cannot start a thread")?;
    let tee = tee.map(Tee::start).transpose().context("cannot start a thread")?;
    let outcome = machine.run();
    drop(qmp);
    let passed = tee.and_then(tee::Running::finish);
    let told = attendant.finish();
    // Terminal first: everything below is ordinary text.
    drop(raw);
    let end = told.end.unwrap_or_else(|| {
        match (&outcome.event, Status::of(&outcome.event, &flags.machine.testdev)) {
            (Event::PowerOff, _) if told.started => End::PoweredOff,
            (Event::PowerOff, _) => End::Vanished,
            (Event::Timeout, _) => End::Stopped(Status::Timeout),
            (_, Some(status)) => End::Machine(status),
            (_, None) => End::Stopped(told.stopped.map_or(Status::User, |stop| stop.status())),
        }
    });
    let status = end.status();
    ended::tell(&end, &outcome, status, flags.machine.bisect);
    if let (End::Vanished | End::Machine(Status::Panic), Some(release), false) = (&end, bare, told.started) {
        say(format_args!(
            "no modules of kernel {release} were found, beside it or in /lib/modules: name their folder with --modules DIR"
        ));
    }
    let wanted = report::Wanted::of(&flags.machine, &costs, origin);
    let told = |what: &str, why: &std::io::Error| {
        say(format_args!("{what} cannot be written ({}): make room, or name another place", plain(why)));
    };
    let port = devices.lost().map(|(port, why)| match port.as_str() {
        "satori.stderr" => ("standard error".to_owned(), why),
        _ => ("standard output".to_owned(), why),
    });
    let serial = serials.lost().map(|(port, why)| (format!("--serial's {port}"), why));
    let passed = passed.map(|why| ("standard output".to_owned(), why));
    let cut: Vec<_> = port.into_iter().chain(serial).chain(passed).collect();
    cut.iter().for_each(|(what, why)| told(what, why));
    let mut status = status.or_lost(!cut.is_empty() || report::is_cut(&outcome));
    if let Err(why) = report::write(&outcome, status, &wanted, report_file) {
        told("the report", &why);
        status = status.or_lost(true);
    }
    if let Some(judge) = judge {
        status = judge.judge(status, &report::last_words(&outcome));
    }
    // The last, as it tells the status.
    if let Some(Err(why)) = status_file.take().map(|file| file.write(&end, status)) {
        told("--status-file", &why);
        status = status.or_lost(true);
    }
    Ok(status)
}

/// The kernel's console, of which the machine keeps the last lines; at `-v` standard error shows it.
struct Quiet {
    shown: bool,
}

impl ByteSink for Quiet {
    fn put(&mut self, bytes: &[u8]) {
        if self.shown {
            let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), bytes);
        }
    }
}

/// Refuses what a command in a guest cannot be run with, with the reason.
fn refused(option: &str, why: &str) -> Result<()> {
    bail!("{option} does not go with a command ({why}): leave one of the two out")
}
