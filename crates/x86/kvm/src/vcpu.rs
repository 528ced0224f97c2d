//! A vCPU at the seam.

use std::io;
use std::sync::Arc;

use kvm_bindings::{kvm_sregs, kvm_sync_regs};
use kvm_ioctls::{SyncReg, VcpuFd};
use satori_cpuid::Offered;
use satori_engine::{
    Controls, Counts, DebugPlan, Event, Exit, Failure, Kick, Parts, Resume, Stat, Until, Vcpu, Window, X86,
};
use satori_save::{Error, Value};
use satori_state::{Activity, CpuState, LocalApic};

use crate::debug::Debugger;
use crate::kick::{Alarm, Inside};
use crate::partition::Vm;
use crate::stats::Statistics;
use crate::{cpuid, extended, msrs, registers};

/// What KVM waits for before it completes the guest's instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owed {
    /// Nothing: no instruction is half done.
    #[default]
    Nothing,
    /// The next entry completes it, whatever is answered.
    Completion,
    /// What a port or a device in memory reads, for the piece of this number, or that it took what was written.
    Piece(usize),
    /// What an MSR reads.
    MsrRead,
    /// That an MSR was written.
    MsrWrite,
    /// That a hypercall was made.
    Hypercall,
}

/// An access that KVM hands out as a whole and the seam takes in pieces: a string of a port, or bytes that are no power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// A port, or else memory.
    pub(crate) port: bool,
    pub(crate) address: u64,
    pub(crate) write: bool,
    pub(crate) size: usize,
    pub(crate) count: usize,
    /// The piece that comes next.
    pub(crate) next: usize,
}

pub(crate) struct KvmVcpu {
    pub(crate) fd: VcpuFd,
    pub(crate) vm: Arc<Vm>,
    pub(crate) state: CpuState,
    pub(crate) controls: Controls,
    pub(crate) kick: Arc<Kick>,
    pub(crate) inside: Arc<Inside>,
    pub(crate) alarm: Option<Alarm>,
    /// When the alarm rings, by the partition's counter.
    pub(crate) armed: Option<u64>,
    pub(crate) owed: Owed,
    pub(crate) transfer: Option<Transfer>,
    /// The instruction that is half done is not to be: KVM completes it, and the registers are set to what `state` has.
    pub(crate) undo: bool,
    /// An exception that the instruction raises instead.
    pub(crate) fault: Option<satori_engine::Exception>,
    pub(crate) event: Option<Event>,
    /// What KVM counts, if it tells.
    pub(crate) statistics: Option<Arc<Statistics>>,
    pub(crate) debugger: Debugger,
    /// KVM takes an interrupt now.
    pub(crate) ready: bool,
    pub(crate) flush: bool,
    /// Parts of `state` that are what KVM has, and those that were changed.
    fresh: Parts,
    changed: Parts,
    places: Vec<msrs::Place>,
    /// What was set as the offset of its counter to the host's.
    pub(crate) offset: Option<u64>,
    /// The vectors that KVM's synthetic interrupt controller has as ending themselves.
    pub(crate) auto_eoi: [u32; 8],
    /// An interrupt of the PIC's that KVM has not delivered yet, as far as that can be told, and where the guest was.
    pub(crate) external: Option<(u8, u64)>,
    pub(crate) failure: Option<Failure>,
    pub(crate) entries: u64,
    pub(crate) interrupted: u64,
}

impl KvmVcpu {
    pub(crate) fn new(
        mut fd: VcpuFd,
        vm: Arc<Vm>,
        statistics: Option<Arc<Statistics>>,
        offered: &Offered,
        apic_id: u32,
    ) -> io::Result<Self> {
        fd.set_cpuid2(&cpuid::entries(&vm.cpuid, apic_id)?)?;
        [SyncReg::Register, SyncReg::SystemRegister, SyncReg::VcpuEvents]
            .into_iter()
            .for_each(|part| fd.set_sync_valid_reg(part));
        let (regs, sregs, events) = (fd.get_regs()?, fd.get_sregs()?, fd.get_vcpu_events()?);
        *fd.sync_regs_mut() = kvm_sync_regs { regs, sregs, events };
        let inside = Arc::<Inside>::default();
        let kicked = inside.clone();
        Ok(KvmVcpu {
            fd,
            vm,
            state: CpuState::default(),
            controls: Controls::default(),
            kick: Arc::new(Kick::waking(move || kicked.bring_out())),
            inside,
            alarm: None,
            armed: None,
            owed: Owed::Nothing,
            transfer: None,
            undo: false,
            fault: None,
            event: None,
            statistics,
            debugger: Debugger::default(),
            ready: false,
            flush: false,
            fresh: Parts::EXIT,
            changed: Parts::default(),
            places: msrs::places(offered),
            offset: None,
            auto_eoi: [0; 8],
            external: None,
            failure: None,
            entries: 0,
            interrupted: 0,
        })
    }

    /// Remembers that the kernel refused something; the next run tells.
    pub(crate) fn check<T>(&mut self, what: &'static str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!("{what} failed: {error}");
                self.failure
                    .get_or_insert(Failure { what, detail: error.raw_os_error().unwrap_or(0) as u64 });
                None
            }
        }
    }

    /// Takes what an exit handed out into the register file.
    pub(crate) fn load(&mut self) {
        let run = self.fd.get_kvm_run();
        let cr8 = run.cr8;
        self.ready = run.ready_for_interrupt_injection != 0;
        // `interrupt_bitmap` of `kvm_run` keeps the bit of each interrupt that was being delivered at an exit: the kernel sets it
        // and clears none (Linux 6.1 arch/x86/kvm/x86.c, `__get_sregs`), and `__set_sregs` queues the first one. What is being
        // delivered now stays queued without it.
        self.fd.sync_regs_mut().sregs.interrupt_bitmap = [0; 4];
        registers::load(&mut self.state, &self.fd.sync_regs(), cr8);
        self.fresh = Parts::EXIT;
        if self.keeps() {
            // It halts inside, and comes out for other reasons.
            self.state.activity = Activity::Active;
        }
    }

    /// Hands changed registers to KVM before an entry.
    pub(crate) fn store(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        if changed.has(Parts::GENERAL) {
            self.fd.sync_regs_mut().regs = registers::general(&self.state);
            self.fd.set_sync_dirty_reg(SyncReg::Register);
        }
        if changed.has(Parts::SYSTEM) || self.flush {
            let before = self.fd.sync_regs().sregs;
            let system = registers::system(&self.state, &before);
            if std::mem::take(&mut self.flush) {
                self.drop_translations(&system);
            }
            // The task priority goes its own way.
            if (kvm_sregs { cr8: before.cr8, ..system }) != before {
                self.fd.sync_regs_mut().sregs = system;
                self.fd.set_sync_dirty_reg(SyncReg::SystemRegister);
            }
        }
        self.fd.get_kvm_run().cr8 = u64::from(self.state.tpr >> 4);
        if changed.has(Parts::EVENTS) {
            let before = self.fd.sync_regs().events;
            let events = registers::events(&self.state, &before);
            if events != before {
                let done = self.fd.set_vcpu_events(&events);
                self.check("KVM_SET_VCPU_EVENTS", done.map_err(Into::into));
            }
        }
        if changed.has(Parts::DEBUG) {
            let mut debug = kvm_bindings::kvm_debugregs { db: self.state.dr, ..Default::default() };
            (debug.dr6, debug.dr7) = (self.state.dr6, self.state.dr7);
            let done = self.fd.set_debug_regs(&debug);
            self.check("KVM_SET_DEBUGREGS", done.map_err(Into::into));
        }
        if changed.has(Parts::EXTENDED) {
            let done = extended::set(&self.fd, &self.state);
            self.check("KVM_SET_XSAVE", done);
        }
        if changed.has(Parts::ALL) && self.keeps() {
            self.set_activity();
        }
        if changed.has(Parts::MSRS) {
            let done = msrs::set(&self.fd, &self.places, &mut self.state);
            self.check("KVM_SET_MSRS", done);
        }
        self.set_counter();
        self.follow_auto_eoi();
        if self.debugger.step && (changed.has(Parts::GENERAL) || changed.has(Parts::SYSTEM)) {
            self.set_at_once();
        }
        self.tell_debugger();
    }

    /// Hands registers on before the entry would: a step begins where RIP is then.
    fn set_at_once(&mut self) {
        let kvm_sync_regs { regs, sregs, .. } = self.fd.sync_regs();
        let done = self.fd.set_sregs(&sregs).and_then(|()| self.fd.set_regs(&regs));
        self.check("KVM_SET_REGS", done.map_err(Into::into));
        [SyncReg::Register, SyncReg::SystemRegister]
            .into_iter()
            .for_each(|part| self.fd.clear_sync_dirty_reg(part));
    }

    /// Has the guest's counter follow the partition's.
    pub(crate) fn set_counter(&mut self) {
        let Some(host) = self.vm.time.of_host() else { return };
        let offset = host.ahead.wrapping_add(self.state.tsc_offset);
        if self.offset != Some(offset) {
            let done = crate::raw::set_tsc_offset(&self.fd, offset);
            self.check("KVM_VCPU_TSC_OFFSET", done);
            self.offset = Some(offset);
            self.set_deadline_anew();
        }
    }

    /// KVM drops what it translated when CR3 changes: it is changed, and set back.
    fn drop_translations(&mut self, system: &kvm_sregs) {
        let other = kvm_sregs { cr3: system.cr3 ^ 0x1000, ..*system };
        let done = self.fd.set_sregs(&other).and_then(|()| self.fd.set_sregs(system));
        self.check("KVM_SET_SREGS", done.map_err(Into::into));
    }

    /// Injects what waits, behind everything else that is set.
    pub(crate) fn inject_event(&mut self) {
        let done = match self.event.take() {
            None => return,
            Some(Event::Interrupt(vector)) if self.keeps() => self.pass_external(vector),
            Some(Event::Interrupt(vector)) => crate::raw::interrupt(&self.fd, vector),
            Some(Event::Nmi) => self.fd.nmi().map_err(Into::into),
            Some(Event::Exception(exception)) => self.raise(exception),
        };
        self.check("injecting an event", done);
    }

    /// Queues an exception.
    pub(crate) fn raise(&mut self, exception: satori_engine::Exception) -> io::Result<()> {
        let mut events = self.fd.get_vcpu_events()?;
        events.exception.injected = 1;
        events.exception.nr = exception.vector;
        events.exception.has_error_code = exception.code.is_some().into();
        events.exception.error_code = exception.code.unwrap_or(0);
        Ok(self.fd.set_vcpu_events(&events)?)
    }

    /// What is in `state` is to be set, all of what an exit hands out.
    pub(crate) fn set_all(&mut self) {
        self.changed = self.changed | Parts::EXIT;
    }
}

impl Vcpu<X86> for KvmVcpu {
    fn run(&mut self, until: Until) -> Exit {
        self.run_until(until)
    }

    fn resume(&mut self, answer: Resume) {
        self.take(answer);
    }

    fn inject(&mut self, event: Event) {
        // An event is what a halted processor waits for.
        self.state.activity = Activity::Active;
        self.event = Some(event);
        self.ready = false;
    }

    fn request_window(&mut self, window: Window, wanted: bool) {
        match window {
            Window::Interrupt => self.fd.get_kvm_run().request_interrupt_window = wanted.into(),
            // KVM keeps an NMI until it can be taken.
            Window::Nmi => {}
        }
    }

    fn can_take(&self, window: Window) -> bool {
        match window {
            Window::Interrupt => self.ready && self.event.is_none() && self.external.is_none(),
            Window::Nmi => self.event.is_none(),
        }
    }

    fn fetch(&mut self, parts: Parts) {
        if parts.has(Parts::DEBUG) && !self.fresh.has(Parts::DEBUG) {
            let debug = self.fd.get_debug_regs().map_err(Into::into);
            if let Some(debug) = self.check("KVM_GET_DEBUGREGS", debug) {
                (self.state.dr, self.state.dr6, self.state.dr7) = (debug.db, debug.dr6, debug.dr7);
            }
        }
        if parts.has(Parts::EXTENDED) && !self.fresh.has(Parts::EXTENDED) {
            let done = extended::fetch(&self.fd, &mut self.state);
            self.check("KVM_GET_XSAVE", done);
        }
        if parts.has(Parts::MSRS) && !self.fresh.has(Parts::MSRS) {
            let done = msrs::fetch(&self.fd, &self.places, &mut self.state);
            self.check("KVM_GET_MSRS", done);
        }
        if parts.has(Parts::ALL) {
            self.fetch_directory_pointers();
            if self.keeps() && !self.fresh.has(Parts::ALL) {
                self.fetch_activity();
            }
        }
        self.fresh = self.fresh | parts;
    }

    fn state(&self) -> &CpuState {
        &self.state
    }

    fn state_mut(&mut self, parts: Parts) -> &mut CpuState {
        self.fetch(parts);
        self.changed = self.changed | parts;
        &mut self.state
    }

    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.controls
    }

    fn flush_tlb(&mut self) {
        self.flush = self.entries > 0;
    }

    fn kick(&self) -> Arc<Kick> {
        self.kick.clone()
    }

    fn set_debug(&mut self, plan: DebugPlan) {
        self.debugger = Debugger::new(&plan);
    }

    fn translate(&self, linear: u64) -> Option<u64> {
        let found = self.fd.translate_gva(linear).ok()?;
        (found.valid != 0).then_some(found.physical_address)
    }

    fn retired(&self) -> u64 {
        0
    }

    fn save(&self) -> Result<Value, Error> {
        self.at_rest()
    }

    fn restore(&mut self, value: &Value) -> Result<(), Error> {
        self.go_on_from(value)
    }

    fn controller(&mut self) -> Option<LocalApic> {
        self.keeps().then(|| self.fetch_apic())
    }

    fn set_controller(&mut self, state: &LocalApic) {
        self.set_apic(state);
    }

    fn counts(&self) -> Option<Arc<dyn Counts>> {
        Some(self.statistics.clone()?)
    }

    fn stats(&self) -> Vec<Stat> {
        let own = [("KVM_RUN calls", self.entries), ("KVM_RUN calls that a signal ended", self.interrupted)];
        let kernels = self.statistics.iter().flat_map(|statistics| statistics.counts());
        own.into_iter().chain(kernels).collect()
    }
}
