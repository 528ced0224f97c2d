//! The file of `satori test`: kernels, configurations and tests, and the cases that they make.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use serde::Deserialize;

use crate::cli::{Cli, Command};
use crate::inputs::read;

/// Cases of one file.
const CASES: usize = 100_000;

/// How long a case may take where its test says nothing.
const TIMEOUT: &str = "10m";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    kernel: Vec<Kernel>,
    #[serde(default)]
    config: Vec<Config>,
    #[serde(default)]
    test: Vec<Test>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kernel {
    name: String,
    /// As `--kernel`; without it its name.
    kernel: Option<String>,
    modules: Option<PathBuf>,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    name: String,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Test {
    name: String,
    command: Words,
    #[serde(default)]
    options: Vec<String>,
    /// The status that means success.
    #[serde(default)]
    expect: u8,
    #[serde(default)]
    ktap: bool,
    timeout: Option<String>,
    #[serde(default)]
    retries: u32,
    /// Where it begins.
    dir: Option<PathBuf>,
    /// Kernels and configurations that it is for.
    kernels: Option<Vec<String>>,
    configs: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Words {
    Shell(String),
    List(Vec<String>),
}

/// One test with one configuration in one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// From 1, in the file's order.
    pub(crate) number: usize,
    /// `test/kernel/config`; what the file does not name is left out.
    pub(crate) name: String,
    /// The words behind `satori run` up to `--`.
    pub(crate) options: Vec<String>,
    /// The command.
    pub(crate) words: Vec<String>,
    /// The status that means success.
    pub(crate) expect: u8,
    /// It tells KTAP.
    pub(crate) ktap: bool,
    /// How often it is run again when it failed.
    pub(crate) retries: u32,
    /// Where it begins.
    pub(crate) dir: PathBuf,
}

impl Case {
    /// A name for its files.
    pub(crate) fn file(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        format!("{:04}-{}", self.number, self.name.chars().map(plain).take(100).collect::<String>())
    }
}

/// Reads a file and makes its cases.
pub(crate) fn cases(path: &Path) -> Result<Vec<Case>> {
    let shown = path.display();
    let text = String::from_utf8(read("the matrix", path)?);
    let Ok(text) = text else { bail!("{shown} is no text: name a TOML file (docs/test.md)") };
    let folder = std::path::absolute(path)?.parent().map_or_else(|| "/".into(), Path::to_path_buf);
    match toml::from_str::<File>(&text) {
        Ok(file) => file.cases(&folder).map_err(|why| why.context(format!("{shown}"))),
        Err(why) => {
            let at = why.span().map_or(0, |span| span.start);
            let line = text[..text.floor_char_boundary(at)].matches('\n').count() + 1;
            bail!("{shown}, line {line}: {}: see docs/test.md", why.message())
        }
    }
}

impl File {
    fn cases(mut self, folder: &Path) -> Result<Vec<Case>> {
        if self.test.is_empty() {
            bail!("there is no test in it: write a [[test]] with a name and a command");
        }
        unique("kernel", self.kernel.iter().map(|kernel| &kernel.name))?;
        unique("config", self.config.iter().map(|config| &config.name))?;
        unique("test", self.test.iter().map(|test| &test.name))?;
        if self.config.is_empty() {
            self.config.push(Config::default());
        }
        let kernels: Vec<_> = match self.kernel.is_empty() {
            true => vec![None],
            false => self.kernel.iter().map(Some).collect(),
        };
        let mut cases = Vec::new();
        for test in &self.test {
            known("kernels", test, test.kernels.as_deref(), self.kernel.iter().map(|kernel| &kernel.name))?;
            known("configs", test, test.configs.as_deref(), self.config.iter().map(|config| &config.name))?;
            for &kernel in &kernels {
                for config in &self.config {
                    let takes = |list: &Option<Vec<String>>, name| {
                        list.as_ref().is_none_or(|list| list.contains(name))
                    };
                    if kernel.is_some_and(|kernel| !takes(&test.kernels, &kernel.name))
                        || !takes(&test.configs, &config.name)
                    {
                        continue;
                    }
                    if cases.len() == CASES {
                        bail!("it makes more than {CASES} cases: divide it");
                    }
                    cases.push(test.case(cases.len() + 1, kernel, config, folder)?);
                }
            }
        }
        if cases.is_empty() {
            bail!("it makes no case: every test is for kernels or configurations that are not there");
        }
        Ok(cases)
    }
}

impl Test {
    fn case(&self, number: usize, kernel: Option<&Kernel>, config: &Config, folder: &Path) -> Result<Case> {
        let named = [Some(&self.name), kernel.map(|kernel| &kernel.name), Some(&config.name)];
        let name = named
            .into_iter()
            .flatten()
            .filter(|name| !name.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join("/");
        let mut options = Vec::new();
        if let Some(kernel) = kernel {
            let wanted = kernel.kernel.as_ref().unwrap_or(&kernel.name);
            // What is there beside the file is meant, wherever it is called from.
            let near = folder.join(wanted);
            options.push("--kernel".into());
            options.push(if near.exists() { near.to_string_lossy().into_owned() } else { wanted.clone() });
            if let Some(modules) = &kernel.modules {
                options.extend(["--modules".into(), folder.join(modules).to_string_lossy().into_owned()]);
            }
            options.extend_from_slice(&kernel.options);
        }
        options.extend_from_slice(&config.options);
        options.extend_from_slice(&self.options);
        if !options.iter().any(|option| option == "--timeout" || option.starts_with("--timeout=")) {
            options.extend(["--timeout".into(), self.timeout.clone().unwrap_or_else(|| TIMEOUT.into())]);
        }
        let words: Vec<String> = match &self.command {
            Words::Shell(text) => ["/bin/sh", "-c", text].map(str::to_owned).into(),
            Words::List(words) => words.clone(),
        };
        if words.first().is_none_or(String::is_empty)
            || words.last().is_some_and(|word| word.trim().is_empty()) && words.len() == 3
        {
            bail!(
                "test '{}' has an empty command: write what is run, as command = \"make check\"",
                self.name
            );
        }
        for ours in ["--status-file", "--junit", "--ktap"] {
            if options.iter().any(|option| option.split('=').next() == Some(ours)) {
                bail!("case '{name}': {ours} is Satori's own here: leave it out (ktap = true judges KTAP)");
            }
        }
        let case = Case {
            number,
            name,
            options,
            words,
            expect: self.expect,
            ktap: self.ktap,
            retries: self.retries,
            dir: folder.join(self.dir.as_deref().unwrap_or(Path::new("."))),
        };
        case.check()?;
        Ok(case)
    }
}

impl Case {
    /// The words behind `satori`, with those that we add.
    pub(crate) fn arguments(&self, status: &Path) -> Vec<String> {
        let status = status.to_string_lossy().into_owned();
        let ours = ["run", "--input", "none", "--status-file", &status].map(str::to_owned);
        ours.into_iter()
            .chain(self.options.iter().cloned())
            .chain(["--".into()])
            .chain(self.words.iter().cloned())
            .collect()
    }

    /// Refuses what `satori run` would not understand, before anything was run.
    fn check(&self) -> Result<()> {
        let words = || std::iter::once("satori".to_owned()).chain(self.arguments(Path::new("/status")));
        match Cli::try_parse_from(words()) {
            Ok(Cli { command: Command::Run(run) }) if !run.command.words.is_empty() => {}
            Ok(_) => bail!("case '{}': its options are no options of 'satori run'", self.name),
            Err(why) => {
                let words: Vec<_> = words().skip(1).map(Into::into).collect();
                bail!("case '{}': {}", self.name, crate::usage::line(&why, &words))
            }
        }
        if !self.dir.is_dir() {
            bail!("case '{}': {} is no folder: name one with dir", self.name, self.dir.display());
        }
        Ok(())
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.trim().is_empty() {
            bail!("a {what} has an empty name: give it one");
        }
        if !seen.insert(name) {
            bail!("there are two of {what} '{name}': name one differently");
        }
    }
    Ok(())
}

fn known<'a>(
    key: &str,
    test: &Test,
    list: Option<&[String]>,
    names: impl Iterator<Item = &'a String>,
) -> Result<()> {
    let names: Vec<_> = names.collect();
    for name in list.unwrap_or_default() {
        if !names.contains(&name) {
            bail!("{key} of test '{}' has '{name}', which the file does not describe", test.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<Case>, String> {
        let folder =
            std::env::temp_dir().join(format!("satori-matrix-{}-{}", std::process::id(), text.len()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("t.toml");
        std::fs::write(&path, text).unwrap();
        let cases = cases(&path).map_err(|why| format!("{why:#}"));
        std::fs::remove_dir_all(folder).unwrap();
        cases
    }

    #[test]
    fn every_test_meets_every_kernel_and_configuration() {
        let text = "
            [[kernel]]
            name = '6.1'
            [[kernel]]
            name = 'mine'
            kernel = '6.12'
            options = ['--append', 'quiet']
            [[config]]
            name = 'one'
            [[config]]
            name = 'two'
            options = ['--cpus', '2']
            [[test]]
            name = 'a'
            command = 'exit 3'
            expect = 3
            [[test]]
            name = 'b'
            command = ['true', 'x']
            kernels = ['mine']
            configs = ['two']
            timeout = '5s'";
        let cases = of(text).unwrap();
        let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["a/6.1/one", "a/6.1/two", "a/mine/one", "a/mine/two", "b/mine/two"]);
        let last = &cases[4];
        assert_eq!(last.options, ["--kernel", "6.12", "--append", "quiet", "--cpus", "2", "--timeout", "5s"]);
        assert_eq!(
            (last.number, &last.words[..], cases[0].expect),
            (5, &["true".to_owned(), "x".to_owned()][..], 3)
        );
        assert_eq!(cases[0].words, ["/bin/sh", "-c", "exit 3"]);
        assert_eq!(of("[[test]]\nname='t'\ncommand='true'").unwrap()[0].name, "t");
    }

    #[test]
    fn a_files_mistakes_are_named() {
        for (text, said) in [
            ("", "is empty: name another file"),
            ("# nothing\n", "there is no test in it"),
            ("[[test]]\nname = 'a'\n", "line 1: missing field `command`"),
            ("[[test]]\nname = 'a'\ncommand = 'x'\ntimout = '1s'\n", "line 4: unknown field `timout`"),
            ("[[test]]\nname = 'a'\ncommand = ''\n", "has an empty command"),
            (
                "[[test]]\nname = 'a'\ncommand = 'x'\nkernels = ['k']\n",
                "has 'k', which the file does not describe",
            ),
            ("[[test]]\nname = 'a'\ncommand = 'x'\n[[test]]\nname = 'a'\ncommand = 'x'\n", "two of test 'a'"),
            ("[[test]]\nname = 'a'\ncommand = 'x'\noptions = ['--cpu', 'x', '--nonsense']\n", "case 'a': "),
            (
                "[[test]]\nname = 'a'\ncommand = 'x'\noptions = ['--junit=x']\n",
                "--junit is Satori's own here",
            ),
            ("[[test]]\nname = 'a'\ncommand = 'x'\ndir = '/nonexistent'\n", "/nonexistent is no folder"),
            ("[[test]]\nname = 'a'\ncommand = 'x'\ntimeout = 'soon'\n", "case 'a': "),
            ("[[test\n", "line 1: "),
        ] {
            let why = of(text).unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
        }
    }
}
