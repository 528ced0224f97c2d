//! The CPU interface: what is signalled, acknowledged and ended.

use satori_arm_state::Sys;

use super::{INTERRUPTS, Interrupt, PRIVATE, State, affinity, index_of};

/// No interrupt.
const SPURIOUS: u64 = 1023;
/// The priority when nothing runs.
const IDLE: u8 = 0xff;

/// The numbers of the bits that are set, from `base` on.
fn set_bits(mut bits: u64, base: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| base + bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        lowest
    })
}

impl State {
    fn interrupt(&mut self, vcpu: usize, intid: usize) -> Option<&mut Interrupt> {
        match intid {
            0..PRIVATE => self.own.get_mut(vcpu)?.private.get_mut(intid),
            PRIVATE..INTERRUPTS => self.shared.get_mut(intid - PRIVATE),
            _ => None,
        }
    }

    /// The running priority.
    fn running(&self, vcpu: usize) -> u8 {
        match self.own[vcpu].running {
            0 => IDLE,
            bits => (bits.trailing_zeros() << 3) as u8,
        }
    }

    /// The interrupt of the highest priority that a vCPU could take.
    fn best(&self, vcpu: usize) -> Option<(usize, u8)> {
        let own = self.own.get(vcpu)?;
        if self.control & 2 == 0 || !own.enabled {
            return None;
        }
        let ready = |one: &Interrupt| one.enabled && one.group1 && one.pending() && !one.active;
        let private = own.private.iter().enumerate().filter(|(_, one)| ready(one));
        let mine = |one: &Interrupt| index_of(one.route) == vcpu || one.route >> 31 & 1 != 0;
        let pending = self.pending.iter().enumerate().flat_map(|(word, bits)| set_bits(*bits, word * 64));
        let shared = pending.map(|at| (at + PRIVATE, &self.shared[at]));
        let shared = shared.filter(|(_, one)| ready(one) && mine(one));
        private.chain(shared).map(|(intid, one)| (intid, one.priority)).min_by_key(|&(_, priority)| priority)
    }

    /// The one that is signalled: above the mask and above what runs.
    pub(super) fn signalled(&self, vcpu: usize) -> Option<(usize, u8)> {
        let (intid, priority) = self.best(vcpu)?;
        let own = &self.own[vcpu];
        let group = u32::from(own.point.clamp(1, 7)) + 1;
        let preempts = match self.running(vcpu) {
            IDLE => true,
            running => u32::from(priority) >> group < u32::from(running) >> group,
        };
        (priority < own.mask && preempts).then_some((intid, priority))
    }

    fn acknowledge(&mut self, vcpu: usize) -> u64 {
        let Some((intid, priority)) = self.signalled(vcpu) else { return SPURIOUS };
        if let Some(interrupt) = self.interrupt(vcpu, intid) {
            interrupt.active = true;
            interrupt.latched = false;
        }
        if let Some(spi) = intid.checked_sub(PRIVATE) {
            self.note(spi);
        }
        self.own[vcpu].running |= 1 << (priority >> 3);
        intid as u64
    }

    fn deactivate(&mut self, vcpu: usize, intid: u64) {
        if let Some(interrupt) = self.interrupt(vcpu, intid as usize & 0xff_ffff) {
            interrupt.active = false;
        }
    }

    pub(super) fn read(&mut self, vcpu: usize, register: Sys) -> Option<u64> {
        let own = self.own.get(vcpu)?;
        Some(match register {
            Sys::ICC_PMR_EL1 => own.mask.into(),
            Sys::ICC_IAR1_EL1 => self.acknowledge(vcpu),
            Sys::ICC_IAR0_EL1 | Sys::ICC_HPPIR0_EL1 => SPURIOUS,
            Sys::ICC_HPPIR1_EL1 => self.best(vcpu).map_or(SPURIOUS, |(intid, _)| intid as u64),
            Sys::ICC_BPR1_EL1 => own.point.max(2).into(),
            Sys::ICC_BPR0_EL1 => own.point0.max(2).into(),
            Sys::ICC_RPR_EL1 => self.running(vcpu).into(),
            // PRIbits 5, IDbits 16 of them.
            Sys::ICC_CTLR_EL1 => u64::from(own.mode) << 1 | 4 << 8,
            Sys::ICC_SRE_EL1 => 7,
            Sys::ICC_SRE_EL2 => 0xf,
            Sys::ICC_IGRPEN0_EL1 => own.enabled0.into(),
            Sys::ICC_IGRPEN1_EL1 => own.enabled.into(),
            Sys::ICC_AP1R0_EL1 => own.running.into(),
            Sys::ICC_AP0R0_EL1 => 0,
            _ => return None,
        })
    }

    /// The vCPUs whose lines may differ, or none if there is no such register.
    pub(super) fn write(&mut self, vcpu: usize, register: Sys, value: u64) -> Option<Vec<u32>> {
        let own = self.own.get_mut(vcpu)?;
        match register {
            Sys::ICC_PMR_EL1 => own.mask = value as u8 & 0xf8,
            Sys::ICC_BPR1_EL1 => own.point = value as u8 & 7,
            Sys::ICC_BPR0_EL1 => own.point0 = value as u8 & 7,
            Sys::ICC_CTLR_EL1 => own.mode = value & 2 != 0,
            Sys::ICC_IGRPEN0_EL1 => own.enabled0 = value & 1 != 0,
            Sys::ICC_IGRPEN1_EL1 => own.enabled = value & 1 != 0,
            Sys::ICC_AP1R0_EL1 => own.running = value as u32,
            Sys::ICC_EOIR1_EL1 => {
                // Priorities end in the order in which they began.
                own.running &= own.running.wrapping_sub(1);
                if !own.mode {
                    self.deactivate(vcpu, value);
                }
            }
            Sys::ICC_DIR_EL1 => self.deactivate(vcpu, value),
            Sys::ICC_SGI1R_EL1 => return Some(self.send(vcpu, value)),
            Sys::ICC_EOIR0_EL1
            | Sys::ICC_AP0R0_EL1
            | Sys::ICC_SRE_EL1
            | Sys::ICC_SRE_EL2
            | Sys::ICC_SGI0R_EL1
            | Sys::ICC_ASGI1R_EL1 => {}
            _ => return None,
        }
        Some(Vec::new())
    }

    /// ICC_SGI1R_EL1: which vCPUs an interrupt went to.
    fn send(&mut self, from: usize, value: u64) -> Vec<u32> {
        let intid = (value >> 24 & 15) as usize;
        let all = value >> 40 & 1 != 0;
        let cluster = (value >> 16 & 0xff) << 8 | (value >> 32 & 0xff) << 16 | (value >> 48 & 0xff) << 32;
        let named = |index: usize| {
            let own = affinity(index as u32);
            own & !0xff == cluster && value >> (own & 15) & 1 != 0
        };
        let targets: Vec<_> =
            (0..self.own.len()).filter(|&index| if all { index != from } else { named(index) }).collect();
        for &target in &targets {
            self.own[target].private[intid].latched = true;
        }
        targets.into_iter().map(|target| target as u32).collect()
    }
}
