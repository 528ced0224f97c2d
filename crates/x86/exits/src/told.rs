//! What a trace says of x86's exits: members of JSON objects.

use satori_cpuid::msrs;
use satori_defs::x86::efer;
use satori_engine::{Event, Exit, Resume};
use satori_hyperv::call_name;
use satori_state::{CpuState, reg};

/// What was asked in an exit, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An access of an MSR, by name and with what it found.
    Msr(String, String),
    /// A hypercall.
    Hypercall(String, String),
}

/// Where the guest was, and what `exit` was about.
pub fn exit(exit: Exit, state: &CpuState) -> String {
    format!("\"rip\":\"{:#x}\"{}", state.rip, detail(exit))
}

/// The input value of the hypercall that the guest makes, if it makes one: in 64-bit mode RCX has it, else EDX:EAX (TLFS 3.7).
pub fn input(state: &CpuState) -> u64 {
    let [rcx, rax, rdx] = [reg::RCX, reg::RAX, reg::RDX].map(|register| state.gpr[register]);
    if state.efer & efer::LMA != 0 { rcx } else { rdx << 32 | rax & 0xffff_ffff }
}

/// What was asked in `exit`, for which the guest had `input`, and how it was answered.
pub fn asked(exit: Exit, input: u64, answer: Resume, state: &CpuState) -> Option<Told> {
    let faulted = if matches!(answer, Resume::Fault(_)) { ",\"fault\":true" } else { "" };
    match exit {
        Exit::MsrRead { msr } | Exit::MsrWrite { msr, .. } => {
            let value = match (exit, answer) {
                (Exit::MsrWrite { value, .. }, _) | (_, Resume::Value(value)) => value,
                _ => 0,
            };
            let verb = if matches!(exit, Exit::MsrRead { .. }) { "RDMSR" } else { "WRMSR" };
            let name = msrs::find(msr).map_or("?", |row| row.name);
            let args = format!("\"msr\":\"{msr:#x}\",\"name\":\"{name}\",\"value\":\"{value:#x}\"{faulted}");
            Some(Told::Msr(format!("{verb} {name}"), args))
        }
        Exit::Vmcall => {
            let (code, rax) = (input as u16, state.gpr[reg::RAX]);
            let name = call_name(code).unwrap_or("hypercall");
            let args =
                format!("\"code\":\"{code:#x}\",\"input\":\"{input:#x}\",\"rax\":\"{rax:#x}\"{faulted}");
            Some(Told::Hypercall(name.into(), args))
        }
        _ => None,
    }
}

/// An event's name and vector.
pub fn event(event: Event) -> (&'static str, u8) {
    match event {
        Event::Nmi => ("NMI", 2),
        Event::Interrupt(vector) => ("interrupt", vector),
        Event::Exception(exception) => ("exception", exception.vector),
    }
}

/// What an exit was about, as further members.
fn detail(exit: Exit) -> String {
    match exit {
        Exit::Cpuid { leaf, subleaf } => format!(",\"leaf\":\"{leaf:#x}\",\"subleaf\":{subleaf}"),
        Exit::IoRead { port, size } => format!(",\"in\":\"{port:#x}\",\"size\":{size}"),
        Exit::IoWrite { port, size, value } => {
            format!(",\"out\":\"{port:#x}\",\"size\":{size},\"value\":\"{value:#x}\"")
        }
        Exit::MmioRead { gpa, size } => format!(",\"read\":\"{gpa:#x}\",\"size\":{size}"),
        Exit::MmioWrite { gpa, size, value } => {
            format!(",\"write\":\"{gpa:#x}\",\"size\":{size},\"value\":\"{value:#x}\"")
        }
        Exit::ApicRead { offset, .. } => format!(",\"read\":\"{offset:#x}\""),
        Exit::ApicWrite { offset, value, .. } => {
            format!(",\"write\":\"{offset:#x}\",\"value\":\"{value:#x}\"")
        }
        Exit::EptViolation { gpa } => format!(",\"gpa\":\"{gpa:#x}\""),
        Exit::MsrRead { msr } => format!(",\"msr\":\"{msr:#x}\""),
        Exit::MsrWrite { msr, value } => format!(",\"msr\":\"{msr:#x}\",\"value\":\"{value:#x}\""),
        Exit::CrWrite { register, value } => format!(",\"cr\":{register},\"value\":\"{value:#x}\""),
        _ => String::new(),
    }
}
