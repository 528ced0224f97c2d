//! Excursions out of long mode: subjects in 32-bit and 16-bit protected mode, with or without
//! paging, in virtual-8086 mode and in real mode. Only the first vCPU makes them.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;

use satori_defs::msr::IA32_EFER;
use satori_defs::x86::vector;

use crate::cpu::{descriptor, flat, rights};
use crate::subject::DONE;

mod subject;

pub use subject::{Event, LegacySubject};

/// Selectors of the legacy GDT.
pub mod selector {
    /// 32-bit code, level 0.
    pub const CODE: u16 = 0x08;
    /// Data, level 0.
    pub const DATA: u16 = 0x10;
    /// 16-bit code, level 0, whose base is [`LOW`](super::LOW).
    pub const CODE16: u16 = 0x18;
    /// 16-bit data, level 0, base 0.
    pub const DATA16: u16 = 0x20;
    /// 32-bit code, level 3.
    pub const USER_CODE: u16 = 0x28 | 3;
    /// Data, level 3.
    pub const USER_DATA: u16 = 0x30 | 3;
    /// The 32-bit TSS that is loaded.
    pub const TSS: u16 = 0x38;
    /// The first slot for cases.
    pub const FREE: u16 = 0x40;
}

/// Where the real-mode stubs are, and what they save. Cases use low memory from [`FREE`].
pub const LOW: u64 = 0x9000;
/// Offset from [`LOW`] at which the real-mode stubs save registers, and behind them the vector.
const SAVED: u64 = 0x2000;
/// Low memory for cases: code of real and virtual-8086 mode.
pub const FREE: u64 = 0x1_0000;
/// Top of the low stack, as a segment's base; SP begins at 0xfff0.
pub const STACK_SEGMENT: u16 = 0x4000;

/// The registers of a legacy subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Regs {
    /// General registers, as encoded.
    pub gpr: [u32; 8],
    /// EIP.
    pub eip: u32,
    /// CS.
    pub cs: u32,
    /// EFLAGS.
    pub eflags: u32,
    /// SS.
    pub ss: u32,
    /// DS.
    pub ds: u32,
    /// ES.
    pub es: u32,
    /// FS.
    pub fs: u32,
    /// GS.
    pub gs: u32,
}

/// What the assembly below works with, all below 4 GiB.
#[repr(C)]
struct Block {
    regs: Regs,
    vector: u32,
    frame: u32,
    words: [u32; 12],
    cr2: u32,
    tr: u32,
    cr0: u32,
    cr3: u32,
    cr4: u32,
    real: u32,
    load_tr: u32,
    gdtr: [u16; 4],
    idtr: [u16; 4],
    long_cr0: u32,
    long_cr3: u32,
    long_cr4: u32,
    long_efer: u32,
    long_rsp: u64,
    long_gdtr: [u16; 8],
    long_idtr: [u16; 8],
}

#[repr(C, align(16))]
struct Shared(UnsafeCell<Block>);

// SAFETY: only the first vCPU makes excursions.
unsafe impl Sync for Shared {}

#[unsafe(no_mangle)]
static LEGACY_BLOCK: Shared = Shared(UnsafeCell::new(
    // SAFETY: all-zero bytes are a Block.
    unsafe { core::mem::zeroed() },
));

/// The 32-bit TSS (SDM 7.2.1), with its I/O permission map.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tss {
    /// Selector of the task before.
    pub link: u32,
    /// ESP and SS of levels 0 to 2.
    pub stacks: [[u32; 2]; 3],
    /// CR3.
    pub cr3: u32,
    /// EIP.
    pub eip: u32,
    /// EFLAGS.
    pub eflags: u32,
    /// General registers, as encoded.
    pub gpr: [u32; 8],
    /// ES, CS, SS, DS, FS, GS.
    pub segments: [u32; 6],
    /// LDT's selector.
    pub ldt: u32,
    /// Bit 0: a debug trap on the switch to this task.
    pub trap: u16,
    /// Offset of the I/O permission map.
    pub io_map: u16,
    /// Interrupt redirection of virtual-8086 mode (one bit a vector), then the ports.
    pub redirection: [u8; 32],
    /// One bit a port, and the byte of ones.
    pub ports: [u8; 129],
}

/// The tables of legacy modes. All of it is below 4 GiB and mapped to itself.
#[repr(C, align(4096))]
pub struct Tables {
    /// GDT.
    pub gdt: [u64; 64],
    /// IDT.
    pub idt: [u64; 256],
    /// The TSS behind [`selector::TSS`].
    pub tss: Tss,
    inner: [u8; 4096],
    stack: [u8; 4096],
    user: [u8; 4096],
}

#[repr(C)]
struct SharedTables(UnsafeCell<Tables>);

// SAFETY: as for the block.
unsafe impl Sync for SharedTables {}

static TABLES: SharedTables = SharedTables(UnsafeCell::new(
    // SAFETY: all-zero bytes are tables.
    unsafe { core::mem::zeroed() },
));

global_asm!(
    ".pushsection .text.legacy, \"ax\"",
    ".globl legacy_enter, legacy_stubs, legacy_iret",
    "legacy_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "pushfq",
    "cli",
    "mov [LEGACY_BLOCK + {long_rsp}], rsp",
    "mov rax, cr0",
    "mov [LEGACY_BLOCK + {long_cr0}], eax",
    "mov rax, cr3",
    "mov [LEGACY_BLOCK + {long_cr3}], eax",
    "mov rax, cr4",
    "mov [LEGACY_BLOCK + {long_cr4}], eax",
    "mov ecx, {efer}",
    "rdmsr",
    "mov [LEGACY_BLOCK + {long_efer}], eax",
    "sgdt [LEGACY_BLOCK + {long_gdtr}]",
    "sidt [LEGACY_BLOCK + {long_idtr}]",
    "push 0x38",
    "lea rax, [rip + 2f]",
    "push rax",
    "retfq",
    ".code32",
    "2:",
    "mov eax, 0x10",
    "mov ss, eax",
    "mov ds, eax",
    "mov es, eax",
    "mov eax, cr0",
    "and eax, 0x7fffffff",
    "mov cr0, eax",
    "mov ecx, {efer}",
    "rdmsr",
    "and eax, 0xfffffeff",
    "wrmsr",
    "mov eax, [LEGACY_BLOCK + {cr4}]",
    "mov cr4, eax",
    "mov eax, [LEGACY_BLOCK + {cr3}]",
    "mov cr3, eax",
    "lgdt [LEGACY_BLOCK + {gdtr}]",
    "lidt [LEGACY_BLOCK + {idtr}]",
    "mov eax, [LEGACY_BLOCK + {cr0}]",
    "mov cr0, eax",
    ".byte 0xea",
    ".long 3f",
    ".word 8",
    "3:",
    "mov eax, 0x10",
    "mov ss, eax",
    "mov ds, eax",
    "mov es, eax",
    "mov esp, offset legacy_stack_top",
    "xor eax, eax",
    "lldt ax",
    "mov eax, [LEGACY_BLOCK + {load_tr}]",
    "ltr ax",
    "cmp dword ptr [LEGACY_BLOCK + {real}], 0",
    "jne 8f",
    "test dword ptr [LEGACY_BLOCK + {eflags}], 0x20000",
    "jnz 4f",
    "mov eax, [LEGACY_BLOCK + {es}]",
    "mov es, eax",
    "mov eax, [LEGACY_BLOCK + {fs}]",
    "mov fs, eax",
    "mov eax, [LEGACY_BLOCK + {gs}]",
    "mov gs, eax",
    "test dword ptr [LEGACY_BLOCK + {cs}], 3",
    "jnz 5f",
    "mov eax, [LEGACY_BLOCK + {ss}]",
    "mov esp, [LEGACY_BLOCK + 16]",
    "mov ss, eax",
    "jmp 6f",
    "4:",
    "push dword ptr [LEGACY_BLOCK + {gs}]",
    "push dword ptr [LEGACY_BLOCK + {fs}]",
    "push dword ptr [LEGACY_BLOCK + {ds}]",
    "push dword ptr [LEGACY_BLOCK + {es}]",
    "5:",
    "push dword ptr [LEGACY_BLOCK + {ss}]",
    "push dword ptr [LEGACY_BLOCK + 16]",
    "6:",
    "push dword ptr [LEGACY_BLOCK + {eflags}]",
    "push dword ptr [LEGACY_BLOCK + {cs}]",
    "push dword ptr [LEGACY_BLOCK + {eip}]",
    "mov eax, [LEGACY_BLOCK]",
    "mov ecx, [LEGACY_BLOCK + 4]",
    "mov edx, [LEGACY_BLOCK + 8]",
    "mov ebx, [LEGACY_BLOCK + 12]",
    "mov ebp, [LEGACY_BLOCK + 20]",
    "mov esi, [LEGACY_BLOCK + 24]",
    "mov edi, [LEGACY_BLOCK + 28]",
    "test dword ptr [LEGACY_BLOCK + {eflags}], 0x20000",
    "jnz legacy_iret",
    "mov ds, cs:[LEGACY_BLOCK + {ds}]",
    "legacy_iret:",
    "iretd",
    // To real mode, by way of 16-bit protected mode.
    "8:",
    ".byte 0xea",
    ".long real_entry - real_begin",
    ".word 0x18",

    ".balign 16",
    "legacy_stubs:",
    ".set legacy_vector, 0",
    ".rept 256",
    ".balign 16",
    ".byte 0x6a, legacy_vector",
    "jmp legacy_leave",
    ".set legacy_vector, legacy_vector + 1",
    ".endr",
    ".balign 16",
    "legacy_leave:",
    "cld",
    ".byte 0x1e", // push ds, a double word
    "push eax",
    "mov eax, 0x10",
    "mov ds, eax",
    "pop dword ptr [LEGACY_BLOCK]",
    "pop eax",
    "movzx eax, ax",
    "mov [LEGACY_BLOCK + {ds}], eax",
    "mov eax, es",
    "mov [LEGACY_BLOCK + {es}], eax",
    "mov eax, fs",
    "mov [LEGACY_BLOCK + {fs}], eax",
    "mov eax, gs",
    "mov [LEGACY_BLOCK + {gs}], eax",
    "mov [LEGACY_BLOCK + 4], ecx",
    "mov [LEGACY_BLOCK + 8], edx",
    "mov [LEGACY_BLOCK + 12], ebx",
    "mov [LEGACY_BLOCK + 20], ebp",
    "mov [LEGACY_BLOCK + 24], esi",
    "mov [LEGACY_BLOCK + 28], edi",
    "pop eax",
    "movzx eax, al",
    "mov [LEGACY_BLOCK + {vector}], eax",
    "mov [LEGACY_BLOCK + {frame}], esp",
    "mov eax, ss",
    "mov [LEGACY_BLOCK + {ss}], eax",
    "mov esi, esp",
    "mov edi, offset LEGACY_BLOCK + {words}",
    "mov ecx, 12",
    "2:",
    "mov eax, ss:[esi]",
    "mov [edi], eax",
    "add esi, 4",
    "add edi, 4",
    "dec ecx",
    "jnz 2b",
    "mov eax, cr2",
    "mov [LEGACY_BLOCK + {cr2}], eax",
    "str eax",
    "mov [LEGACY_BLOCK + {tr}], eax",
    "legacy_to_long:",
    "mov eax, 0x10",
    "mov ss, eax",
    "mov esp, offset legacy_stack_top",
    "mov eax, cr0",
    "and eax, 0x7fffffff",
    "mov cr0, eax",
    "mov eax, [LEGACY_BLOCK + {long_cr4}]",
    "mov cr4, eax",
    "mov eax, [LEGACY_BLOCK + {long_cr3}]",
    "mov cr3, eax",
    "mov ecx, {efer}",
    "xor edx, edx",
    "mov eax, [LEGACY_BLOCK + {long_efer}]",
    "and eax, 0xfffffbff",
    "wrmsr",
    "lgdt [LEGACY_BLOCK + {long_gdtr}]",
    "mov eax, [LEGACY_BLOCK + {long_cr0}]",
    "mov cr0, eax",
    ".byte 0xea",
    ".long 2f",
    ".word 8",
    ".code64",
    "2:",
    "mov eax, 0x10",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "xor eax, eax",
    "mov fs, eax",
    "mov gs, eax",
    "lldt ax",
    "lidt [LEGACY_BLOCK + {long_idtr}]",
    "mov rsp, [LEGACY_BLOCK + {long_rsp}]",
    // The TSS is busy since it was loaded first.
    "mov rax, [LEGACY_BLOCK + {long_gdtr} + 2]",
    "and byte ptr [rax + 0x55], 0xfd",
    "mov eax, 0x50",
    "ltr ax",
    "popfq",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",

    // Copied to LOW. CS is its segment, so CS: reaches what is saved here.
    ".balign 16",
    ".globl real_begin, real_end",
    "real_begin:",
    ".code16",
    "real_entry:",
    "mov ax, 0x20",
    "mov ds, ax",
    "mov es, ax",
    "mov fs, ax",
    "mov gs, ax",
    "mov ss, ax",
    "mov eax, cr0",
    "and al, 0xfe",
    "mov cr0, eax",
    ".byte 0xea",
    ".word 2f - real_begin",
    ".word {low} >> 4",
    "2:",
    "mov ss, cs:[{saved} + {ss}]",
    "mov esp, cs:[{saved} + 16]",
    "push dword ptr cs:[{saved} + {eflags}]",
    "push dword ptr cs:[{saved} + {cs}]",
    "push dword ptr cs:[{saved} + {eip}]",
    "mov es, cs:[{saved} + {es}]",
    "mov fs, cs:[{saved} + {fs}]",
    "mov gs, cs:[{saved} + {gs}]",
    "mov ds, cs:[{saved} + {ds}]",
    "mov eax, cs:[{saved}]",
    "mov ecx, cs:[{saved} + 4]",
    "mov edx, cs:[{saved} + 8]",
    "mov ebx, cs:[{saved} + 12]",
    "mov ebp, cs:[{saved} + 20]",
    "mov esi, cs:[{saved} + 24]",
    "mov edi, cs:[{saved} + 28]",
    "iretd",
    ".balign 8",
    ".globl real_stubs",
    "real_stubs:",
    ".set real_vector, 0",
    ".rept 256",
    ".balign 8",
    ".byte 0x6a, real_vector, 0xe9",
    ".word real_leave - 3f",
    "3:",
    ".set real_vector, real_vector + 1",
    ".endr",
    ".balign 8",
    "real_leave:",
    "mov cs:[{saved}], eax",
    "mov cs:[{saved} + 4], ecx",
    "mov cs:[{saved} + 8], edx",
    "mov cs:[{saved} + 12], ebx",
    "mov cs:[{saved} + 20], ebp",
    "mov cs:[{saved} + 24], esi",
    "mov cs:[{saved} + 28], edi",
    "mov cs:[{saved} + {ds}], ds",
    "mov cs:[{saved} + {es}], es",
    "mov cs:[{saved} + {fs}], fs",
    "mov cs:[{saved} + {gs}], gs",
    "mov cs:[{saved} + {ss}], ss",
    "pop ax",
    "mov cs:[{saved} + 64], al",
    "pop ax",
    "mov cs:[{saved} + {eip}], ax",
    "pop ax",
    "mov cs:[{saved} + {cs}], ax",
    "pop ax",
    "mov cs:[{saved} + {eflags}], ax",
    "mov cs:[{saved} + 16], esp",
    "mov eax, cr0",
    "or al, 1",
    "mov cr0, eax",
    ".byte 0x66, 0xea",
    ".long real_back",
    ".word 8",
    ".balign 8",
    "real_end:",
    ".code32",
    "real_back:",
    "mov eax, 0x10",
    "mov ds, eax",
    "mov es, eax",
    "jmp legacy_to_long",
    ".code64",
    ".popsection",
    ".pushsection .bss.legacy, \"aw\", @nobits",
    ".balign 16",
    ".skip 4096",
    "legacy_stack_top:",
    ".popsection",
    efer = const IA32_EFER,
    low = const LOW,
    saved = const SAVED,
    eip = const offset_of!(Regs, eip),
    cs = const offset_of!(Regs, cs),
    eflags = const offset_of!(Regs, eflags),
    ss = const offset_of!(Regs, ss),
    ds = const offset_of!(Regs, ds),
    es = const offset_of!(Regs, es),
    fs = const offset_of!(Regs, fs),
    gs = const offset_of!(Regs, gs),
    vector = const offset_of!(Block, vector),
    frame = const offset_of!(Block, frame),
    words = const offset_of!(Block, words),
    cr2 = const offset_of!(Block, cr2),
    tr = const offset_of!(Block, tr),
    cr0 = const offset_of!(Block, cr0),
    cr3 = const offset_of!(Block, cr3),
    cr4 = const offset_of!(Block, cr4),
    real = const offset_of!(Block, real),
    load_tr = const offset_of!(Block, load_tr),
    gdtr = const offset_of!(Block, gdtr),
    idtr = const offset_of!(Block, idtr),
    long_cr0 = const offset_of!(Block, long_cr0),
    long_cr3 = const offset_of!(Block, long_cr3),
    long_cr4 = const offset_of!(Block, long_cr4),
    long_efer = const offset_of!(Block, long_efer),
    long_rsp = const offset_of!(Block, long_rsp),
    long_gdtr = const offset_of!(Block, long_gdtr),
    long_idtr = const offset_of!(Block, long_idtr),
);

unsafe extern "C" {
    fn legacy_enter();
    static legacy_stubs: u8;
    static legacy_iret: u8;
    static real_begin: u8;
    static real_end: u8;
    static real_stubs: u8;
}

/// Where vector `number` of protected mode is handled.
pub fn stub(number: u8) -> u32 {
    (&raw const legacy_stubs as u64 + 16 * u64::from(number)) as u32
}

/// The IRETD that enters subjects of protected and virtual-8086 mode.
pub fn entering() -> u32 {
    &raw const legacy_iret as u64 as u32
}

/// A gate of the legacy IDT or GDT: `kind` with DPL and P as in its byte 5.
pub const fn gate(selector: u16, offset: u32, kind: u64) -> u64 {
    let offset = offset as u64;
    offset & 0xffff | (selector as u64) << 16 | kind << 40 | (offset >> 16) << 48
}

/// The tables, as [`reset`] left them and cases changed them.
pub fn tables() -> &'static mut Tables {
    // SAFETY: only the first vCPU comes here, and keeps no reference across calls.
    unsafe { &mut *TABLES.0.get() }
}

fn top(stack: &[u8; 4096]) -> u32 {
    (&raw const *stack as u64 + 4096) as u32
}

/// Fills the tables, and low memory with the stubs of real mode.
pub fn reset() {
    let tables = tables();
    tables.gdt = [0; 64];
    let tss = &raw const tables.tss as u64 as u32;
    let mut set = |selector: u16, descriptor| tables.gdt[usize::from(selector) / 8] = descriptor;
    set(selector::CODE, flat(rights::CODE32));
    set(selector::DATA, flat(rights::DATA));
    set(selector::CODE16, descriptor(LOW as u32, 0xffff, rights::CODE16));
    set(selector::DATA16, descriptor(0, 0xffff, rights::DATA16));
    set(selector::USER_CODE, flat(rights::CODE32 | rights::DPL3));
    set(selector::USER_DATA, flat(rights::DATA | rights::DPL3));
    set(selector::TSS, descriptor(tss, size_of::<Tss>() as u32 - 1, rights::TSS));
    for number in 0..=255u8 {
        let dpl = if matches!(number, vector::BP | vector::OF | DONE) { 0x60 } else { 0 };
        tables.idt[usize::from(number)] = gate(selector::CODE, stub(number), 0x8e | dpl);
    }
    // SAFETY: all-zero bytes are a TSS.
    tables.tss = unsafe { core::mem::zeroed() };
    tables.tss.stacks[0] = [top(&tables.inner), selector::DATA.into()];
    tables.tss.io_map = offset_of!(Tss, ports) as u16;
    tables.tss.ports = [0xff; _];
    let begin = &raw const real_begin;
    let offset = |place: *const u8| place as usize - begin as usize;
    // SAFETY: low memory is the case's, and the vectors of real mode lie at 0.
    unsafe {
        (LOW as *mut u8).copy_from(begin, offset(&raw const real_end));
        for number in 0..256usize {
            let at = offset(&raw const real_stubs) as u32 + 8 * number as u32;
            // Not through a reference: the first entry's address is 0.
            core::arch::asm!("mov [{}], {:e}", in(reg) number * 4, in(reg) at | (LOW as u32) << 12);
        }
    }
}
