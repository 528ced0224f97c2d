//! Folders of this machine in QEMU's words: 9P, as -fsdev and -virtfs have it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::words::Wishes;

/// A `-fsdev local`.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
    readonly: bool,
}

/// How a folder reaches the guest.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// The `-fsdev`, which may come later.
    id: String,
    tag: String,
}

impl Wishes {
    /// The folder of `local,id=ID,path=DIR,..`, with what -virtfs has beside it.
    fn folder(option: &str, text: &str) -> Result<(Option<String>, Option<String>, Folder)> {
        let (kind, parts) = Wishes::parts(text);
        if kind != "local" {
            bail!("{option} {text}: there is no '{kind}' here: write local");
        }
        let (mut id, mut tag) = (None, None);
        let mut folder = Folder { path: PathBuf::new(), readonly: false };
        for (key, value) in parts {
            match (key, value) {
                ("id", name) => id = Some(name.to_owned()),
                ("mount_tag", name) => tag = Some(name.to_owned()),
                ("path", path) => folder.path = path.into(),
                ("readonly", word) => folder.readonly = word == "on",
                // Who serves is who calls, as with these two.
                ("security_model", "none" | "passthrough") => {}
                ("security_model", other) => bail!(
                    "{option} {text}: owners are kept as they are and not as '{other}' has them: write security_model=none"
                ),
                // The numbers of files on several file systems never meet.
                ("multidevs", "remap" | "warn" | "forbid") | ("writeout", "immediate") => {}
                _ => bail!("{option} {text}: '{key}={value}' is not understood here: leave it out"),
            }
        }
        if folder.path.as_os_str().is_empty() {
            bail!("{option} {text}: write path=DIR");
        }
        Ok((id, tag, folder))
    }

    pub(super) fn fsdev(&mut self, text: &str) -> Result<()> {
        let (id, _, folder) = Wishes::folder("-fsdev", text)?;
        let Some(id) = id else { bail!("-fsdev {text}: write id=NAME") };
        self.folders.insert(id, folder);
        Ok(())
    }

    /// `-virtfs`, which is `-fsdev` and its device in one.
    pub(super) fn virtfs(&mut self, text: &str) -> Result<()> {
        let (id, tag, folder) = Wishes::folder("-virtfs", text)?;
        let Some(tag) = tag else { bail!("-virtfs {text}: write mount_tag=TAG") };
        let id = id.unwrap_or_else(|| format!("virtfs of {tag}"));
        self.folders.insert(id.clone(), folder);
        self.mounts.push(Mount { id, tag });
        Ok(())
    }

    /// `-device virtio-9p-pci`, by its properties.
    pub(super) fn mount(&mut self, text: &str, id: Option<&str>, tag: Option<&str>) -> Result<()> {
        match (id, tag) {
            (Some(id), Some(tag)) => self.mounts.push(Mount { id: id.into(), tag: tag.into() }),
            _ => bail!("-device {text}: write fsdev=ID,mount_tag=TAG"),
        }
        Ok(())
    }

    /// Folders as words of `satori run`.
    pub(super) fn put_folders(&self, all: &mut Vec<OsString>) -> Result<()> {
        for Mount { id, tag } in &self.mounts {
            let Some(folder) = self.folders.get(id) else {
                bail!("-device virtio-9p-pci,fsdev={id},mount_tag={tag}: there is no -fsdev with id={id}");
            };
            let mut word = folder.path.clone().into_os_string();
            word.push(format!(":{tag},{},9p", if folder.readonly { "ro" } else { "rw" }));
            all.extend([OsString::from("--share"), word]);
        }
        Ok(())
    }
}
