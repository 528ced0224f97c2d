//! The root of a command on arm64 that names none: Debian's busybox for that, and a name for each of its programs. The files of this machine
//! hold programs for another processor.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::debian::cache::{self, Wanted};

/// What the table of names in a busybox begins with: they are sorted, with a NUL behind each, and an empty one at the end.
const TABLE: &[u8] = b"\0[\0[[\0";

/// The folder, which is made in the cache if it is not there.
pub(super) fn root() -> Result<PathBuf> {
    let busybox = cache::get(Wanted::Arm64Busybox, false)
        .context("a command on arm64 without --root has busybox: name a folder with --root DIR, or")?;
    let name = busybox.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tree = cache::place(&format!("{name}.root"))?;
    if tree.is_dir() {
        return Ok(tree);
    }
    // Two at once make one each, and one of them is taken.
    let work = cache::place(&format!("{name}.root.{}", std::process::id()))?;
    let _ = std::fs::remove_dir_all(&work);
    for folder in ["bin", "dev", "etc", "proc", "root", "run", "sys", "tmp"] {
        std::fs::create_dir_all(work.join(folder))?;
    }
    let program = std::fs::read(&busybox)?;
    std::fs::copy(&busybox, work.join("bin/busybox"))?;
    for name in names(&program) {
        symlink("busybox", work.join("bin").join(name))?;
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
    std::fs::write(work.join("etc/passwd"), passwd)?;
    std::fs::write(work.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    if std::fs::rename(&work, &tree).is_err() {
        std::fs::remove_dir_all(&work)?;
    }
    Ok(tree)
}

/// The names of a busybox' programs; the shell alone if they are not found.
fn names(program: &[u8]) -> Vec<&str> {
    let Some(at) = program.windows(TABLE.len()).position(|window| window == TABLE) else { return vec!["sh"] };
    let all = program[at + 1..].split(|&byte| byte == 0).take_while(|name| !name.is_empty());
    all.filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| *name != "busybox" && !name.contains('/') && name.len() < 32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_programs_are_read_of_the_table() {
        let program = b"\x7fELF..\0usage\0[\0[[\0ash\0busybox\0cat\0\0sed\0";
        assert_eq!(names(program), ["[", "[[", "ash", "cat"]);
        assert_eq!(names(b"\x7fELF"), ["sh"]);
        assert_eq!(names(b"..\0[\0[[\0../x"), ["[", "[["]);
    }
}
