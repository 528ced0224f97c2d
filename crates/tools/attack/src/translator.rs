//! Machine code of 64-bit mode that gets hot: executed several times on the translator, and an instruction at a
//! time on the interpreter. Both must do the same.

use std::cell::RefCell;

use arbitrary::{Result, Unstructured};
use iced_x86::{Instruction, Mnemonic, OpKind};
use satori_compare::{next_instruction, undefined};
use satori_defs::x86::pte;
use satori_engine::{Exit, Parts, Until, Vcpu, X86};
use satori_jit::Translator;
use satori_memory::{Gpa, GuestMemory, Region};
use satori_soft::Interpreter;
use satori_state::{Activity, CpuState, reg};

use super::instructions::{Case, HANDLERS, Mode, PML4, RAM, answered, case_in, vcpu};

/// Times that the code is executed.
const TIMES: usize = 5;
/// Executions of a block before it is translated.
const HOT: u32 = 2;
/// Instructions of one time.
const BUDGET: u64 = 300;
/// Exits of one time, as some complete nothing.
const EXITS: usize = 100;
/// Page tables and page directories.
const TABLES: std::ops::Range<usize> = PML4 as usize..HANDLERS as usize;

thread_local! {
    static MEMORY: RefCell<Option<(GuestMemory, Translator)>> = const { RefCell::new(None) };
}

/// Any code of 64-bit mode, in a loop that the input's registers bound.
pub fn translator(data: &[u8]) {
    let _too_short = entries(data);
}

/// The same; how often translated code was entered.
pub(super) fn entries(data: &[u8]) -> Result<u64> {
    let mut u = Unstructured::new(data);
    let cut = *u.choose(&[3, 40, BUDGET])?;
    let mut case = case_in(&mut u, Mode::Long)?;
    // DEC R13; JNE to where the code begins; HLT.
    let begin = case.state.rip;
    let mut tail = vec![0x49, 0xff, 0xcd, 0x0f, 0x85];
    tail.extend((begin as i64 - case.end as i64 - 9).to_le_bytes()[..4].iter());
    tail.push(0xf4);
    case.ram[case.end as usize..][..tail.len()].copy_from_slice(&tail);
    case.state.gpr[reg::R13] = 1 + case.state.gpr[reg::R13] % 40;
    Ok(compare(&case, cut))
}

/// What one time leaves.
#[derive(Debug)]
struct Left {
    state: CpuState,
    retired: u64,
    exits: Vec<Exit>,
    /// The last instruction was completed.
    completed: bool,
    /// Status flags that are undefined then.
    undefined: u64,
}

/// Executes `case` on both and compares; how often translated code was entered.
fn compare(case: &Case, cut: u64) -> u64 {
    MEMORY.with_borrow_mut(|shared| {
        let (memory, engine) = shared.get_or_insert_with(|| {
            let regions = [Region { start: Gpa(0), len: RAM }];
            (GuestMemory::new(&regions).expect("256 KiB can be reserved"), Translator::after(HOT))
        });
        let mut one = vcpu(&Interpreter, case, memory);
        let mut right = Vec::new();
        while right.len() < TIMES {
            let Some(left) = in_steps(&mut *one, case, memory) else { break };
            // The tables may be cached as they were or read as they are (SDM 4.10.2.3).
            if tables(memory) != of_tables(&case.ram[TABLES]) {
                break;
            }
            right.push(left);
        }
        let whole = (right.len() == TIMES).then(|| ram(memory));
        let mut other = vcpu(&*engine, case, memory);
        for (time, right) in right.iter().enumerate() {
            let mut left = at_once(&mut *other, case, cut);
            left.state.rflags &= !right.undefined;
            let mut expected = right.state.clone();
            expected.rflags &= !right.undefined;
            if left.state != expected || left.retired != right.retired || left.exits != right.exits {
                let (one, other) = (format!("{expected:#x?}"), format!("{:#x?}", left.state));
                let lines = one.lines().zip(other.lines()).filter(|(one, other)| one != other);
                let lines: Vec<_> = lines.map(|(one, other)| format!("{one} against {other}")).collect();
                panic!(
                    "{:#x?}\ntime {time}, interpreter against translator: {} and {} instructions, {:x?} and {:x?}\n{}",
                    case.state,
                    right.retired,
                    left.retired,
                    right.exits,
                    left.exits,
                    lines.join("\n")
                );
            }
        }
        if let Some(whole) = whole {
            let mut now = ram(memory);
            // A fetch that is predicted may come to nothing, and its page counts as accessed all the same (SDM 3, 4.8).
            for at in TABLES.step_by(8) {
                now[at] &= !(pte::A as u8) | whole[at];
            }
            let differs: Vec<_> = (0..now.len()).filter(|at| now[*at] != whole[*at]).take(16).collect();
            assert!(differs.is_empty(), "{:#x?}\nmemory differs at {differs:x?}", case.state);
        }
        let stats = other.stats();
        stats.iter().find(|stat| stat.0 == "entries of translated code").map_or(0, |stat| stat.1)
    })
}

fn ram(memory: &GuestMemory) -> Vec<u8> {
    let mut ram = vec![0; RAM as usize];
    memory.read(Gpa(0), &mut ram).expect("it is RAM");
    ram
}

fn tables(memory: &GuestMemory) -> Vec<u64> {
    of_tables(&ram(memory)[TABLES])
}

/// Entries without what the processor notes in them.
fn of_tables(bytes: &[u8]) -> Vec<u64> {
    let entries = bytes.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
    entries.map(|entry| entry & !(pte::A | pte::D)).collect()
}

/// Executes the code once more, `cut` instructions at a time.
fn at_once(vcpu: &mut dyn Vcpu<X86>, case: &Case, cut: u64) -> Left {
    execute(vcpu, case, cut, |_, _| true).expect("nothing stops it")
}

/// Executes the code once more, an instruction at a time. Nothing if it depends on what is undefined.
fn in_steps(vcpu: &mut dyn Vcpu<X86>, case: &Case, memory: &GuestMemory) -> Option<Left> {
    let mut undefined = 0;
    let mut before: Option<(Instruction, u64)> = None;
    let mut look = |vcpu: &mut dyn Vcpu<X86>, completed: bool| {
        let handled = (HANDLERS..HANDLERS + 0x200).contains(&vcpu.state().rip);
        if let Some((insn, rcx)) = before.take() {
            if handled && undefined != 0 {
                return false;
            }
            if !handled {
                undefined = if completed { undefined & !undefined::defined(&insn, rcx) } else { undefined }
                    | undefined::flags(&insn, rcx);
            }
        }
        // What is no instruction faults, and what it leaves on the stack has the flags.
        let Some(insn) = next_instruction(vcpu, memory) else { return undefined == 0 };
        let enters = matches!(
            insn.mnemonic(),
            Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3
        );
        before = Some((insn, vcpu.state().gpr[reg::RCX]));
        let reads = undefined::status(insn.rflags_read());
        !(reads & undefined != 0 || enters && undefined != 0 || of_no_definition(&insn))
    };
    let left = execute(vcpu, case, 1, &mut look)?;
    look(vcpu, left.completed).then_some(Left { undefined, ..left })
}

/// Executes the code once more; `look` is asked before each piece, told whether the last one completed, and may
/// stop it.
fn execute(
    vcpu: &mut dyn Vcpu<X86>,
    case: &Case,
    piece: u64,
    mut look: impl FnMut(&mut dyn Vcpu<X86>, bool) -> bool,
) -> Option<Left> {
    *vcpu.state_mut(Parts::ALL) = case.state.clone();
    vcpu.state_mut(Parts::ALL).activity = Activity::Active;
    vcpu.flush_tlb();
    let end = vcpu.retired() + BUDGET;
    let (mut exits, mut completed) = (Vec::new(), true);
    let mut answers = case.answers.iter().cycle();
    while vcpu.retired() < end && exits.len() < EXITS {
        if !look(vcpu, completed) {
            return None;
        }
        let left = (end - vcpu.retired()).min(piece);
        let exit = vcpu.run(Until { counter: None, instructions: Some(left) });
        completed = exit == Exit::Budget;
        if completed {
            continue;
        }
        exits.push(exit);
        match answered(exit, answers.next().copied().unwrap_or(0x55)) {
            Some(answer) => vcpu.resume(answer),
            None => break,
        }
    }
    let mut state = vcpu.state().clone();
    // The last slots are the engine's own.
    state.gpr[reg::ZERO..].fill(0);
    Some(Left { state, retired: vcpu.retired(), exits, completed, undefined: 0 })
}

/// Whether the result itself may be undefined.
fn of_no_definition(insn: &Instruction) -> bool {
    let narrow =
        insn.op_count() > 0 && insn.op_kind(0) == OpKind::Register && insn.op0_register().size() == 2
            || insn.memory_size().size() == 2;
    matches!(insn.mnemonic(), Mnemonic::Bswap | Mnemonic::Shld | Mnemonic::Shrd) && narrow
}
