//! `satori bench`: fetches what it needs, lets `satori-bench` measure, and prints.

pub mod ablation;
mod devices;
pub mod flags;
pub mod nested;
pub mod overhead;
mod programs;
mod talks;
mod tools;
pub mod traps;
pub mod vhe;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail};
use satori_bench::catalog::Group;
use satori_bench::measure::{Plan, Watch, measure};
use satori_bench::subject::{Files, qemu_version, unpacked};
use satori_bench::{Error, Results, Setting, Subject, check, json, program, rows_named, svg, text};

use self::flags::{Bench, Mitigations, Other, Turned, What};
use self::talks::Talks;
use self::tools::Server;
use crate::cli;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::engine::of_bench;
use crate::inputs::read;
use crate::late::{LateFile, plain};
use crate::origin;
use crate::say::{Out, say};
use crate::status::Status;

/// The guests' memory: the bounds are set for 512 MiB.
const MEMORY: u64 = 512 << 20;

/// Does what `satori bench` was told.
pub fn bench(flags: &Bench) -> Result<Status> {
    match &flags.other {
        Some(Other::Traps(flags)) => return traps::traps(flags),
        Some(Other::Ablation(flags)) => return ablation::ablation(flags),
        Some(Other::Overhead(flags)) => return overhead::overhead(flags),
        Some(Other::Nested(flags)) => return nested::nested(flags),
        Some(Other::Vhe(flags)) => return vhe::vhe(flags),
        None => {}
    }
    if flags.list {
        for row in satori_bench::all() {
            writeln!(Out, "{:<12} {:<9} {}", row.name, row.group.name(), row.operation)?;
        }
        writeln!(Out, "{:<12} {:<9} the whole command of a boot to init", "boot", "")?;
        return Ok(Status::Ok);
    }
    let (rows, boot) = rows_named(&flags.rows, &flags.groups)?;
    let chart = flags.svg.as_deref().map(|path| LateFile::open("--svg", path)).transpose()?;
    let chart = Chart(chart);
    let scratch = Scratch::new()?;
    let (files, kernel) = files(flags, &scratch)?;
    let stop = stop_on_signals()?;
    if flags.what == Some(What::Talks) {
        of_bench(flags.engine)?;
        let talks = Talks {
            program: std::env::current_exe().context("cannot find this program's own file")?,
            engine: of_bench(flags.engine)?,
            kernel: files.vmlinux.clone(),
            initrd: files.initrd.clone(),
            spin: scratch.file("hv_spin", program::spin()?, 0o644)?,
            report: scratch.folder.join("report.json"),
            flags,
            stop: &stop,
        };
        if let Some(load) = busy() {
            say(format_args!("{load}: times will be poor; counts are exact"));
        }
        return talks.perform(&origin::host(), &kernel);
    }
    let (subjects, notes) = subjects(flags)?;
    let plan = Plan {
        files,
        subjects,
        settings: match flags.mitigations {
            Some(Mitigations::On) => vec![Setting::Defaults],
            Some(Mitigations::Off) => vec![Setting::MitigationsOff],
            None if flags.quick => vec![Setting::Defaults],
            None | Some(Mitigations::Both) => vec![Setting::Defaults, Setting::MitigationsOff],
        },
        rows,
        boot,
        cpus: flags.cpus,
        memory: MEMORY,
        repetitions: flags.repetitions.unwrap_or(if flags.quick { 1 } else { 3 }) as usize,
        budget_ms: flags.budget.map_or(if flags.quick { 40 } else { 200 }, |t| t.as_millis() as u64),
        patience: flags.timeout,
    };
    let busy = busy();
    if let Some(load) = &busy {
        say(format_args!("{load}: figures will be poor, and rows noisy"));
    }
    let mut tell = |words: &str| say(format_args!("{words}"));
    let mut results: Option<Results> = None;
    let (parts, _server) = parts(flags, plan, &scratch)?;
    let programs = parts.iter().any(is_of_programs);
    for plan in &parts {
        let measured = match measure(plan, &mut Watch { tell: &mut tell, stop: &stop }) {
            Ok(measured) if is_of_programs(plan) => Some(measured.worst_first()),
            Ok(measured) => Some(measured),
            Err(Error::Stopped) => None,
            Err(error) => return Err(error.into()),
        };
        results = match (results, measured) {
            (Some(others), Some(measured)) => Some(others.with(measured)),
            (Some(others), None) => Some(Results { stopped: true, ..others }),
            (None, Some(measured)) => Some(measured),
            (None, None) => return Ok(Status::User),
        };
        if results.as_ref().is_some_and(|results| results.stopped) {
            break;
        }
    }
    let mut results = results.context("there is no row to measure")?;
    results.host = origin::host();
    results.date = origin::date(std::time::SystemTime::now());
    results.kernel = match programs {
        true => format!("{kernel}; those of programs {} MiB", satori_bench::programs::MEMORY >> 20),
        false => kernel,
    };
    results.notes.splice(0..0, notes.into_iter().chain(busy));
    show(flags, &results, chart)
}

/// A plan for the rows of the static program, and one for those of devices, programs and tools, as far as they are wanted: each has files
/// of its own, and tools a server.
fn parts(flags: &Bench, plan: Plan, scratch: &Scratch) -> Result<(Vec<Plan>, Option<Server>)> {
    let of = |wanted: fn(Group) -> bool| {
        plan.rows.iter().copied().filter(|row| wanted(row.group)).collect::<Vec<_>>()
    };
    let (programs, of_devices) = (of(|group| group == Group::Programs), of(Group::is_of_devices));
    let tools = of(|group| group == Group::Tools);
    let rest = of(|group| !matches!(group, Group::Programs | Group::Tools) && !group.is_of_devices());
    let (mut parts, mut server) = (Vec::new(), None);
    if !rest.is_empty() || plan.boot {
        parts.push(Plan { rows: rest, ..plan.clone() });
    }
    let on_devices =
        (!of_devices.is_empty() || !tools.is_empty()).then(|| devices::devices(flags, &plan.files, scratch));
    let memory = satori_bench::programs::MEMORY;
    if let Some(on) = on_devices.transpose()? {
        if !of_devices.is_empty() {
            parts.push(Plan { files: on.of_rows(scratch)?, rows: of_devices, boot: false, ..plan.clone() });
        }
        if !tools.is_empty() {
            let (files, serving) = tools::files(&on, scratch)?;
            server = Some(serving);
            parts.push(Plan { files, rows: tools, boot: false, memory, ..plan.clone() });
        }
    }
    if !programs.is_empty() {
        let files = programs::files(&plan.files, scratch)?;
        parts.push(Plan { files, rows: programs, boot: false, memory, ..plan });
    }
    Ok((parts, server))
}

fn is_of_programs(plan: &Plan) -> bool {
    plan.rows.first().is_some_and(|row| row.group == Group::Programs)
}

/// The file of `--svg`, which is not left behind empty.
struct Chart(Option<LateFile>);

impl Chart {
    fn write(mut self, results: &Results) -> Result<()> {
        let Some(file) = self.0.take() else { return Ok(()) };
        let written = file.begin().write_all(svg::svg(results).as_bytes());
        written.map_err(|why| anyhow!("cannot write --svg ({}): what was measured is above", plain(&why)))
    }
}

impl Drop for Chart {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(LateFile::take_back);
    }
}

fn show(flags: &Bench, results: &Results, chart: Chart) -> Result<Status> {
    let verdicts = check::check(results);
    let printed = match flags.format {
        cli::Form::Text if flags.check => {
            write!(Out, "{}{}", text::text(results), text::verdicts(&verdicts))
        }
        cli::Form::Text => write!(Out, "{}", text::text(results)),
        cli::Form::Json => writeln!(Out, "{:#}", json::json(results, &verdicts)),
    };
    // Whichever of the two fails, the other keeps what took a quarter of an hour.
    let printed = printed.and_then(|()| Out.flush());
    let drawn = chart.write(results);
    printed?;
    if let Err(error) = drawn {
        say(format_args!("{error:#}"));
        return Ok(Status::Internal);
    }
    let short = flags.check && verdicts.iter().any(|verdict| verdict.reached() != Some(true));
    Ok(match results {
        results if results.stopped => Status::User,
        results if short || results.wrong() => Status::Short,
        _ => Status::Ok,
    })
}

/// The host first, then Satori, then the peers that there are.
///
/// Beside them what is to be told of them.
fn subjects(flags: &Bench) -> Result<(Vec<Subject>, Vec<String>)> {
    // What 'satori run' refuses, every run would refuse.
    of_bench(flags.engine)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let engine = of_bench(flags.engine)?;
    let mut notes = vec![format!("satori: {}, --engine {engine}", cli::VERSION)];
    let mut subjects = vec![Subject::Native];
    let mut add = |engine: String, knob| {
        subjects.push(Subject::Satori { program: program.clone(), engine, knob });
    };
    let by_kvm = engine == "kvm";
    add(engine, flags.knob.map(Turned::knob));
    if by_kvm && flags.knob.is_none() {
        // What a guest takes there, and what it takes where there is no such device.
        add(of_bench(cli::Engine::Software)?, None);
    }
    let cpus: Vec<_> = flags.peers.iter().filter_map(|peer| peer.cpu()).collect();
    if cpus.is_empty() {
        return Ok((subjects, notes));
    }
    let programs = match flags.qemu.as_slice() {
        [] => vec![PathBuf::from("qemu-system-x86_64")],
        named => named.to_vec(),
    };
    for program in &programs {
        let Some(version) = qemu_version(program) else {
            if flags.qemu.is_empty() {
                say(format_args!("no peer: there is no qemu-system-x86_64 (Debian's qemu-system-x86)"));
                break;
            }
            bail!("--qemu {} is no QEMU: name a qemu-system-x86_64", program.display());
        };
        notes.push(format!("tcg: QEMU {version}, {}", program.display()));
        let version = (programs.len() > 1).then_some(version);
        for cpu in &cpus {
            subjects.push(Subject::Qemu { program: program.clone(), version: version.clone(), cpu });
        }
    }
    Ok((subjects, notes))
}

/// Set when the user wants an end.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// What to tell of a machine that does much besides, if it does.
fn busy() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split(' ').next()?.parse().ok()?;
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    (load > count as f64 / 2.0)
        .then(|| format!("this machine is busy: a load of {load} on {count} processors"))
}

/// An initramfs with `program` as its init.
fn ramdisk(program: &[u8], busybox: Option<&[u8]>) -> Vec<u8> {
    let mut archive = Cpio::new();
    for folder in ["bin", "dev", "proc", "sys", "tmp"] {
        archive.directory(folder);
    }
    archive.device("dev/console", 0o600, 5, 1).device("dev/null", 0o666, 1, 3);
    if let Some(shell) = busybox {
        archive.file("bin/busybox", 0o755, shell);
    }
    archive.file("init", 0o755, program).finish()
}

/// Makes the files of the benchmark, and tells which kernel it is.
fn files(flags: &Bench, scratch: &Scratch) -> Result<(Files, String)> {
    let bytes = program::bytes()?;
    let bzimage = match &flags.kernel {
        None => cache::get(Wanted::Kernel, false)?,
        Some(file) => match cache::series(file) {
            Some(series) => cache::get(Wanted::Series(series), false)?,
            None => file.clone(),
        },
    };
    read("--kernel", &bzimage)?;
    let busybox = match &flags.busybox {
        None => cache::get(Wanted::Busybox, false)?,
        Some(file) => file.clone(),
    };
    flags.places().reads("the kernel", [&bzimage]).reads("busybox", [&busybox]).check()?;
    let shell = read("--busybox", &busybox)?;
    say(format_args!("kernel {}", bzimage.display()));
    let archive = ramdisk(bytes, Some(&shell));
    let (vmlinux, version) = unpacked(&bzimage)?;
    let files = Files {
        vmlinux: scratch.file("vmlinux", &vmlinux, 0o644)?,
        initrd: scratch.file("initrd", &archive, 0o644)?,
        program: scratch.file("satori-bench", bytes, 0o755)?,
        // What a guest has of it is executable, whatever it is here.
        busybox: scratch.file("busybox", &shell, 0o755)?,
        work: scratch.work.clone(),
        bzimage,
        devices: None,
    };
    Ok((files, format!("Linux {version}, {} MiB", MEMORY >> 20)))
}

/// Folders that go away with their value.
struct Scratch {
    folder: PathBuf,
    /// On tmpfs, as the guests' is, where there is one.
    work: PathBuf,
}

impl Scratch {
    fn new() -> Result<Self> {
        let name = format!("satori-bench-{}", std::process::id());
        let make = |parent: &Path| {
            let folder = parent.join(&name);
            fs::create_dir_all(&folder).map(|()| folder)
        };
        // Guests are started in it.
        let folder = std::path::absolute(std::env::temp_dir())
            .and_then(|parent| make(&parent))
            .context("cannot make a folder: set TMPDIR to another place")?;
        let work = make(Path::new("/dev/shm")).unwrap_or_else(|_| folder.clone());
        Ok(Scratch { folder, work })
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let written = fs::write(&path, bytes)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        written.with_context(|| format!("cannot write {}: set TMPDIR to another place", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for folder in [&self.folder, &self.work] {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
