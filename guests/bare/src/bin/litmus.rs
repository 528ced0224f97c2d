//! Memory order and atomicity between vCPUs: x86-TSO's litmus tests, LOCK at every alignment,
//! time-stamps, races for accessed and dirty bits, TLB shootdown.

#![no_std]
#![no_main]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use satori_guests::defs::x86::pte;
use satori_guests::paging::{self, Space};
use satori_guests::smp::{self, Barrier};
use satori_guests::{Test, guest, insn};

guest!(
    "litmus",
    store_buffering_fenced,
    store_buffering_locked,
    message_passing,
    load_buffering,
    independent_reads,
    own_stores_first,
    write_order,
    locked_additions,
    exchanges,
    compare_exchange_16,
    aligned_stores_are_whole,
    time_goes_on,
    dirty_bits,
    shootdown,
);

const ROUNDS: usize = 1000;

/// Variables in cache lines of their own.
#[repr(align(128))]
struct Line(AtomicU64);

static X: Line = Line(AtomicU64::new(0));
static Y: Line = Line(AtomicU64::new(0));
static BARRIER: Barrier = Barrier::new();
/// What each vCPU saw in the current round, two values each.
static SEEN: [[Line; 2]; 4] = [const { [const { Line(AtomicU64::new(0)) }; 2] }; 4];
/// Rounds that ended in the outcome looked for.
static HITS: AtomicUsize = AtomicUsize::new(0);

fn load(line: &Line) -> u64 {
    let value;
    // SAFETY: one aligned load; ordering is the processor's, the compiler may not move it.
    unsafe { asm!("mov {}, [{}]", out(reg) value, in(reg) line.0.as_ptr(), options(nostack)) };
    value
}

fn store(line: &Line, value: u64) {
    // SAFETY: one aligned store.
    unsafe { asm!("mov [{}], {}", in(reg) line.0.as_ptr(), in(reg) value, options(nostack)) };
}

fn exchange(line: &Line, mut value: u64) -> u64 {
    // SAFETY: XCHG with memory is locked.
    unsafe { asm!("xchg [{}], {}", in(reg) line.0.as_ptr(), inout(reg) value, options(nostack)) };
    value
}

/// Runs rounds of `work` on `cpus` vCPUs; after each, the first counts a hit if `hit` says so.
fn rounds(cpus: usize, number: usize, work: impl Fn(), hit: impl Fn() -> bool) {
    for round in 0..ROUNDS {
        if number == 0 {
            store(&X, 0);
            store(&Y, 0);
        }
        BARRIER.meet(cpus);
        // Different skews, so that every order is met.
        for _ in 0..(round * (number + 3)) % 17 {
            insn::pause();
        }
        work();
        BARRIER.meet(cpus);
        if number == 0 && hit() {
            HITS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn see(number: usize, first: u64, second: u64) {
    store(&SEEN[number][0], first);
    store(&SEEN[number][1], second);
}

fn seen(number: usize) -> (u64, u64) {
    (load(&SEEN[number][0]), load(&SEEN[number][1]))
}

/// Runs `work` on `cpus` vCPUs; the outcome it counts must never come.
fn never(t: &mut Test, cpus: usize, work: fn(usize)) {
    if smp::count() < cpus {
        t.holds("more vCPUs are needed, say cpus=4", false);
        return;
    }
    HITS.store(0, Ordering::Relaxed);
    smp::on_all(cpus, work);
    t.eq("forbidden outcomes", HITS.load(Ordering::Relaxed), 0);
}

fn store_buffering_fenced(t: &mut Test) {
    never(t, 2, |number| {
        let (own, other) = if number == 0 { (&X, &Y) } else { (&Y, &X) };
        rounds(
            2,
            number,
            || {
                store(own, 1);
                insn::mfence();
                see(number, load(other), 0);
            },
            || seen(0).0 == 0 && seen(1).0 == 0,
        );
    });
}

fn store_buffering_locked(t: &mut Test) {
    never(t, 2, |number| {
        let (own, other) = if number == 0 { (&X, &Y) } else { (&Y, &X) };
        rounds(
            2,
            number,
            || {
                exchange(own, 1);
                see(number, load(other), 0);
            },
            || seen(0).0 == 0 && seen(1).0 == 0,
        );
    });
}

fn message_passing(t: &mut Test) {
    never(t, 2, |number| {
        rounds(
            2,
            number,
            || {
                if number == 0 {
                    store(&X, 1);
                    store(&Y, 1);
                } else {
                    let flag = load(&Y);
                    see(1, flag, load(&X));
                }
            },
            || seen(1) == (1, 0),
        );
    });
}

fn load_buffering(t: &mut Test) {
    never(t, 2, |number| {
        let (from, to) = if number == 0 { (&X, &Y) } else { (&Y, &X) };
        rounds(
            2,
            number,
            || {
                let value = load(from);
                store(to, 1);
                see(number, value, 0);
            },
            || seen(0).0 == 1 && seen(1).0 == 1,
        );
    });
}

fn independent_reads(t: &mut Test) {
    never(t, 4, |number| {
        rounds(
            4,
            number,
            || match number {
                0 => store(&X, 1),
                1 => store(&Y, 1),
                2 => {
                    let x = load(&X);
                    see(2, x, load(&Y));
                }
                _ => {
                    let y = load(&Y);
                    see(3, y, load(&X));
                }
            },
            || seen(2) == (1, 0) && seen(3) == (1, 0),
        );
    });
}

fn own_stores_first(t: &mut Test) {
    never(t, 2, |number| {
        let own = if number == 0 { &X } else { &Y };
        rounds(
            2,
            number,
            || {
                store(own, 1);
                see(number, load(own), 0);
            },
            || seen(0).0 != 1 || seen(1).0 != 1,
        );
    });
}

fn write_order(t: &mut Test) {
    // 2+2W: each writes both, in opposite orders; not both first writes may be the last.
    never(t, 2, |number| {
        let (first, second) = if number == 0 { (&X, &Y) } else { (&Y, &X) };
        rounds(
            2,
            number,
            || {
                store(first, 1);
                store(second, 2);
            },
            || load(&X) == 1 && load(&Y) == 1,
        );
    });
}

/// A buffer of two pages: locked operations fall on every kind of boundary in it.
static ARENA: AtomicUsize = AtomicUsize::new(0);
/// Where in it, now.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

fn arena() -> usize {
    if ARENA.load(Ordering::Relaxed) == 0 {
        ARENA.store(paging::pages(2) as usize, Ordering::Relaxed);
    }
    ARENA.load(Ordering::Relaxed)
}

/// Offsets: aligned, unaligned, across a cache line, across the page.
const OFFSETS: [usize; 8] = [0, 1, 3, 60, 61, 63, 4092, 4095];
const ADDITIONS: u64 = 500;

fn locked_additions(t: &mut Test) {
    let cpus = smp::count().min(4);
    for offset in OFFSETS {
        let at = arena() + offset;
        OFFSET.store(at, Ordering::SeqCst);
        for (name, work) in [
            ("LOCK ADD", (|_| repeat("lock add")) as fn(usize)),
            ("LOCK INC", |_| repeat("lock inc")),
            ("LOCK XADD", |_| repeat("lock xadd")),
            ("LOCK CMPXCHG", |_| repeat("lock cmpxchg")),
            ("LOCK SUB", |_| repeat("lock sub")),
        ] {
            // SAFETY: eight bytes of the arena.
            unsafe { (at as *mut u64).write_unaligned(0) };
            smp::on_all(cpus, work);
            // SAFETY: as above.
            let sum = unsafe { (at as *const u64).read_unaligned() };
            t.eq((name, offset), sum, ADDITIONS * cpus as u64);
        }
    }
}

fn repeat(which: &str) {
    let at = OFFSET.load(Ordering::SeqCst);
    for _ in 0..ADDITIONS {
        // SAFETY: each adds 1 to the eight bytes at `at`, in the arena.
        unsafe {
            match which {
                "lock add" => asm!("lock add qword ptr [{}], 1", in(reg) at),
                "lock inc" => asm!("lock inc qword ptr [{}]", in(reg) at),
                "lock sub" => asm!("lock sub qword ptr [{}], -1", in(reg) at),
                "lock xadd" => asm!("lock xadd [{}], {}", in(reg) at, inout(reg) 1u64 => _),
                _ => asm!(
                    "mov rax, [{at}]",
                    "2:",
                    "lea {new}, [rax + 1]",
                    "lock cmpxchg [{at}], {new}",
                    "jne 2b",
                    at = in(reg) at,
                    new = out(reg) _,
                    out("rax") _,
                ),
            }
        }
    }
}

/// How often each of the values 1 to 4 was taken out.
static TAKEN: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

fn exchanges(t: &mut Test) {
    // Tokens are passed on by XCHG: none is lost, none doubled.
    let cpus = smp::count().min(4);
    for offset in OFFSETS {
        let at = arena() + offset;
        OFFSET.store(at, Ordering::SeqCst);
        // SAFETY: eight bytes of the arena.
        unsafe { (at as *mut u64).write_unaligned(0) };
        for taken in &TAKEN {
            taken.store(0, Ordering::SeqCst);
        }
        smp::on_all(cpus, |number| {
            let at = OFFSET.load(Ordering::SeqCst);
            let mut token = (number as u64 + 1) * 0x0101_0101_0101_0101;
            for _ in 0..500 {
                // SAFETY: eight bytes of the arena; XCHG is locked at every alignment.
                unsafe { asm!("xchg [{}], {}", in(reg) at, inout(reg) token) };
            }
            let whole = token & 0xff;
            let good = token == whole * 0x0101_0101_0101_0101 && whole <= 4;
            TAKEN[if good { whole as usize } else { 0 }].fetch_add(1, Ordering::SeqCst);
        });
        // SAFETY: as above.
        let left = unsafe { (at as *const u64).read_unaligned() } & 0xff;
        TAKEN[(left as usize).min(4)].fetch_add(1, Ordering::SeqCst);
        // One token for each vCPU, and the nothing that lay there.
        for (value, taken) in TAKEN.iter().enumerate().take(cpus + 1) {
            t.eq((offset, value), taken.load(Ordering::SeqCst), 1);
        }
    }
}

fn compare_exchange_16(t: &mut Test) {
    let cpus = smp::count().min(4);
    let at = arena();
    // SAFETY: sixteen bytes of the arena.
    unsafe { (at as *mut [u64; 2]).write([0, 0]) };
    smp::on_all(cpus, |_| {
        let at = arena();
        for _ in 0..ADDITIONS {
            // SAFETY: sixteen bytes of the arena. RBX is the compiler's: it is put back.
            unsafe {
                asm!(
                    "push rbx",
                    "mov rax, [rdi]",
                    "mov rdx, [rdi + 8]",
                    "2:",
                    "lea rbx, [rax + 1]",
                    "lea rcx, [rdx + 3]",
                    "lock cmpxchg16b [rdi]",
                    "jne 2b",
                    "pop rbx",
                    in("rdi") at,
                    out("rax") _,
                    out("rdx") _,
                    out("rcx") _,
                );
            }
        }
    });
    // SAFETY: as above.
    let sums = unsafe { (at as *const [u64; 2]).read_volatile() };
    let total = ADDITIONS * cpus as u64;
    t.eq("both halves together", sums, [total, 3 * total]);
}

fn aligned_stores_are_whole(t: &mut Test) {
    // Naturally aligned, and within a cache line (SDM 9.1.1): a reader sees no mixture.
    for offset in [0, 8, 16, 33, 52] {
        OFFSET.store(arena() + offset, Ordering::SeqCst);
        // SAFETY: eight bytes of the arena.
        unsafe { ((arena() + offset) as *mut u64).write_unaligned(0) };
        never(t, 2, |number| {
            let at = OFFSET.load(Ordering::SeqCst);
            BARRIER.meet(2);
            for round in 0..ROUNDS as u64 * 4 {
                if number == 0 {
                    let value = (round & 0xff) * 0x0101_0101_0101_0101;
                    // SAFETY: eight bytes of the arena.
                    unsafe { asm!("mov [{}], {}", in(reg) at, in(reg) value, options(nostack)) };
                } else {
                    let value: u64;
                    // SAFETY: as above.
                    unsafe { asm!("mov {}, [{}]", out(reg) value, in(reg) at, options(nostack)) };
                    if value != (value & 0xff) * 0x0101_0101_0101_0101 {
                        HITS.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            BARRIER.meet(2);
        });
    }
}

/// The latest time-stamp that any vCPU told the others.
static LATEST: Line = Line(AtomicU64::new(0));

fn time_goes_on(t: &mut Test) {
    // Who has seen a time-stamp reads no earlier one, if the counter is read behind the load.
    for work in [(|_| stamps(insn::rdtsc)) as fn(usize), |_| stamps(insn::rdtscp)] {
        LATEST.0.store(0, Ordering::SeqCst);
        never(t, 2, work);
    }
}

fn stamps(read: fn() -> u64) {
    for _ in 0..ROUNDS * 10 {
        let (before, now) = (load(&LATEST), read());
        if now < before {
            HITS.fetch_add(1, Ordering::Relaxed);
        }
        LATEST.0.fetch_max(now, Ordering::SeqCst);
    }
}

/// The space that the vCPUs share, and the address of the entry they fight for.
static ROOT: AtomicUsize = AtomicUsize::new(0);
static ENTRY: AtomicUsize = AtomicUsize::new(0);
const LINEAR: u64 = paging::FREE + (9 << 12);

fn share(space: &Space) {
    ROOT.store(space.root as usize, Ordering::SeqCst);
    ENTRY.store(space.entry(LINEAR, 0) as usize, Ordering::SeqCst);
}

fn dirty_bits(t: &mut Test) {
    if smp::count() < 2 {
        t.holds("more vCPUs are needed, say cpus=4", false);
        return;
    }
    let space = Space::new();
    space.map(LINEAR, paging::page(), pte::W);
    share(&space);
    // One vCPU writes through the mapping; the other takes D away with LOCK CMPXCHG and counts in
    // software bits beside it. No update of either may be lost.
    HITS.store(0, Ordering::SeqCst);
    smp::on_all(2, |number| {
        let entry = ENTRY.load(Ordering::SeqCst) as *mut u64;
        insn::set_cr3(ROOT.load(Ordering::SeqCst) as u64);
        // SAFETY: an entry of the shared space, used by atomic operations alone.
        let entry = unsafe { AtomicU64::from_ptr(entry) };
        BARRIER.meet(2);
        for round in 0..ROUNDS as u64 {
            if number == 0 {
                insn::invlpg(LINEAR);
                // SAFETY: the page is mapped.
                unsafe { (LINEAR as *mut u64).write_volatile(round) };
                BARRIER.meet(2);
                // The write is done, and nobody cleared D since both met: it must be seen.
                BARRIER.meet(2);
            } else {
                let mut old = entry.load(Ordering::SeqCst);
                // Clears A and D while the write goes on, and counts in bits 52 to 58.
                loop {
                    let new = old & !(pte::A | pte::D) & !(0x7f << 52) | (round & 0x7f) << 52;
                    match entry.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(_) => break,
                        Err(found) => old = found,
                    }
                }
                BARRIER.meet(2);
                let now = entry.load(Ordering::SeqCst);
                if now >> 52 & 0x7f != round & 0x7f {
                    HITS.fetch_add(1, Ordering::SeqCst);
                }
                // D either was seen by the exchange, or is there now.
                if (old | now) & pte::D == 0 {
                    HITS.fetch_add(1, Ordering::SeqCst);
                }
                BARRIER.meet(2);
            }
        }
        paging::leave();
    });
    t.eq("updates lost", HITS.load(Ordering::SeqCst), 0);
}

/// The page that the mapping leads to, alternately.
static PAGES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn shootdown(t: &mut Test) {
    if smp::count() < 2 {
        t.holds("more vCPUs are needed, say cpus=4", false);
        return;
    }
    let space = Space::new();
    for (number, slot) in PAGES.iter().enumerate() {
        let page = paging::page();
        // SAFETY: a fresh page.
        unsafe { (page as *mut u64).write_volatile(number as u64) };
        slot.store(page, Ordering::SeqCst);
    }
    space.map(LINEAR, PAGES[0].load(Ordering::SeqCst), pte::W);
    share(&space);
    HITS.store(0, Ordering::SeqCst);
    smp::on_all(smp::count().min(4), |number| {
        let cpus = smp::count().min(4);
        insn::set_cr3(ROOT.load(Ordering::SeqCst) as u64);
        BARRIER.meet(cpus);
        for round in 0..ROUNDS as u64 {
            let turn = round as usize % cpus;
            if turn == number {
                let page = PAGES[round as usize & 1].load(Ordering::SeqCst);
                // SAFETY: the entry of the shared space.
                unsafe {
                    (ENTRY.load(Ordering::SeqCst) as *mut u64).write_volatile(page | pte::P | pte::W);
                }
            }
            BARRIER.meet(cpus);
            insn::invlpg(LINEAR);
            // SAFETY: the page is mapped.
            if unsafe { (LINEAR as *const u64).read_volatile() } != round & 1 {
                HITS.fetch_add(1, Ordering::SeqCst);
            }
            BARRIER.meet(cpus);
        }
        paging::leave();
    });
    t.eq("stale translations", HITS.load(Ordering::SeqCst), 0);
}
