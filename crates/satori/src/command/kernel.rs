//! Which kernel a command runs in, and where its modules are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cli::Arch;
use crate::debian::apt;
use crate::debian::cache::{self, Wanted};
use crate::inputs::read;

use super::modules::Modules;

/// A kernel that was found.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Where its image is.
    pub path: PathBuf,
    /// The image.
    pub image: Vec<u8>,
    /// What `uname -r` will say, if the image tells.
    pub release: Option<String>,
    /// Its modules, if they were found.
    pub modules: Option<Modules>,
}

/// Finds the kernel that `wanted` names: a file, a series or version, a package's file, or a build tree; without
/// it the newest that was fetched. `modules` is where its modules are said to be.
pub(crate) fn find(arch: Arch, wanted: Option<&Path>, modules: Option<&Path>) -> Result<Kernel> {
    look(arch, wanted, modules, false)
}

/// The same, with modules also where a command needs none of them.
pub(crate) fn with_modules(arch: Arch, wanted: Option<&Path>, modules: Option<&Path>) -> Result<Kernel> {
    look(arch, wanted, modules, true)
}

/// What the files of fetched kernels begin with.
fn prefix(arch: Arch) -> &'static str {
    match arch {
        Arch::X86 => "linux-image-",
        Arch::Arm64 => "arm64-linux-image-",
    }
}

fn look(arch: Arch, wanted: Option<&Path>, modules: Option<&Path>, all: bool) -> Result<Kernel> {
    let of_package = |image| of_package(arch, image, all && modules.is_none());
    let current = match arch {
        Arch::X86 => Wanted::Kernel,
        Arch::Arm64 => Wanted::Arm64Kernel,
    };
    let series = wanted
        .and_then(|path| path.to_str())
        .filter(|text| cache::is_series(text) && !Path::new(text).exists());
    let (path, beside) = match (wanted, series) {
        (_, Some(series)) => match arch {
            Arch::X86 => of_package(cache::get(Wanted::Series(series), false)?)?,
            Arch::Arm64 => of_package(cache::get(Wanted::Arm64Series(series), false)?)?,
        },
        (None, _) => match cache::newest_kernel(prefix(arch)) {
            Some(path) => of_package(path)?,
            None => of_package(cache::get(current, false)?)?,
        },
        (Some(path), _) if path.extension().is_some_and(|e| e == "deb") => of_deb(path)?,
        (Some(path), _) if path.is_dir() => of_tree(arch, path)?,
        // What 'satori fetch kernel' printed.
        (Some(path), _) if cache::holds(path, prefix(arch)) => of_package(path.canonicalize()?)?,
        (Some(path), _) => (path.to_path_buf(), path.parent().map(Path::to_path_buf)),
    };
    let image = read("--kernel", &path)?;
    let release = release(&image);
    let modules = match modules {
        Some(folder) => {
            Some(Modules::read(folder).with_context(|| format!("--modules {}", folder.display()))?)
        }
        None => beside
            .into_iter()
            .chain([PathBuf::from("/")])
            .find_map(|near| of_release(&near, release.as_deref()?)),
    };
    Ok(Kernel { path, image, release, modules })
}

/// The modules of a release in a root file system, a package's tree or a folder of modules near an image.
fn of_release(near: &Path, release: &str) -> Option<Modules> {
    let places = [near.join("lib/modules"), near.join("../lib/modules"), near.join("usr/lib/modules")];
    // A build tree has them where they were built.
    let built = near.join("modules.order").exists().then(|| near.to_path_buf());
    let found = places.iter().map(|place| place.join(release)).find(|place| place.is_dir());
    Modules::read(&built.or(found)?).ok()
}

/// A kernel of the cache, and its package's tree where its modules are needed.
fn of_package(arch: Arch, image: PathBuf, all: bool) -> Result<(PathBuf, Option<PathBuf>)> {
    let name = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let package = name.split('_').next().unwrap_or_default();
    let package = package.strip_prefix("arm64-").unwrap_or(package).to_owned();
    let tree = image.with_file_name(format!("{name}.tree"));
    if tree.is_dir() {
        return Ok((image, Some(tree)));
    }
    if built_in(&package) && !all {
        return Ok((image, None));
    }
    let wanted = match arch {
        Arch::X86 => Wanted::Package(&package),
        Arch::Arm64 => Wanted::Arm64Package(&package),
    };
    let tree = cache::get(wanted, false).context("the modules of the kernel are needed")?;
    Ok((image, Some(tree)))
}

/// Whether Debian builds virtio, its console and virtiofs into this kernel: into those for clouds since 6.12.
fn built_in(package: &str) -> bool {
    let mut numbers =
        package.trim_start_matches("linux-image-").split(['.', '+', '-']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    package.ends_with("-cloud-amd64") && (major, minor) >= (6, 12)
}

/// The image in a package's file, which is unpacked into the cache.
fn of_deb(deb: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    let shown = deb.display();
    let about = std::fs::metadata(deb)
        .with_context(|| format!("cannot read --kernel {shown}: name a file that can be read"))?;
    let modified = about.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = deb.file_stem().unwrap_or_default().to_string_lossy().replace('%', "%25");
    let tree = cache::place(&format!("deb-{name}-{}-{modified}.tree", about.len()))?;
    if !tree.is_dir() {
        let work = tree.with_extension("work");
        let _ = std::fs::remove_dir_all(&work);
        std::fs::create_dir_all(&work)?;
        apt::unpack(&std::path::absolute(deb)?, "./boot/vmlinuz-*", &work)
            .with_context(|| format!("--kernel {shown} is no kernel's package"))?;
        // Packages for tests have none.
        let _ = apt::unpack(&std::path::absolute(deb)?, "*lib/modules/*", &work);
        std::fs::rename(&work, &tree)?;
    }
    let image = apt::find(&tree.join("boot"), &|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    });
    Ok((image.with_context(|| format!("--kernel {shown} holds no boot/vmlinuz-*"))?, Some(tree)))
}

/// The image that a kernel's own build left.
fn of_tree(arch: Arch, tree: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    let (names, lacks, target) = match arch {
        Arch::X86 => (
            &["arch/x86/boot/bzImage", "vmlinux"][..],
            "neither arch/x86/boot/bzImage nor vmlinux",
            "bzImage",
        ),
        Arch::Arm64 => (&["arch/arm64/boot/Image"][..], "no arch/arm64/boot/Image", "Image"),
    };
    match names.iter().map(|name| tree.join(name)).find(|image| image.is_file()) {
        Some(image) => Ok((image, Some(tree.to_path_buf()))),
        None => bail!(
            "--kernel {}: there is {lacks} in it: build it (make {target}), or name a file",
            tree.display()
        ),
    }
}

/// The release in a bzImage's header (Documentation/arch/x86/boot.rst, kernel_version), or in the banner of a vmlinux or an Image.
pub(crate) fn release(image: &[u8]) -> Option<String> {
    let word = |bytes: &[u8]| {
        let end = bytes.iter().take(80).position(|b| *b == b' ' || *b == 0)?;
        String::from_utf8(bytes[..end].to_vec())
            .ok()
            .filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))
    };
    if image.get(0x202..0x206) == Some(b"HdrS") {
        let at = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
        return word(image.get(usize::from(at) + 0x200..)?);
    }
    const BANNER: &[u8] = b"Linux version ";
    let at = image.windows(BANNER.len()).position(|window| window == BANNER)?;
    word(&image[at + BANNER.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_of_both_kinds_of_image() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x310].copy_from_slice(b"6.1.0-9 (x@y) #1");
        assert_eq!(release(&image).as_deref(), Some("6.1.0-9"));
        assert_eq!(release(b"....Linux version 6.12.3+ (x").as_deref(), Some("6.12.3+"));
        assert_eq!(release(b"Linux version %s (x"), None);
        assert_eq!(release(&image[..0x20f]), None);
    }

    #[test]
    fn debians_cloud_kernels_need_no_modules_since_6_12() {
        assert!(built_in("linux-image-6.12.117+deb12-cloud-amd64"));
        assert!(built_in("linux-image-7.0-cloud-amd64"));
        for other in ["linux-image-6.1.0-56-cloud-amd64", "linux-image-6.12.117-amd64", "vmlinuz", ""] {
            assert!(!built_in(other), "{other}");
        }
    }
}
