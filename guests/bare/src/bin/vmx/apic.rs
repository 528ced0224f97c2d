//! A guest's local APIC (SDM chapter 29): accesses to its page, the task priority and its threshold; and loops of PAUSEs.

use satori_guests::{Test, paging};

use crate::machine::{Machine, Outcome, capability, field, read, write};

pub const TPR_SHADOW: u64 = 1 << 21;
pub const SECONDARY: u64 = 1 << 31;
pub const ACCESSES: u64 = 1 << 0;
pub const X2APIC: u64 = 1 << 4;
const PAUSE_LOOP: u64 = 1 << 10;

/// MOV RAX,page; what follows; CPUID.
pub fn code<const N: usize>(page: u64, then: [u8; N]) -> [u8; 32] {
    let mut code = [0x90; 32];
    code[..2].copy_from_slice(&[0x48, 0xb8]);
    code[2..10].copy_from_slice(&page.to_le_bytes());
    code[10..10 + N].copy_from_slice(&then);
    code[10 + N..12 + N].copy_from_slice(&[0x0f, 0xa2]);
    code
}

struct Pages {
    machine: Machine,
    access: u64,
    virtual_apic: u64,
}

impl Pages {
    fn fresh(&self, secondary: u64, threshold: u64, priority: u32) {
        self.machine.fresh();
        write(field::PROC, read(field::PROC).unwrap_or(0) | TPR_SHADOW | SECONDARY);
        write(field::PROC2, read(field::PROC2).unwrap_or(0) | secondary);
        write(field::APIC_ACCESS, self.access);
        write(field::VIRTUAL_APIC, self.virtual_apic);
        write(field::TPR_THRESHOLD, threshold);
        // SAFETY: the page is this case's.
        unsafe { ((self.virtual_apic + 0x80) as *mut u32).write_volatile(priority) };
    }

    fn priority(&self) -> u32 {
        // SAFETY: as above.
        unsafe { ((self.virtual_apic + 0x80) as *const u32).read_volatile() }
    }
}

pub fn apic(t: &mut Test) {
    let pages = Pages { machine: Machine::new(), access: paging::page(), virtual_apic: paging::page() };
    let (machine, access) = (&pages.machine, pages.access);
    for (name, then, reason, qualification, length) in [
        ("a read", &code(access, [0x8b, 0x48, 0x20]), 44, 0x0020, 3),
        ("a write", &code(access, [0x89, 0x88, 0xb0, 0, 0, 0]), 44, 0x10b0, 6),
        ("both at once", &code(access, [0x83, 0x48, 0x30, 1]), 44, 0x0030, 4),
        ("more than the task priority", &code(access, [0x48, 0x8b, 0x88, 0x80, 0, 0, 0]), 44, 0x0080, 7),
        ("not all of it the task priority", &code(access, [0x8b, 0x88, 0x82, 0, 0, 0]), 44, 0x0082, 6),
        ("a fetch", &code(access, [0xff, 0xe0]), 44, 0x2000, 0),
        ("the task priority", &code(access, [0x8b, 0x88, 0x80, 0, 0, 0]), 10, 0, 2),
    ] {
        pages.fresh(ACCESSES, 0, 0x20);
        t.eq(name, machine.run(then), Ok(reason));
        t.eq((name, "qualification"), read(field::QUALIFICATION), Some(qualification));
        t.eq((name, "length"), read(field::LENGTH), Some(length));
    }
    // MOV ECX,[RAX+80]; MOV [RSP-8],ECX.
    pages.fresh(ACCESSES, 0, 0x57);
    let load = code(access, [0x8b, 0x88, 0x80, 0, 0, 0, 0x89, 0x4c, 0x24, 0xf8]);
    t.eq("a load of it", machine.run(&load), Ok(10));
    // SAFETY: it is the guest's stack.
    t.eq("is what is virtual", unsafe { ((machine.stack - 8) as *const u32).read_volatile() }, 0x57);
    // MOV DWORD [RAX+80],20.
    let store = code(access, [0xc7, 0x80, 0x80, 0, 0, 0, 0x20, 0, 0, 0]);
    for (threshold, reason, rip) in [(2, 10, 20), (3, 43, 20)] {
        pages.fresh(ACCESSES, threshold, 0x40);
        t.eq(("a store of it", threshold), machine.run(&store), Ok(reason));
        t.eq(("its RIP", threshold), read(field::GUEST_RIP), Some(machine.code + rip));
        t.eq(("its value", threshold), pages.priority(), 0x20);
    }
    pages.fresh(ACCESSES, 5, 0x40);
    t.eq("below the threshold from the beginning", machine.run(&store), Ok(43));
    t.eq("before anything", read(field::GUEST_RIP), Some(machine.code));
    pages.fresh(ACCESSES, 0, 0);
    write(field::GUEST_RSP, access + 0x800);
    write(field::GUEST_RFLAGS, 0x202);
    write(field::INJECTION, 1 << 31 | 2 << 8 | 2);
    // The first push has the stack aligned.
    t.eq("a delivery", (machine.run(&[0x90]), read(field::QUALIFICATION)), (Ok(44), Some(0x37f8)));
    t.eq("of what", read(field::VECTORING), Some(0x8000_0202));
    modes(t, &pages);
    pages.machine.end();
}

/// The checks of VM entry, and the MSR of x2APIC mode.
fn modes(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    let refused = Err(Outcome::Error(7));
    pages.fresh(ACCESSES, 0, 0);
    write(field::APIC_ACCESS, pages.access + 8);
    t.eq("a page that is none", machine.run(&[0x0f, 0xa2]), refused);
    pages.fresh(ACCESSES | X2APIC, 0, 0);
    t.eq("both modes", machine.run(&[0x0f, 0xa2]), refused);
    pages.fresh(X2APIC, 0, 0);
    write(field::PROC, read(field::PROC).unwrap_or(0) & !TPR_SHADOW);
    t.eq("x2APIC mode without a shadow", machine.run(&[0x0f, 0xa2]), refused);
    // MOV ECX,808; MOV EAX,30; XOR EDX,EDX; WRMSR; RDMSR; MOV [RSP-8],EAX; CPUID.
    let code = [
        0xb9, 8, 8, 0, 0, 0xb8, 0x30, 0, 0, 0, 0x31, 0xd2, 0x0f, 0x30, 0x31, 0xc0, 0x0f, 0x32, 0x89, 0x44,
        0x24, 0xf8, 0x0f, 0xa2,
    ];
    for (threshold, reason, rip) in [(3, 10, 22), (4, 43, 14)] {
        pages.fresh(X2APIC, threshold, 0x70);
        t.eq(("WRMSR", threshold), machine.run(&code), Ok(reason));
        t.eq(("its RIP", threshold), read(field::GUEST_RIP), Some(machine.code + rip));
        t.eq(("its value", threshold), pages.priority(), 0x30);
    }
    // SAFETY: it is the guest's stack.
    t.eq("RDMSR", unsafe { ((machine.stack - 8) as *const u32).read_volatile() }, 0x30);
    pages.fresh(0, 0, 0);
    let looped = |gap, window| {
        write(field::PROC2, read(field::PROC2).unwrap_or(0) | PAUSE_LOOP);
        write(field::PLE_GAP, gap);
        write(field::PLE_WINDOW, window);
        // The timer ends what PAUSE does not.
        write(field::PIN, capability(0x48d).0 | 1 << 6);
        write(field::TIMER, 20_000);
        machine.run(&[0xf3, 0x90, 0xeb, 0xfc])
    };
    t.eq("a loop of PAUSEs", looped(1 << 20, 5_000), Ok(40));
    pages.fresh(0, 0, 0);
    t.eq("PAUSEs that are none", looped(0, 5_000), Ok(52));
}
