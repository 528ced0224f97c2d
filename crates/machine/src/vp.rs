//! One virtual processor: the engine's vCPU, its local APIC, and what happens between an exit
//! and the next entry. It knows neither threads nor time slices; see `real` and `virtual_time`.

use std::sync::Arc;

use satori_bus::Nanos;
use satori_chipset::Pic;
use satori_cpuid::msrs::PlatformMsrs;
use satori_defs::vmx::ExitReason;
use satori_defs::x86::cr0;
use satori_engine::{
    DebugCause, DebugPlan, Doing, Event, Exit, Kick, Parts, Processor, Resume, Until, Vcpu, Vmx, Whereabouts,
    Window, X86,
};
use satori_exits::{Asked, Context, Platform, View, dispatch};
use satori_hyperv::{Flush, Partition};
use satori_lapic::Lapic;
use satori_memory::{ALL_LINES, GuestMemory};
use satori_profile::{Meter, Recorded, Watched};
use satori_state::{Activity, CpuState, Segment, reg, seg};
use satori_trace::VcpuTrace;

use crate::{Charges, VirtualClock, tsc_change};

/// What to do with a processor next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Enter it, at most until this partition TSC.
    Run { deadline: Option<u64> },
    /// Enter it for one instruction: the answer to the last exit is still to be taken, and an
    /// event waits behind it.
    Finish,
    /// It sleeps until it is woken, or until this partition TSC.
    Sleep { deadline: Option<u64> },
}

/// What an exit asks of whoever runs the processor, beyond being entered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// It spins: let others run.
    Yield,
    /// Its third fault in a row.
    TripleFault,
    /// A debugger waits for this.
    Debug(DebugCause),
}

pub(crate) struct Vp {
    pub index: u32,
    vcpu: Box<dyn Vcpu<X86>>,
    kick: Arc<Kick>,
    whereabouts: Option<Arc<Whereabouts>>,
    lapic: Lapic,
    msrs: PlatformMsrs,
    hyperv: satori_hyperv::Vp,
    platform: Arc<Platform>,
    /// The interrupt controller at LINT0; it has one only on the BSP.
    pic: Option<Arc<Pic>>,
    meter: Meter,
    processor: Processor,
    /// Its last stop was no VM exit: for the modelled processor it still executes.
    inside: bool,
    /// Partition time of the host's next tick.
    tick: Nanos,
    trace: Option<Box<VcpuTrace>>,
    /// What exits take of guest time, and what they took that the clock does not know yet.
    charges: Option<Arc<Charges>>,
    stalled: Nanos,
    /// An answer was given that the engine takes at the next entry.
    owed: bool,
    /// A debugger steps it: events hold off.
    quiet: bool,
    /// It sleeps in the guest idle state.
    idle: bool,
    apic_page: Option<u64>,
    /// The address lines that its translations were made by.
    lines: u64,
    tpr_threshold: u8,
    window: bool,
    nmi_window: bool,
}

impl Vp {
    #[allow(clippy::too_many_arguments, reason = "what a processor is made of, each of another kind")]
    pub fn new(
        index: u32,
        mut vcpu: Box<dyn Vcpu<X86>>,
        lapic: Lapic,
        msrs: PlatformMsrs,
        platform: Arc<Platform>,
        pic: Option<Arc<Pic>>,
        meter: Meter,
        processor: Processor,
    ) -> Self {
        let (kick, whereabouts) = (vcpu.kick(), vcpu.whereabouts());
        let controls = vcpu.controls_mut();
        controls.tpr_shadow = processor.has(Vmx::TprShadow);
        if !processor.has(Vmx::PauseLoopExiting) {
            controls.ple_window = 0;
        }
        vcpu.controls_mut().apic_access_page = lapic.mmio_base();
        Vp {
            index,
            hyperv: satori_hyperv::Vp::new(index),
            kick,
            whereabouts,
            msrs,
            platform,
            pic,
            meter,
            processor,
            inside: false,
            tick: 0,
            trace: None,
            charges: None,
            stalled: 0,
            owed: false,
            quiet: false,
            idle: false,
            apic_page: lapic.mmio_base(),
            lines: ALL_LINES,
            tpr_threshold: 0,
            window: false,
            nmi_window: false,
            vcpu,
            lapic,
        }
    }

    /// Writes what happens to it from now on.
    pub fn set_trace(&mut self, trace: Option<Box<VcpuTrace>>) {
        if trace.is_some() {
            self.meter.time_each();
        }
        self.trace = trace;
    }

    /// Lets its exits take guest time.
    pub fn set_charges(&mut self, charges: Option<Arc<Charges>>) {
        self.charges = charges;
    }

    /// The guest time that its exits took since this was asked last, as instructions that one of so many vCPUs
    /// could have executed meanwhile. What is less than one is told with the next.
    pub fn take_stalled(&mut self, clock: &VirtualClock, vcpus: u64) -> u64 {
        if self.stalled == 0 {
            return 0;
        }
        let all = clock.instructions_of(self.stalled);
        self.stalled = clock.nanos_of(all % vcpus);
        all / vcpus
    }

    /// What an exit takes of guest time.
    fn charge(&self, reason: ExitReason, apicv: bool) -> Nanos {
        self.charges.as_ref().map_or(0, |charges| charges.of(reason, apicv))
    }

    /// What every exit hands out of the register file.
    pub fn state(&self) -> &CpuState {
        self.vcpu.state()
    }

    /// The whole register file.
    pub fn registers(&mut self) -> &CpuState {
        self.vcpu.fetch(Parts::ALL);
        self.vcpu.state()
    }

    pub fn vcpu(&self) -> &dyn Vcpu<X86> {
        &*self.vcpu
    }

    /// Whether it executes a kernel.
    pub fn in_kernel(&self) -> bool {
        self.vcpu.state().cpl() == 0
    }

    /// Sets the registers before the first entry.
    pub fn set_state(&mut self, state: CpuState) {
        *self.vcpu.state_mut(Parts::ALL) = state;
    }

    /// Partition TSC at which the local APIC's timer or a synthetic one expires next.
    pub fn deadline(&self) -> Option<u64> {
        [self.lapic.deadline_tsc(), self.hyperv.deadline_tsc()].into_iter().flatten().min()
    }

    /// Its place among the machine's.
    pub fn slot(&self) -> usize {
        self.index as usize
    }

    /// The machine's RAM.
    pub fn memory(&self) -> &GuestMemory {
        &self.platform.memory
    }

    /// Hands on what a debugger asks; events hold off if `quiet`.
    pub fn set_debug(&mut self, plan: DebugPlan, quiet: bool) {
        self.vcpu.set_debug(plan);
        self.quiet = quiet;
    }

    /// Changes registers between two instructions, as a debugger does.
    pub fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        let (rip, cr3) = (self.vcpu.state().rip, self.vcpu.state().cr3);
        change(self.vcpu.state_mut(Parts::ALL));
        let state = self.vcpu.state();
        if state.cr3 != cr3 {
            self.vcpu.flush_tlb();
        }
        if self.vcpu.state().rip != rip {
            // What the instruction there was answered is not for the one that comes now.
            self.vcpu.resume(Resume::Continue);
            self.owed = false;
        }
    }

    /// Says what it does while it is not in the engine.
    pub fn does(&self, doing: Doing) {
        if let Some(whereabouts) = &self.whereabouts {
            whereabouts.set(doing);
        }
    }

    /// Where it and its engine say so.
    pub fn whereabouts(&self) -> Option<Arc<Whereabouts>> {
        self.whereabouts.clone()
    }

    /// Takes a waiting kick: what was signalled before it is seen by the next
    /// [`Vp::prepare`], what comes after it ends the next entry.
    pub fn take_kick(&self) -> bool {
        self.kick.take()
    }

    /// Takes a waiting kick, and counts what it is to a processor that executes. However many there were, they are one.
    pub fn be_kicked(&mut self) {
        if self.take_kick() && self.inside && !self.view(false).posted() {
            let apicv = self.view(false).apicv();
            self.count(ExitReason::ExternalInterrupt, apicv);
        }
    }

    /// Whether a kick waits.
    pub fn kicked(&self) -> bool {
        self.kick.pending()
    }

    /// Its turn ends behind an exit that is handled: a processor that executes is in the guest again meanwhile.
    pub fn go_on(&mut self) {
        if self.vcpu.state().activity == Activity::Active && !self.idle {
            let clock = &self.platform.clock;
            // The report and the trace are to agree.
            let traced = self.trace.is_some().then(|| clock.now());
            self.meter.entry(|| traced.unwrap_or_else(|| clock.now()));
            self.trace.iter_mut().zip(traced).for_each(|(trace, now)| trace.entry(now));
            self.inside = true;
        }
    }

    /// Its turn begins, under a virtual clock: counts what took a processor that executes out of the
    /// guest while it was another's turn.
    pub fn begin_turn(&mut self, tick: Option<Nanos>) {
        // Its tick was at another time than a kick: each is an exit.
        let inside = self.inside;
        self.be_kicked();
        let now = self.platform.clock.now();
        if let Some(period) = tick
            && now >= self.tick
        {
            if inside && self.tick > 0 {
                self.count(ExitReason::ExternalInterrupt, true);
            }
            self.tick = (now / period).saturating_add(1).saturating_mul(period);
        }
    }

    /// Counts an exit that the host caused and that asks for nothing. `apicv`: it would be the same with APICv.
    fn count(&mut self, reason: ExitReason, apicv: bool) {
        self.stalled = self.stalled.saturating_add(self.charge(reason, apicv));
        let clock = &self.platform.clock;
        let mut time = self.trace.is_some().then(|| clock.now());
        self.meter.exit(reason, apicv, self.vcpu.state().rip, || *time.get_or_insert_with(|| clock.now()));
        // What asks for nothing takes no time.
        self.meter.entry(|| *time.get_or_insert_with(|| clock.now()));
        if let Some((trace, now)) = self.trace.as_mut().zip(time) {
            trace.entry(now);
            trace.exit(Exit::ExternalInterrupt, Some(reason), self.vcpu.state(), now);
            trace.entry(now);
        }
        self.inside = false;
    }

    fn view(&self, apic_timer: bool) -> View<'_> {
        View {
            processor: self.processor,
            lapic: &self.lapic,
            hyperv: self.platform.hyperv.as_deref(),
            vcpu: self.index,
            extint: self.extint_waits(),
            apic_timer,
        }
    }

    /// A timer ran out; an exit if the guest executes.
    fn timer_ran_out(&mut self, apic_timer: bool) {
        if self.inside {
            let view = self.view(apic_timer);
            let (reason, apicv) = (view.timer(), view.apicv());
            // The host's own interrupt costs the same either way.
            self.count(reason, apicv || reason == ExitReason::ExternalInterrupt);
        }
    }

    /// Takes what came in since the last exit, and injects what can be.
    pub fn prepare(&mut self) -> Entry {
        if self.lapic.signalled() {
            self.take_signals();
        }
        if self.lapic.deadline_tsc().is_some() {
            let tsc = self.platform.clock.tsc();
            if self.lapic.timer_expired(tsc) {
                self.timer_ran_out(true);
            }
        }
        if let Some(at) = self.hyperv.deadline_tsc()
            && at <= self.platform.clock.tsc()
            && let Some(partition) = &self.platform.hyperv
        {
            partition.run_timers(&mut self.hyperv);
            self.timer_ran_out(false);
        }
        let activity = self.vcpu.state().activity;
        if matches!(activity, Activity::WaitForSipi | Activity::Shutdown) {
            return Entry::Sleep { deadline: self.deadline() };
        }
        if self.idle {
            if !self.event_arrived() {
                return Entry::Sleep { deadline: self.deadline() };
            }
            self.idle = false;
        }
        // An event is what a halted processor waits for, also while it is stepped.
        let quiet = self.quiet && activity == Activity::Active;
        if self.owed && !quiet && self.event_waits() {
            return Entry::Finish;
        }
        // What comes after that look kicks, and so comes behind the answer: an instruction that asks again, or
        // faults, must not find an event injected before it.
        let injected = !quiet && !self.owed && self.inject();
        if activity == Activity::Halted && !injected {
            return Entry::Sleep { deadline: self.deadline() };
        }
        self.set_controls();
        // KVM spares none while APICv is in force: it then takes it that another interrupt may wait (Linux 6.12
        // arch/x86/kvm/lapic.c, kvm_apic_update_apicv and apic_sync_pv_eoi_to_guest).
        if self.hyperv.spares_eoi()
            && self.lapic.eoi_can_be_late()
            && !self.view(false).apicv()
            && let Some(partition) = &self.platform.hyperv
        {
            partition.spare_eoi(&mut self.hyperv);
        }
        Entry::Run { deadline: self.deadline() }
    }

    /// INIT and SIPI (SDM 9.4).
    fn take_signals(&mut self) {
        if self.lapic.take_init() {
            let (bsp, signature) = (self.lapic.is_bsp(), self.platform.cpuid.signature());
            let fresh = after_init(self.registers(), bsp, signature);
            *self.vcpu.state_mut(Parts::ALL) = fresh;
            self.vcpu.flush_tlb();
            // Whatever the interrupted instruction was still owed is gone with it.
            self.vcpu.resume(Resume::Continue);
            self.owed = false;
            self.idle = false;
            self.lapic.init();
        }
        // Without one to wait for, a SIPI is lost.
        if let Some(page) = self.lapic.take_sipi()
            && self.vcpu.state().activity == Activity::WaitForSipi
        {
            let state = self.vcpu.state_mut(Parts::EXIT);
            let cs = &mut state.seg[seg::CS];
            *cs = Segment { selector: u16::from(page) << 8, base: u64::from(page) << 12, ..*cs };
            state.rip = 0;
            state.activity = Activity::Active;
        }
    }

    fn extint_waits(&self) -> bool {
        // The PIC's lock comes last: hardly any kernel listens to it for long.
        self.lapic.accepts_extint() && self.pic.as_ref().is_some_and(|pic| pic.intr())
    }

    fn interrupt_waits(&mut self) -> bool {
        self.lapic.set_tpr(self.vcpu.state().tpr);
        self.extint_waits() || self.lapic.pending().is_some()
    }

    fn event_waits(&mut self) -> bool {
        self.lapic.nmi_pending() || self.interrupt_waits()
    }

    /// Whether something arrived that ends the guest idle state: an interrupt does "even when the interrupt is masked"
    /// (TLFS, virtual processor idle sleep state), whatever masks it.
    fn event_arrived(&self) -> bool {
        self.lapic.nmi_pending() || self.extint_waits() || self.lapic.highest_irr().is_some()
    }

    /// Injects the first of NMI, PIC and local APIC that can be taken, and asks for a window for
    /// the rest. Returns whether something was injected.
    fn inject(&mut self) -> bool {
        let mut injected = false;
        if self.lapic.nmi_pending() && self.vcpu.can_take(Window::Nmi) && self.lapic.take_nmi() {
            self.inject_event(Event::Nmi);
            injected = true;
        }
        let nmi_window = self.lapic.nmi_pending();
        if nmi_window != self.nmi_window {
            self.nmi_window = nmi_window;
            self.vcpu.request_window(Window::Nmi, nmi_window);
        }
        let mut waits = self.interrupt_waits();
        if waits && !injected && self.vcpu.can_take(Window::Interrupt) {
            if let Some(vector) = self.next_vector() {
                self.inject_event(Event::Interrupt(vector));
                injected = true;
            }
            waits = self.interrupt_waits();
        }
        if waits != self.window {
            self.window = waits;
            self.vcpu.request_window(Window::Interrupt, waits);
        }
        injected
    }

    fn inject_event(&mut self, event: Event) {
        self.vcpu.inject(event);
        if let Event::Interrupt(vector) = event {
            self.meter.interrupt(vector);
        }
        if let Some(trace) = &mut self.trace {
            trace.injected(event, self.platform.clock.now());
        }
    }

    /// Acknowledges the next interrupt: the PIC's before the local APIC's, as KVM does.
    fn next_vector(&mut self) -> Option<u8> {
        match &self.pic {
            Some(pic) if self.extint_waits() => Some(pic.acknowledge()),
            _ => {
                let vector = self.lapic.pending()?;
                self.lapic.accept(vector);
                Some(vector)
            }
        }
    }

    /// Keeps the VMX controls that follow from the local APIC.
    fn set_controls(&mut self) {
        let lines = self.platform.memory.lines();
        if lines != self.lines {
            self.lines = lines;
            self.vcpu.flush_tlb();
        }
        let page = self.lapic.mmio_base();
        if page != self.apic_page {
            self.apic_page = page;
            self.vcpu.controls_mut().apic_access_page = page;
            self.vcpu.flush_tlb();
        }
        let known = self.view(false).apic_accesses();
        self.vcpu.controls_mut().virtualize_apic_accesses = known;
        let threshold = self.lapic.tpr_threshold();
        if threshold != self.tpr_threshold {
            self.tpr_threshold = threshold;
            self.vcpu.controls_mut().tpr_threshold = threshold;
        }
    }

    /// Enters the vCPU, and handles the exit.
    pub fn enter(&mut self, until: Until) -> After {
        let clock = &self.platform.clock;
        let traced = self.trace.is_some().then(|| clock.now());
        self.meter.entry(|| traced.unwrap_or_else(|| clock.now()));
        self.trace.iter_mut().zip(traced).for_each(|(trace, now)| trace.entry(now));
        let exit = execute(&mut *self.vcpu, &self.platform, self.index, until);
        self.owed = false;
        self.take_spared_eoi();
        let clock = &self.platform.clock;
        if exit == Exit::Budget {
            self.inside = true;
            return After::Nothing;
        }
        // Both timers may be due; the local APIC's is then the one that ended the run.
        let due = |at: u64| at <= clock.tsc();
        let view = self.view(exit == Exit::PreemptionTimer && self.lapic.deadline_tsc().is_some_and(due));
        let reason = view.reason(&exit);
        // A timer of the host's costs the same either way.
        let host = exit == Exit::PreemptionTimer && reason == Some(ExitReason::ExternalInterrupt);
        let apicv = host || view.apicv();
        self.inside = reason.is_none();
        let state = self.vcpu.state();
        let traced = self.trace.is_some().then(|| clock.now());
        if let Some(reason) = reason {
            self.meter.exit(reason, apicv, state.rip, || traced.unwrap_or_else(|| clock.now()));
        }
        self.trace.iter_mut().zip(traced).for_each(|(trace, now)| trace.exit(exit, reason, state, now));
        match reason {
            Some(reason) => self.stalled = self.stalled.saturating_add(self.charge(reason, apicv)),
            None => self.vcpu.controls_mut().continued = true,
        }
        let mut context = Context {
            vcpu: &mut *self.vcpu,
            lapic: &mut self.lapic,
            msrs: &mut self.msrs,
            hyperv: &mut self.hyperv,
            platform: &self.platform,
            asked: Asked::Nothing,
        };
        let answer = dispatch(exit, &mut context);
        let asked = context.asked;
        if let Some(trace) = &mut self.trace {
            trace.handled(answer, self.vcpu.state(), clock.now());
        }
        self.owed = answer != Resume::Continue;
        self.vcpu.resume(answer);
        match exit {
            // The handler has withdrawn the request.
            Exit::InterruptWindow => self.window = false,
            Exit::NmiWindow => self.nmi_window = false,
            Exit::Pause => return After::Yield,
            Exit::TripleFault => return After::TripleFault,
            Exit::Debug(cause) => return After::Debug(cause),
            _ => {}
        }
        match asked {
            Asked::Nothing => After::Nothing,
            Asked::Yield => After::Yield,
            Asked::Idle => {
                self.idle = true;
                After::Nothing
            }
        }
    }

    /// Ends the interrupt whose EOI the guest has spared.
    fn take_spared_eoi(&mut self) {
        let Some(partition) = &self.platform.hyperv else { return };
        if partition.take_spared_eoi(&mut self.hyperv) {
            if let Some(vector) = self.lapic.eoi() {
                self.platform.eoi.eoi(vector);
            }
            if let Some(vector) = self.lapic.take_ended() {
                partition.end_of_interrupt(self.index, vector);
            }
        }
    }

    /// Changes the frequency of the machine's TSC, as the guest sees it.
    pub fn change_tsc_frequency(&self, hz: u64) {
        tsc_change::change(hz, &*self.platform.clock, self.partition());
    }

    /// The Hyper-V interface of its machine.
    pub fn partition(&self) -> Option<&Partition> {
        self.platform.hyperv.as_deref()
    }

    /// Ends the time of the exit that was the last.
    pub fn finish(&mut self, now: Nanos) {
        self.meter.entry(|| now);
        if let Some(mut trace) = self.trace.take() {
            trace.entry(now);
        }
    }

    /// What was counted of it until now.
    pub fn recorded(&self) -> Recorded {
        self.meter.recorded()
    }

    /// What it shares with the machine.
    pub fn platform(&self) -> Arc<Platform> {
        self.platform.clone()
    }

    /// Counts from now on where others look.
    pub fn set_watched(&mut self, watched: Watched) {
        self.meter.watch(watched);
    }
}

/// Executes `vcpu`, after it dropped the translations that others told it to drop.
fn execute(vcpu: &mut dyn Vcpu<X86>, platform: &Platform, index: u32, until: Until) -> Exit {
    let Some(hyperv) = &platform.hyperv else { return vcpu.run(until) };
    let executing = hyperv.slots().enter(index);
    match executing.take() {
        Flush::Nothing => {}
        Flush::Pages(pages) => pages.into_iter().for_each(|page| vcpu.flush_page(page)),
        Flush::NonGlobal => vcpu.flush_non_global(),
        Flush::NonGlobalAnd(pages) => {
            vcpu.flush_non_global();
            pages.into_iter().for_each(|page| vcpu.flush_page(page));
        }
        Flush::All => vcpu.flush_tlb(),
    }
    vcpu.run(until)
}

/// The registers after power-up (SDM table 10-1), with `signature` in EDX.
pub(crate) fn after_reset(signature: u32) -> CpuState {
    let mut fresh = CpuState::default();
    fresh.gpr[reg::RDX] = signature.into();
    fresh
}

/// The registers after INIT (SDM table 10-1): a processor's MSRs, its x87 and SSE state, XCR0 and
/// PKRU stay, and so do the cache controls.
fn after_init(before: &CpuState, bsp: bool, signature: u32) -> CpuState {
    let fresh = after_reset(signature);
    let cache = cr0::CD | cr0::NW;
    CpuState {
        cr0: fresh.cr0 & !cache | before.cr0 & cache,
        xcr0: before.xcr0,
        xss: before.xss,
        pkru: before.pkru,
        fpu: before.fpu.clone(),
        star: before.star,
        lstar: before.lstar,
        cstar: before.cstar,
        fmask: before.fmask,
        kernel_gs_base: before.kernel_gs_base,
        sysenter_cs: before.sysenter_cs,
        sysenter_esp: before.sysenter_esp,
        sysenter_eip: before.sysenter_eip,
        tsc_aux: before.tsc_aux,
        pat: before.pat,
        tsc_offset: before.tsc_offset,
        activity: if bsp { Activity::Active } else { Activity::WaitForSipi },
        ..fresh
    }
}
