//! The flag table: parsing, help, completions and the man page all come from here.

mod machine;
mod processor;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use satori_machine::{BootProtocol, ProtocolChoice};

pub use self::machine::{Apic, Clock, Engine, Front, Machine, OnReset, Perf, Report, Sandbox, Testdev};
pub use self::processor::{CpuFlags, ModelFlags, Nested};
pub use crate::command::flags::RunCommand;
use crate::commands::{bench, costs, initrd, reports, test, top};
use crate::footers::{ADVISE_FOOTER, DEMO_FOOTER, FETCH_ABOUT, run_footer};

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
    /// Run commands in many kernels and configurations, several at a time, and tell what became of them
    #[command(after_long_help = test::flags::FOOTER)]
    Test(test::flags::Test),
    /// Do what QEMU's words say, for tools that call qemu-system-x86_64; Satori called by that name does the same
    #[command(disable_help_flag = true)]
    Qemu {
        /// Words as QEMU has them; --help lists those that are understood
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
        words: Vec<OsString>,
    },
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
    Hyperv(Offers),
    /// What is offered of KVM's guest interface: list it, check options, convert them
    #[command(subcommand)]
    Kvm(Offers),
    /// What is offered of Xen's interface: list its features and hypercalls, check options, convert them
    #[command(subcommand)]
    Xen(Offers),
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
    /// kernel; with --arch arm64 an Image (Debian's vmlinuz). With a COMMAND also a series such as 6.12, which is fetched, a package's file (.deb) or a kernel's build
    /// tree [default with a COMMAND: the newest that was fetched]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present_any = ["libvirt", "words"])]
    pub kernel: Option<PathBuf>,
    /// An initial ramdisk; several are joined in the order given. For a multiboot kernel, and for Xen at its PVH entry, modules,
    /// as QEMU has them: "FILE ARGS,FILE"
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub initrd: Vec<OsString>,
    /// A module of such a kernel, after those of --initrd, and its arguments: "FILE ARGS"
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub module: Vec<OsString>,
    /// The guest's instruction set. arm64 is a machine of AArch64: GICv3, PL011, PSCI (docs/arm.md). Options that make no
    /// sense there are refused
    #[arg(long, value_name = "ARCH", default_value = "x86_64")]
    pub arch: Arch,
    /// With --arch arm64: the highest exception level of the processors, at which the kernel is entered. At 2 it can run guests
    /// [default: 1]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub el: Option<u8>,
    /// With --el 2: leave the Virtualization Host Extensions out, so that Linux keeps only a part of KVM in EL2
    #[arg(long)]
    pub no_vhe: bool,
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
    /// The kernel's whole command line [default: console=ttyS0; for a multiboot kernel nothing; for arm64 console=ttyAMA0]
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
    pub processor: CpuFlags,
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
    pub processor: CpuFlags,
    /// Also those that this processor does not have
    #[arg(long)]
    pub all: bool,
    /// How it is printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: MsrForm,
}

/// `satori hyperv`, `satori kvm` and `satori xen`.
#[derive(Debug, Subcommand)]
pub enum Offers {
    /// List what can be offered: what it is called, what it needs, and what the default is
    List {
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: MsrForm,
    },
    /// Tell what options come to: what is on, who decided it, what was missing, what conflicts
    Check {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        processor: CpuFlags,
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Write the same choice in another spelling
    Convert {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        processor: CpuFlags,
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
    /// --hyperv, --kvm or --xen
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
    /// The guest's instruction set; of kernels and busybox
    #[arg(long, value_name = "ARCH", default_value = "x86_64")]
    pub arch: Arch,
    /// With kernel: a series such as 6.1 or 6.12, amd64 for the current one with drivers for every machine, or 686 or 686-pae for
    /// 32 bits [default: Debian's current one for clouds]
    pub series: Option<String>,
    /// Look for newer packages although the last look was less than a day ago
    #[arg(long)]
    pub refresh: bool,
}

/// `--arch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    /// x86: 64 bits, and 32
    #[value(name = "x86_64", alias = "amd64")]
    X86,
    /// AArch64
    #[value(alias = "aarch64")]
    Arm64,
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
    /// Debian's Xen, a multiboot kernel for 'satori run'
    Xen,
    /// Debian's xen-shim: Xen as a PVH guest, for one paravirtual kernel
    XenShim,
    /// A static program for Linux guests: 'satori-exit N' ends the guest with N at its debug exit
    Exit,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use satori_cpuid::Topology;

    use super::*;

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
