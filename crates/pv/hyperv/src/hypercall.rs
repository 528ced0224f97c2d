//! Hypercalls: from the caller's registers to a row of the table of calls, and back (TLFS 3).

mod input;
mod parameters;
mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

use satori_defs::hyperv::Status;
use satori_defs::x86::cr0;
use satori_state::CpuState;

use crate::{Enlightenment, Outcome, Partition, Vp};
use parameters::{Abi, MAX_WORDS, Refusal, block, fast_output, read_fast, read_slow, write_fast};

pub use input::Input;
pub(crate) use table::CALLS;
use table::NESTED_CALLS;
pub use table::{CallRow, Completion, Request, call_name};

/// The outcome of a hypercall that does not exist for its caller: #UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ud;

/// How a hypercall went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Hypercall {
    /// It is complete, its result in the registers: the caller moves RIP.
    Done(Outcome),
    /// Elements are left. RIP stays, so that the instruction is executed again after what
    /// interrupts it; the input word in the registers has the new rep start index (TLFS 3.2).
    Again(Outcome),
}

/// Elements of a rep call that are done at once, so that a long list holds up no interrupt: the
/// TLFS wants control given back after 50 us.
const ELEMENTS_AT_ONCE: u16 = 64;

/// Whose call it is.
struct Caller<'a> {
    /// The calls that exist for it.
    table: &'a [CallRow],
    /// A nested guest's: where its input block is. What that guest is offered is its hypervisor's matter.
    block: Option<u64>,
}

/// What a call leaves beside its status.
struct Reply {
    completion: Completion,
    /// Elements done in all.
    reps: u16,
    /// A rep call that was tried: its start index is given back.
    rep: bool,
    more: bool,
}

impl Reply {
    fn refused(status: Status) -> Self {
        Reply { completion: Completion::status(status), reps: 0, rep: false, more: false }
    }
}

impl Partition {
    /// VMCALL of a processor with the registers `cpu`: takes the parameters from them and puts
    /// the result into them.
    ///
    /// #UD outside privilege level 0 and in real mode, before the guest has told its identity,
    /// and for parameters in XMM registers where those are not offered. Nothing changed then.
    pub fn hypercall(&self, vp: &mut Vp, cpu: &mut CpuState) -> Result<Hypercall, Ud> {
        let possible = cpu.cr0 & cr0::PE != 0 && cpu.cpl() == 0;
        if self.config.set.is_empty() || !possible || self.guest_os_id.load(Ordering::SeqCst) == 0 {
            return Err(Ud);
        }
        self.call(vp, cpu, &Caller { table: CALLS, block: None })
    }

    /// VMCALL of a nested guest whose hypervisor lets flushes of its TLBs be served for it: the same, but for an input block
    /// that is at `block` in the partition's memory.
    pub fn nested_flush(&self, vp: &mut Vp, cpu: &mut CpuState, block: Option<u64>) -> Result<Hypercall, Ud> {
        // Where the guest's address leads nowhere no block is aligned.
        self.call(vp, cpu, &Caller { table: NESTED_CALLS, block: Some(block.unwrap_or(u64::MAX)) })
    }

    fn call(&self, vp: &mut Vp, cpu: &mut CpuState, caller: &Caller<'_>) -> Result<Hypercall, Ud> {
        let abi = Abi::of(cpu);
        let input = Input(abi.control(cpu));
        let reply = match self.serve(caller, vp, cpu, abi, input) {
            Ok(reply) => reply,
            Err(Refusal::Ud) => return Err(Ud),
            Err(Refusal::Status(status)) => Reply::refused(status),
        };
        let outcome = reply.completion.outcome;
        if reply.more {
            abi.restart(cpu, input.with_start(reply.reps).0);
            return Ok(Hypercall::Again(outcome));
        }
        if reply.rep && abi == Abi::X64 {
            abi.restart(cpu, input.with_start(reply.reps).0);
        }
        abi.give(cpu, reply.completion.status as u64 | u64::from(reply.reps) << 32);
        Ok(Hypercall::Done(outcome))
    }

    /// Looks `input` up in the caller's table, checks what all calls share, and runs the call.
    ///
    /// The TLFS leaves the order of errors open, but prefers the one that tells least.
    fn serve(
        &self,
        caller: &Caller<'_>,
        vp: &mut Vp,
        cpu: &mut CpuState,
        abi: Abi,
        input: Input,
    ) -> Result<Reply, Refusal> {
        let refuse = |status| Err(Refusal::Status(status));
        let Some(row) = caller.table.iter().find(|row| row.code == input.code()) else {
            return refuse(Status::InvalidHypercallCode);
        };
        let owner = Enlightenment::of_hypercall(row.code);
        let own = caller.block.is_none();
        if own && owner.is_some_and(|owner| !self.config.set.has(owner)) {
            return refuse(Status::AccessDenied);
        }
        let rep = row.element != 0;
        let reps_fit = if rep { input.start() < input.reps() } else { input.reps() | input.start() == 0 };
        let header_fits = row.header || input.header() == 0;
        if input.0 & Input::RESERVED != 0 || !reps_fit || !header_fits || (input.fast() && !row.fast) {
            return refuse(Status::InvalidHypercallInput);
        }

        let header = row.input + input.header();
        let words = header + row.element * usize::from(input.reps());
        let mut buffer = [0; MAX_WORDS];
        let Some(buffer) = buffer.get_mut(..words) else { return refuse(Status::InvalidAlignment) };
        let [first, second] = abi.arguments(cpu);
        let fast_at = if input.fast() {
            let xmm = self.config.set.has(Enlightenment::XmmInput);
            read_fast(cpu, xmm, abi, buffer)?;
            let xmm = self.config.set.has(Enlightenment::XmmOutput);
            if row.output == 0 { 0 } else { fast_output(words, row.output, xmm, abi)? }
        } else {
            read_slow(&self.memory, caller.block.unwrap_or(first), buffer)?;
            if row.output != 0 {
                let gpa = block(&self.memory, second, row.output)?;
                let bytes = |words: usize| 8 * words as u64;
                let apart = gpa.0 + bytes(row.output) <= first || first.saturating_add(bytes(words)) <= gpa.0;
                if words != 0 && !apart {
                    return refuse(Status::InvalidAlignment);
                }
            }
            0
        };

        let count = (input.reps() - input.start()).min(ELEMENTS_AT_ONCE);
        let start = header + row.element * usize::from(input.start());
        let end = start + row.element * usize::from(count);
        let request = Request {
            input,
            header: &buffer[..header],
            elements: if rep { &buffer[start..end] } else { &[] },
        };
        let completion = (row.run)(self, vp, &request);
        let reps = input.start() + completion.done.min(count);
        if completion.status == Status::Success && row.output != 0 {
            if input.fast() {
                write_fast(cpu, fast_at, &completion.output);
            } else {
                let bytes: Vec<u8> = completion.output.iter().flat_map(|word| word.to_le_bytes()).collect();
                // The page was in memory when it was checked, and memory does not shrink.
                let _ = self.memory.write(satori_memory::Gpa(second), &bytes);
            }
        }
        let more = rep && completion.status == Status::Success && reps < input.reps();
        if !more {
            if own {
                self.used_call(row.code, input.fast() && words > 2);
            } else {
                self.used(Enlightenment::TlbflushDirect);
            }
        }
        Ok(Reply { completion, reps, rep, more })
    }
}
