//! The frames in memory: GICD and GICR.

use std::sync::Arc;

use satori_bus::MmioDevice;

use super::{Gic, INTERRUPTS, Interrupt, PRIVATE, State, affinity};

/// GICD.
pub(super) struct Distributor(pub Arc<Gic>);
/// GICR of all vCPUs, side by side.
pub(super) struct Redistributors(pub Arc<Gic>);

/// PIDR2: GICv3.
const PIDR2: u64 = 0x3b;
/// Implementer Arm, no product.
const IIDR: u64 = 0x43b;

/// A register with bits of interrupts.
#[derive(Clone, Copy)]
enum Bits {
    Group,
    Enabled,
    Pending,
    Active,
}

/// Of an offset: which bits, whether a write of ones clears them, and the first interrupt.
fn bits_at(offset: u64) -> Option<(Bits, bool, usize)> {
    let (what, clears) = match offset & !0x7f {
        0x080 => (Bits::Group, false),
        0x100 => (Bits::Enabled, false),
        0x180 => (Bits::Enabled, true),
        0x200 => (Bits::Pending, false),
        0x280 => (Bits::Pending, true),
        0x300 => (Bits::Active, false),
        0x380 => (Bits::Active, true),
        _ => return None,
    };
    Some((what, clears, (offset as usize & 0x7f) / 4 * 32))
}

fn get(interrupt: &Interrupt, what: Bits) -> bool {
    match what {
        Bits::Group => interrupt.group1,
        Bits::Enabled => interrupt.enabled,
        Bits::Pending => interrupt.pending(),
        Bits::Active => interrupt.active,
    }
}

/// Reads what GICD and the SGI frame of GICR have in common, of `interrupts` from number `base` on.
fn read(interrupts: &[Interrupt], base: usize, offset: u64, size: u8) -> u64 {
    let at = |intid: usize| intid.checked_sub(base).and_then(|at| interrupts.get(at));
    if let Some((what, _, first)) = bits_at(offset) {
        return (0..32)
            .filter(|bit| at(first + bit).is_some_and(|one| get(one, what)))
            .fold(0, |sum, bit| sum | 1 << bit);
    }
    match offset {
        0x400..0x800 => {
            let first = offset as usize - 0x400;
            let byte = |at_byte: usize| at(first + at_byte).map_or(0, |one| u64::from(one.priority));
            (0..usize::from(size.min(8))).fold(0, |sum, one| sum | byte(one) << (8 * one))
        }
        0xc00..0xd00 => {
            let first = (offset as usize - 0xc00) / 4 * 16;
            let edge = |bit: &usize| at(first + bit).is_some_and(|one| one.edge);
            (0..16).filter(edge).fold(0, |sum, bit| sum | 2 << (2 * bit))
        }
        _ => 0,
    }
}

fn write(interrupts: &mut [Interrupt], base: usize, offset: u64, size: u8, value: u64) {
    let place = |intid: usize| intid.checked_sub(base);
    if let Some((what, clears, first)) = bits_at(offset) {
        for bit in 0..32 {
            let Some(one) = place(first + bit).and_then(|at| interrupts.get_mut(at)) else { continue };
            let set = value >> bit & 1 != 0;
            match what {
                Bits::Group => one.group1 = set,
                _ if !set => {}
                Bits::Enabled => one.enabled = !clears,
                Bits::Pending => one.latched = !clears,
                Bits::Active => one.active = !clears,
            }
        }
        return;
    }
    match offset {
        0x400..0x800 => {
            for byte in 0..usize::from(size.min(8)) {
                if let Some(one) = place(offset as usize - 0x400 + byte).and_then(|at| interrupts.get_mut(at))
                {
                    one.priority = (value >> (8 * byte)) as u8 & 0xf8;
                }
            }
        }
        0xc00..0xd00 => {
            for bit in 0..16 {
                let intid = (offset as usize - 0xc00) / 4 * 16 + bit;
                // SGIs are edges for ever.
                if intid >= 16
                    && let Some(one) = place(intid).and_then(|at| interrupts.get_mut(at))
                {
                    one.edge = value >> (2 * bit + 1) & 1 != 0;
                }
            }
        }
        _ => {}
    }
}

impl Distributor {
    fn route(state: &mut State, offset: u64) -> Option<&mut u64> {
        let intid = (offset.checked_sub(0x6000)? / 8) as usize;
        state.shared.get_mut(intid.checked_sub(PRIVATE)?).map(|one| &mut one.route)
    }
}

impl MmioDevice for Distributor {
    fn read(&self, offset: u64, size: u8) -> u64 {
        let mut state = self.0.lock();
        match offset {
            0 => state.control.into(),
            // Interrupts by 32, less one; ten bits of INTID.
            4 => (INTERRUPTS / 32 - 1) as u64 | 9 << 19,
            8 => IIDR,
            0xffe8 => PIDR2,
            0x6000..0x8000 => {
                let route = Self::route(&mut state, offset).map_or(0, |route| *route);
                if offset & 4 != 0 { route >> 32 } else { route }
            }
            _ => read(&state.shared, PRIVATE, offset, size),
        }
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        let mut state = self.0.lock();
        match offset {
            // ARE and DS are ones.
            0 => state.control = value as u32 & 3 | 0x50,
            0x6000..0x8000 => {
                if let Some(route) = Self::route(&mut state, offset) {
                    *route = match (offset & 4 != 0, size) {
                        (true, _) => *route & 0xffff_ffff | value << 32,
                        (false, 8) => value,
                        (false, _) => *route & !0xffff_ffff | value & 0xffff_ffff,
                    };
                }
            }
            _ => {
                write(&mut state.shared, PRIVATE, offset, size, value);
                state.note_all();
            }
        }
        let vcpus = state.own.len() as u32;
        drop(state);
        (0..vcpus).for_each(|vcpu| (self.0.wake)(vcpu));
    }
}

impl MmioDevice for Redistributors {
    fn read(&self, offset: u64, size: u8) -> u64 {
        let state = self.0.lock();
        let (vcpu, offset) = ((offset / 0x2_0000) as usize, offset % 0x2_0000);
        let Some(own) = state.own.get(vcpu) else { return 0 };
        let last = u64::from(vcpu + 1 == state.own.len());
        let kind = affinity(vcpu as u32) << 32 | (vcpu as u64) << 8 | last << 4;
        match offset {
            4 => IIDR,
            8 if size == 8 => kind,
            8 => kind & 0xffff_ffff,
            0xc => kind >> 32,
            0x14 if own.asleep => 6,
            0xffe8 | 0x1_ffe8 => PIDR2,
            0x1_0000.. => read(&own.private, 0, offset - 0x1_0000, size),
            _ => 0,
        }
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        let mut state = self.0.lock();
        let (vcpu, offset) = ((offset / 0x2_0000) as usize, offset % 0x2_0000);
        let Some(own) = state.own.get_mut(vcpu) else { return };
        match offset {
            0x14 => own.asleep = value & 2 != 0,
            0x1_0000.. => write(&mut own.private, 0, offset - 0x1_0000, size, value),
            _ => {}
        }
        drop(state);
        (self.0.wake)(vcpu as u32);
    }
}
