//! V0 to V31 within a block: in host registers from their first use on, and written back where the block is left or the interpreter
//! executes an instruction.
//!
//! XMM0 to XMM3 are scratch. A result is made in a fresh register and becomes the guest's when nothing can stop the instruction any
//! more, so that what goes to the interpreter finds the registers as they were before.

use std::mem::offset_of;

use satori_arm_soft::Cpu;
use satori_arm_state::CpuState;

use crate::asm::{Asm, Reg, Rm};
use crate::emit::{Emit, FILE_AT, field};

/// The first host register that holds one of the guest's, and how many do.
const FIRST: Reg = 4;
const COUNT: usize = 12;

/// What host registers hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// The guest's register in each, and the bytes of it that can be other than zero.
    of: [Option<(u8, u8)>; COUNT],
    /// Those that memory does not have.
    dirty: u16,
}

impl Held {
    /// Writes back what memory does not have.
    pub(crate) fn spill(&self, asm: &mut Asm) {
        for (slot, held) in self.of.iter().enumerate() {
            if let (Some((guest, _)), true) = (held, self.dirty >> slot & 1 != 0) {
                // MOVUPS
                asm.op(false, &[0x0f, 0x11], FIRST + slot as Reg, place(*guest));
            }
        }
    }

    /// Loads all from memory.
    pub(crate) fn reload(&self, asm: &mut Asm) {
        for (slot, held) in self.of.iter().enumerate() {
            if let Some((guest, _)) = held {
                asm.op(false, &[0x0f, 0x10], FIRST + slot as Reg, place(*guest));
            }
        }
    }
}

/// The registers of a block in the making.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    pub held: Held,
    /// Host registers that the instruction uses.
    busy: u16,
    /// Where a register to be given up is looked for next.
    next: usize,
}

/// Where a guest register is in memory.
fn place(guest: u8) -> Rm {
    let at = offset_of!(Cpu, s) + offset_of!(CpuState, v) + 16 * usize::from(guest);
    debug_assert!(at > FILE_AT);
    field(at)
}

impl Emit<'_> {
    /// An instruction begins: it uses no host register yet.
    pub(crate) fn begin_vectors(&mut self) {
        self.vectors.busy = 0;
    }

    /// Writes back what memory does not have.
    pub(crate) fn settle_vectors(&mut self) {
        self.vectors.held.spill(&mut self.asm);
        self.vectors.held.dirty = 0;
    }

    /// Writes back and forgets all.
    pub(crate) fn drop_vectors(&mut self) {
        self.settle_vectors();
        self.vectors = Vectors::default();
    }

    fn slot(&self, guest: u8) -> Option<usize> {
        self.vectors.held.of.iter().position(|held| held.is_some_and(|(of, _)| of == guest))
    }

    /// A host register for a result.
    pub(crate) fn fresh(&mut self) -> Reg {
        let vectors = &self.vectors;
        let idle = |slot: &usize| vectors.busy >> slot & 1 == 0;
        let free = (0..COUNT).find(|slot| idle(slot) && vectors.held.of[*slot].is_none());
        let slot = free.or_else(|| (0..COUNT).map(|slot| (vectors.next + slot) % COUNT).find(idle));
        // No instruction uses twelve.
        let slot = slot.unwrap_or_default();
        let given = &mut self.vectors.held;
        if let (Some((guest, _)), true) = (given.of[slot], given.dirty >> slot & 1 != 0) {
            self.asm.op(false, &[0x0f, 0x11], FIRST + slot as Reg, place(guest));
        }
        given.of[slot] = None;
        given.dirty &= !(1 << slot);
        if free.is_none() {
            self.vectors.next = slot + 1;
        }
        self.vectors.busy |= 1 << slot;
        FIRST + slot as Reg
    }

    /// The host register that holds a guest register.
    pub(crate) fn v(&mut self, guest: u32) -> Reg {
        let guest = guest as u8;
        if let Some(slot) = self.slot(guest) {
            self.vectors.busy |= 1 << slot;
            return FIRST + slot as Reg;
        }
        let host = self.fresh();
        self.asm.op(false, &[0x0f, 0x10], host, place(guest));
        self.vectors.held.of[usize::from(host - FIRST)] = Some((guest, 16));
        host
    }

    /// The register named by the field at `low`.
    pub(crate) fn vector_at(&mut self, low: u32) -> Reg {
        self.v(self.bits(low + 4, low))
    }

    /// How many bytes of what a host register holds can be other than zero.
    pub(crate) fn size_of(&self, host: Reg) -> u8 {
        let held = host.checked_sub(FIRST).and_then(|slot| self.vectors.held.of.get(usize::from(slot)));
        held.copied().flatten().map_or(16, |(_, size)| size)
    }

    /// A result of so many bytes becomes the guest's register.
    pub(crate) fn put_vector(&mut self, guest: u32, host: Reg, size: u8) {
        let guest = guest as u8;
        if let Some(slot) = self.slot(guest) {
            self.vectors.held.of[slot] = None;
            self.vectors.held.dirty &= !(1 << slot);
        }
        let slot = usize::from(host - FIRST);
        self.vectors.held.of[slot] = Some((guest, size));
        self.vectors.held.dirty |= 1 << slot;
    }
}
