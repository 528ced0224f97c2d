//! Who runs the command in the guest: the caller, or whom `--user` names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use anyhow::{Result, bail};

/// A user of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// What of the environment is this user's: HOME, USER, LOGNAME.
    pub environment: Vec<(&'static str, OsString)>,
}

impl User {
    /// The caller, or the user of that name or number in the root that the guest has.
    pub(super) fn of(wanted: Option<&str>, root: &Path) -> Result<User> {
        let Some(wanted) = wanted else {
            let groups = rustix::process::getgroups().unwrap_or_default();
            return Ok(User {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                groups: groups.into_iter().map(|group| group.as_raw()).collect(),
                environment: Vec::new(),
            });
        };
        // Without these files there are numbers alone.
        let file = |name: &str| std::fs::read(root.join("etc").join(name)).unwrap_or_default();
        match User::find(wanted, &file("passwd"), &file("group")) {
            Some(user) => Ok(user),
            None => bail!(
                "--user {wanted}: {} has no user of this name: write root, a number, or a name that it has",
                root.join("etc/passwd").display()
            ),
        }
    }

    /// As passwd(5) and group(5) have it.
    fn find(wanted: &str, passwd: &[u8], group: &[u8]) -> Option<User> {
        let number = wanted.parse::<u32>().ok().filter(|number| *number != u32::MAX);
        let entry = passwd.split(|byte| *byte == b'\n').find_map(|line| {
            let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
            let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
            let (uid, gid) = (decimal(uid)?, decimal(gid)?);
            (name == wanted.as_bytes() || number == Some(uid)).then_some((name, uid, gid, home))
        });
        let Some((name, uid, gid, home)) = entry else {
            let of_number = |uid| User { uid, gid: uid, groups: Vec::new(), environment: Vec::new() };
            let root = (wanted == "root").then_some(0);
            return number.or(root).map(of_number);
        };
        let mut groups = vec![gid];
        for line in group.split(|byte| *byte == b'\n') {
            let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
            let [_, _, number, members, ..] = fields[..] else { continue };
            if members.split(|byte| *byte == b',').any(|member| member == name) {
                groups.extend(decimal(number).filter(|number| *number != gid));
            }
        }
        let (name, home) = (OsString::from_vec(name.to_vec()), OsString::from_vec(home.to_vec()));
        let environment = vec![("HOME", home), ("USER", name.clone()), ("LOGNAME", name)];
        Some(User { uid, gid, groups, environment })
    }
}

fn decimal(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_number() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n# a comment\nann:x:1000:100:Ann,,:/home/ann:/bin/sh\n";
        let group = b"users:x:100:\nadm:x:4:bob,ann\nwheel:x:10:anna\n";
        let ann = User::find("ann", passwd, group).unwrap();
        assert_eq!((ann.uid, ann.gid, &ann.groups[..]), (1000, 100, &[100, 4][..]));
        assert_eq!(ann.environment[0], ("HOME", "/home/ann".into()));
        assert_eq!(User::find("1000", passwd, group), Some(ann));
        assert_eq!(User::find("root", passwd, group).unwrap().environment[1], ("USER", "root".into()));
        let stranger = User::find("4711", passwd, group).unwrap();
        assert_eq!((stranger.uid, stranger.gid, stranger.groups.len()), (4711, 4711, 0));
        assert_eq!(User::find("root", b"", b"").unwrap().uid, 0);
        for unknown in ["nobody", "", "-1", "4294967295", "4294967296"] {
            assert_eq!(User::find(unknown, passwd, group), None, "{unknown}");
        }
    }
}
