//! vcpu_op: vCPUs' timers, areas and states.

use satori_defs::xen::errno::{EFAULT, EINVAL, ENOENT, ENOSYS, ENXIO};
use satori_defs::xen::shared_info;
use satori_memory::{Gpa, PAGE_SIZE};
use satori_pv::TimeArea;

use crate::domain::State;
use crate::hypercall::{Bytes, Caller, Outcome, Served, done};
use crate::{Domain, Vcpu};

/// The shortest period of a periodic timer, in nanoseconds.
const SHORTEST_PERIOD: u64 = 1_000_000;

impl Domain {
    pub(crate) fn vcpu_op(
        &self,
        this: &mut Vcpu,
        caller: &Caller<'_>,
        [command, vcpu, at, ..]: [u64; 5],
    ) -> Served {
        let vcpu = vcpu as u32;
        if vcpu as usize >= self.state().vcpus.len() {
            return Err(ENOENT);
        }
        let own = || if vcpu == this.index { Ok(()) } else { Err(EINVAL) };
        match command as u32 {
            // They are started by INIT and SIPI, of which this interface knows nothing: what exists is up.
            3 => done(1),
            4 => {
                let runstate = self.runstate(&self.state(), vcpu);
                self.copy_out(caller, at, &runstate)?;
                done(0)
            }
            5 => {
                let gpa = self.area(caller, at)?;
                let mut state = self.state();
                state.vcpus[vcpu as usize].runstate = gpa;
                self.write_runstate(&state, vcpu);
                done(0)
            }
            6 => {
                let period: Bytes<8> = self.structure(caller, at)?;
                own()?;
                if period.u64(0) < SHORTEST_PERIOD {
                    return Err(EINVAL);
                }
                this.periodic = Some((period.u64(0), self.system_time().saturating_add(period.u64(0))));
                done(0)
            }
            7 => {
                own()?;
                this.periodic = None;
                done(0)
            }
            8 => {
                let timer: Bytes<16> = self.structure(caller, at)?;
                own()?;
                this.singleshot = Some(timer.u64(0));
                done(0)
            }
            9 => {
                own()?;
                this.singleshot = None;
                done(0)
            }
            10 => {
                let place: Bytes<16> = self.structure(caller, at)?;
                self.register_vcpu_info(vcpu, place.u64(0), place.u32(8), this.index)?;
                done(0)
            }
            11 => Ok((0, Outcome::Nmi(vcpu))),
            13 => {
                let gpa = self.area(caller, at)?;
                let mut state = self.state();
                state.vcpus[vcpu as usize].times[1] = gpa.map(|gpa| TimeArea::new(Gpa(gpa)));
                self.place_time(&mut state, vcpu);
                done(0)
            }
            _ => Err(ENOSYS),
        }
    }

    /// Where the area is whose address is at the guest's `at`; address 0 takes it away, as Linux does before it is suspended.
    fn area(&self, caller: &Caller<'_>, at: u64) -> Result<Option<u64>, i64> {
        match self.structure::<8>(caller, at)?.u64(0) {
            0 => Ok(None),
            address => Ok(Some((caller.translate)(address).ok_or(EFAULT)?)),
        }
    }

    /// Places the vcpu_info of `vcpu`, once, with what it holds.
    fn register_vcpu_info(&self, vcpu: u32, gfn: u64, offset: u32, own: u32) -> Result<(), i64> {
        let mut state = self.state();
        if state.vcpus[vcpu as usize].info.is_some() {
            return Err(EINVAL);
        }
        let within = u64::from(offset) <= PAGE_SIZE - shared_info::VCPU_INFO;
        let page = gfn.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        if !within || !offset.is_multiple_of(4) {
            return Err(ENXIO);
        }
        let to = Gpa(page + u64::from(offset));
        let mut info = [0; shared_info::VCPU_INFO as usize];
        if let Some(before) = state.vcpu_info(vcpu) {
            self.memory.read(before, &mut info).map_err(|_| EINVAL)?;
        }
        self.memory.write(to, &info).map_err(|_| EINVAL)?;
        state.vcpus[vcpu as usize].info = Some(to.0);
        self.place_time(&mut state, vcpu);
        // What became pending meanwhile is looked for everywhere.
        let selector = Gpa(to.0 + shared_info::PENDING_SEL);
        self.memory.write(selector, &u64::MAX.to_le_bytes()).map_err(|_| EINVAL)?;
        self.upcall(&state, vcpu, Some(own));
        Ok(())
    }

    /// The runstate structure of `vcpu`: state, when it began, and how long it was in each of the four.
    fn runstate(&self, state: &State, vcpu: u32) -> [u8; 48] {
        let mut bytes = [0; 48];
        let vcpu = &state.vcpus[vcpu as usize];
        bytes[..4].copy_from_slice(&vcpu.state.to_le_bytes());
        bytes[8..16].copy_from_slice(&vcpu.since.to_le_bytes());
        for (place, spent) in bytes[16..].chunks_exact_mut(8).zip(vcpu.spent) {
            place.copy_from_slice(&spent.to_le_bytes());
        }
        bytes
    }

    fn write_runstate(&self, state: &State, vcpu: u32) {
        /// In the time at which the state began: the area is being written.
        const UPDATING: u64 = 1 << 63;
        let Some(at) = state.vcpus[vcpu as usize].runstate else { return };
        let bytes = self.runstate(state, vcpu);
        let since = state.vcpus[vcpu as usize].since;
        let begins = Gpa(at + 8);
        // An area that is not in memory is written nowhere, as the guest cannot read it either.
        if state.runstate_flag {
            let _ = self.memory.write(begins, &(since | UPDATING).to_le_bytes());
        }
        let _ = self.memory.write(Gpa(at), &bytes[..4]);
        let _ = self.memory.write(Gpa(at + 16), &bytes[16..]);
        let _ = self.memory.write(begins, &since.to_le_bytes());
    }

    /// `vcpu` goes into `next` at time `now`.
    pub(crate) fn change_runstate(&self, vcpu: u32, next: u32, now: u64) {
        let mut state = self.state();
        let Some(own) = state.vcpus.get_mut(vcpu as usize) else { return };
        if let Some(spent) = own.spent.get_mut(own.state as usize) {
            *spent = spent.saturating_add(now.saturating_sub(own.since));
        }
        (own.state, own.since) = (next, now);
        self.write_runstate(&state, vcpu);
    }
}
