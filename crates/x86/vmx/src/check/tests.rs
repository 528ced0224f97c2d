use super::*;

pub(super) const AROUND: Around = Around {
    lma: true,
    cr4: 0x37_27ff,
    efer: efer::SCE | efer::LME | efer::LMA | efer::NXE,
    controls: &capability::Controls::ALL,
};

/// A 64-bit guest of a 64-bit host, that every check passes.
pub(super) fn fine() -> Vmcs {
    let mut vmcs = Vmcs::default();
    for (field, value) in [
        (PinControls, capability::PIN.must),
        (ProcControls, capability::PROC.must | proc::SECONDARY),
        (ProcControls2, proc2::EPT | proc2::UNRESTRICTED | proc2::VPID),
        (ExitControls, capability::EXIT.must | exit::HOST_64 | exit::LOAD_EFER),
        (EntryControls, capability::ENTRY.must | entry::IA32E | entry::LOAD_EFER),
    ] {
        vmcs.set(field, value.into());
    }
    let long = efer::LME | efer::LMA;
    for (field, value) in [
        (Eptp, 0x1_001e),
        (Vpid, 1),
        (HostCr0, 0x8000_0031),
        (HostCr4, 0x2020),
        (HostCr3, 0x1000),
        (HostEfer, long),
        (HostCs, 8),
        (HostSs, 16),
        (HostTr, 24),
        (HostRip, 0xffff_ffff_8000_0000),
        (LinkPointer, u64::MAX),
        (GuestCr0, 0x8000_0031),
        (GuestCr4, 0x2020),
        (GuestCr3, 0x2000),
        (GuestEfer, long),
        (GuestRflags, 2),
        (GuestRip, 0x10_0000),
        (GuestCs, 8),
        (GuestCsRights, 0xa09b),
        (GuestTr, 24),
        (GuestTrRights, 0x8b),
        (GuestLdtrRights, 1 << 16),
    ] {
        vmcs.set(field, value);
    }
    for index in 0..6 {
        vmcs.set(GuestEsLimit.plus(index), 0xffff_ffff);
        if index != 1 {
            vmcs.set(GuestEs.plus(index), 16);
            vmcs.set(GuestEsRights.plus(index), 0xc093);
        }
    }
    vmcs.set(GuestTrLimit, 0x67);
    vmcs
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Controls,
    Host,
    Guest(u64),
    Fine,
}

pub(super) fn verdict(vmcs: &Vmcs) -> Verdict {
    if !controls(vmcs, AROUND) {
        return Verdict::Controls;
    }
    if !host(vmcs, AROUND) {
        return Verdict::Host;
    }
    guest(vmcs, AROUND, None).map_or_else(Verdict::Guest, |()| Verdict::Fine)
}

#[test]
fn each_wrong_field_fails_where_the_manual_says() {
    assert_eq!(verdict(&fine()), Verdict::Fine);
    use Verdict::{Controls, Guest, Host};
    let cases: &[(Field, u64, Verdict)] = &[
        (PinControls, 0, Controls),
        (PinControls, 0x16 | 1 << 7, Controls),
        (PinControls, 0x16 | 1 << 5, Controls),
        (ExitControls, u64::from(capability::EXIT.must | exit::HOST_64 | exit::SAVE_TIMER), Controls),
        (Vpid, 0, Controls),
        (Eptp, 0x1_0006, Controls),
        (ProcControls2, u64::from(proc2::UNRESTRICTED), Controls),
        (Cr3TargetCount, 5, Controls),
        (EntryInterruption, u64::from(VALID | 1 << 8), Controls),
        (HostCr0, 0x31, Host),
        (HostCr4, 0x20, Host),
        (HostCr4, 0x2020 | 1 << 40, Host),
        (HostCs, 0, Host),
        (HostDs, 3, Host),
        (HostTr, 4, Host),
        (HostRip, 0x8000_0000_0000_0000, Host),
        (HostGsBase, 0x8000_0000_0000, Host),
        (HostEfer, efer::LMA, Host),
        (HostCr3, 1 << 46, Host),
        (GuestCr0, 0x8000_0011, Guest(0)),
        (GuestCr4, 0x2000, Guest(0)),
        (GuestCr4, 0x20, Guest(0)),
        (GuestEfer, efer::LME, Guest(0)),
        (GuestRflags, 0, Guest(0)),
        (GuestRflags, 2 | rflags::VM, Guest(0)),
        (GuestRip, 0x8000_0000_0000, Guest(0)),
        (GuestTrRights, 1 << 16, Guest(0)),
        (GuestCsRights, 0xe09b, Guest(0)),
        (GuestSsRights, 0xc091, Guest(0)),
        (GuestDsRights, 0xc092, Guest(0)),
        (GuestDsLimit, 0xfff_0000, Guest(0)),
        (GuestGdtrLimit, 0x1_0000, Guest(0)),
        (GuestActivity, 2, Guest(0)),
        (GuestInterruptibility, 3, Guest(0)),
        (GuestInterruptibility, 1, Guest(0)),
        (GuestPendingDebug, 1 << 13, Guest(0)),
        (LinkPointer, 0, Guest(4)),
        (EntryInterruption, u64::from(VALID | 0x30), Guest(0)),
    ];
    for (field, value, expected) in cases {
        let mut vmcs = fine();
        vmcs.set(*field, *value);
        assert_eq!(verdict(&vmcs), *expected, "{field:?} {value:#x}");
    }
}

#[test]
fn controls_are_looked_at_before_the_host_and_that_before_the_guest() {
    let mut vmcs = fine();
    vmcs.set(LinkPointer, 0);
    assert_eq!(verdict(&vmcs), Verdict::Guest(4));
    vmcs.set(GuestRflags, 0);
    assert_eq!(verdict(&vmcs), Verdict::Guest(0), "the link pointer comes last");
    vmcs.set(HostCs, 0);
    assert_eq!(verdict(&vmcs), Verdict::Host);
    vmcs.set(Vpid, 0);
    assert_eq!(verdict(&vmcs), Verdict::Controls);
}

#[test]
fn an_unrestricted_guest_may_be_in_real_mode() {
    let mut vmcs = fine();
    vmcs.set(EntryControls, capability::ENTRY.must.into());
    vmcs.set(GuestCr0, 0x30);
    vmcs.set(GuestCr4, 0x2000);
    vmcs.set(GuestCsRights, 0x93);
    for index in 0..6 {
        vmcs.set(GuestEsLimit.plus(index), 0xffff);
        vmcs.set(GuestEsRights.plus(index), 0x93);
    }
    assert_eq!(verdict(&vmcs), Verdict::Fine);
    vmcs.set(ProcControls2, proc2::EPT.into());
    vmcs.set(Vpid, 0);
    assert_eq!(verdict(&vmcs), Verdict::Guest(0), "others may not");
}

#[test]
fn pae_guests_bring_their_pdptes() {
    let mut vmcs = fine();
    vmcs.set(EntryControls, capability::ENTRY.must.into());
    vmcs.set(GuestCsRights, 0xc09b);
    vmcs.set(GuestPdpte1, 0x1000);
    assert_eq!(verdict(&vmcs), Verdict::Fine, "not present");
    vmcs.set(GuestPdpte1, 0x1003);
    assert_eq!(verdict(&vmcs), Verdict::Guest(qualification::PDPTE), "W is reserved");
}
