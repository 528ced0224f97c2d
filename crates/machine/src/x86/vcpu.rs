//! One virtual processor: the engine's vCPU, its local APIC, and what happens between an exit
//! and the next entry. It knows neither threads nor time slices; see `real` and `virtual_time`.

mod kept;
mod told;

use std::sync::Arc;

use satori_bus::Nanos;
use satori_chipset::Pic;
use satori_cpuid::msrs::PlatformMsrs;
use satori_defs::vmx::ExitReason;
use satori_defs::x86::vector;
use satori_engine::{
    DebugPlan, Doing, Exception, Exit, Failure, Fate, Kick, Parts, Resume, Signal, Until, Vcpu, Vmx,
    VmxProcessor, Whereabouts, Window, X86,
};
use satori_exits::{Asked, AtOnce, Context, Platform, View, dispatch};
use satori_hyperv::{Enlightenment, Flush, Partition};
use satori_lapic::Lapic;
use satori_memory::{ALL_LINES, GuestMemory};
use satori_profile::{Meter, Recorded, Watched};
use satori_save::Saved;
use satori_state::{Activity, CpuState, Segment, seg};
use satori_trace::VcpuTrace;

use super::injector::Injector;
use super::observer::{Observer, Seen};
use super::reset::after_init;
use crate::control::Control;
use crate::runs::{After, Entry, Runs};
use crate::{Charges, Event, VirtualClock, saved, tsc_change};

/// #SX for an INIT that VM_CR redirects (APM 8.2.21, 15.28).
const INIT_REDIRECTED: Exception = Exception { code: Some(1), ..Exception::new(vector::SX) };

pub(crate) struct MachineVcpu {
    pub(super) index: u32,
    pub(super) vcpu: Box<dyn Vcpu<X86>>,
    pub(super) kick: Arc<Kick>,
    pub(super) whereabouts: Option<Arc<Whereabouts>>,
    pub(super) at_once: Arc<AtOnce>,
    pub(super) lapic: Lapic,
    pub(super) msrs: PlatformMsrs,
    pub(super) hyperv: satori_hyperv::Vp,
    pub(super) kvm: satori_kvm::Vcpu,
    pub(super) xen: satori_xen::Vcpu,
    pub(super) platform: Arc<Platform>,
    pub(super) injector: Injector,
    pub(super) observer: Observer,
    pub(super) processor: VmxProcessor,
    /// An answer was given that the engine takes at the next entry.
    pub(super) owed: bool,
    /// A debugger steps it: events hold off.
    pub(super) quiet: bool,
    /// It sleeps in the guest idle state.
    pub(super) idle: bool,
    pub(super) apic_page: Option<u64>,
    /// The address lines that its translations were made by.
    pub(super) lines: u64,
    pub(super) tpr_threshold: u8,
    /// The engine keeps its local APIC: of `lapic`, only what is saved of it is right, while it is.
    pub(super) kept: bool,
}

/// What a vCPU of a machine is made of.
pub(crate) struct VcpuPieces {
    pub index: u32,
    pub vcpu: Box<dyn Vcpu<X86>>,
    pub lapic: Lapic,
    pub msrs: PlatformMsrs,
    pub platform: Arc<Platform>,
    /// The controller whose INTR it answers.
    pub pic: Option<Arc<Pic>>,
    pub meter: Meter,
    pub processor: VmxProcessor,
    /// The engine keeps its local APIC.
    pub kept: bool,
}

impl MachineVcpu {
    pub(crate) fn new(pieces: VcpuPieces) -> Self {
        let VcpuPieces { index, mut vcpu, lapic, msrs, platform, pic, meter, processor, kept } = pieces;
        let (kick, whereabouts) = (vcpu.kick(), vcpu.whereabouts());
        let at_once = Arc::new(AtOnce::new(platform.clone(), kick.clone(), processor, index));
        vcpu.answer_at_once(at_once.clone());
        let controls = vcpu.controls_mut();
        controls.tpr_shadow = processor.has(Vmx::TprShadow);
        if !processor.has(Vmx::PauseLoopExiting) {
            controls.ple_window = 0;
        }
        controls.apic_access_page = lapic.mmio_base();
        let offers = |one| platform.hyperv.as_ref().is_some_and(|hyperv| hyperv.config().set.has(one));
        controls.nesting.evmcs = offers(Enlightenment::Evmcs);
        controls.nesting.direct_flush = offers(Enlightenment::TlbflushDirect);
        MachineVcpu {
            index,
            hyperv: satori_hyperv::Vp::new(index),
            kvm: satori_kvm::Vcpu::new(index),
            xen: satori_xen::Vcpu::new(index),
            kick,
            whereabouts,
            at_once,
            msrs,
            injector: Injector::new(pic, platform.xen.clone().map(|xen| (xen, index))),
            platform,
            observer: Observer::new(meter),
            processor,
            owed: false,
            quiet: false,
            idle: false,
            apic_page: lapic.mmio_base(),
            lines: ALL_LINES,
            tpr_threshold: 0,
            kept,
            vcpu,
            lapic,
        }
    }

    /// Writes what happens to it from now on.
    pub(crate) fn set_trace(&mut self, trace: Option<Box<VcpuTrace>>) {
        self.observer.set_trace(trace);
    }

    /// Lets its exits take guest time.
    pub(crate) fn set_charges(&mut self, charges: Option<Arc<Charges>>) {
        self.observer.set_charges(charges);
    }

    /// The whole register file.
    pub(crate) fn registers(&mut self) -> &CpuState {
        self.vcpu.fetch(Parts::ALL);
        self.vcpu.state()
    }

    pub(crate) fn vcpu(&self) -> &dyn Vcpu<X86> {
        &*self.vcpu
    }

    /// Sets the registers before the first entry.
    pub(crate) fn set_state(&mut self, state: CpuState) {
        *self.vcpu.state_mut(Parts::ALL) = state;
    }

    /// The machine's RAM.
    pub(crate) fn memory(&self) -> &GuestMemory {
        &self.platform.memory
    }

    /// Changes registers between two instructions, as a debugger does.
    pub(crate) fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        let (rip, cr3) = (self.vcpu.state().rip, self.vcpu.state().cr3);
        change(self.vcpu.state_mut(Parts::ALL));
        if self.vcpu.state().cr3 != cr3 {
            self.vcpu.flush_tlb();
        }
        if self.vcpu.state().rip != rip {
            // What the instruction there was answered is not for the one that comes now.
            self.forget_answer();
        }
    }

    fn forget_answer(&mut self) {
        self.vcpu.resume(Resume::Continue);
        self.owed = false;
    }

    /// Leaves what its engine cached to the host ([`Vcpu::abandon_caches`]).
    pub(crate) fn abandon_caches(&mut self) {
        self.vcpu.abandon_caches();
    }

    /// Where it and its engine say what they do.
    pub(crate) fn whereabouts(&self) -> Option<Arc<Whereabouts>> {
        self.whereabouts.clone()
    }

    /// Changes the frequency of the machine's TSC, as the guest sees it.
    pub(crate) fn change_tsc_frequency(&self, hz: u64) {
        tsc_change::change(
            hz,
            &*self.platform.clock,
            self.partition(),
            self.platform.kvm.as_deref(),
            self.platform.xen.as_deref(),
        );
    }

    /// The Hyper-V interface of its machine.
    pub(crate) fn partition(&self) -> Option<&Partition> {
        self.platform.hyperv.as_deref()
    }

    /// What its guest used of the interfaces beside Hyper-V's.
    pub(crate) fn used(&self) -> Vec<satori_pv::Used> {
        let kvm = self.platform.kvm.as_ref().map_or_else(Vec::new, |kvm| kvm.usage());
        let xen = self.platform.xen.as_ref().map_or_else(Vec::new, |xen| xen.usage());
        kvm.into_iter().chain(xen).collect()
    }

    /// What was counted of it until now.
    pub(crate) fn recorded(&self) -> Recorded {
        self.observer.recorded()
    }

    /// Counts from now on where others look: there.
    pub(crate) fn watch(&mut self) -> Watched {
        let watched = Watched::default();
        self.observer.watch(watched.clone());
        watched
    }

    /// Counts an exit that the host caused and that asks for nothing. `apicv`: it would be the same with APICv.
    fn passing(&mut self, reason: ExitReason, apicv: bool) {
        self.observer.passing(Seen { reason, apicv }, self.vcpu.state(), &*self.platform.clock);
    }

    fn view(&self, apic_timer: bool) -> View<'_> {
        View {
            processor: self.processor,
            lapic: &self.lapic,
            hyperv: self.platform.hyperv.as_deref(),
            vcpu: self.index,
            extint: self.injector.past_apic(&self.lapic),
            apic_timer,
        }
    }

    /// A timer ran out; an exit if the guest executes.
    fn timer_ran_out(&mut self, apic_timer: bool) {
        if self.observer.inside {
            let view = self.view(apic_timer);
            let (reason, apicv) = (view.timer(), view.apicv());
            // The host's own interrupt costs the same either way.
            self.passing(reason, apicv || reason == ExitReason::ExternalInterrupt);
        }
    }

    /// Lets the timers expire whose time has come.
    fn run_timers(&mut self) {
        if self.lapic.deadline_tsc().is_some() {
            let tsc = self.platform.clock.counter();
            if self.lapic.timer_expired(tsc) {
                self.timer_ran_out(true);
            }
        }
        if let Some(at) = self.hyperv.deadline_tsc()
            && at <= self.platform.clock.counter()
            && let Some(partition) = &self.platform.hyperv
        {
            partition.run_timers(&mut self.hyperv);
            self.timer_ran_out(false);
        }
        if let Some(xen) = &self.platform.xen
            && xen.deadline_tsc(&self.xen).is_some_and(|at| at <= self.platform.clock.counter())
            && xen.run_timers(&mut self.xen)
        {
            self.timer_ran_out(false);
        }
    }

    /// INIT and SIPI (SDM 9.4), unless a hypervisor among the guests holds them back or has them. Whether they left something for the
    /// next entry: an exception, or a shutdown.
    fn take_signals(&mut self) -> bool {
        let fate = self.lapic.init_pending().then(|| self.vcpu.signal(Signal::Init));
        if fate.is_some_and(|fate| fate != Fate::Waits) {
            self.lapic.take_init();
        }
        let redirected = fate == Some(Fate::Machine) && self.msrs.redirects_init();
        if redirected {
            self.vcpu.inject(satori_engine::Event::Exception(INIT_REDIRECTED));
        } else if fate == Some(Fate::Machine) {
            let (bsp, signature) = (self.lapic.is_bsp(), self.platform.cpuid.signature());
            let fresh = after_init(self.registers(), bsp, signature);
            *self.vcpu.state_mut(Parts::ALL) = fresh;
            self.vcpu.flush_tlb();
            // Whatever the interrupted instruction was still owed is gone with it.
            self.forget_answer();
            self.idle = false;
            self.lapic.init();
        }
        // Without one to wait for, a SIPI is lost, also where an INIT waits that came before it.
        let page = match fate {
            Some(Fate::Waits) => self.lapic.take_sipi_past_init(),
            _ => self.lapic.take_sipi(),
        };
        if let Some(page) = page
            && self.vcpu.signal(Signal::StartUp(page)) == Fate::Machine
            && self.vcpu.state().activity == Activity::WaitForSipi
        {
            let state = self.vcpu.state_mut(Parts::EXIT);
            let cs = &mut state.seg[seg::CS];
            *cs = Segment { selector: u16::from(page) << 8, base: u64::from(page) << 12, ..*cs };
            state.rip = 0;
            state.activity = Activity::Active;
        }
        redirected || self.vcpu.state().activity == Activity::Shutdown
    }

    /// Injects what can be; returns whether something was.
    fn inject(&mut self) -> bool {
        let eoi = &self.platform.eoi;
        let injected = self.injector.inject(&mut *self.vcpu, &mut self.lapic, |vector| eoi.eoi(vector));
        if let Some(event) = injected {
            self.observer.injected(event, &*self.platform.clock);
        }
        injected.is_some()
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
        self.vcpu.controls_mut().nesting.assist = self.hyperv.assist();
        let threshold = self.lapic.tpr_threshold();
        if threshold != self.tpr_threshold {
            self.tpr_threshold = threshold;
            self.vcpu.controls_mut().tpr_threshold = threshold;
        }
    }

    /// Spares the guest the next EOI, if it may be late. KVM spares none while APICv is in force: it then takes it
    /// that another interrupt may wait (Linux 6.12 arch/x86/kvm/lapic.c, kvm_apic_update_apicv and apic_sync_pv_eoi_to_guest).
    fn spare_eoi(&mut self) {
        let (hyperv, kvm) = (self.hyperv.spares_eoi(), self.kvm.spares_eoi());
        if (hyperv || kvm) && self.lapic.eoi_can_be_late() && !self.view(false).apicv() {
            match (&self.platform.hyperv, &self.platform.kvm) {
                (Some(partition), _) if hyperv => partition.spare_eoi(&mut self.hyperv),
                (_, Some(partition)) if kvm => partition.spare_eoi(&mut self.kvm),
                _ => {}
            }
        }
    }

    /// Ends the interrupt whose EOI the guest has spared.
    fn take_spared_eoi(&mut self) {
        let (hyperv, kvm) = (&self.platform.hyperv, &self.platform.kvm);
        let ended = hyperv.as_ref().is_some_and(|partition| partition.take_spared_eoi(&mut self.hyperv))
            || kvm.as_ref().is_some_and(|partition| partition.take_spared_eoi(&mut self.kvm));
        if ended {
            if let Some(vector) = self.lapic.eoi() {
                self.platform.eoi.eoi(vector);
            }
            if let (Some(vector), Some(partition)) = (self.lapic.take_ended(), hyperv) {
                partition.end_of_interrupt(self.index, vector);
            }
        }
    }

    /// A vCPU in HLT that another one kicked goes on, whatever masks its interrupts.
    fn kicked_out_of_hlt(&mut self, activity: Activity) -> Activity {
        let kicked = |kvm: &Arc<satori_kvm::Vm>| kvm.take_kick(self.index);
        if activity != Activity::Halted || !self.platform.kvm.as_ref().is_some_and(kicked) {
            return activity;
        }
        self.vcpu.state_mut(Parts::EXIT).activity = Activity::Active;
        Activity::Active
    }

    /// Allows the engine to have exits answered without coming out. One for which an EOI waits that the guest spared has to come
    /// out at the next exit, and one that executes a single instruction comes out anyway.
    fn allow_at_once(&mut self, until: Until) {
        let (most, which) = self.observer.unseen();
        let wanted = until.instructions.is_some()
            || !self.view(false).apicv() && (self.hyperv.spares_eoi() || self.kvm.spares_eoi());
        let most = if wanted { 0 } else { most };
        self.at_once.allow(most, which, &self.lapic, self.msrs.misc_enable());
    }

    /// Tells of a stop, which may be an exit of the modelled processor.
    fn observe(&mut self, exit: Exit) {
        let clock = &self.platform.clock;
        // Both timers may be due; the local APIC's is then the one that ended the run.
        let due = |at: u64| at <= clock.counter();
        let view = self.view(exit == Exit::PreemptionTimer && self.lapic.deadline_tsc().is_some_and(due));
        let seen = view.reason(&exit).map(|reason| {
            // A timer of the host's costs the same either way.
            let host = exit == Exit::PreemptionTimer && reason == ExitReason::ExternalInterrupt;
            Seen { reason, apicv: host || view.apicv() }
        });
        self.observer.exit(exit, seen, self.vcpu.state(), &**clock);
        if seen.is_none() {
            self.vcpu.controls_mut().continued = true;
        }
    }

    fn dispatch(&mut self, exit: Exit) -> (Resume, Asked) {
        let mut context = Context {
            vcpu: &mut *self.vcpu,
            lapic: &mut self.lapic,
            msrs: &mut self.msrs,
            hyperv: &mut self.hyperv,
            kvm: &mut self.kvm,
            xen: &mut self.xen,
            platform: &self.platform,
            asked: Asked::Nothing,
        };
        let answer = dispatch(exit, &mut context);
        let asked = context.asked;
        self.observer.handled(answer, self.vcpu.state(), &*self.platform.clock);
        (answer, asked)
    }

    fn answer(&mut self, answer: Resume) {
        self.owed = answer != Resume::Continue;
        self.vcpu.resume(answer);
    }

    /// What whoever runs it has to do behind `exit`, whose handler asked for `asked`.
    fn after(&mut self, exit: Exit, asked: Asked) -> After {
        match exit {
            Exit::InterruptWindow => self.injector.opened(Window::Interrupt),
            Exit::NmiWindow => self.injector.opened(Window::Nmi),
            Exit::Pause => return After::Yield,
            Exit::TripleFault => return After::Ends(Event::TripleFault { vcpu: self.index }),
            Exit::Debug(cause) => return After::Debug(cause),
            Exit::Failed(Failure { what, detail }) => {
                let text = format!("{what} ({detail:#x}) on vCPU {}; use --engine translator", self.index);
                return After::Ends(Event::Failed(text));
            }
            _ => {}
        }
        match asked {
            Asked::Nothing => After::Nothing,
            Asked::Yield => After::Yield,
            // The kernel does not tell of interrupts: a guest in the idle state is told that it may go on, which it may be at any time.
            Asked::Idle if self.kept => After::Yield,
            // No interrupt would arrive, and one that was sent is lost already: Linux waits so for a lock of RCU's before it enables
            // a processor's APIC, and whoever frees the lock sends one IPI.
            Asked::Idle if !self.lapic.takes_interrupts() => After::Yield,
            Asked::Idle => {
                self.idle = true;
                After::Nothing
            }
        }
    }
}

impl Runs for MachineVcpu {
    fn index(&self) -> u32 {
        self.index
    }

    fn save_machine(control: &Control<Self>) -> Result<Saved, satori_save::Error> {
        saved::save(control)
    }

    fn restore_machine(control: &Control<Self>, state: Saved) -> Result<(), satori_save::Error> {
        saved::restore_held(control, state)
    }

    fn halts_inside(&self) -> bool {
        self.kept
    }

    fn prepare(&mut self) -> Entry {
        if self.kept {
            return self.prepare_kept();
        }
        // What was answered is complete before an INIT comes behind it.
        if self.owed && self.lapic.init_pending() {
            return Entry::Finish;
        }
        let injected = self.lapic.signalled() && self.take_signals();
        if injected && self.vcpu.state().activity == Activity::Shutdown {
            return Entry::Run { deadline: self.deadline() };
        }
        self.run_timers();
        let activity = self.vcpu.state().activity;
        if matches!(activity, Activity::WaitForSipi | Activity::Shutdown) {
            return Entry::Sleep { deadline: self.deadline() };
        }
        if self.idle {
            if !self.injector.arrived(&self.lapic) {
                return Entry::Sleep { deadline: self.deadline() };
            }
            self.idle = false;
        }
        if self.polls() {
            self.tell_of_sleep();
            return Entry::Sleep { deadline: self.deadline() };
        }
        let activity = self.kicked_out_of_hlt(activity);
        // An event is what a halted processor waits for, also while it is stepped.
        let quiet = self.quiet && activity == Activity::Active;
        if self.owed && !quiet && self.injector.waits(&*self.vcpu, &mut self.lapic) {
            return Entry::Finish;
        }
        // What comes after that look kicks, and so comes behind the answer: an instruction that asks again, or
        // faults, must not find an event injected before it.
        let injected = injected || !quiet && !self.owed && self.inject();
        let wakes = || self.vcpu.wakes_at().is_some_and(|at| at <= self.platform.clock.counter());
        if activity == Activity::Halted && !injected && !wakes() {
            self.tell_of_sleep();
            return Entry::Sleep { deadline: self.deadline() };
        }
        self.set_controls();
        self.spare_eoi();
        Entry::Run { deadline: self.deadline() }
    }

    fn owes(&self) -> bool {
        self.owed
    }

    fn enter(&mut self, until: Until) -> After {
        self.observer.entry(&*self.platform.clock);
        self.tell_of_entry();
        self.allow_at_once(until);
        let exit = execute(&mut *self.vcpu, &self.platform, self.index, until);
        let answered = self.observer.answered(self.at_once.take());
        self.owed = false;
        self.take_spared_eoi();
        if exit == Exit::Budget {
            // One that was answered at once may have been the last thing.
            self.observer.inside = !answered;
            return After::Nothing;
        }
        self.observe(exit);
        let (answer, asked) = self.dispatch(exit);
        self.answer(answer);
        self.after(exit, asked)
    }

    fn finish(&mut self, now: Nanos) {
        self.observer.finish(now);
    }

    /// The local APIC's timer, a synthetic one, or what the engine's vCPU waits for by itself.
    fn deadline(&self) -> Option<u64> {
        let xen = self.platform.xen.as_ref().and_then(|xen| xen.deadline_tsc(&self.xen));
        [self.lapic.deadline_tsc(), self.hyperv.deadline_tsc(), xen, self.vcpu.wakes_at()]
            .into_iter()
            .flatten()
            .min()
    }

    fn retired(&self) -> u64 {
        self.vcpu.retired()
    }

    fn at(&self) -> u64 {
        self.vcpu.state().rip
    }

    fn in_kernel(&self) -> bool {
        self.vcpu.state().cpl() == 0
    }

    fn does(&self, doing: Doing) {
        if let Some(whereabouts) = &self.whereabouts {
            whereabouts.set(doing);
        }
    }

    fn take_kick(&self) -> bool {
        self.kick.take()
    }

    fn kicked(&self) -> bool {
        self.kick.pending()
    }

    fn be_kicked(&mut self) {
        if self.take_kick() && self.observer.inside && !self.view(false).posted() {
            let apicv = self.view(false).apicv();
            self.passing(ExitReason::ExternalInterrupt, apicv);
        }
    }

    fn begin_turn(&mut self, tick: Option<Nanos>) {
        // Its tick was at another time than a kick: each is an exit.
        let inside = self.observer.inside;
        self.be_kicked();
        let now = self.platform.clock.now();
        if tick.is_some_and(|period| self.observer.ticked(period, now)) && inside {
            self.passing(ExitReason::ExternalInterrupt, true);
        }
    }

    fn go_on(&mut self) {
        if self.vcpu.state().activity == Activity::Active && !self.idle {
            self.observer.entry(&*self.platform.clock);
            self.observer.inside = true;
        }
    }

    fn take_stalled(&mut self, clock: &VirtualClock, vcpus: u64) -> u64 {
        self.observer.take_stalled(clock, vcpus)
    }

    fn set_debug(&mut self, plan: DebugPlan, quiet: bool) {
        self.vcpu.set_debug(plan);
        self.quiet = quiet;
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
