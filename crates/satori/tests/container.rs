//! A guest runs on the translator where Docker's default seccomp profile is in force.
//!
//! The profile (moby, profiles/seccomp/default.json, of 2023, for a container without more than Docker's own
//! capabilities) is a list of permitted system calls; all others fail with EPERM, and clone3 with
//! ENOSYS. Here it is that list for x86-64, without io_uring, which later versions took out. A filter is
//! installed in the child between fork and exec, and holds for satori and all its threads. The child has no
//! capability, less than a container has.

mod common;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use common::{SATORI, fetch, read_until, trials, verdict};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use syscalls::Sysno;

/// Permitted with any arguments.
const ALLOWED: &str = "accept accept4 access adjtimex alarm arch_prctl bind brk capget capset chdir chmod chown chroot \
    clock_adjtime clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup \
    dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait \
    epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate \
    fanotify_mark fchdir fchmod fchmodat fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork \
    fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_waitv futimesat get_robust_list \
    get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername \
    getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid \
    getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 \
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set \
    kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen \
    listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise membarrier memfd_create memfd_secret mincore \
    mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr mq_notify mq_open \
    mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap \
    name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 \
    pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease \
    process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat \
    readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir \
    rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr \
    sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam \
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto \
    set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid \
    setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl \
    shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink \
    symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun \
    timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname \
    unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev";

/// CLONE_NEW*, which clone may not have.
const NAMESPACES: u64 = 0x7e02_0000;
/// AF_VSOCK, which socket may not have.
const VSOCK: u64 = 40;
/// What personality may be.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

fn number(name: &str) -> i64 {
    let number: Sysno = name.parse().unwrap_or_else(|_| panic!("{name} is no system call of x86-64"));
    i64::from(number.id())
}

fn rule(at: u8, op: SeccompCmpOp, value: u64) -> SeccompRule {
    let condition = SeccompCondition::new(at, SeccompCmpArgLen::Qword, op, value).expect("a condition");
    SeccompRule::new(vec![condition]).expect("a rule")
}

/// The profile, and beside it what answers clone3.
fn profile() -> [BpfProgram; 2] {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.split_whitespace().map(|name| (number(name), Vec::new())).collect();
    rules.insert(number("clone"), vec![rule(0, SeccompCmpOp::MaskedEq(NAMESPACES), 0)]);
    rules.insert(number("socket"), vec![rule(0, SeccompCmpOp::Ne, VSOCK)]);
    let personalities = PERSONALITIES.iter().map(|value| rule(0, SeccompCmpOp::Eq, *value));
    rules.insert(number("personality"), personalities.collect());
    let compiled = |rules, unlisted, listed| {
        let arch = std::env::consts::ARCH.try_into().expect("an architecture");
        let filter = SeccompFilter::new(rules, unlisted, listed, arch).expect("a filter");
        filter.try_into().expect("a program")
    };
    // The kernel takes the strictest answer, and of two errors that of the filter installed last.
    rules.insert(number("clone3"), Vec::new());
    let clone3 = BTreeMap::from([(number("clone3"), Vec::new())]);
    [
        compiled(rules, SeccompAction::Errno(libc::EPERM.unsigned_abs()), SeccompAction::Allow),
        compiled(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS.unsigned_abs())),
    ]
}

/// Starts satori under the profile.
fn contained(arguments: &[&str]) -> Child {
    let profile = profile();
    let mut command = Command::new(SATORI);
    command.args(arguments).stdin(Stdio::null());
    let install = move || {
        // Where root runs this, its capabilities do not outlast the exec (capabilities(7)); others have none.
        for one in 0u32..64 {
            // SAFETY: the call takes numbers only.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(one), 0, 0, 0) };
        }
        for program in &profile {
            seccompiler::apply_filter(program).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        }
        // What the profile is known for has to be so, or the test shows nothing.
        // SAFETY: these calls are refused.
        let refused = |call, argument: libc::c_long| unsafe { libc::syscall(call, argument, 0, 0) } == -1;
        let namespace = libc::c_long::from(libc::CLONE_NEWUSER);
        let all = refused(libc::SYS_userfaultfd, 0)
            && refused(libc::SYS_unshare, namespace)
            && refused(libc::SYS_bpf, 0)
            && refused(libc::SYS_perf_event_open, 0)
            && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
        if all { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOTSUP)) }
    };
    // SAFETY: the closure makes system calls and nothing else; it allocates only where it fails.
    unsafe { command.pre_exec(install) };
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("satori starts under the profile")
}

/// What /proc says of the process and its mappings.
fn looked_at(child: &Child) -> (String, Vec<String>) {
    let of =
        |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).expect("its process");
    (of("status"), of("maps").lines().map(str::to_string).collect())
}

#[test]
fn debian_boots_on_the_translator_under_dockers_profile() {
    let kernel = fetch(&["kernel", "6.1"]);
    let machine = ["run", "--kernel", &kernel, "--initrd", trials(), "--cpus", "2", "--engine", "translator"];
    let mut child = contained(&[&machine[..], &["--timeout", "5m", "-v"]].concat());
    let mut console = child.stdout.take().expect("a pipe");
    let mut seen = read_until(&mut console, "ok ");
    let (status, mappings) = looked_at(&child);
    console.read_to_string(&mut seen).expect("text");
    let ended = child.wait_with_output().expect("it ends");
    let messages = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{seen}\n{messages}");
    if let Err(wrong) = verdict(&seen) {
        panic!("{wrong}\n{messages}");
    }
    assert!(messages.contains("engine: translator"), "{messages}");
    // The sandbox does without what it may not have, and keeps its own filter.
    assert!(messages.contains("NOT had"), "{messages}");
    assert!(messages.contains("sandbox: system call filter: an allow-list"), "{messages}");
    // It was unprivileged, and under filters.
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    // Code memory, of which there is some, is never writable where it is executable.
    let rights = |line: &&String| line.split_whitespace().nth(1).map(str::to_string);
    assert!(mappings.iter().all(|line| !rights(&line).is_some_and(|r| r.contains("wx"))), "{mappings:#?}");
    assert!(mappings.iter().any(|line| rights(&line).is_some_and(|r| r == "r-xs")), "{mappings:#?}");
}
