//! Data accesses: the cached fast path.

use super::tlb::Mode;
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;

impl Cpu {
    /// Reads at a linear address with the rights of the current privilege level.
    #[inline(always)]
    pub fn read<T: Scalar>(&mut self, linear: u64) -> Exec<T> {
        self.read_as(linear, self.derived.mode)
    }

    /// Writes at a linear address with the rights of the current privilege level.
    #[inline(always)]
    pub fn write<T: Scalar>(&mut self, linear: u64, value: T) -> Exec<()> {
        self.write_as(linear, value, self.derived.mode)
    }

    /// Reads as the processor itself does: descriptor tables, task state, stacks of gates.
    pub fn read_system<T: Scalar>(&mut self, linear: u64) -> Exec<T> {
        self.read_as(linear, Mode::Supervisor)
    }

    #[inline(always)]
    fn read_as<T: Scalar>(&mut self, linear: u64, mode: Mode) -> Exec<T> {
        match self.mmu.tlb.lookup(linear, T::SIZE, mode, false) {
            // SAFETY: a hit is a pointer to T::SIZE bytes within a page of guest RAM.
            Some((host, _)) => Ok(unsafe { T::load(host) }),
            None => self.read_slow(linear, mode),
        }
    }

    #[inline(always)]
    fn write_as<T: Scalar>(&mut self, linear: u64, value: T, mode: Mode) -> Exec<()> {
        match self.mmu.tlb.lookup(linear, T::SIZE, mode, true) {
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
        match self.mmu.tlb.lookup(linear, T::SIZE, self.derived.mode, true) {
            Some((host, state)) => {
                // SAFETY: a hit is a pointer to T::SIZE bytes within a page of guest RAM, and
                // to the state of that page.
                let (old, hit_code) = unsafe { (T::update(host, locked, change), (*state).wrote()) };
                if hit_code {
                    self.code_written();
                }
                Ok(old)
            }
            None => self.update_slow(linear, locked, change),
        }
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
}
