//! `satori fetch`: a kernel or a program from Debian's packages, into the cache of the user.

use std::io::Write;

use anyhow::{Result, bail};

use super::initrd;
use crate::cli::{Arch, Fetch, What};
use crate::debian::cache::{self, FLAVOUR, FLAVOURS_I386, Wanted};

/// Fetches what is wanted if the cache has it not, and prints where it is.
pub fn perform(fetch: &Fetch, out: &mut impl Write) -> Result<()> {
    let package;
    let wanted = match (fetch.what, fetch.series.as_deref()) {
        (what, series) if fetch.arch == Arch::Arm64 => arm64(what, series)?,
        (What::Kernel, None) => Wanted::Kernel,
        (What::Kernel, Some(series)) if cache::is_series(series) => Wanted::Series(series),
        (What::Kernel, Some(FLAVOUR)) => Wanted::Whole,
        (What::Kernel, Some(flavour)) if FLAVOURS_I386.contains(&flavour) => {
            package = format!("linux-image-{flavour}");
            Wanted::kernel_i386(&package)
        }
        (What::Kernel, Some(other)) => {
            bail!(
                "'{other}' is no kernel series: write two numbers such as 6.12, {FLAVOUR}, or {} for 32 bits",
                FLAVOURS_I386.join(" or ")
            );
        }
        (What::Busybox, None) => Wanted::Busybox,
        (What::Memtest, None) => Wanted::Memtest,
        (What::Xen, None) => Wanted::Xen,
        (What::XenShim, None) => Wanted::XenShim,
        (What::Exit, None) => return Ok(writeln!(out, "{}", initrd::exit_program()?.display())?),
        (What::Busybox | What::Memtest | What::Xen | What::XenShim | What::Exit, Some(_)) => {
            bail!("only kernels have a series: leave it out")
        }
    };
    Ok(writeln!(out, "{}", cache::get(wanted, fetch.refresh)?.display())?)
}

/// What there is for AArch64.
fn arm64(what: What, series: Option<&str>) -> Result<Wanted<'_>> {
    match (what, series) {
        (What::Kernel, None) => Ok(Wanted::Arm64Kernel),
        (What::Kernel, Some(series)) if cache::is_series(series) => Ok(Wanted::Arm64Series(series)),
        (What::Kernel, Some(other)) => {
            bail!("--arch arm64: '{other}' is no kernel series: write two numbers such as 6.12")
        }
        (What::Busybox, None) => Ok(Wanted::Arm64Busybox),
        (What::Busybox, Some(_)) => bail!("only kernels have a series: leave it out"),
        (What::Memtest | What::Xen | What::XenShim | What::Exit, _) => {
            bail!("--arch arm64: a kernel and a busybox can be fetched, and nothing else")
        }
    }
}
