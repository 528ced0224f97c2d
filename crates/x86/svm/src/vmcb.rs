//! The virtual machine control block (APM volume 2, appendix B).

/// Bytes of it that mean something.
pub const USED: usize = 0x700;
/// Where the state save area begins.
pub const SAVE: usize = 0x400;

/// A field: its offset, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the start of the VMCB.
    pub at: usize,
    /// 1, 2, 4 or 8.
    pub size: usize,
}

macro_rules! places {
    ($($at:literal $size:literal $name:ident $doc:literal;)*) => {
        impl Place {
            $(#[doc = $doc]
            pub const $name: Place = Place { at: $at, size: $size };)*

            /// Every one of these, with its name.
            pub const ALL: &[(&str, Place)] = &[$((stringify!($name), Place::$name)),*];
        }
    };
}

places! {
    0x03c 2 PAUSE_THRESHOLD "Cycles between two PAUSEs behind which those are counted anew, or 0";
    0x03e 2 PAUSE_COUNT "PAUSEs that do not leave the guest";
    0x040 8 IO_MAP "Physical address of the I/O permission map";
    0x048 8 MSR_MAP "Physical address of the MSR permission map";
    0x050 8 TSC_OFFSET "What is added to the TSC";
    0x058 4 ASID "The address space identifier";
    0x05c 1 TLB_CONTROL "Which translations VMRUN drops";
    0x060 4 INTERRUPT_CONTROL "V_TPR, V_IRQ and those beside them";
    0x064 1 INTERRUPT_VECTOR "The virtual interrupt's vector";
    0x068 8 SHADOW "Bit 0: the interrupt shadow";
    0x070 8 EXIT_CODE "Why the guest was left";
    0x078 8 EXIT_INFO_1 "What more there is to say";
    0x080 8 EXIT_INFO_2 "What more there is to say";
    0x088 8 EXIT_EVENT "EXITINTINFO";
    0x090 8 NESTED "Bit 0: nested paging";
    0x0a8 8 INJECT "EVENTINJ";
    0x0b0 8 NESTED_CR3 "The table of nested paging";
    0x0b8 8 VIRTUALIZED "What of the processor is virtual";
    0x0c8 8 NEXT_RIP "The address behind the instruction";
    0x0d0 1 FETCHED "How many bytes of the instruction that faulted follow";
    0x3e0 4 ENLIGHTENMENTS "Hyper-V: which enlightenments the host uses (TLFS, \"Nested Virtualization\")";
    0x3f0 8 PARTITION_ASSIST "Hyper-V: the partition assist page";
    0x4cb 1 CPL "The privilege level";
    0x4d0 8 EFER "EFER";
    0x548 8 CR4 "CR4";
    0x550 8 CR3 "CR3";
    0x558 8 CR0 "CR0";
    0x560 8 DR7 "DR7";
    0x568 8 DR6 "DR6";
    0x570 8 RFLAGS "RFLAGS";
    0x578 8 RIP "RIP";
    0x5d8 8 RSP "RSP";
    0x5f8 8 RAX "RAX";
    0x600 8 STAR "STAR";
    0x608 8 LSTAR "LSTAR";
    0x610 8 CSTAR "CSTAR";
    0x618 8 FMASK "SFMASK";
    0x620 8 KERNEL_GS_BASE "KernelGSbase";
    0x628 8 SYSENTER_CS "SYSENTER_CS";
    0x630 8 SYSENTER_ESP "SYSENTER_ESP";
    0x638 8 SYSENTER_EIP "SYSENTER_EIP";
    0x640 8 CR2 "CR2";
    0x668 8 PAT "The guest's PAT, with nested paging";
}

/// Bits of [`Place::INTERRUPT_CONTROL`].
pub mod interrupt {
    /// V_TPR.
    pub const TPR: u64 = 0xff;
    /// V_IRQ.
    pub const PENDING: u64 = 1 << 8;
    /// V_GIF.
    pub const GIF: u64 = 1 << 9;
    /// V_NMI.
    pub const NMI: u64 = 1 << 11;
    /// V_NMI_MASK.
    pub const NMI_MASK: u64 = 1 << 12;
    /// Where V_INTR_PRIO is.
    pub const PRIORITY_SHIFT: u32 = 16;
    /// V_IGN_TPR.
    pub const IGNORE_TPR: u64 = 1 << 20;
    /// V_INTR_MASKING.
    pub const MASKING: u64 = 1 << 24;
    /// V_GIF_ENABLE.
    pub const GIF_ENABLE: u64 = 1 << 25;
    /// V_NMI_ENABLE.
    pub const NMI_ENABLE: u64 = 1 << 26;
}

/// Bit 0 of [`Place::ENLIGHTENMENTS`]: hypercalls of the guest that flush TLBs may be served below its host.
pub const FLUSH_HYPERCALLS: u64 = 1 << 0;

/// Bit 1 of [`Place::VIRTUALIZED`]: VMLOAD and VMSAVE of a guest pass its nested tables.
pub const VMLOAD_VMSAVE: u64 = 1 << 1;

/// Bytes of an instruction that [`Place::FETCHED`] counts: how many there can be, and where they are.
pub const FETCHED_MOST: usize = 15;
/// Their offset.
pub const FETCHED_BYTES: usize = 0xd1;

/// Values of [`Place::TLB_CONTROL`].
pub mod tlb {
    /// Nothing is dropped.
    pub const KEEP: u64 = 0;
    /// Everything is.
    pub const ALL: u64 = 1;
    /// What has the guest's ASID.
    pub const ASID: u64 = 3;
    /// Of that, what is not global.
    pub const ASID_LOCAL: u64 = 7;
}

/// Registers with a descriptor, in the order in which the save area has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "their own names")]
#[repr(usize)]
pub enum Descriptor {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
    Gdtr,
    Ldtr,
    Idtr,
    Tr,
}

/// A descriptor as the save area has it: the attributes are bits 55:52 and 47:40 of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The selector.
    pub selector: u16,
    /// Its attributes, 12 bits.
    pub attributes: u16,
    /// The limit in bytes, minus one.
    pub limit: u32,
    /// The linear base.
    pub base: u64,
}

impl Segment {
    /// The attributes at the places of a descriptor's second word, as VMX has them (SDM 25.4.1).
    pub const fn rights(&self) -> u32 {
        let attributes = self.attributes as u32;
        attributes & 0xff | (attributes & 0xf00) << 4
    }
}

/// A VMCB's copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vmcb(Box<[u8; USED]>);

impl Default for Vmcb {
    fn default() -> Self {
        Vmcb(Box::new([0; USED]))
    }
}

impl Vmcb {
    /// One with these bytes.
    pub fn new(bytes: [u8; USED]) -> Self {
        Vmcb(Box::new(bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; USED] {
        &self.0
    }

    /// The bytes of a part of it, to be read into.
    pub fn part_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.0[at..at + len]
    }

    /// A field.
    pub fn get(&self, place: Place) -> u64 {
        let mut bytes = [0; 8];
        bytes[..place.size].copy_from_slice(&self.0[place.at..place.at + place.size]);
        u64::from_le_bytes(bytes)
    }

    /// Sets a field, to as many bits as it has.
    pub fn set(&mut self, place: Place, value: u64) {
        self.0[place.at..place.at + place.size].copy_from_slice(&value.to_le_bytes()[..place.size]);
    }

    /// A word of intercepts.
    pub fn intercepts(&self, word: usize) -> u32 {
        self.get(Place { at: word, size: 4 }) as u32
    }

    /// Whether it has `intercept`.
    pub fn has(&self, intercept: crate::Intercept) -> bool {
        self.intercepts(intercept.word) >> intercept.bit & 1 != 0
    }

    /// A register with a descriptor.
    pub fn segment(&self, which: Descriptor) -> Segment {
        let at = SAVE + 16 * which as usize;
        let get = |offset, size| self.get(Place { at: at + offset, size });
        Segment {
            selector: get(0, 2) as u16,
            attributes: get(2, 2) as u16,
            limit: get(4, 4) as u32,
            base: get(8, 8),
        }
    }

    /// Sets it.
    pub fn set_segment(&mut self, which: Descriptor, segment: Segment) {
        let at = SAVE + 16 * which as usize;
        let mut put = |offset, size, value| self.set(Place { at: at + offset, size }, value);
        put(0, 2, segment.selector.into());
        put(2, 2, segment.attributes.into());
        put(4, 4, segment.limit.into());
        put(8, 8, segment.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Intercept;

    #[test]
    fn a_field_is_its_own_bytes_and_no_others() {
        let mut vmcb = Vmcb::default();
        vmcb.set(Place::CPL, 0x1ff);
        assert_eq!((vmcb.get(Place::CPL), vmcb.get(Place { at: 0x4ca, size: 4 })), (0xff, 0xff00));
        vmcb.set(Place { at: 0x10, size: 4 }, 1 << 4);
        assert!(vmcb.has(Intercept::STGI) && !vmcb.has(Intercept::CLGI));
        let segment = Segment { selector: 8, attributes: 0xa9b, limit: u32::MAX, base: 1 << 40 };
        vmcb.set_segment(Descriptor::Tr, segment);
        assert_eq!(vmcb.segment(Descriptor::Tr), segment);
        assert_eq!(vmcb.get(Place { at: 0x498, size: 8 }), 1 << 40);
        assert_eq!(vmcb.segment(Descriptor::Idtr), Segment::default());
    }
}
