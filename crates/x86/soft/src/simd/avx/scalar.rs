//! Comparisons into the flags, conversions with general registers, and the string comparisons.

use iced_x86::Instruction;

use super::operand::{avx, register, set_low};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::simd::convert::{to_int_operands, wide};
use crate::simd::float::{compare_operands, under_mxcsr};
use crate::simd::native::{self, FromInt};
use crate::simd::string::{explicit_operands, implicit_operands};

/// After the check that AVX may execute, the same as the instruction of SSE.
macro_rules! as_in_sse {
    ($operands:expr) => {
        |cpu, insn| {
            avx(cpu)?;
            $operands(cpu, insn)
        }
    };
}

/// VPCMPESTRM and VPCMPISTRM clear YMM0's upper half.
macro_rules! string_mask {
    ($operands:expr) => {
        |cpu, insn| {
            avx(cpu)?;
            $operands(cpu, insn)?;
            cpu.state.fpu.ymm[0].high = 0;
            Ok(())
        }
    };
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Vcomiss => as_in_sse!(compare_operands::<native::Comiss, u32>),
    Vcomisd => as_in_sse!(compare_operands::<native::Comisd, u64>),
    Vucomiss => as_in_sse!(compare_operands::<native::Ucomiss, u32>),
    Vucomisd => as_in_sse!(compare_operands::<native::Ucomisd, u64>),
    Vcvtsi2ss if wide(insn, 2) => from_int::<native::Cvtsi2ss64>,
    Vcvtsi2ss => from_int::<native::Cvtsi2ss32>,
    Vcvtsi2sd if wide(insn, 2) => from_int::<native::Cvtsi2sd64>,
    Vcvtsi2sd => from_int::<native::Cvtsi2sd32>,
    Vcvtss2si if wide(insn, 0) => as_in_sse!(to_int_operands::<native::Cvtss2si64, u32>),
    Vcvtss2si => as_in_sse!(to_int_operands::<native::Cvtss2si32, u32>),
    Vcvttss2si if wide(insn, 0) => as_in_sse!(to_int_operands::<native::Cvttss2si64, u32>),
    Vcvttss2si => as_in_sse!(to_int_operands::<native::Cvttss2si32, u32>),
    Vcvtsd2si if wide(insn, 0) => as_in_sse!(to_int_operands::<native::Cvtsd2si64, u64>),
    Vcvtsd2si => as_in_sse!(to_int_operands::<native::Cvtsd2si32, u64>),
    Vcvttsd2si if wide(insn, 0) => as_in_sse!(to_int_operands::<native::Cvttsd2si64, u64>),
    Vcvttsd2si => as_in_sse!(to_int_operands::<native::Cvttsd2si32, u64>),
    Vpcmpestri | Vpcmpestri64 => as_in_sse!(explicit_operands::<true>),
    Vpcmpestrm | Vpcmpestrm64 => string_mask!(explicit_operands::<false>),
    Vpcmpistri => as_in_sse!(implicit_operands::<true>),
    Vpcmpistrm => string_mask!(implicit_operands::<false>),
});

fn from_int<O: FromInt>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = cpu.operand(insn, 2)?;
    let a = register(cpu, insn.op1_register()).low;
    let result = under_mxcsr(cpu, |mxcsr| O::run(a, s, mxcsr), |_| false)?;
    set_low(cpu, insn.op0_register(), result);
    Ok(())
}
