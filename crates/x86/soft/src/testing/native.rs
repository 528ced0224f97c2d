//! Runs one instruction on the real processor with registers, flags and memory of our choice.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use satori_defs::x86::{rflags, vector};
use satori_lock::Held;

/// Registers that an instruction finds and leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// RAX to R15 in encoding order.
    pub gpr: [u64; 16],
    /// RFLAGS; only the status flags and DF may be set.
    pub rflags: u64,
}

#[repr(C)]
struct Data {
    registers: Registers,
    host_rsp: u64,
}

const PAGE: usize = 4096;
const RSP: u8 = 4;
const RFLAGS_AT: usize = 128;
const HOST_RSP_AT: usize = 136;

/// Signals move process-wide state, so one instruction runs at a time.
static ALONE: Mutex<()> = Mutex::new(());
static INSTRUCTION: AtomicU64 = AtomicU64::new(0);
static BEHIND: AtomicU64 = AtomicU64::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// The real processor.
pub struct Native {
    code: *mut u8,
    scratch: (*mut u8, usize),
    old_actions: Vec<libc::sigaction>,
    old_stack: libc::stack_t,
    _stack: Vec<u8>,
    _alone: MutexGuard<'static, ()>,
}

extern "C" fn on_signal(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid context to a SA_SIGINFO handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = &mut registers[libc::REG_RIP as usize];
    if *rip as u64 == INSTRUCTION.load(Ordering::SeqCst) {
        SIGNAL.store(signal, Ordering::SeqCst);
        *rip = BEHIND.load(Ordering::SeqCst) as i64;
        return;
    }
    // Not ours: let it come again without a handler.
    // SAFETY: sets a default disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn map(at: u64, len: usize) -> *mut u8 {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: a new anonymous mapping, which replaces nothing.
    let mapped = unsafe {
        libc::mmap(
            at as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed,
            -1,
            0,
        )
    };
    assert_ne!(mapped, libc::MAP_FAILED, "cannot map {len} bytes at {at:#x}");
    mapped.cast()
}

impl Native {
    /// Prepares to run instructions that may use `len` bytes of memory at `scratch`.
    pub fn new(scratch: u64, len: usize) -> Self {
        let alone = ALONE.lock().held();
        let mut stack = vec![0u8; 0x2_0000];
        let new_stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        let mut old_actions = Vec::new();
        // SAFETY: plain C structures, for which zeroes are values; the stack lives as long as
        // the handlers, and the handler has the signature that SA_SIGINFO wants.
        let old_stack = unsafe {
            let mut old_stack = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&new_stack, &mut old_stack), 0);
            for signal in SIGNALS {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut old = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(signal, &action, &mut old), 0);
                old_actions.push(old);
            }
            old_stack
        };
        Native {
            code: map(0, 2 * PAGE),
            scratch: (map(scratch, len), len),
            old_actions,
            old_stack,
            _stack: stack,
            _alone: alone,
        }
    }

    /// The memory that instructions may use.
    pub fn scratch(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours alone while no instruction runs.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.0, self.scratch.1) }
    }

    /// Runs one instruction between others that must not fault and leave the general registers
    /// alone: they load and save state that is not in [`Registers`]. Tells the vector of its fault.
    pub fn run_between(
        &mut self,
        before: &[u8],
        instruction: &[u8],
        after: &[u8],
        registers: &mut Registers,
    ) -> Result<(), u8> {
        let (code, start) = stub(&[before, instruction, after].concat());
        let start = start + before.len();
        let data = self.code.wrapping_add(PAGE).cast::<Data>();
        // SAFETY: both pages are ours; the stub fits one page, keeps the registers that a C
        // function must keep, and `instruction` touches nothing else but the scratch memory.
        unsafe {
            ptr::copy_nonoverlapping(code.as_ptr(), self.code, code.len());
            assert_eq!(libc::mprotect(self.code.cast(), PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
            let at = self.code as u64 + start as u64;
            SIGNAL.store(0, Ordering::SeqCst);
            BEHIND.store(at + instruction.len() as u64, Ordering::SeqCst);
            INSTRUCTION.store(at, Ordering::SeqCst);
            (*data).registers = *registers;
            let run: extern "C" fn() = std::mem::transmute(self.code);
            run();
            *registers = (*data).registers;
            INSTRUCTION.store(0, Ordering::SeqCst);
            assert_eq!(libc::mprotect(self.code.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
        }
        registers.rflags &= rflags::STATUS | rflags::DF;
        match SIGNAL.load(Ordering::SeqCst) {
            0 => Ok(()),
            libc::SIGFPE => Err(vector::DE),
            libc::SIGILL => Err(vector::UD),
            _ => Err(vector::GP),
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: restores what was there and unmaps what is ours.
        unsafe {
            for (signal, old) in SIGNALS.iter().zip(&self.old_actions) {
                libc::sigaction(*signal, old, ptr::null_mut());
            }
            libc::sigaltstack(&self.old_stack, ptr::null_mut());
            libc::munmap(self.code.cast(), 2 * PAGE);
            libc::munmap(self.scratch.0.cast(), self.scratch.1);
        }
    }
}

/// The code around an instruction, and where in it the instruction is.
fn stub(instruction: &[u8]) -> (Vec<u8>, usize) {
    let mut code = vec![0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57];
    // `opcode` with a register and the data page's byte `at`, relative to RIP.
    let access = |code: &mut Vec<u8>, opcode: u8, register: u8, at: usize| {
        code.extend([0x48 | register >> 3 << 2, opcode, (register & 7) << 3 | 5]);
        let displacement = (PAGE + at - code.len() - 4) as u32;
        code.extend(displacement.to_le_bytes());
    };
    const LOAD: u8 = 0x8b;
    const STORE: u8 = 0x89;
    const ADDRESS: u8 = 0x8d;
    access(&mut code, STORE, RSP, HOST_RSP_AT);
    access(&mut code, ADDRESS, RSP, RFLAGS_AT);
    code.push(0x9d); // POPFQ
    for register in 0..16 {
        access(&mut code, LOAD, register, 8 * usize::from(register));
    }
    let start = code.len();
    code.extend(instruction);
    for register in 0..16 {
        access(&mut code, STORE, register, 8 * usize::from(register));
    }
    access(&mut code, ADDRESS, RSP, RFLAGS_AT + 8);
    code.push(0x9c); // PUSHFQ
    access(&mut code, LOAD, RSP, HOST_RSP_AT);
    // CLD, and the caller's registers.
    code.extend([0xfc, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    (code, start)
}
