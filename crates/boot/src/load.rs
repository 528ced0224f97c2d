//! Places a parsed kernel and all that it reads into guest memory.

use satori_defs::acpi::address_range;
use satori_defs::linux::COMMAND_LINE_SIZE;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::CpuState;

use crate::layout::{self, HIGH_RAM, MapEntry};
use crate::params::{self, Places};
use crate::place::{From, Placer};
use crate::{Error, Initrd, Kernel, acpi, entry, smbios};

/// How a kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootProtocol {
    /// Xen's PVH: 32-bit, no paging, at the ELF note's address.
    Pvh,
    /// Linux's 64-bit boot protocol, at e_entry.
    Linux64,
}

impl BootProtocol {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            BootProtocol::Pvh => "PVH",
            BootProtocol::Linux64 => "the Linux 64-bit boot protocol",
        }
    }
}

/// What to load besides the kernel.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The kernel command line.
    pub cmdline: String,
    /// The initrds, joined; empty for none.
    pub initrd: Initrd,
    /// What the tables tell about the machine.
    pub platform: acpi::Platform,
    /// The protocol to enter by; the kernel's best if none.
    pub protocol: Option<BootProtocol>,
}

/// A guest that is ready to run.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The boot processor's state; the others wait for SIPI.
    pub entry: CpuState,
    /// The protocol that was chosen.
    pub protocol: BootProtocol,
    /// The memory map that the guest was given.
    pub map: Vec<MapEntry>,
    /// Where the initrd is, and its bytes.
    pub initrd: Option<Region>,
}

/// Puts `kernel` and what `config` asks for into `memory`, which has RAM at 0.
///
/// Everything is written again, so that a reset may load into memory that was used; what is
/// not written keeps its contents.
pub fn load(memory: &GuestMemory, kernel: &Kernel, config: &Config) -> Result<Loaded, Error> {
    let protocol = choose(kernel, config.protocol)?;
    check_cmdline(kernel, protocol, &config.cmdline)?;
    let cpus = config.platform.cpus;
    if cpus == 0 || cpus > acpi::CPUS_MAX {
        return Err(Error::Cpus { cpus, max: acpi::CPUS_MAX });
    }
    let ram: Vec<Region> = memory.regions().collect();
    let low_end = ram.first().filter(|first| first.start.0 == 0).map_or(0, |first| first.len);
    let mut placer = Placer::new(low_end);
    take_kernel(&mut placer, kernel)?;
    let carved = place_tables(memory, &mut placer, config, &ram)?;
    let map = layout::memory_map(&ram, &carved, config.platform.ecam);
    let initrd = place_initrd(&mut placer, kernel, protocol, &config.initrd)?;
    let mut room = |what, bytes: u64| {
        placer.find(bytes, PAGE_SIZE, HIGH_RAM, From::Bottom).ok_or(Error::NoRoom { what, bytes })
    };
    let cmdline = [config.cmdline.as_bytes(), b"\0"].concat();
    let places = Places {
        cmdline: room("command line", cmdline.len() as u64)?,
        initrd: initrd.map_or(0, |region| region.start.0),
        initrd_len: config.initrd.len(),
        rsdp: layout::RSDP,
    };
    let gdt = room("descriptor table", entry::GDT_BYTES)?;
    let entry = match protocol {
        BootProtocol::Pvh => {
            let at = room("start info", params::start_info_bytes(map.len()) as u64)?;
            memory.write(Gpa(at), &params::start_info(at, &places, &map))?;
            entry::pvh(kernel.image.pvh_entry.unwrap_or(0), at as u32, gdt)
        }
        BootProtocol::Linux64 => {
            let tables = room("page tables", entry::PAGE_TABLE_BYTES)?;
            let at = room("zero page", PAGE_SIZE)?;
            entry::write_identity_map(memory, tables)?;
            memory.write(Gpa(at), &params::zero_page(kernel.setup.as_ref(), &places, &map))?;
            entry::linux64(kernel.image.entry, at, gdt, tables)
        }
    };
    entry::write_gdt(memory, &entry)?;
    memory.write(Gpa(places.cmdline), &cmdline)?;
    if let Some(region) = initrd {
        memory.write(region.start, &config.initrd.0)?;
    }
    write_kernel(memory, kernel)?;
    Ok(Loaded { entry, protocol, map, initrd })
}

fn choose(kernel: &Kernel, wanted: Option<BootProtocol>) -> Result<BootProtocol, Error> {
    let offered = &kernel.info.protocols;
    let chosen = wanted.or(offered.first().copied()).unwrap_or(BootProtocol::Pvh);
    if offered.contains(&chosen) {
        return Ok(chosen);
    }
    let why = match chosen {
        BootProtocol::Pvh => "it has no PVH note",
        BootProtocol::Linux64 => "it is not a 64-bit Linux",
    };
    Err(Error::Protocol { wanted: chosen.name(), why })
}

fn check_cmdline(kernel: &Kernel, protocol: BootProtocol, cmdline: &str) -> Result<(), Error> {
    let own = kernel.setup.as_ref().map(|setup| setup.cmdline_size as usize).filter(|&size| size != 0);
    let max = match (protocol, own) {
        (BootProtocol::Linux64, Some(own)) => own.min(COMMAND_LINE_SIZE - 1),
        _ => COMMAND_LINE_SIZE - 1,
    };
    if cmdline.len() > max {
        return Err(Error::CmdlineTooLong { len: cmdline.len(), max });
    }
    match cmdline.find('\0') {
        Some(at) => Err(Error::CmdlineNul { at }),
        None => Ok(()),
    }
}

/// Claims the kernel's segments, and keeps clear what it uses after them before it looks.
fn take_kernel(placer: &mut Placer, kernel: &Kernel) -> Result<(), Error> {
    for segment in &kernel.image.segments {
        let range = segment.range();
        if !placer.take(range.clone()) {
            return Err(Error::KernelRange { start: range.start, end: range.end });
        }
    }
    let start = kernel.image.start();
    let init_size = kernel.setup.as_ref().map_or(0, |setup| u64::from(setup.init_size));
    let last = kernel.image.segments.iter().map(|segment| segment.range().end).max().unwrap_or(0);
    let end = last.next_multiple_of(2 << 20).max(start + init_size);
    placer.keep_clear(start..end);
    Ok(())
}

/// ACPI tables go to the top of low RAM, their pointer and SMBIOS into the legacy hole.
fn place_tables(
    memory: &GuestMemory,
    placer: &mut Placer,
    config: &Config,
    ram: &[Region],
) -> Result<Vec<MapEntry>, Error> {
    let bytes = acpi::tables(&config.platform, 0).bytes();
    let what = "ACPI tables";
    let base = placer.find(bytes, PAGE_SIZE, HIGH_RAM, From::Top).ok_or(Error::NoRoom { what, bytes })?;
    let tables = acpi::tables(&config.platform, base as u32);
    memory.write(Gpa(base), &tables.facs)?;
    memory.write(Gpa(base + PAGE_SIZE), &tables.rest)?;
    memory.write(Gpa(layout::RSDP), &tables.rsdp)?;
    memory.write(Gpa(layout::SMBIOS), &smbios::tables(&config.platform, ram))?;
    Ok(vec![
        MapEntry { start: base, end: base + PAGE_SIZE, kind: address_range::NVS },
        MapEntry { start: base + PAGE_SIZE, end: base + bytes, kind: address_range::ACPI },
    ])
}

fn place_initrd(
    placer: &mut Placer,
    kernel: &Kernel,
    protocol: BootProtocol,
    initrd: &Initrd,
) -> Result<Option<Region>, Error> {
    if initrd.is_empty() {
        return Ok(None);
    }
    let limit = match (protocol, &kernel.setup) {
        (BootProtocol::Linux64, Some(setup)) => u64::from(setup.initrd_addr_max) + 1,
        _ => HIGH_RAM,
    };
    let len = initrd.len();
    let whole = len.next_multiple_of(PAGE_SIZE);
    let start =
        placer.find(whole, PAGE_SIZE, limit, From::Top).ok_or(Error::InitrdTooLarge { bytes: len })?;
    Ok(Some(Region { start: Gpa(start), len }))
}

fn write_kernel(memory: &GuestMemory, kernel: &Kernel) -> Result<(), Error> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    for segment in &kernel.image.segments {
        let bytes = &kernel.data[segment.file.clone()];
        memory.write(Gpa(segment.paddr), bytes)?;
        let (mut at, end) = (segment.paddr + bytes.len() as u64, segment.range().end);
        while at < end {
            let len = (end - at).min(ZEROES.len() as u64);
            memory.write(Gpa(at), &ZEROES[..len as usize])?;
            at += len;
        }
    }
    Ok(())
}
