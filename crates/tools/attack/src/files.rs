//! A hostile guest of the file server, and somebody on the host who puts links into the places of folders meanwhile. Whatever
//! they do, nothing outside the shared folder is read or changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use arbitrary::{Result, Unstructured};
use satori_files::testing::Served;
use satori_files::{Mode, Protocol};

/// Steps at most.
const STEPS: usize = 60;
/// What lies beside the folder, and never goes through a reply.
const SECRET: &[u8] = b"what nobody in the guest may ever see";
const SECRET_MODE: u32 = 0o640;

/// Names that lead somewhere, or elsewhere, or nowhere.
const NAMES: &[&[u8]] = &[
    b"a",
    b"d",
    b"e",
    b"out",
    b"new",
    b"fifo",
    b"..",
    b".",
    b"",
    b"/",
    b"../secret",
    b"d/../../secret",
    b"/etc/passwd",
    b"a\0b",
    b"secret",
    b"user.x",
    b"security.capability",
    b"\xff\xfe",
    &[b'x'; 255],
    &[b'x'; 256],
    &[b'/'; 4097],
];

/// FUSE's requests: number, and what follows the header. Letters: `n` a name, `i` a node, `h` a handle, `4` and `8` numbers of so many bytes, `d` data.
const FUSE: &[(u32, &str)] = &[
    (1, "n"),
    (1, "n"),
    (1, "n"),
    (2, "i"),
    (3, "88"),
    (4, "44h88888844444444"),
    (5, ""),
    (6, "nn"),
    (8, "4444n"),
    (9, "44n"),
    (10, "n"),
    (11, "n"),
    (12, "inn"),
    (13, "in"),
    (14, "44"),
    (14, "44"),
    (15, "h844844"),
    (16, "h844844d"),
    (17, ""),
    (18, "h448"),
    (20, "h44"),
    (21, "44nd"),
    (22, "44n"),
    (23, "44"),
    (24, "n"),
    (26, "4444"),
    (27, "44"),
    (28, "h844844"),
    (29, "h448"),
    (35, "4444n"),
    (42, "44i8i8"),
    (43, "h8844"),
    (44, "h844844"),
    (45, "i44nn"),
    (46, "h844"),
    (51, "4444n"),
];

/// 9P's: number and what follows the tag. `n` a name, `f` a fid, `1` to `8` numbers, `d` data behind its length, `w` a walk's names.
const PLAN9: &[(u8, &str)] = &[
    (100, "4n"),
    (104, "ffnn4"),
    (110, "ffw"),
    (110, "ffw"),
    (110, "ffw"),
    (120, "f"),
    (24, "f8"),
    (26, "f444488888"),
    (22, "f"),
    (8, "f"),
    (12, "f4"),
    (12, "f4"),
    (14, "fn444"),
    (116, "f84"),
    (118, "f8d"),
    (40, "f84"),
    (50, "f4"),
    (16, "fnn4"),
    (18, "fn4444"),
    (72, "fn44"),
    (70, "ffn"),
    (76, "fn4"),
    (74, "fnfn"),
    (30, "ffn"),
    (32, "fn84"),
    (52, "f14884n"),
    (54, "f1884n"),
    (122, "f"),
    (108, "2"),
];

/// A folder with the shared one in it, removed at the end.
struct Outer(PathBuf);

impl Outer {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("satori-attack-files-{}-{number}", std::process::id()));
        let outer = Outer(path);
        let inner = outer.inner();
        fs::create_dir_all(inner.join("d")).expect("folders");
        fs::write(outer.secret(), SECRET).expect("a file");
        fs::set_permissions(outer.secret(), PermissionsExt::from_mode(SECRET_MODE)).expect("a mode");
        fs::write(inner.join("a"), b"of the folder").expect("a file");
        fs::write(inner.join("d/e"), b"deeper").expect("a file");
        symlink("../secret", inner.join("out")).expect("a link");
        outer
    }

    fn inner(&self) -> PathBuf {
        self.0.join("inner")
    }

    fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }

    /// Nothing beside the shared folder is another than it was.
    fn check(&self) {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).expect("the folder").map(|entry| entry.expect("it").file_name()).collect();
        names.sort();
        assert_eq!(names, ["inner", "secret"], "beside the folder");
        assert_eq!(fs::read(self.secret()).expect("the secret"), SECRET, "it was changed");
        let mode = fs::metadata(self.secret()).expect("the secret").permissions().mode() & 0o7777;
        assert_eq!(mode, SECRET_MODE, "its mode was changed");
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Somebody on the host changes the folder; what does not go, does not.
fn host(inner: &Path, u: &mut Unstructured) -> Result<()> {
    let at = |name: &str| inner.join(name);
    // In the folder itself: through a link of theirs it would be they who change what is outside.
    let name = *u.choose(&["a", "d", "e", "out", "new"])?;
    let _ = match u.int_in_range(0..=5)? {
        0 => fs::rename(at("d"), at("aside")).and_then(|()| symlink("..", at("d"))),
        1 => fs::remove_file(at("d")).and_then(|()| fs::rename(at("aside"), at("d"))),
        2 => fs::remove_file(at(name)).and_then(|()| symlink("../secret", at(name))),
        3 => fs::remove_file(at(name)).and_then(|()| fs::write(at(name), b"another")),
        4 => symlink("/", at(name)),
        _ => fs::remove_dir_all(at("d")).and_then(|()| symlink("../../", at("d"))),
    };
    Ok(())
}

fn number(u: &mut Unstructured) -> Result<u64> {
    Ok(match u.int_in_range(0..=4)? {
        0 | 1 => u.int_in_range(0..=9_u64)?,
        2 => u64::from(u.arbitrary::<u16>()?),
        // Kinds of files, flags of opens, sizes.
        3 => *u.choose(&[
            0o100_644,
            0o120_777,
            0o010_644,
            0o020_600,
            0o040_755,
            0o2,
            0o102,
            0o1101,
            4096,
            1 << 20,
        ])?,
        _ => u.arbitrary()?,
    })
}

fn fill(message: &mut Vec<u8>, shape: &str, plan9: bool, u: &mut Unstructured) -> Result<()> {
    for letter in shape.chars() {
        match letter {
            'n' => put_name(message, plan9, u)?,
            'w' => {
                let count = u.int_in_range(0..=4_u16)?;
                message.extend(count.to_le_bytes());
                for _ in 0..count {
                    put_name(message, plan9, u)?;
                }
            }
            'd' => {
                let count = usize::from(u.arbitrary::<u8>()?);
                let data = u.bytes(count.min(u.len()))?;
                if plan9 {
                    message.extend((data.len() as u32).to_le_bytes());
                }
                message.extend(data);
            }
            'f' => message.extend(u.int_in_range(0..=5_u32)?.to_le_bytes()),
            'i' | 'h' => message.extend(u.int_in_range(0..=9_u64)?.to_le_bytes()),
            digit => {
                let width = digit.to_digit(10).unwrap_or(8) as usize;
                message.extend(&number(u)?.to_le_bytes()[..width]);
            }
        }
    }
    Ok(())
}

fn put_name(message: &mut Vec<u8>, plan9: bool, u: &mut Unstructured) -> Result<()> {
    let name = *u.choose(NAMES)?;
    if plan9 {
        message.extend((name.len() as u16).to_le_bytes());
        message.extend(name);
    } else {
        message.extend(name);
        message.push(0);
    }
    Ok(())
}

fn fuse(u: &mut Unstructured) -> Result<Vec<u8>> {
    let (opcode, shape) = *u.choose(FUSE)?;
    let mut message = vec![0; 4];
    message.extend(opcode.to_le_bytes());
    message.extend(7_u64.to_le_bytes());
    message.extend(u.int_in_range(0..=9_u64)?.to_le_bytes());
    message.extend([0; 16]);
    fill(&mut message, shape, false, u)?;
    Ok(message)
}

fn plan9(u: &mut Unstructured) -> Result<Vec<u8>> {
    let (kind, shape) = *u.choose(PLAN9)?;
    let mut message = vec![0, 0, 0, 0, kind, 1, 0];
    fill(&mut message, shape, true, u)?;
    Ok(message)
}

/// A session that a guest would begin with.
fn greet(server: &mut Served, protocol: Protocol) {
    if protocol == Protocol::Plan9 {
        let attach = [&[0, 0, 0, 0, 104, 1, 0][..], &[0; 4], &[0xff; 4], &[0; 2], &[0; 2], &[0; 4]].concat();
        send(server, attach, |_| {});
    }
}

fn send(server: &mut Served, mut message: Vec<u8>, seen: impl FnOnce(&[u8])) {
    let length = (message.len() as u32).to_le_bytes();
    message[..4].copy_from_slice(&length);
    if let Some(reply) = server.answer(&message) {
        let told = reply.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        assert_eq!(told, Some(reply.len()), "a reply's length");
        assert!(!reply.windows(SECRET.len()).any(|piece| piece == SECRET), "the secret was read");
        seen(reply);
    }
}

fn attack(u: &mut Unstructured, outer: &Outer) -> Result<()> {
    let (mode, protocol) = (*u.choose(&Mode::ALL)?, *u.choose(&Protocol::ALL)?);
    let mut server = Served::new(&outer.inner(), mode, protocol).expect("a server");
    greet(&mut server, protocol);
    for _ in 0..STEPS {
        if u.is_empty() {
            break;
        }
        if u.ratio(1, 8)? {
            host(&outer.inner(), u)?;
            continue;
        }
        let mut message = if protocol == Protocol::Fuse { fuse(u)? } else { plan9(u)? };
        if u.ratio(1, 16)? {
            // It ends early.
            let kept = u.int_in_range(4..=message.len())?;
            message.truncate(kept);
        }
        send(&mut server, message, |_| {});
    }
    Ok(())
}

/// Asks a server of a folder for what `data` says.
pub fn files(data: &[u8]) {
    let outer = Outer::new();
    let _ = attack(&mut Unstructured::new(data), &outer);
    outer.check();
}
