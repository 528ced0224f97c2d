//! Message-signalled interrupts: what a device that interrupts writes, and where.

/// One write by which a device interrupts. What it means is told by whoever is at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Where it goes, a physical address.
    pub address: u64,
    /// What is written there.
    pub data: u32,
}

/// Where message-signalled interrupts go: the interrupt controllers of the vCPUs, or whatever stands before them.
pub trait MsiSink: Send + Sync {
    /// Makes the write. One to an address at which no interrupt controller is has no effect.
    fn signal(&self, msi: Msi);
}
