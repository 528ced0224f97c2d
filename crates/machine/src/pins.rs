//! Which of the host's processors the machine's threads may use.

use satori_host::io_thread::IoThread;
pub(crate) use satori_host::io_thread::pin;
pub use satori_host::io_thread::processors as host_processors;

use crate::Error;

/// Processors of the host for each thread; an empty list leaves it to the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// For each vCPU; those beyond the end are free.
    pub vcpus: Vec<Vec<u32>>,
    /// For the platform's timers, and for threads of devices that no I/O thread has.
    pub timers: Vec<u32>,
    /// For each I/O thread, which there are as many of.
    pub io: Vec<Vec<u32>>,
}

impl Pins {
    /// Whether anything is pinned.
    pub fn any(&self) -> bool {
        !self.timers.is_empty() || self.vcpus.iter().chain(&self.io).any(|cpus| !cpus.is_empty())
    }

    /// The processors for vCPU `index`.
    pub(crate) fn vcpu(&self, index: u32) -> Vec<u32> {
        self.vcpus.get(index as usize).cloned().unwrap_or_default()
    }

    /// The processors for one thread that runs `count` vCPUs: those of all, if all are pinned.
    pub(crate) fn all(&self, count: usize) -> Vec<u32> {
        let pinned = self.vcpus.iter().filter(|cpus| !cpus.is_empty()).count();
        if pinned < count { Vec::new() } else { self.vcpus.concat() }
    }
}

/// The I/O threads of a machine.
pub(crate) struct IoThreads {
    shared: Vec<IoThread>,
    /// Where threads run that a device has for itself.
    others: Vec<u32>,
    next: usize,
}

impl IoThreads {
    pub(crate) fn new(pins: &Pins) -> Self {
        // A thread begins with the processors of who starts it, which may be a vCPU that is pinned.
        let anywhere = || if pins.any() { host_processors() } else { Vec::new() };
        let or = |cpus: &Vec<u32>| if cpus.is_empty() { anywhere() } else { cpus.clone() };
        let shared = pins.io.iter().map(|cpus| IoThread::new(or(cpus))).collect();
        IoThreads { shared, others: or(&pins.timers), next: 0 }
    }

    /// The thread of a device that asks for this one, or for the next in turn. Without I/O threads it is the device's own.
    pub(crate) fn of(&mut self, wanted: Option<usize>) -> Result<IoThread, Error> {
        let count = self.shared.len();
        if let Some(index) = wanted {
            return self.shared.get(index).cloned().ok_or_else(|| {
                Error::Config(format!(
                    "a disk asks for I/O thread {}, and there are {count}: write --io-threads {}, or name another",
                    index + 1,
                    index + 1
                ))
            });
        }
        if count == 0 {
            return Ok(IoThread::new(self.others.clone()));
        }
        self.next += 1;
        Ok(self.shared[(self.next - 1) % count].clone())
    }

    /// The same of one that says nothing.
    pub(crate) fn any(&mut self) -> IoThread {
        self.of(None).unwrap_or_default()
    }
}
