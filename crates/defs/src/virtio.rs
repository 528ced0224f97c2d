//! Virtual I/O devices (virtio 1.2): transport, queues, and the devices' layouts.

/// PCI vendor of every virtio device (4.1.2).
pub const PCI_VENDOR: u16 = 0x1af4;
/// PCI device of a modern device is this plus its type.
pub const PCI_DEVICE: u16 = 0x1040;

/// Types of devices (5).
pub mod kind {
    /// Network card.
    pub const NET: u16 = 1;
    /// Block device.
    pub const BLOCK: u16 = 2;
    /// Console.
    pub const CONSOLE: u16 = 3;
    /// Entropy source.
    pub const ENTROPY: u16 = 4;
    /// Memory balloon.
    pub const BALLOON: u16 = 5;
    /// 9P transport.
    pub const PLAN9: u16 = 9;
    /// Sockets.
    pub const VSOCK: u16 = 19;
    /// File system.
    pub const FS: u16 = 26;
}

/// Device status (2.1).
pub mod status {
    /// The driver is set up.
    pub const DRIVER_OK: u8 = 4;
    /// The driver is content with the features.
    pub const FEATURES_OK: u8 = 8;
    /// The device met something that it cannot go on from.
    pub const NEEDS_RESET: u8 = 64;
}

/// Feature bits of every device (6).
pub mod feature {
    /// Descriptors may lead to tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are asked for by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// This version of the specification.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Split queues (2.7).
pub mod split {
    /// Bytes of a descriptor: address, length, flags, next.
    pub const DESCRIPTOR: u64 = 16;
    /// Descriptor flag: `next` is another one.
    pub const NEXT: u16 = 1;
    /// Descriptor flag: the device writes there.
    pub const WRITE: u16 = 2;
    /// Descriptor flag: it leads to a table.
    pub const INDIRECT: u16 = 4;
    /// Available ring's flag: no interrupts, please.
    pub const NO_INTERRUPT: u16 = 1;
    /// Available and used ring: where the index is, behind the flags.
    pub const INDEX: u64 = 2;
    /// Available and used ring: where the entries begin.
    pub const RING: u64 = 4;
    /// Bytes of an entry of the used ring: head, length.
    pub const USED: u64 = 8;
}

/// The PCI transport (4.1.4).
pub mod pci {
    /// Capability: common configuration.
    pub const CAP_COMMON: u8 = 1;
    /// Capability: doorbells.
    pub const CAP_NOTIFY: u8 = 2;
    /// Capability: interrupt status.
    pub const CAP_ISR: u8 = 3;
    /// Capability: the device's own configuration.
    pub const CAP_DEVICE: u8 = 4;
    /// Capability: access to base addresses through configuration space.
    pub const CAP_PCI: u8 = 5;
    /// No vector (4.1.5.1.2).
    pub const NO_VECTOR: u16 = 0xffff;
    /// Interrupt status: a queue.
    pub const ISR_QUEUE: u8 = 1;
    /// Interrupt status: the configuration.
    pub const ISR_CONFIG: u8 = 2;

    /// Registers of the common configuration (4.1.4.3).
    pub mod common {
        /// Which 32 feature bits the next register shows.
        pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
        /// Feature bits of the device.
        pub const DEVICE_FEATURE: u64 = 0x04;
        /// Which 32 feature bits the next register takes.
        pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
        /// Feature bits that the driver accepted.
        pub const DRIVER_FEATURE: u64 = 0x0c;
        /// Vector of changes of the configuration, 16 bits.
        pub const CONFIG_VECTOR: u64 = 0x10;
        /// How many queues there are, 16 bits.
        pub const QUEUES: u64 = 0x12;
        /// Device status, 8 bits.
        pub const STATUS: u64 = 0x14;
        /// Generation of the configuration, 8 bits.
        pub const GENERATION: u64 = 0x15;
        /// Which queue the registers behind are about, 16 bits.
        pub const QUEUE_SELECT: u64 = 0x16;
        /// Its size, 16 bits.
        pub const QUEUE_SIZE: u64 = 0x18;
        /// Its vector, 16 bits.
        pub const QUEUE_VECTOR: u64 = 0x1a;
        /// Whether it is enabled, 16 bits.
        pub const QUEUE_ENABLE: u64 = 0x1c;
        /// Its doorbell, in units of the capability's multiplier, 16 bits.
        pub const QUEUE_NOTIFY: u64 = 0x1e;
        /// Address of its descriptors, 64 bits.
        pub const QUEUE_DESC: u64 = 0x20;
        /// Address of its available ring, 64 bits.
        pub const QUEUE_DRIVER: u64 = 0x28;
        /// Address of its used ring, 64 bits.
        pub const QUEUE_DEVICE: u64 = 0x30;
        /// Bytes of all of them.
        pub const BYTES: u64 = 0x38;
    }
}

/// Network cards (5.1).
pub mod net {
    /// Feature: the driver may leave checksums to the device.
    pub const CSUM: u64 = 1 << 0;
    /// Feature: the driver takes frames whose checksums were not looked at, or are unfinished.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// Feature: the largest packet is told.
    pub const MTU_TOLD: u64 = 1 << 3;
    /// Feature: the address is told.
    pub const MAC: u64 = 1 << 5;
    /// Feature: the driver takes TCP over IPv4 that was not cut into segments.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// Feature: as `GUEST_TSO4`, over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// Feature: the driver may leave it to the device to cut TCP over IPv4 into segments.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// Feature: as `HOST_TSO4`, over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// Feature: a frame may fill several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Feature: whether there is a carrier is told.
    pub const STATUS: u64 = 1 << 16;
    /// Feature: there is a control queue.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// Feature: several pairs of queues.
    pub const MQ: u64 = 1 << 22;
    /// Status in the configuration: there is a carrier.
    pub const LINK_UP: u16 = 1;
    /// Bytes of the header before each frame: flags, segmentation, lengths, checksum, number of buffers.
    pub const HEADER: usize = 12;
    /// Where the number of buffers is in it.
    pub const BUFFERS: usize = 10;
    /// Header flag: the checksum is to be finished, from where to where the header tells.
    pub const NEEDS_CSUM: u8 = 1;
    /// Header flag: the checksum is right.
    pub const DATA_VALID: u8 = 2;
    /// Control class and command: how many pairs are used.
    pub const MQ_PAIRS_SET: [u8; 2] = [4, 0];
    /// Control: done.
    pub const ACK_OK: u8 = 0;
    /// Control: refused.
    pub const ACK_ERR: u8 = 1;
}

/// Consoles (5.3).
pub mod console {
    /// Feature: several ports, and a queue for control.
    pub const MULTIPORT: u64 = 1 << 1;
    /// Most bytes that the device takes of a port's queue at once are the driver's choice; this is where the
    /// number of ports is in its configuration, 32 bits behind columns and rows.
    pub const PORTS: usize = 4;
    /// Bytes of a control message before a name: port, event, value.
    pub const CONTROL: usize = 8;
    /// Event: the driver is ready.
    pub const DEVICE_READY: u16 = 0;
    /// Event: there is a port.
    pub const PORT_ADD: u16 = 1;
    /// Event: the driver is ready for a port.
    pub const PORT_READY: u16 = 3;
    /// Event: the port is a console.
    pub const CONSOLE_PORT: u16 = 4;
    /// Event: somebody opened or closed a port.
    pub const PORT_OPEN: u16 = 6;
    /// Event: a port's name follows.
    pub const PORT_NAME: u16 = 7;
}

/// File systems (5.11) and what of FUSE (linux/fuse.h) a device looks at.
pub mod fs {
    /// Bytes of a tag in the configuration; the number of request queues follows.
    pub const TAG: usize = 36;
    /// Bytes of a request's header: length, opcode, unique, and what the server looks at.
    pub const IN_HEADER: usize = 40;
    /// Bytes of a reply's header: length, error, unique.
    pub const OUT_HEADER: usize = 16;
    /// Opcode: a node is forgotten; there is no reply.
    pub const FORGET: u32 = 2;
    /// Opcode: a request is to be given up.
    pub const INTERRUPT: u32 = 36;
    /// Opcode: as `FORGET`, several.
    pub const BATCH_FORGET: u32 = 42;
}

/// 9P transport (no chapter of the specification; linux/virtio_9p.h) and what of its messages a device looks at.
pub mod plan9 {
    /// Feature: the configuration has the tag, behind its length of 16 bits.
    pub const MOUNT_TAG: u64 = 1 << 0;
    /// Bytes of a message's header: length, type, tag.
    pub const HEADER: usize = 7;
    /// Where a message has its tag, of 16 bits.
    pub const MESSAGE_TAG: usize = 5;
    /// A reply that tells an error, with its number of 32 bits.
    pub const RLERROR: u8 = 7;
}

/// Sockets (5.10).
pub mod vsock {
    /// Bytes of a packet's header.
    pub const HEADER: usize = 44;
    /// Where it has the bytes behind it, 32 bits.
    pub const LENGTH: usize = 24;
    /// Most bytes behind one.
    pub const PAYLOAD: usize = 64 << 10;
    /// Queue: packets for the driver.
    pub const RX: u16 = 0;
    /// Queue: packets of the driver.
    pub const TX: u16 = 1;
    /// Queue: what happens to all connections at once, a word of 32 bits each.
    pub const EVENT: u16 = 2;
    /// Event: all connections are gone, and the address may be another one (5.10.6.7).
    pub const TRANSPORT_RESET: u32 = 0;
    /// Least and greatest address that a guest may have: others mean the hypervisor, the host or anybody.
    pub const GUESTS: core::ops::RangeInclusive<u64> = 3..=0xffff_fffe;
}

/// Memory balloons (5.5).
pub mod balloon {
    /// Feature: the driver may take pages back when it has no others.
    pub const DEFLATE_ON_OOM: u64 = 1 << 2;
    /// Feature: there is a queue of pages that are free.
    pub const PAGE_REPORTING: u64 = 1 << 5;
    /// Queue: pages that the driver gives away, as numbers of 32 bits.
    pub const INFLATE: u16 = 0;
    /// Queue: pages that it takes back.
    pub const DEFLATE: u16 = 1;
    /// Queue: memory that is free. Its number is this because queues that are not offered have none.
    pub const REPORTING: u16 = 2;
    /// Bytes of a page, whatever a page of the guest is.
    pub const PAGE: u64 = 4096;
    /// Where the configuration has how many pages the driver gave away, 32 bits behind how many it is to give.
    pub const ACTUAL: usize = 4;
}

/// Block devices (5.2).
pub mod block {
    /// Feature: the most bytes of a segment are told.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// Feature: most segments of a request are told.
    pub const SEG_MAX: u64 = 1 << 2;
    /// Feature: it cannot be written.
    pub const RO: u64 = 1 << 5;
    /// Feature: the size of a block is told.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// Feature: there is a request that makes writes durable.
    pub const FLUSH: u64 = 1 << 9;
    /// Feature: sizes that are good to use are told.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// Feature: several queues.
    pub const MQ: u64 = 1 << 12;
    /// Feature: sectors can be given up.
    pub const DISCARD: u64 = 1 << 13;
    /// Feature: sectors can be zeroed.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Bytes of a sector, whatever the size of a block.
    pub const SECTOR: u64 = 512;
    /// Bytes of a request's header: type, reserved, sector.
    pub const HEADER: usize = 16;
    /// Request: read.
    pub const IN: u32 = 0;
    /// Request: write.
    pub const OUT: u32 = 1;
    /// Request: flush.
    pub const FLUSH_OUT: u32 = 4;
    /// Request: the serial.
    pub const GET_ID: u32 = 8;
    /// Request: give up ranges.
    pub const DISCARD_OUT: u32 = 11;
    /// Request: zero ranges.
    pub const WRITE_ZEROES_OUT: u32 = 13;
    /// Bytes of a serial.
    pub const ID: usize = 20;
    /// Bytes of a range: sector, sectors, flags.
    pub const RANGE: usize = 16;
    /// Range flag of write zeroes: the sectors may be given up.
    pub const UNMAP: u32 = 1;
    /// Status: done.
    pub const OK: u8 = 0;
    /// Status: failed.
    pub const IOERR: u8 = 1;
    /// Status: not known.
    pub const UNSUPP: u8 = 2;
}
