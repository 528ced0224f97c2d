//! Accesses that are translated together.
//!
//! Code reaches the fields of a structure, and what it keeps on its stack, through the same registers
//! with different displacements. The first of such accesses in a block looks into the TLB for the
//! range that all of them lie in, and the distance to the host's memory stays in the context for
//! the others: a *window*. It needs what the first access needs and no more: a range is read only
//! if some of it is read first, so a window for writing is opened by a write.
//!
//! Translations cannot become void within a block, but by an instruction that runs through its generic
//! implementation, which closes all windows.

use std::mem::offset_of;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use satori_state::reg;

use super::asm::{Alu, Label, Mem, cc, field};
use super::lower::{Cold, Lower};
use super::memory::Address;
use super::stubs::{self, S1, S2};
use super::{Context, reason};
use crate::cpu::Cpu;
use crate::mmu::Tlb;

/// Windows that are open at a time.
pub const WINDOWS: usize = 8;
/// Bytes of a window at most.
const SPAN: i64 = 512;
/// Times that a range was not in one piece before its block is translated without windows.
const PATIENCE: u32 = 32;

/// What a window leaves in the context.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Opened {
    /// Host address minus linear address.
    addend: u64,
    /// Where the TLB's entry is, in bytes from the first, if other vCPUs run.
    slot: u64,
}

/// What accesses through one window have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    base: Option<usize>,
    index: Option<(usize, u8)>,
    segment: Option<usize>,
}

impl Key {
    fn of(address: &Address) -> Option<Self> {
        (!address.short && !address.computed).then_some(Key {
            base: address.base,
            index: address.index,
            segment: address.segment,
        })
    }
}

/// An access that an instruction will make: displacements from the first byte to behind the last.
#[derive(Clone, Copy)]
struct Use {
    key: Key,
    low: i64,
    high: i64,
    write: bool,
}

/// What one instruction does that matters to windows.
#[derive(Clone, Copy, Default)]
pub struct Step {
    uses: [Option<Use>; 2],
    /// General registers whose value is another one then, by number.
    changes: u16,
    /// A register that a constant is added to.
    shift: Option<(usize, i64)>,
}

impl Step {
    pub fn of(info: &mut InstructionInfoFactory, insn: &Instruction, block_rip: u64) -> Self {
        let mut step = Step { shift: shift(insn), ..Step::default() };
        let known = info.info(insn);
        for used in known.used_registers() {
            let r = used.register().full_register();
            let read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            if !read && r.is_gpr64() && step.shift.is_none_or(|(shifted, _)| shifted != r.number()) {
                step.changes |= 1 << r.number();
            }
        }
        for (used, place) in known.used_memory().iter().zip(&mut step.uses) {
            let stack = insn.is_stack_instruction() && used.base() == Register::RSP;
            let explicit = insn.op_kinds().any(|kind| kind == OpKind::Memory);
            let address = match used.base() {
                // What a push stores, unless its operand is there too.
                Register::RSP if stack && (!explicit || used.access() == OpAccess::Write) => {
                    Address::at(reg::RSP, used.displacement() as i64)
                }
                _ if explicit => match Address::of(insn, block_rip) {
                    Some(address) => address,
                    None => continue,
                },
                _ => continue,
            };
            let size = used.memory_size().size() as i64;
            let Some(key) = Key::of(&address).filter(|_| size != 0) else { continue };
            let write = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            let high = address.disp.wrapping_add(size);
            *place = Some(Use { key, low: address.disp, high, write });
        }
        step
    }

    fn uses(&self) -> impl Iterator<Item = &Use> {
        self.uses.iter().flatten()
    }
}

/// The register that `insn` adds a constant to, and the constant.
fn shift(insn: &Instruction) -> Option<(usize, i64)> {
    let to = insn.op0_register();
    let same =
        |amount| (insn.op0_kind() == OpKind::Register && to.is_gpr64()).then_some((to.number(), amount));
    match insn.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq | Mnemonic::Call | Mnemonic::Ret => {
            Some((reg::RSP, insn.stack_pointer_increment().into()))
        }
        Mnemonic::Pop if to != Register::RSP && insn.op0_kind() == OpKind::Register => {
            Some((reg::RSP, insn.stack_pointer_increment().into()))
        }
        Mnemonic::Add if super::copy::is_immediate(insn.op1_kind()) => same(insn.immediate(1) as i64),
        Mnemonic::Sub if super::copy::is_immediate(insn.op1_kind()) => {
            same((insn.immediate(1) as i64).wrapping_neg())
        }
        Mnemonic::Inc => same(1),
        Mnemonic::Dec => same(-1),
        Mnemonic::Lea if insn.memory_base() == to && insn.memory_index() == Register::None => {
            same(insn.memory_displacement64() as i64)
        }
        _ => None,
    }
}

/// An open window.
#[derive(Clone, Copy)]
struct Window {
    key: Key,
    /// Displacements from the first byte to behind the last, from the base's present value.
    low: i64,
    high: i64,
    write: bool,
}

/// The windows that are open where code is being made.
#[derive(Clone, Copy, Default)]
pub struct Windows {
    open: [Option<Window>; WINDOWS],
    /// Where the next one comes.
    next: usize,
}

impl Windows {
    pub fn close_all(&mut self) {
        self.open = [None; WINDOWS];
    }

    /// Brings the windows up to date with what an instruction does.
    pub fn pass(&mut self, step: &Step) {
        for place in &mut self.open {
            let Some(window) = place else { continue };
            let changed = |register: usize| step.changes & 1 << register != 0;
            let shifted = |register: usize| step.shift.is_some_and(|(shifted, _)| shifted == register);
            let index = window.key.index.map(|(index, _)| index);
            if window.key.base.is_some_and(changed) || index.is_some_and(|i| changed(i) || shifted(i)) {
                *place = None;
            } else if let Some((register, amount)) = step.shift
                && window.key.base == Some(register)
            {
                window.low = window.low.wrapping_sub(amount);
                window.high = window.high.wrapping_sub(amount);
            }
        }
    }

    fn find(&self, wanted: &Use) -> Option<usize> {
        let holds = |window: &Window| {
            window.key == wanted.key
                && window.low <= wanted.low
                && wanted.high <= window.high
                && (window.write || !wanted.write)
        };
        self.open.iter().position(|window| window.as_ref().is_some_and(holds))
    }

    fn open(&mut self, window: Window) -> usize {
        let number = self.next;
        self.next = (number + 1) % WINDOWS;
        self.open[number] = Some(window);
        number
    }
}

/// The range that `first`, an access of the first of `steps`, should open a window for.
fn range(first: &Use, steps: &[Step]) -> Option<(i64, i64)> {
    let (mut low, mut high) = (first.low, first.high);
    let (mut moved, mut others) = (0i64, 0);
    // The first of its uses may be this access itself.
    let mut own = true;
    for step in steps {
        for one in step.uses().filter(|one| one.key == first.key) {
            let here = (one.low.wrapping_add(moved), one.high.wrapping_add(moved));
            if std::mem::take(&mut own) && here == (first.low, first.high) && one.write == first.write {
                continue;
            }
            if one.write && !first.write {
                return (others > 0).then_some((low, high));
            }
            let wider = (low.min(here.0), high.max(here.1));
            if wider.1.wrapping_sub(wider.0) <= SPAN {
                (low, high) = wider;
                others += 1;
            }
        }
        own = false;
        let changed = |register: usize| step.changes & 1 << register != 0;
        let shifted = |register: usize| step.shift.is_some_and(|(shifted, _)| shifted == register);
        let index = first.key.index.map(|(index, _)| index);
        if first.key.base.is_some_and(changed) || index.is_some_and(|i| changed(i) || shifted(i)) {
            break;
        }
        if let Some((register, amount)) = step.shift
            && first.key.base == Some(register)
        {
            moved = moved.wrapping_add(amount);
        }
    }
    (others > 0).then_some((low, high))
}

/// What a look for a window's range is called with if the TLB does not have it.
pub struct Range {
    size: u8,
    write: bool,
    window: u8,
    /// The block's number.
    block: u32,
    /// Bytes from the access to the range's first, and behind its last.
    low: i64,
    high: i64,
}

fn opened(window: usize, offset: usize) -> Mem {
    field(offset_of!(Cpu, context) + offset_of!(Context, windows) + window * size_of::<Opened>() + offset)
}

/// Where the place of the TLB's entry of `window` is.
pub fn slot(window: u8) -> Mem {
    opened(window.into(), offset_of!(Opened, slot))
}

impl Lower<'_> {
    /// The operand for an access through a window, which may be opened for it; nothing if the access
    /// stands alone. Flags stay if the window was open.
    pub fn through_window(&mut self, address: &Address, size: u32, write: bool) -> Option<(Mem, bool)> {
        if !self.grouping {
            return None;
        }
        let key = Key::of(address)?;
        let wanted = Use { key, low: address.disp, high: address.disp.checked_add(size.into())?, write };
        match self.windows.find(&wanted) {
            Some(number) => {
                if address.segment.is_some() {
                    // The sum changes flags.
                    self.save_flags();
                }
                if write && self.parallel {
                    (self.stores, self.stored_in) = (true, Some(number as u8));
                }
                self.asm.load(S1, opened(number, offset_of!(Opened, addend)));
            }
            None => {
                let steps = std::mem::take(&mut self.steps);
                let range = range(&wanted, &steps[self.at..]);
                self.steps = steps;
                let (low, high) = range?;
                let number = self.windows.open(Window { key, low, high, write });
                self.open_window(address, size, write, (low, high), number);
            }
        }
        if let Some((base, disp)) = self.register_only(address) {
            return Some((Mem::sum(S1, base, disp), true));
        }
        self.effective_beside(S2, S1, address);
        Some((Mem::sum(S1, S2, 0), false))
    }

    /// Looks for the range from displacement `low` to `high` in the TLB; S1 is the distance to the
    /// host's memory then, and the window has it too.
    fn open_window(
        &mut self,
        address: &Address,
        size: u32,
        write: bool,
        (low, high): (i64, i64),
        number: usize,
    ) {
        self.save_flags();
        let (miss, have) = (self.asm.label(), self.asm.label());
        let first = low.wrapping_sub(address.disp);
        let last = high.wrapping_sub(address.disp) - 1;
        let direct = self.register_only(address).and_then(|(base, disp)| {
            let to = |offset: i64| i32::try_from(i64::from(disp) + offset).ok();
            Some((base, to(first)?, to(last)?))
        });
        match direct {
            Some((base, first, last)) => {
                self.asm.lea(S2, Mem::at(base, last));
                self.asm.lea32(S1, Mem::at(base, first));
            }
            None => {
                self.effective(S2, address, last);
                self.asm.lea32(S1, Mem::at(S2, (first - last) as i32));
            }
        }
        let entry = 2 * self.mode as usize + usize::from(write);
        self.asm.alu_imm(Alu::And, S2, -0x1000);
        self.asm.shr32(S1, 12 - Tlb::ENTRY_SHIFT);
        self.asm.alu_imm32(Alu::And, S1, Tlb::SLOT_MASK);
        self.asm.alu_mem(Alu::Cmp, S2, stubs::tlb(S1, Tlb::TAG_OFFSET + 8 * entry));
        self.asm.jcc(cc::NE, miss);
        if write && self.parallel {
            self.asm.store(slot(number as u8), S1);
            (self.stores, self.stored_in) = (true, Some(number as u8));
        }
        self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        self.asm.bind(have);
        self.asm.store(opened(number, offset_of!(Opened, addend)), S1);
        let range = Box::new(Range {
            size: size as u8,
            write,
            window: number as u8,
            block: self.number,
            low: first,
            high: last + 1,
        });
        let at = std::ptr::from_ref(&*range) as u64;
        self.ranges.push(range);
        self.cold.push(Cold::Range {
            label: miss,
            have,
            address: *address,
            range: at,
            rip: self.rip,
            rest: self.rest,
        });
    }

    /// The code of a range that the TLB does not have, out of the way.
    pub fn emit_range(&mut self, have: Label, address: &Address, range: u64, rip: u64, rest: u32) {
        let alone = self.asm.label();
        self.effective(S2, address, 0);
        self.asm.constant(S1, range);
        self.asm.call_to(self.stubs.range);
        self.reload_vectors();
        self.asm.jcc(cc::E, alone);
        self.asm.jmp(have);
        self.asm.bind(alone);
        self.emit_step(rip, rest, reason::STEP);
    }
}

/// Called by translated code: translates the access at `linear` and opens the window around it.
/// Returns the distance to the host's memory, or 0 if the access must stand alone.
pub extern "sysv64" fn open(cpu: &mut Cpu, linear: u64, range: &Range) -> u64 {
    if let Some(jit) = &mut cpu.jit {
        jit.counts.misses += 1;
    }
    let (size, write) = (u64::from(range.size), range.write);
    if !cpu.cache_translation(linear, size, write) {
        return 0;
    }
    let Some((host, _)) = cpu.tlb.lookup(linear, size, cpu.mode, write) else { return 0 };
    let addend = (host as u64).wrapping_sub(linear);
    let page = |linear: u64| linear & !0xfff;
    let first = page(linear.wrapping_add_signed(range.low));
    let last = page(linear.wrapping_add_signed(range.high - 1));
    if first != last {
        // A range in one piece on the host is as good, if its other page may be reached too: this
        // access does not touch that, and must leave no trace there.
        let other = if page(linear) == first { last } else { first };
        let same = |host: *mut u8| (host as u64).wrapping_sub(other) == addend;
        let whole = cpu.tlb.lookup(other, 1, cpu.mode, write).is_some_and(|(host, _)| same(host));
        if !whole || cpu.parallel && write {
            cpu.window_in_pieces(range.block);
            return 0;
        }
    }
    cpu.context.windows[usize::from(range.window)].slot = Tlb::offset_of(linear);
    addend
}

impl Cpu {
    /// The range of a window of block `number` is in several pieces: should that happen again and
    /// again, the block does without.
    #[cold]
    fn window_in_pieces(&mut self, number: u32) {
        let Some(jit) = &mut self.jit else { return };
        let Some(block) = jit.blocks.get_mut(number as usize) else { return };
        block.in_pieces += 1;
        if block.in_pieces == PATIENCE {
            let key = block.key;
            jit.alone.insert(key);
            jit.retire(&mut self.context, number);
        }
    }
}
