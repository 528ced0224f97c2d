//! Ports and connections (TLFS 11.6): a call names a connection, which leads to a port, which is a
//! source of a processor of the guest, or the host.

use std::collections::BTreeMap;
use std::sync::Arc;

use satori_defs::hyperv::Status;
use satori_defs::hyperv::synic::message::{HYPERVISOR, NONE};
use satori_defs::hyperv::synic::{EVENT_FLAGS, SINTS};
use serde::{Deserialize, Serialize};

use super::{Message, Refusal, Source, lock};
use crate::Partition;

/// What comes in at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortKind {
    /// Messages.
    Message,
    /// Events.
    Event {
        /// The event flag of the source that flag 0 of the port is.
        base: u16,
        /// How many flags the port has.
        count: u16,
    },
}

/// Where a port leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// To a source of a virtual processor.
    Guest {
        /// The processor.
        vp: u32,
        /// The source, 0 to 15.
        sint: u8,
    },
    /// To the host.
    Host {
        /// What [`Partition::add_host`] gave.
        host: u32,
        /// Handed to it with whatever comes.
        tag: u64,
    },
}

/// Something of the host that ports lead to.
pub trait HostPort: Send + Sync {
    /// A message of type `kind` came to the port with this tag.
    fn message(&self, partition: &Partition, tag: u64, kind: u32, payload: &[u8]) -> Result<(), Refusal>;
    /// Event flag `flag` of the port with this tag was signalled.
    fn event(&self, partition: &Partition, tag: u64, flag: u16) -> Result<(), Refusal>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Port {
    kind: PortKind,
    target: Target,
}

/// Connections for messages and for events are numbered apart, as QEMU's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Purpose {
    Message,
    Event,
}

impl PortKind {
    fn purpose(self) -> Purpose {
        match self {
            PortKind::Message => Purpose::Message,
            PortKind::Event { .. } => Purpose::Event,
        }
    }
}

/// Ports and connections as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPorts {
    ports: Vec<(u32, Port)>,
    connections: Vec<(Purpose, u32, u32)>,
    last_port: u32,
}

/// The ports of a partition, the connections to them, and the host behind some of them.
#[derive(Default)]
pub(super) struct Ports {
    ports: BTreeMap<u32, Port>,
    connections: BTreeMap<(Purpose, u32), u32>,
    last_port: u32,
    hosts: Vec<Arc<dyn HostPort>>,
}

impl SavedPorts {
    /// Whether ports lead to sources and flags that there are. Connections may lead nowhere: a call says so.
    pub(super) fn fit(&self) -> bool {
        let port = |(_, port): &(u32, Port)| {
            let target = match port.target {
                // One to a processor that there is not is refused when something comes.
                Target::Guest { sint, .. } => usize::from(sint) < SINTS,
                Target::Host { .. } => true,
            };
            let flags = match port.kind {
                PortKind::Message => true,
                PortKind::Event { base, count } => u32::from(base) + u32::from(count) <= EVENT_FLAGS,
            };
            target && flags
        };
        self.ports.iter().all(port)
    }
}

impl Ports {
    pub(super) fn save(&self) -> SavedPorts {
        SavedPorts {
            ports: self.ports.iter().map(|(id, port)| (*id, *port)).collect(),
            connections: self.connections.iter().map(|(&(kind, id), port)| (kind, id, *port)).collect(),
            last_port: self.last_port,
        }
    }

    pub(super) fn restore(&mut self, saved: SavedPorts) {
        self.ports = saved.ports.into_iter().collect();
        self.connections = saved.connections.into_iter().map(|(kind, id, port)| ((kind, id), port)).collect();
        self.last_port = saved.last_port;
    }

    /// The port that a call for `purpose` reaches through `connection`.
    fn reached(&self, purpose: Purpose, connection: u32) -> Result<(u32, Port), Status> {
        let other = if purpose == Purpose::Message { Purpose::Event } else { Purpose::Message };
        let port = match self.connections.get(&(purpose, connection)) {
            Some(port) => *port,
            // There is one, but to a port of the other kind.
            None if self.connections.contains_key(&(other, connection)) => return Err(Status::InvalidPortId),
            None => return Err(Status::InvalidConnectionId),
        };
        self.ports.get(&port).map(|found| (port, *found)).ok_or(Status::InvalidPortId)
    }

    fn host(&self, index: u32) -> Result<Arc<dyn HostPort>, Status> {
        self.hosts.get(index as usize).cloned().ok_or(Status::InvalidPortId)
    }
}

fn status(result: Result<(), Refusal>) -> Status {
    match result {
        Ok(()) => Status::Success,
        Err(Refusal::NoSuchVp) => Status::InvalidVpIndex,
        Err(Refusal::Off) => Status::InvalidSynicState,
        Err(Refusal::Full) => Status::InsufficientBuffers,
    }
}

impl Partition {
    /// Makes `host` something that ports can lead to, by the number that is returned.
    pub fn add_host(&self, host: Arc<dyn HostPort>) -> u32 {
        let mut ports = lock(&self.synic.ports);
        ports.hosts.push(host);
        ports.hosts.len() as u32 - 1
    }

    /// Makes a port, and `connection` lead to it. None if the connection exists already, or the
    /// source or the flags do not.
    pub fn connect(&self, connection: u32, kind: PortKind, target: Target) -> Option<u32> {
        let flags = match kind {
            PortKind::Event { base, count } => u32::from(base) + u32::from(count) <= EVENT_FLAGS,
            PortKind::Message => true,
        };
        let source = !matches!(target, Target::Guest { sint, .. } if usize::from(sint) >= SINTS);
        let mut ports = lock(&self.synic.ports);
        let free = !ports.connections.contains_key(&(kind.purpose(), connection));
        if !(flags && source && free) {
            return None;
        }
        ports.last_port = ports.last_port.wrapping_add(1);
        let port = ports.last_port;
        ports.ports.insert(port, Port { kind, target });
        ports.connections.insert((kind.purpose(), connection), port);
        Some(port)
    }

    /// Deletes the port that `connection` leads to, with the messages that wait in its buffers. The
    /// connection stays, and is of no use.
    pub fn delete_port(&self, connection: u32, kind: PortKind) {
        let mut ports = lock(&self.synic.ports);
        let port = ports.connections.get(&(kind.purpose(), connection)).copied();
        let removed = port.and_then(|port| ports.ports.remove(&port));
        if let (Some(port), Some(Port { target: Target::Guest { vp, .. }, .. })) = (port, removed) {
            self.withdraw(vp, Source::Port(port));
        }
    }

    /// Breaks a connection. Its port, if it is still there, goes as well.
    pub fn disconnect(&self, connection: u32, kind: PortKind) {
        self.delete_port(connection, kind);
        lock(&self.synic.ports).connections.remove(&(kind.purpose(), connection));
    }

    /// HvCallPostMessage, once its parameters are here.
    pub(super) fn post_to_connection(&self, connection: u32, kind: u32, payload: &[u8]) -> Status {
        if kind == NONE || kind & HYPERVISOR != 0 {
            return Status::InvalidParameter;
        }
        let ports = lock(&self.synic.ports);
        let (port, target) = match ports.reached(Purpose::Message, connection) {
            Ok((port, found)) => (port, found.target),
            Err(wrong) => return wrong,
        };
        match target {
            Target::Guest { vp, sint } => {
                let Some(message) = Message::new(kind, port.into(), payload) else {
                    return Status::InvalidParameter;
                };
                // Under the lock: what waits in a port's buffers goes with it.
                status(self.post(vp, sint, Source::Port(port), message))
            }
            Target::Host { host, tag } => match ports.host(host) {
                Ok(host) => {
                    drop(ports);
                    status(host.message(self, tag, kind, payload))
                }
                Err(wrong) => wrong,
            },
        }
    }

    /// HvCallSignalEvent, once its parameters are here.
    pub(super) fn signal_to_connection(&self, connection: u32, flag: u16) -> Status {
        let ports = lock(&self.synic.ports);
        let port = match ports.reached(Purpose::Event, connection) {
            Ok((_, port)) => port,
            Err(wrong) => return wrong,
        };
        let PortKind::Event { base, count } = port.kind else { return Status::InvalidPortId };
        if flag >= count {
            return Status::InvalidParameter;
        }
        match port.target {
            Target::Guest { vp, sint } => {
                drop(ports);
                status(self.signal(vp, sint, u32::from(base) + u32::from(flag)))
            }
            Target::Host { host, tag } => match ports.host(host) {
                Ok(host) => {
                    drop(ports);
                    status(host.event(self, tag, base.wrapping_add(flag)))
                }
                Err(wrong) => wrong,
            },
        }
    }
}
