//! Instructions from the decoder's table, in all the ways they can be written down.

use std::collections::BTreeMap;

use iced_x86::{Code, Decoder, EncodingKind, Instruction, MandatoryPrefix, OpCodeInfo, OpCodeTableKind};

use crate::exclude;
use crate::exclusions::Exclusion;
use crate::host;
use crate::numbers::Numbers;

/// The instruction forms that are compared, and those that are not.
pub struct Forms {
    forms: Vec<&'static OpCodeInfo>,
    /// Forms that are not compared, by reason.
    pub excluded: BTreeMap<Exclusion, Vec<Code>>,
}

impl Forms {
    /// The forms that exist in code of `bits`, as far as their names contain `only`.
    pub fn new(bits: u32, only: &str) -> Self {
        let only = only.to_ascii_lowercase();
        let mut found = Forms { forms: Vec::new(), excluded: BTreeMap::new() };
        for code in Code::values() {
            let info = code.op_code();
            let named = format!("{code:?}").to_ascii_lowercase().contains(&only);
            // A form with FWAIT is two instructions.
            if !info.is_instruction() || !info.is_available_in_mode(bits) || info.fwait() || !named {
                continue;
            }
            let mut insn = Instruction::default();
            insn.set_code(code);
            match exclude::reason(&insn) {
                None => found.forms.push(info),
                Some(reason) => found.excluded.entry(reason).or_default().push(code),
            }
        }
        found
    }

    /// How many are compared.
    pub fn count(&self) -> usize {
        self.forms.len()
    }

    /// An instruction of one of the forms, or random bytes.
    pub fn bytes(&self, numbers: &mut Numbers, bits: u32, pure: bool) -> Vec<u8> {
        if !pure && numbers.one_in(12) {
            return (0..15).map(|_| numbers.any() as u8).collect();
        }
        let info = self.forms[numbers.below(self.forms.len() as u64) as usize];
        match info.encoding() {
            EncodingKind::VEX => vex(numbers, info),
            _ => legacy(numbers, info, bits),
        }
    }
}

/// Decodes the instruction that lies at `at`.
pub(crate) fn decode(bytes: &[u8], bits: u32, at: u64) -> Instruction {
    Decoder::with_ip(bits, bytes, at, host::decoder_options()).decode()
}

fn map(info: &OpCodeInfo) -> &'static [u8] {
    match info.table() {
        OpCodeTableKind::T0F => &[0x0f],
        OpCodeTableKind::T0F38 => &[0x0f, 0x38],
        OpCodeTableKind::T0F3A => &[0x0f, 0x3a],
        _ => &[],
    }
}

/// ModRM as the form wants it: memory or registers, and the fields that belong to the opcode.
/// Where an instruction has none, its immediate begins here.
fn modrm(numbers: &mut Numbers, info: &OpCodeInfo) -> u8 {
    let kinds = format!("{:?}", info.op_kinds());
    let memory_only = kinds.contains("mem") && !kinds.contains("or_mem");
    let registers_only = info.is_rm_group() || kinds.contains("_rm");
    let registers = registers_only || !memory_only && numbers.one_in(3);
    let mode = if registers != numbers.one_in(40) { 3 } else { numbers.below(3) as u8 };
    let mut modrm = mode << 6 | numbers.any() as u8 & 0x3f;
    if info.is_group() {
        modrm = modrm & 0xc7 | (info.group_index() as u8) << 3;
    }
    if info.is_rm_group() {
        modrm = modrm & 0xf8 | info.rm_group_index() as u8;
    }
    modrm
}

/// Bytes behind the opcode: ModRM, and what may be SIB, displacement or immediate.
fn rest(numbers: &mut Numbers, info: &OpCodeInfo, bytes: &mut Vec<u8>) {
    bytes.push(modrm(numbers, info));
    if numbers.one_in(2) {
        bytes.push(numbers.any() as u8);
    }
    let small = numbers.edgy().to_le_bytes();
    bytes.extend(small);
    bytes.extend(numbers.any().to_le_bytes());
    bytes.truncate(15);
}

fn legacy(numbers: &mut Numbers, info: &OpCodeInfo, bits: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    let word = info.operand_size() == 16;
    let other_size = numbers.one_in(24);
    if word != other_size || info.mandatory_prefix() == MandatoryPrefix::P66 {
        bytes.push(0x66);
    }
    match info.mandatory_prefix() {
        MandatoryPrefix::PF3 => bytes.push(0xf3),
        MandatoryPrefix::PF2 => bytes.push(0xf2),
        _ => {}
    }
    if (info.can_use_rep_prefix() || info.can_use_repne_prefix()) && numbers.one_in(2) {
        bytes.push(if info.can_use_repne_prefix() && numbers.one_in(2) { 0xf2 } else { 0xf3 });
    }
    if info.can_use_lock_prefix() && numbers.one_in(3) {
        bytes.push(0xf0);
    }
    let other_address = numbers.one_in(10);
    if (info.address_size() != 0 && info.address_size() != bits) != other_address {
        bytes.push(0x67);
    }
    if numbers.one_in(8) {
        bytes.push(numbers.pick(&[0x64, 0x65, 0x64, 0x65, 0x26, 0x2e, 0x36, 0x3e]));
    }
    while numbers.one_in(10) {
        bytes.push(numbers.pick(&[0x66, 0xf0, 0xf2, 0xf3, 0x67, 0x64, 0x65, 0x2e]));
    }
    if bytes.len() > 1 && numbers.one_in(3) {
        let other = numbers.below(bytes.len() as u64) as usize;
        bytes.swap(0, other);
    }
    if bits == 64 {
        let wide = info.operand_size() == 64 && !info.default_op_size64() && !info.force_op_size64();
        if wide != numbers.one_in(24) {
            bytes.push(0x48 | numbers.any() as u8 & 7);
        } else if numbers.one_in(2) {
            bytes.push(0x40 | numbers.any() as u8 & 7);
        }
        // A REX before another prefix counts for nothing.
        if numbers.one_in(60) {
            bytes.push(numbers.pick(&[0x66, 0x2e, 0x65]));
        }
    }
    bytes.extend(map(info));
    let opcode = info.op_code();
    if info.op_code_len() == 2 {
        bytes.push((opcode >> 8) as u8);
    }
    let in_opcode = format!("{:?}", info.op_kinds()).contains("_opcode");
    bytes.push(opcode as u8 | if in_opcode { numbers.any() as u8 & 7 } else { 0 });
    if info.op_code_len() == 1 {
        rest(numbers, info, &mut bytes);
    } else {
        bytes.extend(numbers.any().to_le_bytes());
    }
    bytes.truncate(15);
    bytes
}

fn vex(numbers: &mut Numbers, info: &OpCodeInfo) -> Vec<u8> {
    let map = match info.table() {
        OpCodeTableKind::T0F => 1,
        OpCodeTableKind::T0F38 => 2,
        _ => 3,
    };
    let prefix = match info.mandatory_prefix() {
        MandatoryPrefix::P66 => 1,
        MandatoryPrefix::PF3 => 2,
        MandatoryPrefix::PF2 => 3,
        _ => 0,
    };
    let mut bytes = Vec::with_capacity(32);
    if numbers.one_in(8) {
        bytes.push(numbers.pick(&[0x64, 0x65, 0x67, 0x2e]));
    }
    // A prefix that VEX forbids.
    if numbers.one_in(60) {
        bytes.push(numbers.pick(&[0x66, 0xf0, 0xf2, 0xf3, 0x48]));
    }
    let wide = (info.w() == 1) as u8;
    let wide = if numbers.one_in(4) { wide ^ 1 } else { wide };
    // Where there is no register to name, the field must be all ones.
    let named = format!("{:?}", info.op_kinds()).contains("vvvv");
    let source = if named != numbers.one_in(16) { numbers.any() as u8 & 0xf } else { 0xf };
    let long = (info.l() == 1) as u8 ^ numbers.one_in(60) as u8;
    bytes.push(0xc4);
    bytes.push(numbers.any() as u8 & 0xe0 | map);
    bytes.push(wide << 7 | source << 3 | long << 2 | prefix);
    bytes.push(info.op_code() as u8);
    rest(numbers, info, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::DecoderOptions;
    use std::collections::BTreeSet;

    #[test]
    fn every_form_is_reached() {
        let forms = Forms::new(64, "");
        let mut numbers = Numbers::new(1, 1);
        let mut seen = BTreeSet::new();
        for _ in 0..400_000 {
            let bytes = forms.bytes(&mut numbers, 64, true);
            seen.insert(decode(&bytes, 64, 0).code() as usize);
            // Near branches of 16 bits are AMD's in 64-bit code.
            let amd = Decoder::with_ip(64, &bytes, 0, DecoderOptions::AMD).decode();
            seen.insert(amd.code() as usize);
        }
        let missing: Vec<_> =
            forms.forms.iter().filter(|f| !seen.contains(&(f.code() as usize))).map(|f| f.code()).collect();
        assert!(missing.len() < 8, "never written down: {missing:?}");
    }
}
