//! Subjects: a few instructions, run until the first exception or interrupt.

use core::arch::{asm, global_asm};
use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};

use satori_defs::x86::{rflags, vector};

use crate::cpu::{Cpu, selector};
use crate::insn;

/// The software interrupt at the end of every [`code!`](crate::code).
pub const DONE: u8 = 0x80;

/// What user mode adds to an address to reach the same byte (below 1 GiB) through user pages.
pub const USER: u64 = 0x8000_0000;

/// Numbers of the general registers, as encoded.
#[allow(missing_docs, reason = "the manual's names")]
pub mod reg {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R8: usize = 8;
}

/// The registers of a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Regs {
    /// General registers, by [`reg`].
    pub gpr: [u64; 16],
    /// RIP.
    pub rip: u64,
    /// CS.
    pub cs: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// SS.
    pub ss: u64,
    /// DS.
    pub ds: u64,
    /// ES.
    pub es: u64,
    /// CR0 while the subject runs.
    pub cr0: u64,
    /// CR4 while the subject runs.
    pub cr4: u64,
}

/// What goes in and comes out of a subject, in the order that the assembly below knows.
#[repr(C)]
pub(crate) struct Raw {
    regs: Regs,
    vector: u64,
    code: u64,
    has_code: u64,
    cr2: u64,
    dr6: u64,
    frame: u64,
    handler_rflags: u64,
    handler_ss: u64,
    active: u64,
    resume: u64,
    kernel_cr0: u64,
    kernel_cr4: u64,
}

const RAW: usize = offset_of!(Cpu, raw);

global_asm!(
    ".pushsection .text.subject, \"ax\"",
    // 256 stubs, 16 bytes each.
    ".balign 16",
    ".globl subject_stubs",
    "subject_stubs:",
    ".set subject_vector, 0",
    ".rept 256",
    ".balign 16",
    "pushfq",
    ".byte 0x6a, subject_vector",
    "jmp subject_leave",
    ".set subject_vector, subject_vector + 1",
    ".endr",
    ".balign 16",

    // On the stack: vector, handler's RFLAGS, then the frame. In long mode RSP was a multiple of
    // 16 before it was pushed (SDM 6.14.2), so bit 3 tells whether there is an error code.
    "subject_leave:",
    "cld",
    "push rax",
    "push rbx",
    "sub rsp, 16",
    "sgdt [rsp + 6]",
    "mov rbx, [rsp + 8]",
    "add rsp, 16",
    "cmp qword ptr [rbx + {active}], 1",
    "jne subject_unexpected",
    "mov qword ptr [rbx + {active}], 0",
    "mov [rbx + {raw} + 8], rcx",
    "mov [rbx + {raw} + 16], rdx",
    "pop qword ptr [rbx + {raw} + 24]",
    "pop qword ptr [rbx + {raw}]",
    "mov [rbx + {raw} + 40], rbp",
    "mov [rbx + {raw} + 48], rsi",
    "mov [rbx + {raw} + 56], rdi",
    "mov [rbx + {raw} + 64], r8",
    "mov [rbx + {raw} + 72], r9",
    "mov [rbx + {raw} + 80], r10",
    "mov [rbx + {raw} + 88], r11",
    "mov [rbx + {raw} + 96], r12",
    "mov [rbx + {raw} + 104], r13",
    "mov [rbx + {raw} + 112], r14",
    "mov [rbx + {raw} + 120], r15",
    "pop rax",
    "movzx eax, al",
    "mov [rbx + {vector}], rax",
    "pop qword ptr [rbx + {handler_rflags}]",
    "mov eax, ss",
    "mov [rbx + {handler_ss}], rax",
    "mov [rbx + {frame}], rsp",
    "xor eax, eax",
    "test rsp, 8",
    "jnz 2f",
    "inc eax",
    "pop qword ptr [rbx + {code}]",
    "2:",
    "mov [rbx + {has_code}], rax",
    "pop qword ptr [rbx + {rip}]",
    "pop qword ptr [rbx + {cs}]",
    "pop qword ptr [rbx + {rflags}]",
    "pop qword ptr [rbx + {raw} + 32]",
    "pop qword ptr [rbx + {ss}]",
    "mov eax, ds",
    "mov [rbx + {ds}], rax",
    "mov eax, es",
    "mov [rbx + {es}], rax",
    "mov rax, cr2",
    "mov [rbx + {cr2}], rax",
    "mov rax, dr6",
    "mov [rbx + {dr6}], rax",
    "mov rax, cr0",
    "mov [rbx + {cr0}], rax",
    "mov rcx, [rbx + {kernel_cr0}]",
    "cmp rax, rcx",
    "je 2f",
    "mov cr0, rcx",
    "2:",
    "mov rax, cr4",
    "mov [rbx + {cr4}], rax",
    "mov rcx, [rbx + {kernel_cr4}]",
    "cmp rax, rcx",
    "je 2f",
    "mov cr4, rcx",
    "2:",
    "mov eax, {data}",
    "mov ss, eax",
    "mov rsp, [rbx + {resume}]",
    "mov ds, eax",
    "mov es, eax",
    "popfq",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",

    // An event that no subject caused: the guest is broken.
    "subject_unexpected:",
    "pop rbx",
    "pop rax",
    "mov rdi, rsp",
    "and rsp, -16",
    "call subject_broken",

    // subject_enter(rdi: &mut Cpu)
    ".globl subject_enter",
    "subject_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "pushfq",
    "mov [rdi + {resume}], rsp",
    "mov qword ptr [rdi + {active}], 1",
    "mov eax, [rdi + {ds}]",
    "mov ds, eax",
    "mov eax, [rdi + {es}]",
    "mov es, eax",
    "mov rax, cr0",
    "mov [rdi + {kernel_cr0}], rax",
    "mov rcx, [rdi + {cr0}]",
    "cmp rax, rcx",
    "je 2f",
    "mov cr0, rcx",
    "2:",
    "mov rax, cr4",
    "mov [rdi + {kernel_cr4}], rax",
    "mov rcx, [rdi + {cr4}]",
    "cmp rax, rcx",
    "je 2f",
    "mov cr4, rcx",
    "2:",
    "push [rdi + {ss}]",
    "push [rdi + {raw} + 32]",
    "push [rdi + {rflags}]",
    "push [rdi + {cs}]",
    "push [rdi + {rip}]",
    "mov rax, [rdi + {raw}]",
    "mov rcx, [rdi + {raw} + 8]",
    "mov rdx, [rdi + {raw} + 16]",
    "mov rbx, [rdi + {raw} + 24]",
    "mov rbp, [rdi + {raw} + 40]",
    "mov rsi, [rdi + {raw} + 48]",
    "mov r8, [rdi + {raw} + 64]",
    "mov r9, [rdi + {raw} + 72]",
    "mov r10, [rdi + {raw} + 80]",
    "mov r11, [rdi + {raw} + 88]",
    "mov r12, [rdi + {raw} + 96]",
    "mov r13, [rdi + {raw} + 104]",
    "mov r14, [rdi + {raw} + 112]",
    "mov r15, [rdi + {raw} + 120]",
    "mov rdi, [rdi + {raw} + 56]",
    ".globl subject_iretq",
    "subject_iretq:",
    "iretq",
    ".popsection",
    raw = const RAW,
    rip = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, rip),
    cs = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, cs),
    rflags = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, rflags),
    ss = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, ss),
    ds = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, ds),
    es = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, es),
    vector = const RAW + offset_of!(Raw, vector),
    code = const RAW + offset_of!(Raw, code),
    has_code = const RAW + offset_of!(Raw, has_code),
    cr2 = const RAW + offset_of!(Raw, cr2),
    dr6 = const RAW + offset_of!(Raw, dr6),
    frame = const RAW + offset_of!(Raw, frame),
    handler_rflags = const RAW + offset_of!(Raw, handler_rflags),
    handler_ss = const RAW + offset_of!(Raw, handler_ss),
    active = const RAW + offset_of!(Raw, active),
    resume = const RAW + offset_of!(Raw, resume),
    cr0 = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, cr0),
    cr4 = const RAW + offset_of!(Raw, regs) + offset_of!(Regs, cr4),
    kernel_cr0 = const RAW + offset_of!(Raw, kernel_cr0),
    kernel_cr4 = const RAW + offset_of!(Raw, kernel_cr4),
    data = const selector::DATA,
);

unsafe extern "C" {
    static subject_stubs: u8;
    static subject_iretq: u8;
    fn subject_enter(cpu: *mut Cpu);
}

/// Where vector `number` is handled.
pub fn stub(number: u8) -> u64 {
    &raw const subject_stubs as u64 + 16 * u64::from(number)
}

/// The IRETQ that enters subjects: where a fault of theirs is if they cannot be entered.
pub fn entering() -> u64 {
    &raw const subject_iretq as u64
}

/// Called with what the stubs pushed, when no subject runs.
#[unsafe(no_mangle)]
unsafe extern "C" fn subject_broken(stack: *const [u64; 8]) -> ! {
    // SAFETY: the stub's words and the frame lie there.
    let words = unsafe { &*stack };
    let code = stack as u64 + 16;
    let frame = if code & 8 == 0 { &words[3..] } else { &words[2..] };
    panic!(
        "unexpected vector {:#x} at {:#x}, words {:x?}, CR2 {:#x}",
        words[0] as u8,
        frame[0],
        &words[2..],
        insn::cr2()
    );
}

/// Machine code, with the places in it that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Address of its first byte.
    pub start: u64,
    /// Offset of the instruction that is looked at.
    pub probe: u64,
    /// Offset after it.
    pub after: u64,
    /// Offset of the final INT [`DONE`], which has two bytes.
    pub end: u64,
}

impl Code {
    /// Its bytes, with the final INT.
    pub fn bytes(&self) -> &'static [u8] {
        // SAFETY: `code!` put them there for ever; who writes to them uses another mapping.
        unsafe { core::slice::from_raw_parts(self.start as *const u8, self.end as usize + 2) }
    }

    /// The same code elsewhere.
    pub const fn moved(self, start: u64) -> Code {
        Code { start, ..self }
    }

    /// Copies it to `address` and tells the copy.
    pub fn copy_to(self, address: u64) -> Code {
        // SAFETY: the case chose the place.
        unsafe { (address as *mut u8).copy_from(self.bytes().as_ptr(), self.bytes().len()) };
        self.moved(address)
    }
}

/// Assembles instructions and tells where they are: `code!("ud2")`, or with what comes before and
/// after the instruction that is looked at, `code!("mov ecx, 0" => "div ecx" => "nop")`. The code
/// is position-independent by itself; INT [`DONE`] ends it. `.code32` in the first part holds for
/// the rest.
#[macro_export]
macro_rules! code {
    ($($probe:expr),+ $(,)?) => { $crate::code!(=> $($probe),+ =>) };
    ($($before:expr),* => $($probe:expr),+ $(,)?) => { $crate::code!($($before),* => $($probe),+ =>) };
    ($($before:expr),* => $($probe:expr),+ => $($rest:expr),* $(,)?) => {{
        let (start, probe, after, end): (u64, u64, u64, u64);
        // SAFETY: nothing is executed here but four address computations.
        unsafe {
            core::arch::asm!(
                ".pushsection .rodata.code, \"ax\"",
                ".balign 16",
                "771:",
                $($before,)*
                "772:",
                $($probe,)+
                "773:",
                $($rest,)*
                "774:",
                ".byte 0xcd, 0x80",
                ".code64",
                ".popsection",
                "lea {}, [rip + 771b]",
                "lea {}, [rip + 772b]",
                "lea {}, [rip + 773b]",
                "lea {}, [rip + 774b]",
                out(reg) start,
                out(reg) probe,
                out(reg) after,
                out(reg) end,
                options(nomem, nostack, preserves_flags),
            );
        }
        $crate::Code { start, probe: probe - start, after: after - start, end: end - start }
    }};
}

/// Code with the registers that it begins with.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The code, where it runs.
    pub code: Code,
    /// The registers.
    pub regs: Regs,
}

impl Subject {
    /// At privilege level 0, where the code is.
    pub fn kernel(code: Code) -> Subject {
        let mut regs = Regs {
            rip: code.start,
            cs: selector::CODE.into(),
            ss: selector::DATA.into(),
            ds: selector::DATA.into(),
            es: selector::DATA.into(),
            rflags: rflags::FIXED,
            cr0: insn::cr0(),
            cr4: insn::cr4(),
            ..Regs::default()
        };
        regs.gpr[reg::RSP] = Cpu::this().kernel.top();
        Subject { code, regs }
    }

    /// At privilege level 3 in 64-bit mode, through the user pages.
    pub fn user(code: Code) -> Subject {
        let code = code.moved(code.start + USER);
        let mut subject = Subject::kernel(code);
        subject.regs.cs = selector::USER_CODE.into();
        subject.regs.ss = selector::USER_DATA.into();
        subject.regs.ds = selector::USER_DATA.into();
        subject.regs.es = selector::USER_DATA.into();
        subject.regs.gpr[reg::RSP] = Cpu::this().user.top() + USER;
        subject
    }

    /// At privilege level 3 in compatibility mode, 32 bits.
    pub fn compat(code: Code) -> Subject {
        let mut subject = Subject::user(code);
        subject.regs.cs = selector::USER_CODE32.into();
        subject
    }

    /// With a general register set.
    pub const fn with(mut self, register: usize, value: u64) -> Subject {
        self.regs.gpr[register] = value;
        self
    }

    /// With bits of RFLAGS set.
    pub const fn flags(mut self, bits: u64) -> Subject {
        self.regs.rflags |= bits;
        self
    }

    /// With bits of CR0 set and others cleared while it runs.
    pub const fn cr0(mut self, set: u64, clear: u64) -> Subject {
        self.regs.cr0 = self.regs.cr0 & !clear | set;
        self
    }

    /// With bits of CR4 set and others cleared while it runs.
    pub const fn cr4(mut self, set: u64, clear: u64) -> Subject {
        self.regs.cr4 = self.regs.cr4 & !clear | set;
        self
    }

    /// Runs it until the first event.
    pub fn run(&self) -> Event {
        let cpu = Cpu::this();
        cpu.raw.regs = self.regs;
        // SAFETY: the way back needs the stack of this call and the tables of this vCPU only.
        unsafe { subject_enter(cpu) };
        // The assembly wrote behind the compiler's back.
        let raw = &raw const cpu.raw;
        // SAFETY: it is this vCPU's own, and whole.
        let raw = unsafe { raw.read_volatile() };
        Event {
            regs: raw.regs,
            vector: raw.vector as u8,
            code: (raw.has_code != 0).then_some(raw.code),
            cr2: raw.cr2,
            dr6: raw.dr6,
            frame: raw.frame,
            handler_rflags: raw.handler_rflags,
            handler_ss: raw.handler_ss,
            subject: self.code,
        }
    }
}

/// The exception or interrupt that ended a subject.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The subject's registers, as they were pushed or left.
    pub regs: Regs,
    /// The vector whose gate was taken.
    pub vector: u8,
    /// The error code, if one was pushed.
    pub code: Option<u64>,
    /// CR2 in the handler.
    pub cr2: u64,
    /// DR6 in the handler.
    pub dr6: u64,
    /// RSP at the handler's first instruction.
    pub frame: u64,
    /// RFLAGS at the handler's first instruction.
    pub handler_rflags: u64,
    /// SS at the handler's first instruction.
    pub handler_ss: u64,
    /// The code that ran.
    pub subject: Code,
}

impl Event {
    /// RIP, relative to the code.
    pub const fn at(&self) -> u64 {
        self.regs.rip.wrapping_sub(self.subject.start)
    }

    /// The subject that goes on where this event interrupted it.
    pub const fn go_on(&self) -> Subject {
        Subject { code: self.subject, regs: self.regs }
    }

    /// Whether the code came to its end.
    pub const fn done(&self) -> bool {
        self.vector == DONE && self.at() == self.subject.end + 2
    }
}

/// Set by `rf=any` on the command line, for processors that push no RF: QEMU's TCG.
pub(crate) static ANY_RF: AtomicBool = AtomicBool::new(false);

/// Where RIP points in an [`Expect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At the instruction that is looked at: a fault.
    Probe,
    /// After it: a trap.
    After,
    /// After the final INT.
    End,
    /// At this address.
    Address(u64),
}

/// What an event should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Vector.
    pub vector: u8,
    /// Error code.
    pub code: Option<u64>,
    /// Where RIP points.
    pub at: At,
    /// RF in the pushed RFLAGS.
    pub rf: bool,
    /// CR2, where it matters.
    pub cr2: Option<u64>,
}

impl Expect {
    /// A fault: RIP at the instruction, RF set (SDM 17.3.1.1).
    pub const fn fault(vector: u8) -> Expect {
        Expect { vector, code: None, at: At::Probe, rf: true, cr2: None }
    }

    /// A trap: RIP after the instruction, RF as it was.
    pub const fn trap(vector: u8) -> Expect {
        Expect { vector, code: None, at: At::After, rf: false, cr2: None }
    }

    /// The code comes to its end.
    pub const fn done() -> Expect {
        Expect { vector: DONE, code: None, at: At::End, rf: false, cr2: None }
    }

    /// #GP with this error code.
    pub const fn gp(code: u64) -> Expect {
        Expect::fault(vector::GP).code(code)
    }

    /// #PF with this error code and address.
    pub const fn pf(code: u64, address: u64) -> Expect {
        let mut expect = Expect::fault(vector::PF).code(code);
        expect.cr2 = Some(address);
        expect
    }

    /// With an error code.
    pub const fn code(mut self, code: u64) -> Expect {
        self.code = Some(code);
        self
    }

    /// With RIP there.
    pub const fn at(mut self, at: At) -> Expect {
        self.at = at;
        self
    }

    /// With RF so.
    pub const fn rf(mut self, rf: bool) -> Expect {
        self.rf = rf;
        self
    }

    /// Whether `event` is that.
    pub fn met_by(&self, event: &Event) -> bool {
        let code = event.subject;
        let rip = match self.at {
            At::Probe => code.start + code.probe,
            At::After => code.start + code.after,
            At::End => code.start + code.end + 2,
            At::Address(address) => address,
        };
        event.vector == self.vector
            && event.code == self.code
            && event.regs.rip == rip
            && ((event.regs.rflags & rflags::RF != 0) == self.rf || ANY_RF.load(Ordering::Relaxed))
            && self.cr2.is_none_or(|cr2| event.cr2 == cr2)
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vector {:#x} code {:x?} at {:x?} RF {}", self.vector, self.code, self.at, self.rf)?;
        self.cr2.map_or(Ok(()), |cr2| write!(f, " CR2 {cr2:#x}"))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, rip) = (self.subject, self.regs.rip);
        write!(f, "vector {:#x} code {:x?} at {rip:#x}", self.vector, self.code)?;
        match self.at() {
            at if at == code.probe => write!(f, " (probe)")?,
            at if at == code.after => write!(f, " (after)")?,
            at if at == code.end + 2 => write!(f, " (end)")?,
            at if at <= code.end => write!(f, " (offset {at:#x})")?,
            _ => {}
        }
        write!(f, " RF {}", self.regs.rflags & rflags::RF != 0)?;
        if self.vector == vector::PF { write!(f, " CR2 {:#x}", self.cr2) } else { Ok(()) }
    }
}

/// Runs `subject` on a fresh copy of FPU control state: masked exceptions, no pending error.
pub fn reset_fpu() {
    // SAFETY: the compiler assumes MXCSR and the x87 control word at their defaults, which these are.
    unsafe { asm!("fninit", "ldmxcsr [{}]", in(reg) &0x1f80u32, options(nostack)) };
}
