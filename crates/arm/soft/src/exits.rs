//! Exits of a hypervisor's guest to EL2, counted by the names that `perf kvm stat` has for them, and what was done of each until the
//! guest went on: the anatomy of a switch between worlds.

use std::mem::offset_of;

use satori_arm_state::{Group, Sys};
use satori_seam::Stat;

/// What is counted while a vCPU is away from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Event {
    /// Instructions.
    Instructions,
    /// Exceptions taken to EL1 or EL2.
    Exceptions,
    /// ERETs.
    Returns,
    /// ERETs to EL0: of them those that went to a program.
    ToPrograms,
    /// ISB, DSB and DMB.
    Barriers,
    /// TLBI.
    Invalidations,
    /// Loads from devices.
    DeviceReads,
    /// Stores to devices.
    DeviceWrites,
}

/// Where MRS by group begins among the counts, and MSR.
const READS: usize = Event::DeviceWrites as usize + 1;
const WRITES: usize = READS + Group::COUNT;
const EVENTS: usize = WRITES + Group::COUNT;

type Counts = [u64; EVENTS];

/// Names of the counters: an array a kind of exit, of which the first is how many there were, and the others [`Counts`].
macro_rules! names {
    ($($kind:literal)*) => { [$(names!(@ $kind
        "instructions" "exceptions" "returns" "to_programs" "barriers" "tlbi" "device_reads" "device_writes"
        "read_el1" "read_el2" "read_syndrome" "read_traps" "read_stage2" "read_timer" "read_virtual_gic" "read_gic"
        "read_debug" "read_thread" "read_other"
        "write_el1" "write_el2" "write_syndrome" "write_traps" "write_stage2" "write_timer" "write_virtual_gic" "write_gic"
        "write_debug" "write_thread" "write_other")),*] };
    (@ $kind:literal $($event:literal)*) => {
        [concat!("switch.", $kind, ".samples"), $(concat!("switch.", $kind, ".", $event)),*]
    };
}

/// Kinds of exits as they are told apart when the guest goes on.
const KINDS: usize = 11;
static NAMES_OF_SWITCHES: [[&str; 1 + EVENTS]; KINDS] = names!(
    "HVC64" "SYS64" "MMIO_kernel" "MMIO_user" "stage2_fault" "IRQ" "WFx" "FP_ASIMD" "SMC64" "IABT_LOW" "other"
);
const STAGE2_FAULT: usize = 4;

fn kind(class: usize, emulated: bool, by_program: bool) -> usize {
    match (class, emulated) {
        (0x16, _) => 0,
        (0x18, _) => 1,
        (0x24, true) => 2 + usize::from(by_program),
        (0x24, false) => STAGE2_FAULT,
        (Exits::IRQ, _) => 5,
        (0x01, _) => 6,
        (0x07, _) => 7,
        (0x17, _) => 8,
        (0x20, _) => 9,
        _ => 10,
    }
}

/// A guest's exit that it has not come back from.
struct Away {
    class: usize,
    /// The guest's program counter, which is behind the instruction if that was emulated.
    pc: u64,
    before: Counts,
}

/// The counts of a vCPU.
pub(crate) struct Exits {
    /// By exception class, ESR_EL2.EC, and behind them interrupts.
    classes: [u64; 65],
    all: Counts,
    away: Option<Away>,
    samples: [u64; KINDS],
    sums: Box<[Counts; KINDS]>,
}

/// Exception classes with a name of perf's (Linux's `kvm_arm_exception_class`), and interrupts.
const NAMES: [(usize, &str); 18] = [
    (0x00, "el2_UNKNOWN"),
    (0x01, "el2_WFx"),
    (0x07, "el2_FP_ASIMD"),
    (0x0e, "el2_ILL"),
    (0x15, "el2_SVC64"),
    (0x16, "el2_HVC64"),
    (0x17, "el2_SMC64"),
    (0x18, "el2_SYS64"),
    (0x20, "el2_IABT_LOW"),
    (0x22, "el2_PC_ALIGN"),
    (0x24, "el2_DABT_LOW"),
    (0x26, "el2_SP_ALIGN"),
    (0x30, "el2_BREAKPT_LOW"),
    (0x32, "el2_SOFTSTP_LOW"),
    (0x34, "el2_WATCHPT_LOW"),
    (0x3c, "el2_BRK64"),
    (0x2c, "el2_FP_EXC64"),
    (Exits::IRQ, "el2_IRQ"),
];

/// Where translated code counts in a vCPU.
pub mod counter {
    use super::{Event, Exits, Group, READS, offset_of};
    use crate::cpu::Cpu;

    /// ISB, DSB and DMB.
    pub const BARRIERS: usize = of(Event::Barriers as usize);

    /// MRS of a group's registers.
    pub fn reads(group: Group) -> usize {
        of(READS + group as usize)
    }

    const fn of(event: usize) -> usize {
        offset_of!(Cpu, exits) + offset_of!(Exits, all) + 8 * event
    }
}

impl Exits {
    /// The place of interrupts.
    pub(crate) const IRQ: usize = 64;

    /// None so far.
    pub(crate) fn new() -> Self {
        Exits {
            classes: [0; 65],
            all: [0; EVENTS],
            away: None,
            samples: [0; KINDS],
            sums: Box::new([[0; EVENTS]; KINDS]),
        }
    }

    /// One thing that happened.
    #[inline(always)]
    pub(crate) fn happened(&mut self, event: Event) {
        self.all[event as usize] += 1;
    }

    /// MRS of a register.
    #[inline(always)]
    pub(crate) fn read(&mut self, sys: Sys) {
        self.all[READS + sys.group() as usize] += 1;
    }

    /// MSR to one.
    #[inline(always)]
    pub(crate) fn wrote(&mut self, sys: Sys) {
        self.all[WRITES + sys.group() as usize] += 1;
    }

    /// A guest is left by an exception of `class` at `pc`, behind so many instructions of this vCPU.
    pub(crate) fn leave(&mut self, class: usize, pc: u64, instructions: u64) {
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
        self.all[Event::Instructions as usize] = instructions;
        self.away = Some(Away { class, pc, before: self.all });
    }

    /// A guest goes on at `pc`.
    pub(crate) fn go_on(&mut self, pc: u64, instructions: u64) {
        let Some(away) = self.away.take() else { return };
        self.all[Event::Instructions as usize] = instructions;
        let of = |event: Event| self.all[event as usize] - away.before[event as usize];
        let kind = kind(away.class, pc == away.pc.wrapping_add(4), of(Event::ToPrograms) > 0);
        self.samples[kind] += 1;
        for ((sum, now), before) in self.sums[kind].iter_mut().zip(self.all).zip(away.before) {
            *sum += now - before;
        }
    }

    /// Those that there were, as counters of the engine.
    pub(crate) fn stats(&self) -> impl Iterator<Item = Stat> {
        let classes = NAMES.iter().map(|&(at, name)| (name, self.classes[at]));
        let switches = NAMES_OF_SWITCHES.iter().zip(self.samples).zip(self.sums.iter());
        let switches = switches.flat_map(|((names, samples), sums)| {
            names.iter().copied().zip(std::iter::once(samples).chain(sums.iter().copied()))
        });
        classes.chain(switches).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_what_happened_between_leaving_and_going_on() {
        let mut exits = Exits::new();
        exits.read(Sys::SCTLR_EL1);
        exits.go_on(0, 5);
        // A device that a program emulates: behind the load, by way of EL0.
        exits.leave(0x24, 0x100, 10);
        exits.read(Sys::TTBR0_EL1);
        exits.read(Sys::ICH_LR0_EL2);
        exits.wrote(Sys::HCR_EL2);
        exits.happened(Event::ToPrograms);
        exits.go_on(0x104, 60);
        // A page that was mapped.
        exits.leave(0x24, 0x100, 70);
        exits.go_on(0x100, 90);
        let stats: Vec<_> = exits.stats().collect();
        let of = |name: &str| stats.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        assert_eq!(of("el2_DABT_LOW"), 2);
        assert_eq!((of("switch.MMIO_user.samples"), of("switch.MMIO_user.instructions")), (1, 50));
        assert_eq!((of("switch.MMIO_user.read_el1"), of("switch.MMIO_user.read_virtual_gic")), (1, 1));
        assert_eq!((of("switch.MMIO_user.write_traps"), of("switch.MMIO_user.to_programs")), (1, 1));
        assert_eq!((of("switch.stage2_fault.samples"), of("switch.stage2_fault.instructions")), (1, 20));
    }

    #[test]
    fn names_of_counters_are_in_the_order_of_groups() {
        for (at, group) in Group::ALL.iter().enumerate() {
            let name = format!("{group:?}").to_lowercase();
            let of = |from: usize| NAMES_OF_SWITCHES[0][1 + from + at].replace('_', "");
            assert_eq!(of(READS), format!("switch.HVC64.read{name}"));
            assert_eq!(of(WRITES), format!("switch.HVC64.write{name}"));
        }
    }
}
