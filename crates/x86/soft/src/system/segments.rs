//! Loading segment registers (SDM 3.4.2 to 5.4), and the instructions that do it.

use iced_x86::{Instruction, Register};
use satori_defs::x86::{cr0, rflags, vector};
use satori_engine::Exception;
use satori_rules::segment;
use satori_state::{Segment, seg};

use super::descriptor::{null, rpl, selector_fault, unusable};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, is_register, rows};

/// Access rights of a data segment in real-address mode.
const PARAGRAPH_RIGHTS: u32 = 0x93;

impl Cpu {
    /// Real-address or virtual-8086 mode: selectors are paragraphs.
    pub(crate) fn paragraph_selectors(&self) -> bool {
        self.state.cr0 & cr0::PE == 0 || self.state.rflags & rflags::VM != 0
    }

    /// What data segment register `index` holds after a load with `selector`, with all checks of
    /// MOV to a segment register. The descriptor's accessed bit is set; the register is not.
    pub(super) fn segment_for(&mut self, index: usize, selector: u16) -> Exec<Segment> {
        if self.paragraph_selectors() {
            let mut segment = self.state.seg[index];
            if segment.unusable() {
                // Nothing of it can be kept: what a reset leaves.
                segment = Segment { rights: PARAGRAPH_RIGHTS, limit: 0xffff, ..segment };
            }
            return Ok(Segment { selector, base: u64::from(selector) << 4, ..segment });
        }
        if index == seg::SS {
            return self.stack_segment_for(selector);
        }
        if null(selector) {
            return Ok(unusable(selector, 0));
        }
        let mut found = self.require_descriptor(selector, vector::GP, 0)?;
        let descriptor = found.descriptor;
        if !segment::data(descriptor.rights(), self.cpl(), rpl(selector)) {
            return Err(self.raise(selector_fault(vector::GP, selector, 0)));
        }
        if !descriptor.present() {
            return Err(self.raise(selector_fault(vector::NP, selector, 0)));
        }
        self.mark_accessed(&mut found)?;
        Ok(found.descriptor.segment(selector, 0))
    }

    fn stack_segment_for(&mut self, selector: u16) -> Exec<Segment> {
        let cpl = self.cpl();
        if null(selector) {
            if self.derived.code64 && cpl < 3 && rpl(selector) == cpl {
                return Ok(unusable(selector, cpl));
            }
            return Err(self.raise(Exception::gp(0)));
        }
        self.outer_stack_segment(selector, cpl, vector::GP)
    }

    /// A stack segment for code at privilege level `cpl`: for SS loads and for returns.
    pub(super) fn outer_stack_segment(&mut self, selector: u16, cpl: u8, vector: u8) -> Exec<Segment> {
        let mut found = self.require_descriptor(selector, vector, 0)?;
        let descriptor = found.descriptor;
        if !segment::stack(descriptor.rights(), cpl, rpl(selector)) {
            return Err(self.raise(selector_fault(vector, selector, 0)));
        }
        if !descriptor.present() {
            return Err(self.raise(selector_fault(vector::SS, selector, 0)));
        }
        self.mark_accessed(&mut found)?;
        Ok(found.descriptor.segment(selector, 0))
    }

    /// Puts `segment` into register `index`.
    fn commit_segment(&mut self, index: usize, segment: Segment) {
        self.state.seg[index] = segment;
        self.mode_changed();
    }

    /// Interrupts wait for one more instruction, after a load of SS or STI.
    pub(super) fn shadow_interrupts(&mut self) {
        self.state.interrupt_shadow = true;
        self.windows.attention = true;
    }
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Mov if is_register(insn, 0, Register::is_segment_register) => mov_to,
    Mov if is_register(insn, 1, Register::is_segment_register) => mov_from,
    Pop if is_register(insn, 0, Register::is_segment_register) => pop,
    Lds => |cpu, insn| load_far(cpu, insn, seg::DS),
    Les => |cpu, insn| load_far(cpu, insn, seg::ES),
    Lss => |cpu, insn| load_far(cpu, insn, seg::SS),
    Lfs => |cpu, insn| load_far(cpu, insn, seg::FS),
    Lgs => |cpu, insn| load_far(cpu, insn, seg::GS),
});

fn mov_to(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let register = insn.op0_register();
    if register == Register::CS {
        return Err(cpu.raise(Exception::ud()));
    }
    let selector = cpu.operand(insn, 1)? as u16;
    let segment = cpu.segment_for(register.number(), selector)?;
    cpu.commit_segment(register.number(), segment);
    if register == Register::SS {
        cpu.shadow_interrupts();
        // Debug exceptions wait too; after LSS nothing does (SDM 6.8.3).
        cpu.state.ss_shadow = true;
    }
    Ok(())
}

fn mov_from(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let selector = cpu.operand(insn, 1)?;
    cpu.set_operand(insn, 0, selector)
}

fn pop(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let register = insn.op0_register();
    let size = insn.stack_pointer_increment().unsigned_abs();
    let selector = cpu.peek(0, size)? as u16;
    let segment = cpu.segment_for(register.number(), selector)?;
    let (sp, mask) = cpu.stack_pointer();
    cpu.set_stack_pointer(sp.wrapping_add(size.into()) & mask);
    cpu.commit_segment(register.number(), segment);
    if register == Register::SS {
        cpu.shadow_interrupts();
        cpu.state.ss_shadow = true;
    }
    Ok(())
}

/// LDS, LES, LFS, LGS and LSS: a far pointer into a register and a segment register.
fn load_far(cpu: &mut Cpu, insn: &Instruction, index: usize) -> Exec<()> {
    let size = cpu.operand_size(insn, 0);
    let linear = cpu.ea_part(insn, 0, size.into(), false)?;
    let offset = cpu.read_sized(linear, size)?;
    let linear = cpu.ea_part(insn, size.into(), 2, false)?;
    let selector: u16 = cpu.read(linear)?;
    let segment = cpu.segment_for(index, selector)?;
    cpu.set_reg(insn.op0_register(), offset);
    cpu.commit_segment(index, segment);
    Ok(())
}
