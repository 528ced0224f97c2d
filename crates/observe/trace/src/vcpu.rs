//! What one vCPU writes.

use std::io::Write;
use std::sync::Arc;

use satori_bus::Nanos;
use satori_seam::Reason;

use crate::Filter;
use crate::writer::{BUFFER, Outlet, Piece};

/// An exit that is not over.
struct Pending {
    /// None if the modelled processor does not exit there.
    reason: Option<Reason>,
    args: String,
    begin: Nanos,
    /// What was asked and answered, and when.
    handled: Option<(Option<Inner>, Nanos)>,
}

/// What kind of request was in an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read or write of a system register.
    Register,
    /// A call of the hypervisor.
    Hypercall,
}

impl Kind {
    /// Its category in the file.
    const fn word(self) -> &'static str {
        match self {
            Kind::Register => "msr",
            Kind::Hypercall => "hypercall",
        }
    }
}

/// A request that was in an exit, with its answer: a slice of its own within that of the exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Members of a JSON object, without its braces.
    pub args: String,
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

    /// The vCPU exited, or stopped where the modelled processor does not exit; `args` are members of a JSON object that say
    /// where it was and what the exit was about.
    pub fn exit(&mut self, reason: Option<Reason>, args: impl FnOnce() -> String, now: Nanos) {
        let reason = reason.filter(|&reason| self.filter.reason(reason));
        let args = reason.map_or_else(String::new, |_| args());
        self.pending = Some(Pending { reason, args, begin: now, handled: None });
    }

    /// The exit was handled; `inner` is what was asked in it.
    pub fn handled(&mut self, inner: impl FnOnce() -> Option<Inner>, now: Nanos) {
        let Some(pending) = &mut self.pending else { return };
        let inner = if self.filter.msr || self.filter.hypercall { inner() } else { None };
        pending.handled = Some((inner, now.max(pending.begin)));
    }

    /// The vCPU is about to be entered, or will never be again.
    pub fn entry(&mut self, now: Nanos) {
        let Some(Pending { reason, args, begin, handled }) = self.pending.take() else { return };
        let end = now.max(begin);
        if let Some(reason) = reason {
            self.slice(reason.name(), "exit", begin, end, &args);
        }
        if let Some((Some(Inner { kind, name, args }), handled)) = handled
            && self.filter.inner(kind)
        {
            self.slice(&name, kind.word(), begin, handled.min(end), &args);
        }
    }

    /// An event of that name and vector was injected.
    pub fn injected(&mut self, name: &str, vector: u8, now: Nanos) {
        if !self.filter.interrupt {
            return;
        }
        self.event(format_args!(
            "\"name\":\"{name} {vector:#x}\",\"cat\":\"interrupt\",\"ph\":\"i\",\"s\":\"t\",\"ts\":{},\"args\":{{\"vector\":{vector}}}",
            Micros(now)
        ));
    }

    fn slice(&mut self, name: &str, kind: &str, begin: Nanos, end: Nanos, args: &str) {
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
