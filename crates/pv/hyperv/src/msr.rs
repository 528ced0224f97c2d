//! The synthetic MSRs.

use std::sync::atomic::Ordering;

use satori_defs::hyperv::{
    CRASH_MESSAGE, CRASH_NOTIFY, EXPOSE_INVARIANT_TSC, HYPERCALL_LOCKED, PAGE_ENABLE, RESET_NOW,
    TSC_EMULATION, msr,
};
use satori_defs::msr::Gp;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::Gpa;

use crate::overlay::Kind;
use crate::{Crash, Enlightenment, Outcome, Partition, Vp};

/// What the hypercall page holds (TLFS 3.13): the instruction of the processor's vendor, and a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HypercallPage {
    /// `vmcall; ret`.
    Intel,
    /// `vmmcall; ret`.
    Amd,
    /// `out PORT, al; nop; ret`, where the engine is not told of either instruction.
    Port(u8),
}

impl HypercallPage {
    const fn bytes(self) -> [u8; 4] {
        match self {
            HypercallPage::Intel => [0x0f, 0x01, 0xc1, 0xc3],
            HypercallPage::Amd => [0x0f, 0x01, 0xd9, 0xc3],
            HypercallPage::Port(port) => [0xe6, port, 0x90, 0xc3],
        }
    }
}

/// What the hypercall page adds to EAX where Xen's interface stands beside, whose hypercalls have no such number: of the two, Hyper-V is
/// meant. EAX has no parameter of Hyper-V's.
pub const BESIDE_XEN: u64 = 1 << 31;

impl Partition {
    /// What the hypercall page holds.
    fn hypercall_code(&self) -> Vec<u8> {
        // or eax, BESIDE_XEN
        let meant: &[u8] = if self.beside_xen { &[0x0d, 0, 0, 0, 0x80] } else { &[] };
        [meant, &self.hypercall_page.bytes()].concat()
    }

    /// Whether `register` is a synthetic MSR, offered or not.
    pub fn is_synthetic(register: u32) -> bool {
        (msr::FIRST..=msr::LAST).contains(&register)
    }

    /// Whether `register` answers.
    pub fn offers(&self, register: u32) -> bool {
        Enlightenment::of_msr(register).is_some_and(|owner| self.config.set.has(owner))
    }

    /// RDMSR.
    pub fn msr_read(&self, vp: &Vp, register: u32) -> Result<u64, Gp> {
        self.permit(register)?;
        Ok(match register {
            msr::GUEST_OS_ID => self.guest_os_id.load(Ordering::SeqCst),
            msr::HYPERCALL => self.shared().hypercall,
            msr::VP_INDEX => vp.index().into(),
            msr::RESET => 0,
            msr::TIME_REF_COUNT => self.reference_time(),
            msr::REFERENCE_TSC => self.shared().reference_tsc,
            msr::TSC_FREQUENCY => self.clock.guest_counter_hz(),
            msr::APIC_FREQUENCY => self.frequencies.apic_hz,
            msr::VP_ASSIST_PAGE => vp.assist,
            msr::CRASH_P0..=msr::CRASH_P4 => self.shared().crash[(register - msr::CRASH_P0) as usize],
            msr::SCONTROL..=msr::SINT15 => self.synic_read(vp.index(), register)?,
            msr::STIMER0_CONFIG..=msr::STIMER3_COUNT => self.stimer_read(vp, register),
            msr::REENLIGHTENMENT_CONTROL => self.shared().reenlightenment,
            msr::TSC_EMULATION_CONTROL => self.shared().tsc_emulation,
            msr::TSC_EMULATION_STATUS if self.shared().next_tsc_hz.is_some() => TSC_EMULATION,
            msr::TSC_EMULATION_STATUS => 0,
            msr::TSC_INVARIANT_CONTROL => self.tsc_invariant.load(Ordering::Relaxed),
            // What a write may ask for.
            msr::CRASH_CTL => CRASH_NOTIFY | CRASH_MESSAGE,
            _ => return Err(Gp),
        })
    }

    /// WRMSR.
    pub fn msr_write(&self, vp: &mut Vp, register: u32, value: u64) -> Result<Outcome, Gp> {
        self.permit(register)?;
        match register {
            msr::GUEST_OS_ID => self.write_guest_os_id(value),
            msr::HYPERCALL => self.write_hypercall(value)?,
            msr::RESET if value & RESET_NOW != 0 => return Ok(Outcome::Reset),
            msr::RESET => {}
            msr::REFERENCE_TSC => self.write_reference_tsc(value),
            msr::VP_ASSIST_PAGE => self.write_vp_assist_page(vp, value)?,
            msr::CRASH_P0..=msr::CRASH_P4 => {
                self.shared().crash[(register - msr::CRASH_P0) as usize] = value;
            }
            msr::CRASH_CTL if value & CRASH_NOTIFY != 0 => {
                let crash = self.crash(value & CRASH_MESSAGE != 0);
                self.shared().crashed = Some(crash.clone());
                return Ok(Outcome::Crash(crash));
            }
            msr::CRASH_CTL => {}
            msr::REENLIGHTENMENT_CONTROL => self.shared().reenlightenment = value,
            msr::TSC_EMULATION_CONTROL => self.shared().tsc_emulation = value & TSC_EMULATION,
            // Anything else is #GP, as in KVM.
            msr::TSC_EMULATION_STATUS if value == 0 => self.end_tsc_emulation(),
            msr::TSC_INVARIANT_CONTROL if value & !EXPOSE_INVARIANT_TSC == 0 => {
                self.tsc_invariant.store(value, Ordering::Relaxed);
            }
            msr::SCONTROL..=msr::SINT15 => self.synic_write(vp.index(), register, value)?,
            msr::STIMER0_CONFIG..=msr::STIMER3_COUNT => self.stimer_write(vp, register, value)?,
            // VP_INDEX, TIME_REF_COUNT and the frequencies are read-only; EOI, ICR and TPR are
            // the local APIC's.
            _ => return Err(Gp),
        }
        Ok(Outcome::Done)
    }

    /// Lets an access to `register` pass, and counts it; #GP if it is not offered. Who answers an
    /// MSR elsewhere, as the local APIC does EOI, ICR and TPR, asks here first.
    pub fn permit(&self, register: u32) -> Result<(), Gp> {
        if !self.offers(register) {
            return Err(Gp);
        }
        self.usage.msr(register, self.clock.now());
        Ok(())
    }

    fn write_guest_os_id(&self, value: u64) {
        let mut shared = self.shared();
        self.guest_os_id.store(value, Ordering::SeqCst);
        if value == 0 {
            shared.hypercall &= !PAGE_ENABLE;
            shared.overlays.uncover(&self.memory, Kind::Hypercall);
        }
    }

    fn write_hypercall(&self, value: u64) -> Result<(), Gp> {
        let mut shared = self.shared();
        if shared.hypercall & HYPERCALL_LOCKED != 0 {
            return Err(Gp);
        }
        // Ignored while the guest has no identity (TLFS 3.13).
        if self.guest_os_id.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        if value & PAGE_ENABLE == 0 {
            shared.overlays.uncover(&self.memory, Kind::Hypercall);
        } else {
            let page = Gpa(value & !(PAGE_SIZE - 1));
            let code = self.hypercall_code();
            let covered = shared.overlays.cover(&self.memory, Kind::Hypercall, page, &code);
            covered.map_err(|_| Gp)?;
        }
        shared.hypercall = value;
        Ok(())
    }

    /// A page beyond memory is enabled and nowhere (TLFS 12.7.1): the guest cannot reach it.
    fn write_reference_tsc(&self, value: u64) {
        let mut shared = self.shared();
        let gpa = Gpa(value & !(PAGE_SIZE - 1));
        // Covered as "not valid", and made valid by the last store: another processor may
        // already be looking.
        let enable = value & PAGE_ENABLE != 0;
        if enable && shared.overlays.cover(&self.memory, Kind::ReferenceTsc, gpa, &[]).is_ok() {
            self.show_reference_tsc(&mut shared);
        } else {
            shared.overlays.uncover(&self.memory, Kind::ReferenceTsc);
        }
        shared.reference_tsc = value;
    }

    /// An overlay in the TLFS ("Virtual Processor Assist Page"), plain guest memory here as in
    /// KVM: Linux gives a page that it has zeroed and uses for nothing else. Enabling clears
    /// `apic_assist`, the first four bytes, and nothing else: the rest may hold what the guest
    /// has put there, as after a migration.
    fn write_vp_assist_page(&self, vp: &mut Vp, value: u64) -> Result<(), Gp> {
        if value & PAGE_ENABLE != 0 {
            let page = Gpa(value & !(PAGE_SIZE - 1));
            self.memory.write(page, &[0; 4]).map_err(|_| Gp)?;
        }
        vp.assist = value;
        Ok(())
    }

    fn crash(&self, with_message: bool) -> Crash {
        let parameters = self.shared().crash;
        let message = with_message.then(|| {
            // Linux and Hyper-V agree on one page at most.
            let mut text = vec![0; parameters[4].min(PAGE_SIZE) as usize];
            let read = self.memory.read(Gpa(parameters[3]), &mut text);
            read.ok().map(|()| String::from_utf8_lossy(&text).into_owned())
        });
        Crash { parameters, message: message.flatten() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
