//! A controller that is on, what is asked of hyperv-testdev, and what is posted through hypercalls.

use satori_guests::defs::hyperv::synic::message::{PAYLOAD, PENDING, SIZE_AND_FLAGS};
use satori_guests::defs::hyperv::synic::{SINT_MASKED, SINTS, SLOT_BYTES};
use satori_guests::defs::hyperv::{PAGE_ENABLE, call as code, msr};
use satori_guests::hyperv as hv;
use satori_guests::hyperv::bit::SYNIC;
use satori_guests::hyperv::{Bit, Control, call, fill, interrupt_within, peek, peek32, poke};
use satori_guests::msr::get;
use satori_guests::{Test, apic, harness, insn, paging};

pub const SUCCESS: u64 = 0;
pub const PORT: u16 = 0x3000;
/// Time in which nothing comes, and in which something surely does, in ticks of the TSC.
pub const LONG: u64 = 200_000;
pub const SOON: u64 = 400_000_000;

/// Operations of hyperv-testdev; from 8 on Satori's own.
pub mod operation {
    pub const CREATE_ROUTE: u32 = 1;
    pub const DESTROY_ROUTE: u32 = 2;
    pub const RAISE: u32 = 3;
    pub const CREATE_MESSAGES: u32 = 4;
    pub const DESTROY_MESSAGES: u32 = 5;
    pub const CREATE_EVENTS: u32 = 6;
    pub const DESTROY_EVENTS: u32 = 7;
    pub const CREATE_OWN_MESSAGES: u32 = 8;
    pub const DESTROY_OWN_MESSAGES: u32 = 9;
    pub const CREATE_OWN_EVENTS: u32 = 10;
    pub const DESTROY_OWN_EVENTS: u32 = 11;
    pub const DELETE_MESSAGE_PORT: u32 = 12;
    pub const DELETE_EVENT_PORT: u32 = 13;
}
pub fn request(operation: u32, connection: u32, vp: u64, sint: u32) {
    insn::out32(PORT, connection << 24 | operation << 16 | (vp as u32) << 8 | sint);
}

/// Whether the test device is there; without it nothing can come in.
pub fn testdev() -> bool {
    SYNIC.offered() && harness::option("testdev") == Some("on")
}

pub fn skipped(t: &mut Test) {
    t.eq("no controller, no registers", get(msr::SCONTROL).is_some(), SYNIC.offered());
}

/// A controller that is on, with pages for messages and events.
pub struct Pages {
    pub messages: u64,
    pub events: u64,
}

impl Pages {
    pub fn slot(&self, sint: u32) -> u64 {
        self.messages + SLOT_BYTES * u64::from(sint)
    }

    pub fn flags(&self, sint: u32) -> u64 {
        self.events + SLOT_BYTES * u64::from(sint)
    }

    /// Takes the message of `sint`: its type and first payload word, if there is one. Tells the host if
    /// others wait.
    pub fn take(&self, sint: u32) -> Option<(u32, u64)> {
        let slot = self.slot(sint);
        let found = (peek32(slot), peek(slot + PAYLOAD));
        if found.0 == 0 {
            return None;
        }
        // SAFETY: the slot is this processor's to empty.
        unsafe { (slot as *mut u32).write_volatile(0) };
        insn::mfence();
        if peek32(slot + SIZE_AND_FLAGS) & PENDING != 0 {
            insn::wrmsr(msr::EOM, 0);
        }
        Some(found)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for sint in 0..SINTS as u32 {
            insn::wrmsr(msr::SINT0 + sint, SINT_MASKED);
            while self.take(sint).is_some() {}
        }
        for register in [msr::SIMP, msr::SIEFP, msr::SCONTROL] {
            insn::wrmsr(register, 0);
        }
    }
}

/// What a test of hypercalls to the controller works with.
pub struct Rig {
    /// The controller's.
    pub pages: Pages,
    /// The hypercall page, and a page for a call's input.
    pub page: u64,
    pub block: u64,
    /// Index of the first virtual processor.
    pub own: u64,
}

/// All of that, turned on; nothing, with the test's remark, where the guest lacks it or `call`.
pub fn rig(t: &mut Test, call: &Bit) -> Option<Rig> {
    if !testdev() || !call.offered() {
        skipped(t);
        return None;
    }
    let pages = turn_on();
    Some(Rig { pages, page: hv::hypercall_page(), block: paging::page(), own: hv::vp_index(0) })
}

pub fn turn_on() -> Pages {
    let pages = Pages { messages: paging::page(), events: paging::page() };
    insn::wrmsr(msr::SIMP, pages.messages | PAGE_ENABLE);
    insn::wrmsr(msr::SIEFP, pages.events | PAGE_ENABLE);
    for sint in 0..SINTS as u64 {
        // What an earlier case left in the pages, which keep what they hold.
        fill(pages.messages, 0);
        fill(pages.events, 0);
        insn::wrmsr(msr::SINT0 + sint as u32, SINT_MASKED);
    }
    insn::wrmsr(msr::SCONTROL, 1);
    pages
}

/// The next interrupt, ended.
pub fn came() -> Option<u8> {
    let vector = interrupt_within(LONG)?;
    apic::eoi();
    Some(vector)
}

/// Posts a message of `size` bytes, all `byte`, through `connection`.
pub fn post(page: u64, block: u64, connection: u32, kind: u32, size: u32, byte: u8) -> u64 {
    poke(block, connection.into());
    poke(block + 8, u64::from(size) << 32 | u64::from(kind));
    for at in (16..256).step_by(8) {
        poke(block + at, u64::from(byte) * 0x0101_0101_0101_0101);
    }
    call(page, Control::new(code::POST_MESSAGE), block, 0).unwrap_or(u64::MAX)
}

pub fn signal(page: u64, connection: u32, flag: u32) -> u64 {
    let word = u64::from(flag) << 32 | u64::from(connection);
    call(page, Control::new(code::SIGNAL_EVENT).fast(), word, 0).unwrap_or(u64::MAX)
}
