//! The host's apt, used without root and without touching the system.
//!
//! Sources, keyrings, proxies and preferences are the host's. State and cache are ours, so that
//! nothing on the system changes and no lock of it is needed; signature checks stay as they are.

use std::io::stderr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What to do where packages cannot be had.
pub const WITHOUT: &str = "give --kernel FILE and --busybox FILE";

/// One apt with state and cache of its own.
#[derive(Debug)]
pub struct Apt {
    folder: PathBuf,
    /// What the last update complained of.
    complaint: Option<String>,
}

/// A package that apt would install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it depends on: first alternatives only, without versions.
    pub depends: Vec<String>,
}

impl Apt {
    /// An apt for packages of `architecture`, whose state lies in `folder`.
    pub fn open(folder: &Path, architecture: &str) -> Result<Apt> {
        if Command::new("apt-get").arg("--version").stdout(Stdio::null()).status().is_err() {
            bail!("there is no apt on this machine to fetch packages with: {WITHOUT}");
        }
        for part in ["state/lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(folder.join(part)).with_context(|| {
                format!("cannot make {}: make room or set XDG_CACHE_HOME", folder.display())
            })?;
        }
        // Nothing is installed, as far as this apt is concerned.
        std::fs::write(folder.join("state/status"), "")?;
        std::fs::write(folder.join("apt.conf"), CONFIGURATION.replace("ARCHITECTURE", architecture))?;
        Ok(Apt { folder: folder.to_path_buf(), complaint: None })
    }

    /// Fetches the package lists of the host's sources. A source that fails is remembered, and
    /// told only when something is then missing: one broken source must not spoil the others.
    pub fn update(&mut self) -> Result<()> {
        let output = self
            .command("apt-get")
            .args(["-q", "-o", "APT::Update::Error-Mode=any", "update"])
            .stdout(stderr().as_fd().try_clone_to_owned()?)
            .stderr(Stdio::piped())
            .spawn()?
            .wait_with_output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let first = text.lines().find(|l| l.starts_with("E:") || l.starts_with("W:"));
            self.complaint = Some(first.unwrap_or("apt-get update failed").to_string());
        }
        Ok(())
    }

    /// Whether the last update failed, wholly or in part.
    pub fn offline(&self) -> bool {
        self.complaint.is_some()
    }

    /// The version of package `name` that apt would install.
    pub fn show(&self, name: &str) -> Result<Option<Package>> {
        let output = self.command("apt-cache").args(["show", "--no-all-versions", name]).output()?;
        Ok(parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// The names of all packages that begin with `prefix`.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let output = self.command("apt-cache").args(["pkgnames", prefix]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect())
    }

    /// The error for a package that is in none of the host's sources.
    pub fn missing(&self, name: &str) -> anyhow::Error {
        match &self.complaint {
            Some(why) => {
                anyhow::anyhow!(
                    "cannot reach the package sources of this machine ({why}): go online, or {WITHOUT}"
                )
            }
            None => anyhow::anyhow!(
                "the package sources of this machine have no {name} (is it Debian?): {WITHOUT}"
            ),
        }
    }

    /// Downloads `package` into `folder`, which must be empty, and tells where it is.
    pub fn download(&self, package: &Package, folder: &Path) -> Result<PathBuf> {
        let wanted = format!("{}={}", package.name, package.version);
        let mut command = self.command("apt-get");
        command.args(["-q", "download", &wanted]).current_dir(folder);
        fetch(command, &package.name, &format!("go online, or {WITHOUT}"))?;
        find(folder, &|path| path.extension().is_some_and(|e| e == "deb"))
            .with_context(|| format!("apt-get downloaded no file for {wanted}"))
    }

    /// Downloads `packages` and all that they depend on into `folder`.
    pub fn download_all(&self, packages: &[&str], folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder.join("partial"))?;
        let mut command = self.command("apt-get");
        command.arg("-o").arg(format!("Dir::Cache::archives={}", folder.display()));
        command.args(["-q", "-y", "--no-install-recommends", "--download-only", "install"]).args(packages);
        fetch(command, &packages.join(", "), "go online, and make room")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |key: &str, path: &str| format!("{key}={}", self.folder.join(path).display());
        command.env("LC_ALL", "C").arg("-c").arg(self.folder.join("apt.conf"));
        command.args([
            "-o",
            &option("Dir::State", "state"),
            "-o",
            &option("Dir::State::status", "state/status"),
        ]);
        command.args(["-o", &option("Dir::Cache", "cache")]).stdin(Stdio::null());
        command
    }
}

/// Runs `command`, an apt-get that downloads `what`; `then` is what to do where it fails. Its progress goes to standard
/// error.
fn fetch(mut command: Command, what: &str, then: &str) -> Result<()> {
    command.stdout(stderr().as_fd().try_clone_to_owned()?).stderr(Stdio::piped());
    let output = command.spawn()?.wait_with_output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let why = text.lines().find(|l| l.starts_with("E:")).unwrap_or("apt-get failed");
        bail!("cannot download {what} ({why}): {then}");
    }
    Ok(())
}

/// Read after the host's own configuration. Its hooks would work on the system's cache; the
/// guest's architecture is not the host's; what only package managers with windows show is of no use.
const CONFIGURATION: &str = "\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture \"ARCHITECTURE\";
APT::Architectures { \"ARCHITECTURE\"; };
Acquire::Languages \"none\";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";
";

fn parse(stanza: &str) -> Option<Package> {
    let field = |name: &str| {
        stanza.lines().take_while(|l| !l.is_empty()).find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
    };
    let first = |alternatives: &str| Some(alternatives.split(['|', '(', ':']).next()?.trim().to_string());
    Some(Package {
        name: field("Package")?.to_string(),
        version: field("Version")?.to_string(),
        depends: field("Depends").map(|d| d.split(',').filter_map(first).collect()).unwrap_or_default(),
    })
}

/// The newest of `packages`, by dpkg's order of versions.
pub fn newest(packages: Vec<Package>) -> Option<Package> {
    packages.into_iter().reduce(|a, b| {
        let newer = Command::new("dpkg").args(["--compare-versions", &b.version, "gt", &a.version]).status();
        if newer.is_ok_and(|s| s.success()) { b } else { a }
    })
}

/// Unpacks what matches `pattern` of the package file `deb` into `folder` and tells where it is.
pub fn unpack(deb: &Path, pattern: &str, folder: &Path) -> Result<PathBuf> {
    let mut from = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run dpkg-deb")?;
    let tar = Command::new("tar")
        .args(["--extract", "--file=-", "--no-same-owner", "--wildcards", "--directory"])
        .args([folder.as_os_str(), pattern.as_ref()])
        .stdin(from.stdout.take().context("dpkg-deb gave no output")?)
        .stderr(Stdio::null())
        .status()
        .context("cannot run tar")?;
    let from = from.wait()?;
    let found = find(folder, &|path| path.is_file() && !path.is_symlink() && path != deb);
    match found {
        Some(path) if tar.success() && from.success() => Ok(path),
        _ => bail!("there is no {pattern} in {}: {WITHOUT}", deb.display()),
    }
}

/// Unpacks all package files in `debs` into `tree`: base-files first, which in newer releases has the links from /bin to /usr/bin.
pub fn unpack_all(debs: &Path, tree: &Path) -> Result<()> {
    let files = std::fs::read_dir(debs)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "deb")).collect();
    let first = |path: &Path| {
        !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"base-files_"))
    };
    files.sort_by_key(|path| (first(path), path.clone()));
    for file in files {
        let status =
            Command::new("dpkg-deb").arg("--extract").arg(&file).arg(tree).stdin(Stdio::null()).status();
        if !status.context("cannot run dpkg-deb")?.success() {
            bail!("cannot unpack {}: make room in {}", file.display(), tree.display());
        }
    }
    Ok(())
}

/// The first file in `folder` and its folders, by name, that is `wanted`.
pub fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<_> = std::fs::read_dir(folder).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
    entries.sort();
    entries.into_iter().find_map(|path| match path.is_dir() {
        true => find(&path, wanted),
        false => wanted(&path).then_some(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stanza_gives_first_alternatives_without_versions() {
        let text = "Package: linux-image-cloud-amd64\nVersion: 6.1.192-2\n\
            Pre-Depends: x\nDepends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2), perl:any, a | b\n\nPackage: other\n";
        let package = parse(text).unwrap();
        assert_eq!(package.name, "linux-image-cloud-amd64");
        assert_eq!(package.depends, ["linux-image-6.1.0-56-cloud-amd64", "perl", "a"]);
        assert_eq!(parse(""), None);
    }
}
