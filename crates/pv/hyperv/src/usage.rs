//! What of all that is offered the guest really used.

use satori_bus::Nanos;
use satori_pv::Named;

use crate::{Config, Enlightenment, call_name};

/// Counts of uses, by enlightenment; shared by all virtual processors. The ways of a row are its MSRs, then its calls, then
/// what is neither.
#[derive(Debug)]
pub struct Usage(pub(crate) satori_pv::Usage);

fn row(one: Enlightenment, config: &Config) -> Named {
    let row = one.row();
    let msrs = row.msrs.iter().map(|msr| format!("MSR {msr:#x}"));
    let calls =
        row.hypercalls.iter().map(|code| call_name(*code).map_or(format!("call {code:#x}"), Into::into));
    let other = if one == Enlightenment::Vapic { "EOIs without an exit" } else { "calls" };
    Named {
        name: row.name,
        offered: config.set.has(one),
        ways: msrs.chain(calls).chain([other.to_owned()]).collect(),
        // What is only a bit of CPUID shows no use.
        seen: !(row.msrs.is_empty() && row.hypercalls.is_empty()),
    }
}

impl Usage {
    /// Nothing used yet of what `config` offers.
    pub(crate) fn new(config: &Config) -> Self {
        let rows = Enlightenment::ALL.iter().map(|one| row(*one, config));
        Usage(satori_pv::Usage::new("Hyper-V", rows.collect()))
    }

    /// Notes a use of `one` that is neither an MSR access nor a call of its row.
    pub fn note(&self, one: Enlightenment, now: Nanos) {
        let row = one.row();
        self.0.note(one as usize, row.msrs.len() + row.hypercalls.len(), now);
    }

    /// Notes an access to `msr`, if it belongs to an enlightenment.
    pub fn msr(&self, msr: u32, now: Nanos) {
        if let Some(one) = Enlightenment::of_msr(msr)
            && let Some(at) = one.row().msrs.iter().position(|other| *other == msr)
        {
            self.0.note(one as usize, at, now);
        }
    }

    /// Notes hypercall `code`, if it belongs to an enlightenment.
    pub fn call(&self, code: u16, now: Nanos) {
        if let Some(one) = Enlightenment::of_hypercall(code)
            && let Some(at) = one.row().hypercalls.iter().position(|other| *other == code)
        {
            self.0.note(one as usize, one.row().msrs.len() + at, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_defs::hyperv::{call, msr};

    #[test]
    fn first_use_and_counts_are_told_by_way() {
        let usage = Usage::new(&"tlbflush".parse().unwrap());
        usage.call(call::FLUSH_VIRTUAL_ADDRESS_LIST, 30);
        usage.call(call::FLUSH_VIRTUAL_ADDRESS_SPACE, 20);
        usage.call(call::FLUSH_VIRTUAL_ADDRESS_LIST, 40);
        usage.note(Enlightenment::Tlbflush, 50);
        usage.msr(msr::REFERENCE_TSC, 7);
        usage.msr(0x1b, 8);
        let report = usage.0.report();
        let of = |one: Enlightenment| report.iter().find(|used| used.name == one.name()).unwrap();
        let flush = of(Enlightenment::Tlbflush);
        assert_eq!((flush.offered, flush.first, flush.count), (true, Some(20), 4));
        let ways = [
            ("HvCallFlushVirtualAddressSpace".to_owned(), 1),
            ("HvCallFlushVirtualAddressList".to_owned(), 2),
            ("calls".to_owned(), 1),
        ];
        assert_eq!(flush.ways, ways);
        let mut twice = flush.clone();
        twice.merge(flush.clone());
        assert_eq!((twice.count, twice.first, twice.ways[1].1), (8, Some(20), 4));
        let time = of(Enlightenment::Time);
        assert_eq!((time.offered, time.first, time.count), (false, Some(7), 1));
        assert_eq!((of(Enlightenment::Crash).first, of(Enlightenment::Crash).count), (None, 0));
    }
}
