//! Hypercalls: VMCALL and VMMCALL with a number in RAX.

use std::sync::atomic::Ordering;

use satori_defs::kvm::{call, error};
use satori_memory::Gpa;
use satori_state::{CpuState, reg};

use crate::{Feature, Vcpu, Vm};

/// What the machine has to do after a hypercall.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing.
    Done,
    /// The caller gives its time away.
    Yield,
    /// An interrupt goes to each of these vCPUs.
    Ipi {
        /// The vCPUs' numbers.
        vcpus: Vec<u32>,
        /// The vector; none is an NMI.
        vector: Option<u8>,
    },
}

/// The name of hypercall `number`.
pub fn call_name(number: u64) -> Option<&'static str> {
    Some(match number {
        call::VAPIC_POLL_IRQ => "KVM_HC_VAPIC_POLL_IRQ",
        call::KICK_CPU => "KVM_HC_KICK_CPU",
        call::CLOCK_PAIRING => "KVM_HC_CLOCK_PAIRING",
        call::SEND_IPI => "KVM_HC_SEND_IPI",
        call::SCHED_YIELD => "KVM_HC_SCHED_YIELD",
        call::MAP_GPA_RANGE => "KVM_HC_MAP_GPA_RANGE",
        _ => return None,
    })
}

/// The delivery mode of an ICR value.
const MODE: u64 = 7 << 8;
const LOWEST_PRIORITY: u64 = 1 << 8;
const NMI: u64 = 4 << 8;
/// Destination mode and shorthand, which such an ICR has not.
const DESTINATIONS: u64 = 1 << 11 | 3 << 18;

impl Vm {
    /// VMCALL of a vCPU with the registers `cpu`: takes the arguments from them and leaves the result in RAX.
    pub fn hypercall(&self, this: &mut Vcpu, cpu: &mut CpuState) -> Outcome {
        let long = cpu.code64();
        let wide = |value: u64| if long { value } else { value & 0xffff_ffff };
        let number = wide(cpu.gpr[reg::RAX]);
        let arguments = [reg::RBX, reg::RCX, reg::RDX, reg::RSI].map(|at| wide(cpu.gpr[at]));
        let (result, outcome) = match cpu.cpl() {
            0 => self.serve(this, cpu.tsc_offset, long, number, arguments),
            _ => (error::EPERM, Outcome::Done),
        };
        cpu.gpr[reg::RAX] = wide(result as u64);
        outcome
    }

    fn serve(
        &self,
        this: &Vcpu,
        tsc_offset: u64,
        long: bool,
        number: u64,
        [a, b, c, d]: [u64; 4],
    ) -> (i64, Outcome) {
        let Some(owner) = Feature::of_call(number).filter(|owner| self.config.set.has(*owner)) else {
            return (error::ENOSYS, Outcome::Done);
        };
        let row = owner.row();
        let way = row.calls.iter().position(|other| *other == number).unwrap_or(0);
        self.usage.note(owner as usize, row.msrs.len() + way, self.clock.now());
        match number {
            call::KICK_CPU => {
                if let Some(vcpu) = self.by_apic_id(b) {
                    self.kicked[vcpu as usize].store(true, Ordering::SeqCst);
                    self.wake.wake(vcpu);
                }
                (0, Outcome::Yield)
            }
            call::CLOCK_PAIRING => (self.pair(tsc_offset, a, b), Outcome::Done),
            call::SEND_IPI => self.ipi(long, [a, b, c, d]),
            call::SCHED_YIELD => {
                let other = self.by_apic_id(a).is_some_and(|vcpu| vcpu != this.index);
                (0, if other { Outcome::Yield } else { Outcome::Done })
            }
            // VAPIC_POLL_IRQ: an interrupt that waits is injected at the next entry anyhow.
            _ => (0, Outcome::Done),
        }
    }

    fn by_apic_id(&self, id: u64) -> Option<u32> {
        self.apic_ids.iter().zip(0..).find(|(known, _)| u64::from(**known) == id).map(|(_, vcpu)| vcpu)
    }

    /// IPIs to those of a mask of 128 (or 64) bits whose first stands for APIC ID `first`.
    fn ipi(&self, long: bool, [low, high, first, icr]: [u64; 4]) -> (i64, Outcome) {
        let mode = icr & MODE;
        if icr & DESTINATIONS != 0 || !matches!(mode, 0 | LOWEST_PRIORITY | NMI) {
            return (error::EINVAL, Outcome::Done);
        }
        let width = if long { 64 } else { 32 };
        let mask = u128::from(low) | u128::from(high) << width;
        let named = |id: u32| {
            let place = u64::from(id).checked_sub(first).filter(|place| *place < 2 * width);
            place.is_some_and(|place| mask >> place & 1 != 0)
        };
        let vcpus: Vec<_> =
            self.apic_ids.iter().zip(0..).filter(|(id, _)| named(**id)).map(|(_, vcpu)| vcpu).collect();
        let vector = (mode != NMI).then_some(icr as u8);
        (vcpus.len() as i64, Outcome::Ipi { vcpus, vector })
    }

    /// Writes wall clock and counter of one moment to `gpa`; `kind` 0 is the only one.
    fn pair(&self, tsc_offset: u64, gpa: u64, kind: u64) -> i64 {
        if kind != 0 {
            return error::EOPNOTSUPP;
        }
        let tsc = self.clock.guest_counter();
        let wall = self.clock.epoch().saturating_add(self.times().scale.at(tsc));
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&(wall / 1_000_000_000).to_le_bytes());
        bytes[8..16].copy_from_slice(&(wall % 1_000_000_000).to_le_bytes());
        bytes[16..24].copy_from_slice(&tsc.wrapping_add(tsc_offset).to_le_bytes());
        match self.memory.write(Gpa(gpa), &bytes) {
            Ok(()) => 0,
            Err(_) => error::EFAULT,
        }
    }
}
