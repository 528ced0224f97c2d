//! The notes of a core file: registers, and what Linux tells about itself.

use satori_defs::elf::{NT_PRSTATUS, VMCOREINFO, VMCOREINFO_BYTES, prstatus, qemu};
use satori_defs::x86::PAGE_SIZE;
use satori_memory::Gpa;
use satori_state::reg::*;
use satori_state::seg::{CS, DS, ES, FS, GS, SS};
use satori_state::{CpuState, Segment};

use super::Physical;

/// All notes, each padded to four bytes.
pub(super) fn all(vcpus: &[CpuState], vmcoreinfo: Option<&[u8]>) -> Vec<u8> {
    let mut notes = Vec::new();
    for (index, state) in (1u32..).zip(vcpus) {
        add(&mut notes, b"CORE", NT_PRSTATUS, &registers(index, state));
    }
    // All of a kind together, as QEMU writes them: `crash` counts on that.
    for state in vcpus {
        add(&mut notes, b"QEMU", 0, &system_registers(state));
    }
    if let Some(text) = vmcoreinfo {
        add(&mut notes, VMCOREINFO, 0, text);
    }
    notes
}

fn add(notes: &mut Vec<u8>, name: &[u8], kind: u32, content: &[u8]) {
    // The name ends with a zero, which counts.
    notes.extend([name.len() as u32 + 1, content.len() as u32, kind].map(u32::to_le_bytes).concat());
    for part in [&[name, b"\0"].concat(), content] {
        notes.extend(part);
        notes.resize(notes.len().next_multiple_of(4), 0);
    }
}

/// NT_PRSTATUS: a vCPU as a thread, numbered from 1.
fn registers(number: u32, state: &CpuState) -> Vec<u8> {
    let general = |index: usize| state.gpr[index];
    let selector = |index: usize| u64::from(state.seg[index].selector);
    let mut values =
        [R15, R14, R13, R12, RBP, RBX, R11, R10, R9, R8, RAX, RCX, RDX, RSI, RDI].map(general).to_vec();
    // orig_rax: not in a system call.
    values.push(u64::MAX);
    values.extend([state.rip, selector(CS), state.rflags, general(RSP), selector(SS)]);
    values.extend([state.seg[FS].base, state.seg[GS].base]);
    values.extend([DS, ES, FS, GS].map(selector));
    let mut note = vec![0; prstatus::BYTES];
    note[prstatus::PID..prstatus::PID + 4].copy_from_slice(&number.to_le_bytes());
    for (at, value) in (prstatus::REG..).step_by(8).zip(values) {
        note[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    note
}

/// QEMUCPUState: what a thread does not have.
fn system_registers(state: &CpuState) -> Vec<u8> {
    let mut note = [qemu::VERSION, qemu::BYTES].map(u32::to_le_bytes).concat();
    let order = [RAX, RBX, RCX, RDX, RSI, RDI, RSP, RBP, R8, R9, R10, R11, R12, R13, R14, R15];
    note.extend(order.map(|index| state.gpr[index].to_le_bytes()).concat());
    note.extend([state.rip, state.rflags].map(u64::to_le_bytes).concat());
    for index in [CS, DS, ES, FS, GS, SS] {
        note.extend(segment(&state.seg[index]));
    }
    note.extend([state.ldtr, state.tr].iter().flat_map(segment));
    for table in [state.gdtr, state.idtr] {
        note.extend(segment(&Segment { base: table.base, limit: table.limit.into(), ..Segment::default() }));
    }
    let control = [state.cr0, 0, state.cr2, state.cr3, state.cr4, state.kernel_gs_base];
    note.extend(control.map(u64::to_le_bytes).concat());
    note
}

/// Selector, limit, flags where a descriptor has them, padding, base.
fn segment(segment: &Segment) -> Vec<u8> {
    let words = [segment.selector.into(), segment.limit, segment.rights << 8, 0];
    let mut bytes = words.map(u32::to_le_bytes).concat();
    bytes.extend(segment.base.to_le_bytes());
    bytes
}

/// What Linux tells about itself, from the note that it keeps ready at the start of a page for
/// the kernel that kexec starts after a crash. It is looked for, so that a guest needs no driver.
pub(super) fn vmcoreinfo(memory: &dyn Physical) -> Option<Vec<u8>> {
    memory.regions().into_iter().find_map(|region| {
        let mut pages = (region.start.0..region.start.0 + region.len).step_by(PAGE_SIZE as usize);
        pages.find_map(|page| note_at(memory, Gpa(page)))
    })
}

fn note_at(memory: &dyn Physical, gpa: Gpa) -> Option<Vec<u8>> {
    let mut head = [0; 24];
    memory.read(gpa, &mut head).then_some(())?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let len = word(4) as usize;
    let named = word(0) == VMCOREINFO.len() as u32 + 1 && word(8) == 0 && head[12..22] == VMCOREINFO[..];
    if !named || !(1..=VMCOREINFO_BYTES).contains(&len) {
        return None;
    }
    let mut text = vec![0; len];
    memory.read(gpa.add(24), &mut text).then_some(())?;
    text.starts_with(b"OSRELEASE=").then_some(text)
}
