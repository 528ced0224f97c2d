//! The options of a command: which folders it sees, and what does not go with it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use satori_files::{Mode, Share};

use super::refused;
use crate::cli;
use crate::output::Newlines;

/// What changed files may take of the host's memory, for each folder.
const BUDGET: u64 = 4 << 30;

/// The root's tag.
const ROOT: &str = "satori-root";

/// A folder that the guest gets.
#[derive(Clone, Debug)]
pub struct Folder {
    /// By this the guest mounts it.
    pub tag: String,
    /// What is served.
    pub share: Share,
    /// Where our init mounts it; none if the guest does that itself.
    pub place: Option<PathBuf>,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The root first.
    all: Vec<Folder>,
    /// Where the command begins.
    pub cwd: PathBuf,
}

impl Folders {
    /// The folders that the options ask for.
    pub fn of(flags: &cli::RunCommand) -> Result<Folders> {
        let mode = if flags.rw { Mode::Rw } else { Mode::Cow };
        let root = match &flags.root {
            Some(path) => folder("--root", path)?,
            None => PathBuf::from("/"),
        };
        let share = |root, mode| Share { root, mode, budget: BUDGET };
        let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let inside = root.join(cwd.strip_prefix("/").unwrap_or(&cwd));
        let cwd = if flags.root.is_some() && !inside.is_dir() { "/".into() } else { cwd };
        let first = Folder { tag: ROOT.into(), share: share(root, mode), place: Some("/".into()) };
        let mut all = vec![first];
        for (path, number) in flags.rwdir.iter().zip(1..) {
            let path = folder("--rwdir", path)?;
            let tag = format!("satori-rw{number}");
            all.push(Folder { tag, share: share(path.clone(), Mode::Rw), place: Some(path) });
        }
        for text in &flags.share {
            let (path, tag, mode) = parse(text)?;
            all.push(Folder { tag, share: share(folder("--share", &path)?, mode), place: None });
        }
        let mut tags: Vec<_> = all.iter().map(|folder| &folder.tag).collect();
        tags.sort();
        if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("two shares have the tag '{}': name one differently", pair[0]);
        }
        Ok(Folders { all, cwd })
    }

    /// All folders, the root first.
    pub fn all(&self) -> &[Folder] {
        &self.all
    }
}

/// An existing folder, by its absolute name.
fn folder(flag: &str, path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) if path.is_dir() => Ok(path),
        Ok(_) => bail!("{flag} {} is no folder: name one", path.display()),
        Err(why) => {
            bail!("{flag} {} cannot be found ({}): name a folder", path.display(), crate::late::plain(&why))
        }
    }
}

/// `DIR:TAG[,ro|rw|cow]`.
fn parse(text: &str) -> Result<(PathBuf, String, Mode)> {
    let (head, mode) = match text.rsplit_once(',') {
        None => (text, Mode::Ro),
        Some((head, word)) => match Mode::ALL.into_iter().find(|mode| mode.name() == word) {
            Some(mode) => (head, mode),
            None => bail!("--share {text}: '{word}' is none of ro, rw and cow: write DIR:TAG,rw for example"),
        },
    };
    match head.rsplit_once(':') {
        Some((path, tag)) if !path.is_empty() && (1..=36).contains(&tag.len()) => {
            Ok((path.into(), tag.into(), mode))
        }
        _ => bail!(
            "--share {text}: write DIR:TAG[,ro|rw|cow] with a tag of 1 to 36 bytes, as in --share src:source,rw"
        ),
    }
}

/// Refuses options that say nothing with a command.
pub fn check(flags: &cli::Run) -> Result<()> {
    let machine = &flags.machine;
    if !flags.initrd.is_empty() || !flags.module.is_empty() {
        refused("--initrd", "the initial ramdisk is Satori's own")?;
    }
    if flags.boot != cli::Boot::Auto {
        refused("--boot", "how the kernel is entered is Satori's choice")?;
    }
    if machine.clock == cli::Clock::Virtual {
        refused("--clock virtual", "shared folders are not the same every time")?;
    }
    for (given, name) in [
        (machine.perf.is_some(), "--perf"),
        (machine.console_newlines != Newlines::Raw, "--console-newlines"),
    ] {
        if given {
            refused(name, "this version has it for whole guests only")?;
        }
    }
    crate::run::report_of(machine, machine.processor.cpus.unwrap_or_default().cpus())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_folder_a_tag_and_a_mode() {
        let parsed =
            |text: &str| parse(text).ok().map(|(path, tag, mode)| (path.display().to_string(), tag, mode));
        assert_eq!(parsed("a:b"), Some(("a".into(), "b".into(), Mode::Ro)));
        assert_eq!(parsed("/a:c,d:b,cow"), Some(("/a:c,d".into(), "b".into(), Mode::Cow)));
        for wrong in ["a", "a:", ":b", "a:b,rx", "a:1234567890123456789012345678901234567"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
