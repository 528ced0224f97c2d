//! Four-level paging: every combination of rights, at each level and page size, against a model of
//! SDM 4.5 to 4.8; invalidation.

#![no_std]
#![no_main]

use satori_guests::defs::x86::{cr0, cr4, pf, pte, rflags, vector};
use satori_guests::paging::{self, Space};
use satori_guests::subject::{At, DONE, USER, reg};
use satori_guests::{Code, Expect, Subject, Test, code, guest, insn};

guest!(
    "paging",
    small_pages,
    large_pages,
    huge_pages,
    without_nx,
    reserved,
    crossing,
    locked_and_implicit,
    accessed_and_dirty,
    invalidation,
);

/// What an access is, and what it is made under.
#[derive(Clone, Copy, Debug)]
struct Access {
    kind: Kind,
    user: bool,
    wp: bool,
    smep: bool,
    smap: bool,
    ac: bool,
    nxe: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Fetch,
}

/// The error code of `access` through `entries`, from the top to the leaf, or nothing if it is
/// allowed. `reserved` tells for each entry whether it has a reserved bit set.
fn model(entries: &[u64], reserved: &[bool], access: Access) -> Option<u32> {
    let mut code = 0;
    if access.kind == Kind::Write {
        code |= pf::W;
    }
    if access.user {
        code |= pf::U;
    }
    if access.kind == Kind::Fetch && (access.nxe || access.smep) {
        code |= pf::I;
    }
    for (entry, reserved) in entries.iter().zip(reserved) {
        if entry & pte::P == 0 {
            return Some(code);
        }
        if *reserved {
            return Some(code | pf::P | pf::RSVD);
        }
    }
    let every = |bit| entries.iter().all(|entry| entry & bit != 0);
    let user_page = every(pte::U);
    let executable = !access.nxe || entries.iter().all(|entry| entry & pte::NX == 0);
    let allowed = match (access.kind, access.user) {
        (Kind::Read, true) => user_page,
        (Kind::Write, true) => user_page && every(pte::W),
        (Kind::Fetch, true) => user_page && executable,
        (Kind::Read, false) => !(user_page && access.smap && !access.ac),
        (Kind::Write, false) => !(user_page && access.smap && !access.ac) && (every(pte::W) || !access.wp),
        (Kind::Fetch, false) => !(user_page && access.smep) && executable,
    };
    if allowed { None } else { Some(code | pf::P) }
}

/// Where the looked-at page is: PML4 entry 1 on, each index different.
const LINEAR: u64 = paging::FREE + (3 << 30) + (5 << 21) + (7 << 12);

/// The instructions that make each kind of access to [RAX].
#[derive(Clone, Copy)]
struct Accesses {
    read: Code,
    write: Code,
    fetch: Code,
}

impl Accesses {
    fn new() -> Accesses {
        Accesses { read: code!("mov cl, [rax]"), write: code!("mov [rax], cl"), fetch: code!("jmp rax") }
    }

    /// Makes the access to `linear`, which holds INT 0x80, and checks it.
    fn check(
        &self,
        t: &mut Test,
        what: impl core::fmt::Debug,
        access: Access,
        linear: u64,
        code: Option<u32>,
    ) {
        let machine = match access.kind {
            Kind::Read => self.read,
            Kind::Write => self.write,
            Kind::Fetch => self.fetch,
        };
        let subject = if access.user { Subject::user(machine) } else { Subject::kernel(machine) };
        let ac = if access.ac { rflags::AC } else { 0 };
        let event = subject.with(reg::RAX, linear).flags(ac).run();
        let expect = match (code, access.kind) {
            (Some(code), Kind::Fetch) => Expect::pf(code.into(), linear).at(At::Address(linear)),
            (Some(code), _) => Expect::pf(code.into(), linear),
            (None, Kind::Fetch) => Expect::done().at(At::Address(linear + 2)),
            (None, _) => Expect::done(),
        };
        t.event((what, access), &event, expect);
    }
}

/// A physical page whose start is INT 0x80, and RCX's low byte is written over its first byte.
fn int80() -> u64 {
    let page = paging::page();
    // SAFETY: a fresh page.
    unsafe { (page as *mut [u8; 2]).write([0xcd, DONE]) };
    page
}

/// Bits of CR4 that this processor has, of those that the matrix varies.
fn supported() -> u64 {
    let features = insn::cpuid(7, 0)[1];
    (if features >> 7 & 1 != 0 { cr4::SMEP } else { 0 }) | if features >> 20 & 1 != 0 { cr4::SMAP } else { 0 }
}

/// Calls `each` for every combination of controls and access, with the controls in force.
fn under_all_controls(nxe: bool, mut each: impl FnMut(Access)) {
    let (old_cr0, old_cr4) = (insn::cr0(), insn::cr4());
    let has = supported();
    for controls in 0..16 {
        let bit = |n: u32| controls >> n & 1 != 0;
        let (wp, smep, smap, ac) = (bit(0), bit(1), bit(2), bit(3));
        if (smep && has & cr4::SMEP == 0) || (smap && has & cr4::SMAP == 0) {
            continue;
        }
        insn::set_cr0(if wp { old_cr0 } else { old_cr0 & !cr0::WP });
        let extra = if smep { cr4::SMEP } else { 0 } | if smap { cr4::SMAP } else { 0 };
        insn::set_cr4(old_cr4 | extra);
        for user in [false, true] {
            for kind in [Kind::Read, Kind::Write, Kind::Fetch] {
                each(Access { kind, user, wp, smep, smap, ac, nxe });
            }
        }
    }
    insn::set_cr0(old_cr0);
    insn::set_cr4(old_cr4);
}

/// Restrictions of an upper entry: none, each alone, all rights gone, and a reserved bit.
const UPPER: [(u64, u64, bool); 7] = [
    // Set, cleared, reserved.
    (0, 0, false),
    (0, pte::P, false),
    (0, pte::W, false),
    (0, pte::U, false),
    (pte::NX, 0, false),
    (pte::NX, pte::W | pte::U, false),
    (1 << 51, 0, true),
];

/// Whether entries have an NX bit, and no reserved one in its place.
fn nxe() -> bool {
    insn::rdmsr(EFER) & satori_guests::defs::x86::efer::NXE != 0
}

/// The matrix for pages whose leaf is at `leaf`.
fn matrix(t: &mut Test, leaf: u32, nxe: bool) {
    let space = Space::new();
    let target = int80();
    let size = 12 + 9 * leaf;
    let frame = target & !((1 << size) - 1);
    let linear = LINEAR & !((1 << size) - 1) | target & ((1 << size) - 1);
    let accesses = Accesses::new();
    let all = pte::P | pte::W | pte::U;
    let open = frame | all | if leaf > 0 { pte::PS } else { 0 };
    space.set(linear, leaf, open);
    let tables: [u64; 4] =
        core::array::from_fn(|level| if level as u32 > leaf { space.get(linear, level as u32) } else { 0 });
    space.enter();
    under_all_controls(nxe, |access| {
        for bits in 0..16u64 {
            let rights = bits & 7 | if bits & 8 != 0 { pte::NX } else { 0 };
            let leaf_entry = open & !all | rights;
            for level in leaf + 1..4 {
                for (upper, &(set, clear, reserved)) in UPPER.iter().enumerate() {
                    // An entry that lacks P or W and so on; the other levels stay open.
                    let mut entries = [0; 4];
                    let mut bad = [false; 4];
                    let depth = (4 - leaf) as usize;
                    for at in 0..depth {
                        let this = 3 - at as u32;
                        entries[at] = if this == leaf { leaf_entry } else { tables[this as usize] & !0x60 };
                        if this == level {
                            entries[at] = entries[at] & !clear | set;
                            bad[at] = reserved;
                        }
                        bad[at] |= !nxe && entries[at] & pte::NX != 0;
                        space.set_raw(linear, this, &tables, entries[at]);
                    }
                    insn::invlpg(linear);
                    let code = model(&entries[..depth], &bad[..depth], access);
                    accesses.check(t, (bits, level, upper), access, linear, code);
                    if code.is_none() {
                        let dirty = access.kind == Kind::Write;
                        let found: [u64; 4] = core::array::from_fn(|at| {
                            if at < depth { space.get_raw(linear, 3 - at as u32, &tables) } else { 0 }
                        });
                        let mut want = entries;
                        for (at, entry) in want.iter_mut().enumerate().take(depth) {
                            let leaf_here = at == depth - 1;
                            *entry |= pte::A | if dirty && leaf_here { pte::D } else { 0 };
                        }
                        t.eq(("A and D", bits, level, upper, access.kind), found, want);
                        if dirty {
                            // SAFETY: the page is the guest's own.
                            unsafe { (target as *mut [u8; 2]).write_volatile([0xcd, DONE]) };
                        }
                    }
                }
            }
        }
    });
    paging::leave();
}

/// Reads and writes entries whose upper levels may just now not lead anywhere.
trait RawEntries {
    fn place(&self, linear: u64, level: u32, tables: &[u64; 4]) -> *mut u64;
    fn set_raw(&self, linear: u64, level: u32, tables: &[u64; 4], entry: u64);
    fn get_raw(&self, linear: u64, level: u32, tables: &[u64; 4]) -> u64;
}

impl RawEntries for Space {
    fn place(&self, linear: u64, level: u32, tables: &[u64; 4]) -> *mut u64 {
        let table = if level == 3 { self.root } else { tables[level as usize + 1] & pte::ADDR };
        (table + (linear >> (12 + 9 * level) & 511) * 8) as *mut u64
    }
    fn set_raw(&self, linear: u64, level: u32, tables: &[u64; 4], entry: u64) {
        // SAFETY: a place in a table of this space.
        unsafe { self.place(linear, level, tables).write_volatile(entry) };
    }
    fn get_raw(&self, linear: u64, level: u32, tables: &[u64; 4]) -> u64 {
        // SAFETY: a place in a table of this space.
        unsafe { self.place(linear, level, tables).read_volatile() }
    }
}

fn small_pages(t: &mut Test) {
    matrix(t, 0, nxe());
}

fn large_pages(t: &mut Test) {
    matrix(t, 1, nxe());
}

fn huge_pages(t: &mut Test) {
    if insn::cpuid(0x8000_0001, 0)[3] >> 26 & 1 == 0 {
        t.eq("no 1-GiB pages", reserved_at(2, pte::PS), Some(pf::P | pf::RSVD));
        return;
    }
    matrix(t, 2, nxe());
}

const EFER: u32 = satori_guests::defs::msr::IA32_EFER;

fn without_nx(t: &mut Test) {
    let efer = insn::rdmsr(EFER);
    insn::wrmsr(EFER, efer & !satori_guests::defs::x86::efer::NXE);
    matrix(t, 0, false);
    insn::wrmsr(EFER, efer);
}

/// The error code, but for U, of a kernel read when the entry at `level` has `bits` as well.
fn reserved_at(level: u32, bits: u64) -> Option<u32> {
    let space = Space::new();
    space.map(LINEAR, int80(), pte::W);
    let entry = space.get(LINEAR, level);
    let at = space.entry(LINEAR, level);
    // SAFETY: a place in a table of this space.
    unsafe { at.write_volatile(entry | bits) };
    space.enter();
    let event = Subject::kernel(code!("mov cl, [rax]")).with(reg::RAX, LINEAR).run();
    paging::leave();
    match event.vector {
        DONE => None,
        vector::PF => event.code.map(|code| code as u32),
        other => Some(0x1000 + u32::from(other)),
    }
}

fn reserved(t: &mut Test) {
    let width = insn::cpuid(0x8000_0008, 0)[0] & 0xff;
    let broken = Some(pf::P | pf::RSVD);
    for bit in width..52 {
        for level in 0..4 {
            t.eq(("beyond MAXPHYADDR", bit, level), reserved_at(level, 1 << bit), broken);
        }
    }
    t.eq("PS in the PML4", reserved_at(3, pte::PS), broken);
    for bit in (9..12).chain(52..63) {
        for level in 0..4 {
            t.eq(("ignored", bit, level), reserved_at(level, 1 << bit), None);
        }
    }
    for level in 1..4 {
        for bit in [pte::G, pte::D] {
            t.eq(("ignored above the leaf", bit, level), reserved_at(level, bit), None);
        }
    }
    t.eq("PAT of a small page", reserved_at(0, 1 << 7), None);
    // Address bits below the size of a large page, but for PAT in bit 12.
    for bit in 12..21 {
        let space = Space::new();
        space.set(LINEAR, 1, pte::P | pte::PS | 1 << bit);
        space.enter();
        let event = Subject::kernel(code!("mov cl, [rax]")).with(reg::RAX, LINEAR).run();
        paging::leave();
        let expect = if bit == 12 { Expect::done() } else { Expect::pf(9, LINEAR) };
        t.event(("address bits of a large page", bit), &event, expect);
    }
}

fn crossing(t: &mut Test) {
    let space = Space::new();
    let (first, second) = (int80(), int80());
    let end = LINEAR + 0x1000;
    let all = pte::W | pte::U;
    for (name, code, size) in [
        ("read", code!("mov rcx, [rax]"), 8),
        ("write", code!("mov [rax], rcx"), 8),
        ("SSE read", code!("movups xmm0, [rax]"), 16),
        ("SSE write", code!("movups [rax], xmm0"), 16),
        ("add", code!("add [rax], ecx"), 4),
        ("locked", code!("lock add [rax], rcx"), 8),
        ("exchange", code!("xchg [rax], rcx"), 8),
        ("PUSH", code!("lea rsp, [rax + 8]" => "push rcx"), 8),
        ("x87 store", code!("fld1" => "fstp tbyte ptr [rax]" => "fninit"), 10),
    ] {
        let write = !name.ends_with("read");
        let w = if write { u64::from(pf::W) } else { 0 };
        for before in 1..size {
            let at = end - before;
            let s = Subject::user(code).with(reg::RAX, at);
            space.enter();
            let mut run = |what, low, high, expect| {
                space.set(LINEAR, 0, low);
                space.set(end, 0, high);
                insn::invlpg(LINEAR);
                insn::invlpg(end);
                t.event((name, what, before), &s.run(), expect);
            };
            let (ok1, ok2) = (first | all | pte::P, second | all | pte::P);
            run("both there", ok1, ok2, Expect::done());
            run("second missing", ok1, 0, Expect::pf(w | 4, end));
            run("first missing", 0, ok2, Expect::pf(w | 4, at));
            run("second supervisor", ok1, ok2 & !pte::U, Expect::pf(w | 5, end));
            if write {
                run("second read-only", ok1, ok2 & !pte::W, Expect::pf(7, end));
            }
        }
        satori_guests::subject::reset_fpu();
    }
    // Nothing of a write that faults in its second page is seen in the first.
    space.set(end, 0, 0);
    space.set(LINEAR, 0, first | all | pte::P);
    insn::set_cr3(space.root);
    let last = (first + 0xff8) as *mut u64;
    // SAFETY: the page is the guest's own.
    unsafe { last.write_volatile(0x1122_3344_5566_7788) };
    let s = Subject::user(code!("mov [rax], rcx")).with(reg::RAX, end - 4).with(reg::RCX, u64::MAX);
    t.event("half a write", &s.run(), Expect::pf(6, end));
    // SAFETY: as above.
    t.eq("what it left", unsafe { last.read_volatile() }, 0x1122_3344_5566_7788);
    // An instruction that crosses into a page that is missing faults there.
    let long = code!("mov rax, 0x1122334455667788");
    // The code says that it is a fetch where that makes a difference.
    let fetch = pf::U | if nxe() { pf::I } else { 0 };
    for before in 1..10 {
        long.copy_to(first + 0x1000 - before);
        let s = Subject::user(long.moved(end - before - USER));
        let expect = Expect::pf(fetch.into(), end).at(At::Address(end - before));
        t.event(("a fetch", before), &s.run(), expect);
    }
    paging::leave();
}

fn locked_and_implicit(t: &mut Test) {
    let space = Space::new();
    let data = paging::page();
    space.map(LINEAR, data, pte::U);
    space.enter();
    // Read-modify-write instructions fault as writes, also when they would not change anything.
    for (name, code) in [
        ("INC", code!("inc dword ptr [rax]")),
        ("OR 0", code!("or dword ptr [rax], 0")),
        ("CMPXCHG that fails", code!("mov ecx, 1" => "cmpxchg [rdx], ecx")),
        ("LOCK CMPXCHG that fails", code!("lock cmpxchg [rdx], ecx")),
        ("BTS of a set bit", code!("bts dword ptr [rdx], 0")),
        ("XADD", code!("xadd [rdx], ecx")),
        ("SHL by 0", code!("mov ecx, 0" => "shl dword ptr [rdx], cl")),
        ("CMPXCHG8B that fails", code!("xor edi, edi" => "cmpxchg8b [rsi]")),
        ("XCHG", code!("xchg [rdx], cl")),
        ("FST", code!("fldz" => "fst dword ptr [rdx]")),
        ("SETcc", code!("sete [rdx]")),
        ("STMXCSR", code!("stmxcsr [rdx]")),
    ] {
        let s = Subject::user(code)
            .with(reg::RAX, LINEAR)
            .with(reg::RDX, LINEAR)
            .with(reg::RSI, LINEAR)
            .with(reg::RDI, 1);
        let event = s.run();
        t.eq(name, (event.vector, event.code, event.cr2), (vector::PF, Some(7), LINEAR));
        satori_guests::subject::reset_fpu();
    }
    // Reads only.
    for code in [code!("cmp [rdx], ecx"), code!("test [rdx], ecx"), code!("bt dword ptr [rdx], 1")] {
        t.event("only reads", &Subject::user(code).with(reg::RDX, LINEAR).run(), Expect::done());
    }
    paging::leave();
}

fn accessed_and_dirty(t: &mut Test) {
    let space = Space::new();
    let data = paging::page();
    space.map(LINEAR, data, pte::W | pte::U);
    space.enter();
    let mut bits_after = |name: &str, code: Code, bits: u64| {
        space.map(LINEAR, data, pte::W | pte::U);
        insn::invlpg(LINEAR);
        let event = Subject::user(code).with(reg::RDX, LINEAR).run();
        t.event(name, &event, Expect::done());
        t.eq((name, "A and D"), space.get(LINEAR, 0) & (pte::A | pte::D), bits);
    };
    let (a, d) = (pte::A, pte::A | pte::D);
    bits_after("read", code!("mov al, [rdx]"), a);
    bits_after("write", code!("mov [rdx], al"), d);
    bits_after("read, then write", code!("mov al, [rdx]" => "mov [rdx], al"), d);
    bits_after("CMPXCHG that fails", code!("mov eax, 1" => "cmpxchg [rdx], ecx"), d);
    bits_after("LOCK CMPXCHG that fails", code!("mov eax, 1" => "lock cmpxchg [rdx], ecx"), d);
    bits_after("no LODS", code!("xor ecx, ecx", "mov rsi, rdx" => "rep lodsb"), 0);
    bits_after("no STOS", code!("xor ecx, ecx", "mov rdi, rdx" => "rep stosb"), 0);
    bits_after("LEA", code!("lea rax, [rdx]"), 0);
    bits_after("INVLPG's neighbour NOP", code!("nop dword ptr [rdx]"), 0);
    bits_after(
        "MASKMOVDQU of nothing read before",
        code!("mov al, [rdx]", "pxor xmm1, xmm1", "mov rdi, rdx" => "nop"),
        a,
    );
    // A fault leaves D clear.
    space.map(LINEAR, data, pte::U);
    insn::invlpg(LINEAR);
    let event = Subject::user(code!("mov [rdx], al")).with(reg::RDX, LINEAR).run();
    t.event("refused", &event, Expect::pf(7, LINEAR));
    t.eq("D of a refused write", space.get(LINEAR, 0) & pte::D, 0);
    paging::leave();
}

fn invalidation(t: &mut Test) {
    let space = Space::new();
    let (one, two) = (paging::page(), paging::page());
    // SAFETY: fresh pages.
    unsafe {
        (one as *mut u64).write_volatile(1);
        (two as *mut u64).write_volatile(2);
    }
    let read = || {
        // SAFETY: the case maps it.
        unsafe { (LINEAR as *const u64).read_volatile() }
    };
    space.enter();
    let cr3 = space.root;
    let pge = insn::cr4();
    let flushes: [(&str, bool, &dyn Fn()); 5] = [
        ("INVLPG", true, &|| insn::invlpg(LINEAR)),
        ("INVLPG of its middle", true, &|| insn::invlpg(LINEAR + 0x800)),
        ("MOV CR3", false, &|| insn::set_cr3(cr3)),
        ("CR4.PGE", true, &|| {
            insn::set_cr4(pge & !cr4::PGE);
            insn::set_cr4(pge | cr4::PGE);
            insn::set_cr4(pge);
        }),
        ("CR0.PG's neighbour WP and CR3", false, &|| {
            insn::set_cr0(insn::cr0() ^ cr0::WP);
            insn::set_cr0(insn::cr0() ^ cr0::WP);
            insn::set_cr3(cr3);
        }),
    ];
    for (name, global_too, flush) in flushes {
        for global in [0, pte::G] {
            if global != 0 && !global_too {
                continue;
            }
            space.map(LINEAR, one, pte::W | global);
            flush();
            t.eq((name, global, "before"), read(), 1);
            space.map(LINEAR, two, pte::W | global);
            flush();
            t.eq((name, global, "after"), read(), 2);
            // An upper entry that changes.
            let table = space.get(LINEAR, 1);
            let other = paging::page();
            // SAFETY: a fresh page.
            unsafe { ((other + (LINEAR >> 12 & 511) * 8) as *mut u64).write_volatile(one | pte::P | global) };
            space.set(LINEAR, 1, other | pte::P | pte::W);
            flush();
            t.eq((name, global, "another table"), read(), 1);
            space.set(LINEAR, 1, table);
            flush();
            t.eq((name, global, "the table again"), read(), 2);
        }
    }
    // What is not present is never cached.
    space.set(LINEAR, 0, 0);
    insn::invlpg(LINEAR);
    let event = Subject::kernel(code!("mov rcx, [rax]")).with(reg::RAX, LINEAR).run();
    t.event("gone", &event, Expect::pf(0, LINEAR));
    space.map(LINEAR, one, pte::W);
    t.eq("there again, without INVLPG", read(), 1);
    // A large page becomes small ones and back.
    let base = LINEAR & !0x1f_ffff;
    space.set(base, 1, pte::P | pte::W | pte::PS | 0x20_0000);
    insn::set_cr3(cr3);
    let small = paging::page();
    let through = |linear: u64| {
        // SAFETY: the case maps it.
        unsafe { (linear as *const u64).read_volatile() }
    };
    let (low, high) = (through(base), through(base + 0x1f_f000));
    t.holds("a large page's ends", low == through(0x20_0000) && high == through(0x3f_f000));
    for n in 0..512 {
        // SAFETY: a fresh page.
        unsafe { ((small + n * 8) as *mut u64).write_volatile(two | pte::P) };
    }
    space.set(base, 1, small | pte::P | pte::W);
    insn::invlpg(base + 0x5000);
    t.eq("split: where INVLPG was", through(base + 0x5000), 2);
    t.eq("split: INVLPG drops all of a large page", (through(base), through(base + 0x1f_f000)), (2, 2));
    paging::leave();
}
