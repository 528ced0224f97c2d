//! Threads that do devices' work: how many there are, where they run, and that the work is really theirs.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use satori_machine::host_processors;

use common::{SATORI, fetch, satori, scratch};

/// Bytes that the guest writes to each disk.
const WRITTEN: u64 = 4 << 20;

/// Writes to both disks past its own cache, tells of it, and waits for its input to end.
const GUEST: &str = "for disk in /dev/vd?; do \
    dd if=/dev/zero of=$disk bs=64k count=64 oflag=direct conv=fsync,notrunc 2>/dev/null; done; echo done; cat";

/// A thread of a process: its name, where it may run, and the bytes that it wrote.
#[derive(Debug)]
struct Thread {
    name: String,
    cpus: String,
    wrote: u64,
}

fn threads(child: &Child) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).expect("threads");
    let one = |task: std::io::Result<fs::DirEntry>| {
        let at = task.ok()?.path();
        let value = |file: &str, name: &str| {
            let text = fs::read_to_string(at.join(file)).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?.to_owned();
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let wrote = value("io", "wchar").and_then(|text| text.parse().ok()).unwrap_or_default();
        Some(Thread { name: value("status", "Name")?, cpus: value("status", "Cpus_allowed_list")?, wrote })
    };
    tasks.filter_map(one).collect()
}

/// The threads of a run with two disks and these `words`, once the guest has written to both.
fn of(name: &str, words: &[&str]) -> Vec<Thread> {
    let kernel = if words.contains(&"arm64") { "6.1".into() } else { fetch(&["kernel", "6.12"]) };
    let disks = ["a", "b"].map(|disk| scratch(&format!("io-threads-{name}-{disk}")));
    let mut command = Command::new(SATORI);
    // Reading what a thread of another process wrote needs what the sandbox takes away.
    command.args(["run", "--kernel", &kernel, "--timeout", "5m", "--sandbox", "off"]).args(words);
    for disk in &disks {
        fs::write(disk, vec![1; WRITTEN as usize]).unwrap();
        command.arg("--disk").arg(disk);
    }
    command.args(["--", "sh", "-c", GUEST]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("satori runs");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "done", "{name}");
    let threads = threads(&child);
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success(), "{name}");
    for disk in disks {
        assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 0), "{name}: not all was written");
        fs::remove_file(disk).unwrap();
    }
    threads
}

fn named<'a>(all: &'a [Thread], name: &str) -> Vec<&'a Thread> {
    all.iter().filter(|thread| thread.name == name).collect()
}

#[test]
fn disks_share_a_thread_that_stays_where_it_was_pinned() {
    let here = host_processors();
    let last = here.last().unwrap().to_string();
    let all = of("shared", &["--io-threads", &format!("1,cpus={last}")]);
    let disks = named(&all, "disk");
    let [disk] = disks[..] else { panic!("{all:?}") };
    assert_eq!(disk.cpus, last, "{all:?}");
    assert!(disk.wrote >= 2 * WRITTEN, "it wrote {} of {}: {all:?}", disk.wrote, 2 * WRITTEN);
    // A folder's thread runs there as well, a vCPU's where it likes.
    assert!(named(&all, "share").iter().all(|thread| thread.cpus == last), "{all:?}");
    assert!(here.len() == 1 || named(&all, "vcpu0").iter().all(|thread| thread.cpus != last), "{all:?}");

    let all = of("own", &[]);
    let disks = named(&all, "disk");
    assert!(disks.len() == 2 && disks.iter().all(|disk| disk.wrote >= WRITTEN), "{all:?}");
}

#[test]
fn a_domain_names_threads_and_pins_them() {
    let last = host_processors().last().unwrap().to_string();
    let disk = scratch("io-threads-domain");
    fs::write(&disk, vec![1; WRITTEN as usize]).unwrap();
    let xml = scratch("io-threads.xml");
    let text = format!(
        "<domain><iothreads>2</iothreads><memory unit='MiB'>512</memory><cputune><vcpupin vcpu='0' cpuset='{last}'/>
         <iothreadpin iothread='2' cpuset='{last}'/></cputune><devices><disk type='file' device='disk'>
         <driver name='qemu' type='raw' iothread='2'/><source file='{}'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
        disk.display()
    );
    fs::write(&xml, text).unwrap();
    let all = of("domain", &["--libvirt", xml.to_str().unwrap()]);
    // The file's disk comes first and has the second thread; what the options name, shares in turn.
    let disks = named(&all, "disk");
    let pinned: Vec<_> = disks.iter().filter(|thread| thread.cpus == last).collect();
    assert!(pinned.iter().any(|thread| thread.wrote >= WRITTEN), "{all:?}");
    // What is not pinned is not where the vCPU was that started it.
    let here = host_processors().len();
    assert!(here == 1 || named(&all, "port reader").iter().all(|thread| thread.cpus != last), "{all:?}");
    // The option goes before the file, and threads of devices run elsewhere.
    let first = host_processors().first().unwrap().to_string();
    let all = of("pinned", &["--libvirt", xml.to_str().unwrap(), "--pin", &first]);
    let vcpus = named(&all, "vcpu0");
    assert!(!vcpus.is_empty() && vcpus.iter().all(|thread| thread.cpus == first), "{all:?}");
    assert!(here == 1 || named(&all, "port reader").iter().all(|thread| thread.cpus != first), "{all:?}");
    let _ = (fs::remove_file(disk), fs::remove_file(xml));
}

#[test]
fn a_machine_of_arm_is_pinned_as_well() {
    let last = host_processors().last().unwrap().to_string();
    let all = of("arm", &["--arch", "arm64", "--cpus", "2", "--pin", &last]);
    for name in ["vcpu0", "vcpu1"] {
        let vcpus = named(&all, name);
        assert!(!vcpus.is_empty() && vcpus.iter().all(|thread| thread.cpus == last), "{all:?}");
    }
    let disks = named(&all, "disk");
    assert!(!disks.is_empty() && (last == "0" || disks.iter().all(|thread| thread.cpus != last)), "{all:?}");
}

#[test]
fn threads_that_cannot_be_had_are_refused() {
    let disk = scratch("io-threads-refused");
    fs::write(&disk, vec![1; 512]).unwrap();
    let third = format!("{},io-thread=3", disk.display());
    for (words, said) in [
        (&["--io-threads", "0"][..], "from 1 to 64"),
        (&["--io-threads", "1,cpus=x"], "such as 0, 0-3 or 0-1:4"),
        (&["--io-threads", "1,cpus=1023"], "may not use processor 1023"),
        (&["--io-threads", "2", "--disk", &third], "I/O thread 3, and there are 2"),
        (&["--disk", &third], "I/O thread 3, and there are 0"),
    ] {
        let kernel = fetch(&["kernel", "6.12"]);
        let ended = satori(&[&["run", "--kernel", &kernel], words, &["--", "true"]].concat());
        assert_eq!(ended.status, 2, "{ended:?}");
        assert!(ended.messages.contains(said) && ended.messages.lines().count() == 1, "{ended:?}");
    }
    fs::remove_file(disk).unwrap();
}
