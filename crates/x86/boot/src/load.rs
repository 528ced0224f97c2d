//! Places a parsed kernel and all that it reads into guest memory.

use satori_defs::acpi::address_range;
use satori_defs::linux::COMMAND_LINE_SIZE;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::CpuState;

use crate::image::Image;
use crate::kernel::Way;
use crate::layout::{self, HIGH_RAM, MapEntry};
use crate::params::{self, Places, PvhModule};
use crate::place::{From, Placer};
use crate::{Error, Initrd, Kernel, Module, Smbios, acpi, entry, firmware, multiboot, smbios};

/// What a Linux is told when nobody says otherwise: where its console is.
pub const DEFAULT_CMDLINE: &str = "console=ttyS0";

/// Longest command line of a multiboot kernel; the specification knows no limit.
const MULTIBOOT_CMDLINE_MAX: usize = 32 << 10;

/// How a kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootProtocol {
    /// Multiboot 1: 32-bit, no paging, at the entry point.
    Multiboot,
    /// Xen's PVH: 32-bit, no paging, at the ELF note's address.
    Pvh,
    /// Linux's 64-bit boot protocol, at e_entry.
    Linux64,
    /// Linux's 32-bit boot protocol: a bzImage unpacks itself.
    Linux32,
}

impl BootProtocol {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            BootProtocol::Multiboot => "multiboot",
            BootProtocol::Pvh => "PVH",
            BootProtocol::Linux64 => "the Linux 64-bit boot protocol",
            BootProtocol::Linux32 => "the Linux 32-bit boot protocol",
        }
    }
}

/// Which protocol to enter by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolChoice {
    /// The first that the kernel offers: multiboot, as QEMU does, then PVH, then Linux's.
    #[default]
    Auto,
    /// The first of Linux's protocols that the kernel offers.
    Linux,
    /// The first that the kernel offers but PVH's.
    NotPvh,
    /// This one.
    Only(BootProtocol),
}

/// The kernel's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cmdline {
    /// All of it.
    Whole(String),
    /// What is added to [`DEFAULT_CMDLINE`], or to nothing for a kernel that takes modules: it is told
    /// only what it asked for.
    Added(String),
    /// The same, for a guest whose console is a terminal of these rows and columns, of which a serial line tells
    /// nothing: in the words of systemd 254 and later (kernel-command-line(7)), which other inits may read.
    On(String, (u16, u16)),
}

impl Default for Cmdline {
    fn default() -> Self {
        Cmdline::Added(String::new())
    }
}

impl Cmdline {
    /// The whole text, for a Linux or a kernel that takes `modules`.
    fn text(&self, modules: bool) -> String {
        match self {
            Cmdline::Whole(text) => text.clone(),
            Cmdline::Added(text) | Cmdline::On(text, _) if modules => text.clone(),
            Cmdline::On(text, (rows, columns)) => format!(
                "{} systemd.tty.rows.ttyS0={rows} systemd.tty.columns.ttyS0={columns}",
                Cmdline::Added(text.clone()).text(false)
            ),
            Cmdline::Added(text) if text.is_empty() => DEFAULT_CMDLINE.into(),
            Cmdline::Added(text) => format!("{DEFAULT_CMDLINE} {text}"),
        }
    }
}

/// What to load besides the kernel.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The kernel file's name, which a multiboot kernel finds before its command line.
    pub kernel_name: String,
    /// The kernel command line.
    pub cmdline: Cmdline,
    /// The initrds, or modules; empty for none.
    pub initrd: Initrd,
    /// What the tables tell about the machine.
    pub platform: acpi::Platform,
    /// What the SMBIOS tables tell besides.
    pub smbios: Smbios,
    /// The protocol to enter by.
    pub protocol: ProtocolChoice,
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

impl Loaded {
    /// Where the FACS is, which alone is ACPI NVS.
    pub fn facs(&self) -> Option<Gpa> {
        self.map.iter().find(|entry| entry.kind == address_range::NVS).map(|entry| Gpa(entry.start))
    }
}

/// Puts `kernel` and what `config` asks for into `memory`, which has RAM at 0.
///
/// Everything is written again, so that a reset may load into memory that was used; what is
/// not written keeps its contents.
pub fn load(memory: &GuestMemory, kernel: &Kernel, config: &Config) -> Result<Loaded, Error> {
    let way = choose(kernel, config.protocol)?;
    let protocol = way.protocol;
    let takes_modules = takes_modules(kernel, protocol);
    if !takes_modules && config.initrd.parts().iter().any(|part| part.modules_only) {
        return Err(Error::Modules { protocol: protocol.name() });
    }
    let cmdline = config.cmdline.text(takes_modules);
    check_cmdline(kernel, protocol, &cmdline)?;
    let cpus = config.platform.apic_ids.len() as u32;
    if cpus == 0 || cpus > acpi::CPUS_MAX {
        return Err(Error::Cpus { cpus, max: acpi::CPUS_MAX });
    }
    let ram: Vec<Region> = memory.regions().collect();
    let low_end = ram.first().filter(|first| first.start.0 == 0).map_or(0, |first| first.len);
    let smbios = smbios::tables(&config.platform, &config.smbios, &ram)?;
    let mut placer = match protocol {
        // Its linker may have put it anywhere; only what firmware would have put there stays.
        BootProtocol::Multiboot => {
            let mut placer = Placer::without_legacy(low_end);
            placer.keep_clear(layout::RSDP..layout::RSDP + acpi::RSDP_BYTES);
            placer.keep_clear(layout::SMBIOS..layout::SMBIOS + smbios.len() as u64);
            placer
        }
        _ => Placer::new(low_end),
    };
    take_kernel(&mut placer, kernel, &way.image)?;
    placer.keep_legacy_clear();
    let carved = place_tables(memory, &mut placer, config)?;
    firmware::write(memory)?;
    memory.write(Gpa(layout::SMBIOS), &smbios)?;
    let map = layout::memory_map(&ram, &carved, config.platform.ecam);
    let (entry, initrd) = match protocol {
        BootProtocol::Multiboot => {
            let named = [config.kernel_name.as_str(), &cmdline].join(" ");
            (multiboot::place(memory, &mut placer, way, &config.initrd, named.trim(), &map)?, None)
        }
        _ => place_linux(memory, &mut placer, kernel, way, &config.initrd, &cmdline, &map)?,
    };
    write_kernel(memory, way)?;
    Ok(Loaded { entry, protocol, map, initrd })
}

/// Whether `kernel`, entered by `protocol`, is given each file as a module of its own, with its arguments; others have one initrd, as
/// Linux has at its PVH entry, too.
fn takes_modules(kernel: &Kernel, protocol: BootProtocol) -> bool {
    match protocol {
        BootProtocol::Multiboot => true,
        BootProtocol::Pvh => kernel.info.version.is_none(),
        BootProtocol::Linux64 | BootProtocol::Linux32 => false,
    }
}

/// What a kernel reads that is entered by PVH or a protocol of Linux.
fn place_linux(
    memory: &GuestMemory,
    placer: &mut Placer,
    kernel: &Kernel,
    way: &Way,
    initrd: &Initrd,
    cmdline: &str,
    map: &[MapEntry],
) -> Result<(CpuState, Option<Region>), Error> {
    let separate = takes_modules(kernel, way.protocol);
    let region = if separate { None } else { place_initrd(placer, kernel, way.protocol, initrd)? };
    let mut modules = match region {
        Some(region) => vec![PvhModule { at: region.start.0, len: region.len, cmdline: 0 }],
        None if separate => place_modules(memory, placer, initrd)?,
        None => Vec::new(),
    };
    let mut room = |what, bytes: u64| {
        placer.find(bytes, PAGE_SIZE, 0..HIGH_RAM, From::Bottom).ok_or(Error::NoRoom { what, bytes })
    };
    let cmdline = [cmdline.as_bytes(), b"\0"].concat();
    let places = Places {
        cmdline: room("command line", cmdline.len() as u64)?,
        initrd: region.map_or(0, |region| region.start.0),
        initrd_len: initrd.len(),
        rsdp: layout::RSDP,
    };
    let gdt = room("descriptor table", entry::GDT_BYTES)?;
    let entry = match way.protocol {
        BootProtocol::Linux64 => {
            let tables = room("page tables", entry::PAGE_TABLE_BYTES)?;
            let at = room("zero page", PAGE_SIZE)?;
            entry::write_identity_map(memory, tables)?;
            memory.write(Gpa(at), &params::zero_page(kernel.setup.as_ref(), &places, map))?;
            entry::linux64(way.image.entry, at, gdt, tables)
        }
        BootProtocol::Linux32 => {
            let at = room("zero page", PAGE_SIZE)?;
            memory.write(Gpa(at), &params::zero_page(kernel.setup.as_ref(), &places, map))?;
            entry::linux32(way.image.entry, at, gdt)
        }
        BootProtocol::Pvh | BootProtocol::Multiboot => {
            for (module, part) in modules.iter_mut().zip(initrd.parts()).filter(|_| separate) {
                let Some(arguments) = part.arguments() else { continue };
                let text = [arguments.as_bytes(), b"\0"].concat();
                module.cmdline = room("command line of a module", text.len() as u64)?;
                memory.write(Gpa(module.cmdline), &text)?;
            }
            let bytes = params::start_info_bytes(modules.len(), map.len()) as u64;
            let at = room("start info", bytes)?;
            memory.write(Gpa(at), &params::start_info(at, &places, &modules, map))?;
            entry::pvh(way.image.pvh_entry.unwrap_or(0), at as u32, gdt)
        }
    };
    entry::write_gdt(memory, &entry)?;
    memory.write(Gpa(places.cmdline), &cmdline)?;
    if let Some(region) = region {
        initrd.write(memory, region.start)?;
    }
    Ok((entry, region))
}

/// Whether `kernel`, entered as `wanted`, is code of 64 bits or will soon come to it. A multiboot kernel
/// begins with 32 bits and may stay there.
pub fn needs_long_mode(kernel: &Kernel, wanted: ProtocolChoice) -> bool {
    choose(kernel, wanted).is_ok_and(|way| way.protocol != BootProtocol::Multiboot)
        && kernel.ways.iter().any(|way| way.protocol != BootProtocol::Multiboot && way.image.is_64bit)
}

fn choose(kernel: &Kernel, wanted: ProtocolChoice) -> Result<&Way, Error> {
    let fits = |way: &&Way| match wanted {
        ProtocolChoice::Auto => true,
        ProtocolChoice::NotPvh => way.protocol != BootProtocol::Pvh,
        ProtocolChoice::Linux => matches!(way.protocol, BootProtocol::Linux64 | BootProtocol::Linux32),
        ProtocolChoice::Only(protocol) => way.protocol == protocol,
    };
    kernel.ways.iter().find(fits).ok_or_else(|| {
        let (wanted, why) = match wanted {
            ProtocolChoice::Linux => ("a Linux boot protocol", "it is no Linux"),
            ProtocolChoice::Auto => ("any protocol", "it offers none"),
            ProtocolChoice::NotPvh => ("a protocol that is not PVH's", "it offers none"),
            ProtocolChoice::Only(protocol) => (
                protocol.name(),
                match protocol {
                    BootProtocol::Multiboot => "it has no multiboot header",
                    BootProtocol::Pvh => "it has no PVH note",
                    BootProtocol::Linux64 => "it is not a 64-bit Linux",
                    BootProtocol::Linux32 => "it is no bzImage",
                },
            ),
        };
        Error::Protocol { wanted, why }
    })
}

fn check_cmdline(kernel: &Kernel, protocol: BootProtocol, cmdline: &str) -> Result<(), Error> {
    let own = kernel.setup.as_ref().map(|setup| setup.cmdline_size as usize).filter(|&size| size != 0);
    let max = match (protocol, own) {
        (BootProtocol::Linux64 | BootProtocol::Linux32, Some(own)) => own.min(COMMAND_LINE_SIZE - 1),
        (BootProtocol::Multiboot, _) => MULTIBOOT_CMDLINE_MAX,
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
fn take_kernel(placer: &mut Placer, kernel: &Kernel, image: &Image) -> Result<(), Error> {
    for segment in &image.segments {
        let range = segment.range();
        if !placer.take(range.clone()) {
            return Err(Error::KernelRange { start: range.start, end: range.end });
        }
    }
    let start = image.start();
    let init_size = kernel.setup.as_ref().map_or(0, |setup| u64::from(setup.init_size));
    let last = image.segments.iter().map(|segment| segment.range().end).max().unwrap_or(0);
    let end = last.next_multiple_of(2 << 20).max(start + init_size);
    placer.keep_clear(start..end);
    Ok(())
}

/// ACPI tables go to the top of low RAM, their pointer into the legacy hole.
fn place_tables(memory: &GuestMemory, placer: &mut Placer, config: &Config) -> Result<Vec<MapEntry>, Error> {
    let bytes = acpi::tables(&config.platform, 0).bytes();
    let what = "ACPI tables";
    let base = placer.find(bytes, PAGE_SIZE, 0..HIGH_RAM, From::Top).ok_or(Error::NoRoom { what, bytes })?;
    let tables = acpi::tables(&config.platform, base as u32);
    memory.write(Gpa(base), &tables.facs)?;
    memory.write(Gpa(base + PAGE_SIZE), &tables.rest)?;
    memory.write(Gpa(layout::RSDP), &tables.rsdp)?;
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
        (BootProtocol::Linux64 | BootProtocol::Linux32, Some(setup)) => u64::from(setup.initrd_addr_max) + 1,
        _ => HIGH_RAM,
    };
    let len = initrd.len();
    let whole = len.next_multiple_of(PAGE_SIZE);
    let start =
        placer.find(whole, PAGE_SIZE, 0..limit, From::Top).ok_or(Error::InitrdTooLarge { bytes: len })?;
    Ok(Some(Region { start: Gpa(start), len }))
}

/// Puts each file at whole pages of its own.
fn place_modules(
    memory: &GuestMemory,
    placer: &mut Placer,
    initrd: &Initrd,
) -> Result<Vec<PvhModule>, Error> {
    let mut place = |part: &Module| {
        let len = part.data.len() as u64;
        let at = placer.find(len.next_multiple_of(PAGE_SIZE), PAGE_SIZE, 0..HIGH_RAM, From::Top);
        let at = at.ok_or(Error::InitrdTooLarge { bytes: initrd.len() })?;
        memory.write(Gpa(at), &part.data)?;
        Ok(PvhModule { at, len, cmdline: 0 })
    };
    initrd.parts().iter().map(&mut place).collect()
}

fn write_kernel(memory: &GuestMemory, way: &Way) -> Result<(), Error> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    for segment in &way.image.segments {
        let bytes = &way.data[segment.file.clone()];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_follows_the_default_of_linux() {
        let linux = |cmdline: Cmdline| cmdline.text(false);
        assert_eq!(linux(Cmdline::default()), "console=ttyS0");
        assert_eq!(linux(Cmdline::Added("quiet".into())), "console=ttyS0 quiet");
        let on = Cmdline::On("quiet".into(), (24, 80));
        let told = "console=ttyS0 quiet systemd.tty.rows.ttyS0=24 systemd.tty.columns.ttyS0=80";
        assert_eq!((linux(on.clone()).as_str(), on.text(true).as_str()), (told, "quiet"));
        assert_eq!(linux(Cmdline::Whole(String::new())), "");
        assert_eq!(Cmdline::Added("quiet".into()).text(true), "quiet");
        assert_eq!(Cmdline::default().text(true), "");
    }
}
