//! Every vector instruction that the host has, in random encodings with random operands, against
//! the real processor.

use std::collections::BTreeSet;

use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpKind};

use super::oracle::Oracle;
use super::{handler, xsave};

/// Loads and stores of control words, which are compared with the manual in `tests`; a form that
/// enters MMX mode on Intel's processors but not on AMD's; and SHA on misaligned memory, which some
/// of AMD's allow.
fn excluded(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        Mnemonic::Ldmxcsr => true,
        // They have a comparison of their own, see `xsave`.
        _ if xsave::handler(insn).is_some() => true,
        Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => true,
        Mnemonic::Cvtpi2ps => insn.op1_kind() == OpKind::Memory,
        _ => {
            insn.op1_kind() == OpKind::Memory
                && !insn.memory_displacement64().is_multiple_of(16)
                && insn.cpuid_features().contains(&CpuidFeature::SHA)
        }
    }
}

const SAMPLES: u32 = 96;

#[test]
fn vector_instructions_agree_with_the_real_processor() {
    let mut oracle = Oracle::new(0x5361_746f_7269);
    let mut seen = BTreeSet::new();
    let prefixes: [&[u8]; 5] = [&[], &[0x66], &[0xf3], &[0xf2], &[0x66, 0xf2]];
    for map in [&[0x0f][..], &[0x0f, 0x38], &[0x0f, 0x3a]] {
        for opcode in 0..=255 {
            // The escapes to the other maps.
            if map.len() == 1 && matches!(opcode, 0x38 | 0x3a) {
                continue;
            }
            for prefix in prefixes {
                for _ in 0..SAMPLES {
                    let modrm = oracle.numbers.any() as u8;
                    let bytes = oracle.encoding(prefix, &[map, &[opcode]].concat(), modrm);
                    let insn = oracle.decode(&bytes);
                    let excluded = excluded(&insn);
                    if let Some(handler) = handler(&insn)
                        && !excluded
                        && !insn.is_invalid()
                    {
                        seen.insert(insn.code() as usize);
                        oracle.compare(&bytes, &insn, handler);
                    }
                }
            }
        }
    }
    let wanted = if is_x86_feature_detected!("sse4.2") { 380 } else { 250 };
    assert!(seen.len() >= wanted, "only {} forms were compared", seen.len());
}
