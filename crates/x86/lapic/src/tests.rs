//! Behaviour of a set of local APICs on their bus.

use std::sync::{Arc, Mutex};

use satori_defs::apic::{self, base, esr, lvt};
use satori_defs::msr::Gp;

use crate::{ApicBus, Clocks, DeliveryMode, InterruptMessage, Lapic, Lint, Mode, Waker};

const CLOCKS: Clocks = Clocks { tsc_hz: 2_000_000_000, timer_hz: 1_000_000_000 };

const NOBODY: [u32; 0] = [];

#[derive(Default)]
struct Woken(Mutex<Vec<u32>>);

impl Waker for Woken {
    fn wake(&self, vcpu: u32) {
        self.0.lock().unwrap().push(vcpu);
    }
}

struct Machine {
    bus: Arc<ApicBus>,
    apics: Vec<Lapic>,
    woken: Arc<Woken>,
}

/// `count` software-enabled APICs, in x2APIC mode if asked for.
fn machine(count: u32, x2apic: bool) -> Machine {
    let ids: Vec<u32> = (0..count).collect();
    let bus = ApicBus::new(&ids);
    let woken = Arc::new(Woken::default());
    bus.set_waker(woken.clone());
    let mut apics: Vec<Lapic> = ids.iter().map(|&id| Lapic::new(bus.clone(), id, CLOCKS, 46)).collect();
    for apic in &mut apics {
        if x2apic {
            apic.write_base(apic.base() | base::EXTD, true).unwrap();
            assert_eq!(apic.msr_write(0x80f, 0x1ff, 0), Ok(None));
        } else {
            set(apic, apic::SVR, 0x1ff);
        }
    }
    Machine { bus, apics, woken }
}

fn set(apic: &mut Lapic, offset: u16, value: u32) {
    assert_eq!(apic.mmio_write(offset, 4, value.into(), 0), None);
}

fn get(apic: &mut Lapic, offset: u16) -> u32 {
    apic.mmio_read(offset, 4, 0) as u32
}

fn message(destination: u32, logical: bool, mode: DeliveryMode, vector: u8) -> InterruptMessage {
    InterruptMessage { destination, logical, mode, vector, level: false }
}

impl Machine {
    /// Which vCPUs have `vector` requested; clears it.
    fn got(&mut self, vector: u8) -> Vec<u32> {
        let requested = |apic: &Lapic| apic.slot().irr.get(vector);
        let got = (0..).zip(&self.apics).filter(|(_, a)| requested(a)).map(|(i, _)| i).collect();
        self.apics.iter().for_each(|apic| apic.slot().irr.clear(vector));
        self.woken.0.lock().unwrap().clear();
        got
    }

    fn fixed(&mut self, destination: u32, logical: bool) -> Vec<u32> {
        self.bus.deliver(message(destination, logical, DeliveryMode::Fixed, 0x40));
        self.got(0x40)
    }

    /// Who gets the interrupt of a device's write.
    fn msi(&mut self, address: u64, data: u32) -> Vec<u32> {
        satori_bus::MsiSink::signal(&*self.bus, satori_bus::Msi { address, data });
        self.got(data as u8)
    }

    fn ipi(&mut self, from: usize, high: u32, low: u32) -> Vec<u32> {
        if self.apics[from].mode() == Mode::X2apic {
            let value = u64::from(high) << 32 | u64::from(low);
            assert_eq!(self.apics[from].msr_write(0x830, value, 0), Ok(None));
        } else {
            set(&mut self.apics[from], apic::ICR_HIGH, high << 24);
            set(&mut self.apics[from], apic::ICR, low);
        }
        self.got(low as u8)
    }
}

#[test]
fn only_a_higher_class_interrupts_and_eoi_ends_the_highest() {
    let mut m = machine(1, false);
    for vector in [0x31, 0x35, 0x62, 0xf3] {
        m.bus.deliver(message(0, false, DeliveryMode::Fixed, vector));
    }
    let apic = &mut m.apics[0];
    assert_eq!(apic.pending(), Some(0xf3));
    apic.accept(0xf3);
    assert_eq!((apic.pending(), apic.ppr()), (None, 0xf0));
    assert_eq!(apic.eoi(), None);
    apic.accept(0x62);
    apic.set_tpr(0x75);
    assert_eq!(apic.ppr(), 0x75, "the TPR wins over a lower class in service, with its low bits");
    apic.set_tpr(0x65);
    assert_eq!(apic.ppr(), 0x65);
    apic.set_tpr(0x50);
    assert_eq!(apic.ppr(), 0x60);
    assert_eq!(apic.pending(), None);
    assert_eq!(apic.eoi(), None);
    assert_eq!((apic.pending(), apic.tpr_threshold()), (None, 3), "the TPR holds 0x35 back");
    apic.set_tpr(0x2f);
    assert_eq!((apic.pending(), apic.tpr_threshold()), (Some(0x35), 0));
    apic.accept(0x35);
    assert_eq!(apic.pending(), None, "the same class waits");
    apic.accept(0x31);
    let isr = [apic::ISR, apic::ISR + 0x10].map(|offset| get(apic, offset));
    assert_eq!(isr, [0, 1 << 0x11 | 1 << 0x15]);
    assert_eq!((apic.eoi(), get(apic, apic::ISR + 0x10)), (None, 1 << 0x11));
    assert_eq!((apic.eoi(), apic.eoi()), (None, None), "an EOI with nothing in service does nothing");
}

#[test]
fn the_eoi_of_a_level_triggered_vector_is_broadcast() {
    let mut m = machine(1, false);
    let level = |level| InterruptMessage { level, ..message(0, false, DeliveryMode::Fixed, 0x51) };
    m.bus.deliver(level(true));
    assert_eq!(get(&mut m.apics[0], apic::TMR + 0x20), 1 << 0x11);
    m.apics[0].accept(0x51);
    assert_eq!(m.apics[0].mmio_write(apic::EOI, 4, 0, 0), Some(0x51));
    m.bus.deliver(level(false));
    m.apics[0].accept(0x51);
    assert_eq!(m.apics[0].mmio_write(apic::EOI, 4, 0, 0), None, "the last message was an edge");
}

#[test]
fn a_message_signalled_interrupt_reaches_whom_its_address_names() {
    let mut m = machine(3, false);
    assert_eq!(m.msi(0xfee0_2000, 0x44), [2]);
    assert_eq!(m.msi(0xfeef_f000, 0x44), [0, 1, 2], "the broadcast");
    assert_eq!(m.msi(0x1234_5678_0000, 0x44), NOBODY, "no local APIC is there");
}

#[test]
fn xapic_destinations_physical_flat_and_cluster() {
    let mut m = machine(4, false);
    assert_eq!(m.fixed(2, false), [2]);
    assert_eq!(m.fixed(4, false), NOBODY);
    assert_eq!(m.fixed(0xff, false), [0, 1, 2, 3]);
    assert_eq!(m.fixed(0xff, true), [0, 1, 2, 3]);
    assert_eq!(m.fixed(0x0f, true), NOBODY, "no logical IDs yet");
    for (index, apic) in m.apics.iter_mut().enumerate() {
        set(apic, apic::LDR, 1 << (24 + index));
    }
    assert_eq!(m.fixed(0b1010, true), [1, 3]);
    for (apic, ldr) in m.apics.iter_mut().zip([0x11, 0x12, 0x21, 0x22]) {
        set(apic, apic::LDR, ldr << 24);
        set(apic, apic::DFR, 0x0fff_ffff);
    }
    assert_eq!(m.fixed(0x13, true), [0, 1]);
    assert_eq!(m.fixed(0x22, true), [3]);
    assert_eq!(m.fixed(0x31, true), NOBODY);
    assert_eq!(m.fixed(0x1_00ff, false), NOBODY, "no 8-bit address");
}

#[test]
fn x2apic_destinations_and_more_processors_than_a_word_has_bits() {
    let mut m = machine(300, true);
    assert_eq!(m.fixed(299, false), [299]);
    assert_eq!(m.fixed(0x0012_8001, true), [288]);
    assert_eq!(m.fixed(0x0010_8001, true), [256, 271]);
    let all: Vec<u32> = (0..300).collect();
    assert_eq!(m.fixed(0xffff_ffff, false), all);
    assert_eq!(m.fixed(0xff, false), all, "a device's 8-bit broadcast");
    assert_eq!(m.ipi(0, 0xff, 0x40), [255], "but not an IPI's");
    assert_eq!(m.ipi(0, 0xffff_ffff, 0x840), all);
    assert_eq!(m.apics[299].msr_read(0x802, 0), Ok(299));
    assert_eq!(m.apics[299].msr_read(0x80d, 0), Ok(0x12 << 16 | 1 << 11));
}

#[test]
fn shorthands_reach_whom_they_say_and_wake_no_sender() {
    for x2apic in [false, true] {
        let mut m = machine(3, x2apic);
        assert_eq!(m.ipi(1, 0, 0x4_0041), [1]);
        assert_eq!(m.ipi(1, 0, 0x8_0041), [0, 1, 2]);
        assert_eq!(m.ipi(1, 0, 0xc_0041), [0, 2]);
        assert_eq!(m.ipi(1, 2, 0x0041), [2]);
        m.bus.deliver(message(2, false, DeliveryMode::Fixed, 0x41));
        m.bus.deliver(message(7, false, DeliveryMode::Fixed, 0x41));
        m.apics[2].lint(Lint::Lint0);
        m.apics[0].self_ipi(0x41);
        assert_eq!(*m.woken.0.lock().unwrap(), [2]);
    }
}

#[test]
fn lowest_priority_picks_one_enabled_processor_and_always_the_same() {
    let mut m = machine(4, true);
    assert_eq!(m.apics[1].msr_write(0x80f, 0xff, 0), Ok(None));
    let mut chosen = Vec::new();
    for vector in 0x40..0x46 {
        let lowest = message(0xf, true, DeliveryMode::LowestPriority, vector);
        m.bus.deliver(lowest);
        let first = m.got(vector);
        m.bus.deliver(lowest);
        assert_eq!((first.len(), m.got(vector)), (1, first.clone()));
        chosen.extend(first);
    }
    assert_eq!(chosen, [2, 3, 0, 2, 3, 0], "64 % 3 is 1: the second of 0, 2, 3; never 1");
}

#[test]
fn init_forgets_older_sipis_and_resets_all_but_the_address() {
    let mut m = machine(2, true);
    assert_eq!(m.ipi(0, 1, 0x699), NOBODY);
    assert_eq!(m.ipi(0, 1, 0x500 | 0x4000), NOBODY);
    assert_eq!(m.ipi(0, 1, 0x500 | 0x8000), NOBODY, "de-assert does nothing");
    assert_eq!(m.apics[1].take_sipi(), None);
    let ap = &mut m.apics[1];
    assert!(ap.signalled() && ap.take_init() && !ap.take_init() && !ap.signalled());
    ap.init();
    assert_eq!((ap.mode(), ap.msr_read(0x80f, 0)), (Mode::X2apic, Ok(0xff)));
    assert_eq!(ap.msr_read(0x80d, 0), Ok(2));
    assert_eq!(m.ipi(0, 1, 0x49), NOBODY, "software-disabled: refused");
    m.ipi(0, 1, 0x698);
    m.ipi(0, 1, 0x69a);
    assert_eq!((m.apics[1].take_sipi(), m.apics[1].take_sipi()), (Some(0x9a), None));
    m.ipi(0, 1, 0x500);
    m.ipi(0, 1, 0x69b);
    assert_eq!(m.apics[1].take_sipi(), None, "waits behind the INIT");
    assert!(m.apics[1].take_init());
    assert_eq!(m.apics[1].take_sipi(), Some(0x9b));
    m.ipi(0, 1, 0x400);
    assert!(m.apics[1].nmi_pending() && m.apics[1].take_nmi() && !m.apics[1].take_nmi());
}

#[test]
fn apic_base_transitions_are_those_of_the_manual() {
    let mut m = machine(2, false);
    let apic = &mut m.apics[1];
    let address = apic::DEFAULT_BASE;
    assert_eq!((apic.base(), apic.mmio_base()), (address | base::EN, Some(address)));
    assert!(m.apics[0].is_bsp());
    let apic = &mut m.apics[1];
    for refused in
        [address | base::EXTD, address | base::EN | 1, 1 << 46 | base::EN, address | base::EN | 1 << 9]
    {
        assert_eq!(apic.write_base(refused, true), Err(Gp), "{refused:#x}");
    }
    assert_eq!(apic.msr_read(0x802, 0), Err(Gp), "no MSRs in xAPIC mode");
    apic.write_base(0xfec1_0000 | base::EN | base::BSP, true).unwrap();
    assert_eq!((apic.mmio_base(), apic.is_bsp()), (Some(0xfec1_0000), false), "BSP is read-only");
    apic.write_base(address | base::EN | base::EXTD, true).unwrap();
    assert_eq!(apic.mmio_base(), None);
    assert_eq!(apic.msr_read(0x80f, 0), Ok(0x1ff), "the registers stay");
    assert_eq!(apic.write_base(address | base::EN, true), Err(Gp));
    apic.write_base(address, true).unwrap();
    assert_eq!(apic.mode(), Mode::Disabled);
    assert!(apic.accepts_extint() && apic.msr_read(0x80f, 0).is_err());
    assert_eq!(apic.write_base(address | base::EN | base::EXTD, true), Err(Gp));
    assert_eq!(m.fixed(1, false), NOBODY);
    m.apics[1].write_base(address | base::EN, true).unwrap();
    assert_eq!(get(&mut m.apics[1], apic::SVR), 0xff);
}

#[test]
fn x2apic_registers_fault_on_reserved_bits_and_on_what_is_not_there() {
    let mut m = machine(1, true);
    let apic = &mut m.apics[0];
    let readable = [
        0x802u32, 0x803, 0x808, 0x80a, 0x80d, 0x80f, 0x828, 0x830, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837,
        0x838, 0x839, 0x83e,
    ];
    for msr in 0x800..=0x8ff {
        let expected = readable.contains(&msr) || (0x810..0x828).contains(&msr);
        assert_eq!(apic.msr_read(msr, 0).is_ok(), expected, "read {msr:#x}");
    }
    let writable =
        [0x808u32, 0x80b, 0x80f, 0x828, 0x830, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837, 0x838, 0x83e];
    for msr in (0x800..=0x8ff).filter(|&msr| msr != 0x83f) {
        let value = if msr == 0x830 { 0x4_0044 } else { 0 };
        assert_eq!(apic.msr_write(msr, value, 0).is_ok(), writable.contains(&msr), "write {msr:#x}");
    }
    assert_eq!(apic.msr_write(0x83f, 0x45, 0), Ok(None));
    let reserved: [(u32, u64); 10] = [
        (0x808, 0x100),
        (0x808, 1 << 32),
        (0x80b, 1),
        (0x80f, 1 << 12),
        (0x828, 1),
        (0x832, 1 << 19),
        (0x837, 1 << 8),
        (0x83e, 4),
        (0x830, 1 << 20),
        (0x83f, 0x145),
    ];
    for (msr, value) in reserved {
        assert_eq!(apic.msr_write(msr, value, 0), Err(Gp), "{msr:#x}={value:#x}");
    }
    assert_eq!(apic.msr_write(0x830, 5 << 32 | 0x4_0046, 0), Ok(None));
    assert_eq!(apic.msr_read(0x830, 0), Ok(5 << 32 | 0x4_0046));
}

#[test]
fn illegal_vectors_and_registers_are_errors_that_interrupt_once() {
    let mut m = machine(1, false);
    let apic = &mut m.apics[0];
    set(apic, apic::LVT_ERROR, 0x77);
    set(apic, apic::ICR, 0x4_0008);
    assert_eq!(apic.pending(), Some(0x77));
    apic.accept(0x77);
    set(apic, apic::ICR, 0x4_0009);
    assert_eq!(apic.highest_irr(), None, "the error is not new");
    assert_eq!(get(apic, apic::ESR), 0, "not before a write");
    set(apic, apic::ESR, 0);
    assert_eq!(get(apic, apic::ESR), esr::SEND_ILLEGAL_VECTOR);
    assert_eq!(get(apic, 0x3d0), 0);
    set(apic, apic::LVT_ERROR, 0x03);
    set(apic, 0x2f0, 1);
    m.bus.deliver(message(0, false, DeliveryMode::Fixed, 5));
    let apic = &mut m.apics[0];
    set(apic, apic::ESR, 0);
    assert_eq!(get(apic, apic::ESR), esr::ILLEGAL_REGISTER | esr::RECEIVED_ILLEGAL_VECTOR);
}

#[test]
fn software_disable_masks_the_lvt_and_refuses_messages() {
    let mut m = machine(1, false);
    let apic = &mut m.apics[0];
    set(apic, apic::LVT_TIMER, 0x60);
    set(apic, apic::SVR, 0xff);
    assert_eq!(get(apic, apic::LVT_TIMER), 0x60 | lvt::MASKED);
    set(apic, apic::LVT_TIMER, 0x60);
    assert_eq!(get(apic, apic::LVT_TIMER), 0x60 | lvt::MASKED);
    assert_eq!(m.fixed(0, false), NOBODY);
    m.bus.deliver(message(0, false, DeliveryMode::Nmi, 0));
    assert!(m.apics[0].take_nmi(), "NMIs pass");
}

#[test]
fn lint_pins_follow_their_entries() {
    let mut m = machine(2, false);
    assert!(!m.apics[1].accepts_extint(), "only the BSP is in virtual wire mode");
    // Enabling masked nothing: reset leaves the BSP's LINT0 open for the PIC.
    assert!(m.apics[0].accepts_extint());
    set(&mut m.apics[0], apic::LVT_LINT0, 0x1_0700);
    assert!(!m.apics[0].accepts_extint());
    set(&mut m.apics[1], apic::LVT_LINT1, 0x400);
    m.apics[1].lint(Lint::Lint1);
    assert!(m.apics[1].take_nmi() && !m.apics[0].nmi_pending());
    set(&mut m.apics[1], apic::LVT_LINT0, 0x50 | lvt::LEVEL);
    m.apics[1].lint(Lint::Lint0);
    assert_eq!(m.apics[1].pending(), Some(0x50));
}

#[test]
fn the_timer_interrupts_when_its_time_has_come() {
    let mut m = machine(1, true);
    let apic = &mut m.apics[0];
    let write = |apic: &mut Lapic, msr, value, tsc| assert_eq!(apic.msr_write(msr, value, tsc), Ok(None));
    write(apic, 0x83e, 0b1011, 0);
    write(apic, 0x832, 0xec, 0);
    write(apic, 0x838, 500, 100);
    assert_eq!((apic.msr_read(0x839, 100), apic.deadline_tsc()), (Ok(500), Some(1100)));
    assert_eq!((apic.msr_read(0x839, 600), apic.timer_expired(1099)), (Ok(250), false));
    assert!(apic.timer_expired(1100) && apic.pending() == Some(0xec));
    assert_eq!((apic.deadline_tsc(), apic.msr_read(0x839, 1100)), (None, Ok(0)));
    apic.accept(0xec);

    write(apic, 0x832, 0x4_00ec, 2000);
    apic.set_tsc_offset(50, 2000);
    apic.set_tsc_deadline(3050, 2000);
    assert_eq!((apic.deadline_tsc(), apic.tsc_deadline(2999)), (Some(3000), 3050));
    write(apic, 0x838, 77, 2500);
    assert_eq!(apic.msr_read(0x838, 2500), Ok(0), "no counting in TSC-deadline mode");
    assert_eq!(apic.tsc_deadline(3000), 0, "reading takes what expired");
    assert_eq!(apic.highest_irr(), Some(0xec));
    apic.accept(0xec);

    write(apic, 0x832, 0x5_00ec, 3000);
    apic.set_tsc_deadline(4050, 3000);
    assert_eq!(apic.deadline_tsc(), None, "nothing to wake up for while masked");
    write(apic, 0x832, 0x4_00ec, 4500);
    assert_eq!((apic.deadline_tsc(), apic.highest_irr()), (None, None), "lost while masked");
}

#[test]
fn register_accesses_of_odd_sizes_are_kvms() {
    let mut m = machine(2, false);
    let apic = &mut m.apics[1];
    assert_eq!(apic.mmio_read(apic::ID, 4, 0), 1 << 24);
    assert_eq!((apic.mmio_read(apic::ID + 3, 1, 0), apic.mmio_read(apic::VERSION, 2, 0)), (1, 0x14));
    for (offset, size) in [(apic::ID, 8), (apic::ID + 2, 4), (apic::ID + 4, 4), (0xfff, 1)] {
        assert_eq!(apic.mmio_read(offset, size, 0), 0);
    }
    assert_eq!(apic.mmio_write(apic::TPR, 1, 0x40, 0), None);
    assert_eq!(apic.mmio_write(apic::TPR + 1, 4, 0x40, 0), None);
    assert_eq!((apic.tpr(), get(apic, apic::PPR)), (0, 0));
}

#[test]
fn the_hyperv_registers_are_the_same_ones_in_both_modes() {
    use satori_defs::hyperv::msr::{EOI, ICR, TPR};
    for x2apic in [false, true] {
        let mut m = machine(2, x2apic);
        let destination = if x2apic { 1 << 32 } else { 1 << 56 };
        assert_eq!(m.apics[0].synthetic_write(ICR, destination | 0x61, 0), Ok(None));
        assert_eq!(m.apics[0].synthetic_read(ICR), Ok(destination | 0x61));
        let apic = &mut m.apics[1];
        assert_eq!(apic.pending(), Some(0x61));
        assert_eq!(apic.synthetic_write(TPR, 0x60, 0), Ok(None));
        assert_eq!((apic.pending(), apic.tpr(), apic.synthetic_read(TPR)), (None, 0x60, Ok(0x60)));
        assert_eq!(apic.synthetic_write(TPR, 0, 0), Ok(None));
        apic.accept(0x61);
        assert_eq!(apic.ppr(), 0x60);
        assert_eq!(apic.synthetic_write(EOI, 0xffff_ffff, 0), Ok(None), "any value ends it");
        assert_eq!(apic.ppr(), 0);
        m.bus.deliver(InterruptMessage { level: true, ..message(1, false, DeliveryMode::Fixed, 0x52) });
        let apic = &mut m.apics[1];
        apic.accept(0x52);
        assert_eq!(apic.synthetic_write(EOI, 0, 0), Ok(Some(0x52)), "level: for the I/O APICs");
        assert_eq!(
            (apic.synthetic_write(EOI, 1 << 32, 0), apic.synthetic_write(TPR, 1 << 32, 0)),
            (Err(Gp), Err(Gp))
        );
        assert_eq!(apic.synthetic_read(EOI), Err(Gp), "write only");
        apic.write_base(apic.base() & !(base::EN | base::EXTD), true).unwrap();
        for register in [EOI, ICR, TPR] {
            assert_eq!(apic.synthetic_read(register), Err(Gp));
            assert_eq!(apic.synthetic_write(register, 0, 0), Err(Gp));
        }
    }
}

#[test]
fn a_vector_that_ends_itself_is_not_in_service_and_the_eoi_ends_what_lies_below() {
    let mut machine = machine(2, true);
    let mut vectors = [0; 8];
    vectors[0x51 / 32] = 1 << (0x51 % 32);
    machine.bus.set_auto_eoi(1, vectors);
    for vector in [0x41, 0x51] {
        machine.bus.request(0, vector, true);
        machine.bus.request(1, vector, false);
        assert!(machine.bus.requested(1, vector));
        for apic in &mut machine.apics {
            assert_eq!(apic.pending(), Some(vector));
            apic.accept(vector);
        }
        assert!(!machine.bus.requested(1, vector));
    }
    assert_eq!(machine.woken.0.lock().unwrap().as_slice(), [1, 1]);
    assert_eq!((machine.apics[0].ppr(), machine.apics[1].ppr()), (0x50, 0x40));
    for (apic, expected) in machine.apics.iter_mut().zip([Some(0x51), Some(0x41)]) {
        assert_eq!(apic.take_ended(), None);
        assert_eq!(apic.msr_write(0x80b, 0, 0), Ok(None));
        assert_eq!((apic.take_ended(), apic.take_ended()), (expected, None));
    }
    // With nothing in service an EOI ends nothing; a globally disabled APIC takes nothing.
    assert_eq!(machine.apics[1].msr_write(0x80b, 0, 0), Ok(None));
    assert_eq!(machine.apics[1].take_ended(), None);
    let off = machine.apics[1].base() & !(base::EN | base::EXTD);
    machine.apics[1].write_base(off, true).unwrap();
    machine.bus.request(1, 0x61, false);
    assert!(!machine.bus.requested(1, 0x61));
}
