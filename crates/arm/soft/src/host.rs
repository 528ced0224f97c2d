//! Pages of guest RAM as the vCPU's tables keep them: the only unsafe code of the engine.
//!
//! A [`HostPage`] is a copy of what `GuestMemory::page` returned. The vCPU that keeps it also keeps the [`GuestMemory`] it is
//! of, which unmaps nothing while it lives.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use satori_memory::{Gpa, GuestMemory, PAGE_SIZE, PageState};

/// A page of guest RAM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPage {
    host: *mut u8,
    state: *const PageState,
}

// SAFETY: both pointers are into memory that all threads of the machine share, and accesses through them are atomic.
unsafe impl Send for HostPage {}

const PAGE: usize = PAGE_SIZE as usize;

impl HostPage {
    /// Host address and state, for a table that translated code reads.
    pub(crate) fn parts(self) -> (u64, *const PageState) {
        (self.host.expose_provenance() as u64, self.state)
    }

    /// The page with these parts.
    #[inline(always)]
    pub(crate) fn of_parts(host: u64, state: *const PageState) -> Self {
        HostPage { host: std::ptr::with_exposed_provenance_mut(host as usize), state }
    }

    /// The page of RAM at `gpa`; none where devices are.
    pub(crate) fn of(memory: &GuestMemory, gpa: u64) -> Option<Self> {
        memory.page(Gpa(gpa).page()).map(|page| HostPage { host: page.host, state: page.state })
    }

    /// Reads `N` bytes at `offset`, which must lie in the page.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(self, offset: usize) -> u64 {
        assert!(offset <= PAGE - N && !self.host.is_null());
        // SAFETY: the page is of 4096 bytes, lives as long as the memory, and the bytes are in it; a reference to an atomic is
        // made of an aligned address only.
        unsafe {
            let at = self.host.add(offset);
            match N {
                1 => AtomicU8::from_ptr(at).load(Ordering::Relaxed).into(),
                2 if offset & 1 == 0 => AtomicU16::from_ptr(at.cast()).load(Ordering::Relaxed).into(),
                4 if offset & 3 == 0 => AtomicU32::from_ptr(at.cast()).load(Ordering::Relaxed).into(),
                8 if offset & 7 == 0 => AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed),
                _ => {
                    let mut value = 0;
                    for byte in 0..N {
                        let one = AtomicU8::from_ptr(at.add(byte)).load(Ordering::Relaxed);
                        value |= u64::from(one) << (8 * byte);
                    }
                    value
                }
            }
        }
    }

    /// Writes the low `N` bytes of `value` at `offset`, which must lie in the page, and tells the page's state.
    #[inline(always)]
    pub(crate) fn write<const N: usize>(self, offset: usize, value: u64) {
        assert!(offset <= PAGE - N && !self.host.is_null());
        // SAFETY: as in `read`; the state lives as long as the memory, too.
        unsafe {
            let at = self.host.add(offset);
            match N {
                1 => AtomicU8::from_ptr(at).store(value as u8, Ordering::Relaxed),
                2 if offset & 1 == 0 => {
                    AtomicU16::from_ptr(at.cast()).store(value as u16, Ordering::Relaxed);
                }
                4 if offset & 3 == 0 => {
                    AtomicU32::from_ptr(at.cast()).store(value as u32, Ordering::Relaxed);
                }
                8 if offset & 7 == 0 => AtomicU64::from_ptr(at.cast()).store(value, Ordering::Relaxed),
                _ => {
                    for byte in 0..N {
                        let one = (value >> (8 * byte)) as u8;
                        AtomicU8::from_ptr(at.add(byte)).store(one, Ordering::Relaxed);
                    }
                }
            }
            (*self.state).wrote();
        }
    }

    /// Exchanges the `N` bytes at aligned `offset` for `new` if they are `old`; what they were.
    pub(crate) fn compare_exchange<const N: usize>(
        self,
        offset: usize,
        old: u64,
        new: u64,
    ) -> Result<u64, u64> {
        assert!(offset <= PAGE - N && offset.is_multiple_of(N) && !self.host.is_null());
        const ORDER: Ordering = Ordering::SeqCst;
        // SAFETY: as in `write`, and the address is aligned.
        unsafe {
            let at = self.host.add(offset);
            let done = match N {
                1 => {
                    let word = AtomicU8::from_ptr(at);
                    let done = word.compare_exchange(old as u8, new as u8, ORDER, ORDER);
                    done.map(u64::from).map_err(u64::from)
                }
                2 => {
                    let word = AtomicU16::from_ptr(at.cast());
                    let done = word.compare_exchange(old as u16, new as u16, ORDER, ORDER);
                    done.map(u64::from).map_err(u64::from)
                }
                4 => {
                    let word = AtomicU32::from_ptr(at.cast());
                    let done = word.compare_exchange(old as u32, new as u32, ORDER, ORDER);
                    done.map(u64::from).map_err(u64::from)
                }
                _ => AtomicU64::from_ptr(at.cast()).compare_exchange(old, new, ORDER, ORDER),
            };
            if done.is_ok() {
                (*self.state).wrote();
            }
            done
        }
    }

    /// The same for 16 bytes at an aligned offset.
    pub(crate) fn compare_exchange_pair(self, offset: usize, old: u128, new: u128) -> Result<(), u128> {
        assert!(offset <= PAGE - 16 && offset.is_multiple_of(16) && !self.host.is_null());
        let halves = |value: u128| (value as u64, (value >> 64) as u64);
        let ((old_low, old_high), (new_low, new_high)) = (halves(old), halves(new));
        let (low, high, equal): (u64, u64, u8);
        // SAFETY: as above; CMPXCHG16B is in every x86-64 processor that has EPT or runs a current kernel, and is given an
        // aligned address. RBX, which the compiler keeps for itself, is exchanged around it.
        unsafe {
            std::arch::asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b [rdi]",
                "sete r8b",
                "mov rbx, rsi",
                in("rdi") self.host.add(offset),
                inout("rsi") new_low => _,
                in("rcx") new_high,
                inout("rax") old_low => low,
                inout("rdx") old_high => high,
                out("r8b") equal,
                options(nostack),
            );
        }
        if equal == 0 {
            return Err(u128::from(low) | u128::from(high) << 64);
        }
        // SAFETY: the state lives as long as the memory.
        unsafe { (*self.state).wrote() };
        Ok(())
    }

    /// The page's state, for decoders.
    pub(crate) fn state(&self) -> &PageState {
        // SAFETY: it lives as long as the memory, which outlives whoever keeps the page.
        unsafe { &*self.state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    #[test]
    fn bytes_are_read_and_written_wherever_they_lie() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x2000 }]).unwrap();
        let page = HostPage::of(&memory, 0x1234).unwrap();
        page.write::<8>(0xff8, 0x1122_3344_5566_7788);
        assert_eq!((page.read::<1>(0xff9), page.read::<4>(0xff9)), (0x77, 0x4455_6677));
        page.write::<2>(0xffb, 0xabcd);
        assert_eq!(page.read::<8>(0xff8), 0x1122_33ab_cd66_7788);
        assert_eq!(page.compare_exchange::<4>(0xff8, 0xcd66_7788, 5), Ok(0xcd66_7788));
        assert_eq!(page.compare_exchange::<4>(0xff8, 0xcd66_7788, 5), Err(5));
        let wide = 0x1122_33ab_0000_0005_u128 << 64;
        assert_eq!(page.compare_exchange_pair(0xff0, wide, u128::MAX - 1), Ok(()));
        assert_eq!(page.compare_exchange_pair(0xff0, 0, 1), Err(u128::MAX - 1));
        assert!(HostPage::of(&memory, 0x2000).is_none());
    }
}
