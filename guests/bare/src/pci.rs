//! Bus 0: configuration space by both ways, base addresses, capabilities.

use satori_defs::chipset::mmio::ECAM;
use satori_defs::pci::*;

use crate::insn;
use crate::place::{read, write};

/// Ports of configuration mechanism 1.
pub const ADDRESS: u16 = 0xcf8;
/// The first of four.
pub const DATA: u16 = 0xcfc;

/// A function of bus 0, by its device and function number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(pub u8);

impl Function {
    /// Where its enhanced configuration space is.
    pub fn ecam(self) -> u64 {
        ECAM + (u64::from(self.0) << 12)
    }

    /// Reads `size` bytes of configuration space through its memory.
    pub fn read(self, register: usize, size: u8) -> u32 {
        read(self.ecam() + register as u64, size) as u32
    }

    /// Writes as `read` reads.
    pub fn write(self, register: usize, size: u8, value: u32) {
        write(self.ecam() + register as u64, size, value.into());
    }

    /// What the address register holds for `register`.
    pub fn address(self, register: usize) -> u32 {
        ADDRESS_ENABLE | u32::from(self.0) << 8 | register as u32
    }

    /// Reads a double word through ports.
    pub fn read_by_ports(self, register: usize) -> u32 {
        insn::out32(ADDRESS, self.address(register));
        insn::in32(DATA)
    }

    /// Vendor and device.
    pub fn id(self) -> (u16, u16) {
        let word = self.read(VENDOR_ID, 4);
        (word as u16, (word >> 16) as u16)
    }

    /// Sets bits of the command register, and clears others.
    pub fn command(self, set: u8, clear: u8) {
        let now = self.read(COMMAND, 1) as u8;
        self.write(COMMAND, 1, (now & !clear | set).into());
    }

    /// The 64-bit base address in the first pair of registers.
    pub fn bar(self) -> u64 {
        (u64::from(self.read(BAR0 + 4, 4)) << 32 | u64::from(self.read(BAR0, 4))) & !BAR_FLAGS
    }

    /// Moves it while the function answers nowhere.
    pub fn move_to(self, at: u64) {
        self.command(0, COMMAND_MEMORY);
        self.write(BAR0, 4, at as u32);
        self.write(BAR0 + 4, 4, (at >> 32) as u32);
        self.command(COMMAND_MEMORY, 0);
    }

    /// Where its capabilities are, in their order, as far as 48, which is more than fit.
    pub fn capabilities(self) -> impl Iterator<Item = usize> {
        let mut at = self.read(CAPABILITIES_POINTER, 1) as usize;
        let next = move || {
            let here = at;
            at = self.read(here + 1, 1) as usize;
            (here != 0).then_some(here)
        };
        core::iter::from_fn(next_once(next)).take(48)
    }
}

/// An iterator's body that is not asked again once it said that there is no more.
fn next_once(mut next: impl FnMut() -> Option<usize>) -> impl FnMut() -> Option<usize> {
    let mut over = false;
    move || {
        let found = if over { None } else { next() };
        over = found.is_none();
        found
    }
}

/// All functions of bus 0.
pub fn functions() -> impl Iterator<Item = Function> {
    (0..=255).map(Function).filter(|function| function.id().0 != 0xffff)
}
