//! MOVS, STOS, LODS, CMPS and SCAS, alone or repeated.
//!
//! One call does one element, or a run of them within a page of RAM, commits that, and goes on at
//! its own address while elements remain: interrupts get in between, a fault finds the registers
//! at its element, and what a device answered belongs to one element. MOVS and STOS go through a few
//! pages in one call while nothing can go wrong, which the TLB tells; not where instructions are counted,
//! as each call is one, and what the TLB holds is an engine's own matter.

use iced_x86::{Instruction, OpKind, Register};
use satori_defs::x86::rflags;
use satori_state::seg;

use super::bulk;
use super::operand::{accumulator, size};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;
use crate::insn::{Row, rows};

/// Bytes that one call does at most, so that interrupts need not wait long.
const MOST: u64 = 8 * 4096;

/// The registers that a string instruction uses: the address size chooses among them.
#[derive(Clone, Copy)]
struct Registers {
    count: Register,
    source: Register,
    destination: Register,
}

impl Registers {
    fn of(insn: &Instruction) -> Self {
        let kind = if insn.op0_kind() == OpKind::Register { insn.op1_kind() } else { insn.op0_kind() };
        match kind {
            OpKind::MemorySegSI | OpKind::MemoryESDI => {
                Registers { count: Register::CX, source: Register::SI, destination: Register::DI }
            }
            OpKind::MemorySegESI | OpKind::MemoryESEDI => {
                Registers { count: Register::ECX, source: Register::ESI, destination: Register::EDI }
            }
            _ => Registers { count: Register::RCX, source: Register::RSI, destination: Register::RDI },
        }
    }
}

/// One call's view of a string instruction.
struct Strings {
    registers: Registers,
    /// Elements to do: 1 without a prefix.
    count: u64,
    repeated: bool,
    down: bool,
    /// Single-stepping stops after every element.
    single: bool,
}

impl Strings {
    fn of(cpu: &Cpu, insn: &Instruction) -> Self {
        let registers = Registers::of(insn);
        let repeated = insn.has_rep_prefix() || insn.has_repne_prefix();
        let count = if repeated { cpu.reg(registers.count) } else { 1 };
        let flag = |flag| cpu.state.rflags & flag != 0;
        Strings {
            registers,
            count,
            repeated,
            down: flag(rflags::DF),
            single: flag(rflags::TF) || cpu.debug.steps(),
        }
    }

    fn source<T: Int>(&self, cpu: &mut Cpu, insn: &Instruction) -> Exec<u64> {
        let offset = cpu.reg(self.registers.source);
        cpu.segment_linear(insn.memory_segment().number(), offset, T::SIZE, false)
    }

    fn destination<T: Int>(&self, cpu: &mut Cpu, write: bool) -> Exec<u64> {
        let offset = cpu.reg(self.registers.destination);
        cpu.segment_linear(seg::ES, offset, T::SIZE, write)
    }

    /// Whether elements after the first lie behind it in linear memory, or before it if they go downwards, as far as its page
    /// goes, and may be done without a look at each.
    fn runs(&self, cpu: &Cpu, segments: &[usize]) -> bool {
        let plain = |&segment: &usize| match self.registers.count.size() {
            8 => true,
            // Offsets wrap at 4 GiB, which is a page boundary if the base is 0.
            4 if cpu.derived.code64 => cpu.derived.segment_base[segment] == 0,
            4 => {
                let register = &cpu.state.seg[segment];
                let expands_down = register.rights & 0xc == 4;
                register.base == 0 && register.limit == u32::MAX && !expands_down
            }
            _ => false,
        };
        self.count > 1 && !self.single && segments.iter().all(plain)
    }

    /// Whether more than one page may be gone through at once. Smaller addresses wrap; and how far one call goes must not show
    /// where instructions are counted.
    fn far(&self, cpu: &Cpu) -> bool {
        self.registers.count.size() == 8 && !cpu.count.is_exact()
    }

    /// Elements that one call may do.
    fn most<T: Int>(&self) -> u64 {
        self.count.min(MOST / T::SIZE)
    }

    fn advance<T: Int>(&self, cpu: &mut Cpu, register: Register, elements: u64) {
        let bytes = elements.wrapping_mul(T::SIZE);
        let bytes = if self.down { bytes.wrapping_neg() } else { bytes };
        let value = cpu.reg(register).wrapping_add(bytes);
        cpu.set_reg(register, value);
    }

    /// Counts `elements` and comes back if some remain and `more` holds.
    fn repeat(&self, cpu: &mut Cpu, elements: u64, more: bool) -> Exec<()> {
        if !self.repeated {
            return Ok(());
        }
        let left = self.count - elements;
        cpu.set_reg(self.registers.count, left);
        let more = left != 0 && more;
        cpu.debug.repeats(cpu.state.rip, more);
        if more {
            let here = cpu.state.rip;
            return cpu.jump(here);
        }
        Ok(())
    }
}

/// Does up to `most` elements: `piece` is called with how many are done and how many are left, and says how many it
/// did, until that is none.
fn pieces(most: u64, mut piece: impl FnMut(u64, u64) -> u64) -> u64 {
    let mut done = 0;
    while done < most {
        match piece(done, most - done) {
            0 => break,
            more => done += more,
        }
    }
    done
}

fn movs<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let strings = Strings::of(cpu, insn);
    if strings.count == 0 {
        return Ok(());
    }
    let from = strings.source::<T>(cpu, insn)?;
    let to = strings.destination::<T>(cpu, true)?;
    let mut done = 0;
    let runs = strings.runs(cpu, &[insn.memory_segment().number(), seg::ES]);
    if runs && strings.down {
        done = bulk::copy_down::<T>(cpu, from, to, strings.count)?;
    } else if runs {
        if strings.far(cpu) {
            done = pieces(strings.most::<T>(), |done, left| {
                let (from, to) = (from.wrapping_add(done * T::SIZE), to.wrapping_add(done * T::SIZE));
                bulk::copy_cached::<T>(cpu, from, to, left)
            });
        }
        if done == 0 {
            done = bulk::copy::<T>(cpu, from, to, strings.count)?;
        }
    }
    if done == 0 {
        let value: T = cpu.read(from)?;
        cpu.write(to, value)?;
        done = 1;
    }
    strings.advance::<T>(cpu, strings.registers.source, done);
    strings.advance::<T>(cpu, strings.registers.destination, done);
    strings.repeat(cpu, done, true)
}

fn stos<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let strings = Strings::of(cpu, insn);
    if strings.count == 0 {
        return Ok(());
    }
    let to = strings.destination::<T>(cpu, true)?;
    let value = T::from_u64(cpu.reg(accumulator::<T>().0));
    let mut done = 0;
    let runs = strings.runs(cpu, &[seg::ES]);
    if runs && strings.down {
        done = bulk::fill_down(cpu, to, value, strings.count)?;
    } else if runs {
        if strings.far(cpu) {
            done = pieces(strings.most::<T>(), |done, left| {
                bulk::fill_cached(cpu, to.wrapping_add(done * T::SIZE), value, left)
            });
        }
        if done == 0 {
            done = bulk::fill(cpu, to, value, strings.count)?;
        }
    }
    if done == 0 {
        cpu.write(to, value)?;
        done = 1;
    }
    strings.advance::<T>(cpu, strings.registers.destination, done);
    strings.repeat(cpu, done, true)
}

fn lods<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let strings = Strings::of(cpu, insn);
    if strings.count == 0 {
        return Ok(());
    }
    let from = strings.source::<T>(cpu, insn)?;
    let value: T = cpu.read(from)?;
    cpu.set_reg(accumulator::<T>().0, value.into());
    strings.advance::<T>(cpu, strings.registers.source, 1);
    strings.repeat(cpu, 1, true)
}

fn cmps<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let strings = Strings::of(cpu, insn);
    if strings.count == 0 {
        return Ok(());
    }
    let equal = !insn.has_repne_prefix();
    let a = strings.source::<T>(cpu, insn)?;
    let b = strings.destination::<T>(cpu, false)?;
    let mut run = None;
    if !strings.down && strings.runs(cpu, &[insn.memory_segment().number(), seg::ES]) {
        run = bulk::compare::<T>(cpu, a, b, equal, strings.count)?;
    }
    let run = match run {
        Some(run) => run,
        None => bulk::Compared { elements: 1, last: (cpu.read(a)?, cpu.read(b)?) },
    };
    strings.advance::<T>(cpu, strings.registers.source, run.elements);
    compared(cpu, &strings, run, equal)
}

fn scas<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let strings = Strings::of(cpu, insn);
    if strings.count == 0 {
        return Ok(());
    }
    let equal = !insn.has_repne_prefix();
    let at = strings.destination::<T>(cpu, false)?;
    let value = T::from_u64(cpu.reg(accumulator::<T>().0));
    let mut run = None;
    if !strings.down && strings.runs(cpu, &[seg::ES]) {
        run = bulk::scan(cpu, value, at, equal, strings.count)?;
    }
    let run = match run {
        Some(run) => run,
        None => bulk::Compared { elements: 1, last: (value, cpu.read(at)?) },
    };
    compared(cpu, &strings, run, equal)
}

/// The end of CMPS and SCAS: flags by the last pair.
fn compared<T: Int>(cpu: &mut Cpu, strings: &Strings, run: bulk::Compared<T>, equal: bool) -> Exec<()> {
    strings.advance::<T>(cpu, strings.registers.destination, run.elements);
    cpu.flags.sub(run.last.0, run.last.1, false);
    let more = cpu.flags.zf() == equal;
    strings.repeat(cpu, run.elements, more)
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Movsb | Movsw | Movsd | Movsq => sized!(size(insn, 0), movs),
    Stosb | Stosw | Stosd | Stosq => sized!(size(insn, 0), stos),
    Lodsb | Lodsw | Lodsd | Lodsq => sized!(size(insn, 0), lods),
    Cmpsb | Cmpsw | Cmpsd | Cmpsq => sized!(size(insn, 0), cmps),
    Scasb | Scasw | Scasd | Scasq => sized!(size(insn, 0), scas),
});
