//! GICv3's virtual CPU interface (Arm IHI 0069, 4.7 and 6): list registers, and what a guest finds in its ICC_* registers.
//!
//! Functions of the register file: ICH_* registers are kept in [`CpuState::sys`], and a guest's accesses work on them without anybody's
//! help, but for the deactivation of a physical interrupt. Interrupts are of group 1; a list register of group 0 is never signalled.

use crate::{CpuState, Sys};

/// No interrupt.
const SPURIOUS: u64 = 1023;
/// The priority when nothing runs.
const IDLE: u8 = 0xff;

const LRS: [Sys; 4] = [Sys::ICH_LR0_EL2, Sys::ICH_LR1_EL2, Sys::ICH_LR2_EL2, Sys::ICH_LR3_EL2];

/// Bits of ICH_HCR_EL2.
mod hcr {
    pub(super) const EN: u64 = 1 << 0;
    pub(super) const UIE: u64 = 1 << 1;
    pub(super) const LRENPIE: u64 = 1 << 2;
    pub(super) const NPIE: u64 = 1 << 3;
    /// VGrp0EIE, VGrp0DIE, VGrp1EIE, VGrp1DIE from here on.
    pub(super) const GROUPS: u32 = 4;
    pub(super) const TC: u64 = 1 << 10;
    pub(super) const TALL0: u64 = 1 << 11;
    pub(super) const TALL1: u64 = 1 << 12;
    pub(super) const TDIR: u64 = 1 << 14;
    pub(super) const EOI_COUNT: u32 = 27;
    pub(super) const EOI_MASK: u64 = 0x1f << EOI_COUNT;
    pub(super) const WRITABLE: u64 = 0xf800_5cff;
}

/// Bits of ICH_VMCR_EL2.
mod vmcr {
    pub(super) const ENG0: u64 = 1 << 0;
    pub(super) const ENG1: u64 = 1 << 1;
    pub(super) const CBPR: u64 = 1 << 4;
    pub(super) const EOIM: u64 = 1 << 9;
    pub(super) const BPR1: u32 = 18;
    pub(super) const BPR0: u32 = 21;
    pub(super) const PMR: u32 = 24;
    /// FIQs are always enabled where system registers are used.
    pub(super) const FIQ_EN: u64 = 1 << 3;
    pub(super) const WRITABLE: u64 = 0xfffc_021b;
}

/// Bits of `ICH_LR<n>_EL2`.
mod lr {
    pub(super) const PENDING: u64 = 1 << 62;
    pub(super) const ACTIVE: u64 = 1 << 63;
    pub(super) const STATE: u64 = PENDING | ACTIVE;
    pub(super) const HW: u64 = 1 << 61;
    pub(super) const GROUP1: u64 = 1 << 60;
    /// Without HW: the end of the interrupt is told by a maintenance interrupt.
    pub(super) const EOI: u64 = 1 << 41;
    pub(super) const WRITABLE: u64 = 0xf0ff_1fff_ffff_ffff;
}

fn priority(lr: u64) -> u8 {
    (lr >> 48) as u8
}

fn intid(lr: u64) -> u64 {
    lr & 0xffff_ffff
}

fn physical(lr: u64) -> u64 {
    lr >> 32 & 0x3ff
}

fn lrs(state: &CpuState) -> impl Iterator<Item = (Sys, u64)> {
    LRS.into_iter().map(|sys| (sys, state.get(sys)))
}

/// The pending interrupt of the highest priority whose group is enabled.
fn best(state: &CpuState) -> Option<(Sys, u64)> {
    if state.get(Sys::ICH_VMCR_EL2) & vmcr::ENG1 == 0 {
        return None;
    }
    let ready = |lr: u64| lr & lr::STATE == lr::PENDING && lr & lr::GROUP1 != 0;
    lrs(state).filter(|&(_, lr)| ready(lr)).min_by_key(|&(_, lr)| priority(lr))
}

fn active_priorities(state: &CpuState) -> u32 {
    (state.get(Sys::ICH_AP1R0_EL2) | state.get(Sys::ICH_AP0R0_EL2)) as u32
}

fn running(state: &CpuState) -> u8 {
    match active_priorities(state) {
        0 => IDLE,
        bits => (bits.trailing_zeros() << 3) as u8,
    }
}

fn binary_point(state: &CpuState) -> u32 {
    let control = state.get(Sys::ICH_VMCR_EL2);
    let point = |at: u32| (control >> at & 7) as u32;
    match control & vmcr::CBPR {
        0 => point(vmcr::BPR1).max(3),
        _ => (point(vmcr::BPR0) + 1).clamp(3, 7),
    }
}

/// The list register whose interrupt is signalled: above the guest's mask, and above what runs.
fn signalled(state: &CpuState) -> Option<(Sys, u64)> {
    if state.get(Sys::ICH_HCR_EL2) & hcr::EN == 0 {
        return None;
    }
    let (sys, lr) = best(state)?;
    let mask = (state.get(Sys::ICH_VMCR_EL2) >> vmcr::PMR) as u8;
    let group = binary_point(state);
    let preempts = match running(state) {
        IDLE => true,
        running => u32::from(priority(lr)) >> group < u32::from(running) >> group,
    };
    (priority(lr) < mask && preempts).then_some((sys, lr))
}

/// Whether the interface asserts a virtual IRQ.
#[inline]
pub fn virtual_irq(state: &CpuState) -> bool {
    state.get(Sys::ICH_HCR_EL2) & hcr::EN != 0 && signalled(state).is_some()
}

/// ICH_EISR_EL2: list registers whose interrupt has ended, and whose end was to be told.
fn ended(state: &CpuState) -> u64 {
    let told = |lr: u64| lr & lr::STATE == 0 && lr & lr::HW == 0 && lr & lr::EOI != 0;
    lrs(state).enumerate().fold(0, |sum, (at, (_, lr))| sum | u64::from(told(lr)) << at)
}

/// ICH_ELRSR_EL2: list registers that are empty.
fn empty(state: &CpuState) -> u64 {
    let free = |lr: u64| lr & lr::STATE == 0 && (lr & lr::HW != 0 || lr & lr::EOI == 0);
    lrs(state).enumerate().fold(0, |sum, (at, (_, lr))| sum | u64::from(free(lr)) << at)
}

/// ICH_MISR_EL2: why there is a maintenance interrupt.
fn reasons(state: &CpuState) -> u64 {
    let (control, groups) = (state.get(Sys::ICH_HCR_EL2), state.get(Sys::ICH_VMCR_EL2));
    let on = |bit: u64| control & bit != 0;
    let valid = lrs(state).filter(|(_, lr)| lr & lr::STATE != 0).count();
    let pending = lrs(state).any(|(_, lr)| lr & lr::STATE == lr::PENDING);
    let mut why = u64::from(ended(state) != 0);
    why |= u64::from(on(hcr::UIE) && valid <= 1) << 1;
    why |= u64::from(on(hcr::LRENPIE) && control & hcr::EOI_MASK != 0) << 2;
    why |= u64::from(on(hcr::NPIE) && !pending) << 3;
    let (zero, one) = (groups & vmcr::ENG0 != 0, groups & vmcr::ENG1 != 0);
    for (at, state) in [zero, !zero, one, !one].into_iter().enumerate() {
        let bit = hcr::GROUPS + at as u32;
        why |= u64::from(control >> bit & 1 != 0 && state) << bit;
    }
    why
}

/// Whether the maintenance interrupt is asserted.
pub fn maintenance(state: &CpuState) -> bool {
    state.get(Sys::ICH_HCR_EL2) & hcr::EN != 0 && reasons(state) != 0
}

/// Whether ICH_HCR_EL2 keeps a guest's access to `sys` for the hypervisor.
pub fn traps(state: &CpuState, sys: Sys) -> bool {
    let bits = match sys {
        Sys::ICC_DIR_EL1 => hcr::TC | hcr::TDIR,
        Sys::ICC_PMR_EL1 | Sys::ICC_CTLR_EL1 | Sys::ICC_RPR_EL1 => hcr::TC,
        Sys::ICC_IAR0_EL1
        | Sys::ICC_EOIR0_EL1
        | Sys::ICC_HPPIR0_EL1
        | Sys::ICC_BPR0_EL1
        | Sys::ICC_AP0R0_EL1
        | Sys::ICC_IGRPEN0_EL1 => hcr::TALL0,
        Sys::ICC_IAR1_EL1
        | Sys::ICC_EOIR1_EL1
        | Sys::ICC_HPPIR1_EL1
        | Sys::ICC_BPR1_EL1
        | Sys::ICC_AP1R0_EL1
        | Sys::ICC_IGRPEN1_EL1 => hcr::TALL1,
        _ => 0,
    };
    state.get(Sys::ICH_HCR_EL2) & bits != 0
}

/// MRS of an ICH_* register by a hypervisor.
pub fn read(state: &CpuState, sys: Sys) -> u64 {
    match sys {
        // Five bits of priority and of preemption, four list registers, no direct injection, TDIR is there.
        Sys::ICH_VTR_EL2 => 4 << 29 | 4 << 26 | 1 << 20 | 1 << 19 | (LRS.len() as u64 - 1),
        Sys::ICH_MISR_EL2 => reasons(state),
        Sys::ICH_EISR_EL2 => ended(state),
        Sys::ICH_ELRSR_EL2 => empty(state),
        _ => state.get(sys),
    }
}

/// MSR to one.
pub fn write(state: &mut CpuState, sys: Sys, value: u64) {
    let kept = match sys {
        Sys::ICH_HCR_EL2 => value & hcr::WRITABLE,
        Sys::ICH_VMCR_EL2 => value & vmcr::WRITABLE | vmcr::FIQ_EN,
        Sys::ICH_AP0R0_EL2 | Sys::ICH_AP1R0_EL2 => value & 0xffff_ffff,
        _ => value & lr::WRITABLE,
    };
    state.set(sys, kept);
}

/// MRS of an ICC_* register by a guest; none if there is no such register.
pub fn guest_read(state: &mut CpuState, sys: Sys) -> Option<u64> {
    let control = state.get(Sys::ICH_VMCR_EL2);
    let bit = |bit: u64| u64::from(control & bit != 0);
    Some(match sys {
        Sys::ICC_IAR1_EL1 => acknowledge(state),
        Sys::ICC_IAR0_EL1 | Sys::ICC_HPPIR0_EL1 => SPURIOUS,
        Sys::ICC_HPPIR1_EL1 => best(state).map_or(SPURIOUS, |(_, lr)| intid(lr)),
        Sys::ICC_PMR_EL1 => control >> vmcr::PMR & 0xff,
        Sys::ICC_RPR_EL1 => running(state).into(),
        Sys::ICC_BPR1_EL1 => binary_point(state).into(),
        Sys::ICC_BPR0_EL1 => (control >> vmcr::BPR0 & 7).max(2),
        Sys::ICC_CTLR_EL1 => bit(vmcr::CBPR) | bit(vmcr::EOIM) << 1 | 4 << 8,
        Sys::ICC_SRE_EL1 => 7,
        Sys::ICC_IGRPEN0_EL1 => bit(vmcr::ENG0),
        Sys::ICC_IGRPEN1_EL1 => bit(vmcr::ENG1),
        Sys::ICC_AP0R0_EL1 => state.get(Sys::ICH_AP0R0_EL2),
        Sys::ICC_AP1R0_EL1 => state.get(Sys::ICH_AP1R0_EL2),
        _ => return None,
    })
}

fn acknowledge(state: &mut CpuState) -> u64 {
    let Some((sys, lr)) = signalled(state) else { return SPURIOUS };
    state.set(sys, lr & !lr::STATE | lr::ACTIVE);
    let active = state.get(Sys::ICH_AP1R0_EL2) | 1 << (priority(lr) >> 3);
    state.set(Sys::ICH_AP1R0_EL2, active);
    intid(lr)
}

/// The physical interrupt that a guest's write of `value` to `sys` deactivates, if it does one.
pub fn deactivates(state: &CpuState, sys: Sys, value: u64) -> Option<u64> {
    let ends = ends(state, sys);
    let (_, lr) = lrs(state).find(|&(_, lr)| ends && is_active(lr, value))?;
    (lr & lr::HW != 0).then(|| physical(lr))
}

/// Whether a write to `sys` ends the interrupt, and not only its priority.
fn ends(state: &CpuState, sys: Sys) -> bool {
    let split = state.get(Sys::ICH_VMCR_EL2) & vmcr::EOIM != 0;
    match sys {
        Sys::ICC_EOIR1_EL1 => !split,
        Sys::ICC_DIR_EL1 => split,
        _ => false,
    }
}

fn is_active(lr: u64, value: u64) -> bool {
    lr & lr::ACTIVE != 0 && intid(lr) == value & 0xff_ffff
}

/// MSR to an ICC_* register by a guest; whether there is such a register.
pub fn guest_write(state: &mut CpuState, sys: Sys, value: u64) -> bool {
    let mut control = state.get(Sys::ICH_VMCR_EL2);
    let mut field = |at: u32, width: u32, value: u64| {
        let mask = (1 << width) - 1;
        control = control & !(mask << at) | (value & mask) << at;
    };
    match sys {
        Sys::ICC_PMR_EL1 => field(vmcr::PMR, 8, value & 0xf8),
        Sys::ICC_BPR1_EL1 => field(vmcr::BPR1, 3, value),
        Sys::ICC_BPR0_EL1 => field(vmcr::BPR0, 3, value),
        Sys::ICC_CTLR_EL1 => {
            field(vmcr::CBPR.trailing_zeros(), 1, value);
            field(vmcr::EOIM.trailing_zeros(), 1, value >> 1);
        }
        Sys::ICC_IGRPEN0_EL1 => field(vmcr::ENG0.trailing_zeros(), 1, value),
        Sys::ICC_IGRPEN1_EL1 => field(vmcr::ENG1.trailing_zeros(), 1, value),
        Sys::ICC_EOIR1_EL1 => {
            let dropped = active_priorities(state) != 0;
            drop_priority(state);
            if ends(state, sys) {
                deactivate(state, value, dropped);
            }
            return true;
        }
        Sys::ICC_DIR_EL1 => {
            if ends(state, sys) {
                deactivate(state, value, true);
            }
            return true;
        }
        Sys::ICC_AP0R0_EL1 => state.set(Sys::ICH_AP0R0_EL2, value & 0xffff_ffff),
        Sys::ICC_AP1R0_EL1 => state.set(Sys::ICH_AP1R0_EL2, value & 0xffff_ffff),
        Sys::ICC_EOIR0_EL1 | Sys::ICC_SRE_EL1 => {}
        _ => return false,
    }
    state.set(Sys::ICH_VMCR_EL2, control);
    true
}

/// The highest of the active priorities ends.
fn drop_priority(state: &mut CpuState) {
    let lowest = |bits: u64| if bits == 0 { u32::MAX } else { bits.trailing_zeros() };
    let (zero, one) = (state.get(Sys::ICH_AP0R0_EL2), state.get(Sys::ICH_AP1R0_EL2));
    let (sys, bits) = match lowest(zero) < lowest(one) {
        true => (Sys::ICH_AP0R0_EL2, zero),
        false => (Sys::ICH_AP1R0_EL2, one),
    };
    state.set(sys, bits & bits.wrapping_sub(1));
}

/// Ends an interrupt. One that is in no list register is counted, as the hypervisor has it elsewhere.
fn deactivate(state: &mut CpuState, value: u64, counts: bool) {
    let found = lrs(state).find(|&(_, lr)| is_active(lr, value));
    match found {
        Some((sys, lr)) => state.set(sys, lr & !lr::ACTIVE),
        None if counts => {
            let control = state.get(Sys::ICH_HCR_EL2);
            let count = control.wrapping_add(1 << hcr::EOI_COUNT) & hcr::EOI_MASK;
            state.set(Sys::ICH_HCR_EL2, control & !hcr::EOI_MASK | count);
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::El;

    fn guest(lists: &[u64]) -> CpuState {
        let mut state = CpuState::reset(El::Two, 0);
        write(&mut state, Sys::ICH_HCR_EL2, hcr::EN);
        assert!(guest_write(&mut state, Sys::ICC_PMR_EL1, 0xf0));
        assert!(guest_write(&mut state, Sys::ICC_IGRPEN1_EL1, 1));
        for (sys, value) in LRS.into_iter().zip(lists) {
            write(&mut state, sys, *value);
        }
        state
    }

    fn pending(intid: u64, priority: u64) -> u64 {
        lr::PENDING | lr::GROUP1 | priority << 48 | intid
    }

    #[test]
    fn the_highest_priority_is_acknowledged_and_ended() {
        let mut state = guest(&[pending(40, 0xa0), pending(41, 0x80) | lr::HW | 27 << 32]);
        assert!(virtual_irq(&state));
        assert_eq!(guest_read(&mut state, Sys::ICC_IAR1_EL1), Some(41));
        assert!(!virtual_irq(&state), "0xa0 does not preempt 0x80");
        assert_eq!(guest_read(&mut state, Sys::ICC_RPR_EL1), Some(0x80));
        assert_eq!(guest_read(&mut state, Sys::ICC_IAR1_EL1), Some(SPURIOUS));
        assert_eq!(deactivates(&state, Sys::ICC_EOIR1_EL1, 41), Some(27), "the physical one ends, too");
        assert!(guest_write(&mut state, Sys::ICC_EOIR1_EL1, 41));
        assert_eq!(guest_read(&mut state, Sys::ICC_IAR1_EL1), Some(40));
        assert_eq!(read(&state, Sys::ICH_ELRSR_EL2), 0b1110);
    }

    #[test]
    fn ends_are_split_where_the_guest_wants_it() {
        let mut state = guest(&[pending(40, 0x80)]);
        guest_write(&mut state, Sys::ICC_CTLR_EL1, 2);
        guest_read(&mut state, Sys::ICC_IAR1_EL1);
        guest_write(&mut state, Sys::ICC_EOIR1_EL1, 40);
        assert_eq!((running(&state), state.get(Sys::ICH_LR0_EL2) & lr::STATE), (IDLE, lr::ACTIVE));
        guest_write(&mut state, Sys::ICC_DIR_EL1, 40);
        assert_eq!(state.get(Sys::ICH_LR0_EL2) & lr::STATE, 0);
    }

    #[test]
    fn the_hypervisor_is_told_what_it_asks_for() {
        let mut state = guest(&[pending(40, 0x80) | lr::EOI, pending(41, 0x80)]);
        write(&mut state, Sys::ICH_HCR_EL2, hcr::EN | hcr::UIE);
        assert!(!maintenance(&state), "two list registers are in use");
        guest_read(&mut state, Sys::ICC_IAR1_EL1);
        guest_write(&mut state, Sys::ICC_EOIR1_EL1, 40);
        assert_eq!((read(&state, Sys::ICH_EISR_EL2), read(&state, Sys::ICH_MISR_EL2)), (1, 3));
        assert!(maintenance(&state));
        // An interrupt that runs, and was taken out of its list register.
        let mut state = guest(&[]);
        write(&mut state, Sys::ICH_HCR_EL2, hcr::EN | hcr::LRENPIE);
        write(&mut state, Sys::ICH_AP1R0_EL2, 1 << 16);
        guest_write(&mut state, Sys::ICC_EOIR1_EL1, 40);
        assert_eq!(state.get(Sys::ICH_HCR_EL2) >> hcr::EOI_COUNT, 1);
        assert_eq!(read(&state, Sys::ICH_MISR_EL2), 4);
        assert!(!virtual_irq(&state) && maintenance(&state));
    }
}
