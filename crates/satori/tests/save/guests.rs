//! Who is saved.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use satori_cpuid::Topology;
use satori_defs::x86::rflags;
use satori_hyperv::choice::{self, Choice};
use satori_machine::image::{Access, Format, Image, Source};
use satori_machine::{ClockMode, Cmdline, Config, DeviceConfig, Devices, Disk, EngineKind, Module, Saved};
use satori_state::{Activity, CpuState};

use crate::common::{self, bare, drivers};

/// A guest, and how it is run.
pub(crate) struct Guest {
    pub name: &'static str,
    pub engine: EngineKind,
    /// Makes the configuration of one more machine: devices belong to one.
    pub config: fn() -> Config,
    /// Instants of a run in the gate.
    pub instants: usize,
    /// A run takes the host some milliseconds: it cannot be asked for two instants, nor go back.
    pub short: bool,
    /// What the state near the end has to show, or the trial has not tried what it is for.
    pub shows: Option<fn(&Saved) -> bool>,
    /// Some of the instants have to be within its own guests.
    pub nested: bool,
}

/// A bare-metal guest of `guests/bare` with these words on its command line.
fn bare_metal(name: &str, cpus: u32, words: &str, hyperv: &str) -> Config {
    Config {
        kernel: std::fs::read(bare::program(name)).expect("the guest"),
        cmdline: Cmdline::Whole(format!("{name} cpus={cpus} {words}")),
        memory: 128 << 20,
        topology: Topology::flat(cpus),
        hyperv: hyperv.parse().expect("enlightenments"),
        clock: ClockMode::VIRTUAL,
        timeout: Some(Duration::from_secs(600)),
        ..Config::default()
    }
}

fn timers() -> Config {
    let whole = bare_metal("hv_timers", 2, "clock=virtual", "all");
    Config { guest_timeout: Some(Duration::from_millis(60)), ..whole }
}

fn synic() -> Config {
    Config { testdev: true, ..bare_metal("hv_synic", 4, "testdev=on", "auto,synic") }
}

fn apic() -> Config {
    bare_metal("apic", 4, "clock=virtual", "off")
}

/// Exceptions, debug traps and string instructions that are interrupted.
fn debug() -> Config {
    bare_metal("debug", 1, "", "off")
}

/// The same without a clock to be exact with. The host's frequency is measured, and each measurement says another.
fn real_timers() -> Config {
    Config { tsc_hz: Some(1_000_000_000), ..bare_metal("hv_timers", 2, "", "all") }
}

fn real_vmx() -> Config {
    Config {
        tsc_hz: Some(1_000_000_000),
        cpu_model: Some("max,+vmx".into()),
        ..bare_metal("vmx", 1, "", "off")
    }
}

/// A hypervisor and its guests, which are busy or asleep for most of the time.
fn vmx() -> Config {
    Config { cpu_model: Some("max,+vmx".into()), ..bare_metal("vmx", 1, "clock=virtual", "off") }
}

fn real_svm() -> Config {
    Config { tsc_hz: Some(1_000_000_000), ..svm() }
}

/// The same by SVM.
fn svm() -> Config {
    let model = Some("max,+svm,vendor=AuthenticAMD".into());
    Config { cpu_model: model, ..bare_metal("svm", 1, "clock=virtual", "off") }
}

/// A hypervisor on Hyper-V, whose other vCPU has guests as well.
fn enlightened() -> Config {
    let wishes = choice::list("auto,evmcs,emsr_bitmap,tlbflush_direct,gpa_flush").expect("enlightenments");
    let mut choice = Choice::default().nested(true);
    choice.apply("--hyperv", &wishes).expect("enlightenments");
    let hyperv = choice.finish().expect("enlightenments").config;
    Config { cpu_model: Some("max,+vmx".into()), hyperv, ..bare_metal("hv_nested", 2, "", "off") }
}

fn debian(cpus: u32) -> Config {
    let initrd = std::fs::read(common::trials()).expect("the initramfs");
    Config {
        kernel: std::fs::read(common::fetch(&["kernel", "6.1"])).expect("the kernel"),
        initrds: vec![Module { data: initrd, ..Module::default() }],
        cmdline: Cmdline::Added("panic=-1 satori.seed=1".into()),
        memory: 256 << 20,
        topology: Topology::flat(cpus),
        clock: ClockMode::VIRTUAL,
        timeout: Some(Duration::from_secs(1200)),
        ..Config::default()
    }
}

/// The beginning of a boot.
fn beginning() -> Config {
    Config { guest_timeout: Some(Duration::from_millis(120)), ..debian(1) }
}

fn boot() -> Config {
    Config { guest_timeout: Some(Duration::from_millis(1500)), ..debian(2) }
}

/// Disks that are written and read, and random bytes, while the second processor is offline. What is written is kept in memory: a new machine starts with the image as
/// it was, and gets the rest with the state.
fn disks() -> Config {
    let kernel = common::fetch(&["kernel", "6.1"]);
    let modules = drivers::modules(Path::new(&kernel));
    let extra: Vec<(&str, &[u8])> = modules.iter().map(|(name, data)| (name.as_str(), &data[..])).collect();
    let busybox = std::fs::read(common::fetch(&["busybox"])).expect("busybox");
    let initrd = satori::initramfs::build(&busybox, include_str!("guest.sh"), &extra);
    let image = common::file("disk", &vec![b'.'; 4 << 20]);
    let disk = |access| Disk {
        image: Image::open(Source {
            name: "disk".into(),
            file: File::open(&image).expect("the image"),
            format: Format::Raw,
            access,
            here: None,
            backing: None,
        })
        .expect("an image"),
        io_thread: None,
        serial: "saved".into(),
    };
    let devices = DeviceConfig {
        disks: vec![disk(Access::Snapshot), disk(Access::ReadOnly)],
        rng: true,
        ..DeviceConfig::default()
    };
    Config {
        kernel: std::fs::read(kernel).expect("the kernel"),
        initrds: vec![Module { data: initrd, ..Module::default() }],
        cmdline: Cmdline::Added("panic=-1 quiet".into()),
        memory: 256 << 20,
        topology: Topology::flat(2),
        devices: Devices::new(devices).expect("devices"),
        clock: ClockMode::VIRTUAL,
        timeout: Some(Duration::from_secs(1200)),
        ..Config::default()
    }
}

const fn guest(name: &'static str, engine: EngineKind, config: fn() -> Config, instants: usize) -> Guest {
    Guest { name, engine, config, instants, short: false, shows: None, nested: false }
}

const fn short(guest: Guest) -> Guest {
    Guest { short: true, ..guest }
}

const fn hypervisor(guest: Guest) -> Guest {
    Guest { nested: true, ..guest }
}

const fn showing(shows: fn(&Saved) -> bool, guest: Guest) -> Guest {
    Guest { shows: Some(shows), ..guest }
}

/// Whether the second vCPU is in a HLT from which no interrupt wakes it.
fn second_is_offline(saved: &Saved) -> bool {
    let value = saved.iter().find(|(place, _)| *place == "vcpu1/registers").map(|(_, value)| value.state());
    let Some(Ok(registers)) = value else { return false };
    let registers: CpuState = registers;
    registers.activity == Activity::Halted && registers.rflags & rflags::IF == 0
}

/// All of them.
pub(crate) const GUESTS: &[Guest] = &[
    guest("timers", EngineKind::Translator, timers, 6),
    guest("timers, interpreted", EngineKind::Interpreter, timers, 3),
    guest("synic", EngineKind::Translator, synic, 6),
    guest("apic", EngineKind::Translator, apic, 6),
    guest("apic, interpreted", EngineKind::Interpreter, apic, 3),
    guest("debug", EngineKind::EagerTranslator, debug, 4),
    hypervisor(short(guest("vmx", EngineKind::Translator, vmx, 12))),
    hypervisor(short(guest("vmx, interpreted", EngineKind::Interpreter, vmx, 6))),
    hypervisor(short(guest("svm", EngineKind::Translator, svm, 12))),
    hypervisor(short(guest("svm, interpreted", EngineKind::Interpreter, svm, 6))),
    hypervisor(short(guest("enlightened", EngineKind::Translator, enlightened, 6))),
    hypervisor(short(guest("enlightened, interpreted", EngineKind::Interpreter, enlightened, 3))),
    guest("Debian", EngineKind::Translator, boot, 4),
    guest("Debian, interpreted", EngineKind::Interpreter, beginning, 2),
    showing(second_is_offline, guest("Debian with disks", EngineKind::Translator, disks, 4)),
];

/// Those that are run under the real clock.
pub(crate) const REAL: &[Guest] = &[
    guest("timers by the real clock", EngineKind::Translator, real_timers, 4),
    guest("vmx by the real clock", EngineKind::Translator, real_vmx, 4),
    guest("svm by the real clock", EngineKind::Translator, real_svm, 4),
];
