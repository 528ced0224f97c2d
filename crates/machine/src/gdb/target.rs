//! The machine as gdbstub sees it: each vCPU is a thread, numbered from 1.

use std::num::NonZeroUsize;
use std::sync::Arc;

use gdbstub::arch::{Arch, RegId, Registers};
use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume,
    MultiThreadResumeOps, MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps, MultiThreadSingleStep,
    MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps, SwBreakpoint,
    SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{TargetError, TargetResult};
use satori_bus::Clock;
use satori_memory::{Gpa, GuestMemory};
use satori_seam::{DebugCause, DebugPlan, WatchAccess, Watchpoint};

use super::Possible;
use crate::control::{Action, Control};
use crate::runs::Runs;

/// A change of registers.
pub(crate) type Change<State> = Box<dyn FnOnce(&mut State) + Send>;

/// A vCPU as a debugger sees it: what of that depends on the instruction set.
pub(crate) trait Debugged: Runs + 'static {
    type State: Clone + Send + 'static;
    /// The registers as gdb knows them, and one of them.
    type Image: Registers<ProgramCounter = u64>;
    type Number: RegId + Send + 'static;
    type Arch: Arch<Usize = u64, BreakpointKind = usize, Registers = Self::Image, RegId = Self::Number>;

    fn copy(&mut self) -> Self::State;
    /// Changes registers between two instructions.
    fn change(&mut self, change: Change<Self::State>);
    /// Where breakpoints look for the next instruction.
    fn linear_pc(state: &Self::State) -> u64;
    /// What it is doing, in a word.
    fn activity(state: &Self::State) -> &'static str;
    fn image(state: Self::State) -> Self::Image;
    fn state_of(image: Self::Image) -> Self::State;
    /// Puts a register's bytes into the buffer, and tells how many they are.
    fn read(number: Self::Number, state: &Self::State, buffer: &mut [u8]) -> Option<usize>;
    fn write(number: Self::Number, state: &mut Self::State, bytes: &[u8]) -> Option<()>;
    /// The physical address behind a linear one.
    fn translate(&self, address: u64) -> Option<u64>;
    fn memory(&self) -> &GuestMemory;
    /// The registers of a hypervisor whose guest this vCPU executes, or of the guest of the hypervisor that it executes.
    fn other(&self) -> Option<Self::State> {
        None
    }
    /// The physical address behind a linear one of that one's.
    fn translate_other(&self, _address: u64) -> Option<u64> {
        None
    }
    /// Who that is, in some words.
    fn other_is(&self) -> String {
        String::new()
    }
    /// Does a `monitor` command, and gives what it prints.
    fn monitor(target: &mut Target<Self>, command: &str) -> String;
}

/// No error of ours ends a session.
type Never = std::convert::Infallible;

/// What gdb is told when a vCPU cannot be asked, or memory is not there: EFAULT, as QEMU does.
const EFAULT: TargetError<Never> = TargetError::Errno(14);

pub(crate) struct Target<V: Debugged> {
    pub control: Arc<Control<V>>,
    pub clock: Arc<dyn Clock>,
    /// A debugger that is refused a watchpoint steps instead, and tells its user of a breakpoint.
    possible: Possible,
    actions: Vec<Action>,
    /// vCPUs that the resumption at hand names.
    mentioned: Vec<usize>,
    /// Software breakpoints: they are told of as such, though memory is not changed for them.
    software: Vec<u64>,
    hardware: Vec<u64>,
    watchpoints: Vec<Watchpoint>,
}

/// The thread number of a vCPU.
pub(crate) fn tid(vcpu: usize) -> Tid {
    NonZeroUsize::MIN.saturating_add(vcpu)
}

/// Who a thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// What this vCPU executes.
    Vcpu(usize),
    /// The other one of a hypervisor and its guest that this vCPU has: its threads come behind those of all vCPUs.
    Other(usize),
}

impl<V: Debugged> Target<V> {
    pub(super) fn new(control: Arc<Control<V>>, possible: Possible) -> Self {
        Target {
            actions: vec![Action::Continue; control.vcpus()],
            mentioned: Vec::new(),
            clock: control.clock(),
            control,
            possible,
            software: Vec::new(),
            hardware: Vec::new(),
            watchpoints: Vec::new(),
        }
    }

    fn thread(&self, tid: Tid) -> Thread {
        let (number, vcpus) = (tid.get() - 1, self.control.vcpus());
        if number < vcpus { Thread::Vcpu(number) } else { Thread::Other(number - vcpus) }
    }

    /// The vCPU that goes on if this thread is to.
    fn vcpu(&self, tid: Tid) -> usize {
        match self.thread(tid) {
            Thread::Vcpu(vcpu) | Thread::Other(vcpu) => vcpu,
        }
    }

    /// Stops all vCPUs; returns whether the machine is still there.
    pub(super) fn stop(&mut self) -> bool {
        self.control.pause()
    }

    /// Forgets everything that was asked, and lets all vCPUs run.
    pub(super) fn let_go(&mut self) {
        self.software.clear();
        self.hardware.clear();
        self.watchpoints.clear();
        self.plan();
        self.control.change_plan(|plan| plan.nested = None);
        self.control.set_step_events(false);
        while self.control.take_stop().is_some() {}
        self.control.release(&vec![Action::Continue; self.control.vcpus()]);
    }

    /// Ends the machine.
    pub(super) fn kill(&mut self) {
        self.control.shared.stop();
    }

    /// Why the vCPUs stopped, in gdb's words.
    pub(super) fn reason(&mut self) -> Option<MultiThreadStopReason<u64>> {
        let stop = self.control.take_stop()?;
        let tid = tid(stop.vcpu);
        Some(match stop.cause {
            DebugCause::Step => MultiThreadStopReason::SignalWithThread { tid, signal: Signal::SIGTRAP },
            DebugCause::Watchpoint(Watchpoint { address, access, .. }) => MultiThreadStopReason::Watch {
                tid,
                addr: address,
                kind: match access {
                    WatchAccess::Read => WatchKind::Read,
                    WatchAccess::Write => WatchKind::Write,
                    WatchAccess::Any => WatchKind::ReadWrite,
                },
            },
            DebugCause::Breakpoint => match self.state(tid) {
                Ok(state) if self.hardware.contains(&V::linear_pc(&state)) => {
                    MultiThreadStopReason::HwBreak(tid)
                }
                _ => MultiThreadStopReason::SwBreak(tid),
            },
        })
    }

    pub(crate) fn state(&self, tid: Tid) -> TargetResult<V::State, Self> {
        match self.thread(tid) {
            Thread::Vcpu(number) => self.control.with(number, |vcpu| vcpu.copy()),
            Thread::Other(number) if number < self.control.vcpus() => {
                self.control.with(number, |vcpu| vcpu.other()).flatten()
            }
            Thread::Other(_) => None,
        }
        .ok_or(EFAULT)
    }

    fn change(
        &self,
        tid: Tid,
        change: impl FnOnce(&mut V::State) + Send + 'static,
    ) -> TargetResult<(), Self> {
        // Registers of who does not execute are its hypervisor's to keep.
        let Thread::Vcpu(number) = self.thread(tid) else { return Err(EFAULT) };
        self.control.with(number, |vcpu| vcpu.change(Box::new(change))).ok_or(EFAULT)
    }

    /// All that was asked for, each address once.
    fn asked(&self) -> DebugPlan {
        let mut breakpoints = self.software.clone();
        self.hardware.iter().for_each(|address| insert(&mut breakpoints, *address));
        DebugPlan { breakpoints, watchpoints: self.watchpoints.clone(), ..DebugPlan::default() }
    }

    fn plan(&self) {
        let DebugPlan { breakpoints, watchpoints, .. } = self.asked();
        self.control.change_plan(|plan| (plan.breakpoints, plan.watchpoints) = (breakpoints, watchpoints));
    }

    /// Whether the engine could stop at all that is asked for with what `add` adds.
    fn could(&self, add: impl FnOnce(&mut DebugPlan)) -> bool {
        let mut plan = self.asked();
        add(&mut plan);
        (self.possible)(&plan)
    }
}

/// Goes through `len` bytes at `address`, a page at a time, while `each` finds them in RAM: it is
/// given the physical address and the range of bytes. Tells how many there were.
fn pages<V: Debugged>(
    vcpu: &V,
    other: bool,
    address: u64,
    len: usize,
    mut each: impl FnMut(Gpa, std::ops::Range<usize>) -> bool,
) -> usize {
    let mut done = 0;
    while done < len {
        let at = address.wrapping_add(done as u64);
        let piece = (0x1000 - (at & 0xfff) as usize).min(len - done);
        match if other { vcpu.translate_other(at) } else { vcpu.translate(at) } {
            Some(gpa) if each(Gpa(gpa), done..done + piece) => done += piece,
            _ => break,
        }
    }
    done
}

impl<V: Debugged> gdbstub::target::Target for Target<V> {
    type Arch = V::Arch;
    type Error = Never;

    fn base_ops(&mut self) -> BaseOps<'_, V::Arch, Never> {
        BaseOps::MultiThread(self)
    }
    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }
}

impl<V: Debugged> MultiThreadBase for Target<V> {
    fn read_registers(&mut self, registers: &mut V::Image, tid: Tid) -> TargetResult<(), Self> {
        *registers = V::image(self.state(tid)?);
        Ok(())
    }

    fn write_registers(&mut self, registers: &V::Image, tid: Tid) -> TargetResult<(), Self> {
        // gdbstub decodes into an image of its own: what gdb does not know of stays.
        let mut bytes = Vec::new();
        Registers::gdb_serialize(registers, |byte| bytes.push(byte.unwrap_or(0)));
        self.change(tid, move |state| {
            let mut image = V::image(state.clone());
            if Registers::gdb_deserialize(&mut image, &bytes).is_ok() {
                *state = V::state_of(image);
            }
        })
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], tid: Tid) -> TargetResult<usize, Self> {
        let len = data.len();
        let other = matches!(self.thread(tid), Thread::Other(_));
        let bytes = self.control.with(self.vcpu(tid), move |vcpu| {
            let mut bytes = vec![0; len];
            let done = pages(vcpu, other, start, len, |gpa, range| {
                vcpu.memory().read(gpa, &mut bytes[range]).is_ok()
            });
            bytes.truncate(done);
            bytes
        });
        let bytes = bytes.filter(|bytes| !bytes.is_empty() || len == 0).ok_or(EFAULT)?;
        data[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], tid: Tid) -> TargetResult<(), Self> {
        let data = data.to_vec();
        let other = matches!(self.thread(tid), Thread::Other(_));
        let whole = self.control.with(self.vcpu(tid), move |vcpu| {
            // All or nothing.
            let present = |gpa, range: std::ops::Range<usize>| {
                vcpu.memory().read(gpa, &mut vec![0; range.len()]).is_ok()
            };
            pages(vcpu, other, start, data.len(), present) == data.len()
                && pages(vcpu, other, start, data.len(), |gpa, range| {
                    vcpu.memory().write(gpa, &data[range]).is_ok()
                }) == data.len()
        });
        if whole == Some(true) { Ok(()) } else { Err(EFAULT) }
    }

    fn list_active_threads(&mut self, found: &mut dyn FnMut(Tid)) -> Result<(), Never> {
        let vcpus = self.control.vcpus();
        (0..vcpus).for_each(|vcpu| found(tid(vcpu)));
        let others =
            (0..vcpus).filter(|vcpu| self.control.with(*vcpu, |vcpu| vcpu.other().is_some()) == Some(true));
        others.for_each(|vcpu| found(tid(vcpus + vcpu)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl<V: Debugged> ThreadExtraInfo for Target<V> {
    fn thread_extra_info(&self, tid: Tid, buffer: &mut [u8]) -> Result<usize, Never> {
        let number = self.vcpu(tid);
        let text = match self.thread(tid) {
            Thread::Vcpu(_) => {
                let activity = self.state(tid).map(|state| V::activity(&state)).unwrap_or("gone");
                format!("CPU#{number} [{activity}]")
            }
            Thread::Other(_) => {
                format!(
                    "CPU#{number} {}",
                    self.control.with(number, |vcpu| vcpu.other_is()).unwrap_or_default()
                )
            }
        };
        let len = text.len().min(buffer.len());
        buffer[..len].copy_from_slice(&text.as_bytes()[..len]);
        Ok(len)
    }
}

impl<V: Debugged> SingleRegisterAccess<Tid> for Target<V> {
    fn read_register(&mut self, tid: Tid, number: V::Number, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        V::read(number, &self.state(tid)?, buffer).ok_or(TargetError::NonFatal)
    }

    fn write_register(&mut self, tid: Tid, number: V::Number, value: &[u8]) -> TargetResult<(), Self> {
        let value = value.to_vec();
        self.change(tid, move |state| {
            V::write(number, state, &value);
        })
    }
}

impl<V: Debugged> MultiThreadResume for Target<V> {
    fn resume(&mut self) -> Result<(), Never> {
        self.plan();
        self.control.release(&self.actions);
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Never> {
        self.actions.fill(Action::Continue);
        self.mentioned.clear();
        Ok(())
    }

    fn set_resume_action_continue(&mut self, tid: Tid, _signal: Option<Signal>) -> Result<(), Never> {
        self.set_action(tid, Action::Continue);
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }
    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }
    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl<V: Debugged> Target<V> {
    fn set_action(&mut self, tid: Tid, action: Action) {
        let vcpu = self.vcpu(tid);
        if let Some(slot) = self.actions.get_mut(vcpu) {
            *slot = action;
        }
        self.mentioned.push(vcpu);
    }
}

impl<V: Debugged> MultiThreadSingleStep for Target<V> {
    fn set_resume_action_step(&mut self, tid: Tid, _signal: Option<Signal>) -> Result<(), Never> {
        self.set_action(tid, Action::Step);
        Ok(())
    }
}

impl<V: Debugged> MultiThreadRangeStepping for Target<V> {
    fn set_resume_action_range_step(&mut self, tid: Tid, start: u64, end: u64) -> Result<(), Never> {
        self.set_action(tid, Action::StepRange(start, end));
        Ok(())
    }
}

impl<V: Debugged> MultiThreadSchedulerLocking for Target<V> {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Never> {
        let mentioned = std::mem::take(&mut self.mentioned);
        for (vcpu, action) in self.actions.iter_mut().enumerate() {
            if !mentioned.contains(&vcpu) {
                *action = Action::Hold;
            }
        }
        Ok(())
    }
}

impl<V: Debugged> Breakpoints for Target<V> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }
    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

/// Puts `item` into `list`, once: to insert it again changes nothing (the protocol's Z packets).
fn insert<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Takes one `item` out of `list`; returns whether there was one.
fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) -> bool {
    let place = list.iter().position(|found| found == item);
    place.is_some_and(|place| {
        list.swap_remove(place);
        true
    })
}

impl<V: Debugged> SwBreakpoint for Target<V> {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        let possible = self.could(|plan| insert(&mut plan.breakpoints, address));
        if possible {
            insert(&mut self.software, address);
        }
        Ok(possible)
    }
    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(remove(&mut self.software, &address))
    }
}

impl<V: Debugged> HwBreakpoint for Target<V> {
    fn add_hw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        let possible = self.could(|plan| insert(&mut plan.breakpoints, address));
        if possible {
            insert(&mut self.hardware, address);
        }
        Ok(possible)
    }
    fn remove_hw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(remove(&mut self.hardware, &address))
    }
}

fn watchpoint(address: u64, len: u64, kind: WatchKind) -> Watchpoint {
    let access = match kind {
        WatchKind::Write => WatchAccess::Write,
        WatchKind::Read => WatchAccess::Read,
        WatchKind::ReadWrite => WatchAccess::Any,
    };
    Watchpoint { address, len, access }
}

impl<V: Debugged> HwWatchpoint for Target<V> {
    fn add_hw_watchpoint(&mut self, address: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        let watchpoint = watchpoint(address, len, kind);
        let possible = self.could(|plan| insert(&mut plan.watchpoints, watchpoint));
        if possible {
            insert(&mut self.watchpoints, watchpoint);
        }
        Ok(possible)
    }
    fn remove_hw_watchpoint(&mut self, address: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        Ok(remove(&mut self.watchpoints, &watchpoint(address, len, kind)))
    }
}

impl<V: Debugged> MonitorCmd for Target<V> {
    fn handle_monitor_cmd(&mut self, command: &[u8], mut out: ConsoleOutput<'_>) -> Result<(), Never> {
        let command = String::from_utf8_lossy(command);
        out.write_raw(V::monitor(self, command.trim()).as_bytes());
        Ok(())
    }
}
