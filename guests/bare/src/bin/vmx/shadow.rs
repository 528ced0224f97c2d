//! VMCS shadowing (SDM 24.10, 25.1.3, 26.3.1.5): a guest's VMREAD and VMWRITE, and what the link pointer may name.

use satori_guests::{Test, insn, paging};

use crate::machine::{Machine, Outcome, enter, field, read, vmclear, vmptrld, write};

const SHADOWING: u64 = 1 << 14;
const FAILED: u64 = 1 << 31;
const CPUID: [u8; 2] = [0x0f, 0xa2];

/// MOV ECX,encoding; MOV EAX,value; VMREAD RAX,RCX or VMWRITE RCX,RAX; PUSHFQ; PUSH RAX; CPUID.
fn code(encoding: u32, value: u32, write: bool) -> [u8; 17] {
    let mut code = [0xb9, 0, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0x0f, 0x78, 0xc8, 0x9c, 0x50, 0x0f, 0xa2];
    code[1..5].copy_from_slice(&encoding.to_le_bytes());
    code[6..10].copy_from_slice(&value.to_le_bytes());
    if write {
        code[11..13].copy_from_slice(&[0x79, 0xc8]);
    }
    code
}

pub fn shadowing(t: &mut Test) {
    let machine = Machine::new();
    let [shadow, reads, writes] = core::array::from_fn(|_| paging::page());
    let revision = insn::rdmsr(0x480) as u32;
    // SAFETY: the page is this case's.
    unsafe { (shadow as *mut u32).write_volatile(revision | 1 << 31) };
    t.eq("VMPTRLD of a shadow", vmptrld(shadow), Outcome::Fine);
    write(field::GUEST_RSP, 0x1234_5678);
    write(field::HOST_PAT, 0x1111_2222_3333_4444);
    t.eq("VMLAUNCH of a shadow", enter(true), Some(Outcome::Invalid));
    vmclear(shadow);
    // SAFETY: as above.
    let first = unsafe { (shadow as *const u32).read_volatile() };
    t.eq("it stays a shadow", first, revision | 1 << 31);
    let fresh = |link: u64| {
        machine.fresh();
        write(field::PROC2, read(field::PROC2).unwrap_or(0) | SHADOWING);
        write(field::VMREAD_BITMAP, reads);
        write(field::VMWRITE_BITMAP, writes);
        write(field::LINK_POINTER, link);
    };
    // What the guest pushed: flags that VMfail sets, and RAX.
    let pushed = || {
        let stack = machine.stack;
        // SAFETY: it is the guest's stack.
        unsafe {
            (((stack - 8) as *const u64).read_volatile() & 0x41, ((stack - 16) as *const u64).read_volatile())
        }
    };
    for (name, encoding, flags, value) in [
        ("VMREAD", field::GUEST_RSP, 0, 0x1234_5678),
        ("VMREAD of an upper half", field::HOST_PAT + 1, 0, 0x1111_2222),
        ("VMREAD of nothing", 0x40fe, 0x40, 0x77),
    ] {
        fresh(shadow);
        t.eq(name, machine.run(&code(encoding, 0x77, false)), Ok(10));
        t.eq((name, "outcome"), pushed(), (flags, value));
    }
    fresh(shadow);
    t.eq("VMWRITE", machine.run(&code(field::GUEST_RIP, 0x4242, true)), Ok(10));
    t.eq("its outcome", pushed().0, 0);
    vmptrld(shadow);
    t.eq("what it wrote", read(field::GUEST_RIP), Some(0x4242));
    vmptrld(machine.vmcs);
    fresh(u64::MAX);
    t.eq("no shadow", machine.run(&code(field::GUEST_RSP, 0, false)), Ok(10));
    t.eq("its outcome", pushed().0, 1);
    let bit = |bitmap: u64, encoding: u32, set: bool| {
        let at = (bitmap + u64::from(encoding / 8)) as *mut u8;
        // SAFETY: the pages are this case's.
        unsafe { at.write_volatile(u8::from(set) << (encoding % 8)) };
    };
    bit(reads, field::GUEST_RSP, true);
    bit(writes, field::GUEST_RIP, true);
    for (name, encoding, write, reason) in [
        ("a read that exits", field::GUEST_RSP, false, 23),
        ("a write of the same", field::GUEST_RSP, true, 10),
        ("a write that exits", field::GUEST_RIP, true, 25),
        ("a read of the same", field::GUEST_RIP, false, 10),
        ("an encoding beyond bitmaps", 0x8000, false, 23),
    ] {
        fresh(shadow);
        t.eq(name, machine.run(&code(encoding, 0, write)), Ok(reason));
    }
    let plain = paging::page();
    // SAFETY: as above.
    unsafe { (plain as *mut u32).write_volatile(revision) };
    for (name, link, shadowing, reason, qualification) in [
        ("a link to what is no shadow", plain, true, FAILED | 33, 4),
        ("a link to a shadow without shadowing", shadow, false, FAILED | 33, 4),
        ("a link to another VMCS", plain, false, 10, 0),
        ("a link that is misplaced", shadow + 8, true, FAILED | 33, 4),
        ("a link to itself", machine.vmcs, false, FAILED | 33, 4),
    ] {
        fresh(link);
        if !shadowing {
            write(field::PROC2, read(field::PROC2).unwrap_or(0) & !SHADOWING);
        }
        t.eq(name, (machine.run(&CPUID), read(field::QUALIFICATION)), (Ok(reason), Some(qualification)));
    }
    fresh(shadow);
    write(field::VMREAD_BITMAP, reads + 8);
    t.eq("a bitmap's place", machine.run(&CPUID), Err(Outcome::Error(7)));
    machine.end();
}
