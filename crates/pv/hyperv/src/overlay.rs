//! Overlay pages: they cover guest pages and give back what they covered (TLFS 5.2.1).

use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};
use serde::{Deserialize, Serialize};

const BYTES: usize = PAGE_SIZE as usize;

/// The bytes of a page.
pub(crate) type Content = Box<[u8]>;

/// A page of zeroes.
pub(crate) fn blank() -> Content {
    vec![0; BYTES].into()
}

/// Which overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Hypercall,
    ReferenceTsc,
    /// The message page of a virtual processor.
    Messages(u32),
    /// The event flags page of a virtual processor.
    EventFlags(u32),
}

impl Kind {
    /// Whether what the guest writes to the overlay stays in it.
    fn keeps_writes(self) -> bool {
        matches!(self, Kind::Messages(_) | Kind::EventFlags(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cover {
    kind: Kind,
    gpa: u64,
    /// What an overlay above must show again when it goes.
    content: Content,
}

/// The overlays of a partition. Several may cover the same page; the latest is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overlays {
    /// In the order in which they came.
    covers: Vec<Cover>,
    /// What lies below, once for each covered page.
    covered: Vec<(u64, Content)>,
}

/// The page is not in guest memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutsideMemory;

impl Overlays {
    /// Puts overlay `kind`, showing `content` and zeroes, over the page at `gpa`; if it was
    /// somewhere else, that page comes back. Nothing changes where there is no memory.
    pub(crate) fn cover(
        &mut self,
        memory: &GuestMemory,
        kind: Kind,
        gpa: Gpa,
        content: &[u8],
    ) -> Result<(), OutsideMemory> {
        let gpa = gpa.page();
        let mut below = blank();
        memory.read(gpa, &mut below).map_err(|_| OutsideMemory)?;
        self.uncover(memory, kind);
        // Again: the overlay may just have left this very page.
        memory.read(gpa, &mut below).map_err(|_| OutsideMemory)?;
        match self.uppermost(gpa.0) {
            Some(other) if other.kind.keeps_writes() => other.content = below,
            Some(_) => {}
            None => self.covered.push((gpa.0, below)),
        }
        let mut page = blank();
        page[..content.len()].copy_from_slice(content);
        memory.write(gpa, &page).map_err(|_| OutsideMemory)?;
        self.covers.push(Cover { kind, gpa: gpa.0, content: page });
        Ok(())
    }

    /// Whether these can be the overlays of a partition with so many processors and this memory: none twice, each
    /// a page of memory, and below each something to give back.
    pub(crate) fn fit(&self, memory: &GuestMemory, vps: u32) -> bool {
        let page = |gpa: u64| gpa.is_multiple_of(PAGE_SIZE) && memory.read(Gpa(gpa), &mut blank()).is_ok();
        let below = |gpa: u64| self.covered.iter().filter(|(covered, _)| *covered == gpa).count();
        let cover = |(index, cover): (usize, &Cover)| {
            let owner = match cover.kind {
                Kind::Messages(vp) | Kind::EventFlags(vp) => vp < vps,
                Kind::Hypercall | Kind::ReferenceTsc => true,
            };
            let again = self.covers[..index].iter().any(|other| other.kind == cover.kind);
            owner && !again && cover.content.len() == BYTES && page(cover.gpa) && below(cover.gpa) == 1
        };
        let used = |gpa: u64| self.covers.iter().any(|cover| cover.gpa == gpa);
        self.covers.iter().enumerate().all(cover)
            && self.covered.iter().all(|(gpa, content)| content.len() == BYTES && used(*gpa))
    }

    fn uppermost(&mut self, gpa: u64) -> Option<&mut Cover> {
        self.covers.iter_mut().rfind(|cover| cover.gpa == gpa)
    }

    /// Changes the first bytes of overlay `kind`, where the guest sees it.
    pub(crate) fn show(&mut self, memory: &GuestMemory, kind: Kind, start: &[u8]) {
        let index = self.covers.iter().position(|cover| cover.kind == kind);
        let Some((cover, above)) = index.and_then(|at| self.covers[at..].split_first_mut()) else { return };
        cover.content[..start.len()].copy_from_slice(start);
        if !above.iter().any(|other| other.gpa == cover.gpa) {
            // The page was in memory when it was covered, and memory does not shrink.
            let _ = memory.write(Gpa(cover.gpa), start);
        }
    }

    /// Where the guest sees overlay `kind`: nowhere if it is off, or below another.
    pub(crate) fn seen(&mut self, kind: Kind) -> Option<Gpa> {
        let gpa = self.covers.iter().find(|cover| cover.kind == kind)?.gpa;
        self.uppermost(gpa).filter(|cover| cover.kind == kind).map(|_| Gpa(gpa))
    }

    /// Takes all away, the latest first.
    pub(crate) fn uncover_all(&mut self, memory: &GuestMemory) {
        while let Some(kind) = self.covers.last().map(|cover| cover.kind) {
            self.uncover(memory, kind);
        }
    }

    /// Takes overlay `kind` away; the page shows what it shows without it. Returns what the
    /// overlay held.
    pub(crate) fn uncover(&mut self, memory: &GuestMemory, kind: Kind) -> Option<Content> {
        let seen = self.seen(kind);
        let index = self.covers.iter().position(|cover| cover.kind == kind)?;
        let mut gone = self.covers.remove(index);
        let Some(gpa) = seen else { return Some(gone.content) };
        // The page was in memory when it was covered, and memory does not shrink.
        if kind.keeps_writes() {
            let _ = memory.read(gpa, &mut gone.content);
        }
        let below = self.covered.iter().position(|(page, _)| *page == gpa.0);
        let _ = match (self.uppermost(gpa.0), below) {
            (Some(other), _) => memory.write(gpa, &other.content),
            (None, Some(below)) => memory.write(gpa, &self.covered.remove(below).1),
            (None, None) => Ok(()),
        };
        Some(gone.content)
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
                _ => (Kind::Hypercall, 0xaa),
            };
            assert_eq!(seen(&memory)[3], value);
            overlays.uncover(&memory, left);
            assert_eq!(seen(&memory), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_page_that_keeps_writes_takes_them_along_also_from_below_another() {
        let (memory, mut overlays) = (memory(), Overlays::default());
        let kind = Kind::Messages(3);
        overlays.cover(&memory, kind, Gpa(0x1000), &[]).unwrap();
        memory.write(Gpa(0x1004), &[0x77]).unwrap();
        assert_eq!(overlays.seen(kind), Some(Gpa(0x1000)));
        overlays.cover(&memory, Kind::EventFlags(3), Gpa(0x1000), &[]).unwrap();
        assert_eq!((overlays.seen(kind), seen(&memory)[1]), (None, 0));
        memory.write(Gpa(0x1004), &[0x66]).unwrap();
        let held = overlays.uncover(&memory, kind).unwrap();
        assert_eq!((held.len(), held[4]), (BYTES, 0x77));
        assert_eq!(overlays.uncover(&memory, Kind::EventFlags(3)).unwrap()[4], 0x66);
        assert_eq!(seen(&memory), [1, 2, 3, 4]);
        overlays.cover(&memory, kind, Gpa(0x2000), &held).unwrap();
        assert_eq!(memory.read_u32(Gpa(0x2004)).unwrap(), 0x77);
        overlays.cover(&memory, kind, Gpa(0x2000), &held[..1]).unwrap();
        assert_eq!(memory.read_u32(Gpa(0x2004)).unwrap(), 0, "onto itself, with new content");
        assert_eq!(overlays.uncover(&memory, Kind::Messages(4)), None);
    }
}
