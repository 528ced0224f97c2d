//! Completions and man pages, made from the flag table.

use std::io::{self, Write};

use anyhow::{Result, bail};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

/// Writes completions for `shell` to `out`.
pub fn completions(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "satori", &mut text);
    out.write_all(&text)
}

/// Writes the man page of satori, or of its command `name`, to `out`.
pub fn man(name: Option<&str>, out: &mut dyn Write) -> Result<()> {
    let mut root = Cli::command();
    root.build();
    let command = match name {
        None => root,
        Some(name) => match root.find_subcommand(name) {
            Some(found) => found.clone(),
            None => bail!("there is no command '{name}': see 'satori --help'"),
        },
    };
    let synopsis = synopsis(&command);
    let page = clap_mangen::Man::new(command)
        .date(env!("SATORI_DATE"))
        .source(concat!("Satori ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    // clap_mangen's synopsis has flags without their values.
    let text = String::from_utf8(text)?;
    let (before, rest) = text.split_once(SYNOPSIS).unwrap_or((&text, ""));
    let after = rest.find("\n.SH ").map_or("", |at| &rest[at..]);
    Ok(write!(out, "{before}{SYNOPSIS}\n{synopsis}{after}")?)
}

const SYNOPSIS: &str = ".SH SYNOPSIS";

/// How `command` is written: its flags with their values, then what has no flag.
fn synopsis(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut text = format!("\\fB{}\\fR", roff(name));
    let shown = || command.get_arguments().filter(|argument| !argument.is_hide_set());
    for argument in shown().filter(|argument| !argument.is_positional()) {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let flag = long.or(argument.get_short().map(|short| format!("-{short}"))).unwrap_or_default();
        let takes = argument.get_action().takes_values();
        let names = argument.get_value_names().filter(|_| takes).unwrap_or_default();
        let values: String = names.iter().map(|name| format!(" \\fI{}\\fR", roff(name))).collect();
        let one = format!("\\fB{}\\fR{values}", roff(&flag));
        text += &if argument.is_required_set() { format!(" {one}") } else { format!(" [{one}]") };
    }
    for argument in shown().filter(|argument| argument.is_positional()) {
        let name =
            argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
        let dashes = if argument.is_last_set() { "-- " } else { "" };
        let one = format!("{dashes}\\fI{}\\fR", roff(name));
        text += &if argument.is_required_set() { format!(" {one}") } else { format!(" [{one}]") };
    }
    if command.has_subcommands() {
        text += " <\\fIcommand\\fR>";
    }
    text
}

/// Text in which nothing is a command of roff's.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_reaches_the_man_page_and_the_completions() {
        let (mut page, mut completed) = (Vec::new(), Vec::new());
        man(Some("run"), &mut page).unwrap();
        completions(Shell::Bash, &mut completed).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        let completed = String::from_utf8(completed).unwrap();
        let root = Cli::command();
        let shown = root.find_subcommand("run").unwrap().get_arguments().filter(|a| !a.is_hide_set());
        for flag in shown.filter_map(|a| a.get_long()) {
            let flag = format!("--{flag}");
            assert!(page.contains(&flag), "{flag} is not in the man page");
            assert!(completed.contains(&flag), "{flag} is not completed");
        }
        assert!(page.contains("[\\fB--memory\\fR \\fISIZE\\fR]"), "a value in the synopsis");
        assert!(
            page.contains("\n.SH DESCRIPTION") && page.contains("\n.SH OPTIONS"),
            "what follows the synopsis"
        );
        assert!(page.contains("124"), "the exit statuses are not in the man page");
    }
}
