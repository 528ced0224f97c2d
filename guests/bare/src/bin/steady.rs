//! Small fixed programs, one a case: what the engine needs for each is counted and kept in a table
//! (`crates/satori/tests/counts.rs`), where more than before shows. They are assembly, so that no compiler changes them.

#![no_std]
#![no_main]

use satori_guests::cpu::{Cpu, Gate, selector};
use satori_guests::defs::apic;
use satori_guests::defs::msr::{IA32_FMASK, IA32_LSTAR, IA32_STAR};
use satori_guests::defs::x86::{cr4, pte};
use satori_guests::legacy::{self, LegacySubject};
use satori_guests::paging::{self, Space};
use satori_guests::subject::{USER, reg, reset_fpu};
use satori_guests::{Code, Expect, Subject, Test, apic as local_apic, code, guest, insn};

guest!(
    "steady",
    arithmetic,
    carries,
    products,
    one_page,
    many_pages,
    more_pages_than_the_tlb,
    crossings,
    stack,
    calls,
    targets,
    copies,
    short_strings,
    locks,
    sse,
    avx,
    x87,
    bits,
    system_calls,
    interrupts,
    page_faults,
    address_spaces,
    written_code,
    execs,
    compatibility_mode,
    protected_mode,
    real_mode,
    exits,
    interrupt_window,
);

/// STAR for the selectors of the GDT.
const STAR: u64 = (selector::USER_CODE32 as u64 & !3) << 48 | (selector::CODE as u64) << 32;
/// Where memory begins that the guest does not lie in.
const BEYOND: u64 = 32 << 20;

/// The subject comes to its end with `rax`.
fn gives(t: &mut Test, subject: Subject, rax: u64) {
    let event = subject.run();
    t.event("ends", &event, Expect::done());
    t.eq("result", event.regs.gpr[reg::RAX], rax);
}

fn user(code: Code, rounds: u64) -> Subject {
    Subject::user(code).with(reg::RCX, rounds)
}

fn kernel(code: Code, rounds: u64) -> Subject {
    Subject::kernel(code).with(reg::RCX, rounds)
}

fn arithmetic(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "2:", "lea rdx, [rax + rcx * 4 + 7]", "xor rdx, rcx", "add rax, rdx", "shr rdx, 3",
        "sub rax, rdx", "and eax, 0xffff", "cmp rax, 0x8000", "jb 3f", "not rdx", "3: inc rbx", "dec rcx" => "jnz 2b"
        => "mov rax, rbx"
    );
    gives(t, user(code, 50_000), 50_000);
}

fn carries(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "xor edx, edx", "2:", "add rdx, -5", "adc rax, 0", "sbb rbx, rbx", "rcl rbx, 1",
        "setc sil", "cmovnc rdi, rbx", "rol rdx, 3", "dec rcx" => "jnz 2b" => "and eax, 0"
    );
    gives(t, user(code, 40_000), 0);
}

fn products(t: &mut Test) {
    let code = code!(
        "mov ebx, 1", "2:", "imul rbx, rbx, 31", "mov rax, rbx", "mul rcx", "mov rdx, 3", "mov rax, rcx", "shl rax, 4",
        "mov rsi, rdx", "xor edx, edx", "div rsi", "imul rax, rsi", "dec rcx" => "jnz 2b"
    );
    gives(t, user(code, 20_000), 15);
}

fn one_page(t: &mut Test) {
    let code = code!(
        "2:", "mov rax, [rdi]", "add rax, 2", "mov [rdi], rax", "mov edx, [rdi + 8]", "add [rdi + 16], rdx",
        "movzx edx, word ptr [rdi + 24]", "mov [rdi + 32], dl", "cmp byte ptr [rdi + 40], 0", "dec rcx" => "jnz 2b"
    );
    gives(t, user(code, 40_000).with(reg::RDI, paging::page() + USER), 80_000);
}

/// Through a chain of `pages` pages from `first`, each `stride` bytes behind the one before and the last leading to the first.
fn chain(t: &mut Test, first: u64, pages: u64, stride: u64, rounds: u64) {
    for at in 0..pages {
        let next = first + (at + 1) % pages * stride + USER;
        // SAFETY: memory of the case's own, which nothing lies in.
        unsafe { ((first + at * stride) as *mut u64).write_volatile(next) };
    }
    let code = code!("xor eax, eax", "2:", "mov rdi, [rdi]", "inc rax", "dec rcx" => "jnz 2b");
    gives(t, user(code, rounds).with(reg::RDI, first + USER), rounds);
}

fn many_pages(t: &mut Test) {
    chain(t, BEYOND, 256, 4096 + 64, 60_000);
}

fn more_pages_than_the_tlb(t: &mut Test) {
    chain(t, BEYOND, 4096, 4096 + 64, 20_000);
}

fn crossings(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "2:", "mov rdx, [rdi - 4]", "add rax, 1", "mov [rdi - 1], eax", "movups xmm0, [rdi - 8]", "dec rcx"
        => "jnz 2b"
    );
    reset_fpu();
    gives(t, user(code, 20_000).with(reg::RDI, paging::pages(2) + 4096 + USER), 20_000);
}

fn stack(t: &mut Test) {
    let code = code!(
        "2:", "push rcx", "push rbx", "push qword ptr [rsp]", "mov rbp, rsp", "sub rsp, 32", "mov [rsp + 8], rcx",
        "mov rsp, rbp", "pop rdx", "pop rbx", "pop rcx", "dec rcx" => "jnz 2b" => "xor eax, eax"
    );
    gives(t, user(code, 30_000), 0);
}

fn calls(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "2:", "call 3f", "call 4f", "dec rcx", "jnz 2b", "jmp 5f",
        "3: call 4f", "call 4f", "ret", "4: inc rax", "ret" => "5: nop"
    );
    gives(t, user(code, 30_000), 90_000);
}

fn targets(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "lea rsi, [rip + 3f]", "2:", "mov edx, ecx", "imul edx, edx, 13", "and edx, 7", "shl edx, 3",
        "lea rdx, [rsi + rdx]", "call rdx", "dec rcx", "jnz 2b", "jmp 4f", ".balign 8",
        "3: .rept 8", "inc rax", "ret", ".balign 8", ".endr" => "4: nop"
    );
    gives(t, user(code, 30_000), 30_000);
}

fn copies(t: &mut Test) {
    let code = code!(
        "cld", "mov rbx, rcx", "2:", "mov rsi, r8", "mov rdi, r9", "mov ecx, 512", "rep movsq", "mov rdi, r9", "mov ecx, 3000",
        "mov al, 7", "rep stosb", "mov rdi, r8", "mov rsi, r8", "mov ecx, 100", "repe cmpsb", "dec rbx" => "jnz 2b"
        => "mov eax, ecx"
    );
    let at = |register, subject: Subject| subject.with(register, paging::page() + USER);
    gives(t, at(8, at(9, user(code, 400))), 0);
}

fn short_strings(t: &mut Test) {
    let code = code!(
        "cld", "mov rbx, rcx", "2:", "mov rsi, r8", "mov rdi, r9", "mov ecx, 9", "rep movsb", "lodsb", "stosw", "scasb",
        "dec rbx" => "jnz 2b" => "mov eax, ecx"
    );
    let at = |register, subject: Subject| subject.with(register, paging::page() + USER);
    gives(t, at(8, at(9, user(code, 5000))), 0);
}

fn locks(t: &mut Test) {
    let code = code!(
        "2:", "lock inc qword ptr [rdi]", "mov eax, 1", "lock xadd [rdi + 8], rax", "mov rdx, [rdi]", "mov rax, rdx",
        "lock cmpxchg [rdi], rdx", "xchg [rdi + 16], rdx", "lock bts dword ptr [rdi + 24], 3", "dec rcx" => "jnz 2b"
        => "mov rax, [rdi + 8]"
    );
    gives(t, user(code, 20_000).with(reg::RDI, paging::page() + USER), 20_000);
}

fn sse(t: &mut Test) {
    let code = code!(
        "cvtsi2sd xmm1, rcx", "xorps xmm0, xmm0", "mov eax, 1", "cvtsi2sd xmm2, eax", "2:", "addsd xmm0, xmm2",
        "movaps xmm3, xmm0", "mulpd xmm3, xmm3", "sqrtpd xmm4, xmm3", "unpcklpd xmm4, xmm0", "movups [rdi], xmm4",
        "paddd xmm5, [rdi]", "pshufd xmm6, xmm5, 0x1b", "ucomisd xmm0, xmm1" => "jb 2b" => "cvttsd2si rax, xmm0"
    );
    reset_fpu();
    gives(t, user(code, 20_000).with(reg::RDI, paging::page() + USER), 20_000);
}

fn avx(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "2:", "vmovdqu ymm0, [rdi]", "vpaddd ymm1, ymm1, ymm0", "vpxor ymm2, ymm1, ymm0",
        "vfmadd231pd ymm3, ymm2, ymm1", "vmovdqu [rdi + 64], ymm2", "vpermq ymm4, ymm3, 0x4e", "vextracti128 xmm5, ymm4, 1",
        "inc rax", "dec rcx" => "jnz 2b" => "vzeroupper"
    );
    reset_fpu();
    // XCR0 with x87, SSE and AVX (SDM 13.3).
    let enable = Subject::kernel(code!("xor edx, edx" => "xsetbv")).with(reg::RAX, 7).cr4(cr4::OSXSAVE, 0);
    t.event("XCR0", &enable.run(), Expect::done());
    gives(t, user(code, 20_000).with(reg::RDI, paging::page() + USER).cr4(cr4::OSXSAVE, 0), 20_000);
}

fn x87(t: &mut Test) {
    let code = code!(
        "fninit", "fldz", "2:", "fld1", "faddp", "fld st(0)", "fsqrt", "fmul st(0), st(0)", "fstp qword ptr [rdi]", "dec rcx"
        => "jnz 2b" => "fistp qword ptr [rdi]", "mov rax, [rdi]"
    );
    reset_fpu();
    gives(t, user(code, 20_000).with(reg::RDI, paging::page() + USER), 20_000);
}

fn bits(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "2:", "popcnt rdx, rcx", "bsf rbx, rcx", "bsr rsi, rcx", "shld rsi, rcx, 7", "bt rcx, 0",
        "adc rax, 0", "andn rbx, rsi, rcx", "tzcnt rdx, rcx", "bswap rdx", "movbe [rdi], rcx", "shlx rdx, rcx, rbx", "bts [rdi], ecx",
        "and ecx, 0x7fff", "dec rcx" => "jnz 2b"
    );
    gives(t, user(code, 20_000).with(reg::RDI, paging::pages(2) + USER), 10_000);
}

fn system_calls(t: &mut Test) {
    let handler =
        code!("swapgs", "inc rax", "push rcx", "push r11", "pop r11", "pop rcx", "swapgs" => "sysretq");
    insn::wrmsr(IA32_STAR, STAR);
    insn::wrmsr(IA32_LSTAR, handler.start);
    insn::wrmsr(IA32_FMASK, 0x300);
    let code = code!("xor eax, eax", "mov rbx, rcx", "2:", "syscall", "dec rbx" => "jnz 2b");
    gives(t, user(code, 10_000), 10_000);
}

fn interrupts(t: &mut Test) {
    let handler = code!("push rdx", "inc rax", "pop rdx" => "iretq");
    Cpu::this().idt[0x70] = Gate::interrupt(handler.start).dpl(3);
    let code = code!("xor eax, eax", "2:", "int 0x70", "dec rcx" => "jnz 2b");
    gives(t, user(code, 5000), 5000);
    Cpu::this().reset_gates();
}

fn page_faults(t: &mut Test) {
    let space = Space::new();
    let at = paging::FREE;
    space.map(at, paging::page(), pte::W | pte::U);
    // Makes the page present again.
    let handler = code!("inc rax", "or qword ptr [r8], 1", "add rsp, 8" => "iretq");
    Cpu::this().idt[14] = Gate::interrupt(handler.start);
    let code = code!("2:", "and qword ptr [r8], -2", "invlpg [rdi]", "mov edx, [rdi]", "dec rcx" => "jnz 2b");
    let entry = space.entry(at, 0) as u64;
    space.enter();
    gives(t, kernel(code, 3000).with(reg::RDI, at).with(8, entry), 3000);
    paging::leave();
    Cpu::this().reset_gates();
}

fn address_spaces(t: &mut Test) {
    let spaces = [Space::new(), Space::new()];
    for space in spaces {
        (0..8).for_each(|page| space.map(paging::FREE + 4096 * page, paging::page(), pte::W));
    }
    let code = code!(
        "xor eax, eax", "2:", "mov cr3, r8", "call 3f", "mov cr3, r9", "call 3f", "dec rcx", "jnz 2b", "jmp 4f",
        "3: mov edx, 8", "mov rsi, rdi", "5: inc qword ptr [rsi]", "add rsi, 4096", "inc rax", "dec edx", "jnz 5b", "ret"
        => "4: nop"
    );
    let [one, other] = spaces.map(|space| space.root);
    spaces[0].enter();
    gives(t, kernel(code, 1000).with(reg::RDI, paging::FREE).with(8, one).with(9, other), 16_000);
    paging::leave();
}

fn written_code(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "mov rbx, rcx", "2:", "mov [rip + 3f + 2], bl", "mov edx, 40", "4: call 3f", "dec edx", "jnz 4b",
        "dec rbx", "jnz 2b", "and eax, 0", "jmp 5f", "nop", "3: add eax, 1", "ret" => "5: nop"
    );
    let copy = code.copy_to(paging::page());
    gives(t, kernel(copy, 300), 0);
}

/// A program comes to fresh pages, is mapped where the last one was, runs, and is gone: as processes that begin and end.
fn execs(t: &mut Test) {
    let code = code!(
        "xor eax, eax", "2:", "call 3f", "dec rcx", "jnz 2b", "jmp 4f", "3: lea rdx, [rip + 5f]", "jmp rdx", "5: inc rax", "ret"
        => "4: nop"
    );
    let frames = paging::pages(8);
    for round in 0..120 {
        let space = Space::new();
        let frame = frames + round % 8 * 4096;
        code.copy_to(frame);
        space.map(paging::FREE, frame, pte::U);
        space.enter();
        let mut subject = user(code, 100);
        subject.code = code.moved(paging::FREE);
        subject.regs.rip = paging::FREE;
        gives(t, subject, 100);
        paging::leave();
    }
}

fn compatibility_mode(t: &mut Test) {
    let code = code!(
        ".code32", "xor eax, eax", "2:", "push ecx", "call 3f", "pop ecx", "mov edx, [edi]", "add [edi + 4], edx", "dec ecx",
        "jnz 2b", "jmp 4f", "3: add eax, 2", "ret" => "4: nop"
    );
    gives(t, Subject::compat(code).with(reg::RCX, 10_000).with(reg::RDI, paging::page() + USER), 20_000);
}

/// The legacy subject comes to its end with `eax`.
fn legacy_gives(t: &mut Test, mut subject: LegacySubject, rounds: u32, eax: u32) {
    subject.regs.gpr[reg::RCX] = rounds;
    let event = subject.run();
    t.holds("ends", event.done());
    t.eq("result", event.regs.gpr[reg::RAX], eax);
}

fn protected_mode(t: &mut Test) {
    legacy::reset();
    let code = code!(
        ".code32", "xor eax, eax", "2:", "push ecx", "call 3f", "pop ecx", "mov edx, [esp]", "dec ecx", "jnz 2b", "jmp 4f",
        "3: add eax, 2", "ret" => "4: nop"
    );
    legacy_gives(t, LegacySubject::kernel(code), 10_000, 20_000);
}

fn real_mode(t: &mut Test) {
    legacy::reset();
    let code = code!(
        ".code16", "xor ax, ax", "2:", "inc ax", "mov dx, [bx]", "add dx, cx", "xchg bx, dx", "dec cx" => "jnz 2b"
    );
    legacy_gives(t, LegacySubject::real(code), 5000, 5000);
}

fn exits(t: &mut Test) {
    let code = code!(
        "mov rbx, 0", "mov r8, rcx", "2:", "xor eax, eax", "cpuid", "in al, 0x61", "mov ecx, 0x1b", "rdmsr", "dec r8" => "jnz 2b"
        => "xor eax, eax"
    );
    gives(t, kernel(code, 500), 0);
}

/// The local APIC's own interrupts, as fast as they are taken.
fn interrupt_window(t: &mut Test) {
    local_apic::enable();
    let handler = code!("inc rbx", "mov dword ptr [r8], 0" => "iretq");
    Cpu::this().idt[0x71] = Gate::interrupt(handler.start);
    let code = code!(
        "xor ebx, ebx", "2:", "cli", "mov dword ptr [r9], 0x40071", "nop", "sti", "nop", "nop", "dec rcx" => "jnz 2b"
        => "cli", "mov rax, rbx"
    );
    let [eoi, icr] = [apic::EOI, apic::ICR].map(|register| apic::DEFAULT_BASE + u64::from(register));
    gives(t, kernel(code, 1000).with(8, eoi).with(9, icr), 1000);
    Cpu::this().reset_gates();
}
