//! What INIT leaves of a processor's registers.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering};

use satori_guests::defs::apic::{self as regs, base, icr};
use satori_guests::defs::msr::*;
use satori_guests::defs::x86::{cr0, cr4};
use satori_guests::smp;
use satori_guests::{Test, apic, insn};

use crate::{ECX, cpuid_bit};

/// Where the processor begins again, and what it leaves there.
const AGAIN: u64 = 0x9000;
const FOUND: u64 = 0xa000;
const MSRS: u64 = 0xa800;
const VALUES: u64 = 0xac00;
const CR4: u64 = 0xa7e0;
const HAS: u64 = 0xa7e8;
const READY: u64 = 0xa7f0;
const FXSAVED: u64 = 0xb000;

global_asm!(
    ".pushsection .rodata.again, \"a\"",
    ".code16",
    ".globl again_begin, again_end",
    "again_begin:",
    ".byte 0x66, 0x89, 0x3e, 0x00, 0xa0", // mov [0xa000], edi
    "mov di, 0xa000",
    "mov [di + 8], eax",
    "mov [di + 16], ecx",
    "mov [di + 24], edx",
    "mov [di + 32], ebx",
    "mov [di + 40], esp",
    "mov [di + 48], ebp",
    "mov [di + 56], esi",
    "mov esp, 0x9f00",
    "pushfd",
    "pop eax",
    "mov [di + 64], eax",
    "mov eax, cr0",
    "mov [di + 72], eax",
    "mov eax, cr2",
    "mov [di + 80], eax",
    "mov eax, cr3",
    "mov [di + 88], eax",
    "mov eax, cr4",
    "mov [di + 96], eax",
    "mov eax, dr0",
    "mov [di + 104], eax",
    "mov eax, dr1",
    "mov [di + 112], eax",
    "mov eax, dr2",
    "mov [di + 120], eax",
    "mov eax, dr3",
    "mov [di + 128], eax",
    "mov eax, dr6",
    "mov [di + 136], eax",
    "mov eax, dr7",
    "mov [di + 144], eax",
    // The MSRs of the list.
    "mov si, 0xa800",
    "mov bx, 0xac00",
    "2:",
    "mov ecx, [si]",
    "test ecx, ecx",
    "jz 2f",
    "rdmsr",
    "mov [bx], eax",
    "mov [bx + 4], edx",
    "add si, 4",
    "add bx, 8",
    "jmp 2b",
    "2:",
    "mov si, 0xa7e0",
    "mov eax, [si]",
    "mov cr4, eax",
    "mov bx, 0xb000",
    "fxsave [bx]",
    "test byte ptr [si + 8], 1",
    "jz 2f",
    "xor ecx, ecx",
    "xgetbv",
    "mov [di + 152], eax",
    "2:",
    "test byte ptr [si + 8], 2",
    "jz 2f",
    "xor ecx, ecx",
    ".byte 0x0f, 0x01, 0xee", // rdpkru
    "mov [di + 160], eax",
    "2:",
    "mov byte ptr [si + 16], 1",
    "2: cli",
    "hlt",
    "jmp 2b",
    "again_end:",
    ".code64",
    ".popsection",
);

unsafe extern "C" {
    static again_begin: u8;
    static again_end: u8;
}

static STARTED: AtomicBool = AtomicBool::new(false);

fn peek(at: u64) -> u64 {
    // SAFETY: RAM below 1 MiB that this case alone uses.
    unsafe { (at as *const u64).read_volatile() }
}

fn poke(at: u64, value: u64) {
    // SAFETY: as in `peek`.
    unsafe { (at as *mut u64).write_volatile(value) };
}

/// Registers that INIT leaves, and a value for each.
const STAY: [(u32, u64); 9] = [
    (IA32_STAR, 0x1234_5678_9abc_def0),
    (IA32_LSTAR, 0xffff_8000_1111_0000),
    (IA32_CSTAR, 0x2222_0000),
    (IA32_FMASK, 0x4700),
    (IA32_KERNEL_GS_BASE, 0x4444_0000),
    (IA32_SYSENTER_CS, 0x8),
    (IA32_SYSENTER_ESP, 0x5555_0000),
    (IA32_SYSENTER_EIP, 0x6666_0000),
    (IA32_PAT, 0x0007_0406_0007_0406),
];

fn xsave() -> bool {
    cpuid_bit(1, ECX, 26)
}

fn keys() -> bool {
    cpuid_bit(7, ECX, 3)
}

/// The processor that will meet INIT: everything has a value of its own.
fn fill(_: usize) {
    for (msr, value) in STAY {
        insn::wrmsr(msr, value);
    }
    insn::wrmsr(IA32_FS_BASE, 0x1000);
    insn::wrmsr(IA32_GS_BASE, 0x2000);
    insn::set_dr0(0x1000);
    insn::set_dr1(0x2000);
    insn::set_dr2(0x3000);
    insn::set_dr3(0x4000);
    insn::set_dr6(0xffff_4ff3);
    insn::set_dr7(0x700);
    insn::set_cr2(0x1234);
    // SAFETY: nothing runs on this processor after INIT that would miss these.
    unsafe {
        core::arch::asm!("fninit", "fld1", "fldpi", "movq xmm5, {}", "ldmxcsr [{}]", in(reg) 0x5555_6666_u64,
            in(reg) &0x9fc0_u32);
        if xsave() {
            insn::set_cr4(insn::cr4() | cr4::OSXSAVE);
            core::arch::asm!("xsetbv", in("ecx") 0, in("eax") 3, in("edx") 0);
        }
        if keys() {
            insn::set_cr4(insn::cr4() | cr4::PKE);
            core::arch::asm!(".byte 0x0f, 0x01, 0xef", in("ecx") 0, in("eax") 0x0c0f_feec, in("edx") 0);
        }
    }
    STARTED.store(true, Ordering::Release);
    loop {
        insn::pause();
    }
}

/// SDM table 10-1, the column INIT. The last case, since the processor does not come back.
pub fn init(t: &mut Test) {
    if smp::count() < 2 {
        t.holds("one processor only", true);
        return;
    }
    let list = [
        IA32_STAR,
        IA32_LSTAR,
        IA32_CSTAR,
        IA32_FMASK,
        IA32_KERNEL_GS_BASE,
        IA32_SYSENTER_CS,
        IA32_SYSENTER_ESP,
        IA32_SYSENTER_EIP,
        IA32_PAT,
        IA32_EFER,
        IA32_FS_BASE,
        IA32_GS_BASE,
        IA32_APIC_BASE,
    ];
    let begin = &raw const again_begin;
    let length = &raw const again_end as usize - begin as usize;
    // SAFETY: the pages are RAM that nobody uses.
    unsafe {
        ((AGAIN) as *mut u8).copy_from(begin, length);
        for (at, msr) in list.into_iter().chain([0]).enumerate() {
            ((MSRS + 4 * at as u64) as *mut u32).write_volatile(msr);
        }
    }
    let mut set = cr4::OSFXSR;
    let mut has = 0;
    if xsave() {
        set |= cr4::OSXSAVE;
        has |= 1;
    }
    if keys() {
        set |= cr4::PKE;
        has |= 2;
    }
    poke(CR4, set);
    poke(HAS, has);
    poke(READY, 0);
    smp::begin(1, fill);
    while !STARTED.load(Ordering::Acquire) {
        insn::pause();
    }
    apic::send(icr::OTHERS | icr::ASSERT | 5 << 8, 0);
    smp::spin(1_000_000);
    apic::send(icr::OTHERS | icr::ASSERT | 6 << 8 | (AGAIN >> 12) as u32, 0);
    while peek(READY) & 1 == 0 {
        insn::pause();
    }
    let found = |slot: u64| peek(FOUND + 8 * slot) & 0xffff_ffff;
    for (slot, name) in [(0, "EDI"), (1, "EAX"), (2, "ECX"), (4, "EBX"), (5, "ESP"), (6, "EBP"), (7, "ESI")] {
        t.eq(name, found(slot), 0);
    }
    t.eq("EDX is the signature", found(3), u64::from(insn::cpuid(1, 0)[0]));
    t.eq("EFLAGS", found(8), 2);
    // CD and NW stay as they were.
    t.eq("CR0", found(9), cr0::ET | insn::cr0() & (cr0::CD | cr0::NW));
    t.eq("CR2", found(10), 0);
    t.eq("CR3", found(11), 0);
    t.eq("CR4", found(12), 0);
    t.eq("DR0 to DR3", [13, 14, 15, 16].map(found), [0; 4]);
    t.eq("DR6", found(17), 0xffff_0ff0);
    t.eq("DR7", found(18), 0x400);
    if xsave() {
        t.eq("XCR0 stays", found(19), 3);
    }
    if keys() {
        t.eq("PKRU stays", found(20), 0x0c0f_feec);
    }
    for (at, (msr, value)) in STAY.into_iter().enumerate() {
        t.eq(("stays", msr), peek(VALUES + 8 * at as u64), value);
    }
    let value = |at: u64| peek(VALUES + 8 * (STAY.len() as u64 + at));
    t.eq("EFER", value(0), 0);
    t.eq("FS's base", value(1), 0);
    t.eq("GS's base", value(2), 0);
    t.eq("IA32_APIC_BASE", value(3), regs::DEFAULT_BASE | base::EN);
    t.eq("x87 control, status and tags", peek(FXSAVED) & 0xff_ffff_ffff, 0xc0_3000_037f);
    t.eq("MXCSR stays", peek(FXSAVED + 24) & 0xffff_ffff, 0x9fc0);
    t.eq("XMM5 stays", peek(FXSAVED + 160 + 5 * 16), 0x5555_6666);
}
