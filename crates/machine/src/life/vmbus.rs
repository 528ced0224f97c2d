//! Hyper-V's VMBus: wired to the partition's ports, the machine's clock and its power button.

use std::sync::{Arc, OnceLock, Weak};

use satori_bus::TimerQueue;
use satori_chipset::AcpiPm;
use satori_defs::hyperv::vmbus::{CONNECTIONS, MESSAGE_TYPE};
use satori_hyperv::{Enlightenment, HostPort, Message, Partition, PortKind, Refusal, Target};
use satori_memory::GuestMemory;
use satori_vmbus::utilities::Utilities;
use satori_vmbus::{Bus, Host, Parts, Posted};

use super::Blueprint;
use super::interfaces::Interfaces;
use crate::Error;

/// What the bus is nothing without.
const NEEDS: [Enlightenment; 2] = [Enlightenment::Synic, Enlightenment::Vpindex];

/// The kind of a channel's port: one event flag.
const EVENT: PortKind = PortKind::Event { base: 0, count: 1 };

/// What calls bring to the bus: messages by tag 0, else events of the channel that the tag names.
struct Port(Arc<Bus>);

impl HostPort for Port {
    fn message(&self, _: &Partition, _tag: u64, kind: u32, payload: &[u8]) -> Result<(), Refusal> {
        self.0.message(kind, payload).map_err(|satori_vmbus::Full| Refusal::Full)
    }

    fn event(&self, _: &Partition, tag: u64, _flag: u16) -> Result<(), Refusal> {
        self.0.signalled(tag as u32);
        Ok(())
    }
}

/// The partition as the bus reaches it.
struct Guest {
    partition: Weak<Partition>,
    /// The number of the bus' port among the partition's hosts.
    host: OnceLock<u32>,
}

impl Host for Guest {
    fn post(&self, vp: u32, sint: u8, payload: &[u8]) -> Posted {
        let Some(partition) = self.partition.upgrade() else { return Posted::Nowhere };
        let Some(message) = Message::new(MESSAGE_TYPE, 0, payload) else { return Posted::Nowhere };
        match partition.post_from_host(vp, sint, message) {
            Ok(()) => Posted::Done,
            Err(Refusal::Full) => Posted::Full,
            Err(Refusal::NoSuchVp | Refusal::Off) => Posted::Nowhere,
        }
    }

    fn signal(&self, vp: u32, sint: u8, flag: u32) {
        // A guest that has no flags, or masked them, wants to hear of none.
        let _ = self.partition.upgrade().map(|partition| partition.signal(vp, sint, flag));
    }

    fn connect(&self, connection: u32, relid: u32) {
        if let (Some(partition), Some(&host)) = (self.partition.upgrade(), self.host.get()) {
            let target = Target::Host { host, tag: relid.into() };
            if partition.connect(connection, EVENT, target).is_none() {
                tracing::warn!("VMBus: connection {connection:#x} is somebody else's");
            }
        }
    }

    fn disconnect(&self, connection: u32) {
        self.partition.upgrade().iter().for_each(|partition| partition.disconnect(connection, EVENT));
    }

    fn reference_time(&self) -> u64 {
        self.partition.upgrade().map_or(0, |partition| partition.reference_time())
    }
}

/// Refuses a bus for a guest that is not offered what it needs.
pub(crate) fn possible(config: &crate::Config) -> Result<(), Error> {
    let missing = NEEDS.iter().find(|one| !config.hyperv.set.has(**one));
    match missing.filter(|_| config.devices.vmbus().is_some()) {
        None => Ok(()),
        Some(one) => Err(Error::Config(format!(
            "VMBus is a part of Hyper-V's interface and needs its {}: add --hyperv on, or leave --vmbus and bus=vmbus out",
            one.row().name
        ))),
    }
}

/// The bus of a life, if there is one.
pub(super) fn wire(
    plan: &Blueprint,
    interfaces: &Interfaces,
    memory: GuestMemory,
    timers: &Arc<TimerQueue>,
    pm: &Arc<AcpiPm>,
) -> Result<Option<Arc<Bus>>, Error> {
    let (Some(devices), Some(partition)) = (plan.config.devices.vmbus(), &interfaces.hyperv) else {
        return Ok(None);
    };
    let utilities = Utilities::new();
    let guest = Arc::new(Guest { partition: Arc::downgrade(partition), host: OnceLock::new() });
    let bus = Bus::new(Parts {
        host: guest.clone(),
        memory,
        clock: plan.time.clock(),
        timers: timers.clone(),
        devices: utilities.devices.into_iter().chain(devices.iter().cloned()).collect(),
        determined: plan.time.is_virtual(),
    });
    let host = partition.add_host(Arc::new(Port(bus.clone())));
    let _ = guest.host.set(host);
    let target = Target::Host { host, tag: 0 };
    if CONNECTIONS.map(|one| partition.connect(one, PortKind::Message, target)).contains(&None) {
        return Err(Error::Config("internal error: the connections of VMBus are somebody else's".into()));
    }
    let (pm, shutdown) = (Arc::downgrade(pm), utilities.shutdown);
    plan.shared.on_button(move || {
        // A guest whose driver is there powers off by itself, with or without somebody who listens to buttons.
        if !shutdown.request() {
            pm.upgrade().iter().for_each(|pm| pm.press_power_button());
        }
    });
    Ok(Some(bus))
}
