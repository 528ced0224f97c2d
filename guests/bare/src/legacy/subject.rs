//! Subjects in legacy modes, and what they end by.

use core::fmt;

use satori_defs::x86::{cr0, rflags};

use super::{FREE, LEGACY_BLOCK, LOW, Regs, SAVED, STACK_SEGMENT, legacy_enter, selector, tables, top};
use crate::subject::{Code, DONE};

/// How a subject is run.
#[derive(Clone, Copy, Debug)]
pub struct LegacySubject {
    /// The code, where it runs, as a linear address.
    pub code: Code,
    /// Its registers.
    pub regs: Regs,
    /// In real mode.
    pub real: bool,
    /// CR0, CR3 and CR4.
    pub control: [u32; 3],
}

impl LegacySubject {
    fn new(code: Code) -> LegacySubject {
        let tables = tables();
        let mut regs = Regs {
            eip: code.start as u32,
            cs: selector::CODE.into(),
            eflags: rflags::FIXED as u32,
            ss: selector::DATA.into(),
            ds: selector::DATA.into(),
            es: selector::DATA.into(),
            ..Regs::default()
        };
        regs.gpr[4] = top(&tables.stack);
        let control = [(cr0::PE | cr0::NE | cr0::ET | cr0::MP) as u32, 0, 0x600];
        LegacySubject { code, regs, real: false, control }
    }

    /// In 32-bit protected mode at level 0, without paging.
    pub fn kernel(code: Code) -> LegacySubject {
        LegacySubject::new(code)
    }

    /// In 32-bit protected mode at level 3, without paging.
    pub fn user(code: Code) -> LegacySubject {
        let mut subject = LegacySubject::new(code);
        let data = selector::USER_DATA.into();
        (subject.regs.cs, subject.regs.ss) = (selector::USER_CODE.into(), data);
        (subject.regs.ds, subject.regs.es) = (data, data);
        subject.regs.gpr[4] = top(&tables().user);
        subject
    }

    fn low(code: Code) -> LegacySubject {
        let code = code.copy_to(FREE);
        let mut subject = LegacySubject::new(code);
        let segment = (FREE >> 4) as u32;
        (subject.regs.cs, subject.regs.eip) = (segment, 0);
        (subject.regs.ds, subject.regs.es) = (segment, segment);
        subject.regs.ss = STACK_SEGMENT.into();
        subject.regs.gpr[4] = 0xfff0;
        subject
    }

    /// In virtual-8086 mode: copied to [`FREE`], with CS, DS and ES there.
    pub fn v86(code: Code) -> LegacySubject {
        let mut subject = LegacySubject::low(code);
        subject.regs.eflags |= rflags::VM as u32;
        subject
    }

    /// In real mode: copied to [`FREE`], with CS, DS and ES there.
    pub fn real(code: Code) -> LegacySubject {
        let mut subject = LegacySubject::low(code);
        subject.real = true;
        subject
    }

    /// With a general register set.
    pub const fn with(mut self, register: usize, value: u32) -> LegacySubject {
        self.regs.gpr[register] = value;
        self
    }

    /// With bits of EFLAGS set.
    pub const fn flags(mut self, bits: u64) -> LegacySubject {
        self.regs.eflags |= bits as u32;
        self
    }

    /// With paging: CR3, and bits of CR0 and CR4 beside.
    pub const fn paging(mut self, cr3: u64, cr0: u64, cr4: u64) -> LegacySubject {
        self.control = [self.control[0] | cr0 as u32 | 1 << 31, cr3 as u32, self.control[2] | cr4 as u32];
        self
    }

    /// Runs it until the first event.
    pub fn run(&self) -> Event {
        let tables = tables();
        let tss = usize::from(selector::TSS) / 8;
        tables.gdt[tss] &= !(2 << 40);
        let (gdt, idt) = (&raw const tables.gdt as u64, &raw const tables.idt as u64);
        let block = LEGACY_BLOCK.0.get();
        let pointer = |limit: u16, base: u64| [limit, base as u16, (base >> 16) as u16, 0];
        let real_at = LOW + SAVED;
        // SAFETY: only the first vCPU comes here; the assembly keeps what Rust needs.
        unsafe {
            let block = &mut *block;
            block.regs = self.regs;
            [block.cr0, block.cr3, block.cr4] = self.control;
            block.real = self.real.into();
            block.load_tr = selector::TSS.into();
            block.gdtr = pointer(64 * 8 - 1, gdt);
            block.idtr = if self.real { pointer(0x3ff, 0) } else { pointer(0x7ff, idt) };
            (real_at as *mut Regs).write_volatile(self.regs);
            legacy_enter();
        }
        // SAFETY: as above; the assembly wrote behind the compiler's back.
        let block = unsafe { block.read_volatile() };
        let mut event = Event {
            regs: block.regs,
            vector: block.vector as u8,
            code: None,
            cr2: block.cr2,
            tr: block.tr as u16,
            frame: block.frame,
            handler_ss: block.regs.ss as u16,
            subject: self.code,
            low: self.real,
        };
        if self.real {
            // SAFETY: what the real-mode stub saved.
            unsafe {
                event.regs = (real_at as *const Regs).read_volatile();
                event.vector = ((real_at + size_of::<Regs>() as u64) as *const u8).read_volatile();
            }
        } else {
            event.unpack(&block.words);
        }
        event
    }
}

/// What ended a legacy subject.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Registers, as pushed or left. In virtual-8086 mode the pushed segments.
    pub regs: Regs,
    /// Vector.
    pub vector: u8,
    /// The error code, of the vectors that have one.
    pub code: Option<u32>,
    /// CR2.
    pub cr2: u32,
    /// TR in the handler.
    pub tr: u16,
    /// ESP at the handler's first instruction.
    pub frame: u32,
    /// SS in the handler.
    pub handler_ss: u16,
    /// The code that ran.
    pub subject: Code,
    low: bool,
}

impl Event {
    /// Reads the frame: an error code or none, and what a change of level adds.
    fn unpack(&mut self, words: &[u32; 12]) {
        let inner = tables().tss.stacks[0][0];
        let pushed = inner.wrapping_sub(self.frame) / 4;
        let coded = match pushed {
            5 | 9 => false,
            6 | 10 => true,
            _ => matches!(self.vector, 8 | 10..=14 | 17),
        };
        if coded {
            self.code = Some(words[0]);
        }
        let frame = &words[usize::from(coded)..];
        (self.regs.eip, self.regs.cs, self.regs.eflags) = (frame[0], frame[1], frame[2]);
        let v86 = frame[2] & rflags::VM as u32 != 0;
        if v86 || frame[1] & 3 != 0 {
            (self.regs.gpr[4], self.regs.ss) = (frame[3], frame[4] & 0xffff);
        } else {
            self.regs.gpr[4] = self.frame + if coded { 16 } else { 12 };
        }
        if v86 {
            [self.regs.es, self.regs.ds, self.regs.fs, self.regs.gs] =
                [frame[5], frame[6], frame[7], frame[8]].map(|segment| segment & 0xffff);
        }
        self.low = v86;
    }

    /// RIP as an offset into the code, whatever the segment's base.
    pub fn at(&self) -> u32 {
        let linear =
            if self.low { self.regs.cs.wrapping_mul(16).wrapping_add(self.regs.eip) } else { self.regs.eip };
        linear.wrapping_sub(self.subject.start as u32)
    }

    /// Whether it came to its end.
    pub fn done(&self) -> bool {
        self.vector == DONE && u64::from(self.at()) == self.subject.end + 2
    }

    /// A fault of the looked-at instruction with this vector and error code.
    pub fn fault(&self, vector: u8, code: Option<u32>) -> bool {
        self.vector == vector && self.code == code && u64::from(self.at()) == self.subject.probe
    }

    /// A trap after the looked-at instruction.
    pub fn trap(&self, vector: u8) -> bool {
        self.vector == vector && self.code.is_none() && u64::from(self.at()) == self.subject.after
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "vector {:#x} code {:x?} at offset {:#x} (probe {:#x}), {:x}:{:x}, EFLAGS {:x}",
            self.vector,
            self.code,
            self.at(),
            self.subject.probe,
            self.regs.cs,
            self.regs.eip,
            self.regs.eflags
        )
    }
}
