//! Register state at a kernel's first instruction.

use satori_defs::linux::selector::{BOOT_CS, BOOT_DS, BOOT_TSS};
use satori_defs::multiboot::BOOTLOADER_MAGIC;
use satori_defs::x86::{cr0, cr4, efer, pte, rflags};
use satori_defs::xen::PVH_TSS_LIMIT;
use satori_memory::{Error, Gpa, GuestMemory};
use satori_rules as rules;
use satori_state::{CpuState, DescriptorTable, Segment, reg, seg};

use crate::bytes::put;

/// Access rights in VMX format (SDM 24.4.1): present, ring 0, accessed, 4-KiB granularity.
mod rights {
    pub(super) const CODE32: u32 = 0xc09b;
    pub(super) const CODE64: u32 = 0xa09b;
    pub(super) const DATA: u32 = 0xc093;
    pub(super) const BUSY_TSS: u32 = 0x008b;
    pub(super) const LDT_UNUSABLE: u32 = 0x1_0082;
}

/// Control registers of an entry, as a program would load them: CR4 and IA32_EFER, then CR0.
struct Control {
    cr0: u64,
    cr4: u64,
    efer: u64,
}

impl Control {
    /// What the registers hold then. The rules judge it where the crate is compiled: a constant that they refuse is an error there.
    const fn loaded(cr0: u64, cr4: u64, efer: u64) -> Control {
        let reset = rules::cr4::Around { cr3: 0, long: false };
        // PAE is in every processor that has a 64-bit mode.
        assert!(rules::cr4::legal(0, cr4, cr4::PAE, reset), "CR4 may not be loaded");
        assert!(rules::within(efer, efer::LME), "IA32_EFER may not be loaded");
        assert!(rules::cr0::legal(cr0), "CR0 may not be loaded");
        let around = rules::cr0::Around { cr4, efer, code_long: false, short_tss: false };
        match rules::cr0::paging(0, cr0, around) {
            Some(efer) => Control { cr0: rules::cr0::written(cr0), cr4, efer },
            None => panic!("paging may not be turned on"),
        }
    }
}

const PROTECTED: Control = Control::loaded(cr0::PE, 0, 0);
const LONG: Control = Control::loaded(cr0::PE | cr0::PG, cr4::PAE, efer::LME);

/// Bytes of the descriptor table: null, null, code, data, and a TSS of two slots.
pub(crate) const GDT_BYTES: u64 = 6 * 8;
/// Bytes of the identity page tables: a PML4, a PDPT, and a PD for each GiB.
pub(crate) const PAGE_TABLE_BYTES: u64 = (2 + IDENTITY_GIB) * 4096;
/// GiB that the identity page tables map.
const IDENTITY_GIB: u64 = 4;

/// The descriptor (SDM 3.4.5) of a segment with base 0.
fn descriptor(segment: &Segment) -> [u8; 8] {
    let rights = u64::from(segment.rights);
    let limit = u64::from(if rights & 1 << 15 != 0 { segment.limit >> 12 } else { segment.limit });
    (limit & 0xffff | (rights & 0xf0ff) << 40 | (limit >> 16 & 0xf) << 48).to_le_bytes()
}

fn flat(code: u32, control: Control) -> CpuState {
    let data = Segment::flat(BOOT_DS, rights::DATA);
    let mut state = CpuState {
        gpr: [0; 18],
        rflags: rflags::FIXED,
        seg: [data; 6],
        ldtr: Segment { rights: rights::LDT_UNUSABLE, ..Segment::default() },
        tr: Segment { selector: BOOT_TSS, rights: rights::BUSY_TSS, limit: PVH_TSS_LIMIT, base: 0 },
        idtr: DescriptorTable::default(),
        cr0: control.cr0,
        cr4: control.cr4,
        efer: control.efer,
        ..CpuState::default()
    };
    state.seg[seg::CS] = Segment::flat(BOOT_CS, code);
    state
}

/// The state of the boot processor at the PVH entry (Xen docs/misc/pvh.pandoc): 32-bit flat
/// segments, no paging, EBX = `start_info`. `gdt` is where [`write_gdt`] put the descriptors.
pub(crate) fn pvh(entry: u32, start_info: u32, gdt: u64) -> CpuState {
    let mut state = flat(rights::CODE32, PROTECTED);
    state.rip = entry.into();
    state.gpr[reg::RBX] = start_info.into();
    state.gdtr = DescriptorTable { base: gdt, limit: GDT_BYTES as u16 - 1 };
    state
}

/// The state at a multiboot kernel's entry (Multiboot Specification 0.6.96, 3.2): as PVH's, with
/// the magic value in EAX and EBX = `information`.
pub(crate) fn multiboot(entry: u32, information: u32, gdt: u64) -> CpuState {
    let mut state = pvh(entry, information, gdt);
    state.gpr[reg::RAX] = BOOTLOADER_MAGIC.into();
    state
}

/// The state at the entry of Linux's 64-bit boot protocol (boot.rst, "64-bit Boot Protocol"):
/// long mode, identity paging, RSI = `zero_page`.
pub(crate) fn linux64(entry: u64, zero_page: u64, gdt: u64, page_tables: u64) -> CpuState {
    let mut state = flat(rights::CODE64, LONG);
    state.rip = entry;
    state.gpr[reg::RSI] = zero_page;
    state.gdtr = DescriptorTable { base: gdt, limit: GDT_BYTES as u16 - 1 };
    state.cr3 = page_tables;
    state
}

/// The state at the entry of Linux's 32-bit boot protocol (boot.rst, "32-bit Boot Protocol"):
/// flat segments, no paging, ESI = `zero_page`.
pub(crate) fn linux32(entry: u64, zero_page: u64, gdt: u64) -> CpuState {
    let mut state = pvh(entry as u32, 0, gdt);
    state.gpr[reg::RSI] = zero_page;
    state
}

/// Writes the descriptors that `state`'s segment registers were loaded from.
pub(crate) fn write_gdt(memory: &GuestMemory, state: &CpuState) -> Result<(), Error> {
    let mut table = [0; GDT_BYTES as usize];
    for segment in [&state.seg[seg::CS], &state.seg[seg::DS], &state.tr] {
        put(&mut table, usize::from(segment.selector), descriptor(segment));
    }
    memory.write(Gpa(state.gdtr.base), &table)
}

/// Writes page tables at `base` that map the first 4 GiB to themselves in 2-MiB pages.
pub(crate) fn write_identity_map(memory: &GuestMemory, base: u64) -> Result<(), Error> {
    let mut tables = vec![0; PAGE_TABLE_BYTES as usize];
    let (pdpt, pd) = (base + 0x1000, base + 0x2000);
    put(&mut tables, 0, (pdpt | pte::P | pte::W).to_le_bytes());
    for gib in 0..IDENTITY_GIB {
        put(&mut tables, 0x1000 + gib as usize * 8, ((pd + gib * 0x1000) | pte::P | pte::W).to_le_bytes());
    }
    for page in 0..IDENTITY_GIB * 512 {
        let entry = page << 21 | pte::P | pte::W | pte::PS;
        put(&mut tables, 0x2000 + page as usize * 8, entry.to_le_bytes());
    }
    memory.write(Gpa(base), &tables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    #[test]
    fn pvh_entry_is_what_the_specification_asks_for() {
        let state = pvh(0x100_0040, 0x6000, 0x1000);
        assert_eq!((state.rip, state.gpr[reg::RBX]), (0x100_0040, 0x6000));
        assert_eq!((state.cr0, state.cr4, state.efer, state.rflags), (cr0::PE | cr0::ET, 0, 0, 2));
        let long = linux64(0, 0, 0, 0x2000);
        assert_eq!((long.cr0, long.efer), (cr0::PE | cr0::ET | cr0::PG, efer::LME | efer::LMA));
        let cs = state.seg[seg::CS];
        assert!(cs.big() && !cs.long() && cs.present() && cs.limit == u32::MAX && cs.base == 0);
        assert_eq!((state.tr.limit, state.tr.rights & 0xf), (0x67, 0xb));
        assert!(!state.long_mode() && state.cpl() == 0);
    }

    #[test]
    fn segments_of_every_entry_may_be_held_together() {
        let entries = [
            pvh(0x100_0040, 0x6000, 0x1000),
            multiboot(0x10_0000, 0x6000, 0x1000),
            linux32(0x10_0000, 0x6000, 0x1000),
            linux64(0x10_0200, 0x6000, 0x1000, 0x2000),
        ];
        for state in entries {
            let held = |segment: &Segment| rules::segment::Held {
                selector: segment.selector.into(),
                base: segment.base,
                limit: segment.limit,
                rights: segment.rights,
            };
            let [es, cs, ss, ds, fs, gs] = state.seg.each_ref().map(held);
            let wide = state.long_mode();
            let under = rules::segment::Under { wide, v86: false, real: false, unrestricted: false };
            let all = [es, cs, ss, ds, fs, gs, held(&state.ldtr), held(&state.tr)];
            assert!(rules::segment::together(all, under), "{state:?}");
            assert_eq!((state.seg[seg::CS].long(), state.cr3 != 0), (wide, wide));
        }
    }

    #[test]
    fn descriptors_are_those_that_linux_has_in_its_own_boot_code() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x4000 }]).unwrap();
        write_gdt(&memory, &linux64(0, 0, 0x1000, 0)).unwrap();
        let entry = |i: u64| memory.read_u64(Gpa(0x1000 + i * 8)).unwrap();
        assert_eq!(entry(2), 0x00af_9b00_0000_ffff);
        assert_eq!(entry(3), 0x00cf_9300_0000_ffff);
        assert_eq!(entry(4), 0x0000_8b00_0000_0067);
        write_gdt(&memory, &pvh(0, 0, 0x1000)).unwrap();
        assert_eq!(entry(2), 0x00cf_9b00_0000_ffff);
    }

    #[test]
    fn every_address_below_four_gib_maps_to_itself() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x1_0000 }]).unwrap();
        write_identity_map(&memory, 0x2000).unwrap();
        let next = |table: u64, index: u64| memory.read_u64(Gpa((table & pte::ADDR) + index * 8)).unwrap();
        for address in [0_u64, 0x1f_ffff, 0x100_0000, 0x4000_0000, 0xfee0_0000, 0xffff_ffff] {
            let pdpt = next(0x2000, address >> 39 & 511);
            let pd = next(pdpt, address >> 30 & 511);
            let page = next(pd, address >> 21 & 511);
            assert_eq!(page & (pte::PS | pte::P | pte::W), pte::PS | pte::P | pte::W);
            assert_eq!(page & pte::ADDR, address & !0x1f_ffff);
        }
        assert_eq!(next(0x2000, 1), 0);
    }
}
