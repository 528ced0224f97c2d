//! A front for tools that call QEMU: `satori qemu ..`, or Satori called as `qemu-system-x86_64`.
//!
//! It understands the words that such tools write, makes a `satori run` of them, and ends with QEMU's statuses. What it does not have it
//! refuses by name, before anything runs: a device that is missing silently would be a test that passes for nothing.

mod chars;
mod devices;
mod folders;
mod machine;
mod numa;
mod words;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Parser;

use crate::cli::{Cli, Command};
use crate::commands::run;
use crate::say::{Out, say};
use crate::status::Status;
use crate::usage;

use chars::Char;
use words::Wishes;

/// The name by which tools call it.
const NAME: &str = "qemu-system-x86_64";

/// Whose words are understood: tools ask for a version, and want one from 4.2 on.
const VERSION: &str = "7.2.0";

/// Makes a list of names.
type List = fn() -> String;

/// What 'help' behind an option lists.
const LISTS: [(&str, List); 5] = [
    ("device", devices::list),
    ("machine", machine::machines),
    ("M", machine::machines),
    ("cpu", machine::models),
    ("accel", machine::accels),
];

/// The words behind the name, if the program was called by QEMU's, whatever folder that is in.
pub fn called() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let name = words.next()?;
    (Path::new(&name).file_name()? == OsStr::new(NAME)).then(|| words.collect())
}

/// Does what QEMU's words say, and gives QEMU's exit status.
pub fn main(words: &[OsString]) -> u8 {
    match asked(words) {
        Some(text) => u8::from(Out.write_all(text.as_bytes()).and_then(|()| Out.flush()).is_err()),
        None => match Wishes::read(words).and_then(perform) {
            Ok(status) => theirs(status),
            Err(error) => {
                say(format_args!("{error:#}"));
                1
            }
        },
    }
}

/// What tools ask before they run anything.
fn asked(words: &[OsString]) -> Option<String> {
    let is = |word: &OsString, names: &[&str]| {
        let word = word.to_string_lossy();
        names.contains(&word.trim_start_matches('-')) && word.starts_with('-')
    };
    if words.iter().any(|word| is(word, &["version"])) {
        // The fourth word is the version.
        let ours = env!("CARGO_PKG_VERSION");
        return Some(format!(
            "QEMU emulator version {VERSION} (Satori {ours}, a front for tools that call QEMU)\n"
        ));
    }
    if words.iter().any(|word| is(word, &["help", "h"])) {
        return Some(words::help());
    }
    let lists = words.windows(2).find(|pair| pair[1] == "help" || pair[1] == "?")?;
    LISTS.iter().find(|(name, _)| is(&lists[0], &[*name])).map(|(_, list)| list())
}

/// Runs the guest.
fn perform(wishes: Wishes) -> Result<Status> {
    let words = wishes.run()?;
    let line = || ["satori", "run"].into_iter().map(OsString::from).chain(words.iter().cloned());
    let mut run = match Cli::try_parse_from(line()) {
        Ok(Cli { command: Command::Run(run) }) => run,
        Ok(_) => anyhow::bail!("these words are none of a guest's: see 'satori qemu --help'"),
        Err(error) => {
            let typed: Vec<_> = line().skip(1).collect();
            anyhow::bail!("{}", usage::line(&error, &typed));
        }
    };
    run.places().check()?;
    // Before the console takes standard output, which ports may lead to.
    run.machine.front = Some(wishes.open_ports()?);
    let console = match &wishes.console {
        Char::Stdio => None,
        Char::Null => Some(Path::new("/dev/null")),
        Char::File(path) => Some(path.as_path()),
        Char::Socket(_) | Char::Tcp(_) => None,
    };
    if let Some(path) = console {
        // The guest's console is on standard output, wherever that leads.
        rustix::stdio::dup2_stdout(chars::create(path)?).context("cannot lead the console there")?;
    }
    let status = run::run(&mut run);
    run.machine.channels().iter().for_each(|channel| channel.finish());
    Ok(status)
}

/// QEMU ends with 0 however a guest ends, but for the debug exit; 1 is a mistake.
fn theirs(status: Status) -> u8 {
    match status {
        Status::DebugExit(_) => status.code(),
        Status::Usage | Status::Internal => 1,
        _ => 0,
    }
}
