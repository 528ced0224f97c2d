//! Where AMD's processors differ: SYSCALL, SYSRET and SYSENTER of compatibility mode (APM volume 3).

use satori_cpuid::Vendor;

use super::*;

const SYSCALL: &[u8] = &[0x0f, 0x05];
const SYSRET: &[u8] = &[0x0f, 0x07];

/// In compatibility mode at privilege level 3.
fn compatible(vendor: Vendor) -> Machine {
    let mut cpu = long_machine(true);
    cpu.isa.offered.vendor = vendor;
    cpu.state.seg[seg::CS] = Segment::flat(USER_CODE32, 0xc0fb);
    cpu.state.star = 0x0018_0008 << 32 | 0x1234;
    cpu.state.lstar = 0x5678;
    cpu.state.cstar = 0xffff_ffff_8000_0000;
    cpu.state.fmask = rflags::DF;
    cpu.set_rflags(rflags::IF | rflags::DF);
    cpu
}

#[test]
fn compatibility_mode_has_amds_syscall_only() {
    assert_eq!(fault(&mut compatible(Vendor::Intel), SYSCALL), Exception::ud());
    let mut cpu = compatible(Vendor::Amd);
    let (before, flags) = (cpu.state.clone(), cpu.rflags());
    run(&mut cpu, SYSCALL).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (0, 64, 0xffff_ffff_8000_0000));
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::R11]), (before.rip + 2, flags));
    assert_eq!(cpu.rflags(), flags & !rflags::DF, "the mask, and nothing else");
    run(&mut cpu, SYSRET).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (3, 32, before.rip + 2));
    assert_eq!((cpu.rflags(), cpu.state.seg[seg::CS]), (flags, before.seg[seg::CS]));
    // What SYSCALL loaded stays, but for the selector and the privilege.
    let ss = cpu.state.seg[seg::SS];
    assert_eq!((ss.selector, ss.rights, ss.limit), (0x20, 0xc0f3, u32::MAX));
}

#[test]
fn amds_sysret_leaves_an_unusable_stack_so() {
    for vendor in [Vendor::Amd, Vendor::Intel] {
        let mut cpu = long_machine(false);
        cpu.isa.offered.vendor = vendor;
        cpu.state.star = 0x0018_0008 << 32;
        cpu.state.gpr[reg::RCX] = 0x1_2345_6789;
        cpu.state.gpr[reg::R11] = rflags::IF;
        cpu.state.seg[seg::SS] = super::super::descriptor::unusable(0, 0);
        run(&mut cpu, SYSRET).unwrap();
        assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (3, 32, 0x2345_6789), "{vendor:?}");
        assert_eq!(cpu.state.seg[seg::SS].unusable(), vendor == Vendor::Amd);
    }
}

#[test]
fn amd_has_no_sysenter_in_long_mode() {
    for (vendor, refused) in [(Vendor::Amd, true), (Vendor::Intel, false)] {
        let mut cpu = compatible(vendor);
        cpu.state.sysenter_cs = KERNEL_CODE.into();
        cpu.state.sysenter_eip = 0xffff_ffff_8000_0000;
        let outcome = run(&mut cpu, &[0x0f, 0x34]);
        assert_eq!(outcome.is_err(), refused, "{vendor:?}");
        if refused {
            assert_eq!(fault_of(&mut cpu, outcome), Exception::ud());
        } else {
            assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (0, 64, 0xffff_ffff_8000_0000));
        }
    }
}
