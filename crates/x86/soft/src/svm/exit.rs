//! #VMEXIT (APM 15.6).

use satori_defs::svm::ExitCode;
use satori_memory::Gpa;
use satori_state::reg;
use satori_svm::vmcb::{Descriptor, FETCHED_BYTES, FETCHED_MOST, Segment, interrupt};
use satori_svm::{Place, event, npt};
use satori_vmx::event::{Interruption, VALID, kind};

use super::SvmExit;
use super::enter::{EXCHANGED, descriptor};
use crate::cpu::Cpu;

/// The parts of a VMCB that #VMEXIT writes: offsets and bytes.
const WRITTEN: &[(usize, usize)] = &[
    (0x060, 0x30),
    (0x0a8, 8),
    (0x0c8, 0x18),
    (0x400, 0x40),
    (0x460, 0x10),
    (0x480, 0x10),
    (0x4cb, 1),
    (0x4d0, 8),
    (0x548, 0x38),
    (0x5d8, 8),
    (0x5f8, 8),
    (0x640, 8),
    (0x668, 8),
];

/// The event in whose delivery a guest was left, as EXITINTINFO has it.
fn exit_event(vectoring: Interruption) -> u64 {
    if vectoring.info & VALID == 0 {
        return 0;
    }
    let kind = match vectoring.kind() {
        // INT1, INT3 and INTO are exceptions here.
        kind::PRIVILEGED_SOFTWARE_EXCEPTION | kind::SOFTWARE_EXCEPTION => event::kind::EXCEPTION,
        other => u64::from(other),
    };
    let code = vectoring.error_code().map_or(0, |code| event::ERROR_CODE | u64::from(code) << 32);
    event::VALID | kind << 8 | u64::from(vectoring.vector()) | code
}

impl Cpu {
    /// The #VMEXIT behind [`crate::vmx::EXIT`].
    #[cold]
    pub(crate) fn svm_exit(&mut self) {
        let Some(exit) = self.svm.exit.take() else { return };
        self.svm.account.left(exit.code);
        let vectoring = std::mem::take(&mut self.vmx.vectoring);
        self.vmx.nmi_unblocked = false;
        self.save_svm_guest(exit, vectoring);
        self.store_vmcb(WRITTEN);
        self.load_svm_host();
    }

    fn save_svm_guest(&mut self, exit: SvmExit, vectoring: Interruption) {
        let flags = self.rflags();
        let level = u64::from(self.cpl());
        let fetched = self.fetched(exit, vectoring);
        let virtual_nmis = self.svm.virtual_nmis();
        let (state, vmcb) = (&self.state, &mut self.svm.vmcb);
        let next = if exit.length != 0 { state.rip.wrapping_add(exit.length) } else { 0 };
        let injected = vmcb.get(Place::INJECT);
        for (place, value) in [
            (Place::EXIT_CODE, exit.code),
            (Place::EXIT_INFO_1, exit.info1),
            (Place::EXIT_INFO_2, exit.info2),
            (Place::EXIT_EVENT, exit_event(vectoring)),
            // What was injected is not injected again.
            (Place::INJECT, injected & !event::VALID),
            (Place::NEXT_RIP, next),
            (Place::SHADOW, state.interrupt_shadow.into()),
            (Place::CPL, level),
            (Place::EFER, state.efer),
            (Place::CR0, state.cr0),
            (Place::CR2, state.cr2),
            (Place::CR3, state.cr3),
            (Place::CR4, state.cr4),
            (Place::DR6, state.dr6),
            (Place::DR7, state.dr7),
            (Place::RFLAGS, flags),
            (Place::RIP, state.rip),
            (Place::RSP, state.gpr[reg::RSP]),
            (Place::RAX, state.gpr[reg::RAX]),
        ] {
            vmcb.set(place, value);
        }
        if vmcb.get(Place::NESTED) & 1 != 0 {
            vmcb.set(Place::PAT, state.pat);
        }
        if virtual_nmis {
            let control = vmcb.get(Place::INTERRUPT_CONTROL) & !interrupt::NMI_MASK;
            let mask = if state.nmi_blocked { interrupt::NMI_MASK } else { 0 };
            vmcb.set(Place::INTERRUPT_CONTROL, control | mask);
        }
        vmcb.set(Place::FETCHED, fetched.len() as u64);
        let bytes = vmcb.part_mut(FETCHED_BYTES, FETCHED_MOST);
        bytes.fill(0);
        bytes[..fetched.len()].copy_from_slice(&fetched);
        for (index, which) in EXCHANGED {
            vmcb.set_segment(which, descriptor(&state.seg[index]));
        }
        for (which, table) in [(Descriptor::Gdtr, state.gdtr), (Descriptor::Idtr, state.idtr)] {
            let (limit, base) = (table.limit.into(), table.base);
            vmcb.set_segment(which, Segment { limit, base, ..vmcb.segment(which) });
        }
    }

    /// The bytes of the instruction whose access to data was a page fault, of the guest's tables or of the nested ones: as many
    /// as the processor could fetch (APM 15.8.4).
    fn fetched(&self, exit: SvmExit, vectoring: Interruption) -> Vec<u8> {
        const FAULTS: [u64; 2] = [ExitCode::ExceptionPf as u64, ExitCode::Npf as u64];
        let mut bytes = Vec::new();
        if !FAULTS.contains(&exit.code) || exit.info1 & npt::FETCH != 0 || vectoring.info & VALID != 0 {
            return bytes;
        }
        let mut rip = self.state.rip;
        while bytes.len() < FETCHED_MOST {
            let linear = self.code_linear(rip);
            let Some(at) = self.look_up(linear) else { break };
            let piece = (FETCHED_MOST - bytes.len()).min(0x1000 - (linear & 0xfff) as usize);
            let mut read = [0; FETCHED_MOST];
            if self.memory.read(Gpa(self.memory.addressed(at)), &mut read[..piece]).is_err() {
                break;
            }
            bytes.extend_from_slice(&read[..piece]);
            rip = rip.wrapping_add(piece as u64);
        }
        bytes
    }

    /// The virtual interrupt or NMI is taken.
    pub(super) fn virtual_event_taken(&mut self, which: u64) {
        let control = self.svm.vmcb.get(Place::INTERRUPT_CONTROL);
        self.svm.vmcb.set(Place::INTERRUPT_CONTROL, control & !which);
        self.choose_windows();
    }
}
