//! A monitor for Linux's /dev/kvm, as a static program that is a machine's init: it runs the guest of `guest` under KVM, and turns the
//! machine off. Numbers are those of Linux's <linux/kvm.h> and <asm/unistd.h>.

use crate::asm::{Asm, Cond, X, ZERO};
use crate::layout::{DEVICE, GUEST_IPA, VGICD};

const BASE: u64 = 0x40_0000;
/// An ELF header and one program header.
const HEADERS: usize = 64 + 56;
const MEMORY: u64 = 0x20_0000;
const REDISTRIBUTOR: u64 = 0x080a_0000;

const OPENAT: u64 = 56;
const WRITE: u64 = 64;
const IOCTL: u64 = 29;
const REBOOT: u64 = 142;
const MMAP: u64 = 222;

const CREATE_VM: u64 = 0xae01;
const CREATE_VCPU: u64 = 0xae41;
const SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;
const RUN: u64 = 0xae80;
const SET_ONE_REG: u64 = 0x4010_aeac;
const ARM_VCPU_INIT: u64 = 0x4020_aeae;
const ARM_PREFERRED_TARGET: u64 = 0x8020_aeaf;
const CREATE_DEVICE: u64 = 0xc00c_aee0;
const SET_DEVICE_ATTR: u64 = 0x4018_aee1;
const VGIC_V3: u64 = 7;
/// KVM_REG_ARM_CORE_REG(regs.pc).
const REGISTER_PC: u64 = 0x6030_0000_0010_0040;
const EXIT_MMIO: u32 = 6;
const EXIT_SYSTEM_EVENT: u32 = 24;

const KVM: X = X(19);
const VM: X = X(20);
const VCPU: X = X(22);
const GIC: X = X(23);
const SHARED: X = X(24);

/// The program, whose guest is `guest`.
pub(crate) fn program(guest: &[u8]) -> Result<Vec<u8>, String> {
    let mut a = Asm::new();
    header(&mut a);
    a.at(HEADERS);
    machine(&mut a);
    interrupt_controller(&mut a);
    run(&mut a);
    helpers(&mut a);
    data(&mut a);
    a.align(8);
    a.label("guest");
    for word in guest.chunks_exact(4) {
        a.word(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    }
    a.label("guest_end");
    let mut image = a.finish()?;
    // The segment's sizes, of file and memory.
    let size = (image.len() as u64).to_le_bytes();
    image[96..104].copy_from_slice(&size);
    image[104..112].copy_from_slice(&size);
    Ok(image)
}

/// ELF64, little-endian, an executable of AArch64, with one segment that may be read, written and executed.
fn header(a: &mut Asm) {
    for word in [
        0x0001_0102_464c_457f,
        0,
        0x0000_0001_00b7_0002,
        BASE + HEADERS as u64,
        64,
        0,
        0x0038_0040_0000_0000,
        0x0000_0000_0000_0001,
        0x0000_0007_0000_0001,
        0,
        BASE,
        BASE,
    ] {
        a.data(word);
    }
}

/// X0 = the result of KVM's `request` on a file, with what is at `label` or nothing.
fn ioctl(a: &mut Asm, file: X, request: u64, label: Option<&str>) {
    a.mov(X(0), file);
    a.set(X(1), request);
    match label {
        Some(label) => a.adr(X(2), label),
        None => a.set(X(2), 0),
    }
    a.bl("ioctl");
}

fn map(a: &mut Asm, length: u64, flags: u64, file: Option<X>) {
    a.set(X(0), 0);
    a.set(X(1), length);
    a.set(X(2), 3);
    a.set(X(3), flags);
    match file {
        Some(file) => a.mov(X(4), file),
        None => a.set(X(4), u64::MAX),
    }
    a.set(X(5), 0);
    a.set(X(8), MMAP);
    a.svc();
    a.bl("check");
}

/// A machine with 2 MiB, the guest at their beginning, and a vCPU.
fn machine(a: &mut Asm) {
    // AT_FDCWD, O_RDWR.
    a.set(X(0), -100_i64 as u64);
    a.adr(X(1), "name");
    a.set(X(2), 2);
    a.set(X(8), OPENAT);
    a.svc();
    a.bl("check");
    a.mov(KVM, X(0));
    ioctl(a, KVM, CREATE_VM, None);
    a.mov(VM, X(0));
    // MAP_SHARED, MAP_ANONYMOUS.
    map(a, MEMORY, 0x21, None);
    a.adr(X(1), "region");
    a.str(X(0), X(1), 24);
    a.adr(X(1), "guest");
    a.adr(X(2), "guest_end");
    a.label("copy");
    a.ldr(X(3), X(1), 0);
    a.str(X(3), X(0), 0);
    a.add_imm(X(0), X(0), 8);
    a.add_imm(X(1), X(1), 8);
    a.cmp(X(1), X(2));
    a.b_if(Cond::Below, "copy");
    ioctl(a, VM, SET_USER_MEMORY_REGION, Some("region"));
    ioctl(a, VM, CREATE_VCPU, None);
    a.mov(VCPU, X(0));
}

fn interrupt_controller(a: &mut Asm) {
    ioctl(a, VM, CREATE_DEVICE, Some("device"));
    a.adr(X(1), "device");
    a.ldr_word(GIC, X(1), 4);
    for label in ["distributor", "redistributor"] {
        a.adr(X(1), label);
        a.add_imm(X(2), X(1), 24);
        a.str(X(2), X(1), 16);
        ioctl(a, GIC, SET_DEVICE_ATTR, Some(label));
    }
    ioctl(a, VM, ARM_PREFERRED_TARGET, Some("init"));
    // KVM_ARM_VCPU_PSCI_0_2.
    a.adr(X(1), "init");
    a.set(X(2), 1 << 2);
    a.str_word(X(2), X(1), 4);
    ioctl(a, VCPU, ARM_VCPU_INIT, Some("init"));
    ioctl(a, GIC, SET_DEVICE_ATTR, Some("control"));
    a.adr(X(1), "register");
    a.add_imm(X(2), X(1), 16);
    a.str(X(2), X(1), 8);
    ioctl(a, VCPU, SET_ONE_REG, Some("register"));
    map(a, 0x1000, 1, Some(VCPU));
    a.mov(SHARED, X(0));
}

/// The guest runs; its device counts how often it was read.
fn run(a: &mut Asm) {
    a.set(X(25), 0);
    a.label("run");
    ioctl(a, VCPU, RUN, None);
    a.ldr_word(X(1), SHARED, 8);
    a.cmp_imm(X(1), EXIT_SYSTEM_EVENT);
    a.b_if(Cond::Equal, "well");
    a.cmp_imm(X(1), EXIT_MMIO);
    a.b_if(Cond::NotEqual, "failed");
    a.ldr(X(1), SHARED, 32);
    a.set(X(2), DEVICE);
    a.cmp(X(1), X(2));
    a.b_if(Cond::NotEqual, "failed");
    a.add_imm(X(25), X(25), 1);
    a.str(X(25), SHARED, 40);
    a.b("run");
}

fn helpers(a: &mut Asm) {
    a.label("ioctl");
    a.set(X(8), IOCTL);
    a.svc();
    a.label("check");
    a.bits(X(9), X(0), 63, 63);
    a.cbnz(X(9), "failed");
    a.ret();
    for (name, message) in [("failed", "message_failed"), ("well", "message_well")] {
        a.label(name);
        a.adr(X(1), message);
        a.b("end");
    }
    a.label("end");
    a.set(X(0), 1);
    a.set(X(2), 8);
    a.set(X(8), WRITE);
    a.svc();
    // LINUX_REBOOT_CMD_POWER_OFF and its magic numbers.
    a.set(X(0), 0xfee1_dead);
    a.set(X(1), 672_274_793);
    a.set(X(2), 0x4321_fedc);
    a.mov(X(3), ZERO);
    a.set(X(8), REBOOT);
    a.svc();
    a.b("end");
}

fn text(a: &mut Asm, label: &str, text: &[u8; 16]) {
    a.label(label);
    for half in [&text[..8], &text[8..]] {
        a.data(half.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    }
}

/// What KVM is told, in its structures.
fn data(a: &mut Asm) {
    a.align(8);
    text(a, "name", b"/dev/kvm\0\0\0\0\0\0\0\0");
    text(a, "message_well", b"vmm:well\0\0\0\0\0\0\0\0");
    text(a, "message_failed", b"vmm:fail\0\0\0\0\0\0\0\0");
    let each: [(&str, &[u64]); 7] = [
        // Slot and flags, address, size, place.
        ("region", &[0, GUEST_IPA, MEMORY, 0]),
        // Type, file, flags.
        ("device", &[VGIC_V3, 0]),
        // Flags and group, attribute, address of the value, and that value: the groups ADDR and CTRL.
        ("distributor", &[0, 2, 0, VGICD]),
        ("redistributor", &[0, 3, 0, REDISTRIBUTOR]),
        ("control", &[4 << 32, 0, 0]),
        ("register", &[REGISTER_PC, 0, GUEST_IPA]),
        ("init", &[0; 4]),
    ];
    for (label, words) in each {
        a.label(label);
        words.iter().for_each(|word| a.data(*word));
    }
}
