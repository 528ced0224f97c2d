//! Console with several ports (virtio 1.2, 5.3): each a stream in, a stream out, or both.
//!
//! What a port writes leaves on a thread of its own, and its driver gets a buffer back when the host took it: a
//! reader that is slow makes the guest wait, and never a vCPU. What a port reads is read from the host only
//! while the guest has it open and has room. The end of an input is told as the port's other side
//! being closed, behind all that came before.

mod port;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use satori_defs::virtio::{console::*, kind};
use satori_host::io_thread::IoThread;
use satori_journal::Journal;
use satori_save::{State, Value};
use serde::{Deserialize, Serialize};

use crate::{Device, Error, Link, lock};
use port::{Host, SavedPort, Told};

/// Most ports: what the driver's table and the vectors hold easily.
pub const PORTS_MAX: usize = 30;

/// Descriptors of a port's queue, and of those for control.
const QUEUE: u16 = 128;
/// Queues of control messages: to the driver, and from it. Port 0, which has no name, has the two before.
const CONTROL_IN: u16 = 2;
const CONTROL_OUT: u16 = 3;
/// Control messages that may wait for the driver: more than a driver that behaves lets come.
const MESSAGES_MAX: usize = 4 * PORTS_MAX + 64;

/// A port, which a guest finds as /dev/vportNpM and by its name in sysfs.
#[derive(Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The guest's kernel has it as a console, hvc0.
    pub console: bool,
    /// What the guest reads.
    pub input: Option<OwnedFd>,
    /// Where what it writes goes.
    pub output: Option<OwnedFd>,
}

#[derive(Default)]
struct Control {
    link: Option<Arc<Link>>,
    /// Messages that the driver had no buffer for yet.
    waiting: VecDeque<Vec<u8>>,
}

/// The device.
pub struct Console {
    ports: Vec<Arc<Host>>,
    control: Arc<Mutex<Control>>,
}

/// A queue's port and direction.
enum Side {
    In(usize),
    Out(usize),
}

impl Control {
    fn tell(&mut self, port: u32, event: u16, value: u16, more: &[u8]) {
        if self.waiting.len() < MESSAGES_MAX {
            let mut message = port.to_le_bytes().to_vec();
            message.extend(event.to_le_bytes());
            message.extend(value.to_le_bytes());
            message.extend(more);
            self.waiting.push_back(message);
        }
        self.flush();
    }

    fn flush(&mut self) {
        let Some(link) = &self.link else { return };
        while let Some(message) = self.waiting.front() {
            let Some(chain) = link.pop(CONTROL_IN) else { return };
            link.give(CONTROL_IN, &chain, |chain, memory| chain.write(memory, 0, message));
            self.waiting.pop_front();
        }
    }
}

impl Console {
    /// A device with these ports, numbered from 1 on, whose threads run on the processors of `thread`.
    pub fn new(ports: Vec<Port>, thread: &IoThread) -> Result<Arc<Self>, Error> {
        if ports.len() > PORTS_MAX {
            return Err(Error::Config(format!("a console has at most {PORTS_MAX} ports: use fewer")));
        }
        if let Some(port) = ports.iter().find(|port| port.name.is_empty() || port.name.contains('\0')) {
            return Err(Error::Config(format!("'{}' is no name of a port: give it one", port.name)));
        }
        let control: Arc<Mutex<Control>> = Arc::default();
        let hosts = ports.into_iter().zip(1_u32..).map(|(port, id)| {
            let control = Arc::downgrade(&control);
            Host::new(id, port, thread.clone(), move |told| {
                if let Some(control) = control.upgrade() {
                    match told {
                        Told::Closed => lock(&control).tell(id, PORT_OPEN, 0, &[]),
                    }
                }
            })
        });
        Ok(Arc::new(Console { ports: hosts.collect(), control }))
    }

    fn side(&self, queue: u16) -> Option<Side> {
        // Port n has queues 2n + 2 and 2n + 3; what is behind control is from port 1 on.
        let port = usize::from(queue / 2).checked_sub(2).filter(|&port| port < self.ports.len())?;
        Some(if queue.is_multiple_of(2) { Side::In(port) } else { Side::Out(port) })
    }

    /// A message from the driver; its numbers may be any.
    fn heard(&self, link: &Arc<Link>, message: &[u8]) {
        let &[p0, p1, p2, p3, e0, e1, v0, v1] = message else { return };
        let id = u32::from_le_bytes([p0, p1, p2, p3]);
        let (event, value) = (u16::from_le_bytes([e0, e1]), u16::from_le_bytes([v0, v1]));
        let port = (id as usize).checked_sub(1).and_then(|index| self.ports.get(index));
        match (event, port) {
            (DEVICE_READY, _) if value == 1 => {
                let mut control = lock(&self.control);
                (1..=self.ports.len() as u32).for_each(|id| control.tell(id, PORT_ADD, 1, &[]));
            }
            (PORT_READY, Some(port)) if value == 1 => {
                let mut control = lock(&self.control);
                if port.is_console() {
                    control.tell(id, CONSOLE_PORT, 1, &[]);
                }
                control.tell(id, PORT_NAME, 1, port.name().as_bytes());
                if port.connected() {
                    control.tell(id, PORT_OPEN, 1, &[]);
                }
            }
            (PORT_OPEN, Some(port)) => port.opened(link, value == 1),
            _ => {}
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.ports.iter().for_each(|port| port.end());
    }
}

impl Device for Console {
    fn kind(&self) -> u16 {
        kind::CONSOLE
    }

    fn class(&self) -> u32 {
        0x07_80_00
    }

    fn features(&self) -> u64 {
        MULTIPORT
    }

    fn queues(&self) -> Vec<u16> {
        vec![QUEUE; 2 * (self.ports.len() + 2)]
    }

    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; PORTS];
        config.extend((self.ports.len() as u32 + 1).to_le_bytes());
        // The register for a byte in an emergency, which there is no feature for.
        config.extend([0; 4]);
        config
    }

    fn start(&self, link: &Arc<Link>) {
        *lock(&self.control) = Control { link: Some(link.clone()), waiting: VecDeque::new() };
        self.ports.iter().for_each(|port| port.start(link));
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        match queue {
            CONTROL_IN => lock(&self.control).flush(),
            CONTROL_OUT => {
                while let Some(chain) = link.pop(queue) {
                    let message = chain.read(link.memory(), 0, CONTROL);
                    link.give(queue, &chain, |_, _| 0);
                    self.heard(link, &message);
                }
            }
            _ => match self.side(queue) {
                Some(Side::In(port)) => self.ports[port].room(link),
                Some(Side::Out(port)) => self.ports[port].written(link),
                None => {}
            },
        }
    }

    fn hold(&self, still: bool) {
        self.ports.iter().for_each(|port| port.hold(still));
    }

    /// What went out stays out; of what comes in the place in its file is part of the state.
    fn save(&self) -> Result<Value, satori_save::Error> {
        let mut bytes = Vec::new();
        let ports = self.ports.iter().map(|port| port.save(&mut bytes)).collect::<Result<_, _>>()?;
        let waiting = lock(&self.control).waiting.iter().cloned().collect();
        Value::with_bytes(&SavedConsole { ports, waiting }, bytes)
    }

    fn restore(&self, _link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error> {
        let SavedConsole { ports, waiting } = value.state()?;
        let unless = |fits, why| satori_save::Error::unless(fits, SavedConsole::NAME, why);
        unless(ports.len() == self.ports.len(), "it has another number of ports")?;
        let longest = self.ports.iter().map(|port| port.name().len()).max().unwrap_or(0);
        let fit = waiting.iter().all(|message| (CONTROL..=CONTROL + longest).contains(&message.len()));
        unless(fit && waiting.len() <= MESSAGES_MAX, "what waits for its driver is no message")?;
        let mut bytes = value.bytes();
        for (port, saved) in self.ports.iter().zip(ports) {
            port.restore(saved, &mut bytes)?;
        }
        unless(bytes.is_empty(), "more came in than at its ports")?;
        lock(&self.control).waiting = waiting.into();
        Ok(())
    }

    fn reset(&self) {
        *lock(&self.control) = Control::default();
        self.ports.iter().for_each(|port| port.reset());
    }

    fn files(&self) -> Vec<RawFd> {
        self.ports.iter().flat_map(|port| port.files()).map(|file| file.as_raw_fd()).collect()
    }

    fn finish(&self, give_up: &dyn Fn() -> bool) {
        self.ports.iter().for_each(|port| port.finish(give_up));
    }

    fn lost(&self) -> Option<(String, std::io::Error)> {
        self.ports.iter().find_map(|port| port.lost())
    }

    fn journalled(&self, journal: &Journal) -> bool {
        self.ports.iter().filter(|port| port.has_input()).for_each(|port| port.journalled(journal));
        true
    }

    fn undetermined(&self) -> Option<String> {
        let port = self.ports.iter().find(|port| port.undetermined())?;
        Some(format!("what comes in at port {} is not the same every time: let it be a file", port.name()))
    }
}

/// The bytes are those that ports hold for the guest, one port's behind the other's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedConsole {
    ports: Vec<SavedPort>,
    /// Control messages that the driver had no buffer for.
    waiting: Vec<Vec<u8>>,
}

impl State for SavedConsole {
    const NAME: &'static str = "console with ports";
    const VERSION: u32 = 1;
}
