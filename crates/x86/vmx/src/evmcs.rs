//! The enlightened VMCS, version 1 (TLFS, HV_VMX_ENLIGHTENED_VMCS): the fields of a VMCS in a page of the hypervisor's own
//! memory, which it reads and writes without VMREAD and VMWRITE.
//!
//! Its clean fields tell at a VM entry which groups of fields are as they were at the entry before: those need not be read. One
//! table has every field's place and group.

use crate::Vmcs;
use crate::field::{Field, Width};

/// Bytes of the structure.
pub const SIZE: usize = 1024;
/// What the structure holds at [`REVISION`].
pub const VERSION: u32 = 1;
/// Offset of the revision.
pub const REVISION: u64 = 0;
/// Offset of the abort indicator.
pub const ABORT: u64 = 4;
/// Offset of the clean fields.
pub const CLEAN_FIELDS: usize = 0x338;

/// Clean fields: bits of the word at [`CLEAN_FIELDS`].
pub mod clean {
    #![allow(missing_docs, reason = "the TLFS's names")]
    pub const IO_BITMAP: u32 = 1 << 0;
    pub const MSR_BITMAP: u32 = 1 << 1;
    pub const CONTROL_GRP2: u32 = 1 << 2;
    pub const CONTROL_GRP1: u32 = 1 << 3;
    pub const CONTROL_PROC: u32 = 1 << 4;
    pub const CONTROL_EVENT: u32 = 1 << 5;
    pub const CONTROL_ENTRY: u32 = 1 << 6;
    pub const CONTROL_EXCPN: u32 = 1 << 7;
    pub const CRDR: u32 = 1 << 8;
    pub const CONTROL_XLAT: u32 = 1 << 9;
    pub const GUEST_BASIC: u32 = 1 << 10;
    pub const GUEST_GRP1: u32 = 1 << 11;
    pub const GUEST_GRP2: u32 = 1 << 12;
    pub const HOST_POINTER: u32 = 1 << 13;
    pub const HOST_GRP1: u32 = 1 << 14;
    pub const ENLIGHTENMENTS_CONTROL: u32 = 1 << 15;
}

/// Fields that follow each other: the first, how many in a row, where in the structure, and their clean field. With 0 they are
/// read at every VM entry.
struct Run {
    first: Field,
    count: usize,
    at: usize,
    group: u32,
}

const fn run(first: Field, count: usize, at: usize, group: u32) -> Run {
    Run { first, count, at, group }
}

/// Every field that has a place here.
const RUNS: &[Run] = {
    use Field::*;
    use clean::*;
    &[
        run(HostEs, 7, 0x8, HOST_GRP1),
        run(HostPat, 2, 0x18, HOST_GRP1),
        run(HostCr0, 3, 0x28, HOST_GRP1),
        run(HostSysenterEsp, 2, 0x40, HOST_GRP1),
        run(HostRip, 1, 0x50, HOST_GRP1),
        run(HostSysenterCs, 1, 0x58, HOST_GRP1),
        run(PinControls, 1, 0x5c, CONTROL_GRP1),
        run(ExitControls, 1, 0x60, CONTROL_GRP1),
        run(ProcControls2, 1, 0x64, CONTROL_GRP1),
        run(IoBitmapA, 2, 0x68, IO_BITMAP),
        run(MsrBitmap, 1, 0x78, MSR_BITMAP),
        run(GuestEs, 8, 0x80, GUEST_GRP2),
        run(GuestEsLimit, 10, 0x90, GUEST_GRP2),
        run(GuestEsRights, 8, 0xb8, GUEST_GRP2),
        run(GuestEsBase, 10, 0xd8, GUEST_GRP2),
        // What has no group is Hyper-V's for no use; a hypervisor that wants it finds it honoured.
        run(ExitMsrStore, 3, 0x140, 0),
        run(Cr3Target0, 4, 0x158, 0),
        run(PfMask, 2, 0x178, 0),
        run(Cr3TargetCount, 1, 0x180, 0),
        run(ExitMsrStoreCount, 2, 0x184, 0),
        run(EntryMsrLoadCount, 1, 0x18c, 0),
        run(TscOffset, 2, 0x190, CONTROL_GRP2),
        run(LinkPointer, 4, 0x1a0, GUEST_GRP1),
        run(GuestPdpte0, 4, 0x1c0, GUEST_GRP1),
        run(GuestPendingDebug, 3, 0x1e0, GUEST_GRP1),
        run(GuestActivity, 1, 0x1f8, GUEST_GRP1),
        run(GuestSysenterCs, 1, 0x1fc, GUEST_GRP1),
        run(Cr0Mask, 4, 0x200, CRDR),
        run(GuestCr0, 3, 0x220, CRDR),
        run(GuestDr7, 1, 0x238, CRDR),
        run(HostFsBase, 5, 0x240, HOST_POINTER),
        run(HostRsp, 1, 0x268, HOST_POINTER),
        run(Eptp, 1, 0x270, CONTROL_XLAT),
        run(Vpid, 1, 0x278, CONTROL_XLAT),
        run(GuestPhysicalAddress, 1, 0x2a8, INFORMATION),
        run(InstructionError, 8, 0x2b0, INFORMATION),
        run(ExitQualification, 6, 0x2d0, INFORMATION),
        run(GuestRsp, 1, 0x300, GUEST_BASIC),
        run(GuestRflags, 1, 0x308, GUEST_BASIC),
        run(GuestInterruptibility, 1, 0x310, GUEST_BASIC),
        run(ProcControls, 1, 0x314, CONTROL_PROC),
        run(ExceptionBitmap, 1, 0x318, CONTROL_EXCPN),
        run(EntryControls, 1, 0x31c, CONTROL_ENTRY),
        run(EntryInterruption, 3, 0x320, CONTROL_EVENT),
        run(TprThreshold, 1, 0x32c, 0),
        run(GuestRip, 1, 0x330, 0),
        run(XssExitingBitmap, 1, 0x3c0, CONTROL_GRP2),
        run(TscMultiplier, 1, 0x3d8, CONTROL_GRP2),
    ]
};

/// Stands for a group in [`RUNS`]: what VM exits tell, which no VM entry reads.
const INFORMATION: u32 = 1 << 31;

/// What VM exits write: the guest's state, the exit, and the event that was injected; and the entry controls, whose IA-32e mode
/// follows an unrestricted guest.
pub const WRITTEN: [std::ops::Range<usize>; 6] =
    [0x80..0x128, 0x1a8..0x200, 0x220..0x240, 0x2a8..0x314, 0x31c..0x324, 0x330..0x338];

const fn bytes(field: Field) -> usize {
    match field.width() {
        Width::Word => 2,
        Width::Double => 4,
        Width::Quad | Width::Natural => 8,
    }
}

/// What a hypervisor asks of Hyper-V beside the fields: read at every VM entry, as Linux tells of no change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enlightenments {
    /// HV_ENLIGHTENMENTS_CONTROL: see [`control`].
    pub control: u32,
    /// The guest's VP index.
    pub vp_id: u32,
    /// The guest's partition.
    pub vm_id: u64,
    /// Its partition assist page.
    pub partition_assist: u64,
}

/// Bits of [`Enlightenments::control`].
pub mod control {
    /// Hypercalls of the guest that flush TLBs may be served by whoever serves its hypervisor.
    pub const NESTED_FLUSH_HYPERCALL: u32 = 1 << 0;
    /// The MSR bitmap changes only with [`clean::MSR_BITMAP`](super::clean::MSR_BITMAP) clear.
    pub const MSR_BITMAP: u32 = 1 << 1;
}

/// The structure's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page(Box<[u8; SIZE]>);

impl Page {
    /// One with these bytes.
    pub fn new(bytes: [u8; SIZE]) -> Self {
        Page(Box::new(bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; SIZE] {
        &self.0
    }

    fn word(&self, at: usize, bytes: usize) -> u64 {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&self.0[at..at + bytes]);
        u64::from_le_bytes(word)
    }

    /// Which version it is of.
    pub fn version(&self) -> u32 {
        self.word(REVISION as usize, 4) as u32
    }

    /// Its clean fields.
    pub fn clean_fields(&self) -> u32 {
        self.word(CLEAN_FIELDS, 4) as u32
    }

    /// What it asks for beside the fields.
    pub fn enlightenments(&self) -> Enlightenments {
        Enlightenments {
            control: self.word(0x344, 4) as u32,
            vp_id: self.word(0x348, 4) as u32,
            vm_id: self.word(0x350, 8),
            partition_assist: self.word(0x358, 8),
        }
    }

    /// Takes the fields whose group is not among `clean`.
    pub fn load(&self, clean: u32, vmcs: &mut Vmcs) {
        for run in RUNS.iter().filter(|run| run.group & (clean | INFORMATION) == 0) {
            let size = bytes(run.first);
            for index in 0..run.count {
                vmcs.set(run.first.plus(index), self.word(run.at + index * size, size));
            }
        }
    }

    /// Puts what VM exits write in its place.
    pub fn store(&mut self, vmcs: &Vmcs) {
        let written = |run: &&Run| WRITTEN.iter().any(|range| range.contains(&run.at));
        for run in RUNS.iter().filter(written) {
            let size = bytes(run.first);
            for index in 0..run.count {
                let at = run.at + index * size;
                let value = vmcs.get(run.first.plus(index)).to_le_bytes();
                self.0[at..at + size].copy_from_slice(&value[..size]);
            }
        }
    }
}

/// Where `field` is, if it has a place.
pub fn place(field: Field) -> Option<usize> {
    let number = field as usize;
    RUNS.iter().find_map(|run| {
        let index = number.checked_sub(run.first as usize).filter(|index| *index < run.count)?;
        Some(run.at + index * bytes(field))
    })
}

/// Whether VM entry takes a structure with this revision: that of version 1, or a VMCS's, which Hyper-V as a guest writes.
pub const fn taken(revision: u32) -> bool {
    revision == VERSION || revision == crate::capability::REVISION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_hyper_v_has_them() {
        use Field::*;
        for (field, at) in [
            (HostTr, 0x14),
            (HostEfer, 0x20),
            (HostCr4, 0x38),
            (HostSysenterEip, 0x48),
            (IoBitmapB, 0x70),
            (GuestTr, 0x8e),
            (GuestIdtrLimit, 0xb4),
            (GuestTrRights, 0xd4),
            (GuestIdtrBase, 0x120),
            (EntryMsrLoad, 0x150),
            (PfMatch, 0x17c),
            (ExitMsrLoadCount, 0x188),
            (GuestDebugctl, 0x1a8),
            (GuestEfer, 0x1b8),
            (GuestPdpte3, 0x1d8),
            (GuestSysenterEip, 0x1f0),
            (Cr4Shadow, 0x218),
            (GuestCr4, 0x230),
            (HostIdtrBase, 0x260),
            (ExitReason, 0x2b4),
            (ExitInstructionInfo, 0x2cc),
            (IoRip, 0x2f0),
            (GuestLinearAddress, 0x2f8),
            (EntryInstructionLength, 0x328),
        ] {
            assert_eq!(place(field), Some(at), "{field:?}");
        }
        assert_eq!(place(PreemptionTimer), None);
        assert_eq!(place(ExecutiveVmcs), None);
    }

    #[test]
    fn no_two_fields_share_a_byte() {
        let mut taken = [false; SIZE];
        for run in RUNS {
            for byte in &mut taken[run.at..run.at + run.count * bytes(run.first)] {
                assert!(!std::mem::replace(byte, true), "{:?}", run.first);
            }
            let widths = (0..run.count).map(|index| run.first.plus(index).width());
            assert!(widths.into_iter().all(|width| width == run.first.width()), "{:?}", run.first);
        }
        for range in WRITTEN {
            assert!(taken[range].iter().all(|taken| *taken), "an exit writes no padding");
        }
    }

    #[test]
    fn what_is_clean_stays_and_what_an_exit_tells_is_never_read() {
        let mut page = Page::new([0xaa; SIZE]);
        for one in (0..16).map(|bit| 1 << bit) {
            let mut vmcs = Vmcs::default();
            page.load(!one, &mut vmcs);
            for run in RUNS {
                let read = vmcs.get(run.first) != 0;
                assert_eq!(read, run.group == one || run.group == 0, "{:?} with {one:#x} alone", run.first);
            }
        }
        let mut vmcs = Vmcs::default();
        vmcs.set(Field::GuestRip, 0x1234);
        vmcs.set(Field::ExitReason, 10);
        page.store(&vmcs);
        assert_eq!((page.word(0x330, 8), page.word(0x2b4, 4)), (0x1234, 10));
        assert_eq!(page.bytes()[..0x80], [0xaa; 0x80], "host state is its owner's");
        let mut read = Vmcs::default();
        page.load(0, &mut read);
        assert_eq!((read.get(Field::GuestRip), read.get(Field::ExitReason)), (0x1234, 0));
    }
}
