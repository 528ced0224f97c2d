//! What the host wants: `KEY=VALUE` with a NUL behind each.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStringExt;

/// A folder to mount.
#[derive(Clone, Debug, Default)]
pub struct Mount {
    /// The shared folder's tag.
    pub tag: String,
    /// Whether the guest's mount is read-only too.
    pub read_only: bool,
    /// Where it is mounted.
    pub place: OsString,
}

/// Where a folder of modules is.
#[derive(Clone, Debug)]
pub enum Found {
    /// At this path in the root.
    Root(OsString),
    /// It is shared by this tag. A root that is `kept` is not to be changed for it.
    Share { tag: String, kept: bool },
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Modules in the order in which they are loaded: paths in the initramfs, options behind a space.
    pub modules: Vec<String>,
    /// The root, and further folders in it.
    pub mounts: Vec<Mount>,
    /// Where the modules of which release of the kernel are.
    pub found: Option<(String, Found)>,
    pub hostname: OsString,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub folder: OsString,
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Address, mask, gateway and name server of the network card, as many as there are; none if there is no card.
    pub network: Option<Vec<Ipv4Addr>>,
    /// Rows and columns, if the three streams are one terminal.
    pub terminal: Option<(u16, u16)>,
    /// Standard input is /dev/null.
    pub no_input: bool,
}

impl Spec {
    /// Reads it. An unknown key is an error: host and init are of one build.
    pub fn parse(bytes: &[u8]) -> Result<Spec, String> {
        let mut spec = Spec::default();
        for item in bytes.split(|&b| b == 0).filter(|item| !item.is_empty()) {
            let at = item.iter().position(|&b| b == b'=').ok_or("an item of the description has no '='")?;
            let (key, value) = (&item[..at], &item[at + 1..]);
            let text = || String::from_utf8_lossy(value).into_owned();
            let wrong = || format!("the description's {} is wrong", String::from_utf8_lossy(item));
            let number = || text().parse::<u32>().map_err(|_| wrong());
            let own = || OsString::from_vec(value.to_vec());
            match key {
                b"module" => spec.modules.push(text()),
                b"mount" => {
                    let mut parts = value.splitn(3, |&b| b == b':');
                    let (Some(tag), Some(mode), Some(place)) = (parts.next(), parts.next(), parts.next())
                    else {
                        return Err(wrong());
                    };
                    spec.mounts.push(Mount {
                        tag: String::from_utf8_lossy(tag).into_owned(),
                        read_only: mode == b"ro",
                        place: OsString::from_vec(place.to_vec()),
                    });
                }
                b"modules" => {
                    let at = value.iter().position(|&b| b == b':').ok_or_else(wrong)?;
                    let release = String::from_utf8_lossy(&value[..at]).into_owned();
                    spec.found = Some((release, Found::Root(OsString::from_vec(value[at + 1..].to_vec()))));
                }
                b"modules-share" => {
                    let text = text();
                    let mut parts = text.splitn(3, ':');
                    let (Some(release), Some(tag), Some(root)) = (parts.next(), parts.next(), parts.next())
                    else {
                        return Err(wrong());
                    };
                    let found = Found::Share { tag: tag.to_owned(), kept: root == "kept" };
                    spec.found = Some((release.to_owned(), found));
                }
                b"hostname" => spec.hostname = own(),
                b"arg" => spec.arguments.push(own()),
                b"env" => {
                    let at = value.iter().position(|&b| b == b'=').ok_or_else(wrong)?;
                    let name = OsString::from_vec(value[..at].to_vec());
                    spec.environment.push((name, OsString::from_vec(value[at + 1..].to_vec())));
                }
                b"cwd" => spec.folder = own(),
                b"umask" => spec.umask = number()?,
                b"uid" => spec.uid = number()?,
                b"gid" => spec.gid = number()?,
                b"group" => spec.groups.push(number()?),
                b"network" => {
                    let text = text();
                    let addresses = text.split_whitespace().map(|part| part.parse().map_err(|_| wrong()));
                    spec.network = Some(addresses.collect::<Result<_, _>>()?);
                }
                b"terminal" => {
                    let size = text();
                    let (rows, columns) = size.split_once(' ').ok_or_else(wrong)?;
                    let side = |text: &str| text.parse().map_err(|_| wrong());
                    spec.terminal = Some((side(rows)?, side(columns)?));
                }
                b"input" if value == b"none" => spec.no_input = true,
                _ => return Err(wrong()),
            }
        }
        Ok(spec)
    }
}
