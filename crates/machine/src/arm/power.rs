//! Which vCPUs are on: PSCI's CPU_ON, CPU_OFF and AFFINITY_INFO (Arm DEN 0022, 5.1).

use std::sync::{Arc, Mutex};

use crate::shared::{Bells, lock};

/// Return values of PSCI (DEN 0022, 5.2.2).
const SUCCESS: u64 = 0;
const INVALID_PARAMETERS: u64 = -2_i64 as u64;
const ALREADY_ON: u64 = -4_i64 as u64;
const ON_PENDING: u64 = -5_i64 as u64;

/// MPIDR_EL1's affinity of vCPU `index`: sixteen to a cluster.
pub(super) fn affinity(index: u32) -> u64 {
    u64::from(index / 16) << 8 | u64::from(index % 16)
}

/// Where a vCPU begins that is turned on, and what it finds in X0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(crate) entry: u64,
    pub(crate) context: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
    /// CPU_ON was called for it, and its thread has not seen that yet.
    Pending(Start),
}

/// The power state of each vCPU.
pub(super) struct Powers {
    states: Mutex<Vec<Power>>,
    bells: Arc<Bells>,
}

impl Powers {
    /// Those of so many, of which the first is on.
    pub(crate) fn new(vcpus: u32, bells: Arc<Bells>) -> Self {
        let states = (0..vcpus).map(|index| if index == 0 { Power::On } else { Power::Off });
        Powers { states: Mutex::new(states.collect()), bells }
    }

    fn index(&self, target: u64, count: usize) -> Option<usize> {
        (0..count as u32).find(|index| affinity(*index) == target).map(|index| index as usize)
    }

    /// CPU_ON of the vCPU with affinity `target`; what X0 becomes.
    pub(crate) fn turn_on(&self, target: u64, start: Start) -> u64 {
        let mut states = lock(&self.states);
        let Some(index) = self.index(target, states.len()) else { return INVALID_PARAMETERS };
        match states[index] {
            Power::On => ALREADY_ON,
            Power::Pending(_) => ON_PENDING,
            Power::Off => {
                states[index] = Power::Pending(start);
                drop(states);
                self.bells.wake(index as u32);
                SUCCESS
            }
        }
    }

    /// CPU_OFF.
    pub(crate) fn turn_off(&self, vcpu: u32) {
        lock(&self.states)[vcpu as usize] = Power::Off;
    }

    /// AFFINITY_INFO: 0 is on, 1 off, 2 about to be on.
    pub(crate) fn info(&self, target: u64) -> u64 {
        let states = lock(&self.states);
        let Some(index) = self.index(target, states.len()) else { return INVALID_PARAMETERS };
        match states[index] {
            Power::On => 0,
            Power::Off => 1,
            Power::Pending(_) => 2,
        }
    }

    /// What a vCPU was turned on to do, once.
    pub(crate) fn take_start(&self, vcpu: u32) -> Option<Start> {
        let state = &mut lock(&self.states)[vcpu as usize];
        match *state {
            Power::Pending(start) => {
                *state = Power::On;
                Some(start)
            }
            Power::On | Power::Off => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_is_turned_on_once() {
        let powers = Powers::new(18, Bells::new((0..18).map(|_| Arc::default())));
        let start = Start { entry: 0x4000_0000, context: 7 };
        assert_eq!((powers.info(0), powers.info(0x101), powers.info(0x102)), (0, 1, INVALID_PARAMETERS));
        assert_eq!(powers.turn_on(0, start), ALREADY_ON);
        assert_eq!(powers.turn_on(0x101, start), SUCCESS);
        assert_eq!((powers.turn_on(0x101, start), powers.info(0x101)), (ON_PENDING, 2));
        assert_eq!((powers.take_start(17), powers.take_start(17)), (Some(start), None));
        assert_eq!(powers.turn_on(0x101, start), ALREADY_ON);
        powers.turn_off(17);
        assert_eq!(powers.info(0x101), 1);
    }
}
