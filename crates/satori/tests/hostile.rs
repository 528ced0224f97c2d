//! Bare-metal guests that do with devices what no driver does, and what the host finds behind them.
//!
//! They are representatives of what `fuzz/` tries at length: queues, PCI space, the file server, the user network, images.

mod common;

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::bare::{passes, passes_as, program, run};
use common::{satori, scratch};
use satori_machine::image::testing::qcow2;

/// Bytes of a disk.
const DISK: usize = 1 << 20;

/// A disk for a guest that breaks what it can.
fn disk(name: &str) -> String {
    common::file(name, &vec![0; DISK])
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A mistake of a guest's is told, and not as often as it is made.
fn told_a_few_times(messages: &str, device: &str) {
    let count = messages.lines().filter(|line| line.contains(&format!("virtio {device}:"))).count();
    assert!((1..=10).contains(&count), "{count} lines tell of {device}:\n{messages}");
    assert!(!messages.contains("panicked"), "{messages}");
}

#[test]
fn queues_and_registers_of_every_device() {
    let (disk, share, socket) = (disk("queues"), folder("queues-share"), scratch("queues.sock"));
    let _ = fs::remove_file(&socket);
    let (rw, ro) = (format!("{}:a,rw", share.display()), format!("{}:b,ro,9p", share.display()));
    let socket = socket.to_str().unwrap();
    let several: &[&str] =
        &["--rng", "--net", "user", "--balloon", "--share", &rw, "--share", &ro, "--vsock", socket];
    let limit = ["--timeout", "4m", "--disk", &disk];
    let ended = run("virtio", 2, "", &[&limit[..], several].concat());
    let last = ended.console.lines().last().unwrap_or_default();
    assert!(ended.status == 1 && last.ends_with(" 0 failed"), "{}\n{}", ended.console, ended.messages);
    told_a_few_times(&ended.messages, "disk");
    assert_eq!(fs::read_dir(&share).unwrap().count(), 0);
    // Once more on threads of others, and where everything is done at the doorbell.
    passes("virtio", 2, &["--disk", &disk, "--rng", "--io-threads", "2"]);
    let image = common::file("queues.qcow2", &qcow2(DISK as u64, 9, None));
    passes("virtio", 1, &["--disk", &format!("{image},format=qcow2"), "--engine", "interpreter"]);
    for cpus in [1, 2] {
        let devices = ["--disk", &disk, "--rng", "--balloon", "--clock", "virtual"];
        passes_as("virtio", cpus, "few=yes", &devices);
    }
}

/// As docs/clock.md states them: what a disk's requests take, in a run that repeats byte for byte.
#[test]
fn a_disks_answers_come_at_stated_times_of_a_virtual_clock() {
    let image = common::file("delays.qcow2", &qcow2(DISK as u64, 9, None));
    let option = format!("{image},format=qcow2,snapshot");
    for (cpus, engine) in [(1, "translator"), (2, "translator"), (1, "interpreter")] {
        let once = |report: &str| {
            let report = scratch(report);
            let limit = ["--clock", "virtual", "--engine", engine, "--timeout", "2m", "--disk", &option];
            let told = ["--report", "json", "--report-file", report.to_str().unwrap()];
            let ended = run("virtio", cpus, "only=delays delays=yes", &[&limit[..], &told].concat());
            assert_eq!(ended.status, 1, "{ended:?}");
            let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
            (ended.console, report["all"].clone(), report["guest"].clone())
        };
        let (first, second) = (once("delays-1.json"), once("delays-2.json"));
        assert_eq!(first, second);
        let took = |name: &str| {
            let found = first.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" took "));
            found.and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or_else(|| panic!("{}", first.0))
        };
        // A turn of a vCPU may end some microseconds behind a request's time.
        let flush = took("flush") / 1_000_000.0;
        for (name, nanoseconds) in [("read", 100_529.0), ("page", 104_113.0)] {
            let got = took(name) / flush;
            assert!((got - nanoseconds).abs() < 12_000.0, "{engine}: {name} took {got} ns: {}", first.0);
        }
        assert!((0.9..10.0).contains(&flush), "{flush} ticks a nanosecond");
    }
}

#[test]
fn queues_of_a_console_with_ports() {
    let (disk, out) = (disk("ports"), scratch("ports.out"));
    let kernel = program("virtio");
    let (drive, port) =
        (format!("file={disk},if=none,id=d,format=raw"), format!("file,id=c,path={}", out.display()));
    let words = [
        "qemu",
        "-kernel",
        kernel.to_str().unwrap(),
        "-m",
        "128",
        "-smp",
        "2",
        "-append",
        "virtio cpus=2",
        "-nodefaults",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=4",
        "-drive",
        &drive,
        "-device",
        "virtio-blk-pci,drive=d",
        "-device",
        "virtio-serial-pci",
        "-chardev",
        &port,
        "-device",
        "virtserialport,chardev=c,name=port",
    ];
    let ended = satori(&words);
    assert!(ended.status == 1 && ended.console.contains(" passed, 0 failed"), "{ended:?}");
}

#[test]
fn configuration_space_and_messages() {
    let disk = disk("pci");
    let devices = ["--disk", &disk, "--rng", "--net", "user"];
    passes("pci", 1, &devices);
    passes("pci", 2, &devices);
    passes("pci", 2, &["--disk", &disk, "--rng", "--clock", "virtual"]);
    passes("pci", 2, &[&devices[..], &["--engine", "interpreter"]].concat());
}

/// A folder as the guest `folder` wants it, and what must not be seen beside it.
fn shared(name: &str) -> PathBuf {
    let outer = folder(name);
    let share = outer.join("share");
    fs::create_dir_all(share.join("dir")).unwrap();
    fs::create_dir(share.join("swap")).unwrap();
    fs::write(outer.join("secret"), "secret").unwrap();
    fs::write(share.join("file"), "inside").unwrap();
    symlink("..", share.join("up")).unwrap();
    symlink(&outer, share.join("away")).unwrap();
    symlink("circle", share.join("circle")).unwrap();
    outer
}

/// All names beneath a folder, and what is in its files.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        all.push((path.clone(), if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() }));
        if kind.is_dir() {
            all.append(&mut content(&path));
        }
    }
    all.sort();
    all
}

/// Makes the directory `swap` a link to its parent and a directory again, until it is over.
fn swap(share: &Path, over: &AtomicBool) {
    let (swap, kept) = (share.join("swap"), share.join(".kept"));
    while !over.load(Ordering::Relaxed) {
        fs::rename(&swap, &kept).unwrap();
        symlink("..", &swap).unwrap();
        std::thread::sleep(Duration::from_micros(500));
        fs::remove_file(&swap).unwrap();
        fs::rename(&kept, &swap).unwrap();
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn a_file_server_that_is_asked_for_what_is_outside() {
    for mode in ["ro", "cow", "rw"] {
        let outer = shared(&format!("outer-{mode}"));
        let share = outer.join("share");
        let before = content(&outer);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&share, &over));
            let option = format!("{}:x,{mode}", share.display());
            let words = format!("mode={mode} swap=yes");
            let ended = run("folder", 2, &words, &["--timeout", "4m", "--share", &option]);
            over.store(true, Ordering::Relaxed);
            let last = ended.console.lines().last().unwrap_or_default();
            assert!(
                ended.status == 1 && last.ends_with(" 0 failed"),
                "{}\n{}",
                ended.console,
                ended.messages
            );
        });
        if mode == "rw" {
            let names: Vec<_> =
                fs::read_dir(&outer).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(names.len() == 2, "beside the folder: {names:?}");
            assert_eq!(fs::read(outer.join("secret")).unwrap(), b"secret");
        } else {
            assert_eq!(content(&outer), before, "{mode}");
        }
        fs::remove_dir_all(outer).unwrap();
    }
}

#[test]
fn a_network_that_is_sent_anything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind(("127.0.0.1", port)).ok();
    listener.set_nonblocking(true).unwrap();
    passes_as("network", 1, &format!("closed={port}"), &["--net", "user"]);
    passes_as("network", 1, &format!("closed={port} only=closed_addresses"), &["--net", "user,restrict"]);
    assert_eq!(
        listener.accept().map(|(_, from)| from).map_err(|error| error.kind()),
        Err(ErrorKind::WouldBlock)
    );
    if let Some(socket) = datagrams {
        socket.set_nonblocking(true).unwrap();
        assert_eq!(socket.recv(&mut [0; 64]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    }
}

/// A number that looks random, of an earlier one (a step of a linear congruential generator).
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Tables of an image: what they are, where entries are, and what may stand there instead.
#[test]
fn images_whose_tables_say_anything() {
    const CLUSTER: usize = 512;
    let whole = common::file("image.qcow2", &qcow2(DISK as u64, 9, None));
    let words = |image: &str| ["--disk".to_owned(), format!("{image},format=qcow2")];
    let go = |image: &str, words_: &str| {
        let disk = words(image);
        let arguments = ["--timeout", "2m", disk[0].as_str(), disk[1].as_str()];
        run("image", 1, words_, &arguments)
    };
    let ended = go(&whole, "whole=yes");
    assert_eq!(ended.status, 1, "{ended:?}");
    let good = fs::read(&whole).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let (first, counts) = (word(&good, 40) as usize, word(&good, 48) as usize);
    let second = (word(&good, first) & 0x00ff_ffff_ffff_fe00) as usize;
    let end = good.len() as u64;
    let (mut random, mut opened) = (7, 0);
    for round in 0..24 {
        let mut bytes = good.clone();
        for _ in 0..=next(&mut random) % 8 {
            let table = [first, counts, second][next(&mut random) as usize % 3];
            let at = table + 8 * (next(&mut random) as usize % (CLUSTER / 8));
            let used = 1 << 63;
            let places = [
                0,
                1,
                used,
                used | first as u64,
                used | counts as u64,
                used | second as u64,
                used | (end + 512),
                used | (end - 512),
                used | 0x100,
                used | 0x00ff_ffff_ffff_fe00,
                u64::MAX,
                1 << 62,
                1 << 62 | 0x3fff << 46,
                used | 1 << 55,
                second as u64,
            ];
            let value = places[next(&mut random) as usize % places.len()];
            bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        }
        // Sometimes the header's own numbers: sizes of tables, version, feature bits.
        if round % 3 == 2 {
            let at = 4 + 4 * (next(&mut random) as usize % 25);
            bytes[at..at + 4].copy_from_slice(&(next(&mut random) as u32).to_be_bytes());
        }
        let image = common::file("broken.qcow2", &bytes);
        let ended = go(&image, "");
        assert!(!ended.messages.contains("panicked"), "round {round}: {}", ended.messages);
        match ended.status {
            1 => opened += 1,
            // Refused before the guest began: nothing was changed, and it is said why.
            2 => assert!(
                ended.messages.contains("broken.qcow2") && fs::read(&image).unwrap() == bytes,
                "{ended:?}"
            ),
            _ => panic!("round {round}: {ended:?}"),
        }
    }
    assert!(opened > 3, "{opened} images were opened");
}
