//! What `--initrd` and `--module` name: files, and for multiboot kernels their arguments.

use std::path::Path;

use anyhow::Result;
use satori_machine::Module;

use crate::run::{read, read_any};

/// The files that one `--initrd` names: one, or as QEMU has it for multiboot kernels several,
/// `"FILE ARGS,FILE"`, where `,,` is a comma. A name that exists as it stands is one file.
pub fn initrds(text: &str) -> Result<Vec<Module>> {
    if Path::new(text).exists() || !text.contains([',', ' ']) {
        return Ok(vec![initrd(text)?]);
    }
    items(text).iter().map(|item| initrd(item.trim_start())).collect()
}

/// The file that one `--module` names, `"FILE ARGS"`.
pub fn module(text: &str) -> Result<Module> {
    let (name, _) = parts(text);
    // It may be empty: that it is there can be what it says.
    let data = read_any("--module", Path::new(name))?;
    Ok(Module { cmdline: text.into(), data, multiboot_only: true })
}

fn initrd(text: &str) -> Result<Module> {
    let (name, arguments) = parts(text);
    let data = read("--initrd", Path::new(name))?;
    Ok(Module { cmdline: text.into(), data, multiboot_only: arguments })
}

/// The name of the file, and whether arguments follow it.
fn parts(text: &str) -> (&str, bool) {
    match text.split_once(' ') {
        Some((name, _)) if !Path::new(text).exists() => (name, true),
        _ => (text, false),
    }
}

/// The parts between single commas.
fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match items.last_mut() {
            Some(last) if c != ',' || rest.next_if_eq(&',').is_some() => last.push(c),
            _ => items.push(String::new()),
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_part_and_two_commas_are_one() {
        assert_eq!(items("a.elf x y,b"), ["a.elf x y", "b"]);
        assert_eq!(items("a,,b,c"), ["a,b", "c"]);
        assert_eq!(items("a,,,b"), ["a,", "b"]);
    }

    #[test]
    fn a_missing_file_is_named_without_its_arguments() {
        let error = initrds("/nonexistent/a x,/nonexistent/b").unwrap_err().to_string();
        assert!(error.starts_with("cannot read --initrd /nonexistent/a ("), "{error}");
        let error = module("/nonexistent/a x,y").unwrap_err().to_string();
        assert!(error.starts_with("cannot read --module /nonexistent/a ("), "{error}");
    }
}
