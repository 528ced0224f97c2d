//! Pieces of guest memory, one behind the other, that a device moves bytes to and from: with a file of the host's without a copy in
//! between.

use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{Error, Gpa, GuestMemory, PAGE_SIZE};

/// Most pieces of one call: UIO_MAXIOV of Linux.
const VECTORS: usize = 1024;

/// Pieces of guest memory. All of them are RAM when it is made; RAM that goes later is written where it was (see `map`).
#[derive(Clone)]
pub struct Scatter {
    memory: GuestMemory,
    pieces: Vec<(Gpa, usize)>,
    len: usize,
}

impl std::fmt::Debug for Scatter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scatter").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

impl Scatter {
    /// Up to `most` bytes of these pieces, from `skip` bytes on.
    pub fn new(
        memory: &GuestMemory,
        pieces: impl IntoIterator<Item = (Gpa, usize)>,
        mut skip: usize,
        most: usize,
    ) -> Result<Self, Error> {
        let mut scatter = Scatter { memory: memory.clone(), pieces: Vec::new(), len: 0 };
        for (gpa, len) in pieces {
            let passed = skip.min(len);
            skip -= passed;
            let len = (len - passed).min(most - scatter.len);
            if len == 0 {
                continue;
            }
            scatter.add(gpa.add(passed as u64), len)?;
        }
        Ok(scatter)
    }

    /// Adds a piece, one for each range of RAM that it is in: they are apart in this process.
    fn add(&mut self, mut gpa: Gpa, mut len: usize) -> Result<(), Error> {
        while len > 0 {
            let (_, _, there) = self.memory.host(gpa).ok_or(Error::Outside { gpa, len })?;
            let here = usize::try_from(there).map_or(len, |there| there.min(len));
            self.pieces.push((gpa, here));
            self.len += here;
            gpa = gpa.add(here as u64);
            len -= here;
        }
        Ok(())
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those from `skip` bytes on, up to `most`.
    fn part(&self, mut skip: usize, most: usize) -> impl Iterator<Item = (Gpa, usize)> {
        let mut left = most;
        self.pieces.iter().filter_map(move |&(gpa, len)| {
            let passed = skip.min(len);
            skip -= passed;
            let len = (len - passed).min(left);
            left -= len;
            (len > 0).then_some((gpa.add(passed as u64), len))
        })
    }

    /// Copies `data` in, from `skip` bytes on; what there is no room for is left out.
    pub fn put(&self, skip: usize, data: &[u8]) {
        let mut done = 0;
        for (gpa, len) in self.part(skip, data.len()) {
            // That it is RAM was checked.
            let _ = self.memory.write(gpa, &data[done..done + len]);
            done += len;
        }
    }

    /// Copies bytes out, from `skip` bytes on; behind the last one nothing is changed.
    pub fn get(&self, skip: usize, data: &mut [u8]) {
        let mut done = 0;
        for (gpa, len) in self.part(skip, data.len()) {
            let _ = self.memory.read(gpa, &mut data[done..done + len]);
            done += len;
        }
    }

    /// Reads what `file` has at `at` into `most` bytes, from `skip` bytes on; with `now` what it has without waiting. How many
    /// bytes came, which may be fewer.
    pub fn fill(
        &self,
        skip: usize,
        most: usize,
        file: BorrowedFd<'_>,
        at: u64,
        now: bool,
    ) -> IoResult<usize> {
        let flags = if now { libc::RWF_NOWAIT } else { 0 };
        let (vectors, at) = (self.vectors(skip, most), offset(at)?);
        // SAFETY: each vector is a part of guest memory, whose addresses stay those of this process's private mapping as long as it
        // lives (see `map`). Nobody has a reference to it: everybody reads it as what others change at any time.
        let came = unsafe {
            libc::preadv2(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int, at, flags)
        };
        // Whoever decoded code from there sees that behind the bytes.
        for (gpa, len) in self.part(skip, most) {
            if let Some((_, states, _)) = self.memory.host(gpa) {
                let pages = (gpa.offset() + len).div_ceil(PAGE_SIZE as usize);
                states.iter().take(pages).for_each(|state| _ = state.wrote());
            }
        }
        told(came)
    }

    /// Writes `most` bytes, from `skip` bytes on, to `file` at `at`. How many it took, which may be fewer.
    pub fn drain(&self, skip: usize, most: usize, file: BorrowedFd<'_>, at: u64) -> IoResult<usize> {
        let (vectors, at) = (self.vectors(skip, most), offset(at)?);
        // SAFETY: as in `fill`; the kernel reads only.
        told(unsafe {
            libc::pwritev2(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int, at, 0)
        })
    }

    /// Where the host has them, as far as one call takes.
    fn vectors(&self, skip: usize, most: usize) -> Vec<libc::iovec> {
        let vector = |(gpa, len): (Gpa, usize)| {
            let (host, _, there) = self.memory.host(gpa)?;
            // Other RAM may be there by now.
            (len as u64 <= there).then_some(libc::iovec { iov_base: host.cast(), iov_len: len })
        };
        self.part(skip, most).map_while(vector).take(VECTORS).collect()
    }
}

fn offset(at: u64) -> IoResult<libc::off_t> {
    libc::off_t::try_from(at).map_err(|_| ErrorKind::InvalidInput.into())
}

/// What a call gave.
fn told(count: isize) -> IoResult<usize> {
    usize::try_from(count).map_err(|_| IoError::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    use super::*;
    use crate::Region;

    fn memory() -> GuestMemory {
        // Two ranges that touch, and one behind a hole.
        let region = |start, len| Region { start: Gpa(start), len };
        GuestMemory::new(&[region(0, 0x2000), region(0x2000, 0x1000), region(0x10_0000, 0x1000)]).unwrap()
    }

    fn file() -> File {
        let path = std::env::temp_dir().join(format!(
            "satori-scatter-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn files_are_read_and_written_in_the_order_of_the_pieces() {
        let memory = memory();
        let pieces = [(Gpa(0x1ff0), 0x20), (Gpa(0x10_0000), 3), (Gpa(0x10_0003), 2), (Gpa(0x10), 0x100)];
        let scatter = Scatter::new(&memory, pieces, 8, 40).unwrap();
        assert_eq!((scatter.len(), scatter.pieces.len()), (40, 5), "{scatter:?}");
        let mut file = file();
        let bytes: Vec<u8> = (0..100).collect();
        file.write_all(&bytes).unwrap();
        let code =
            [0x1000, 0x2000, 0x10_0000].map(|gpa| memory.page(Gpa(gpa)).unwrap().state.mark_code(true));
        assert_eq!(scatter.fill(4, 100, file.as_fd(), 50, false).unwrap(), 36);
        for (gpa, before) in [0x1000, 0x2000, 0x10_0000].into_iter().zip(code) {
            assert_ne!(memory.page(Gpa(gpa)).unwrap().state.value(), before, "{gpa:#x}: its code is void");
        }
        let mut seen = [9; 41];
        scatter.get(0, &mut seen);
        assert_eq!(seen[..4], [0; 4]);
        assert_eq!((&seen[4..40], seen[40]), (&bytes[50..86], 9));
        assert_eq!(memory.read_u32(Gpa(0x1ffc)).unwrap().to_le_bytes(), [50, 51, 52, 53]);
        scatter.put(38, &[1, 2, 3]);
        assert_eq!(scatter.drain(30, 100, file.as_fd(), 200).unwrap(), 10);
        file.seek(std::io::SeekFrom::Start(200)).unwrap();
        let mut written = Vec::new();
        file.read_to_end(&mut written).unwrap();
        assert_eq!(written, [76, 77, 78, 79, 80, 81, 82, 83, 1, 2]);
    }

    #[test]
    fn the_end_of_a_file_and_what_is_no_memory_are_told() {
        let memory = memory();
        for piece in [(Gpa(0x2ff0), 0x11), (Gpa(0x4000), 1), (Gpa(u64::MAX), 2)] {
            assert!(Scatter::new(&memory, [piece], 0, 100).is_err());
            assert!(Scatter::new(&memory, [piece], 0, 0).unwrap().is_empty());
        }
        let scatter = Scatter::new(&memory, [(Gpa(0), 8)], 0, 8).unwrap();
        let mut file = file();
        file.write_all(b"abc").unwrap();
        assert_eq!(scatter.fill(0, 8, file.as_fd(), 0, false).unwrap(), 3);
        assert_eq!(scatter.fill(0, 8, file.as_fd(), 3, false).unwrap(), 0);
        assert!(scatter.fill(0, 8, file.as_fd(), u64::MAX, false).is_err());
    }
}
