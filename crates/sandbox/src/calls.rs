//! The system calls that running a guest needs, and those that only an attacker would try.

use libc::c_long;

/// When a listed system call is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// With any arguments.
    Always,
    /// If the argument of this number (from 0), under the mask, has the value.
    Masked(u8, u64, u64),
    /// As `Masked`, for two arguments at once.
    Both((u8, u64, u64), (u8, u64, u64)),
    /// If the argument of this number is one of these.
    OneOf(u8, &'static [u64]),
    /// If the first argument is this process.
    Own,
    /// Only while a socket is listened on.
    Listening,
    /// Only if threads are pinned to processors, and only for the thread that calls.
    Pinned,
    /// Only if the guest's memory is placed on nodes of the host's.
    Placed,
}

/// A system call, when it is permitted, and why it is needed.
pub type Row = (c_long, When, &'static str);

const EXEC: u64 = libc::PROT_EXEC as u64;
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
/// Flags of clone that make a thread, and those that would make something else of it.
const THREAD: u64 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
const NOT_THREAD: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PTRACE
    | libc::CLONE_VFORK) as u64;

use When::{Always, Both, Listening, Masked, OneOf, Own, Pinned, Placed};

/// What is permitted.
pub const ALLOWED: &[Row] = &[
    (libc::SYS_read, Always, "what is typed; the signals' pipes"),
    (libc::SYS_write, Always, "the console, messages, the report"),
    (libc::SYS_writev, Always, "messages"),
    (libc::SYS_ftruncate, Always, "the report replaces a former one"),
    (libc::SYS_lseek, Always, "holes in a crash dump"),
    (libc::SYS_pread64, Always, "a disk's image"),
    (libc::SYS_preadv2, Always, "a disk's image, into guest memory, or what the host has in its own"),
    (libc::SYS_pwrite64, Always, "a disk's image"),
    (libc::SYS_pwritev2, Always, "a disk's image, from guest memory"),
    (libc::SYS_fdatasync, Always, "a flush of a disk"),
    (libc::SYS_fallocate, Always, "a disk's sectors that are given up or zeroed"),
    (libc::SYS_close, Always, "files and pipes that are done with"),
    (libc::SYS_fcntl, OneOf(1, HANDLES), "checks before close; a second handle of a connection"),
    (libc::SYS_poll, Always, "waits for what is typed and for room in the console"),
    (libc::SYS_ppoll, Always, "as poll"),
    (libc::SYS_epoll_wait, Always, "a shared folder's thread waits for its server"),
    (libc::SYS_epoll_pwait, Always, "as epoll_wait"),
    (libc::SYS_epoll_ctl, Always, "it waits for nothing while a vCPU does"),
    (libc::SYS_recvfrom, Always, "the signals' pipes are socket pairs"),
    (libc::SYS_sendto, Masked(4, u64::MAX, 0), "as recvfrom; to nobody but who is connected"),
    (
        libc::SYS_ioctl,
        OneOf(1, TERMINAL),
        "modes of the terminal; what a guest's card can do itself, told to its tap",
    ),
    (
        libc::SYS_mmap,
        Both((2, EXEC, 0), (3, ANONYMOUS, ANONYMOUS)),
        "memory: the guest's, stacks; never code or files",
    ),
    (libc::SYS_mprotect, Masked(2, EXEC, 0), "guard pages; never code"),
    (libc::SYS_munmap, Always, "memory given back"),
    (libc::SYS_mremap, Always, "large vectors that grow"),
    (libc::SYS_madvise, Always, "memory given back: stacks of threads that ended, and the allocator"),
    (libc::SYS_brk, Always, "the heap"),
    (libc::SYS_futex, Always, "locks and waiting"),
    (libc::SYS_membarrier, Always, "the decoder's barrier against writers of code"),
    (libc::SYS_sched_yield, Always, "a vCPU that spins lets others run"),
    (libc::SYS_sched_getaffinity, Always, "the allocator asks for the number of processors"),
    (libc::SYS_sched_setaffinity, Pinned, "a thread pins itself, at its start"),
    (
        libc::SYS_mbind,
        Placed,
        "memory of a guest that begins anew goes to the host's nodes that were asked for",
    ),
    (libc::SYS_getcpu, Always, "the C library's fallback"),
    (libc::SYS_clock_gettime, Always, "time, where the vDSO does not answer"),
    (libc::SYS_gettimeofday, Always, "as clock_gettime"),
    (libc::SYS_clock_nanosleep, Always, "sleeping"),
    (libc::SYS_nanosleep, Always, "sleeping"),
    (libc::SYS_restart_syscall, Always, "sleeping, after SIGSTOP and SIGCONT"),
    (libc::SYS_getrandom, Always, "RDRAND and RDSEED; keys of hash tables"),
    (libc::SYS_clone, Masked(0, THREAD | NOT_THREAD, THREAD), "threads of vCPUs; no processes"),
    // These two pass here, to be answered as `ANSWERED` says.
    (libc::SYS_clone3, Always, "its flags are in memory, where no filter sees them"),
    (libc::SYS_openat, Always, "the allocator looks at /proc/sys/vm/overcommit_memory, and can do without"),
    (libc::SYS_set_robust_list, Always, "a thread's start"),
    (libc::SYS_rseq, Always, "a thread's start"),
    (libc::SYS_sigaltstack, Always, "a thread's start and end"),
    (
        libc::SYS_prctl,
        OneOf(0, &[libc::PR_SET_NAME as u64, PR_GET_AUXV]),
        "names of threads; where rustix finds the vDSO, the first time that it asks a clock",
    ),
    (libc::SYS_gettid, Always, "a thread's start; raise"),
    (libc::SYS_getpid, Always, "raise"),
    (libc::SYS_tgkill, Own, "raise: SIGSTOP of Ctrl-Z, SIGABRT"),
    (libc::SYS_rt_sigprocmask, Always, "a thread's start; raise"),
    (
        libc::SYS_rt_sigaction,
        OneOf(0, LIBRARY_SIGNALS),
        "the C library's own signals, at the first thread's start",
    ),
    (libc::SYS_rt_sigreturn, Always, "the end of a signal handler"),
    (
        libc::SYS_arch_prctl,
        OneOf(0, &[ARCH_SET_GS]),
        "the translator's register, where the processor's own instruction for it is not permitted",
    ),
    (libc::SYS_exit, Always, "a thread's end"),
    (libc::SYS_exit_group, Always, "the process's end"),
    (libc::SYS_accept4, Listening, "a debugger or a watcher connects"),
    (
        libc::SYS_setsockopt,
        Listening,
        "TCP_NODELAY for the debugger; how long one who does not read is waited for",
    ),
    (libc::SYS_getpeername, Listening, "who the debugger is"),
    (libc::SYS_shutdown, Listening, "the debugger leaves; the machine ends"),
];

/// Of linux/prctl.h: the process's own auxiliary vector.
const PR_GET_AUXV: u64 = 0x4155_5856;
/// Of asm/prctl.h.
const ARCH_SET_GS: u64 = 0x1001;

const HANDLES: &[u64] = &[libc::F_GETFD as u64, libc::F_DUPFD_CLOEXEC as u64];

/// Requests of terminals, the one that std makes a socket non-blocking with, and one of taps.
const TERMINAL: &[u64] = &[
    libc::TCGETS,
    libc::TCSETS,
    libc::TCSETSW,
    libc::TCSETSF,
    // TCGETS2, TCSETS2, TCSETSW2, TCSETSF2, which rustix uses.
    0x802c_542a,
    0x402c_542b,
    0x402c_542c,
    0x402c_542d,
    libc::TIOCGWINSZ,
    libc::FIONBIO,
    // TUNSETOFFLOAD.
    0x4004_54d0,
];

/// SIGCANCEL and SIGSETXID of the GNU C library, which sigaction(2) does not name.
const LIBRARY_SIGNALS: &[u64] = &[32, 33];

/// Not done, but answered with an error that the C library can bear: it takes clone instead.
pub const ANSWERED: &[(c_long, i32)] = &[(libc::SYS_clone3, libc::ENOSYS), (libc::SYS_openat, libc::EACCES)];

/// Only an attacker would try these: the process is killed at once.
pub const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_modify_ldt,
    libc::SYS_open_by_handle_at,
];
