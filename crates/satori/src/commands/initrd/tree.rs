//! A folder of the host as entries of an archive.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cpio::Cpio;
use crate::late::plain;
use crate::say::say;

/// The largest archive: a guest unpacks it into memory, beside the archive itself.
const LARGEST: u64 = 4 << 30;

/// Kind and permissions of `st_mode`.
const MODE: u32 = 0o177_777;

/// Adds all that is in `folder`, in the order of the names' bytes. Times and owners are left out: the same files are the
/// same archive, whoever packs them.
pub(super) fn add(cpio: &mut Cpio, folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        bail!("{} is no folder: name the one that becomes the guest's root", folder.display());
    }
    walk(cpio, folder, Path::new(""))
}

fn walk(cpio: &mut Cpio, folder: &Path, inside: &Path) -> Result<()> {
    let cannot = |why: std::io::Error| format!("cannot read {} ({})", folder.display(), plain(&why));
    let entries = std::fs::read_dir(folder).map_err(|why| anyhow::anyhow!(cannot(why)))?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let (path, place) = (folder.join(&name), inside.join(&name));
        let about = path.symlink_metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        one(cpio, &path, &place, &about)?;
        if about.is_dir() {
            walk(cpio, &path, &place)?;
        }
    }
    Ok(())
}

fn one(cpio: &mut Cpio, path: &Path, place: &PathBuf, about: &Metadata) -> Result<()> {
    let (kind, mode) = (about.file_type(), about.mode() & MODE);
    if kind.is_socket() {
        say(format_args!("{} is a socket, which an archive cannot hold: left out", path.display()));
        return Ok(());
    }
    if kind.is_symlink() {
        let target = path.read_link().with_context(|| format!("cannot read {}", path.display()))?;
        cpio.link(place, target);
        return Ok(());
    }
    let device = if kind.is_char_device() || kind.is_block_device() {
        (rustix::fs::major(about.rdev()), rustix::fs::minor(about.rdev()))
    } else {
        (0, 0)
    };
    if kind.is_file() && cpio.size().saturating_add(about.len()) > LARGEST {
        bail!(
            "the archive would be larger than 4 GiB, at {}: pack less, or give the guest a --disk",
            path.display()
        );
    }
    let content = if kind.is_file() {
        std::fs::read(path).map_err(|why| {
            anyhow::anyhow!(
                "cannot read {} ({}): make it readable, or take it out of the folder",
                path.display(),
                plain(&why)
            )
        })?
    } else {
        Vec::new()
    };
    cpio.entry(place, mode, device, &content);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_same_files_are_the_same_bytes_whenever_they_were_made() {
        let folder = std::env::temp_dir().join(format!("satori-tree-{}", std::process::id()));
        let pack = |names: &[&str]| {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(folder.join("d/e")).unwrap();
            for name in names {
                std::fs::write(folder.join(name), name).unwrap();
                std::fs::set_permissions(folder.join(name), PermissionsExt::from_mode(0o640)).unwrap();
            }
            symlink("../nowhere", folder.join("d/link")).unwrap();
            let mut cpio = Cpio::new();
            add(&mut cpio, &folder).unwrap();
            cpio.finish()
        };
        let (one, two) = (pack(&["b", "a", "d/c"]), pack(&["d/c", "a", "b"]));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(one, two);
        let text = String::from_utf8_lossy(&one);
        for part in ["000081A0", "0000A1FF", "d/link\0", "../nowhere"] {
            assert!(text.contains(part), "{part}");
        }
        let places: Vec<_> = ["a\0", "b\0", "d/c\0", "d/e\0", "d/link\0"].map(|p| text.find(p)).into();
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?}");
        assert!(add(&mut Cpio::new(), &folder).unwrap_err().to_string().contains("is no folder"));
    }
}
