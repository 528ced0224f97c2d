//! Instructions that translated code leaves to their generic implementation.

use iced_x86::Instruction;
use satori_engine::Doing;

use super::{reason, stubs};
use crate::block::BLOCK_RIP;
use crate::cpu::{Asking, Cpu, Handler, Stop};

/// An instruction in translated code that its generic implementation executes.
pub struct Site {
    pub handler: Handler,
    pub insn: Instruction,
    /// The block's number, and where it was made; the instruction's own address is relative to that.
    pub block: u32,
    pub block_rip: u64,
    pub rip: u64,
    /// Instructions of the block from this one on.
    pub rest: u32,
    /// The block ends here, and RIP is what the implementation says.
    pub last: bool,
}

/// Translated code is left, as the context says.
const LEAVE: u64 = 0;
/// Translated code goes on behind the instruction.
const GO_ON: u64 = 1;

/// Executes `site`'s instruction. Returns [`LEAVE`], [`GO_ON`], or the address of the translated
/// code to go to.
pub extern "sysv64" fn call(cpu: &mut Cpu, site: &Site) -> u64 {
    if let Some(jit) = &mut cpu.jit {
        jit.counts.helped += 1;
    }
    cpu.doing.set(Doing::Helping);
    let outcome = help(cpu, site);
    cpu.doing.set(Doing::Translated);
    outcome
}

fn help(cpu: &mut Cpu, site: &Site) -> u64 {
    cpu.settle_retired(site.rest.into());
    cpu.flags.set_bits(stubs::unpacked(cpu.context.flags));
    let state = &mut cpu.state;
    let distance = cpu.jit.as_ref().map_or(0, |jit| jit.distance_of(site.block));
    state.gpr[BLOCK_RIP] = site.block_rip.wrapping_add(distance);
    let rip = site.rip.wrapping_add(distance);
    state.rip = rip;
    cpu.collect_x87();
    let mode = cpu.code_mode;
    let attention = std::mem::replace(&mut cpu.attention, false);
    cpu.next_rip = rip.wrapping_add(site.insn.len() as u64);
    cpu.begin();
    let outcome = (site.handler)(cpu, &site.insn);
    let (retired, why) = match outcome {
        Ok(()) => (1, None),
        Err(Stop::Fault) => (0, Some(reason::FAULT)),
        // HLT and PAUSE have completed when they exit.
        Err(Stop::Exit) => {
            let Site { handler, insn, .. } = *site;
            cpu.asking = Some(Asking { rip, code_mode: mode, handler, insn });
            (i64::from(cpu.state.rip != rip), Some(reason::EXIT))
        }
        Err(Stop::Alone) => (0, Some(reason::STEP)),
    };
    // A REP comes back here after thousands of bytes: that is too seldom to wait for the budget.
    let wanted = site.last && cpu.kick.pending();
    let quiet = why.is_none() && !wanted && (!cpu.attention || cpu.settled());
    cpu.attention |= attention;
    cpu.context.flags = stubs::packed(cpu.flags.bits());
    if quiet && !site.last && cpu.code_mode == mode && !cpu.translations_changed() {
        return GO_ON;
    }
    cpu.context.budget += i64::from(site.rest) - retired;
    let mut why = why;
    if why.is_none() {
        cpu.state.rip = cpu.next_rip;
        if quiet && cpu.translates() {
            if let Some(code) = cpu.known_target() {
                return code;
            }
            why = Some(reason::ARRIVE);
        }
    }
    cpu.context.reason = why.unwrap_or(reason::DISPATCH).into();
    LEAVE
}
