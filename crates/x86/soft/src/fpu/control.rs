//! x87 control instructions: words, environments and whole states to and from memory.

use iced_x86::{Instruction, Register};
use satori_defs::fpu::{fcw, fsw};
use satori_defs::x86::{cr0, rflags, vector};
use satori_engine::Exception;
use satori_state::FpuState;

use super::stack::{REGISTER, abridge, init, set_top, set_words, tag_word};
use super::{available, check_pending};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::simd::{load_bytes, store_address, store_bytes};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(codes insn {
    Wait => wait,
    Fninit => fninit,
    Fnclex => fnclex,
    // Interrupt and protection control of the 8087 and 80287; later processors ignore them.
    Fneni | Fndisi | Fnsetpm => ignored,
    Fldcw_m2byte => fldcw,
    Fnstcw_m2byte => fnstcw,
    Fnstsw_m2byte => fnstsw,
    Fnstsw_AX => fnstsw_ax,
    Fnstenv_m14byte => fnstenv::<false>,
    Fnstenv_m28byte => fnstenv::<true>,
    Fldenv_m14byte => fldenv::<false>,
    Fldenv_m28byte => fldenv::<true>,
    Fnsave_m94byte => fnsave::<false>,
    Fnsave_m108byte => fnsave::<true>,
    Frstor_m94byte => frstor::<false>,
    Frstor_m108byte => frstor::<true>,
});

/// WAIT: CR0.EM does not matter to it, and CR0.TS only with CR0.MP.
fn wait(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    const BOTH: u64 = cr0::MP | cr0::TS;
    if cpu.state.cr0 & BOTH == BOTH {
        return Err(cpu.raise(Exception::new(vector::NM)));
    }
    check_pending(cpu)
}

fn fninit(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    init(&mut cpu.state.fpu);
    cpu.masks_loaded();
    Ok(())
}

fn fnclex(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    cpu.state.fpu.fsw &= !(fsw::FLAGS | fsw::SF | fsw::ES | fsw::B);
    Ok(())
}

fn ignored(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    available(cpu)
}

fn fldcw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    check_pending(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    let control = cpu.read(linear)?;
    let status = cpu.state.fpu.fsw;
    set_words(&mut cpu.state.fpu, control, status);
    cpu.masks_loaded();
    Ok(())
}

fn fnstcw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    cpu.write(linear, cpu.state.fpu.fcw)
}

fn fnstsw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    cpu.write(linear, cpu.state.fpu.fsw)
}

fn fnstsw_ax(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    cpu.set_reg(Register::AX, cpu.state.fpu.fsw.into());
    Ok(())
}

fn fnstenv<const WIDE: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    let environment = Environment::of(&cpu.state.fpu).bytes::<WIDE>(real(cpu));
    store_bytes(cpu, linear, &environment[..size::<WIDE>()])?;
    let fpu = &mut cpu.state.fpu;
    set_words(fpu, fpu.fcw | fcw::MASKS, fpu.fsw);
    cpu.masks_loaded();
    Ok(())
}

fn fldenv<const WIDE: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    check_pending(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    let mut bytes = [0; 28];
    load_bytes(cpu, linear, &mut bytes[..size::<WIDE>()])?;
    Environment::from::<WIDE>(&bytes, real(cpu)).load(&mut cpu.state.fpu);
    cpu.masks_loaded();
    Ok(())
}

fn fnsave<const WIDE: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    let mut bytes = [0; 28 + 80];
    let (head, size) = (size::<WIDE>(), size::<WIDE>() + 80);
    bytes[..28].copy_from_slice(&Environment::of(&cpu.state.fpu).bytes::<WIDE>(real(cpu)));
    for (slot, value) in bytes[head..size].chunks_exact_mut(10).zip(&cpu.state.fpu.st) {
        slot.copy_from_slice(&value.to_le_bytes()[..10]);
    }
    store_bytes(cpu, linear, &bytes[..size])?;
    init(&mut cpu.state.fpu);
    cpu.masks_loaded();
    Ok(())
}

fn frstor<const WIDE: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    available(cpu)?;
    check_pending(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    let mut bytes = [0; 28 + 80];
    let (head, size) = (size::<WIDE>(), size::<WIDE>() + 80);
    load_bytes(cpu, linear, &mut bytes[..size])?;
    let mut environment = [0; 28];
    environment[..head].copy_from_slice(&bytes[..head]);
    Environment::from::<WIDE>(&environment, real(cpu)).load(&mut cpu.state.fpu);
    for (slot, value) in bytes[head..size].chunks_exact(10).zip(&mut cpu.state.fpu.st) {
        let mut whole = [0; 16];
        whole[..10].copy_from_slice(slot);
        *value = u128::from_le_bytes(whole) & REGISTER;
    }
    cpu.masks_loaded();
    Ok(())
}

/// Bytes of an environment.
const fn size<const WIDE: bool>() -> usize {
    if WIDE { 28 } else { 14 }
}

/// Whether environments have their real-address-mode format.
fn real(cpu: &Cpu) -> bool {
    cpu.state.cr0 & cr0::PE == 0 || cpu.state.rflags & rflags::VM != 0
}

/// What FNSTENV stores (SDM volume 1, 8.1.10). The selectors are 0, as on processors that
/// deprecate FCS and FDS.
struct Environment {
    control: u16,
    status: u16,
    tags: u16,
    opcode: u16,
    instruction: u32,
    data: u32,
}

impl Environment {
    fn of(fpu: &FpuState) -> Self {
        Environment {
            control: fpu.fcw,
            status: fpu.fsw,
            tags: tag_word(fpu),
            opcode: fpu.fop & 0x7ff,
            instruction: fpu.fip as u32,
            data: fpu.fdp as u32,
        }
    }

    fn load(self, fpu: &mut FpuState) {
        set_top(fpu, usize::from((self.status & fsw::TOP) >> fsw::TOP_SHIFT));
        set_words(fpu, self.control, self.status);
        fpu.ftw = abridge(self.tags);
        fpu.fop = self.opcode;
        fpu.fip = self.instruction.into();
        fpu.fdp = self.data.into();
    }

    /// The seven fields, of 32 or 16 bits each.
    fn bytes<const WIDE: bool>(&self, real: bool) -> [u8; 28] {
        let opcode = u32::from(self.opcode);
        let (ip, dp) = (self.instruction, self.data);
        let [pointer_high, data_high] = match (real, WIDE) {
            (false, true) => [opcode << 16, 0xffff_0000],
            (false, false) => [0, 0],
            (true, true) => [ip >> 16 << 12 | opcode, dp >> 16 << 12],
            (true, false) => [(ip >> 16 & 0xf) << 12 | opcode, (dp >> 16 & 0xf) << 12],
        };
        let low = if WIDE && !real { u32::MAX } else { 0xffff };
        let word = |value: u16| if WIDE { 0xffff_0000 | u32::from(value) } else { value.into() };
        let fields = [
            word(self.control),
            word(self.status),
            word(self.tags),
            ip & low,
            pointer_high,
            dp & low,
            data_high,
        ];
        let mut bytes = [0; 28];
        for (i, field) in fields.into_iter().enumerate() {
            if WIDE {
                bytes[4 * i..4 * i + 4].copy_from_slice(&field.to_le_bytes());
            } else {
                bytes[2 * i..2 * i + 2].copy_from_slice(&(field as u16).to_le_bytes());
            }
        }
        bytes
    }

    fn from<const WIDE: bool>(bytes: &[u8; 28], real: bool) -> Self {
        let field = |i: usize| -> u32 {
            if WIDE {
                u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
            } else {
                u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).into()
            }
        };
        let (opcode, instruction, data) = match (real, WIDE) {
            (false, true) => (field(4) >> 16, field(3), field(5)),
            (false, false) => (0, field(3), field(5)),
            (true, _) => {
                (field(4), field(3) & 0xffff | field(4) >> 12 << 16, field(5) & 0xffff | field(6) >> 12 << 16)
            }
        };
        Environment {
            control: field(0) as u16,
            status: field(1) as u16,
            tags: field(2) as u16,
            opcode: opcode as u16 & 0x7ff,
            instruction,
            data,
        }
    }
}
