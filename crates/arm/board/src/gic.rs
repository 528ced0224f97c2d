//! GICv3 (Arm IHI 0069): distributor, redistributors, and the CPU interfaces, which the core's system registers reach.
//!
//! One security state (GICD_CTLR.DS), affinity routing always, group 1 as IRQ, 256 interrupts, no LPIs. Priorities have five bits. Messages
//! are shared interrupts, by a frame of GICv2m.

mod cpu;
mod frames;
mod messages;

use std::sync::{Arc, Mutex, MutexGuard};

use satori_arm_state::Sys;
use satori_bus::{InterruptLine, MmioDevice};
use satori_lock::Held;

/// Wakes a vCPU whose interrupt line may have changed.
pub type Wake = Box<dyn Fn(u32) + Send + Sync>;

/// Interrupts in all: SGIs to 15, PPIs to 31, SPIs beyond.
const INTERRUPTS: usize = 256;
const PRIVATE: usize = 32;
const SHARED: usize = INTERRUPTS - PRIVATE;

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
    shared: [Interrupt; SHARED],
    /// Which of `shared` are pending, a bit each, so that who asks what is signalled looks at those alone.
    pending: [u64; SHARED.div_ceil(64)],
    own: Vec<Own>,
}

impl State {
    /// Takes up whether a shared interrupt, counted from 0, is pending now.
    fn note(&mut self, spi: usize) {
        let Some(interrupt) = self.shared.get(spi) else { return };
        let (word, bit) = (spi / 64, 1 << (spi % 64));
        match interrupt.pending() {
            true => self.pending[word] |= bit,
            false => self.pending[word] &= !bit,
        }
    }

    /// The same for all of them.
    fn note_all(&mut self) {
        (0..SHARED).for_each(|spi| self.note(spi));
    }
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
        let (shared, pending) = ([Interrupt::default(); SHARED], [0; SHARED.div_ceil(64)]);
        let state = State { control: 0x50, shared, pending, own: vec![own; vcpus as usize] };
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

    /// The frame that messages are written to, at [`MESSAGES`](crate::MESSAGES).
    pub fn messages(self: &Arc<Self>) -> Arc<messages::Frame> {
        Arc::new(messages::Frame(self.clone()))
    }

    /// Shared interrupt `spi` as the line of several devices, asserted while one of them asserts it.
    pub fn shared_line(self: &Arc<Self>, spi: u32) -> SharedLine {
        SharedLine { gic: self.clone(), spi, asserted: Arc::default() }
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
        state.note(spi as usize);
        drop(state);
        if level {
            (self.wake)(target);
        }
    }

    /// An edge of shared interrupt `spi`, counted from 0, whatever others do at the same time.
    fn pulse_spi(&self, spi: u32) {
        let mut state = self.lock();
        let Some(interrupt) = state.shared.get_mut(spi as usize).filter(|one| one.edge) else { return };
        interrupt.latched = true;
        let target = index_of(interrupt.route) as u32;
        state.note(spi as usize);
        drop(state);
        (self.wake)(target);
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

/// A level-sensitive line that devices share.
#[derive(Clone)]
pub struct SharedLine {
    gic: Arc<Gic>,
    spi: u32,
    /// Which devices assert it, a bit each. Held while the line is driven, so that the last to change it is the last to drive it.
    asserted: Arc<Mutex<u64>>,
}

impl SharedLine {
    /// The end of device `number`, 0 to 63.
    pub fn end(&self, number: u8) -> Arc<dyn InterruptLine> {
        Arc::new(LineEnd { line: self.clone(), bit: 1 << (number % 64) })
    }
}

struct LineEnd {
    line: SharedLine,
    bit: u64,
}

impl InterruptLine for LineEnd {
    fn set(&self, level: bool) {
        let mut asserted = self.line.asserted.lock().held();
        let before = *asserted != 0;
        match level {
            true => *asserted |= self.bit,
            false => *asserted &= !self.bit,
        }
        if before != (*asserted != 0) {
            self.line.gic.set_spi(self.line.spi, *asserted != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use satori_bus::{Msi, MsiSink};

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

    /// Enables interrupt `intid` of those that are shared, in group 1, and as an edge.
    fn enable(gic: &Arc<Gic>, intid: u64, edge: bool) {
        let distributor = gic.distributor();
        distributor.write(0x80 + intid / 32 * 4, 4, u64::from(u32::MAX));
        distributor.write(0x100 + intid / 32 * 4, 4, 1 << (intid % 32));
        if edge {
            distributor.write(0xc00 + intid / 16 * 4, 4, 2 << (intid % 16 * 2));
        }
    }

    #[test]
    fn a_message_is_a_shared_interrupt_and_others_are_nothing() {
        let (gic, _) = gic(1);
        let frame = gic.messages();
        let kind = frame.read(8, 4);
        let (first, count) = (kind >> 16 & 0x3ff, kind & 0x3ff);
        assert_eq!((first, first + count), (64, INTERRUPTS as u64));
        enable(&gic, 255, true);
        frame.signal(Msi { address: crate::MESSAGES + 0x40, data: 255 });
        assert_eq!(gic.read(0, Sys::ICC_IAR1_EL1), Some(255));
        gic.write(0, Sys::ICC_EOIR1_EL1, 255);
        assert!(!gic.irq(0), "a message is an edge");
        for (address, data) in
            [(0x40, 0), (0x40, 27), (0x40, 33), (0x40, 256), (0x40, u32::MAX), (0x44, 255), (0, 255)]
        {
            frame.signal(Msi { address: crate::MESSAGES + address, data });
        }
        frame.signal(Msi { address: 0, data: 255 });
        assert!(!gic.irq(0));
        // A driver may write it, too.
        frame.write(0x40, 4, 255);
        assert!(gic.irq(0));
        // An edge that is taken back by GICD_ICPENDR is none.
        gic.distributor().write(0x280 + 255 / 32 * 4, 4, 1 << (255 % 32));
        assert!(!gic.irq(0));
    }

    #[test]
    fn a_line_is_asserted_while_one_device_asserts_it() {
        let (gic, _) = gic(1);
        enable(&gic, 35, false);
        let line = gic.shared_line(3);
        let (first, second) = (line.end(1), line.end(5));
        first.set(true);
        second.set(true);
        first.set(false);
        assert!(gic.irq(0));
        second.set(false);
        second.set(false);
        assert!(!gic.irq(0));
    }
}
