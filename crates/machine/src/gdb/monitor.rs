//! gdb's `monitor` commands.

use std::fmt::Write;

use satori_state::{Activity, CpuState};

use super::map;
use super::target::tid;
use crate::tsc_change::SLOWEST;
use crate::x86::MachineVcpu;

type Target = super::target::Target<MachineVcpu>;

const HELP: &str = "\
monitor help                  this list
monitor info                  the machine's vCPUs and time
monitor regs [CPU]            system registers of one vCPU, or of all
monitor translate CPU ADDR    the physical address behind a linear one
monitor tsc-frequency HZ      has the guest's TSC go on at this frequency, as after a migration
monitor dirty-log start|stop  logs which pages of RAM are written, by the guest and its devices, or no more
monitor dirty-log take        the ranges that were, since the start or the last take
monitor ram                   where the guest has RAM
monitor ram add ADDR BYTES    gives it more, all zeros; no table of the firmware's tells it
monitor ram move ADDR TO      moves the range that begins at ADDR
monitor ram remove ADDR       takes that range away
monitor vmcs [CPU]            the VMCS or VMCB in use: controls, the last exit, guest and host
monitor level any|1|2         whether breakpoints stop the guest, or its own guests, only [any]
monitor step-events on|off    whether interrupts are delivered while a vCPU is stepped [off]
";

/// What a vCPU is doing, in a word.
pub(super) fn activity(state: &CpuState) -> &'static str {
    match state.activity {
        Activity::Active => "running",
        Activity::Halted => "halted",
        Activity::WaitForSipi => "waits for SIPI",
        Activity::Shutdown => "shut down",
    }
}

/// Does `command` and gives what it prints.
pub(super) fn command(target: &mut Target, command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        [] | ["help"] => HELP.into(),
        ["info"] => info(target),
        ["regs"] => (0..target.control.vcpus()).map(|vcpu| registers(target, vcpu)).collect(),
        ["regs", number] => match number.parse() {
            Ok(vcpu) if vcpu < target.control.vcpus() => registers(target, vcpu),
            _ => no_such(target, number),
        },
        ["translate", number, address] => match (number.parse(), parse_address(address)) {
            (Ok(vcpu), Some(address)) if vcpu < target.control.vcpus() => {
                match target.control.with(vcpu, move |vcpu| vcpu.vcpu().translate(address)) {
                    Some(Some(gpa)) => format!("{gpa:#x}\n"),
                    _ => format!("{address:#x} is not mapped\n"),
                }
            }
            (Ok(vcpu), Some(_)) => no_such(target, &format!("{vcpu}")),
            _ => format!("'{command}' needs a CPU's number and an address\n"),
        },
        ["tsc-frequency", hz] => match hz.parse() {
            Ok(hz) if hz >= SLOWEST => {
                target.control.with(0, move |vcpu| vcpu.change_tsc_frequency(hz));
                format!("the TSC goes on at {} Hz\n", target.clock.guest_counter_hz())
            }
            _ => format!("'{command}' needs a frequency in Hz of at least {SLOWEST}\n"),
        },
        ["dirty-log", ref asked @ ..] => map::dirty_log(&target.control, asked),
        ["ram", ref asked @ ..] => map::ram(&target.control, asked),
        ["vmcs" | "vmcb"] => (0..target.control.vcpus()).map(|vcpu| vmcs(target, vcpu)).collect(),
        ["vmcs" | "vmcb", number] => match number.parse() {
            Ok(vcpu) if vcpu < target.control.vcpus() => vmcs(target, vcpu),
            _ => no_such(target, number),
        },
        ["level", word @ ("any" | "1" | "2")] => {
            let nested = (word != "any").then_some(word == "2");
            target.control.change_plan(|plan| plan.nested = nested);
            let who = match nested {
                None => "the guest, and guests of its own",
                Some(false) => "the guest, and not its own guests",
                Some(true) => "the guest's own guests, and not itself",
            };
            format!("breakpoints stop {who}\n")
        }
        ["step-events", word @ ("on" | "off")] => {
            target.control.set_step_events(word == "on");
            format!(
                "interrupts are {}delivered while a vCPU is stepped\n",
                if word == "on" { "" } else { "not " }
            )
        }
        _ => format!("'{command}' is no command, or not all of one; 'monitor help' lists them\n"),
    }
}

fn no_such(target: &Target, number: &str) -> String {
    format!("there is no CPU {number}: count from 0 to {}\n", target.control.vcpus() - 1)
}

pub(super) fn parse_address(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn info(target: &Target) -> String {
    let clock = &target.clock;
    let mut text = format!(
        "time {} ns, TSC {:#x} at {} Hz\n",
        clock.now(),
        clock.guest_counter(),
        clock.guest_counter_hz()
    );
    for vcpu in 0..target.control.vcpus() {
        let Some((state, retired)) =
            target.control.with(vcpu, |vcpu| (vcpu.registers().clone(), vcpu.vcpu().retired()))
        else {
            continue;
        };
        let _ = writeln!(
            text,
            "CPU#{vcpu} {}, RIP {:#x}, CPL {}, {retired} instructions",
            activity(&state),
            state.rip,
            state.cpl()
        );
    }
    text
}

/// The VMCS or VMCB that a vCPU has in use, by groups.
fn vmcs(target: &Target, vcpu: usize) -> String {
    let Some(Some(view)) = target.control.with(vcpu, |vcpu| vcpu.vcpu().nested()) else {
        return format!("CPU#{vcpu} has no VMCS or VMCB in use\n");
    };
    let who = if view.inside { "its guest executes" } else { "its hypervisor executes" };
    let mut text = format!("CPU#{vcpu} {} at {:#x}, {who}\n", view.form, view.at);
    let mut before = "";
    for (group, name, value) in view.fields {
        if group != before {
            let _ = writeln!(text, "{group}:");
            before = group;
        }
        let _ = writeln!(text, "  {name:28} {value:#x}");
    }
    text
}

fn registers(target: &Target, vcpu: usize) -> String {
    let Ok(s) = target.state(tid(vcpu)) else { return format!("CPU#{vcpu} is gone\n") };
    let mut text = format!(
        "CPU#{vcpu}\nRIP {:016x} RFLAGS {:08x} CPL {}\nCR0 {:08x} CR2 {:016x} CR3 {:016x} CR4 {:08x} CR8 {:x}\n\
         EFER {:x} XCR0 {:x} DR6 {:x} DR7 {:x} DR0-3 {:x?}\n",
        s.rip,
        s.rflags,
        s.cpl(),
        s.cr0,
        s.cr2,
        s.cr3,
        s.cr4,
        s.tpr >> 4,
        s.efer,
        s.xcr0,
        s.dr6,
        s.dr7,
        s.dr
    );
    let names = ["ES", "CS", "SS", "DS", "FS", "GS"];
    let segments = names.into_iter().zip(&s.seg).chain([("LDTR", &s.ldtr), ("TR", &s.tr)]);
    for (name, segment) in segments {
        let _ = writeln!(
            text,
            "{name:4} {:04x} base {:016x} limit {:08x} rights {:05x}",
            segment.selector, segment.base, segment.limit, segment.rights
        );
    }
    let _ = writeln!(
        text,
        "GDTR base {:016x} limit {:04x}  IDTR base {:016x} limit {:04x}  kernel GS base {:016x}",
        s.gdtr.base, s.gdtr.limit, s.idtr.base, s.idtr.limit, s.kernel_gs_base
    );
    let blocked = if s.interrupt_shadow { ", in an interrupt shadow" } else { "" };
    let _ = writeln!(text, "{}{blocked}", activity(&s));
    text
}
