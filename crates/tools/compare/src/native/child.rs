//! The child: memory at the cases' addresses, and a signal handler that executes them.
//!
//! While cases run, FS does not point to thread-local storage and nothing may be allocated or
//! panic: the handler works with raw memory and raw system calls only.

use std::arch::{asm, naked_asm};
use std::mem::{offset_of, zeroed};
use std::ptr::{self, addr_of, addr_of_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use satori_defs::fpu::xsave;
use satori_state::seg;

use super::shared::{CHILD, PARENT, Shared};
use crate::case::{Case, Ending, Fpu, Outcome};
use crate::error::Error;
use crate::host;
use crate::layout::{self, CODE, DATA, FILL, LINE, LINES, PAGE, PAGE_LINES, PAGES, Rights, page};

const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
const STACK: usize = 0x4_0000;
/// Linux's user segments (`arch/x86/include/asm/segment.h`).
const USER_CS: u64 = 0x33;
const USER32_CS: u64 = 0x23;
const USER_DS: u64 = 0x2b;

/// What the handler knows, allocated before the fork.
struct World {
    shared: *mut Shared,
    /// Another mapping of the code pages, which can be written.
    code: *mut u8,
    background: *const u8,
    /// The signal frame holds the upper halves of the YMM registers.
    avx: bool,
    /// RDFSBASE and its like; else the kernel sets the bases.
    fsgsbase: bool,
    running: bool,
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());

/// Starts a child that executes the cases of `shared`.
///
/// # Safety
/// `shared` must stay mapped for as long as the child lives.
pub(super) unsafe fn spawn(shared: *mut Shared) -> Result<libc::pid_t, Error> {
    let background = layout::background();
    let mut stack = vec![0u8; STACK];
    let mut world = World {
        shared,
        code: ptr::null_mut(),
        background: background.as_ptr(),
        avx: is_x86_feature_detected!("avx"),
        fsgsbase: host::get().fsgsbase,
        running: false,
    };
    // SAFETY: what the child uses was made before, and it leaves by `_exit` only.
    unsafe {
        match libc::fork() {
            -1 => Err(Error::system("start a child process")),
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &limit);
                if prepare(&mut world, &mut stack) {
                    WORLD.store(&mut world, Ordering::SeqCst);
                    // Enters the handler, which never comes back here.
                    asm!("ud2", options(noreturn));
                }
                libc::_exit(1)
            }
            child => Ok(child),
        }
    }
}

/// Maps the layout and sets the handler.
///
/// # Safety
/// For the child only.
unsafe fn prepare(world: &mut World, stack: &mut [u8]) -> bool {
    let protection = |rights| match rights {
        Rights::Nothing => libc::PROT_NONE,
        Rights::Read => libc::PROT_READ,
        Rights::Write => libc::PROT_READ | libc::PROT_WRITE,
        Rights::Execute => libc::PROT_READ | libc::PROT_EXEC,
    };
    let len = PAGE as usize;
    // SAFETY: new mappings, none of which replaces another, and plain C structures.
    unsafe {
        let file = libc::memfd_create(c"code".as_ptr(), 0);
        if file < 0 || libc::ftruncate(file, (CODE.len() * len) as i64) != 0 {
            return false;
        }
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let code = libc::mmap(ptr::null_mut(), CODE.len() * len, both, libc::MAP_SHARED, file, 0);
        if code == libc::MAP_FAILED {
            return false;
        }
        world.code = code.cast();
        ptr::write_bytes(world.code, FILL, CODE.len() * len);
        for (place, rights) in PAGES.iter().enumerate() {
            let at = page(place) as *mut libc::c_void;
            let fixed = libc::MAP_FIXED_NOREPLACE;
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapped = if let Some(index) = CODE.iter().position(|p| *p == place) {
                let offset = (index * len) as i64;
                libc::mmap(at, len, protection(*rights), libc::MAP_SHARED | fixed, file, offset)
            } else {
                let filled = DATA.iter().position(|p| *p == place);
                let first = if filled.is_some() { both } else { libc::PROT_NONE };
                let mapped = libc::mmap(at, len, first, private | fixed, -1, 0);
                if let (true, Some(index)) = (mapped == at, filled) {
                    ptr::copy_nonoverlapping(world.background.add(index * len), at.cast(), len);
                    libc::mprotect(at, len, protection(*rights));
                }
                mapped
            };
            if mapped != at {
                return false;
            }
        }
        let new_stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        let mut done = libc::sigaltstack(&new_stack, ptr::null_mut()) == 0;
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        for signal in SIGNALS {
            done &= libc::sigaction(signal, &action, ptr::null_mut()) == 0;
        }
        done
    }
}

/// Takes away flags that a case may have left, of which AC would hurt us.
#[unsafe(naked)]
extern "C" fn on_signal(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::ucontext_t) {
    naked_asm!("push 0x202", "popfq", "jmp {}", sym handle);
}

extern "C" fn handle(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel hands a valid context, and the world was set before the first signal.
    unsafe {
        let world = WORLD.load(Ordering::Relaxed);
        let shared = (*world).shared;
        let words = addr_of!((*shared).words);
        if (*world).running {
            let index = (*words).current.load(Ordering::Relaxed) as usize;
            let case = addr_of!((*shared).cases).cast::<Case>().add(index);
            let outcome = addr_of_mut!((*shared).outcomes).cast::<Outcome>().add(index);
            record(world, &*context, outcome);
            restore(world, &*case, outcome);
            (*words).current.store(index as u32 + 1, Ordering::Relaxed);
        }
        (*world).running = true;
        let turn = (*words).turn.as_ptr();
        // The first signal comes before the first batch; the parent may be quicker.
        while (*words).turn.load(Ordering::SeqCst) != CHILD
            || (*words).current.load(Ordering::Relaxed) >= (*words).count.load(Ordering::Relaxed)
        {
            if (*words).turn.load(Ordering::SeqCst) == CHILD {
                (*words).turn.store(PARENT, Ordering::SeqCst);
                futex(turn, libc::FUTEX_WAKE, 1);
            }
            futex(turn, libc::FUTEX_WAIT, PARENT);
        }
        let index = (*words).current.load(Ordering::Relaxed) as usize;
        let case = addr_of!((*shared).cases).cast::<Case>().add(index);
        enter(world, &*case, &mut *context);
    }
}

/// The system call without libc, which would set `errno` in thread-local storage.
///
/// # Safety
/// `word` must be valid.
unsafe fn futex(word: *mut u32, operation: i32, value: u32) {
    // SAFETY: the call changes RAX, RCX and R11 only.
    unsafe {
        asm!(
            "syscall",
            inout("rax") libc::SYS_futex => _,
            in("rdi") word,
            in("rsi") operation,
            in("rdx") u64::from(value),
            in("r10") 0,
            out("rcx") _,
            out("r11") _,
        );
    }
}

// Linux, `arch/x86/include/uapi/asm/prctl.h`.
const ARCH_SET_GS: i32 = 0x1001;
const ARCH_SET_FS: i32 = 0x1002;
const ARCH_GET_FS: i32 = 0x1003;
const ARCH_GET_GS: i32 = 0x1004;

/// Reads or sets a base where programs may not themselves, without libc as above.
///
/// # Safety
/// `value` must be an address to write to where `operation` reads a base.
unsafe fn arch_prctl(operation: i32, value: u64) {
    // SAFETY: the call changes RAX, RCX and R11, and the word that the caller vouches for.
    unsafe {
        asm!(
            "syscall",
            inout("rax") libc::SYS_arch_prctl => _,
            in("rdi") operation,
            in("rsi") value,
            out("rcx") _,
            out("r11") _,
        );
    }
}

/// Index into the kernel's registers by ours.
const REGISTERS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Takes registers and memory.
///
/// # Safety
/// `world` and `outcome` must be valid; the layout must be mapped.
unsafe fn record(world: *const World, context: &libc::ucontext_t, outcome: *mut Outcome) {
    let registers = &context.uc_mcontext.gregs;
    let of = |register: i32| registers[register as usize] as u64;
    // SAFETY: the caller's outcome; the frame's x87 state has FXSAVE64's layout.
    unsafe {
        let out = &mut *outcome;
        out.ending = Ending::Exception;
        out.vector = of(libc::REG_TRAPNO) as u32;
        out.error = of(libc::REG_ERR);
        out.cr2 = if out.vector == 14 { of(libc::REG_CR2) } else { 0 };
        for (value, register) in out.gpr.iter_mut().zip(REGISTERS) {
            *value = of(register);
        }
        out.rip = of(libc::REG_RIP);
        out.rflags = of(libc::REG_EFL);
        let packed = of(libc::REG_CSGSFS);
        out.selectors[seg::CS] = packed as u16;
        out.selectors[seg::SS] = (packed >> 48) as u16;
        asm!("mov {0:x}, es", out(reg) out.selectors[seg::ES]);
        asm!("mov {0:x}, ds", out(reg) out.selectors[seg::DS]);
        asm!("mov {0:x}, fs", out(reg) out.selectors[seg::FS]);
        asm!("mov {0:x}, gs", out(reg) out.selectors[seg::GS]);
        if (*world).fsgsbase {
            asm!("rdfsbase {}", out(reg) out.fs_base);
            asm!("rdgsbase {}", out(reg) out.gs_base);
        } else {
            arch_prctl(ARCH_GET_FS, addr_of_mut!(out.fs_base) as u64);
            arch_prctl(ARCH_GET_GS, addr_of_mut!(out.gs_base) as u64);
        }
        out.fpu = ptr::read_unaligned(context.uc_mcontext.fpregs.cast::<Fpu>());
        out.ymm_high = [0; 16];
        let area = context.uc_mcontext.fpregs.cast::<u8>();
        // What the header does not name has its initial value.
        if (*world).avx && ptr::read_unaligned(area.add(xsave::XSTATE_BV).cast::<u64>()) & xsave::AVX != 0 {
            out.ymm_high = ptr::read_unaligned(area.add(xsave::EXTENDED).cast());
        }
    }
}

/// Notes the lines that do not hold the background, and puts it back; also in the code pages.
///
/// # Safety
/// `world` and `outcome` must be valid; the layout must be mapped.
unsafe fn restore(world: *mut World, case: &Case, outcome: *mut Outcome) {
    // SAFETY: lines of writable pages, of the background and of the outcome.
    unsafe {
        let out = &mut *outcome;
        out.changed = [0; LINES / 64];
        for (group, &place) in DATA[..layout::WRITABLE].iter().enumerate() {
            for at in 0..PAGE_LINES {
                let line = group * PAGE_LINES + at;
                let memory = (page(place) as *mut [u8; LINE]).add(at);
                let background = (*world).background.cast::<[u8; LINE]>().add(line);
                if *memory != *background {
                    out.changed[group] |= 1 << at;
                    *out.lines.as_mut_ptr().add(line) = *memory;
                    *memory = *background;
                }
            }
        }
        for (pointer, _) in code_bytes(world, case) {
            *pointer = FILL;
        }
    }
}

/// Where the instruction's bytes are written, and what they are.
fn code_bytes(world: *mut World, case: &Case) -> impl Iterator<Item = (*mut u8, u8)> {
    // SAFETY: the world is valid as long as the child lives.
    let code = unsafe { (*world).code };
    case.code().iter().enumerate().filter_map(move |(i, byte)| {
        let at = case.at.wrapping_add(i as u64);
        let index = CODE.iter().position(|place| page(*place) == at & !(PAGE - 1))?;
        let offset = index.wrapping_mul(PAGE as usize).wrapping_add((at & (PAGE - 1)) as usize);
        Some((code.wrapping_add(offset), *byte))
    })
}

/// Makes the return from the handler start the case.
///
/// # Safety
/// `world` must be valid; the layout must be mapped.
unsafe fn enter(world: *mut World, case: &Case, context: &mut libc::ucontext_t) {
    // SAFETY: lines of writable pages and bytes of code pages; the frame's x87 state has
    // FXSAVE64's layout, of which the first 416 bytes are ours.
    unsafe {
        for (line, bytes) in case.patches() {
            if line < LINES {
                let group = line / PAGE_LINES;
                let place = *DATA.as_ptr().add(group);
                *(page(place) as *mut [u8; LINE]).add(line % PAGE_LINES) = *bytes;
            }
        }
        for (pointer, byte) in code_bytes(world, case) {
            *pointer = byte;
        }
        let registers = &mut context.uc_mcontext.gregs;
        for (value, register) in case.gpr.iter().zip(REGISTERS) {
            *registers.as_mut_ptr().add(register as usize) = *value as i64;
        }
        registers[libc::REG_RIP as usize] = case.at as i64;
        registers[libc::REG_EFL as usize] = (case.rflags | 0x202) as i64;
        let code64 = case.bits == 64;
        let cs = if code64 { USER_CS } else { USER32_CS };
        registers[libc::REG_CSGSFS as usize] = (cs | USER_DS << 48) as i64;
        let data = if code64 { 0 } else { USER_DS as u16 };
        asm!("mov es, {0:x}", "mov ds, {0:x}", "mov fs, {1:x}", "mov gs, {1:x}", in(reg) data, in(reg) 0u16);
        if (*world).fsgsbase {
            asm!("wrfsbase {0}", "wrgsbase {1}", in(reg) case.fs_base, in(reg) case.gs_base);
        } else {
            arch_prctl(ARCH_SET_FS, case.fs_base);
            arch_prctl(ARCH_SET_GS, case.gs_base);
        }
        let fpu = context.uc_mcontext.fpregs.cast::<u8>();
        let mask = ptr::read_unaligned(fpu.add(offset_of!(Fpu, mxcsr_mask)).cast::<u32>());
        ptr::write_unaligned(fpu.cast::<Fpu>(), case.fpu);
        ptr::write_unaligned(fpu.add(offset_of!(Fpu, mxcsr_mask)).cast::<u32>(), mask);
        if (*world).avx {
            // Behind the legacy region lies the rest of XSAVE's area, in the standard format.
            let held = fpu.add(xsave::XSTATE_BV).cast::<u64>();
            ptr::write_unaligned(held, ptr::read_unaligned(held) | xsave::X87 | xsave::SSE | xsave::AVX);
            ptr::write_unaligned(fpu.add(xsave::EXTENDED).cast(), case.ymm_high);
        }
    }
}
