//! `--net`: which network the guest's card leads to.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use satori_host::tap;
use satori_machine::{Nic, TapCard};
use satori_net::Options;

use crate::cli;
use crate::commands::run;
use crate::devices::DeviceBus;

/// The address of a card, where none is given: of those that anybody may use (IEEE 802, 8.4).
const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];
/// Most pairs of queues that a guest gets unasked.
const PAIRS: u16 = 4;

/// One `--net`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetSpec {
    cable: Cable,
    mac: [u8; 6],
    /// Pairs of queues; one a vCPU where it is not given.
    pairs: Option<u16>,
    /// How the guest reaches it.
    pub bus: DeviceBus,
}

/// Where frames go.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cable {
    User(Options),
    Passt(PathBuf),
    Tap(String),
}

impl NetSpec {
    /// How our init sets the card up: address, mask, gateway, name server.
    pub fn inside(&self) -> &'static str {
        match &self.cable {
            Cable::User(options) if options.restrict => "10.0.2.15 255.255.255.0",
            Cable::User(_) => "10.0.2.15 255.255.255.0 10.0.2.2 10.0.2.3",
            Cable::Passt(_) | Cable::Tap(_) => "",
        }
    }
}

/// Reads one `--net`.
pub fn spec(text: &str) -> Result<NetSpec, String> {
    let mut words = text.split(',');
    let kind = words.next().unwrap_or_default();
    let cable = match kind.split_once('=').unwrap_or((kind, "")) {
        ("user", "") => Cable::User(Options::default()),
        ("passt", path) if !path.is_empty() => Cable::Passt(path.into()),
        ("tap", name) if !name.is_empty() => Cable::Tap(name.into()),
        ("tap", _) => return Err("name the tap: tap=tap0".into()),
        ("bridge", _) => {
            return Err(format!(
                "this version has no '{kind}': write tap=NAME with a tap(4) that is on the bridge"
            ));
        }
        _ => return Err(format!("'{kind}' is no network: write user, tap=NAME or passt=SOCKET")),
    };
    let mut spec = NetSpec { cable, mac: MAC, pairs: None, bus: DeviceBus::default() };
    for word in words {
        match (word.split_once('=').unwrap_or((word, "")), &mut spec.cable) {
            (("mac", text), _) => spec.mac = mac(text)?,
            (("bus", name), _) => spec.bus = DeviceBus::named(name)?,
            (("queues", text), _) => {
                let pairs = text.parse().ok().filter(|pairs| (1..=8).contains(pairs));
                spec.pairs =
                    Some(pairs.ok_or_else(|| format!("'queues={text}': write a number from 1 to 8"))?);
            }
            (_, Cable::User(options)) => {
                options.word(word).map_err(|why| format!("{why}, mac=, queues=, bus="))?
            }
            (_, Cable::Passt(_)) => {
                return Err(format!(
                    "'{word}' is neither mac=52:54:00:12:34:56 nor queues=N: passt(1) itself has more"
                ));
            }
            (_, Cable::Tap(_)) => {
                return Err(format!(
                    "'{word}' is neither mac=52:54:00:12:34:56 nor queues=N: ip(8) says the rest of a tap"
                ));
            }
        }
    }
    match spec {
        NetSpec { bus: DeviceBus::Vmbus, pairs: Some(_), .. } => {
            Err("a card on VMBus has one channel: leave queues= out".into())
        }
        spec => Ok(spec),
    }
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("'{text}' is no address of a card: write mac=52:54:00:12:34:56");
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    let group = mac[0] & 1 != 0 || mac == [0; 6];
    if parts.next().is_some() || group { Err(wrong()) } else { Ok(mac) }
}

/// The cards of the flags on `bus` that lead to a tap.
pub fn taps(flags: &cli::Machine, bus: DeviceBus) -> Result<Vec<TapCard>> {
    let spec = flags.net.as_ref().filter(|spec| spec.bus == bus);
    let Some(NetSpec { cable: Cable::Tap(name), mac, pairs, .. }) = spec else { return Ok(Vec::new()) };
    let pairs = pairs.unwrap_or(1);
    let queues = tap::open(name, pairs).map_err(|why| {
        let several = if pairs > 1 { " multi_queue" } else { "" };
        let user = rustix::process::geteuid().as_raw();
        anyhow!(
            "cannot open --net tap={name} ({}): 'ip tuntap add dev {name} mode tap user {user}{several}' as root makes it",
            match why.kind() {
                std::io::ErrorKind::NotFound => "there is none of this name, or no /dev/net/tun".into(),
                std::io::ErrorKind::InvalidInput if pairs > 1 => "it has one queue".into(),
                std::io::ErrorKind::InvalidInput => "it has several queues: write queues=2, or make another".into(),
                _ => crate::late::plain(&why),
            }
        )
    })?;
    let offload = |queue: &File, csum: bool, tso4: bool, tso6: bool| {
        let bits = [(csum, tap::CSUM), (tso4, tap::TSO4), (tso6, tap::TSO6)];
        tap::offload(queue, bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum())
    };
    Ok(vec![TapCard { mac: *mac, queues, offload: Box::new(offload) }])
}

/// The cards of the flags on `bus` that lead to another process. Starts the network's, or connects to it.
pub fn nics(flags: &cli::Machine, bus: DeviceBus) -> Result<Vec<Nic>> {
    let Some(spec) = flags.net.as_ref().filter(|spec| spec.bus == bus) else { return Ok(Vec::new()) };
    let cpus = flags.processor.cpus.unwrap_or_default().cpus();
    let pairs = spec.pairs.unwrap_or_else(|| u16::try_from(cpus).unwrap_or(PAIRS).clamp(1, PAIRS));
    let socket = match &spec.cable {
        Cable::Tap(_) => return Ok(Vec::new()),
        // What it said is in the record.
        _ if flags.replay.is_some() => UnixStream::pair()?.0,
        Cable::User(options) => {
            // The file itself and not its name, which may be another one's by now.
            let sandbox = run::sandbox_mode(flags);
            let helper = satori_net::start("/proc/self/exe".as_ref(), options, spec.mac, sandbox)?;
            for measure in &helper.measures {
                tracing::info!("user network: {measure}");
            }
            helper.socket
        }
        Cable::Passt(path) => UnixStream::connect(path).map_err(|why| {
            anyhow!(
                "cannot connect to --net passt={} ({}): start 'passt --socket {0}' first",
                path.display(),
                crate::late::plain(&why)
            )
        })?,
    };
    Ok(vec![Nic { mac: spec.mac, pairs, socket, ours: matches!(spec.cable, Cable::User(_)) }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_a_kind_and_words() {
        let user = spec("user,forward=tcp:127.0.0.1:2222:22,mac=52:54:00:00:00:0a,queues=2").unwrap();
        assert_eq!((user.mac[5], user.pairs), (10, Some(2)));
        assert!(matches!(spec("passt=/tmp/x").unwrap().cable, Cable::Passt(_)));
        for (wrong, told) in [
            ("", "user"),
            ("slirp", "user"),
            ("passt=", "passt=SOCKET"),
            ("tap=", "tap=tap0"),
            ("bridge=br0", "tap=NAME"),
            ("tap=tap0,restrict", "ip(8)"),
            ("user,hostfwd=tcp::2222-:22", "forward="),
            ("user,forward=tcp:2222:22", "127.0.0.1:2222:22"),
            ("user,mac=53:54:00:12:34:56", "52:54"),
            ("user,mac=52:54:00:12:34", "52:54"),
            ("user,queues=0", "1 to 8"),
            ("passt=/x,restrict", "mac="),
        ] {
            assert!(spec(wrong).unwrap_err().contains(told), "{wrong}: {:?}", spec(wrong));
        }
    }
}
