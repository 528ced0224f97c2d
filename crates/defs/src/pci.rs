//! PCI configuration space (PCI 3.0, 3.2.2.3 and 6) and MSI-X (PCI 3.0, 6.8.2).

/// Address: the data port goes to configuration space.
pub const ADDRESS_ENABLE: u32 = 1 << 31;
/// Address: the bits that exist.
pub const ADDRESS_WRITABLE: u32 = 0x80ff_fffc;
/// Vendor, 16 bits.
pub const VENDOR_ID: usize = 0x00;
/// Device, 16 bits.
pub const DEVICE_ID: usize = 0x02;
/// Command, 16 bits.
pub const COMMAND: usize = 0x04;
/// Status, 16 bits.
pub const STATUS: usize = 0x06;
/// Revision, 8 bits.
pub const REVISION_ID: usize = 0x08;
/// Class code: programming interface, sub-class, base class, 24 bits.
pub const CLASS_CODE: usize = 0x09;
/// Header type.
pub const HEADER_TYPE: usize = 0x0e;
/// The first of six base address registers of 32 bits each.
pub const BAR0: usize = 0x10;
/// Subsystem vendor and device, 16 bits each.
pub const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
/// Where the list of capabilities begins.
pub const CAPABILITIES_POINTER: usize = 0x34;
/// Interrupt line, kept for software.
pub const INTERRUPT_LINE: usize = 0x3c;
/// Interrupt pin: 1 is INTA.
pub const INTERRUPT_PIN: usize = 0x3d;
/// Where the header of type 0 ends, and capabilities may begin.
pub const HEADER_END: usize = 0x40;
/// Command: the function answers at its base addresses in port space.
pub const COMMAND_IO: u8 = 1 << 0;
/// Command: the function answers at its base addresses.
pub const COMMAND_MEMORY: u8 = 1 << 1;
/// Command: bus master.
pub const COMMAND_MASTER: u8 = 1 << 2;
/// Command: INTx is not asserted; of the register's second byte.
pub const COMMAND_INTX_DISABLE_HIGH: u8 = 1 << 2;
/// Status: an interrupt is pending.
pub const STATUS_INTERRUPT: u8 = 1 << 3;
/// Status: there is a list of capabilities.
pub const STATUS_CAPABILITIES: u8 = 1 << 4;
/// Base address register: memory of a 64-bit address, not prefetchable.
pub const BAR_MEMORY_64: u32 = 0b0100;
/// Base address register of memory: the bits that are no address.
pub const BAR_FLAGS: u64 = 0xf;
/// Base address register: port space.
pub const BAR_PORT: u32 = 0b01;
/// Base address register of port space: the bits that are no address.
pub const BAR_PORT_FLAGS: u64 = 0x3;
/// Capability of a vendor's own.
pub const CAP_VENDOR: u8 = 0x09;
/// Capability: MSI-X.
pub const CAP_MSIX: u8 = 0x11;
/// Bytes of the MSI-X capability.
pub const MSIX_BYTES: usize = 12;
/// MSI-X message control, in its second byte: MSI-X is enabled.
pub const MSIX_ENABLE_HIGH: u8 = 1 << 7;
/// MSI-X message control, in its second byte: all vectors are masked.
pub const MSIX_MASK_ALL_HIGH: u8 = 1 << 6;
/// Bytes of an entry of the MSI-X table: address, data, vector control.
pub const MSIX_ENTRY: u64 = 16;
/// Vector control: the vector is masked.
pub const MSIX_MASKED: u32 = 1;
/// Most entries of an MSI-X table.
pub const MSIX_ENTRIES_MAX: u16 = 2048;
/// Class code of a host bridge.
pub const CLASS_HOST_BRIDGE: u32 = 0x06_00_00;
/// Intel.
pub const VENDOR_INTEL: u16 = 0x8086;
/// The host bridge of no particular chipset.
pub const DEVICE_HOST_BRIDGE: u16 = 0x0d57;
/// Bytes of conventional configuration space.
pub const CONFIG_SIZE: usize = 256;
