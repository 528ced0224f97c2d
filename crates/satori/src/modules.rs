//! What `--initrd` and `--module` name: files, and for kernels that take modules their arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use satori_machine::Module;

use crate::inputs::{Room, full};

/// The files that one `--initrd` names: one, or as QEMU has it for kernels that take modules several,
/// `"FILE ARGS,FILE"`, where `,,` is a comma. A name that exists as it stands is one file.
pub fn initrds(text: &OsStr, room: &mut Room) -> Result<Vec<Module>> {
    items(text).iter().map(|item| initrd(item, room)).collect()
}

/// The files that [`initrds`] reads.
pub fn initrd_files(text: &OsStr) -> Vec<PathBuf> {
    items(text).iter().map(|item| parts(item).0.into()).collect()
}

/// The file that [`module`] reads.
pub fn module_file(text: &OsStr) -> PathBuf {
    parts(text).0.into()
}

/// The file that one `--module` names, `"FILE ARGS"`.
pub fn module(text: &OsStr, room: &mut Room) -> Result<Module> {
    let (path, _) = parts(text);
    // It may be empty: that it is there can be what it says.
    let data = room.read("--module", path)?;
    Ok(told(text, path, data, true))
}

fn initrd(text: &OsStr, room: &mut Room) -> Result<Module> {
    let (path, arguments) = parts(text);
    let data = full("--initrd", room.read("--initrd", path)?, path)?;
    Ok(told(text, path, data, arguments))
}

/// The module of the file at `path` and what `text` says behind it.
fn told(text: &OsStr, path: &Path, data: Vec<u8>, modules_only: bool) -> Module {
    let name = path.as_os_str().to_string_lossy().len();
    Module { cmdline: text.to_string_lossy().into(), data, modules_only, name }
}

/// The name of the file, and whether arguments follow it.
fn parts(text: &OsStr) -> (&Path, bool) {
    match text.as_bytes().iter().position(|byte| *byte == b' ') {
        Some(end) if !Path::new(text).exists() => {
            (Path::new(OsStr::from_bytes(&text.as_bytes()[..end])), true)
        }
        _ => (Path::new(text), false),
    }
}

/// The parts between single commas, or the whole if it is a file's name.
fn items(text: &OsStr) -> Vec<OsString> {
    if Path::new(text).exists() || !text.as_bytes().iter().any(|byte| [b',', b' '].contains(byte)) {
        return vec![text.to_owned()];
    }
    let mut items = vec![Vec::new()];
    let mut rest = text.as_bytes().iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match items.last_mut() {
            Some(last) if byte != b',' || rest.next_if_eq(&b',').is_some() => last.push(byte),
            _ => items.push(Vec::new()),
        }
    }
    items.into_iter().map(|item| OsString::from_vec(item.trim_ascii_start().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_part_and_two_commas_are_one() {
        let items = |text: &str| items(text.as_ref());
        assert_eq!(items("a.elf x y, b"), ["a.elf x y", "b"]);
        assert_eq!(items("a,,b,c"), ["a,b", "c"]);
        assert_eq!(items("a,,,b"), ["a,", "b"]);
    }

    #[test]
    fn a_missing_file_is_named_without_its_arguments() {
        let mut room = Room { bytes: 1 << 20, of: "this test" };
        let error = initrds("/nonexistent/a x,/nonexistent/b".as_ref(), &mut room).unwrap_err().to_string();
        assert!(error.starts_with("cannot read --initrd /nonexistent/a ("), "{error}");
        let error = module("/nonexistent/a x,y".as_ref(), &mut room).unwrap_err().to_string();
        assert!(error.starts_with("cannot read --module /nonexistent/a ("), "{error}");
    }
}
