//! SVM's instructions of a host (APM volume 3). One of a guest that is intercepted has left it before it comes here.

use iced_x86::{Instruction, Mnemonic};
use satori_defs::x86::efer;
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::{reg, seg};
use satori_svm::vmcb::{Descriptor, VMLOAD_VMSAVE, interrupt};
use satori_svm::{Place, Vmcb};

use super::enter::{descriptor, segment, vmrun};
use crate::cpu::{Cpu, Exec, Handler};
use crate::mmu::{MAXPHYADDR, Space, World};
use crate::vmx::Nested;

/// The implementation of an instruction of SVM's.
pub(super) fn handler(insn: &Instruction) -> Option<Handler> {
    Some(match insn.mnemonic() {
        Mnemonic::Vmrun => vmrun,
        Mnemonic::Vmload => vmload,
        Mnemonic::Vmsave => vmsave,
        Mnemonic::Stgi => |cpu, _| set_interrupt_flag(cpu, true),
        Mnemonic::Clgi => |cpu, _| set_interrupt_flag(cpu, false),
        Mnemonic::Invlpga => invlpga,
        _ => return None,
    })
}

/// The MSRs that VMLOAD and VMSAVE exchange, beside FS, GS, TR and LDTR.
const SEGMENTS: [(Option<usize>, Descriptor); 4] = [
    (Some(seg::FS), Descriptor::Fs),
    (Some(seg::GS), Descriptor::Gs),
    (None, Descriptor::Tr),
    (None, Descriptor::Ldtr),
];

/// The parts of a VMCB that VMSAVE writes: offsets and bytes.
const SAVED: [(usize, usize); 4] = [(0x440, 0x20), (0x470, 0x10), (0x490, 0x10), (0x600, 0x40)];

impl Cpu {
    /// #UD without EFER.SVME and outside protected mode, then #GP outside privilege level 0.
    pub(crate) fn require_svm(&mut self) -> Exec<()> {
        if self.state.efer & efer::SVME == 0 || self.paragraph_selectors() {
            return Err(self.raise(Exception::ud()));
        }
        self.require_supervisor()
    }

    /// The VMCB's address in rAX; #GP for one that none has.
    pub(super) fn vmcb_address(&mut self) -> Exec<u64> {
        let rax = self.state.gpr[reg::RAX];
        let at = if self.derived.code64 { rax } else { rax & 0xffff_ffff };
        if at & 0xfff == 0 && at >> MAXPHYADDR == 0 { Ok(at) } else { Err(self.raise(Exception::gp(0))) }
    }

    /// The VMCB that VMLOAD and VMSAVE name. A guest's address is one of its host's, as that does not intercept them, but where
    /// they are virtual it passes the nested tables (APM 15.33.1).
    fn named_vmcb(&mut self, write: bool) -> Exec<(u64, Vmcb)> {
        self.require_svm()?;
        let mut at = self.vmcb_address()?;
        if self.svm.nested_paging() && self.svm.vmcb.get(Place::VIRTUALIZED) & VMLOAD_VMSAVE != 0 {
            let access = Nested { write, fetch: false, walk: false, user: false, linear: at };
            match self.nested_address(at, access) {
                Ok((host, _)) => at = host,
                Err(exit) => return Err(self.raise(exit)),
            }
        }
        match self.load_vmcb(at) {
            Some(vmcb) => Ok((at, vmcb)),
            None => Err(self.raise(Exception::gp(0))),
        }
    }
}

fn vmload(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let (_, vmcb) = cpu.named_vmcb(false)?;
    let state = &mut cpu.state;
    for (index, which) in SEGMENTS {
        let loaded = segment(vmcb.segment(which));
        match (index, which) {
            (Some(index), _) => state.seg[index] = loaded,
            (None, Descriptor::Tr) => state.tr = loaded,
            (None, _) => state.ldtr = loaded,
        }
    }
    for (place, register) in [
        (Place::STAR, &mut state.star),
        (Place::LSTAR, &mut state.lstar),
        (Place::CSTAR, &mut state.cstar),
        (Place::FMASK, &mut state.fmask),
        (Place::KERNEL_GS_BASE, &mut state.kernel_gs_base),
        (Place::SYSENTER_CS, &mut state.sysenter_cs),
        (Place::SYSENTER_ESP, &mut state.sysenter_esp),
        (Place::SYSENTER_EIP, &mut state.sysenter_eip),
    ] {
        *register = vmcb.get(place);
    }
    cpu.mode_changed();
    Ok(())
}

fn vmsave(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let (at, mut vmcb) = cpu.named_vmcb(true)?;
    let state = &cpu.state;
    for (index, which) in SEGMENTS {
        let from = match (index, which) {
            (Some(index), _) => &state.seg[index],
            (None, Descriptor::Tr) => &state.tr,
            (None, _) => &state.ldtr,
        };
        vmcb.set_segment(which, descriptor(from));
    }
    for (place, value) in [
        (Place::STAR, state.star),
        (Place::LSTAR, state.lstar),
        (Place::CSTAR, state.cstar),
        (Place::FMASK, state.fmask),
        (Place::KERNEL_GS_BASE, state.kernel_gs_base),
        (Place::SYSENTER_CS, state.sysenter_cs),
        (Place::SYSENTER_ESP, state.sysenter_esp),
        (Place::SYSENTER_EIP, state.sysenter_eip),
    ] {
        vmcb.set(place, value);
    }
    for (part, len) in SAVED {
        let place = Gpa(cpu.memory.addressed(at + part as u64));
        let _ = cpu.memory.write(place, &vmcb.bytes()[part..part + len]);
    }
    cpu.code_written();
    Ok(())
}

/// STGI and CLGI: of a guest that has a flag of its own, that (APM 15.33.2).
fn set_interrupt_flag(cpu: &mut Cpu, open: bool) -> Exec<()> {
    cpu.require_svm()?;
    if cpu.windows.signal {
        // What waited comes before the next instruction.
        cpu.execute_alone()?;
    }
    let control = cpu.svm.vmcb.get(Place::INTERRUPT_CONTROL);
    if cpu.svm.guest && control & interrupt::GIF_ENABLE != 0 {
        let flag = if open { interrupt::GIF } else { 0 };
        cpu.svm.vmcb.set(Place::INTERRUPT_CONTROL, control & !interrupt::GIF | flag);
    } else {
        cpu.svm.gif = open;
    }
    cpu.windows.attention = true;
    Ok(())
}

/// INVLPGA: the page goes with all that is kept of its address space.
fn invlpga(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_svm()?;
    let asid = cpu.state.gpr[reg::RCX] as u32;
    if asid == 0 && cpu.svm.guest {
        cpu.forget_spaces(|space: Space| matches!(space.world, World::Root), true);
        return Ok(());
    }
    if asid == 0 {
        let linear = cpu.state.gpr[reg::RAX];
        cpu.mmu.flush_page(linear);
        return Ok(());
    }
    let named =
        move |space: Space| matches!(space.world, World::Guest { vpid, .. } if u32::from(vpid) == asid);
    cpu.forget_spaces(named, true);
    Ok(())
}
