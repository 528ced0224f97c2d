//! Where parameters come from and results go: a block in memory, or registers.

use satori_defs::hyperv::Status;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};
use satori_state::{CpuState, reg};

use super::Ud;

/// The longest block: a page.
pub(super) const MAX_WORDS: usize = PAGE_SIZE as usize / 8;
/// Words that fit into the two general-purpose registers.
const GENERAL: usize = 2;
/// Words that fit into those and XMM0 to XMM5: 112 bytes.
const FAST: usize = GENERAL + 2 * 6;

/// Which of the two conventions the caller uses, by EFER.LMA and CS.L.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    X64,
    X86,
}

impl Abi {
    pub(super) fn of(cpu: &CpuState) -> Self {
        if cpu.code64() { Abi::X64 } else { Abi::X86 }
    }

    /// The input word.
    pub(super) fn control(self, cpu: &CpuState) -> u64 {
        match self {
            Abi::X64 => cpu.gpr[reg::RCX],
            Abi::X86 => pair(cpu, reg::RDX, reg::RAX),
        }
    }

    /// The first and the second argument: the addresses of input and output, or the first words
    /// of the block.
    pub(super) fn arguments(self, cpu: &CpuState) -> [u64; GENERAL] {
        match self {
            Abi::X64 => [cpu.gpr[reg::RDX], cpu.gpr[reg::R8]],
            Abi::X86 => [pair(cpu, reg::RBX, reg::RCX), pair(cpu, reg::RDI, reg::RSI)],
        }
    }

    /// Puts the result value into its registers.
    pub(super) fn give(self, cpu: &mut CpuState, result: u64) {
        match self {
            Abi::X64 => cpu.gpr[reg::RAX] = result,
            Abi::X86 => {
                cpu.gpr[reg::RAX] = result & 0xffff_ffff;
                cpu.gpr[reg::RDX] = result >> 32;
            }
        }
    }

    /// Puts the input word of a rep call back, with a new start index.
    pub(super) fn restart(self, cpu: &mut CpuState, control: u64) {
        match self {
            Abi::X64 => cpu.gpr[reg::RCX] = control,
            Abi::X86 => {
                cpu.gpr[reg::RAX] = control & 0xffff_ffff;
                cpu.gpr[reg::RDX] = control >> 32;
            }
        }
    }
}

fn pair(cpu: &CpuState, high: usize, low: usize) -> u64 {
    cpu.gpr[high] << 32 | cpu.gpr[low] & 0xffff_ffff
}

/// Why a block cannot be had.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The convention does not exist for this caller.
    Ud,
    /// The call fails.
    Status(Status),
}

impl From<Ud> for Refusal {
    fn from(_: Ud) -> Self {
        Refusal::Ud
    }
}

/// The address of a block of `words`, if it lies in one page of RAM and is aligned (TLFS 3.6).
pub(super) fn block(memory: &GuestMemory, gpa: u64, words: usize) -> Result<Gpa, Refusal> {
    let room = (PAGE_SIZE - gpa % PAGE_SIZE) / 8;
    let fits = gpa.is_multiple_of(8) && words as u64 <= room;
    if !fits || memory.page(Gpa(gpa)).is_none() {
        return Err(Refusal::Status(Status::InvalidAlignment));
    }
    Ok(Gpa(gpa))
}

/// Reads a block of memory into `words`.
pub(super) fn read_slow(memory: &GuestMemory, gpa: u64, words: &mut [u64]) -> Result<(), Refusal> {
    if words.is_empty() {
        return Ok(());
    }
    let gpa = block(memory, gpa, words.len())?;
    let mut bytes = [0; PAGE_SIZE as usize];
    let bytes = &mut bytes[..8 * words.len()];
    memory.read(gpa, bytes).map_err(|_| Refusal::Status(Status::InvalidAlignment))?;
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(())
}

/// Takes a block out of registers. Beyond two words it is in XMM registers, which is #UD where
/// `xmm` is not offered (TLFS 3.7.2).
pub(super) fn read_fast(cpu: &CpuState, xmm: bool, abi: Abi, words: &mut [u64]) -> Result<(), Refusal> {
    if words.len() > GENERAL && !xmm {
        return Err(Refusal::Ud);
    }
    if words.len() > FAST {
        return Err(Refusal::Status(Status::InvalidHypercallInput));
    }
    let general = abi.arguments(cpu);
    let vectors = cpu.fpu.ymm.iter().flat_map(|ymm| [ymm.low as u64, (ymm.low >> 64) as u64]);
    for (word, value) in words.iter_mut().zip(general.into_iter().chain(vectors)) {
        *word = value;
    }
    Ok(())
}

/// Where the output of a fast call begins behind `input` words of input, for `output` words: in
/// the next pair of registers that holds no input (TLFS 3.9.1). On x64 only.
pub(super) fn fast_output(input: usize, output: usize, xmm: bool, abi: Abi) -> Result<usize, Refusal> {
    let start = input.next_multiple_of(2);
    if !xmm || abi == Abi::X86 {
        return Err(Refusal::Ud);
    }
    if start + output > FAST {
        return Err(Refusal::Status(Status::InvalidHypercallInput));
    }
    Ok(start)
}

/// Puts `output` into registers from word `start` on.
pub(super) fn write_fast(cpu: &mut CpuState, start: usize, output: &[u64]) {
    for (at, word) in (start..).zip(output) {
        match at {
            0 => cpu.gpr[reg::RDX] = *word,
            1 => cpu.gpr[reg::R8] = *word,
            _ => {
                let xmm = &mut cpu.fpu.ymm[(at - GENERAL) / 2].low;
                let shift = 64 * (at % 2);
                *xmm = *xmm & !(u128::from(u64::MAX) << shift) | u128::from(*word) << shift;
            }
        }
    }
}
