//! A kernel's modules: which must be loaded for what, in which order, as their own `.modinfo` says.
//!
//! Packages have no modules.dep, which depmod(8) makes when they are installed, and which modprobe(8) of a guest needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::debian::cache;

/// The modules in a folder, by name.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// Where they are.
    folder: PathBuf,
    files: BTreeMap<String, PathBuf>,
    /// Those that are part of the kernel.
    builtin: BTreeSet<String>,
}

/// A module to load.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its file's name.
    pub name: String,
    /// The file as it is, compressed or not.
    pub bytes: Vec<u8>,
}

/// The most that a module unpacks to, and folders within folders.
const LARGEST: u64 = 256 << 20;
const DEPTH: u32 = 16;

impl Module {
    /// Its file's name and bytes as they are when unpacked.
    pub(crate) fn plain(&self) -> Result<(String, Vec<u8>)> {
        let path = Path::new(&self.name);
        Ok((self.name.trim_end_matches(".xz").to_owned(), plain(path, &self.bytes)?))
    }
}

impl Modules {
    /// The modules in `folder` and its folders.
    pub(crate) fn read(folder: &Path) -> Result<Modules> {
        let mut modules = Modules { folder: folder.to_path_buf(), ..Modules::default() };
        modules.scan(folder, DEPTH).context("cannot be read: name a folder of modules")?;
        if let Ok(text) = std::fs::read_to_string(folder.join("modules.builtin")) {
            modules.builtin = text.lines().filter_map(|line| name(Path::new(line))).collect();
        }
        if modules.files.is_empty() && modules.builtin.is_empty() {
            bail!(
                "there are no modules in it: name a folder with .ko or .ko.xz files, such as lib/modules/RELEASE"
            );
        }
        Ok(modules)
    }

    /// The folder, if it is one in which modprobe(8) finds modules of `release` by name and by what asks for them. One of a
    /// package that was unpacked into the cache is made so, where this machine has depmod(8).
    pub(crate) fn indexed(&self, release: &str) -> Option<&Path> {
        let named = self.folder.ends_with(Path::new("lib/modules").join(release));
        let index = self.folder.join("modules.dep.bin");
        if named && !index.exists() && cache::folder().is_ok_and(|cache| self.folder.starts_with(cache)) {
            let base = self.folder.ancestors().nth(3)?;
            // Root's programs are in no other user's PATH.
            let depmod = ["depmod", "/usr/sbin/depmod", "/sbin/depmod"].into_iter().find(|program| {
                let mut depmod = Command::new(program);
                depmod.arg("-b").arg(base).arg(release);
                let quiet = depmod.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                quiet.status().is_ok_and(|status| status.success())
            });
            tracing::info!("modules in {}: {}", base.display(), depmod.unwrap_or("there is no depmod"));
        }
        (named && index.exists()).then_some(&self.folder)
    }

    fn scan(&mut self, folder: &Path, depth: u32) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            // Links, such as build and source, lead out of the folder.
            let kind = entry.file_type()?;
            if kind.is_dir() && depth > 0 {
                self.scan(&path, depth - 1)?;
            } else if kind.is_file()
                && let Some(name) = name(&path)
            {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// What must be loaded to have all of `wanted`, each behind what it needs. A module that is neither there nor
    /// built in is named in the second list.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<(Vec<Module>, Vec<String>)> {
        let mut order =
            Order { modules: self, done: BTreeSet::new(), loaded: Vec::new(), missing: Vec::new() };
        for name in wanted {
            order.visit(name, true)?;
        }
        Ok((order.loaded, order.missing))
    }
}

/// The depth-first walk.
struct Order<'a> {
    modules: &'a Modules,
    done: BTreeSet<String>,
    loaded: Vec<Module>,
    missing: Vec<String>,
}

impl Order<'_> {
    fn visit(&mut self, name: &str, needed: bool) -> Result<()> {
        let name = name.replace('-', "_");
        // Marked before its needs are looked at: those that go in circles end.
        if self.modules.builtin.contains(&name) || !self.done.insert(name.clone()) {
            return Ok(());
        }
        let Some(path) = self.modules.files.get(&name) else {
            if needed {
                self.missing.push(name);
            }
            return Ok(());
        };
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let plain = plain(path, &bytes)?;
        for need in
            values(&plain, "depends").flat_map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>())
        {
            self.visit(&need, true)?;
        }
        let soft: Vec<_> = values(&plain, "softdep").map(str::to_owned).collect();
        // Loaded before where they are there.
        for need in soft.iter().flat_map(|text| before(text)) {
            self.visit(need, false)?;
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.loaded.push(Module { name: file, bytes });
        Ok(())
    }
}

/// The module that a file holds.
fn name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = [".ko", ".ko.xz"].iter().find_map(|end| file.strip_suffix(end))?;
    Some(stem.replace('-', "_"))
}

fn plain(path: &Path, bytes: &[u8]) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|e| e != "xz") {
        return Ok(bytes.to_vec());
    }
    let mut plain = Vec::new();
    let unpacked = lzma_rust2::XzReader::new(bytes, true).take(LARGEST).read_to_end(&mut plain);
    unpacked.with_context(|| format!("cannot unpack {}", path.display()))?;
    Ok(plain)
}

/// The values of a key in `.modinfo`: `key=value` between NULs. Empty ones are left out.
fn values<'a>(module: &'a [u8], key: &'a str) -> impl Iterator<Item = &'a str> {
    let strings = module.split(|&b| b == 0).filter_map(|bytes| std::str::from_utf8(bytes).ok());
    strings
        .filter_map(move |text| text.strip_prefix(key)?.strip_prefix('='))
        .filter(|value| !value.is_empty())
}

/// The names behind `pre:` of a softdep.
fn before(text: &str) -> Vec<&str> {
    let mut pre = false;
    let mut names = Vec::new();
    for word in text.split_whitespace() {
        match word {
            "pre:" => pre = true,
            "post:" => pre = false,
            name if pre => names.push(name),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_behind_what_they_need() {
        let folder = std::env::temp_dir().join(format!("satori-modules-{}", std::process::id()));
        let put = |name: &str, info: &str| {
            let path = folder.join("kernel").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("\x7fELF\0license=GPL\0{info}\0name=x\0").replace('|', "\0"))
                .unwrap();
        };
        put("a.ko", "depends=b-b,c");
        put("d/b_b.ko", "depends=|softdep=pre: e f post: g");
        put("c.ko", "depends=b-b,built,lost");
        put("e.ko", "depends=a");
        put("g.ko", "depends=");
        std::fs::write(folder.join("modules.builtin"), "kernel/x/built.ko\n").unwrap();
        let modules = Modules::read(&folder).unwrap();
        let (loaded, missing) = modules.closure(&["a", "built", "a"]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let names: Vec<_> = loaded.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["e.ko", "b_b.ko", "c.ko", "a.ko"]);
        assert_eq!(missing, ["lost"]);
    }
}
