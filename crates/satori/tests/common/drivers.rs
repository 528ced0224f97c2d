//! Modules of a stock kernel, for tests of devices.

use std::path::Path;

use satori::debian::cache::{self, Wanted};

/// Modules that Debian's 6.1 needs for disks and entropy, as files for the initramfs.
pub(crate) fn modules(kernel: &Path) -> Vec<(String, Vec<u8>)> {
    let name = kernel.canonicalize().expect("the kernel");
    let name = name.file_name().expect("a name").to_str().expect("UTF-8").to_string();
    let name = name.strip_prefix("arm64-").unwrap_or(&name);
    let (package, _) = name.split_once('_').expect("a package and its version");
    let release = package.strip_prefix("linux-image-").expect("a kernel's package");
    let wanted =
        if package.ends_with("arm64") { Wanted::Arm64Package(package) } else { Wanted::Package(package) };
    let tree = cache::get(wanted, false).expect("the kernel's package");
    let drivers = tree.join("lib/modules").join(release).join("kernel/drivers");
    let all = ["virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev"];
    let all = all.into_iter().chain(["virtio/virtio_pci_legacy_dev", "virtio/virtio_pci"]);
    let all = all.chain(["block/virtio_blk", "char/hw_random/virtio-rng"]);
    let file = |path: &str| {
        let path = format!("{path}.ko");
        let name = path.rsplit('/').next().expect("a name").to_string();
        (name, std::fs::read(drivers.join(&path)).expect("a module"))
    };
    all.map(file).collect()
}
