//! VMRUN (APM 15.5).

use iced_x86::Instruction;
use satori_defs::x86::vector::NMI;
use satori_defs::x86::{cr0, dr6, efer, rflags};
use satori_engine::Exception;
use satori_state::{Activity, CpuState, DescriptorTable, Segment, reg, seg};
use satori_svm::vmcb::{Descriptor, interrupt, tlb};
use satori_svm::{INVALID, Place, Vmcb, check, event};
use satori_vmx::event::Interruption;
use satori_vmx::event::kind;

use super::Svm;
use crate::cpu::{Cpu, Exec};
use crate::mmu::{Paging, Space, World};

/// Attributes of a descriptor that is present.
const PRESENT: u16 = 0x80;

/// What VMRUN saves of whoever executes it. Where it is kept is the processor's business (APM 15.5.1, VM_HSAVE_PA).
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(super) cr0: u64,
    pub(super) cr3: u64,
    pub(super) cr4: u64,
    pub(super) efer: u64,
    pub(super) pat: u64,
    pub(super) rflags: u64,
    pub(super) rip: u64,
    pub(super) rsp: u64,
    pub(super) rax: u64,
    /// ES, CS, SS, DS.
    pub(super) segments: [Segment; 4],
    pub(super) gdtr: DescriptorTable,
    pub(super) idtr: DescriptorTable,
    pub(super) nmi_blocked: bool,
}

/// The registers with a descriptor that VMRUN and #VMEXIT exchange, and which of the VMCB's each is.
pub(super) const EXCHANGED: [(usize, Descriptor); 4] = [
    (seg::ES, Descriptor::Es),
    (seg::CS, Descriptor::Cs),
    (seg::SS, Descriptor::Ss),
    (seg::DS, Descriptor::Ds),
];

/// A descriptor of the VMCB as a segment register.
pub(super) fn segment(from: satori_svm::vmcb::Segment) -> Segment {
    let unusable = if from.attributes & PRESENT == 0 { Segment::UNUSABLE } else { 0 };
    Segment { selector: from.selector, rights: from.rights() | unusable, limit: from.limit, base: from.base }
}

/// A segment register as a descriptor of the VMCB.
pub(super) fn descriptor(from: &Segment) -> satori_svm::vmcb::Segment {
    let attributes = (from.rights & 0xff | from.rights >> 4 & 0xf00) as u16;
    satori_svm::vmcb::Segment {
        selector: from.selector,
        attributes: if from.unusable() { attributes & !PRESENT } else { attributes },
        limit: from.limit,
        base: from.base,
    }
}

impl Host {
    fn of(state: &CpuState, rflags: u64, rip: u64) -> Self {
        Host {
            cr0: state.cr0,
            cr3: state.cr3,
            cr4: state.cr4,
            efer: state.efer,
            pat: state.pat,
            rflags,
            rip,
            rsp: state.gpr[reg::RSP],
            rax: state.gpr[reg::RAX],
            segments: EXCHANGED.map(|(index, _)| state.seg[index]),
            gdtr: state.gdtr,
            idtr: state.idtr,
            nmi_blocked: state.nmi_blocked,
        }
    }

    /// Gives `state` its registers back.
    pub(super) fn restore(&self, state: &mut CpuState) {
        let host = self;
        (state.cr0, state.cr3, state.cr4) = (host.cr0 | cr0::PE, host.cr3, host.cr4);
        (state.efer, state.pat, state.rip) = (host.efer, host.pat, host.rip);
        (state.gpr[reg::RSP], state.gpr[reg::RAX]) = (host.rsp, host.rax);
        for ((index, _), segment) in EXCHANGED.into_iter().zip(host.segments) {
            state.seg[index] = segment;
        }
        (state.gdtr, state.idtr) = (host.gdtr, host.idtr);
        state.dr7 = 0x400;
    }
}

/// VMRUN, of a host; one of a guest has left it before it comes here.
pub(super) fn vmrun(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_svm()?;
    let at = cpu.vmcb_address()?;
    // Everything that may follow ends this instruction somewhere else.
    cpu.execute_alone()?;
    let Some(vmcb) = cpu.load_vmcb(at) else { return Err(cpu.raise(Exception::gp(0))) };
    let accepted = check::accepts(&vmcb, cpu.around_svm());
    (cpu.svm.at, cpu.svm.vmcb) = (at, vmcb);
    if !accepted {
        cpu.svm.account.failed += 1;
        cpu.svm.vmcb.set(Place::EXIT_CODE, INVALID);
        cpu.store_vmcb(&[(Place::EXIT_CODE.at, 8)]);
        cpu.svm.gif = false;
        return Ok(());
    }
    cpu.svm.account.entries += 1;
    let flags = cpu.rflags();
    cpu.svm.host = Host::of(&cpu.state, flags, cpu.next_rip);
    cpu.load_svm_guest();
    cpu.inject_svm_event();
    if let Some(exit) = cpu.shut_down() {
        return Err(cpu.exit(exit));
    }
    cpu.next_rip = cpu.state.rip;
    Ok(())
}

/// RFLAGS that can be loaded.
const FLAGS: u64 = 0x003f_7fd7;

impl Cpu {
    /// The state save area becomes the processor's.
    fn load_svm_guest(&mut self) {
        let vmcb = &self.svm.vmcb;
        let get = |place| vmcb.get(place);
        guest_state(vmcb, &mut self.state);
        let flags = get(Place::RFLAGS) & FLAGS | rflags::FIXED;
        let (dropped, asid) = (get(Place::TLB_CONTROL), get(Place::ASID) as u16);
        let control = get(Place::INTERRUPT_CONTROL);
        if control & interrupt::NMI_ENABLE != 0 {
            self.state.nmi_blocked = control & interrupt::NMI_MASK != 0;
        }
        (self.svm.pauses, self.svm.paused) = (get(Place::PAUSE_COUNT), 0);
        (self.svm.guest, self.svm.gif, self.vmx.guest) = (true, true, true);
        self.vmx.vectoring = Interruption::default();
        if dropped & tlb::ALL != 0 {
            let all = dropped & !tlb::ALL == tlb::KEEP;
            let of_guest = move |space: Space| match space.world {
                World::Guest { vpid, .. } => all || vpid == asid,
                World::Root => all,
            };
            self.forget_spaces(of_guest, dropped != tlb::ASID_LOCAL);
        }
        self.load_svm_pdptes();
        self.switched_svm(flags, dropped & tlb::ALL == 0);
    }

    /// The PDPTEs of a guest with PAE paging, from its memory.
    fn load_svm_pdptes(&mut self) {
        if Paging::of(&self.state) != Paging::Pae {
            return;
        }
        for index in 0..4 {
            let at = (self.state.cr3 & 0xffff_ffe0) + 8 * index as u64;
            self.state.pdpte[index] =
                self.nested_look_up(at).and_then(|at| self.entry_load(at, true)).unwrap_or(0);
        }
    }

    /// What follows a change between host and guest.
    pub(super) fn switched_svm(&mut self, flags: u64, keep: bool) {
        self.mode_changed();
        self.enter_space(keep);
        if !keep {
            self.flush_tlb(false);
        }
        self.choose_windows();
        self.arm();
        self.set_rflags(flags);
        self.windows.attention = true;
    }

    /// Delivers what EVENTINJ has: nothing is intercepted of it.
    fn inject_svm_event(&mut self) {
        let injected = self.svm.vmcb.get(Place::INJECT);
        if injected & event::VALID == 0 {
            return;
        }
        // An NMI has its own vector, whatever is told.
        let vector = if event::kind_of(injected) == event::kind::NMI { NMI } else { injected as u8 };
        let kind = match event::kind_of(injected) {
            event::kind::EXCEPTION if matches!(vector, 3 | 4) => kind::SOFTWARE_EXCEPTION,
            event::kind::EXCEPTION => kind::HARDWARE_EXCEPTION,
            other => other as u32,
        };
        let code = (injected & event::ERROR_CODE != 0).then_some((injected >> 32) as u32);
        // A software event goes on behind its instruction, which NEXT_RIP tells (APM 15.20).
        let behind = self.svm.vmcb.get(Place::NEXT_RIP).wrapping_sub(self.state.rip);
        let length =
            if matches!(kind, kind::SOFTWARE_INTERRUPT | kind::SOFTWARE_EXCEPTION) { behind } else { 0 };
        self.inject_event(Interruption::new(vector, kind, code), length);
    }

    /// The processor goes back to the host of `svm`.
    pub(super) fn load_svm_host(&mut self) {
        let Svm { host, .. } = &*self.svm;
        let state = &mut self.state;
        host.restore(state);
        (state.interrupt_shadow, state.ss_shadow) = (false, false);
        // VMRUN under the trap flag is one instruction, which ends here.
        state.pending_debug = if host.rflags & rflags::TF != 0 { dr6::BS } else { 0 };
        state.activity = Activity::Active;
        state.nmi_blocked = host.nmi_blocked;
        let flags = host.rflags & !rflags::VM;
        (self.svm.guest, self.svm.gif, self.vmx.guest) = (false, false, false);
        if Paging::of(&self.state) == Paging::Pae {
            for index in 0..4 {
                let at = (self.state.cr3 & 0xffff_ffe0) + 8 * index as u64;
                self.state.pdpte[index] = self.entry_load(at, true).unwrap_or(0);
            }
        }
        self.switched_svm(flags, true);
    }
}

/// The copy of a VMCB that is saved with a machine.
pub(super) fn copy(bytes: Vec<u8>) -> Option<Vmcb> {
    Some(Vmcb::new(bytes.try_into().ok()?))
}

/// The state save area as registers; PDPTEs and RFLAGS are not among them.
pub(super) fn guest_state(vmcb: &Vmcb, state: &mut CpuState) {
    let get = |place| vmcb.get(place);
    state.cr0 = get(Place::CR0) & satori_rules::cr0::EXIST | cr0::ET;
    state.cr2 = get(Place::CR2);
    state.cr3 = get(Place::CR3);
    state.cr4 = get(Place::CR4);
    let efer = get(Place::EFER) & !efer::LMA;
    let long = efer & efer::LME != 0 && state.cr0 & cr0::PG != 0;
    state.efer = efer | if long { efer::LMA } else { 0 };
    state.dr6 = get(Place::DR6) & 0xe00f | 0xffff_0ff0;
    state.dr7 = get(Place::DR7) & 0xffff_2bff | 0x400;
    for (index, which) in EXCHANGED {
        state.seg[index] = segment(vmcb.segment(which));
    }
    // The privilege level is a field of its own; the registers here have it in SS.
    let level = match (state.cr0 & cr0::PE != 0, get(Place::RFLAGS) & rflags::VM != 0) {
        (false, _) => 0,
        (true, true) => 3,
        (true, false) => get(Place::CPL) as u32 & 3,
    };
    state.seg[seg::SS].rights = state.seg[seg::SS].rights & !0x60 | level << 5;
    let table = |which| {
        let from = vmcb.segment(which);
        DescriptorTable { base: from.base, limit: from.limit as u16 }
    };
    (state.gdtr, state.idtr) = (table(Descriptor::Gdtr), table(Descriptor::Idtr));
    state.gpr[reg::RAX] = get(Place::RAX);
    state.gpr[reg::RSP] = get(Place::RSP);
    state.rip = get(Place::RIP);
    if get(Place::NESTED) & 1 != 0 {
        state.pat = get(Place::PAT);
    }
    (state.interrupt_shadow, state.ss_shadow) = (get(Place::SHADOW) & 1 != 0, false);
    state.pending_debug = 0;
    state.activity = Activity::Active;
}
