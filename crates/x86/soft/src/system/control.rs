//! Control registers (SDM 2.5; volume 2, MOV to CR), as KVM on VMX with EPT lets a guest change
//! them: a change of a bit that the host owns exits first.

use iced_x86::{Instruction, Register};
use satori_cpuid::controls;
use satori_defs::x86::{cr0, cr4};
use satori_engine::{Exception, Exit};
use satori_rules as rules;
use satori_state::seg;

use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, is_register, rows};
use crate::mmu::{MAXPHYADDR, Paging, canonical};
use crate::vmx::Nested;

/// Bits of CR0 that the guest owns under KVM with EPT.
const CR0_GUEST: u64 = cr0::TS | cr0::WP;
/// Bits of CR4 that this processor can have set; whether a guest may is for the exit to say.
const CR4_BITS: u64 = CR4_GUEST
    | cr4::VME
    | cr4::PSE
    | cr4::PAE
    | cr4::MCE
    | cr4::UMIP
    | cr4::PCIDE
    | cr4::VMXE
    | cr4::OSXSAVE
    | cr4::SMEP
    | cr4::SMAP
    | cr4::PKE;
/// Bits of CR4 that the guest owns under KVM with EPT (`KVM_POSSIBLE_CR4_GUEST_BITS`), if they are
/// not reserved for want of their feature.
const CR4_GUEST: u64 =
    cr4::PVI | cr4::DE | cr4::PCE | cr4::OSFXSR | cr4::OSXMMEXCPT | cr4::PGE | cr4::TSD | cr4::FSGSBASE;
/// Bits of CR4 whose change voids translations (SDM 4.10.4.1). SMAP and PKE are among them because
/// the software TLB keeps the outcome of their checks.
const CR4_TRANSLATION: u64 = cr4::PGE | cr4::PSE | cr4::PAE | cr4::PCIDE | cr4::SMEP | cr4::SMAP | cr4::PKE;
/// Bits of CR0 whose change loads the PDPTEs (SDM 4.4.1).
const CR0_PDPTE: u64 = cr0::CD | cr0::NW | cr0::PG;
/// Bits of CR4 whose change loads the PDPTEs (SDM 4.4.1).
const CR4_PDPTE: u64 = cr4::PAE | cr4::PGE | cr4::PSE | cr4::SMEP;
/// What LMSW can change: PE, MP, EM, TS.
const MSW: u64 = 0xf;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Mov if is_register(insn, 0, Register::is_cr) => write,
    Mov if is_register(insn, 1, Register::is_cr) => read,
    Clts => clts,
    Lmsw => lmsw,
    Smsw => smsw,
    Invlpg => invlpg,
    Invpcid => invpcid,
});

fn read(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = match insn.op1_register() {
        Register::CR0 => cpu.seen_cr0(),
        Register::CR2 => cpu.state.cr2,
        Register::CR3 => cpu.state.cr3,
        Register::CR4 => cpu.seen_cr4(),
        Register::CR8 => u64::from(cpu.state.tpr >> 4),
        _ => return Err(cpu.raise(Exception::ud())),
    };
    cpu.require_supervisor()?;
    if insn.op1_register() == Register::CR8 && !cpu.controls.tpr_shadow {
        cpu.ask(Exit::Cr8Read)?;
    }
    cpu.set_reg(insn.op0_register(), value);
    Ok(())
}

fn write(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = cpu.reg(insn.op1_register());
    let change: fn(&mut Cpu, u64) -> Exec<()> = match insn.op0_register() {
        Register::CR0 => |cpu, value| write_cr0(cpu, cpu.owned_cr0(value)),
        Register::CR2 => |cpu, value| {
            cpu.state.cr2 = value;
            Ok(())
        },
        Register::CR3 => write_cr3,
        Register::CR4 => |cpu, value| write_cr4(cpu, cpu.owned_cr4(value)),
        Register::CR8 => write_cr8,
        _ => return Err(cpu.raise(Exception::ud())),
    };
    cpu.require_supervisor()?;
    change(cpu, value)
}

fn refuse(cpu: &mut Cpu) -> Exec<()> {
    Err(cpu.raise(Exception::gp(0)))
}

/// The page-directory-pointer table at `cr3`, refused with #GP(0) if a present entry has reserved
/// bits set, or if there is no memory.
fn read_pdptes(cpu: &mut Cpu, cr3: u64) -> Exec<[u64; 4]> {
    let mut entries = [0; 4];
    for (i, entry) in entries.iter_mut().enumerate() {
        let at = (cr3 & 0xffff_ffe0) + 8 * i as u64;
        let walk = Nested { write: false, fetch: false, walk: true, user: false, linear: 0 };
        let (at, _) = cpu.nested_address(at, walk).map_err(|exit| cpu.raise(exit))?;
        let at = satori_memory::Gpa(cpu.memory.addressed(at));
        match cpu.memory.read_u64(at) {
            Ok(found) if rules::cr3::pdpte(found, MAXPHYADDR) => *entry = found,
            _ => return Err(cpu.raise(Exception::gp(0))),
        }
    }
    Ok(entries)
}

fn write_cr0(cpu: &mut Cpu, value: u64) -> Exec<()> {
    let old = cpu.state.cr0;
    if (old ^ value) & rules::cr0::EXIST & !CR0_GUEST != 0 {
        cpu.ask(Exit::CrWrite { register: 0, value })?;
    }
    if !rules::cr0::legal(value) || !cpu.vmx_allows_cr0(value) {
        return refuse(cpu);
    }
    let value = rules::cr0::written(value);
    let around = rules::cr0::Around {
        cr4: cpu.state.cr4,
        efer: cpu.state.efer,
        code_long: cpu.state.seg[seg::CS].long(),
        // Types 1 and 3 are 16-bit TSSs.
        short_tss: matches!(cpu.state.tr.rights & 0xf, 1 | 3),
    };
    let Some(efer) = rules::cr0::paging(old, value, around) else { return refuse(cpu) };
    if (old ^ value) & CR0_PDPTE != 0 && Paging::select(value, cpu.state.cr4, efer) == Paging::Pae {
        cpu.state.pdpte = read_pdptes(cpu, cpu.state.cr3)?;
    }
    cpu.state.cr0 = value;
    cpu.state.efer = efer;
    if value & cr0::PE == 0 {
        // CPL is 0 in real-address mode, and stays so on the way back to protected mode.
        cpu.state.seg[seg::SS].rights &= !(3 << 5);
    }
    if (old ^ value) & (cr0::PG | cr0::WP | cr0::PE) != 0 {
        cpu.flush_tlb(false);
    }
    cpu.mode_changed();
    Ok(())
}

fn write_cr3(cpu: &mut Cpu, value: u64) -> Exec<()> {
    let (mut value, mut keep) = (value, false);
    if cpu.state.long_mode() {
        if cpu.state.cr4 & cr4::PCIDE != 0 {
            keep = value & rules::cr3::KEEP != 0;
            value &= !rules::cr3::KEEP;
        }
        if !rules::cr3::legal(value, MAXPHYADDR) {
            return refuse(cpu);
        }
    }
    load_cr3(cpu, value, keep)
}

/// Loads CR3, and with PAE paging the PDPTEs, or changes nothing: the part of MOV to CR3 that a
/// task switch does too. Outside long mode the register has 32 bits. With `keep`, translations of the
/// new address space need not go (SDM 4.10.4.1).
pub(super) fn load_cr3(cpu: &mut Cpu, value: u64, keep: bool) -> Exec<()> {
    let value = if cpu.state.long_mode() { value } else { value & 0xffff_ffff };
    if Paging::of(&cpu.state) == Paging::Pae {
        cpu.state.pdpte = read_pdptes(cpu, value)?;
    }
    cpu.state.cr3 = value;
    cpu.mmu.count_cr3_load();
    cpu.enter_space(keep);
    Ok(())
}

/// The bits of CR4 that change without an exit.
fn guest_cr4(cpu: &Cpu) -> u64 {
    CR4_GUEST & controls::cr4(|feature| cpu.isa.offered.has(feature))
}

fn write_cr4(cpu: &mut Cpu, value: u64) -> Exec<()> {
    let old = cpu.state.cr4;
    let changed = old ^ value;
    if changed & !guest_cr4(cpu) != 0 {
        cpu.ask(Exit::CrWrite { register: 4, value })?;
    }
    let around = rules::cr4::Around { cr3: cpu.state.cr3, long: cpu.state.long_mode() };
    if !rules::cr4::legal(old, value, CR4_BITS, around) || !cpu.vmx_allows_cr4(value) {
        return refuse(cpu);
    }
    if changed & CR4_PDPTE != 0 && Paging::select(cpu.state.cr0, value, cpu.state.efer) == Paging::Pae {
        cpu.state.pdpte = read_pdptes(cpu, cpu.state.cr3)?;
    }
    cpu.state.cr4 = value;
    if changed & CR4_TRANSLATION != 0 {
        cpu.flush_tlb(false);
    }
    cpu.mode_changed();
    Ok(())
}

fn write_cr8(cpu: &mut Cpu, value: u64) -> Exec<()> {
    if !cpu.controls.tpr_shadow {
        cpu.ask(Exit::CrWrite { register: 8, value })?;
    }
    if value > 15 {
        return refuse(cpu);
    }
    cpu.set_tpr((value as u8) << 4);
    Ok(())
}

fn clts(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    cpu.state.cr0 = cpu.owned_cr0(cpu.state.cr0 & !cr0::TS);
    cpu.mode_changed();
    Ok(())
}

fn lmsw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    let word = cpu.operand(insn, 0)?;
    // LMSW sets PE but does not clear it.
    let value = cpu.state.cr0 & !(MSW & !cr0::PE) | word & MSW;
    write_cr0(cpu, cpu.owned_cr0(value))
}

fn smsw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_no_umip()?;
    let value = cpu.seen_cr0();
    cpu.set_operand(insn, 0, value)
}

/// INVLPG takes an address without checking it: one that is not canonical does nothing.
fn invlpg(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    let segment = insn.memory_segment().number();
    let offset = cpu.offset(insn);
    let linear = if cpu.derived.code64 {
        let base = if segment >= seg::FS { cpu.state.seg[segment].base } else { 0 };
        base.wrapping_add(offset)
    } else {
        cpu.state.seg[segment].base.wrapping_add(offset) & 0xffff_ffff
    };
    if canonical(linear) {
        cpu.flush_page(linear);
    }
    Ok(())
}

fn invpcid(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_supervisor()?;
    let kind = cpu.reg(insn.op0_register());
    let linear = cpu.ea(insn, 1)?;
    let descriptor: u128 = cpu.read(linear)?;
    let (pcid, address) = (descriptor as u64, (descriptor >> 64) as u64);
    let pcids = cpu.state.cr4 & cr4::PCIDE != 0;
    let individual = kind <= 1;
    if kind > 3
        || pcid & !rules::cr3::PCID != 0
        || (individual && pcid != 0 && !pcids)
        || (kind == 0 && !canonical(address))
    {
        return refuse(cpu);
    }
    let space = cpu.mmu.space();
    let current = u64::from(space.pcid) == pcid;
    match kind {
        0 if current => cpu.flush_page(address),
        1 if current => cpu.enter_space(false),
        // More than the one page.
        0 | 1 => {
            cpu.forget_spaces(|other| other.world == space.world && u64::from(other.pcid) == pcid, false)
        }
        2 => cpu.flush_tlb(false),
        _ => cpu.flush_tlb(true),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_owned_bits_exist_and_the_fixed_one_is_nobodys() {
        assert_eq!(CR0_GUEST & !rules::cr0::EXIST, 0);
        assert_eq!(CR4_GUEST & !CR4_BITS, 0);
        assert_eq!(rules::cr0::EXIST & cr0::ET, 0);
        assert_eq!(CR4_BITS & cr4::LA57, 0);
    }
}
