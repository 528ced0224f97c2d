//! From bytes to operations.

use iced_x86::{Code, DecoderError, FlowControl, Instruction, Mnemonic};

use super::Block;
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

/// What a block is made of: its operations, the generic instructions that some of them point to, and the places of those. It is
/// used for one block after the other.
#[derive(Default)]
pub(super) struct Decoded {
    ops: Vec<Op>,
    generics: Vec<Generic>,
    places: Vec<u8>,
    bytes: Vec<u8>,
}

/// Takes all out of `from`, into `to` where that has as many places.
fn settle<T>(from: &mut Vec<T>, to: &mut Box<[T]>) {
    if from.len() == to.len() {
        to.iter_mut().zip(from.drain(..)).for_each(|(to, from)| *to = from);
    } else {
        *to = from.drain(..).collect();
    }
}

impl Decoded {
    fn clear(&mut self) {
        self.ops.clear();
        self.generics.clear();
        self.places.clear();
        self.bytes.clear();
    }

    /// Instructions in it.
    pub(super) fn instructions(&self) -> u32 {
        self.ops.iter().map(|op| u32::from(op.count)).sum()
    }

    /// Bytes of it.
    pub(super) fn len(&self) -> u8 {
        self.ops.last().map_or(0, |op| op.offset + op.len)
    }

    /// Puts all of it into `block`, whose own contents go.
    pub(super) fn put(&mut self, block: &mut Block) {
        (block.instructions, block.len) = (self.instructions(), self.len());
        settle(&mut self.generics, &mut block.generics);
        settle(&mut self.bytes, &mut block.bytes);
        for (place, generic) in self.places.drain(..).zip(&block.generics) {
            self.ops[usize::from(place)].imm = std::ptr::from_ref(generic) as u64;
        }
        settle(&mut self.ops, &mut block.ops);
    }
}

/// The block that consists of `insn` only, whose `bytes` these are.
pub(super) fn single(isa: &Isa, insn: Instruction, bytes: &[u8], decoded: &mut Decoded) {
    let len = insn.len() as u8;
    let last = ends_block(&insn);
    decoded.clear();
    decoded.bytes.extend(bytes);
    decoded.generics.push(Generic { handler: isa.handler(&insn), insn });
    decoded.places.push(0);
    decoded.ops.push(Op::new(if last { generic_last } else { generic }, 0, len));
    if !last {
        let mut end = Op::new(fall_through, len, 0);
        end.count = 0;
        end.before = 1;
        decoded.ops.push(end);
    }
}

/// Decodes the block at `offset` of the page at `host`; false if its first instruction
/// reaches into the next page, or is too long.
pub(super) fn decode(isa: &Isa, host: *const u8, offset: usize, bits: u32, decoded: &mut Decoded) -> bool {
    let mut buffer = [0; MAX_BYTES + 15];
    let len = (4096 - offset).min(buffer.len());
    // SAFETY: blocks are decoded from pages of guest memory; `len` bytes are left of this one.
    unsafe { copy(host, offset, &mut buffer[..len]) };
    let mut decoder = isa.decoder(&buffer[..len], bits);
    decoded.clear();
    let Decoded { ops, generics, places, bytes } = decoded;
    let mut insn = Instruction::default();
    let mut done = false;
    while !done && decoder.position() < MAX_BYTES && ops.len() < MAX_INSTRUCTIONS {
        let at = decoder.position();
        decoder.decode_out(&mut insn);
        if decoder.last_error() == DecoderError::NoMoreBytes {
            if at == 0 {
                return false;
            }
            break;
        }
        if insn.is_invalid() && isa.too_long(&insn, &buffer[at..len], bits) {
            if at == 0 {
                return false;
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
        generics.push(Generic { handler: isa.handler(&insn), insn });
        places.push(ops.len() as u8);
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
    for op in &mut *ops {
        op.before = before;
        before += op.count;
    }
    let end = ops.last().map_or(0, |op| op.offset + op.len);
    bytes.extend(&buffer[..usize::from(end)]);
    true
}
