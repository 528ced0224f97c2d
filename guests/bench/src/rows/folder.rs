//! A folder of the host's with many files: in the guest mounted, on the host itself.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::measure::Meter;
use crate::sys::now;

/// Files, named by their number, in folders of a hundred, each with its number as its first bytes.
const FILES: u64 = 5_000;
const EACH: u64 = 100;
/// How long the large file is, and what is read of it at a time.
const LARGE: u64 = 16 << 20;
const PIECE: usize = 64 << 10;

fn path(folder: &str, number: u64) -> PathBuf {
    PathBuf::from(format!("{folder}/{}/{number}", number / EACH))
}

fn folder<'a>(m: &mut Meter, folder: Option<&'a str>) -> Option<&'a str> {
    let there = folder.filter(|folder| path(folder, 0).exists());
    if there.is_none() {
        m.absent = Some("the folder could not be mounted".into());
    }
    there
}

/// Passes over all files, after each of which a guest forgets what it knows of them: as a command finds them that begins.
fn passes(m: &mut Meter, folder: &str, mut each: impl FnMut(PathBuf, u64) -> bool) {
    let (mut wrong, begin) = (0, now());
    while m.samples.is_empty() || now() - begin < m.budget() {
        if fs::metadata("/modules").is_ok() {
            // Names, attributes and pages.
            let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        }
        let start = now();
        for number in 0..FILES {
            wrong += u64::from(!each(path(folder, number), number));
        }
        m.samples.push((now() - start) as f64 / FILES as f64);
        m.operations = FILES;
    }
    m.sum = Some(wrong);
}

/// All that is in the folder, as who looks for changes goes through it: each directory read, each file's attributes.
pub fn walk(m: &mut Meter, named: Option<&str>) {
    let Some(there) = folder(m, named) else { return };
    let (mut wrong, begin) = (0, now());
    while m.samples.is_empty() || now() - begin < m.budget() {
        if fs::metadata("/modules").is_ok() {
            let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        }
        let (start, mut found) = (now(), 0);
        let entries = |path: &std::path::Path| fs::read_dir(path).into_iter().flatten().flatten();
        for directory in
            entries(there.as_ref()).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            for file in entries(&directory.path()) {
                found += u64::from(fs::symlink_metadata(file.path()).is_ok_and(|file| file.len() == 1024));
            }
        }
        wrong += FILES.abs_diff(found);
        m.samples.push((now() - start) as f64 / FILES as f64);
        m.operations = FILES;
    }
    m.sum = Some(wrong);
}

/// Attributes.
pub fn stat(m: &mut Meter, named: Option<&str>) {
    let Some(there) = folder(m, named) else { return };
    passes(m, there, |path, _| fs::metadata(path).is_ok_and(|file| file.len() == 1024));
}

/// Contents.
pub fn read(m: &mut Meter, named: Option<&str>) {
    let Some(there) = folder(m, named) else { return };
    let is = |bytes: Vec<u8>, number: u64| {
        bytes.first_chunk().is_some_and(|head| u64::from_le_bytes(*head) == number)
    };
    passes(m, there, |path, number| fs::read(path).is_ok_and(|bytes| is(bytes, number)));
}

/// Files that come and go.
pub fn make(m: &mut Meter, named: Option<&str>) {
    let Some(there) = folder(m, named) else { return };
    let name = format!("{there}/made");
    let bytes = [7; 1024];
    m.each(|| {
        let made = fs::write(&name, bytes).and_then(|()| fs::remove_file(&name));
        u64::from(made.is_err())
    });
}

/// A large file, which a guest reads from the host each time.
pub fn read_large(m: &mut Meter, named: Option<&str>) {
    let Some(there) = folder(m, named) else { return };
    let name = format!("{there}/large");
    let (mut piece, mut wrong, begin) = (vec![0; PIECE], 0, now());
    while m.samples.is_empty() || now() - begin < m.budget() {
        if fs::metadata("/modules").is_ok() {
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        }
        let start = now();
        match File::open(&name) {
            Ok(file) => {
                for at in (0..LARGE).step_by(PIECE) {
                    wrong += u64::from(file.read_exact_at(&mut piece, at).is_err() || piece[8] != 7);
                }
            }
            Err(_) => wrong += 1,
        }
        m.operations = LARGE / PIECE as u64;
        m.samples.push((now() - start) as f64 / m.operations as f64);
    }
    m.sum = Some(wrong);
}
