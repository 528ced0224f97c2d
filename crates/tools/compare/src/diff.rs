//! What differs between two outcomes of one case.

use std::fmt::Write;

use iced_x86::{FastFormatter, Instruction, Mnemonic, OpKind};
use satori_defs::fpu::{fsw, fxsave};
use satori_defs::x86::{pf, rflags, vector};
use satori_state::{reg, seg};

use crate::case::{Case, Ending, Outcome};
use crate::generate::effective;
use crate::host;
use crate::layout::{LINE, LINES, line_address, line_at};
use crate::line;
use crate::undefined;

/// Names of the general-purpose registers in encoding order.
pub(crate) const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
const SELECTORS: [&str; 6] = ["es", "cs", "ss", "ds", "fs", "gs"];

/// Linux's code segment for 32-bit programs.
pub(crate) const COMPATIBILITY: u16 = 0x23;

/// Where Linux's part of the address space begins for programs: the last page below is not theirs.
pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What: a register, `memory`.
    pub what: String,
    /// Its value on the real processor.
    pub real: String,
    /// Its value on the engine.
    pub engine: String,
}

/// Compares `real` with `engine`. Where the manual leaves something undefined, nothing differs.
pub fn differences(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |what: &str, a: u128, b: u128| {
        if a != b {
            let (real, engine) = (format!("{a:#x}"), format!("{b:#x}"));
            found.push(Difference { what: what.into(), real, engine });
        }
    };
    if real.ending != engine.ending {
        let text = |outcome: &Outcome| format!("{:?}", outcome.ending);
        return vec![Difference { what: "ending".into(), real: text(real), engine: text(engine) }];
    }
    if real.ending != Ending::Exception {
        return Vec::new();
    }
    if real.vector != engine.vector {
        let text = |o: &Outcome| match o.vector == u32::from(vector::PF) {
            true => format!("{:#x} error {:#x} at {:#x}", o.vector, o.error, o.cr2),
            false => format!("{:#x} error {:#x}", o.vector, o.error),
        };
        return vec![Difference { what: "vector".into(), real: text(real), engine: text(engine) }];
    }
    if real.vector == engine.vector {
        let mut mask = u64::MAX;
        if real.vector == u32::from(vector::PF) && real.cr2 >= USER_END {
            // Linux tells programs that every page of the kernel is present.
            mask = !u64::from(pf::P);
        }
        note("error", (real.error & mask).into(), (engine.error & mask).into());
        // In which order a far return reads the stack is not defined.
        let popped = |outcome: &Outcome| outcome.cr2.wrapping_sub(case.gpr[reg::RSP]) < 40;
        let far =
            matches!(insn.mnemonic(), Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq);
        if !(far && popped(real) && popped(engine)) {
            note("cr2", real.cr2.into(), engine.cr2.into());
        }
    }
    // Who leaves 64-bit mode may find anything in the upper halves (SDM volume 1, 3.4.1.1).
    let left = case.bits == 64 && real.selectors[seg::CS] == COMPATIBILITY;
    let width = if left { u64::from(u32::MAX) } else { u64::MAX };
    for (i, name) in NAMES.iter().enumerate() {
        note(name, (real.gpr[i] & width).into(), (engine.gpr[i] & width).into());
    }
    note("rip", real.rip.into(), engine.rip.into());
    let completed = real.rip.wrapping_sub(case.at) > 15 || real.rip != case.at;
    let undefined = if completed { undefined::flags(insn, case.gpr[reg::RCX]) } else { 0 };
    let flags = !(undefined | rflags::RF);
    note("rflags", (real.rflags & flags).into(), (engine.rflags & flags).into());
    note("fs_base", real.fs_base.into(), engine.fs_base.into());
    note("gs_base", real.gs_base.into(), engine.gs_base.into());
    for (i, name) in SELECTORS.iter().enumerate() {
        // The kernel's return to the program clears RPL of null selectors.
        let seen = |outcome: &Outcome| match outcome.selectors[i] {
            0..=3 => 0,
            selector => u128::from(selector),
        };
        note(name, seen(real), seen(engine));
    }
    let (a, b) = (&real.fpu, &engine.fpu);
    note("fcw", a.fcw.into(), b.fcw.into());
    note("fsw", a.fsw.into(), b.fsw.into());
    note("ftw", (a.ftw & 0xff).into(), (b.ftw & 0xff).into());
    // Without a pending exception AMD's processors do not save the pointers (APM volume 2, 11.4.4).
    if a.fsw & fsw::ES != 0 {
        note("fop", a.fop.into(), b.fop.into());
        // As many bits as a linear address may have.
        let address = |value: u64| u128::from(value & 0xffff_ffff_ffff);
        note("fip", address(a.fip), address(b.fip));
        // Without a memory operand the pointer is undefined (SDM volume 1, 8.1.8), unless nothing was executed.
        let executed = real.rip != case.at;
        if !executed || has_memory(insn) {
            note("fdp", address(a.fdp), address(b.fdp));
        }
    }
    note("mxcsr", a.mxcsr.into(), b.mxcsr.into());
    for i in 0..8 {
        let register = |value: u128| value & ((1 << 80) - 1);
        note(&format!("st{i}"), register(a.st[i]), register(b.st[i]));
    }
    for i in 0..16 {
        note(&format!("xmm{i}"), a.xmm[i], b.xmm[i]);
        note(&format!("ymm{i}h"), real.ymm_high[i], engine.ymm_high[i]);
    }
    memory(case, insn, real, engine, &mut found);
    found
}

fn memory(case: &Case, insn: &Instruction, real: &Outcome, engine: &Outcome, found: &mut Vec<Difference>) {
    if real.changed == engine.changed && real.changed == [0; LINES / 64] {
        return;
    }
    for line in 0..LINES {
        let (a, b) = (real.has(line), engine.has(line));
        if (a, b) == (false, false) || a && b && real.lines[line] == engine.lines[line] {
            continue;
        }
        // MXCSR_MASK, in which AMD's processors have one bit more.
        let saves = matches!(insn.mnemonic(), Mnemonic::Fxsave | Mnemonic::Fxsave64);
        let mask = effective(case, insn).wrapping_add(fxsave::MXCSR_MASK as u64);
        if saves && line_at(mask) == Some(line) && a && b {
            let at = mask as usize % LINE;
            let without = |outcome: &Outcome| {
                let mut bytes = outcome.lines[line];
                bytes[at..at + 4].fill(0);
                bytes
            };
            if without(real) == without(engine) {
                continue;
            }
        }
        let text = |has: bool, outcome: &Outcome| match has {
            true => line::hex(&outcome.lines[line]),
            false => "as in the background".into(),
        };
        let what = format!("{:#x}", line_address(line));
        found.push(Difference { what, real: text(a, real), engine: text(b, engine) });
    }
}

fn has_memory(insn: &Instruction) -> bool {
    (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory)
}

/// All that a developer needs: the processor, the instruction, the state before, and what differs.
pub fn describe(case: &Case, insn: &Instruction, way: &str, found: &[Difference]) -> String {
    let mut text = String::new();
    FastFormatter::new().format(insn, &mut text);
    let mut out =
        format!("{text}\n  {:?}, {way}, on {}\n  {}\n", insn.code(), host::get(), line::write(case));
    for difference in found {
        let _ = writeln!(
            out,
            "    {:8} real   {}\n    {:8} engine {}",
            difference.what, difference.real, "", difference.engine
        );
    }
    out
}
