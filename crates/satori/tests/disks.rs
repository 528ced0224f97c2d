//! Disks under Debian's kernels: images in both formats, and what of a guest's records outlives a monitor that is killed.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use satori_machine::image::{Access, Cache, Format, Image, Source, testing};

use common::{SATORI, fetch, satori, scratch};

const BYTES: u64 = 8 << 20;
/// Blocks of 4 KiB that records are written to.
const SLOTS: u64 = BYTES / 4096;

/// Writes records to /dev/vda and /dev/vdb at random places, and tells of each behind its flush.
const RECORDS: &str = r#"use IO::Handle; $| = 1; srand(7);
for my $disk ("a", "b") { open($d{$disk}, "+<:raw", "/dev/vd$disk") or die "$disk: $!" }
for (my $n = 1; ; $n++) {
    for my $disk ("a", "b") {
        my $slot = int(rand(2048)); my $f = $d{$disk};
        sysseek($f, $slot * 4096, 0); syswrite($f, pack("Q<", $n) x 512) == 4096 or die "write: $!";
        print "w $disk $slot $n\n"; $f->sync or die "sync: $!"; print "f $disk $slot $n\n";
    }
}"#;

fn open(path: &Path, format: Format) -> Image {
    let file = File::open(path).expect("an image");
    let here = path.parent().map(Path::to_path_buf);
    let name = path.display().to_string();
    Image::open(Source { name, file, format, access: Access::ReadOnly, here, backing: None })
        .expect("an image")
}

fn all(path: &Path, format: Format) -> Vec<u8> {
    let image = open(path, format);
    let mut bytes = vec![0; image.bytes() as usize];
    image.read(0, &mut bytes).expect("it is read");
    bytes
}

/// No references to clusters that count as free, by our own look and by qemu-img's, where it is installed.
fn whole(path: &Path) {
    assert_eq!(testing::faults(&fs::read(path).unwrap()), Vec::<String>::new());
    if let Ok(output) = Command::new("qemu-img").args(["check", "-f", "qcow2"]).arg(path).output() {
        // 3 is lost room, which a process that is killed may leave.
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    }
}

fn blank(name: &str, bits: u32) -> (PathBuf, PathBuf) {
    let (raw, qcow2) = (scratch(&format!("{name}.raw")), scratch(&format!("{name}.qcow2")));
    fs::write(&raw, vec![0; BYTES as usize]).unwrap();
    fs::write(&qcow2, testing::qcow2(BYTES, bits, None)).unwrap();
    (raw, qcow2)
}

/// Runs the guest of records, kills its monitor `after` its first record was flushed, and looks for all of them.
fn killed(name: &str, after: Duration, bits: u32) {
    let kernel = fetch(&["kernel", "6.12"]);
    let (raw, qcow2) = blank(name, bits);
    let mut command = Command::new(SATORI);
    command.args(["run", "--kernel", &kernel, "--timeout", "5m", "--disk"]).arg(&raw).arg("--disk");
    command.arg(format!("{},format=qcow2", qcow2.display())).args(["--", "perl", "-e", RECORDS]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("satori runs");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with('f'));
    std::thread::sleep(after);
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    // What each block may hold: what was flushed last, and what was written behind it.
    let mut may: BTreeMap<(char, u64), (u64, Vec<u64>)> = BTreeMap::new();
    let mut flushed = 0;
    // The last line may be cut.
    for line in first.into_iter().chain(lines.map_while(Result::ok)) {
        let words: Vec<_> = line.split(' ').collect();
        let [kind, disk, slot, number] = words[..] else { continue };
        let (Ok(slot), Ok(number)) = (slot.parse(), number.parse()) else { continue };
        let record = may.entry((disk.chars().next().unwrap(), slot)).or_default();
        if kind == "w" {
            record.1.push(number);
        } else {
            flushed += 1;
            *record = (number, Vec::new());
        }
    }
    assert!(flushed > 0, "the guest wrote nothing");
    for (disk, bytes) in [('a', all(&raw, Format::Raw)), ('b', all(&qcow2, Format::Qcow2))] {
        for slot in 0..SLOTS {
            let Some((last, behind)) = may.get(&(disk, slot)) else { continue };
            let block = &bytes[slot as usize * 4096..][..4096];
            let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
            // A record that was not flushed may be there in part, and the next one may not have been told of.
            let known = |value: u64| value == *last || behind.contains(&value) || value > flushed / 2;
            assert!((0..4096).step_by(8).all(|at| known(word(at))), "{name}: {disk} {slot}: {last} is lost");
        }
    }
    whole(&qcow2);
    eprintln!("{name}: {flushed} records flushed, {:?} behind the first", after);
    let _ = (fs::remove_file(raw), fs::remove_file(qcow2));
}

#[test]
fn a_killed_monitor_loses_no_record_that_was_flushed() {
    killed("killed-0", Duration::from_millis(150), 16);
    killed("killed-1", Duration::from_millis(900), 9);
}

#[test]
#[ignore = "200 boots: the soak runs it"]
fn a_monitor_that_is_killed_200_times_loses_no_record_that_was_flushed() {
    let random = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0);
    println!("seed {random}");
    for number in 0..200u64 {
        let chosen =
            (random ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        killed(
            &format!("killed-{number}"),
            Duration::from_millis(chosen % 2000),
            [9, 12, 16, 21][chosen as usize % 4],
        );
    }
}

/// Disk and network by VMBus: what is flushed is the host's, and what the network brings the guest's.
#[test]
fn debian_has_disk_and_network_by_vmbus() {
    let kernel = fetch(&["kernel", "6.1"]);
    let (raw, _) = blank("vmbus", 16);
    fs::write(&raw, vec![0; BYTES as usize]).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut guest, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut guest, &vec![b'x'; 300_000]).unwrap();
    });
    let script = format!(
        "dmesg | grep -o 'Vmbus version:5.3\\|Shutdown IC version 3.2\\|Heartbeat IC version 3.0'; \
         grep -q HYP: /proc/interrupts && ls /sys/class/block/sda/device/driver && \
         printf by-vmbus | dd of=/dev/sda seek=3 conv=fsync 2>/dev/null && \
         bash -c 'cat </dev/tcp/10.0.2.2/{port}' | wc -c"
    );
    let disk = format!("{},bus=vmbus", raw.display());
    let options = ["--disk", disk.as_str(), "--net", "user,loopback,bus=vmbus", "--cpus", "2"];
    let run = ["run", "--kernel", kernel.as_str(), "--timeout", "5m"];
    let ended = satori(&[&run[..], &options, &["--", "sh", "-c", script.as_str()]].concat());
    let said = ["Vmbus version:5.3", "Shutdown IC version 3.2", "Heartbeat IC version 3.0", "300000"];
    assert!(ended.status == 0 && said.iter().all(|line| ended.console.contains(line)), "{ended:?}");
    assert_eq!(&fs::read(&raw).unwrap()[3 * 512..3 * 512 + 8], b"by-vmbus");
    server.join().unwrap();
}

/// A file system on a qcow2 image that stands on a raw one: written, given up, and whole behind a power-off.
#[test]
fn debian_keeps_a_file_system_on_a_qcow2_image() {
    let kernel = fetch(&["kernel", "6.12"]);
    let (raw, qcow2) = blank("kept", 16);
    let name = raw.file_name().unwrap().to_str().unwrap();
    let before = [&[7u8; 4096][..], &vec![0; BYTES as usize - 4096]].concat();
    fs::write(&raw, &before).unwrap();
    fs::write(&qcow2, testing::qcow2(BYTES, 16, Some((name, "raw")))).unwrap();
    let run = |script: &str, options: &str| {
        let disk = format!("{},format=qcow2{options}", qcow2.display());
        satori(&["run", "--kernel", &kernel, "--timeout", "5m", "--disk", &disk, "--", "sh", "-c", script])
    };
    let ended = run(
        "od -An -tu1 -N2 /dev/vda; mke2fs -q -F -t ext4 /dev/vda && mount /dev/vda /mnt && \
         seq 100000 >/mnt/numbers && rm -f /mnt/gone && fstrim /mnt && umount /mnt && echo kept",
        "",
    );
    assert!(
        ended.status == 0 && ended.console.contains("7   7") && ended.console.contains("kept"),
        "{ended:?}"
    );
    whole(&qcow2);
    let kept = fs::read(&qcow2).unwrap();
    let sum = "mount -o ro,noload /dev/vda /mnt && tail -n 1 /mnt/numbers";
    for options in [",readonly", ",snapshot"] {
        let ended = run(sum, options);
        assert!(ended.status == 0 && ended.console == "100000\n", "{ended:?}");
    }
    assert!(
        fs::read(&qcow2).unwrap() == kept && fs::read(&raw).unwrap() == before,
        "only its own file changes"
    );
    let ended = run("e2fsck -fn /dev/vda >/dev/null && echo clean", "");
    assert!(ended.console.contains("clean"), "{ended:?}");
}

/// What a guest is told of a disk's cache, and what it wrote by each of the ways.
#[test]
fn a_disks_cache_is_as_it_is_asked_for() {
    let kernel = fetch(&["kernel", "6.12"]);
    let (mut options, mut images) = (Vec::new(), Vec::new());
    for cache in Cache::ALL {
        for format in ["raw", "qcow2"] {
            let path = scratch(&format!("cache-{}.{format}", cache.name()));
            let bytes = if format == "raw" { vec![0; 8 << 20] } else { testing::qcow2(8 << 20, 16, None) };
            fs::write(&path, bytes).unwrap();
            options.extend([
                "--disk".into(),
                format!("{},format={format},cache={}", path.display(), cache.name()),
            ]);
            images.push((path, format));
        }
    }
    let script = "for n in a b c d e f g h i j; do
        cat /sys/block/vd$n/queue/write_cache
        { echo begin of $n; seq 200000; } | dd of=/dev/vd$n bs=1M iflag=fullblock conv=notrunc 2>/dev/null
        echo part | dd of=/dev/vd$n bs=512 seek=4001 conv=sync,notrunc oflag=direct 2>/dev/null
        blkdiscard -z -o 4194304 -l 65536 /dev/vd$n
        done; echo 3 > /proc/sys/vm/drop_caches; for n in a b c d e f g h i j; do head -n 1 /dev/vd$n; done";
    let run = ["run", "--kernel", &kernel, "--timeout", "5m", "--user", "root"];
    let words: Vec<_> = run.iter().map(|word| word.to_string()).chain(options).collect();
    let words: Vec<_> = words.iter().map(String::as_str).chain(["--", "sh", "-c", script]).collect();
    let ended = satori(&words);
    let told = |cache: Cache| match cache {
        Cache::Writethrough | Cache::Directsync => "write through\n",
        _ => "write back\n",
    };
    let told = Cache::ALL.into_iter().flat_map(|cache| [told(cache); 2]).collect::<String>();
    let seen = "abcdefghij".chars().map(|n| format!("begin of {n}\n")).collect::<String>();
    let direct = ended.messages.contains("has no direct access");
    if direct {
        eprintln!("not tried: {}", ended.messages);
        return;
    }
    assert_eq!((ended.console, ended.status), (format!("{told}{seen}"), 0), "{}", ended.messages);
    for (path, format) in images {
        let format = if format == "raw" {
            Format::Raw
        } else {
            whole(&path);
            Format::Qcow2
        };
        let bytes = all(&path, format);
        assert!(
            bytes.starts_with(b"begin of ") && bytes[4001 * 512..].starts_with(b"part\n"),
            "{}",
            path.display()
        );
    }
}

/// A guest with a disk gets SIGTERM as its power button, and may tidy up; a second one ends it.
#[test]
fn a_signal_presses_the_power_button_of_a_guest_with_a_disk() {
    let kernel = fetch(&["kernel", "6.12"]);
    let made = scratch("button.cpio");
    let script = "exec 5< /dev/input/event0; cat <&5 > /event & echo ready
        while ! [ -s /event ]; do sleep 0.1; done
        echo pressed; read word; [ \"$word\" = off ] && poweroff -f; sleep 1000";
    let initrd = [
        "initrd",
        "--busybox",
        "--kernel",
        "6.12",
        "--module",
        "button",
        "--module",
        "evdev",
        "--run",
        script,
        "-o",
    ];
    let packed = satori(&[&initrd[..], &[made.to_str().unwrap()]].concat());
    assert_eq!(packed.status, 0, "{}", packed.messages);
    let disk = common::file("button.raw", &[0; 1 << 20]);
    for (word, status) in [("off\n", 0), ("stay\n", 130)] {
        let mut command = Command::new(SATORI);
        command.args(["run", "--kernel", &kernel, "--initrd", made.to_str().unwrap(), "--disk", &disk]);
        command.args(["--report", "off", "--timeout", "5m"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("satori runs");
        let mut console = child.stdout.take().unwrap();
        let id = child.id() as i32;
        let term = || {
            // SAFETY: our own child's number.
            assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
        };
        common::read_until(&mut console, "ready");
        term();
        common::read_until(&mut console, "pressed");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), word.as_bytes()).unwrap();
        if status != 0 {
            term();
        }
        assert_eq!(child.wait().unwrap().code(), Some(status), "{word}");
    }
}
