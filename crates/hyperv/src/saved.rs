//! The partition as plain data.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use crate::partition::Shared;
use crate::{Flush, Partition, ReferenceClock, SavedSynic};

/// Everything of a partition that a guest can change, but for its [`Vp`](crate::Vp)s, which are
/// plain data themselves. Guest memory, in which overlays show, is saved beside it, and so is the
/// clock, from which reference time follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    guest_os_id: u64,
    tsc_invariant: u64,
    /// How reference time follows from what guests see of the TSC.
    reference: ReferenceClock,
    shared: Shared,
    /// What each virtual processor has still to drop.
    flushes: Vec<Flush>,
    synic: SavedSynic,
}

impl Partition {
    /// The partition as plain data, while no processor runs.
    pub fn save(&self) -> Saved {
        Saved {
            guest_os_id: self.guest_os_id.load(Ordering::SeqCst),
            tsc_invariant: self.tsc_invariant.load(Ordering::Relaxed),
            reference: *self.guest_reference.read().unwrap_or_else(PoisonError::into_inner),
            shared: self.shared().clone(),
            flushes: self.slots.save(),
            synic: self.save_synic(),
        }
    }

    /// Takes what [`Partition::save`] gave, before any processor runs.
    pub fn restore(&self, saved: Saved) {
        self.guest_os_id.store(saved.guest_os_id, Ordering::SeqCst);
        self.tsc_invariant.store(saved.tsc_invariant, Ordering::Relaxed);
        *self.guest_reference.write().unwrap_or_else(PoisonError::into_inner) = saved.reference;
        *self.shared() = saved.shared;
        self.slots.restore(saved.flushes);
        self.restore_synic(saved.synic);
    }
}

#[cfg(test)]
mod tests {
    use satori_defs::hyperv::msr;
    use satori_memory::{Gpa, GuestMemory};

    use crate::msr::tests::partition_of;
    use crate::{Flush, Outcome, Partition, Saved, Vp, VpSet};

    const ALL: &str = "all,-hv-apicv";

    /// Every MSR that the partition answers, as each processor reads it.
    fn registers(partition: &Partition, vps: &[Vp]) -> Vec<(u32, u32, u64)> {
        let read = |vp: &Vp, register: u32| partition.msr_read(vp, register).ok();
        let one = |vp: &Vp| {
            let of = |register| Some((vp.index(), register, read(vp, register)?));
            (msr::FIRST..=msr::LAST).filter_map(of).collect::<Vec<_>>()
        };
        vps.iter().flat_map(one).collect()
    }

    fn copy(memory: &GuestMemory) -> Vec<u8> {
        let mut bytes = vec![0; 0x8000];
        memory.read(Gpa(0), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_partition_comes_back_with_every_register_flush_and_covered_page() {
        let (partition, _, memory) = partition_of(ALL, 2);
        let mut vps = [Vp::new(0), Vp::new(1)];
        memory.write(Gpa(0), &vec![0x5a; 0x8000]).unwrap();
        let written = [
            (0, msr::GUEST_OS_ID, 0x8100_0000_0000_0001),
            (0, msr::HYPERCALL, 0x1003),
            (1, msr::REFERENCE_TSC, 0x2001),
            (0, msr::VP_ASSIST_PAGE, 0x3001),
            (1, msr::VP_ASSIST_PAGE, 0x4001),
            (1, msr::CRASH_P0 + 2, 0x77),
            (0, msr::REENLIGHTENMENT_CONTROL, 0x1_0000_00ef | 1 << 32),
            (0, msr::TSC_EMULATION_CONTROL, 1),
            (1, msr::TSC_INVARIANT_CONTROL, 1),
            (1, msr::SCONTROL, 1),
            (1, msr::SIMP, 0x5001),
            (1, msr::SINT0 + 2, 0x30),
        ];
        for (vp, register, value) in written {
            assert_eq!(
                partition.msr_write(&mut vps[vp], register, value),
                Ok(Outcome::Done),
                "{register:#x}"
            );
        }
        partition.slots().flush(0, &VpSet::mask(2), &Flush::Pages(vec![0x1000]));
        let saved = serde_json::to_string(&(partition.save(), &vps)).unwrap();

        let (restored, _, fresh) = partition_of(ALL, 2);
        fresh.write(Gpa(0), &copy(&memory)).unwrap();
        let (state, mut again): (Saved, [Vp; 2]) = serde_json::from_str(&saved).unwrap();
        restored.restore(state.clone());
        assert_eq!(restored.save(), state);
        assert_eq!(again, vps);
        assert_eq!(registers(&restored, &again), registers(&partition, &vps));
        assert_eq!(restored.slots().enter(1).take(), Flush::Pages(vec![0x1000]));
        for (partition, vps) in [(&partition, &mut vps), (&restored, &mut again)] {
            assert_eq!(partition.msr_write(&mut vps[0], msr::GUEST_OS_ID, 0), Ok(Outcome::Done));
            assert_eq!(partition.msr_write(&mut vps[0], msr::REFERENCE_TSC, 0), Ok(Outcome::Done));
            assert_eq!(partition.msr_write(&mut vps[1], msr::SIMP, 0), Ok(Outcome::Done));
        }
        assert_eq!(copy(&fresh), copy(&memory), "what was covered is given back as it was");
        assert_eq!(fresh.read_u32(Gpa(0x1000)).unwrap(), 0x5a5a_5a5a);
    }
}
