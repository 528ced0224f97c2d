//! Where guest registers live.
//!
//! The host has not enough registers for all. What is in memory is the same everywhere, so that blocks can
//! follow each other, but in the second copy of a loop, and in stretches of code that use some registers very often: on
//! the way in those change places with others, and on every way out they change back.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use satori_state::reg;

use super::asm::Reg;
use super::lower::Lower;
use super::{stubs, vector, x87};

/// The host's register for each of the guest's; nothing for those in the register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Homes([u8; 16]);

/// No register of the host.
const NONE: u8 = u8::MAX;

/// How much more often a loop must use a register than the one that it pushes out.
const WORTH: u32 = 2;
/// The same for a stretch of a block, which is paid for each time.
const WORTH_ONCE: u32 = 8;
/// Instructions of such a stretch at least.
const STRETCH: usize = 6;

impl Homes {
    /// Where they are at the edges of blocks.
    pub(crate) const USUAL: Self = {
        let mut homes = [NONE; 16];
        // RAX is needed for LAHF, and is scratch; R15 too; R11 counts instructions.
        homes[reg::RAX] = 14;
        homes[reg::RCX] = 1;
        homes[reg::RDX] = 2;
        homes[reg::RBX] = 3;
        homes[reg::RSP] = 10;
        homes[reg::RBP] = 5;
        homes[reg::RSI] = 6;
        homes[reg::RDI] = 7;
        // Compilers name these more often than R8 to R11: in five of Debian's programs and libraries 1.2 to 2 times as often.
        homes[reg::R12] = 12;
        homes[reg::R13] = 13;
        homes[reg::R14] = 8;
        homes[reg::R15] = 9;
        Homes(homes)
    };

    /// The host's register of the guest's number `guest`, if it has one.
    pub(crate) const fn get(&self, guest: usize) -> Option<Reg> {
        match self.0[guest] {
            NONE => None,
            host => Some(Reg(host)),
        }
    }

    /// All that are in the host's registers, with those.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, Reg)> {
        (0..16).filter_map(|guest| Some((guest, self.get(guest)?)))
    }

    /// Where they are best in a loop of `all`.
    pub(crate) fn for_loop(info: &mut InstructionInfoFactory, all: &[Instruction], code_mode: u64) -> Self {
        if !all.iter().all(|insn| moves(insn, code_mode)) {
            return Self::USUAL;
        }
        Self::for_all(info, all, WORTH)
    }

    /// Where they are best in a stretch of code from the first of `all` on, and how many of them it has.
    pub(crate) fn for_stretch(
        info: &mut InstructionInfoFactory,
        all: &[Instruction],
        code_mode: u64,
    ) -> (usize, Self) {
        let count = all.iter().take_while(|insn| moves(insn, code_mode)).count();
        let worth_a_look = count >= STRETCH && all[..count].iter().any(names_one_in_memory);
        let homes = if worth_a_look { Self::for_all(info, &all[..count], WORTH_ONCE) } else { Self::USUAL };
        (count, homes)
    }

    /// These without the host's registers, `most` at most, that hold what no instruction of `all` uses; and those registers.
    pub(crate) fn freed(
        self,
        info: &mut InstructionInfoFactory,
        all: &[Instruction],
        code_mode: u64,
        most: usize,
    ) -> (Self, Vec<Reg>) {
        const FIXED: [usize; 4] = [reg::RAX, reg::RCX, reg::RDX, reg::RSP];
        if !all.iter().all(|insn| moves(insn, code_mode) && !x87::is_x87(insn)) {
            return (self, Vec::new());
        }
        let mut used = FIXED.iter().fold(0u16, |used, guest| used | 1 << guest);
        for insn in all {
            for one in info.info(insn).used_registers() {
                let full = one.register().full_register();
                if full.is_gpr64() {
                    used |= 1 << full.number();
                }
            }
        }
        let mut homes = self;
        let free = |(guest, host): (usize, Reg)| {
            (used & 1 << guest == 0).then(|| {
                homes.0[guest] = NONE;
                host
            })
        };
        let registers = self.all().filter_map(free).take(most).collect();
        (homes, registers)
    }

    fn for_all(info: &mut InstructionInfoFactory, all: &[Instruction], worth: u32) -> Self {
        let mut homes = Self::USUAL;
        let mut uses = [0; 16];
        for insn in all {
            for used in info.info(insn).used_registers() {
                let full = used.register().full_register();
                if full.is_gpr64() {
                    uses[full.number()] += match used.access() {
                        OpAccess::ReadWrite | OpAccess::ReadCondWrite => 2,
                        _ => 1,
                    };
                }
            }
        }
        // Instructions that do not name their registers have these.
        const FIXED: [usize; 3] = [reg::RAX, reg::RCX, reg::RDX];
        loop {
            let outside = (0..16).filter(|guest| homes.0[*guest] == NONE).max_by_key(|guest| uses[*guest]);
            let inside = (0..16)
                .filter(|guest| homes.0[*guest] != NONE && !FIXED.contains(guest))
                .min_by_key(|guest| uses[*guest]);
            let (Some(outside), Some(inside)) = (outside, inside) else { return homes };
            if uses[outside] < uses[inside] + worth {
                return homes;
            }
            homes.0.swap(outside, inside);
        }
    }
}

/// Whether `insn` can be done wherever the registers are that it names.
fn moves(insn: &Instruction, code_mode: u64) -> bool {
    use Mnemonic::*;
    if insn.is_stack_instruction() || named(insn, Register::BH) {
        return false;
    }
    match insn.mnemonic() {
        // They use registers that they do not name.
        Cmpxchg8b | Cmpxchg16b | Maskmovq | Maskmovdqu | Vmaskmovdqu => false,
        Lea | Nop | Endbr64 | Div | Idiv => true,
        Jmp => insn.op0_kind() == OpKind::NearBranch64,
        _ if insn.is_jcc_short_or_near() => true,
        _ => super::copy::is_copied(insn) || vector::is_vector(insn, code_mode) || x87::is_x87(insn),
    }
}

/// Whether `insn` names a register that is usually in memory.
fn names_one_in_memory(insn: &Instruction) -> bool {
    let operands = (0..insn.op_count()).map(|op| insn.op_register(op));
    operands
        .chain([insn.memory_base(), insn.memory_index()])
        .any(|register| register.is_gpr() && Homes::USUAL.get(register.full_register().number()).is_none())
}

fn named(insn: &Instruction, register: Register) -> bool {
    (0..insn.op_count()).any(|op| insn.op_register(op) == register)
}

impl Lower<'_> {
    /// Where the host has the guest's register `i`, if it has it in a register.
    pub(crate) fn home(&self, i: usize) -> Option<Reg> {
        self.places.homes.get(i)
    }

    /// Whether registers are elsewhere than usual.
    pub(crate) fn moved(&self) -> bool {
        self.places.homes != Homes::USUAL
    }

    /// Moves registers to where `homes` has them; nothing else changes, not even flags.
    pub(crate) fn move_to(&mut self, homes: Homes) {
        let before = std::mem::replace(&mut self.places.homes, homes);
        if before == homes {
            return;
        }
        let stays = |guest: usize| before.get(guest) == homes.get(guest);
        for (guest, host) in before.all().filter(|(guest, _)| !stays(*guest)) {
            self.asm.store(stubs::gpr(guest), host);
        }
        for (guest, host) in homes.all().filter(|(guest, _)| !stays(*guest)) {
            self.asm.load(host, stubs::gpr(guest));
        }
    }

    /// Before instruction `i` of a block that is no loop: moves registers to where a stretch of code has them best, or
    /// back behind one.
    pub(crate) fn begin_stretch(&mut self, i: usize) {
        if i < self.places.stretch {
            return;
        }
        let all = self.block.all.clone();
        let (count, homes) = Homes::for_stretch(self.info, &all[i..], self.block.code_mode);
        self.places.stretch = i + count.max(1);
        if homes != self.places.homes {
            self.places.held = None;
            self.move_to(homes);
        }
    }

    /// Moves registers to where they usually are.
    pub(crate) fn come_home(&mut self) {
        self.move_to(Homes::USUAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn for_loop(bytes: &[u8]) -> Homes {
        let all: Vec<Instruction> = Decoder::new(64, bytes, DecoderOptions::NONE).iter().collect();
        Homes::for_loop(&mut InstructionInfoFactory::new(), &all, 0)
    }

    #[test]
    fn what_a_loop_uses_most_comes_into_registers() {
        // add r10, r11; add r11, r10; dec rcx; jne
        let bytes = [0x4d, 0x01, 0xda, 0x4d, 0x01, 0xd3, 0x48, 0xff, 0xc9, 0x75, 0xf5];
        let homes = for_loop(&bytes);
        assert!(homes.get(reg::R10).is_some() && homes.get(reg::R11).is_some());
        assert_eq!(homes.get(reg::RCX), Homes::USUAL.get(reg::RCX));
        assert_eq!(homes.all().count(), Homes::USUAL.all().count());
        // push r10 names no RSP, but has it.
        assert_eq!(for_loop(&[&[0x41, 0x52][..], &bytes].concat()), Homes::USUAL);
        // rep movsb has RSI and RDI.
        assert_eq!(for_loop(&[&[0xf3, 0xa4][..], &bytes].concat()), Homes::USUAL);
    }

    #[test]
    fn a_stretch_ends_where_registers_must_be_at_home() {
        // add r10, r11; add r11, r10, five times; push rbp
        let adds = [0x4d, 0x01, 0xda, 0x4d, 0x01, 0xd3].repeat(5);
        let bytes = [&adds[..], &[0x55]].concat();
        let all: Vec<Instruction> = Decoder::new(64, &bytes, DecoderOptions::NONE).iter().collect();
        let mut info = InstructionInfoFactory::new();
        let (count, homes) = Homes::for_stretch(&mut info, &all, 0);
        assert_eq!(count, 10);
        assert!(homes.get(reg::R10).is_some() && homes.get(reg::R11).is_some());
        // What is used a few times only is not worth the way.
        assert_eq!(Homes::for_stretch(&mut info, &all[8..], 0), (2, Homes::USUAL));
    }

    #[test]
    fn what_is_in_registers_stays_there_if_it_is_used_as_often() {
        // add rbx, r10; jmp
        assert_eq!(for_loop(&[0x4c, 0x01, 0xd3, 0xeb, 0xfb]).get(reg::RBX), Homes::USUAL.get(reg::RBX));
    }
}
