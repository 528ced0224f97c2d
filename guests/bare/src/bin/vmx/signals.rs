//! INIT and SIPI where there is VMX operation (SDM 23.8, 25.2).

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::defs::apic::{ID, icr};
use satori_guests::{Test, apic, smp};

use crate::machine::{Machine, field, read, vmxoff, write};

const INIT: u32 = icr::ASSERT | 5 << 8;
const STARTUP: u32 = icr::ASSERT | 6 << 8;
const CPUID: [u8; 2] = [0x0f, 0xa2];
const WAIT_FOR_SIPI: u64 = 3;

/// To this processor itself, for which there is no shorthand.
fn init_self() {
    apic::send(INIT, apic::read(ID) >> 24);
}

pub fn signals(t: &mut Test) {
    let machine = Machine::new();
    for (name, activity) in [("active", 0), ("in HLT", 1)] {
        machine.fresh();
        write(field::ACTIVITY, activity);
        // Nothing comes of it in root operation.
        init_self();
        t.eq((name, "INIT"), machine.run(&CPUID), Ok(3));
        t.eq((name, "RIP"), read(field::GUEST_RIP), Some(machine.code));
        t.eq((name, "activity"), read(field::ACTIVITY), Some(activity));
        t.eq((name, "qualification"), read(field::QUALIFICATION), Some(0));
        machine.fresh();
        t.eq((name, "once"), machine.run(&CPUID), Ok(10));
    }
    machine.fresh();
    // MOV EAX,FEE00300; MOV DWORD [RAX],INIT to APIC ID 0; CPUID.
    t.eq("IDs from 0 on", apic::read(ID), 0);
    apic::write(0x310, 0);
    let sends = [0xb8, 0, 3, 0xe0, 0xfe, 0xc7, 0, 0, 0x45, 0, 0, 0x0f, 0xa2];
    t.eq("an INIT that the guest sends", machine.run(&sends), Ok(3));
    t.eq("behind the instruction", read(field::GUEST_RIP), Some(machine.code + 11));
    // A pending debug trap stays for the next entry.
    machine.fresh();
    write(field::PENDING_DEBUG, 1 << 14);
    init_self();
    t.eq("before a debug trap", machine.run(&CPUID), Ok(3));
    t.eq("which is kept", read(field::PENDING_DEBUG), Some(1 << 14));
    machine.fresh();
    write(field::ACTIVITY, WAIT_FOR_SIPI);
    write(field::INJECTION, 1 << 31 | 0x30);
    write(field::GUEST_RFLAGS, 0x202);
    t.eq("an event for one that waits for a SIPI", machine.run(&CPUID), Ok(1 << 31 | 33));
    machine.end();
    if smp::count() > 1 {
        others(t);
    }
}

/// What the other processor is to do, what came of it, and the exits that it saw.
static PHASE: AtomicU64 = AtomicU64::new(0);
static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
const OFF: u64 = 3;
const WENT_ON: u64 = 4;

fn tell(number: usize, value: u64) {
    SEEN[number].store(value, Ordering::Release);
}

/// A hypervisor whose guest waits for a SIPI, past an INIT; and that leaves VMX operation while an INIT waits.
fn waits(_: usize) {
    if PHASE.load(Ordering::Acquire) != 0 {
        return;
    }
    let machine = Machine::new();
    machine.fresh();
    write(field::ACTIVITY, WAIT_FOR_SIPI);
    PHASE.store(1, Ordering::Release);
    let reason = machine.run(&CPUID).unwrap_or(u64::MAX);
    tell(0, reason);
    tell(1, read(field::QUALIFICATION).unwrap_or(u64::MAX));
    tell(2, read(field::ACTIVITY).unwrap_or(u64::MAX));
    // The INIT before it is still there, for a guest that waits for nothing.
    machine.fresh();
    tell(3, machine.run(&CPUID).unwrap_or(u64::MAX));
    PHASE.store(2, Ordering::Release);
    while PHASE.load(Ordering::Acquire) != OFF {
        core::hint::spin_loop();
    }
    vmxoff();
    PHASE.store(WENT_ON, Ordering::Release);
}

fn others(t: &mut Test) {
    smp::begin(1, waits);
    let until = |phase: u64, then: &dyn Fn()| {
        while PHASE.load(Ordering::Acquire) != phase {
            then();
            core::hint::spin_loop();
        }
    };
    until(1, &|| ());
    let id = smp::apic_id(1);
    apic::send(INIT, id);
    until(2, &|| {
        // Those that come too early are lost.
        smp::spin(10_000);
        apic::send(STARTUP | 0x42, id);
    });
    let seen = SEEN.each_ref().map(|one| one.load(Ordering::Acquire));
    t.eq("a SIPI", seen[0], 4);
    t.eq("its vector", seen[1], 0x42);
    t.eq("what it ends", seen[2], WAIT_FOR_SIPI);
    t.eq("the INIT that was held back", seen[3], 3);
    apic::send(INIT, id);
    smp::spin(100_000);
    PHASE.store(OFF, Ordering::Release);
    smp::spin(1_000_000);
    t.eq("nothing behind VMXOFF", PHASE.load(Ordering::Acquire), OFF);
    smp::start_again(1);
    smp::wait(1);
    t.holds("it begins anew", smp::count() > 1);
}
