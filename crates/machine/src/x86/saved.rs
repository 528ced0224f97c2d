//! A vCPU with all that belongs to it, as values, and back.

use satori_bus::Nanos;
use satori_cpuid::controls;
use satori_defs::x86::{cr0, cr4, dr6, efer, rflags};
use satori_engine::Parts;
use satori_rules as rules;
use satori_save::{Error, State, Value};
use satori_state::{CpuState, reg};
use serde::{Deserialize, Serialize};

use super::vcpu::MachineVcpu;

/// What the loop that runs a vCPU keeps of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLoop {
    /// An answer was given that the engine takes at the next entry.
    owed: bool,
    /// It sleeps in the guest idle state.
    idle: bool,
    /// Windows that the engine was asked for.
    windows: (bool, bool),
    tpr_threshold: u8,
    /// Guest time that exits took and the clock does not know, whether it executes, and the host's next tick.
    observed: (Nanos, bool, Nanos),
    /// Somebody wants it to look.
    kicked: bool,
}

impl State for SavedLoop {
    const NAME: &'static str = "vCPU's loop";
    const VERSION: u32 = 1;
}

/// A vCPU's values, in the order of [`MachineVcpu::VALUES`].
pub(crate) type Values = [Value; MachineVcpu::VALUES.len()];

impl MachineVcpu {
    /// What its values are called.
    pub(crate) const VALUES: [&'static str; 9] =
        ["registers", "engine", "apic", "msrs", "hyperv", "kvm", "xen", "exits", "loop"];

    /// Its state. Nobody executes it meanwhile.
    pub(crate) fn save(&mut self) -> Result<Values, Error> {
        self.fetch_apic();
        let own = SavedLoop {
            owed: self.owed,
            idle: self.idle,
            windows: self.injector.windows(),
            tpr_threshold: self.tpr_threshold,
            observed: self.observer.save(),
            kicked: self.kick.pending(),
        };
        let mut registers = self.registers().clone();
        registers.gpr[reg::SPARE] = 0;
        Ok([
            Value::of(&registers)?,
            self.vcpu.save()?,
            self.lapic.save()?,
            self.msrs.save()?,
            Value::of(&self.hyperv)?,
            Value::of(&self.kvm)?,
            Value::of(&self.xen)?,
            self.observer.meter().save()?,
            Value::of(&own)?,
        ])
    }

    /// Takes a state back.
    pub(crate) fn restore(&mut self, values: Values) -> Result<(), Error> {
        let [registers, engine, apic, msrs, hyperv, kvm, xen, exits, own] = values;
        let registers: CpuState = registers.state()?;
        let offered = self.platform.cpuid.offered();
        if let Some(why) = unfit(&registers, |feature| offered.has(feature)) {
            return Err(Error::unfit(CpuState::NAME, why));
        }
        *self.vcpu.state_mut(Parts::ALL) = registers;
        match self.vcpu.restore(&engine) {
            // It is of a software engine's vCPU, and this one is of another.
            Err(Error::Name { .. }) => self.vcpu.restore(&satori_soft::at_rest(&engine)?)?,
            done => done?,
        }
        self.lapic.restore(&apic)?;
        self.msrs.restore(&msrs)?;
        let hyperv: satori_hyperv::Vp = hyperv.state()?;
        Error::unless(hyperv.index() == self.index, satori_hyperv::Vp::NAME, "it is that of another vCPU")?;
        self.hyperv = hyperv;
        let kvm: satori_kvm::Vcpu = kvm.state()?;
        Error::unless(kvm.index() == self.index, satori_kvm::Vcpu::NAME, "it is that of another vCPU")?;
        self.kvm = kvm;
        let xen: satori_xen::Vcpu = xen.state()?;
        Error::unless(xen.index() == self.index, satori_xen::Vcpu::NAME, "it is that of another vCPU")?;
        self.xen = xen;
        self.observer.meter().restore(&exits)?;
        let own: SavedLoop = own.state()?;
        (self.owed, self.idle, self.tpr_threshold) = (own.owed, own.idle, own.tpr_threshold);
        self.observer.restore(own.observed);
        self.injector.ask_windows(&mut *self.vcpu, own.windows);
        self.store_apic();
        self.apic_page = self.lapic.mmio_base();
        self.lines = self.platform.memory.lines();
        let controls = self.vcpu.controls_mut();
        (controls.apic_access_page, controls.tpr_threshold) = (self.apic_page, own.tpr_threshold);
        match own.kicked {
            true => self.kick.kick(),
            false => _ = self.kick.take(),
        }
        Ok(())
    }
}

/// What of these registers no processor with such features can have come to, as far as an engine relies on it.
fn unfit(state: &CpuState, has: impl Fn(satori_cpuid::Feature) -> bool) -> Option<&'static str> {
    /// Bits of MXCSR that any processor has.
    const MXCSR: u32 = 0xffff;
    let (long, paging) = (state.efer & efer::LMA != 0, state.cr0 & cr0::PG != 0);
    let exist = controls::cr4(&has);
    let code64 = state.code64();
    let checks = [
        (state.gpr[reg::ZERO] == 0, "the register that is always zero is not"),
        (rules::cr0::legal(state.cr0) && rules::cr0::written(state.cr0) == state.cr0, "CR0"),
        (rules::within(state.cr4, exist) && (!long || state.cr4 & cr4::PAE != 0), "CR4"),
        (rules::within(state.efer, controls::efer(&has) | efer::LMA), "IA32_EFER"),
        (rules::within(state.spec_ctrl, controls::spec_ctrl(&has)), "IA32_SPEC_CTRL"),
        (
            long == (paging && state.efer & efer::LME != 0),
            "IA32_EFER.LMA does not follow from LME and CR0.PG",
        ),
        (!long || rules::cr3::legal(state.cr3, satori_cpuid::PHYSICAL_BITS), "CR3"),
        (state.rflags & rflags::FIXED == rflags::FIXED, "RFLAGS"),
        (state.rflags & rflags::VM == 0 || !long, "virtual-8086 mode in long mode"),
        (rules::instruction(state.rip, code64), "RIP"),
        (rules::debug::legal(state.dr6) && rules::debug::legal(state.dr7), "DR6 or DR7"),
        (state.pending_debug & !dr6::WRITABLE == 0, "pending debug exceptions"),
        (rules::xcr0::legal(state.xcr0, u64::MAX), "XCR0"),
        (state.fpu.mxcsr & !MXCSR == 0, "MXCSR"),
        (state.fpu.st.iter().all(|st| st >> 80 == 0), "an x87 register has 80 bits"),
    ];
    checks.into_iter().find(|(fits, _)| !fits).map(|(_, what)| what)
}
