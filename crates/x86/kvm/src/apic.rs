//! Local APICs that KVM keeps, beside an I/O APIC and a PIC that it does not (KVM_CAP_SPLIT_IRQCHIP).
//!
//! Interrupts, their ends, IPIs, timers, INIT and SIPI, and HLT are KVM's then, with what the processor has for them; of the machine are
//! the PIC's interrupts, which are handed in as ever, and level-triggered ones, of whose end it is told.

use std::io;

use kvm_bindings::{
    KVM_CAP_HYPERV_SYNIC2, KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_X2APIC_API, KVM_MP_STATE_HALTED,
    KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE, KVM_MP_STATE_SIPI_RECEIVED,
    KVM_MP_STATE_UNINITIALIZED, KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS, Msrs,
    kvm_enable_cap, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
};
use kvm_ioctls::VmFd;
use satori_bus::Msi;
use satori_defs::apic;
use satori_defs::hyperv::msr::SINT0;
use satori_defs::hyperv::synic::{SINT_AUTO_EOI, SINT_MASKED, SINTS};
use satori_defs::msr::IA32_TSC_DEADLINE;
use satori_state::{Activity, LocalApic};

use crate::raw;
use crate::routes::LEVELS;
use crate::vcpu::KvmVcpu;

/// Has KVM keep the local APICs of a VM that has no vCPUs yet.
pub(crate) fn split(vm: &VmFd) -> io::Result<()> {
    let mut ids = kvm_enable_cap { cap: KVM_CAP_X2APIC_API, ..Default::default() };
    ids.args[0] = (KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK).into();
    vm.enable_cap(&ids)?;
    let mut split = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, ..Default::default() };
    split.args[0] = LEVELS as u64;
    Ok(vm.enable_cap(&split)?)
}

impl KvmVcpu {
    /// Whether KVM keeps its local APIC.
    pub(crate) fn keeps(&self) -> bool {
        self.vm.routes.is_some()
    }

    /// Its local APIC's registers.
    pub(crate) fn fetch_apic(&mut self) -> LocalApic {
        let mut state = LocalApic::new(self.fd.sync_regs().sregs.apic_base, 0);
        let page = self.fd.get_lapic().map_err(Into::into);
        if let Some(page) = self.check("KVM_GET_LAPIC", page) {
            for offset in (0..0x400).step_by(16) {
                state.set(offset, register(&page, offset));
            }
            self.state.tpr = state.get(apic::TPR) as u8;
        }
        let deadline = self.get_msr(IA32_TSC_DEADLINE);
        state.deadline = self.check("KVM_GET_MSRS", deadline).unwrap_or(0);
        state
    }

    /// Hands registers over to its local APIC. Whatever is level-triggered there, the machine waits for its end.
    pub(crate) fn set_apic(&mut self, state: &LocalApic) {
        let Some(routes) = self.vm.routes.clone() else { return };
        let (waits, served, level) =
            (state.vectors(apic::IRR), state.vectors(apic::ISR), state.vectors(apic::TMR));
        let base = u64::from(state.get(apic::ID) >> 24 & 0xff) << 12 | apic::DEFAULT_BASE;
        for vector in 0..=u8::MAX {
            let has = |bits: &[u32; 8]| bits[usize::from(vector >> 5)] >> (vector & 31) & 1 != 0;
            if has(&level) && (has(&waits) || has(&served)) {
                let watched = routes.watch(Msi { address: base, data: 1 << 15 | u32::from(vector) });
                self.check("KVM_SET_GSI_ROUTING", watched);
            }
        }
        self.fd.sync_regs_mut().sregs.apic_base = state.base;
        self.set_all();
        let sregs = self.fd.sync_regs().sregs;
        let done = self.fd.set_sregs(&sregs).map_err(Into::into);
        self.check("KVM_SET_SREGS", done);
        let mut page = kvm_lapic_state::default();
        for offset in (0..0x400).step_by(16) {
            let at = usize::from(offset);
            for (place, byte) in page.regs[at..at + 4].iter_mut().zip(state.get(offset).to_le_bytes()) {
                *place = byte as _;
            }
        }
        let done = self.fd.set_lapic(&page).map_err(Into::into);
        self.check("KVM_SET_LAPIC", done);
        self.set_counter();
        let done = self.set_msr(IA32_TSC_DEADLINE, state.deadline);
        self.check("KVM_SET_MSRS", done);
    }

    /// Has the timer's deadline, which KVM has as a time of the host's, follow a counter that has just been set.
    pub(crate) fn set_deadline_anew(&mut self) {
        if !self.keeps() || self.entries == 0 {
            return;
        }
        let deadline = self.get_msr(IA32_TSC_DEADLINE);
        if let Some(deadline @ 1..) = self.check("KVM_GET_MSRS", deadline) {
            let done = self.set_msr(IA32_TSC_DEADLINE, deadline);
            self.check("KVM_SET_MSRS", done);
        }
    }

    /// What it is doing, as KVM has it. INIT and SIPI that came are taken by that.
    pub(crate) fn fetch_activity(&mut self) {
        let state = self.fd.get_mp_state().map_err(Into::into);
        if let Some(kvm_mp_state { mp_state }) = self.check("KVM_GET_MP_STATE", state) {
            self.state.activity = match mp_state {
                KVM_MP_STATE_UNINITIALIZED | KVM_MP_STATE_INIT_RECEIVED | KVM_MP_STATE_SIPI_RECEIVED => {
                    Activity::WaitForSipi
                }
                KVM_MP_STATE_HALTED => Activity::Halted,
                _ => Activity::Active,
            };
        }
    }

    pub(crate) fn set_activity(&mut self) {
        let mp_state = match self.state.activity {
            Activity::WaitForSipi => KVM_MP_STATE_INIT_RECEIVED,
            Activity::Halted => KVM_MP_STATE_HALTED,
            Activity::Active | Activity::Shutdown => KVM_MP_STATE_RUNNABLE,
        };
        let done = self.fd.set_mp_state(kvm_mp_state { mp_state }).map_err(Into::into);
        self.check("KVM_SET_MP_STATE", done);
    }

    /// Has KVM pass an interrupt of the PIC's. While it has not delivered another one, this one waits here.
    pub(crate) fn pass_external(&mut self, vector: u8) -> io::Result<()> {
        match raw::interrupt(&self.fd, vector) {
            Ok(()) => {
                self.external = Some((vector, self.state.rip));
                Ok(())
            }
            Err(why) if why.raw_os_error() == Some(libc::EEXIST) => {
                self.event = Some(satori_engine::Event::Interrupt(vector));
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    /// Tells KVM which vectors end themselves when they are delivered, as sources of its synthetic interrupt controller: of that it
    /// uses nothing else here. It keeps the processor from virtualising interrupts as long as there are such.
    pub(crate) fn follow_auto_eoi(&mut self) {
        let wanted = self.controls.auto_eoi;
        if wanted == self.auto_eoi || !self.keeps() {
            return;
        }
        if self.auto_eoi == [0; 8] {
            let cap = kvm_enable_cap { cap: KVM_CAP_HYPERV_SYNIC2, ..Default::default() };
            let done = self.fd.enable_cap(&cap).map_err(Into::into);
            self.check("KVM_CAP_HYPERV_SYNIC2", done);
        }
        self.auto_eoi = wanted;
        let mut vectors =
            (0..=u8::MAX).filter(|vector| wanted[usize::from(vector >> 5)] >> (vector & 31) & 1 != 0);
        for sint in 0..SINTS as u32 {
            let value = vectors.next().map_or(SINT_MASKED, |vector| SINT_AUTO_EOI | u64::from(vector));
            let done = self.set_msr(SINT0 + sint, value);
            self.check("KVM_SET_MSRS", done);
        }
    }

    fn get_msr(&self, index: u32) -> io::Result<u64> {
        let mut msrs = one(kvm_msr_entry { index, ..Default::default() })?;
        match self.fd.get_msrs(&mut msrs)? {
            1 => Ok(msrs.as_slice()[0].data),
            _ => Err(io::Error::other(format!("MSR {index:#x} is refused"))),
        }
    }

    fn set_msr(&self, index: u32, data: u64) -> io::Result<()> {
        match self.fd.set_msrs(&one(kvm_msr_entry { index, data, ..Default::default() })?)? {
            1 => Ok(()),
            _ => Err(io::Error::other(format!("MSR {index:#x} is refused"))),
        }
    }
}

fn one(entry: kvm_msr_entry) -> io::Result<Msrs> {
    Msrs::from_entries(&[entry]).map_err(|why| io::Error::other(format!("{why:?}")))
}

fn register(page: &kvm_lapic_state, offset: u16) -> u32 {
    let at = usize::from(offset);
    u32::from_le_bytes(std::array::from_fn(|byte| page.regs[at + byte] as u8))
}
