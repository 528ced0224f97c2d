//! Instructions that leave a guest (APM 15.9): one table from an instruction to the intercept that decides.
//!
//! An instruction of the table has [`execute`] as its handler on processors that offer SVM.

use iced_x86::{Instruction, Mnemonic, Register};
use satori_defs::msr;
use satori_defs::svm::{ENLIGHTENED, ExitCode, TRAP_AFTER_FLUSH};
use satori_defs::x86::{cr0, cr4, dr7, efer};
use satori_engine::Exception;
use satori_state::reg;
use satori_svm::intercept::{CONTROL_REGISTERS, DEBUG_REGISTERS, msr_bit};
use satori_svm::vmcb::{FLUSH_HYPERCALLS, interrupt};
use satori_svm::{Intercept, Place};

use super::SvmExit;
use super::instructions::handler;
use crate::cpu::{Cpu, Exec, Stop};
use crate::insn;
use crate::level::Level;

/// When an instruction leaves the guest.
#[derive(Clone, Copy)]
enum When {
    /// With this intercept.
    Has(Intercept),
    /// As the function says: whether it is done, and there is nothing left to execute.
    Asked(fn(&mut Cpu, &Instruction) -> Exec<bool>),
}

/// The table: instruction, whose fault comes first, when it exits, and why.
const ROWS: &[(Mnemonic, Level, When, ExitCode)] = {
    use ExitCode as Why;
    use Level::{Any, Counter, LoadsSelector, Selector, Supervisor, Svm, Time, Told, Wait, Xsetbv};
    use Mnemonic as Is;
    use When::{Asked, Has};
    &[
        (Is::Cpuid, Any, Has(Intercept::CPUID), Why::Cpuid),
        (Is::Hlt, Supervisor, Has(Intercept::HLT), Why::Hlt),
        (Is::Invd, Supervisor, Has(Intercept::INVD), Why::Invd),
        (Is::Invlpg, Supervisor, Asked(invlpg), Why::Invlpg),
        (Is::Invlpga, Svm, Has(Intercept::INVLPGA), Why::Invlpga),
        (Is::Invpcid, Supervisor, Asked(invpcid), Why::Invpcid),
        (Is::Rdpmc, Counter, Has(Intercept::RDPMC), Why::Rdpmc),
        (Is::Rdtsc, Time, Has(Intercept::RDTSC), Why::Rdtsc),
        (Is::Rdtscp, Time, Has(Intercept::RDTSCP), Why::Rdtscp),
        (Is::Monitor, Wait, Has(Intercept::MONITOR), Why::Monitor),
        (Is::Mwait, Wait, Asked(mwait), Why::Mwait),
        (Is::Pause, Any, Asked(pause), Why::Pause),
        (Is::Wbinvd, Supervisor, Has(Intercept::WBINVD), Why::Wbinvd),
        (Is::Wbnoinvd, Supervisor, Has(Intercept::WBINVD), Why::Wbinvd),
        (Is::Xsetbv, Xsetbv, Has(Intercept::XSETBV), Why::Xsetbv),
        (Is::Sidt, Told, Has(Intercept::READ_IDTR), Why::ReadIdtr),
        (Is::Sgdt, Told, Has(Intercept::READ_GDTR), Why::ReadGdtr),
        (Is::Sldt, Selector, Has(Intercept::READ_LDTR), Why::ReadLdtr),
        (Is::Str, Selector, Has(Intercept::READ_TR), Why::ReadTr),
        (Is::Lidt, Supervisor, Has(Intercept::WRITE_IDTR), Why::WriteIdtr),
        (Is::Lgdt, Supervisor, Has(Intercept::WRITE_GDTR), Why::WriteGdtr),
        (Is::Lldt, LoadsSelector, Has(Intercept::WRITE_LDTR), Why::WriteLdtr),
        (Is::Ltr, LoadsSelector, Has(Intercept::WRITE_TR), Why::WriteTr),
        (Is::Pushf, Any, Has(Intercept::PUSHF), Why::Pushf),
        (Is::Pushfd, Any, Has(Intercept::PUSHF), Why::Pushf),
        (Is::Pushfq, Any, Has(Intercept::PUSHF), Why::Pushf),
        (Is::Popf, Any, Has(Intercept::POPF), Why::Popf),
        (Is::Popfd, Any, Has(Intercept::POPF), Why::Popf),
        (Is::Popfq, Any, Has(Intercept::POPF), Why::Popf),
        (Is::Iret, Any, Has(Intercept::IRET), Why::Iret),
        (Is::Iretd, Any, Has(Intercept::IRET), Why::Iret),
        (Is::Iretq, Any, Has(Intercept::IRET), Why::Iret),
        (Is::Int, Any, Has(Intercept::INT_N), Why::Swint),
        (Is::Int1, Any, Has(Intercept::ICEBP), Why::Icebp),
        (Is::Rsm, Any, Has(Intercept::RSM), Why::Rsm),
        (Is::Mov, Supervisor, Asked(moved), Why::ReadCr0),
        (Is::Clts, Supervisor, Asked(clts), Why::WriteCr0),
        (Is::Lmsw, Supervisor, Asked(lmsw), Why::WriteCr0),
        (Is::Smsw, Told, Asked(smsw), Why::ReadCr0),
        (Is::Rdmsr, Supervisor, Asked(rdmsr), Why::Msr),
        (Is::Wrmsr, Supervisor, Asked(wrmsr), Why::Msr),
        (Is::Vmmcall, Any, Asked(vmmcall), Why::Vmmcall),
        (Is::Vmcall, Any, Asked(absent), Why::Vmmcall),
        (Is::Vmrun, Svm, Has(Intercept::VMRUN), Why::Vmrun),
        (Is::Vmload, Svm, Has(Intercept::VMLOAD), Why::Vmload),
        (Is::Vmsave, Svm, Has(Intercept::VMSAVE), Why::Vmsave),
        (Is::Stgi, Svm, Has(Intercept::STGI), Why::Stgi),
        (Is::Clgi, Svm, Has(Intercept::CLGI), Why::Clgi),
        (Is::Skinit, Svm, Has(Intercept::SKINIT), Why::Skinit),
    ]
};

/// Whether `insn` can leave a guest.
pub(crate) fn intercepted(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        Mnemonic::Mov => [insn.op0_register(), insn.op1_register()].iter().any(|r| r.is_cr() || r.is_dr()),
        mnemonic => ROWS.iter().any(|row| row.0 == mnemonic),
    }
}

/// Executes an instruction of the table.
pub(crate) fn execute(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if cpu.svm.guest
        && let Some((_, level, when, code)) = ROWS.iter().find(|row| row.0 == insn.mnemonic())
        && cpu.svm_intercept(insn, *level, *when, *code)?
    {
        return Ok(());
    }
    let handler = handler(insn).unwrap_or_else(|| insn::handler(insn));
    handler(cpu, insn)?;
    if insn.mnemonic() == Mnemonic::Wrmsr && cpu.state.gpr[reg::RCX] as u32 == msr::AMD_TSC_RATIO {
        // The machine keeps it, and has found it valid.
        cpu.svm.ratio = cpu.state.gpr[reg::RDX] << 32 | cpu.state.gpr[reg::RAX] & 0xffff_ffff;
    }
    Ok(())
}

impl Cpu {
    /// Leaves the guest if its host wants that; whether the instruction is done.
    fn svm_intercept(&mut self, insn: &Instruction, level: Level, when: When, code: ExitCode) -> Exec<bool> {
        self.fault_first(level)?;
        match when {
            When::Has(intercept) if self.svm.has(intercept) => {
                let info1 = match code {
                    ExitCode::Swint => insn.immediate8().into(),
                    ExitCode::Invlpga => self.state.gpr[reg::RAX],
                    _ => 0,
                };
                Err(self.leave_svm_at(insn, SvmExit { info1, ..SvmExit::of(code) }))
            }
            When::Has(_) => Ok(false),
            When::Asked(ask) => ask(self, insn),
        }
    }

    /// The exit of `insn`.
    fn leave_svm_at(&mut self, insn: &Instruction, exit: SvmExit) -> Stop {
        self.leave_svm(SvmExit { length: insn.len() as u64, ..exit })
    }

    /// A byte of a permission map; all ones where there is no memory.
    fn permission_byte(&self, map: Place, at: u64) -> u8 {
        let base = self.svm.vmcb.get(map) & !0xfff;
        self.entry_load((base + at) & !7, true).map_or(0xff, |word| word.to_le_bytes()[(at & 7) as usize])
    }

    /// Leaves the guest at an access to `size` ports, if its host wants that (APM 15.10).
    pub(crate) fn svm_port_exit(
        &mut self,
        insn: &Instruction,
        port: u16,
        size: u8,
        string: bool,
    ) -> Exec<()> {
        if !self.svm.has(Intercept::IO) {
            return Ok(());
        }
        let ports = u32::from(port)..u32::from(port) + u32::from(size);
        let denied =
            |port: u32| self.permission_byte(Place::IO_MAP, u64::from(port / 8)) >> (port & 7) & 1 != 0;
        if !ports.into_iter().any(denied) {
            return Ok(());
        }
        use Mnemonic::{In, Insb, Insd, Insw};
        let input = matches!(insn.mnemonic(), In | Insb | Insw | Insd);
        let repeated = string && (insn.has_rep_prefix() || insn.has_repne_prefix());
        let bit = |set: bool, at: u32| u64::from(set) << at;
        // One bit for each width: 16, 32 and 64 bits.
        let address = 1 << 7 << crate::vmx::address_size(insn);
        // INS stores to ES, whatever it is told.
        let segment = if string && !input { insn.memory_segment().number() as u64 } else { 0 };
        let info1 = bit(input, 0)
            | bit(string, 2)
            | bit(repeated, 3)
            | u64::from(size) << 4
            | address
            | segment << 10
            | u64::from(port) << 16;
        let info2 = self.next_ip(insn);
        Err(self.leave_svm_at(insn, SvmExit { info1, info2, ..SvmExit::of(ExitCode::Ioio) }))
    }

    fn svm_msr(&mut self, insn: &Instruction, write: bool) -> Exec<bool> {
        if !self.svm.has(Intercept::MSR) {
            return Ok(false);
        }
        let exits = msr_bit(self.state.gpr[reg::RCX] as u32).is_none_or(|(byte, bit)| {
            self.permission_byte(Place::MSR_MAP, byte) >> (bit + u32::from(write)) & 1 != 0
        });
        let exit = SvmExit { info1: write.into(), ..SvmExit::of(ExitCode::Msr) };
        if exits { Err(self.leave_svm_at(insn, exit)) } else { Ok(false) }
    }

    /// Leaves the guest for an access to register `number` of those with these intercepts.
    fn leave_for_register(
        &mut self,
        insn: &Instruction,
        word: usize,
        number: u32,
        write: bool,
        info1: u64,
    ) -> Exec<bool> {
        let at = number + if write { 16 } else { 0 };
        if self.svm.vmcb.intercepts(word) >> at & 1 == 0 {
            return Ok(false);
        }
        let first = if word == CONTROL_REGISTERS { ExitCode::ReadCr0 } else { ExitCode::ReadDr0 };
        let code = first as u64 + u64::from(at);
        Err(self.leave_svm_at(insn, SvmExit { code, info1, ..SvmExit::default() }))
    }

    /// Leaves the guest for a write to CR0 that changes more than TS and MP (APM 15.8.1).
    fn leave_for_cr0(&mut self, insn: &Instruction, value: u64, info1: u64) -> Exec<bool> {
        let changes = (self.state.cr0 ^ value) & !(cr0::TS | cr0::MP) != 0;
        if changes && self.svm.has(Intercept::CR0_SELECTIVE) {
            return Err(self.leave_svm_at(insn, SvmExit { info1, ..SvmExit::of(ExitCode::Cr0SelWrite) }));
        }
        Ok(false)
    }
}

fn rdmsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    cpu.svm_msr(insn, false)
}

fn wrmsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    cpu.svm_msr(insn, true)?;
    let off = cpu.state.gpr[reg::RAX] & efer::SVME == 0;
    if off && cpu.state.gpr[reg::RCX] as u32 == msr::IA32_EFER {
        // What happens to a guest that turns SVM off is undefined (APM 15.4): it shuts down, and never becomes its host.
        return Err(cpu.leave_svm(SvmExit::of(ExitCode::Shutdown)));
    }
    Ok(false)
}

/// INVLPG, whose exit tells the linear address.
fn invlpg(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    if !cpu.svm.has(Intercept::INVLPG) {
        return Ok(false);
    }
    let info1 = cpu.invalidated(insn);
    Err(cpu.leave_svm_at(insn, SvmExit { info1, ..SvmExit::of(ExitCode::Invlpg) }))
}

/// INVPCID, whose exit tells the linear address of its descriptor, and its type.
fn invpcid(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    if !cpu.svm.has(Intercept::INVPCID) {
        return Ok(false);
    }
    let (info1, info2) = (cpu.ea(insn, 1)?, cpu.reg(insn.op0_register()));
    Err(cpu.leave_svm_at(insn, SvmExit { info1, info2, ..SvmExit::of(ExitCode::Invpcid) }))
}

/// MWAIT, which has an intercept of its own for an address that is armed. None is known here, and each is taken for armed.
fn mwait(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    /// VMEXIT_MWAIT_CONDITIONAL.
    const CONDITIONAL: u64 = 0x8c;
    let code = if cpu.svm.has(Intercept::MWAIT) {
        ExitCode::Mwait as u64
    } else if cpu.svm.has(Intercept::MWAIT_ARMED) {
        CONDITIONAL
    } else {
        return Ok(false);
    };
    Err(cpu.leave_svm_at(insn, SvmExit { code, ..SvmExit::default() }))
}

/// PAUSE, of which the filter lets some pass (APM 15.14.4).
fn pause(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    if !cpu.svm.has(Intercept::PAUSE) {
        return Ok(false);
    }
    let threshold = cpu.svm.vmcb.get(Place::PAUSE_THRESHOLD);
    if threshold != 0 {
        let (now, last) = (cpu.time().counter(), cpu.svm.paused);
        if now.wrapping_sub(last) > threshold {
            cpu.svm.pauses = cpu.svm.vmcb.get(Place::PAUSE_COUNT);
        }
        cpu.svm.paused = now;
    }
    if cpu.svm.pauses > 0 {
        cpu.svm.pauses -= 1;
        return Ok(false);
    }
    Err(cpu.leave_svm_at(insn, SvmExit::of(ExitCode::Pause)))
}

/// VMMCALL: #UD for a guest whose host does not want it, which never reaches those whom the host's own calls go to, unless it is
/// served for that host (TLFS, "Direct Virtual Flush").
fn vmmcall(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    if cpu.svm.vmcb.get(Place::ENLIGHTENMENTS) & FLUSH_HYPERCALLS != 0 {
        match cpu.serve_flush(cpu.svm.vmcb.get(Place::PARTITION_ASSIST))? {
            None => {}
            Some(false) => return Ok(true),
            Some(true) => {
                cpu.arrive_and_fault(cpu.next_rip);
                return Err(cpu.leave_svm(SvmExit {
                    code: ENLIGHTENED,
                    info1: TRAP_AFTER_FLUSH,
                    ..SvmExit::default()
                }));
            }
        }
    }
    if cpu.svm.has(Intercept::VMMCALL) {
        return Err(cpu.leave_svm_at(insn, SvmExit::of(ExitCode::Vmmcall)));
    }
    absent(cpu, insn)
}

/// An instruction that a guest does not have.
fn absent(cpu: &mut Cpu, _insn: &Instruction) -> Exec<bool> {
    Err(cpu.raise(Exception::ud()))
}

/// Bit 63 of EXITINFO1: it was MOV, and bits 3:0 are its general register.
const BY_MOV: u64 = 1 << 63;

/// MOV to and from control and debug registers. What those that there are not raise comes before an exit.
fn moved(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    let (to, from) = (insn.op0_register(), insn.op1_register());
    if to.is_dr() || from.is_dr() {
        let (debug, general, write) = if to.is_dr() { (to, from, true) } else { (from, to, false) };
        let number = debug as u32 - Register::DR0 as u32;
        let absent = number > 7 || matches!(number, 4 | 5) && cpu.state.cr4 & cr4::DE != 0;
        if absent || cpu.state.dr7 & dr7::GD != 0 {
            return Ok(false);
        }
        return cpu.leave_for_register(insn, DEBUG_REGISTERS, number, write, number_of(general));
    }
    let (control, general, write) = if to.is_cr() { (to, from, true) } else { (from, to, false) };
    let number = control as u32 - Register::CR0 as u32;
    if !matches!(number, 0 | 2 | 3 | 4 | 8) {
        return Ok(false);
    }
    let info1 = BY_MOV | number_of(general);
    cpu.leave_for_register(insn, CONTROL_REGISTERS, number, write, info1)?;
    match (number, write) {
        (0, true) => cpu.leave_for_cr0(insn, cpu.reg(from), info1),
        (8, _) if cpu.svm.masks() => virtual_priority(cpu, general, write),
        _ => Ok(false),
    }
}

/// The number of a general register.
fn number_of(general: Register) -> u64 {
    general.full_register().number() as u64
}

/// MOV to and from CR8 where external interrupts are masked by the host: it is V_TPR (APM 15.21.1).
fn virtual_priority(cpu: &mut Cpu, general: Register, write: bool) -> Exec<bool> {
    let control = cpu.svm.vmcb.get(Place::INTERRUPT_CONTROL);
    if !write {
        cpu.set_reg(general, control & 0xf);
        return Ok(true);
    }
    let priority = cpu.reg(general);
    if priority > 15 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.svm.vmcb.set(Place::INTERRUPT_CONTROL, control & !interrupt::TPR | priority);
    cpu.windows.attention = true;
    Ok(true)
}

fn clts(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    cpu.leave_for_register(insn, CONTROL_REGISTERS, 0, true, 0)
}

fn lmsw(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    cpu.leave_for_register(insn, CONTROL_REGISTERS, 0, true, 0)?;
    let word = cpu.operand(insn, 0)? & 0xf;
    // It sets PE and never clears it.
    let value = cpu.state.cr0 & !0xe | word;
    cpu.leave_for_cr0(insn, value, 0)
}

fn smsw(cpu: &mut Cpu, insn: &Instruction) -> Exec<bool> {
    cpu.leave_for_register(insn, CONTROL_REGISTERS, 0, false, 0)
}
