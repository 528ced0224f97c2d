//! An initramfs of one busybox and one script.

use crate::cpio::Cpio;

/// The archive whose `/init` is `script`, run by `busybox`'s shell, with more `programs` of these
/// names in `/bin`.
///
/// `busybox` must be statically linked. The devices exist because the kernel opens
/// `/dev/console` for init before anything could be mounted.
pub fn build(busybox: &[u8], script: &str, programs: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Cpio::new();
    for directory in ["bin", "sbin", "usr", "usr/bin", "usr/sbin", "dev", "proc", "sys", "tmp", "root", "etc"]
    {
        archive.directory(directory);
    }
    for (name, program) in programs {
        archive.file(format!("bin/{name}"), 0o755, program);
    }
    archive
        .device("dev/console", 0o600, 5, 1)
        .device("dev/null", 0o666, 1, 3)
        .file("bin/busybox", 0o755, busybox)
        .link("bin/sh", "busybox")
        .file("init", 0o755, script.as_bytes())
        .finish()
}
