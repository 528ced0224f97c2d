//! Segment and gate descriptors in memory (SDM 3.4.5, 3.5, 5.8.3, 6.11), and finding them.

use satori_engine::Exception;
use satori_state::Segment;

use crate::cpu::{Cpu, Exec};
use crate::mmu::Mode;

/// Types of system descriptors (SDM table 3-2).
pub(super) mod system_type {
    /// 16-bit TSS, available.
    pub(crate) const TSS16: u32 = 1;
    /// Local descriptor table.
    pub(crate) const LDT: u32 = 2;
    /// 16-bit TSS, busy.
    pub(crate) const TSS16_BUSY: u32 = 3;
    /// 16-bit call gate.
    pub(crate) const CALL_GATE16: u32 = 4;
    /// Task gate.
    pub(crate) const TASK_GATE: u32 = 5;
    /// 16-bit interrupt gate.
    pub(crate) const INTERRUPT_GATE16: u32 = 6;
    /// 16-bit trap gate.
    pub(crate) const TRAP_GATE16: u32 = 7;
    /// 32-bit or 64-bit TSS, available.
    pub(crate) const TSS: u32 = 9;
    /// 32-bit or 64-bit TSS, busy.
    pub(crate) const TSS_BUSY: u32 = 11;
    /// 32-bit or 64-bit call gate.
    pub(crate) const CALL_GATE: u32 = 12;
    /// 32-bit or 64-bit interrupt gate.
    pub(crate) const INTERRUPT_GATE: u32 = 14;
    /// 32-bit or 64-bit trap gate.
    pub(crate) const TRAP_GATE: u32 = 15;
}

/// Bits of [`Segment::rights`] that a descriptor provides.
const RIGHTS: u64 = 0xf0ff;

/// The first eight bytes of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor(pub u64);

impl Descriptor {
    /// Access rights in VMX format.
    pub(super) const fn rights(self) -> u32 {
        (self.0 >> 40 & RIGHTS) as u32
    }
    /// Bits 31:0 of the base address.
    pub(super) const fn base(self) -> u64 {
        self.0 >> 16 & 0xff_ffff | self.0 >> 32 & 0xff00_0000
    }
    /// Limit in bytes, granularity applied.
    pub(super) const fn limit(self) -> u32 {
        let limit = (self.0 & 0xffff | self.0 >> 32 & 0xf_0000) as u32;
        if self.0 & 1 << 55 != 0 { limit << 12 | 0xfff } else { limit }
    }
    /// Type, 4 bits.
    pub(super) const fn kind(self) -> u32 {
        (self.0 >> 40 & 15) as u32
    }
    /// Descriptor privilege level.
    pub(super) const fn dpl(self) -> u8 {
        (self.0 >> 45 & 3) as u8
    }
    /// P.
    pub(super) const fn present(self) -> bool {
        self.0 & 1 << 47 != 0
    }
    /// S is clear: a system segment or a gate.
    pub(super) const fn system(self) -> bool {
        self.0 & 1 << 44 == 0
    }
    /// A code segment.
    pub(super) const fn code(self) -> bool {
        !self.system() && self.kind() & 8 != 0
    }
    /// A conforming code segment.
    pub(super) const fn conforming(self) -> bool {
        self.code() && self.kind() & 4 != 0
    }
    /// A data segment that can be written.
    pub(super) const fn writable(self) -> bool {
        !self.system() && self.kind() & 10 == 2
    }
    /// A data segment, or a code segment that can be read.
    pub(super) const fn readable(self) -> bool {
        !self.system() && self.kind() & 10 != 8
    }
    /// L: 64-bit code.
    pub(super) const fn long(self) -> bool {
        self.0 & 1 << 53 != 0
    }
    /// D/B.
    pub(super) const fn big(self) -> bool {
        self.0 & 1 << 54 != 0
    }
    /// The segment register's contents after a load with `selector`; `high` holds the second
    /// eight bytes of a 16-byte descriptor.
    pub(super) const fn segment(self, selector: u16, high: u64) -> Segment {
        Segment {
            selector,
            rights: self.rights(),
            limit: self.limit(),
            base: self.base() | (high & 0xffff_ffff) << 32,
        }
    }

    /// Target selector of a gate.
    pub(super) const fn gate_selector(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// Target offset of a gate, bits 31:0.
    pub(super) const fn gate_offset(self) -> u64 {
        self.0 & 0xffff | self.0 >> 32 & 0xffff_0000
    }
    /// Interrupt stack table index of a 64-bit interrupt or trap gate.
    pub(super) const fn gate_ist(self) -> u64 {
        self.0 >> 32 & 7
    }
    /// Parameters that a call gate copies.
    pub(super) const fn gate_parameters(self) -> u64 {
        self.0 >> 32 & 31
    }
}

/// Whether a selector is null: index 0 of the GDT.
pub(super) const fn null(selector: u16) -> bool {
    selector & 0xfffc == 0
}

/// Requested privilege level of a selector.
pub(super) const fn rpl(selector: u16) -> u8 {
    (selector & 3) as u8
}

/// An exception whose error code names a selector; `ext` is bit 0 of the code.
pub(super) const fn selector_fault(vector: u8, selector: u16, ext: u32) -> Exception {
    Exception::with_code(vector, (selector & 0xfffc) as u32 | ext)
}

/// An unusable segment register, after a null selector.
pub(super) const fn unusable(selector: u16, dpl: u8) -> Segment {
    Segment { selector, rights: Segment::UNUSABLE | (dpl as u32) << 5, limit: 0, base: 0 }
}

/// A descriptor and the linear address where it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The first eight bytes.
    pub descriptor: Descriptor,
    /// Where they are.
    pub linear: u64,
}

impl Cpu {
    /// Linear address of `size` bytes of descriptor for `selector`, if the table has it.
    pub(super) fn descriptor_address(&self, selector: u16, size: u64) -> Option<u64> {
        let (base, limit) = if selector & 4 != 0 {
            if self.state.ldtr.unusable() {
                return None;
            }
            (self.state.ldtr.base, u64::from(self.state.ldtr.limit))
        } else {
            (self.state.gdtr.base, u64::from(self.state.gdtr.limit))
        };
        let offset = u64::from(selector & 0xfff8);
        (offset + size - 1 <= limit).then(|| base.wrapping_add(offset))
    }

    /// The descriptor of `selector`, or nothing beyond its table.
    pub(super) fn find_descriptor(&mut self, selector: u16) -> Exec<Option<Found>> {
        let Some(linear) = self.descriptor_address(selector, 8) else { return Ok(None) };
        Ok(Some(Found { descriptor: Descriptor(self.read_system(linear)?), linear }))
    }

    /// The descriptor of `selector`; beyond its table, `vector` with the selector is raised.
    pub(super) fn require_descriptor(&mut self, selector: u16, vector: u8, ext: u32) -> Exec<Found> {
        match self.find_descriptor(selector)? {
            Some(found) => Ok(found),
            None => Err(self.raise(selector_fault(vector, selector, ext))),
        }
    }

    /// The second eight bytes of the 16-byte system descriptor of `selector`, whose type field
    /// must be 0; refused with #GP(selector).
    pub(super) fn descriptor_high(&mut self, selector: u16) -> Exec<u64> {
        let refused = selector_fault(satori_defs::x86::vector::GP, selector, 0);
        let Some(linear) = self.descriptor_address(selector, 16) else { return Err(self.raise(refused)) };
        let high: u64 = self.read_system(linear.wrapping_add(8))?;
        if high >> 40 & 0x1f != 0 {
            return Err(self.raise(refused));
        }
        Ok(high)
    }

    /// Sets bits in the type field of a descriptor in memory, by compare-and-exchange.
    pub(super) fn mark_descriptor(&mut self, found: &mut Found, bits: u8) -> Exec<()> {
        if found.descriptor.kind() & u32::from(bits) != u32::from(bits) {
            // The processor's own access, whoever executes.
            let mode = std::mem::replace(&mut self.derived.mode, Mode::Supervisor);
            let outcome = self.update(found.linear.wrapping_add(5), true, |kind: u8| kind | bits);
            self.derived.mode = mode;
            outcome?;
            found.descriptor.0 |= u64::from(bits) << 40;
        }
        Ok(())
    }

    /// Sets the accessed bit of a code or data descriptor.
    pub(super) fn mark_accessed(&mut self, found: &mut Found) -> Exec<()> {
        self.mark_descriptor(found, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_gathered_from_their_scattered_places() {
        // Base 0x12345678, limit 0xabcde pages, code, readable, DPL 3, D.
        let descriptor = Descriptor(0x12ca_fa34_5678_bcde);
        assert_eq!(descriptor.base(), 0x1234_5678);
        assert_eq!(descriptor.limit(), 0xabcd_efff);
        assert_eq!(descriptor.rights(), 0xc0fa);
        assert!(descriptor.code() && !descriptor.conforming() && descriptor.readable());
        assert!(!descriptor.writable() && descriptor.big() && !descriptor.long());
        assert_eq!(descriptor.dpl(), 3);
        let segment = descriptor.segment(0x1b, 0xffff_8000_0000_0001);
        assert_eq!((segment.base, segment.limit), (0x0000_0001_1234_5678, 0xabcd_efff));
        assert!(segment.present() && segment.big());
    }

    #[test]
    fn limits_without_granularity_are_bytes() {
        assert_eq!(Descriptor(0x0000_8b00_0000_0067).limit(), 0x67);
        assert_eq!(Descriptor(0x000f_8b00_0000_ffff).limit(), 0xf_ffff);
    }

    #[test]
    fn gates_name_their_target() {
        let gate = Descriptor(0x1234_ee05_0010_5678);
        assert_eq!((gate.gate_selector(), gate.gate_offset(), gate.gate_ist()), (0x10, 0x1234_5678, 5));
        assert_eq!((gate.kind(), gate.dpl()), (system_type::INTERRUPT_GATE, 3));
        assert!(gate.present() && gate.system());
    }
}
