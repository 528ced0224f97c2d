//! The rows: one table for the program that measures them and for the one that compares them.

/// What a row belongs to; bounds are set for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Integer computation, calls and jumps.
    Integer,
    /// Floating point: SSE, AVX and x87.
    Float,
    /// Copies, REP strings, pointer chases and stores.
    Memory,
    /// What the guest's kernel does for a program.
    Kernel,
    /// Code that is written while it runs.
    Code,
    /// Reading clocks and CPUID.
    Clock,
    /// Threads on one and on several processors.
    Threads,
    /// From a request to the handler.
    Latency,
    /// A disk.
    #[allow(dead_code, reason = "the program takes its rows by name")]
    Disk,
    /// A folder of the host's.
    #[allow(dead_code, reason = "the program takes its rows by name")]
    Folder,
    /// The way to the host through a network card.
    #[allow(dead_code, reason = "the program takes its rows by name")]
    Net,
    /// Debian's packages as they come.
    #[allow(dead_code, reason = "its rows are run by a script, crates/tools/bench/src/programs")]
    Programs,
    /// What others measure devices with, as Debian has it.
    #[allow(dead_code, reason = "its rows are run by a script, crates/tools/bench/src/programs")]
    Tools,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name on command lines and in results.
    pub name: &'static str,
    /// What it belongs to.
    pub group: Group,
    /// Whether it is measured on several processors; all others are on one.
    pub several: bool,
    /// What one operation is.
    pub operation: &'static str,
}

const fn row(group: Group, name: &'static str, operation: &'static str) -> Row {
    Row { name, group, several: false, operation }
}

const fn several(group: Group, name: &'static str, operation: &'static str) -> Row {
    Row { name, group, several: true, operation }
}

/// All rows, in the order in which they run.
pub const ROWS: &[Row] = &[
    row(Group::Integer, "mix", "1,000 rounds of multiply, add, rotate, compare"),
    row(Group::Integer, "sha256", "SHA-256 of 1 KiB, without the SHA instructions"),
    row(Group::Integer, "qsort", "sort of 512 numbers with a comparator behind a pointer"),
    row(Group::Integer, "fib", "fib(16) by recursion: 3,193 calls and returns"),
    row(Group::Integer, "indirect", "1,000 calls through a table of 16 functions"),
    row(Group::Integer, "sieve", "the primes below 16,384"),
    row(Group::Integer, "crc32", "CRC-32 of 4 KiB by table"),
    row(Group::Integer, "hashmap", "256 insertions into and look-ups in a hash map"),
    row(Group::Float, "sse-scalar", "24x24 matrix product, double precision, one at a time"),
    row(Group::Float, "sse-packed", "32x32 matrix product, single precision, four at a time"),
    row(Group::Float, "avx2", "32x32 matrix product, single precision, AVX2 and FMA, eight at a time"),
    row(Group::Float, "x87", "200 rounds of x87 multiply, add, divide, square root"),
    row(Group::Memory, "copy", "16 KiB by a loop of eight-byte moves"),
    row(Group::Memory, "rep-movs", "16 KiB by REP MOVSB"),
    row(Group::Memory, "rep-stos", "16 KiB by REP STOSQ"),
    row(Group::Memory, "chase-16k", "1,000 dependent loads within 16 KiB"),
    row(Group::Memory, "chase-32m", "1,000 dependent loads within 32 MiB"),
    row(Group::Memory, "stores", "4,096 scattered stores within 32 KiB"),
    row(Group::Kernel, "getppid", "one getppid"),
    row(Group::Kernel, "stat", "one stat of a file on tmpfs"),
    row(Group::Kernel, "pread", "one pread of 4 KiB from a file on tmpfs"),
    row(Group::Kernel, "pipe", "one switch between two processes that wait at pipes"),
    row(Group::Kernel, "futex", "one switch between two threads that wait at futexes"),
    row(Group::Kernel, "fork", "fork, exit of the child, wait"),
    row(Group::Kernel, "exec", "fork, execve of this static program, its exit, wait"),
    row(Group::Kernel, "fault", "first write to one page of anonymous memory"),
    row(Group::Kernel, "mmap", "mmap and munmap of 64 KiB"),
    row(Group::Kernel, "signal", "one signal to oneself and its handler"),
    row(Group::Kernel, "segv", "one SIGSEGV and its handler"),
    row(Group::Kernel, "shell", "a busybox shell script: 300 rounds of a loop, 4 subshells, 2 programs"),
    row(Group::Code, "patch", "change an immediate operand and call the function"),
    row(Group::Code, "fresh", "write a function of 16 instructions to memory and call it"),
    row(Group::Clock, "clock", "one clock_gettime(CLOCK_MONOTONIC)"),
    row(Group::Clock, "cpuid", "one CPUID"),
    row(Group::Threads, "thread", "creation and end of one thread"),
    row(Group::Threads, "shootdown", "mmap, read and munmap of 8 pages, one of 64 threads that all do so"),
    row(
        Group::Latency,
        "interrupt",
        "from a timer's expiry to the signal handler, while the processor computes",
    ),
    row(Group::Latency, "sleep", "from a timer's expiry to the sleeping thread, while the processor is idle"),
    several(Group::Clock, "clock-2", "one clock_gettime(CLOCK_MONOTONIC)"),
    several(Group::Threads, "parallel-2", "100 rounds of SHA-256 on each of two threads at once"),
    several(Group::Threads, "thread-2", "creation and end of one thread"),
    several(
        Group::Threads,
        "shootdown-2",
        "mmap, read and munmap of 8 pages, one of 64 threads that all do so",
    ),
    several(Group::Latency, "wake-2", "to wake an idle thread on another processor, and to see it run"),
];

/// Rows of devices, in the order in which they run: their guests have a disk, a folder of the host's and a network card.
#[allow(dead_code, reason = "the program takes its rows by name")]
pub const DEVICES: &[Row] = &[
    row(Group::Disk, "disk-read", "4 KiB read at a random place, past the guest's page cache"),
    row(Group::Disk, "disk-read-32", "the same, one of 32 that are under way"),
    row(Group::Disk, "disk-write", "4 KiB written at a random place"),
    row(Group::Disk, "disk-sync", "4 KiB written at a random place, and fdatasync"),
    row(Group::Disk, "disk-1m-read", "1 MiB read behind the last one"),
    row(Group::Disk, "disk-1m-writ", "1 MiB written behind the last one"),
    row(
        Group::Disk,
        "qcow2-read",
        "4 KiB read at a random place of a qcow2 image (natively of a raw one, as below)",
    ),
    row(Group::Disk, "qcow2-write", "4 KiB written at a random place of it"),
    row(Group::Disk, "qcow2-sync", "the same, and fdatasync"),
    row(Group::Disk, "qcow2-1m", "1 MiB read of it behind the last one"),
    row(
        Group::Folder,
        "folder-walk",
        "one of 5,000 files found in its folder and looked at by lstat, as git status does",
    ),
    row(Group::Folder, "folder-stat", "stat of one of 5,000 files that the guest does not know yet"),
    row(Group::Folder, "folder-small", "one of 5,000 files of 1 KiB opened, read and closed"),
    row(Group::Folder, "folder-make", "a file of 1 KiB made, written, closed and removed"),
    row(Group::Folder, "folder-large", "64 KiB of a file of 16 MiB"),
    row(Group::Net, "net-ping", "one byte by TCP to the host and back"),
    row(Group::Net, "net-connect", "one TCP connection to the host from beginning to end"),
    row(Group::Net, "net-send", "1 MiB by TCP to the host"),
    row(Group::Net, "net-receive", "1 MiB by TCP from the host"),
    several(Group::Net, "net-send-2", "2 MiB by TCP to the host, on two connections of two threads at once"),
    several(
        Group::Net,
        "net-recv-2",
        "2 MiB by TCP from the host, on two connections of two threads at once",
    ),
];

/// Where a guest that measures them finds its kernel's modules, in order by name.
pub const MODULES: &str = "/modules";
/// The tag of its folder.
pub const TAG: &str = "bench";
/// Where that is mounted.
pub const FOLDER: &str = "/folder";
/// Its card's address.
pub const ADDRESS: [u8; 4] = [10, 0, 2, 15];

/// What stands before each line of results on the console.
pub const MARK: &str = "satori-bench: ";
