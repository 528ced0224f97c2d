//! Programs of other people that boot without being Debian's usual kernels: memtest86+, a game of GRUB's, GRUB, which
//! then boots Linux, Xen, which does too, and Linux of 32 bits. They find what our own guests would not look for.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{SATORI, fetch, file, read_until, satori, scratch};
use satori::debian::cache::{self, Wanted};

/// Everything in a package of Debian's.
fn package(name: &str) -> PathBuf {
    cache::get(Wanted::Package(name), false).unwrap_or_else(|error| panic!("{name} is needed: {error:#}"))
}

/// Runs memtest86+ until its screen shows `text`, and gives what it showed.
fn memtest(cpus: &str, text: &str) -> String {
    let kernel = fetch(&["memtest"]);
    let arguments =
        ["run", "--kernel", &kernel, "-m", "128M", "--cpus", cpus, "--timeout", "5m", "--report", "off"];
    let mut child = Command::new(SATORI)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("satori runs");
    let screen = read_until(&mut child.stdout.take().expect("a pipe"), text);
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    assert!(screen.contains("Memtest86+ v6") && screen.contains("Memory  :  128MB"), "{screen}");
    for part in screen.split("Errors: ").skip(1) {
        assert!(part.starts_with("0 "), "memory is not what was written: {screen}");
    }
    screen
}

/// The name of tests 3 to 6. The screen shows what runs when it is drawn, and a fast engine is done with
/// some in between.
const FOURTH_OR_LATER: &str = "  [Moving inversions, ";

#[test]
fn memtest_finds_no_errors_on_one_vcpu() {
    memtest("1", FOURTH_OR_LATER);
}

#[test]
fn memtest_finds_no_errors_on_two_vcpus() {
    let screen = memtest("2", FOURTH_OR_LATER);
    assert!(screen.contains("CPU: 2 Cores") && screen.contains("SMP: 2T (PAR)"), "{screen}");
}

/// What coreboot leaves for GRUB at 0x500: a table of the memory map.
fn coreboot_table(memory: u64) -> Vec<u8> {
    let map: [(u64, u64, u32); 3] =
        [(0, 0x9_fc00, 1), (0x9_fc00, 0x6_0400, 2), (0x10_0000, memory - 0x11_0000, 1)];
    let mut records = [1_u32, 8 + 20 * map.len() as u32].map(u32::to_le_bytes).concat();
    for (start, len, kind) in map {
        records.extend(start.to_le_bytes());
        records.extend(len.to_le_bytes());
        records.extend(kind.to_le_bytes());
    }
    let words = |words: [u32; 5]| words.map(u32::to_le_bytes).concat();
    let len = records.len() as u32;
    let header = [&b"LBIO"[..], &words([24, 0, len, checksum(&records), 1])].concat();
    [&b"LBIO"[..], &words([24, checksum(&header), len, checksum(&records), 1]), &records].concat()
}

/// The Internet checksum, as coreboot has it.
fn checksum(bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks::<2>();
    let mut sum: u32 = words.iter().map(|word| u32::from(u16::from_le_bytes(*word))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum & 0xffff
}

/// Puts `table` into the ELF file `image` as the segment at 0x500, in the place of the header that
/// only says how the stack may be used.
fn with_segment(mut image: Vec<u8>, table: &[u8]) -> Vec<u8> {
    const PT_GNU_STACK: u32 = 0x6474_e551;
    let word = |image: &[u8], at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let headers = word(&image, 28) as usize;
    let at = (0..8).map(|index| headers + 32 * index).find(|&at| word(&image, at) == PT_GNU_STACK);
    let (at, end, len) = (at.expect("GRUB's own format"), image.len() as u32, table.len() as u32);
    let header = [1, end, 0x500, 0x500, len, len, 6, 8].map(u32::to_le_bytes).concat();
    image[at..at + header.len()].copy_from_slice(&header);
    image.extend_from_slice(table);
    image
}

/// GRUB for coreboot, a multiboot kernel, with `commands` and the files `inside` as its disk.
fn grub(name: &str, commands: &str, inside: &[(&str, &Path)]) -> String {
    let (modules, tools) = (package("grub-coreboot-bin"), package("grub-common"));
    let library = package("libdevmapper1.02.1");
    let disk = scratch(&format!("{name}-disk"));
    let _ = std::fs::remove_dir_all(&disk);
    std::fs::create_dir_all(&disk).unwrap();
    for (as_name, path) in inside {
        std::fs::copy(path, disk.join(as_name)).unwrap();
    }
    let (tar, image) = (scratch(&format!("{name}.tar")), scratch(&format!("{name}.img")));
    let archived = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&disk).arg(".").status();
    assert!(archived.is_ok_and(|status| status.success()));
    let made = Command::new(tools.join("usr/bin/grub-mkimage"))
        .env("LD_LIBRARY_PATH", library.join("lib/x86_64-linux-gnu"))
        .args(["--format", "i386-coreboot", "--prefix", "(memdisk)/", "--directory"])
        .arg(modules.join("usr/lib/grub/i386-coreboot"))
        .arg("--memdisk")
        .arg(&tar)
        .args(["--config", &file(&format!("{name}.cfg"), commands.as_bytes()), "--output"])
        .arg(&image)
        .args(["serial", "terminal", "echo", "linux", "memdisk", "tar", "lsmmap", "halt", "normal"])
        .status();
    assert!(made.is_ok_and(|status| status.success()), "grub-mkimage");
    let image = with_segment(std::fs::read(image).unwrap(), &coreboot_table(256 << 20));
    file(&format!("{name}.elf"), &image)
}

const SERIAL: &str = "serial --unit=0\nterminal_input serial\nterminal_output serial\n";

#[test]
fn grub_comes_to_its_prompt_by_multiboot() {
    let kernel = grub("prompt", &format!("{SERIAL}echo here is GRUB\nlsmmap\nnormal\n"), &[]);
    let mut child = Command::new(SATORI)
        .args(["run", "--kernel", &kernel, "-m", "256M", "--timeout", "2m", "--report", "off"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("satori runs");
    let seen = read_until(&mut child.stdout.take().expect("a pipe"), "grub> ");
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    assert!(seen.contains("here is GRUB") && seen.contains("GNU GRUB"), "{seen}");
    assert!(seen.contains("base_addr = 0x100000"), "{seen}");
}

#[test]
fn grub_boots_linux_by_the_32_bit_protocol() {
    let busybox = std::fs::read(fetch(&["busybox"])).unwrap();
    let script = "#!/bin/sh\necho GRUB brought me here\n/bin/busybox poweroff -f\n";
    let initramfs = file("grub.cpio", &satori::initramfs::build(&busybox, script, &[]));
    let linux = fetch(&["kernel", "6.1"]);
    let commands = format!(
        "{SERIAL}linux (memdisk)/vmlinuz console=ttyS0 quiet\ninitrd (memdisk)/initrd\necho on to Linux\nboot\n"
    );
    let inside = [("vmlinuz", Path::new(&linux)), ("initrd", Path::new(&initramfs))];
    let kernel = grub("linux", &commands, &inside);
    let ended = satori(&["run", "--kernel", &kernel, "-m", "256M", "--timeout", "3m"]);
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    assert!(
        ended.console.contains("on to Linux") && ended.console.contains("GRUB brought me here"),
        "{}",
        ended.console
    );
}

#[test]
fn a_bzimage_unpacks_itself() {
    let kernel = fetch(&["kernel", "6.12"]);
    let busybox = std::fs::read(fetch(&["busybox"])).unwrap();
    let script = "#!/bin/sh\necho unpacked\n/bin/busybox poweroff -f\n";
    let initramfs = file("unpacked.cpio", &satori::initramfs::build(&busybox, script, &[]));
    let arguments =
        ["run", "--kernel", &kernel, "--initrd", &initramfs, "--boot", "linux32", "--timeout", "3m"];
    let ended = satori(&[&arguments[..], &["--append", "quiet"]].concat());
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    assert!(ended.console.contains("unpacked"), "{}", ended.console);
}

/// An initramfs whose init runs `commands`, by the busybox in the file `busybox`.
fn initramfs(name: &str, busybox: &Path, commands: &str) -> String {
    let script = format!("#!/bin/sh\n{commands}\n");
    file(name, &satori::initramfs::build(&std::fs::read(busybox).unwrap(), &script, &[]))
}

const XEN_CONSOLE: &str = "console=com1 com1=115200 noreboot";

#[test]
fn xen_finds_its_machine_and_misses_a_dom0() {
    let ended = satori(&[
        "run",
        "--kernel",
        &fetch(&["xen"]),
        "--append",
        XEN_CONSOLE,
        "--cpus",
        "2",
        "-m",
        "512M",
        "--panic-pattern",
        "dom0 kernel not specified",
        "--timeout",
        "3m",
    ]);
    assert_eq!(ended.status, 120, "{}\n{}", ended.console, ended.messages);
}

#[test]
fn xen_boots_linux_to_its_init() {
    let linux = fetch(&["kernel", "6.1"]);
    let initramfs = initramfs("xen.cpio", Path::new(&fetch(&["busybox"])), "/bin/busybox poweroff -f");
    let modules = format!("{linux} console=hvc0 earlyprintk=xen,{initramfs}");
    let ended = satori(&[
        "run",
        "--kernel",
        &fetch(&["xen"]),
        "--append",
        XEN_CONSOLE,
        "--initrd",
        &modules,
        "--cpus",
        "2",
        "-m",
        "768M",
        // Debian's cloud kernels know no dom0's way to power off.
        "--panic-pattern",
        "Hardware Dom0 halted",
        "--timeout",
        "8m",
    ]);
    assert_eq!(ended.status, 120, "{}\n{}", ended.console, ended.messages);
    for said in [
        "Brought up 2 CPUs",
        "Dom0 has maximum 2 VCPUs",
        "Booting kernel on Xen",
        "Run /init as init process",
    ] {
        assert!(ended.console.contains(said), "no '{said}': {}", ended.console);
    }
}

#[test]
fn linux_of_32_bits_comes_to_its_init() {
    let wanted = Wanted::I386 { package: "busybox-static", pattern: "*bin/busybox" };
    let busybox = match cache::get(wanted, false).map_err(|error| format!("{error:#}")) {
        Ok(busybox) => busybox,
        Err(why) if why.contains("have no ") => return eprintln!("left out: {why}"),
        Err(why) => panic!("busybox of 32 bits is needed: {why}"),
    };
    let commands = "/bin/busybox mount -t proc proc /proc\n/bin/busybox uname -rm\n\
        /bin/busybox grep -m 1 flags /proc/cpuinfo\n/bin/busybox poweroff -f";
    let initramfs = initramfs("narrow.cpio", &busybox, commands);
    for flavour in ["686", "686-pae"] {
        let fetched = satori(&["fetch", "kernel", flavour]);
        if fetched.messages.contains("have no ") {
            eprintln!("left out: {}", fetched.messages);
            continue;
        }
        let kernel = fetched.console.trim();
        let arguments = ["run", "--kernel", kernel, "--initrd", &initramfs, "-m", "256M", "--timeout", "4m"];
        let ended = satori(&arguments);
        assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
        let name = format!("-{flavour} i686\r\n");
        for said in [&name, "Run /init as init process", "Hypervisor detected: Microsoft Hyper-V"] {
            assert!(ended.console.contains(said), "{flavour}: no '{said}': {}", ended.console);
        }
        for wrong in ["WARNING: ", "BUG: ", "Oops", "Call Trace"] {
            assert!(!ended.console.contains(wrong), "{flavour}: '{wrong}': {}", ended.console);
        }
    }
}

#[test]
fn linux_resets_in_every_way_it_knows() {
    let kernel = fetch(&["kernel", "6.1"]);
    let initramfs =
        initramfs("reset.cpio", Path::new(&fetch(&["busybox"])), "echo now\n/bin/busybox reboot -f");
    // EFI, which is not there, falls back to the BIOS's way: real mode at the reset vector.
    for way in ["bios", "efi", "acpi", "kbd", "pci"] {
        let append = format!("quiet reboot={way}");
        let arguments = ["run", "--kernel", &kernel, "--initrd", &initramfs, "--on-reset", "exit"];
        let ended = satori(&[&arguments[..], &["--append", &append, "--timeout", "2m"]].concat());
        assert_eq!(ended.status, 118, "{way}: {}\n{}", ended.console, ended.messages);
        assert!(ended.console.contains("now"), "{way}: {}", ended.console);
    }
}

/// It draws on a screen and polls a keyboard, neither of which is there.
#[test]
fn what_a_game_drew_is_told_at_its_end() {
    let game = package("grub-invaders").join("boot/invaders.exec");
    let ended = satori(&[
        "run",
        "--kernel",
        game.to_str().expect("UTF-8"),
        "-m",
        "128M",
        "--clock",
        "virtual",
        "--guest-timeout",
        "20ms",
        "--timeout",
        "3m",
    ]);
    assert_eq!((ended.status, ended.console.as_str()), (124, ""), "{}", ended.messages);
    assert!(ended.messages.contains("text screen of a PC"), "{}", ended.messages);
}
