//! Every x87 encoding, with random operands, against the real processor.

use iced_x86::Mnemonic;

use super::handler;
use crate::simd::oracle::Oracle;

const SAMPLES: u32 = 48;

#[test]
fn x87_instructions_agree_with_the_real_processor() {
    let mut oracle = Oracle::new(0x7838_3721);
    let mut seen = 0;
    for opcode in 0xd8..=0xdf {
        // Memory forms by their reg field; register forms by the whole byte.
        for modrm in (0..0x40).step_by(8).chain(0xc0..=0xff) {
            for _ in 0..SAMPLES {
                let bytes = oracle.encoding(&[], &[opcode], modrm);
                let insn = oracle.decode(&bytes);
                // These store pointers, of which ours are the guest's; see `tests`.
                let excluded = matches!(insn.mnemonic(), Mnemonic::Fnstenv | Mnemonic::Fnsave);
                if let Some(handler) = handler(&insn)
                    && !excluded
                {
                    seen += 1;
                    oracle.compare(&bytes, &insn, handler);
                }
            }
        }
    }
    assert!(seen > 400 * SAMPLES, "only {seen} instructions were compared");
}
