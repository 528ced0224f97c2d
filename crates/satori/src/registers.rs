//! The registers of a vCPU as text.

use satori_arm_state as arm_state;
use satori_arm_state::Sys;
use satori_defs::x86::rflags;
use satori_state::{Activity, CpuState, reg, seg};
use satori_symbols::Symbols;

const GPRS: [(&str, usize); 16] = [
    ("RAX", reg::RAX),
    ("RBX", reg::RBX),
    ("RCX", reg::RCX),
    ("RDX", reg::RDX),
    ("RSI", reg::RSI),
    ("RDI", reg::RDI),
    ("RBP", reg::RBP),
    ("RSP", reg::RSP),
    ("R8", reg::R8),
    ("R9", reg::R9),
    ("R10", reg::R10),
    ("R11", reg::R11),
    ("R12", reg::R12),
    ("R13", reg::R13),
    ("R14", reg::R14),
    ("R15", reg::R15),
];

const SEGMENTS: [(&str, usize); 6] =
    [("CS", seg::CS), ("SS", seg::SS), ("DS", seg::DS), ("ES", seg::ES), ("FS", seg::FS), ("GS", seg::GS)];

/// What a person wants to see of `state` when its guest has failed, line by line.
pub fn lines(state: &CpuState) -> Vec<String> {
    let mut lines = vec![format!(
        "RIP {:016x}  RFLAGS {:08x}  CPL {}  {:?}",
        state.rip,
        state.rflags,
        state.cpl(),
        state.activity
    )];
    for four in GPRS.chunks(4) {
        let row: Vec<_> =
            four.iter().map(|(name, at)| format!("{name:<3} {:016x}", state.gpr[*at])).collect();
        lines.push(row.join("  "));
    }
    lines.push(format!(
        "CR0 {:08x}  CR2 {:016x}  CR3 {:016x}  CR4 {:08x}  EFER {:08x}",
        state.cr0, state.cr2, state.cr3, state.cr4, state.efer
    ));
    let row: Vec<_> = SEGMENTS
        .iter()
        .map(|(name, at)| format!("{name} {:04x} base {:x}", state.seg[*at].selector, state.seg[*at].base))
        .collect();
    lines.push(row.join("  "));
    lines.push(format!(
        "GDTR {:016x} limit {:04x}  IDTR {:016x} limit {:04x}  TR {:04x}",
        state.gdtr.base, state.gdtr.limit, state.idtr.base, state.idtr.limit, state.tr.selector
    ));
    lines
}

/// Where `state` was when nobody wanted to wait any longer, in a line.
pub fn place(state: &CpuState, symbols: Option<&Symbols>) -> String {
    let does = match state.activity {
        Activity::Active => "executed",
        Activity::Halted => "slept",
        Activity::WaitForSipi => return "was not started by the guest".into(),
        Activity::Shutdown => "was shut down",
    };
    let at = match symbols.filter(|_| state.cpl() == 0) {
        Some(symbols) => symbols.resolve(state.rip).to_string(),
        None => format!("{:#x} at CPL {}", state.rip, state.cpl()),
    };
    let masked = if state.rflags & rflags::IF == 0 { ", interrupts off" } else { "" };
    format!("{does} {at}{masked}")
}

/// The same of a vCPU of AArch64.
pub fn arm(state: &arm_state::CpuState) -> Vec<String> {
    let mut lines = vec![format!(
        "PC  {:016x}  SP  {:016x}  PSTATE {:08x}  {}",
        state.pc,
        state.x[arm_state::SP],
        state.pstate.to_spsr(),
        if state.off { "off" } else { "on" }
    )];
    for four in (0..31).collect::<Vec<_>>().chunks(4) {
        let row: Vec<_> =
            four.iter().map(|&at| format!("{:<3} {:016x}", format!("X{at}"), state.x[at])).collect();
        lines.push(row.join("  "));
    }
    for two in [[Sys::ESR_EL1, Sys::FAR_EL1, Sys::ELR_EL1], [Sys::VBAR_EL1, Sys::TTBR0_EL1, Sys::TTBR1_EL1]] {
        lines.push(two.map(|sys| format!("{} {:016x}", sys.row().name, state.get(sys))).join("  "));
    }
    lines
}

#[cfg(test)]
mod tests {
    use satori_defs::x86::cr0;

    use super::*;

    #[test]
    fn a_place_is_what_a_vcpu_did_where_and_whether_interrupts_reach_it() {
        let map =
            "ffffffff81000000 T _text\nffffffff81000100 T native_safe_halt\nffffffff81000200 T _etext\n";
        let symbols = Symbols::parse(map.as_bytes(), "System.map").unwrap();
        let mut state =
            CpuState { rip: 0xffff_ffff_8100_010b, rflags: 2, cr0: cr0::PE, ..CpuState::default() };
        state.activity = Activity::Active;
        assert_eq!(place(&state, Some(&symbols)), "executed native_safe_halt+0xb, interrupts off");
        assert_eq!(place(&state, None), "executed 0xffffffff8100010b at CPL 0, interrupts off");
        (state.activity, state.rflags) = (Activity::Halted, 2 | rflags::IF);
        assert_eq!(place(&state, Some(&symbols)), "slept native_safe_halt+0xb");
        // Whatever a program has there, it is no function of the kernel's.
        state.activity = Activity::Active;
        state.seg[seg::SS].rights |= 3 << 5;
        assert_eq!(place(&state, Some(&symbols)), "executed 0xffffffff8100010b at CPL 3");
        for (activity, told) in [
            (Activity::WaitForSipi, "was not started by the guest"),
            (Activity::Shutdown, "was shut down 0xffffffff8100010b at CPL 3"),
        ] {
            state.activity = activity;
            assert_eq!(place(&state, Some(&symbols)), told);
        }
    }
}
