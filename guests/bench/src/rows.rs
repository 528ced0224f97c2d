//! The rows' operations. What each is stands in the catalogue.

mod clock;
mod code;
mod disk;
mod float;
mod folder;
mod integer;
mod ipi;
mod kernel;
mod latency;
mod memory;
mod net;
pub mod processes;
mod sha;
mod threads;

use crate::measure::Meter;

/// What rows need that are not this program's own.
#[derive(Debug, Default)]
pub struct Places {
    /// A busybox.
    pub busybox: Option<String>,
    /// The disk.
    pub disk: Option<String>,
    /// The disk whose image is qcow2.
    pub qcow2: Option<String>,
    /// The folder of files.
    pub folder: Option<String>,
    /// Address and port of who answers on the host.
    pub host: Option<String>,
}

/// Measures the row of this name; `false` if there is none.
pub fn measure(name: &str, m: &mut Meter, places: &Places) -> bool {
    match name {
        "mix" => integer::mix(m),
        "sha256" => integer::sha256(m),
        "qsort" => integer::qsort(m),
        "fib" => integer::fib(m),
        "indirect" => integer::indirect(m),
        "sieve" => integer::sieve(m),
        "crc32" => integer::crc32(m),
        "hashmap" => integer::hashmap(m),
        "sse-scalar" => float::sse_scalar(m),
        "sse-packed" => float::sse_packed(m),
        "avx2" => float::avx2(m),
        "x87" => float::x87(m),
        "copy" => memory::copy(m),
        "rep-movs" => memory::rep_movs(m),
        "rep-stos" => memory::rep_stos(m),
        "chase-16k" => memory::chase_16k(m),
        "chase-32m" => memory::chase_32m(m),
        "stores" => memory::stores(m),
        "getppid" => kernel::getppid(m),
        "stat" => kernel::stat(m),
        "pread" => kernel::pread(m),
        "pipe" => processes::pipe(m),
        "futex" => processes::futex(m),
        "fork" => processes::fork(m),
        "exec" => processes::exec(m),
        "fault" => kernel::fault(m),
        "mmap" => kernel::mmap(m),
        "signal" => kernel::signal(m),
        "segv" => kernel::segv(m),
        "shell" => processes::shell(m, places.busybox.as_deref()),
        "patch" => code::patch(m),
        "fresh" => code::fresh(m),
        "clock" | "clock-2" => clock::clock(m),
        "cpuid" => clock::cpuid(m),
        "thread" | "thread-2" => threads::thread(m),
        "shootdown" | "shootdown-2" => threads::shootdown(m),
        "parallel-2" => threads::parallel(m),
        "interrupt" => latency::interrupt(m),
        "sleep" => latency::sleep(m),
        "wake-2" => latency::wake(m),
        "disk-read" => disk::read(m, places.disk.as_deref()),
        "disk-read-32" => disk::read_deep(m, places.disk.as_deref()),
        "disk-write" => disk::write(m, places.disk.as_deref(), false),
        "disk-sync" => disk::write(m, places.disk.as_deref(), true),
        "disk-1m-read" => disk::read_large(m, places.disk.as_deref()),
        "disk-1m-writ" => disk::write_large(m, places.disk.as_deref()),
        "qcow2-read" => disk::read(m, places.qcow2.as_deref()),
        "qcow2-write" => disk::write(m, places.qcow2.as_deref(), false),
        "qcow2-sync" => disk::write(m, places.qcow2.as_deref(), true),
        "qcow2-1m" => disk::read_large(m, places.qcow2.as_deref()),
        "folder-walk" => folder::walk(m, places.folder.as_deref()),
        "folder-stat" => folder::stat(m, places.folder.as_deref()),
        "folder-small" => folder::read(m, places.folder.as_deref()),
        "folder-make" => folder::make(m, places.folder.as_deref()),
        "folder-large" => folder::read_large(m, places.folder.as_deref()),
        "net-ping" => net::ping(m, places.host.as_deref()),
        "net-connect" => net::connection(m, places.host.as_deref()),
        "net-send" => net::send(m, places.host.as_deref()),
        "net-receive" => net::receive(m, places.host.as_deref()),
        "net-send-2" => net::two(m, places.host.as_deref(), b's'),
        "net-recv-2" => net::two(m, places.host.as_deref(), b'r'),
        // Of `satori bench talks` only.
        "ipi-one" => ipi::ipi(m, ipi::Targets::One),
        "ipi-some" => ipi::ipi(m, ipi::Targets::Some),
        "ipi-all" => ipi::ipi(m, ipi::Targets::All),
        _ => return false,
    }
    true
}

/// Ends the row's process when the system refuses what the row needs.
fn fail(what: &str, error: &std::io::Error) -> ! {
    eprintln!("satori-bench: {what}: {error}");
    crate::sys::exit(1)
}

/// A generator that gives the same numbers everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Bytes without a pattern, the same everywhere.
fn noise(length: usize) -> Vec<u8> {
    let mut random = Random(1);
    (0..length).map(|_| random.next() as u8).collect()
}
