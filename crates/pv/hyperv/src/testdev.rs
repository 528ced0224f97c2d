//! QEMU's hyperv-testdev, for bare-metal suites: a port at which a guest has the host raise its
//! sources, and make connections to it.
//!
//! A 32-bit write is `connection << 24 | operation << 16 | VP << 8 | source`. As QEMU's:
//!
//! | operation | |
//! |---|---|
//! | 1, 2 | create, destroy a route to the source |
//! | 3 | raise the source, if there is a route to it |
//! | 4, 5 | create, destroy a connection for messages: the host posts what comes to the source |
//! | 6, 7 | create, destroy a connection for events: the host sets the source's flag of the connection's number |
//!
//! Satori's own, for connections within the guest, without the host between:
//!
//! | operation | |
//! |---|---|
//! | 8, 9 | create, destroy a connection for messages to the source |
//! | 10, 11 | create, destroy a connection for events to the source; the connection's number is its first flag, of 16 |
//! | 12, 13 | delete the port behind a connection for messages, for events |
//!
//! What a request names and does not exist is ignored, where QEMU ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use satori_bus::PortDevice;
use satori_lock::Held;
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::{HostPort, Message, Partition, PortKind, Refusal, Target};

/// Flags of a connection for events within the guest.
const FLAGS: u16 = 16;

/// The device.
pub struct TestDevice {
    partition: Arc<Partition>,
    host: u32,
    /// VP and source.
    routes: Mutex<BTreeSet<(u8, u8)>>,
}

/// The host's end of connections: it sends everything back, to the VP and source of the tag.
struct Echo;

fn tag(vp: u8, sint: u8) -> u64 {
    u64::from(vp) << 8 | u64::from(sint)
}

impl HostPort for Echo {
    fn message(&self, partition: &Partition, tag: u64, kind: u32, payload: &[u8]) -> Result<(), Refusal> {
        let [sint, vp, ..] = tag.to_le_bytes();
        match Message::new(kind, 0, payload) {
            Some(message) => partition.post_from_host(vp.into(), sint, message),
            None => Ok(()),
        }
    }

    fn event(&self, partition: &Partition, tag: u64, flag: u16) -> Result<(), Refusal> {
        let [sint, vp, ..] = tag.to_le_bytes();
        partition.signal(vp.into(), sint, flag.into())
    }
}

impl TestDevice {
    /// The port at which QEMU has it, four bytes wide.
    pub const PORT: u16 = 0x3000;

    /// A device for `partition`, without any route or connection.
    pub fn new(partition: Arc<Partition>) -> Arc<Self> {
        let host = partition.add_host(Arc::new(Echo));
        Arc::new(TestDevice { partition, host, routes: Mutex::default() })
    }

    fn request(&self, operation: u8, connection: u8, vp: u8, sint: u8) {
        let mut routes = self.routes.lock().held();
        let connection_id = u32::from(connection);
        let host = Target::Host { host: self.host, tag: tag(vp, sint) };
        let guest = Target::Guest { vp: vp.into(), sint };
        let one_event = PortKind::Event { base: connection.into(), count: 1 };
        let events = PortKind::Event { base: connection.into(), count: FLAGS };
        // What cannot be done is told by the calls that the guest makes next.
        match operation {
            1 => drop(routes.insert((vp, sint))),
            2 => drop(routes.remove(&(vp, sint))),
            3 if routes.contains(&(vp, sint)) => drop(self.partition.raise_sint(vp.into(), sint)),
            4 => drop(self.partition.connect(connection_id, PortKind::Message, host)),
            6 => drop(self.partition.connect(connection_id, one_event, host)),
            8 => drop(self.partition.connect(connection_id, PortKind::Message, guest)),
            10 => drop(self.partition.connect(connection_id, events, guest)),
            5 | 9 => self.partition.disconnect(connection_id, PortKind::Message),
            7 | 11 => self.partition.disconnect(connection_id, events),
            12 => self.partition.delete_port(connection_id, PortKind::Message),
            13 => self.partition.delete_port(connection_id, events),
            _ => {}
        }
    }
}

impl PortDevice for TestDevice {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        0
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        if (offset, size) == (0, 4) {
            let [sint, vp, operation, connection] = value.to_le_bytes();
            self.request(operation, connection, vp, sint);
        }
    }
}

/// The routes; connections are the partition's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRoutes {
    routes: BTreeSet<(u8, u8)>,
}

impl State for SavedRoutes {
    const NAME: &'static str = "hyperv-testdev";
    const VERSION: u32 = 1;
}

impl Save for TestDevice {
    fn save(&self) -> Result<Value, Error> {
        let routes = self.routes.lock().held().clone();
        Value::of(&SavedRoutes { routes })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedRoutes { routes } = value.state()?;
        *self.routes.lock().held() = routes;
        Ok(())
    }
}
