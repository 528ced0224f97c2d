//! The files of `satori bench --groups tools`: Debian's fio, git, tar and iperf3 on the devices of the rows beside them.

use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use satori_bench::subject::Files;
use satori_bench::tools::{PACKAGES, PREPARE, TREE, script};

use super::Scratch;
use super::devices::On;
use super::programs::Userland;
use crate::debian::cache::{self, Wanted};

/// How long iperf3 has to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The iperf3 that clients talk to.
pub(super) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The files of rows of devices, but for initramfs and program; and who answers to guests and host.
pub(super) fn files(on: &On, scratch: &Scratch) -> Result<(Files, Server)> {
    let userland = Userland::fetch("tools", PACKAGES, script(), Some(&scratch.folder), scratch)?;
    let from = kernel_tree()?;
    let to = on.folder().join(TREE);
    let copied = Command::new("cp").arg("-r").arg(&from).arg(&to).status().context("cannot run cp")?;
    if !copied.success() {
        bail!("cannot copy {} to {}: set TMPDIR to a place with more room", from.display(), to.display());
    }
    if !userland.command(PREPARE).status().is_ok_and(|status| status.success()) {
        bail!("git cannot keep {}: its complaint is above", to.display());
    }
    let (server, port) = serve(on, &userland)?;
    let program = userland.program(scratch)?;
    let initrd = userland.initrd(on.busybox(), |archive| on.add_modules(archive))?;
    Ok((on.with(scratch.file("tools-userland", &initrd, 0o644)?, program, port), server))
}

/// The headers of Debian's kernel that all its flavours share: a kernel's tree of 9,400 files, without its sources.
fn kernel_tree() -> Result<std::path::PathBuf> {
    let cloud = cache::get(Wanted::Kernel, false)?;
    let name = cloud.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let release = name.split("-cloud").next().unwrap_or_default().replace("image", "headers") + "-common";
    Ok(cache::get(Wanted::Package(&release), false)?.join("usr/src").join(release))
}

/// Starts iperf3 and waits until it answers.
fn serve(on: &On, userland: &Userland) -> Result<(Server, u16)> {
    let address = on.address();
    // Free for the moment: iperf3 does not tell which port it was given.
    let port = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
    let port = port.with_context(|| on.cannot_listen())?.port();
    let script = format!("exec iperf3 -s -B {address} -p {port} >/tmp/iperf");
    let mut server = Server(userland.command(&script).spawn().context("cannot run sh")?);
    let start = Instant::now();
    while TcpStream::connect(SocketAddrV4::new(address, port)).is_err() {
        if start.elapsed() > PATIENCE || server.0.try_wait()?.is_some() {
            bail!("iperf3 does not serve at {address}:{port}: its complaint is above");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((server, port))
}
