//! `--share`: folders of this machine that the guest mounts, each served by a process of its own.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use satori_files::{Mode, Protocol, Share};
use satori_machine::{self as machine, Dialect};

use crate::cli;
use crate::commands::run;

/// What changed files may take of the host's memory, for each folder.
const BUDGET: u64 = 4 << 30;

/// A folder that the guest gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// By this the guest mounts it.
    pub tag: String,
    /// What is served.
    pub share: Share,
}

impl Folder {
    /// A folder, served as virtiofs.
    pub fn new(tag: impl Into<String>, root: PathBuf, mode: Mode) -> Folder {
        let share = Share { root, mode, protocol: Protocol::Fuse, as_root: false, budget: BUDGET };
        Folder { tag: tag.into(), share }
    }

    /// The folder of a `--share`, which has to be there: `DIR:TAG[,ro|rw|cow][,9p]`.
    pub fn read(text: &str) -> Result<Folder> {
        let (path, tag, mode, protocol) = parse(text)?;
        let mut folder = Folder::new(tag, existing("--share", &path)?, mode);
        folder.share.protocol = protocol;
        Ok(folder)
    }

    /// Starts its server.
    pub fn serve(&self, flags: &cli::Machine) -> Result<machine::Share> {
        if flags.replay.is_some() {
            // What it said is in the record.
            let (socket, _) = std::os::unix::net::UnixStream::pair()?;
            return Ok(machine::Share { tag: self.tag.clone(), dialect: self.dialect(), socket });
        }
        // The file itself and not its name, which may be another one's by now.
        let helper = satori_files::start("/proc/self/exe".as_ref(), &self.share, run::sandbox_mode(flags))?;
        for measure in &helper.measures {
            tracing::info!("file server of {}: {measure}", self.share.root.display());
        }
        Ok(machine::Share { tag: self.tag.clone(), dialect: self.dialect(), socket: helper.socket })
    }

    fn dialect(&self) -> Dialect {
        match self.share.protocol {
            Protocol::Fuse => Dialect::Fuse,
            Protocol::Plan9 => Dialect::Plan9,
        }
    }
}

/// The folders of the flags, with what goes before them.
pub fn folders<'a>(
    before: impl IntoIterator<Item = &'a Folder>,
    flags: &cli::Machine,
) -> Result<Vec<Folder>> {
    let more = flags.share.iter().map(|text| Folder::read(text)).collect::<Result<Vec<_>>>()?;
    let tags = before.into_iter().map(|folder| folder.tag.clone());
    let mut tags: Vec<_> = tags.chain(more.iter().map(|folder| folder.tag.clone())).collect();
    tags.sort();
    if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("two shares have the tag '{}': name one differently", pair[0]);
    }
    Ok(more)
}

/// An existing folder, by its absolute name.
pub fn existing(flag: &str, path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) if path.is_dir() => Ok(path),
        Ok(_) => bail!("{flag} {} is no folder: name one", path.display()),
        Err(why) => {
            bail!("{flag} {} cannot be found ({}): name a folder", path.display(), crate::late::plain(&why))
        }
    }
}

fn parse(text: &str) -> Result<(PathBuf, String, Mode, Protocol)> {
    let (mut head, mut mode, mut protocol) = (text, None, Protocol::Fuse);
    // A comma in front of the tag is the folder's.
    while let Some((rest, word)) = head.rsplit_once(',').filter(|(_, word)| !word.contains(':')) {
        match Mode::ALL.into_iter().find(|mode| mode.name() == word) {
            Some(known) if mode.is_none() => mode = Some(known),
            Some(_) => bail!("--share {text}: ro, rw and cow exclude one another: write one of them"),
            None if word == Protocol::Plan9.name() => protocol = Protocol::Plan9,
            None => {
                bail!("--share {text}: '{word}' is none of ro, rw, cow and 9p: write DIR:TAG,rw for example")
            }
        }
        head = rest;
    }
    match head.rsplit_once(':') {
        Some((path, tag)) if !path.is_empty() && (1..=36).contains(&tag.len()) => {
            Ok((path.into(), tag.into(), mode.unwrap_or_default(), protocol))
        }
        _ => bail!(
            "--share {text}: write DIR:TAG[,ro|rw|cow][,9p] with a tag of 1 to 36 bytes, as in --share src:source,rw"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_folder_a_tag_and_words() {
        let parsed = |text: &str| {
            let (path, tag, mode, protocol) = parse(text).ok()?;
            Some((path.display().to_string(), tag, mode, protocol))
        };
        assert_eq!(parsed("a:b"), Some(("a".into(), "b".into(), Mode::Ro, Protocol::Fuse)));
        assert_eq!(parsed("/a:c,d:b,cow"), Some(("/a:c,d".into(), "b".into(), Mode::Cow, Protocol::Fuse)));
        assert_eq!(parsed("/a:b,9p,rw"), Some(("/a".into(), "b".into(), Mode::Rw, Protocol::Plan9)));
        assert_eq!(
            parsed("/a:/dev/root,9p"),
            Some(("/a".into(), "/dev/root".into(), Mode::Ro, Protocol::Plan9))
        );
        for wrong in ["a", "a:", ":b", "a:b,rx", "a:b,ro,rw", "a:1234567890123456789012345678901234567"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
