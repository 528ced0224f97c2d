//! `satori run -- COMMAND` at random moments of its run: taken back at once, or thrown away and built anew with other file servers and another
//! network. Its output, and the files of the folders that it may change, are those of the command that nobody disturbed.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use satori::cli::{Cli, Command, Run};
use satori::debian::cache::{self, Wanted};
use satori_machine::{Devices, Error, Event, Handle, Machine, Outcome, Saved};
use satori_save::Error::Refused;

use crate::common;
use crate::trial::Random;

/// A boot and the command on a busy host.
const PATIENCE: Duration = Duration::from_secs(300);

/// A command with files open, read and appended to meanwhile, in its root, whose changes are in memory; in a folder that it may change; and
/// in one by 9P.
const FILES: &str = include_str!("folders.sh");
/// One that writes to a disk, reads it, and is connected to the host, again and again.
const DISK: &str = include_str!("disk.sh");

/// A command, and what it may change.
struct Place {
    folders: Vec<PathBuf>,
    flags: Run,
    /// What it writes.
    output: PathBuf,
}

impl Place {
    /// `script` with these options and arguments.
    fn new(called: &str, folders: Vec<PathBuf>, options: &[&str], script: &str, arguments: &[&str]) -> Place {
        let cloud = common::fetch(&["kernel", "6.1"]);
        // Debian's usual kernel, as clouds' has no 9P.
        let name = Path::new(&cloud).file_name().expect("a name").to_str().expect("UTF-8");
        let name = name.split_once('_').expect("a package and its version").0.replace("-cloud", "");
        let tree = cache::get(Wanted::Package(&name), false).expect("the kernel's package");
        let release = name.trim_start_matches("linux-image-");
        let kernel = tree.join(format!("boot/vmlinuz-{release}"));
        let modules = tree.join("lib/modules").join(release);
        let [kernel, modules] = [&kernel, &modules].map(|path| path.to_str().expect("UTF-8"));
        let run =
            ["satori", "run", "--kernel", kernel, "--modules", modules, "--input", "none", "--user", "root"];
        // A host's frequency is measured anew for each machine, and a state goes to one of the same frequency.
        let domain = "<domain><clock><timer name='tsc' frequency='1000000000'/></clock></domain>";
        let domain = common::file(&format!("{called}-domain"), domain.as_bytes());
        let run = [&run[..], &["--libvirt", &domain]].concat();
        let words = [&run[..], options, &["--", "sh", "-c", script, "sh"], arguments].concat();
        let Command::Run(flags) = Cli::try_parse_from(words).expect("words of a command").command else {
            unreachable!("it is 'satori run'")
        };
        Place { folders, flags, output: common::scratch(&format!("{called}-output")) }
    }

    fn folders(name: &str) -> Place {
        let folders = ["rw", "shared"].map(|folder| common::scratch(&format!("folders-{name}-{folder}")));
        for folder in &folders {
            let _ = std::fs::remove_dir_all(folder);
            std::fs::create_dir_all(folder).expect("a folder");
        }
        let lines: String = (0..100).map(|line| format!("line {line} of what is read\n")).collect();
        std::fs::write(folders[0].join("input"), lines).expect("the input");
        let [rw, shared] = folders.each_ref().map(|folder| folder.to_str().expect("UTF-8"));
        let share = format!("{shared}:shared,rw,9p");
        let options = ["--rwdir", rw, "--share", &share];
        Place::new(&format!("folders-{name}"), folders.to_vec(), &options, FILES, &[rw])
    }

    /// A disk, which the guest knows by that name, and a network card on `bus`, with these options.
    fn bus(name: &str, bus: &str, node: &str, options: &[&str]) -> Place {
        let disk = common::file(&format!("{bus}-{name}"), &vec![b'.'; 1 << 20]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port().to_string();
        std::thread::spawn(move || {
            while let Ok((mut guest, _)) = listener.accept() {
                // A guest that is gone does not hear it.
                let _ = guest.write_all(b"hello\n");
            }
        });
        let (disk, net) = (format!("{disk},snapshot,bus={bus}"), format!("user,loopback,bus={bus}"));
        let options = [options, &["--cpus", "2", "--disk", &disk, "--net", &net]].concat();
        Place::new(&format!("{bus}-{name}"), Vec::new(), &options, DISK, &[&port, node])
    }

    fn vmbus(name: &str) -> Place {
        Place::bus(name, "vmbus", "/dev/sda", &["--hyperv", "auto"])
    }

    fn xen(name: &str) -> Place {
        Place::bus(name, "xen", "/dev/xvda", &["--guest", "xen-pvh"])
    }

    /// A machine for the command, its devices, and the host's end of its control.
    fn machine(&self, output: &std::fs::File) -> Result<(Machine, Devices, UnixStream), String> {
        let output = OwnedFd::from(output.try_clone().map_err(|why| why.to_string())?);
        satori::command::machine_of(&self.flags, output).map_err(|why| format!("{why:#}"))
    }

    /// What it left behind, if it ended well.
    fn ended(&self, event: Event, told: &str) -> Result<Ended, String> {
        let output = std::fs::read_to_string(&self.output).map_err(|why| why.to_string())?;
        match event {
            Event::PowerOff if output.ends_with("done\n") => Ok(Ended { output, files: self.files() }),
            event => Err(format!("it ended by {event:?}, told {told:?} and wrote:\n{output}")),
        }
    }

    /// All files of its folders.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all = Vec::new();
        for root in &self.folders {
            let mut left = vec![root.clone()];
            while let Some(folder) = left.pop() {
                for entry in
                    std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry"))
                {
                    let path = entry.path();
                    if entry.file_type().expect("a type").is_dir() {
                        left.push(path);
                        continue;
                    }
                    let name = path.strip_prefix(root).expect("a file in it").to_path_buf();
                    all.push((name, std::fs::read(path).expect("a file")));
                }
            }
        }
        all.sort();
        all
    }
}

/// What a command told and left behind.
#[derive(PartialEq)]
struct Ended {
    output: String,
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// A thread that answers the guest's init as the command line does.
struct Attendant {
    control: UnixStream,
    thread: JoinHandle<String>,
}

impl Attendant {
    /// `told` is what the init told before the state that the machine has. What it was answered may be lost with the machine before.
    fn start(devices: Devices, control: UnixStream, mut told: String) -> std::io::Result<Attendant> {
        let mut socket = control.try_clone()?;
        if !told.is_empty() {
            answer(&mut socket, "clock", &devices)?;
            told.lines().try_for_each(|line| answer(&mut socket, line, &devices))?;
        }
        let thread = std::thread::spawn(move || {
            let heard = BufReader::new(socket.try_clone().expect("a descriptor"));
            for line in heard.lines().map_while(Result::ok) {
                told += &format!("{line}\n");
                // A machine that has ended hears nothing.
                let _ = answer(&mut socket, &line, &devices);
            }
            told
        });
        Ok(Attendant { control, thread })
    }

    /// What it heard of a machine that has ended.
    fn finish(self) -> String {
        let _ = self.control.shutdown(Shutdown::Both);
        self.thread.join().expect("the attendant's thread")
    }
}

/// Answers a line of the init's: with the host's clock, and with the end once what the command wrote has left.
fn answer(socket: &mut UnixStream, line: &str, devices: &Devices) -> std::io::Result<()> {
    match line.split(' ').next() {
        Some("clock") => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time behind 1970");
            writeln!(socket, "time {} {}", now.as_secs(), now.subsec_nanos())
        }
        Some("exited" | "killed" | "failed") => {
            devices.finish(&|| false);
            socket.write_all(b"over\n")
        }
        _ => Ok(()),
    }
}

/// Waits for a machine's end, which is ours if it takes too long.
fn end(handle: &Handle, thread: JoinHandle<Outcome>, began: Instant) -> Event {
    while !thread.is_finished() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    if !thread.is_finished() {
        handle.stop();
    }
    thread.join().expect("the machine's thread").event
}

/// Runs the command in `place`. After each of `moments`, behind the one before, it is saved; and then taken back, or thrown away.
fn go(place: &Place, moments: &[(Duration, bool)]) -> Result<(Ended, usize, Duration), String> {
    let output = std::fs::File::create(&place.output).map_err(|why| why.to_string())?;
    let (mut saved, mut times, mut left, began): (Option<Saved>, _, _, _) =
        (None, 0, moments.iter(), Instant::now());
    let (mut took, mut told) = (Duration::ZERO, String::new());
    let event = loop {
        let (mut machine, devices, control) = place.machine(&output)?;
        if let Some(saved) = saved.take() {
            machine = machine.restored(saved).map_err(|why| why.to_string())?;
        }
        let (handle, started) = (machine.handle(), Instant::now());
        let attendant = Attendant::start(devices, control, std::mem::take(&mut told));
        let attendant = attendant.map_err(|why| why.to_string())?;
        let thread = std::thread::spawn(move || machine.run());
        for (after, thrown) in left.by_ref() {
            let since = Instant::now();
            while since.elapsed() < *after && !thread.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            handle.suspend();
            match handle.save() {
                Ok(state) if *thrown => saved = Some(state),
                Ok(state) => {
                    handle.restore(state).map_err(|why| format!("taken back: {why}"))?;
                    handle.go_on();
                }
                // It has not begun, or is over.
                Err(Error::Saved(Refused { what, .. })) if what == "a machine that runs" => {
                    handle.go_on();
                    continue;
                }
                Err(why) => return Err(format!("after {:?}: {why}", started.elapsed())),
            }
            times += 1;
            if saved.is_some() {
                handle.stop();
                break;
            }
        }
        let event = end(&handle, thread, began);
        told = attendant.finish();
        took = took.max(started.elapsed());
        if saved.is_none() {
            break event;
        }
    };
    Ok((place.ended(event, &told)?, times, took))
}

/// Runs a command alone, and then disturbed so many times; tells what is not as it was.
fn compare(make: fn(&str) -> Place, times: usize, random: &mut Random) -> Result<String, String> {
    let (alone, _, took) = go(&make("alone"), &[])?;
    let mut moment = || {
        let random = random.next();
        (took.mul_f64((random % 2000) as f64 / 1000.0 / (times + 1) as f64), random & 1 << 20 != 0)
    };
    let moments: Vec<_> = (0..times).map(|_| moment()).collect();
    let (disturbed, saved, _) = go(&make("disturbed"), &moments)?;
    if disturbed.output != alone.output || alone.output.contains("BAD") {
        return Err(format!("its output:\n{}\nalone:\n{}", disturbed.output, alone.output));
    }
    let differ = alone.files.iter().zip(&disturbed.files).find(|(one, other)| one != other);
    match differ {
        None if alone.files.len() == disturbed.files.len() => {}
        differ => {
            return Err(format!("files differ, first {:?}", differ.map(|(one, other)| (&one.0, &other.0))));
        }
    }
    Ok(format!(
        "saved {saved} times, output and {} files are those of the one that was not",
        alone.files.len()
    ))
}

/// Commands with folders.
pub(crate) fn run(times: usize, random: &mut Random) -> Result<String, String> {
    compare(Place::folders, times, random)
}

/// Commands with devices on VMBus, and on Xen's bus.
pub(crate) fn on_vmbus(times: usize, random: &mut Random) -> Result<String, String> {
    compare(Place::vmbus, times, random)
}

pub(crate) fn on_xen(times: usize, random: &mut Random) -> Result<String, String> {
    compare(Place::xen, times, random)
}

/// A command whose host leaves while it runs: nobody hears its end, and the guest powers off all the same.
pub(crate) fn left() -> Result<String, String> {
    let place = Place::new("left", Vec::new(), &[], "sleep 1; echo done", &[]);
    let output = std::fs::File::create(&place.output).map_err(|why| why.to_string())?;
    let (machine, _, control) = place.machine(&output)?;
    let (handle, began) = (machine.handle(), Instant::now());
    let thread = std::thread::spawn(move || machine.run());
    let mut told = String::new();
    let mut heard = BufReader::new(control);
    while !told.ends_with("started\n") {
        let at = told.len();
        heard.read_line(&mut told).map_err(|why| why.to_string())?;
        if told[at..].starts_with("clock") {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time behind 1970");
            writeln!(heard.get_mut(), "time {} 0", now.as_secs()).map_err(|why| why.to_string())?;
        }
        if told.len() == at {
            return Err(format!("the guest's init left first: {told:?}"));
        }
    }
    drop(heard);
    place.ended(end(&handle, thread, began), &told)?;
    Ok("the guest powered off".into())
}
