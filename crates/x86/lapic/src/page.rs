//! A local APIC as its registers show it, for whoever keeps it instead: taken from there, and handed over.

use satori_defs::apic::{self, svr};
use satori_state::LocalApic;

use crate::DeliveryMode;
use crate::local::{LVT_ENTRIES, LVT_WRITABLE, Lapic, TIMER};
use crate::timer::TimerMode;

/// Registers that are as they read.
const PLAIN: [u16; 9] = [
    apic::ID,
    apic::VERSION,
    apic::TPR,
    apic::LDR,
    apic::SVR,
    apic::ESR,
    apic::ICR,
    apic::ICR_HIGH,
    apic::TIMER_INITIAL,
];

impl Lapic {
    /// Its registers at partition TSC `tsc`.
    pub fn registers(&mut self, tsc: u64) -> LocalApic {
        let mut to = LocalApic::new(self.base, self.timer.deadline());
        let vectors = (apic::ISR..apic::ESR).step_by(16);
        let entries = (apic::LVT_TIMER..=apic::LVT_ERROR).step_by(16);
        let rest = [apic::DFR, apic::TIMER_CURRENT, apic::TIMER_DIVIDE];
        for offset in PLAIN.into_iter().chain(vectors).chain(entries).chain(rest) {
            to.set(offset, self.read(offset, tsc));
        }
        to
    }

    /// Takes registers that another one had at partition TSC `tsc`.
    pub fn set_registers(&mut self, from: &LocalApic, tsc: u64) {
        self.base = from.base;
        self.tpr = from.get(apic::TPR) as u8;
        self.svr = from.get(apic::SVR) & (svr::ENABLE | svr::FOCUS | 0xff);
        self.dfr = from.get(apic::DFR) | 0x0fff_ffff;
        self.ldr = from.get(apic::LDR);
        self.esr = from.get(apic::ESR);
        let (low, high) = (from.get(apic::ICR) & !apic::lvt::STATUS, from.get(apic::ICR_HIGH));
        self.icr = u64::from(high) << 32 | u64::from(low);
        self.isr = from.vectors(apic::ISR).into();
        let entry = |index: usize| from.get(apic::LVT_TIMER + 16 * index as u16) & LVT_WRITABLE[index];
        self.lvt = std::array::from_fn::<u32, LVT_ENTRIES, _>(entry);
        self.slot().irr.store(from.vectors(apic::IRR));
        self.slot().tmr.store(from.vectors(apic::TMR));
        let counts = (from.get(apic::TIMER_INITIAL), from.get(apic::TIMER_CURRENT));
        self.timer.go_on(TimerMode::from_lvt(self.lvt[TIMER]), from.get(apic::TIMER_DIVIDE), counts, tsc);
        self.timer.set_deadline(from.deadline, tsc);
        self.publish();
    }

    /// NMI, INIT and SIPI that wait here go to who keeps it instead.
    pub fn hand_signals_on(&mut self) {
        let (nmi, init, sipi) = self.slot().take_all();
        let signals = [
            nmi.then_some((DeliveryMode::Nmi, 0)),
            init.then_some((DeliveryMode::Init, 0)),
            sipi.map(|page| (DeliveryMode::StartUp, page)),
        ];
        signals.into_iter().flatten().for_each(|(mode, vector)| self.to_itself(mode, vector));
    }

    /// Vectors that end themselves, a bit each.
    pub fn auto_eoi(&self) -> [u32; 8] {
        self.slot().auto_eoi.words()
    }
}

#[cfg(test)]
mod tests {
    use satori_defs::apic::{base, lvt};

    use super::*;
    use crate::{ApicBus, Clocks, InterruptMessage, Mode};

    const CLOCKS: Clocks = Clocks { tsc_hz: 2_000_000_000, timer_hz: 1_000_000_000 };

    #[test]
    fn an_apic_goes_on_from_the_registers_of_another() {
        let bus = ApicBus::new(&[0, 1]);
        let mut one = Lapic::new(bus.clone(), 1, CLOCKS, 46);
        let mut set = |offset, value: u32| _ = one.mmio_write(offset, 4, value.into(), 1000);
        set(apic::SVR, 0x1ff);
        set(apic::TPR, 0x25);
        set(apic::LDR, 0x0200_0000);
        set(apic::LVT_TIMER, 0x31 | lvt::PERIODIC);
        set(apic::TIMER_DIVIDE, 0b1011);
        set(apic::TIMER_INITIAL, 1_000_000);
        for vector in [0x51, 0x62] {
            let mode = DeliveryMode::Fixed;
            bus.deliver(InterruptMessage { destination: 1, logical: false, mode, vector, level: true });
        }
        one.accept(0x62);
        let registers = one.registers(1_001_000);
        assert_eq!(registers.get(apic::TIMER_CURRENT), 500_000);
        assert_eq!(registers.vectors(apic::IRR)[2], 1 << 0x11);
        let mut other = Lapic::new(ApicBus::new(&[0, 1]), 1, CLOCKS, 46);
        other.set_registers(&registers, 1_001_000);
        assert_eq!(other.save(), one.save());
        assert_eq!((other.mode(), other.deadline_tsc()), (Mode::Xapic, Some(2_001_000)));
        assert!(other.level_triggered(0x62) && other.base() & base::EN != 0);
        assert_eq!(other.eoi(), Some(0x62));
    }

    #[test]
    fn what_is_sent_to_an_apic_that_somebody_else_keeps_goes_there() {
        #[derive(Default)]
        struct Heard(std::sync::Mutex<Vec<InterruptMessage>>);
        impl satori_bus::MsiSink for Heard {
            fn signal(&self, msi: satori_bus::Msi) {
                self.0.lock().unwrap().extend(InterruptMessage::from_msi(msi));
            }
        }
        let (bus, heard) = (ApicBus::new(&[0, 7]), std::sync::Arc::<Heard>::default());
        let mut apic = Lapic::new(bus.clone(), 1, CLOCKS, 46);
        bus.nmi(1);
        bus.hand_on(heard.clone());
        bus.request(1, 0x40, true);
        apic.hand_signals_on();
        let of =
            |mode, vector| InterruptMessage { destination: 7, logical: false, mode, vector, level: false };
        assert_eq!(*heard.0.lock().unwrap(), [of(DeliveryMode::Fixed, 0x40), of(DeliveryMode::Nmi, 0)]);
        assert!(!apic.signalled() && apic.highest_irr().is_none());
    }
}
