//! Images as files: what is read is what was written, whoever looks; and what is refused.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use satori_memory::{Gpa, GuestMemory, Region, Scatter};

use crate::testing::{faults, qcow2};
use crate::{Access, Format, HostFile, Image, Source, locks};

const BYTES: u64 = 1 << 20;

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("satori-image-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open_in(path: &Path, format: Format, access: Access, backing: Option<&Path>) -> Result<Image, String> {
    let write = access == Access::Write;
    Image::open(Source {
        name: "the disk".into(),
        file: File::options().read(true).write(write).open(path).unwrap(),
        format,
        access,
        here: path.parent().map(Path::to_path_buf),
        backing: backing.map(Path::to_path_buf),
    })
    .map_err(|error| error.to_string())
}

fn open(path: &Path, access: Access) -> Result<Image, String> {
    open_in(path, Format::Qcow2, access, None)
}

fn all(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; image.bytes() as usize];
    image.read(0, &mut bytes).unwrap();
    bytes
}

/// What qemu-img says, where it is installed.
fn qemu_img(arguments: &[&str], path: &Path) {
    if let Ok(output) = Command::new("qemu-img").args(arguments).arg(path).output() {
        // 3 is lost room.
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// So many bytes of guest memory in pieces, of which some are out of order.
fn guest(len: u64) -> Scatter {
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x1_0000 }]).unwrap();
    let piece = |index: u64| (Gpa((index ^ 1) * 512), 512);
    Scatter::new(&memory, (0..len / 512).map(piece), 0, len as usize).unwrap()
}

/// Random requests against `image`, and the bytes that it should have then.
fn exercise(image: &Image, model: &mut [u8], random: &mut Random, requests: usize) {
    for _ in 0..requests {
        let at = random.below(BYTES / 512) * 512;
        let len = (1 + random.below(64)) * 512;
        let len = len.min(BYTES - at);
        let range = at as usize..(at + len) as usize;
        match random.below(8) {
            0..=3 => {
                let data = vec![random.below(255) as u8 + 1; len as usize];
                if random.below(2) == 0 {
                    image.write(at, &data).unwrap();
                } else {
                    let from = guest(len);
                    from.put(0, &data);
                    image.drain(at, &from).unwrap();
                }
                model[range].copy_from_slice(&data);
            }
            4 => {
                image.zero(at, len).unwrap();
                model[range].fill(0);
            }
            5 => {
                image.discard(at, len).unwrap();
                // What was given up may be anything: the model takes what is there.
                image.read(at, &mut model[range]).unwrap();
            }
            6 => image.flush().unwrap(),
            _ => {
                let mut data = vec![0; len as usize];
                image.read(at, &mut data).unwrap();
                assert!(data == model[range.clone()], "{at:#x} and {len}");
                if image.read_at_once(at, &mut data) {
                    assert!(data == model[range.clone()], "at once, {at:#x} and {len}");
                }
                let into = guest(len);
                image.fill(at, &into).unwrap();
                into.get(0, &mut data);
                assert!(data == model[range.clone()], "to a guest, {at:#x} and {len}");
                into.put(0, &vec![0xee; len as usize]);
                if image.fill_at_once(at, &into) {
                    into.get(0, &mut data);
                    assert!(data == model[range], "to a guest at once, {at:#x} and {len}");
                }
            }
        }
    }
}

#[test]
fn what_was_written_is_read_in_every_size_of_cluster_and_the_image_is_whole() {
    let folder = Folder::new("written");
    for (seed, bits) in [9, 12, 16, 21].into_iter().enumerate() {
        let path = folder.file("disk", &qcow2(BYTES, bits, None));
        let (mut model, mut random) = (vec![0; BYTES as usize], Random(seed as u64 + 1));
        for _ in 0..3 {
            let image = open(&path, Access::Write).unwrap();
            assert_eq!(image.bytes(), BYTES);
            assert!(all(&image) == model, "{bits}");
            exercise(&image, &mut model, &mut random, 150);
            drop(image);
            assert_eq!(faults(&fs::read(&path).unwrap()), Vec::<String>::new(), "{bits}");
            qemu_img(&["check", "-f", "qcow2"], &path);
        }
    }
}

#[test]
fn an_image_on_others_reads_through_and_changes_only_itself() {
    let folder = Folder::new("chain");
    let mut base = vec![0; BYTES as usize];
    Random(7).fill(&mut base);
    folder.file("base/raw", &base);
    let middle = folder.file("base/middle", &qcow2(BYTES, 12, Some(("raw", "raw"))));
    // The middle's own changes, by itself.
    let image = open(&middle, Access::Write).unwrap();
    image.write(4096, &[1; 512]).unwrap();
    drop(image);
    let (before, absolute) = (fs::read(&middle).unwrap(), middle.display().to_string());
    for name in ["base/middle", &absolute] {
        let top = folder.file("top", &qcow2(BYTES, 16, Some((name, "qcow2"))));
        let mut model = base.clone();
        model[4096..4608].fill(1);
        let image = open(&top, Access::Write).unwrap();
        assert_eq!(image.files().len(), 3);
        assert!(all(&image) == model);
        exercise(&image, &mut model, &mut Random(3), 200);
        assert!(all(&image) == model);
        drop(image);
        assert!(fs::read(&middle).unwrap() == before && fs::read(folder.0.join("base/raw")).unwrap() == base);
        assert_eq!(faults(&fs::read(&top).unwrap()), Vec::<String>::new());
        qemu_img(&["check", "-f", "qcow2"], &top);
    }
}

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.below(256) as u8);
    }
}

#[test]
fn a_snapshot_and_a_reader_change_no_file() {
    let folder = Folder::new("snapshot");
    let path = folder.file("disk", &qcow2(BYTES, 16, None));
    let before = fs::read(&path).unwrap();
    let mut model = vec![0; BYTES as usize];
    let (one, other) = (open(&path, Access::Snapshot).unwrap(), open(&path, Access::ReadOnly).unwrap());
    exercise(&one, &mut model, &mut Random(5), 200);
    assert!(all(&one) == model && all(&other) == vec![0; BYTES as usize]);
    assert!(other.write(0, &[1; 512]).is_err());
    drop((one, other));
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn what_is_in_use_is_refused() {
    let folder = Folder::new("locked");
    let path = folder.file("disk", &qcow2(BYTES, 16, None));
    let above = folder.file("above", &qcow2(BYTES, 16, Some(("disk", "qcow2"))));
    let first = open(&path, Access::Write).unwrap();
    for access in [Access::Write, Access::ReadOnly, Access::Snapshot] {
        assert!(open(&path, access).unwrap_err().contains("in use"));
    }
    assert!(open(&above, Access::Write).unwrap_err().contains("in use"));
    drop(first);
    let _above = open(&above, Access::Write).unwrap();
    assert!(open(&path, Access::Write).unwrap_err().contains("in use"), "somebody stands on it");
}

#[test]
fn what_qemu_uses_is_refused_and_qemu_refuses_what_we_use() {
    let folder = Folder::new("qemu-locks");
    let path = folder.file("disk", &qcow2(BYTES, 16, None));
    let theirs = File::open(&path).unwrap();
    locks::as_qemu(&theirs, false);
    assert!(open(&path, Access::Write).unwrap_err().contains("in use"), "it reads");
    drop(open(&path, Access::Snapshot).unwrap());
    drop(open(&path, Access::ReadOnly).unwrap());
    locks::as_qemu(&theirs, true);
    for access in [Access::Write, Access::ReadOnly, Access::Snapshot] {
        assert!(open(&path, access).unwrap_err().contains("in use"), "it writes");
    }
    drop(theirs);
    // Where QEMU's own program is installed, it is asked.
    let info = |path: &Path| Command::new("qemu-img").args(["info", "-f", "qcow2"]).arg(path).output();
    for (access, fails) in [(Access::Write, true), (Access::ReadOnly, false), (Access::Snapshot, false)] {
        let _ours = open(&path, access).unwrap();
        let Ok(output) = info(&path) else { return };
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!((!output.status.success(), told.contains("lock")), (fails, fails), "{access:?}: {told}");
        let changed =
            Command::new("qemu-img").args(["resize", "-f", "qcow2"]).arg(&path).arg("+1M").output().unwrap();
        assert!(!changed.status.success(), "{access:?}");
    }
}

#[test]
fn images_that_cannot_be_used_are_refused_and_not_changed() {
    let folder = Folder::new("refused");
    folder.file("outside/secret", &vec![7; BYTES as usize]);
    folder.file("in/base", &vec![0; BYTES as usize]);
    fs::create_dir(folder.0.join("in/folder")).unwrap();
    std::os::unix::fs::symlink("../outside/secret", folder.0.join("in/link")).unwrap();
    let blank = qcow2(BYTES, 16, None);
    let changed = |at: usize, bytes: &[u8]| {
        let mut image = blank.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        // An autoclear bit, which a writer would take away.
        image[95] = 2;
        image
    };
    let based = |name: &str, format: &str| qcow2(BYTES, 16, Some((name, format)));
    let absolute = folder.0.join("outside/secret").display().to_string();
    for (image, told) in [
        (vec![0; 1 << 16], "Not a qcow2 file"),
        (b"QFI".to_vec(), "qcow2"),
        (changed(4, &9u32.to_be_bytes()), "v9"),
        (changed(20, &40u32.to_be_bytes()), "luster"),
        (changed(24, &(BYTES - 1).to_be_bytes()), "1048575 bytes"),
        (changed(24, &0u64.to_be_bytes()), "0 bytes"),
        (changed(32, &1u32.to_be_bytes()), "encrypted"),
        (changed(36, &u32::MAX.to_be_bytes()), "L1 table"),
        (changed(40, &3u64.to_be_bytes()), "L1 table"),
        (changed(79, &[1]), "0"),
        (changed(79, &[4]), "another file"),
        (based("base", "vmdk"), "neither raw nor qcow2"),
        (based("nothing", "raw"), "No such file"),
        (based("../outside/secret", "raw"), "outside"),
        (based(&absolute, "raw"), "outside"),
        (based("link", "raw"), "outside"),
        (based("/dev/zero", "raw"), "outside"),
        (based("folder", "raw"), "no file"),
        (based("disk", "qcow2"), "more than 32"),
    ] {
        let path = folder.file("in/disk", &image);
        for access in [Access::Write, Access::ReadOnly] {
            let error = open(&path, access).err().unwrap_or_else(|| panic!("taken: {told}"));
            // Itself it cannot stand on, since it is in use then.
            assert!(
                error.contains(told) || told.starts_with("more") && error.contains("in use"),
                "{error}: {told}"
            );
        }
        assert!(fs::read(&path).unwrap() == image, "{told}");
    }
    let path = folder.file("in/disk", &based("../outside/secret", "raw"));
    let image = open_in(&path, Format::Qcow2, Access::Write, Some(&folder.0)).unwrap();
    assert!(all(&image) == vec![7; BYTES as usize], "where it may lie was told");
    let short = folder.file("short", &[0; 513]);
    assert!(open_in(&short, Format::Raw, Access::Write, None).unwrap_err().contains("513 bytes"));
}

/// What a former guest wrote into a raw image decides nothing.
#[test]
fn a_raw_image_that_looks_like_qcow2_is_raw() {
    let folder = Folder::new("probe");
    let bytes = qcow2(BYTES, 16, Some(("/etc/passwd", "raw")));
    let path = folder.file("disk", &bytes);
    let image = open_in(&path, Format::Raw, Access::Write, None).unwrap();
    assert!(all(&image) == bytes);
}

#[test]
fn tables_that_make_no_sense_are_errors() {
    let folder = Folder::new("hostile");
    let path = folder.file("disk", &qcow2(BYTES, 9, None));
    let image = open(&path, Access::Write).unwrap();
    image.write(0, &[1; 1 << 16]).unwrap();
    drop(image);
    let whole = fs::read(&path).unwrap();
    let mut random = Random(11);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(4) {
            // Mostly the tables, which are in front.
            let bound = if random.below(4) == 0 { bytes.len() as u64 } else { 4096 };
            let at = random.below(bound);
            bytes[at as usize] = random.below(256) as u8;
        }
        let file = folder.file("broken", &bytes);
        let Ok(file) = File::options().read(true).write(true).open(file).and_then(HostFile::new) else {
            panic!()
        };
        let Ok(image) = Image::qcow2("broken", Arc::new(file), Access::Write) else { continue };
        let mut data = vec![0; 4096];
        for _ in 0..20 {
            let at = random.below(image.bytes().min(1 << 40) / 512) * 512;
            let len = (image.bytes() - at).min(4096) as usize;
            match random.below(4) {
                0 => drop(image.read(at, &mut data[..len])),
                1 => drop(image.write(at, &data[..len])),
                2 => drop(image.zero(at, len as u64)),
                _ => drop(image.flush()),
            }
        }
    }
}

/// The library's stack would end over it.
#[test]
fn an_image_whose_counts_have_holes_is_not_written() {
    let folder = Folder::new("holes");
    let mut bytes = qcow2(BYTES, 16, None);
    let first = bytes[1 << 16..(1 << 16) + 8].to_vec();
    bytes[1 << 16..(1 << 16) + 8].fill(0);
    bytes[(1 << 16) + 800..(1 << 16) + 808].copy_from_slice(&first);
    let path = folder.file("disk", &bytes);
    assert!(open(&path, Access::Write).unwrap_err().contains("holes"));
    assert!(all(&open(&path, Access::ReadOnly).unwrap()) == vec![0; BYTES as usize]);
}

/// A file that tells what of it would be left if the host lost its power.
#[derive(Debug, Default)]
struct Lossy {
    now: std::sync::Mutex<Vec<u8>>,
    lasting: std::sync::Mutex<Vec<u8>>,
}

impl crate::Store for Lossy {
    fn len(&self) -> u64 {
        self.now.lock().unwrap().len() as u64
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.now.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }
    fn read(&self, at: u64, data: &mut [u8]) -> std::io::Result<()> {
        data.copy_from_slice(&self.now.lock().unwrap()[at as usize..][..data.len()]);
        Ok(())
    }
    fn write(&self, at: u64, data: &[u8]) -> std::io::Result<()> {
        self.now.lock().unwrap()[at as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn punch(&self, _at: u64, _len: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn sync(&self) -> std::io::Result<()> {
        *self.lasting.lock().unwrap() = self.now.lock().unwrap().clone();
        Ok(())
    }
}

#[test]
fn what_lasts_when_is_as_the_cache_says() {
    for cache in crate::Cache::ALL {
        let store = Arc::new(Lossy::default());
        *store.now.lock().unwrap() = vec![0; 4096];
        crate::Store::sync(&*store).unwrap();
        let image = Image::raw("a", store.clone(), Access::Write).unwrap().with_cache(cache);
        let lasts = |at: usize| store.lasting.lock().unwrap()[at] == 1;
        image.write(512, &[1; 512]).unwrap();
        let through = cache.name() == "writethrough" || cache.name() == "directsync";
        assert_eq!((lasts(512), image.writes_through()), (through, through), "{cache:?}");
        image.flush().unwrap();
        assert_eq!(lasts(512), cache.name() != "unsafe", "{cache:?}");
        image.write(1024, &[1; 512]).unwrap();
        image.flush().unwrap();
        image.zero(1024, 512).unwrap();
        assert_eq!(lasts(1024), !through && cache.name() != "unsafe", "{cache:?}");
    }
}
