//! Flushes of TLBs: hypercalls of the guest that are served below its hypervisor, and the hypervisor's own on what it maps.

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::cpu::selector;
use satori_guests::defs::hyperv::{assist, call};
use satori_guests::defs::x86::pte;
use satori_guests::hyperv::{Control, call, hypercall_page};
use satori_guests::paging::{FREE, Space};
use satori_guests::place::{load, store};
use satori_guests::{Test, code, insn, l2, paging, smp};

use crate::clean::{eptp, tables};
use crate::machine::{Machine, Registers, at};
use crate::{CPUID, DIRECT_FLUSH, GPA_FLUSH, nested};

const VMCALL: u32 = 18;
/// HV_VMX_SYNTHETIC_EXIT_REASON_TRAP_AFTER_FLUSH.
const AFTER_FLUSH: u32 = 0x1000_0031;
/// HV_FLUSH_FLAGS: all processors, all spaces.
const ALL: u64 = 3;
const OLD: u64 = 0x1111;
const NEW: u64 = 0x2222;

/// What the guest is given, and tells, at RDI.
mod block {
    pub const LINEAR: u64 = 0;
    pub const ENTRY: u64 = 8;
    pub const NEW_ENTRY: u64 = 16;
    pub const CONTROL: u64 = 24;
    pub const INPUT: u64 = 32;
    pub const FIRST: u64 = 40;
    pub const LAST: u64 = 56;
    pub const RESULT: u64 = 64;
    pub const BYTES: u64 = 128;
}

/// A guest with a page at [`FREE`], which it moves from one to another.
struct Flusher {
    machine: Machine,
    space: Space,
    old: u64,
    new: u64,
    /// The parameters above.
    at: u64,
    /// The input of its hypercalls: a guest-physical address, and the page that is there.
    input: u64,
    input_page: u64,
    partition: u64,
}

impl Flusher {
    fn new() -> Flusher {
        let [old, new, at, input, input_page, partition] = core::array::from_fn(|_| paging::page());
        let flusher = Flusher {
            machine: Machine::new(),
            space: Space::new(),
            old,
            new,
            at,
            input,
            input_page,
            partition,
        };
        store(old, OLD);
        store(new, NEW);
        flusher
    }

    /// With the input of a hypercall's that flushes everything on the processors in `mask`, by `control`.
    fn fresh(&self, control: Control, mask: u64) {
        let vmcs = self.machine.vmcs;
        self.machine.fresh();
        // Translations stay over exits.
        vmcs.with(at::PROC2, 1 << 1 | 1 << 5);
        vmcs.set16(at::VPID, 1);
        vmcs.set(at::EPTP, eptp(tables(self.input, self.input_page)));
        vmcs.set(at::GUEST_CR3, self.space.root);
        vmcs.set32(at::ENLIGHTENMENTS, 1);
        vmcs.set32(at::VP_ID, 0);
        vmcs.set(at::VM_ID, 7);
        vmcs.set(at::PARTITION_ASSIST, self.partition);
        store(self.machine.assist + assist::NESTED_CONTROL, assist::DIRECT_HYPERCALL);
        store(self.partition, 0_u32);
        self.space.map(FREE, self.old, pte::W);
        (0..block::BYTES).step_by(8).for_each(|offset| store(self.at + offset, 0_u64));
        store(self.at + block::LINEAR, FREE);
        store(self.at + block::ENTRY, self.space.entry(FREE, 0) as u64);
        store(self.at + block::NEW_ENTRY, self.new | pte::W | pte::P);
        store(self.at + block::CONTROL, control.0);
        store(self.at + block::INPUT, self.input);
        let flags = if mask == 0 { ALL } else { ALL & !1 };
        for (offset, word) in [(0, 0), (8, flags), (16, mask), (24, FREE)] {
            store(self.input_page + offset, word);
        }
    }

    /// Reads the page, moves it, flushes, and reads it again.
    fn run(&self, launch: bool) -> u32 {
        let code = l2!(
            "mov r10, [rdi]",
            "mov rax, [r10]",
            "mov [rdi + 40], rax",
            "mov r11, [rdi + 8]",
            "mov rax, [rdi + 16]",
            "mov [r11], rax",
            "mov rax, [r10]",
            "mov rcx, [rdi + 24]",
            "mov rdx, [rdi + 32]",
            "mov rax, -1",
            "vmcall",
            "mov [rdi + 64], rax",
            "mov rax, [r10]",
            "mov [rdi + 56], rax",
            "cpuid",
        );
        self.machine.run(launch, code, self.at).unwrap_or(0)
    }

    fn get(&self, offset: u64) -> u64 {
        load(self.at + offset)
    }
}

const SPACE: Control = Control::new(call::FLUSH_VIRTUAL_ADDRESS_SPACE);
const LIST: Control = Control::new(call::FLUSH_VIRTUAL_ADDRESS_LIST).reps(1, 0);

pub fn direct_flush(t: &mut Test) {
    let flusher = Flusher::new();
    let vmcs = flusher.machine.vmcs;
    if nested() & DIRECT_FLUSH == 0 {
        flusher.fresh(SPACE, 0);
        t.eq("not offered", flusher.run(true), VMCALL);
        return flusher.machine.end();
    }
    for (name, control, result) in [("a space", SPACE, 0), ("a list", LIST, 1 << 32)] {
        flusher.fresh(control, 0);
        t.eq(name, flusher.run(true), CPUID);
        t.eq((name, "result"), flusher.get(block::RESULT), result);
        t.eq((name, "before"), flusher.get(block::FIRST), OLD);
        t.eq((name, "behind it"), flusher.get(block::LAST), NEW);
    }
    flusher.fresh(SPACE, 0);
    store(flusher.partition, 1_u32);
    t.eq("one that is told", flusher.run(true), AFTER_FLUSH);
    t.eq("its length", vmcs.get32(at::LENGTH), 3);
    let go_on = vmcs.get(at::GUEST_RIP);
    t.eq("RIP is behind it", flusher.machine.run(false, go_on, flusher.at), Ok(CPUID));
    flusher.fresh(SPACE, 0);
    vmcs.set(at::PARTITION_ASSIST, 1 << 40);
    t.eq("no page to tell by", (flusher.run(true), flusher.get(block::RESULT)), (CPUID, 3));
    flusher.fresh(Control::new(call::NOTIFY_LONG_SPIN_WAIT).fast(), 0);
    t.eq("another call", flusher.run(true), VMCALL);
    flusher.fresh(SPACE, 0);
    store(flusher.machine.assist + assist::NESTED_CONTROL, 0_u32);
    t.eq("not by the assist page", flusher.run(true), VMCALL);
    flusher.fresh(SPACE, 0);
    vmcs.set32(at::ENLIGHTENMENTS, 0);
    t.eq("not by the VMCS", flusher.run(true), VMCALL);
    // Linux sets the clean field and changes the control: it is read each time.
    vmcs.set32(at::ENLIGHTENMENTS, 1);
    vmcs.set32(at::CLEAN, 0xffff);
    t.eq("though it is said to be clean", flusher.run(false), CPUID);
    vmcs.set32(at::ENLIGHTENMENTS, 0);
    vmcs.set32(at::CLEAN, 0xffff);
    t.eq("and back", flusher.run(false), VMCALL);
    // A program of the guest's has no calls.
    flusher.fresh(SPACE, 0);
    for (number, selector, rights) in [(1, selector::USER_CODE, 0xa0fb), (2, selector::USER_DATA, 0xc0f3)] {
        vmcs.set16(at::GUEST_SELECTORS + 2 * number, selector);
        vmcs.set32(at::GUEST_RIGHTS + 4 * number, rights);
    }
    flusher.space.map(FREE, code!("vmcall", "cpuid").copy_to(flusher.new).start, pte::U);
    vmcs.set(at::GUEST_RIP, FREE);
    let mut registers = Registers { rcx: SPACE.0, rdx: flusher.input, ..Registers::default() };
    t.eq("not at level 3", flusher.machine.go(true, &mut registers), Ok(VMCALL));
    flusher.machine.end();
}

static ROOT: AtomicU64 = AtomicU64::new(0);
static WAITING: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);

/// A guest on another processor that reads the page until it is another, or for long.
fn reads(_: usize) {
    let machine = Machine::new();
    let at = paging::page();
    let vmcs = machine.vmcs;
    vmcs.with(at::PROC2, 1 << 1 | 1 << 5);
    vmcs.set16(at::VPID, 1);
    vmcs.set(at::EPTP, eptp(tables(at, at)));
    vmcs.set(at::GUEST_CR3, ROOT.load(Ordering::SeqCst));
    vmcs.set32(at::VP_ID, 1);
    vmcs.set(at::VM_ID, 7);
    store(at, FREE);
    store(at + 8, &raw const WAITING as u64);
    let code = l2!(
        "mov r10, [rdi]",
        "mov r9, [rdi + 8]",
        "mov r11d, 0x40000000",
        "mov rdx, [r10]",
        "mov qword ptr [r9], 1",
        "2:",
        "mov rax, [r10]",
        "cmp rax, rdx",
        "jne 3f",
        "dec r11",
        "jnz 2b",
        "3:",
        "mov [rdi + 16], rax",
        "cpuid",
    );
    machine.run(true, code, at).ok();
    READ.store(load(at + 16), Ordering::SeqCst);
    machine.end();
}

/// A flush that names another processor of the guest reaches it where it runs.
pub fn remote_flush(t: &mut Test) {
    if smp::count() < 2 || nested() & DIRECT_FLUSH == 0 {
        return t.holds("one processor, or no such flush", smp::count() == 1 || nested() & DIRECT_FLUSH == 0);
    }
    let flusher = Flusher::new();
    for round in 0..4 {
        flusher.fresh(SPACE, 1 << 1);
        ROOT.store(flusher.space.root, Ordering::SeqCst);
        WAITING.store(0, Ordering::SeqCst);
        READ.store(0, Ordering::SeqCst);
        smp::begin(1, reads);
        while WAITING.load(Ordering::SeqCst) == 0 {
            insn::pause();
        }
        // It has the translation by now.
        smp::spin(1_000_000);
        t.eq(("the flush", round), flusher.run(true), CPUID);
        smp::wait(1);
        t.eq(("what the other reads", round), READ.load(Ordering::SeqCst), NEW);
    }
    flusher.machine.end();
}

/// The hypervisor changes what its guest's physical addresses are, and tells of it by hypercall, not by INVEPT.
pub fn guest_physical_flush(t: &mut Test) {
    const SPACE: Control = Control::new(call::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE);
    const LIST: Control = Control::new(call::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST).reps(1, 0);
    let page = hypercall_page();
    if nested() & GPA_FLUSH == 0 {
        return t.holds("it is no call", call(page, SPACE.fast(), 0, 0) != Ok(0));
    }
    let machine = Machine::new();
    let [place, old, new, input] = core::array::from_fn::<u64, 4, _>(|_| paging::page());
    store(old, OLD);
    store(new, NEW);
    let code = l2!("mov rax, [rdi]", "cpuid");
    let read = |launch: bool| {
        let mut registers = Registers { rdi: place, ..Default::default() };
        machine.vmcs.set(at::GUEST_RIP, code);
        let reason = machine.go(launch, &mut registers);
        (reason, registers.rax)
    };
    for (name, control, done) in [("a space", SPACE, 0), ("a list", LIST, 1 << 32)] {
        machine.fresh();
        let [before, after] = [old, new].map(|page| tables(place, page));
        machine.vmcs.with(at::PROC2, 1 << 1 | 1 << 5);
        machine.vmcs.set16(at::VPID, 1);
        machine.vmcs.set(at::EPTP, eptp(before));
        t.eq((name, "before"), read(true), (Ok(CPUID), OLD));
        // The leaf of the other tables.
        let middle = load::<u64>(before) & pte::ADDR;
        let other = load::<u64>(after) & pte::ADDR;
        store(middle, load::<u64>(other));
        for (offset, word) in [(0, eptp(before)), (8, 0), (16, place)] {
            store(input + offset, word);
        }
        t.eq((name, "the call"), call(page, control, input, 0), Ok(done));
        t.eq((name, "behind it"), read(false), (Ok(CPUID), NEW));
    }
    machine.end();
}
