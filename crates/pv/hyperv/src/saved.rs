//! The partition as plain data.

use std::sync::atomic::Ordering;

use satori_lock::Held;
use satori_pv::SavedUsage;
use serde::{Deserialize, Serialize};

use crate::overlay::Overlays;
use crate::partition::Shared;
use crate::{Flush, Partition, ReferenceClock, SavedSynic, Vp};

/// Everything of a partition that a guest can change, but for its [`Vp`]s, which are
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
    /// What it used of all that is offered.
    usage: SavedUsage,
}

impl satori_save::State for Saved {
    const NAME: &'static str = "Hyper-V partition";
    const VERSION: u32 = 2;
}

impl satori_save::State for Vp {
    const NAME: &'static str = "Hyper-V VP";
    const VERSION: u32 = 1;
}

/// What [`Partition::restore`] refuses, and why: a file that holds a partition may come from anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Of another number of processors.
    #[error("the saved Hyper-V state is of another number of processors: use the one that it was saved with")]
    Processors,
    /// Overlays outside memory, twice, or not of a page's size.
    #[error(
        "the saved Hyper-V state has overlay pages that cannot be: it is damaged, or of another memory size"
    )]
    Overlays,
    /// Synthetic interrupt controllers, their messages and ports.
    #[error("the saved Hyper-V state has interrupt controllers that cannot be: it is damaged")]
    Synic,
    /// Frequencies, flushes or counts.
    #[error("the saved Hyper-V state has a clock, flushes or counts that cannot be: it is damaged")]
    Values,
}

impl Partition {
    /// Why `saved` cannot be of this partition.
    fn unfit(&self, saved: &Saved) -> Option<Unfit> {
        let vps = self.slots.count();
        let shared = &saved.shared;
        let followed = |hz: u64| ReferenceClock::new(hz).is_some();
        if saved.flushes.len() != vps as usize {
            return Some(Unfit::Processors);
        }
        if !shared.overlays.fit(&self.memory, vps) {
            return Some(Unfit::Overlays);
        }
        if !self.synic_fits(&saved.synic) {
            return Some(Unfit::Synic);
        }
        let values = saved.reference.runs()
            && shared.next_tsc_hz.is_none_or(followed)
            && saved.flushes.iter().all(Flush::fits)
            && self.usage.0.fits(&saved.usage);
        (!values).then_some(Unfit::Values)
    }

    /// Goes on from `before`, whose machine slept (ACPI S3) and which is of the same memory: the guest is the same, so that
    /// its identity and what it was told of the TSC stay. Overlays are taken away, and what belongs to a processor is new,
    /// as behind a reset: Linux enables both again when it wakes, and its identity it does not tell again.
    pub fn go_on_from(&self, before: &Partition) {
        let mut slept = before.shared();
        slept.overlays.uncover_all(&before.memory);
        let clone = slept.clone();
        *self.shared() = Shared { hypercall: 0, reference_tsc: 0, overlays: Overlays::default(), ..clone };
        self.guest_os_id.store(before.guest_os_id.load(Ordering::SeqCst), Ordering::SeqCst);
        self.tsc_invariant.store(before.tsc_invariant.load(Ordering::Relaxed), Ordering::Relaxed);
        *self.guest_reference.write().held() = *before.guest_reference.read().held();
    }

    /// The partition as plain data, while no processor runs.
    pub fn save(&self) -> Saved {
        Saved {
            guest_os_id: self.guest_os_id.load(Ordering::SeqCst),
            tsc_invariant: self.tsc_invariant.load(Ordering::Relaxed),
            reference: *self.guest_reference.read().held(),
            shared: self.shared().clone(),
            flushes: self.slots.save(),
            synic: self.save_synic(),
            usage: self.usage.0.save(),
        }
    }

    /// Takes what [`Partition::save`] gave, before any processor runs; what no partition of this kind can have come
    /// to is refused, and changes nothing.
    pub fn restore(&self, saved: Saved) -> Result<(), Unfit> {
        if let Some(why) = self.unfit(&saved) {
            return Err(why);
        }
        self.guest_os_id.store(saved.guest_os_id, Ordering::SeqCst);
        self.tsc_invariant.store(saved.tsc_invariant, Ordering::Relaxed);
        *self.guest_reference.write().held() = saved.reference;
        *self.shared() = saved.shared;
        self.slots.restore(saved.flushes);
        self.restore_synic(saved.synic);
        let counted = self.usage.0.restore(&saved.usage);
        debug_assert!(counted, "it fits");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use satori_defs::hyperv::msr;
    use satori_memory::{Gpa, GuestMemory};

    use crate::msr::tests::partition_of;
    use crate::{Flush, Outcome, Partition, Saved, Vp, VpSet};

    const ALL: &str = "all,-hv-apicv";

    #[test]
    fn who_slept_is_known_and_finds_its_pages() {
        let (partition, _, memory) = partition_of(ALL, 1);
        let mut vp = Vp::new(0);
        assert_eq!(partition.msr_write(&mut vp, msr::GUEST_OS_ID, 0x8100_0000_0001_0000), Ok(Outcome::Done));
        let page = 0x3000;
        memory.write(Gpa(page), &[7; 8]).unwrap();
        assert_eq!(partition.msr_write(&mut vp, msr::HYPERCALL, page | 1), Ok(Outcome::Done));
        assert_eq!(partition.msr_write(&mut vp, msr::REFERENCE_TSC, 0x4001), Ok(Outcome::Done));
        assert_ne!(memory.read_u64(Gpa(page)).unwrap(), 0x0707_0707_0707_0707);
        let (woken, ..) = partition_of(ALL, 1);
        let mut vp = Vp::new(0);
        woken.go_on_from(&partition);
        assert_eq!(memory.read_u64(Gpa(page)).unwrap(), 0x0707_0707_0707_0707);
        assert_eq!(woken.msr_read(&vp, msr::GUEST_OS_ID).unwrap(), 0x8100_0000_0001_0000);
        assert_eq!(woken.msr_read(&vp, msr::HYPERCALL).unwrap(), 0);
        assert_eq!(woken.msr_read(&vp, msr::REFERENCE_TSC).unwrap(), 0);
        assert_eq!(woken.msr_write(&mut vp, msr::HYPERCALL, page | 1), Ok(Outcome::Done));
        assert_eq!(woken.msr_read(&vp, msr::HYPERCALL).unwrap(), page | 1, "without its identity again");
    }

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
        assert_eq!(restored.restore(state.clone()), Ok(()));
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

    /// Puts hostile values into each place of a saved partition, one after the other: it is refused, by serde or by
    /// the check, or it lives on whatever the guest does next.
    #[test]
    fn hostile_states_are_refused_or_harmless() {
        let (partition, _, memory) = partition_of(ALL, 2);
        let mut vps = [Vp::new(0), Vp::new(1)];
        let written = [
            (msr::GUEST_OS_ID, 0x8100_0000_0000_0001),
            (msr::HYPERCALL, 0x1003),
            (msr::REFERENCE_TSC, 0x1001),
            (msr::SCONTROL, 1),
            (msr::SIMP, 0x5001),
            (msr::SIEFP, 0x6001),
            (msr::SINT0 + 2, 0x30),
        ];
        for (register, value) in written {
            assert_eq!(partition.msr_write(&mut vps[0], register, value), Ok(Outcome::Done));
        }
        partition.slots().flush(0, &VpSet::mask(2), &Flush::Pages(vec![0x1000]));
        let saved = serde_json::to_value(partition.save()).unwrap();
        let (mut refused, mut taken) = (0, 0);
        for number in 0.. {
            let mut reached = false;
            for hostile in [u64::MAX, 1 << 63, 0x7fff_f001, 5, 0].map(serde_json::Value::from) {
                let mut state = saved.clone();
                let mut left = number;
                let Some(place) = leaf(&mut state, &mut left) else { continue };
                reached = true;
                *place = hostile;
                let (again, _, fresh) = partition_of(ALL, 2);
                fresh.write(Gpa(0), &copy(&memory)).unwrap();
                match serde_json::from_value::<Saved>(state).map(|state| again.restore(state)) {
                    Err(_) | Ok(Err(_)) => refused += 1,
                    Ok(Ok(())) => {
                        taken += 1;
                        registers(&again, &vps);
                        for register in msr::FIRST..=msr::LAST {
                            for value in [0, 0x2001] {
                                let _ = again.msr_write(&mut vps[1], register, value);
                                let _ = again.msr_write(&mut Vp::new(0), register, value);
                            }
                        }
                        again.end_of_interrupt(0, 0x30);
                    }
                }
            }
            if !reached {
                break;
            }
        }
        assert!(refused > 50 && taken > 50, "{refused} refused, {taken} taken");
    }

    /// The number of that rank in a tree, arrays of bytes by their first element only.
    fn leaf<'a>(value: &'a mut serde_json::Value, left: &mut usize) -> Option<&'a mut serde_json::Value> {
        use serde_json::Value;
        match value {
            Value::Number(_) if *left == 0 => Some(value),
            Value::Number(_) => {
                *left -= 1;
                None
            }
            Value::Array(items) => {
                let many = if items.len() > 64 { 1 } else { items.len() };
                items.iter_mut().take(many).find_map(|item| leaf(item, left))
            }
            Value::Object(map) => map.values_mut().find_map(|item| leaf(item, left)),
            _ => None,
        }
    }

    #[test]
    fn states_of_other_partitions_are_refused() {
        let (two, ..) = partition_of(ALL, 2);
        let (three, ..) = partition_of(ALL, 3);
        assert_eq!(three.restore(two.save()), Err(super::Unfit::Processors));
        let mut saved = two.save();
        saved.reference = serde_json::from_str(r#"{"scale":0,"offset":0}"#).unwrap();
        assert_eq!(two.restore(saved), Err(super::Unfit::Values));
    }
}
