//! Usage errors in one line.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::cli::Cli;

/// Whether `error` is a wish for help or a version, which goes to standard output.
pub fn is_help(error: &clap::Error, typed: &[OsString]) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) && !is_qemus_disk(typed)
}

/// Whether a guest's `-hda` is among the words, which is no -h.
fn is_qemus_disk(typed: &[OsString]) -> bool {
    let mut words = typed.iter().take_while(|word| *word != "--");
    words.next().is_some_and(|word| word == "run") && words.any(|word| word == "-hda" || word == "-hdb")
}

/// Whether `error` only says that nothing was asked for; it then is the help's text.
pub fn is_empty(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
}

/// What is wrong and what to do, in one line: clap's words without its usage block. `typed` are the words that
/// were typed, the command first.
pub fn line(error: &clap::Error, typed: &[OsString]) -> String {
    let typed: Vec<_> = typed.iter().map(|word| word.to_string_lossy()).collect();
    let root = Cli::command();
    let command = typed.first().and_then(|name| root.find_subcommand(name.as_ref()));
    let help =
        command.map_or("satori --help".into(), |command| format!("satori {} --help", command.get_name()));
    if let Some(hint) = command.and_then(|command| instead(command, &typed[1..])) {
        return format!("{hint}; see '{help}'");
    }
    if error.kind() == ErrorKind::MissingRequiredArgument && typed.last().is_some_and(|word| word == "--") {
        return format!("nothing stands behind '--': write the command that is to run there; see '{help}'");
    }
    let mut words = Vec::new();
    for paragraph in error.render().to_string().split("\n\n") {
        let joined = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        // What stands behind '--' is a command of the guest's, and never what was meant.
        let noise = ["Usage:", "For more information", "tip: to pass"];
        if !noise.iter().any(|noise| joined.starts_with(noise)) {
            words.push(joined.trim_start_matches("error: ").to_string());
        }
    }
    format!("{}; see '{help}'", words.join("; "))
}

/// QEMU's words that are no name of ours with one dash: what to write instead of them.
const QEMU: &[(&str, &str)] = &[
    ("nographic", "leave it out: the console is on standard output"),
    ("display", "leave it out: there is no display, the console is on standard output"),
    ("enable-kvm", "leave it out: 'satori engines' tells what executes guests"),
    ("accel", "write --engine: 'satori engines' tells what executes guests"),
    ("machine", "leave it out: there is one machine"),
    ("serial", "leave it out: the first serial port is standard output and input"),
    ("no-reboot", "write --on-reset exit"),
    ("gdb", "write --gdb"),
    ("device", "leave it out: the machine has its devices, and --testdev those for tests"),
    ("drive", "write --disk FILE"),
    ("hda", "write --disk FILE"),
    ("hdb", "write --disk FILE"),
    ("cdrom", "write --disk FILE,readonly"),
    ("snapshot", "write --disk FILE,snapshot"),
    ("bios", "leave it out: kernels are booted without firmware"),
    ("M", "leave it out: there is one machine"),
    ("nodefaults", "leave it out: what no flag asks for is not there"),
    ("vga", "leave it out: there is no display, the console is on standard output"),
    ("monitor", "leave it out: --gdb and --stats-socket look into the guest"),
    ("qmp", "leave it out: --gdb and --stats-socket look into the guest"),
    ("chardev", "write --serial FILE"),
    ("debugcon", "leave it out: port e9 is on standard output"),
    ("virtfs", "write --share DIR:TAG,9p"),
    ("fsdev", "write --share DIR:TAG,9p"),
    ("netdev", "write --net user"),
    ("nic", "write --net user"),
    ("icount", "write --clock virtual"),
    ("d", "write --trace FILE"),
];

/// What to write instead of the first word of `typed` that begins as a flag does and is none.
fn instead(command: &clap::Command, typed: &[Cow<str>]) -> Option<String> {
    let long = |name: &str| {
        let mut flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
        flags.find(|flag| {
            flag.get_long() == Some(name)
                || flag.get_visible_aliases().is_some_and(|aliases| aliases.contains(&name))
        })
    };
    let mut before: Option<&str> = None;
    for word in typed.iter().take_while(|word| *word != "--") {
        let last = before.replace(word.as_ref());
        let Some(name) = word.strip_prefix('-').filter(|name| !name.starts_with('-')) else { continue };
        let is_short = |letter: char| command.get_arguments().any(|flag| flag.get_short() == Some(letter));
        if name.len() > 1 {
            // Of '-append=x' and '-m512' the name is what letters and dashes make.
            let end = name.find(|c: char| !c.is_ascii_alphabetic() && c != '-').unwrap_or(name.len());
            let (name, value) = name.split_at(end);
            if name.len() > 1 && long(name).is_some() {
                return Some(format!("-{name}{value} is QEMU's spelling: write --{name}{value}"));
            }
        }
        if let Some((_, hint)) = QEMU.iter().find(|(known, _)| *known == name)
            && !(name.len() == 1 && name.chars().all(is_short))
        {
            return Some(format!("-{name} is QEMU's: {hint}"));
        }
        // A value that begins with a dash, as -1G.
        let flag = last.filter(|flag| match flag.strip_prefix("--") {
            Some(flag) => long(flag).is_some(),
            None => flag.strip_prefix('-').is_some_and(|flag| flag.len() == 1 && flag.chars().all(is_short)),
        });
        if let Some(flag) = flag
            && name.starts_with(|c: char| c.is_ascii_digit())
        {
            let shown = match last {
                Some("-m" | "--memory") => ", such as 512M or 4G",
                Some("--cpus" | "--smp") => ", such as 4",
                Some("--timeout" | "--guest-timeout") => ", such as 90s",
                _ => "",
            };
            return Some(format!("{word} is below zero: write a number above zero for {flag}{shown}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn refused(args: &[&str]) -> String {
        let error = Cli::try_parse_from([&["satori"], args].concat()).expect_err("must be refused");
        let typed: Vec<_> = args.iter().map(OsString::from).collect();
        let line = line(&error, &typed);
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn one_line_says_what_to_do() {
        let line = refused(&["run"]);
        assert!(line.contains("--kernel <FILE>") && line.ends_with("see 'satori run --help'"), "{line}");
        let line = refused(&["run", "--kernel", "k", "--kernle", "k"]);
        assert!(line.contains("'--kernle'") && line.contains("'--kernel'"), "{line}");
        let line = refused(&["run", "--kernel", "k", "--cmdline", "a", "--append", "b"]);
        assert!(line.contains("'--cmdline <TEXT>' cannot be used with '--append <TEXT>'"), "{line}");
        let line = refused(&["run", "--kernel", "k", "-m", "100T"]);
        assert!(line.contains("128M to 64G") && line.ends_with("see 'satori run --help'"), "{line}");
        assert!(refused(&["frob"]).ends_with("see 'satori --help'"));
    }

    #[test]
    fn qemus_spellings_and_numbers_below_zero_say_what_to_write() {
        for (words, told) in [
            (
                &["-m", "-1G"][..],
                "-1G is below zero: write a number above zero for -m, such as 512M or 4G; see",
            ),
            (&["--memory", "-1"], "such as 512M or 4G"),
            (&["--cpus", "-4"], "-4 is below zero: write a number above zero for --cpus, such as 4"),
            (&["--timeout", "-5s"], "such as 90s"),
            (&["--report-vcpu", "-1"], "for --report-vcpu"),
            (&["-smp", "2"], "-smp is QEMU's spelling: write --smp"),
            (&["-append", "quiet"], "write --append"),
            (&["-initrd", "x"], "write --initrd"),
            (&["-cpu", "host"], "write --cpu"),
            (&["-kernel=x"], "write --kernel=x"),
            (&["-nographic"], "-nographic is QEMU's: leave it out"),
            (&["-no-reboot"], "--on-reset exit"),
            (&["-enable-kvm"], "satori engines"),
            (&["-d", "int"], "--trace"),
            (&["-hda", "x"], "write --disk FILE"),
            (&["-monitor", "none"], "-monitor is QEMU's: leave it out"),
            (&["-virtfs", "x"], "write --share"),
        ] {
            let line = refused(&[&["run", "--kernel", "k"], words].concat());
            assert!(line.contains(told) && line.ends_with("see 'satori run --help'"), "{words:?}: {line}");
        }
        let words = ["run", "-hda", "x"].map(OsString::from);
        let help = Cli::try_parse_from(["satori", "run", "-hda", "x"]).expect_err("clap reads -h");
        assert!(!is_help(&help, &words) && is_help(&help, &words[..1]));
        assert!(!refused(&["run", "--kernel", "k", "-y"]).contains("'--"));
        let line = refused(&["run", "-kernel", "k"]);
        assert!(line.starts_with("-kernel is QEMU's spelling: write --kernel;"), "{line}");
        let line = refused(&["run", "--kernel", "k", "-mmuch"]);
        assert!(line.contains("such as 512M"), "a value of a short flag is none of QEMU's: {line}");
    }
}
