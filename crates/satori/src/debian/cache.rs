//! Kernels and busyboxes that were fetched, kept where XDG says.
//!
//! ```text
//! satori/apt/            state and cache of our apt
//! satori/apt-i386/       those of the one that knows packages of 32 bits, if one was asked for
//! satori/apt-arm64/      the same for AArch64
//! satori/files/          what was unpacked, one file a package and version
//! satori/kernel-6.12     a link to the file that this request found last
//! satori/unpacked/       what the last kernels unpacked to (unpacked.rs)
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use crate::debian::apt::{self, Apt, Package};
use crate::say::say;

/// How long an answer is used without asking apt again.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// What is wanted of Debian.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The current cloud kernel.
    Kernel,
    /// The newest cloud kernel of a series, such as `6.12`.
    Series(&'a str),
    /// The current kernel for every machine, the flavour `amd64`, which can be the first domain of Xen.
    Whole,
    /// Xen, packed as it is installed.
    Xen,
    /// Xen's own PVH kernel, which runs a paravirtual one.
    XenShim,
    /// busybox-static's binary.
    Busybox,
    /// memtest86+.
    Memtest,
    /// Everything in the package of this name, as a folder.
    Package(&'a str),
    /// Everything in these packages and in those that they depend on, as one folder; without some of its folders.
    Userland(&'a [&'a str], &'a [&'a str]),
    /// A file of a package for i386.
    I386 {
        /// The package, or one that stands for it.
        package: &'a str,
        /// Which file.
        pattern: &'a str,
    },
    /// What there is for AArch64 as well: the current cloud kernel.
    Arm64Kernel,
    /// The newest cloud kernel of a series.
    Arm64Series(&'a str),
    /// busybox-static's binary.
    Arm64Busybox,
    /// Everything in the package of this name, as a folder.
    Arm64Package(&'a str),
}

/// The metapackage of all that Xen is.
const XEN: &str = "xen-system-amd64";

/// The flavour of Debian's kernel for every machine.
pub const FLAVOUR: &str = "amd64";

/// The flavours of Debian's kernels of 32 bits.
pub const FLAVOURS_I386: [&str; 2] = ["686", "686-pae"];

impl<'a> Wanted<'a> {
    /// Debian's kernel of 32 bits whose metapackage is `package`.
    pub fn kernel_i386(package: &'a str) -> Self {
        Wanted::I386 { package, pattern: "./boot/vmlinuz-*" }
    }

    /// Whether it is a kernel whose modules somebody may ask for.
    fn has_modules(self) -> bool {
        use Wanted::{Arm64Kernel, Arm64Series, Kernel, Series, Whole};
        matches!(self, Kernel | Series(_) | Whole | Arm64Kernel | Arm64Series(_))
    }

    /// The architecture of its package.
    fn architecture(self) -> &'static str {
        match self {
            Wanted::I386 { .. } => "i386",
            Wanted::Arm64Kernel | Wanted::Arm64Series(_) | Wanted::Arm64Busybox | Wanted::Arm64Package(_) => {
                "arm64"
            }
            _ => "amd64",
        }
    }
}

/// Whether `text` names a series of kernels and not a file.
pub fn is_series(text: &str) -> bool {
    let mut parts = text.split('.');
    parts.clone().count() == 2 && parts.all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
}

/// The kernel series that `word` names, if it names no file.
pub fn series(word: &Path) -> Option<&str> {
    word.to_str().filter(|text| is_series(text) && !word.exists())
}

/// Finds `wanted` in the cache, or fetches it; with `refresh` asks apt in any case.
pub fn get(wanted: Wanted, refresh: bool) -> Result<PathBuf> {
    let root = folder()?;
    fs::create_dir_all(root.join("files"))
        .with_context(|| format!("cannot make {}: make room or set XDG_CACHE_HOME", root.display()))?;
    // Held until the end: two at once must not run the same apt.
    let lock = File::create(root.join("lock"))?;
    lock.lock()?;

    let link = root.join(match wanted {
        Wanted::Kernel => "kernel".into(),
        Wanted::Whole => "kernel-amd64".into(),
        Wanted::Xen => "xen".into(),
        Wanted::XenShim => "xen-shim".into(),
        Wanted::Series(series) => format!("kernel-{series}"),
        Wanted::Busybox => "busybox".to_string(),
        Wanted::Memtest => "memtest".into(),
        Wanted::Package(name) => format!("package-{name}"),
        Wanted::I386 { package, .. } => format!("i386-{package}"),
        Wanted::Arm64Kernel => "arm64-kernel".into(),
        Wanted::Arm64Series(series) => format!("arm64-kernel-{series}"),
        Wanted::Arm64Busybox => "arm64-busybox".into(),
        Wanted::Arm64Package(name) => format!("arm64-package-{name}"),
        // Another version of Satori may want other packages.
        Wanted::Userland(packages, _) => format!("userland-{:016x}", digest(packages)),
    });
    let kept = link.canonicalize().ok();
    if let Some(path) = &kept
        && !refresh
        && is_fresh(fs::symlink_metadata(&link))
    {
        return Ok(path.clone());
    }
    match (fetch(wanted, &root, &link, refresh), kept) {
        (Ok(path), _) => Ok(path),
        (Err(error), Some(path)) => {
            say(format_args!("{error:#}; going on with what was fetched before"));
            Ok(path)
        }
        (Err(error), None) => Err(error),
    }
}

/// The newest of the kernels that were fetched whose files' names begin with this, by version.
pub fn newest_kernel(prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder().ok()?.join("files")).ok()?.flatten();
    let kernels = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix(prefix)?;
        let numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u64>().ok());
        entry.file_type().ok()?.is_file().then(|| (numbers.collect::<Vec<_>>(), name.clone(), entry.path()))
    });
    kernels.max().map(|(_, _, path)| path)
}

/// Whether `path` leads to a kernel that was fetched, whose file's name begins with `prefix`.
pub fn holds(path: &Path, prefix: &str) -> bool {
    let files = folder().and_then(|folder| Ok(folder.join("files").canonicalize()?));
    let Ok(path) = path.canonicalize() else { return false };
    let kernel = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    kernel && path.is_file() && files.is_ok_and(|files| path.parent() == Some(&files))
}

/// Where something of this name is kept.
pub fn place(name: &str) -> Result<PathBuf> {
    let files = folder()?.join("files");
    fs::create_dir_all(&files)
        .with_context(|| format!("cannot make {}: make room or set XDG_CACHE_HOME", files.display()))?;
    Ok(files.join(name))
}

fn fetch(wanted: Wanted, root: &Path, link: &Path, refresh: bool) -> Result<PathBuf> {
    // Another architecture has lists of its own, which nobody else should wait for.
    let architecture = wanted.architecture();
    let folder = root.join(match architecture {
        "amd64" => "apt".into(),
        other => format!("apt-{other}"),
    });
    let mut apt = Apt::open(&folder, architecture)?;
    let stamp = folder.join("updated");
    if refresh || !is_fresh(fs::metadata(&stamp)) {
        say(format_args!("asking this machine's apt for its package lists (nothing is installed)"));
        apt.update()?;
        if !apt.offline() {
            fs::write(&stamp, "")?;
        }
    }
    if let Wanted::Userland(packages, left_out) = wanted {
        let file = userland(&apt, root, packages, left_out)?;
        return relink(root, link, file);
    }
    let (package, pattern) = match wanted {
        Wanted::Kernel | Wanted::Arm64Kernel => {
            (current(&apt, &format!("linux-image-cloud-{architecture}"))?, "./boot/vmlinuz-*")
        }
        Wanted::Whole => (current(&apt, "linux-image-amd64")?, "./boot/vmlinuz-*"),
        Wanted::Xen => (part(&apt, XEN, "xen-hypervisor-4")?, "./boot/xen-*.gz"),
        Wanted::XenShim => (part(&apt, XEN, "xen-utils-4")?, "*/boot/xen-shim"),
        Wanted::Series(series) | Wanted::Arm64Series(series) => {
            (series_kernel(&apt, series, architecture)?, "./boot/vmlinuz-*")
        }
        Wanted::Busybox | Wanted::Arm64Busybox => (named(&apt, "busybox-static")?, "*bin/busybox"),
        Wanted::Memtest => (named(&apt, "memtest86+")?, "./boot/memtest86+x64.bin"),
        Wanted::Package(name) | Wanted::Arm64Package(name) => (named(&apt, name)?, "*"),
        Wanted::I386 { package, pattern } => (current(&apt, package)?, pattern),
        Wanted::Userland(..) => bail!("a userland is no package"),
    };
    let whole = matches!(wanted, Wanted::Package(_) | Wanted::Arm64Package(_));
    let kind = if whole { ".tree" } else { "" };
    let version = package.version.replace(':', "%3a");
    // No command takes a kernel of another architecture for the newest that there is.
    let prefix = if architecture == "amd64" { String::new() } else { format!("{architecture}-") };
    let file = root.join("files").join(format!("{prefix}{}_{version}{kind}", package.name));
    if !file.exists() {
        say(format_args!("fetching {} {}", package.name, package.version));
        let work = root.join("work");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(work.join("tree"))?;
        let deb = apt.download(&package, &work)?;
        let found = apt::unpack(&deb, pattern, &work.join("tree"))?;
        // A guest may want any of a kernel's modules.
        let tree = root.join("files").join(format!("{prefix}{}_{version}.tree", package.name));
        if wanted.has_modules() && !tree.exists() {
            fs::create_dir_all(work.join("whole"))?;
            apt::unpack(&deb, "*", &work.join("whole"))?;
            fs::rename(work.join("whole"), tree)?;
        }
        fs::rename(if whole { work.join("tree") } else { found }, &file)?;
        fs::remove_dir_all(&work)?;
    }
    relink(root, link, file)
}

/// Lets `link` lead to `file`.
fn relink(root: &Path, link: &Path, file: PathBuf) -> Result<PathBuf> {
    let fresh = root.join("link");
    let _ = fs::remove_file(&fresh);
    std::os::unix::fs::symlink(&file, &fresh)?;
    fs::rename(&fresh, link)?;
    Ok(file)
}

/// Tells lists of texts apart (FNV-1a).
fn digest(texts: &[impl AsRef<str>]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.as_ref().bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The folder of `packages` in their versions of now, made if it is not there.
fn userland(apt: &Apt, root: &Path, packages: &[&str], left_out: &[&str]) -> Result<PathBuf> {
    let told =
        |name: &&str| -> Result<String> { Ok(format!("{name} {} {left_out:?}", named(apt, name)?.version)) };
    let digest = digest(&packages.iter().map(told).collect::<Result<Vec<_>>>()?);
    let file = root.join("files").join(format!("userland_{digest:016x}.tree"));
    if file.exists() {
        return Ok(file);
    }
    say(format_args!("fetching {} packages and what they need, some 110 MB", packages.len()));
    let (work, tree) = (root.join("work"), root.join("work/tree"));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&tree)?;
    apt.download_all(packages, &work.join("debs"))?;
    apt::unpack_all(&work.join("debs"), &tree)?;
    for folder in left_out {
        let _ = fs::remove_dir_all(tree.join(folder));
    }
    for folder in ["dev", "proc", "root", "sys", "tmp"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    fs::rename(&tree, &file)?;
    fs::remove_dir_all(&work)?;
    Ok(file)
}

fn named(apt: &Apt, name: &str) -> Result<Package> {
    apt.show(name)?.ok_or_else(|| apt.missing(name))
}

/// The kernel that the metapackage `name` stands for: its dependency, or itself.
fn current(apt: &Apt, name: &str) -> Result<Package> {
    let mut package = named(apt, name)?;
    // A metapackage may stand for another one; no chain is as long as this.
    for _ in 0..4 {
        let Some(next) = package.depends.iter().find(|d| d.starts_with("linux-image-")) else {
            return Ok(package);
        };
        package = apt.show(next)?.ok_or_else(|| apt.missing(next))?;
    }
    bail!("{name} depends on itself: {}", apt::WITHOUT)
}

/// What the metapackage `name` needs whose name begins with `prefix`.
fn part(apt: &Apt, name: &str, prefix: &str) -> Result<Package> {
    let needed = named(apt, name)?.depends;
    let part = needed.iter().find(|d| d.starts_with(prefix)).ok_or_else(|| apt.missing(prefix))?;
    named(apt, part)
}

/// The newest cloud kernel of `series`: from the series' own metapackage where there is one (a
/// newer kernel in an older release), else among all the kernels that apt knows.
fn series_kernel(apt: &Apt, series: &str, architecture: &str) -> Result<Package> {
    let meta = format!("linux-image-{series}-cloud-{architecture}");
    if apt.show(&meta)?.is_some() {
        return current(apt, &meta);
    }
    let mut found = Vec::new();
    for name in apt.names(&format!("linux-image-{series}."))? {
        if name.ends_with(&format!("-cloud-{architecture}")) {
            found.extend(apt.show(&name)?);
        }
    }
    apt::newest(found).ok_or_else(|| apt.missing(&format!("cloud kernel {series}")))
}

fn is_fresh(metadata: std::io::Result<fs::Metadata>) -> bool {
    let age = |m: fs::Metadata| SystemTime::now().duration_since(m.modified().ok()?).ok();
    metadata.ok().and_then(age).is_some_and(|age| age < FRESH)
}

/// `satori/` under $XDG_CACHE_HOME, or under ~/.cache where that is not set or not absolute.
pub(crate) fn folder() -> Result<PathBuf> {
    let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = xdg.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    Ok(base.context("there is no home directory to keep packages in: set XDG_CACHE_HOME")?.join("satori"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_no_file_name() {
        assert!(is_series("6.12") && is_series("6.1"));
        for file in ["vmlinuz-6.12", "./6.12", "6.12.3", "6.", "6", "", "a.b"] {
            assert!(!is_series(file), "{file}");
        }
    }
}
