//! What a command reads and writes: no output is the file of an input, or of another output.
//!
//! Files are compared by device and inode, so that a link of either kind hides nothing, and before any of
//! them is opened: opening an output may already empty it.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Standard input as a file.
const STDIN: &str = "/proc/self/fd/0";
/// How many symbolic links to a file that is still to be made are followed, as Linux does (MAXSYMLINKS).
const LINKS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Read,
    Write,
}

#[derive(Clone, Debug)]
struct Place {
    role: Role,
    /// How the command line names it: a flag, or what a positional argument is.
    name: &'static str,
    path: PathBuf,
    /// It is one of the process's own streams, which its parent opened.
    stream: bool,
}

/// The files that a command was told of.
#[derive(Clone, Debug, Default)]
pub struct Places(Vec<Place>);

/// Which file a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode.
    File(u64, u64),
    /// A file that is not there yet: device and inode of its folder, and its name.
    New((u64, u64), OsString),
}

impl Places {
    /// The command reads `path`, which `name` told.
    pub fn reads<P: AsRef<Path>>(
        &mut self,
        name: &'static str,
        path: impl IntoIterator<Item = P>,
    ) -> &mut Self {
        self.add(Role::Read, name, path)
    }

    /// The command writes `path`, which `name` told.
    pub fn writes<P: AsRef<Path>>(
        &mut self,
        name: &'static str,
        path: impl IntoIterator<Item = P>,
    ) -> &mut Self {
        self.add(Role::Write, name, path)
    }

    /// What another command reads and writes that this one starts.
    pub fn and(&mut self, other: Places) -> &mut Self {
        self.0.extend(other.0);
        self
    }

    fn add<P: AsRef<Path>>(
        &mut self,
        role: Role,
        name: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> &mut Self {
        for path in paths {
            let path = match (path.as_ref(), role) {
                // With '-' the command reads the stream itself, and what happens to it is not the shell's affair alone.
                (path, Role::Read) if path == Path::new("-") => Path::new(STDIN),
                (path, Role::Write) if path == Path::new("-") => continue,
                (path, _) => path,
            };
            self.0.push(Place { role, name, path: path.into(), stream: false });
        }
        self
    }

    /// Every path, for a test that none was forgotten.
    #[cfg(test)]
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|place| place.path.as_path())
    }

    /// Refuses an output that is also something else.
    pub fn check(&self) -> Result<()> {
        let streams = [
            (Role::Read, "standard input", 0),
            (Role::Write, "standard output", 1),
            (Role::Write, "standard error", 2),
        ];
        let streams = streams.map(|(role, name, fd)| Place {
            role,
            name,
            path: format!("/proc/self/fd/{fd}").into(),
            stream: true,
        });
        let all: Vec<_> = self.0.iter().chain(&streams).map(|place| (place, identity(&place.path))).collect();
        for (index, (a, file)) in all.iter().enumerate() {
            let Some(file) = file else { continue };
            for (b, _) in all[index + 1..].iter().filter(|(_, other)| other.as_ref() == Some(file)) {
                match (a.role, b.role) {
                    // What the shell did with its own streams, as in '>log 2>&1', is its affair.
                    _ if a.stream && b.stream => {}
                    (Role::Read, Role::Read) => {}
                    (Role::Write, Role::Write) => bail!("{} and {} are one file: name two", told(a), told(b)),
                    (Role::Write, Role::Read) => destroys(a, b)?,
                    (Role::Read, Role::Write) => destroys(b, a)?,
                }
            }
        }
        Ok(())
    }
}

fn destroys(output: &Place, input: &Place) -> Result<()> {
    bail!("{} is the file of {}, which it would destroy: name another", told(output), told(input))
}

fn told(place: &Place) -> String {
    match place.path.to_str() {
        _ if place.stream => place.name.into(),
        Some(STDIN) => "standard input".into(),
        _ => format!("{} {}", place.name, place.path.display()),
    }
}

/// Which file `path` leads to; none where nothing can be lost, as in a pipe or a terminal.
fn identity(path: &Path) -> Option<Identity> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        if let Ok(file) = path.metadata() {
            let kind = file.file_type();
            return (kind.is_file() || kind.is_socket()).then(|| Identity::File(file.dev(), file.ino()));
        }
        // A link to nothing: what is opened is made where it points.
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        match path.read_link() {
            Ok(target) => path = folder.join(target),
            Err(_) => {
                let folder = folder.metadata().ok()?;
                return Some(Identity::New((folder.dev(), folder.ino()), path.file_name()?.to_owned()));
            }
        }
    }
    None
}

/// The path of the socket that a `unix:PATH` names.
pub fn unix_socket(address: &OsStr) -> Option<&Path> {
    use std::os::unix::ffi::OsStrExt;
    Some(Path::new(OsStr::from_bytes(address.as_bytes().strip_prefix(b"unix:")?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_dash_is_the_stream_that_it_reads() {
        let mut places = Places::default();
        places.reads("REPORT", ["-"]).writes("--csv", ["-"]);
        let [place] = &places.0[..] else { panic!("{places:?}") };
        assert_eq!((place.role, told(place).as_str(), place.stream), (Role::Read, "standard input", false));
    }

    #[test]
    fn links_of_either_kind_and_files_to_come_are_one_file() {
        let folder = std::env::temp_dir().join(format!("satori-places-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        let at = |name: &str| folder.join(name);
        std::fs::write(at("a"), "a").unwrap();
        for (link, target) in
            [("soft", "a"), ("to-come", "new"), ("again", "sub/../to-come"), ("loop", "loop")]
        {
            let _ = std::fs::remove_file(at(link));
            symlink(target, at(link)).unwrap();
        }
        let _ = std::fs::remove_file(at("hard"));
        std::fs::hard_link(at("a"), at("hard")).unwrap();
        let checked = |input: &str, output: &str| {
            let mut places = Places::default();
            places.reads("IN", [at(input)]).writes("OUT", [at(output)]).check().map_err(|why| why.to_string())
        };
        for other in ["a", "soft", "hard", "sub/../a"] {
            let refused = checked("a", other).unwrap_err();
            assert!(refused.starts_with("OUT ") && refused.contains("is the file of IN "), "{refused}");
        }
        for other in ["to-come", "again", "new", "sub/../new"] {
            checked("new", other).unwrap_err();
        }
        for other in ["other", "loop", "sub/a", "no/folder", "sub"] {
            checked("a", other).unwrap();
        }
        let mut two = Places::default();
        two.writes("A", [at("new")]).writes("B", [at("again")]);
        assert!(two.check().unwrap_err().to_string().ends_with("are one file: name two"));
        for same in [Path::new("/dev/null"), Path::new("-")] {
            let mut places = Places::default();
            places.reads("IN", [same]).writes("OUT", [same]).writes("TOO", [same]).check().unwrap();
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
