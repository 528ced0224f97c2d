//! The switch between worlds.
//!
//! X28 is the processor's area wherever the host's code runs. A switch is made of [`Part`]s. Where the run of a vCPU is a function of
//! its own they stand in it, one behind the other; otherwise each is a function that is called by a pointer, as split mode and VHE
//! shared them.

use satori_arm_state::Sys;

use crate::Program;
use crate::asm::{Cond, Name, X};
use crate::layout::area;

const AREA: X = X(28);
const T0: X = X(2);
const T1: X = X(3);

/// What two kernels cannot have at once.
const EL1: [Sys; 20] = [
    Sys::SCTLR_EL1,
    Sys::CPACR_EL1,
    Sys::TTBR0_EL1,
    Sys::TTBR1_EL1,
    Sys::TCR_EL1,
    Sys::ESR_EL1,
    Sys::AFSR0_EL1,
    Sys::AFSR1_EL1,
    Sys::FAR_EL1,
    Sys::MAIR_EL1,
    Sys::AMAIR_EL1,
    Sys::VBAR_EL1,
    Sys::CONTEXTIDR_EL1,
    Sys::CNTKCTL_EL1,
    Sys::ELR_EL1,
    Sys::SPSR_EL1,
    Sys::CSSELR_EL1,
    Sys::PAR_EL1,
    Sys::TPIDR_EL1,
    Sys::SP_EL1,
];
/// What two programs cannot have at once, and a kernel at EL2 does not use.
const THREAD: [Sys; 2] = [Sys::TPIDR_EL0, Sys::TPIDRRO_EL0];
/// What a kernel at EL2 uses, too.
const COMMON: [Sys; 2] = [Sys::MDSCR_EL1, Sys::SP_EL0];

const HCR_RW: u64 = 1 << 31;
const HCR_TGE: u64 = 1 << 27;
const HCR_E2H: u64 = 1 << 34;
/// VM, SWIO, PTW, FMO, IMO, AMO, FB, BSU_IS, TWI, TSC, TIDCP, TACR, TSW.
const HCR_GUEST: u64 = HCR_RW | 0xf << 19 | 1 << 13 | 1 << 10 | 1 << 9 | 0x3f;
/// CPTR_EL2 without VHE: what is one there, TTA, TFP. With it: FPEN, TTA.
const CPTR_RES1: u64 = 0x33ff;
const CPTR_TTA: u64 = 1 << 20;
const CPTR_TFP: u64 = 1 << 10;
const CPACR_FPEN: u64 = 3 << 20;
const CPACR_TTA: u64 = 1 << 28;
/// MDCR_EL2: TPM, TPMCR, TDRA, TDOSA, TDA.
const MDCR_TRAPS: u64 = 1 << 6 | 1 << 5 | 1 << 11 | 1 << 10 | 1 << 9;
const HSTR_CP15: u64 = 1 << 15;
/// Tables from level 2 on, addresses of 30 bits, 40 bits of physical ones, write-back and inner shareable.
const VTCR: u64 = 1 << 31 | 2 << 16 | 3 << 12 | 1 << 10 | 1 << 8 | 34;
const VMID: u64 = 1 << 48;
const ICH_HCR_EN: u64 = 1;
/// EL1's access to the physical counter and timer: CNTHCTL_EL2 without VHE, and with it.
const EL1_TIMER: [u64; 2] = [3, 3 << 10];
/// The bit of the virtual timer among a redistributor's interrupts.
const VIRTUAL_TIMER: u64 = 1 << 27;
const ISACTIVER0: usize = 0x300;
const ICACTIVER0: usize = 0x380;

/// A part of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    SaveHost,
    ActivateTraps,
    ActivateStage2,
    RestoreVgic,
    RestoreTimer,
    RestoreGuest,
    SaveGuest,
    SaveTimer,
    SaveVgic,
    DeactivateTraps,
    DeactivateStage2,
    RestoreHost,
    SwitchFpBack,
}

impl Program {
    /// What a vCPU's entry and exit have in common with its load and put: registers to memory.
    fn save(&mut self, registers: &[Sys], place: usize, guest: bool) {
        self.each(registers, place, guest, true);
    }

    fn restore(&mut self, registers: &[Sys], place: usize, guest: bool) {
        self.each(registers, place, guest, false);
    }

    /// Registers two by two. `guest` means EL1's own, whose plain names are redirected at EL2 with E2H.
    fn each(&mut self, registers: &[Sys], place: usize, guest: bool, save: bool) {
        let vhe = self.design.vhe && guest;
        let name = |sys: Sys| if vhe { Name::el1s_own(sys) } else { sys.into() };
        let a = &mut self.a;
        a.add_imm(X(1), AREA, place as u32);
        for (at, two) in registers.chunks(2).enumerate() {
            match (two, save) {
                ([one, other], true) => {
                    a.mrs(T0, name(*one));
                    a.mrs(T1, name(*other));
                    a.stp(T0, T1, X(1), at * 16);
                }
                ([one, other], false) => {
                    a.ldp(T0, T1, X(1), at * 16);
                    a.msr(name(*one), T0);
                    a.msr(name(*other), T1);
                }
                ([one], true) => {
                    a.mrs(T0, name(*one));
                    a.str(T0, X(1), at * 16);
                }
                ([one], false) => {
                    a.ldr(T0, X(1), at * 16);
                    a.msr(name(*one), T0);
                }
                _ => {}
            }
        }
    }

    fn write(&mut self, name: impl Into<Name>, value: u64) {
        self.a.set(T0, value);
        self.a.msr(name, T0);
    }

    fn hcr_of_host(&self) -> u64 {
        HCR_RW | if self.design.vhe { HCR_E2H | HCR_TGE } else { 0 }
    }

    /// A register of the guest's timer.
    fn timer(&self, sys: Sys) -> Name {
        if self.design.vhe { Name::el1s_own(sys) } else { sys.into() }
    }

    /// The registers that move at each entry and exit. In memory COMMON is first, EL1 and THREAD follow.
    fn moved(&self, guest: bool) -> Vec<Sys> {
        let (all, none) = ([&COMMON[..], &EL1, &THREAD].concat(), COMMON.to_vec());
        match (self.design.vhe, self.design.el1_stays) {
            (false, _) => all,
            (true, true) => none,
            // A host at EL2 has a state of its own.
            (true, false) if guest => all,
            (true, false) => [COMMON, THREAD].concat(),
        }
    }

    /// What is done at each entry and exit, and what waits for load and put.
    fn in_switch(&self, part: Part) -> bool {
        let design = self.design;
        match part {
            Part::ActivateStage2 | Part::DeactivateStage2 => !design.traps_stay,
            Part::RestoreTimer | Part::SaveTimer => !design.timer_stays,
            Part::SwitchFpBack => !design.vgic_stays,
            _ => true,
        }
    }

    /// A part: here, or called by a pointer.
    fn part(&mut self, part: Part) {
        if !self.in_switch(part) {
            return;
        }
        if self.design.own_run {
            return self.body(part);
        }
        self.a.adr(X(9), &format!("{part:?}"));
        self.a.blr(X(9));
        self.parts.push(part);
    }

    fn body(&mut self, part: Part) {
        match part {
            Part::SaveHost => {
                if !self.design.vhe {
                    // Where the kernel goes on behind its HVC.
                    self.save(&[Sys::ELR_EL2, Sys::SPSR_EL2], area::HOST_PC, false);
                }
                self.save(&self.moved(false), area::HOST_SYS, false);
            }
            Part::RestoreHost => {
                if !self.design.vhe {
                    self.restore(&[Sys::ELR_EL2, Sys::SPSR_EL2], area::HOST_PC, false);
                }
                self.restore(&self.moved(false), area::HOST_SYS, false);
            }
            Part::RestoreGuest => {
                self.restore(&self.moved(true), area::GUEST_SYS, true);
                self.restore(&[Sys::ELR_EL2, Sys::SPSR_EL2], area::PC, false);
            }
            Part::SaveGuest => {
                self.save(&self.moved(true), area::GUEST_SYS, true);
                self.save(&[Sys::ELR_EL2, Sys::SPSR_EL2], area::PC, false);
            }
            Part::ActivateTraps => self.activate_traps(),
            Part::DeactivateTraps => self.deactivate_traps(),
            Part::ActivateStage2 => self.activate_stage2(),
            Part::DeactivateStage2 => self.a.msr(Sys::VTTBR_EL2, X(31)),
            Part::RestoreVgic => self.restore_vgic(),
            Part::SaveVgic => self.save_vgic(),
            Part::RestoreTimer => self.restore_timer(),
            Part::SaveTimer => self.save_timer(),
            Part::SwitchFpBack => self.switch_fp_back(),
        }
    }

    fn activate_stage2(&mut self) {
        self.write(Sys::VTCR_EL2, VTCR);
        self.a.adr(T0, "stage2");
        self.a.set(T1, VMID);
        self.a.orr(T0, T0, T1);
        self.a.msr(Sys::VTTBR_EL2, T0);
    }

    /// HSTR_EL2 and MDCR_EL2, of which a bit at a time is the guest's.
    fn arm_rare_traps(&mut self) {
        self.write(Sys::HSTR_EL2, HSTR_CP15);
        self.a.mrs(T0, Sys::MDCR_EL2);
        self.a.set(T1, MDCR_TRAPS);
        self.a.orr(T0, T0, T1);
        self.a.msr(Sys::MDCR_EL2, T0);
    }

    fn disarm_rare_traps(&mut self) {
        self.a.msr(Sys::HSTR_EL2, X(31));
        self.a.mrs(T0, Sys::MDCR_EL2);
        self.a.set(T1, MDCR_TRAPS);
        self.a.bic(T0, T0, T1);
        self.a.msr(Sys::MDCR_EL2, T0);
    }

    fn activate_traps(&mut self) {
        let vhe = self.design.vhe;
        // Vector registers that are not the guest's yet trap.
        let (loaded, trapped) = match vhe {
            true => (CPACR_TTA | CPACR_FPEN, CPACR_TTA),
            false => (CPTR_RES1 | CPTR_TTA, CPTR_RES1 | CPTR_TTA | CPTR_TFP),
        };
        let (armed, own) = (self.a.fresh(), HCR_GUEST | if vhe { HCR_E2H } else { 0 });
        self.write(Sys::HCR_EL2, own);
        self.a.ldr(T1, AREA, area::FP_LOADED);
        self.a.set(T0, loaded);
        self.a.cbnz(T1, &armed);
        self.a.set(T0, trapped);
        self.a.label(&armed);
        self.a.msr(Sys::CPTR_EL2, T0);
        if vhe {
            self.a.adr(T0, "vectors_of_el2");
            self.a.msr(Sys::VBAR_EL2, T0);
        }
        if !self.design.traps_stay {
            self.arm_rare_traps();
        }
    }

    fn deactivate_traps(&mut self) {
        self.write(Sys::HCR_EL2, self.hcr_of_host());
        self.write(Sys::CPTR_EL2, if self.design.vhe { CPACR_FPEN } else { CPTR_RES1 });
        if self.design.vhe {
            self.a.adr(T0, "vectors_of_kernel");
            self.a.msr(Sys::VBAR_EL2, T0);
        }
        if !self.design.traps_stay {
            self.disarm_rare_traps();
        }
    }

    fn load_vgic(&mut self) {
        let registers = [Sys::ICH_VMCR_EL2, Sys::ICH_AP0R0_EL2, Sys::ICH_AP1R0_EL2];
        self.restore(&registers, area::VMCR, false);
    }

    fn put_vgic(&mut self) {
        let registers = [Sys::ICH_VMCR_EL2, Sys::ICH_AP0R0_EL2, Sys::ICH_AP1R0_EL2];
        self.save(&registers, area::VMCR, false);
    }

    /// List registers move if they are in use.
    fn restore_vgic(&mut self) {
        let unused = self.a.fresh();
        if !self.design.vgic_stays {
            self.load_vgic();
        }
        self.a.ldr(T0, AREA, area::USED_LRS);
        self.a.cbz(T0, &unused);
        self.write(Sys::ICH_HCR_EL2, ICH_HCR_EN);
        self.a.ldr(T0, AREA, area::LR0);
        self.a.msr(Sys::ICH_LR0_EL2, T0);
        self.a.label(&unused);
    }

    fn save_vgic(&mut self) {
        let unused = self.a.fresh();
        if !self.design.vgic_stays {
            self.put_vgic();
        }
        self.a.ldr(T0, AREA, area::USED_LRS);
        self.a.cbz(T0, &unused);
        self.a.mrs(T0, Sys::ICH_ELRSR_EL2);
        self.a.str(T0, AREA, area::ELRSR);
        self.a.mrs(T0, Sys::ICH_LR0_EL2);
        self.a.str(T0, AREA, area::LR0);
        self.a.msr(Sys::ICH_LR0_EL2, X(31));
        self.a.msr(Sys::ICH_HCR_EL2, X(31));
        self.a.label(&unused);
    }

    fn load_timer(&mut self) {
        let (value, control) = (self.timer(Sys::CNTV_CVAL_EL0), self.timer(Sys::CNTV_CTL_EL0));
        let a = &mut self.a;
        a.ldr(T0, AREA, area::TIMER_OFFSET);
        a.msr(Sys::CNTVOFF_EL2, T0);
        a.ldr(T0, AREA, area::TIMER_CVAL);
        a.msr(value, T0);
        a.isb();
        a.ldr(T0, AREA, area::TIMER_CTL);
        a.msr(control, T0);
    }

    fn put_timer(&mut self) {
        let (value, control) = (self.timer(Sys::CNTV_CVAL_EL0), self.timer(Sys::CNTV_CTL_EL0));
        let a = &mut self.a;
        a.mrs(T0, control);
        a.str(T0, AREA, area::TIMER_CTL);
        a.mrs(T0, value);
        a.str(T0, AREA, area::TIMER_CVAL);
        a.msr(control, X(31));
        a.isb();
        a.msr(Sys::CNTVOFF_EL2, X(31));
    }

    /// The guest may not have the host's physical timer.
    fn allow_physical_timer(&mut self, allow: bool) {
        self.a.mrs(T0, Sys::CNTHCTL_EL2);
        self.a.set(T1, EL1_TIMER[usize::from(self.design.vhe)]);
        match allow {
            true => self.a.orr(T0, T0, T1),
            false => self.a.bic(T0, T0, T1),
        }
        self.a.msr(Sys::CNTHCTL_EL2, T0);
    }

    fn restore_timer(&mut self) {
        self.allow_physical_timer(false);
        self.load_timer();
    }

    fn save_timer(&mut self) {
        self.put_timer();
        self.allow_physical_timer(true);
    }

    fn fp(&mut self, place: usize, save: bool) {
        let a = &mut self.a;
        a.add_imm(X(1), AREA, place as u32);
        for v in (0..32).step_by(2) {
            match save {
                true => a.stp_q(v, X(1), usize::from(v) * 16),
                false => a.ldp_q(v, X(1), usize::from(v) * 16),
            }
        }
        a.add_imm(X(1), X(1), 512);
        for (at, sys) in [Sys::FPSR, Sys::FPCR].into_iter().enumerate() {
            match save {
                true => {
                    a.mrs(T0, sys);
                    a.str(T0, X(1), at * 8);
                }
                false => {
                    a.ldr(T0, X(1), at * 8);
                    a.msr(sys, T0);
                }
            }
        }
    }

    /// If the guest has the vector registers, it loses them. The host's traps are in force.
    fn switch_fp_back(&mut self) {
        let not = self.a.fresh();
        self.a.ldr(T0, AREA, area::FP_LOADED);
        self.a.cbz(T0, &not);
        self.fp(area::GUEST_FP, true);
        self.fp(area::HOST_FP, false);
        self.a.str(X(31), AREA, area::FP_LOADED);
        self.a.label(&not);
    }

    /// vcpu_load: what the design does not move at each entry.
    pub(crate) fn load(&mut self) {
        let design = self.design;
        if design.el1_stays {
            self.save(&THREAD, area::HOST_SYS + 16, false);
            self.restore(&[&EL1[..], &THREAD].concat(), area::GUEST_SYS + 16, true);
        }
        if design.traps_stay {
            self.activate_stage2();
            self.arm_rare_traps();
        }
        if design.vgic_stays {
            self.load_vgic();
        }
        if design.timer_stays {
            // The distributor has to know whether the guest's timer interrupt is active: it is not.
            self.a.ldr(T1, AREA, area::REDISTRIBUTOR);
            self.a.set(T0, VIRTUAL_TIMER);
            self.a.str_word(T0, T1, ICACTIVER0);
            self.a.ldr_word(T0, T1, ISACTIVER0);
            self.allow_physical_timer(false);
            self.load_timer();
        }
        self.a.isb();
    }

    /// vcpu_put.
    pub(crate) fn put(&mut self) {
        let design = self.design;
        if design.timer_stays {
            self.put_timer();
            self.allow_physical_timer(true);
        }
        if design.vgic_stays {
            self.put_vgic();
            self.switch_fp_back();
        }
        if design.traps_stay {
            self.disarm_rare_traps();
            self.a.msr(Sys::VTTBR_EL2, X(31));
        }
        if design.el1_stays {
            self.save(&[&EL1[..], &THREAD].concat(), area::GUEST_SYS + 16, true);
            self.restore(&THREAD, area::HOST_SYS + 16, false);
        }
    }

    /// The run of a vCPU until it exits, what enters it, and what takes its exits.
    pub(crate) fn world_switch(&mut self) {
        self.a.label("vcpu_run");
        self.a.push(X(29), X(30));
        for part in [
            Part::SaveHost,
            Part::ActivateTraps,
            Part::ActivateStage2,
            Part::RestoreVgic,
            Part::RestoreTimer,
            Part::RestoreGuest,
        ] {
            self.part(part);
        }
        self.a.bl("guest_enter");
        self.fault_information();
        for part in [
            Part::SaveGuest,
            Part::SaveTimer,
            Part::SaveVgic,
            Part::DeactivateTraps,
            Part::DeactivateStage2,
            Part::RestoreHost,
            Part::SwitchFpBack,
        ] {
            self.part(part);
        }
        self.a.pop(X(29), X(30));
        self.a.ret();
        for part in std::mem::take(&mut self.parts) {
            self.a.label(&format!("{part:?}"));
            self.a.push(X(29), X(30));
            self.body(part);
            self.a.pop(X(29), X(30));
            self.a.ret();
        }
        self.guest_enter();
        self.guest_exit();
        self.guest_fp();
    }

    /// The host's X19 to X30 are kept, the guest's registers are all set.
    fn guest_enter(&mut self) {
        let a = &mut self.a;
        a.label("guest_enter");
        a.add_imm(X(0), AREA, area::HOST_X as u32);
        for at in (19..30).step_by(2) {
            a.stp(X(at), X(at + 1), X(0), usize::from(at - 19) * 8);
        }
        a.mov(X(0), AREA);
        for at in (2..30).step_by(2) {
            a.ldp(X(at), X(at + 1), X(0), usize::from(at) * 8);
        }
        a.ldr(X(30), X(0), 30 * 8);
        a.ldp(X(0), X(1), X(0), 0);
        a.eret();
    }

    /// A guest's exception: its registers are kept, and `guest_enter` returns.
    fn guest_exit(&mut self) {
        let vhe = self.design.vhe;
        let a = &mut self.a;
        a.label("guest_irq");
        a.push(X(0), X(1));
        a.set(X(1), area::INTERRUPT);
        a.b("guest_exit");
        a.label("guest_sync");
        a.push(X(0), X(1));
        a.mrs(X(1), Sys::ESR_EL2);
        a.bits(X(1), X(1), 31, 26);
        if !vhe {
            // HVC of the host, whose stage 2 is off: a function's address is in X0.
            a.cmp_imm(X(1), 0x16);
            a.b_if(Cond::NotEqual, "guest_trap");
            a.mrs(X(0), Sys::VTTBR_EL2);
            a.cbnz(X(0), "guest_trap");
            a.pop(X(0), X(1));
            a.push(X(29), X(30));
            a.blr(X(0));
            a.pop(X(29), X(30));
            a.eret();
        }
        a.label("guest_trap");
        a.cmp_imm(X(1), 7);
        a.b_if(Cond::Equal, "guest_fp");
        a.set(X(1), area::TRAP);
        a.label("guest_exit");
        a.mrs(X(0), Sys::TPIDR_EL2);
        for at in (2..30).step_by(2) {
            a.stp(X(at), X(at + 1), X(0), usize::from(at) * 8);
        }
        a.str(X(30), X(0), 30 * 8);
        a.pop(X(2), X(3));
        a.stp(X(2), X(3), X(0), 0);
        a.str(X(1), X(0), area::EXIT);
        a.add_imm(X(0), X(0), area::HOST_X as u32);
        for at in (19..30).step_by(2) {
            a.ldp(X(at), X(at + 1), X(0), usize::from(at - 19) * 8);
        }
        a.ret();
    }

    /// ESR, and of an abort the addresses.
    fn fault_information(&mut self) {
        let done = self.a.fresh();
        let a = &mut self.a;
        a.ldr(T0, AREA, area::EXIT);
        a.cmp_imm(T0, area::TRAP as u32);
        a.b_if(Cond::NotEqual, &done);
        a.mrs(T0, Sys::ESR_EL2);
        a.str(T0, AREA, area::ESR);
        a.bits(T1, T0, 31, 26);
        a.cmp_imm(T1, 0x24);
        a.b_if(Cond::NotEqual, &done);
        a.mrs(T0, Sys::FAR_EL2);
        a.mrs(T1, Sys::HPFAR_EL2);
        a.stp(T0, T1, AREA, area::FAR);
        a.label(&done);
    }

    /// The guest's first use of vector registers: it gets them, and goes on.
    fn guest_fp(&mut self) {
        let vhe = self.design.vhe;
        self.a.label("guest_fp");
        for at in [2, 4, 28] {
            self.a.push(X(at), X(at + 1));
        }
        self.a.mrs(AREA, Sys::TPIDR_EL2);
        self.write(Sys::CPTR_EL2, if vhe { CPACR_TTA | CPACR_FPEN } else { CPTR_RES1 | CPTR_TTA });
        self.a.isb();
        self.fp(area::HOST_FP, true);
        self.fp(area::GUEST_FP, false);
        self.a.set(T0, 1);
        self.a.str(T0, AREA, area::FP_LOADED);
        for at in [28, 4, 2] {
            self.a.pop(X(at), X(at + 1));
        }
        self.a.pop(X(0), X(1));
        self.a.eret();
    }

    /// EL2's part of the boot, before its kernel: X28 is the area.
    pub(crate) fn init_el2(&mut self) {
        let vhe = self.design.vhe;
        self.write(Sys::HCR_EL2, self.hcr_of_host());
        self.a.isb();
        self.write(Sys::CPTR_EL2, if vhe { CPACR_FPEN } else { CPTR_RES1 });
        self.write(Sys::CNTHCTL_EL2, EL1_TIMER[usize::from(vhe)]);
        self.a.msr(Sys::CNTVOFF_EL2, X(31));
        self.a.msr(Sys::VTTBR_EL2, X(31));
        self.a.msr(Sys::MDCR_EL2, X(31));
        self.a.msr(Sys::HSTR_EL2, X(31));
        // System registers, from lower levels, too.
        self.write(Sys::ICC_SRE_EL2, 0xf);
        self.a.isb();
        self.a.msr(Sys::ICH_HCR_EL2, X(31));
        self.a.msr(Sys::TPIDR_EL2, AREA);
        let vectors = if vhe { "vectors_of_kernel" } else { "vectors_of_el2" };
        self.a.adr(T0, vectors);
        self.a.msr(Sys::VBAR_EL2, T0);
        self.a.tlbi_guest();
        self.a.dsb();
        self.a.isb();
    }
}
