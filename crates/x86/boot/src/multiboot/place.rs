//! Puts modules, sections and the information block into memory.

use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};
use satori_state::CpuState;

use super::info::Information;
use super::sections::Sections;
use crate::kernel::Way;
use crate::layout::{EBDA, HIGH_RAM, MapEntry, REAL_MODE_END};
use crate::place::{From, Placer};
use crate::{Error, Initrd, entry};

/// Where the information block goes if it can: above what real-mode code of a kernel, as the
/// trampolines of its processors, likes to use.
const INFORMATION: u64 = 0x9000;

/// Writes what a multiboot kernel reads, and gives the state at its entry. The kernel's segments,
/// and the tables, have their places already.
pub(crate) fn place(
    memory: &GuestMemory,
    placer: &mut Placer,
    way: &Way,
    initrd: &Initrd,
    cmdline: &str,
    map: &[MapEntry],
) -> Result<CpuState, Error> {
    let Way { image, data, .. } = way;
    let end = image.segments.iter().map(|segment| segment.range().end).max().unwrap_or(0);
    let above = end.next_multiple_of(PAGE_SIZE)..HIGH_RAM;
    let mut modules = Vec::new();
    for module in initrd.parts() {
        let bytes = module.data.len() as u64;
        let start = placer.find(bytes, PAGE_SIZE, above.clone(), From::Bottom);
        let start = start.ok_or(Error::InitrdTooLarge { bytes: initrd.len() })?;
        memory.write(Gpa(start), &module.data)?;
        modules.push((start as u32, (start + bytes) as u32, module.cmdline.as_bytes()));
    }
    let sections = Sections::new(data, |bytes, align| placer.find(bytes, align, above.clone(), From::Bottom));
    for (file, address) in sections.iter().flat_map(|sections| &sections.loose) {
        memory.write(Gpa(*address), &data[file.clone()])?;
    }
    let information = Information { cmdline: cmdline.as_bytes(), modules, map, sections };
    let bytes = information.bytes();
    let base = placer
        .find(bytes, PAGE_SIZE, INFORMATION..EBDA, From::Bottom)
        .or_else(|| placer.find(bytes, PAGE_SIZE, REAL_MODE_END..HIGH_RAM, From::Bottom))
        .ok_or(Error::NoRoom { what: "multiboot information", bytes })? as u32;
    memory.write(Gpa(base.into()), &information.build(base))?;
    let state = entry::multiboot(image.entry as u32, base, information.gdt(base));
    entry::write_gdt(memory, &state)?;
    Ok(state)
}
