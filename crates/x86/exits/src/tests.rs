//! Every handler through [`dispatch`], on a processor that is only a register file.

use std::sync::{Arc, Mutex};

use satori_bus::{Clock, MmioMap, PortDevice, PortMap, PowerEvent, PowerSink};
use satori_cpuid::msrs::{Owner, PlatformMsrs, Setup, TABLE};
use satori_cpuid::{CpuSpec, CpuidTable, Feature, Params, Topology};
use satori_defs::vmx::ExitReason;
use satori_defs::x86::{cr0, cr4, efer};
use satori_defs::{hyperv, msr};
use satori_engine::{
    BACKED, Controls, Event, Exception, Exit, Kick, Parts, Resume, Stat, Until, Vcpu, VmxProcessor, Window,
    X86,
};
use satori_hyperv::{Interrupts, Message};
use satori_lapic::{ApicBus, Clocks, Lapic};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::CpuState;

use crate::{Answered, Asked, AtOnce, Context, EoiSink, Platform, Refused, Runtime, dispatch};

#[derive(Default)]
struct Registers {
    state: CpuState,
    controls: Controls,
    window: Option<bool>,
}

impl Vcpu<X86> for Registers {
    fn run(&mut self, _: Until) -> Exit {
        Exit::Budget
    }
    fn resume(&mut self, _: Resume) {}
    fn inject(&mut self, _: Event) {}
    fn request_window(&mut self, _window: Window, wanted: bool) {
        self.window = Some(wanted);
    }
    fn state(&self) -> &CpuState {
        &self.state
    }
    fn state_mut(&mut self, _parts: Parts) -> &mut CpuState {
        &mut self.state
    }
    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.controls
    }
    fn flush_tlb(&mut self) {}
    fn kick(&self) -> Arc<Kick> {
        Arc::default()
    }
    fn set_debug(&mut self, _plan: satori_engine::DebugPlan) {}
    fn translate(&self, linear: u64) -> Option<u64> {
        Some(linear)
    }
    fn retired(&self) -> u64 {
        0
    }
    fn stats(&self) -> Vec<Stat> {
        Vec::new()
    }
}

const NOW: u64 = 1_000_000;

struct Stopped;
impl Clock for Stopped {
    fn now(&self) -> u64 {
        NOW
    }
    fn counter(&self) -> u64 {
        NOW
    }
    fn counter_hz(&self) -> u64 {
        1_000_000_000
    }
    fn epoch(&self) -> u64 {
        0
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);
impl EoiSink for Heard {
    fn eoi(&self, vector: u8) {
        self.0.lock().unwrap().push(format!("EOI {vector}"));
    }
}
impl PowerSink for Heard {
    fn power(&self, event: PowerEvent) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}
impl PortDevice for Heard {
    fn read(&self, offset: u16, _: u8) -> u32 {
        0x40 + u32::from(offset)
    }
    fn write(&self, offset: u16, size: u8, value: u32) {
        self.0.lock().unwrap().push(format!("port {offset} size {size} value {value:#x}"));
    }
}

/// What drives address line 20.
struct Gate(GuestMemory);
impl PortDevice for Gate {
    fn read(&self, _: u16, _: u8) -> u32 {
        0
    }
    fn write(&self, _: u16, _: u8, _: u32) {
        self.0.set_lines(!(1 << 20));
    }
}

/// A vCPU that runs half of the time.
struct Half;
impl Runtime for Half {
    fn ran(&self, _: u64) -> u64 {
        NOW / 2
    }
}

struct Sources(Arc<ApicBus>);

impl Interrupts for Sources {
    fn request(&self, vp: u32, vector: u8, own: bool) {
        self.0.request(vp, vector, own);
    }
    fn requested(&self, vp: u32, vector: u8) -> bool {
        self.0.requested(vp, vector)
    }
    fn set_auto_eoi(&self, vp: u32, vectors: [u32; 8]) {
        self.0.set_auto_eoi(vp, vectors);
    }
}

struct Rig {
    vcpu: Registers,
    lapic: Lapic,
    msrs: PlatformMsrs,
    vp: satori_hyperv::Vp,
    kvm: satori_kvm::Vcpu,
    xen: satori_xen::Vcpu,
    platform: Platform,
    heard: Arc<Heard>,
    asked: Asked,
}

impl Rig {
    fn new(enlightened: bool) -> Self {
        let engine = [
            Feature::Tsc,
            Feature::Pae,
            Feature::Smep,
            Feature::Pcid,
            Feature::Lm,
            Feature::Nx,
            Feature::Syscall,
        ];
        let cpu = CpuSpec::default();
        let config = satori_hyperv::Config::auto();
        let memory = GuestMemory::new(&[Region { start: Gpa(0x1000), len: 4 << 20 }]).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(Stopped);
        let heard = Arc::new(Heard::default());
        let ports = PortMap::default();
        ports.add("test", 0x100, 0x103, heard.clone()).unwrap();
        let apics = ApicBus::new(&[0]);
        let partition =
            satori_hyperv::Partition::new(config.clone(), memory.clone(), clock.clone(), 1 << 30).unwrap();
        let partition = partition.with_processors(vec![Box::new(|| ())]);
        let partition = partition.with_synic(1, Arc::new(Sources(apics.clone())));
        let params = Params {
            cpu: &cpu,
            engine_features: &engine,
            host_lacks: &[],
            topology: Topology::default(),
            tsc_hz: clock.counter_hz(),
            crystal_hz: clock.counter_hz(),
            physical_bits: 46,
            hypervisor: config.leaves(1),
        };
        let cpuid = CpuidTable::new(params).unwrap();
        let msrs = PlatformMsrs::new(&Setup {
            cpuid: &cpuid,
            tsc_hz: clock.counter_hz(),
            physical_bits: 46,
            uncached: None,
        });
        let platform = Platform {
            cpuid,
            clock,
            memory,
            ports,
            mmio: MmioMap::default(),
            hyperv: enlightened.then_some(Arc::new(partition)),
            kvm: None,
            xen: None,
            eoi: heard.clone(),
            power: heard.clone(),
            runtime: Arc::new(Half),
            refused: Refused::default(),
        };
        let clocks = Clocks { tsc_hz: 1_000_000_000, timer_hz: 1_000_000_000 };
        Rig {
            vcpu: Registers::default(),
            lapic: Lapic::new(apics, 0, clocks, 46),
            msrs,
            vp: satori_hyperv::Vp::new(0),
            kvm: satori_kvm::Vcpu::new(0),
            xen: satori_xen::Vcpu::new(0),
            platform,
            heard,
            asked: Asked::Nothing,
        }
    }

    fn exit(&mut self, exit: Exit) -> Resume {
        let mut context = Context {
            vcpu: &mut self.vcpu,
            lapic: &mut self.lapic,
            msrs: &mut self.msrs,
            hyperv: &mut self.vp,
            kvm: &mut self.kvm,
            xen: &mut self.xen,
            platform: &self.platform,
            asked: Asked::Nothing,
        };
        let answer = dispatch(exit, &mut context);
        self.asked = context.asked;
        answer
    }

    fn write(&mut self, msr: u32, value: u64) -> Resume {
        self.exit(Exit::MsrWrite { msr, value })
    }

    fn read(&mut self, msr: u32) -> Resume {
        self.exit(Exit::MsrRead { msr })
    }

    fn heard(&self) -> Vec<String> {
        self.heard.0.lock().unwrap().clone()
    }
}

const GP: Resume = Resume::Fault(Exception::gp(0));
const UD: Resume = Resume::Fault(Exception::ud());

#[test]
fn ports_and_absent_memory_answer() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.exit(Exit::IoRead { port: 0x101, size: 1 }), Resume::Value(0x41));
    assert_eq!(rig.exit(Exit::IoWrite { port: 0x102, size: 2, value: 0xabcd }), Resume::Done);
    assert_eq!(rig.heard(), ["port 2 size 2 value 0xabcd"]);
    assert_eq!(rig.exit(Exit::MmioRead { gpa: 0xf000_0000, size: 4 }), Resume::Value(0xffff_ffff));
    assert_eq!(rig.exit(Exit::MmioWrite { gpa: u64::MAX, size: 8, value: 1 }), Resume::Done);
}

/// The same answers without the vCPU's coming out, as often as that is allowed, and each counted.
#[test]
fn what_needs_little_of_the_vcpu_is_answered_at_once() {
    const EXITS: [Exit; 4] = [
        Exit::Cpuid { leaf: 1, subleaf: 0 },
        Exit::IoRead { port: 0x101, size: 1 },
        Exit::IoWrite { port: 0x102, size: 2, value: 0xabcd },
        Exit::MmioRead { gpa: 0xf000_0000, size: 4 },
    ];
    let mut rig = Rig::new(true);
    rig.vcpu.state.cr4 = cr4::OSXSAVE;
    let expected = EXITS.map(|exit| rig.exit(exit));
    let Rig { vcpu, lapic, msrs, platform, heard, .. } = rig;
    let (platform, kick) = (Arc::new(platform), Arc::<Kick>::default());
    let processor = VmxProcessor::default();
    let at_once = AtOnce::new(platform.clone(), kick.clone(), processor, 0);
    let ask = |exit: &Exit| satori_engine::AtOnce::answer(&at_once, exit, &vcpu.state);
    assert_eq!(EXITS.each_ref().map(ask), [None; 4], "nothing is allowed yet");
    at_once.allow(5, 0b111, &lapic, msrs.misc_enable());
    assert_eq!(EXITS.each_ref().map(ask), expected.map(Some));
    assert_eq!(heard.0.lock().unwrap().len(), 2);
    assert_eq!(ask(&Exit::MsrRead { msr: msr::IA32_EFER }), None, "no exit of another kind");
    assert_eq!((ask(&EXITS[0]), ask(&EXITS[0])), (Some(expected[0]), None), "as many as were allowed");
    let bare = |all| Answered { all, bare: if processor.apicv() { 0 } else { all } };
    assert_eq!(at_once.take(), [2, 2, 1].map(bare));
    assert_eq!(at_once.take(), [0; 3].map(bare));
    at_once.allow(5, 0b101, &lapic, msrs.misc_enable());
    assert_eq!((ask(&EXITS[1]), ask(&EXITS[0])), (None, Some(expected[0])), "only what is allowed");
    platform.ports.add("gate", 0x92, 0x92, Arc::new(Gate(platform.memory.clone()))).unwrap();
    at_once.allow(5, 0b111, &lapic, msrs.misc_enable());
    assert_eq!((ask(&EXITS[1]), kick.pending()), (Some(expected[1]), false));
    assert_eq!(ask(&Exit::IoWrite { port: 0x92, size: 1, value: 0 }), Some(Resume::Done));
    assert!(kick.pending(), "address lines are looked at when it is entered");
}

#[test]
fn efer_keeps_lma_and_refuses_what_the_manual_refuses() {
    let mut rig = Rig::new(false);
    rig.vcpu.state.efer = efer::LME | efer::LMA;
    rig.vcpu.state.cr0 |= cr0::PG;
    assert_eq!(rig.write(msr::IA32_EFER, efer::LME | efer::NXE | efer::SCE), Resume::Done);
    assert_eq!(rig.read(msr::IA32_EFER), Resume::Value(efer::LME | efer::LMA | efer::NXE | efer::SCE));
    assert_eq!(rig.write(msr::IA32_EFER, efer::NXE), GP, "LME cannot change while paging is on");
    assert_eq!(rig.write(msr::IA32_EFER, efer::LME | 1 << 12), GP, "SVME is reserved");
    rig.vcpu.state.cr0 &= !cr0::PG;
    rig.vcpu.state.efer = 0;
    assert_eq!(rig.write(msr::IA32_EFER, efer::LMA), Resume::Done);
    assert_eq!(rig.vcpu.state.efer, 0, "LMA is the processor's");
}

#[test]
fn registers_of_system_calls_and_memory_types_are_checked() {
    let mut rig = Rig::new(false);
    for register in [msr::IA32_LSTAR, msr::IA32_CSTAR] {
        assert_eq!(rig.write(register, 0xffff_8000_0000_0000), Resume::Done);
        assert_eq!(rig.write(register, 0x0000_8000_0000_0000), GP);
        assert_eq!(rig.read(register), Resume::Value(0xffff_8000_0000_0000));
    }
    assert_eq!(rig.write(msr::IA32_STAR, u64::MAX), Resume::Done);
    assert_eq!(rig.write(msr::IA32_FMASK, 1 << 32), GP);
    assert_eq!(rig.write(msr::IA32_TSC_AUX, 1 << 32), GP);
    assert_eq!(rig.write(msr::IA32_PAT, 0x0007_0106_0007_0405), Resume::Done);
    assert_eq!(rig.write(msr::IA32_PAT, 0x0007_0206_0007_0405), GP, "2 is no memory type");
    assert_eq!((rig.read(0xdead), rig.write(0xdead, 0)), (GP, GP));
}

#[test]
fn tsc_and_tsc_adjust_move_together() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.write(msr::IA32_TSC, 0), Resume::Done);
    assert_eq!(rig.read(msr::IA32_TSC), Resume::Value(0));
    assert_eq!(rig.read(msr::IA32_TSC_ADJUST), Resume::Value(NOW.wrapping_neg()));
    assert_eq!(rig.write(msr::IA32_TSC_ADJUST, 7), Resume::Done);
    assert_eq!(rig.read(msr::IA32_TSC), Resume::Value(NOW + 7));
}

#[test]
fn the_tpr_is_one_register_by_msr_page_and_shadow() {
    let mut rig = Rig::new(false);
    rig.vcpu.state.tpr = 0x30;
    assert_eq!(rig.exit(Exit::ApicRead { offset: 0x80, size: 4 }), Resume::Value(0x30));
    assert_eq!(rig.exit(Exit::ApicWrite { offset: 0x80, size: 4, value: 0x50 }), Resume::Done);
    assert_eq!(rig.vcpu.state.tpr, 0x50);
    let x2apic = rig.lapic.base() | 1 << 10;
    assert_eq!(rig.write(msr::IA32_APIC_BASE, x2apic), Resume::Done);
    assert_eq!(rig.write(msr::X2APIC_BASE + 8, 0x70), Resume::Done);
    assert_eq!((rig.vcpu.state.tpr, rig.read(msr::X2APIC_BASE + 8)), (0x70, Resume::Value(0x70)));
    assert_eq!(rig.write(msr::IA32_APIC_BASE, x2apic & !(1 << 11)), GP, "x2APIC without enable");
}

#[test]
fn only_offered_bits_of_control_registers_can_be_set() {
    let mut rig = Rig::new(false);
    let write = |rig: &mut Rig, register, value| rig.exit(Exit::CrWrite { register, value });
    assert_eq!(write(&mut rig, 4, cr4::PAE | cr4::SMEP), Resume::Done);
    assert_eq!(write(&mut rig, 4, cr4::PAE | cr4::SMAP), GP, "CPUID has no SMAP here");
    assert_eq!(write(&mut rig, 4, cr4::VMXE), GP);
    assert_eq!(write(&mut rig, 4, cr4::PKE), GP, "nor protection keys");
    assert_eq!(write(&mut rig, 4, cr4::PGE), GP, "nor even global pages");
    assert_eq!(write(&mut rig, 4, cr4::PCIDE), GP, "not in long mode");
    rig.vcpu.state.efer = efer::LMA;
    rig.vcpu.state.cr4 = cr4::PAE;
    assert_eq!(write(&mut rig, 4, cr4::PAE | cr4::PCIDE), Resume::Done);
    rig.vcpu.state.cr3 = 0x1001;
    assert_eq!(write(&mut rig, 4, cr4::PAE | cr4::PCIDE), GP, "a PCID is in CR3 already");
    assert_eq!(write(&mut rig, 4, 0), GP, "long mode needs PAE");
    assert_eq!(write(&mut rig, 0, cr0::PG), GP);
    assert_eq!(write(&mut rig, 0, cr0::PE | cr0::NW), GP);
    assert_eq!(write(&mut rig, 0, cr0::PE | cr0::PG | 1 << 32), GP);
    assert_eq!(write(&mut rig, 0, cr0::PE | cr0::PG), Resume::Done);
    assert_eq!(rig.exit(Exit::Xsetbv { value: 1 }), GP, "no XSAVE, so XCR0 has no bits");
}

#[test]
fn a_touched_piece_is_marked_on_its_first_page_of_ram() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.exit(Exit::EptViolation { gpa: 0x1_2345 }), Resume::Done);
    assert_eq!(rig.exit(Exit::EptViolation { gpa: 0x20_5000 }), Resume::Done);
    assert_eq!(rig.exit(Exit::EptViolation { gpa: u64::MAX }), Resume::Done);
    let touched = |gpa| rig.platform.memory.page(Gpa(gpa)).unwrap().state.touched();
    assert!(touched(0x1000), "RAM begins behind the piece's first page");
    assert!(touched(0x20_0000) && !touched(0x20_5000) && !touched(0x40_0000));
    let memory = &rig.platform.memory;
    memory.add(Region { start: Gpa(0x1_0010_3000), len: 0x8000 }).unwrap();
    memory.add(Region { start: Gpa(0x1_0010_b000), len: 0x1000 }).unwrap();
    assert_eq!(rig.exit(Exit::EptViolation { gpa: 0x1_0010_7000 }), Resume::Done);
    let piece = |gpa| rig.platform.memory.piece(Gpa(gpa), BACKED).is_some_and(|page| page.state.touched());
    assert!(piece(0x1_0010_7000) && piece(0x1_0010_3000), "who asks again finds it where it was marked");
    assert!(!piece(0x1_0010_b000), "another range of RAM in the same piece is not there");
}

#[test]
fn what_is_not_offered_is_refused() {
    let mut rig = Rig::new(false);
    for exit in [Exit::Vmcall, Exit::Monitor, Exit::Mwait, Exit::VmxInstruction(ExitReason::Vmon)] {
        assert_eq!(rig.exit(exit), UD);
    }
    assert_eq!(rig.exit(Exit::Rdpmc { counter: 0 }), GP);
    assert_eq!((rig.read(hyperv::msr::GUEST_OS_ID), rig.write(hyperv::msr::GUEST_OS_ID, 1)), (GP, GP));
}

#[test]
fn an_end_of_interrupt_by_any_way_lets_the_next_message_through() {
    use hyperv::msr as synthetic;

    let mut rig = Rig::new(true);
    for (msr, value) in [
        (synthetic::SIMP, 0x2001),
        (synthetic::SCONTROL, 1),
        (synthetic::SINT0 + 1, 0x51),
        (synthetic::SINT0 + 2, 0x2_0052),
    ] {
        assert_eq!(rig.write(msr, value), Resume::Done);
    }
    assert_eq!(rig.exit(Exit::ApicWrite { offset: 0xf0, size: 4, value: 0x1ff }), Resume::Done);
    let partition = rig.platform.hyperv.clone().unwrap();
    let post = |sint, kind| {
        partition.post_from_host(0, sint, Message::new(kind, 0, &[]).unwrap()).unwrap();
    };
    (1..=4).for_each(|kind| post(1, kind));
    let memory = rig.platform.memory.clone();
    let slot = |sint: u64| memory.read_u32(Gpa(0x2000 + sint * 0x100)).unwrap();
    let ways = [
        Exit::ApicWrite { offset: 0xb0, size: 4, value: 0 },
        Exit::MsrWrite { msr: synthetic::EOI, value: 0 },
        Exit::MsrWrite { msr: 0x80b, value: 0 },
    ];
    for (number, way) in (1..).zip(ways) {
        assert_eq!((slot(1), rig.lapic.pending()), (number, Some(0x51)));
        rig.lapic.accept(0x51);
        memory.write(Gpa(0x2100), &[0; 4]).unwrap();
        if number == 3 {
            let x2apic = rig.lapic.base() | 1 << 10;
            rig.lapic.write_base(x2apic, true).unwrap();
        }
        assert_eq!(rig.exit(way), Resume::Done);
    }
    assert_eq!((slot(1), rig.lapic.pending()), (4, Some(0x51)));
    rig.lapic.accept(0x51);
    // One that ends itself is never in service, and its EOI would be another's.
    post(2, 7);
    assert_eq!(rig.lapic.pending(), None, "of the same class as the one in service");
    assert_eq!(rig.write(0x80b, 0), Resume::Done);
    assert_eq!((slot(2), rig.lapic.pending()), (7, Some(0x52)));
    rig.lapic.accept(0x52);
    assert_eq!((rig.lapic.ppr(), rig.lapic.take_ended()), (0, None));
}

#[test]
fn the_hyperv_interface_is_reached_and_its_crashes_are_told() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.write(hyperv::msr::GUEST_OS_ID, 0x8100), Resume::Done);
    assert_eq!(rig.read(hyperv::msr::GUEST_OS_ID), Resume::Value(0x8100));
    assert_eq!(rig.write(hyperv::msr::CRASH_CTL, 1 << 63), Resume::Done);
    assert_eq!(rig.heard(), ["Panic(\"crash MSRs\")"]);
    rig.vcpu.state.cr0 |= cr0::PE;
    assert_ne!(rig.exit(Exit::Vmcall), UD);
}

#[test]
fn the_hyperv_apic_registers_act_on_the_local_apic() {
    use hyperv::msr::{EOI, ICR, TPR, VP_ASSIST_PAGE};
    let mut rig = Rig::new(true);
    assert_eq!(rig.write(TPR, 0x40), Resume::Done);
    assert_eq!((rig.vcpu.state.tpr, rig.lapic.tpr()), (0x40, 0x40));
    rig.vcpu.state.tpr = 0x20;
    assert_eq!(rig.read(TPR), Resume::Value(0x20));
    assert_eq!(rig.exit(Exit::ApicWrite { offset: 0xf0, size: 4, value: 0x1ff }), Resume::Done);
    assert_eq!(rig.write(ICR, 0x55), Resume::Done);
    assert_eq!(rig.lapic.pending(), Some(0x55));
    rig.lapic.accept(0x55);
    assert_eq!((rig.read(EOI), rig.write(EOI, 0)), (GP, Resume::Done));
    assert_eq!(rig.lapic.ppr(), 0x20);
    assert_eq!(rig.write(VP_ASSIST_PAGE, 0x2001), Resume::Done);
    assert_eq!(rig.read(VP_ASSIST_PAGE), Resume::Value(0x2001));
    let mut rig = Rig::new(false);
    for register in [EOI, ICR, TPR, VP_ASSIST_PAGE] {
        assert_eq!((rig.read(register), rig.write(register, 0)), (GP, GP));
    }
}

#[test]
fn windows_are_closed_when_they_open() {
    for exit in [Exit::InterruptWindow, Exit::NmiWindow] {
        let mut rig = Rig::new(false);
        assert_eq!((rig.exit(exit), rig.vcpu.window), (Resume::Continue, Some(false)));
    }
    let mut rig = Rig::new(false);
    for exit in [
        Exit::Hlt,
        Exit::Pause,
        Exit::PreemptionTimer,
        Exit::ExternalInterrupt,
        Exit::TaskSwitch,
        Exit::TripleFault,
    ] {
        assert_eq!((rig.exit(exit), rig.vcpu.window), (Resume::Continue, None));
    }
    for exit in [Exit::Wbinvd, Exit::Invd, Exit::DrAccess] {
        assert_eq!(rig.exit(exit), Resume::Done);
    }
}

#[test]
fn every_register_of_the_table_answers() {
    let mut rig = Rig::new(true);
    for row in TABLE {
        let unreadable = match row.owner {
            Owner::Platform { readable, .. } => !readable,
            // Their own tests know which of them can be read, and when.
            Owner::Hyperv(_) | Owner::Kvm | Owner::HypervOrXen | Owner::Xen | Owner::Lapic(..) => continue,
            // The engine answers for these without an exit.
            Owner::Passed(_) => true,
            Owner::File(..) => false,
        };
        let refused = unreadable || rig.msrs.row(row.first).is_none();
        let answer = rig.exit(Exit::MsrRead { msr: row.first });
        assert_eq!(matches!(answer, Resume::Fault(_)), refused, "{}: {answer:?}", row.name);
    }
}

#[test]
fn execute_disable_goes_for_who_does_not_use_it() {
    let mut rig = Rig::new(false);
    let nx = |rig: &mut Rig| match rig.exit(Exit::Cpuid { leaf: 0x8000_0001, subleaf: 0 }) {
        Resume::Cpuid(answer) => answer.edx >> 20 & 1,
        other => panic!("{other:?}"),
    };
    let fault = Resume::Fault(Exception::gp(0));
    let off = msr::misc_enable::XD_DISABLE | 1;
    assert_eq!(rig.write(msr::IA32_EFER, efer::NXE), Resume::Done);
    assert_eq!((nx(&mut rig), rig.write(msr::IA32_MISC_ENABLE, off)), (1, Resume::Done));
    assert_eq!((nx(&mut rig), rig.write(msr::IA32_EFER, efer::NXE)), (0, Resume::Done), "in use");
    assert_eq!(rig.write(msr::IA32_EFER, 0), Resume::Done);
    assert_eq!((nx(&mut rig), rig.write(msr::IA32_EFER, efer::NXE)), (0, fault));
    assert_eq!(rig.write(msr::IA32_MISC_ENABLE, 1), Resume::Done);
    assert_eq!((nx(&mut rig), rig.write(msr::IA32_EFER, efer::NXE)), (1, Resume::Done));
}
