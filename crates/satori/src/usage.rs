//! Usage errors in one line.

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::cli::Cli;

/// Whether `error` is a wish for help or a version, which goes to standard output.
pub fn is_help(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// Whether `error` only says that nothing was asked for; it then is the help's text.
pub fn is_empty(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
}

/// What is wrong and what to do, in one line: clap's words without its usage block. `command` is
/// the first word that was typed.
pub fn line(error: &clap::Error, command: Option<&str>) -> String {
    let mut words = Vec::new();
    for paragraph in error.render().to_string().split("\n\n") {
        let joined = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if !joined.starts_with("Usage:") && !joined.starts_with("For more information") {
            words.push(joined.trim_start_matches("error: ").to_string());
        }
    }
    let known = |name: &&str| Cli::command().find_subcommand(name).is_some();
    let help = command.filter(known).map_or("satori --help".into(), |name| format!("satori {name} --help"));
    format!("{}; see '{help}'", words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn refused(args: &[&str]) -> String {
        let error = Cli::try_parse_from([&["satori"], args].concat()).expect_err("must be refused");
        let line = line(&error, args.first().copied());
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
}
