//! Cases: an instruction, and state that makes it do something.

use iced_x86::{Decoder, Instruction, Mnemonic, OpKind, Register};
use satori_defs::fpu::{fcw, fsw, mxcsr};
use satori_defs::x86::rflags;
use satori_state::reg;

use crate::case::{Case, Fpu, PATCHES};
use crate::forms::{Forms, decode};
use crate::host;
use crate::layout::{LINE, PAGE, line_at, page};
use crate::numbers::Numbers;

/// Makes cases of one code size.
pub struct Generator {
    bits: u32,
    seed: u64,
    forms: Forms,
    pure: bool,
}

impl Generator {
    /// Cases of `bits` from `seed`; of some instructions only unless `only` is empty.
    pub fn new(bits: u32, seed: u64, only: &str) -> Self {
        Generator { bits, seed, forms: Forms::new(bits, only), pure: !only.is_empty() }
    }

    /// The instructions.
    pub fn forms(&self) -> &Forms {
        &self.forms
    }

    /// Case number `index`, always the same one, and its instruction.
    pub fn case(&self, index: u64) -> (Case, Instruction) {
        let mut numbers = Numbers::new(self.seed, index);
        let numbers = &mut numbers;
        let mut case = Case::new(self.bits);
        let bytes = self.forms.bytes(numbers, self.bits, self.pure);
        let len = decode(&bytes, self.bits, 0).len().clamp(1, 15);
        case.set_code(&bytes[..len.min(bytes.len())]);
        case.at = place_code(numbers, case.code_len.into());
        registers(numbers, &mut case);
        case.fpu = fpu(numbers);
        for half in &mut case.ymm_high {
            *half = numbers.vector();
        }
        case.make_possible();
        steer_constants(numbers, &mut case);
        let insn = decode(case.code(), self.bits, case.at);
        steer(numbers, &mut case, &insn);
        patch_more(numbers, &mut case);
        (case, insn)
    }
}

/// Somewhere in the code pages; often at the end of one, so that fetching goes on in the next.
fn place_code(numbers: &mut Numbers, len: u64) -> u64 {
    match numbers.below(16) {
        // Ends with the last executable byte: before nothing, and before data.
        0 => page(9) - len,
        1 => page(11) - len,
        // Crosses into what cannot be executed.
        2 => page(numbers.pick(&[9, 11])) - numbers.below(len.max(1)) - 1,
        // Crosses from one page into the next.
        3 => page(8) - numbers.below(len + 1),
        _ => page(numbers.pick(&[7, 8, 10])) + numbers.below(PAGE - 16),
    }
}

fn registers(numbers: &mut Numbers, case: &mut Case) {
    for register in &mut case.gpr {
        *register = if numbers.one_in(4) { numbers.place(8) } else { numbers.edgy() };
    }
    case.gpr[reg::RSP] = if numbers.one_in(4) { numbers.place(8) } else { numbers.writable() & !7 };
    case.rflags = numbers.any() & rflags::STATUS;
    if numbers.one_in(4) {
        case.rflags |= rflags::DF;
    }
    if numbers.one_in(12) {
        case.rflags |= rflags::AC;
    }
    if case.bits == 64 {
        case.fs_base = base(numbers);
        case.gs_base = base(numbers);
    } else {
        for register in &mut case.gpr {
            *register &= 0xffff_ffff;
        }
    }
}

/// A segment base, which the kernel takes only if it is in the lower half.
fn base(numbers: &mut Numbers) -> u64 {
    match numbers.below(4) {
        0 => 0,
        1 => numbers.writable(),
        2 => numbers.below(0x8000_0000),
        _ => numbers.any() & 0x7fff_ffff_ffff,
    }
}

fn fpu(numbers: &mut Numbers) -> Fpu {
    let mut fpu = Fpu::default();
    for register in &mut fpu.xmm {
        *register = numbers.vector();
    }
    for register in &mut fpu.st {
        *register = numbers.extended();
    }
    let masks = if numbers.one_in(3) { numbers.any() as u16 & fcw::MASKS } else { fcw::MASKS };
    let pending = numbers.one_in(16);
    let allowed = if pending { fsw::FLAGS } else { masks };
    fpu.fcw = numbers.any() as u16 & fcw::WRITABLE & !fcw::MASKS | masks | fcw::FIXED;
    fpu.fsw = numbers.any() as u16 & !(fsw::FLAGS | fsw::ES | fsw::B) | numbers.any() as u16 & allowed;
    fpu.ftw = match numbers.below(4) {
        0 => numbers.any() as u16 & 0xff,
        1 => 0,
        _ => 0xff,
    };
    fpu.fop = numbers.any() as u16 & 0x7ff;
    fpu.fip = numbers.any() & 0x7fff_ffff_ffff;
    fpu.fdp = numbers.any() & 0x7fff_ffff_ffff;
    let control = numbers.any() as u32 & mxcsr::MASK;
    fpu.mxcsr = if numbers.one_in(4) { control } else { control | mxcsr::MASKS };
    fpu
}

/// What writes the bytes at RDI that a register selects.
pub(crate) const MASKMOV: [Mnemonic; 3] = [Mnemonic::Maskmovq, Mnemonic::Maskmovdqu, Mnemonic::Vmaskmovdqu];

/// Changes displacements and branch offsets that are part of the instruction.
fn steer_constants(numbers: &mut Numbers, case: &mut Case) {
    let mut bytes = case.code;
    let len = case.code_len as usize;
    let mut decoder = Decoder::with_ip(case.bits, &bytes[..len], case.at, host::decoder_options());
    let insn = decoder.decode();
    if insn.is_invalid() {
        return;
    }
    let offsets = decoder.get_constant_offsets(&insn);
    let next = case.at.wrapping_add(len as u64);
    let near = matches!(insn.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
    let mut put = |at: usize, size: usize, value: u64| {
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    if near && offsets.has_immediate() && numbers.below(8) != 0 {
        let target = page(numbers.pick(&[7, 8, 10, 10, 9, 5, 11])) + numbers.below(PAGE);
        put(offsets.immediate_offset(), offsets.immediate_size(), target.wrapping_sub(next));
    }
    let direct = insn.memory_base() == Register::None || insn.is_ip_rel_memory_operand();
    if offsets.has_displacement() && direct && offsets.displacement_size() >= 4 && numbers.below(8) != 0 {
        let target = numbers.place(align_of_operand(&insn));
        let from = if insn.is_ip_rel_memory_operand() { next } else { 0 };
        put(offsets.displacement_offset(), offsets.displacement_size(), target.wrapping_sub(from));
    }
    case.code = bytes;
}

fn align_of_operand(insn: &Instruction) -> u64 {
    (insn.memory_size().size().next_power_of_two() as u64).clamp(1, 64)
}

/// Chooses registers so that the instruction reaches memory, and fills what it reaches.
fn steer(numbers: &mut Numbers, case: &mut Case, insn: &Instruction) {
    if insn.is_invalid() {
        return;
    }
    if insn.is_stack_instruction() && matches!(insn.mnemonic(), Mnemonic::Enter | Mnemonic::Leave) {
        set(case, Register::RBP, numbers.place(8));
    }
    if insn.is_string_instruction() || MASKMOV.contains(&insn.mnemonic()) {
        set(case, Register::RSI, numbers.place(8));
        set(case, Register::RDI, numbers.place(8));
        let count = if numbers.one_in(8) { numbers.below(0x3000) } else { numbers.below(40) };
        // With an address size of 32 bits the upper half does not count.
        let above = if case.bits == 64 && numbers.one_in(2) { numbers.any() << 32 } else { 0 };
        let narrow = (0..insn.op_count()).any(|op| {
            matches!(insn.op_kind(op), OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI)
        });
        case.gpr[reg::RCX] = if narrow { count | above } else { count };
        for register in [Register::RSI, Register::RDI] {
            fill(numbers, case, value(case, register));
        }
    }
    if insn.mnemonic() == Mnemonic::Xlatb {
        set(case, Register::RBX, numbers.place(1));
    }
    if masks_memory(insn) && numbers.below(4) != 0 {
        steer_masks(numbers, case, insn);
    }
    if (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory) {
        steer_memory(numbers, case, insn);
    }
    if insn.is_stack_instruction() {
        fill_stack(numbers, case);
    }
    if matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) && numbers.one_in(2) {
        // Quotients fit more often with a small dividend.
        case.gpr[reg::RDX] = numbers.pick(&[0, 0, u64::MAX]);
    }
    if numbers.one_in(4) {
        // Indirect branches find code.
        for op in 0..insn.op_count() {
            let branch = !matches!(insn.flow_control(), iced_x86::FlowControl::Next);
            if branch && insn.op_kind(op) == OpKind::Register && insn.op_register(op).is_gpr() {
                set(case, insn.op_register(op), code_address(numbers));
            }
        }
    }
    if case.bits == 32 {
        for register in &mut case.gpr {
            *register &= 0xffff_ffff;
        }
    }
}

/// Whether some elements of the memory operand may be left alone: VMASKMOV and VGATHER.
pub(crate) fn masks_memory(insn: &Instruction) -> bool {
    use Mnemonic::{Vmaskmovpd, Vmaskmovps, Vpmaskmovd, Vpmaskmovq};
    insn.is_vsib() || matches!(insn.mnemonic(), Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq)
}

/// Some elements on and some off, and indices that stay near each other.
fn steer_masks(numbers: &mut Numbers, case: &mut Case, insn: &Instruction) {
    let mask = if insn.is_vsib() { insn.op2_register() } else { insn.op1_register() };
    let wide = insn.is_vsib64() || numbers.one_in(4);
    let bits: u32 = if wide { 64 } else { 32 };
    let mut put = |register: Register, element: &mut dyn FnMut() -> u64| {
        let place = register.number() & 15;
        for half in [&mut case.fpu.xmm[place], &mut case.ymm_high[place]] {
            *half = (0..128 / bits)
                .fold(0, |half, i| half | u128::from(element() & u64::MAX >> (64 - bits)) << (i * bits));
        }
    };
    let likely = numbers.below(5);
    put(mask, &mut || if numbers.below(4) < likely { u64::MAX << (numbers.below(bits.into())) } else { 0 });
    if insn.is_vsib() {
        let spread = numbers.pick(&[4, 16, 16, 300, 5000]);
        put(insn.memory_index(), &mut || numbers.below(2 * spread).wrapping_sub(spread));
    }
}

fn code_address(numbers: &mut Numbers) -> u64 {
    page(numbers.pick(&[7, 8, 10])) + numbers.below(PAGE)
}

fn steer_memory(numbers: &mut Numbers, case: &mut Case, insn: &Instruction) {
    let target = numbers.place(align_of_operand(insn));
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let bit_string = matches!(insn.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
        && insn.op1_kind() == OpKind::Register;
    if bit_string && numbers.below(8) != 0 {
        set(case, insn.op1_register(), numbers.below(0x4000).wrapping_sub(0x2000));
    }
    if !insn.is_ip_rel_memory_operand() && base != Register::None && numbers.below(12) != 0 {
        let scaled = if index.is_gpr() {
            value(case, index).wrapping_mul(insn.memory_index_scale().into())
        } else {
            0
        };
        let segment = match insn.memory_segment() {
            Register::FS => case.fs_base,
            Register::GS => case.gs_base,
            _ => 0,
        };
        let wanted =
            target.wrapping_sub(insn.memory_displacement64()).wrapping_sub(scaled).wrapping_sub(segment);
        let above =
            if base.size() == 4 && case.bits == 64 && numbers.one_in(2) { numbers.any() << 32 } else { 0 };
        let wanted = if base.size() == 4 { wanted & 0xffff_ffff | above } else { wanted };
        set(case, base.full_register(), wanted);
    }
    fill(numbers, case, effective(case, insn));
}

/// The linear address of the memory operand.
pub(crate) fn effective(case: &Case, insn: &Instruction) -> u64 {
    insn.virtual_address(
        (0..insn.op_count()).find(|op| insn.op_kind(*op) == OpKind::Memory).unwrap_or(0),
        0,
        |register, _, _| match register {
            Register::FS => Some(case.fs_base),
            Register::GS => Some(case.gs_base),
            r if r.is_segment_register() => Some(0),
            r => Some(value(case, r)),
        },
    )
    .unwrap_or(0)
}

fn value(case: &Case, register: Register) -> u64 {
    if !register.is_gpr() {
        return 0;
    }
    let whole = case.gpr[register.full_register().number() & 15];
    match register.size() {
        1 => whole & 0xff,
        2 => whole & 0xffff,
        4 => whole & 0xffff_ffff,
        _ => whole,
    }
}

fn set(case: &mut Case, register: Register, value: u64) {
    case.gpr[register.full_register().number() & 15] = value;
}

/// Puts what instructions like at `address`.
fn fill(numbers: &mut Numbers, case: &mut Case, address: u64) {
    for at in [address, address.wrapping_add(LINE as u64)] {
        let Some(line) = line_at(at) else { continue };
        let mut bytes = [0; LINE];
        // Values begin where the operand does.
        let start = address as usize & (LINE - 1);
        let kind = numbers.below(4);
        for (i, chunk) in bytes.chunks_exact_mut(16).enumerate() {
            let value = match kind {
                0 => u128::from(numbers.edgy()) | u128::from(numbers.edgy()) << 64,
                1 => numbers.extended(),
                2 if i == 0 => u128::from(numbers.pick(&[0x2b_u64, 0x23, 0x33, 0, 3])) << 64,
                2 => u128::from(code_address(numbers)),
                _ => numbers.vector(),
            };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        bytes.rotate_right(start);
        case.patch(line, bytes);
    }
}

/// Return addresses, selectors and flags where they are popped from.
fn fill_stack(numbers: &mut Numbers, case: &mut Case) {
    let stack = case.gpr[reg::RSP];
    let Some(line) = line_at(stack) else { return };
    if stack & 7 != 0 || numbers.one_in(3) {
        return;
    }
    let mut bytes = [0; LINE];
    let slot = numbers.pick(&[8, 8, 4]);
    let start = stack as usize & (LINE - 1);
    for (i, chunk) in bytes[start..].chunks_exact_mut(slot).enumerate() {
        let value = match i {
            0 if numbers.below(3) != 0 => code_address(numbers),
            1 => numbers.pick(&[0x33, 0x33, 0x23, 0x2b, 0x10, 0, 0x30]),
            2 => numbers.any() & 0x25_4fff,
            3 => numbers.place(8),
            4 => numbers.pick(&[0x2b, 0x2b, 0x23, 0, 0x33]),
            _ => numbers.edgy(),
        };
        chunk.copy_from_slice(&value.to_le_bytes()[..slot]);
    }
    case.patch(line, bytes);
}

fn patch_more(numbers: &mut Numbers, case: &mut Case) {
    if case.patches < PATCHES as u32 && numbers.one_in(4) {
        let address = numbers.writable();
        fill(numbers, case, address);
    }
}
