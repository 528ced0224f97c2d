//! What no guest in its right mind does.

use satori_guests::defs::hyperv::synic::message::{PENDING, SIZE_AND_FLAGS};
use satori_guests::defs::hyperv::{PAGE_ENABLE, call as code, msr};
use satori_guests::hyperv::bit::POST_MESSAGES;
use satori_guests::hyperv::{self as hv, Control, call, fill, peek, peek32, poke};
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, code, insn};

use super::controller::operation::*;
use super::controller::*;

/// The guest writes nonsense into its own slots and flags.
pub fn hostile_slots(t: &mut Test) {
    let Some(Rig { pages, page, block, own }) = rig(t, &POST_MESSAGES) else { return };
    insn::wrmsr(msr::SINT0 + 3, 0x63);
    request(CREATE_OWN_MESSAGES, 9, own, 3);
    request(CREATE_OWN_EVENTS, 9, own, 3);
    for garbage in [u64::MAX, 0x0101_0101_0101_0101, 1] {
        fill(pages.messages, garbage);
        fill(pages.events, garbage);
        t.eq(("waits behind garbage", garbage), post(page, block, 9, 4, 8, 4), SUCCESS);
        t.eq("no interrupt", came(), None);
        t.holds("marked", peek32(pages.slot(3) + SIZE_AND_FLAGS) & PENDING != 0);
        for _ in 0..100 {
            insn::wrmsr(msr::EOM, 0);
        }
        t.eq("still behind it", came(), None);
        fill(pages.messages, 0);
        insn::wrmsr(msr::EOM, 0);
        t.eq("now it comes", (came(), pages.take(3).map(|m| m.0)), (Some(0x63), Some(4)));
        t.holds("an event", signal(page, 9, 1) == SUCCESS);
        came();
    }
    // Both pages in one place, and both over the hypercall page.
    for place in [pages.messages, page] {
        insn::wrmsr(msr::SIMP, place | PAGE_ENABLE);
        insn::wrmsr(msr::SIEFP, place | PAGE_ENABLE);
        let direct = Control::new(code::SIGNAL_EVENT).fast();
        let vmcall = Subject::kernel(code!("vmcall"));
        for word in [9, 9 | 1 << 32] {
            vmcall.with(reg::RCX, direct.0).with(reg::RDX, word).run();
            poke(block, 9);
            poke(block + 8, 8 << 32 | 4);
            vmcall.with(reg::RCX, code::POST_MESSAGE.into()).with(reg::RDX, block).run();
        }
        insn::wrmsr(msr::SIMP, 0);
        insn::wrmsr(msr::SIEFP, 0);
    }
    while came().is_some() {}
    t.eq("the hypercall page is whole", call(page, Control::new(0xfff0), 0, 0), Ok(2));
    request(DESTROY_OWN_MESSAGES, 9, own, 3);
    request(DESTROY_OWN_EVENTS, 9, own, 3);
}

/// Requests that name processors, sources and operations which do not exist.
pub fn hostile_requests(t: &mut Test) {
    if !testdev() {
        return skipped(t);
    }
    let pages = turn_on();
    let page = hv::hypercall_page();
    for operation in 0..=0xff {
        for (connection, vp, sint) in [(0, 0xff, 0), (0xff, 0, 16), (0xff, 0, 0xff), (1, 0xee, 0xee)] {
            request(operation, connection, vp, sint);
        }
    }
    for connection in [0, 1, 0xff] {
        let status = signal(page, connection, 0);
        t.holds(
            ("a connection to nowhere", connection, status),
            status != SUCCESS || peek(pages.flags(0)) != 0,
        );
    }
    for connection in [0, 1, 0xff] {
        for operation in [DESTROY_ROUTE, DESTROY_MESSAGES, DESTROY_EVENTS] {
            for (vp, sint) in [(0xff, 0), (0, 16), (0, 0xff), (0xee, 0xee)] {
                request(operation, connection, vp, sint);
            }
        }
    }
    t.eq("nothing came", came(), None);
}
