//! The code at the edges: into translated code and out of it, calls of the monitor, looks around.

use std::mem::offset_of;

use satori_defs::x86::rflags as rflags_bits;
use satori_state::{CpuState, Segment, reg, seg};

use super::asm::{Alu, Asm, GS_AT, Label, Mem, Reg, cc, field};
use super::homes::Homes;
use super::host::Host;
use super::targets::{STEP, Target, WAYS};
use super::window::opening::{self, OPENINGS};
use super::{CHUNK, Context, vector, x87};
use crate::Translating;
use satori_soft::mmu::Tlb;

/// Scratch, and where LAHF puts flags.
pub(crate) const S1: Reg = Reg(0);
/// Scratch.
pub(crate) const S2: Reg = Reg(15);
/// Instructions until the next look around.
pub(crate) const BUDGET: Reg = Reg(11);
/// The guest's RAX.
pub(crate) const GUEST_RAX: Reg = Reg(14);
/// The guest's RSP.
pub(crate) const GUEST_RSP: Reg = Reg(10);

pub(crate) const HOST_RSP: Reg = Reg(4);
const ARG1: Reg = Reg(7);
const ARG2: Reg = Reg(6);
const ARG3: Reg = Reg(2);

/// Registers that a called function keeps.
const KEPT: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// The guest's register number `i` in the register file.
pub(crate) fn gpr(i: usize) -> Mem {
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, gpr) + 8 * i)
}

macro_rules! context {
    ($($field:ident).+) => {
        field(offset_of!(Translating, context) + offset_of!(Context, $($field).+))
    };
}

pub(crate) fn flags() -> Mem {
    context!(flags)
}
/// Where an address that is no sum of registers is.
pub(crate) fn computed() -> Mem {
    context!(computed)
}
pub(crate) fn met() -> Mem {
    context!(met)
}
pub(crate) fn temporary() -> Mem {
    context!(temporary)
}
pub(crate) fn beside() -> Mem {
    context!(beside)
}
pub(crate) fn rflags() -> Mem {
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, rflags))
}
/// Bits 8 to 15 of RFLAGS.
pub(crate) fn rflags_high() -> Mem {
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, rflags) + 1)
}
pub(crate) fn kernel_gs_base() -> Mem {
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, kernel_gs_base))
}
/// The base of GS in the register file.
pub(crate) fn gs_base() -> Mem {
    let gs = seg::GS * size_of::<Segment>() + offset_of!(Segment, base);
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, seg) + gs)
}
pub(crate) fn mode() -> Mem {
    field(offset_of!(Translating, cpu.derived.mode))
}
pub(crate) fn code_mode() -> Mem {
    field(offset_of!(Translating, cpu.derived.code_mode))
}
pub(crate) fn interrupt_window() -> Mem {
    field(offset_of!(Translating, cpu.windows.interrupt))
}
pub(crate) fn due() -> Mem {
    field(offset_of!(Translating, cpu.windows.due))
}
pub(crate) fn behind_sti() -> Mem {
    field(offset_of!(Translating, cpu.windows.behind_sti))
}
pub(crate) fn stored() -> Mem {
    context!(stored)
}
pub(crate) fn rip() -> Mem {
    field(offset_of!(Translating, cpu.state) + offset_of!(CpuState, rip))
}
/// The byte that tells whether vectors are loaded.
pub(crate) fn vectors() -> Mem {
    context!(vectors)
}
pub(crate) fn host_mxcsr() -> Mem {
    context!(host_mxcsr)
}
/// Where a vector in two pages is brought together, `offset` bytes behind the start.
pub(crate) fn joined(offset: usize) -> Mem {
    field(offset_of!(Translating, context) + offset_of!(Context, vector) + offset)
}
pub(crate) fn spare_vector() -> Mem {
    context!(spare_vector)
}
/// The address of the vCPU.
pub(crate) fn cpu() -> Mem {
    context!(cpu)
}
/// Where the code that goes on without windows is.
pub(crate) fn without() -> Mem {
    context!(without)
}
/// A word that nothing is kept in over an access.
pub(crate) fn spare() -> Mem {
    context!(spare)
}
/// In how many more rounds strided accesses stay in their pages.
pub(crate) fn rounds() -> Mem {
    context!(rounds)
}
/// What the budget was lowered by for these rounds.
pub(crate) fn reserve() -> Mem {
    context!(reserve)
}
/// What the budget is filled up from.
pub(crate) fn left() -> Mem {
    context!(left)
}
/// The base of segment `i`.
pub(crate) fn segment_base(i: usize) -> Mem {
    field(offset_of!(Translating, cpu.derived.segment_base) + 8 * i)
}
/// A word of the TLB's entries, at `offset` in the entry that `slot` bytes lead to.
pub(crate) fn tlb(slot: Reg, offset: usize) -> Mem {
    Mem::table(slot, offset_of!(Translating, cpu.mmu.tlb) + Tlb::ENTRIES_OFFSET + offset)
}
/// How far the entries of a nested guest are from the others.
pub(crate) fn nested_entries() -> Mem {
    context!(nested_entries)
}
/// The address of table `number` of branch targets.
pub(crate) fn targets(number: usize) -> Mem {
    field(offset_of!(Translating, context) + offset_of!(Context, tables) + 8 * number)
}
/// The address and the code of the target at `place`.
pub(crate) fn target(place: Reg) -> (Mem, Mem) {
    let at = |offset: usize| Mem::at(place, offset as i32);
    (at(offset_of!(Target, rip)), at(offset_of!(Target, code)))
}

/// Addresses of the code at the edges.
pub(crate) struct Stubs {
    /// `fn(code)`: enters translated code.
    pub enter: u64,
    /// Leaves: R15 is RIP, EAX the reason.
    pub leave: u64,
    /// Fills the TLB for the access at R15, described by RAX; ZF is clear if that worked.
    pub miss: u64,
    /// Opens a window for the access at R15 with the range at RAX; RAX is the distance to the host's
    /// memory, and ZF is set if there is none.
    pub range: u64,
    /// What calls that, unless the range is in two pages that lie together on the host, or was found to be apart before: by
    /// [`opening`](super::window::opening::opening).
    pub open: [u64; OPENINGS],
    /// Tells that the range at RAX crossed pages many times, at last with the access at R15.
    pub crossed: u64,
    /// Tells that accesses in loops, at last in the block numbered EAX, left their pages many times.
    pub scattered: u64,
    /// Lets the target at R15 and what is in its place, at RAX, change places, if it is in the other one; ZF is
    /// set then.
    pub second: u64,
    /// RAX is what leads to the target at R15, which is not in its place at RAX; ZF is set if nothing does.
    pub branch: u64,
    /// Leaves for a target that there was no code for.
    pub arrive: u64,
    /// Called by a link, whose number and reason stand behind the call: goes to where it leads, or leaves for that.
    pub link: u64,
    /// Leaves for the instruction to be executed by itself that EAX says ([`packed_step`]), in the block at R15.
    pub step: u64,
    /// The same, but goes on in the code without windows for that instruction, if the context has some.
    pub alone: u64,
    /// The guest's time-stamp counter in RAX, EAX instructions before the end of what was paid for.
    pub time_stamp: u64,
    /// Whether the block numbered EAX still goes on where it did; ZF is set if not.
    pub reaches: u64,
    /// Calls the generic implementation whose site is in RAX.
    pub generic: u64,
    /// Called behind a store to a page that holds decoded code: RAX is the address of the page's state.
    pub wrote: u64,
    /// Refills the context's budget of instructions; ZF is set if the run has none left, or a kick waits.
    pub more: u64,
    /// The same, and leaves with R15 as RIP where ZF would be set.
    pub poll: u64,
    /// Loads the guest's vector registers into the host's; no other register and no flag changes.
    pub load_vectors: u64,
    /// Loads the guest's x87 registers; flags, scratch registers and vectors are lost.
    pub load_x87: u64,
    /// Bytes of all that.
    pub end: usize,
}

impl Stubs {
    pub(crate) fn emit(asm: &mut Asm, host: &Host) -> Self {
        let load_vectors = at(asm);
        vector::emit_load(asm, host.avx);
        let store_vectors = at(asm);
        vector::emit_store(asm, host.avx);
        let load_x87 = at(asm);
        x87::emit_load(asm, store_vectors);
        let store_x87 = at(asm);
        x87::emit_store(asm);

        let enter = at(asm);
        emit_enter(asm);
        let leave = at(asm);
        let out = emit_leave(asm, store_vectors, store_x87);

        let calls = |asm: &mut Asm, function: u64, arguments: &[Reg]| {
            let here = at(asm);
            vector::emit_leave(asm, store_vectors);
            call(asm, function, arguments);
            here
        };
        let miss = calls(asm, super::memory::miss as *const () as u64, &[S2, S1]);
        let range = calls(asm, super::window::enter::open as *const () as u64, &[S2, S1]);
        let wrote = calls(asm, super::memory::wrote as *const () as u64, &[S1]);

        let second = at(asm);
        emit_second(asm);
        asm.ret();
        let branch = at(asm);
        let unknown = asm.label();
        emit_second(asm);
        asm.jcc(cc::NE, unknown);
        // Clears ZF.
        asm.alu_imm(Alu::Cmp, HOST_RSP, 0);
        asm.ret();
        asm.bind(unknown);
        calls(asm, super::memory::branch as *const () as u64, &[S2]);
        let arrive = at(asm);
        asm.load(S2, context!(unknown.rip));
        asm.constant(S1, super::reason::ARRIVE.into());
        asm.jmp_to(leave);

        let resolve = calls(asm, super::memory::resolve as *const () as u64, &[S1]);
        let reaches = calls(asm, super::reach::reaches as *const () as u64, &[S1]);
        let scattered = calls(asm, super::window::enter::scattered as *const () as u64, &[S1]);
        let crossed = calls(asm, super::window::enter::crossed as *const () as u64, &[S2, S1]);
        let time_stamp = calls(asm, super::system::time_stamp as *const () as u64, &[S1]);
        let open = opening::emit(asm, host, &opening::Calls { range, crossed, load_vectors });

        let link = at(asm);
        emit_link(asm, resolve, leave);
        let step = at(asm);
        emit_step(asm, leave);
        let alone = at(asm);
        emit_alone(asm, step);

        let generic = at(asm);
        emit_generic(asm, store_vectors, store_x87, out);
        let more = at(asm);
        emit_more(asm);
        let poll = at(asm);
        let gone = asm.label();
        asm.call_to(more);
        asm.jcc(cc::E, gone);
        asm.ret();
        asm.bind(gone);
        asm.alu_imm(Alu::Add, HOST_RSP, 8);
        asm.constant(S1, super::reason::DISPATCH.into());
        asm.jmp_to(leave);

        asm.resolve();
        let end = asm.here().next_multiple_of(64);
        Stubs {
            enter,
            leave,
            miss,
            range,
            open,
            crossed,
            scattered,
            wrote,
            second,
            branch,
            arrive,
            link,
            step,
            alone,
            reaches,
            time_stamp,
            generic,
            more,
            poll,
            load_vectors,
            load_x87,
            end,
        }
    }
}

/// Where the next instruction stands.
fn at(asm: &mut Asm) -> u64 {
    asm.address(asm.here())
}

/// What [`Stubs::enter`] leads to.
fn emit_enter(asm: &mut Asm) {
    for kept in KEPT {
        asm.push(Reg(kept));
    }
    asm.alu_imm(Alu::Sub, HOST_RSP, 8);
    asm.mov(S1, ARG1);
    registers(asm, |_| true, Asm::load);
    asm.load(BUDGET, context!(budget));
    asm.jmp_reg(S1);
}

/// What [`Stubs::leave`] leads to; the label is behind what keeps the guest's registers.
fn emit_leave(asm: &mut Asm, store_vectors: u64, store_x87: u64) -> Label {
    asm.store(rip(), S2);
    asm.store(context!(reason), S1);
    asm.store(context!(budget), BUDGET);
    vector::emit_leave(asm, store_vectors);
    x87::emit_leave(asm, store_x87);
    registers(asm, |_| true, |asm, register, slot| asm.store(slot, register));
    let out = asm.bound();
    asm.alu_imm(Alu::Add, HOST_RSP, 8);
    for kept in KEPT.into_iter().rev() {
        asm.pop(Reg(kept));
    }
    asm.ret();
    out
}

/// What [`Stubs::generic`] leads to; `out` leaves with the guest's registers kept.
fn emit_generic(asm: &mut Asm, store_vectors: u64, store_x87: u64, out: Label) {
    vector::emit_leave(asm, store_vectors);
    x87::emit_leave(asm, store_x87);
    registers(asm, |_| true, |asm, register, slot| asm.store(slot, register));
    asm.store(context!(budget), BUDGET);
    asm.alu_imm(Alu::Sub, HOST_RSP, 8);
    asm.load(ARG1, cpu());
    asm.mov(ARG2, S1);
    asm.constant(S1, super::generic::call as *const () as u64);
    asm.call_reg(S1);
    let (gone, elsewhere) = (asm.label(), asm.label());
    asm.alu_imm(Alu::Cmp, S1, 1);
    asm.jcc(cc::B, gone);
    asm.jcc(cc::NE, elsewhere);
    asm.alu_imm(Alu::Add, HOST_RSP, 8);
    registers(asm, |_| true, Asm::load);
    asm.load(BUDGET, context!(budget));
    asm.ret();
    asm.bind(elsewhere);
    // Its place and the return address.
    asm.alu_imm(Alu::Add, HOST_RSP, 16);
    registers(asm, |_| true, Asm::load);
    asm.load(BUDGET, context!(budget));
    asm.jmp_reg(S1);
    asm.bind(gone);
    asm.alu_imm(Alu::Add, HOST_RSP, 16);
    asm.jmp(out);
}

/// What [`Stubs::link`] leads to.
fn emit_link(asm: &mut Asm, resolve: u64, leave: u64) {
    let unknown = asm.label();
    // What stands behind the call is read, not returned to.
    asm.pop(S2);
    asm.load32(S1, Mem::at(S2, 0));
    asm.call_to(resolve);
    asm.jcc(cc::E, unknown);
    asm.jmp_reg(S1);
    asm.bind(unknown);
    asm.load32(S1, Mem::at(S2, 0));
    asm.load(S2, context!(unlinked));
    asm.jmp_to(leave);
}

/// Bits of a packed step for the reason, and for what is not executed of what was paid for.
const WHY: u32 = 4;
const REST: u32 = 8;

/// What [`Stubs::step`] takes: how far the instruction is from its block, how many were paid for and are not executed, and why the
/// code is left. Nothing if there is no room for that.
pub(crate) fn packed_step(distance: u64, rest: u32, why: u32) -> Option<u32> {
    const ABOVE: u32 = WHY + REST;
    let distance = i32::try_from(distance as i64).ok()?;
    let fits = distance << ABOVE >> ABOVE == distance && rest < 1 << REST && why < 1 << WHY;
    fits.then_some((distance << ABOVE) as u32 | rest << WHY | why)
}

/// What [`Stubs::step`] leads to.
fn emit_step(asm: &mut Asm, leave: u64) {
    asm.push(S1);
    asm.sar32(S1, (WHY + REST) as u8);
    // MOVSXD RAX, EAX.
    asm.bytes(&[0x48, 0x98]);
    asm.alu(Alu::Add, S2, S1);
    asm.load(S1, Mem::at(HOST_RSP, 0));
    emit_give_back(asm);
    asm.pop(S1);
    asm.alu_imm32(Alu::And, S1, (1 << WHY) - 1);
    asm.jmp_to(leave);
}

/// Gives back what the packed step in EAX was paid for and does not execute.
fn emit_give_back(asm: &mut Asm) {
    const { assert!(REST == u8::BITS, "it is a register's low byte") };
    asm.shr32(S1, WHY as u8);
    // MOVZX EAX, AL.
    asm.bytes(&[0x0f, 0xb6, 0xc0]);
    asm.alu(Alu::Add, BUDGET, S1);
}

/// What [`Stubs::alone`] leads to.
fn emit_alone(asm: &mut Asm, step: u64) {
    let some = asm.label();
    asm.alu_at(Alu::Cmp, without(), 0);
    asm.jcc(cc::NE, some);
    asm.jmp_to(step);
    asm.bind(some);
    emit_give_back(asm);
    asm.load(S1, without());
    asm.jmp_reg(S1);
}

/// What [`Stubs::more`] leads to.
fn emit_more(asm: &mut Asm) {
    let (stop, some) = (asm.label(), asm.label());
    asm.load(S1, context!(kick));
    asm.alu_byte(Alu::Cmp, Mem::at(S1, 0), 0);
    asm.jcc(cc::NE, stop);
    asm.load(S1, context!(left));
    asm.alu_imm(Alu::Cmp, S1, CHUNK as i32);
    asm.jcc(cc::AE, some);
    asm.alu_imm(Alu::Cmp, S1, 0);
    asm.jcc(cc::E, stop);
    asm.alu(Alu::Add, BUDGET, S1);
    asm.store_imm(context!(left), 0);
    // Neither is zero.
    asm.alu_imm(Alu::Cmp, HOST_RSP, 0);
    asm.ret();
    asm.bind(some);
    asm.alu_imm(Alu::Sub, S1, CHUNK as i32);
    asm.store(context!(left), S1);
    asm.alu_imm(Alu::Add, BUDGET, CHUNK as i32);
    asm.ret();
    asm.bind(stop);
    asm.alu(Alu::Cmp, S1, S1);
    asm.ret();
}

/// If another place of the set of the place at S1 has the target at S2, both change places, and ZF is set.
fn emit_second(asm: &mut Asm) {
    let [here, there] = [ARG1, ARG2];
    let done = asm.label();
    let mut at = 0;
    for way in 1..WAYS {
        let missing = asm.label();
        // From the place that was looked at last to this one; from there to the target's own and back.
        asm.alu_imm(Alu::Xor, S1, ((at ^ way) * STEP) as i32);
        at = way;
        let own = (way * STEP) as i32;
        let (rip, code) = target(S1);
        asm.alu_mem(Alu::Cmp, S2, rip);
        asm.jcc(cc::NE, missing);
        asm.push(here);
        asm.push(there);
        asm.load(there, code);
        asm.alu_imm(Alu::Xor, S1, own);
        asm.load(here, code);
        asm.store(code, there);
        asm.load(there, rip);
        asm.store(rip, S2);
        asm.alu_imm(Alu::Xor, S1, own);
        asm.store(rip, there);
        asm.store(code, here);
        asm.pop(there);
        asm.pop(here);
        asm.alu_imm(Alu::Xor, S1, own);
        asm.alu(Alu::Cmp, S1, S1);
        asm.jmp(done);
        asm.bind(missing);
    }
    asm.bind(done);
}

/// Calls `function` with the vCPU and `arguments`, of the scratch registers, keeping all guest registers. RAX is what it
/// returned, and ZF tells whether that was zero.
pub(crate) fn call(asm: &mut Asm, function: u64, arguments: &[Reg]) {
    let lost = |register: u8| !KEPT.contains(&register);
    registers(asm, lost, |asm, register, slot| asm.store(slot, register));
    asm.store(context!(budget), BUDGET);
    asm.alu_imm(Alu::Sub, HOST_RSP, 8);
    asm.load(ARG1, cpu());
    for (to, from) in [ARG2, ARG3].into_iter().zip(arguments) {
        asm.mov(to, *from);
    }
    asm.constant(S1, function);
    asm.call_reg(S1);
    asm.alu_imm(Alu::Add, HOST_RSP, 8);
    registers(asm, lost, Asm::load);
    asm.load(BUDGET, context!(budget));
    asm.alu_imm(Alu::Cmp, S1, 0);
    asm.ret();
}

/// Calls `each` for every guest register that lives in a host register of its own which `which` picks, with its slot in the register file.
fn registers(asm: &mut Asm, which: impl Fn(u8) -> bool, mut each: impl FnMut(&mut Asm, Reg, Mem)) {
    for (guest, home) in Homes::USUAL.all().filter(|(_, home)| which(home.0)) {
        each(asm, home, gpr(guest));
    }
}

const _: () = assert!(Homes::USUAL.get(reg::RSP).is_some(), "pushes and pops have a short form only for it");

/// The status flags as LAHF and SETO leave them.
pub(crate) fn packed(bits: u64) -> u64 {
    (bits & 0xd5 | 2) << 8 | u64::from(bits & rflags_bits::OF != 0)
}

/// The status flags from what LAHF and SETO left.
pub(crate) fn unpacked(packed: u64) -> u64 {
    packed >> 8 & 0xd5 | if packed & 1 != 0 { rflags_bits::OF } else { 0 }
}

/// Makes GS point into `vcpu` for the current thread; `direct` by the instruction for it.
pub(crate) fn set_gs(vcpu: *mut Translating, direct: bool) {
    let vcpu = vcpu.wrapping_byte_add(GS_AT);
    if direct {
        // SAFETY: nothing else in the process uses GS; the C library's is FS.
        unsafe { std::arch::asm!("wrgsbase {}", in(reg) vcpu, options(nostack, preserves_flags)) };
        return;
    }
    const ARCH_SET_GS: libc::c_int = 0x1001;
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, vcpu) };
}
