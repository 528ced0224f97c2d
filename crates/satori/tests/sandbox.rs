//! Hostile code inside the monitor's process: a machine runs in the sandbox, and its console, which is
//! written by a vCPU's thread, turns against the host.
//!
//! Each attack is a process of its own, which this program starts again with the attack's name; so there
//! is no test harness, whose threads would be in the way.

mod common;

use std::ffi::c_long;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use common::{pvh, satori};
use satori_bus::ByteSink;
use satori_machine::{Config, Machine, Sinks};
use satori_sandbox::{Measure, Mode, Needs};

const ATTACK: &str = "SATORI_TEST_ATTACK";
/// The status of an attack that got through.
const SUCCEEDED: i32 = 77;
/// The status of one that got an error for an answer.
const REFUSED: i32 = 78;

/// What an attack must end in.
enum End {
    /// The message that names the system call, and status 125.
    Trapped,
    /// SIGSYS's default action, without a message.
    Killed,
    /// An error, and nothing happened.
    Answered,
}

/// An attack, the system call that it is refused by or the error, how it ends, and the attack itself, which returns
/// what the kernel said.
type Attack = (&'static str, &'static str, End, fn() -> c_long);

use End::{Answered, Killed, Trapped};

/// A raw system call.
fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> c_long {
    let mut six = [0; 6];
    six[..N].copy_from_slice(&arguments);
    let [a, b, c, d, e, f] = six;
    // SAFETY: what it does is what the test is about; in the sandbox it does nothing.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

fn path(text: &'static std::ffi::CStr) -> usize {
    text.as_ptr() as usize
}

const ATTACKS: &[Attack] = &[
    ("open a file", "Permission denied", Answered, || {
        call(libc::SYS_openat, [libc::AT_FDCWD as usize, path(c"/etc/passwd"), 0])
    }),
    ("clone by a structure", "not implemented", Answered, || call(libc::SYS_clone3, [0, 0])),
    ("open a file the old way", "open", Trapped, || call(libc::SYS_open, [path(c"/etc/passwd"), 0])),
    ("make a file", "creat", Trapped, || call(libc::SYS_creat, [path(c"/tmp/got-through"), 0o600])),
    ("remove a file", "unlink", Trapped, || call(libc::SYS_unlink, [path(c"/etc/passwd")])),
    ("make a socket", "socket", Trapped, || {
        call(libc::SYS_socket, [libc::AF_INET as usize, libc::SOCK_STREAM as usize, 0])
    }),
    ("connect", "connect", Trapped, || call(libc::SYS_connect, [0, 0, 0])),
    ("map code", "mmap", Trapped, || {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        call(libc::SYS_mmap, [0, 4096, rights as usize, flags as usize, usize::MAX, 0])
    }),
    ("map a file", "mmap", Trapped, || {
        call(libc::SYS_mmap, [0, 4096, libc::PROT_READ as usize, libc::MAP_PRIVATE as usize, 0, 0])
    }),
    ("make data code", "mprotect", Trapped, || {
        call(libc::SYS_mprotect, [0x1000, 4096, libc::PROT_EXEC as usize])
    }),
    ("fork", "fork", Trapped, || call(libc::SYS_fork, [])),
    ("clone a process", "clone", Trapped, || call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0])),
    ("clone into a namespace", "clone", Trapped, || {
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_NEWUSER;
        call(libc::SYS_clone, [thread as usize, 0, 0, 0, 0])
    }),
    ("kill the parent", "kill", Trapped, || call(libc::SYS_kill, [1, 9])),
    ("signal another process", "tgkill", Trapped, || call(libc::SYS_tgkill, [1, 1, 9])),
    ("push a terminal's input", "ioctl", Trapped, || call(libc::SYS_ioctl, [0, 0x5412, path(c"x")])),
    ("allow dumping", "prctl", Trapped, || call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1])),
    ("pin without pins", "sched_setaffinity", Trapped, || call(libc::SYS_sched_setaffinity, [0, 0, 0, 0])),
    ("accept without a debugger", "accept4", Trapped, || call(libc::SYS_accept4, [0, 0, 0, 0])),
    ("send to an address", "sendto", Trapped, || {
        call(libc::SYS_sendto, [1, path(c"x"), 1, 0, path(c"address"), 16])
    }),
    ("a 32-bit number", "unknown", Trapped, || {
        call(0x4000_0000 | libc::SYS_openat, [0, path(c"/etc/passwd"), 0])
    }),
    ("execute", "", Killed, || call(libc::SYS_execve, [path(c"/bin/true"), 0, 0])),
    ("execute by file", "", Killed, || {
        call(libc::SYS_execveat, [0, path(c""), 0, 0, libc::AT_EMPTY_PATH as usize])
    }),
    ("trace the parent", "", Killed, || call(libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, 1, 0, 0])),
    ("write another's memory", "", Killed, || call(libc::SYS_process_vm_writev, [1, 0, 0, 0, 0, 0])),
    ("load a BPF program", "", Killed, || call(libc::SYS_bpf, [5, 0, 0])),
    ("submit to a ring", "", Killed, || call(libc::SYS_io_uring_setup, [8, 0])),
    ("mount", "", Killed, || call(libc::SYS_mount, [path(c"x"), path(c"/"), path(c"proc"), 0, 0])),
    ("leave the namespace", "", Killed, || call(libc::SYS_setns, [0, 0])),
];

/// A console that attacks at the guest's first byte.
struct Hostile(fn() -> c_long);

impl ByteSink for Hostile {
    fn put(&mut self, _: &[u8]) {
        let said = (self.0)();
        eprintln!("the kernel said {said}: {}", std::io::Error::last_os_error());
        std::process::exit(if said == -1 { REFUSED } else { SUCCEEDED });
    }
}

/// Runs a guest in the sandbox whose first output is the attack.
fn attack(run: fn() -> c_long) -> ! {
    let config = Config { kernel: pvh::print("now"), ..Config::default() };
    let sinks = Sinks { console: Box::new(Hostile(run)), debugcon: None, code: None };
    let machine = Machine::new(config, sinks).expect("a machine");
    let needs = Needs::default();
    let measures = satori_sandbox::enter(Mode::Auto, &needs).expect("auto refuses nothing");
    for Measure { name, outcome } in measures {
        eprintln!("{name}: {outcome:?}");
    }
    machine.run();
    std::process::exit(SUCCEEDED);
}

fn again(name: &str) -> Output {
    let program = std::env::current_exe().expect("this program");
    Command::new(program).env(ATTACK, name).output().expect("it starts again")
}

fn every_attack_is_refused() {
    for (name, refused_by, end, _) in ATTACKS {
        let output = again(name);
        let told = String::from_utf8_lossy(&output.stderr);
        match end {
            Trapped => {
                assert_eq!(output.status.code(), Some(125), "{name}: {output:?}");
                let words = format!("does not permit the system call {refused_by} (");
                assert!(told.contains(&words), "{name}: {told}");
            }
            Answered => {
                assert_eq!(output.status.code(), Some(REFUSED), "{name}: {output:?}");
                assert!(told.contains(refused_by), "{name}: {told}");
            }
            Killed => assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}: {output:?}"),
        }
        assert!(told.contains("system call filter: Ok"), "{name}: {told}");
    }
}

/// What a hostile thread may still do shows nothing of the host.
fn looking_around() {
    let output = again("look around");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// No file but the standard ones is open, no directory has anything, no capability is left.
fn look_around() -> ! {
    let secret = std::fs::File::open("/etc/passwd").expect("a file");
    let kept = std::fs::File::open("/etc/hostname").expect("a file");
    let keep = [kept.as_raw_fd()];
    let status = std::fs::File::open("/proc/self/status").expect("a file");
    let keep = [keep[0], status.as_raw_fd()];
    let needs = Needs { keep: &keep, ..Needs::default() };
    let measures = satori_sandbox::enter(Mode::Auto, &needs).expect("auto refuses nothing");
    let had = |wanted: &str| measures.iter().any(|m| m.name == wanted && m.outcome.is_ok());
    assert!(had("closed files") && had("no capabilities") && had("no new privileges"));
    // By read(2), which is permitted.
    let read = |fd: i32| {
        let mut text = vec![0_u8; 4096];
        let length = call(libc::SYS_read, [fd as usize, text.as_mut_ptr() as usize, text.len()]);
        (length, String::from_utf8_lossy(&text[..length.max(0) as usize]).into_owned())
    };
    assert_eq!(read(secret.as_raw_fd()).0, -1, "a file that nobody needs is closed");
    assert!(read(keep[0]).0 >= 0, "one that is kept is not");
    let (_, told) = read(keep[1]);
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
    // Neither handle may be closed again: their numbers are nobody's.
    std::process::exit(0);
}

/// The command line's side: all modes run a guest, and -v tells line by line.
fn modes() {
    // Prints, and ends by isa-debug-exit with 3.
    let kernel = common::file("kernel", &pvh::print_and_exit("hello", 1));
    for mode in ["off", "auto"] {
        let ended = satori(&["run", "--kernel", &kernel, "--sandbox", mode, "-v", "--cpus", "2"]);
        assert_eq!((ended.status, ended.console.as_str()), (3, "hello"), "{mode}: {ended:?}");
        assert_eq!(ended.messages.contains("sandbox: system call filter: "), mode == "auto", "{ended:?}");
    }
    // What this host permits decides; both ways are clear.
    let ended = satori(&["run", "--kernel", &kernel, "--sandbox", "require"]);
    if ended.status == 2 {
        assert!(ended.messages.contains("--sandbox require: "), "{ended:?}");
        assert!(ended.messages.contains("use --sandbox auto"), "{ended:?}");
    } else {
        assert_eq!((ended.status, ended.console.as_str()), (3, "hello"), "{ended:?}");
    }
}

fn main() {
    if let Ok(name) = std::env::var(ATTACK) {
        if name == "look around" {
            look_around();
        }
        let (.., run) = ATTACKS.iter().find(|(known, ..)| *known == name).expect("a known attack");
        attack(*run);
    }
    every_attack_is_refused();
    looking_around();
    modes();
    println!("{} attacks were refused", ATTACKS.len());
}
