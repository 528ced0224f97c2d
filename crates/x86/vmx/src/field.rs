//! Fields of the VMCS, by encoding (SDM appendix B).

/// How many bits a field has: bits 14:13 of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16.
    Word,
    /// 64, with a second encoding for the upper half.
    Quad,
    /// 32.
    Double,
    /// As many as a linear address.
    Natural,
}

/// What a field is for: bits 11:10 of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Group {
    Control,
    ExitInformation,
    Guest,
    Host,
}

macro_rules! fields {
    ($($ident:ident $encoding:literal;)*) => {
        /// A field of the VMCS that this processor has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each variant is its manual name")]
        pub enum Field { $($ident,)* }

        impl Field {
            /// Every field, by its number here.
            pub const ALL: &'static [Field] = &[$(Field::$ident,)*];

            /// The encoding that VMREAD and VMWRITE take.
            pub const fn encoding(self) -> u16 {
                match self { $(Field::$ident => $encoding,)* }
            }
        }
    };
}

fields! {
    Vpid 0x0000; PostedVector 0x0002;
    GuestEs 0x0800; GuestCs 0x0802; GuestSs 0x0804; GuestDs 0x0806; GuestFs 0x0808; GuestGs 0x080a;
    GuestLdtr 0x080c; GuestTr 0x080e; GuestInterruptStatus 0x0810; PmlIndex 0x0812;
    HostEs 0x0c00; HostCs 0x0c02; HostSs 0x0c04; HostDs 0x0c06; HostFs 0x0c08; HostGs 0x0c0a; HostTr 0x0c0c;
    IoBitmapA 0x2000; IoBitmapB 0x2002; MsrBitmap 0x2004; ExitMsrStore 0x2006; ExitMsrLoad 0x2008;
    EntryMsrLoad 0x200a; ExecutiveVmcs 0x200c; PmlAddress 0x200e; TscOffset 0x2010; VirtualApic 0x2012;
    ApicAccess 0x2014; PostedDescriptor 0x2016;
    VmFunctions 0x2018; Eptp 0x201a;
    EoiExit0 0x201c; EoiExit1 0x201e; EoiExit2 0x2020; EoiExit3 0x2022; EptpList 0x2024; VmreadBitmap 0x2026; VmwriteBitmap 0x2028;
    XssExitingBitmap 0x202c;
    TscMultiplier 0x2032;
    GuestPhysicalAddress 0x2400;
    LinkPointer 0x2800; GuestDebugctl 0x2802; GuestPat 0x2804; GuestEfer 0x2806;
    GuestPdpte0 0x280a; GuestPdpte1 0x280c; GuestPdpte2 0x280e; GuestPdpte3 0x2810;
    HostPat 0x2c00; HostEfer 0x2c02;
    PinControls 0x4000; ProcControls 0x4002; ExceptionBitmap 0x4004; PfMask 0x4006; PfMatch 0x4008;
    Cr3TargetCount 0x400a; ExitControls 0x400c; ExitMsrStoreCount 0x400e; ExitMsrLoadCount 0x4010;
    EntryControls 0x4012; EntryMsrLoadCount 0x4014; EntryInterruption 0x4016; EntryErrorCode 0x4018;
    EntryInstructionLength 0x401a; TprThreshold 0x401c; ProcControls2 0x401e; PleGap 0x4020; PleWindow 0x4022;
    InstructionError 0x4400; ExitReason 0x4402; ExitInterruption 0x4404; ExitErrorCode 0x4406;
    IdtVectoring 0x4408; IdtVectoringErrorCode 0x440a; ExitInstructionLength 0x440c; ExitInstructionInfo 0x440e;
    GuestEsLimit 0x4800; GuestCsLimit 0x4802; GuestSsLimit 0x4804; GuestDsLimit 0x4806; GuestFsLimit 0x4808;
    GuestGsLimit 0x480a; GuestLdtrLimit 0x480c; GuestTrLimit 0x480e; GuestGdtrLimit 0x4810; GuestIdtrLimit 0x4812;
    GuestEsRights 0x4814; GuestCsRights 0x4816; GuestSsRights 0x4818; GuestDsRights 0x481a; GuestFsRights 0x481c;
    GuestGsRights 0x481e; GuestLdtrRights 0x4820; GuestTrRights 0x4822;
    GuestInterruptibility 0x4824; GuestActivity 0x4826; GuestSmbase 0x4828; GuestSysenterCs 0x482a;
    PreemptionTimer 0x482e;
    HostSysenterCs 0x4c00;
    Cr0Mask 0x6000; Cr4Mask 0x6002; Cr0Shadow 0x6004; Cr4Shadow 0x6006;
    Cr3Target0 0x6008; Cr3Target1 0x600a; Cr3Target2 0x600c; Cr3Target3 0x600e;
    ExitQualification 0x6400; IoRcx 0x6402; IoRsi 0x6404; IoRdi 0x6406; IoRip 0x6408; GuestLinearAddress 0x640a;
    GuestCr0 0x6800; GuestCr3 0x6802; GuestCr4 0x6804;
    GuestEsBase 0x6806; GuestCsBase 0x6808; GuestSsBase 0x680a; GuestDsBase 0x680c; GuestFsBase 0x680e;
    GuestGsBase 0x6810; GuestLdtrBase 0x6812; GuestTrBase 0x6814; GuestGdtrBase 0x6816; GuestIdtrBase 0x6818;
    GuestDr7 0x681a; GuestRsp 0x681c; GuestRip 0x681e; GuestRflags 0x6820; GuestPendingDebug 0x6822;
    GuestSysenterEsp 0x6824; GuestSysenterEip 0x6826;
    HostCr0 0x6c00; HostCr3 0x6c02; HostCr4 0x6c04; HostFsBase 0x6c06; HostGsBase 0x6c08; HostTrBase 0x6c0a;
    HostGdtrBase 0x6c0c; HostIdtrBase 0x6c0e; HostSysenterEsp 0x6c10; HostSysenterEip 0x6c12; HostRsp 0x6c14;
    HostRip 0x6c16;
}

/// Whether Linux as L0 lets the fields with this encoding be read and written in a shadow VMCS, without an exit
/// (arch/x86/kvm/vmx/vmcs_shadow_fields.h).
pub const fn shadowed(encoding: u64) -> bool {
    matches!(
        encoding,
        0x810 | 0x812 | 0xc08 | 0xc0a | 0x2400 | 0x2401
            | 0x4000 | 0x4002 | 0x4004 | 0x4016 | 0x4018 | 0x401a | 0x401c
            | 0x4402..=0x440c
            | 0x4816 | 0x4818 | 0x4824 | 0x482e
            | 0x6000 | 0x6004 | 0x6006 | 0x6400 | 0x640a
            | 0x6800..=0x6804 | 0x681c..=0x6820 | 0x6c06 | 0x6c08
    )
}

/// How many fields there are.
pub const FIELDS: usize = Field::ALL.len();

/// Bits of an encoding that a field can have beside bit 0: its index, group and width.
const SHAPE: u64 = 0x6ffe;

/// By index, group and width: one more than the field's number, or 0.
const PLACES: [u8; 1 << 13] = {
    let mut places = [0; 1 << 13];
    let mut i = 0;
    while i < FIELDS {
        places[place(Field::ALL[i].encoding())] = i as u8 + 1;
        i += 1;
    }
    places
};

/// Index in bits 8:0, group in 10:9, width in 12:11.
const fn place(encoding: u16) -> usize {
    (encoding >> 1 & 0x7ff | encoding >> 2 & 0x1800) as usize
}

impl Field {
    /// The field with this encoding, and whether its upper half alone is meant; nothing if there is none.
    pub fn find(encoding: u64) -> Option<(Field, bool)> {
        if encoding & !(SHAPE | 1) != 0 {
            return None;
        }
        let field = match PLACES[place(encoding as u16)] {
            0 => return None,
            number => Field::ALL[usize::from(number) - 1],
        };
        let high = encoding & 1 != 0;
        (!high || field.width() == Width::Quad).then_some((field, high))
    }

    /// Its width.
    pub const fn width(self) -> Width {
        match self.encoding() >> 13 & 3 {
            0 => Width::Word,
            1 => Width::Quad,
            2 => Width::Double,
            _ => Width::Natural,
        }
    }

    /// What it is for.
    pub const fn group(self) -> Group {
        match self.encoding() >> 10 & 3 {
            0 => Group::Control,
            1 => Group::ExitInformation,
            2 => Group::Guest,
            _ => Group::Host,
        }
    }

    /// The bits that it holds.
    pub const fn mask(self) -> u64 {
        match self.width() {
            Width::Word => 0xffff,
            Width::Double => 0xffff_ffff,
            Width::Quad | Width::Natural => u64::MAX,
        }
    }

    /// The field so many places behind this one, where the manual has them in a row.
    pub const fn plus(self, places: usize) -> Field {
        Field::ALL[self as usize + places]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_finds_its_field_and_no_other() {
        let mut found = 0;
        for encoding in 0..0x1_0000_u64 {
            if let Some((field, high)) = Field::find(encoding) {
                assert_eq!(u64::from(field.encoding()) + u64::from(high), encoding);
                found += 1;
            }
        }
        let wide = Field::ALL.iter().filter(|field| field.width() == Width::Quad).count();
        assert_eq!(found, FIELDS + wide);
        assert_eq!(Field::find(1 << 32 | 0x681e), None, "bits 63:32 count");
    }

    #[test]
    fn segments_stand_in_the_order_of_their_numbers() {
        assert_eq!(Field::GuestEs.plus(7), Field::GuestTr);
        assert_eq!(Field::GuestEsLimit.plus(9), Field::GuestIdtrLimit);
        assert_eq!(Field::GuestEsRights.plus(7), Field::GuestTrRights);
        assert_eq!(Field::GuestEsBase.plus(9), Field::GuestIdtrBase);
        assert_eq!(Field::HostEs.plus(6), Field::HostTr);
        assert_eq!(Field::GuestPdpte0.plus(3), Field::GuestPdpte3);
        assert_eq!(Field::EoiExit0.plus(3), Field::EoiExit3);
    }
}
