//! Instructions on general registers that are copied, with other registers and addresses in them.

use iced_x86::{Code, Instruction, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register};
use satori_state::reg;

use super::asm::{Alu, Mem, Reg, cc};
use super::legacy::is_high_store;
use super::lower::Lower;
use super::memory::Address;
use super::reason;
use super::stubs::{self, GUEST_RAX, S1, S2};

/// Of what an instruction does, only how it accesses its operands.
pub(crate) const ACCESSES: u32 =
    InstructionInfoOptions::NO_MEMORY_USAGE | InstructionInfoOptions::NO_REGISTER_USAGE;

/// The form of `insn` that may have any register in place of RAX, which is not in the host's; nothing if it has none or is that.
fn general_form(insn: &Instruction) -> Option<Instruction> {
    use Code::*;
    let code = match insn.code() {
        Add_AL_imm8 => Add_rm8_imm8,
        Add_AX_imm16 => Add_rm16_imm16,
        Add_EAX_imm32 => Add_rm32_imm32,
        Add_RAX_imm32 => Add_rm64_imm32,
        Or_AL_imm8 => Or_rm8_imm8,
        Or_AX_imm16 => Or_rm16_imm16,
        Or_EAX_imm32 => Or_rm32_imm32,
        Or_RAX_imm32 => Or_rm64_imm32,
        Adc_AL_imm8 => Adc_rm8_imm8,
        Adc_AX_imm16 => Adc_rm16_imm16,
        Adc_EAX_imm32 => Adc_rm32_imm32,
        Adc_RAX_imm32 => Adc_rm64_imm32,
        Sbb_AL_imm8 => Sbb_rm8_imm8,
        Sbb_AX_imm16 => Sbb_rm16_imm16,
        Sbb_EAX_imm32 => Sbb_rm32_imm32,
        Sbb_RAX_imm32 => Sbb_rm64_imm32,
        And_AL_imm8 => And_rm8_imm8,
        And_AX_imm16 => And_rm16_imm16,
        And_EAX_imm32 => And_rm32_imm32,
        And_RAX_imm32 => And_rm64_imm32,
        Sub_AL_imm8 => Sub_rm8_imm8,
        Sub_AX_imm16 => Sub_rm16_imm16,
        Sub_EAX_imm32 => Sub_rm32_imm32,
        Sub_RAX_imm32 => Sub_rm64_imm32,
        Xor_AL_imm8 => Xor_rm8_imm8,
        Xor_AX_imm16 => Xor_rm16_imm16,
        Xor_EAX_imm32 => Xor_rm32_imm32,
        Xor_RAX_imm32 => Xor_rm64_imm32,
        Cmp_AL_imm8 => Cmp_rm8_imm8,
        Cmp_AX_imm16 => Cmp_rm16_imm16,
        Cmp_EAX_imm32 => Cmp_rm32_imm32,
        Cmp_RAX_imm32 => Cmp_rm64_imm32,
        Test_AL_imm8 => Test_rm8_imm8,
        Test_AX_imm16 => Test_rm16_imm16,
        Test_EAX_imm32 => Test_rm32_imm32,
        Test_RAX_imm32 => Test_rm64_imm32,
        Mov_AL_moffs8 => Mov_r8_rm8,
        Mov_AX_moffs16 => Mov_r16_rm16,
        Mov_EAX_moffs32 => Mov_r32_rm32,
        Mov_RAX_moffs64 => Mov_r64_rm64,
        Mov_moffs8_AL => Mov_rm8_r8,
        Mov_moffs16_AX => Mov_rm16_r16,
        Mov_moffs32_EAX => Mov_rm32_r32,
        Mov_moffs64_RAX => Mov_rm64_r64,
        Cdqe => return Instruction::with2(Movsxd_r64_rm32, Register::RAX, Register::EAX).ok(),
        Cwde => return Instruction::with2(Movsx_r32_rm16, Register::EAX, Register::AX).ok(),
        _ => return None,
    };
    let mut general = *insn;
    general.set_code(code);
    Some(general)
}

/// How RAX is used beside the operands that are written down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Implicit {
    None,
    Rax,
}

/// Whether `insn` can be copied, and what it does with RAX.
fn copyable(insn: &Instruction) -> Option<Implicit> {
    use Mnemonic::*;
    match insn.mnemonic() {
        // By more than 16 the result is each processor's own, and ours is one of them.
        Shld | Shrd if insn.op1_register().size() == 2 => None,
        Mov | Movzx | Movsx | Movsxd | Add | Or | Adc | Sbb | And | Sub | Xor | Cmp | Test | Inc | Dec
        | Neg | Not | Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd | Bt | Bts | Btr | Btc
        | Bsf | Bsr | Tzcnt | Lzcnt | Popcnt | Bswap | Xchg | Xadd | Movbe | Andn | Bextr | Blsi | Blsmsk
        | Blsr | Pdep | Pext | Rorx | Sarx | Shlx | Shrx | Bzhi | Mulx | Adcx | Adox | Crc32 | Cmovo
        | Cmovno | Cmovb | Cmovae | Cmove | Cmovne | Cmovbe | Cmova | Cmovs | Cmovns | Cmovp | Cmovnp
        | Cmovl | Cmovge | Cmovle | Cmovg | Seto | Setno | Setb | Setae | Sete | Setne | Setbe | Seta
        | Sets | Setns | Setp | Setnp | Setl | Setge | Setle | Setg | Movnti | Clc | Stc | Cmc => {
            Some(Implicit::None)
        }
        Imul | Mul | Cbw | Cwde | Cdqe | Cwd | Cdq | Cqo | Cmpxchg | Cmpxchg8b | Cmpxchg16b | Lahf | Sahf => {
            Some(Implicit::Rax)
        }
        _ => None,
    }
}

/// Whether `insn` is copied, unless it is left to its generic implementation.
pub(crate) fn is_copied(insn: &Instruction) -> bool {
    copyable(insn).is_some()
}

/// Whether `insn` is certain to be copied, and cannot leave the code.
fn stays(insn: &Instruction) -> bool {
    use Mnemonic::*;
    let known = match insn.mnemonic() {
        Lea => return insn.op0_register().size() >= 4,
        Mov | Movzx | Movsx | Movsxd | Add | Or | And | Sub | Xor | Cmp | Test | Neg | Not => true,
        Imul => insn.op_count() > 1,
        _ => false,
    };
    let plain = |op| match insn.op_kind(op) {
        OpKind::Register => {
            let r = insn.op_register(op);
            r.is_gpr() && !matches!(r, Register::AH | Register::CH | Register::DH | Register::BH)
        }
        kind => is_immediate(kind),
    };
    known && (0..insn.op_count()).all(plain)
}

pub(crate) fn is_immediate(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Immediate8
            | Immediate16
            | Immediate32
            | Immediate64
            | Immediate8to16
            | Immediate8to32
            | Immediate8to64
            | Immediate32to64
            | Immediate8_2nd
    )
}

/// The host register `number` in the size of `like`.
pub(crate) fn sized(number: u8, like: Register) -> Register {
    const BYTES: [Register; 16] = [
        Register::AL,
        Register::CL,
        Register::DL,
        Register::BL,
        Register::SPL,
        Register::BPL,
        Register::SIL,
        Register::DIL,
        Register::R8L,
        Register::R9L,
        Register::R10L,
        Register::R11L,
        Register::R12L,
        Register::R13L,
        Register::R14L,
        Register::R15L,
    ];
    let number = u32::from(number);
    match like.size() {
        1 => BYTES[number as usize],
        2 => Register::AX + number,
        4 => Register::EAX + number,
        _ => Register::RAX + number,
    }
}

fn full(r: Reg) -> Register {
    Register::RAX + u32::from(r.0)
}

pub(crate) fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// An operand that is in a scratch register while the instruction runs.
#[derive(Clone, Copy)]
struct Borrowed {
    guest: usize,
    scratch: Reg,
    load: bool,
    store: bool,
}

/// What an instruction that is copied has for operands.
struct Operands {
    accesses: [OpAccess; 4],
    /// The one in memory.
    memory: Option<u32>,
    /// One is a register that exists in the host's RAX only.
    fixed: bool,
}

/// Which operand of an instruction that can be copied, if any, is RAX or a part of it by the opcode alone. The decoder has
/// that for all opcodes, in a table that takes longer to make than a small guest runs.
fn rax_operand(code: Code) -> Option<u32> {
    use Code::*;
    match code {
        Xchg_r16_AX | Xchg_r32_EAX | Xchg_r64_RAX => Some(1),
        _ => None,
    }
}

/// The scratch registers that operands have, and those that they may still take.
struct Scratch {
    free: [Reg; 2],
    count: u8,
    borrowed: [Option<Borrowed>; 4],
    /// A register of the guest's that one of the operands has meanwhile.
    lent: Option<Reg>,
}

impl Scratch {
    /// A scratch register for `one`, which may have it already; the first that is free if only one may be taken.
    fn take(&mut self, one: Borrowed, only_one: bool) -> Option<Reg> {
        if let Some(known) = self.borrowed.iter_mut().flatten().find(|known| known.guest == one.guest) {
            known.load |= one.load;
            known.store |= one.store;
            return Some(known.scratch);
        }
        self.count = self.count.checked_sub(1)?;
        let scratch = self.free[usize::from(self.count == 0 && !only_one)];
        self.note(Borrowed { scratch, ..one })
    }

    /// A register of the guest's for `one`, where there is no scratch register left: one of those that no instruction names by its
    /// opcode alone, and that is not `named`.
    fn lend(&mut self, one: Borrowed, named: impl Fn(Reg) -> bool) -> Option<Reg> {
        let all = [Reg(reg::RSI as u8), Reg(reg::RDI as u8), Reg(reg::RBP as u8)];
        let host = all.into_iter().find(|host| !named(*host))?;
        if self.lent.replace(host).is_some() {
            return None;
        }
        self.note(Borrowed { scratch: host, ..one })
    }

    fn note(&mut self, one: Borrowed) -> Option<Reg> {
        *self.borrowed.iter_mut().find(|place| place.is_none())? = Some(one);
        Some(one.scratch)
    }
}

impl Lower<'_> {
    /// Emits `insn` as a copy of itself; false if that is not possible, whatever was emitted.
    pub(crate) fn copied(&mut self, insn: &Instruction) -> bool {
        let general = general_form(insn);
        let insn = general.as_ref().unwrap_or(insn);
        let held = self.places.held.take();
        match insn.mnemonic() {
            Mnemonic::Nop
            | Mnemonic::Endbr64
            | Mnemonic::Endbr32
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchw => {
                return true;
            }
            Mnemonic::Lea => return self.lea(insn),
            Mnemonic::Mov if is_high_store(insn) => return self.store_high(insn),
            Mnemonic::Div | Mnemonic::Idiv => return self.divide(insn),
            Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Sfence => return self.asm.copy(insn),
            _ => {}
        }
        let Some(mut implicit) = copyable(insn) else { return false };
        if insn.mnemonic() == Mnemonic::Imul && insn.op_count() > 1 {
            implicit = Implicit::None;
        }
        let Some(operands) = self.operands(insn) else { return false };
        let wrap = operands.fixed || implicit == Implicit::Rax;
        let mut effect = self.block.effects[self.current.at];
        if effect.needs && !effect.reads && self.overwritten_next() {
            effect.needs = false;
        }
        let mut scratch =
            Scratch { free: [S2, S1], count: if wrap { 1 } else { 2 }, borrowed: [None; 4], lent: None };
        let mut address = None;
        if let Some(op) = operands.memory {
            let written = writes(operands.accesses[op as usize]);
            let Some(mem) = self.reached(insn, written, (effect.needs, wrap), &mut scratch) else {
                return false;
            };
            address = Some(mem);
        }
        if effect.needs {
            self.restore_flags();
        }
        let mut copy = *insn;
        if !self.put_registers(&mut copy, &operands, (address.is_some(), wrap), &mut scratch) {
            return false;
        }
        let borrowed = scratch.borrowed;
        if let Some(lent) = scratch.lent {
            self.asm.store(stubs::temporary(), lent);
        }
        let has = |one: &Borrowed| address.is_none() && one.scratch == S2 && held == Some(one.guest);
        for one in borrowed.iter().flatten().filter(|one| one.load && !has(one)) {
            self.asm.load(one.scratch, stubs::gpr(one.guest));
        }
        if wrap {
            self.asm.mov(S1, GUEST_RAX);
        }
        if let Some(mem) = address {
            put_address(&mut copy, mem);
        }
        if !self.asm.copy(&copy) {
            return false;
        }
        if wrap {
            self.asm.mov(GUEST_RAX, S1);
        }
        for one in borrowed.iter().flatten().filter(|one| one.store) {
            self.asm.store(stubs::gpr(one.guest), one.scratch);
        }
        if let Some(lent) = scratch.lent {
            self.asm.load(lent, stubs::temporary());
        }
        if effect.changes {
            self.flags_made(insn);
        }
        let now = borrowed.iter().flatten().find(|one| one.scratch == S2).map(|one| one.guest);
        self.places.held = now.or(held.filter(|_| address.is_none()));
        true
    }

    /// What `insn` has for operands; nothing if they are none that can be copied.
    fn operands(&mut self, insn: &Instruction) -> Option<Operands> {
        let rax = rax_operand(insn.code());
        let info = self.info.info_options(insn, ACCESSES);
        let accesses = [info.op0_access(), info.op1_access(), info.op2_access(), info.op3_access()];
        let (mut memory, mut fixed) = (None, false);
        for op in 0..insn.op_count() {
            fixed |= rax == Some(op);
            match insn.op_kind(op) {
                OpKind::Register => {
                    let r = insn.op_register(op);
                    if !r.is_gpr() {
                        return None;
                    }
                    // It exists in the host's RAX only.
                    fixed |= r == Register::AH;
                }
                OpKind::Memory if memory.is_none() => memory = Some(op),
                kind if is_immediate(kind) => {}
                _ => return None,
            }
        }
        Some(Operands { accesses, memory, fixed })
    }

    /// Emits what leads to the operand of `insn` in memory, where the host has it then; nothing if it cannot be
    /// copied. The copy needs the guest's flags or `wrap`s RAX, as the pair says.
    fn reached(
        &mut self,
        insn: &Instruction,
        written: bool,
        (needs_flags, wrap): (bool, bool),
        scratch: &mut Scratch,
    ) -> Option<Mem> {
        // The bit offset of a register reaches beyond the operand.
        let bits = matches!(insn.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
        if bits && insn.op1_kind() == OpKind::Register {
            return None;
        }
        let place = Address::of(insn, self.block.rip, self.block.code_mode)?;
        let size = insn.memory_size().size() as u32;
        if size == 0 || size > 16 {
            return None;
        }
        let align = if insn.mnemonic() == Mnemonic::Cmpxchg16b { 16 } else { 1 };
        let (mem, spare) = self.access(&place, size, written, align);
        let borrows = (0..insn.op_count())
            .any(|op| insn.op_kind(op) == OpKind::Register && self.borrowed(insn.op_register(op)).is_some());
        // Bringing flags back takes S1; so does an operand in memory while S2 is in use.
        if needs_flags || wrap || borrows && !spare {
            self.asm.lea(S2, mem);
            scratch.free = [S1, S1];
            scratch.count = u8::from(!wrap);
            return Some(Mem::at(S2, 0));
        }
        scratch.count = u8::from(spare);
        Some(mem)
    }

    /// Lets `copy` name the host's registers where it names the guest's; false if there are not enough of them. One of its
    /// operands is `in_memory`, or it `wrap`s RAX, as the pair says.
    fn put_registers(
        &self,
        copy: &mut Instruction,
        operands: &Operands,
        (in_memory, wrap): (bool, bool),
        scratch: &mut Scratch,
    ) -> bool {
        let rax = rax_operand(copy.code());
        let named = *copy;
        for op in 0..copy.op_count() {
            if copy.op_kind(op) != OpKind::Register || rax == Some(op) {
                continue;
            }
            let r = copy.op_register(op);
            let Some(guest) = self.borrowed(r) else {
                if let Some(home) = self.home(r.full_register().number()) {
                    // RAX may have moved already.
                    let host = if wrap && home == GUEST_RAX { S1 } else { home };
                    // High byte registers stay where they are.
                    if !matches!(r, Register::AH | Register::CH | Register::DH | Register::BH) {
                        copy.set_op_register(op, sized(host.0, r));
                    }
                }
                continue;
            };
            let access = operands.accesses[op as usize];
            let load = access != OpAccess::Write || r.size() < 4;
            let one = Borrowed { guest, scratch: S1, load, store: writes(access) };
            let register = match scratch.take(one, in_memory || wrap) {
                Some(register) => register,
                // An operand in memory is behind S2 then.
                None if wrap => match scratch.lend(one, |host| self.names(&named, host)) {
                    Some(register) => register,
                    None => return false,
                },
                None => return false,
            };
            copy.set_op_register(op, sized(register.0, r));
        }
        true
    }

    /// Whether an operand of `insn` is in the register `host` of the host.
    fn names(&self, insn: &Instruction, host: Reg) -> bool {
        (0..insn.op_count())
            .filter(|op| insn.op_kind(*op) == OpKind::Register)
            .any(|op| self.home(insn.op_register(op).full_register().number()) == Some(host))
    }

    /// Whether nobody can see the status flags that the current instruction leaves: another changes all
    /// of them before any place where the code can be left.
    fn overwritten_next(&self) -> bool {
        for (insn, effect) in self.block.all.iter().zip(&self.block.effects).skip(self.current.at + 1) {
            if !stays(insn) {
                return false;
            }
            if effect.needs {
                return false;
            }
            if effect.changes {
                return true;
            }
        }
        false
    }

    /// The guest register of `r`, if the host has it in memory.
    fn borrowed(&self, r: Register) -> Option<usize> {
        let guest = r.full_register().number();
        self.home(guest).is_none().then_some(guest)
    }

    fn lea(&mut self, insn: &Instruction) -> bool {
        let Some(mut address) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
        address.segment = None;
        let r = insn.op0_register();
        let guest = r.full_register().number();
        if r.size() < 4 {
            return false;
        }
        let narrow = i32::try_from(address.disp).is_ok();
        if !narrow && (address.base.is_some() || address.index.is_some()) {
            return false;
        }
        let to = match self.home(guest) {
            // The address may need its own register before the result is there.
            Some(host) if self.simple(&address) => host,
            _ => S2,
        };
        if self.simple(&address) && (address.base.is_some() || address.index.is_some()) {
            let base = address.base.and_then(|base| self.home(base));
            let index = address.index.and_then(|(index, shift)| Some((self.home(index)?, shift)));
            let mem = Mem { cpu: false, base, index, disp: address.disp as i32 };
            if address.short || r.size() == 4 { self.asm.lea32(to, mem) } else { self.asm.lea(to, mem) }
        } else {
            self.effective(S2, &address, 0);
            if address.short || r.size() == 4 {
                self.asm.mov32(to, S2);
            } else if to != S2 {
                self.asm.mov(to, S2);
            }
        }
        match self.home(guest) {
            Some(host) if host != to => self.asm.mov(host, to),
            Some(_) => {}
            None => self.asm.store(stubs::gpr(guest), to),
        }
        true
    }

    /// All registers of `address` are in host registers.
    fn simple(&self, address: &Address) -> bool {
        address.base.is_none_or(|base| self.home(base).is_some())
            && address.index.is_none_or(|(index, _)| self.home(index).is_some())
    }

    /// Divisions that cannot fault are done by the host; the others leave.
    fn divide(&mut self, insn: &Instruction) -> bool {
        let wide = match insn.op0_kind() {
            OpKind::Register => insn.op0_register().size(),
            OpKind::Memory => insn.memory_size().size(),
            _ => return false,
        };
        if wide < 4 {
            return false;
        }
        let signed = insn.mnemonic() == Mnemonic::Idiv;
        let fault = self.step(reason::STEP);
        match insn.op0_kind() {
            OpKind::Register => {
                self.save_flags();
                let guest = insn.op0_register().full_register().number();
                match self.home(guest) {
                    Some(host) => self.asm.mov(S2, host),
                    None => self.asm.load(S2, stubs::gpr(guest)),
                }
            }
            _ => {
                let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else {
                    return false;
                };
                self.save_flags();
                let (mem, _) = self.access(&address, wide as u32, false, 1);
                if wide == 8 { self.asm.load(S2, mem) } else { self.asm.load32(S2, mem) }
            }
        }
        let rdx = Reg(reg::RDX as u8);
        if signed {
            self.asm.mov(S1, GUEST_RAX);
            if wide == 8 {
                self.asm.sar(S1, 63);
                self.asm.alu(Alu::Cmp, S1, rdx);
                self.asm.jcc(cc::NE, fault);
                self.asm.lea(S1, Mem::at(S2, 1));
                self.asm.alu_imm(Alu::Cmp, S1, 1);
            } else {
                self.asm.sar32(S1, 31);
                self.asm.alu32(Alu::Cmp, S1, rdx);
                self.asm.jcc(cc::NE, fault);
                self.asm.lea32(S1, Mem::at(S2, 1));
                self.asm.alu_imm32(Alu::Cmp, S1, 1);
            }
            // What is no larger than its divisor can be, unless that is 0 or -1.
            self.asm.jcc(cc::BE, fault);
        } else {
            if wide == 8 {
                self.asm.alu(Alu::Cmp, rdx, S2)
            } else {
                self.asm.alu32(Alu::Cmp, rdx, S2)
            }
            self.asm.jcc(cc::AE, fault);
        }
        self.asm.mov(S1, GUEST_RAX);
        let mut copy = *insn;
        let like = if wide == 8 { Register::RAX } else { Register::EAX };
        copy.set_op0_kind(OpKind::Register);
        copy.set_op0_register(sized(S2.0, like));
        copy.set_segment_prefix(Register::None);
        if !self.asm.copy(&copy) {
            return false;
        }
        self.asm.mov(GUEST_RAX, S1);
        true
    }
}

/// Gives `insn` the memory operand `mem`.
pub(crate) fn put_address(insn: &mut Instruction, mem: Mem) {
    insn.set_segment_prefix(Register::None);
    insn.set_memory_base(mem.base.map_or(Register::None, full));
    insn.set_memory_index(mem.index.map_or(Register::None, |(index, _)| full(index)));
    insn.set_memory_index_scale(mem.index.map_or(1, |(_, shift)| 1 << shift));
    insn.set_memory_displacement64(i64::from(mem.disp) as u64);
    insn.set_memory_displ_size(match mem.disp {
        0 => 0,
        -128..=127 => 1,
        _ => 8,
    });
}

#[cfg(test)]
mod tests {
    use iced_x86::OpCodeOperandKind as Kind;

    use super::*;

    #[test]
    fn operands_that_are_rax_by_the_opcode_are_those_of_the_decoders_table() {
        let mut found = 0;
        let copied = |code: &Code| {
            let mut insn = Instruction::default();
            insn.set_code(*code);
            is_copied(&insn)
        };
        for code in Code::values().filter(copied) {
            let mut insn = Instruction::default();
            insn.set_code(code);
            let code = general_form(&insn).map_or(code, |general| general.code());
            for op in 0..code.op_code().op_count() {
                let rax = matches!(code.op_code().op_kind(op), Kind::al | Kind::ax | Kind::eax | Kind::rax);
                assert_eq!(rax_operand(code) == Some(op), rax, "{code:?}, operand {op}");
                found += u32::from(rax);
            }
        }
        assert_eq!(found, 3);
    }

    #[test]
    fn what_processors_do_differently_is_not_copied() {
        let copied = |bytes: &[u8]| is_copied(&iced_x86::Decoder::new(64, bytes, 0).decode());
        assert!(!copied(&[0x66, 0x0f, 0xa5, 0xc8]), "shld ax, cx, cl");
        assert!(!copied(&[0x66, 0x0f, 0xac, 0xc8, 17]), "shrd ax, cx, 17");
        assert!(copied(&[0x0f, 0xa5, 0xc8]) && copied(&[0x48, 0x0f, 0xac, 0xc8, 17]));
    }
}
