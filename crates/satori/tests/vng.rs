//! virtme-ng as it comes from PyPI, on Satori in QEMU's place, and folders by 9P, which it asks for.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use common::{Ended, SATORI, fetch, satori, scratch};
use satori::debian::cache::{self, Wanted};

/// What the gate runs it in: a version that is known to ask for what it asked for when this was written.
const VIRTME_NG: &str = "virtme-ng==1.42";

/// Modules of Debian's usual kernel that lead to a folder by 9P, and to what virtme-ng looks for beside it.
const MODULES: &[&str] = &[
    "drivers/virtio",
    "drivers/char/virtio_console.ko",
    "net/9p",
    "fs/9p",
    "fs/netfs",
    "fs/fscache",
    "fs/fuse",
    // For /etc and its like, which the guest may change while the host keeps its own.
    "fs/overlayfs",
];

/// Debian's usual kernel, as clouds' has no 9P: a folder with the kernel and these modules beneath lib/modules.
fn kernel() -> &'static (PathBuf, PathBuf) {
    static PLACE: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PLACE.get_or_init(|| {
        let cloud = fetch(&["kernel", "6.1"]);
        let (name, _) = Path::new(&cloud).file_name().unwrap().to_str().unwrap().split_once('_').unwrap();
        let name = name.replace("-cloud", "");
        let tree = cache::get(Wanted::Package(&name), false).unwrap_or_else(|why| panic!("{name}: {why:#}"));
        let release = name.strip_prefix("linux-image-").unwrap();
        let place = scratch("kernel");
        let _ = fs::remove_dir_all(&place);
        let (from, to) = (tree.join("lib/modules").join(release), place.join("lib/modules").join(release));
        fs::create_dir_all(place.join("boot")).unwrap();
        fs::create_dir_all(&to).unwrap();
        for file in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        for path in MODULES {
            let (from, to) = (from.join("kernel").join(path), to.join("kernel").join(path));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let copied = Command::new("cp").arg("-r").arg(&from).arg(&to).status().unwrap();
            assert!(copied.success(), "{}", from.display());
        }
        let image = place.join("boot").join(format!("vmlinuz-{release}"));
        fs::copy(tree.join("boot").join(format!("vmlinuz-{release}")), &image).unwrap();
        (image, place.join("lib/modules").join(release))
    })
}

#[test]
fn a_folder_by_9p_is_read_and_changed_by_linux() {
    let (image, modules) = kernel();
    let share = scratch("shared");
    let _ = fs::remove_dir_all(&share);
    fs::create_dir_all(share.join("d")).unwrap();
    let large: Vec<u8> = (0..2_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(share.join("large"), &large).unwrap();
    (0..500).for_each(|i| fs::write(share.join(format!("d/{i}")), i.to_string()).unwrap());
    let sum = Command::new("cksum").arg(share.join("large")).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap().split_whitespace().next().unwrap().to_owned();
    let script = "
        set -e
        mkdir /run/m /run/r
        mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 it /run/m
        mount -t 9p -o trans=virtio,version=9p2000.L same /run/r
        cd /run/m
        cksum < large | cut -d' ' -f1
        ls d | wc -l; cat d/123; echo
        printf one > new; printf two >> new; cat new; echo
        mkdir e; mv new e/moved; ln e/moved e/second; ln -s moved e/link; cat e/link; echo
        stat -c '%h %s' e/second
        chmod 4711 e/second; touch -d '2001-02-03 04:05:06 UTC' e/second; stat -c '%a %Y' e/moved
        exec 5< e/moved; rm e/moved e/second; cat <&5; echo
        truncate -s 100000 large; cp large copy; cmp large copy; rm -r d
        sh -c 'exec 3> e/lock; flock 3; echo locked'
        cp /bin/ls e/ls; ./e/ls e
        ! touch /run/r/no 2> /dev/null
        mount -o remount,rw /run/r; ! touch /run/r/no 2> /dev/null
        df -P . | tail -1 | cut -d' ' -f1
    ";
    let shares = [format!("{}:it,rw,9p", share.display()), format!("{}:same,9p", share.display())];
    let ended = satori(&[
        "run",
        "--kernel",
        image.to_str().unwrap(),
        "--modules",
        modules.to_str().unwrap(),
        "--timeout",
        "5m",
        "--user",
        "root",
        "--share",
        &shares[0],
        "--share",
        &shares[1],
        "--",
        "sh",
        "-c",
        script,
    ]);
    let wanted =
        format!("{sum}\n500\n123\nonetwo\nonetwo\n2 6\n4711 981173106\nonetwo\nlocked\nlink\nlock\nls\nit\n");
    assert_eq!((ended.console.as_str(), ended.status), (wanted.as_str(), 0), "{}", ended.messages);
    let mut names: Vec<_> = fs::read_dir(&share).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["copy", "e", "large"]);
    assert_eq!(fs::read(share.join("copy")).unwrap(), large[..100_000]);
}

/// virtme-ng in a folder of its own, or nothing where PyPI cannot be reached.
fn virtme_ng() -> Option<&'static Path> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let place = scratch("venv");
        if !place.join("bin/vng").exists() {
            let _ = fs::remove_dir_all(&place);
            let run = |program: &Path, words: &[&str]| -> Ended {
                let done = Command::new(program).args(words).output();
                done.unwrap_or_else(|why| panic!("{}: {why}", program.display())).into()
            };
            let made = run("python3".as_ref(), &["-m", "venv", place.to_str().unwrap()]);
            assert_eq!(made.status, 0, "python3 and its module venv are needed: {}", made.messages);
            let installed = run(&place.join("bin/pip"), &["install", "--quiet", VIRTME_NG]);
            if installed.status != 0 {
                eprintln!("{VIRTME_NG} is not to be had: {}", installed.messages);
                return None;
            }
        }
        symlink_anew(SATORI.as_ref(), &place.join("bin/qemu-system-x86_64"));
        Some(place)
    });
    place.as_deref()
}

fn symlink_anew(to: &Path, at: &Path) {
    let _ = fs::remove_file(at);
    symlink(to, at).unwrap();
}

/// `vng` with these words, with Satori found in PATH; nothing where there is no `vng`.
fn vng(words: &[&str]) -> Option<Command> {
    let bin = virtme_ng()?.join("bin");
    // All that it starts is in one group, which a guest that hangs ends with.
    let mut command = Command::new("timeout");
    command
        .arg("600")
        .arg(bin.join("vng"))
        .arg("--run")
        .arg(&kernel().0)
        .arg("--force-9p")
        .arg("--busybox")
        .arg(fetch(&["busybox"]))
        .args(words);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).unwrap();
    command.env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

#[test]
fn virtme_ng_runs_a_command_on_the_hosts_files() {
    let work = scratch("work");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).unwrap();
    fs::write(work.join("file"), "of the host\n").unwrap();
    let script = "cat file; uname -r; echo changed > /etc/satori-was-here && cat /etc/satori-was-here; echo told >&2; exit 7";
    let Some(mut vng) = vng(&["--", script]) else {
        eprintln!("not run: PyPI cannot be reached");
        return;
    };
    let ended: Ended = vng.current_dir(&work).stdin(Stdio::null()).output().expect("vng runs").into();
    let release = kernel().1.file_name().unwrap().to_str().unwrap();
    let wanted = format!("of the host\n{release}\nchanged\n");
    assert_eq!((ended.console.as_str(), ended.status), (wanted.as_str(), 7), "{}", ended.messages);
    assert!(ended.messages.lines().any(|line| line.trim() == "told"), "{}", ended.messages);
    assert!(!Path::new("/etc/satori-was-here").exists());
}
