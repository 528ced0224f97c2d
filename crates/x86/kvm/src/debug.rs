//! What a debugger outside asks, by KVM_SET_GUEST_DEBUG: the processor's four debug registers, and its trap flag.
//!
//! The guest's own debug registers are kept and read as they were set, and break nowhere while a debugger has those of the
//! processor. Its memory is not changed: a fifth breakpoint is refused ([`fits`]).

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, kvm_guest_debug,
    kvm_guest_debug_arch,
};
use satori_defs::x86::dr6::{self, BS};
use satori_defs::x86::vector;
use satori_engine::{DebugCause, DebugPlan, Exception, Parts, Vcpu, WatchAccess, Watchpoint};

use crate::vcpu::KvmVcpu;

/// Debug registers that hold addresses.
const REGISTERS: usize = 4;
/// DR7: exact data breakpoints, and a bit that is always set.
const DR7: u64 = 1 << 9 | 1 << 10;

/// What one debug register stops at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Armed {
    address: u64,
    /// R/W and LEN of DR7.
    kind: u64,
    cause: DebugCause,
}

/// What is asked of a vCPU, as the processor has it.
#[derive(Debug, Default)]
pub(crate) struct Debugger {
    armed: Vec<Armed>,
    pub(crate) step: bool,
    /// The kernel has it.
    told: bool,
}

/// The registers that `plan` needs; none if the processor has no such watchpoint.
fn registers(plan: &DebugPlan) -> Option<Vec<Armed>> {
    let mut armed = Vec::new();
    for watchpoint in &plan.watchpoints {
        armed.extend(pieces(watchpoint)?);
    }
    let execution = |&address| Armed { address, kind: 0, cause: DebugCause::Breakpoint };
    armed.extend(plan.breakpoints.iter().map(execution));
    Some(armed)
}

/// The aligned pieces of 1, 2, 4 or 8 bytes that `watchpoint` consists of. No register stops at reads alone.
fn pieces(watchpoint: &Watchpoint) -> Option<Vec<Armed>> {
    let access = match watchpoint.access {
        WatchAccess::Read => return None,
        WatchAccess::Write => 1,
        WatchAccess::Any => 3,
    };
    let (mut address, mut left, mut armed) = (watchpoint.address, watchpoint.len, Vec::new());
    while left > 0 && armed.len() <= REGISTERS {
        let (size, len) = [(8, 2), (4, 3), (2, 1), (1, 0_u64)]
            .into_iter()
            .find(|(size, _)| address % size == 0 && *size <= left)?;
        armed.push(Armed { address, kind: access | len << 2, cause: DebugCause::Watchpoint(*watchpoint) });
        (address, left) = (address.wrapping_add(size), left - size);
    }
    Some(armed)
}

/// Whether the processor has registers for all of `plan`.
pub(crate) fn fits(plan: &DebugPlan) -> bool {
    registers(plan).is_some_and(|armed| armed.len() <= REGISTERS)
}

impl Debugger {
    /// That of `plan`. What does not fit was refused before; it stops nowhere.
    pub(crate) fn new(plan: &DebugPlan) -> Self {
        let mut armed = registers(plan).unwrap_or_default();
        armed.truncate(REGISTERS);
        Debugger { armed, step: plan.step, told: false }
    }

    /// What the kernel is told.
    fn request(&self) -> kvm_guest_debug {
        let mut arch = kvm_guest_debug_arch::default();
        let mut control = 0;
        for (number, armed) in self.armed.iter().enumerate() {
            arch.debugreg[number] = armed.address;
            arch.debugreg[7] |= DR7 | 2 << (2 * number) | armed.kind << (16 + 4 * number);
            control |= KVM_GUESTDBG_USE_HW_BP;
        }
        if self.step {
            control |= KVM_GUESTDBG_SINGLESTEP;
        }
        if control != 0 {
            control |= KVM_GUESTDBG_ENABLE;
        }
        kvm_guest_debug { control, pad: 0, arch }
    }

    /// Why the processor stopped with `dr6`, if a debugger asked for that. An access comes before the step that made it.
    fn cause(&self, dr6: u64) -> Option<DebugCause> {
        let hit = |number: &usize| dr6 >> number & 1 != 0;
        let hits = || (0..self.armed.len()).filter(hit).map(|number| self.armed[number].cause);
        let data = hits().find(|cause| matches!(cause, DebugCause::Watchpoint(_)));
        let step = (self.step && dr6 & BS != 0).then_some(DebugCause::Step);
        data.or_else(|| hits().next()).or(step)
    }
}

impl KvmVcpu {
    /// Tells the kernel what is asked, behind the registers of an entry: it keeps where a step began, and remembers that with
    /// each request.
    pub(crate) fn tell_debugger(&mut self) {
        if self.debugger.told && !self.debugger.step {
            return;
        }
        let done = self.fd.set_guest_debug(&self.debugger.request());
        self.check("KVM_SET_GUEST_DEBUG", done.map_err(Into::into));
        self.debugger.told = true;
    }

    /// Why the processor stopped with a debug exception. One that is the guest's own is raised in it.
    pub(crate) fn stopped_for_debugger(&mut self, dr6: u64) -> Option<DebugCause> {
        let cause = self.debugger.cause(dr6);
        if cause.is_none() {
            let state = self.state_mut(Parts::DEBUG);
            state.dr6 = state.dr6 & !dr6::HITS | dr6;
            self.fault = Some(Exception::new(vector::DB));
        }
        cause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(address: u64, len: u64, access: WatchAccess) -> Watchpoint {
        Watchpoint { address, len, access }
    }

    #[test]
    fn four_registers_hold_breakpoints_and_aligned_data() {
        let plan = |breakpoints: &[u64], watchpoints: &[Watchpoint]| DebugPlan {
            breakpoints: breakpoints.to_vec(),
            watchpoints: watchpoints.to_vec(),
            step: false,
            nested: None,
        };
        let word = watch(0x1001, 3, WatchAccess::Write);
        assert!(fits(&plan(&[1, 2, 3, 4], &[])) && !fits(&plan(&[1, 2, 3, 4, 5], &[])));
        assert!(fits(&plan(&[1, 2], &[word])), "a byte and two bytes");
        assert!(!fits(&plan(&[1, 2, 3], &[word])));
        assert!(!fits(&plan(&[], &[watch(0, 8, WatchAccess::Read)])), "no register stops at reads alone");
        assert!(!fits(&plan(&[], &[watch(0, 1 << 40, WatchAccess::Any)])));
        let debugger = Debugger::new(&plan(&[0x55], &[word]));
        let request = debugger.request();
        assert_eq!(request.arch.debugreg[..4], [0x1001, 0x1002, 0x55, 0]);
        assert_eq!(request.arch.debugreg[7], 0x0051_062a);
        assert_eq!(request.control, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP);
        assert_eq!(Debugger::default().request().control, 0);
    }

    #[test]
    fn a_stop_has_the_cause_that_was_asked_for() {
        let data = watch(0x1000, 4, WatchAccess::Any);
        let plan = DebugPlan { breakpoints: vec![0x55], watchpoints: vec![data], step: true, nested: None };
        let debugger = Debugger::new(&plan);
        assert_eq!(debugger.cause(1 | BS), Some(DebugCause::Watchpoint(data)));
        assert_eq!(debugger.cause(2), Some(DebugCause::Breakpoint));
        assert_eq!(debugger.cause(BS), Some(DebugCause::Step));
        assert_eq!(debugger.cause(4), None, "a register that nobody armed");
        assert_eq!(Debugger::new(&DebugPlan::default()).cause(BS), None, "the guest steps itself");
    }
}
