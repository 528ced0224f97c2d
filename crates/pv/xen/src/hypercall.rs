//! Hypercalls: from the caller's registers to a row of the table, and back.

use satori_bus::PowerEvent;
use satori_defs::xen::errno::{EFAULT, EINVAL, ENOSYS, EPERM};
use satori_memory::{Gpa, PAGE_SIZE};
use satori_state::{CpuState, reg};

use crate::{CALLS, Domain, Vcpu};

/// What the machine has to do after a hypercall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing.
    #[default]
    Done,
    /// The caller gives its time away.
    Yield,
    /// The caller sleeps: see [`Domain::polls`].
    Sleep,
    /// An NMI goes to this vCPU.
    Nmi(u32),
    /// The machine stops, or starts again.
    Power(PowerEvent),
}

/// What a call answers: its result, or an error as a negative number.
pub(crate) type Served = Result<(i64, Outcome), i64>;

/// A result with nothing to do.
pub(crate) const fn done(result: i64) -> Served {
    Ok((result, Outcome::Done))
}

/// Who calls: where its addresses lead.
pub struct Caller<'a> {
    /// The physical address of a linear one.
    pub translate: &'a dyn Fn(u64) -> Option<u64>,
}

/// A structure that a guest hands over, as bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<const N: usize>(pub [u8; N]);

impl<const N: usize> Bytes<N> {
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }
    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }
    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }
    pub(crate) fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn set_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

impl Domain {
    /// The pieces of a buffer of the guest's, each within a page.
    fn pieces(&self, caller: &Caller<'_>, address: u64, len: usize) -> Result<Vec<(Gpa, usize)>, i64> {
        let (mut pieces, mut at, mut left) = (Vec::new(), address, len);
        while left > 0 {
            let here = left.min((PAGE_SIZE - at % PAGE_SIZE) as usize);
            pieces.push((Gpa((caller.translate)(at).ok_or(EFAULT)?), here));
            at = at.checked_add(here as u64).ok_or(EFAULT)?;
            left -= here;
        }
        Ok(pieces)
    }

    /// Reads `buffer` from the guest's `address`.
    pub(crate) fn copy_in(&self, caller: &Caller<'_>, address: u64, buffer: &mut [u8]) -> Result<(), i64> {
        let mut done = 0;
        for (gpa, len) in self.pieces(caller, address, buffer.len())? {
            self.memory.read(gpa, &mut buffer[done..done + len]).map_err(|_| EFAULT)?;
            done += len;
        }
        Ok(())
    }

    /// Writes `bytes` to the guest's `address`.
    pub(crate) fn copy_out(&self, caller: &Caller<'_>, address: u64, bytes: &[u8]) -> Result<(), i64> {
        let mut done = 0;
        for (gpa, len) in self.pieces(caller, address, bytes.len())? {
            self.memory.write(gpa, &bytes[done..done + len]).map_err(|_| EFAULT)?;
            done += len;
        }
        Ok(())
    }

    /// A structure of `N` bytes at the guest's `address`.
    pub(crate) fn structure<const N: usize>(
        &self,
        caller: &Caller<'_>,
        address: u64,
    ) -> Result<Bytes<N>, i64> {
        let mut bytes = [0; N];
        self.copy_in(caller, address, &mut bytes)?;
        Ok(Bytes(bytes))
    }

    /// VMCALL of a vCPU with the registers `cpu`, of 64-bit code at privilege level 0; others are refused by an error. Returns
    /// what RAX is to hold.
    pub fn hypercall(&self, this: &mut Vcpu, cpu: &CpuState, caller: &Caller<'_>) -> (u64, Outcome) {
        let long = cpu.code64();
        let number = if long { cpu.gpr[reg::RAX] } else { cpu.gpr[reg::RAX] & 0xffff_ffff };
        let arguments = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8].map(|at| cpu.gpr[at]);
        let (result, outcome) = match cpu.cpl() {
            // The layouts of 32-bit callers are others.
            0 if long => self.serve(this, caller, number, arguments),
            0 => (ENOSYS, Outcome::Done),
            _ => (EPERM, Outcome::Done),
        };
        (if long { result as u64 } else { result as u64 & 0xffff_ffff }, outcome)
    }

    fn serve(
        &self,
        this: &mut Vcpu,
        caller: &Caller<'_>,
        number: u64,
        arguments: [u64; 5],
    ) -> (i64, Outcome) {
        let Some((index, row)) = CALLS.iter().enumerate().find(|(_, row)| row.number == number) else {
            return (ENOSYS, Outcome::Done);
        };
        let way = row.commands.iter().position(|(command, _)| *command == arguments[0] & 0xffff_ffff);
        self.usage.note(index, way.unwrap_or(row.commands.len()), self.clock.now());
        (row.run)(self, this, caller, arguments).unwrap_or_else(|error| (error, Outcome::Done))
    }

    /// Several calls, each with its result beside it. One that asks the machine for something ends the list there.
    pub(crate) fn multicall(
        &self,
        this: &mut Vcpu,
        caller: &Caller<'_>,
        [list, count, ..]: [u64; 5],
    ) -> Served {
        /// op, result and six arguments.
        const ENTRY: u64 = 64;
        /// Calls that one list may have, so that no list keeps the vCPU from stopping.
        const MOST: u64 = 128;
        if count > MOST {
            return Err(EINVAL);
        }
        for index in 0..count {
            let at = index.checked_mul(ENTRY).and_then(|offset| list.checked_add(offset)).ok_or(EFAULT)?;
            let entry: Bytes<64> = self.structure(caller, at)?;
            let number = entry.u64(0);
            if number == satori_defs::xen::call::MULTICALL {
                return Err(EINVAL);
            }
            let arguments = [16, 24, 32, 40, 48].map(|at| entry.u64(at));
            let (result, outcome) = self.serve(this, caller, number, arguments);
            self.copy_out(caller, at + 8, &result.to_le_bytes())?;
            if outcome != Outcome::Done {
                return Ok((0, outcome));
            }
        }
        done(0)
    }

    /// vm_assist: what is asked for is so, or makes no difference to guests with hardware's memory management.
    pub(crate) fn vm_assist(&self, _: &mut Vcpu, _: &Caller<'_>, [command, kind, ..]: [u64; 5]) -> Served {
        /// The update flag of runstate areas, the only one that such guests ask for.
        const RUNSTATE_FLAG: u64 = 5;
        match (command, kind) {
            (0 | 1, RUNSTATE_FLAG) => {
                self.state().runstate_flag = command == 0;
                done(0)
            }
            _ => Err(EINVAL),
        }
    }
}
