//! Instructions that were executed by themselves lately, as they were decoded.
//!
//! What faults, exits or reaches a device mostly does so again, and costs more to decode than to execute. An instruction is
//! found here by all bytes that one can have, so nothing makes it void.

use iced_x86::Instruction;

use super::MAX_LENGTH;
use crate::cpu::Handler;
use crate::insn;

const RECENT: usize = 256;

/// The bytes at an instruction and the code size that they were decoded for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(u128);

impl Bytes {
    /// None have a code size of 0.
    const NONE: Self = Bytes(0);

    pub(crate) fn new(bytes: [u8; MAX_LENGTH], bits: u32) -> Self {
        let mut all = [0; 16];
        all[..MAX_LENGTH].copy_from_slice(&bytes);
        all[MAX_LENGTH] = bits as u8;
        Bytes(u128::from_ne_bytes(all))
    }
}

#[derive(Clone, Copy)]
struct Entry {
    bytes: Bytes,
    handler: Handler,
    insn: Instruction,
}

/// See the module.
pub(crate) struct Recent(Box<[Entry; RECENT]>);

impl Recent {
    pub(crate) fn new() -> Self {
        let none = Entry { bytes: Bytes::NONE, handler: insn::undefined, insn: Instruction::default() };
        match vec![none; RECENT].into_boxed_slice().try_into() {
            Ok(entries) => Recent(entries),
            Err(_) => unreachable!("the vector has RECENT elements"),
        }
    }

    fn place(linear: u64) -> usize {
        (linear ^ linear >> 8) as usize % RECENT
    }

    /// The instruction that `bytes` at `linear` are, if that is known.
    #[inline]
    pub(crate) fn find(&self, linear: u64, bytes: Bytes) -> Option<(Handler, Instruction)> {
        let entry = &self.0[Self::place(linear)];
        (entry.bytes == bytes).then_some((entry.handler, entry.insn))
    }

    /// Remembers what `bytes` at `linear` are.
    pub(crate) fn note(&mut self, linear: u64, bytes: Bytes, (handler, insn): (Handler, Instruction)) {
        self.0[Self::place(linear)] = Entry { bytes, handler, insn };
    }
}

#[cfg(test)]
mod tests {
    use satori_memory::Gpa;
    use satori_state::reg;

    use crate::testing::machine64;

    const CODE: u64 = 0x5_0000;

    #[test]
    fn bytes_that_change_are_another_instruction() {
        let mut cpu = machine64();
        cpu.memory.page(Gpa(0)).unwrap().state.touch();
        // INC EAX, DEC EAX; the byte behind them does not matter.
        let steps = [
            ([0xff, 0xc0, 0x90], 1),
            ([0xff, 0xc0, 0x90], 2),
            ([0xff, 0xc8, 0x90], 1),
            ([0xff, 0xc0, 0xcc], 2),
        ];
        for (bytes, eax) in steps {
            cpu.memory.write(Gpa(CODE), &bytes).unwrap();
            cpu.state.rip = CODE;
            assert_eq!(cpu.step(), None);
            assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.rip), (eax, CODE + 2), "{bytes:x?}");
        }
    }

    #[test]
    fn bytes_of_another_code_size_are_another_instruction() {
        let mut cpu = machine64();
        cpu.memory.page(Gpa(0)).unwrap().state.touch();
        // In 64-bit code REX.W INC RAX; in 32-bit code DEC EAX, INC EAX.
        cpu.memory.write(Gpa(CODE), &[0x48, 0xff, 0xc0]).unwrap();
        for (code64, len) in [(true, 3), (false, 1), (true, 3)] {
            cpu.derived.code64 = code64;
            cpu.state.seg[satori_state::seg::CS].limit = u32::MAX;
            cpu.state.rip = CODE;
            let insn = cpu.fetch_decoded().unwrap().1;
            assert_eq!(insn.len(), len, "64-bit code: {code64}");
        }
    }
}
