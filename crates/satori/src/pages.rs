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
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(out.write_all(&text)?)
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
        assert!(page.contains("124"), "the exit statuses are not in the man page");
    }
}
