//! x87, SSE and AVX state, XCR0 and PKRU: KVM's XSAVE area, which has the standard format (SDM volume 1, 13.4).

use std::arch::x86_64::__cpuid_count;
use std::io;

use kvm_bindings::{kvm_xcr, kvm_xcrs, kvm_xsave};
use kvm_ioctls::VcpuFd;
use satori_state::{CpuState, FpuState, Ymm};

const WORDS: usize = 1024;
/// XSTATE_BV of the header.
const HEADER: usize = 512;
/// The high halves of YMM0 to YMM15.
const YMM_HIGH: usize = 576;
/// CPUID leaf of the offsets of components.
const XSTATE: u32 = 0xd;
/// Component of PKRU.
const PKRU: u32 = 9;

/// Bits of XCR0 and XSTATE_BV.
const X87: u64 = 1;
const SSE: u64 = 2;
const AVX: u64 = 4;

/// The area as bytes.
struct Area([u8; 4 * WORDS]);

impl Area {
    fn of(xsave: &kvm_xsave) -> Self {
        let mut bytes = [0; 4 * WORDS];
        bytes
            .chunks_exact_mut(4)
            .zip(xsave.region)
            .for_each(|(chunk, word)| chunk.copy_from_slice(&word.to_le_bytes()));
        Area(bytes)
    }

    fn put_into(&self, xsave: &mut kvm_xsave) {
        let words =
            self.0.chunks_exact(4).map(|chunk| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
        xsave.region.iter_mut().zip(words).for_each(|(word, value)| *word = value);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Where the standard format has PKRU on this host, if it has it.
fn pkru_offset() -> Option<usize> {
    let leaf = __cpuid_count(XSTATE, PKRU);
    let at = leaf.ebx as usize;
    (leaf.eax == 4 && at >= YMM_HIGH && at + 4 <= 4 * WORDS).then_some(at)
}

/// Fetches the extended state.
pub(crate) fn fetch(vcpu: &VcpuFd, state: &mut CpuState) -> io::Result<()> {
    let area = Area::of(&vcpu.get_xsave()?);
    state.xcr0 = vcpu.get_xcrs()?.xcrs[0].value;
    let present = u64::from_le_bytes(area.get(HEADER));
    // Components that XSTATE_BV does not have are in their initial state, whatever the area holds.
    let fpu = &mut state.fpu;
    *fpu = FpuState::default();
    fpu.mxcsr = u32::from_le_bytes(area.get(24));
    if present & X87 != 0 {
        fpu.fcw = u16::from_le_bytes(area.get(0));
        fpu.fsw = u16::from_le_bytes(area.get(2));
        fpu.ftw = area.0[4];
        fpu.fop = u16::from_le_bytes(area.get(6));
        fpu.fip = u64::from_le_bytes(area.get(8));
        fpu.fdp = u64::from_le_bytes(area.get(16));
        for (i, st) in fpu.st.iter_mut().enumerate() {
            *st = u128::from_le_bytes(area.get(32 + 16 * i)) & ((1 << 80) - 1);
        }
    }
    for (i, Ymm { low, high }) in fpu.ymm.iter_mut().enumerate() {
        if present & SSE != 0 {
            *low = u128::from_le_bytes(area.get(160 + 16 * i));
        }
        if present & AVX != 0 {
            *high = u128::from_le_bytes(area.get(YMM_HIGH + 16 * i));
        }
    }
    state.pkru = match pkru_offset() {
        Some(at) if present >> PKRU & 1 != 0 => u32::from_le_bytes(area.get(at)),
        _ => 0,
    };
    Ok(())
}

/// Sets it; what else the area holds stays.
pub(crate) fn set(vcpu: &VcpuFd, state: &CpuState) -> io::Result<()> {
    let mut xsave = vcpu.get_xsave()?;
    let mut area = Area::of(&xsave);
    let fpu = &state.fpu;
    area.put(0, &fpu.fcw.to_le_bytes());
    area.put(2, &fpu.fsw.to_le_bytes());
    area.put(4, &[fpu.ftw, 0]);
    area.put(6, &fpu.fop.to_le_bytes());
    area.put(8, &fpu.fip.to_le_bytes());
    area.put(16, &fpu.fdp.to_le_bytes());
    area.put(24, &fpu.mxcsr.to_le_bytes());
    fpu.st.iter().enumerate().for_each(|(i, st)| area.put(32 + 16 * i, &st.to_le_bytes()));
    for (i, ymm) in fpu.ymm.iter().enumerate() {
        area.put(160 + 16 * i, &ymm.low.to_le_bytes());
        area.put(YMM_HIGH + 16 * i, &ymm.high.to_le_bytes());
    }
    let mut present = u64::from_le_bytes(area.get(HEADER)) | X87 | SSE;
    if fpu.ymm.iter().any(|ymm| ymm.high != 0) || present & AVX != 0 {
        present |= AVX;
    }
    match pkru_offset() {
        Some(at) if state.pkru != 0 || present >> PKRU & 1 != 0 => {
            area.put(at, &state.pkru.to_le_bytes());
            present |= 1 << PKRU;
        }
        _ => {}
    }
    area.put(HEADER, &present.to_le_bytes());
    area.put_into(&mut xsave);
    // SAFETY: the area has the size that it has on every processor without states that a process has to ask for, and this
    // one asks for none.
    unsafe { vcpu.set_xsave(&xsave) }?;
    let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
    xcrs.xcrs[0] = kvm_xcr { xcr: 0, reserved: 0, value: state.xcr0 };
    Ok(vcpu.set_xcrs(&xcrs)?)
}
