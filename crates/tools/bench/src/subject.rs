//! What is compared: the host itself, Satori, and other emulators; how each is started.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use satori_boot::{KERNEL_MAX, Kernel};

use crate::Error;
use crate::catalog::{FOLDER, TAG};

/// Kernel settings, the same for every guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// As the kernel comes.
    Defaults,
    /// Without what the kernel does against faults of processors.
    MitigationsOff,
}

impl Setting {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Setting::Defaults => "defaults",
            Setting::MitigationsOff => "mitigations=off",
        }
    }
}

/// How a guest's kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The bzImage as it is: Satori unpacks it itself.
    BzImage,
    /// The bzImage by SeaBIOS on a q35.
    Q35,
    /// The bzImage by qboot on a microvm.
    Microvm,
    /// The ELF file at its PVH note.
    Pvh,
}

impl Entry {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Entry::BzImage => "bzImage",
            Entry::Q35 => "bzImage, q35 with SeaBIOS",
            Entry::Microvm => "bzImage, microvm with qboot",
            Entry::Pvh => "vmlinux at its PVH note",
        }
    }
}

/// The files of a benchmark.
#[derive(Clone, Debug)]
pub struct Files {
    /// The kernel as it came.
    pub bzimage: PathBuf,
    /// The ELF file in it.
    pub vmlinux: PathBuf,
    /// An initramfs with the program as `/init` and a busybox at [`GUEST_BUSYBOX`].
    pub initrd: PathBuf,
    /// The program, for the host.
    pub program: PathBuf,
    /// A busybox, for the host.
    pub busybox: PathBuf,
    /// A folder on tmpfs, where the program works on the host.
    pub work: PathBuf,
    /// What rows of devices need.
    pub devices: Option<Devices>,
}

/// What rows of devices need, on the host; guests have them as devices.
#[derive(Clone, Debug)]
pub struct Devices {
    /// A disk's image, raw.
    pub image: PathBuf,
    /// The same content as qcow2.
    pub qcow2: PathBuf,
    /// A folder of files.
    pub folder: PathBuf,
    /// At which port of this host somebody answers: of 127.0.0.1, or of the tap.
    pub port: u16,
    /// A tap of several queues with the address 10.0.2.2, in the place of user networks.
    pub tap: Option<String>,
}

/// Where a guest has them.
const GUEST_DISK: &str = "/dev/vda";
const GUEST_QCOW2: &str = "/dev/vdb";
/// The host, for guests of both monitors' user networks; on a tap it has the same address.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

impl Devices {
    /// Words of a guest's program, of which [`native`] makes the host's.
    pub(crate) fn words(&self) -> String {
        format!(" --disk {GUEST_DISK} --qcow2 {GUEST_QCOW2} --folder {FOLDER} --host {HOST}:{}", self.port)
    }
}

/// Where the shell is in the guest.
pub const GUEST_BUSYBOX: &str = "/bin/busybox";

/// What a run is to do.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The files.
    pub files: &'a Files,
    /// Kernel settings.
    pub setting: Setting,
    /// Processors.
    pub cpus: u32,
    /// The guest's memory in bytes.
    pub memory: u64,
    /// How the kernel is entered.
    pub entry: Entry,
    /// The frequency of the host's time-stamp counter, if it is known.
    pub tsc_khz: u64,
    /// The program's command line.
    pub words: String,
}

/// A way to run the same guest's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// One I/O thread for both disks and all other devices' processors.
    IoThread,
    /// vCPUs on all of the host's processors but the last, and devices' threads on that.
    Pinned,
    /// Two pairs of queues of the network card.
    Queues,
}

impl Knob {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Knob::IoThread => "satori+io",
            Knob::Pinned => "satori+pin",
            Knob::Queues => "satori+mq",
        }
    }

    /// What it adds to a command, on a host with so many processors.
    fn words(self, host: usize) -> Vec<String> {
        let last = host.saturating_sub(1);
        let others = if last > 1 { format!("0-{}", last - 1) } else { "0".into() };
        match self {
            Knob::IoThread => vec!["--io-threads".into(), "1".into()],
            Knob::Pinned => {
                vec!["--pin".into(), others, "--io-threads".into(), format!("1,cpus={last}")]
            }
            Knob::Queues => Vec::new(),
        }
    }
}

/// What a program is measured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The host.
    Native,
    /// Satori.
    Satori {
        /// Its program.
        program: PathBuf,
        /// `--engine`.
        engine: String,
        /// What is turned for rows of devices.
        knob: Option<Knob>,
    },
    /// QEMU without hardware virtualisation.
    Qemu {
        /// Its program.
        program: PathBuf,
        /// Its version, if it is not the only one.
        version: Option<String>,
        /// `-cpu`.
        cpu: &'static str,
    },
}

/// The processor models that QEMU is measured with.
pub const QEMU_CPUS: [&str; 2] = ["max", "qemu64"];

impl Subject {
    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            Subject::Native => "native".into(),
            Subject::Satori { knob: None, engine, .. } if engine == "kvm" => "kvm".into(),
            Subject::Satori { knob, .. } => knob.map_or("satori", Knob::name).into(),
            Subject::Qemu { cpu, version: None, .. } => format!("tcg-{cpu}"),
            Subject::Qemu { cpu, version: Some(version), .. } => format!("tcg{version}-{cpu}"),
        }
    }

    /// Whether it is neither the host nor Satori.
    pub fn is_peer(&self) -> bool {
        matches!(self, Subject::Qemu { .. })
    }

    /// How the rows' kernel is entered: unpacked, so that nobody waits for that.
    pub fn entry(&self) -> Entry {
        Entry::Pvh
    }

    /// How kernels are entered in the row of the boot.
    pub fn boots(&self) -> &'static [Entry] {
        match self {
            Subject::Native => &[],
            Subject::Satori { .. } => &[Entry::BzImage, Entry::Pvh],
            Subject::Qemu { .. } => &[Entry::Q35, Entry::Microvm, Entry::Pvh],
        }
    }

    /// The process of a run. Its standard output is the program's.
    pub fn command(&self, job: &Job) -> Command {
        let mut command = match self {
            Subject::Native => native(job),
            Subject::Satori { program, engine, knob } => satori(program, engine, *knob, job),
            Subject::Qemu { program, cpu, .. } => qemu(program, cpu, job),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn native(job: &Job) -> Command {
    let mut command = Command::new(&job.files.program);
    // The guest's program has no environment worth the name.
    command.env_clear().current_dir(&job.files.work);
    let busybox = job.files.busybox.display().to_string();
    for word in job.words.split(' ') {
        match (word, &job.files.devices) {
            (GUEST_BUSYBOX, _) => command.arg(&busybox),
            // The host has no disk of that kind.
            (GUEST_DISK | GUEST_QCOW2, Some(devices)) => command.arg(&devices.image),
            (FOLDER, Some(devices)) => command.arg(&devices.folder),
            (host, Some(devices)) if host.starts_with(&HOST.to_string()) => {
                let address = if devices.tap.is_some() { HOST } else { Ipv4Addr::LOCALHOST };
                command.arg(format!("{address}:{}", devices.port))
            }
            (word, _) => command.arg(word),
        };
    }
    command
}

fn kernel<'a>(job: &Job<'a>) -> &'a Path {
    match job.entry {
        Entry::BzImage | Entry::Q35 | Entry::Microvm => &job.files.bzimage,
        Entry::Pvh => &job.files.vmlinux,
    }
}

/// The kernel's command line; what stands behind `--` is its init's.
fn cmdline(job: &Job) -> String {
    let mut text = "console=ttyS0 quiet panic=-1".to_string();
    if job.setting == Setting::MitigationsOff {
        text += " mitigations=off";
    }
    // A microvm has no timer to calibrate by but those that a loaded host delays: the kernel can
    // hang there. QEMU's guests count the host's cycles.
    if job.entry == Entry::Microvm && job.tsc_khz > 0 {
        text += &format!(" tsc_early_khz={}", job.tsc_khz);
    }
    // Without ACPI's registers a reset is the only end of a microvm.
    let reset = if job.entry == Entry::Microvm { " --reset" } else { "" };
    let how = if reset.is_empty() { "" } else { " reboot=t" };
    format!("{text}{how} -- {}{reset}", job.words)
}

fn satori(program: &Path, engine: &str, knob: Option<Knob>, job: &Job) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--engine", engine, "--kernel"]).arg(kernel(job));
    command.arg("--initrd").arg(&job.files.initrd);
    command.args(["--memory", &format!("{}K", job.memory >> 10), "--cpus", &job.cpus.to_string()]);
    command.args(["--on-reset", "exit", "--cmdline", &cmdline(job)]);
    if let Some(Devices { image, qcow2, folder, tap, .. }) = &job.files.devices {
        let queues = if knob == Some(Knob::Queues) || tap.is_some() { ",queues=2" } else { "" };
        let net = tap.as_ref().map_or("user,loopback".into(), |name| format!("tap={name}"));
        command.arg("--disk").arg(image).arg("--disk").arg(format!("{},format=qcow2", qcow2.display()));
        command.args(["--net", &format!("{net}{queues}"), "--share"]);
        command.arg(format!("{}:{TAG},rw", folder.display()));
        let host = std::thread::available_parallelism().map_or(1, usize::from);
        command.args(knob.map(|knob| knob.words(host)).unwrap_or_default());
    }
    command
}

fn qemu(program: &Path, cpu: &str, job: &Job) -> Command {
    let mut command = Command::new(program);
    let machine = if job.entry == Entry::Microvm { "microvm" } else { "q35" };
    command.args(["-machine", machine, "-accel", "tcg", "-cpu", cpu]);
    command.args(["-m", &format!("{}M", job.memory >> 20), "-smp", &job.cpus.to_string()]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
    command.arg("-kernel").arg(kernel(job)).arg("-initrd").arg(&job.files.initrd);
    command.args(["-append", &cmdline(job)]);
    if let Some(Devices { image, qcow2, folder, tap, .. }) = &job.files.devices {
        let (net, queues) = match tap {
            Some(name) => (format!("tap,ifname={name},script=no,downscript=no,queues=2"), ",mq=on"),
            None => ("user".into(), ""),
        };
        command.arg("-drive").arg(format!("file={},format=raw,if=none,id=disk", image.display()));
        command.arg("-drive").arg(format!("file={},format=qcow2,if=none,id=qcow2", qcow2.display()));
        command.arg("-fsdev");
        command.arg(format!("local,id=folder,path={},security_model=none", folder.display()));
        // Cards without a ROM: Debian has those in another package, and nobody boots from them.
        for words in [
            "virtio-blk-pci,drive=disk",
            "virtio-blk-pci,drive=qcow2",
            &format!("virtio-9p-pci,fsdev=folder,mount_tag={TAG}"),
            &format!("virtio-net-pci,netdev=net,romfile={queues}"),
        ] {
            command.args(["-device", words]);
        }
        command.args(["-netdev", &format!("{net},id=net")]);
    }
    command
}

/// The version that a QEMU tells of itself; none if it is none.
pub fn qemu_version(program: &Path) -> Option<String> {
    let told = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&told.stdout);
    let version = text.strip_prefix("QEMU emulator version ")?.split_whitespace().next()?;
    Some(version.to_string())
}

/// The ELF file in a kernel, and the kernel's version.
pub fn unpacked(bzimage: &Path) -> Result<(Vec<u8>, String), Error> {
    let kernel = Kernel::open(bzimage, KERNEL_MAX)?;
    let version = kernel.info.version.clone().unwrap_or("of unknown version".into());
    Ok((kernel.elf().to_vec(), version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        let path = |name: &str| PathBuf::from(name);
        Files {
            bzimage: path("/b"),
            vmlinux: path("/v"),
            initrd: path("/i"),
            program: path("/p"),
            busybox: path("/host/busybox"),
            work: path("/w"),
            devices: None,
        }
    }

    fn line(subject: &Subject, entry: Entry, setting: Setting) -> String {
        let files = files();
        let words = format!("run --rows fib --busybox {GUEST_BUSYBOX}");
        let job = Job { files: &files, setting, cpus: 2, memory: 512 << 20, entry, tsc_khz: 9, words };
        let command = subject.command(&job);
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        words.join("|")
    }

    #[test]
    fn the_host_runs_the_program_itself_with_its_own_shell() {
        let line = line(&Subject::Native, Entry::Pvh, Setting::MitigationsOff);
        assert_eq!(line, "run|--rows|fib|--busybox|/host/busybox");
    }

    #[test]
    fn both_sides_get_the_same_kernel_and_settings() {
        let satori = Subject::Satori { program: "satori".into(), engine: "translator".into(), knob: None };
        let qemu = Subject::Qemu { program: "qemu".into(), version: None, cpu: "max" };
        let same = "console=ttyS0 quiet panic=-1 mitigations=off -- run --rows fib --busybox /bin/busybox";
        for subject in [&satori, &qemu] {
            let line = line(subject, Entry::Pvh, Setting::MitigationsOff);
            assert!(
                line.contains("|/v|")
                    && line.contains("|/i|")
                    && line.contains("512M") | line.contains("524288K"),
                "{line}"
            );
            assert!(line.split('|').any(|word| word == same), "{line}");
        }
        let line = line(&satori, Entry::BzImage, Setting::Defaults);
        assert!(line.contains("--engine|translator|--kernel|/b|") && !line.contains("mitigations"), "{line}");
    }

    #[test]
    fn devices_are_the_same_on_both_sides_and_the_host_has_what_is_beneath() {
        let devices = Devices {
            image: "/d.img".into(),
            qcow2: "/q.img".into(),
            folder: "/some/files".into(),
            port: 99,
            tap: None,
        };
        let words = format!("run{}", devices.words());
        let files = Files { devices: Some(devices), ..files() };
        let job = Job {
            files: &files,
            setting: Setting::Defaults,
            cpus: 1,
            memory: 512 << 20,
            entry: Entry::Pvh,
            tsc_khz: 0,
            words,
        };
        let line = |subject: Subject| {
            let command = subject.command(&job);
            let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
            words.join("|")
        };
        assert_eq!(
            line(Subject::Native),
            "run|--disk|/d.img|--qcow2|/d.img|--folder|/some/files|--host|127.0.0.1:99"
        );
        let satori = line(Subject::Satori {
            program: "satori".into(),
            engine: "software".into(),
            knob: Some(Knob::Queues),
        });
        assert!(
            satori.contains(
                "--disk|/d.img|--disk|/q.img,format=qcow2|--net|user,loopback,queues=2|--share|/some/files:bench,rw"
            ),
            "{satori}"
        );
        let qemu = line(Subject::Qemu { program: "qemu".into(), version: None, cpu: "max" });
        assert!(qemu.contains("file=/d.img,format=raw") && qemu.contains("path=/some/files,"), "{qemu}");
        for guest in [satori, qemu] {
            assert!(
                guest.contains("--disk /dev/vda --qcow2 /dev/vdb --folder /folder --host 10.0.2.2:99"),
                "{guest}"
            );
        }
    }

    #[test]
    fn a_knob_is_words_of_the_same_command() {
        assert_eq!(Knob::Pinned.words(2), ["--pin", "0", "--io-threads", "1,cpus=1"]);
        assert_eq!(Knob::Pinned.words(4)[1..], ["0-2", "--io-threads", "1,cpus=3"]);
        assert_eq!(Knob::Pinned.words(1), ["--pin", "0", "--io-threads", "1,cpus=0"]);
        assert_eq!(Knob::IoThread.words(2), ["--io-threads", "1"]);
    }

    #[test]
    fn a_microvm_is_told_its_frequency_and_ends_by_a_reset() {
        let qemu = Subject::Qemu { program: "qemu".into(), version: Some("10.0".into()), cpu: "qemu64" };
        let line = line(&qemu, Entry::Microvm, Setting::Defaults);
        assert!(line.contains("tsc_early_khz=9 reboot=t -- ") && line.ends_with(" --reset"), "{line}");
        assert_eq!(qemu.name(), "tcg10.0-qemu64");
    }
}
