//! Facts of the ACPI specification that the `acpi_tables` crate leaves to its users.

/// Address range types of a memory map (ACPI 6.5, table 15.374), used by e820 and PVH alike.
pub mod address_range {
    /// Usable RAM.
    pub const MEMORY: u32 = 1;
    /// Not for use.
    pub const RESERVED: u32 = 2;
    /// ACPI tables; RAM once they are read.
    pub const ACPI: u32 = 3;
    /// ACPI memory to be kept.
    pub const NVS: u32 = 4;
}

/// The FACS (ACPI 6.5, table 5.23).
pub mod facs {
    /// Where the address is at which a guest wakes, in real mode: a dword.
    pub const WAKING_VECTOR: u64 = 12;
}

/// Interrupt controller structures of the MADT (ACPI 6.5, 5.2.12).
pub mod madt {
    /// Header plus local APIC address plus flags: where the structures begin.
    pub const STRUCTURES: usize = 44;
    /// Flag PCAT_COMPAT: the machine also has a pair of 8259As.
    pub const PCAT_COMPAT: u32 = 1;
    /// Type of a processor's local APIC structure.
    pub const LOCAL_APIC: u8 = 0;
    /// Type of an I/O APIC structure.
    pub const IO_APIC: u8 = 1;
    /// Type of an interrupt source override.
    pub const INTERRUPT_SOURCE_OVERRIDE: u8 = 2;
    /// Type of a local APIC NMI structure.
    pub const LOCAL_APIC_NMI: u8 = 4;
    /// Type of a processor's local x2APIC structure.
    pub const LOCAL_X2APIC: u8 = 9;
    /// Type of a local x2APIC NMI structure.
    pub const LOCAL_X2APIC_NMI: u8 = 10;
    /// The processor is enabled.
    pub const ENABLED: u32 = 1;
    /// The first APIC id that only an x2APIC structure can name.
    pub const FIRST_X2APIC_ID: u32 = 255;
    /// MPS INTI flags: polarity and trigger of the bus.
    pub const CONFORMS: u16 = 0;
    /// MPS INTI flags: active high, level-triggered.
    pub const HIGH_LEVEL: u16 = 0b1101;
}

/// System resource affinity table (ACPI 6.5, 5.2.16).
pub mod srat {
    /// What stands behind the header: 1, and eight bytes without meaning.
    pub const RESERVED: [u8; 12] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// Type of a memory affinity structure.
    pub const MEMORY: u8 = 1;
    /// Bytes of one.
    pub const MEMORY_BYTES: u8 = 40;
    /// Type of a processor's x2APIC affinity structure.
    pub const X2APIC: u8 = 2;
    /// Bytes of one.
    pub const X2APIC_BYTES: u8 = 24;
    /// The structure counts.
    pub const ENABLED: u32 = 1;
}

/// FADT boot flags IAPC_BOOT_ARCH (ACPI 6.5, table 5.10).
pub mod iapc_boot_arch {
    /// There are user-visible devices on an ISA bus.
    pub const LEGACY_DEVICES: u16 = 1 << 0;
    /// There is an 8042 keyboard controller.
    pub const HAS_8042: u16 = 1 << 1;
    /// There is no VGA to be probed.
    pub const VGA_NOT_PRESENT: u16 = 1 << 2;
    /// There is no CMOS RTC.
    pub const CMOS_RTC_NOT_PRESENT: u16 = 1 << 5;
}

/// FADT P_LVL2_LAT: larger than 100 says that C2 is not supported (ACPI 6.5, table 5.9).
pub const NO_C2_LATENCY: u16 = 0xfff;
/// FADT P_LVL3_LAT: larger than 1000 says that C3 is not supported (ACPI 6.5, table 5.9).
pub const NO_C3_LATENCY: u16 = 0xfff;
/// WAET emulated device flag: one read of the PM timer is enough (Microsoft WAET 1.0).
pub const WAET_ACPI_PM_TIMER_GOOD: u32 = 1 << 1;
