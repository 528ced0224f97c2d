//! The ACPI tables of the machine, as `acpi_tables` assembles them.

use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, facs::FACS};
use satori_defs::acpi::{self, iapc_boot_arch, madt, srat};
use satori_defs::chipset::{hpet, irq, mmio, port, reset, rtc};
use satori_defs::{apic, x86::PAGE_SIZE};

use crate::dsdt;

/// Which devices the guest's tables name. What is left out does not exist for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The APIC id of each processor.
    pub apic_ids: Vec<u32>,
    /// Sockets that they are in.
    pub sockets: u32,
    /// Cores in each socket.
    pub cores: u32,
    /// The high precision event timer.
    pub hpet: bool,
    /// Enhanced PCI configuration space of bus 0.
    pub ecam: bool,
    /// Devices on the PCI bus: their interrupts, and a window above 4 GiB.
    pub pci_devices: bool,
    /// The first serial port.
    pub com1: bool,
    /// How many serial ports there are beyond the first, up to three.
    pub more_serials: usize,
    /// The real-time clock.
    pub rtc: bool,
    /// The keyboard controller.
    pub i8042: bool,
    /// The panic notifier.
    pub pvpanic: bool,
    /// Hyper-V's VMBus.
    pub vmbus: bool,
    /// Sleep with nothing but memory kept (S3).
    pub suspend: bool,
    /// Nodes of processors and memory, if there are several to tell of.
    pub nodes: Vec<Node>,
}

/// Processors and memory that are near each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// APIC ids.
    pub apic_ids: Vec<u32>,
    /// Where memory begins, and its bytes.
    pub memory: Vec<(u64, u64)>,
    /// How far each node is, 10 being here.
    pub distances: Vec<u8>,
}

impl Default for Platform {
    /// One processor and every device.
    fn default() -> Self {
        Platform {
            apic_ids: vec![0],
            sockets: 1,
            cores: 1,
            hpet: true,
            ecam: true,
            pci_devices: false,
            com1: true,
            more_serials: 0,
            rtc: true,
            i8042: true,
            pvpanic: true,
            vmbus: false,
            suspend: true,
            nodes: Vec::new(),
        }
    }
}

/// Most processors: what Hyper-V's and Linux's interfaces know, and what the SMBIOS segment of
/// 64 KiB is far from.
pub const CPUS_MAX: u32 = 4096;

/// Bytes of the RSDP (ACPI 6.5, 5.2.5.3).
pub const RSDP_BYTES: u64 = 36;

const OEM: [u8; 6] = *b"SATORI";
const OEM_TABLE: [u8; 8] = *b"SATORIVM";
const OEM_REVISION: u32 = 1;

/// The tables, as bytes with their places.
#[derive(Debug)]
pub struct Tables {
    /// The RSDP, for [`crate::layout::RSDP`].
    pub rsdp: Vec<u8>,
    /// The FACS, a page at the base, which firmware and system share: ACPI NVS.
    pub facs: Vec<u8>,
    /// The other tables, from the page after it: ACPI reclaimable.
    pub rest: Vec<u8>,
}

impl Tables {
    /// Bytes that the FACS and the other tables take, in whole pages.
    pub fn bytes(&self) -> u64 {
        PAGE_SIZE + (self.rest.len() as u64).next_multiple_of(PAGE_SIZE)
    }
}

/// Builds the tables for a place at `base`, page aligned and below 4 GiB. Their size does not
/// depend on it.
pub fn tables(platform: &Platform, base: u32) -> Tables {
    let mut rest = Vec::new();
    let start = u64::from(base) + PAGE_SIZE;
    let mut add = |table: &dyn Aml| {
        // The tables have fields of 8 bytes, and some guests read them in place.
        rest.resize(usize::next_multiple_of(rest.len(), 16), 0);
        let at = start + rest.len() as u64;
        table.to_aml_bytes(&mut rest);
        at
    };
    let dsdt = add(&dsdt::table(platform, sdt(*b"DSDT", 2)));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(add(&fadt(platform, base, dsdt as u32).finalize()));
    xsdt.add_entry(add(&apic_table(&platform.apic_ids)));
    if platform.hpet {
        xsdt.add_entry(add(&hpet_table()));
    }
    if platform.ecam {
        let mut mcfg = MCFG::new(OEM, OEM_TABLE, OEM_REVISION);
        mcfg.add_ecam(mmio::ECAM, 0, 0, 0);
        xsdt.add_entry(add(&mcfg));
    }
    if !platform.nodes.is_empty() {
        xsdt.add_entry(add(&srat_table(&platform.nodes)));
        xsdt.add_entry(add(&slit(&platform.nodes)));
    }
    xsdt.add_entry(add(&waet()));
    let xsdt = add(&xsdt);
    let bytes = |table: &dyn Aml| {
        let mut out = Vec::new();
        table.to_aml_bytes(&mut out);
        out
    };
    Tables { rsdp: bytes(&Rsdp::new(OEM, xsdt)), facs: bytes(&FACS::new()), rest }
}

fn sdt(signature: [u8; 4], revision: u8) -> Sdt {
    Sdt::new(signature, 36, revision, OEM, OEM_TABLE, OEM_REVISION)
}

fn io(address: u16, bytes: u8, access: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, bytes * 8, 0, access, address.into())
}

fn fadt(platform: &Platform, facs: u32, dsdt: u32) -> FADTBuilder {
    let mut boot = iapc_boot_arch::VGA_NOT_PRESENT | iapc_boot_arch::LEGACY_DEVICES;
    if platform.i8042 {
        boot |= iapc_boot_arch::HAS_8042;
    }
    if !platform.rtc {
        boot |= iapc_boot_arch::CMOS_RTC_NOT_PRESENT;
    }
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .firmware_ctrl_32(facs)
        .dsdt_32(dsdt)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::SlpButton)
        .flag(Flags::TmrValExt)
        .flag(Flags::ResetRegSup);
    // SMI_CMD stays 0: the machine is in ACPI mode from the start (ACPI 6.5, 4.8.2.5).
    fadt.sci_int = u16::from(irq::SCI).into();
    fadt.pm1a_evt_blk = u32::from(port::PM1A_EVT).into();
    fadt.pm1a_cnt_blk = u32::from(port::PM1A_CNT).into();
    fadt.pm_tmr_blk = u32::from(port::PM_TMR).into();
    fadt.pm1_evt_len = 4;
    fadt.pm1_cnt_len = 2;
    fadt.pm_tmr_len = 4;
    fadt.x_pm1a_evt_blk = io(port::PM1A_EVT, 4, AccessSize::WordAccess);
    fadt.x_pm1a_cnt_blk = io(port::PM1A_CNT, 2, AccessSize::WordAccess);
    fadt.x_pm_tmr_blk = io(port::PM_TMR, 4, AccessSize::DwordAccess);
    fadt.p_lvl2_lat = acpi::NO_C2_LATENCY.into();
    fadt.p_lvl3_lat = acpi::NO_C3_LATENCY.into();
    fadt.century = if platform.rtc { rtc::CENTURY } else { 0 };
    fadt.iapc_boot_arch = boot.into();
    fadt.reset_reg = io(port::RESET_CONTROL, 1, AccessSize::ByteAccess);
    fadt.reset_value = reset::ACPI_RESET_VALUE;
    fadt
}

fn apic_table(apic_ids: &[u32]) -> Sdt {
    let mut body = Vec::new();
    body.extend_from_slice(&(apic::DEFAULT_BASE as u32).to_le_bytes());
    body.extend_from_slice(&madt::PCAT_COMPAT.to_le_bytes());
    let enabled = madt::ENABLED.to_le_bytes();
    // A processor's number is its place in the table, whatever its APIC id.
    for (number, &id) in (0_u32..).zip(apic_ids) {
        if id < madt::FIRST_X2APIC_ID && number < madt::FIRST_X2APIC_ID {
            body.extend_from_slice(&[madt::LOCAL_APIC, 8, number as u8, id as u8]);
            body.extend_from_slice(&enabled);
        } else {
            body.extend_from_slice(&[madt::LOCAL_X2APIC, 16, 0, 0]);
            for field in [id.to_le_bytes(), enabled, number.to_le_bytes()] {
                body.extend_from_slice(&field);
            }
        }
    }
    body.extend_from_slice(&[madt::IO_APIC, 12, 0, 0]);
    body.extend_from_slice(&(mmio::IOAPIC as u32).to_le_bytes());
    body.extend_from_slice(&0_u32.to_le_bytes());
    let pit_pin = satori_defs::chipset::ioapic::PIT_PIN as u32;
    for (source, gsi, flags) in
        [(irq::PIT, pit_pin, madt::CONFORMS), (irq::SCI, irq::SCI.into(), madt::HIGH_LEVEL)]
    {
        body.extend_from_slice(&[madt::INTERRUPT_SOURCE_OVERRIDE, 10, 0, source]);
        body.extend_from_slice(&gsi.to_le_bytes());
        body.extend_from_slice(&flags.to_le_bytes());
    }
    // NMI at LINT1 of every processor.
    body.extend_from_slice(&[madt::LOCAL_APIC_NMI, 6, 0xff, 0, 0, 1]);
    if apic_ids.iter().any(|&id| id >= madt::FIRST_X2APIC_ID) {
        body.extend_from_slice(&[madt::LOCAL_X2APIC_NMI, 12, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
    }
    let mut table = sdt(*b"APIC", 5);
    table.append_slice(&body);
    table
}

/// IA-PC HPET 1.0a, 3.2.4.
fn hpet_table() -> Sdt {
    let mut body = Vec::new();
    body.extend_from_slice(&(hpet::GCAP_ID_VALUE as u32).to_le_bytes());
    GAS::new(AddressSpace::SystemMemory, 0, 0, AccessSize::Undefined, mmio::HPET).to_aml_bytes(&mut body);
    // Number 0, no minimum tick in periodic mode, no page protection.
    body.extend_from_slice(&[0; 4]);
    let mut table = sdt(*b"HPET", 1);
    table.append_slice(&body);
    table
}

/// Which node processors and memory are in.
fn srat_table(nodes: &[Node]) -> Sdt {
    let mut body = srat::RESERVED.to_vec();
    for (number, node) in (0_u32..).zip(nodes) {
        for id in &node.apic_ids {
            // Also for ids of eight bits: the specification asks for the other structure only where an operating system has no x2APIC.
            body.extend([srat::X2APIC, srat::X2APIC_BYTES, 0, 0]);
            [number, *id, srat::ENABLED, 0, 0].iter().for_each(|field| body.extend(field.to_le_bytes()));
        }
        for (start, len) in &node.memory {
            body.extend([srat::MEMORY, srat::MEMORY_BYTES]);
            body.extend(number.to_le_bytes());
            body.extend([0; 2]);
            [*start, *len].iter().for_each(|field| body.extend(field.to_le_bytes()));
            [0, srat::ENABLED, 0, 0].iter().for_each(|field| body.extend(field.to_le_bytes()));
        }
    }
    let mut table = sdt(*b"SRAT", 3);
    table.append_slice(&body);
    table
}

/// How far nodes are from each other (ACPI 6.5, 5.2.17).
fn slit(nodes: &[Node]) -> Sdt {
    let mut table = sdt(*b"SLIT", 1);
    table.append_slice(&(nodes.len() as u64).to_le_bytes());
    nodes.iter().for_each(|node| table.append_slice(&node.distances));
    table
}

/// Windows ACPI emulated devices table: our PM timer needs no second read.
fn waet() -> Sdt {
    let mut table = sdt(*b"WAET", 1);
    table.append_slice(&acpi::WAET_ACPI_PM_TIMER_GOOD.to_le_bytes());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u32 = 0x1fff_0000;

    /// Signature and bytes of every table, from the XSDT on, with sums and places checked.
    fn walk(platform: &Platform) -> Vec<(String, Vec<u8>)> {
        let tables = tables(platform, BASE);
        let sum = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((sum(&tables.rsdp[..20]), sum(&tables.rsdp)), (0, 0));
        let u64_at = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let table = |address: u64| {
            let start = (address - u64::from(BASE) - PAGE_SIZE) as usize;
            let len = u32::from_le_bytes(tables.rest[start + 4..start + 8].try_into().unwrap());
            let bytes = tables.rest[start..start + len as usize].to_vec();
            assert_eq!(sum(&bytes), 0, "checksum at {address:#x}");
            (String::from_utf8(bytes[..4].to_vec()).unwrap(), bytes)
        };
        let (name, xsdt) = table(u64_at(&tables.rsdp, 24));
        assert_eq!(name, "XSDT");
        let mut found: Vec<_> = (36..xsdt.len()).step_by(8).map(|at| table(u64_at(&xsdt, at))).collect();
        let fadt = found.iter().find(|(name, _)| name == "FACP").unwrap().1.clone();
        assert_eq!(u32::from_le_bytes(fadt[36..40].try_into().unwrap()), BASE, "FACS");
        found.push(table(u32::from_le_bytes(fadt[40..44].try_into().unwrap()).into()));
        found
    }

    #[test]
    fn tables_are_linked_and_what_is_left_out_is_not_there() {
        let names =
            |platform: &Platform| walk(platform).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&Platform::default()), ["FACP", "APIC", "HPET", "MCFG", "WAET", "DSDT"]);
        let bare = Platform {
            apic_ids: vec![0],
            sockets: 1,
            cores: 1,
            hpet: false,
            ecam: false,
            pci_devices: false,
            com1: false,
            more_serials: 0,
            rtc: false,
            i8042: false,
            pvpanic: false,
            vmbus: false,
            suspend: false,
            nodes: Vec::new(),
        };
        assert_eq!(names(&bare), ["FACP", "APIC", "WAET", "DSDT"]);
        let (full, less) = (walk(&Platform::default()), walk(&bare));
        let dsdt = |tables: &[(String, Vec<u8>)]| tables.last().unwrap().1.clone();
        let has = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        let devices = walk(&Platform { pci_devices: true, ..Platform::default() });
        assert!(has(&dsdt(&devices), b"_PRT") && !has(&dsdt(&full), b"_PRT"));
        let vmbus = walk(&Platform { vmbus: true, ..Platform::default() });
        assert!(has(&dsdt(&vmbus), b"VMBUS\0") && !has(&dsdt(&full), b"VMBUS"));
        assert!(has(&dsdt(&full), b"_S3_") && !has(&dsdt(&less), b"_S3_"));
        let serials = |more_serials| dsdt(&walk(&Platform { more_serials, ..Platform::default() }));
        assert!(has(&serials(1), b"COM2") && !has(&serials(1), b"COM3") && has(&serials(3), b"COM4"));
        for name in [&b"COM1"[..], b"RTC_", b"KBD_", b"HPET", b"QEMU0001"] {
            assert!(has(&dsdt(&full), name) && !has(&dsdt(&less), name), "{name:?}");
        }
    }

    #[test]
    fn nodes_have_processors_memory_and_distances() {
        let node = |ids: &[u32], memory: &[(u64, u64)], distances: [u8; 2]| Node {
            apic_ids: ids.to_vec(),
            memory: memory.to_vec(),
            distances: distances.to_vec(),
        };
        let high = (4 << 30, 1 << 30);
        let nodes =
            vec![node(&[0, 1], &[(0, 3 << 30), high], [10, 33]), node(&[300], &[(5 << 30, 9)], [44, 10])];
        let tables = walk(&Platform { nodes, ..Platform::default() });
        let table = |name: &str| tables.iter().find(|(other, _)| other == name).unwrap().1.clone();
        assert_eq!(table("SLIT")[36..], [2, 0, 0, 0, 0, 0, 0, 0, 10, 33, 44, 10]);
        let srat = table("SRAT");
        let (mut at, mut seen) = (48, Vec::new());
        let word = |at: usize| u32::from_le_bytes(srat[at..at + 4].try_into().unwrap());
        while at < srat.len() {
            let (node, flags) = if srat[at] == 2 { (at + 4, at + 12) } else { (at + 2, at + 28) };
            seen.push((srat[at], word(node), word(at + 8), word(flags)));
            at += usize::from(srat[at + 1]);
        }
        assert_eq!(at, srat.len());
        // Of memory the third is the lower half of where it begins.
        let memory = [(1, 0, 0, 1), (1, 0, 0, 1)];
        assert_eq!(seen[..2], [(2, 0, 0, 1), (2, 0, 1, 1)]);
        assert_eq!(seen[2..4], memory);
        assert_eq!(seen[4..], [(2, 1, 300, 1), (1, 1, 1 << 30, 1)]);
    }

    #[test]
    fn processors_beyond_the_eight_bit_ids_have_x2apic_structures() {
        let madt = |cpus: u32| {
            let tables = walk(&Platform { apic_ids: (0..cpus).collect(), ..Platform::default() });
            let bytes = tables.into_iter().find(|(name, _)| name == "APIC").unwrap().1;
            let (mut at, mut kinds) = (madt::STRUCTURES, Vec::new());
            while at < bytes.len() {
                kinds.push(bytes[at]);
                at += usize::from(bytes[at + 1]);
            }
            assert_eq!(at, bytes.len());
            kinds
        };
        let count = |kinds: &[u8], kind| kinds.iter().filter(|&&k| k == kind).count();
        let small = madt(4);
        assert_eq!((count(&small, madt::LOCAL_APIC), count(&small, madt::LOCAL_X2APIC)), (4, 0));
        let large = madt(300);
        assert_eq!((count(&large, madt::LOCAL_APIC), count(&large, madt::LOCAL_X2APIC)), (255, 45));
        assert_eq!(count(&large, madt::INTERRUPT_SOURCE_OVERRIDE), 2);
    }
}
