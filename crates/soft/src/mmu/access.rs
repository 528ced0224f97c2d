//! Data accesses: the cached fast path, and everything else behind it.

use std::sync::Mutex;

use satori_engine::{Exception, Exit, Resume};
use satori_memory::{Gpa, PageState};
use satori_state::seg;

use super::tlb::Fill;
use super::walk::canonical;
use super::{Access, Mode};
use crate::cpu::{Cpu, Exec, Stop};
use crate::host::Scalar;

/// Where the bytes of a page are.
#[derive(Clone, Copy)]
enum Place {
    Ram(*mut u8, *const PageState),
    Device(u64),
}

/// Serialises locked operations that straddle two pages, which no single host instruction can do.
static SPLIT_LOCK: Mutex<()> = Mutex::new(());

impl Cpu {
    /// Reads at a linear address with the rights of the current privilege level.
    #[inline(always)]
    pub fn read<T: Scalar>(&mut self, linear: u64) -> Exec<T> {
        self.read_as(linear, self.mode)
    }

    /// Writes at a linear address with the rights of the current privilege level.
    #[inline(always)]
    pub fn write<T: Scalar>(&mut self, linear: u64, value: T) -> Exec<()> {
        self.write_as(linear, value, self.mode)
    }

    /// Reads as the processor itself does: descriptor tables, task state, stacks of gates.
    pub fn read_system<T: Scalar>(&mut self, linear: u64) -> Exec<T> {
        self.read_as(linear, Mode::Supervisor)
    }

    #[inline(always)]
    fn read_as<T: Scalar>(&mut self, linear: u64, mode: Mode) -> Exec<T> {
        match self.tlb.lookup(linear, T::SIZE, mode, false) {
            // SAFETY: a hit is a pointer to T::SIZE bytes within a page of guest RAM.
            Some((host, _)) => Ok(unsafe { T::load(host) }),
            None => self.read_slow(linear, mode),
        }
    }

    #[inline(always)]
    fn write_as<T: Scalar>(&mut self, linear: u64, value: T, mode: Mode) -> Exec<()> {
        match self.tlb.lookup(linear, T::SIZE, mode, true) {
            Some((host, state)) => {
                // SAFETY: a hit is a pointer to T::SIZE bytes within a page of guest RAM, and
                // to the state of that page.
                let hit_code = unsafe {
                    T::store(host, value);
                    (*state).wrote()
                };
                if hit_code {
                    self.code_written();
                }
                Ok(())
            }
            None => self.write_slow(linear, value, mode),
        }
    }

    /// Reads, changes and writes back; `locked` makes that one atomic step. Returns what was
    /// there before.
    #[inline]
    pub fn update<T: Scalar + PartialEq>(
        &mut self,
        linear: u64,
        locked: bool,
        change: impl Fn(T) -> T,
    ) -> Exec<T> {
        match self.tlb.lookup(linear, T::SIZE, self.mode, true) {
            Some((host, state)) => Ok(self.modify(host, state, locked, change)),
            None => self.update_slow(linear, locked, change),
        }
    }

    /// Reads, changes and writes back the `T` at `host`, in a page of guest RAM with `state`.
    #[inline(always)]
    fn modify<T: Scalar + PartialEq>(
        &mut self,
        host: *mut u8,
        state: *const PageState,
        locked: bool,
        change: impl Fn(T) -> T,
    ) -> T {
        let mut old;
        // SAFETY: callers have a hit of the TLB: a pointer to T::SIZE bytes within a page of
        // guest RAM, and to the state of that page.
        let hit_code = unsafe {
            old = T::load(host);
            if locked {
                loop {
                    let found = T::compare_exchange(host, old, change(old));
                    if found == old {
                        break;
                    }
                    old = found;
                }
            } else {
                T::store(host, change(old));
            }
            (*state).wrote()
        };
        if hit_code {
            self.code_written();
        }
        old
    }

    #[cold]
    #[inline(never)]
    fn update_slow<T: Scalar + PartialEq>(
        &mut self,
        linear: u64,
        locked: bool,
        change: impl Fn(T) -> T,
    ) -> Exec<T> {
        self.watch(linear, T::SIZE, true, true)?;
        self.probe_write(linear, T::SIZE)?;
        let hit = self.tlb.lookup(linear, T::SIZE, self.mode, true);
        if let Some((host, state)) = hit.or_else(|| self.tlb.lookup_watched(linear, T::SIZE, self.mode, true))
        {
            return Ok(self.modify(host, state, locked, change));
        }
        // A device, or two pages.
        let _guard = SPLIT_LOCK.lock().unwrap_or_else(|e| e.into_inner());
        let old = self.read(linear)?;
        self.write(linear, change(old))?;
        Ok(old)
    }

    /// Writes `new` if memory holds `old`; always makes the write cycle, as the processor does.
    /// Returns what was found.
    pub fn compare_exchange<T: Scalar + PartialEq>(
        &mut self,
        linear: u64,
        locked: bool,
        old: T,
        new: T,
    ) -> Exec<T> {
        self.update(linear, locked, |found| if found == old { new } else { found })
    }

    /// Makes sure that `len` bytes (at most a page) can be written, setting dirty bits.
    pub fn probe_write(&mut self, linear: u64, len: u64) -> Exec<()> {
        self.place(linear, self.mode, true)?;
        let last = linear.wrapping_add(len.max(1) - 1);
        if (last ^ linear) >> 12 != 0 {
            self.place(last, self.mode, true)?;
        }
        Ok(())
    }

    /// Up to `max` bytes of RAM at `linear` that can be read through a host pointer: those to
    /// the end of its page. Nothing where there is a device, or watched data.
    pub fn host_range(&mut self, linear: u64, max: u64, write: bool) -> Exec<Option<(*mut u8, u64)>> {
        match self.place(linear, self.mode, write)? {
            // Each access has to be looked at.
            Place::Ram(..) if self.debug.data_page(linear) => Ok(None),
            Place::Ram(host, _) => Ok(Some((host, max.min(0x1000 - (linear & 0xfff))))),
            Place::Device(_) => Ok(None),
        }
    }

    /// Tells that RAM at `linear` was written through [`Cpu::host_range`].
    pub fn host_range_written(&mut self, linear: u64) {
        if let Some((_, state)) = self.tlb.lookup(linear, 1, self.mode, true) {
            // SAFETY: a hit points to the state of a page of guest RAM.
            if unsafe { (*state).wrote() } {
                self.code_written();
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn read_slow<T: Scalar>(&mut self, linear: u64, mode: Mode) -> Exec<T> {
        self.watch(linear, T::SIZE, true, false)?;
        let first = (0x1000 - (linear & 0xfff)).min(T::SIZE);
        let here = self.place(linear, mode, false)?;
        if first == T::SIZE {
            return match here {
                // SAFETY: all T::SIZE bytes lie in this page of RAM.
                Place::Ram(host, _) => Ok(unsafe { T::load(host) }),
                Place::Device(gpa) => self.device_read(gpa),
            };
        }
        let there = self.place(linear.wrapping_add(first), mode, false)?;
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

    #[cold]
    #[inline(never)]
    fn write_slow<T: Scalar>(&mut self, linear: u64, value: T, mode: Mode) -> Exec<()> {
        self.watch(linear, T::SIZE, false, true)?;
        let first = (0x1000 - (linear & 0xfff)).min(T::SIZE);
        let here = self.place(linear, mode, true)?;
        if first == T::SIZE {
            return match here {
                Place::Ram(host, state) => {
                    // SAFETY: all T::SIZE bytes lie in this page of RAM, whose state it is.
                    if unsafe {
                        T::store(host, value);
                        (*state).wrote()
                    } {
                        self.code_written();
                    }
                    Ok(())
                }
                Place::Device(gpa) => self.device_write(gpa, value),
            };
        }
        let there = self.place(linear.wrapping_add(first), mode, true)?;
        let bytes = value.to_bytes();
        for i in 0..T::SIZE {
            let (place, offset) = if i < first { (here, i) } else { (there, i - first) };
            match place {
                // SAFETY: the offset stays within the place's page, whose state it is.
                Place::Ram(host, state) => unsafe {
                    u8::store(host.add(offset as usize), bytes[i as usize]);
                    if (*state).wrote() {
                        self.code_written();
                    }
                },
                Place::Device(gpa) => self.device_write::<u8>(gpa + offset, bytes[i as usize])?,
            }
        }
        Ok(())
    }

    /// Translates one byte, caching the page if it is RAM.
    fn place(&mut self, linear: u64, mode: Mode, write: bool) -> Exec<Place> {
        if let Some((host, state)) = self.tlb.lookup(linear, 1, mode, write) {
            return Ok(Place::Ram(host, state));
        }
        let watched = self.debug.data_page(linear);
        if watched && let Some((host, state)) = self.tlb.lookup_watched(linear, 1, mode, write) {
            return Ok(Place::Ram(host, state));
        }
        if self.code64 && !canonical(linear) {
            return Err(self.raise(Exception::gp(0)));
        }
        let access = Access { write, user: mode == Mode::User, fetch: false, ac: mode == Mode::SupervisorAc };
        let mapping = self.walk(linear, access).map_err(|fault| self.raise(fault))?;
        let memory = self.memory.clone();
        let Some(page) = memory.page(Gpa(mapping.gpa)) else { return Ok(Place::Device(mapping.gpa)) };
        self.back(mapping.gpa)?;
        let allowed = self.allowed_everywhere(&mapping);
        self.tlb.fill(&Fill {
            linear,
            host: page.host,
            state: page.state,
            allowed,
            global: mapping.global,
            shift: mapping.shift,
            watched,
        });
        // SAFETY: the offset stays within the page.
        Ok(Place::Ram(unsafe { page.host.add((linear & 0xfff) as usize) }, page.state))
    }

    /// Raises an EPT violation if the 2-MiB piece of RAM around `gpa` was not touched yet.
    pub(crate) fn back(&mut self, gpa: u64) -> Exec<()> {
        let piece = self.memory.page(Gpa(gpa & !0x1f_ffff)).or_else(|| self.memory.page(Gpa(gpa)));
        if piece.is_some_and(|piece| !piece.state.touched()) {
            self.ask(Exit::EptViolation { gpa })?;
        }
        Ok(())
    }

    fn device_read<T: Scalar>(&mut self, gpa: u64) -> Exec<T> {
        let mut bytes = [0; 16];
        for half in 0..T::SIZE.div_ceil(8) {
            let (gpa, size) = (gpa + 8 * half, T::SIZE.min(8) as u8);
            let value = match self.apic_offset(gpa) {
                // The TPR shadow answers without an exit (SDM 30.1.1).
                Some(0x80) => u64::from(self.state.tpr),
                Some(offset) => self.ask_value(Exit::ApicRead { offset, size })?,
                None => self.ask_value(Exit::MmioRead { gpa, size })?,
            };
            bytes[8 * half as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        Ok(T::from_bytes(&bytes))
    }

    fn device_write<T: Scalar>(&mut self, gpa: u64, value: T) -> Exec<()> {
        let bytes = value.to_bytes();
        for half in 0..T::SIZE.div_ceil(8) {
            let (gpa, size) = (gpa + 8 * half, T::SIZE.min(8) as u8);
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * half as usize..][..8]);
            let value = u64::from_le_bytes(word);
            match self.apic_offset(gpa) {
                Some(0x80) => self.set_tpr(value as u8),
                Some(offset) => self.ask(Exit::ApicWrite { offset, size, value }).map(drop)?,
                None => self.ask(Exit::MmioWrite { gpa, size, value }).map(drop)?,
            }
        }
        Ok(())
    }

    fn apic_offset(&self, gpa: u64) -> Option<u16> {
        (self.controls.apic_access_page == Some(gpa & !0xfff)).then_some((gpa & 0xfff) as u16)
    }

    fn ask_value(&mut self, exit: Exit) -> Exec<u64> {
        Ok(match self.ask(exit)? {
            Resume::Value(value) => value,
            _ => 0,
        })
    }

    /// Pushes a value of `size` (2, 4 or 8) bytes.
    pub fn push(&mut self, size: u32, value: u64) -> Exec<()> {
        let (sp, mask) = self.stack_pointer();
        let sp = sp.wrapping_sub(size.into()) & mask;
        let linear = self.stack_linear(sp, size)?;
        self.write_sized(linear, size, value)?;
        self.set_stack_pointer(sp);
        Ok(())
    }

    /// Pops a value of `size` (2, 4 or 8) bytes.
    pub fn pop(&mut self, size: u32) -> Exec<u64> {
        let (sp, mask) = self.stack_pointer();
        let linear = self.stack_linear(sp, size)?;
        let value = self.read_sized(linear, size)?;
        self.set_stack_pointer(sp.wrapping_add(size.into()) & mask);
        Ok(value)
    }

    /// The linear address of `size` stack bytes at `sp`, checked as an access through SS.
    pub fn stack_linear(&mut self, sp: u64, size: u32) -> Exec<u64> {
        self.segment_linear(seg::SS, sp, size.into(), true)
    }

    /// Reads 1, 2, 4 or 8 bytes, zero-extended.
    pub fn read_sized(&mut self, linear: u64, size: u32) -> Exec<u64> {
        Ok(match size {
            1 => self.read::<u8>(linear)?.into(),
            2 => self.read::<u16>(linear)?.into(),
            4 => self.read::<u32>(linear)?.into(),
            _ => self.read::<u64>(linear)?,
        })
    }

    /// Writes the low 1, 2, 4 or 8 bytes of `value`.
    pub fn write_sized(&mut self, linear: u64, size: u32, value: u64) -> Exec<()> {
        match size {
            1 => self.write(linear, value as u8),
            2 => self.write(linear, value as u16),
            4 => self.write(linear, value as u32),
            _ => self.write(linear, value),
        }
    }

    /// A second look at an access that faults when it is not canonical: through SS it is #SS.
    pub(crate) fn refuse_address(&mut self, segment: usize) -> Stop {
        if segment == seg::SS {
            self.raise(Exception::with_code(satori_defs::x86::vector::SS, 0))
        } else {
            self.raise(Exception::gp(0))
        }
    }
}
