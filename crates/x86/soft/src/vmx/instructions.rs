//! VMX instructions in VMX root operation (SDM chapter 30). In non-root operation they exit before they come here.

use iced_x86::{Code, Instruction};
use satori_cpuid::Feature;
use satori_defs::vmx::NestedWork;
use satori_defs::x86::{cr4, rflags};
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_vmx::control::proc2;
use satori_vmx::{Field, capability, check, error};

use super::NONE;
use crate::cpu::{Cpu, Exec, Handler};
use crate::mmu::{Space, World, canonical};

/// The implementation of a VMX instruction.
pub(super) fn handler(insn: &Instruction) -> Option<Handler> {
    Some(match insn.code() {
        Code::Vmxon_m64 => vmxon,
        Code::Vmxoff => vmxoff,
        Code::Vmclear_m64 => vmclear,
        Code::Vmptrld_m64 => vmptrld,
        Code::Vmptrst_m64 => vmptrst,
        Code::Vmread_rm32_r32 | Code::Vmread_rm64_r64 => vmread,
        Code::Vmwrite_r32_rm32 | Code::Vmwrite_r64_rm64 => vmwrite,
        Code::Vmlaunch => |cpu, _| cpu.vm_entry(true),
        Code::Vmresume => |cpu, _| cpu.vm_entry(false),
        Code::Invept_r32_m128 | Code::Invept_r64_m128 => invept,
        Code::Invvpid_r32_m128 | Code::Invvpid_r64_m128 => invvpid,
        _ => return None,
    })
}

impl Cpu {
    /// #UD where VMX instructions do not exist: without the feature, outside VMX operation, and in modes without them.
    pub(super) fn require_vmx_mode(&mut self) -> Exec<()> {
        let exists = self.offers(Feature::Vmx)
            && !self.paragraph_selectors()
            && (!self.state.long_mode() || self.derived.code64);
        if exists { Ok(()) } else { Err(self.raise(Exception::ud())) }
    }

    fn require_root(&mut self) -> Exec<()> {
        self.require_vmx_mode()?;
        if !self.vmx.on {
            return Err(self.raise(Exception::ud()));
        }
        self.require_supervisor()
    }

    /// VMsucceed, VMfailInvalid or VMfailValid by `outcome`: 0 is no current VMCS's error (SDM 30.2).
    pub(super) fn conclude(&mut self, outcome: Result<(), u32>) {
        let flags = match outcome {
            Ok(()) => 0,
            Err(number) if number == 0 || !self.has_vmcs() => rflags::CF,
            Err(number) => {
                self.tell_error(number);
                rflags::ZF
            }
        };
        self.flags.set_bits(flags);
    }

    /// Whether this is VMX root operation.
    pub fn in_vmx_root(&self) -> bool {
        self.vmx.on && !self.vmx.guest
    }

    /// VMCALL in VMX root operation, which has no second monitor (SDM chapter 30, VMCALL).
    pub fn vmcall_in_root(&mut self) -> Exec<()> {
        self.pending.fault = None;
        self.require_vmx_mode()?;
        self.require_supervisor()?;
        self.conclude(Err(error::VMCALL_IN_ROOT));
        Ok(())
    }

    fn pointer(&mut self, insn: &Instruction) -> Exec<u64> {
        let linear = self.ea(insn, 0)?;
        self.read(linear)
    }
}

fn vmxon(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_vmx_mode()?;
    if cpu.state.cr4 & cr4::VMXE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.require_supervisor()?;
    if cpu.vmx.on {
        cpu.conclude(Err(error::VMXON_IN_ROOT));
        return Ok(());
    }
    // IA32_FEATURE_CONTROL is locked with VMX on.
    if !check::cr0(cpu.state.cr0, false) || !check::cr4(cpu.state.cr4, u64::MAX) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let region = cpu.pointer(insn)?;
    let revision = cpu.memory.read_u32(Gpa(cpu.memory.addressed(region)));
    if !Cpu::region_address(region) || revision.ok() != Some(capability::REVISION) {
        cpu.conclude(Err(0));
        return Ok(());
    }
    cpu.vmx.on = true;
    cpu.vmx.account.worked(NestedWork::Switch);
    cpu.vmx.region = region;
    cpu.vmx.current = NONE;
    cpu.conclude(Ok(()));
    Ok(())
}

fn vmxoff(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    // A signal may have waited for this: it comes before the next instruction.
    cpu.execute_alone()?;
    cpu.vmx.account.worked(NestedWork::Switch);
    cpu.store_vmcs();
    cpu.release_enlightened();
    cpu.vmx.on = false;
    cpu.vmx.current = NONE;
    cpu.windows.attention = true;
    cpu.conclude(Ok(()));
    Ok(())
}

fn vmclear(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let at = cpu.pointer(insn)?;
    cpu.vmx.account.worked(NestedWork::Switch);
    let outcome = if !Cpu::region_address(at) {
        Err(error::VMCLEAR_ADDRESS)
    } else if at == cpu.vmx.region {
        Err(error::VMCLEAR_VMXON_POINTER)
    } else {
        if !cpu.clear_enlightened(at) {
            clear(cpu, at);
        }
        Ok(())
    };
    cpu.conclude(outcome);
    Ok(())
}

/// The launch state of the VMCS at `at` is clear, its data in memory, and it is not current.
fn clear(cpu: &mut Cpu, at: u64) {
    if at == cpu.vmx.current {
        cpu.vmx.vmcs.launched = false;
        cpu.store_vmcs();
        cpu.vmx.current = NONE;
        return;
    }
    let _ = cpu.memory.write(Gpa(cpu.memory.addressed(at + satori_vmx::vmcs::LAUNCH as u64)), &[0]);
    cpu.code_written();
}

fn vmptrld(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let at = cpu.pointer(insn)?;
    cpu.vmx.account.worked(NestedWork::Switch);
    let revision = || cpu.memory.read_u32(Gpa(cpu.memory.addressed(at))).ok();
    let shadow =
        if cpu.around().controls.proc2.may & proc2::SHADOW_VMCS != 0 { capability::SHADOW } else { 0 };
    let outcome = if !Cpu::region_address(at) {
        Err(error::VMPTRLD_ADDRESS)
    } else if at == cpu.vmx.region {
        Err(error::VMPTRLD_VMXON_POINTER)
    } else if revision().map(|word| word & !shadow) != Some(capability::REVISION) {
        Err(error::VMPTRLD_REVISION)
    } else {
        cpu.release_enlightened();
        if at != cpu.vmx.current {
            cpu.store_vmcs();
            cpu.load_vmcs(at);
        }
        Ok(())
    };
    cpu.conclude(outcome);
    Ok(())
}

fn vmptrst(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let linear = cpu.ea_write(insn, 0)?;
    cpu.write(linear, cpu.vmx.current)?;
    cpu.vmx.account.worked(NestedWork::Switch);
    cpu.conclude(Ok(()));
    Ok(())
}

fn vmread(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let encoding = cpu.reg(insn.op1_register());
    let outcome = match Field::find(encoding) {
        // An enlightened VMCS is read and written in memory.
        _ if cpu.vmx.current == NONE => Err(0),
        None => Err(error::UNSUPPORTED_COMPONENT),
        Some((field, high)) => {
            let value = cpu.vmx.vmcs.read(field, high);
            cpu.set_operand(insn, 0, value)?;
            Ok(())
        }
    };
    cpu.vmx.account.accessed(encoding, false);
    cpu.conclude(outcome);
    Ok(())
}

fn vmwrite(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let value = cpu.operand(insn, 1)?;
    let encoding = cpu.reg(insn.op0_register());
    let outcome = match Field::find(encoding) {
        _ if cpu.vmx.current == NONE => Err(0),
        None => Err(error::UNSUPPORTED_COMPONENT),
        // IA32_VMX_MISC bit 29: exit information can be written too.
        Some((field, high)) => {
            cpu.vmx.vmcs.write(field, high, value);
            Ok(())
        }
    };
    cpu.vmx.account.accessed(encoding, true);
    cpu.conclude(outcome);
    Ok(())
}

/// The type and the descriptor of INVEPT and INVVPID.
fn invalidation(cpu: &mut Cpu, insn: &Instruction) -> Exec<(u64, u64, u64)> {
    let kind = cpu.reg(insn.op0_register());
    let linear = cpu.ea(insn, 1)?;
    let descriptor: u128 = cpu.read(linear)?;
    cpu.vmx.account.worked(NestedWork::Invalidate);
    Ok((kind, descriptor as u64, (descriptor >> 64) as u64))
}

/// In root operation no translation of a guest is in use; those that are kept are dropped.
fn invept(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let (kind, eptp, reserved) = invalidation(cpu, insn)?;
    let legal = match kind {
        1 => satori_vmx::ept::eptp(eptp) && reserved == 0,
        2 => true,
        _ => false,
    };
    if legal {
        let tables = |ept: u64| ept & satori_vmx::ept::ADDRESS;
        let named = |ept| kind == 2 || tables(ept) == tables(eptp);
        cpu.forget_spaces(|space| matches!(space.world, World::Guest { ept, .. } if named(ept)), true);
    }
    cpu.conclude(if legal { Ok(()) } else { Err(error::INVALID_OPERAND) });
    Ok(())
}

/// As INVEPT. A single address costs all that is kept of the VPID.
fn invvpid(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_root()?;
    let (kind, vpid, linear) = invalidation(cpu, insn)?;
    let named = vpid >> 16 == 0 && vpid != 0;
    let legal = match kind {
        0 => named && canonical(linear),
        1 | 3 => named,
        2 => vpid >> 16 == 0,
        _ => false,
    };
    if legal {
        let named = |this: u16| kind == 2 || u64::from(this) == vpid;
        let of_guest = |space: Space| matches!(space.world, World::Guest { vpid, .. } if named(vpid));
        // Type 3 keeps what is global.
        cpu.forget_spaces(of_guest, kind != 3);
    }
    cpu.conclude(if legal { Ok(()) } else { Err(error::INVALID_OPERAND) });
    Ok(())
}
