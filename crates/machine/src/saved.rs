//! A machine as values, and back: what is saved, and in which order.
//!
//! Nothing executes meanwhile. What may still be under way, requests to disks, is brought to its end first, since its interrupts
//! reach controllers that come behind. `docs/state.md` tells what is among the values, and what is not.

mod memory;
mod rooms;

use std::sync::Arc;

use satori_bus::Timer;
use satori_cpuid::Vendor;
use satori_engine::{Capability, Counts};
use satori_exits::Platform;
use satori_pci::PciFunction;
use satori_save::{Error, Save, Saved, Value};

use crate::Event;
use crate::console::Console;
use crate::control::Control;
use crate::life::interfaces::calls_of;
use crate::life::{Blueprint, Time};
use crate::shared::Shared;
use crate::tsc_change::Planned;
use crate::virtual_time::Turns;
use crate::x86::{MachineVcpu, Values};

/// What a life of a machine has beside its vCPUs.
pub(crate) struct Rooms {
    /// What it was made of, as far as its state depends on that.
    pub identity: Vec<(String, String)>,
    pub time: Time,
    pub platform: Arc<Platform>,
    pub functions: Vec<(String, Arc<dyn PciFunction>)>,
    /// Devices behind Xen's back ends.
    pub xen_bus: Option<Arc<satori_xenback::Bus>>,
    /// Devices of the board.
    pub parts: Vec<(&'static str, Arc<dyn Save>)>,
    pub timers: Arc<satori_bus::TimerQueue>,
    /// Timers of the machine itself.
    pub own_timers: Vec<Arc<dyn Timer>>,
    pub changes: Vec<Planned>,
    pub turns: Arc<Turns>,
    pub shared: Arc<Shared>,
    pub console: Console,
    /// What the engine counts of each vCPU while it runs.
    pub counts: Vec<Arc<dyn Counts>>,
}

/// What a machine's state depends on: a name for people, and the setting.
pub(crate) fn identity(plan: &Blueprint, platform: &Platform) -> Vec<(String, String)> {
    let clock = &*platform.clock;
    let kind = if plan.time.is_virtual() { "virtual" } else { "real" };
    // The guest has it in its memory.
    let by_port = plan.engine.capabilities().has(Capability::HypercallsByPort);
    let calls = match calls_of(plan, platform.cpuid.offered().vendor) {
        _ if by_port && !plan.config.hyperv.set.is_empty() => "a port",
        Vendor::Amd => "VMMCALL",
        Vendor::Intel | Vendor::Other => "VMCALL",
    };
    let settings = [
        ("--clock", kind.to_string()),
        ("the TSC's frequency", clock.counter_hz().to_string()),
        ("--cpus", format!("{:?}", plan.config.topology)),
        ("--cpu", format!("{:?}", platform.cpuid.offered())),
        ("--hyperv", format!("{:?}", plan.config.hyperv)),
        ("the modelled processor", plan.config.processor.to_string()),
        ("--kvm", format!("{:?}", plan.config.kvm)),
        ("Xen's interface", format!("{:?}", plan.config.xen)),
        ("the engine's way to make hypercalls", calls.into()),
    ];
    settings.map(|(name, setting)| (name.to_string(), setting)).into()
}

/// Devices that are held still, until it is dropped: what they do beside vCPUs would change memory while it is read.
struct Still<'a>(&'a Rooms);

impl<'a> Still<'a> {
    fn hold(rooms: &'a Rooms) -> Self {
        let held = Still(rooms);
        held.set(true);
        held
    }

    fn set(&self, still: bool) {
        self.0.functions.iter().for_each(|(_, function)| function.hold(still));
        self.0.parts.iter().for_each(|(_, part)| part.hold(still));
        self.0.xen_bus.iter().for_each(|bus| bus.hold(still));
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The machine's state, which `control` holds still.
pub(crate) fn save(control: &Control<MachineVcpu>) -> Result<Saved, Error> {
    let moves = || Error::refused("a machine that runs", "suspend it first");
    let rooms = control.rooms().filter(|_| control.suspended()).ok_or_else(moves)?;
    let _still = Still::hold(&rooms);
    let mut saved = Saved::default();
    for (place, function) in &rooms.functions {
        saved.put(format!("pci/{place}"), function.save()?)?;
    }
    for (place, part) in &rooms.parts {
        saved.put(format!("chipset/{place}"), part.save()?)?;
    }
    saved.put("machine", Value::of(&rooms.save())?)?;
    if let Some(hyperv) = &rooms.platform.hyperv {
        saved.put("hyperv", Value::of(&hyperv.save())?)?;
    }
    if let Some(kvm) = &rooms.platform.kvm {
        saved.put("kvm", Value::of(&kvm.save())?)?;
    }
    // Behind its devices, whose last answers are in the guest's rings then.
    for (name, value) in rooms.xen_bus.iter().map(|bus| bus.save()).collect::<Result<Vec<_>, _>>()?.concat() {
        saved.put(name, value)?;
    }
    if let Some(xen) = &rooms.platform.xen {
        saved.put("xen", Value::of(&xen.save())?)?;
    }
    for index in 0..control.vcpus() {
        let values = control.with(index, MachineVcpu::save).ok_or_else(moves)??;
        for (name, value) in MachineVcpu::VALUES.into_iter().zip(values) {
            saved.put(format!("vcpu{index}/{name}"), value)?;
        }
    }
    saved.put("memory", memory::save(&rooms.platform.memory)?)?;
    Ok(saved)
}

/// Takes a state back, while none of `vcpus` executes.
pub(crate) fn restore(rooms: &Rooms, vcpus: &mut [MachineVcpu], mut saved: Saved) -> Result<(), Error> {
    let _still = Still::hold(rooms);
    beside(rooms, &mut saved)?;
    for (one, index) in vcpus.iter_mut().zip(0..) {
        one.restore(vcpu(index, &mut saved)?)?;
    }
    saved.finish()
}

/// The same while `control` holds the machine still, which has ended if it is refused.
pub(crate) fn restore_held(control: &Control<MachineVcpu>, mut saved: Saved) -> Result<(), Error> {
    let moves = || Error::refused("a machine that runs", "suspend it first");
    let rooms = control.rooms().filter(|_| control.suspended()).ok_or_else(moves)?;
    let _still = Still::hold(&rooms);
    let mut all = || {
        beside(&rooms, &mut saved)?;
        for index in 0..control.vcpus() {
            let values = vcpu(index, &mut saved)?;
            control.with(index, move |vcpu| vcpu.restore(values)).ok_or_else(moves)??;
        }
        std::mem::take(&mut saved).finish()
    };
    all().inspect_err(|why| rooms.shared.finish(Event::Failed(why.to_string())))
}

/// The values of a vCPU.
fn vcpu(index: usize, saved: &mut Saved) -> Result<Values, Error> {
    let mut values = Vec::new();
    for name in MachineVcpu::VALUES {
        values.push(saved.take(&format!("vcpu{index}/{name}"))?);
    }
    values.try_into().map_err(|_| Error::refused("vCPU", "internal error: it has other values"))
}

/// Gives everything but the vCPUs its state back. They come behind it, and behind all that wakes them: whether somebody did is
/// in their own.
fn beside(rooms: &Rooms, saved: &mut Saved) -> Result<(), Error> {
    rooms.restore(saved.take("machine")?.state()?)?;
    // Before the memory, of which it may have made more.
    if let Some(xen) = &rooms.platform.xen {
        let state: satori_xen::Saved = saved.take("xen")?.state()?;
        Error::unless(xen.restore(state), "Xen interface", "it is of other vCPUs, or damaged")?;
    }
    memory::restore(&rooms.platform.memory, &saved.take("memory")?)?;
    for (place, function) in &rooms.functions {
        function.restore(&saved.take(&format!("pci/{place}"))?)?;
    }
    for (place, part) in &rooms.parts {
        part.restore(&saved.take(&format!("chipset/{place}"))?)?;
    }
    if let Some(bus) = &rooms.xen_bus {
        bus.restore(&mut |name| saved.take(name))?;
    }
    if let Some(hyperv) = &rooms.platform.hyperv {
        let state = saved.take("hyperv")?.state()?;
        hyperv.restore(state).map_err(|why| Error::unfit("Hyper-V partition", why.to_string()))?;
    }
    if let Some(kvm) = &rooms.platform.kvm {
        let state: satori_kvm::Saved = saved.take("kvm")?.state()?;
        Error::unless(kvm.restore(state), "KVM interface", "it is of other vCPUs, or damaged")?;
    }
    Ok(())
}
