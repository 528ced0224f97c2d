//! Instructions that translated code leaves to their generic implementation.

use iced_x86::Instruction;
use satori_engine::Doing;

use super::{Translating, reason, stubs};
use satori_soft::block::BLOCK_RIP;
use satori_soft::cpu::{Asking, Handler, Stop};

/// An instruction in translated code that its generic implementation executes.
pub(crate) struct Site {
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
pub(crate) extern "sysv64" fn call(vcpu: &mut Translating, site: &Site) -> u64 {
    vcpu.jit.counts.helped += 1;
    vcpu.cpu.doing().set(Doing::Helping);
    let outcome = help(vcpu, site);
    vcpu.cpu.doing().set(Doing::Translated);
    outcome
}

fn help(vcpu: &mut Translating, site: &Site) -> u64 {
    vcpu.settle_retired(site.rest.into());
    vcpu.collect_x87();
    // It may drop translations, as INVLPG does: who misses them again has not been answered in vain.
    vcpu.context.repeats = 0;
    let distance = vcpu.jit.distance_of(site.block);
    let cpu = &mut vcpu.cpu;
    cpu.set_status(stubs::unpacked(vcpu.context.flags));
    cpu.state.gpr[BLOCK_RIP] = site.block_rip.wrapping_add(distance);
    let rip = site.rip.wrapping_add(distance);
    cpu.state.rip = rip;
    let mode = cpu.derived.code_mode;
    let attention = std::mem::replace(&mut cpu.windows.attention, false);
    cpu.set_next_rip(rip.wrapping_add(site.insn.len() as u64));
    cpu.begin();
    let outcome = (site.handler)(cpu, &site.insn);
    let (retired, why) = match outcome {
        Ok(()) => (1, None),
        Err(Stop::Fault) => (0, Some(reason::FAULT)),
        // HLT and PAUSE have completed when they exit.
        Err(Stop::Exit) => {
            let Site { handler, insn, .. } = *site;
            cpu.note_asking(Asking { rip, code_mode: mode, handler, insn });
            (i64::from(cpu.state.rip != rip), Some(reason::EXIT))
        }
        Err(Stop::Alone) => (0, Some(reason::STEP)),
    };
    // A REP comes back here after thousands of bytes: that is too seldom to wait for the budget.
    let wanted = site.last && cpu.kick().pending();
    let quiet = why.is_none() && !wanted && (!cpu.windows.attention || vcpu.settled());
    vcpu.cpu.windows.attention |= attention;
    vcpu.context.flags = stubs::packed(vcpu.cpu.status());
    let same = vcpu.cpu.derived.code_mode == mode && !vcpu.jit.is_behind(&vcpu.cpu.mmu.fetches);
    if quiet && !site.last && same {
        return GO_ON;
    }
    vcpu.context.budget += i64::from(site.rest) - retired;
    let mut why = why;
    if why.is_none() {
        vcpu.cpu.state.rip = vcpu.cpu.next_rip();
        if quiet && vcpu.translates() {
            if let Some(code) = vcpu.known_target() {
                return code;
            }
            why = Some(reason::ARRIVE);
        }
    }
    vcpu.context.reason = why.unwrap_or(reason::DISPATCH).into();
    LEAVE
}
