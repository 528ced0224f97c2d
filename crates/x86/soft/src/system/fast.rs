//! Fast system calls and the FS and GS bases (SDM 5.8.7, 5.8.8).

use iced_x86::{Instruction, Register};
use satori_cpuid::Vendor;
use satori_defs::x86::{cr0, cr4, efer, rflags};
use satori_engine::Exception;
use satori_state::{Segment, reg, seg};

use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::mmu::canonical;
use crate::operands::truncate;

/// Flat 64-bit code, DPL 0, accessed.
pub const CODE64: u32 = 0xa09b;
/// Flat 32-bit code, DPL 0, accessed.
const CODE32: u32 = 0xc09b;
/// Flat writable data, DPL 0, accessed.
pub const DATA: u32 = 0xc093;
/// Descriptor privilege level 3, in rights.
pub const DPL3: u32 = 3 << 5;
/// RFLAGS that SYSRET takes from R11 (SDM volume 2, SYSRET).
pub const SYSRET_FLAGS: u64 = 0x3c_7fd7;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Syscall => syscall,
    Sysret => |cpu, _| sysret(cpu, false),
    Sysretq => |cpu, _| sysret(cpu, true),
    Sysenter => sysenter,
    Sysexit => |cpu, _| sysexit(cpu, false),
    Sysexitq => |cpu, _| sysexit(cpu, true),
    Swapgs => swapgs,
    Rdfsbase => |cpu, insn| read_base(cpu, insn, seg::FS),
    Rdgsbase => |cpu, insn| read_base(cpu, insn, seg::GS),
    Wrfsbase => |cpu, insn| write_base(cpu, insn, seg::FS),
    Wrgsbase => |cpu, insn| write_base(cpu, insn, seg::GS),
});

/// Sets CS and SS to flat segments, and RFLAGS.
fn enter(cpu: &mut Cpu, cs: Segment, ss: Segment, flags: u64) {
    cpu.state.seg[seg::CS] = cs;
    cpu.state.seg[seg::SS] = ss;
    cpu.set_rflags(flags);
}

/// Whether the guest was told that this is AMD's processor, whose SYSCALL and SYSENTER differ.
fn amd(cpu: &Cpu) -> bool {
    cpu.isa.offered.vendor == Vendor::Amd
}

/// SYSCALL is #UD while it is off; Intel has it in 64-bit mode only.
fn syscall(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if cpu.state.efer & efer::SCE == 0 || !(cpu.derived.code64 || amd(cpu)) {
        return Err(cpu.raise(Exception::ud()));
    }
    let flags = cpu.rflags() & !rflags::RF;
    let selector = (cpu.state.star >> 32) as u16 & 0xfffc;
    let (code64, long) = (cpu.derived.code64, cpu.state.long_mode());
    cpu.state.gpr[reg::RCX] = cpu.next_ip(insn);
    let (rights, flags) = if long {
        cpu.state.gpr[reg::R11] = flags;
        (CODE64, flags & !cpu.state.fmask)
    } else {
        (CODE32, flags & !(rflags::VM | rflags::IF))
    };
    let (cs, ss) = (Segment::flat(selector, rights), Segment::flat(selector.wrapping_add(8), DATA));
    enter(cpu, cs, ss, flags);
    // AMD's legacy target is the low half of IA32_STAR, that of compatibility mode IA32_CSTAR
    // (APM volume 2, 6.1.1).
    cpu.next_rip = match (long, code64) {
        (false, _) => truncate(cpu.state.star, 32),
        (true, false) => cpu.state.cstar,
        (true, true) => cpu.state.lstar,
    };
    Ok(())
}

/// SYSRET. On Intel it is #UD outside 64-bit mode, and a non-canonical RCX faults before the
/// return, at privilege level 0; AMD returns, and the fetch at privilege level 3 faults.
fn sysret(cpu: &mut Cpu, wide: bool) -> Exec<()> {
    let amd = amd(cpu);
    if cpu.state.efer & efer::SCE == 0 || !(cpu.derived.code64 || amd) {
        return Err(cpu.raise(Exception::ud()));
    }
    let rcx = cpu.state.gpr[reg::RCX];
    if cpu.state.cr0 & cr0::PE == 0 || cpu.cpl() != 0 || (wide && !amd && !canonical(rcx)) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    if cpu.state.gpr[reg::R11] & rflags::TF != 0 {
        // Its single step comes right behind it.
        cpu.execute_alone()?;
    }
    let selector = (cpu.state.star >> 48) as u16;
    let (cs, rights) = if wide { (selector.wrapping_add(16), CODE64) } else { (selector, CODE32) };
    let stack = selector.wrapping_add(8);
    let ss = if amd {
        // AMD leaves what is hidden as it is (APM volume 3, SYSRET); only the privilege, which is
        // kept with it here, changes.
        let old = cpu.state.seg[seg::SS];
        Segment { selector: stack, rights: old.rights | DPL3, ..old }
    } else {
        Segment::flat(stack | 3, DATA | DPL3)
    };
    let flags = if cpu.state.long_mode() {
        cpu.state.gpr[reg::R11] & SYSRET_FLAGS
    } else {
        cpu.rflags() & !rflags::RF | rflags::IF
    };
    enter(cpu, Segment::flat(cs | 3, rights | DPL3), ss, flags);
    cpu.next_rip = if wide { rcx } else { truncate(rcx, 32) };
    if wide && !canonical(rcx) {
        cpu.arrive_and_fault(rcx);
        return Err(cpu.raise(Exception::gp(0)));
    }
    Ok(())
}

/// AMD has SYSENTER and SYSEXIT in legacy mode only (APM volume 3).
fn require_sysenter(cpu: &mut Cpu) -> Exec<()> {
    if amd(cpu) && cpu.state.long_mode() { Err(cpu.raise(Exception::ud())) } else { Ok(()) }
}

fn sysenter(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    require_sysenter(cpu)?;
    let selector = cpu.state.sysenter_cs as u16 & 0xfffc;
    if cpu.state.cr0 & cr0::PE == 0 || selector == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let (rights, bits) = if cpu.state.long_mode() { (CODE64, 64) } else { (CODE32, 32) };
    enter(
        cpu,
        Segment::flat(selector, rights),
        Segment::flat(selector.wrapping_add(8), DATA),
        cpu.rflags() & !(rflags::VM | rflags::IF | rflags::RF),
    );
    cpu.state.gpr[reg::RSP] = truncate(cpu.state.sysenter_esp, bits);
    cpu.next_rip = truncate(cpu.state.sysenter_eip, bits);
    Ok(())
}

fn sysexit(cpu: &mut Cpu, wide: bool) -> Exec<()> {
    // Privilege is looked at first, where the vendor does not have it too.
    if cpu.cpl() != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    require_sysenter(cpu)?;
    let selector = cpu.state.sysenter_cs as u16;
    if cpu.state.cr0 & cr0::PE == 0 || selector & 0xfffc == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let (rsp, rip) = (cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::RDX]);
    if wide && !(canonical(rsp) && canonical(rip)) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let (offset, rights, bits) = if wide { (32, CODE64, 64) } else { (16, CODE32, 32) };
    let cs = selector.wrapping_add(offset) | 3;
    enter(
        cpu,
        Segment::flat(cs, rights | DPL3),
        Segment::flat(cs.wrapping_add(8), DATA | DPL3),
        cpu.rflags() & !rflags::RF,
    );
    cpu.state.gpr[reg::RSP] = truncate(rsp, bits);
    cpu.next_rip = truncate(rip, bits);
    Ok(())
}

fn swapgs(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    if !cpu.derived.code64 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.require_supervisor()?;
    std::mem::swap(&mut cpu.state.seg[seg::GS].base, &mut cpu.state.kernel_gs_base);
    cpu.mode_changed();
    Ok(())
}

fn require_fsgsbase(cpu: &mut Cpu) -> Exec<()> {
    if !cpu.derived.code64 || cpu.state.cr4 & cr4::FSGSBASE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    Ok(())
}

fn read_base(cpu: &mut Cpu, insn: &Instruction, segment: usize) -> Exec<()> {
    require_fsgsbase(cpu)?;
    let register: Register = insn.op0_register();
    cpu.set_reg(register, cpu.state.seg[segment].base);
    Ok(())
}

fn write_base(cpu: &mut Cpu, insn: &Instruction, segment: usize) -> Exec<()> {
    require_fsgsbase(cpu)?;
    let base = cpu.reg(insn.op0_register());
    if !canonical(base) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.state.seg[segment].base = base;
    cpu.mode_changed();
    Ok(())
}
