//! What an engine executes next.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use satori_defs::x86::efer;
use satori_engine::{Vcpu, X86};
use satori_memory::{Gpa, GuestMemory};
use satori_state::seg;

/// Rights of a code segment: long (L), and 32 bits by default (D).
const LONG: u32 = 1 << 13;
const WIDE: u32 = 1 << 14;

/// The instruction at RIP of `vcpu`, if it can be read and is one.
pub fn next_instruction(vcpu: &dyn Vcpu<X86>, memory: &GuestMemory) -> Option<Instruction> {
    let state = vcpu.state();
    let code = &state.seg[seg::CS];
    let bits = match (code.rights & LONG != 0 && state.efer & efer::LMA != 0, code.rights & WIDE != 0) {
        (true, _) => 64,
        (false, true) => 32,
        (false, false) => 16,
    };
    let linear = state.rip.wrapping_add(if bits == 64 { 0 } else { code.base });
    let (mut bytes, mut length) = ([0; 15], 0);
    for (at, byte) in (linear..linear.saturating_add(15)).zip(&mut bytes) {
        let Some(gpa) = vcpu.translate(at) else { break };
        if memory.read(Gpa(gpa), std::slice::from_mut(byte)).is_err() {
            break;
        }
        length += 1;
    }
    let insn = Decoder::with_ip(bits, &bytes[..length], state.rip, DecoderOptions::NONE).decode();
    (!insn.is_invalid()).then_some(insn)
}
