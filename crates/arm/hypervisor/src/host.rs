//! The host: its boot, the kernel that runs a vCPU for a program, and that program.

use satori_arm_state::Sys;

use crate::asm::{Cond, SP, X, ZERO};
use crate::design::{PSCI_1_1, TYPER};
use crate::layout::{AREA_BITS, AREAS, DEVICE, END_OF_CODE, GICD, GICR, GUEST, GUEST_IPA, UART, VGICD, area};
use crate::{Program, guest};

const AREA: X = X(28);
/// Interrupts that processors send each other.
const SGI: u64 = 1;
/// EL1h and EL0t; what is masked is D, A, I and F.
const PSTATE_KERNEL: u64 = 0x3c5;
const PSTATE_PROGRAM: u64 = 0;
const SCTLR_RES1: u64 = 0x30d0_0800;
const PSCI_CPU_ON: u64 = 0xc400_0003;
const PSCI_SYSTEM_OFF: u64 = 0x8400_0008;
const PSCI_SYSTEM_RESET: u64 = 0x8400_0009;
/// A syndrome's bits that say MSR to ICC_SGI1R_EL1: op0, op2, op1, CRn, CRm, direction; and those of the register.
const ISS_SGI1R: u64 = 3 << 20 | 5 << 17 | 12 << 10 | 11 << 1;
const ISS_RT: u64 = 31 << 5;
/// A list register's: pending, group 1, priority 0xa0.
const LR_PENDING: u64 = 1 << 62 | 1 << 60 | 0xa0 << 48;

impl Program {
    /// From the loader, or from PSCI with a processor's number in X0, to the kernel.
    pub(crate) fn boot(&mut self) {
        let vhe = self.design.vhe;
        let a = &mut self.a;
        a.label("boot");
        a.set(X(0), 0);
        a.label("secondary");
        a.mov(X(27), X(0));
        a.set(AREA, AREAS);
        a.lsl_imm(X(1), X(27), AREA_BITS);
        a.add(AREA, AREA, X(1));
        a.set(X(1), if vhe { area::KERNEL_STACK } else { area::HYP_STACK });
        a.add(X(1), AREA, X(1));
        a.add_imm(SP, X(1), 0);
        self.init_el2();
        if vhe {
            return;
        }
        let a = &mut self.a;
        for (sys, value) in
            [(Sys::SCTLR_EL1, SCTLR_RES1), (Sys::CPACR_EL1, 3 << 20), (Sys::SPSR_EL2, PSTATE_KERNEL)]
        {
            a.set(X(1), value);
            a.msr(sys, X(1));
        }
        a.adr(X(1), "vectors_of_kernel");
        a.msr(Sys::VBAR_EL1, X(1));
        a.msr(Sys::TPIDR_EL1, AREA);
        a.set(X(1), area::KERNEL_STACK);
        a.add(X(1), AREA, X(1));
        a.msr(Sys::SP_EL1, X(1));
        a.adr(X(1), "kernel");
        a.msr(Sys::ELR_EL2, X(1));
        a.eret();
    }

    /// The kernel, at EL1 or, by the same names of registers, at EL2: it sets up the interrupt controller and a vCPU, enters
    /// the program, and answers its system call.
    pub(crate) fn kernel(&mut self) {
        self.a.label("kernel");
        self.interrupt_controller();
        self.virtual_cpu();
        if self.benchmark.vcpus() > 1 {
            let a = &mut self.a;
            a.cbnz(X(27), "enter_program");
            a.set(X(0), PSCI_CPU_ON);
            a.set(X(1), 1);
            a.adr(X(2), "secondary");
            a.set(X(3), 1);
            a.smc();
        }
        let a = &mut self.a;
        a.label("enter_program");
        a.adr(X(1), "program");
        a.msr(Sys::ELR_EL1, X(1));
        a.set(X(1), PSTATE_PROGRAM);
        a.msr(Sys::SPSR_EL1, X(1));
        a.mov(X(0), AREA);
        a.eret();
        self.system_call();
        self.run_loop();
        self.call_hyp();
        self.vgic();
        self.interrupt();
        self.unexpected();
    }

    fn interrupt_controller(&mut self) {
        let a = &mut self.a;
        // A redistributor has two frames of 64 KiB; its interrupts are all of group 1, and enabled.
        a.set(X(1), GICR);
        a.lsl_imm(X(2), X(27), 17);
        a.add(X(1), X(1), X(2));
        a.str_word(ZERO, X(1), 0x14);
        a.set(X(2), 0x1_0000);
        a.add(X(1), X(1), X(2));
        a.str(X(1), AREA, area::REDISTRIBUTOR);
        a.set(X(2), 0xffff_ffff);
        a.str_word(X(2), X(1), 0x80);
        a.set(X(2), 1 << SGI);
        a.str_word(X(2), X(1), 0x100);
        a.set(X(1), GICD);
        // ARE, and group 1.
        a.set(X(2), 0x12);
        a.str_word(X(2), X(1), 0);
        a.set(X(1), 7);
        a.msr(Sys::ICC_SRE_EL1, X(1));
        a.isb();
        a.set(X(1), 0xf0);
        a.msr(Sys::ICC_PMR_EL1, X(1));
        a.set(X(1), 1);
        a.msr(Sys::ICC_IGRPEN1_EL1, X(1));
        a.isb();
    }

    /// The vCPU of this processor's number.
    fn virtual_cpu(&mut self) {
        let a = &mut self.a;
        a.str(X(27), AREA, area::X);
        let sctlr = area::GUEST_SYS + 16;
        for (place, value) in [
            (area::PC, GUEST_IPA),
            (area::PSTATE, PSTATE_KERNEL),
            (sctlr, SCTLR_RES1),
            (sctlr + 8, 3 << 20),
            (area::VGICD + 8, TYPER),
        ] {
            a.set(X(1), value);
            a.str(X(1), AREA, place);
        }
    }

    /// A program's SVC: run the vCPU. All its registers are kept.
    fn system_call(&mut self) {
        let own = if self.design.vhe { Sys::TPIDR_EL2 } else { Sys::TPIDR_EL1 };
        let a = &mut self.a;
        a.label("system_call");
        a.sub_imm(SP, SP, 272);
        for at in (0..30).step_by(2) {
            a.stp(X(at), X(at + 1), SP, usize::from(at) * 8);
        }
        a.mrs(X(22), Sys::ELR_EL1);
        a.mrs(X(23), Sys::SPSR_EL1);
        a.stp(X(30), X(22), SP, 240);
        a.str(X(23), SP, 256);
        a.mrs(AREA, own);
        a.unmask_irqs();
        a.bl("ioctl_run");
        a.mask_irqs();
        a.ldr(X(23), SP, 256);
        a.ldp(X(30), X(22), SP, 240);
        a.msr(Sys::SPSR_EL1, X(23));
        a.msr(Sys::ELR_EL1, X(22));
        for at in (0..30).step_by(2) {
            a.ldp(X(at), X(at + 1), SP, usize::from(at) * 8);
        }
        a.add_imm(SP, SP, 272);
        a.eret();
    }

    /// What the program emulated goes into the guest's register; then the guest runs until the program is needed.
    fn run_loop(&mut self) {
        let a = &mut self.a;
        a.label("ioctl_run");
        a.push(X(29), X(30));
        a.ldr(X(1), AREA, area::REASON);
        a.cbz(X(1), "load");
        a.ldr(X(1), AREA, area::DATA);
        a.ldr(X(2), AREA, area::RT);
        a.bl("set_register");
        a.str(ZERO, AREA, area::REASON);
        a.label("load");
        self.load();
        let a = &mut self.a;
        a.label("run");
        a.ldr(X(1), AREA, area::REQUESTS);
        a.cbnz(X(1), "unexpected");
        a.bl("vgic_flush");
        a.mask_irqs();
        a.ldr(X(1), AREA, area::SIGNAL);
        a.cbnz(X(1), "unexpected");
        match self.design.own_run {
            true => a.bl("vcpu_run"),
            false => {
                a.adr(X(0), "vcpu_run");
                a.bl("call_hyp");
            }
        }
        a.bl("vgic_sync");
        a.unmask_irqs();
        a.isb();
        a.bl("handle_exit");
        a.cbnz(X(0), "run");
        self.put();
        self.a.pop(X(29), X(30));
        self.a.ret();
    }

    /// Calls the function at X0 at EL2.
    fn call_hyp(&mut self) {
        let vhe = self.design.vhe;
        let a = &mut self.a;
        a.label("call_hyp");
        if !vhe {
            a.hvc();
            return a.ret();
        }
        a.push(X(29), X(30));
        a.blr(X(0));
        a.isb();
        a.pop(X(29), X(30));
        a.ret();
    }

    /// What another vCPU sent goes into a list register, and is taken out when it has ended.
    fn vgic(&mut self) {
        let a = &mut self.a;
        a.label("vgic_flush");
        a.ldr(X(1), AREA, area::PENDING);
        a.cbz(X(1), "flushed");
        a.ldr(X(2), AREA, area::USED_LRS);
        a.cbnz(X(2), "flushed");
        a.set(X(2), LR_PENDING);
        a.orr(X(1), X(1), X(2));
        a.str(X(1), AREA, area::LR0);
        a.set(X(1), 1);
        a.str(X(1), AREA, area::USED_LRS);
        a.str(ZERO, AREA, area::PENDING);
        a.label("flushed");
        a.ret();
        a.label("vgic_sync");
        a.ldr(X(1), AREA, area::USED_LRS);
        a.cbz(X(1), "synchronised");
        a.ldr(X(1), AREA, area::LR0);
        a.bits(X(1), X(1), 63, 62);
        a.cbnz(X(1), "synchronised");
        a.str(ZERO, AREA, area::USED_LRS);
        a.label("synchronised");
        a.ret();
    }

    /// The kernel's interrupts: what another processor sent, which only made the guest exit.
    fn interrupt(&mut self) {
        let a = &mut self.a;
        a.label("interrupt");
        a.push(X(0), X(1));
        a.mrs(X(0), Sys::ICC_IAR1_EL1);
        a.cmp_imm(X(0), 1023);
        a.b_if(Cond::Equal, "spurious");
        a.msr(Sys::ICC_EOIR1_EL1, X(0));
        a.label("spurious");
        a.pop(X(0), X(1));
        a.eret();
    }

    /// Says where and why, and resets the machine.
    fn unexpected(&mut self) {
        let vhe = self.design.vhe;
        let a = &mut self.a;
        a.label("unexpected");
        for sys in [Sys::ESR_EL1, Sys::ELR_EL1, Sys::FAR_EL1] {
            a.mrs(X(19), sys);
            a.bl("say");
        }
        a.ldr(X(19), AREA, area::ESR);
        a.bl("say");
        a.set(X(0), PSCI_SYSTEM_RESET);
        a.smc();
        a.label("unexpected_at_el2");
        if !vhe {
            for sys in [Sys::ESR_EL2, Sys::ELR_EL2, Sys::FAR_EL2] {
                a.mrs(X(19), sys);
                a.bl("say");
            }
        }
        a.b("unexpected");
        // X19 in hexadecimal, and the end of the line.
        a.label("say");
        a.set(X(1), UART);
        a.set(X(2), 60);
        a.set(X(5), 10);
        a.label("digit");
        a.set(X(4), 15);
        a.mov(X(3), X(19));
        a.lsl_imm(X(19), X(19), 4);
        a.bits(X(3), X(3), 63, 60);
        a.add_imm(X(4), X(3), u32::from(b'0'));
        a.cmp(X(3), X(5));
        a.b_if(Cond::Below, "decimal");
        a.add_imm(X(4), X(3), u32::from(b'a') - 10);
        a.label("decimal");
        a.str_word(X(4), X(1), 0);
        a.cbz(X(2), "said");
        a.sub_imm(X(2), X(2), 4);
        a.b("digit");
        a.label("said");
        a.set(X(4), u64::from(b'\n'));
        a.str_word(X(4), X(1), 0);
        a.ret();
    }

    /// Why the guest exited, by exception class. X0 becomes 0 if the program is needed.
    pub(crate) fn exits(&mut self) {
        let a = &mut self.a;
        a.label("handle_exit");
        a.ldr(X(0), AREA, area::EXIT);
        a.cmp_imm(X(0), area::INTERRUPT as u32);
        a.b_if(Cond::Equal, "handled");
        a.ldr(X(1), AREA, area::ESR);
        a.bits(X(2), X(1), 31, 26);
        a.lsl_imm(X(2), X(2), 2);
        a.adr(X(3), "handlers");
        a.add(X(3), X(3), X(2));
        a.br(X(3));
        a.label("handlers");
        for class in 0..64 {
            a.b(match class {
                0x16 => "handle_hvc",
                0x18 => "handle_sys",
                0x24 => "handle_abort",
                _ => "unexpected",
            });
        }
        a.label("skip");
        a.ldr(X(1), AREA, area::PC);
        a.add_imm(X(1), X(1), 4);
        a.str(X(1), AREA, area::PC);
        a.label("handled");
        a.set(X(0), 1);
        a.ret();
        // X1 to the guest's register X2.
        a.label("set_register");
        a.cmp_imm(X(2), 31);
        a.b_if(Cond::Equal, "discarded");
        a.lsl_imm(X(2), X(2), 3);
        a.add(X(2), AREA, X(2));
        a.str(X(1), X(2), area::X);
        a.label("discarded");
        a.ret();
        self.hypercall();
        self.system_register();
        self.abort();
    }

    fn hypercall(&mut self) {
        let a = &mut self.a;
        a.label("handle_hvc");
        a.ldr(X(1), AREA, area::X);
        a.set(X(2), guest::DONE);
        a.cmp(X(1), X(2));
        a.b_if(Cond::Equal, "done");
        a.set(X(1), PSCI_1_1);
        a.str(X(1), AREA, area::X);
        a.b("handled");
        a.label("done");
        a.ldr(X(19), AREA, area::X + 8);
        a.bl("say");
        a.set(X(0), PSCI_SYSTEM_OFF);
        a.smc();
    }

    /// ICC_SGI1R_EL1: vCPUs of the target list get an interrupt, and their processors one that makes them exit.
    fn system_register(&mut self) {
        let a = &mut self.a;
        a.label("handle_sys");
        a.bits(X(2), X(1), 9, 5);
        a.set(X(3), ISS_RT);
        a.bic(X(1), X(1), X(3));
        a.bits(X(1), X(1), 24, 0);
        a.set(X(3), ISS_SGI1R);
        a.cmp(X(1), X(3));
        a.b_if(Cond::NotEqual, "unexpected");
        a.lsl_imm(X(2), X(2), 3);
        a.add(X(2), AREA, X(2));
        a.ldr(X(2), X(2), area::X);
        a.bits(X(3), X(2), 27, 24);
        a.bits(X(2), X(2), 15, 0);
        a.set(X(4), 0);
        a.label("target");
        a.cbz(X(2), "skip");
        a.bits(X(5), X(2), 0, 0);
        a.cbz(X(5), "not_this");
        a.set(X(5), AREAS);
        a.lsl_imm(X(6), X(4), AREA_BITS);
        a.add(X(5), X(5), X(6));
        a.str(X(3), X(5), area::PENDING);
        a.dsb();
        a.set(X(5), 1);
        a.lsl(X(5), X(5), X(4));
        a.set(X(6), SGI << 24);
        a.orr(X(5), X(5), X(6));
        a.msr(Sys::ICC_SGI1R_EL1, X(5));
        a.label("not_this");
        a.bits(X(2), X(2), 15, 1);
        a.add_imm(X(4), X(4), 1);
        a.b("target");
    }

    /// An access where stage 2 has nothing: of the distributor, or for the program.
    fn abort(&mut self) {
        let a = &mut self.a;
        a.label("handle_abort");
        // ISV says that the syndrome has the register; WnR is a store.
        a.bits(X(2), X(1), 24, 24);
        a.cbz(X(2), "unexpected");
        a.bits(X(2), X(1), 6, 6);
        a.cbnz(X(2), "unexpected");
        a.bits(X(2), X(1), 20, 16);
        a.ldp(X(3), X(4), AREA, area::FAR);
        a.bits(X(4), X(4), 39, 4);
        a.lsl_imm(X(4), X(4), 12);
        a.bits(X(3), X(3), 11, 0);
        a.orr(X(3), X(3), X(4));
        a.bits(X(5), X(3), 39, 16);
        a.set(X(6), VGICD >> 16);
        a.cmp(X(5), X(6));
        a.b_if(Cond::NotEqual, "by_program");
        // The distributor: one of the registers that it has.
        a.bits(X(5), X(3), 15, 0);
        a.cmp_imm(X(5), 4);
        a.b_if(Cond::NotEqual, "unexpected");
        a.ldr(X(1), AREA, area::VGICD + 8);
        a.push(X(29), X(30));
        a.bl("set_register");
        a.pop(X(29), X(30));
        a.b("skip");
        a.label("by_program");
        a.str(X(3), AREA, area::ADDRESS);
        a.str(X(2), AREA, area::RT);
        a.set(X(1), area::MMIO);
        a.str(X(1), AREA, area::REASON);
        a.ldr(X(1), AREA, area::PC);
        a.add_imm(X(1), X(1), 4);
        a.str(X(1), AREA, area::PC);
        a.set(X(0), 0);
        a.ret();
    }

    /// The program, whose device counts how often it was read. X0 is the area.
    pub(crate) fn program(&mut self) {
        let a = &mut self.a;
        a.label("program");
        a.mov(X(19), X(0));
        a.label("program_loop");
        a.svc();
        a.ldr(X(1), X(19), area::REASON);
        a.cmp_imm(X(1), area::MMIO as u32);
        a.b_if(Cond::NotEqual, "unexpected");
        a.ldr(X(1), X(19), area::ADDRESS);
        a.set(X(2), DEVICE);
        a.cmp(X(1), X(2));
        a.b_if(Cond::NotEqual, "unexpected");
        a.ldr(X(1), X(19), area::DEVICE);
        a.add_imm(X(1), X(1), 1);
        a.str(X(1), X(19), area::DEVICE);
        a.str(X(1), X(19), area::DATA);
        a.b("program_loop");
    }

    /// The vectors of the kernel, and those of EL2 while a guest runs.
    pub(crate) fn vectors(&mut self) {
        let a = &mut self.a;
        for (name, entries) in [
            ("vectors_of_kernel", [(5, "interrupt"), (8, "system_call"), (9, "interrupt")]),
            ("vectors_of_el2", [(4, "unexpected_at_el2"), (8, "guest_sync"), (9, "guest_irq")]),
        ] {
            a.align(0x800);
            a.label(name);
            let start = a.here();
            for number in 0..16 {
                a.at(start + number * 0x80);
                let entry = entries.iter().find(|(at, _)| *at == number);
                a.b(entry.map_or("unexpected", |(_, label)| label));
            }
            a.at(start + 0x800);
        }
    }

    /// The table of stage 2: one block of 2 MiB.
    pub(crate) fn tables(&mut self) {
        let a = &mut self.a;
        a.word(END_OF_CODE);
        a.align(0x1000);
        a.label("stage2");
        for entry in 0..512 {
            // A block, accessed, inner shareable, readable and writable, normal memory.
            let block = GUEST | 1 << 10 | 3 << 8 | 3 << 6 | 0xf << 2 | 1;
            a.data(if entry == GUEST_IPA >> 21 { block } else { 0 });
        }
    }
}
