//! qcow2 images whose tables say anything. Where nothing was changed, the bytes of a disk are those that were written, and the
//! image is whole behind every flush.

use std::io::{Error, Result as IoResult};
use std::sync::{Arc, Mutex};

use arbitrary::{Result, Unstructured};
use satori_image::testing::{faults, qcow2};
use satori_image::{Access, Image, Store};
use satori_lock::Held;

/// Bytes of the disk.
const DISK: u64 = 256 << 10;
/// Bytes of the file at most: the host is full then.
const FILE_MAX: u64 = 16 << 20;
/// Requests at most, and sectors of each.
const REQUESTS: usize = 60;
const SECTORS: u64 = 40;

/// A file in memory.
#[derive(Debug)]
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn bytes(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().held()
    }
}

impl Store for Memory {
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn set_len(&self, _len: u64) -> IoResult<()> {
        Err(Error::other("its length is what was written"))
    }

    fn read(&self, at: u64, data: &mut [u8]) -> IoResult<()> {
        let bytes = self.bytes();
        let there = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let count = there.len().min(data.len());
        data[..count].copy_from_slice(&there[..count]);
        data[count..].fill(0);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> IoResult<()> {
        let end = at.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX);
        let Some(end) = end else { return Err(std::io::ErrorKind::StorageFull.into()) };
        let mut bytes = self.bytes();
        let len = bytes.len().max(end as usize);
        bytes.resize(len, 0);
        bytes[at as usize..end as usize].copy_from_slice(data);
        Ok(())
    }

    fn punch(&self, _at: u64, _len: u64) -> IoResult<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> IoResult<()> {
        Ok(())
    }
}

/// Requests of `u`, and the disk that `good` ones leave.
fn requests(image: &Image, disk: &mut [u8], good: bool, u: &mut Unstructured) -> Result<()> {
    for _ in 0..REQUESTS {
        if u.is_empty() {
            break;
        }
        let sectors = image.bytes() / 512;
        let sector = u.int_in_range(0..=sectors.min(DISK / 512) - 1)?;
        let (at, len) = (sector * 512, (1 + u.int_in_range(0..=SECTORS)?).min(sectors - sector) * 512);
        let range = at as usize..(at + len) as usize;
        let done = match u.int_in_range(0..=5)? {
            0 | 1 => {
                let data = vec![u.arbitrary::<u8>()?; len as usize];
                if good {
                    disk[range].copy_from_slice(&data);
                }
                image.write(at, &data)
            }
            2 => {
                if good {
                    disk[range].fill(0);
                }
                image.zero(at, len)
            }
            3 => {
                let done = image.discard(at, len);
                if good {
                    image.read(at, &mut disk[range]).expect("what was given up is read, too");
                }
                done
            }
            4 => image.flush(),
            _ => {
                let mut data = vec![0; len as usize];
                let done = image.read(at, &mut data);
                assert!(!good || data == disk[range], "what is read at {at:#x}");
                done
            }
        };
        assert!(!good || done.is_ok(), "{done:?}");
    }
    Ok(())
}

/// Opens the image of `data`, and uses it as a guest does.
pub fn image(data: &[u8]) {
    let _ = attack(&mut Unstructured::new(data));
}

fn attack(u: &mut Unstructured) -> Result<()> {
    let blank = qcow2(DISK, *u.choose(&[9, 10, 12, 16])?, None);
    let store = Arc::new(Memory(Mutex::new(blank)));
    let mut disk = vec![0; DISK as usize];
    let open = |store: &Arc<Memory>| Image::qcow2("attacked", store.clone(), Access::Write);
    // Tables that lead somewhere, first.
    let image = open(&store).expect("an empty image is good");
    requests(&image, &mut disk, true, u)?;
    image.flush().expect("memory has room");
    drop(image);
    assert_eq!(faults(&store.bytes()), Vec::<String>::new());
    let changes = u.int_in_range(0..=8)?;
    for _ in 0..changes {
        let mut bytes = store.bytes();
        let last = bytes.len() as u64 - 8;
        // Header and tables are in front.
        let bound = *u.choose(&[112, 4096, last])?;
        let at = u.int_in_range(0..=bound)?.min(last) as usize;
        let value = match u.int_in_range(0..=2)? {
            0 => u.arbitrary::<u64>()?,
            1 => u64::from(u.arbitrary::<u16>()?) << 9 | 1 << 63,
            _ => u64::from(u.arbitrary::<u8>()?),
        };
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    let Ok(image) = open(&store) else {
        assert!(changes > 0, "an image that was not changed is good");
        return Ok(());
    };
    requests(&image, &mut disk, changes == 0, u)
}
