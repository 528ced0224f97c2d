//! Modules of a stock kernel, for tests of devices.

use std::path::Path;

use satori::debian::cache::{self, Wanted};

/// Modules that Debian's 6.1 needs for disks and entropy, as files for the initramfs.
pub(crate) fn modules(kernel: &Path) -> Vec<(String, Vec<u8>)> {
    with(kernel, &["drivers/block/virtio_blk", "drivers/char/hw_random/virtio-rng"])
}

/// Those for a network card and for sockets to the host.
pub(crate) fn connected(kernel: &Path) -> Vec<(String, Vec<u8>)> {
    let card = ["net/core/failover", "drivers/net/net_failover", "drivers/net/virtio_net"];
    let sockets = ["vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"];
    let sockets = sockets.map(|name| format!("net/vmw_vsock/{name}"));
    with(kernel, &card.into_iter().chain(sockets.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// Modules of the transport, and these behind them.
fn with(kernel: &Path, more: &[&str]) -> Vec<(String, Vec<u8>)> {
    let name = kernel.canonicalize().expect("the kernel");
    let name = name.file_name().expect("a name").to_str().expect("UTF-8").to_string();
    let name = name.strip_prefix("arm64-").unwrap_or(&name);
    let (package, _) = name.split_once('_').expect("a package and its version");
    let release = package.strip_prefix("linux-image-").expect("a kernel's package");
    let wanted =
        if package.ends_with("arm64") { Wanted::Arm64Package(package) } else { Wanted::Package(package) };
    let tree = cache::get(wanted, false).expect("the kernel's package");
    let folder = tree.join("lib/modules").join(release).join("kernel");
    let all = ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"];
    let all = all.map(|name| format!("drivers/virtio/{name}"));
    let all = all.iter().map(String::as_str).chain(more.iter().copied());
    let file = |path: &str| {
        let path = format!("{path}.ko");
        let name = path.rsplit('/').next().expect("a name").to_string();
        (name, std::fs::read(folder.join(&path)).expect("a module"))
    };
    all.map(file).collect()
}
