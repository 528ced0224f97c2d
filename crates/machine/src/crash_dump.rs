//! `--crash-dump`: a guest's memory and registers as an ELF core file, which gdb and `crash` open; `--crash-dump-l2`: those of a guest
//! that it has itself.
//!
//! RAM stands in the file once, each region at its physical address. The address space of a vCPU
//! points into it by further program headers, so that gdb finds the kernel, its stacks and what it allocated where
//! the guest's own symbols say they are, wherever the kernel has put itself.

mod mappings;
mod nested;
mod notes;

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use satori_defs::elf::{self, EHDR_BYTES, PHDR_BYTES};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::CpuState;

use mappings::Run;
pub(crate) use nested::{outermost, write_nested};

/// What is read and written at a time.
const CHUNK: usize = 1 << 20;
/// What is left out of a file where all of it is zero.
const HOLE: usize = 4096;
/// Regions begin at such offsets of the file.
const ALIGN: u64 = 4096;

/// What a dump holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashDump {
    /// Bytes of guest memory.
    pub memory: u64,
    /// Stretches of linear addresses that can be looked up.
    pub mappings: usize,
    /// Whether Linux's VMCOREINFO was found.
    pub vmcoreinfo: bool,
}

/// A guest's physical memory, for who reads it.
pub(crate) trait Physical {
    /// Where it is, in ascending order.
    fn regions(&self) -> Vec<Region>;
    /// Fills `to`; false where there is no memory.
    fn read(&self, from: Gpa, to: &mut [u8]) -> bool;
}

impl Physical for GuestMemory {
    fn regions(&self) -> Vec<Region> {
        self.regions().collect()
    }

    fn read(&self, from: Gpa, to: &mut [u8]) -> bool {
        self.read(from, to).is_ok()
    }
}

/// Writes `memory` and the registers of `vcpus` to `file`.
pub(crate) fn write(mut file: &File, memory: &dyn Physical, vcpus: &[CpuState]) -> io::Result<CrashDump> {
    // What a former run left is not this guest's; a pipe has no such thing, and no holes.
    // Tried, as the sandbox does not let one ask.
    let seekable = file.set_len(0).is_ok();
    if seekable {
        file.seek(SeekFrom::Start(0))?;
    }
    let regions = memory.regions();
    let room = elf::PN_XNUM - 2 - regions.len();
    let runs = mappings::of(memory, vcpus, room);
    let vmcoreinfo = notes::vmcoreinfo(memory);
    let notes = notes::all(vcpus, vmcoreinfo.as_deref());

    let headers = EHDR_BYTES + PHDR_BYTES * (1 + regions.len() + runs.len());
    let mut at = (headers as u64 + notes.len() as u64).next_multiple_of(ALIGN);
    let mut places = Vec::new();
    for region in &regions {
        places.push((*region, at));
        at += region.len;
    }

    let mut head = Vec::with_capacity(headers + notes.len());
    head.extend(file_header(1 + regions.len() + runs.len()));
    let length = notes.len() as u64;
    head.extend(program_header(elf::PT_NOTE, headers as u64, 0, 0, length));
    for Run { linear, physical, len } in &runs {
        let home = places.iter().find(|(region, _)| physical.wrapping_sub(region.start.0) < region.len);
        let offset = home.map_or(0, |(region, offset)| offset + (physical - region.start.0));
        head.extend(program_header(elf::PT_LOAD, offset, *linear, *physical, *len));
    }
    // Behind the others: makedumpfile takes the first for Linux' map of all memory.
    for (region, offset) in &places {
        head.extend(program_header(elf::PT_LOAD, *offset, region.start.0, region.start.0, region.len));
    }
    head.extend(&notes);
    head.resize(head.len().next_multiple_of(ALIGN as usize), 0);

    let mut out = BufWriter::with_capacity(CHUNK, file);
    out.write_all(&head)?;
    let mut chunk = vec![0; CHUNK];
    for (region, _) in &places {
        copy(memory, *region, &mut chunk, &mut out, seekable)?;
    }
    out.flush()?;
    drop(out);
    if seekable {
        // The last hole is part of the file.
        file.set_len(at)?;
    }
    Ok(CrashDump {
        memory: regions.iter().map(|region| region.len).sum(),
        mappings: runs.len(),
        vmcoreinfo: vmcoreinfo.is_some(),
    })
}

/// Copies a region; pages without content become holes where there can be any.
fn copy(
    memory: &dyn Physical,
    region: Region,
    chunk: &mut [u8],
    out: &mut BufWriter<&File>,
    seekable: bool,
) -> io::Result<()> {
    let mut hole = 0i64;
    let mut done = 0;
    while done < region.len {
        let part = &mut chunk[..(region.len - done).min(CHUNK as u64) as usize];
        if !memory.read(Gpa(region.start.0 + done), part) {
            return Err(io::Error::other("its memory cannot be read"));
        }
        for page in part.chunks(HOLE) {
            if seekable && page.iter().all(|byte| *byte == 0) {
                hole += page.len() as i64;
                continue;
            }
            if hole != 0 {
                out.seek(SeekFrom::Current(std::mem::take(&mut hole)))?;
            }
            out.write_all(page)?;
        }
        done += part.len() as u64;
    }
    if hole != 0 {
        out.seek(SeekFrom::Current(hole))?;
    }
    Ok(())
}

fn file_header(segments: usize) -> Vec<u8> {
    let mut header = elf::IDENT.to_vec();
    header.extend(elf::ET_CORE.to_le_bytes());
    header.extend(elf::EM_X86_64.to_le_bytes());
    header.extend(elf::EV_CURRENT.to_le_bytes());
    // e_entry, e_phoff, e_shoff, e_flags.
    header.extend([0, EHDR_BYTES as u64, 0].map(u64::to_le_bytes).concat());
    header.extend(0u32.to_le_bytes());
    // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
    let words = [EHDR_BYTES, PHDR_BYTES, segments, 0, 0, 0].map(|word| (word as u16).to_le_bytes());
    header.extend(words.concat());
    header
}

fn program_header(kind: u32, offset: u64, linear: u64, physical: u64, len: u64) -> Vec<u8> {
    let flags = if kind == elf::PT_LOAD { elf::PF_RWX } else { 0 };
    let mut header = [kind, flags].map(u32::to_le_bytes).concat();
    let align = if kind == elf::PT_LOAD { ALIGN } else { 4 };
    header.extend([offset, linear, physical, len, len, align].map(u64::to_le_bytes).concat());
    header
}

#[cfg(test)]
mod tests;
