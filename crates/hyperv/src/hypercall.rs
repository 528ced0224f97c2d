//! Hypercalls: the input word, the two register conventions, and the table of calls (TLFS 3).

use std::sync::atomic::Ordering;

use satori_defs::hyperv::{Status, call};
use satori_defs::x86::cr0;
use satori_state::{CpuState, reg};

use crate::{Enlightenment, Outcome, Partition, Vp};

/// The outcome of a hypercall that does not exist for its caller: #UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ud;

/// The hypercall input word (TLFS 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input(pub u64);

impl Input {
    const RESERVED: u64 = 0x1f << 27 | 0xf << 44 | 0xf << 60;

    /// Call code.
    pub const fn code(self) -> u16 {
        self.0 as u16
    }
    /// Parameters are in registers instead of memory.
    pub const fn fast(self) -> bool {
        self.0 & 1 << 16 != 0
    }
    /// Variable header, in units of 8 bytes.
    pub const fn header(self) -> u16 {
        (self.0 >> 17 & 0x3ff) as u16
    }
    /// Rep count.
    pub const fn reps(self) -> u16 {
        (self.0 >> 32 & 0xfff) as u16
    }
    /// The first rep that is still to do.
    pub const fn start(self) -> u16 {
        (self.0 >> 48 & 0xfff) as u16
    }
}

/// A call with its two arguments: addresses of input and output, or values if it is fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The input word.
    pub input: Input,
    /// RDX, or EBX:ECX.
    pub first: u64,
    /// R8, or EDI:ESI.
    pub second: u64,
}

/// What a call gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status.
    pub status: Status,
    /// Reps done in all, for rep calls.
    pub reps: u16,
    /// What the machine has to do.
    pub outcome: Outcome,
}

impl Completion {
    /// A call that ended with `status` and did no reps.
    pub const fn status(status: Status) -> Self {
        Completion { status, reps: 0, outcome: Outcome::Done }
    }
}

/// One row of the table of calls.
pub struct CallRow {
    /// The call code.
    pub code: u16,
    /// The name in the TLFS.
    pub name: &'static str,
    /// Whether it is a rep call; the others must have no reps.
    pub rep: bool,
    /// Whether a variable header is allowed.
    pub header: bool,
    /// Does it.
    pub run: fn(&Partition, &mut Vp, &Call) -> Completion,
}

/// The calls that exist. Who adds one also names it in its enlightenment's row.
const CALLS: &[CallRow] = &[
    CallRow {
        code: call::POST_MESSAGE,
        name: "HvCallPostMessage",
        rep: false,
        header: false,
        run: crate::synic::post_message,
    },
    CallRow {
        code: call::SIGNAL_EVENT,
        name: "HvCallSignalEvent",
        rep: false,
        header: false,
        run: crate::synic::signal_event,
    },
];

/// Looks `call` up in `table` and runs it, after the checks that all calls share.
fn dispatch(table: &[CallRow], partition: &Partition, vp: &mut Vp, call: &Call) -> Completion {
    let input = call.input;
    let Some(row) = table.iter().find(|row| row.code == input.code()) else {
        return Completion::status(Status::InvalidHypercallCode);
    };
    let reps_fit = if row.rep { input.start() < input.reps() } else { input.reps() | input.start() == 0 };
    if input.0 & Input::RESERVED != 0 || !reps_fit || (input.header() != 0 && !row.header) {
        return Completion::status(Status::InvalidHypercallInput);
    }
    match Enlightenment::of_hypercall(row.code) {
        Some(owner) if !partition.config.set.has(owner) => Completion::status(Status::AccessDenied),
        _ => (row.run)(partition, vp, call),
    }
}

impl Partition {
    /// VMCALL of a processor with the registers `cpu`: takes the parameters from them and puts
    /// the result into them. The caller moves RIP.
    ///
    /// #UD outside privilege level 0 and in real mode, and before the guest has told its
    /// identity.
    pub fn hypercall(&self, vp: &mut Vp, cpu: &mut CpuState) -> Result<Outcome, Ud> {
        let possible = cpu.cr0 & cr0::PE != 0 && cpu.cpl() == 0;
        if self.config.set.is_empty() || !possible || self.guest_os_id.load(Ordering::SeqCst) == 0 {
            return Err(Ud);
        }
        let pair = |high: usize, low: usize| cpu.gpr[high] << 32 | cpu.gpr[low] & 0xffff_ffff;
        let call = if cpu.code64() {
            let [input, first, second] = [reg::RCX, reg::RDX, reg::R8].map(|r| cpu.gpr[r]);
            Call { input: Input(input), first, second }
        } else {
            Call {
                input: Input(pair(reg::RDX, reg::RAX)),
                first: pair(reg::RBX, reg::RCX),
                second: pair(reg::RDI, reg::RSI),
            }
        };
        let done = dispatch(CALLS, self, vp, &call);
        let result = done.status as u64 | u64::from(done.reps) << 32;
        if cpu.code64() {
            cpu.gpr[reg::RAX] = result;
        } else {
            cpu.gpr[reg::RAX] = result & 0xffff_ffff;
            cpu.gpr[reg::RDX] = result >> 32;
        }
        Ok(done.outcome)
    }
}

#[cfg(test)]
mod tests;
