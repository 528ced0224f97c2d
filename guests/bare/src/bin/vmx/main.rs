//! VMX as a guest has it (SDM volume 3, chapters 24 to 31): instructions and their errors, the checks of VM entry one by one,
//! intercepts, injection. The guest's guest is a few bytes of this program.

#![no_std]
#![no_main]

mod apic;
mod ept;
mod machine;
mod shadow;
mod signals;
mod virtualized;

use apic::apic;
use ept::ept;
use machine::{Machine, Outcome, capability, enter, field, invalidate, read, vmclear, vmptrld, vmxon, write};
use satori_guests::cpu::{Cpu, Gate};
use satori_guests::defs::x86::vector;
use satori_guests::{Expect, Subject, Test, code, guest, insn, paging};
use shadow::shadowing;
use signals::signals;
use virtualized::virtual_interrupts;

guest!(
    "vmx",
    outside,
    instructions,
    control_words,
    host_state,
    guest_state,
    intercepts,
    resume_flag,
    injection,
    lists,
    timer,
    apic,
    virtual_interrupts,
    ept,
    shadowing,
    signals
);

const FAILED: u64 = 1 << 31;

/// Outside VMX operation, and with CR4.VMXE clear, the instructions do not exist.
fn outside(t: &mut Test) {
    let ud = || Expect::fault(vector::UD);
    t.event("VMXON", &Subject::kernel(code!("vmxon [rsp]")).run(), ud());
    t.event("VMREAD", &Subject::kernel(code!("vmread rax, rcx")).run(), ud());
    t.event("VMLAUNCH", &Subject::kernel(code!("vmlaunch")).run(), ud());
    t.event("VMXOFF", &Subject::kernel(code!("vmxoff")).run(), ud());
    t.event("INVEPT", &Subject::kernel(code!("invept rax, [rsp]")).run(), ud());
    t.event("VMFUNC", &Subject::kernel(code!("vmfunc")).run(), ud());
    let machine = Machine::new();
    t.event("at level 3", &Subject::user(code!("vmread rax, rcx")).run(), Expect::gp(0));
    t.event("VMFUNC in root", &Subject::kernel(code!("vmfunc")).run(), ud());
    let clear = code!("mov rax, cr4", "btr rax, 13" => "mov cr4, rax");
    t.event("CR4.VMXE is fixed", &Subject::kernel(clear).run(), Expect::gp(0));
    machine.end();
}

fn instructions(t: &mut Test) {
    use Outcome::{Error, Fine, Invalid};
    let machine = Machine::new();
    let (vmcs, other) = (machine.vmcs, paging::page());
    t.eq("VMXON again", vmxon(machine.region), Error(15));
    t.eq("VMCLEAR misaligned", vmclear(vmcs + 8), Error(2));
    t.eq("VMCLEAR beyond", vmclear(1 << 52), Error(2));
    t.eq("VMCLEAR VMXON's", vmclear(machine.region), Error(3));
    t.eq("VMPTRLD misaligned", vmptrld(vmcs + 8), Error(9));
    t.eq("VMPTRLD VMXON's", vmptrld(machine.region), Error(10));
    t.eq("VMPTRLD of another revision", vmptrld(other), Error(11));
    t.eq("VMWRITE to nothing", write(0x40fe, 0), Error(12));
    t.eq("VMREAD of nothing", read(0x40fe), None);
    t.eq("INVEPT of type 0", invalidate(true, 0, [0; 2]), Error(28));
    t.eq("INVEPT of all", invalidate(true, 2, [0; 2]), Fine);
    t.eq("INVVPID of 0", invalidate(false, 1, [0; 2]), Error(28));
    t.eq("INVVPID of an address", invalidate(false, 0, [5, 1 << 63]), Error(28));
    t.eq("INVVPID of all", invalidate(false, 2, [0; 2]), Fine);
    t.eq("VMRESUME of a clear one", enter(false), Some(Error(5)));
    t.eq("CPUID leaves", machine.run(&[0x0f, 0xa2]), Ok(10));
    t.eq("VMLAUNCH of a launched one", enter(true), Some(Error(4)));
    // The upper half is a field of its own, and both read back.
    t.eq("a field", write(field::HOST_PAT, 0x0007_0406_0007_0406), Fine);
    t.eq("its upper half", read(field::HOST_PAT + 1), Some(0x0007_0406));
    t.eq("VMCLEAR", vmclear(vmcs), Fine);
    t.eq("no VMCS", write(field::PIN, 0), Invalid);
    t.eq("no VMCS to enter", enter(true), Some(Invalid));
    machine.end();
}

/// A bit that must be one and is not, or is one and must not be, is error 7, in each word of controls.
fn control_words(t: &mut Test) {
    let machine = Machine::new();
    let words = [
        (field::PIN, 0x48d),
        (field::PROC, 0x48e),
        (field::PROC2, 0x48b),
        (field::EXIT, 0x48f),
        (field::ENTRY, 0x490),
    ];
    for (word, register) in words {
        let (must, may) = capability(register);
        t.eq(("what must be may be", word), must & !may, 0);
        for bit in (0..32).map(|bit| 1_u64 << bit).filter(|bit| must & bit != 0 || may & bit == 0) {
            machine.fresh();
            let fine = read(word).unwrap_or(0);
            write(word, fine ^ bit);
            t.eq((word, bit), machine.run(&[0x0f, 0xa2]), Err(Outcome::Error(7)));
        }
    }
    for (name, word, value) in [
        ("CR3 targets", field::CR3_TARGETS, 5),
        ("the MSR bitmap's place", field::MSR_BITMAP, machine.bitmap + 8),
        ("virtual NMIs alone", field::PIN, capability(0x48d).0 | 1 << 5),
        ("an injected type that does not exist", field::INJECTION, 1 << 31 | 1 << 8),
        ("an NMI with another vector", field::INJECTION, 1 << 31 | 2 << 8 | 3),
        ("#PF without its code", field::INJECTION, 1 << 31 | 3 << 8 | 14),
        ("#UD with a code", field::INJECTION, 1 << 31 | 1 << 11 | 3 << 8 | 6),
    ] {
        machine.fresh();
        write(word, value);
        t.eq(name, machine.run(&[0x0f, 0xa2]), Err(Outcome::Error(7)));
    }
    machine.end();
}

fn host_state(t: &mut Test) {
    let machine = Machine::new();
    for (name, word, value) in [
        ("CR0 without PE", field::HOST_CR0, insn::cr0() & !1),
        ("CR0 beyond 32 bits", field::HOST_CR0, insn::cr0() | 1 << 32),
        ("CR4 without VMXE", field::HOST_CR4, insn::cr4() & !(1 << 13)),
        ("CR4 without PAE", field::HOST_CR4, insn::cr4() & !(1 << 5)),
        ("CR3 beyond memory", field::HOST_CR3, 1 << 51),
        ("TR 0", field::HOST_SELECTORS + 12, 0),
        ("CS 0", field::HOST_SELECTORS + 2, 0),
        ("DS with an RPL", field::HOST_SELECTORS + 6, 0x13),
        ("a base", field::HOST_FS_BASE, 1 << 63),
        ("GDTR's base", field::HOST_GDTR_BASE, 1 << 47),
        ("EFER without LMA", field::HOST_EFER, 0),
        ("EFER's reserved bits", field::HOST_EFER, 0x2_0500),
    ] {
        machine.fresh();
        write(word, value);
        t.eq(name, machine.run(&[0x0f, 0xa2]), Err(Outcome::Error(8)));
    }
    machine.end();
}

/// What is wrong with the guest is an exit, whose qualification tells more in few cases.
fn guest_state(t: &mut Test) {
    let machine = Machine::new();
    let rights = |index: u32| field::GUEST_RIGHTS + 2 * index;
    for (name, word, value, qualification) in [
        ("CR0 without PE", field::GUEST_CR0, insn::cr0() & !1, 0),
        ("CR4 without PAE", field::GUEST_CR4, insn::cr4() & !(1 << 5), 0),
        ("CR3 beyond memory", field::GUEST_CR3, 1 << 51, 0),
        ("EFER without LMA", field::GUEST_EFER, 0, 0),
        ("RFLAGS without bit 1", field::GUEST_RFLAGS, 0, 0),
        ("RFLAGS.VM", field::GUEST_RFLAGS, 0x2_0002, 0),
        ("RIP", field::GUEST_RIP, 1 << 62, 0),
        ("CS that is data", rights(1), 0xc093, 0),
        ("CS long and big", rights(1), 0xe09b, 0),
        ("SS that is code", rights(2), 0xa09b, 0),
        ("TR available", rights(7), 0x89, 0),
        ("TR unusable", rights(7), 1 << 16, 0),
        ("DS not accessed", rights(3), 0xc092, 0),
        ("an activity", field::ACTIVITY, 4, 0),
        ("STI and MOV SS", field::INTERRUPTIBILITY, 3, 0),
        ("STI with IF clear", field::INTERRUPTIBILITY, 1, 0),
        ("pending debug's reserved bits", field::PENDING_DEBUG, 0x20, 0),
        ("the link pointer", field::LINK_POINTER, 0, 4),
    ] {
        machine.fresh();
        write(word, value);
        let reason = machine.run(&[0x0f, 0xa2]);
        t.eq(name, (reason, read(field::QUALIFICATION)), (Ok(FAILED | 33), Some(qualification)));
        t.eq((name, "launch state is kept"), enter(false), Some(Outcome::Error(5)));
    }
    machine.end();
}

/// An instruction and its code, the word and the bit that make it exit; reason, qualification, length.
type Intercept = (&'static str, &'static [u8], u32, u64, [u64; 3]);

fn intercepts(t: &mut Test) {
    let machine = Machine::new();
    let (proc, proc2) = (field::PROC, field::PROC2);
    let cases: &[Intercept] = &[
        ("CPUID", &[0x0f, 0xa2], 0, 0, [10, 0, 2]),
        ("VMCALL", &[0x0f, 0x01, 0xc1], 0, 0, [18, 0, 3]),
        ("INVD", &[0x0f, 0x08], 0, 0, [13, 0, 2]),
        (
            "XSETBV at first",
            &[0x0f, 0x20, 0xe0, 0x0d, 0, 0, 4, 0, 0x0f, 0x22, 0xe0, 0x0f, 0x01, 0xd1],
            0,
            0,
            [55, 0, 3],
        ),
        ("HLT", &[0xf4], proc, 1 << 7, [12, 0, 1]),
        ("INVLPG", &[0x0f, 0x01, 0x3c, 0x25, 0x34, 0x12, 0, 0], proc, 1 << 9, [14, 0x1234, 8]),
        ("RDTSC", &[0x0f, 0x31], proc, 1 << 12, [16, 0, 2]),
        ("RDTSCP", &[0x0f, 0x01, 0xf9], proc, 1 << 12, [51, 0, 3]),
        ("MOV CR3", &[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8], proc, 1 << 15, [28, 0x3, 3]),
        ("MOV from CR3", &[0x0f, 0x20, 0xdb], proc, 1 << 16, [28, 0x313, 3]),
        ("MOV CR8", &[0x31, 0xc0, 0x44, 0x0f, 0x22, 0xc0], proc, 1 << 19, [28, 0x8, 4]),
        ("MOV DR7", &[0x0f, 0x21, 0xf8], proc, 1 << 23, [29, 0x17, 3]),
        ("IN", &[0xe4, 0x80], proc, 1 << 24, [30, 0x80_0048, 2]),
        ("OUT DX", &[0x66, 0xba, 0x80, 0, 0xef], proc, 1 << 24, [30, 0x80_0003, 1]),
        ("PAUSE", &[0xf3, 0x90], proc, 1 << 30, [40, 0, 2]),
        ("MONITOR", &[0x0f, 0x01, 0xc8], proc, 1 << 29, [39, 0, 3]),
        ("MWAIT", &[0x0f, 0x01, 0xc9], proc, 1 << 10, [36, 0, 3]),
        ("VMMCALL, which is AMD's", &[0x0f, 0x01, 0xd9], field::EXCEPTIONS, 1 << 6, [0, 0, 0]),
        ("SGDT", &[0x0f, 0x01, 0x04, 0x24], proc2, 1 << 2, [46, 0, 4]),
        ("SLDT", &[0x0f, 0x00, 0xc0], proc2, 1 << 2, [47, 0, 3]),
        ("WBINVD", &[0x0f, 0x09], proc2, 1 << 6, [54, 0, 2]),
        ("RDRAND", &[0x0f, 0xc7, 0xf0], proc2, 1 << 11, [57, 0, 3]),
        ("RDMSR beyond the bitmap", &[0xb9, 0, 0, 0, 0x40, 0x0f, 0x32], 0, 0, [31, 0, 2]),
        ("VMXOFF", &[0x0f, 0x01, 0xc4], 0, 0, [26, 0, 3]),
        ("VMLAUNCH", &[0x0f, 0x01, 0xc2], 0, 0, [20, 0, 3]),
        ("#UD", &[0x0f, 0x0b], field::EXCEPTIONS, 1 << 6, [0, 0, 0]),
        ("INT3", &[0xcc], field::EXCEPTIONS, 1 << 3, [0, 0, 1]),
    ];
    for (name, code, word, bit, told) in cases {
        machine.fresh();
        if *word != 0 {
            write(*word, read(*word).unwrap_or(0) | bit);
        }
        let reason = machine.run(code);
        t.eq(name, reason, Ok(told[0]));
        t.eq((name, "qualification"), read(field::QUALIFICATION), Some(told[1]));
        // Hardware exceptions have no length.
        t.eq((name, "length"), read(field::LENGTH), Some(told[2]));
    }
    t.eq("INT3's type", read(field::INTERRUPTION), Some(0x8000_0603));
    machine.end();
}

/// An exit saves RF as the event would have pushed it, and clear behind an instruction.
fn resume_flag(t: &mut Test) {
    const RF: u64 = 1 << 16;
    let machine = Machine::new();
    for (name, code, before, saved) in [
        ("CPUID", &[0x0f, 0xa2][..], 0, 0),
        ("CPUID that had it", &[0x0f, 0xa2], RF, 0),
        ("#UD", &[0x0f, 0x0b], 0, RF),
        ("#UD behind another instruction", &[0x90, 0x0f, 0x0b], RF, RF),
        ("INT3", &[0xcc], 0, 0),
    ] {
        machine.fresh();
        write(field::GUEST_RFLAGS, 2 | before);
        write(field::EXCEPTIONS, 1 << 6 | 1 << 3);
        machine.run(code).ok();
        t.eq(name, read(field::GUEST_RFLAGS).map(|flags| flags & RF), Some(saved));
    }
    machine.end();
}

/// Every kind of event arrives with what it pushes, and an injected one whose delivery fails is told again.
fn injection(t: &mut Test) {
    let machine = Machine::new();
    let idt = paging::page();
    // CPUID at the handler.
    let handler = machine.code + 0x100;
    // SAFETY: both pages are this case's.
    unsafe {
        for number in 0..256 {
            (idt as *mut Gate).add(number).write(Gate::interrupt(handler));
        }
        (handler as *mut [u8; 2]).write([0x0f, 0xa2]);
    }
    for (name, info, code, length, pushed) in [
        ("an interrupt", 0x30_u64, 0, 0, 0),
        ("an NMI", 2 << 8 | 2, 0, 0, 0),
        ("#UD", 3 << 8 | 6, 0, 0, 0),
        ("#GP", 1 << 11 | 3 << 8 | 13, 0x1234, 0, 0x1234),
        ("INT n", 4 << 8 | 0x40, 0, 2, 0),
        ("INT1", 5 << 8 | 1, 0, 1, 0),
        ("INT3", 6 << 8 | 3, 0, 1, 0),
    ] {
        machine.fresh();
        write(field::GUEST_RFLAGS, 0x202);
        write(field::GUEST_BASES + 0x12, idt);
        write(field::GUEST_LIMITS + 0x12, 0xfff);
        write(field::INJECTION, 1 << 31 | info);
        write(field::INJECTION_CODE, code);
        write(field::INJECTION_LENGTH, length);
        t.eq(name, machine.run(&[0x0f, 0x0b]), Ok(10));
        t.eq((name, "the handler"), read(field::GUEST_RIP), Some(handler));
        let stack = read(field::GUEST_RSP).unwrap_or(machine.stack - 48);
        // SAFETY: it is the guest's stack.
        let word = |at: u64| unsafe { ((stack + 8 * at) as *const u64).read_volatile() };
        let with_code = u64::from(info >> 11 & 1 != 0);
        if with_code != 0 {
            t.eq((name, "error code"), word(0), pushed);
        }
        t.eq((name, "RIP"), word(with_code), machine.code + length);
        t.eq((name, "once"), read(field::INJECTION).map(|info| info >> 31), Some(0));
        let blocked = read(field::INTERRUPTIBILITY).unwrap_or(0) >> 3 & 1;
        t.eq((name, "NMIs blocked"), blocked, u64::from(info == 2 << 8 | 2));
    }
    // The IDT is empty: #GP(vector * 8 + 3), and the event is told.
    machine.fresh();
    write(field::GUEST_RFLAGS, 0x202);
    write(field::GUEST_LIMITS + 0x12, 0);
    write(field::EXCEPTIONS, 1 << 13);
    write(field::INJECTION, 1 << 31 | 0x30);
    t.eq("no gate", machine.run(&[0x0f, 0x0b]), Ok(0));
    t.eq("what was injected", read(field::VECTORING), Some(0x8000_0030));
    Cpu::this().reset_gates();
    machine.end();
}

/// An MSR list: what can be loaded is, and the first entry that cannot be is named.
fn lists(t: &mut Test) {
    const KERNEL_GS_BASE: u32 = 0xc000_0102;
    const SPEC_CTRL: u32 = 0x48;
    const FS_BASE: u32 = 0xc000_0100;
    let machine = Machine::new();
    let list = paging::page() as *mut [u64; 2];
    let before = insn::rdmsr(KERNEL_GS_BASE);
    for (name, second, reason, qualification) in [
        ("fine", [KERNEL_GS_BASE.into(), 0x5678], 10, 0),
        // Xen gives its guests theirs so.
        ("SPEC_CTRL", [SPEC_CTRL.into(), 1], 10, 0),
        ("a bit of SPEC_CTRL that is none", [SPEC_CTRL.into(), 1 << 3], FAILED | 34, 2),
        ("not FS_BASE", [FS_BASE.into(), 0], FAILED | 34, 2),
    ] {
        machine.fresh();
        // SAFETY: the page is this case's.
        unsafe {
            list.write([KERNEL_GS_BASE.into(), 0x1234]);
            list.add(1).write(second);
        }
        write(field::ENTRY_MSR_LOAD, list as u64);
        write(field::ENTRY_MSR_COUNT, 2);
        t.eq(name, machine.run(&[0x0f, 0xa2]), Ok(reason));
        t.eq((name, "entry"), read(field::QUALIFICATION), Some(qualification));
    }
    t.eq("SPEC_CTRL holds it", insn::rdmsr(SPEC_CTRL), 1);
    insn::wrmsr(SPEC_CTRL, 0);
    machine.fresh();
    write(field::ENTRY_MSR_LOAD, list as u64 + 8);
    write(field::ENTRY_MSR_COUNT, 1);
    t.eq("not aligned", machine.run(&[0x0f, 0xa2]), Err(Outcome::Error(7)));
    insn::wrmsr(KERNEL_GS_BASE, before);
    machine.end();
}

/// The preemption timer: before any instruction at 0, and in HLT, also where the guest begins there.
fn timer(t: &mut Test) {
    let machine = Machine::new();
    for (name, value, activity, code) in [
        ("at once", 0, 0, &[0x90_u8, 0x0f, 0xa2][..]),
        ("in a loop", 1000, 0, &[0xeb, 0xfe]),
        ("in a loop that lasts", 30_000, 0, &[0xeb, 0xfe]),
        ("in HLT", 100_000, 0, &[0xf4, 0x0f, 0xa2]),
        ("in HLT from the beginning", 100_000, 1, &[0x0f, 0xa2]),
    ] {
        machine.fresh();
        write(field::PIN, capability(0x48d).0 | 1 << 6);
        write(field::TIMER, value);
        write(field::ACTIVITY, activity);
        t.eq(name, machine.run(code), Ok(52));
        t.eq((name, "activity"), read(field::ACTIVITY), Some(u64::from(code[0] == 0xf4 || activity == 1)));
    }
    no_time_behind_it(t, &machine);
    machine.end();
}

/// A guest that reads the time over and over sees none behind the timer's, however late somebody looks at a clock.
fn no_time_behind_it(t: &mut Test, machine: &Machine) {
    const VALUE: u64 = 1 << 16;
    let shift = insn::rdmsr(0x485) & 0x1f;
    let place = paging::page();
    // movabs $place, %rsi; rdtsc; shl $32, %rdx; or %rdx, %rax; mov %rax, (%rsi); mov %rax, 8(%rsi)
    let mut code = [0_u8; 48];
    let first = [0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0x06];
    // 1: rdtsc; shl $32, %rdx; or %rdx, %rax; mov %rax, 8(%rsi); jmp 1b
    let again = [0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0x46, 0x08, 0xeb, 0xf1];
    code[..2].copy_from_slice(&[0x48, 0xbe]);
    code[2..10].copy_from_slice(&place.to_le_bytes());
    code[10..22].copy_from_slice(&first);
    code[22..37].copy_from_slice(&again);
    for round in 0..4 {
        machine.fresh();
        write(field::PIN, capability(0x48d).0 | 1 << 6);
        write(field::TIMER, VALUE);
        t.eq(("reading the time", round), machine.run(&code), Ok(52));
        // SAFETY: the page is this test's, and the guest has left.
        let [begun, last] = unsafe { (place as *const [u64; 2]).read_volatile() };
        t.eq(("the last time is before the timer's", round), last < begun + (VALUE << shift), true);
    }
}
