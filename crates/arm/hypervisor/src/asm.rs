//! An assembler: words of the one table of instructions, and labels.

use std::collections::HashMap;

use satori_arm_isa::{Op, row};
use satori_arm_state::{Sys, el1_name};

/// A general register; 31 is SP or XZR, as the instruction has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct X(pub(crate) u8);

/// XZR, or SP.
pub(crate) const ZERO: X = X(31);
pub(crate) const SP: X = X(31);

impl X {
    fn number(self) -> u32 {
        self.0.into()
    }
}

/// Conditions of B.cond.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cond {
    Equal = 0,
    NotEqual = 1,
    Below = 3,
}

/// A system register by the name that is written: its own, or the one by which EL2 with E2H reaches EL1's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(u16);

impl From<Sys> for Name {
    fn from(sys: Sys) -> Self {
        Name(sys.row().encoding)
    }
}

impl Name {
    /// SCTLR_EL12 of SCTLR_EL1, CNTV_CTL_EL02 of CNTV_CTL_EL0; the plain name of what is not redirected.
    pub(crate) fn el1s_own(sys: Sys) -> Self {
        el1_name(sys).map_or(sys.into(), Name)
    }
}

/// Where a branch's distance stands in its word.
#[derive(Clone, Copy)]
enum Reach {
    /// B, BL: 26 bits from bit 0.
    Far,
    /// CBZ, B.cond: 19 bits from bit 5.
    Near,
    /// ADR: 21 bits of bytes.
    Address,
}

struct Fix {
    at: usize,
    label: String,
    reach: Reach,
}

/// Code that is being made.
pub(crate) struct Asm {
    words: Vec<u32>,
    labels: HashMap<String, usize>,
    fixes: Vec<Fix>,
    /// The first thing that could not be assembled.
    wrong: Option<String>,
    fresh: usize,
}

impl Asm {
    pub(crate) fn new() -> Self {
        Asm { words: Vec::new(), labels: HashMap::new(), fixes: Vec::new(), wrong: None, fresh: 0 }
    }

    /// The code's bytes, or what is wrong with it.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, String> {
        for Fix { at, label, reach } in std::mem::take(&mut self.fixes) {
            let Some(&target) = self.labels.get(&label) else { return Err(format!("no label {label}")) };
            let words = target as i64 - at as i64;
            let (bits, value) = match reach {
                Reach::Far => (26, words as u32 & 0x3ff_ffff),
                Reach::Near => (19, (words as u32 & 0x7_ffff) << 5),
                Reach::Address => (18, (words as u32 & 0x7_ffff) << 5),
            };
            if words.unsigned_abs() >= 1 << (bits - 1) {
                return Err(format!("{label} is too far"));
            }
            self.words[at] |= value;
        }
        match self.wrong {
            Some(wrong) => Err(wrong),
            None => Ok(self.words.iter().flat_map(|word| word.to_le_bytes()).collect()),
        }
    }

    fn op(&mut self, op: Op, fields: &[(char, u32)]) {
        match row(op).word(fields) {
            Some(word) => self.words.push(word),
            None => {
                self.wrong.get_or_insert_with(|| format!("no {op:?} with {fields:?}"));
            }
        }
    }

    /// Names the next word.
    pub(crate) fn label(&mut self, name: &str) {
        if self.labels.insert(name.into(), self.words.len()).is_some() {
            self.wrong.get_or_insert_with(|| format!("a second {name}"));
        }
    }

    /// A label's name that nothing else has.
    pub(crate) fn fresh(&mut self) -> String {
        self.fresh += 1;
        format!(".{}", self.fresh)
    }

    /// Goes on at a multiple of `bytes`.
    pub(crate) fn align(&mut self, bytes: usize) {
        while !(self.words.len() * 4).is_multiple_of(bytes) {
            self.words.push(0);
        }
    }

    /// Goes on at `offset` from the code's beginning.
    pub(crate) fn at(&mut self, offset: usize) {
        if self.words.len() * 4 > offset {
            self.wrong.get_or_insert_with(|| format!("no room before {offset:#x}"));
        }
        self.words.resize(offset / 4, 0);
    }

    /// The offset of the next word.
    pub(crate) fn here(&self) -> usize {
        self.words.len() * 4
    }

    pub(crate) fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    pub(crate) fn data(&mut self, value: u64) {
        self.words.extend([value as u32, (value >> 32) as u32]);
    }

    fn to(&mut self, label: &str, reach: Reach) {
        self.fixes.push(Fix { at: self.words.len(), label: label.into(), reach });
    }

    pub(crate) fn b(&mut self, label: &str) {
        self.to(label, Reach::Far);
        self.op(Op::B, &[]);
    }

    pub(crate) fn bl(&mut self, label: &str) {
        self.to(label, Reach::Far);
        self.op(Op::Bl, &[]);
    }

    pub(crate) fn b_if(&mut self, condition: Cond, label: &str) {
        self.to(label, Reach::Near);
        self.op(Op::BCond, &[('c', condition as u32)]);
    }

    pub(crate) fn cbz(&mut self, x: X, label: &str) {
        self.to(label, Reach::Near);
        self.op(Op::Cbz, &[('f', 1), ('d', x.number())]);
    }

    pub(crate) fn cbnz(&mut self, x: X, label: &str) {
        self.to(label, Reach::Near);
        self.op(Op::Cbnz, &[('f', 1), ('d', x.number())]);
    }

    pub(crate) fn adr(&mut self, x: X, label: &str) {
        self.to(label, Reach::Address);
        self.op(Op::Adr, &[('d', x.number())]);
    }

    pub(crate) fn br(&mut self, x: X) {
        self.op(Op::Br, &[('n', x.number())]);
    }

    pub(crate) fn blr(&mut self, x: X) {
        self.op(Op::Blr, &[('n', x.number())]);
    }

    pub(crate) fn ret(&mut self) {
        self.op(Op::Ret, &[('n', 30)]);
    }

    pub(crate) fn eret(&mut self) {
        self.op(Op::Eret, &[]);
    }

    pub(crate) fn svc(&mut self) {
        self.op(Op::Svc, &[]);
    }

    pub(crate) fn hvc(&mut self) {
        self.op(Op::Hvc, &[]);
    }

    pub(crate) fn smc(&mut self) {
        self.op(Op::Smc, &[]);
    }

    pub(crate) fn yield_(&mut self) {
        self.op(Op::Hint, &[('o', 1)]);
    }

    pub(crate) fn isb(&mut self) {
        self.op(Op::Isb, &[('c', 15)]);
    }

    /// DSB ISH.
    pub(crate) fn dsb(&mut self) {
        self.op(Op::Dsb, &[('c', 11)]);
    }

    /// DAIFSet of I.
    pub(crate) fn mask_irqs(&mut self) {
        self.op(Op::MsrImm, &[('p', 3), ('c', 2), ('o', 6)]);
    }

    /// DAIFClr of I.
    pub(crate) fn unmask_irqs(&mut self) {
        self.op(Op::MsrImm, &[('p', 3), ('c', 2), ('o', 7)]);
    }

    /// TLBI VMALLS12E1.
    pub(crate) fn tlbi_guest(&mut self) {
        self.op(Op::Sys, &[('p', 4), ('q', 8), ('c', 7), ('o', 6), ('d', 31)]);
    }

    pub(crate) fn mrs(&mut self, x: X, name: impl Into<Name>) {
        self.words.push(0xd520_0000 | u32::from(name.into().0) << 5 | x.number());
    }

    pub(crate) fn msr(&mut self, name: impl Into<Name>, x: X) {
        self.words.push(0xd500_0000 | u32::from(name.into().0) << 5 | x.number());
    }

    /// A value by MOVZ and MOVKs.
    pub(crate) fn set(&mut self, x: X, value: u64) {
        let part = |at: u32| (value >> (16 * at)) as u32 & 0xffff;
        let first = (0..4).find(|&at| part(at) != 0).unwrap_or(0);
        self.op(Op::Movz, &[('f', 1), ('w', first), ('i', part(first)), ('d', x.number())]);
        for at in (first + 1..4).filter(|&at| part(at) != 0) {
            self.op(Op::Movk, &[('f', 1), ('w', at), ('i', part(at)), ('d', x.number())]);
        }
    }

    pub(crate) fn mov(&mut self, to: X, from: X) {
        self.op(Op::OrrReg, &[('f', 1), ('m', from.number()), ('n', 31), ('d', to.number())]);
    }

    fn three(&mut self, op: Op, to: X, a: X, b: X) {
        self.op(op, &[('f', 1), ('m', b.number()), ('n', a.number()), ('d', to.number())]);
    }

    pub(crate) fn add(&mut self, to: X, a: X, b: X) {
        self.three(Op::AddReg, to, a, b);
    }

    pub(crate) fn orr(&mut self, to: X, a: X, b: X) {
        self.three(Op::OrrReg, to, a, b);
    }

    /// `a` without the bits of `b`.
    pub(crate) fn bic(&mut self, to: X, a: X, b: X) {
        self.three(Op::BicReg, to, a, b);
    }

    pub(crate) fn cmp(&mut self, a: X, b: X) {
        self.three(Op::SubsReg, ZERO, a, b);
    }

    pub(crate) fn lsl(&mut self, to: X, a: X, by: X) {
        self.three(Op::Lslv, to, a, by);
    }

    pub(crate) fn add_imm(&mut self, to: X, from: X, value: u32) {
        self.op(Op::AddImm, &[('f', 1), ('i', value), ('n', from.number()), ('d', to.number())]);
    }

    pub(crate) fn sub_imm(&mut self, to: X, from: X, value: u32) {
        self.op(Op::SubImm, &[('f', 1), ('i', value), ('n', from.number()), ('d', to.number())]);
    }

    pub(crate) fn subs_imm(&mut self, to: X, from: X, value: u32) {
        self.op(Op::SubsImm, &[('f', 1), ('i', value), ('n', from.number()), ('d', to.number())]);
    }

    pub(crate) fn cmp_imm(&mut self, x: X, value: u32) {
        self.subs_imm(ZERO, x, value);
    }

    /// Bits `high:low` of a register (UBFX).
    pub(crate) fn bits(&mut self, to: X, from: X, high: u32, low: u32) {
        let fields = [('f', 1), ('N', 1), ('r', low), ('s', high), ('n', from.number()), ('d', to.number())];
        self.op(Op::Ubfm, &fields);
    }

    /// LSL by a constant.
    pub(crate) fn lsl_imm(&mut self, to: X, from: X, by: u32) {
        let fields =
            [('f', 1), ('N', 1), ('r', 64 - by), ('s', 63 - by), ('n', from.number()), ('d', to.number())];
        self.op(Op::Ubfm, &fields);
    }

    pub(crate) fn ldr(&mut self, x: X, base: X, offset: usize) {
        self.op(Op::LdUns, &access(3, x, base, offset));
    }

    pub(crate) fn str(&mut self, x: X, base: X, offset: usize) {
        self.op(Op::StUns, &access(3, x, base, offset));
    }

    /// Of 32 bits, as device registers are.
    pub(crate) fn ldr_word(&mut self, x: X, base: X, offset: usize) {
        self.op(Op::LdUns, &access(2, x, base, offset));
    }

    pub(crate) fn str_word(&mut self, x: X, base: X, offset: usize) {
        self.op(Op::StUns, &access(2, x, base, offset));
    }

    pub(crate) fn ldp(&mut self, a: X, b: X, base: X, offset: usize) {
        self.op(Op::Ldp64, &pair(2, a, b, base, offset / 8));
    }

    pub(crate) fn stp(&mut self, a: X, b: X, base: X, offset: usize) {
        self.op(Op::Stp64, &pair(2, a, b, base, offset / 8));
    }

    /// `STP a, b, [sp, #-16]!`
    pub(crate) fn push(&mut self, a: X, b: X) {
        self.op(Op::Stp64, &pair(3, a, b, SP, 0x7e));
    }

    /// `LDP a, b, [sp], #16`
    pub(crate) fn pop(&mut self, a: X, b: X) {
        self.op(Op::Ldp64, &pair(1, a, b, SP, 2));
    }

    /// The vector registers `v` and `v + 1`.
    pub(crate) fn ldp_q(&mut self, v: u8, base: X, offset: usize) {
        self.op(Op::LdpQ, &pair(2, X(v), X(v + 1), base, offset / 16));
    }

    pub(crate) fn stp_q(&mut self, v: u8, base: X, offset: usize) {
        self.op(Op::StpQ, &pair(2, X(v), X(v + 1), base, offset / 16));
    }

    /// FMOV d, x and x, d.
    pub(crate) fn fmov_in(&mut self, d: u8, x: X) {
        self.op(Op::FmovFromGeneral, &[('f', 1), ('t', 1), ('n', x.number()), ('d', d.into())]);
    }

    pub(crate) fn fmov_out(&mut self, x: X, d: u8) {
        self.op(Op::FmovToGeneral, &[('f', 1), ('t', 1), ('n', d.into()), ('d', x.number())]);
    }
}

fn access(size: u32, x: X, base: X, offset: usize) -> [(char, u32); 4] {
    // What is no multiple does not fit its field.
    let scaled = if offset.is_multiple_of(1 << size) { offset >> size } else { usize::MAX };
    [('z', size), ('i', scaled as u32), ('n', base.number()), ('d', x.number())]
}

fn pair(mode: u32, a: X, b: X, base: X, scaled: usize) -> [(char, u32); 5] {
    [('p', mode), ('i', scaled as u32), ('a', b.number()), ('n', base.number()), ('d', a.number())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_other_assemblers_make() {
        let mut a = Asm::new();
        a.label("here");
        a.mrs(X(3), Name::el1s_own(Sys::SCTLR_EL1));
        a.msr(Sys::HCR_EL2, X(4));
        a.push(X(29), X(30));
        a.pop(X(29), X(30));
        a.bits(X(1), X(2), 31, 26);
        a.lsl_imm(X(1), X(2), 12);
        a.stp_q(2, X(0), 0x20);
        a.ldr_word(X(5), X(6), 8);
        a.mask_irqs();
        a.tlbi_guest();
        a.fmov_out(X(1), 2);
        a.b_if(Cond::NotEqual, "here");
        a.adr(X(7), "here");
        let words: Vec<u32> =
            a.finish().unwrap().chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        // As objdump has them: mrs x3, sctlr_el12; msr hcr_el2, x4; stp x29, x30, [sp, #-16]!; ldp x29, x30, [sp], #16;
        // ubfx x1, x2, #26, #6; lsl x1, x2, #12; stp q2, q3, [x0, #32]; ldr w5, [x6, #8]; msr daifset, #2;
        // tlbi vmalls12e1; fmov x1, d2; b.ne -44; adr x7, -48.
        let expected = [
            0xd53d_1003,
            0xd51c_1104,
            0xa9bf_7bfd,
            0xa8c1_7bfd,
            0xd35a_7c41,
            0xd374_cc41,
            0xad01_0c02,
            0xb940_08c5,
            0xd503_42df,
            0xd50c_87df,
            0x9e66_0041,
            0x54ff_fea1,
            0x10ff_fe87,
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn what_cannot_be_assembled_is_told() {
        let mut a = Asm::new();
        a.ldr(X(0), X(1), 4);
        assert!(a.finish().unwrap_err().contains("LdUns"));
        let mut a = Asm::new();
        a.b("nowhere");
        assert_eq!(a.finish().unwrap_err(), "no label nowhere");
    }
}
