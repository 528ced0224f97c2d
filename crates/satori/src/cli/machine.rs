//! The flags of every command that runs a guest: the machine, and how it is run.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum, ValueHint};
use satori_machine::{Port, TscChange};

use super::CpuFlags;
use crate::attend::Limits;
use crate::channel::Channel;
use crate::devices::{DeviceBus, DiskSpec};
use crate::io_threads::IoThreadsSpec;
use crate::network::{self, NetSpec};
use crate::numa::NumaSpec;
use crate::opened::Opened;
use crate::output::Newlines;
use crate::pins::PinSpec;
use crate::units;
use crate::vsock::VsockSpec;

/// The machine, and how it is run.
#[derive(Debug, Args)]
pub struct Machine {
    /// Memory, 128M to 64G; a plain number is MiB [default: 512M]
    #[arg(short, long, value_name = "SIZE", value_parser = units::memory)]
    pub memory: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub processor: CpuFlags,
    /// A NUMA node; given once for each. memory is its part of the guest's (equal parts without), cpus are its vCPUs, such as 0-1:4 (equal
    /// parts in their order without), distances how far each node is, in their order, such as 10:20 (10 here and 20 elsewhere without).
    /// vCPUs that stand in one socket are put into a socket for each node where that comes out even. host-nodes are nodes of this host on which
    /// its memory is placed: on these alone (bind, unless policy says otherwise), on one of them if there is room (preferred), or in turn (interleave)
    #[arg(long, value_name = "[memory=SIZE][,cpus=N-N:N..][,distances=N:N..][,host-nodes=N-N:N[,policy=bind|preferred|interleave]]", value_parser = crate::numa::spec)]
    pub numa: Vec<NumaSpec>,
    /// A disk: a block device or an image, raw unless format=qcow2 says otherwise, since the format is never guessed. May be
    /// given several times. What a qcow2 image is based on is looked for in its own folder, or in that of backing. readonly refuses the guest's writes, snapshot keeps them in memory and forgets them, serial is what
    /// /dev/disk/by-id calls it. What the guest flushed is on the host's disk; cache says otherwise as QEMU's does: none and directsync pass by
    /// the host's memory (O_DIRECT), writethrough and directsync make each write last at once, unsafe ignores flushes. io-thread is which of --io-threads does its work, from 1 on.
    /// It is on virtio; with bus=vmbus on Hyper-V's VMBus, with bus=xen, which needs a guest of Xen's, behind Xen's block back end
    #[arg(long, value_name = "FILE[,format=raw|qcow2][,backing=DIR][,readonly][,snapshot][,cache=writeback|none|writethrough|directsync|unsafe][,serial=TEXT][,io-thread=N][,bus=virtio|vmbus|xen]", value_hint = ValueHint::FilePath, value_parser = units::disk())]
    pub disk: Vec<DiskSpec>,
    /// A network card, on virtio or with bus=vmbus on Hyper-V's VMBus. user is a network of Satori's own, without any right: DHCP, names, TCP, UDP, and ping where this host
    /// permits it; the guest is 10.0.2.15, and reaches everybody but this host itself and link-local addresses. forward leads a port of
    /// this host to one of the guest's, restrict lets the guest reach nobody, loopback makes 10.0.2.2 this host, dns
    /// names who is asked for names. tap is a tap(4) that is there, passt takes
    /// the socket of a passt(1). mac and queues (pairs of queues, 1 to 8) go with all, and so does bus=xen for guests of Xen's
    #[arg(long, value_name = "user[,forward=tcp:127.0.0.1:2222:22][,restrict][,loopback][,dns=ADDRESS]|tap=NAME|passt=SOCKET[,bus=xen]", value_parser = network::spec)]
    pub net: Option<NetSpec>,
    /// Offer a folder of this machine, which the guest mounts by 'mount -t virtiofs TAG DIR': ro (the default), rw, or cow,
    /// where changes stay in memory. With 9p it is 'mount -t 9p -o trans=virtio,version=9p2000.L TAG DIR', for kernels
    /// without virtiofs. May be given several times
    #[arg(long, value_name = "DIR:TAG[,ro|rw|cow][,9p]")]
    pub share: Vec<String>,
    /// Sockets between guest and host (vsock), on virtio: who connects to the Unix socket PATH and writes 'CONNECT PORT' speaks with that
    /// port of the guest, and a guest that connects to a port of the host (CID 2) reaches who listens at PATH_PORT, as with Firecracker.
    /// cid is the guest's address [default: 3]
    #[arg(long, value_name = "PATH[,cid=N]", value_hint = ValueHint::FilePath, value_parser = units::vsock())]
    pub vsock: Option<VsockSpec>,
    /// A memory balloon, on virtio: what the guest has freed goes back to this machine (free page reporting), and the guest
    /// is asked to do without SIZE of its memory; a plain number is MiB
    #[arg(long, value_name = "SIZE", value_parser = units::size, num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    pub balloon: Option<u64>,
    /// Hyper-V's VMBus with its utilities (shutdown, heartbeat, time synchronisation, key-value pairs), which bus=vmbus of a disk or a
    /// network card brings as well; needs --hyperv with synic (docs/vmbus.md)
    #[arg(long)]
    pub vmbus: bool,
    /// A source of random bytes, on virtio; the same bytes in every run under --clock virtual
    #[arg(long)]
    pub rng: bool,
    /// Threads that do the work of devices which may have to wait, 1 to 64: disks share them in turn, and so do networks, folders, sockets and
    /// ports the processors of this host that cpus gives, such as 0-1:4, once for all threads or once for each. A disk chooses by io-thread=N.
    /// Without them each disk has one of its own
    #[arg(long, value_name = "N[,cpus=N-N:N..]..", value_parser = crate::io_threads::spec)]
    pub io_threads: Option<IoThreadsSpec>,
    /// Which of this host's processors the vCPUs run on: one set for all, such as 0-1, or one for each, such as 0,1 or 0-1:4,2. It goes
    /// before what --libvirt says. Devices' threads are pinned by --io-threads
    #[arg(long, value_name = "N-N:N[,N-N:N..]", value_parser = crate::pins::spec)]
    pub pin: Option<PinSpec>,
    /// What the SMBIOS tables tell, as QEMU takes it: type=1 (system) with manufacturer, product, version, serial, uuid, sku and family;
    /// type=11 with value=TEXT or path=FILE, OEM strings, as systemd has its credentials from. A comma in a text is doubled. May be given several times
    #[arg(long, value_name = "type=1|11,NAME=TEXT..", value_parser = crate::smbios::told)]
    pub smbios: Vec<crate::smbios::Told>,
    /// Ticks a second of the modelled host, each an EXTERNAL_INTERRUPT of every vCPU that executes; only
    /// under --clock virtual
    /// [default: 250]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub host_tick: Option<u32>,
    /// Let each exit take the guest time that the cost file (--costs) says, of its vCPU's share of the instructions; only under --clock
    /// virtual, where exits take no guest time otherwise
    #[arg(long)]
    pub charge_costs: bool,
    /// The guest's time
    #[arg(long, value_name = "CLOCK", default_value = "real")]
    pub clock: Clock,
    /// Write to FILE what comes to the guest from outside (folders, network, standard input, the end by somebody), and at which instruction: --replay runs
    /// the same once more. The clock is virtual (--clock), and stands as long as the guest waits for somebody
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "replay")]
    pub record: Option<PathBuf>,
    /// Run what --record wrote to FILE, with the same options: the same instructions, output and report, byte for byte. Nothing is asked of folders,
    /// networks and standard input; images of disks have to be as they were
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub replay: Option<PathBuf>,
    /// What executes the guest
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: Engine,
    /// Who keeps the local APICs where the engine is kvm: its kernel, so that interrupts, timers and their ends need no exit to Satori, or Satori,
    /// which sees and counts them. auto is the kernel, unless the guest is offered KVM's or Xen's interface or a debugger is to come. With a software
    /// engine they are Satori's, and kernel gives them the timers that KVM's have
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub apic: Apic,
    /// Features that the host's processor is taken not to have; for tests of what then happens
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = units::feature, hide = true)]
    pub host_without: Vec<satori_cpuid::Feature>,
    /// The report of exits, printed when the guest has ended; with a COMMAND off, unless it is asked for
    #[arg(
        long,
        value_name = "FORM",
        default_value = "text",
        default_value_if("words", ArgPredicate::IsPresent, "off")
    )]
    pub report: Report,
    /// Whose exits the text report shows: this vCPU's, from 0, instead of the sum of all
    #[arg(long, value_name = "N")]
    pub report_vcpu: Option<u32>,
    /// Where the report goes, instead of standard error
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report_file: Option<PathBuf>,
    /// Judge the results that the guest tells on standard output as KTAP or TAP: status 1 if a test failed, a promised result did not
    /// come, or there were none
    #[arg(long)]
    pub ktap: bool,
    /// Write how the run ended, and the results that the guest tells as KTAP or TAP, to FILE as JUnit's XML; status 1 if one of them
    /// failed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub junit: Option<PathBuf>,
    /// What exits cost on hardware, for the report's modelled column: a file that comes before our own costs
    /// ('satori costs show' prints these)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub costs: Option<PathBuf>,
    /// Also tell the engine's counters, where its time went (translated code, translation, MMU misses, helpers, exits: what
    /// each vCPU was doing is looked at every half a millisecond), and how often indirect branches met a
    /// known target
    #[arg(long)]
    pub engine_stats: bool,
    /// Name translated code for perf on this host: map writes /tmp/perf-PID.map, which 'perf report' looks for;
    /// jitdump writes /tmp/jit-PID.dump for 'perf record -k mono' and 'perf inject --jit', which also knows
    /// what code was where when. The file stays behind
    #[arg(long, value_name = "FORM")]
    pub perf: Option<Perf>,
    /// Write every exit, MSR access, hypercall and interrupt to FILE, for Perfetto (ui.perfetto.dev) and
    /// chrome://tracing; only some: FILE,events=exit+msr+hypercall+interrupt,vcpu=0+1,reason=HLT+CPUID
    #[arg(long, value_name = "FILE[,NAME=VALUES]..", value_hint = ValueHint::FilePath, value_parser = units::trace())]
    pub trace: Option<satori_trace::Spec>,
    /// Let `satori top PATH` watch the guest: a Unix socket that is made there. Its file stays behind, as the
    /// sandbox cannot remove it; the next run replaces it
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub stats_socket: Option<PathBuf>,
    /// Answer QEMU's machine protocol (QMP) at this socket: query-status, stop, cont, system_powerdown, quit and what goes with
    /// them (docs/qemu.md)
    #[arg(long, value_name = "unix:PATH|tcp:HOST:PORT", value_parser = crate::qmp::address)]
    pub qmp: Option<crate::qmp::Address>,
    /// Where names of guest functions come from: auto (the kallsyms table in the guest's memory, which stock
    /// kernels have), off, or a FILE: vmlinux, System.map or a saved /proc/kallsyms
    #[arg(long, value_name = "auto|off|FILE", default_value = "auto", value_hint = ValueHint::FilePath)]
    pub symbols: OsString,
    /// Where a guest that crashes leaves its memory and registers: an ELF core file, which gdb and crash
    /// open. Emptied at the start, as it belongs to this run
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub crash_dump: Option<PathBuf>,
    /// Where then memory and registers go of a guest that it has itself (--nested): of that which executes, or executed last
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub crash_dump_l2: Option<PathBuf>,
    /// End the guest after this time, with status 124: 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub timeout: Option<Duration>,
    /// End the guest, with status 124, when for this time it has sent nothing to a console or port, and no disk or folder has
    /// answered it
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub stall_timeout: Option<Duration>,
    /// End the guest after this much of its own time, with status 124; with --clock virtual always
    /// at the same instruction
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub guest_timeout: Option<Duration>,
    /// Change the frequency of the guest's TSC at a time of its own, as a migration does: 30s=2.1GHz. May be
    /// given several times
    #[arg(long, value_name = "TIME=FREQUENCY", value_parser = units::tsc_change)]
    pub tsc_change: Vec<TscChange>,
    /// What a reset of the guest does [default: restart; with a command: exit]
    #[arg(long, value_name = "ACTION")]
    pub on_reset: Option<OnReset>,
    /// Text on the guest's console that means it panicked; an empty one turns this off
    #[arg(long, value_name = "TEXT", default_value = satori_machine::PANIC_PATTERN)]
    pub panic_pattern: String,
    /// What guests that are tests expect: suite adds QEMU's pc-testdev (ports e0, e4, e8, 2000, memory
    /// ff000000), pci-testdev (1f.0), hyperv-testdev (port 3000) and fw_cfg, for bare-metal suites such as kvm-unit-tests, and
    /// the debug console at port e9 gives way; exit=value makes the value written to the debug exit (port f4)
    /// the exit status, so that 0 is success. Without a word it is suite
    #[arg(long, value_name = "suite|exit=value", num_args = 0..=1, default_missing_value = "suite", value_delimiter = ',')]
    pub testdev: Vec<Testdev>,
    /// End with the statuses of 'git bisect run': 0 for a guest that ended well, 125 for one that could not be
    /// run, as a kernel that was refused, and 1 for any other end (docs/bisect.md has a script)
    #[arg(long)]
    pub bisect: bool,
    /// What the guest reads from its serial port: stdin (Satori's standard input), none, or a FILE, of which under
    /// --clock virtual each byte comes always at the same instruction. Of a standard input that is no terminal a
    /// block of 16 bytes is read only when the guest waits for input; Linux does from when its console is
    /// opened for init, so 'none' is for loops such as while read
    #[arg(long, value_name = "stdin|none|FILE", default_value = "stdin", value_hint = ValueHint::FilePath)]
    pub input: OsString,
    /// A further serial port, ttyS1 for the first of up to three: a FILE for what the guest sends, none, or unix:PATH, a socket
    /// to whose one client it leads both ways
    #[arg(long, value_name = "FILE|none|unix:PATH", value_hint = ValueHint::FilePath)]
    pub serial: Vec<OsString>,
    /// What ends a line of the console on standard output
    #[arg(long, value_name = "FORM", default_value = "raw")]
    pub console_newlines: Newlines,
    /// Serve gdb there: tcp:PORT (to this machine only), tcp:HOST:PORT or unix:PATH
    ///
    /// In gdb, `target remote :PORT` stops the guest; `detach` lets it run on. QEMU's spelling
    /// tcp::PORT is understood. A socket's file stays behind, as the sandbox cannot remove it; the next
    /// run replaces it.
    #[arg(long, value_name = "ADDRESS")]
    pub gdb: Option<OsString>,
    /// Short for --gdb tcp::1234
    #[arg(short = 's', conflicts_with = "gdb")]
    pub gdb_default: bool,
    /// Do not start the guest before gdb lets it go (needs --gdb or -s)
    #[arg(short = 'S', long)]
    pub gdb_wait: bool,
    /// How much the process gives away before the guest runs: files, network, rights, system calls
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub sandbox: Sandbox,
    /// Tell more of what happens; -vv and -vvv even more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What has no flag, and is there when another program's words were read.
    #[arg(skip)]
    pub front: Option<Front>,
}

/// What a front for other words adds: standard error is the guest's then, where nothing is wrong.
#[derive(Debug)]
pub struct Front {
    /// Ports of a virtio console, which who makes the machine takes.
    pub ports: RefCell<Vec<Port>>,
    /// Sockets that some of them lead to.
    pub channels: Vec<Arc<Channel>>,
}

impl Machine {
    /// Sockets that ports lead to.
    pub fn channels(&self) -> &[Arc<Channel>] {
        self.front.as_ref().map_or(&[], |front| &front.channels)
    }

    /// Whether the guest has a VMBus.
    pub fn has_vmbus(&self) -> bool {
        let on_it = |bus| bus == DeviceBus::Vmbus;
        self.vmbus
            || self.disk.iter().any(|disk| on_it(disk.bus))
            || self.net.as_ref().is_some_and(|net| on_it(net.bus))
    }

    /// The files of `--crash-dump` and `--crash-dump-l2`.
    pub fn crash_dumps(&self, opened: &mut Opened) -> anyhow::Result<[Option<File>; 2]> {
        let mut file =
            |flag, path: &Option<PathBuf>| path.as_deref().map(|path| opened.file(flag, path)).transpose();
        Ok([file("--crash-dump", &self.crash_dump)?, file("--crash-dump-l2", &self.crash_dump_l2)?])
    }

    /// How long the guest may take.
    pub fn limits(&self) -> Limits {
        Limits { timeout: self.timeout, stall: self.stall_timeout }
    }
}

/// `--clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Clock {
    /// The host's clock; vCPUs run in parallel
    Real,
    /// Retired instructions; the same inputs give the same run, byte for byte
    Virtual,
}

/// `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// Nothing
    Off,
    /// As much as the host permits; -v tells what that is
    Auto,
    /// Everything, or end with status 2
    Require,
}

/// `--testdev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Testdev {
    /// QEMU's devices for suites of tests
    Suite,
    /// The value written to the debug exit is the exit status
    #[value(name = "exit=value")]
    ExitValue,
}

/// `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// kvm where it works and does all that is asked for, else software; SATORI_ENGINE says otherwise
    Auto,
    /// The better of the two below that works here
    Software,
    /// The software CPU, one instruction at a time
    Interpreter,
    /// The software CPU, which makes host code of guest code that runs often
    Translator,
    /// The same for all code, from its first execution; for tests of the translation
    #[value(hide = true)]
    Eager,
    /// The host's processor through /dev/kvm
    Kvm,
}

/// `--apic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Apic {
    /// The kernel's, unless something that is asked for needs Satori's
    Auto,
    /// Satori's, on any engine
    Satori,
    /// The kernel's
    Kernel,
}

/// `--report`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Report {
    /// A table in perf kvm stat's layout
    Text,
    /// The same as one JSON object
    Json,
    /// One self-contained HTML page (needs --report-file)
    Html,
    /// None
    Off,
}

/// `--perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Perf {
    /// Addresses and names
    Map,
    /// Addresses, names, code and times
    Jitdump,
}

/// `--on-reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnReset {
    /// Boot again, as a machine does
    Restart,
    /// End with status 118
    Exit,
}
