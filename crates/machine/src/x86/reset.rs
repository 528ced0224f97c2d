//! Registers after power-up and INIT.

use satori_defs::x86::cr0;
use satori_state::{Activity, CpuState, reg};

/// The registers after power-up (SDM table 10-1), with `signature` in EDX.
pub(crate) fn after_reset(signature: u32) -> CpuState {
    let mut fresh = CpuState::default();
    fresh.gpr[reg::RDX] = signature.into();
    fresh
}

/// The registers after INIT (SDM table 10-1): a processor's MSRs, its x87 and SSE state, XCR0 and
/// PKRU stay, and so do the cache controls.
pub(super) fn after_init(before: &CpuState, bsp: bool, signature: u32) -> CpuState {
    let fresh = after_reset(signature);
    let cache = cr0::CD | cr0::NW;
    CpuState {
        cr0: fresh.cr0 & !cache | before.cr0 & cache,
        xcr0: before.xcr0,
        xss: before.xss,
        pkru: before.pkru,
        fpu: before.fpu.clone(),
        star: before.star,
        lstar: before.lstar,
        cstar: before.cstar,
        fmask: before.fmask,
        kernel_gs_base: before.kernel_gs_base,
        sysenter_cs: before.sysenter_cs,
        sysenter_esp: before.sysenter_esp,
        sysenter_eip: before.sysenter_eip,
        tsc_aux: before.tsc_aux,
        spec_ctrl: before.spec_ctrl,
        pat: before.pat,
        tsc_offset: before.tsc_offset,
        activity: if bsp { Activity::Active } else { Activity::WaitForSipi },
        ..fresh
    }
}
