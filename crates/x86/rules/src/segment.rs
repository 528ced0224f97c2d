//! Segments: which descriptors a segment register takes, and what the eight registers may hold together.
//!
//! Rights are in the format of VMX (SDM 25.4.1): the descriptor's type, S, DPL and P in bits 7:0, AVL, L, D and G in bits
//! 15:12, and bit 16 in a register that holds nothing usable.

use crate::canonical;

/// S: code or data.
const S: u32 = 1 << 4;
/// P: the segment is present.
const PRESENT: u32 = 1 << 7;
/// L: 64-bit code.
const LONG: u32 = 1 << 13;
/// D: 32-bit code.
const BIG: u32 = 1 << 14;
/// G: the limit is in pages.
const GRANULAR: u32 = 1 << 15;
/// The register holds nothing usable.
const UNUSABLE: u32 = 1 << 16;

/// The descriptor privilege level.
const fn dpl(rights: u32) -> u8 {
    (rights >> 5 & 3) as u8
}

/// Whether DS, ES, FS or GS takes a descriptor of these `rights` at privilege level `cpl`, by a selector that asks for `rpl`
/// (SDM volume 2, MOV; P is looked at behind this): data or readable code, conforming or not more privileged than either level.
pub const fn data(rights: u32, cpl: u8, rpl: u8) -> bool {
    let readable = rights & S != 0 && rights & 0b1010 != 0b1000;
    let conforming = rights & 0b1100 == 0b1100;
    readable && (conforming || rpl <= dpl(rights) && cpl <= dpl(rights))
}

/// Whether SS takes a descriptor of these `rights` for code at privilege level `cpl` (SDM volume 2, MOV; 5.8.6): writable
/// data of exactly that level.
pub const fn stack(rights: u32, cpl: u8, rpl: u8) -> bool {
    rights & S != 0 && rights & 0b1010 == 0b0010 && rpl == cpl && dpl(rights) == cpl
}

/// Whether CS takes a descriptor of these `rights` by a far jump or call without a gate, which leaves the privilege level
/// `cpl` as it is (SDM 5.8.1): code of that level, or conforming and not less privileged.
pub const fn code(rights: u32, cpl: u8, rpl: u8) -> bool {
    let conforming = rights & 0b100 != 0;
    let level = if conforming { dpl(rights) <= cpl } else { rpl <= cpl && dpl(rights) == cpl };
    rights & S != 0 && rights & 0b1000 != 0 && level
}

/// Whether CS takes a descriptor of these `rights` by a return from level `cpl`, or a task that begins, where the selector's
/// RPL is the level `target` that follows (SDM 5.8.6).
pub const fn code_for(rights: u32, cpl: u8, target: u8) -> bool {
    target >= cpl && code(rights, target, target)
}

/// Whether a code segment says at most one of 64 and 32 bits: both are reserved (SDM 3.4.5).
pub const fn one_size(rights: u32) -> bool {
    rights & (LONG | BIG) != LONG | BIG
}

/// What a segment register holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The selector.
    pub selector: u64,
    /// The base.
    pub base: u64,
    /// The limit in bytes.
    pub limit: u32,
    /// The rights.
    pub rights: u32,
}

impl Held {
    const fn usable(&self) -> bool {
        self.rights & UNUSABLE == 0
    }

    const fn kind(&self) -> u32 {
        self.rights & 15
    }

    const fn dpl(&self) -> u64 {
        dpl(self.rights) as u64
    }

    const fn rpl(&self) -> u64 {
        self.selector & 3
    }

    /// Of the local table, not the global one.
    const fn local(&self) -> bool {
        self.selector & 4 != 0
    }

    /// S as asked, P, no reserved bit, and a granularity that fits the limit.
    const fn shaped(&self, system: bool) -> bool {
        let granular = self.rights & GRANULAR != 0;
        (self.rights & S == 0) == system
            && self.rights & PRESENT != 0
            && self.rights & 0xfffe_0f00 == 0
            && (self.limit & 0xfff == 0xfff || !granular)
            && (self.limit >> 20 == 0 || granular)
    }
}

/// The mode that segment registers are held in.
#[derive(Clone, Copy, Debug)]
pub struct Under {
    /// IA-32e mode.
    pub wide: bool,
    /// Virtual-8086 mode.
    pub v86: bool,
    /// Real-address mode.
    pub real: bool,
    /// Modes without paging and protection are executed as they are (the control "unrestricted guest").
    pub unrestricted: bool,
}

/// Whether ES, CS, SS, DS, FS, GS, LDTR and TR may hold this together, as VM entry asks (SDM 26.3.1.2).
pub fn together([es, cs, ss, ds, fs, gs, ldtr, tr]: [Held; 8], under: Under) -> bool {
    let Under { wide, v86, real, unrestricted } = under;
    let task = tr.usable()
        && !tr.local()
        && canonical(tr.base)
        && tr.shaped(true)
        && (tr.kind() == 11 || tr.kind() == 3 && !wide);
    let table =
        !ldtr.usable() || !ldtr.local() && canonical(ldtr.base) && ldtr.shaped(true) && ldtr.kind() == 2;
    let bases = [fs, gs].iter().all(|s| canonical(s.base))
        && cs.base >> 32 == 0
        && [ss, ds, es].iter().all(|s| !s.usable() || s.base >> 32 == 0);
    if !(task && table && bases) {
        return false;
    }
    if v86 {
        return [es, cs, ss, ds, fs, gs]
            .iter()
            .all(|s| s.base == s.selector << 4 && s.limit == 0xffff && s.rights == 0xf3);
    }
    let code = match cs.kind() {
        3 => unrestricted && cs.dpl() == 0,
        9 | 11 => cs.dpl() == ss.dpl(),
        13 | 15 => cs.dpl() <= ss.dpl(),
        _ => false,
    };
    let stack = !ss.usable() || matches!(ss.kind(), 3 | 7) && ss.shaped(false);
    let level = unrestricted || ss.rpl() == cs.rpl() && ss.dpl() == ss.rpl();
    let kernel = !(real || cs.kind() == 3) || ss.dpl() == 0;
    let data = [ds, es, fs, gs].iter().all(|s| {
        let readable = s.kind() & 8 == 0 || s.kind() & 2 != 0;
        let deep = unrestricted || s.kind() > 11 || s.dpl() >= s.rpl();
        !s.usable() || s.kind() & 1 != 0 && readable && deep && s.shaped(false)
    });
    code && cs.shaped(false) && (!wide || one_size(cs.rights)) && stack && level && kernel && data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_taken_by_type_and_level() {
        let rights = |kind: u32, dpl: u32| kind | S | dpl << 5 | PRESENT;
        for kind in 0..16 {
            let (is_code, second) = (kind & 8 != 0, kind & 2 != 0);
            for (dpl, cpl, rpl) in (0..64u8).map(|all| (all >> 4, all >> 2 & 3, all & 3)) {
                let one = rights(kind, dpl.into());
                let conforming = is_code && kind & 4 != 0;
                let reached = conforming || dpl >= cpl.max(rpl);
                assert_eq!(data(one, cpl, rpl), (!is_code || second) && reached, "{kind} {dpl} {cpl} {rpl}");
                let level = rpl == cpl && dpl == cpl;
                assert_eq!(stack(one, cpl, rpl), !is_code && second && level, "{kind} {dpl} {cpl} {rpl}");
                let level = if conforming { dpl <= cpl } else { dpl == cpl && rpl <= cpl };
                assert_eq!(code(one, cpl, rpl), is_code && level, "{kind} {dpl} {cpl} {rpl}");
                let level = if conforming { dpl <= rpl } else { dpl == rpl };
                assert_eq!(
                    code_for(one, cpl, rpl),
                    is_code && rpl >= cpl && level,
                    "{kind} {dpl} {cpl} {rpl}"
                );
                assert!(
                    !code(one & !S, cpl, rpl) && !data(one & !S, cpl, rpl) && !stack(one & !S, cpl, rpl),
                    "a system segment"
                );
            }
        }
        assert!(one_size(LONG) && one_size(BIG) && one_size(0) && !one_size(LONG | BIG));
    }

    #[test]
    fn registers_of_a_flat_kernel_are_legal_and_none_of_them_broken() {
        let flat = |selector, rights| Held { selector, base: 0, limit: u32::MAX, rights };
        let long = Under { wide: true, v86: false, real: false, unrestricted: false };
        let code = flat(0x10, 0xa09b);
        let data = flat(0x18, 0xc093);
        let none = flat(0, UNUSABLE);
        let task = Held { selector: 0x40, base: 0x1000, limit: 0x67, rights: 0x8b };
        let good = [data, code, data, data, none, none, none, task];
        assert!(together(good, long));
        type Change = fn(&mut Held);
        let breaks: [(usize, Change); 9] = [
            (1, |cs| cs.rights |= BIG),
            (1, |cs| cs.base = 1 << 32),
            (2, |ss| ss.rights |= 3 << 5),
            (2, |ss| ss.limit = 0x1234),
            (3, |ds| ds.rights &= !PRESENT),
            (4, |fs| fs.base = 1 << 47),
            (6, |ldtr| *ldtr = Held { selector: 4, base: 0, limit: 0xf, rights: 0x82 }),
            (7, |tr| tr.rights = UNUSABLE),
            (7, |tr| tr.rights = 0x83),
        ];
        for (number, (index, change)) in breaks.into_iter().enumerate() {
            let mut bad = good;
            change(&mut bad[index]);
            assert!(!together(bad, long), "{number}");
        }
        assert!(!together(good, Under { v86: true, wide: false, ..long }));
    }
}
