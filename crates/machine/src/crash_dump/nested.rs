//! A guest of the guest as a dump has it, and the guest without it.

use std::fs::File;
use std::io;

use satori_engine::{NestedView, Stretch};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::CpuState;

use super::{CrashDump, Physical, write};
use crate::x86::MachineVcpu;

/// What is between two stretches, and no more than this, is memory that the guest has not touched yet, and reads as zero.
const GAP: u64 = 64 << 20;
/// Ranges of memory of one guest at most.
const RANGES: usize = 1024;
/// How many times the machine's memory a guest's tables may map: a page that two of them share is there twice.
const TIMES: u64 = 4;

/// The registers of each vCPU's outermost guest: while its own guest executes, what that's exit gives back.
pub(crate) fn outermost(vcpus: &[MachineVcpu], registers: &[CpuState]) -> Vec<CpuState> {
    let of = |(vcpu, state): (&MachineVcpu, &CpuState)| match vcpu.vcpu().nested() {
        Some(view) if view.inside => view.other,
        _ => state.clone(),
    };
    vcpus.iter().zip(registers).map(of).collect()
}

/// Writes memory and registers of a guest of the guest to `file`: of that which executes, or else of the one that one of the vCPUs
/// executed last. Its vCPUs are those whose tables are the same.
pub(crate) fn write_nested(
    file: &File,
    vcpus: &[MachineVcpu],
    registers: &[CpuState],
) -> io::Result<CrashDump> {
    let views: Vec<_> = vcpus.iter().map(|vcpu| vcpu.vcpu().nested()).collect();
    let first = views.iter().position(|view| view.as_ref().is_some_and(|view| view.inside));
    let first = first.or_else(|| views.iter().position(Option::is_some));
    let Some((vcpu, Some(view))) = first.map(|at| (&vcpus[at], &views[at])) else {
        return Err(io::Error::other("the guest has no guest of its own"));
    };
    let Some(tables) = view.tables else {
        return Err(io::Error::other(
            "it has no nested paging: where its memory is only its hypervisor knows",
        ));
    };
    let states: Vec<_> = (views.iter().zip(registers))
        .filter_map(|(view, state)| Some((view.as_ref().filter(|view| view.tables == Some(tables))?, state)))
        .map(|(view, state): (&NestedView<CpuState>, _)| if view.inside { state } else { &view.other })
        .cloned()
        .collect();
    let memory = Inner::new(vcpu.memory(), vcpu.vcpu().nested_memory()).map_err(io::Error::other)?;
    write(file, &memory, &states)
}

/// The physical memory of a guest's guest.
struct Inner<'a> {
    outer: &'a GuestMemory,
    stretches: Vec<Stretch>,
    regions: Vec<Region>,
}

impl<'a> Inner<'a> {
    /// What of `stretches` is memory.
    fn new(outer: &'a GuestMemory, stretches: Vec<Stretch>) -> Result<Self, &'static str> {
        let ram: Vec<Region> = outer.regions().collect();
        let all: u64 = ram.iter().map(|region| region.len).sum();
        let mut inner = Inner { outer, stretches: Vec::new(), regions: Vec::new() };
        let mut mapped = 0;
        for Stretch { inner: at, outer: to, len } in stretches {
            for region in &ram {
                let first = to.max(region.start.0);
                let end = (to + len).min(region.start.0 + region.len);
                if first < end {
                    mapped += end - first;
                    inner.push(Stretch { inner: at + (first - to), outer: first, len: end - first });
                }
            }
        }
        match inner.regions.len() {
            0 => Err("its tables map no memory"),
            _ if mapped > all.saturating_mul(TIMES) => Err("its tables map more than the machine's memory"),
            _ if inner.regions.len() > RANGES => Err("its memory is in too many pieces"),
            _ => Ok(inner),
        }
    }

    fn push(&mut self, stretch: Stretch) {
        match self.regions.last_mut() {
            Some(last) if stretch.inner - (last.start.0 + last.len) <= GAP => {
                last.len = stretch.inner + stretch.len - last.start.0;
            }
            _ => self.regions.push(Region { start: Gpa(stretch.inner), len: stretch.len }),
        }
        self.stretches.push(stretch);
    }
}

impl Physical for Inner<'_> {
    fn regions(&self) -> Vec<Region> {
        self.regions.clone()
    }

    fn read(&self, from: Gpa, to: &mut [u8]) -> bool {
        let end = from.0 + to.len() as u64;
        if !self.regions.iter().any(|region| region.start.0 <= from.0 && end <= region.start.0 + region.len) {
            return false;
        }
        to.fill(0);
        let begin = self.stretches.partition_point(|stretch| stretch.inner + stretch.len <= from.0);
        for stretch in self.stretches[begin..].iter().take_while(|stretch| stretch.inner < end) {
            let first = from.0.max(stretch.inner);
            let last = end.min(stretch.inner + stretch.len);
            let part = &mut to[(first - from.0) as usize..(last - from.0) as usize];
            if self.outer.read(Gpa(stretch.outer + (first - stretch.inner)), part).is_err() {
                return false;
            }
        }
        true
    }
}
