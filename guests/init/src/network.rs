//! The network card: its address, the way out, and who is asked for names.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::sys;

/// The card's name, as the kernel gives it.
const CARD: &str = "eth0";
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// What is put in its place.
const OWN: &str = "/run/satori-resolv.conf";

/// Sets up the card with an address, a mask, a gateway and a name server, as many of them as there are. The error is what
/// went wrong, in words.
pub fn configure(addresses: &[Ipv4Addr]) -> Result<(), String> {
    let failed = |what: &'static str| move |why: std::io::Error| format!("{CARD}: {what} ({why})");
    let mut addresses = addresses.iter();
    if let (Some(&address), Some(&mask)) = (addresses.next(), addresses.next()) {
        sys::set_address(CARD, address, mask).map_err(failed("no address"))?;
    }
    sys::up(CARD).map_err(failed("it is down"))?;
    if let Some(&gateway) = addresses.next() {
        sys::add_route(gateway).map_err(failed("no way out"))?;
    }
    match addresses.next() {
        Some(server) => names(*server).map_err(failed("no name server")),
        None => Ok(()),
    }
}

/// Puts a name server into resolv.conf(5), which is the host's file and stays as it is.
fn names(server: Ipv4Addr) -> std::io::Result<()> {
    let text = format!("nameserver {server}\n");
    match fs::canonicalize(RESOLV_CONF) {
        Ok(file) => {
            fs::write(OWN, text)?;
            sys::bind(Path::new(OWN), &file)
        }
        // A link into /run, where nothing of the host's is, or no file at all.
        Err(_) => {
            let file = fs::read_link(RESOLV_CONF).unwrap_or_else(|_| PathBuf::from(RESOLV_CONF));
            let file = Path::new("/etc").join(file);
            file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(file, text)
        }
    }
}
