//! GICv3 (Arm IHI 0069): distributor, redistributors, and the CPU interfaces, which the core's system registers reach.
//!
//! One security state (GICD_CTLR.DS), affinity routing always, group 1 as IRQ, 64 interrupts, no LPIs. Priorities have five bits.

mod cpu;
mod frames;

use std::sync::{Arc, Mutex, MutexGuard};

use satori_arm_state::Sys;
use satori_bus::MmioDevice;
use satori_lock::Held;

/// Wakes a vCPU whose interrupt line may have changed.
pub type Wake = Box<dyn Fn(u32) + Send + Sync>;

/// Interrupts in all: SGIs to 15, PPIs to 31, SPIs beyond.
const INTERRUPTS: usize = 64;
const PRIVATE: usize = 32;

/// An interrupt.
#[derive(Clone, Copy, Debug, Default)]
struct Interrupt {
    enabled: bool,
    group1: bool,
    /// Pending by an edge or by a write.
    latched: bool,
    /// The line is asserted.
    line: bool,
    active: bool,
    edge: bool,
    priority: u8,
    /// GICD_IROUTER: the affinity of its vCPU.
    route: u64,
}

impl Interrupt {
    fn pending(&self) -> bool {
        self.latched || (self.line && !self.edge)
    }
}

/// What a vCPU has of its own: private interrupts and the CPU interface.
#[derive(Clone, Debug)]
struct Own {
    private: [Interrupt; PRIVATE],
    asleep: bool,
    mask: u8,
    point: u8,
    point0: u8,
    mode: bool,
    enabled: bool,
    enabled0: bool,
    /// Active priorities, a bit each.
    running: u32,
}

struct State {
    control: u32,
    shared: [Interrupt; INTERRUPTS - PRIVATE],
    own: Vec<Own>,
}

/// The interrupt controller.
pub struct Gic {
    state: Mutex<State>,
    wake: Wake,
}

/// The affinity of vCPU `index`: sixteen to a cluster.
fn affinity(index: u32) -> u64 {
    u64::from(index / 16) << 8 | u64::from(index % 16)
}

fn index_of(affinity: u64) -> usize {
    ((affinity >> 8 & 0xff) * 16 + (affinity & 0xff)) as usize
}

impl Gic {
    /// That of a machine of so many vCPUs.
    pub fn new(vcpus: u32, wake: Wake) -> Arc<Self> {
        let mut private = [Interrupt::default(); PRIVATE];
        private[..16].iter_mut().for_each(|sgi| (sgi.edge, sgi.enabled) = (true, false));
        let own = Own {
            private,
            asleep: true,
            mask: 0,
            point: 0,
            point0: 0,
            mode: false,
            enabled: false,
            enabled0: false,
            running: 0,
        };
        let shared = [Interrupt::default(); INTERRUPTS - PRIVATE];
        let state = State { control: 0x50, shared, own: vec![own; vcpus as usize] };
        Arc::new(Gic { state: Mutex::new(state), wake })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().held()
    }

    /// The distributor's frame.
    pub fn distributor(self: &Arc<Self>) -> Arc<dyn MmioDevice> {
        Arc::new(frames::Distributor(self.clone()))
    }

    /// The frames of all redistributors.
    pub fn redistributors(self: &Arc<Self>) -> Arc<dyn MmioDevice> {
        Arc::new(frames::Redistributors(self.clone()))
    }

    /// Sets the line of shared interrupt `spi`, counted from 0.
    pub fn set_spi(&self, spi: u32, level: bool) {
        let mut state = self.lock();
        let Some(interrupt) = state.shared.get_mut(spi as usize) else { return };
        if level && !interrupt.line && interrupt.edge {
            interrupt.latched = true;
        }
        interrupt.line = level;
        let target = index_of(interrupt.route) as u32;
        drop(state);
        if level {
            (self.wake)(target);
        }
    }

    /// Sets the line of private interrupt `intid` of a vCPU, which is not executing.
    pub fn set_ppi(&self, vcpu: u32, intid: u8, level: bool) {
        let mut state = self.lock();
        if let Some(own) = state.own.get_mut(vcpu as usize)
            && let Some(interrupt) = own.private.get_mut(usize::from(intid))
        {
            interrupt.line = level;
        }
    }

    /// Whether IRQ of a vCPU is asserted.
    pub fn irq(&self, vcpu: u32) -> bool {
        let state = self.lock();
        state.signalled(vcpu as usize).is_some()
    }

    /// MRS of a register of the CPU interface; none if there is no such register.
    pub fn read(&self, vcpu: u32, register: Sys) -> Option<u64> {
        self.lock().read(vcpu as usize, register)
    }

    /// MSR to one; whether it is there.
    pub fn write(&self, vcpu: u32, register: Sys, value: u64) -> bool {
        let woken = self.lock().write(vcpu as usize, register, value);
        let Some(woken) = woken else { return false };
        for target in woken {
            (self.wake)(target);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gic(vcpus: u32) -> (Arc<Gic>, Arc<Mutex<Vec<u32>>>) {
        let woken: Arc<Mutex<Vec<u32>>> = Arc::default();
        let told = woken.clone();
        let gic = Gic::new(vcpus, Box::new(move |vcpu| told.lock().unwrap().push(vcpu)));
        let distributor = gic.distributor();
        distributor.write(0, 4, 2);
        for vcpu in 0..vcpus {
            gic.redistributors().write(u64::from(vcpu) * 0x2_0000 + 0x14, 4, 0);
            gic.redistributors().write(u64::from(vcpu) * 0x2_0000 + 0x1_0080, 4, 0xffff_ffff);
            gic.redistributors().write(u64::from(vcpu) * 0x2_0000 + 0x1_0100, 4, 0xffff_ffff);
            assert!(gic.write(vcpu, Sys::ICC_PMR_EL1, 0xf0) && gic.write(vcpu, Sys::ICC_IGRPEN1_EL1, 1));
        }
        woken.lock().unwrap().clear();
        (gic, woken)
    }

    #[test]
    fn a_level_is_acknowledged_and_comes_again_while_it_is_asserted() {
        let (gic, _) = gic(1);
        assert!(!gic.irq(0));
        gic.set_ppi(0, 27, true);
        assert!(gic.irq(0));
        assert_eq!(gic.read(0, Sys::ICC_IAR1_EL1), Some(27));
        assert!(!gic.irq(0), "it is active");
        assert_eq!(gic.read(0, Sys::ICC_IAR1_EL1), Some(1023));
        gic.write(0, Sys::ICC_EOIR1_EL1, 27);
        assert!(gic.irq(0), "still asserted");
        gic.set_ppi(0, 27, false);
        assert!(!gic.irq(0));
    }

    #[test]
    fn an_sgi_reaches_those_it_names() {
        let (gic, woken) = gic(3);
        // INTID 5 to affinity level 0 numbers 1 and 2.
        gic.write(0, Sys::ICC_SGI1R_EL1, 5 << 24 | 6);
        assert_eq!(*woken.lock().unwrap(), [1, 2]);
        assert!(!gic.irq(0) && gic.irq(1) && gic.irq(2));
        assert_eq!(gic.read(2, Sys::ICC_IAR1_EL1), Some(5));
        gic.write(2, Sys::ICC_EOIR1_EL1, 5);
        assert!(!gic.irq(2), "an edge comes once");
        // IRM: all but the sender.
        gic.write(1, Sys::ICC_SGI1R_EL1, 1 << 40 | 3 << 24);
        assert!(gic.irq(0) && gic.irq(2));
    }

    #[test]
    fn priorities_and_masks_decide_what_is_signalled() {
        let (gic, _) = gic(1);
        let frame = gic.redistributors();
        frame.write(0x1_0400 + 20, 1, 0x80);
        frame.write(0x1_0400 + 21, 1, 0x40);
        gic.set_ppi(0, 20, true);
        assert_eq!(gic.read(0, Sys::ICC_IAR1_EL1), Some(20));
        assert_eq!(gic.read(0, Sys::ICC_RPR_EL1), Some(0x80));
        gic.set_ppi(0, 21, true);
        assert!(gic.irq(0), "a higher priority preempts");
        assert_eq!(gic.read(0, Sys::ICC_IAR1_EL1), Some(21));
        gic.write(0, Sys::ICC_EOIR1_EL1, 21);
        assert_eq!(gic.read(0, Sys::ICC_RPR_EL1), Some(0x80));
        gic.write(0, Sys::ICC_PMR_EL1, 0x40);
        assert!(!gic.irq(0), "0x40 is not above the mask");
    }

    #[test]
    fn shared_interrupts_go_where_they_are_routed() {
        let (gic, woken) = gic(2);
        let distributor = gic.distributor();
        distributor.write(0x84, 4, 2);
        distributor.write(0x104, 4, 2);
        distributor.write(0x6000 + 33 * 8, 8, 1);
        woken.lock().unwrap().clear();
        gic.set_spi(1, true);
        assert_eq!(*woken.lock().unwrap(), [1]);
        assert!(gic.irq(1) && !gic.irq(0));
        assert_eq!(gic.read(1, Sys::ICC_IAR1_EL1), Some(33));
        // EOImode 1: the priority drops, DIR deactivates.
        gic.write(1, Sys::ICC_CTLR_EL1, 2);
        gic.write(1, Sys::ICC_EOIR1_EL1, 33);
        assert!(!gic.irq(1), "still active");
        gic.write(1, Sys::ICC_DIR_EL1, 33);
        assert!(gic.irq(1));
        assert_eq!(distributor.read(0xffe8, 4), 0x3b);
    }
}
