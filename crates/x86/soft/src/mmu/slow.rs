//! Data accesses that the TLB does not answer: misses, devices, two pages at once, and modes in
//! which every access needs a closer look.
//!
//! The order of faults is that of the address alone (#GP, #SS), alignment (#AC), translation
//! (#PF). The manual leaves the last two open (SDM table 6-2); AMD processors do it this way.

use satori_defs::x86::vector;
use satori_engine::{BACKED, Exception, Exit};
use satori_memory::{Gpa, PageState};

use super::canonical;
use super::rights::Access;
use super::tlb::{Fill, Mode};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;

/// Where a byte is.
#[derive(Clone, Copy)]
enum Place {
    Ram(*mut u8, *const PageState),
    Device(u64),
}

impl Place {
    /// Tells that RAM was written; returns whether decoded code became invalid.
    fn wrote(self) -> bool {
        match self {
            // SAFETY: it is the state of a page of guest RAM, which lives as long as that.
            Place::Ram(_, state) => unsafe { (*state).wrote() },
            Place::Device(_) => false,
        }
    }
}

/// Where the bytes of an access are.
#[derive(Clone, Copy)]
enum Span {
    /// In one place, or in two pages that are neighbours on the host too.
    Whole(Place, Option<Place>),
    /// The first so many bytes in one place, the rest in another.
    Split(Place, u64, Place),
}

impl Cpu {
    #[cold]
    #[inline(never)]
    pub(super) fn read_slow<T: Scalar>(&mut self, linear: u64, mode: Mode) -> Exec<T> {
        self.watch(linear, T::SIZE, true, false)?;
        let span = self.span(linear, T::SIZE, mode, false)?;
        self.read_span(span)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn write_slow<T: Scalar>(&mut self, linear: u64, value: T, mode: Mode) -> Exec<()> {
        self.watch(linear, T::SIZE, false, true)?;
        let span = self.span(linear, T::SIZE, mode, true)?;
        self.write_span(span, value)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn update_slow<T: Scalar + PartialEq>(
        &mut self,
        linear: u64,
        locked: bool,
        change: impl Fn(T) -> T,
    ) -> Exec<T> {
        self.watch(linear, T::SIZE, true, true)?;
        let span = self.span(linear, T::SIZE, self.derived.mode, true)?;
        if let Span::Whole(Place::Ram(host, _), _) = span {
            // SAFETY: all T::SIZE bytes are RAM.
            let old = unsafe { T::update(host, locked, change) };
            self.wrote_span(span);
            return Ok(old);
        }
        // Two pages that the host has apart: nobody else may execute meanwhile. A device is its
        // own guard.
        let _alone = (locked && self.parallel()).then(|| self.seat().alone());
        let old = self.read_span(span)?;
        self.write_span(span, change(old))?;
        Ok(old)
    }

    fn read_span<T: Scalar>(&mut self, span: Span) -> Exec<T> {
        let (here, first, there) = match span {
            // SAFETY: all T::SIZE bytes are RAM.
            Span::Whole(Place::Ram(host, _), _) => return Ok(unsafe { T::load(host) }),
            Span::Whole(Place::Device(gpa), _) => return self.device_read(gpa),
            Span::Split(here, first, there) => (here, first, there),
        };
        let mut bytes = [0; 16];
        for i in 0..T::SIZE {
            let (place, offset) = if i < first { (here, i) } else { (there, i - first) };
            bytes[i as usize] = match place {
                // SAFETY: the offset stays within the place's page.
                Place::Ram(host, _) => unsafe { u8::load(host.add(offset as usize)) },
                Place::Device(gpa) => self.device_read::<u8>(gpa + offset)?,
            };
        }
        Ok(T::from_bytes(&bytes))
    }

    fn write_span<T: Scalar>(&mut self, span: Span, value: T) -> Exec<()> {
        match span {
            // SAFETY: all T::SIZE bytes are RAM.
            Span::Whole(Place::Ram(host, _), _) => unsafe { T::store(host, value) },
            Span::Whole(Place::Device(gpa), _) => return self.device_write(gpa, value),
            Span::Split(here, first, there) => {
                let bytes = value.to_bytes();
                // Devices first: they may send the instruction around again.
                for devices in [true, false] {
                    for i in 0..T::SIZE {
                        let (place, offset) = if i < first { (here, i) } else { (there, i - first) };
                        match place {
                            Place::Device(gpa) if devices => {
                                self.device_write::<u8>(gpa + offset, bytes[i as usize])?;
                            }
                            // SAFETY: the offset stays within the place's page.
                            Place::Ram(host, _) if !devices => unsafe {
                                u8::store(host.add(offset as usize), bytes[i as usize]);
                            },
                            _ => {}
                        }
                    }
                }
            }
        }
        self.wrote_span(span);
        Ok(())
    }

    /// Tells that the bytes of `span` were stored.
    fn wrote_span(&mut self, span: Span) {
        let hit_code = match span {
            Span::Whole(place, next) => place.wrote() | next.is_some_and(Place::wrote),
            Span::Split(here, _, there) => here.wrote() | there.wrote(),
        };
        if hit_code {
            self.code_written();
        }
    }

    /// Checks and translates all bytes of an access, before anything is done to any of them.
    fn span(&mut self, linear: u64, size: u64, mode: Mode, write: bool) -> Exec<Span> {
        self.require_canonical(linear, size)?;
        if self.derived.aligned && mode == Mode::User && linear & (size - 1) != 0 {
            return Err(self.raise(Exception::with_code(vector::AC, 0)));
        }
        let here = self.place(linear, mode, write)?;
        let first = 0x1000 - (linear & 0xfff);
        if first >= size {
            return Ok(Span::Whole(here, None));
        }
        let there = self.place(self.next_page(linear), mode, write)?;
        Ok(match (here, there) {
            (Place::Ram(a, _), Place::Ram(b, _)) if a.wrapping_add(first as usize) == b => {
                Span::Whole(here, Some(there))
            }
            _ => Span::Split(here, first, there),
        })
    }

    /// The first byte of the page behind `linear`'s, where linear addresses may have 32 bits.
    fn next_page(&self, linear: u64) -> u64 {
        let next = (linear | 0xfff).wrapping_add(1);
        if next == 1 << 32 && !self.derived.code64 { 0 } else { next }
    }

    /// Refuses bytes that are not canonical. Whether by #GP or #SS, the caller knows better.
    fn require_canonical(&mut self, linear: u64, size: u64) -> Exec<()> {
        let last = linear.wrapping_add(size.max(1) - 1);
        if canonical(linear) && canonical(last) { Ok(()) } else { Err(self.raise(Exception::gp(0))) }
    }

    /// #AC(0) where alignment is checked and `linear` is no multiple of `alignment`, a power of
    /// two: for operands that are read and written in pieces.
    pub fn require_alignment(&mut self, linear: u64, alignment: u64) -> Exec<()> {
        if self.derived.aligned && self.derived.mode == Mode::User && linear & (alignment - 1) != 0 {
            return Err(self.raise(Exception::with_code(vector::AC, 0)));
        }
        Ok(())
    }

    /// Runs an access made of pieces whose own alignment does not count.
    pub fn unaligned<T>(&mut self, access: impl FnOnce(&mut Cpu) -> Exec<T>) -> Exec<T> {
        let aligned = std::mem::replace(&mut self.derived.aligned, false);
        let outcome = access(self);
        self.derived.aligned = aligned;
        outcome
    }

    /// Makes sure that an operand of `size` bytes, a power of two, can be stored at `linear`.
    pub fn probe_store(&mut self, linear: u64, size: u64) -> Exec<()> {
        self.span(linear, size, self.derived.mode, true).map(drop)
    }

    /// Makes sure that `len` bytes (at most a page) can be written, setting dirty bits.
    pub fn probe_write(&mut self, linear: u64, len: u64) -> Exec<()> {
        self.require_canonical(linear, len)?;
        self.place(linear, self.derived.mode, true)?;
        if len > 0x1000 - (linear & 0xfff) {
            self.place(self.next_page(linear), self.derived.mode, true)?;
        }
        Ok(())
    }

    /// Up to `max` bytes of RAM at `linear` that can be read through a host pointer: those to
    /// the end of its page. Nothing where there is a device, or where each access is looked at.
    pub fn host_range(&mut self, linear: u64, max: u64, write: bool) -> Exec<Option<(*mut u8, u64)>> {
        if self.derived.aligned {
            return Ok(None);
        }
        self.require_canonical(linear, 1)?;
        match self.place(linear, self.derived.mode, write)? {
            Place::Ram(..) if self.debug.data_page(linear) => Ok(None),
            Place::Ram(host, _) => Ok(Some((host, max.min(0x1000 - (linear & 0xfff))))),
            Place::Device(_) => Ok(None),
        }
    }

    /// Up to `max` bytes of RAM at `linear` that lie together on the host, if all can be reached without a fault or an
    /// exit, and none is looked at.
    pub fn cached_run(&self, linear: u64, max: u64, write: bool) -> Option<(*mut u8, u64)> {
        let host = self.cached_range(linear, 1, write)?;
        let mut bytes = 0x1000 - (linear & 0xfff);
        while bytes < max
            && self.cached_range(linear.wrapping_add(bytes), 1, write)
                == Some(host.wrapping_add(bytes as usize))
        {
            bytes += 0x1000;
        }
        Some((host, bytes.min(max)))
    }

    /// Tells that `bytes` at `linear` were written through [`Cpu::cached_run`].
    pub fn cached_run_written(&mut self, linear: u64, bytes: u64) {
        let mut hit = false;
        let mut page = linear & !0xfff;
        while page.wrapping_sub(linear & !0xfff) < (linear & 0xfff) + bytes {
            if let Some((_, state)) = self.mmu.tlb.lookup(page, 1, self.derived.mode, true) {
                // SAFETY: it is the state of a page of guest RAM, which lives as long as that.
                hit |= unsafe { (*state).wrote() };
            }
            page = page.wrapping_add(0x1000);
        }
        if hit {
            self.code_written();
        }
    }

    /// Where `size` bytes of RAM at `linear` are on the host, if all can be reached without a fault or an
    /// exit, and none is looked at.
    pub fn cached_range(&self, linear: u64, size: u64, write: bool) -> Option<*mut u8> {
        self.mmu.tlb.lookup(linear, size, self.derived.mode, write).map(|(host, _)| host)
    }

    /// Tells that RAM at `linear` was written through [`Cpu::host_range`] or [`Cpu::cached_range`].
    pub fn host_range_written(&mut self, linear: u64) {
        if let Ok(place) = self.place(linear, self.derived.mode, true)
            && place.wrote()
        {
            self.code_written();
        }
    }

    /// Makes sure that the byte at `linear` can be read, without reading it.
    pub fn probe_read(&mut self, linear: u64) -> Exec<()> {
        self.require_canonical(linear, 1)?;
        self.place(linear, self.derived.mode, false).map(drop)
    }

    /// Makes an access of `size` bytes at `linear` hit the TLB, if it can. Raises nothing: whoever is
    /// refused has to make the access itself.
    pub fn cache_translation(&mut self, linear: u64, size: u64, write: bool) -> bool {
        if (linear & 0xfff) + size > 0x1000 || !canonical(linear) {
            return false;
        }
        self.begin();
        let placed = self.place(linear, self.derived.mode, write).is_ok();
        self.pending.fault = None;
        placed && self.mmu.tlb.lookup(linear, size, self.derived.mode, write).is_some()
    }

    /// Translates one byte, caching the page if it is RAM.
    fn place(&mut self, linear: u64, mode: Mode, write: bool) -> Exec<Place> {
        if let Some((host, state)) = self.mmu.tlb.find(linear, mode, write) {
            return Ok(Place::Ram(host, state));
        }
        let mapping = match self.walk(linear, Access::data(mode, write)) {
            Ok(mapping) => mapping,
            Err(fault) => {
                // A page fault drops what was cached for its address (SDM 4.10.4.1).
                self.mmu.tlb.flush_page(linear);
                self.mmu.fetches.flush_page(linear);
                return Err(self.raise(fault));
            }
        };
        if self.apic_access(mapping.gpa) {
            // The exit tells of the instruction.
            if !self.pending.delivering {
                self.execute_alone()?;
            }
            return Ok(Place::Device(mapping.gpa));
        }
        let Some(page) = self.memory.page(Gpa(mapping.gpa)) else { return Ok(Place::Device(mapping.gpa)) };
        let (host, state, noticed) = (page.host, std::ptr::from_ref(page.state), page.state.watched());
        self.back(mapping.gpa)?;
        let mut allowed = self.allowed_everywhere(&mapping);
        if noticed && self.mmu.tlb.guards_code() {
            // Whoever stores through it does not look.
            allowed.iter_mut().skip(1).step_by(2).for_each(|write| *write = false);
        }
        self.mmu.tlb.fill(&Fill {
            linear,
            host,
            state,
            allowed,
            global: mapping.global,
            shift: mapping.shift,
            key: mapping.rights.key,
            watched: self.debug.data_page(linear),
        });
        // SAFETY: the offset stays within the page.
        Ok(Place::Ram(unsafe { host.add((linear & 0xfff) as usize) }, state))
    }

    /// Raises an EPT violation if the piece of RAM around `gpa` was not touched yet.
    pub(crate) fn back(&mut self, gpa: u64) -> Exec<()> {
        let piece = self.memory.piece(Gpa(gpa), BACKED);
        if piece.is_some_and(|piece| !piece.state.touched()) {
            self.ask(Exit::EptViolation { gpa })?;
        }
        Ok(())
    }
}
