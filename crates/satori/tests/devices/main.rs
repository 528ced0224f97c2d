//! Devices on the PCI bus, with Debian's stock drivers.

#[path = "../common/mod.rs"]
mod common;
mod server;

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use satori_bus::ByteSink;
use satori_machine::{
    ClockMode, Cmdline, Config, DeviceConfig, Devices, Dialect, EngineKind, Event, Machine, Module, Port,
    Share, Sinks,
};

#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<u8>>>);

impl ByteSink for Console {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().expect("console").extend_from_slice(bytes);
    }
}

/// Runs the case `what` of guest.sh in Debian's 6.12 with `devices`; tells what was on the console.
fn run(what: &str, cpus: u32, clock: ClockMode, devices: DeviceConfig) -> String {
    let kernel = std::fs::read(common::fetch(&["kernel", "6.12"])).expect("the kernel");
    let busybox = std::fs::read(common::fetch(&["busybox"])).expect("busybox");
    let initrd = satori::initramfs::build(&busybox, include_str!("guest.sh"), &[]);
    let config = Config {
        kernel,
        initrds: vec![Module { data: initrd, ..Module::default() }],
        cmdline: Cmdline::Added(format!("panic=-1 satori.do={what}")),
        memory: 256 << 20,
        topology: satori_cpuid::Topology::flat(cpus),
        engine: EngineKind::best(),
        clock,
        timeout: Some(Duration::from_secs(240)),
        devices: Devices::new(devices).expect("devices"),
        ..Config::default()
    };
    let console = Console::default();
    let sinks = Sinks { console: Box::new(console.clone()), debugcon: None, code: None };
    let outcome = Machine::new(config, sinks).expect("a machine").run();
    let text = String::from_utf8_lossy(&console.0.lock().expect("console")).into_owned();
    assert_eq!(outcome.event, Event::PowerOff, "{text}");
    assert!(!text.contains("BAD") && text.contains("done"), "{text}");
    text
}

fn scratch(name: &str, content: &[u8]) -> File {
    let path = common::file(name, content);
    File::options().read(true).write(true).open(path).expect("a scratch file")
}

fn port(name: &str, input: Option<&File>, output: Option<&File>) -> Port {
    let own = |file: &File| OwnedFd::from(file.try_clone().expect("a descriptor"));
    Port { name: name.into(), console: false, input: input.map(own), output: output.map(own) }
}

fn sum(content: &[u8]) -> String {
    let path = common::file(&format!("sum-{}", content.len()), content);
    let output = std::process::Command::new("md5sum").arg(path).output().expect("md5sum");
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a sum").to_string()
}

fn text(mut file: &File) -> String {
    let mut text = String::new();
    file.rewind().expect("a file");
    file.read_to_string(&mut text).expect("text");
    text
}

/// Streams in and out with their ends; what was written last is there.
fn streams(cpus: u32, clock: ClockMode) -> String {
    let input = scratch("in", &vec![b'x'; 1_234_567]);
    let [out, count, facts] = ["out", "count", "facts"].map(|name| scratch(name, b""));
    let ports = vec![
        port("in", Some(&input), None),
        port("out", None, Some(&out)),
        port("count", None, Some(&count)),
        port("facts", None, Some(&facts)),
    ];
    let console = run("ports", cpus, clock, DeviceConfig { ports, ..DeviceConfig::default() });
    assert_eq!(text(&count).trim(), "1234567", "{console}");
    let lines: Vec<_> = (1..=200_000).map(|n| n.to_string()).chain(["end".into()]).collect();
    let got = text(&out);
    assert!(got.lines().eq(lines.iter().map(String::as_str)), "{} bytes came", got.len());
    assert_ne!(text(&facts).trim(), "0", "interrupts came");
    console
}

#[test]
fn ports_are_streams_with_ends() {
    streams(2, ClockMode::Real);
}

#[test]
fn under_virtual_time_ports_are_the_same_every_time() {
    let console = streams(1, ClockMode::VIRTUAL);
    assert_eq!(console, streams(1, ClockMode::VIRTUAL));
}

#[test]
fn a_slow_reader_makes_the_guest_wait_and_loses_nothing() {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 8192];
        while let Ok(count @ 1..) = ours.read(&mut piece) {
            all.extend_from_slice(&piece[..count]);
            if all.len() < 200_000 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        all
    });
    let null = File::open("/dev/null").expect("the null device");
    let ports = vec![
        port("in", Some(&null), None),
        Port { name: "out".into(), console: false, input: None, output: Some(theirs.into()) },
    ];
    run("ports", 1, ClockMode::Real, DeviceConfig { ports, ..DeviceConfig::default() });
    // The device still has its descriptor: what came is what was sent before the run ended.
    let all = String::from_utf8(reader.join().expect("the reader")).expect("text");
    assert!(all.ends_with("200000\nend\n"), "{} bytes came", all.len());
}

#[test]
fn a_device_that_is_removed_and_found_again_works_on() {
    let out = scratch("unplugged", b"");
    let ports = vec![port("out", None, Some(&out))];
    run("unplugged", 1, ClockMode::Real, DeviceConfig { ports, ..DeviceConfig::default() });
    assert_eq!(text(&out), "one\ntwo\n");
}

#[test]
fn a_folder_is_read_through_a_server_also_by_a_driver_that_comes_back() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let server = std::thread::spawn(move || server::serve(theirs));
    let stop = ours.try_clone().expect("a descriptor");
    let shares = vec![Share { tag: "files".into(), dialect: Dialect::Fuse, socket: ours }];
    let console = run("share", 2, ClockMode::Real, DeviceConfig { shares, ..DeviceConfig::default() });
    assert_eq!(console.matches("hello from the host").count(), 2, "{console}");
    assert!(console.contains(&sum(&server::content(1))), "{console}");
    stop.shutdown(std::net::Shutdown::Both).expect("shutdown");
    server.join().expect("the server");
}

#[test]
fn disks_keep_what_was_flushed_and_snapshots_and_readonly_ones_nothing() {
    let kernel = common::fetch(&["kernel", "6.1"]);
    let modules = common::drivers::modules(Path::new(&kernel));
    let programs: Vec<_> = modules.iter().map(|(name, file)| (name.as_str(), file.as_slice())).collect();
    let busybox = std::fs::read(common::fetch(&["busybox"])).expect("busybox");
    let initrd = satori::initramfs::build(&busybox, include_str!("guest.sh"), &programs);
    let initrd = common::file("disks.cpio", &initrd);
    let mut before = server::content(1);
    before.resize(16 << 20, 7);
    let [written, readonly, snapshot] =
        ["written.img", "readonly.img", "snapshot.img"].map(|name| common::file(name, &before));
    let disks =
        [format!("{written},serial=S-7"), format!("{readonly},readonly"), format!("{snapshot},snapshot")];
    let mut arguments = vec!["run", "--kernel", &kernel, "--initrd", &initrd, "--cpus", "2", "--rng"];
    arguments.extend(["--append", "panic=-1 satori.do=disks", "--timeout", "4m", "--report", "off"]);
    disks.iter().for_each(|disk| arguments.extend(["--disk", disk]));
    let ended = common::satori(&arguments);
    assert_eq!(ended.status, 0, "{ended:?}");
    let said = |text: &str| assert!(ended.console.contains(text), "no '{text}': {}", ended.console);
    assert!(!ended.console.contains("BAD"), "{}", ended.console);
    said("serial S-7 sectors 32768 readonly 1");
    said("entropy virtio_rng.0 64");
    said("lost");
    let text: Vec<u8> = b"acknowledged\n".iter().copied().cycle().take(3_000_000).collect();
    let mut after = before.clone();
    after[409_600..3_409_600].copy_from_slice(&text);
    said(&sum(&after[409_600..460_800]));
    said(&sum(&after));
    after[4 << 20..5 << 20].fill(0);
    let read = |path: &str| std::fs::read(path).expect("an image");
    let mut image = read(&written);
    // What was given up is gone, or kept by a file system that cannot.
    let given_up = &mut image[8 << 20..9 << 20];
    assert!(given_up.iter().all(|byte| *byte == 0) || *given_up == after[8 << 20..9 << 20]);
    given_up.copy_from_slice(&after[8 << 20..9 << 20]);
    assert!(image == after, "what was flushed is in the image");
    assert!(read(&readonly) == before && read(&snapshot) == before);
}

#[test]
fn a_share_is_refused_where_runs_have_to_be_the_same() {
    let (socket, _theirs) = UnixStream::pair().expect("a pair");
    let shares = vec![Share { tag: "files".into(), dialect: Dialect::Fuse, socket }];
    let devices = Devices::new(DeviceConfig { shares, ..DeviceConfig::default() }).expect("devices");
    let kernel = std::fs::read(common::fetch(&["kernel", "6.12"])).expect("the kernel");
    let config = Config { kernel, clock: ClockMode::VIRTUAL, devices, ..Config::default() };
    let sinks = Sinks { console: Box::new(Console::default()), debugcon: None, code: None };
    let refused = Machine::new(config, sinks).err().expect("refused").to_string();
    assert!(refused.contains("--clock virtual") && refused.contains("files"), "{refused}");
}
