//! What a user network is told: words behind commas, the same on the command line and to its process.

use std::net::{IpAddr, SocketAddr};

/// A port of the host that leads to one of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// UDP, or else TCP.
    pub udp: bool,
    /// Where the host listens.
    pub host: SocketAddr,
    /// The guest's port.
    pub guest: u16,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Ports that lead in.
    pub forwards: Vec<Forward>,
    /// The guest reaches nobody by itself.
    pub restrict: bool,
    /// The gateway's address stands for this host's own.
    pub loopback: bool,
    /// Who is asked for names, instead of the host's own resolvers.
    pub dns: Option<SocketAddr>,
}

/// What a word may be.
pub(crate) const WORDS: &str =
    "forward=tcp:127.0.0.1:2222:22 (or udp:), restrict, loopback (10.0.2.2 is this host), dns=ADDRESS[:PORT]";

impl Options {
    /// Adds what `word` says.
    pub fn word(&mut self, word: &str) -> Result<(), String> {
        match word.split_once('=').unwrap_or((word, "")) {
            ("restrict", "") => self.restrict = true,
            ("loopback", "") => self.loopback = true,
            ("forward", text) => self.forwards.push(forward(text)?),
            ("dns", text) => {
                let address =
                    text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)).or_else(|_| text.parse());
                self.dns = Some(address.map_err(|_| format!("'{text}' is no address: write dns=192.0.2.1"))?);
            }
            _ => return Err(format!("'{word}' is none of {WORDS}")),
        }
        Ok(())
    }

    /// The words that say all of it.
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<_> = self.forwards.iter().map(ToString::to_string).collect();
        words.extend(self.restrict.then(|| "restrict".into()));
        words.extend(self.loopback.then(|| "loopback".into()));
        words.extend(self.dns.map(|dns| format!("dns={dns}")));
        words
    }
}

impl std::fmt::Display for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.udp { "udp" } else { "tcp" };
        write!(f, "forward={kind}:{}:{}", self.host, self.guest)
    }
}

/// `tcp|udp:ADDRESS:PORT:GUESTPORT`; an address of IPv6 stands in brackets.
fn forward(text: &str) -> Result<Forward, String> {
    let wrong = || {
        format!("'{text}' is no forward: write tcp:127.0.0.1:2222:22, which is KIND:ADDRESS:PORT:GUESTPORT")
    };
    let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
    let udp = match kind {
        "tcp" => false,
        "udp" => true,
        _ => return Err(wrong()),
    };
    let (host, guest) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let host: SocketAddr = host.parse().map_err(|_| wrong())?;
    let guest = guest.parse().ok().filter(|&port| port != 0).ok_or_else(wrong)?;
    if host.port() == 0 {
        return Err(wrong());
    }
    Ok(Forward { udp, host, guest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_they_were_read_from() {
        let mut options = Options::default();
        let words = [
            "forward=tcp:127.0.0.1:2222:22",
            "forward=udp:[::1]:53:5353",
            "restrict",
            "loopback",
            "dns=9.9.9.9:53",
        ];
        for word in words {
            options.word(word).unwrap();
        }
        assert_eq!(options.words(), words);
        let mut short = Options::default();
        short.word("dns=9.9.9.9").unwrap();
        assert_eq!(short.dns, options.dns);
    }

    #[test]
    fn mistakes_are_told_with_what_to_write() {
        for (word, told) in [
            ("forward=tcp:2222:22", "127.0.0.1:2222:22"),
            ("forward=sctp:127.0.0.1:1:2", "tcp:127"),
            ("forward=tcp:127.0.0.1:0:22", "tcp:127"),
            ("forward=tcp:127.0.0.1:22:0", "tcp:127"),
            ("forward=tcp:127.0.0.1:22:65536", "tcp:127"),
            ("dns=x", "dns=192"),
            ("hostfwd=tcp::22-:22", "forward="),
            ("restrict=on", "restrict"),
        ] {
            assert!(Options::default().word(word).unwrap_err().contains(told), "{word}");
        }
    }
}
