//! From bytes to operations.

use iced_x86::{Code, DecoderError, FlowControl, Instruction, Mnemonic};

use super::fast;
use super::op::{Generic, Op, fall_through, generic, generic_last};
use crate::host::copy;
use crate::isa::{Isa, drop_override};

/// Bytes of a block at most; offsets are bytes.
const MAX_BYTES: usize = 240;
/// Bytes behind its first one that a block can cover.
pub(super) const MAX_REACH: u64 = MAX_BYTES as u64 + 14;
/// Instructions of a block at most.
pub(super) const MAX_INSTRUCTIONS: usize = 48;

/// Whether nothing may follow `insn` in its block: it branches, or it changes how the following
/// ones are fetched, translated or interrupted.
pub fn ends_block(insn: &Instruction) -> bool {
    use Mnemonic::*;
    if insn.flow_control() != FlowControl::Next || insn.is_invalid() {
        return true;
    }
    match insn.mnemonic() {
        Sti | Cli | Popf | Popfd | Popfq | Hlt | Invlpg | Invpcid | Wrmsr | Wbinvd | Wbnoinvd | Invd
        | Lmsw | Clts | Stac | Clac | Lidt | Lgdt | Lldt | Ltr | Swapgs | Wrfsbase | Wrgsbase | Pause
        | Vmcall | Vmmcall | Xsetbv | Cpuid | Rdmsr | In | Out | Insb | Insw | Insd | Outsb | Outsw
        | Outsd | Monitor | Mwait | Serialize | Lss | Lfs | Lgs | Lds | Les | Rsm | Wait => true,
        Mov => matches!(
            insn.code(),
            Code::Mov_cr_r32
                | Code::Mov_cr_r64
                | Code::Mov_dr_r32
                | Code::Mov_dr_r64
                | Code::Mov_Sreg_rm16
                | Code::Mov_Sreg_r32m16
                | Code::Mov_Sreg_r64m16
        ),
        Pop => insn.op0_register().is_segment_register(),
        // String instructions hand back to the loop after a bounded amount of work.
        _ => insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix()),
    }
}

/// Operations, and the generic instructions that some of them point to.
pub(super) type Decoded = (Box<[Op]>, Box<[Generic]>);

/// The block that consists of `insn` only.
pub(super) fn single(isa: &Isa, insn: Instruction) -> Decoded {
    let len = insn.len() as u8;
    let last = ends_block(&insn);
    let generics = [Generic { handler: isa.handler(&insn), insn }].into();
    let mut op = Op::new(if last { generic_last } else { generic }, 0, len);
    let generics: Box<[Generic]> = generics;
    op.imm = std::ptr::from_ref(&generics[0]) as u64;
    let mut ops = vec![op];
    if !last {
        let mut end = Op::new(fall_through, len, 0);
        end.count = 0;
        end.before = 1;
        ops.push(end);
    }
    (ops.into_boxed_slice(), generics)
}

/// Decodes the block at `offset` of the page at `host`. Nothing if its first instruction
/// reaches into the next page, or is too long.
pub(super) fn decode(isa: &Isa, host: *const u8, offset: usize, bits: u32) -> Option<Decoded> {
    let mut buffer = [0; MAX_BYTES + 15];
    let len = (4096 - offset).min(buffer.len());
    // SAFETY: blocks are decoded from pages of guest memory; `len` bytes are left of this one.
    unsafe { copy(host, offset, &mut buffer[..len]) };
    let mut decoder = isa.decoder(&buffer[..len], bits);
    let mut ops: Vec<Op> = Vec::with_capacity(8);
    let mut generics: Vec<(usize, Generic)> = Vec::new();
    let mut insn = Instruction::default();
    let mut done = false;
    while !done && decoder.position() < MAX_BYTES && ops.len() < MAX_INSTRUCTIONS {
        let at = decoder.position();
        decoder.decode_out(&mut insn);
        if decoder.last_error() == DecoderError::NoMoreBytes {
            if at == 0 {
                return None;
            }
            break;
        }
        if insn.is_invalid() && isa.too_long(&insn, &buffer[at..len], bits) {
            if at == 0 {
                return None;
            }
            break;
        }
        insn = isa.mended(insn, &buffer[at..len], bits);
        if bits == 64 {
            drop_override(&mut insn);
        }
        if bits == 64 && fast::fuse(ops.last_mut(), &insn) {
            done = true;
            continue;
        }
        let (at, len) = (at as u8, insn.len() as u8);
        let last = ends_block(&insn);
        if bits == 64
            && isa.exists(&insn)
            && let Some(op) = fast::select(&insn, at)
        {
            done = last;
            ops.push(op);
            continue;
        }
        generics.push((ops.len(), Generic { handler: isa.handler(&insn), insn }));
        ops.push(Op::new(if last { generic_last } else { generic }, at, len));
        done = last;
    }
    if !done {
        let end = ops.last().map_or(0, |op| op.offset + op.len);
        let mut op = Op::new(fall_through, end, 0);
        op.count = 0;
        ops.push(op);
    }
    let mut before = 0;
    for op in &mut ops {
        op.before = before;
        before += op.count;
    }
    let places: Vec<usize> = generics.iter().map(|(place, _)| *place).collect();
    let generics: Box<[Generic]> = generics.into_iter().map(|(_, generic)| generic).collect();
    for (place, generic) in places.into_iter().zip(&generics) {
        ops[place].imm = std::ptr::from_ref(generic) as u64;
    }
    Some((ops.into_boxed_slice(), generics))
}
