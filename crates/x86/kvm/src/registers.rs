//! The register file in KVM's structures: what `kvm_run` has at every exit.

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_MOV_SS, KVM_X86_SHADOW_INT_STI, kvm_dtable, kvm_regs,
    kvm_segment, kvm_sregs, kvm_sync_regs, kvm_vcpu_events,
};
use satori_state::reg::*;
use satori_state::{CpuState, DescriptorTable, Segment, seg};

/// Takes what an exit hands out into `state`. The task priority comes from `kvm_run` as CR8, its high half.
pub(crate) fn load(state: &mut CpuState, from: &kvm_sync_regs, cr8: u64) {
    let r = &from.regs;
    let low = [(RAX, r.rax), (RCX, r.rcx), (RDX, r.rdx), (RBX, r.rbx), (RSP, r.rsp), (RBP, r.rbp)];
    let more = [(RSI, r.rsi), (RDI, r.rdi), (R8, r.r8), (R9, r.r9), (R10, r.r10), (R11, r.r11)];
    let high = [(R12, r.r12), (R13, r.r13), (R14, r.r14), (R15, r.r15)];
    low.into_iter().chain(more).chain(high).for_each(|(at, value)| state.gpr[at] = value);
    (state.rip, state.rflags) = (r.rip, r.rflags);
    let s = &from.sregs;
    let segments = [
        (seg::ES, &s.es),
        (seg::CS, &s.cs),
        (seg::SS, &s.ss),
        (seg::DS, &s.ds),
        (seg::FS, &s.fs),
        (seg::GS, &s.gs),
    ];
    segments.into_iter().for_each(|(at, value)| state.seg[at] = segment(value));
    (state.ldtr, state.tr) = (segment(&s.ldt), segment(&s.tr));
    (state.gdtr, state.idtr) = (table(&s.gdt), table(&s.idt));
    (state.cr0, state.cr2, state.cr3, state.cr4, state.efer) = (s.cr0, s.cr2, s.cr3, s.cr4, s.efer);
    if cr8 != u64::from(state.tpr >> 4) {
        state.tpr = (cr8 as u8) << 4;
    }
    let shadow = u32::from(from.events.interrupt.shadow);
    state.interrupt_shadow = shadow != 0;
    state.ss_shadow = shadow & KVM_X86_SHADOW_INT_MOV_SS != 0;
    state.nmi_blocked = from.events.nmi.masked != 0;
}

/// The general registers of `state`.
pub(crate) fn general(state: &CpuState) -> kvm_regs {
    let gpr = &state.gpr;
    kvm_regs {
        rax: gpr[RAX],
        rbx: gpr[RBX],
        rcx: gpr[RCX],
        rdx: gpr[RDX],
        rsi: gpr[RSI],
        rdi: gpr[RDI],
        rsp: gpr[RSP],
        rbp: gpr[RBP],
        r8: gpr[R8],
        r9: gpr[R9],
        r10: gpr[R10],
        r11: gpr[R11],
        r12: gpr[R12],
        r13: gpr[R13],
        r14: gpr[R14],
        r15: gpr[R15],
        rip: state.rip,
        rflags: state.rflags,
    }
}

/// The system registers of `state`; what it does not have (IA32_APIC_BASE, an interrupt that is being delivered) stays as in
/// `before`.
pub(crate) fn system(state: &CpuState, before: &kvm_sregs) -> kvm_sregs {
    kvm_sregs {
        cs: kvm_segment_of(&state.seg[seg::CS]),
        ds: kvm_segment_of(&state.seg[seg::DS]),
        es: kvm_segment_of(&state.seg[seg::ES]),
        fs: kvm_segment_of(&state.seg[seg::FS]),
        gs: kvm_segment_of(&state.seg[seg::GS]),
        ss: kvm_segment_of(&state.seg[seg::SS]),
        tr: kvm_segment_of(&state.tr),
        ldt: kvm_segment_of(&state.ldtr),
        gdt: kvm_table_of(state.gdtr),
        idt: kvm_table_of(state.idtr),
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        cr8: u64::from(state.tpr >> 4),
        efer: state.efer,
        ..*before
    }
}

/// What `state` has of the events, in what KVM has of them.
pub(crate) fn events(state: &CpuState, before: &kvm_vcpu_events) -> kvm_vcpu_events {
    let mut events = *before;
    events.interrupt.shadow = match (state.interrupt_shadow, state.ss_shadow) {
        (false, _) => 0,
        (true, true) => KVM_X86_SHADOW_INT_MOV_SS as u8,
        (true, false) => KVM_X86_SHADOW_INT_STI as u8,
    };
    events.nmi.masked = state.nmi_blocked.into();
    events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
    events
}

fn segment(from: &kvm_segment) -> Segment {
    let bits = [
        (from.s, 4),
        (from.dpl & 1, 5),
        (from.dpl >> 1, 6),
        (from.present, 7),
        (from.avl, 12),
        (from.l, 13),
        (from.db, 14),
        (from.g, 15),
        (from.unusable, 16),
    ];
    let rights = bits.iter().fold(u32::from(from.type_), |all, &(bit, at)| all | u32::from(bit & 1) << at);
    Segment { selector: from.selector, rights, limit: from.limit, base: from.base }
}

fn kvm_segment_of(segment: &Segment) -> kvm_segment {
    let bit = |at: u32| (segment.rights >> at & 1) as u8;
    kvm_segment {
        base: segment.base,
        limit: segment.limit,
        selector: segment.selector,
        type_: (segment.rights & 0xf) as u8,
        present: bit(7),
        dpl: segment.dpl(),
        db: bit(14),
        s: bit(4),
        l: bit(13),
        g: bit(15),
        avl: bit(12),
        unusable: bit(16),
        padding: 0,
    }
}

fn table(from: &kvm_dtable) -> DescriptorTable {
    DescriptorTable { base: from.base, limit: from.limit }
}

fn kvm_table_of(table: DescriptorTable) -> kvm_dtable {
    kvm_dtable { base: table.base, limit: table.limit, padding: [0; 3] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_loaded() {
        let mut state = CpuState::default();
        state.gpr[..16].iter_mut().zip(100..).for_each(|(register, value)| *register = value);
        state.seg[seg::CS] = Segment { selector: 0x33, rights: 0xa0fb, limit: u32::MAX, base: 0 };
        state.seg[seg::FS] = Segment { selector: 0, rights: 0x1_0000, limit: 7, base: 0x1234_5678_9abc };
        (state.cr3, state.efer, state.tpr) = (0x5000, 0xd01, 0x35);
        (state.interrupt_shadow, state.ss_shadow, state.nmi_blocked) = (true, true, true);
        let nothing = kvm_sync_regs::default();
        let kvm = kvm_sync_regs {
            regs: general(&state),
            sregs: system(&state, &nothing.sregs),
            events: events(&state, &nothing.events),
        };
        let mut loaded = CpuState { tpr: 0x35, ..CpuState::default() };
        load(&mut loaded, &kvm, kvm.sregs.cr8);
        assert_eq!(loaded, state);
        load(&mut loaded, &kvm, 7);
        assert_eq!(loaded.tpr, 0x70, "a priority that was changed by MOV to CR8");
    }
}
