//! The second translation (SDM 28.3): rights, misconfigurations, accessed and dirty bits, fetches by the mode of their address.

use satori_guests::subject::USER;
use satori_guests::{Test, paging};

use crate::machine::{Machine, field, read, write};

const EPT: u64 = 1 << 1;
const BY_MODE: u64 = 1 << 22;
const USER_EXECUTE: u64 = 1 << 10;
const MARKS: u64 = 1 << 6;
const VIOLATION: u64 = 48;
const MISCONFIGURED: u64 = 49;
/// Bits of every qualification here: the linear address is told, and it is the last step's.
const TOLD: u64 = 0x180;

struct Tables {
    top: u64,
    low: u64,
    page: u64,
}

fn set(table: u64, index: u64, value: u64) {
    // SAFETY: the tables are this case's.
    unsafe { ((table + 8 * index) as *mut u64).write_volatile(value) };
}

impl Tables {
    /// Tables of 2 MiB pages to themselves, but for the page at `subject`, of whose table the last entry is.
    fn new(subject: u64) -> Tables {
        let [top, middle, large, low] = core::array::from_fn::<u64, 4, _>(|_| paging::page());
        set(top, 0, middle | 7);
        set(middle, 0, large | 7);
        (0..512).for_each(|index| set(large, index, index << 21 | 0xb7));
        let (at, page) = (subject >> 21, subject >> 12 & 0x1ff);
        (0..512).for_each(|index| set(low, index, at << 21 | index << 12 | 0x37 | USER_EXECUTE));
        for table in [(top, 0, middle), (middle, 0, large), (large, at, low)] {
            set(table.0, table.1, table.2 | 7 | USER_EXECUTE);
        }
        Tables { top, low, page }
    }
}

pub fn ept(t: &mut Test) {
    let machine = Machine::new();
    let subject = paging::page();
    let tables = Tables::new(subject);
    // SAFETY: the page is this case's. RET.
    unsafe { (subject as *mut u8).write(0xc3) };
    // MOV RAX,subject; MOV [RAX+8],EAX, or MOV EAX,[RAX], or CALL RAX; CPUID.
    let code = |at: u64, then: [u8; 3]| {
        let mut code = [0x90_u8; 15];
        code[..2].copy_from_slice(&[0x48, 0xb8]);
        code[2..10].copy_from_slice(&at.to_le_bytes());
        code[10..13].copy_from_slice(&then);
        code[13..].copy_from_slice(&[0x0f, 0xa2]);
        code
    };
    let (store, load) = (code(subject, [0x89, 0x40, 0x08]), code(subject, [0x8b, 0x00, 0x90]));
    let (call, user) = (code(subject, [0xff, 0xd0, 0x90]), code(subject + USER, [0xff, 0xd0, 0x90]));
    let fresh = |entry: u64, controls: u64, marks: u64| {
        machine.fresh();
        write(field::PROC2, read(field::PROC2).unwrap_or(0) | EPT | controls);
        write(field::EPTP, tables.top | 3 << 3 | 6 | marks);
        set(tables.low, tables.page, if entry == 0 { 0 } else { subject | 0x30 | entry });
    };
    for (name, entry, by_mode, code, reason, qualification) in [
        ("all", 7, false, &store, 10, 0),
        ("absent", 0, false, &store, VIOLATION, TOLD | 2),
        ("to be read", 1, false, &store, VIOLATION, TOLD | 2 | 1 << 3),
        ("to be executed, read", 4, false, &load, VIOLATION, TOLD | 1 | 4 << 3),
        ("to be executed", 4, false, &call, 10, 0),
        ("not to be executed", 3, false, &call, VIOLATION, TOLD | 4 | 3 << 3),
        ("written and not read", 2, false, &load, MISCONFIGURED, 0),
        (
            "a user's bit that counts for nothing",
            3 | USER_EXECUTE,
            false,
            &call,
            VIOLATION,
            TOLD | 4 | 3 << 3,
        ),
        ("a user's page, called", 3 | USER_EXECUTE, true, &user, 10, 0),
        ("a user's page alone", 3 | USER_EXECUTE, true, &call, VIOLATION, TOLD | 4 | 3 << 3 | 1 << 6),
        ("a supervisor's page alone", 7, true, &user, VIOLATION, TOLD | 4 | 7 << 3),
        ("a supervisor's page, called", 7, true, &call, 10, 0),
        ("a user's bit and no other", USER_EXECUTE, true, &load, VIOLATION, TOLD | 1 | 1 << 6),
    ] {
        fresh(entry, if by_mode { BY_MODE } else { 0 }, 0);
        t.eq(name, machine.run(code), Ok(reason));
        if reason != 10 {
            t.eq((name, "address"), read(field::GUEST_PHYSICAL).map(|at| at & !0xfff), Some(subject));
            t.eq((name, "qualification"), read(field::QUALIFICATION), Some(qualification));
        }
    }
    for (name, code, wanted) in [("accessed", &load, 1 << 8), ("dirty", &store, 3 << 8)] {
        fresh(7, 0, MARKS);
        machine.run(code).ok();
        // SAFETY: as above.
        let entry = unsafe { ((tables.low + 8 * tables.page) as *const u64).read_volatile() };
        t.eq(name, entry & 3 << 8, wanted);
    }
    machine.end();
}
