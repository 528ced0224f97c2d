//! Kernels as they were unpacked, kept from one run to the next.
//!
//! To unpack a kernel of zstd or xz takes half as long as to boot it. What comes out is kept beside what was fetched,
//! `satori/unpacked/DIGEST`, by the digest of what was packed: its bytes, and a checksum, as a host that went down may have
//! written only a part. Who cannot keep it unpacks it again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use satori_host::mapped::Mapped;
use satori_machine::{Compression, Contents, Packed};

use crate::debian::cache;

/// Kernels that are kept, those that were used last.
const KEPT: usize = 4;
/// What was begun so long ago and has not got its name was left by a run that was killed.
const LEFT: Duration = Duration::from_secs(3600);

/// What `kernel` unpacks to, if it is one whose unpacking takes long and that can be unpacked.
pub(crate) fn find(kernel: &[u8]) -> Option<Contents> {
    let packed = Packed::of(kernel)?;
    // LZ4 is unpacked as fast as what was kept is compared with its checksum.
    if packed.compression == Compression::Lz4 {
        return None;
    }
    let folder = cache::folder().ok()?.join("unpacked");
    let file = folder.join(blake3::hash(packed.bytes).to_hex().as_str());
    if let Some(known) = read(&file, packed.length) {
        return Some(Contents::new(known));
    }
    // What is wrong with it is told by who needs it.
    let unpacked = packed.unpack().ok()?;
    if has_home(&folder)
        && let Err(why) = keep(&folder, &file, &unpacked)
    {
        tracing::info!("the unpacked kernel is not kept in {}: {why}", folder.display());
    }
    Some(unpacked.into())
}

/// Whether what holds the user's caches is there, HOME or what XDG_CACHE_HOME is in: for who has none nothing is made.
fn has_home(folder: &Path) -> bool {
    folder.ancestors().nth(3).is_some_and(Path::is_dir)
}

/// What was kept, without its checksum.
struct Kept {
    file: Mapped,
    length: usize,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.file.as_ref()[..self.length]
    }
}

/// The `length` bytes that were kept as `file`; nothing unless it is whole and nobody else could have written it.
fn read(file: &Path, length: u32) -> Option<Kept> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(file).ok()?;
    let metadata = file.metadata().ok()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !own || !metadata.is_file() || metadata.len() != u64::from(length) + 4 {
        return None;
    }
    let kept = Kept { file: Mapped::new(&file).ok()?, length: length as usize };
    let sum = kept.file.as_ref().last_chunk().map(|sum| u32::from_le_bytes(*sum));
    let whole = sum == Some(crc32fast::hash(kept.as_ref()));
    // The time of its last use says what goes first.
    let _ = whole.then(|| file.set_modified(SystemTime::now()));
    whole.then_some(kept)
}

/// Keeps `bytes` as `file` in `folder`, instead of what was used longest ago.
fn keep(folder: &Path, file: &Path, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Containers that share the folder have the same numbers of processes.
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let begun = folder.join(format!("begun-{}-{now}", std::process::id()));
    let written = write(&begun, bytes).and_then(|()| fs::rename(&begun, file));
    if written.is_err() {
        let _ = fs::remove_file(&begun);
    }
    prune(folder)?;
    written
}

fn write(begun: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(begun)?;
    file.write_all(bytes)?;
    file.write_all(&crc32fast::hash(bytes).to_le_bytes())
}

/// Removes what is too much.
fn prune(folder: &Path) -> io::Result<()> {
    let (mut whole, mut begun): (Vec<_>, Vec<_>) = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .partition(|(_, path)| !is_begun(path));
    whole.sort();
    let old = |modified: &SystemTime| modified.elapsed().is_ok_and(|age| age > LEFT);
    begun.retain(|(modified, _)| old(modified));
    let many = whole.len().saturating_sub(KEPT);
    whole.iter().take(many).chain(&begun).try_for_each(|(_, path)| fs::remove_file(path).or_else(gone))
}

fn is_begun(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("begun-"))
}

/// Another run may have removed it.
fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("satori-unpacked-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_is_kept_comes_back_whole_or_not_at_all() {
        let folder = folder("whole");
        let (file, bytes) = (folder.join("a"), b"a kernel".repeat(999));
        let length = bytes.len() as u32;
        let found = |length| read(&file, length).map(|kept| kept.as_ref().to_vec());
        assert_eq!(found(length), None);
        keep(&folder, &file, &bytes).expect("kept");
        assert_eq!(found(length), Some(bytes.clone()));
        assert_eq!(found(length - 1), None, "another length");
        let mut damaged = fs::read(&file).expect("the file");
        damaged[17] ^= 1;
        fs::write(&file, &damaged).expect("damaged");
        assert_eq!(found(length), None, "damaged");
        keep(&folder, &file, &bytes).expect("kept again");
        let mode = |mode| fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode));
        mode(0o620).expect("its mode");
        assert_eq!(found(length), None, "others may write it");
        mode(0o600).expect("its mode");
        assert_eq!(found(length), Some(bytes));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn who_has_no_home_gets_none() {
        let home = folder("home");
        let kept = home.join(".cache/satori/unpacked");
        assert!(!has_home(&kept));
        fs::create_dir(&home).expect("a home");
        assert!(has_home(&kept));
        fs::remove_dir(&home).expect("removed");
    }

    #[test]
    fn what_was_used_last_stays() {
        let folder = folder("last");
        let names: Vec<_> = (0..KEPT + 3).map(|number| folder.join(number.to_string())).collect();
        let long_ago = SystemTime::now() - 2 * LEFT;
        for (name, age) in names.iter().zip(1..) {
            keep(&folder, name, b"bytes").expect("kept");
            let file = File::options().write(true).open(name).expect("the file");
            file.set_modified(long_ago + Duration::from_secs(age)).expect("its time");
            // The first one is used each time.
            assert!(read(&names[0], 5).is_some());
        }
        fs::write(folder.join("begun-1"), b"").expect("left");
        let left = File::options().write(true).open(folder.join("begun-1")).expect("the file");
        left.set_modified(long_ago).expect("its time");
        fs::write(folder.join("begun-2"), b"").expect("under way");
        keep(&folder, &names[0], b"bytes").expect("kept");
        let mut found: Vec<_> =
            fs::read_dir(&folder).expect("the folder").flatten().map(|entry| entry.path()).collect();
        found.sort();
        let mut wanted = vec![names[0].clone()];
        wanted.extend_from_slice(&names[4..]);
        wanted.push(folder.join("begun-2"));
        assert_eq!(found, wanted);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
