//! The timers that the guest may take: which one it does, and what each asks of it.

use core::sync::atomic::Ordering;

use satori_guests::defs::apic::{self as regs, lvt};
use satori_guests::defs::chipset::{hpet, ioapic, irq, mmio, pit, port, rtc};
use satori_guests::defs::hyperv::synic::message::{PENDING, SIZE_AND_FLAGS};
use satori_guests::defs::hyperv::synic::stimer::{DIRECT, ENABLE, PERIODIC, SINT_SHIFT, VECTOR_SHIFT};
use satori_guests::defs::hyperv::synic::{SCONTROL_ENABLE, SINT_AUTO_EOI, SLOT_BYTES};
use satori_guests::defs::hyperv::{PAGE_ENABLE, msr};
use satori_guests::harness::option;
use satori_guests::hyperv::{bit, peek32};
use satori_guests::{apic, insn};

use super::{BY_ONE, MESSAGES, SHARED, SPARE, TICK, TICKS, TIMER_SINT};

/// A timer that the guest may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Timer {
    Lapic,
    Stimer,
    StimerMessage,
    Hpet,
    Rtc,
    Pit,
}

impl Timer {
    pub const ALL: [(&'static str, Timer); 6] = [
        ("lapic", Timer::Lapic),
        ("stimer-direct", Timer::Stimer),
        ("stimer-message", Timer::StimerMessage),
        ("hpet", Timer::Hpet),
        ("rtc", Timer::Rtc),
        ("pit", Timer::Pit),
    ];

    pub fn name(self) -> &'static str {
        Timer::ALL.iter().find(|(_, timer)| *timer == self).map_or("", |(name, _)| name)
    }

    /// Windows: with a hypervisor the synthetic timer, else HPET, else RTC; without one the local APIC's first.
    pub fn choose() -> Timer {
        let visible = insn::cpuid(1, 0)[2] >> 31 != 0;
        let stimer = if bit::DIRECT_TIMERS.offered() { Timer::Stimer } else { Timer::StimerMessage };
        let hpet = peek32(mmio::HPET) != u32::MAX && option("hpet") != Some("off");
        if !visible || option("prefer") == Some("lapic") {
            Timer::Lapic
        } else if bit::SYNTHETIC_TIMERS.offered() && bit::SYNIC.offered() {
            stimer
        } else if hpet {
            Timer::Hpet
        } else {
            Timer::Rtc
        }
    }
}

pub fn timer() -> Timer {
    let chosen = SHARED.timer.load(Ordering::Relaxed);
    Timer::ALL.iter().find(|(_, timer)| *timer as u32 == chosen).map_or(Timer::Lapic, |(_, timer)| *timer)
}

pub fn hpet_read(register: u64) -> u64 {
    // SAFETY: the HPET's registers are mapped, and do nothing when read.
    unsafe { ((mmio::HPET + register) as *const u64).read_volatile() }
}

pub fn hpet_write(register: u64, value: u64) {
    // SAFETY: as in `hpet_read`; the guest owns its machine.
    unsafe { ((mmio::HPET + register) as *mut u64).write_volatile(value) };
}

pub fn route(pin: u8, entry: u64) {
    for (half, value) in [(1, (entry >> 32) as u32), (0, entry as u32)] {
        // SAFETY: the I/O APIC's registers are mapped.
        unsafe {
            ((mmio::IOAPIC + ioapic::IOREGSEL) as *mut u32)
                .write_volatile(u32::from(ioapic::IOREDTBL + 2 * pin + half));
            ((mmio::IOAPIC + ioapic::IOWIN) as *mut u32).write_volatile(value);
        }
    }
}

pub fn rtc_write(register: u8, value: u8) {
    insn::out8(port::RTC, register);
    insn::out8(port::RTC + 1, value);
}

pub fn rtc_read(register: u8) -> u8 {
    insn::out8(port::RTC, register);
    insn::in8(port::RTC + 1)
}

pub fn pit_arm() {
    let count = (pit::HZ / SHARED.tick_hz.load(Ordering::Relaxed).max(19)).min(0xffff);
    insn::out8(port::PIT, count as u8);
    insn::out8(port::PIT, (count >> 8) as u8);
}

/// Arms the HPET's first timer for its next tick, as a one-shot.
pub fn hpet_arm() {
    let next = hpet_read(hpet::MAIN_CNT) + SHARED.hpet_ticks.load(Ordering::Relaxed);
    hpet_write(hpet::TIMER + hpet::TN_COMP, next);
}

/// The message page of this vCPU, with the SINTs as a guest sets them: with auto-EOI unless that is deprecated.
pub fn set_up_synic(this: usize) {
    let page = MESSAGES[this].load(Ordering::Relaxed);
    insn::wrmsr(msr::SIMP, page | PAGE_ENABLE);
    let ends = if bit::DEPRECATE_AUTO_EOI.offered() { 0 } else { SINT_AUTO_EOI };
    insn::wrmsr(msr::SINT0, u64::from(SPARE) | ends);
    insn::wrmsr(msr::SINT0 + TIMER_SINT as u32, u64::from(TICK) | ends);
    insn::wrmsr(msr::SCONTROL, SCONTROL_ENABLE);
}

/// Starts this vCPU's timer. HPET, RTC and PIT are one for all.
pub fn start_timer(this: usize) {
    let hz = SHARED.tick_hz.load(Ordering::Relaxed).max(1);
    match timer() {
        Timer::Lapic => {
            apic::write(regs::TIMER_DIVIDE, BY_ONE);
            apic::write(regs::LVT_TIMER, u32::from(TICK));
            apic::write(regs::TIMER_INITIAL, SHARED.lapic_ticks.load(Ordering::Relaxed));
        }
        of @ (Timer::Stimer | Timer::StimerMessage) => {
            set_up_synic(this);
            let how = match of {
                Timer::Stimer => DIRECT | u64::from(TICK) << VECTOR_SHIFT,
                _ => TIMER_SINT << SINT_SHIFT,
            };
            insn::wrmsr(msr::STIMER0_CONFIG + 1, 10_000_000 / hz);
            insn::wrmsr(msr::STIMER0_CONFIG, ENABLE | PERIODIC | how);
        }
        _ if this != 0 => {}
        Timer::Hpet if option("ladder").is_some() => {
            // As a tickless kernel: one-shot, on an edge.
            hpet_write(hpet::GEN_CONF, hpet::ENABLE_CNF);
            let pin = u64::from(hpet::FIRST_PIN);
            hpet_write(hpet::TIMER + hpet::TN_CONF, pin << hpet::TN_INT_ROUTE_SHIFT | hpet::TN_INT_ENB_CNF);
            route(hpet::FIRST_PIN, u64::from(TICK));
            hpet_arm();
        }
        Timer::Hpet => {
            // Periodic, on a level, of which EOI_INDUCED exits come.
            let pin = u64::from(hpet::FIRST_PIN);
            let period = SHARED.hpet_ticks.load(Ordering::Relaxed);
            let how = hpet::TN_INT_TYPE_CNF | hpet::TN_INT_ENB_CNF | hpet::TN_TYPE_CNF | hpet::TN_VAL_SET_CNF;
            hpet_write(hpet::TIMER + hpet::TN_CONF, pin << hpet::TN_INT_ROUTE_SHIFT | how);
            hpet_write(hpet::TIMER + hpet::TN_COMP, hpet_read(hpet::MAIN_CNT) + period);
            hpet_write(hpet::TIMER + hpet::TN_COMP, period);
            route(hpet::FIRST_PIN, u64::from(TICK) | ioapic::TRIGGER_MODE);
            hpet_write(hpet::GEN_CONF, hpet::ENABLE_CNF);
        }
        Timer::Rtc => {
            // Rate n is 65,536 >> n a second, for 3 to 15.
            let rate = (3..=15).find(|rate| 65_536 >> rate <= hz).unwrap_or(15);
            route(irq::RTC, u64::from(TICK));
            rtc_write(rtc::A, 0x20 | rate);
            rtc_write(rtc::B, rtc_read(rtc::B) | 1 << 6);
            rtc_read(rtc::C);
        }
        Timer::Pit => {
            route(ioapic::PIT_PIN as u8, u64::from(TICK));
            // Counter 0, both bytes, mode 0: one tick for each count.
            insn::out8(port::PIT + 3, pit::ACCESS_BOTH);
            pit_arm();
        }
    }
}

pub fn stop_timer(this: usize) {
    match timer() {
        Timer::Lapic => apic::write(regs::LVT_TIMER, lvt::MASKED),
        Timer::Stimer | Timer::StimerMessage => insn::wrmsr(msr::STIMER0_CONFIG, 0),
        _ if this != 0 => {}
        Timer::Hpet => hpet_write(hpet::TIMER + hpet::TN_CONF, 0),
        Timer::Rtc => route(irq::RTC, ioapic::MASK),
        Timer::Pit => route(ioapic::PIT_PIN as u8, ioapic::MASK),
    }
}

/// What a tick asks of its timer. Whether the interrupt is ended already.
pub fn ticked(this: usize) -> bool {
    TICKS.fetch_add(1, Ordering::Relaxed);
    match timer() {
        Timer::Lapic => {
            apic::write(regs::TIMER_INITIAL, SHARED.lapic_ticks.load(Ordering::Relaxed));
        }
        Timer::Stimer => {}
        Timer::StimerMessage => {
            let slot = MESSAGES[this].load(Ordering::Relaxed) + SLOT_BYTES * TIMER_SINT;
            // SAFETY: the slot is this vCPU's to empty.
            unsafe { (slot as *mut u32).write_volatile(0) };
            insn::mfence();
            if peek32(slot + SIZE_AND_FLAGS) & PENDING != 0 {
                insn::wrmsr(msr::EOM, 0);
            }
            return SHARED.auto_eoi.load(Ordering::Relaxed) != 0;
        }
        Timer::Hpet if option("ladder").is_some() => hpet_arm(),
        Timer::Hpet => hpet_write(hpet::GINTR_STA, 1),
        Timer::Rtc => {
            rtc_read(rtc::C);
        }
        Timer::Pit => pit_arm(),
    }
    false
}
