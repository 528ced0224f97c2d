//! A local APIC's state, both halves of it, as plain data.

use satori_defs::apic::{base, icr, lvt, svr};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::bits::Bits;
use crate::local::{LVT_ENTRIES, LVT_WRITABLE, Lapic, TIMER};
use crate::timer::{self, TimerMode};

/// Everything of a local APIC but its ID, its frequencies and where it is, which are the machine's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLapic {
    base: u64,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    svr: u32,
    isr: Bits,
    esr: u32,
    icr: u64,
    lvt: [u32; LVT_ENTRIES],
    timer: timer::SavedTimer,
    ended: Option<u8>,
    irr: [u32; 8],
    tmr: [u32; 8],
    auto_eoi: [u32; 8],
    errors: u32,
    /// NMI, INIT and SIPI that wait.
    signals: u32,
}

impl State for SavedLapic {
    const NAME: &'static str = "local APIC";
    const VERSION: u32 = 1;
}

impl Lapic {
    /// Its state, while no vCPU executes.
    pub fn save(&self) -> Result<Value, Error> {
        let slot = self.slot();
        let (errors, signals) = slot.waiting();
        Value::of(&SavedLapic {
            base: self.base,
            tpr: self.tpr,
            ldr: self.ldr,
            dfr: self.dfr,
            svr: self.svr,
            isr: self.isr.clone(),
            esr: self.esr,
            icr: self.icr,
            lvt: self.lvt,
            timer: self.timer.save(),
            ended: self.ended,
            irr: slot.irr.words(),
            tmr: slot.tmr.words(),
            auto_eoi: slot.auto_eoi.words(),
            errors,
            signals,
        })
    }

    /// Takes a state back, while no vCPU executes. Nobody is woken.
    pub fn restore(&mut self, value: &Value) -> Result<(), Error> {
        let saved: SavedLapic = value.state()?;
        self.check(&saved)?;
        self.base = saved.base;
        self.tpr = saved.tpr;
        (self.ldr, self.dfr, self.svr) = (saved.ldr, saved.dfr, saved.svr);
        self.isr = saved.isr;
        (self.esr, self.icr) = (saved.esr, saved.icr);
        self.lvt = saved.lvt;
        self.timer.restore(&saved.timer, TimerMode::from_lvt(saved.lvt[TIMER]));
        self.ended = saved.ended;
        let slot = self.slot();
        slot.irr.store(saved.irr);
        slot.tmr.store(saved.tmr);
        slot.auto_eoi.store(saved.auto_eoi);
        slot.set_waiting(saved.errors, saved.signals);
        self.publish();
        Ok(())
    }

    fn check(&self, saved: &SavedLapic) -> Result<(), Error> {
        let unless = |fits, why| Error::unless(fits, SavedLapic::NAME, why);
        // Every value of IA32_APIC_BASE that can be is one that the enabled APIC can be given.
        let bits = self.physical_bits.clamp(32, 52);
        let base_fits = satori_rules::apic_base::legal(base::EN, saved.base, true, bits);
        unless(base_fits, "IA32_APIC_BASE has bits that do not go together")?;
        unless((saved.base ^ self.base) & base::BSP == 0, "another processor is the bootstrap processor")?;
        let within = |(entry, writable): (u32, u32)| entry & !writable == 0;
        let entries = saved.lvt.into_iter().zip(LVT_WRITABLE).all(within);
        unless(entries, "an entry of the local vector table has bits that do not exist")?;
        unless(
            saved.svr & !(svr::ENABLE | svr::FOCUS | 0xff) == 0,
            "the spurious-interrupt register has bits that do not exist",
        )?;
        let status = saved.icr & u64::from(lvt::STATUS) == 0;
        unless(status, "an interprocessor interrupt is on its way, which none ever is")?;
        // No vector below 16 is ever requested or in service.
        let legal = |words: &[u32; 8]| words[0] & 0xffff == 0;
        unless(
            legal(&saved.irr) && saved.isr.word(0) & 0xffff == 0,
            "a vector below 16 is requested or in service",
        )
    }
}

const _: () = assert!(icr::ASSERT & lvt::STATUS == 0, "the status bit of the ICR is that of the LVT");

#[cfg(test)]
mod tests {
    use satori_defs::apic;

    use super::*;
    use crate::{ApicBus, Clocks, DeliveryMode, InterruptMessage};

    const CLOCKS: Clocks = Clocks { tsc_hz: 2_000_000_000, timer_hz: 1_000_000_000 };

    fn lapic() -> Lapic {
        Lapic::new(ApicBus::new(&[0, 1]), 1, CLOCKS, 46)
    }

    /// With an interrupt in service, one requested, an NMI, an error, and a periodic timer that runs.
    fn busy() -> Lapic {
        let mut apic = lapic();
        let mut set = |offset, value: u32| _ = apic.mmio_write(offset, 4, value.into(), 1000);
        set(apic::SVR, 0x1ff);
        set(apic::TPR, 0x20);
        set(apic::LVT_TIMER, 0x31 | lvt::PERIODIC);
        set(apic::TIMER_DIVIDE, 0b1011);
        set(apic::TIMER_INITIAL, 1_000_000);
        // The vector is illegal.
        set(apic::ICR, 0x0004_0003);
        let send = |vector, mode| {
            let message = InterruptMessage { destination: 1, logical: false, mode, vector, level: true };
            apic.slot_bus().deliver(message);
        };
        send(0x51, DeliveryMode::Fixed);
        send(0x52, DeliveryMode::Fixed);
        send(0, DeliveryMode::Nmi);
        apic.accept(0x52);
        apic
    }

    #[test]
    fn an_apic_comes_back_with_its_interrupts_and_its_timer() {
        let (mut one, mut other) = (busy(), lapic());
        other.restore(&one.save().unwrap()).unwrap();
        assert_eq!(other.save(), one.save());
        assert_eq!(other.deadline_tsc(), Some(2_001_000));
        for apic in [&mut one, &mut other] {
            assert!(apic.timer_expired(2_001_000) && apic.take_nmi());
            assert_eq!(
                (apic.in_service(), apic.highest_irr(), apic.pending()),
                (Some(0x52), Some(0x51), None)
            );
            assert_eq!(apic.eoi(), Some(0x52));
            assert_eq!(apic.pending(), Some(0x51));
        }
        assert_eq!(other.save(), one.save());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let value = busy().save().unwrap();
        let with = |field: &str, state: serde_json::Value| {
            let mut value = value.clone();
            value.tree_mut()[field] = state;
            lapic().restore(&value)
        };
        assert_eq!(with("base", (0xfee0_0000u64 | base::EN).into()), Ok(()));
        for (field, state) in [
            ("base", (0xfee0_0000u64 | base::EXTD).into()),
            ("base", (0xfee0_0000u64 | base::EN | base::BSP).into()),
            ("svr", 0xffff.into()),
            ("lvt", vec![0, 0, 0, 0, 0, 1_u32 << 31].into()),
            ("irr", vec![1, 0, 0, 0, 0, 0, 0, 0].into()),
            ("isr", vec![2, 0, 0, 0, 0, 0, 0, 0].into()),
            ("icr", 0x1000.into()),
        ] {
            let refused = with(field, state);
            assert!(matches!(refused, Err(Error::Unfit { .. })), "{field}: {refused:?}");
        }
        assert!(matches!(with("timer", 5.into()), Err(Error::Damaged { .. })));
    }
}
