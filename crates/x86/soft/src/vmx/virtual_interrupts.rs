//! Interrupts of a guest that reach it without an exit: what is requested and in service in the virtual-APIC page, priorities, delivery,
//! and what other processors post (SDM 29.1, 29.2, 29.6).

use satori_defs::vmx::ExitReason;
use satori_defs::x86::rflags;
use satori_memory::Gpa;
use satori_vmx::Field::{
    EoiExit0, GuestInterruptStatus, PostedDescriptor, PostedVector, TprThreshold, VirtualApic,
};
use satori_vmx::control::{pin, proc, proc2};
use satori_vmx::event::kind;

use super::VmExit;
use crate::cpu::Cpu;
use crate::system::InterruptKind;

/// Where the virtual-APIC page has task priority, processor priority and EOI, and the first words of interrupts in service and
/// requested.
pub(super) const VTPR: u64 = 0x080;
pub(super) const VEOI: u64 = 0x0b0;
const VPPR: u64 = 0x0a0;
const VISR: u64 = 0x100;
const VIRR: u64 = 0x200;
/// Where a posted-interrupt descriptor has its outstanding-notification bit, behind 256 bits of requests.
const OUTSTANDING: u64 = 32;

impl Cpu {
    /// Whether virtual interrupts are delivered.
    pub(super) fn delivers_virtually(&self) -> bool {
        self.vmx.proc2 & proc2::VIRTUAL_INTERRUPTS != 0
    }

    /// Where the processor has `offset` of the virtual-APIC page.
    pub(super) fn virtual_at(&self, offset: u64) -> Gpa {
        Gpa(self.memory.addressed(self.vmx.vmcs.get(VirtualApic) + offset))
    }

    /// A register of the virtual-APIC page.
    pub(super) fn virtual_register(&self, offset: u64) -> u32 {
        self.memory.read_u32(self.virtual_at(offset)).unwrap_or(0)
    }

    /// Sets one.
    pub(super) fn set_virtual_register(&mut self, offset: u64, value: u32) {
        let _ = self.memory.write(self.virtual_at(offset), &value.to_le_bytes());
        self.code_written();
    }

    /// The virtual task priority's class.
    pub(super) fn virtual_priority(&self) -> u64 {
        u64::from(self.virtual_register(VTPR) >> 4 & 0xf)
    }

    /// The vector that is requested most urgently, and the one that is in service: RVI and SVI.
    fn interrupt_status(&self) -> (u8, u8) {
        let status = self.vmx.vmcs.get(GuestInterruptStatus);
        (status as u8, (status >> 8) as u8)
    }

    fn set_interrupt_status(&mut self, requested: u8, in_service: u8) {
        self.vmx.vmcs.set(GuestInterruptStatus, u64::from(requested) | u64::from(in_service) << 8);
    }

    /// Sets the bit of `vector` in 256 bits of the page, or clears it.
    fn mark(&mut self, first: u64, vector: u8, set: bool) {
        let at = first + u64::from(vector / 32) * 16;
        let (word, bit) = (self.virtual_register(at), 1 << (vector % 32));
        self.set_virtual_register(at, if set { word | bit } else { word & !bit });
    }

    /// The highest vector of 256 bits of the page, or 0.
    fn highest(&self, first: u64) -> u8 {
        let found = (0..8_u8).rev().find_map(|index| {
            let word = self.virtual_register(first + u64::from(index) * 16);
            (word != 0).then(|| 32 * index + word.ilog2() as u8)
        });
        found.unwrap_or(0)
    }

    /// TPR virtualization (SDM 29.1.2): the exit of a priority below its threshold, or what a new priority means for those that wait.
    pub(super) fn virtualize_tpr(&mut self) -> Option<VmExit> {
        if !self.delivers_virtually() {
            let below = self.virtual_priority() < self.vmx.vmcs.get(TprThreshold) & 0xf;
            let reason = ExitReason::TprBelowThreshold as u32;
            return below.then(|| VmExit { reason, ..VmExit::default() });
        }
        self.virtualize_ppr();
        self.evaluate_virtual_interrupts();
        None
    }

    /// PPR virtualization (SDM 29.1.3).
    fn virtualize_ppr(&mut self) {
        let (priority, (_, in_service)) = (self.virtual_register(VTPR), self.interrupt_status());
        let (priority, in_service) = (priority & 0xff, u32::from(in_service));
        let higher = if priority >> 4 >= in_service >> 4 { priority } else { in_service & 0xf0 };
        self.set_virtual_register(VPPR, higher);
    }

    /// EOI virtualization (SDM 29.1.4): the exit that the hypervisor wants of this vector, if it does.
    pub(super) fn virtualize_eoi(&mut self) -> Option<VmExit> {
        let (requested, vector) = self.interrupt_status();
        self.mark(VISR, vector, false);
        let next = self.highest(VISR);
        self.set_interrupt_status(requested, next);
        self.virtualize_ppr();
        let words = self.vmx.vmcs.get(EoiExit0.plus(usize::from(vector / 64)));
        if words >> (vector % 64) & 1 != 0 {
            let reason = ExitReason::EoiInduced as u32;
            return Some(VmExit { reason, qualification: vector.into(), ..VmExit::default() });
        }
        self.evaluate_virtual_interrupts();
        None
    }

    /// Self-IPI virtualization (SDM 29.1.5).
    pub(super) fn virtualize_self_ipi(&mut self, vector: u8) {
        self.mark(VIRR, vector, true);
        let (requested, in_service) = self.interrupt_status();
        self.set_interrupt_status(requested.max(vector), in_service);
        self.evaluate_virtual_interrupts();
    }

    /// Evaluation of pending virtual interrupts (SDM 29.2.1).
    fn evaluate_virtual_interrupts(&mut self) {
        let (requested, _) = self.interrupt_status();
        self.vmx.recognized = !self.guest_exits(proc::INTERRUPT_WINDOW)
            && u32::from(requested) >> 4 > self.virtual_register(VPPR) >> 4 & 0xf;
        self.choose_windows();
        self.windows.attention = true;
    }

    /// What VM entry has of virtual interrupts (SDM 26.3.2.5).
    pub(super) fn begin_virtual_interrupts(&mut self) {
        if self.delivers_virtually() {
            self.virtualize_ppr();
            self.evaluate_virtual_interrupts();
        }
    }

    /// Whether a virtual interrupt that was recognized can be delivered now.
    pub(super) fn virtual_interrupt_open(&self) -> bool {
        let state = &self.state;
        self.vmx.recognized
            && state.rflags & rflags::IF != 0
            && !state.interrupt_shadow
            && state.pending_debug == 0
    }

    /// Virtual-interrupt delivery (SDM 29.2.2).
    pub(super) fn deliver_virtual_interrupt(&mut self) {
        let (vector, _) = self.interrupt_status();
        self.mark(VISR, vector, true);
        self.set_virtual_register(VPPR, (vector & 0xf0).into());
        self.mark(VIRR, vector, false);
        let next = self.highest(VIRR);
        self.set_interrupt_status(next, vector);
        self.vmx.recognized = false;
        self.choose_windows();
        self.deliver_virtual(vector, kind::EXTERNAL_INTERRUPT, InterruptKind::External);
    }

    /// Takes what is posted, if an interrupt with `vector` is the notification of it: whether it is (SDM 29.6).
    pub(super) fn take_posted(&mut self, vector: u8) -> bool {
        let notified = self.vmx.pin & pin::POSTED_INTERRUPTS != 0
            && self.vmx.vmcs.get(PostedVector) == u64::from(vector);
        if !notified {
            return false;
        }
        let descriptor = self.vmx.vmcs.get(PostedDescriptor);
        let at = |offset| Gpa(self.memory.addressed(descriptor + offset));
        let _ = self.memory.fetch_clear_u32(at(OUTSTANDING), 1);
        let posted: [u32; 8] = std::array::from_fn(|index| {
            self.memory.fetch_clear_u32(at(4 * index as u64), u32::MAX).unwrap_or(0)
        });
        self.code_written();
        let (mut requested, in_service) = self.interrupt_status();
        for (index, word) in (0_u8..).zip(posted).filter(|(_, word)| *word != 0) {
            let register = VIRR + u64::from(index) * 16;
            self.set_virtual_register(register, self.virtual_register(register) | word);
            requested = requested.max(32 * index + word.ilog2() as u8);
        }
        self.set_interrupt_status(requested, in_service);
        self.evaluate_virtual_interrupts();
        true
    }
}
