//! The flag table: parsing, help, completions and the man page all come from here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use satori_cpuid::Topology;

use satori_machine::{BootProtocol, ProtocolChoice, TscChange};

use crate::attend::Limits;
pub use crate::command::flags::RunCommand;
use crate::devices::DiskSpec;
use crate::footers::{ADVISE_FOOTER, DEMO_FOOTER, FETCH_ABOUT, run_footer};
use crate::network::{self, NetSpec};
use crate::output::Newlines;
use crate::{bench, costs, initrd, reports, top, units};

/// A virtual machine monitor with a processor of its own.
///
/// Satori boots an unmodified Linux kernel on a software CPU, without hardware virtualisation,
/// offers it the Hyper-V enlightenments, and reports every exit that the guest took.
#[derive(Debug, Parser)]
#[command(name = "satori", version = VERSION, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Begin with 'satori demo'. The exit statuses stand in 'satori run --help'.")]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a kernel of yours
    #[command(after_long_help = run_footer())]
    Run(Run),
    /// Fetch a Debian kernel with this machine's apt, boot it, show what it found, report
    #[command(after_long_help = DEMO_FOOTER)]
    Demo(Demo),
    /// Compare the speed of guests with that of this machine and of other emulators
    #[command(after_long_help = bench::flags::FOOTER)]
    Bench(bench::flags::Bench),
    /// Fetch what the demo boots, and print where it is
    #[command(long_about = FETCH_ABOUT)]
    Fetch(Fetch),
    /// Pack a folder, busybox and modules into an initramfs
    #[command(after_long_help = initrd::FOOTER)]
    Initrd(initrd::Initrd),
    /// Show what CPUID answers, and which layer set each bit
    Cpu(Cpu),
    /// List the MSRs that the processor has: what reads answer, what writes do, and why
    Msrs(Msrs),
    /// What is offered of Hyper-V: list it, check options, convert them
    #[command(subcommand)]
    Hyperv(Hyperv),
    /// Watch a running guest: exits a second by reason, vCPU and guest function, enlightenments, hypercalls,
    /// interrupts
    #[command(after_long_help = top::FOOTER)]
    Top(top::Top),
    /// Show, import, compare and draw reports of exits, ours and those of perf kvm stat
    #[command(subcommand)]
    Report(reports::Reports),
    /// What exits cost on hardware, by a model: show it, or take it from a host's own perf kvm stat
    #[command(subcommand, after_long_help = costs::FOOTER)]
    Costs(costs::Command),
    /// Read a report of exits and a configuration, and say what to change, and why
    #[command(after_long_help = ADVISE_FOOTER)]
    Advise(reports::Advise),
    /// Explain an enlightenment: what it is, brings, costs and needs, and how a guest shows it
    Explain {
        /// Its name, in any spelling: stimer, hv-stimer, hv_stimer; or that of a rule of 'satori advise'
        name: String,
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Look at this host: what it has of what Satori wants, and what each missing thing costs. Status
    /// 2 if no guest can run
    Doctor {
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Show which engines there are, and which of them work here
    Engines {
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Print shell completions
    Completions {
        /// The shell they are for
        shell: Shell,
    },
    /// Print the man page of satori, or of one of its commands
    Man {
        /// The command; without it the page of satori itself
        command: Option<String>,
    },
}

/// The version, and of a release build the commit that it is of (build.rs).
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SATORI_COMMIT"), ")");

/// `satori run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The kernel: a bzImage (Debian's vmlinuz), an ELF vmlinux, compressed or not, or a multiboot
    /// kernel. With a COMMAND also a series such as 6.12, which is fetched, a package's file (.deb) or a kernel's build
    /// tree [default with a COMMAND: the newest that was fetched]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present_any = ["libvirt", "words"])]
    pub kernel: Option<PathBuf>,
    /// An initial ramdisk; several are joined in the order given. For a multiboot kernel modules,
    /// as QEMU has them: "FILE ARGS,FILE"
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub initrd: Vec<OsString>,
    /// A module of a multiboot kernel, after those of --initrd, and its arguments: "FILE ARGS"
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub module: Vec<OsString>,
    /// How the kernel is entered
    #[arg(long, value_name = "PROTOCOL", default_value = "auto")]
    pub boot: Boot,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub cmdline: Cmdline,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub command: RunCommand,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub machine: Machine,
}

/// The kernel's command line.
#[derive(Debug, Args)]
pub struct Cmdline {
    /// The kernel's whole command line [default: console=ttyS0; for a multiboot kernel nothing]
    #[arg(long = "cmdline", value_name = "TEXT", conflicts_with = "append")]
    pub whole: Option<String>,
    /// Text added to the default command line
    #[arg(long, value_name = "TEXT")]
    pub append: Option<String>,
}

impl Command {
    /// The machine of a command that runs a guest.
    pub fn machine(&self) -> Option<&Machine> {
        match self {
            Command::Run(flags) => Some(&flags.machine),
            Command::Demo(flags) => Some(&flags.machine),
            _ => None,
        }
    }
}

impl Machine {
    /// How long the guest may take.
    pub fn limits(&self) -> Limits {
        Limits { timeout: self.timeout, stall: self.stall_timeout }
    }
}

impl Cmdline {
    /// The command line that these flags ask for.
    pub fn text(&self) -> satori_machine::Cmdline {
        match &self.whole {
            Some(whole) => satori_machine::Cmdline::Whole(whole.clone()),
            None => satori_machine::Cmdline::Added(self.append.clone().unwrap_or_default()),
        }
    }
}

/// `--boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Boot {
    /// The first that the kernel offers of multiboot, pvh, linux
    Auto,
    /// Multiboot 1
    Multiboot,
    /// Xen's PVH
    Pvh,
    /// Linux's boot protocol: the 64-bit one, or else the 32-bit one
    Linux,
    /// Linux's 32-bit boot protocol, in which a bzImage unpacks itself
    Linux32,
}

impl Boot {
    /// The protocol that this asks for.
    pub fn wanted(self) -> ProtocolChoice {
        match self {
            Boot::Auto => ProtocolChoice::Auto,
            Boot::Multiboot => ProtocolChoice::Only(BootProtocol::Multiboot),
            Boot::Pvh => ProtocolChoice::Only(BootProtocol::Pvh),
            Boot::Linux => ProtocolChoice::Linux,
            Boot::Linux32 => ProtocolChoice::Only(BootProtocol::Linux32),
        }
    }
}

/// The machine, and how it is run.
#[derive(Debug, Args)]
pub struct Machine {
    /// Memory, 128M to 64G; a plain number is MiB [default: 512M]
    #[arg(short, long, value_name = "SIZE", value_parser = units::memory)]
    pub memory: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub processor: Processor,
    /// A disk, on virtio: a block device or an image, raw unless format=qcow2 says otherwise, since the format is never guessed. May be
    /// given several times. What a qcow2 image is based on is looked for in its own folder, or in that of backing. readonly refuses the guest's writes, snapshot keeps them in memory and forgets them, serial is what
    /// /dev/disk/by-id calls it. What the guest flushed is on the host's disk
    #[arg(long, value_name = "FILE[,format=raw|qcow2][,backing=DIR][,readonly][,snapshot][,serial=TEXT]", value_hint = ValueHint::FilePath, value_parser = units::disk())]
    pub disk: Vec<DiskSpec>,
    /// A network card, on virtio. user is a network of Satori's own, without any right: DHCP, names, TCP, UDP, and ping where this host
    /// permits it; the guest is 10.0.2.15, and reaches everybody but this host itself and link-local addresses. forward leads a port of
    /// this host to one of the guest's, restrict lets the guest reach nobody, loopback makes 10.0.2.2 this host, dns
    /// names who is asked for names. passt takes the socket of a passt(1). mac and queues (pairs of queues, 1 to 8) go with both
    #[arg(long, value_name = "user[,forward=tcp:127.0.0.1:2222:22][,restrict][,loopback][,dns=ADDRESS]|passt=SOCKET", value_parser = network::spec)]
    pub net: Option<NetSpec>,
    /// A source of random bytes, on virtio; the same bytes in every run under --clock virtual
    #[arg(long)]
    pub rng: bool,
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
    /// What executes the guest
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: Engine,
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
    /// Where names of guest functions come from: auto (the kallsyms table in the guest's memory, which stock
    /// kernels have), off, or a FILE: vmlinux, System.map or a saved /proc/kallsyms
    #[arg(long, value_name = "auto|off|FILE", default_value = "auto", value_hint = ValueHint::FilePath)]
    pub symbols: OsString,
    /// Where a guest that crashes leaves its memory and registers: an ELF core file, which gdb and crash
    /// open. Emptied at the start, as it belongs to this run
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub crash_dump: Option<PathBuf>,
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
    /// What a reset of the guest does [default: restart]
    #[arg(long, value_name = "ACTION")]
    pub on_reset: Option<OnReset>,
    /// Text on the guest's console that means it panicked; an empty one turns this off
    #[arg(long, value_name = "TEXT", default_value = satori_machine::PANIC_PATTERN)]
    pub panic_pattern: String,
    /// What guests that are tests expect: suite adds QEMU's pc-testdev (ports e0, e4, e8, 2000, memory
    /// ff000000), hyperv-testdev (port 3000) and fw_cfg, for bare-metal suites such as kvm-unit-tests, and
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
}

/// What the guest's processors are.
#[derive(Debug, Args)]
pub struct Processor {
    /// Virtual processors, 1 to 255: a number, or as QEMU's -smp has it, with
    /// sockets=, dies=, cores= and threads=; what is missing is worked out
    /// [default: 1]
    #[arg(long, visible_alias = "smp", value_name = "N[,NAME=N]..")]
    pub cpus: Option<Topology>,
    /// The processor's model (x86-64-v1, -v2, -v3, max), features added to or taken from it, and
    /// vendor=, family=, model=, stepping=, model-id=: x86-64-v2,-popcnt,vendor=AuthenticAMD;
    /// Hyper-V's as QEMU has them: max,hv-time,hv-crash=off,hv-vendor-id=NAME [default: max]
    #[arg(long, value_name = "MODEL[,±FEATURE]..")]
    pub cpu: Option<String>,
    /// Hyper-V enlightenments: auto (what suits most guests), off, all, or a list of names, which brings
    /// what these need; one that begins with a sign changes auto: +reset,-crash. What --cpu says comes
    /// after it. 'satori hyperv list' names them, 'satori hyperv check' tells what options come to
    /// [default: auto]
    #[arg(long, value_name = "auto|off|all|LIST", allow_hyphen_values = true)]
    pub hyperv: Option<String>,
    /// The modelled VMX processor, which decides what exits: haswell, skylake, sapphire-rapids, no-apicv; features
    /// with a sign change it: haswell,-posted-interrupts. They are apicv, the sum of
    /// apic-register-virtualization, virtual-interrupt-delivery and posted-interrupts;
    /// sint-eoi-exits, ipi-virtualization, tpr-shadow, preemption-timer and ple. With apicv, --hyperv auto deprecates auto-EOI
    /// and recommends no MSRs for the APIC, so that APICv stays in use
    /// [default: skylake]
    #[arg(long = "processor", value_name = "NAME[,±FEATURE]..")]
    pub vmx: Option<satori_machine::VmxProcessor>,
    /// Whether the guest can run guests of its own: vmx is Intel's way, for /dev/kvm by kvm_intel; the same as
    /// vmx among --cpu's features [default: off]
    #[arg(long, value_name = "off|vmx")]
    pub nested: Option<Nested>,
    /// A domain's XML, whole or in part: processors, enlightenments, memory, kernel and threads' processors
    /// are taken from it, as far as the other options do not say otherwise. What cannot be honoured
    /// is told with line and column
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub libvirt: Option<PathBuf>,
}

/// `--nested`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Nested {
    /// No virtualisation
    Off,
    /// VMX
    Vmx,
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
    /// The best that this build and this host have; 'satori engines' tells which
    Auto,
    /// The software CPU, one instruction at a time
    Interpreter,
    /// The software CPU, which makes host code of guest code that runs often
    Translator,
    /// The same for all code, from its first execution; for tests of the translation
    #[value(hide = true)]
    Eager,
    /// The host's processor through /dev/kvm; not in this version, and refused with that reason
    Kvm,
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

/// `satori demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// A Debian kernel series such as 6.12, or a kernel FILE [default: Debian's current one]
    #[arg(long, value_name = "SERIES|FILE", value_hint = ValueHint::FilePath)]
    pub kernel: Option<PathBuf>,
    /// A statically linked busybox [default: Debian's busybox-static]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub busybox: Option<PathBuf>,
    /// Boot a whole Debian with systemd from a disk that is made of this machine's packages, once, to its login; with a network, and ssh at port
    /// 2222 of this host, unless --net says otherwise. What it changes is forgotten
    #[arg(long, conflicts_with = "interactive")]
    pub system: bool,
    /// End in a shell in the guest instead of powering off
    #[arg(short, long)]
    pub interactive: bool,
    /// Look for newer packages although the last look was less than a day ago
    #[arg(long)]
    pub refresh: bool,
    /// Text added to the kernel's command line
    #[arg(long, value_name = "TEXT")]
    pub append: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub machine: Machine,
}

/// `satori cpu`.
#[derive(Debug, Args)]
pub struct Cpu {
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub processor: Processor,
    /// The processor that asks, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub vcpu: u32,
    /// How it is printed; raw is the registers alone, or the names of the features that are offered
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: CpuForm,
    /// List every feature name instead, and whether it is offered
    #[arg(long)]
    pub features: bool,
}

/// `satori msrs`.
#[derive(Debug, Args)]
pub struct Msrs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub processor: Processor,
    /// Also those that this processor does not have
    #[arg(long)]
    pub all: bool,
    /// How it is printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: MsrForm,
}

/// `satori hyperv`.
#[derive(Debug, Subcommand)]
pub enum Hyperv {
    /// List the enlightenments: what they are called, what they need, and what the default is
    List {
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: MsrForm,
    },
    /// Tell what options come to: what is on, who decided it, what was missing, what conflicts
    Check {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        processor: Processor,
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Write the same choice in another spelling
    Convert {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        processor: Processor,
        /// Whose spelling it is written in
        #[arg(long, value_name = "SPELLING")]
        to: Spelling,
    },
}

/// `--to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Spelling {
    /// QEMU's -cpu
    Qemu,
    /// libvirt's domain XML
    Libvirt,
    /// --hyperv
    Satori,
}

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// `--format` of `satori cpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CpuForm {
    /// Leaves, and by layer the features that are set and cleared
    Text,
    /// The registers alone
    Raw,
    /// One JSON object
    Json,
}

/// `--format` of `satori msrs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MsrForm {
    /// A table
    Text,
    /// A page of documentation
    Markdown,
    /// One JSON object
    Json,
}

/// `satori fetch`.
#[derive(Debug, Args)]
pub struct Fetch {
    /// What to fetch
    pub what: What,
    /// With kernel: a series such as 6.1 or 6.12, or 686 or 686-pae for 32 bits [default: Debian's current one]
    pub series: Option<String>,
    /// Look for newer packages although the last look was less than a day ago
    #[arg(long)]
    pub refresh: bool,
}

/// What `satori fetch` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// A Debian cloud kernel
    Kernel,
    /// Debian's busybox-static
    Busybox,
    /// Debian's memtest86+, a kernel for 'satori run'
    Memtest,
    /// A static program for Linux guests: 'satori-exit N' ends the guest with N at its debug exit
    Exit,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_table_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn qemu_spellings_are_understood() {
        let cli =
            Cli::try_parse_from(["satori", "run", "--kernel", "k", "--smp", "4", "-m", "1024"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(
            (run.machine.processor.cpus, run.machine.memory),
            (Some(Topology::flat(4)), Some(1 << 30))
        );
    }
}
