//! Instructions that leave a guest (SDM 25.1): one table from an instruction to the control that decides.
//!
//! An instruction of the table has [`execute`] as its handler on processors that offer VMX. Ports are asked for where the
//! I/O permission bit map was ([`Cpu::port_exit`]), as its faults come first.

use iced_x86::{CodeSize, Instruction, Mnemonic, OpKind, Register};
use satori_defs::vmx::ExitReason;
use satori_defs::x86::cr0;
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::reg;
use satori_vmx::Field::{
    Cr0Mask, Cr0Shadow, Cr3Target0, Cr3TargetCount, Cr4Mask, Cr4Shadow, Eptp, EptpList, IoBitmapA, IoBitmapB,
    MsrBitmap, PleGap, PleWindow, VmFunctions,
};
use satori_vmx::capability::EPTPS;
use satori_vmx::control::{proc, proc2};
use satori_vmx::ept;

use super::VmExit;
use crate::cpu::{Cpu, Exec, Stop};
use crate::insn;
use crate::level::Level;

/// When an instruction leaves the guest.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// With this primary control.
    Proc(u32),
    /// With this secondary control.
    Proc2(u32),
    /// #UD without the secondary control; with it, by the primary one.
    Offered(u32, u32),
    /// As the function says.
    Asked(fn(&mut Cpu, &Instruction) -> Exec<()>),
}

/// The table: instruction, whose fault comes first, when it exits, and why.
const ROWS: &[(Mnemonic, Level, When, ExitReason)] = {
    use ExitReason as Why;
    use Level::{Any, Counter, LoadsSelector, Selector, Supervisor, Time, Told, Wait, Xsetbv};
    use Mnemonic as Is;
    use When::{Always, Asked, Offered, Proc, Proc2};
    &[
        (Is::Cpuid, Any, Always, Why::Cpuid),
        (Is::Hlt, Supervisor, Proc(proc::HLT), Why::Hlt),
        (Is::Invd, Supervisor, Always, Why::Invd),
        (Is::Invlpg, Supervisor, Proc(proc::INVLPG), Why::Invlpg),
        (Is::Invpcid, Supervisor, Offered(proc2::INVPCID, proc::INVLPG), Why::Invpcid),
        (Is::Rdpmc, Counter, Proc(proc::RDPMC), Why::Rdpmc),
        (Is::Rdtsc, Time, Proc(proc::RDTSC), Why::Rdtsc),
        (Is::Rdtscp, Time, Offered(proc2::RDTSCP, proc::RDTSC), Why::Rdtscp),
        (Is::Rdpid, Any, Offered(proc2::RDTSCP, 0), Why::Rdtscp),
        (Is::Monitor, Wait, Proc(proc::MONITOR), Why::MonitorInstruction),
        (Is::Mwait, Wait, Proc(proc::MWAIT), Why::MwaitInstruction),
        (Is::Pause, Any, Asked(pause), Why::PauseInstruction),
        (Is::Wbinvd, Supervisor, Proc2(proc2::WBINVD), Why::Wbinvd),
        (Is::Wbnoinvd, Supervisor, Proc2(proc2::WBINVD), Why::Wbinvd),
        (Is::Xsetbv, Xsetbv, Always, Why::Xsetbv),
        (Is::Rdrand, Any, Proc2(proc2::RDRAND), Why::Rdrand),
        (Is::Rdseed, Any, Proc2(proc2::RDSEED), Why::Rdseed),
        (Is::Xsaves, Any, Offered(proc2::XSAVES, 0), Why::Xsaves),
        (Is::Xsaves64, Any, Offered(proc2::XSAVES, 0), Why::Xsaves),
        (Is::Xrstors, Any, Offered(proc2::XSAVES, 0), Why::Xrstors),
        (Is::Xrstors64, Any, Offered(proc2::XSAVES, 0), Why::Xrstors),
        (Is::Lgdt, Supervisor, Proc2(proc2::DESCRIPTOR_TABLES), Why::GdtrIdtr),
        (Is::Lidt, Supervisor, Proc2(proc2::DESCRIPTOR_TABLES), Why::GdtrIdtr),
        (Is::Sgdt, Told, Proc2(proc2::DESCRIPTOR_TABLES), Why::GdtrIdtr),
        (Is::Sidt, Told, Proc2(proc2::DESCRIPTOR_TABLES), Why::GdtrIdtr),
        (Is::Lldt, LoadsSelector, Proc2(proc2::DESCRIPTOR_TABLES), Why::LdtrTr),
        (Is::Ltr, LoadsSelector, Proc2(proc2::DESCRIPTOR_TABLES), Why::LdtrTr),
        (Is::Sldt, Selector, Proc2(proc2::DESCRIPTOR_TABLES), Why::LdtrTr),
        (Is::Str, Selector, Proc2(proc2::DESCRIPTOR_TABLES), Why::LdtrTr),
        (Is::Mov, Supervisor, Asked(moved), Why::CrAccess),
        (Is::Clts, Supervisor, Asked(clts), Why::CrAccess),
        (Is::Lmsw, Supervisor, Asked(lmsw), Why::CrAccess),
        (Is::Rdmsr, Supervisor, Asked(rdmsr), Why::MsrRead),
        (Is::Wrmsr, Supervisor, Asked(wrmsr), Why::MsrWrite),
        (Is::Vmcall, Any, Asked(vmcall), Why::Vmcall),
        (Is::Vmmcall, Any, Asked(absent), Why::Vmcall),
        (Is::Vmfunc, Any, Asked(vmfunc), Why::Vmfunc),
        (Is::Vmclear, Any, Asked(vmx), Why::Vmclear),
        (Is::Vmlaunch, Any, Asked(vmx), Why::Vmlaunch),
        (Is::Vmptrld, Any, Asked(vmx), Why::Vmptrld),
        (Is::Vmptrst, Any, Asked(vmx), Why::Vmptrst),
        (Is::Vmread, Any, Asked(shadowed), Why::Vmread),
        (Is::Vmresume, Any, Asked(vmx), Why::Vmresume),
        (Is::Vmwrite, Any, Asked(shadowed), Why::Vmwrite),
        (Is::Vmxoff, Any, Asked(vmx), Why::Vmoff),
        (Is::Vmxon, Any, Asked(vmx), Why::Vmon),
        (Is::Invept, Any, Asked(vmx), Why::Invept),
        (Is::Invvpid, Any, Asked(vmx), Why::Invvpid),
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
    if cpu.svm.guest {
        return crate::svm::execute(cpu, insn);
    }
    if cpu.vmx.guest
        && let Some((_, level, when, reason)) = ROWS.iter().find(|row| row.0 == insn.mnemonic())
    {
        cpu.intercept(insn, *level, *when, *reason)?;
        if std::mem::take(&mut cpu.vmx.served) {
            return Ok(());
        }
    }
    let handler = super::handler(insn).unwrap_or_else(|| insn::handler(insn));
    handler(cpu, insn)
}

impl Cpu {
    fn intercept(&mut self, insn: &Instruction, level: Level, when: When, reason: ExitReason) -> Exec<()> {
        if let When::Offered(control, _) = when
            && self.vmx.proc2 & control == 0
        {
            return Err(self.raise(Exception::ud()));
        }
        self.fault_first(level)?;
        let exits = match when {
            When::Always => true,
            When::Proc(control) | When::Offered(_, control) => self.guest_exits(control),
            When::Proc2(control) => self.vmx.proc2 & control != 0,
            When::Asked(ask) => return ask(self, insn),
        };
        if !exits {
            return Ok(());
        }
        let (qualification, info) = match reason {
            ExitReason::Invlpg => (self.invalidated(insn), 0),
            ExitReason::Invpcid | ExitReason::GdtrIdtr | ExitReason::LdtrTr => {
                (insn.memory_displacement64(), information(insn))
            }
            ExitReason::Rdrand | ExitReason::Rdseed => (0, operand_information(insn)),
            _ => (0, 0),
        };
        Err(self.leave_at(insn, reason, qualification, info))
    }

    /// The exit of `insn`.
    fn leave_at(&mut self, insn: &Instruction, reason: ExitReason, qualification: u64, info: u32) -> Stop {
        let length = insn.len() as u32;
        self.leave(VmExit { reason: reason as u32, qualification, length, info, ..VmExit::default() })
    }

    /// The linear address of INVLPG's operand.
    pub(crate) fn invalidated(&self, insn: &Instruction) -> u64 {
        let segment = insn.memory_segment().number();
        let base = if self.derived.code64 {
            self.derived.segment_base[segment & 7]
        } else {
            self.state.seg[segment].base
        };
        base.wrapping_add(self.offset(insn))
    }

    /// Leaves the guest at an access to `size` ports, if its hypervisor wants that (SDM 25.1.3).
    pub fn port_exit(&mut self, insn: &Instruction, port: u16, size: u8, linear: Option<u64>) -> Exec<()> {
        if self.svm.guest {
            return self.svm_port_exit(insn, port, size, linear.is_some());
        }
        if !self.vmx.guest {
            return Ok(());
        }
        let exits = if self.guest_exits(proc::IO_BITMAPS) {
            let last = u32::from(port) + u32::from(size) - 1;
            last > 0xffff || (u32::from(port)..=last).any(|port| self.port_bit(port))
        } else {
            self.guest_exits(proc::UNCONDITIONAL_IO)
        };
        if !exits {
            return Ok(());
        }
        use Mnemonic::{In, Insb, Insd, Insw};
        let input = matches!(insn.mnemonic(), In | Insb | Insw | Insd);
        let immediate = [insn.op0_kind(), insn.op1_kind()].contains(&OpKind::Immediate8);
        let repeated = insn.has_rep_prefix() || insn.has_repne_prefix();
        let bit = |set: bool, at: u32| u64::from(set) << at;
        let qualification = u64::from(size - 1)
            | bit(input, 3)
            | bit(linear.is_some(), 4)
            | bit(linear.is_some() && repeated, 5)
            | bit(immediate, 6)
            | u64::from(port) << 16;
        let info = if linear.is_some() {
            address_size(insn) << 7 | (insn.memory_segment().number() as u32) << 15
        } else {
            0
        };
        let reason = ExitReason::IoInstruction as u32;
        let length = insn.len() as u32;
        let linear = linear.unwrap_or(0);
        Err(self.leave(VmExit { reason, qualification, length, info, linear, ..VmExit::default() }))
    }

    fn port_bit(&self, port: u32) -> bool {
        let map = if port < 0x8000 { IoBitmapA } else { IoBitmapB };
        let at = self.vmx.vmcs.get(map) + u64::from(port & 0x7fff) / 8;
        self.bitmap_byte(at) >> (port & 7) & 1 != 0
    }

    /// Whether an access to an MSR leaves the guest: `write` bitmaps are 2 KiB behind those of reads (SDM 24.6.9).
    fn msr_exits(&self, number: u32, write: bool) -> bool {
        if !self.guest_exits(proc::MSR_BITMAPS) {
            return true;
        }
        let half = match number {
            0..=0x1fff => 0,
            0xc000_0000..=0xc000_1fff => 0x400,
            _ => return true,
        };
        let at = self.vmx.vmcs.get(MsrBitmap) + half + if write { 0x800 } else { 0 };
        self.bitmap_byte(at + u64::from(number & 0x1fff) / 8) >> (number & 7) & 1 != 0
    }
}

fn rdmsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let exits = cpu.msr_exits(cpu.state.gpr[reg::RCX] as u32, false);
    if exits { Err(cpu.leave_at(insn, ExitReason::MsrRead, 0, 0)) } else { cpu.read_virtual_msr() }
}

fn wrmsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let exits = cpu.msr_exits(cpu.state.gpr[reg::RCX] as u32, true);
    if exits { Err(cpu.leave_at(insn, ExitReason::MsrWrite, 0, 0)) } else { cpu.write_virtual_msr() }
}

/// PAUSE, which leaves the guest always, or at privilege level 0 in a loop that took too long (SDM 25.1.3).
fn pause(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let mut exits = cpu.guest_exits(proc::PAUSE);
    if !exits && cpu.vmx.proc2 & proc2::PAUSE_LOOP != 0 && cpu.cpl() == 0 {
        let now = cpu.time().counter();
        let (mut first, last) = cpu.vmx.pauses;
        if now.wrapping_sub(last) > cpu.vmx.vmcs.get(PleGap) {
            first = now;
        }
        exits = now.wrapping_sub(first) > cpu.vmx.vmcs.get(PleWindow);
        cpu.vmx.pauses = if exits { (0, 0) } else { (first, now) };
    }
    if exits { Err(cpu.leave_at(insn, ExitReason::PauseInstruction, 0, 0)) } else { Ok(()) }
}

/// VMFUNC: function 0 takes another EPTP of the list (SDM 25.5.6).
fn vmfunc(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (function, index) = (cpu.state.gpr[reg::RAX] as u32, cpu.state.gpr[reg::RCX] as u32);
    if cpu.vmx.proc2 & proc2::VM_FUNCTIONS == 0 || function > 63 {
        return Err(cpu.raise(Exception::ud()));
    }
    let vmcs = &cpu.vmx.vmcs;
    let at = vmcs.get(EptpList) + u64::from(index) * 8;
    let eptp = if vmcs.get(VmFunctions) >> function & 1 != 0 && u64::from(index) < EPTPS {
        cpu.memory.read_u64(Gpa(cpu.memory.addressed(at))).ok().filter(|eptp| ept::eptp(*eptp))
    } else {
        None
    };
    let Some(eptp) = eptp else { return Err(cpu.leave_at(insn, ExitReason::Vmfunc, 0, 0)) };
    if eptp != vmcs.get(Eptp) {
        cpu.vmx.vmcs.set(Eptp, eptp);
        cpu.flush_tlb(false);
    }
    cpu.vmx.served = true;
    Ok(())
}

/// VMCALL, which always exits, unless it is served for the guest's hypervisor.
fn vmcall(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.vmx.served = cpu.direct_flush(insn.len() as u32)?;
    if cpu.vmx.served { Ok(()) } else { Err(cpu.leave_at(insn, ExitReason::Vmcall, 0, 0)) }
}

/// An instruction of AMD's. A guest does not reach those whom the hypervisor's own calls go to by it.
fn absent(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    Err(cpu.raise(Exception::ud()))
}

/// A VMX instruction: where it is #UD it does not exit.
fn vmx(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_vmx_mode()?;
    let reason = ROWS.iter().find(|row| row.0 == insn.mnemonic()).map_or(ExitReason::Vmcall, |row| row.3);
    Err(cpu.leave_at(insn, reason, insn.memory_displacement64(), information(insn)))
}

/// VMREAD and VMWRITE, which a shadow VMCS may serve.
fn shadowed(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_vmx_mode()?;
    cpu.vmx.served = cpu.shadow_access(insn)?;
    if cpu.vmx.served { Ok(()) } else { vmx(cpu, insn) }
}

/// How MOV accesses a control register: bits 5:4 of the qualification.
const FROM: u64 = 1 << 4;
const CLTS: u64 = 2 << 4;
const LMSW: u64 = 3 << 4;

/// MOV to and from control and debug registers (SDM table 27-3, 27-4).
fn moved(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (to, from) = (insn.op0_register(), insn.op1_register());
    if to.is_dr() || from.is_dr() {
        return moved_debug(cpu, insn);
    }
    let (control, general, read) = if to.is_cr() { (to, from, false) } else { (from, to, true) };
    let number = (control as u32 - Register::CR0 as u32) as u64;
    let value = cpu.reg(from);
    let vmcs = &cpu.vmx.vmcs;
    // A bit that the hypervisor owns exits where it would differ from what the guest reads.
    let owned = |mask, shadow| (vmcs.get(mask) & (value ^ vmcs.get(shadow))) != 0;
    let target = |value: u64| {
        (0..vmcs.get32(Cr3TargetCount) as usize).any(|index| vmcs.get(Cr3Target0.plus(index)) == value)
    };
    let exits = match (number, read) {
        (0, false) => owned(Cr0Mask, Cr0Shadow),
        (4, false) => owned(Cr4Mask, Cr4Shadow),
        (3, false) => cpu.guest_exits(proc::CR3_LOAD) && !target(value),
        (3, true) => cpu.guest_exits(proc::CR3_STORE),
        (8, false) => cpu.guest_exits(proc::CR8_LOAD),
        (8, true) => cpu.guest_exits(proc::CR8_STORE),
        _ => false,
    };
    if !exits {
        return if number == 8 && cpu.guest_exits(proc::TPR_SHADOW) {
            shadowed_priority(cpu, insn, general, read)
        } else {
            Ok(())
        };
    }
    let register = (general.full_register().number() as u64) << 8;
    let how = if read { FROM } else { 0 };
    Err(cpu.leave_at(insn, ExitReason::CrAccess, number | how | register, 0))
}

/// MOV to and from CR8 with a TPR shadow: the virtual task priority is in the virtual-APIC page (SDM 29.3).
fn shadowed_priority(cpu: &mut Cpu, insn: &Instruction, general: Register, read: bool) -> Exec<()> {
    cpu.vmx.served = true;
    if read {
        let priority = cpu.virtual_priority();
        cpu.set_reg(general, priority);
        return Ok(());
    }
    let priority = cpu.reg(general);
    if priority > 15 {
        cpu.vmx.served = false;
        return Err(cpu.raise(Exception::gp(0)));
    }
    if cpu.delivers_virtually() && cpu.execute_alone().is_err() {
        // What it lets in comes behind it.
        cpu.vmx.served = false;
        return Err(Stop::Alone);
    }
    if let Some(exit) = cpu.set_virtual_priority(priority as u32) {
        // A trap: the instruction is complete (SDM 29.1.2).
        cpu.vmx.served = false;
        cpu.arrive_and_fault(cpu.next_ip(insn));
        return Err(cpu.leave(exit));
    }
    Ok(())
}

fn moved_debug(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if !cpu.guest_exits(proc::MOV_DR) {
        return Ok(());
    }
    let (to, from) = (insn.op0_register(), insn.op1_register());
    let (debug, general, read) = if to.is_dr() { (to, from, 0) } else { (from, to, FROM) };
    let number = debug as u32 - Register::DR0 as u32;
    let register = (general.full_register().number() as u64) << 8;
    Err(cpu.leave_at(insn, ExitReason::DrAccess, u64::from(number) | read | register, 0))
}

fn clts(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let vmcs = &cpu.vmx.vmcs;
    let exits = vmcs.get(Cr0Mask) & vmcs.get(Cr0Shadow) & cr0::TS != 0;
    if exits { Err(cpu.leave_at(insn, ExitReason::CrAccess, CLTS, 0)) } else { Ok(()) }
}

fn lmsw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let word = cpu.operand(insn, 0)? & 0xffff;
    let vmcs = &cpu.vmx.vmcs;
    let (mask, shadow) = (vmcs.get(Cr0Mask), vmcs.get(Cr0Shadow));
    // It sets PE and never clears it; MP, EM and TS it loads.
    let sets = mask & word & !shadow & cr0::PE != 0;
    let loads = mask & (word ^ shadow) & 0xe != 0;
    if !sets && !loads {
        return Ok(());
    }
    let memory = insn.op0_kind() == OpKind::Memory;
    let qualification = LMSW | u64::from(memory) << 6 | word << 16;
    let linear = if memory { cpu.ea(insn, 0)? } else { 0 };
    let (reason, length) = (ExitReason::CrAccess as u32, insn.len() as u32);
    Err(cpu.leave(VmExit { reason, qualification, length, linear, ..VmExit::default() }))
}

/// Address size in the instruction information: 0, 1 and 2 are 16, 32 and 64 bits.
pub(crate) fn address_size(insn: &Instruction) -> u32 {
    let bits = match (insn.op0_kind(), insn.op1_kind()) {
        (OpKind::MemoryESDI, _) | (_, OpKind::MemorySegSI) => 16,
        (OpKind::MemoryESEDI, _) | (_, OpKind::MemorySegESI) => 32,
        (OpKind::MemoryESRDI, _) | (_, OpKind::MemorySegRSI) => 64,
        _ => {
            let named = [insn.memory_base(), insn.memory_index()];
            let named = named.iter().find(|register| **register != Register::None);
            let code = match insn.code_size() {
                CodeSize::Code16 => 2,
                CodeSize::Code32 => 4,
                _ => 8,
            };
            8 * named.map_or(code, |register| if register.is_ip() { 8 } else { register.size() })
        }
    };
    match bits {
        16 => 0,
        32 => 1,
        _ => 2,
    }
}

/// VM-exit instruction information of an instruction with a memory or register operand (SDM tables 27-9 to 27-14).
fn information(insn: &Instruction) -> u32 {
    let registers: Vec<u32> = (0..insn.op_count())
        .filter(|op| insn.op_kind(*op) == OpKind::Register)
        .map(|op| insn.op_register(op).full_register().number() as u32)
        .collect();
    let second = match insn.mnemonic() {
        // Bits 29:28 name the instruction.
        Mnemonic::Sgdt | Mnemonic::Sldt => 0,
        Mnemonic::Sidt | Mnemonic::Str => 1,
        Mnemonic::Lgdt | Mnemonic::Lldt => 2,
        Mnemonic::Lidt | Mnemonic::Ltr => 3,
        // The encoding's register comes second; the first is the other operand.
        Mnemonic::Vmread => insn.op1_register().full_register().number() as u32,
        _ => insn.op0_register().full_register().number() as u32 & if registers.is_empty() { 0 } else { 15 },
    };
    let memory = (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory);
    if !memory {
        let first = match insn.mnemonic() {
            Mnemonic::Vmwrite => insn.op1_register(),
            _ => insn.op0_register(),
        };
        return 1 << 10 | (first.full_register().number() as u32) << 3 | second << 28;
    }
    let scale = insn.memory_index_scale().trailing_zeros();
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let index = if index == Register::None { 1 << 22 } else { (index.full_register().number() as u32) << 18 };
    let base = if base == Register::None || base.is_ip() {
        1 << 27
    } else {
        (base.full_register().number() as u32) << 23
    };
    scale
        | address_size(insn) << 7
        | (insn.memory_segment().number() as u32) << 15
        | index
        | base
        | second << 28
}

/// The instruction information of RDRAND and RDSEED: the register in 6:3, the operand size in 12:11.
fn operand_information(insn: &Instruction) -> u32 {
    let register = insn.op0_register();
    let size = register.size().trailing_zeros() - 1;
    (register.full_register().number() as u32) << 3 | size << 11
}
