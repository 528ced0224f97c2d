//! The platform MSRs, those that belong to no engine, APIC or paravirtual interface, and the table
//! of all MSRs, [`TABLE`]: what each read answers, what each write does, and why.
//!
//! A register that CPUID does not offer, or that is not in the table, is #GP.

mod row;
mod table;

use satori_defs::msr::{self, Gp};
use satori_rules::mtrr;
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::CpuidTable;
pub use row::{Apic, Needs, Owner, Register, Row, Synthetic, Write};
pub use table::TABLE;

/// What the registers' first values and rules follow from.
#[derive(Debug)]
pub struct Setup<'a> {
    /// What the processor offers.
    pub cpuid: &'a CpuidTable,
    /// Frequency of the TSC in Hz.
    pub tsc_hz: u64,
    /// MAXPHYADDR, 32 to 52.
    pub physical_bits: u8,
    /// Base and size of the hole for devices below 4 GiB, which the MTRRs make uncacheable. The
    /// size is a power of two and the base a multiple of it.
    pub uncached: Option<(u64, u64)>,
}

/// Which row a register is of, if it is in the table at all.
pub fn find(register: u32) -> Option<&'static Row> {
    index(register).map(|index| &TABLE[index])
}

/// The row of IA32_MISC_ENABLE.
const MISC_ENABLE: usize = {
    let mut index = 0;
    while TABLE[index].first != msr::IA32_MISC_ENABLE {
        index += 1;
    }
    index
};

fn index(register: u32) -> Option<usize> {
    let after = TABLE.partition_point(|row| row.first <= register);
    after.checked_sub(1).filter(|&index| register <= TABLE[index].last)
}

/// The platform MSRs of one vCPU. INIT does not change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformMsrs {
    physical_bits: u8,
    /// By row: whether CPUID offers it.
    present: Vec<bool>,
    /// By row: where its values begin.
    places: Vec<usize>,
    values: Vec<u64>,
}

impl PlatformMsrs {
    /// The registers as firmware leaves them.
    pub fn new(setup: &Setup<'_>) -> Self {
        let mut msrs = PlatformMsrs {
            physical_bits: setup.physical_bits.clamp(32, 52),
            present: TABLE.iter().map(|row| row.needs.met(setup)).collect(),
            places: Vec::new(),
            values: Vec::new(),
        };
        for row in TABLE {
            msrs.places.push(msrs.values.len());
            if let Owner::Platform { start, .. } = row.owner {
                msrs.values.extend((row.first..=row.last).map(|_| start(setup)));
            }
        }
        if let Some((base, size)) = setup.uncached {
            let address = (1u64 << msrs.physical_bits) - 1;
            let mask = !size.wrapping_sub(1) & address & !0xfff | mtrr::VALID;
            for (register, value) in
                [(msr::IA32_MTRR_PHYSBASE0, base & !0xfff), (msr::IA32_MTRR_PHYSBASE0 + 1, mask)]
            {
                if let Some(slot) = msrs.slot(register) {
                    *slot = value;
                }
            }
        }
        msrs
    }

    /// The row of `register`, if this processor has it.
    pub fn row(&self, register: u32) -> Option<&'static Row> {
        index(register).filter(|&index| self.present[index]).map(|index| &TABLE[index])
    }

    fn slot(&mut self, register: u32) -> Option<&mut u64> {
        let index = index(register)?;
        let offset = (register - TABLE[index].first) as usize;
        self.values.get_mut(self.places[index] + offset)
    }

    /// IA32_MISC_ENABLE, which each CPUID follows: it is not looked for.
    pub fn misc_enable(&self) -> u64 {
        if self.present[MISC_ENABLE] { self.values[self.places[MISC_ENABLE]] } else { 0 }
    }

    /// Whether VM_CR has an INIT become #SX (APM volume 2, 15.30.1).
    pub fn redirects_init(&self) -> bool {
        self.read(msr::AMD_VM_CR).is_ok_and(|value| value & table::VM_CR_R_INIT != 0)
    }

    /// RDMSR of a platform register.
    pub fn read(&self, register: u32) -> Result<u64, Gp> {
        let index = index(register).filter(|&index| self.present[index]).ok_or(Gp)?;
        match TABLE[index].owner {
            Owner::Platform { readable: true, .. } => {
                let offset = (register - TABLE[index].first) as usize;
                self.values.get(self.places[index] + offset).copied().ok_or(Gp)
            }
            _ => Err(Gp),
        }
    }

    /// WRMSR to a platform register.
    pub fn write(&mut self, register: u32, value: u64) -> Result<(), Gp> {
        let index = index(register).filter(|&index| self.present[index]).ok_or(Gp)?;
        let Owner::Platform { write, .. } = TABLE[index].owner else { return Err(Gp) };
        let physical_bits = self.physical_bits;
        let slot = self.slot(register).ok_or(Gp)?;
        let when = |legal: bool| if legal { Ok(()) } else { Err(Gp) };
        let only = |mask: u64| when(satori_rules::within(value, mask));
        let kept = match write {
            Write::Gp => return Err(Gp),
            Write::Drop(mask) => return only(mask),
            Write::Keep(kept, fixed) => {
                only(kept | fixed)?;
                value & !fixed | *slot & fixed
            }
            Write::Bank if register & 3 != 0 => return only(0),
            Write::AllOrNone | Write::Bank => {
                when(value == 0 || value == u64::MAX)?;
                value
            }
            Write::MtrrDefault => when(mtrr::default(value)).map(|()| value)?,
            Write::MtrrFixed => when(mtrr::fixed(value)).map(|()| value)?,
            // IA32_MTRR_PHYSBASEn are even, PHYSMASKn odd.
            Write::MtrrVariable if register & 1 != 0 => {
                when(mtrr::mask(value, physical_bits)).map(|()| value)?
            }
            Write::MtrrVariable => when(mtrr::base(value, physical_bits)).map(|()| value)?,
        };
        *slot = kept;
        Ok(())
    }
}

/// The registers' values, in the order of the table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMsrs {
    values: Vec<u64>,
}

impl State for SavedMsrs {
    const NAME: &'static str = "platform MSRs";
    const VERSION: u32 = 2;
}

impl PlatformMsrs {
    /// Their state.
    pub fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedMsrs { values: self.values.clone() })
    }

    /// Takes a state back: each register holds what it holds already, or what it can be written with.
    pub fn restore(&mut self, value: &Value) -> Result<(), Error> {
        let SavedMsrs { values } = value.state()?;
        Error::unless(values.len() == self.values.len(), SavedMsrs::NAME, "there are other registers")?;
        let mut fresh = self.clone();
        for (row, at) in TABLE.iter().zip(&self.places) {
            let Owner::Platform { .. } = row.owner else { continue };
            for (register, at) in (row.first..=row.last).zip(*at..) {
                let takes = values[at] == self.values[at] || fresh.write(register, values[at]).is_ok();
                let kept = takes && fresh.values[at] == values[at];
                Error::unless(kept, SavedMsrs::NAME, &format!("{} cannot hold {:#x}", row.name, values[at]))?;
            }
        }
        *self = fresh;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
