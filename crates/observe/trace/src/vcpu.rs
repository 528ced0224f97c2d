//! What one vCPU writes.

use std::io::Write;
use std::sync::Arc;

use satori_bus::Nanos;
use satori_cpuid::msrs;
use satori_defs::vmx::ExitReason;
use satori_engine::{Event, Exit, Resume};
use satori_hyperv::call_name;
use satori_state::{CpuState, reg};

use crate::Filter;
use crate::writer::{BUFFER, Outlet, Piece};

/// An exit that is not over.
struct Pending {
    exit: Exit,
    /// None if the modelled processor does not exit there.
    reason: Option<ExitReason>,
    rip: u64,
    begin: Nanos,
    /// The input value of a hypercall.
    input: u64,
    /// What was answered, and when.
    answer: Option<(Resume, u64, Nanos)>,
}

/// The trace of one vCPU; dropping it hands on what it still has.
pub struct VcpuTrace {
    index: u32,
    filter: Arc<Filter>,
    outlet: Arc<Outlet>,
    text: Vec<u8>,
    events: u64,
    pending: Option<Pending>,
}

/// Nanoseconds as the format's microseconds.
struct Micros(Nanos);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl VcpuTrace {
    pub(crate) fn new(index: u32, filter: Arc<Filter>, outlet: Arc<Outlet>) -> Self {
        VcpuTrace { index, filter, outlet, text: Vec::new(), events: 0, pending: None }
    }

    /// The vCPU exited, or stopped where the modelled processor does not exit.
    pub fn exit(&mut self, exit: Exit, reason: Option<ExitReason>, state: &CpuState, now: Nanos) {
        // In 64-bit mode RCX has it, else EDX:EAX (TLFS 3.7).
        let [rcx, rax, rdx] = [reg::RCX, reg::RAX, reg::RDX].map(|register| state.gpr[register]);
        let input =
            if state.efer & satori_defs::x86::efer::LMA != 0 { rcx } else { rdx << 32 | rax & 0xffff_ffff };
        self.pending = Some(Pending { exit, reason, rip: state.rip, begin: now, input, answer: None });
    }

    /// The exit was handled.
    pub fn handled(&mut self, answer: Resume, state: &CpuState, now: Nanos) {
        if let Some(pending) = &mut self.pending {
            pending.answer = Some((answer, state.gpr[reg::RAX], now.max(pending.begin)));
        }
    }

    /// The vCPU is about to be entered, or will never be again.
    pub fn entry(&mut self, now: Nanos) {
        let Some(pending) = self.pending.take() else { return };
        let Pending { exit, reason, rip, begin, input, answer } = pending;
        let end = now.max(begin);
        if let Some(reason) = reason.filter(|&reason| self.filter.reason(reason)) {
            let what = detail(exit);
            self.slice(reason.name(), "exit", begin, end, format_args!("\"rip\":\"{rip:#x}\"{what}"));
        }
        let Some((answer, rax, handled)) = answer else { return };
        let faulted = if matches!(answer, Resume::Fault(_)) { ",\"fault\":true" } else { "" };
        let within = handled.min(end);
        match exit {
            Exit::MsrRead { msr } | Exit::MsrWrite { msr, .. } if self.filter.msr => {
                let value = match (exit, answer) {
                    (Exit::MsrWrite { value, .. }, _) | (_, Resume::Value(value)) => value,
                    _ => 0,
                };
                let verb = if matches!(exit, Exit::MsrRead { .. }) { "RDMSR" } else { "WRMSR" };
                let name = msrs::find(msr).map_or("?", |row| row.name);
                let args =
                    format!("\"msr\":\"{msr:#x}\",\"name\":\"{name}\",\"value\":\"{value:#x}\"{faulted}");
                self.slice(&format!("{verb} {name}"), "msr", begin, within, format_args!("{args}"));
            }
            Exit::Vmcall if self.filter.hypercall => {
                let code = input as u16;
                let name = call_name(code).unwrap_or("hypercall");
                let args =
                    format!("\"code\":\"{code:#x}\",\"input\":\"{input:#x}\",\"rax\":\"{rax:#x}\"{faulted}");
                self.slice(name, "hypercall", begin, within, format_args!("{args}"));
            }
            _ => {}
        }
    }

    /// Something was injected.
    pub fn injected(&mut self, event: Event, now: Nanos) {
        if !self.filter.interrupt {
            return;
        }
        let (name, vector) = match event {
            Event::Nmi => ("NMI", 2),
            Event::Interrupt(vector) => ("interrupt", vector),
            Event::Exception(exception) => ("exception", exception.vector),
        };
        self.event(format_args!(
            "\"name\":\"{name} {vector:#x}\",\"cat\":\"interrupt\",\"ph\":\"i\",\"s\":\"t\",\"ts\":{},\"args\":{{\"vector\":{vector}}}",
            Micros(now)
        ));
    }

    fn slice(&mut self, name: &str, kind: &str, begin: Nanos, end: Nanos, args: std::fmt::Arguments<'_>) {
        let (ts, dur) = (Micros(begin), Micros(end - begin));
        self.event(format_args!(
            "\"name\":\"{name}\",\"cat\":\"{kind}\",\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur},\"args\":{{{args}}}"
        ));
    }

    fn event(&mut self, fields: std::fmt::Arguments<'_>) {
        // Writing to a Vec cannot fail. A track of number 0 would be no thread's.
        let _ = write!(self.text, ",\n{{\"pid\":1,\"tid\":{},{fields}}}", self.index + 1);
        self.events += 1;
        if self.text.len() >= BUFFER {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.events > 0 {
            let (text, events) = (std::mem::take(&mut self.text), std::mem::take(&mut self.events));
            self.outlet.send(Piece { text, events });
        }
    }
}

impl Drop for VcpuTrace {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What an exit was about, as further arguments.
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
