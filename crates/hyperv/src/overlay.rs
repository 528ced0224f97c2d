//! Overlay pages: they cover guest pages and give back what they covered (TLFS 5.2.1).

use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};

const BYTES: usize = PAGE_SIZE as usize;

/// Which overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hypercall,
    ReferenceTsc,
}

struct Cover {
    kind: Kind,
    gpa: Gpa,
    /// What an overlay above must show again when it goes.
    content: Box<[u8; BYTES]>,
}

/// The overlays of a partition. Several may cover the same page; the latest is seen.
#[derive(Default)]
pub(crate) struct Overlays {
    /// In the order in which they came.
    covers: Vec<Cover>,
    /// What lies below, once for each covered page.
    covered: Vec<(Gpa, Box<[u8; BYTES]>)>,
}

/// The page is not in guest memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutsideMemory;

impl Overlays {
    /// Puts overlay `kind`, showing `content` and zeroes, over the page at `gpa`; if it was
    /// somewhere else, that page comes back. Nothing changes where there is no memory.
    pub fn cover(
        &mut self,
        memory: &GuestMemory,
        kind: Kind,
        gpa: Gpa,
        content: &[u8],
    ) -> Result<(), OutsideMemory> {
        let gpa = gpa.page();
        let mut below = Box::new([0; BYTES]);
        memory.read(gpa, &mut below[..]).map_err(|_| OutsideMemory)?;
        self.uncover(memory, kind);
        if !self.covered.iter().any(|(page, _)| *page == gpa) {
            // Read again: the overlay may just have left this very page.
            memory.read(gpa, &mut below[..]).map_err(|_| OutsideMemory)?;
            self.covered.push((gpa, below));
        }
        let mut page = Box::new([0; BYTES]);
        page[..content.len()].copy_from_slice(content);
        memory.write(gpa, &page[..]).map_err(|_| OutsideMemory)?;
        self.covers.push(Cover { kind, gpa, content: page });
        Ok(())
    }

    /// Changes the first bytes of overlay `kind`, where the guest sees it.
    pub fn show(&mut self, memory: &GuestMemory, kind: Kind, start: &[u8]) {
        let index = self.covers.iter().position(|cover| cover.kind == kind);
        let Some((cover, above)) = index.and_then(|at| self.covers[at..].split_first_mut()) else { return };
        cover.content[..start.len()].copy_from_slice(start);
        if !above.iter().any(|other| other.gpa == cover.gpa) {
            // The page was in memory when it was covered, and memory does not shrink.
            let _ = memory.write(cover.gpa, start);
        }
    }

    /// Takes overlay `kind` away; the page shows what it shows without it.
    pub fn uncover(&mut self, memory: &GuestMemory, kind: Kind) {
        let Some(index) = self.covers.iter().position(|cover| cover.kind == kind) else { return };
        let gone = self.covers.remove(index);
        let below = self.covered.iter().position(|(page, _)| *page == gone.gpa);
        let uppermost = self.covers.iter().rfind(|cover| cover.gpa == gone.gpa);
        // The page was in memory when it was covered, and memory does not shrink.
        let _ = match (uppermost, below) {
            (Some(other), _) => memory.write(gone.gpa, &other.content[..]),
            (None, Some(below)) => memory.write(gone.gpa, &self.covered.remove(below).1[..]),
            (None, None) => Ok(()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    fn memory() -> GuestMemory {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x4000 }]).unwrap();
        for page in 0..4u64 {
            memory.write(Gpa(page << 12), &[page as u8 + 1; BYTES]).unwrap();
        }
        memory
    }

    fn seen(memory: &GuestMemory) -> [u8; 4] {
        [0u64, 1, 2, 3].map(|page| {
            let mut byte = [0];
            memory.read(Gpa(page << 12), &mut byte).unwrap();
            byte[0]
        })
    }

    #[test]
    fn moving_and_removing_gives_back_what_was_covered() {
        let (memory, mut overlays) = (memory(), Overlays::default());
        overlays.cover(&memory, Kind::Hypercall, Gpa(0x1000), &[0xaa]).unwrap();
        assert_eq!(seen(&memory), [1, 0xaa, 3, 4]);
        assert_eq!(memory.read_u32(Gpa(0x1ffc)).unwrap(), 0, "the whole page is covered");
        overlays.cover(&memory, Kind::Hypercall, Gpa(0x1000), &[0xab]).unwrap();
        overlays.cover(&memory, Kind::Hypercall, Gpa(0x2000), &[0xac]).unwrap();
        assert_eq!(seen(&memory), [1, 2, 0xac, 4]);
        assert_eq!(memory.read_u32(Gpa(0x1ffc)).unwrap(), 0x0202_0202);
        assert_eq!(overlays.cover(&memory, Kind::Hypercall, Gpa(0x4000), &[1]), Err(OutsideMemory));
        assert_eq!(seen(&memory), [1, 2, 0xac, 4], "a refused move leaves the old place covered");
        overlays.uncover(&memory, Kind::Hypercall);
        overlays.uncover(&memory, Kind::Hypercall);
        assert_eq!(seen(&memory), [1, 2, 3, 4]);
    }

    #[test]
    fn two_overlays_on_one_page_come_off_in_any_order() {
        for first in [Kind::Hypercall, Kind::ReferenceTsc] {
            let (memory, mut overlays) = (memory(), Overlays::default());
            overlays.cover(&memory, Kind::Hypercall, Gpa(0x3000), &[0xaa]).unwrap();
            overlays.cover(&memory, Kind::ReferenceTsc, Gpa(0x3000), &[0xbb]).unwrap();
            assert_eq!(seen(&memory)[3], 0xbb);
            overlays.uncover(&memory, first);
            let (left, value) = match first {
                Kind::Hypercall => (Kind::ReferenceTsc, 0xbb),
                Kind::ReferenceTsc => (Kind::Hypercall, 0xaa),
            };
            assert_eq!(seen(&memory)[3], value);
            overlays.uncover(&memory, left);
            assert_eq!(seen(&memory), [1, 2, 3, 4]);
        }
    }
}
