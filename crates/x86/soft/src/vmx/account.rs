//! What nested guests cost whoever is below their hypervisor: on hardware each exit of L2 comes to L0 first, and each VMX
//! instruction by which L1 handles it is an exit of its own. Here neither takes an exit; they are counted as if.

use satori_defs::vmx::{ExitReason, NestedWork};
use satori_engine::{Exit, Stat};
use satori_vmx::field::shadowed;

use super::REASONS;
use crate::cpu::Cpu;

/// Kinds of work.
const WORKS: usize = NestedWork::ALL.len();

/// The counters of one processor.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// VM entries that succeeded.
    pub entries: u64,
    /// VM entries that failed, by any error.
    pub failed: u64,
    /// Of all entries, those with an enlightened VMCS.
    enlightened: u64,
    /// Clean fields of those, in bits.
    clean: u64,
    /// Entries whose MSR bitmap was known to be as before.
    bitmaps_spared: u64,
    /// VM exits that L1 handles, by basic reason; the last one is for reasons that the processor's list does not have.
    pub exits: [u64; REASONS],
    /// Exits of L2 of which L1 knows nothing.
    kept: [u64; REASONS],
    /// What L1 executed to handle them, by the reason of the exit before.
    work: Box<[[u64; WORKS]; REASONS]>,
    /// The reason of the last exit.
    last: usize,
}

impl Default for Account {
    fn default() -> Self {
        Account {
            entries: 0,
            failed: 0,
            enlightened: 0,
            clean: 0,
            bitmaps_spared: 0,
            exits: [0; REASONS],
            kept: [0; REASONS],
            work: Box::new([[0; WORKS]; REASONS]),
            // Before the first exit: nobody's.
            last: REASONS - 1,
        }
    }
}

/// A count that no run reaches.
const COUNT: u64 = 1 << 62;

impl Account {
    /// Its counters, in an order of their own.
    fn counters(&mut self) -> impl Iterator<Item = &mut u64> {
        let Account { entries, failed, enlightened, clean, bitmaps_spared, exits, kept, work, last: _ } =
            self;
        let single = [entries, failed, enlightened, clean, bitmaps_spared];
        single.into_iter().chain(exits).chain(kept).chain(work.iter_mut().flatten())
    }

    /// The counters that are not 0, by their places; the first is that of the last exit's reason.
    pub(super) fn save(&self) -> Vec<(u32, u64)> {
        let mut copy = self.clone();
        let counts = (1..).zip(copy.counters()).filter(|(_, count)| **count != 0);
        [(0, self.last as u64)].into_iter().chain(counts.map(|(place, count)| (place, *count))).collect()
    }

    /// Counters that were saved; nothing if they were not.
    pub(super) fn restored(saved: &[(u32, u64)]) -> Option<Self> {
        let mut account = Account::default();
        let [(0, last), counts @ ..] = saved else { return None };
        account.last = usize::try_from(*last).ok().filter(|last| *last < REASONS)?;
        let mut left = counts.iter().peekable();
        for (place, counter) in (1..).zip(account.counters()) {
            if let Some((_, count)) = left.next_if(|(at, _)| *at == place) {
                *counter = *count;
            }
        }
        let sound = left.next().is_none() && counts.iter().all(|(_, count)| *count < COUNT);
        sound.then_some(account)
    }

    /// L2 left for `reason`.
    pub(crate) fn left(&mut self, reason: u32) {
        self.last = (reason as usize).min(REASONS - 1);
        self.exits[self.last] += 1;
    }

    /// L1 executed an instruction of VMX.
    pub(crate) fn worked(&mut self, work: NestedWork) {
        self.work[self.last][work as usize] += 1;
    }

    /// L1 executed VMREAD or VMWRITE of the field with this encoding.
    pub(crate) fn accessed(&mut self, encoding: u64, write: bool) {
        self.worked(match (write, shadowed(encoding)) {
            (false, true) => NestedWork::VmreadShadowed,
            (false, false) => NestedWork::Vmread,
            (true, true) => NestedWork::VmwriteShadowed,
            (true, false) => NestedWork::Vmwrite,
        });
    }

    /// An entry with an enlightened VMCS, with these clean fields; `spared`: it need not look at the MSR bitmap.
    pub(crate) fn enlightened_entry(&mut self, clean: u32, spared: bool) {
        self.enlightened += 1;
        self.clean += u64::from((clean & 0xffff).count_ones());
        self.bitmaps_spared += u64::from(spared);
    }

    /// The counters by their names.
    pub(crate) fn stats(&self) -> impl Iterator<Item = Stat> {
        let reasons = ExitReason::ALL.iter().flat_map(|reason| {
            let at = *reason as usize;
            let works =
                NestedWork::ALL.iter().map(move |work| (reason.nested_work(*work), at, *work as usize));
            let works = works.map(|(name, at, work)| (name, self.work[at][work]));
            [(reason.nested(), self.exits[at]), (reason.nested_kept(), self.kept[at])]
                .into_iter()
                .chain(works)
        });
        [
            ("entries of L2", self.entries),
            ("entries of L2 that failed", self.failed),
            ("entries of L2 with eVMCS", self.enlightened),
            ("clean fields at entries of L2", self.clean),
            ("MSR bitmaps of L2 known to be unchanged", self.bitmaps_spared),
            ("exits of L2: TRAP_AFTER_FLUSH", self.exits[REASONS - 1]),
        ]
        .into_iter()
        .chain(reasons)
        .filter(|(_, count)| *count != 0)
    }
}

impl Cpu {
    /// Counts an exit to the machine: of L2, which L1 never sees, or of L1 while it handles one.
    pub(crate) fn account(&mut self, exit: &Exit) {
        if !self.vmx.on {
            return;
        }
        let account = &mut self.vmx.account;
        match exit.reason() {
            Some(reason) if self.vmx.guest => {
                if let Some(count) = account.kept.get_mut(reason as usize) {
                    *count += 1;
                }
            }
            Some(_) => account.worked(NestedWork::Other),
            None => {}
        }
    }
}
