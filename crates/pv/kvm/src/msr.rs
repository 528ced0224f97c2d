//! KVM's MSRs.

use satori_defs::kvm::{ENABLED, msr, steal};
use satori_defs::msr::Gp;
use satori_memory::Gpa;
use satori_pv::wall_clock;

use crate::vm::Account;
use crate::{Feature, Vcpu, Vm};

impl Vm {
    /// Lets an access to `register` pass, and counts it; #GP if it is not offered.
    fn permit(&self, register: u32) -> Result<(), Gp> {
        let owner = Feature::of_msr(register).filter(|owner| self.config.set.has(*owner)).ok_or(Gp)?;
        let way = owner.row().msrs.iter().position(|other| *other == register).unwrap_or(0);
        self.usage.note(owner as usize, way, self.clock.now());
        Ok(())
    }

    /// RDMSR.
    pub fn msr_read(&self, this: &Vcpu, register: u32) -> Result<u64, Gp> {
        self.permit(register)?;
        Ok(match register {
            msr::WALL_CLOCK | msr::WALL_CLOCK_OLD => self.times().wall,
            msr::SYSTEM_TIME | msr::SYSTEM_TIME_OLD => {
                self.times().vcpus.get(this.index as usize).map_or(0, |time| time.value)
            }
            msr::STEAL_TIME => this.steal,
            msr::PV_EOI_EN => this.eoi,
            msr::POLL_CONTROL => this.poll,
            msr::MIGRATION_CONTROL => this.migration,
            _ => return Err(Gp),
        })
    }

    /// WRMSR by a vCPU whose counter is ahead of the machine's by `tsc_offset`.
    ///
    /// An address outside memory is kept and nothing is written there, as in KVM; only the EOI's is refused, which the host
    /// could not change atomically.
    pub fn msr_write(&self, this: &mut Vcpu, register: u32, value: u64, tsc_offset: u64) -> Result<(), Gp> {
        self.permit(register)?;
        match register {
            msr::WALL_CLOCK | msr::WALL_CLOCK_OLD => {
                self.times().wall = value;
                wall_clock(&self.memory, Gpa(value), self.clock.epoch());
            }
            msr::SYSTEM_TIME | msr::SYSTEM_TIME_OLD => self.set_time(this.index, value, tsc_offset),
            msr::STEAL_TIME => {
                if value & (steal::BYTES - 1) & !ENABLED != 0 {
                    return Err(Gp);
                }
                this.steal = value;
                this.stopped = false;
                this.account = Account::default();
            }
            msr::PV_EOI_EN => {
                let place = Gpa(value & !ENABLED);
                let there = place.0.is_multiple_of(4) && self.memory.has(place, 4);
                if value & ENABLED != 0 && !there || value & 2 != 0 {
                    return Err(Gp);
                }
                this.eoi = value;
            }
            msr::POLL_CONTROL | msr::MIGRATION_CONTROL if value & !1 != 0 => return Err(Gp),
            msr::POLL_CONTROL => this.poll = value,
            msr::MIGRATION_CONTROL => this.migration = value,
            _ => return Err(Gp),
        }
        Ok(())
    }
}
