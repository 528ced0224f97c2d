//! What is injected: NMIs, Xen's callback vector, and interrupts of the PIC and the local APIC.

use std::sync::Arc;

use satori_chipset::Pic;
use satori_engine::{Event, Fate, Signal, Vcpu, Window, X86};
use satori_lapic::Lapic;
use satori_xen::Domain;

/// Chooses what a vCPU is injected, and asks it for a window for the rest.
pub(super) struct Injector {
    /// The interrupt controller at LINT0; only the BSP has one.
    pic: Option<Arc<Pic>>,
    /// Xen's interface, whose callback vector passes no controller, and the vCPU's number there.
    xen: Option<(Arc<Domain>, u32)>,
    /// The interrupt window that the engine was asked for, and the NMI window.
    window: bool,
    nmi_window: bool,
}

impl Injector {
    pub(super) fn new(pic: Option<Arc<Pic>>, xen: Option<(Arc<Domain>, u32)>) -> Self {
        Injector { pic, xen, window: false, nmi_window: false }
    }

    /// Whether the PIC has an interrupt that the local APIC lets through.
    pub(super) fn extint_waits(&self, lapic: &Lapic) -> bool {
        // The PIC's lock comes last: hardly any kernel listens to it for long.
        lapic.accepts_extint() && self.pic.as_ref().is_some_and(|pic| pic.intr())
    }

    /// Xen's callback vector, as long as the vCPU has events that it did not look at.
    fn callback(&self) -> Option<u8> {
        self.xen.as_ref().and_then(|(xen, vcpu)| xen.callback(*vcpu))
    }

    /// Whether there is an interrupt that comes past the local APIC, which virtualizes none of them.
    pub(super) fn past_apic(&self, lapic: &Lapic) -> bool {
        self.callback().is_some() || self.extint_waits(lapic)
    }

    fn interrupt_waits(&self, vcpu: &dyn Vcpu<X86>, lapic: &mut Lapic) -> bool {
        lapic.set_tpr(vcpu.state().tpr);
        self.past_apic(lapic) || lapic.pending().is_some()
    }

    /// Whether there is something to inject as soon as it can be.
    pub(super) fn waits(&self, vcpu: &dyn Vcpu<X86>, lapic: &mut Lapic) -> bool {
        lapic.nmi_pending() || self.interrupt_waits(vcpu, lapic)
    }

    /// Whether something arrived that ends the guest idle state: an interrupt does "even when the interrupt is masked"
    /// (TLFS, virtual processor idle sleep state), whatever masks it.
    pub(super) fn arrived(&self, lapic: &Lapic) -> bool {
        lapic.nmi_pending() || self.past_apic(lapic) || lapic.highest_irr().is_some()
    }

    /// Injects the first of NMI, Xen's callback, PIC and local APIC that can be taken, and asks for a window for
    /// the rest. Returns what was injected. An interrupt that only notifies the vCPU of others is at its end at once; of one that came
    /// level-triggered `ended` is told.
    pub(super) fn inject(
        &mut self,
        vcpu: &mut dyn Vcpu<X86>,
        lapic: &mut Lapic,
        ended: impl Fn(u8),
    ) -> Option<Event> {
        let mut injected = None;
        if lapic.nmi_pending() && vcpu.can_take(Window::Nmi) && lapic.take_nmi() {
            injected = Some(Event::Nmi);
        }
        let nmi_window = lapic.nmi_pending();
        if nmi_window != self.nmi_window {
            self.nmi_window = nmi_window;
            vcpu.request_window(Window::Nmi, nmi_window);
        }
        // Once, also if it only notifies the vCPU of others: it waits until the guest has looked.
        let mut callback = self.callback();
        let mut waits = self.interrupt_waits(vcpu, lapic);
        while waits && injected.is_none() && vcpu.can_take(Window::Interrupt) {
            let past_apic = callback.is_some() || self.extint_waits(lapic);
            let Some(vector) = callback.take().or_else(|| self.next_vector(lapic)) else { break };
            if vcpu.signal(Signal::Interrupt(vector)) != Fate::Taken {
                injected = Some(Event::Interrupt(vector));
            } else if !past_apic && let Some(vector) = lapic.eoi() {
                ended(vector);
            }
            waits = self.interrupt_waits(vcpu, lapic);
        }
        if waits != self.window {
            self.window = waits;
            vcpu.request_window(Window::Interrupt, waits);
        }
        if let Some(event) = injected {
            vcpu.inject(event);
        }
        injected
    }

    /// Acknowledges the next interrupt: the PIC's before the local APIC's, as KVM does.
    fn next_vector(&self, lapic: &mut Lapic) -> Option<u8> {
        match &self.pic {
            Some(pic) if self.extint_waits(lapic) => Some(pic.acknowledge()),
            _ => {
                let vector = lapic.pending()?;
                lapic.accept(vector);
                Some(vector)
            }
        }
    }

    /// The windows that the engine was asked for: for interrupts, and for NMIs.
    pub(super) fn windows(&self) -> (bool, bool) {
        (self.window, self.nmi_window)
    }

    /// Asks the engine for these windows, and for no others.
    pub(super) fn ask_windows(&mut self, vcpu: &mut dyn Vcpu<X86>, (window, nmi_window): (bool, bool)) {
        (self.window, self.nmi_window) = (window, nmi_window);
        vcpu.request_window(Window::Interrupt, window);
        vcpu.request_window(Window::Nmi, nmi_window);
    }

    /// A window opened; the exit's handler has withdrawn the request.
    pub(super) fn opened(&mut self, window: Window) {
        match window {
            Window::Interrupt => self.window = false,
            Window::Nmi => self.nmi_window = false,
        }
    }
}
