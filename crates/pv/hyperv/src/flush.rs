//! Flushes of TLBs by hypercall (TLFS 12.4).
//!
//! A flush is noted with each virtual processor that it names, which applies it before its next
//! instruction; the caller waits only for those that execute meanwhile, see [`crate::Slots`].
//! The address space is not looked at: a processor drops more than it has to, which it may.

use satori_defs::hyperv::{Status, flush as flags, gva_range};
use satori_defs::x86::PAGE_SIZE;
use serde::{Deserialize, Serialize};

use crate::{Completion, Enlightenment, Outcome, Partition, Request, Vp, VpSet};

/// Pages that are dropped one by one; for more the whole TLB is cheaper. A processor that sleeps gathers them, as
/// Linux 6.1 names all where its threads have been everywhere: to lose the kernel's translations at each
/// wake-up cost more than the flush interrupts that were saved.
const PAGES_MAX: usize = 1024;

/// Pages that are left of so many when each is named once: a program maps where it has just unmapped, so they are mostly
/// the same. Fewer, so that a list that is full is not looked through at each request.
const DISTINCT_MAX: usize = PAGES_MAX / 4 * 3;

/// Bits of an extended range that count additional pages.
const EXTENDED_COUNT: u64 = gva_range::LARGE_PAGE - 1;

/// What a virtual processor has to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flush {
    /// Nothing.
    #[default]
    Nothing,
    /// These pages, global or not, by linear addresses in them.
    Pages(Vec<u64>),
    /// All that is not global.
    NonGlobal,
    /// All that is not global, and these pages even if they are.
    NonGlobalAnd(Vec<u64>),
    /// Everything.
    All,
}

impl Flush {
    /// Whether it is one that requests lead to.
    pub(crate) fn fits(&self) -> bool {
        !matches!(self, Flush::Pages(pages) | Flush::NonGlobalAnd(pages) if pages.len() > PAGES_MAX)
    }

    /// Both.
    pub(crate) fn and(self, other: &Flush) -> Flush {
        let (mut pages, non_global) = match self {
            Flush::Nothing => return other.clone(),
            Flush::Pages(pages) => (pages, false),
            Flush::NonGlobal => (Vec::new(), true),
            Flush::NonGlobalAnd(pages) => (pages, true),
            Flush::All => return Flush::All,
        };
        let (more, non_global): (&[u64], _) = match other {
            Flush::Nothing => (&[], non_global),
            Flush::Pages(more) => (more, non_global),
            Flush::NonGlobal => (&[], true),
            Flush::NonGlobalAnd(more) => (more, true),
            Flush::All => return Flush::All,
        };
        if pages.len() + more.len() > PAGES_MAX {
            pages.sort_unstable();
            pages.dedup();
            if pages.len() + more.len() > DISTINCT_MAX {
                return Flush::All;
            }
        }
        pages.extend(more);
        match (non_global, pages.is_empty()) {
            (false, _) => Flush::Pages(pages),
            (true, true) => Flush::NonGlobal,
            (true, false) => Flush::NonGlobalAnd(pages),
        }
    }

    /// The same, each page once.
    pub(crate) fn distinct(mut self) -> Self {
        if let Flush::Pages(pages) | Flush::NonGlobalAnd(pages) = &mut self {
            pages.sort_unstable();
            pages.dedup();
        }
        self
    }
}

/// HvCallFlushVirtualAddressSpace and HvCallFlushVirtualAddressList.
pub(crate) fn masked(partition: &Partition, vp: &mut Vp, request: &Request<'_>) -> Completion {
    let &[_, flags, mask] = request.header else { return Completion::status(Status::InvalidHypercallInput) };
    // Windows Server 2012 means all by a mask of 0, as KVM found.
    let targets = if mask == 0 { VpSet::ALL } else { VpSet::mask(mask) };
    run(partition, vp, request, flags, Ok(targets))
}

/// HvCallFlushVirtualAddressSpaceEx and HvCallFlushVirtualAddressListEx.
pub(crate) fn sparse(partition: &Partition, vp: &mut Vp, request: &Request<'_>) -> Completion {
    let &[_, flags, format, valid, ref banks @ ..] = request.header else {
        return Completion::status(Status::InvalidHypercallInput);
    };
    run(partition, vp, request, flags, VpSet::sparse(format, valid, banks))
}

/// The calls of a nested guest, whose processors are its hypervisor's matter: all of the partition's drop all that they have,
/// which they may, as any of them can have been one of the guest's.
pub(crate) fn nested(partition: &Partition, vp: &mut Vp, request: &Request<'_>) -> Completion {
    let &[_, flags, _] = request.header else { return Completion::status(Status::InvalidHypercallInput) };
    drop_all(partition, vp, request, flags, Ok(VpSet::ALL))
}

/// The same with a sparse set of processors.
pub(crate) fn nested_ex(partition: &Partition, vp: &mut Vp, request: &Request<'_>) -> Completion {
    let &[_, flags, format, valid, ref banks @ ..] = request.header else {
        return Completion::status(Status::InvalidHypercallInput);
    };
    drop_all(partition, vp, request, flags, VpSet::sparse(format, valid, banks))
}

fn drop_all(
    partition: &Partition,
    vp: &Vp,
    request: &Request<'_>,
    flags: u64,
    named: Result<VpSet, Status>,
) -> Completion {
    const DEFINED: u64 =
        flags::ALL_PROCESSORS | flags::ALL_VIRTUAL_ADDRESS_SPACES | flags::NON_GLOBAL_MAPPINGS_ONLY;
    match named {
        _ if flags & !DEFINED != 0 => return Completion::status(Status::InvalidParameter),
        Err(status) if flags & flags::ALL_PROCESSORS == 0 => return Completion::status(status),
        _ => {}
    }
    partition.slots.flush(vp.index(), &VpSet::ALL, &Flush::All);
    done(request)
}

/// HvCallFlushGuestPhysicalAddressSpace and HvCallFlushGuestPhysicalAddressList: translations through tables of a hypervisor for its
/// guests, by the address of their root. What is kept of linear addresses is made of both, so all of it goes, whatever the pages.
pub(crate) fn guest_physical(partition: &Partition, vp: &mut Vp, request: &Request<'_>) -> Completion {
    let &[_, flags] = request.header else { return Completion::status(Status::InvalidHypercallInput) };
    if flags != 0 {
        return Completion::status(Status::InvalidParameter);
    }
    partition.slots.flush(vp.index(), &VpSet::ALL, &Flush::All);
    done(request)
}

fn done(request: &Request<'_>) -> Completion {
    Completion {
        status: Status::Success,
        done: request.elements.len() as u16,
        output: Vec::new(),
        outcome: Outcome::Done,
    }
}

/// Windows asks for lists with [`flags::NON_GLOBAL_MAPPINGS_ONLY`], which the TLFS calls invalid
/// for them, and Hyper-V serves it: there it means nothing.
fn run(
    partition: &Partition,
    vp: &Vp,
    request: &Request<'_>,
    flags: u64,
    targets: Result<VpSet, Status>,
) -> Completion {
    let mut defined =
        flags::ALL_PROCESSORS | flags::ALL_VIRTUAL_ADDRESS_SPACES | flags::NON_GLOBAL_MAPPINGS_ONLY;
    let extended = flags & flags::USE_EXTENDED_RANGE_FORMAT != 0;
    if partition.config.set.has(Enlightenment::TlbflushExt) {
        defined |= flags::USE_EXTENDED_RANGE_FORMAT;
    }
    if flags & !defined != 0 {
        return Completion::status(Status::InvalidParameter);
    }
    let targets = match targets {
        _ if flags & flags::ALL_PROCESSORS != 0 => VpSet::ALL,
        Ok(targets) => targets,
        Err(status) => return Completion::status(status),
    };
    let rep = request.input.reps() != 0;
    let what = match rep {
        true => pages(request.elements, extended),
        false if flags & flags::NON_GLOBAL_MAPPINGS_ONLY != 0 => Flush::NonGlobal,
        false => Flush::All,
    };
    if extended {
        partition.used(Enlightenment::TlbflushExt);
    }
    partition.slots.flush(vp.index(), &targets, &what);
    done(request)
}

/// The pages of a list of HV_GVA_RANGEs. Addresses that are not canonical are in no TLB.
fn pages(ranges: &[u64], extended: bool) -> Flush {
    let mut pages = Vec::new();
    for range in ranges {
        // A large page may stand in a TLB as many of 4 KiB.
        if extended && range & gva_range::LARGE_PAGE != 0 {
            return Flush::All;
        }
        let count = 1 + (range & if extended { EXTENDED_COUNT } else { PAGE_SIZE - 1 });
        if pages.len() as u64 + count > PAGES_MAX as u64 {
            return Flush::All;
        }
        let start = range & !(PAGE_SIZE - 1);
        pages.extend((0..count).map(|page| start.wrapping_add(page * PAGE_SIZE)));
    }
    Flush::Pages(pages)
}

#[cfg(test)]
mod tests;
