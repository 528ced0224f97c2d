//! Both sides of the comparison.

use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use satori_arm_engine::{Arm, Exit, Offered};
use satori_arm_isa::text;
use satori_arm_jit::Translator;
use satori_arm_soft::Interpreter;
use satori_arm_state::{El, SP, Sys};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_seam::{Engine, Entropy, PartitionParts, TimeSource, Until, VcpuParts};

use crate::program::{CODE, MARGIN, MIDDLE, RECORD, RECORDS};
use crate::{Batch, Case};

/// Which of our engines is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// The interpreter.
    Interpreter,
    /// The translator, which translates all code before it is executed.
    Translator,
}

/// Where the results differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The case.
    pub case: Case,
    /// Each place: its name, what QEMU has there, what we have.
    pub places: Vec<(String, u64, u64)>,
}

impl Difference {
    /// It in some lines.
    pub fn text(&self) -> String {
        let case = &self.case;
        let mut text = format!("{:?} {:08x} {}\n", case.row.op, case.word, text(case.word));
        let (d, n, m, a) = (case.word & 31, case.word >> 5 & 31, case.word >> 16 & 31, case.word >> 10 & 31);
        for (name, register) in [("d", d), ("n", n), ("m", m), ("a", a)] {
            let x = case.x.get(register as usize).copied().unwrap_or_default();
            text.push_str(&format!("  {name}: x={x:016x} v={:032x}\n", case.v[register as usize]));
        }
        text.push_str(&format!("  nzcv={:08x} fpcr={:08x}\n", case.nzcv, case.fpcr));
        for (name, theirs, ours) in &self.places {
            text.push_str(&format!("  {name}: theirs {theirs:016x}, ours {ours:016x}\n"));
        }
        text
    }
}

/// Runs `batch` on both sides; the differences. An error is about running QEMU, or says which case it refused.
pub fn compare(batch: &Batch, engine: Ours) -> io::Result<Vec<Difference>> {
    between(batch, batch, engine)
}

/// QEMU runs `batch`, and our engine `own`, which is the same unless the comparison itself is tested.
fn between(batch: &Batch, own: &Batch, engine: Ours) -> io::Result<Vec<Difference>> {
    let theirs = qemu(batch)?;
    let ours = run(own, engine).map_err(io::Error::other)?;
    Ok((0..batch.cases.len()).filter_map(|index| differ(batch, index, &theirs, &ours)).collect())
}

fn differ(batch: &Batch, index: usize, theirs: &[u8], ours: &[u8]) -> Option<Difference> {
    let at = MARGIN as usize + index * RECORD;
    let (theirs, ours) = (&theirs[at..][..RECORD], &ours[at..][..RECORD]);
    if theirs == ours {
        return None;
    }
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().unwrap_or_default());
    let name = |at: usize| match at {
        0..248 => format!("x{}", at / 8),
        248 => "sp".into(),
        256 => "nzcv".into(),
        264 => "fpcr".into(),
        272 => "fpsr".into(),
        512..1024 => format!("v{}{}", (at - 512) / 16, if at.is_multiple_of(16) { " low" } else { " high" }),
        _ => format!("memory {:+}", at as i64 - MIDDLE as i64),
    };
    let places = (0..RECORD).step_by(8).filter(|&at| word(theirs, at) != word(ours, at));
    let places = places.map(|at| (name(at), word(theirs, at), word(ours, at))).collect();
    Some(Difference { case: batch.cases[index].clone(), places })
}

fn qemu(batch: &Batch) -> io::Result<Vec<u8>> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("satori-arm-{}-{number}.elf", std::process::id()));
    std::fs::write(&file, batch.elf())?;
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let output =
        Command::new("qemu-aarch64").args(["-cpu", "neoverse-n1"]).arg(&file).stdin(Stdio::null()).output();
    std::fs::remove_file(&file)?;
    let output = output.map_err(|why| io::Error::other(format!("qemu-aarch64: {why}: install qemu-user")))?;
    if !output.status.success() || output.stdout.len() != batch.records().len() {
        let refused = refused(batch)?;
        return Err(io::Error::other(format!("QEMU ended with {}: {refused}", output.status)));
    }
    Ok(output.stdout)
}

/// The case that QEMU does not execute, by halves; the others do nothing meanwhile.
fn refused(batch: &Batch) -> io::Result<String> {
    const NOP: u32 = 0xd503_201f;
    let working: Vec<_> = (0..batch.cases.len()).filter(|&at| batch.cases[at].word != NOP).collect();
    if let [at] = working[..] {
        let case = &batch.cases[at];
        return Ok(format!("{:?} {:08x} {}", case.row.op, case.word, text(case.word)));
    }
    let (first, second) = working.split_at(working.len() / 2);
    for half in [first, second] {
        let mut quiet = batch.clone();
        half.iter().for_each(|&at| quiet.cases[at].word = NOP);
        if let Err(why) = qemu(&quiet) {
            return Ok(why.to_string());
        }
    }
    Ok("only together".into())
}

struct NoTime;

impl TimeSource for NoTime {
    fn counter(&self) -> u64 {
        0
    }
    fn retired(&self, _: u64) {}
}

struct NoEntropy;

impl Entropy for NoEntropy {
    fn next(&mut self) -> Option<u64> {
        None
    }
}

/// The tables and the vectors.
const TABLES: u64 = 0x1000;
const VECTORS: u64 = 0x2000;

fn run(batch: &Batch, engine: Ours) -> Result<Vec<u8>, String> {
    let (code, mut records) = (batch.code(), batch.records());
    let text = |why: satori_memory::Error| why.to_string();
    let len = (RECORDS + records.len() as u64).next_multiple_of(0x20_0000);
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len }]).map_err(text)?;
    let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(Gpa(CODE), &bytes).map_err(text)?;
    memory.write(Gpa(RECORDS), &records).map_err(text)?;
    // Blocks of 1 GiB, normal memory: one that user code may read, write and execute, and the same memory again for
    // EL1, which executes nothing that user code can write.
    memory.write(Gpa(TABLES), &0x745_u64.to_le_bytes()).map_err(text)?;
    memory.write(Gpa(TABLES + 8), &0x705_u64.to_le_bytes()).map_err(text)?;
    // HVC from whatever exception: the machine's.
    for vector in 0..16 {
        memory.write(Gpa(VECTORS + vector * 0x80), &0xd400_0002_u32.to_le_bytes()).map_err(text)?;
    }
    let parts = PartitionParts {
        memory: memory.clone(),
        time: Arc::new(NoTime),
        parallel: false,
        offered: Offered { el2: false, vhe: false, counter_hz: 1_000_000_000 },
    };
    let engine: &dyn Engine<Arm> = match engine {
        Ours::Interpreter => &Interpreter { vcpus: 1 },
        Ours::Translator => &Translator::eager(1),
    };
    let partition = engine.create_partition(parts).map_err(|why| why.to_string())?;
    let mut vcpu = partition.create_vcpu(VcpuParts { index: 0, entropy: Box::new(NoEntropy) });
    let state = vcpu.state_mut(());
    state.set(Sys::TTBR0_EL1, TABLES);
    // 39 bits, no second range.
    state.set(Sys::TCR_EL1, 25 | 1 << 23 | 5 << 32);
    state.set(Sys::MAIR_EL1, 0xff << 8);
    state.set(Sys::SCTLR_EL1, state.get(Sys::SCTLR_EL1) | 1);
    state.set(Sys::CPACR_EL1, 3 << 20);
    state.set(Sys::VBAR_EL1, 1 << 30 | VECTORS);
    state.pstate.daif = 0;
    state.enter(El::Zero, false);
    state.pc = CODE;
    state.x[SP] = 0;
    let exit = vcpu.run(Until::default());
    let state = vcpu.state();
    let (esr, elr) = (state.get(Sys::ESR_EL1), state.get(Sys::ELR_EL1));
    if exit != Exit::Call || esr >> 26 != 0x15 {
        let per_case = (code.len() as u64 - 20) / batch.cases.len() as u64 * 4;
        let case = batch.cases.get((elr.wrapping_sub(CODE) / per_case) as usize);
        let case = case.map(|case| format!("{:?} {:08x}", case.row.op, case.word));
        return Err(format!("we stopped by {exit:x?} with ESR {esr:#x} at {elr:#x}: {case:?}"));
    }
    memory.read(Gpa(RECORDS), &mut records).map_err(text)?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_instructions_do_what_they_do_on_qemu() {
        for (seed, engine) in [(24, Ours::Interpreter), (25, Ours::Interpreter), (26, Ours::Translator)] {
            let found = compare(&Batch::random(seed, 3000, None), engine).expect("both sides run");
            assert!(found.is_empty(), "{} differ, first {}", found.len(), found[0].text());
        }
    }

    #[test]
    fn another_instruction_is_a_difference() {
        let batch = Batch::random(5, 20, Some("AddReg"));
        let mut other = batch.clone();
        // SUB for ADD, and XZR for a result.
        other.cases[7].word ^= 1 << 30;
        other.cases[11].word |= 31;
        let found = between(&batch, &other, Ours::Interpreter).expect("both sides run");
        assert!(!found.is_empty() && found.len() <= 2, "{found:?}");
        assert!(found[0].text().contains("theirs"));
    }
}
