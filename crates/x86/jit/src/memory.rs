//! Memory operands: the guest's address becomes a host address through the software TLB.

use iced_x86::{Instruction, Register};
use satori_engine::Doing;
use satori_memory::PageState;
use satori_state::{reg, seg};

use super::asm::{Alu, GS_AT, Label, Mem, Reg, Width, cc};
use super::lower::Lower;
use super::narrow;
use super::reason;
use super::stubs::{self, S1, S2};
use crate::Translating;
use satori_soft::code_mode::{BITS_64, side};
use satori_soft::host::Scalar;
use satori_soft::mmu::{Side, Tlb};

/// In a description of an access: it writes.
pub(crate) const WRITE: u32 = 1 << 8;
/// Misses of one address in a row that are answered.
const MAX_REPEATS: u32 = 64;
/// From this bit on: what its address must be a multiple of.
const ALIGN_SHIFT: u32 = 16;

/// Where an operand is in linear memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub base: Option<usize>,
    pub index: Option<(usize, u8)>,
    pub disp: i64,
    /// FS or GS.
    pub segment: Option<usize>,
    /// 32-bit addressing.
    pub short: bool,
    /// In 32-bit code: the base of the segment is added with 32 bits too.
    pub narrow: bool,
    /// It was computed before, and waits in the context; nothing else is in it.
    pub computed: bool,
    /// It is counted from the code's own address, which `disp` includes.
    pub relative: bool,
}

impl Address {
    const NONE: Self = Address {
        base: None,
        index: None,
        disp: 0,
        segment: None,
        short: false,
        narrow: false,
        computed: false,
        relative: false,
    };

    /// The address of `insn`'s memory operand, relative to a block at `rip` in code of `code_mode`.
    pub(crate) fn of(insn: &Instruction, rip: u64, code_mode: u64) -> Option<Self> {
        let narrow = code_mode & BITS_64 == 0;
        if narrow && !narrow::is_flat(code_mode, insn.memory_segment().number()) {
            return None;
        }
        let segment = match insn.memory_segment() {
            Register::FS => Some(seg::FS),
            Register::GS => Some(seg::GS),
            _ => None,
        };
        if insn.is_ip_rel_memory_operand() {
            if insn.memory_base() != Register::RIP {
                return None;
            }
            let disp = rip.wrapping_add(insn.ip_rel_memory_address()) as i64;
            return Some(Address { disp, segment, relative: true, ..Self::NONE });
        }
        let mut short = narrow && insn.memory_displ_size() == 4;
        let mut register = |r: Register| match r {
            Register::None => Some(None),
            r if r.is_gpr64() => Some(Some(r.number())),
            r if r.is_gpr32() => {
                short = true;
                Some(Some(r.number()))
            }
            _ => None,
        };
        let base = register(insn.memory_base())?;
        let index = register(insn.memory_index())?;
        if base.is_none() && index.is_none() && insn.memory_displ_size() != if narrow { 4 } else { 8 } {
            return None;
        }
        let index = index.map(|index| (index, insn.memory_index_scale().trailing_zeros() as u8));
        let disp = insn.memory_displacement64() as i64;
        // What 32-bit addresses wrap around is cut off by a 32-bit LEA.
        let disp = if short { i64::from(disp as i32) } else { disp };
        Some(Address { base, index, disp, segment, short, narrow, ..Self::NONE })
    }

    /// The one that was computed.
    pub(crate) fn computed() -> Self {
        Address { computed: true, ..Self::NONE }
    }

    /// At `disp` from a register.
    pub(crate) fn at(base: usize, disp: i64) -> Self {
        Address { base: Some(base), disp, ..Self::NONE }
    }

    /// At `disp` from the stack pointer of code of `code_mode`, whose stack is flat.
    pub(crate) fn stack(code_mode: u64, disp: i64) -> Self {
        let narrow = code_mode & BITS_64 == 0;
        Address { short: narrow, narrow, ..Address::at(reg::RSP, disp) }
    }
}

/// Bytes that only accesses of vectors have.
const VECTORS: u32 = 16;
/// Bytes of a vector at most.
pub(crate) const VECTOR: usize = 32;

impl Translating {
    /// Copies a vector in two pages of RAM to where it lies together: how far that is from `linear`.
    fn bring_together(&mut self, linear: u64, size: u64) -> Option<u64> {
        let first = 0x1000 - (linear & 0xfff);
        if !self.cpu.derived.code64 && linear.wrapping_add(size) >> 32 != 0 {
            return None;
        }
        let parts = [(linear, first), (linear.wrapping_add(first), size - first)];
        let mut at = 0;
        for (linear, bytes) in parts {
            if !self.cpu.cache_translation(linear, bytes, false) {
                return None;
            }
            // One may push the other out of the TLB, but it is read by then.
            let from = self.cpu.cached_range(linear, bytes, false)?;
            for i in 0..bytes as usize {
                // SAFETY: the range holds that many bytes of RAM.
                *self.context.vector.get_mut(at)? = unsafe { u8::load(from.add(i)) };
                at += 1;
            }
        }
        let distance = (self.context.vector.as_ptr() as u64).wrapping_sub(linear);
        (distance > 1).then_some(distance)
    }
}

impl Lower<'_> {
    /// Makes of a number of a page, in S1 in units of the TLB's entries, how far its entry is behind the first of the guest's own.
    pub(crate) fn entry_place(&mut self) {
        self.asm.alu_imm32(Alu::And, S1, Tlb::SLOT_MASK);
        if side(self.block.code_mode) == Side::Nested {
            self.asm.alu_mem(Alu::Add, S1, stubs::nested_entries());
        }
    }

    /// Computes `address + offset` into `to`, a scratch register. The other one may be lost if
    /// index and base are both in memory. Flags may be lost if there is a segment.
    pub(crate) fn effective(&mut self, to: Reg, address: &Address, offset: i64) {
        if address.computed {
            self.asm.load(to, stubs::computed());
            if offset != 0 {
                self.asm.lea(to, Mem::at(to, offset as i32));
            }
            return;
        }
        let other = if to == S1 { S2 } else { S1 };
        let disp = address.disp.wrapping_add(offset);
        // What does not fit is added in two steps; with a register, the displacement itself fits.
        let (disp32, mut more) = match i32::try_from(disp) {
            Ok(narrow) if !address.short => (narrow, 0),
            _ => (address.disp as i32, offset as i32),
        };
        // The sum with the segment's base wraps, too.
        let last = if address.narrow && address.segment.is_some() { std::mem::take(&mut more) } else { 0 };
        if address.base.is_none() && address.index.is_none() {
            if address.relative {
                self.asm.linear(to, disp as u64);
            } else if address.short {
                self.asm.constant(to, u64::from(address.disp as u32).wrapping_add_signed(more.into()));
            } else {
                self.asm.constant(to, disp as u64);
            }
        } else {
            let base = address.base.map(|base| match self.home(base) {
                Some(register) => register,
                None => {
                    self.asm.load(to, stubs::gpr(base));
                    to
                }
            });
            let index = address.index.map(|(index, shift)| match self.home(index) {
                Some(register) => (register, shift),
                None => {
                    let free = if base == Some(to) { other } else { to };
                    self.asm.load(free, stubs::gpr(index));
                    (free, shift)
                }
            });
            let mem = Mem { cpu: false, base, index, disp: disp32 };
            if address.short {
                match (base, index, mem.disp) {
                    (Some(base), None, 0) => self.asm.mov32(to, base),
                    _ => self.asm.lea32(to, mem),
                }
                if more != 0 {
                    // The operand's address wraps at 4 GiB, its bytes behind the first do not.
                    self.asm.lea(to, Mem::at(to, more));
                }
            } else if more != 0 {
                self.asm.lea(to, mem);
                self.asm.lea(to, Mem::at(to, more));
            } else if index.is_some() || mem.disp != 0 || base != Some(to) {
                self.asm.lea(to, mem);
            }
        }
        match address.segment {
            Some(segment) if address.narrow => self.asm.alu_mem32(Alu::Add, to, stubs::segment_base(segment)),
            Some(segment) => self.asm.alu_mem(Alu::Add, to, stubs::segment_base(segment)),
            None => {}
        }
        if last != 0 {
            self.asm.lea(to, Mem::at(to, last));
        }
    }

    /// The operand for `address` when S1 is the distance to the host's memory, and whether S2 is free.
    pub(crate) fn operand(&mut self, address: &Address) -> (Mem, bool) {
        if let Some((base, disp)) = self.register_only(address) {
            return (Mem::sum(S1, base, disp), true);
        }
        if let Some(disp) = self.constant_address(address) {
            return (Mem::at(S1, disp), true);
        }
        if let (Some(base), None, None) = (address.base, address.index, address.segment)
            && !address.short
            && let Ok(disp) = i32::try_from(address.disp)
        {
            self.asm.load(S2, stubs::gpr(base));
            return (Mem::sum(S1, S2, disp), false);
        }
        self.effective_beside(S2, S1, address, 0);
        (Mem::sum(S1, S2, 0), false)
    }

    /// `address`, if it is a constant that a displacement can hold.
    fn constant_address(&self, address: &Address) -> Option<i32> {
        let alone = address.base.is_none() && address.index.is_none() && address.segment.is_none();
        if !alone || address.computed || address.relative && self.asm.moves() {
            return None;
        }
        let linear = if address.short { i64::from(address.disp as u32) } else { address.disp };
        i32::try_from(linear).ok()
    }

    /// Whether it takes more than one short instruction to compute `address`.
    fn is_long(&self, address: &Address) -> bool {
        address.segment.is_some() || address.relative && self.constant_address(address).is_none()
    }

    /// Computes `address + offset` into `to`; the other scratch register keeps its value.
    pub(crate) fn effective_beside(&mut self, to: Reg, other: Reg, address: &Address, offset: i64) {
        // That may take both registers.
        let both = address.base.is_some_and(|base| self.home(base).is_none())
            && address.index.is_some_and(|(index, _)| self.home(index).is_none());
        if both {
            self.asm.store(stubs::beside(), other);
        }
        self.effective(to, address, offset);
        if both {
            self.asm.load(other, stubs::beside());
        }
    }

    /// Whether `address` needs a scratch register to be computed and cannot be an index.
    pub(crate) fn register_only(&self, address: &Address) -> Option<(Reg, i32)> {
        if address.index.is_some() || address.segment.is_some() || address.short {
            return None;
        }
        let base = self.home(address.base?)?;
        Some((base, i32::try_from(address.disp).ok()?))
    }

    /// Puts `address + offset` into S2, and tells a register that has it too, or S2.
    pub(crate) fn compute(&mut self, address: &Address, offset: i64) -> Reg {
        if let Some((base, disp)) = self.register_only(address)
            && i64::from(disp) + offset == 0
        {
            self.asm.mov(S2, base);
            return base;
        }
        self.effective(S2, address, offset);
        S2
    }

    /// Looks for the page of `size` bytes at S2, an address that `from` has too, in the TLB: the condition "above" holds
    /// unless it has them. S1 is where its entry is, S2 the offset into the page.
    pub(crate) fn look_up_page(&mut self, from: Reg, size: i64, write: bool) {
        let shift = 12 - Tlb::ENTRY_SHIFT;
        if self.host.bmi2 {
            self.asm.rorx32(S1, from, shift);
        } else {
            self.asm.mov32(S1, from);
            self.asm.shr32(S1, shift);
        }
        self.entry_place();
        self.asm.alu_mem(Alu::Xor, S2, self.tag(write));
        self.asm.alu_imm(Alu::Cmp, S2, 0x1000 - size as i32);
    }

    /// The tag for reads or writes of the entry that S1 leads to.
    fn tag(&self, write: bool) -> Mem {
        let entry = 2 * self.block.mode as usize + usize::from(write);
        stubs::tlb(S1, Tlb::TAG_OFFSET + 8 * entry)
    }

    /// Translates an access of `size` bytes; returns the operand that reaches it in the host. It uses
    /// S1, and S2 unless told otherwise by the second value. The host's flags may be lost, and can be brought
    /// back then; who changes them sees to that first.
    pub(crate) fn access(&mut self, address: &Address, size: u32, write: bool, align: u32) -> (Mem, bool) {
        self.check_end(address, size);
        if let Some(found) = self.through_window(address, size, write, align) {
            return found;
        }
        self.spare_flags();
        let retry = self.asm.bound();
        let miss = self.asm.label();
        let from = self.compute(address, 0);
        if align > 1 {
            self.asm.test_byte(from, align as u8 - 1);
            self.asm.jcc(cc::NE, miss);
        }
        self.look_up_page(from, size.into(), write);
        self.asm.jcc(cc::A, miss);
        if write && self.block.parallel {
            self.asm.store(stubs::stored(), S1);
            (self.current.stores, self.views.stored_in) = (true, None);
        }
        // Vectors in two pages come back behind this, from code that seldom runs.
        let again = size < VECTORS && self.is_long(address);
        if again {
            // The tag is there twice then: S2 is the address that it was before.
            self.asm.alu_mem(Alu::Xor, S2, self.tag(write));
        }
        self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        let have = self.asm.label();
        self.asm.bind(have);
        let host = if again { (Mem::sum(S1, S2, 0), false) } else { self.operand(address) };
        let describe = size | if write { WRITE } else { 0 } | align << ALIGN_SHIFT;
        self.seldom(super::cold::Cold::Miss {
            label: miss,
            retry,
            have,
            address: *address,
            describe,
            rip: self.current.rip,
            rest: self.current.rest,
        });
        host
    }

    /// In 32-bit code: leaves if some of an access of `size` bytes is beyond the end of a segment of 4 GiB. Where that begins at
    /// address 0, they are in two pages, neither of which has all.
    fn check_end(&mut self, address: &Address, size: u32) {
        if !address.narrow || address.segment.is_none() {
            return;
        }
        let absolute = address.base.is_none() && address.index.is_none();
        if size == 1 || absolute && (address.disp as u32).checked_add(size - 1).is_some() {
            return;
        }
        self.spare_flags();
        let beyond = self.step(reason::STEP);
        self.effective(S2, &Address { segment: None, ..*address }, 0);
        self.asm.alu_imm32(Alu::Cmp, S2, -(size as i32));
        self.asm.jcc(cc::A, beyond);
    }

    /// Loads S1 with where the state of the page is that was stored to, through `window` if so.
    pub(crate) fn load_state(&mut self, window: Option<u8>) {
        match window {
            Some(window) => self.asm.load(S1, super::window::state(window)),
            None => {
                self.asm.load(S1, stubs::stored());
                self.asm.load(S1, stubs::tlb(S1, Tlb::STATE_OFFSET));
            }
        }
    }

    /// Behind an instruction that stored, if it did: looks whether others decoded code from the page, or want to know of writes to it.
    /// They do so behind a barrier that makes either their reads see the store, or this see
    /// their mark. Both scratch registers are lost.
    pub(crate) fn look_behind(&mut self, next: u64, last: bool) {
        if !std::mem::take(&mut self.current.stores) {
            return;
        }
        self.spare_flags();
        let (hit, back) = (self.asm.label(), self.asm.label());
        let window = self.views.stored_in;
        self.load_state(window);
        self.asm.test_at(Mem::at(S1, 0), PageState::WATCHED as u8);
        self.asm.jcc(cc::NE, hit);
        self.asm.bind(back);
        self.seldom(super::cold::Cold::Wrote {
            label: hit,
            back: last.then_some(back),
            window,
            next,
            rest: self.current.rest,
        });
    }

    /// The code of a miss, out of the way.
    pub(crate) fn emit_miss(&mut self, address: &Address, describe: u32, have: Label) {
        let (size, write) = (describe & 0xff, describe & WRITE != 0);
        // Vectors are in two pages more often than others, and slow to leave with.
        if size >= VECTORS && describe >> ALIGN_SHIFT == 1 && !(write && self.block.parallel) {
            let (look, found, apart) = (self.asm.label(), self.asm.label(), self.asm.label());
            let joined = !write && self.block.units.vectors;
            let otherwise = if joined { apart } else { look };
            self.across(address, write, (0, i64::from(size) - 1), (look, otherwise, found));
            if joined {
                self.asm.bind(apart);
                self.join_parts(address, size);
            }
            self.asm.bind(found);
            self.go_back(have);
            self.asm.bind(look);
        }
        self.effective(S2, address, 0);
        // Only for a store it matters whose it is.
        let number = if write { self.block.number } else { 0 };
        self.asm.constant(S1, u64::from(number) << 32 | u64::from(describe));
        self.asm.call_to(self.stubs.miss);
    }

    /// Copies what is around the end of a page, as many bytes on either side as a vector in both has, to where it lies
    /// together: S1 is the distance there then. Before, the word that is spare has the distance to the first page, and S1
    /// that to the second one.
    fn join_parts(&mut self, address: &Address, size: u32) {
        self.effective_beside(S2, S1, address, i64::from(size) - 1);
        self.asm.alu_imm(Alu::And, S2, -0x1000);
        self.asm.store_vector(stubs::spare_vector(), 0, Width::Sse);
        for (start, to) in [(0, size), (-(size as i32), 0)] {
            for piece in (0..size).step_by(16) {
                self.asm.load_vector(0, Mem::sum(S1, S2, start + piece as i32), Width::Sse);
                self.asm.store_vector(stubs::joined((to + piece) as usize), 0, Width::Sse);
            }
            self.asm.load(S1, stubs::spare());
        }
        self.asm.load_vector(0, stubs::spare_vector(), Width::Sse);
        self.asm.load(S1, stubs::cpu());
        self.asm.lea(S1, Mem::at(S1, stubs::joined(size as usize).disp + GS_AT as i32));
        self.asm.alu(Alu::Sub, S1, S2);
    }

    /// Leaves so that the instruction at `rip` is executed by itself, `rest` instructions before
    /// the end of what was paid for.
    pub(crate) fn emit_step(&mut self, rip: u64, rest: u32, why: u32) {
        if let Some(packed) = stubs::packed_step(rip.wrapping_sub(self.block.rip), rest, why) {
            self.asm.constant(S1, packed.into());
            let tail = *self.output.step.get_or_insert_with(|| self.asm.label());
            self.asm.jmp(tail);
            return;
        }
        self.asm.lea(stubs::BUDGET, Mem::at(stubs::BUDGET, rest as i32));
        self.asm.linear(S2, rip);
        self.asm.constant(S1, why.into());
        self.asm.jmp_to(self.stubs.leave);
    }

    /// As [`Lower::emit_step`], unless the context has code that goes on there without windows.
    pub(crate) fn emit_alone(&mut self, rip: u64, rest: u32) {
        if let Some(packed) = stubs::packed_step(rip.wrapping_sub(self.block.rip), rest, reason::STEP) {
            self.asm.constant(S1, packed.into());
            let tail = *self.output.alone.get_or_insert_with(|| self.asm.label());
            self.asm.jmp(tail);
            return;
        }
        let step = self.asm.label();
        self.asm.load(S1, stubs::without());
        self.asm.alu_imm(Alu::Cmp, S1, 0);
        self.asm.jcc(cc::E, step);
        self.asm.lea(stubs::BUDGET, Mem::at(stubs::BUDGET, rest as i32));
        self.asm.jmp_reg(S1);
        self.asm.bind(step);
        self.emit_step(rip, rest, reason::STEP);
    }

    /// What all of the block's code that leaves for an instruction to be executed by itself goes through.
    pub(crate) fn emit_tails(&mut self) {
        let tails = [(self.output.alone, self.stubs.alone), (self.output.step, self.stubs.step)];
        for (label, stub) in tails {
            let Some(label) = label else { continue };
            self.asm.bind(label);
            self.asm.linear(S2, self.block.rip);
            self.asm.jmp_to(stub);
        }
    }
}

/// Called by translated code: what leads to the target at `rip`, as the table has it. Nothing if there can be no code.
pub(crate) extern "sysv64" fn branch(vcpu: &mut Translating, rip: u64) -> u64 {
    vcpu.jit.counts.unmet += 1;
    vcpu.find_target(rip).map_or(0, |target| target as u64)
}

/// Called by translated code: the code that the link leads to whose number is in `link` beside the reason, or 0; the context has
/// the address then.
pub(crate) extern "sysv64" fn resolve(vcpu: &mut Translating, link: u64) -> u64 {
    vcpu.follow(link as u32 >> reason::BITS).unwrap_or(0)
}

/// Called by translated code: its last store was to the page with `state`, which others decoded code from.
pub(crate) extern "sysv64" fn wrote(vcpu: &mut Translating, state: &PageState) {
    vcpu.translated_store(state);
}

/// Called by translated code: caches the translation for an access at `linear`. Returns 1 if the
/// access will hit now; a vector to be read from two pages is brought together, and its distance from `linear` returned.
pub(crate) extern "sysv64" fn miss(vcpu: &mut Translating, linear: u64, described: u64) -> u64 {
    vcpu.jit.counts.misses += 1;
    let (describe, number) = (described as u32, (described >> 32) as u32);
    let (size, write) = (u64::from(describe & 0xff), describe & WRITE != 0);
    let aligned = linear & (u64::from(describe >> ALIGN_SHIFT) - 1) == 0;
    vcpu.cpu.doing().set(Doing::Missing);
    if !write && size >= 16 && aligned && (linear & 0xfff) + size > 0x1000 {
        let together = vcpu.bring_together(linear, size);
        vcpu.cpu.doing().set(Doing::Translated);
        return together.unwrap_or(0);
    }
    if write {
        vcpu.expect_store(linear, number);
    }
    let cached = aligned && vcpu.cpu.cache_translation(linear, size, write);
    vcpu.cpu.doing().set(Doing::Translated);
    if !cached {
        return 0;
    }
    // Should the code see the address differently, it must not ask for ever.
    let context = &mut vcpu.context;
    context.repeats = if context.missed == linear { context.repeats + 1 } else { 0 };
    context.missed = linear;
    u64::from(context.repeats < MAX_REPEATS)
}
