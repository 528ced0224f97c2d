//! One case and its outcome, as plain data that two processes can share.

use satori_defs::fpu::{fcw, fsw, mxcsr};

use crate::layout::{LINE, LINES, page};

/// Lines of memory that a case can set.
pub(crate) const PATCHES: usize = 12;

/// x87 and SSE state in the layout of FXSAVE64 (SDM volume 1, table 10-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Fpu {
    /// Control word.
    pub fcw: u16,
    /// Status word.
    pub fsw: u16,
    /// Abridged tag word; the upper byte is reserved.
    pub ftw: u16,
    /// Last opcode.
    pub fop: u16,
    /// Last instruction pointer.
    pub fip: u64,
    /// Last data pointer.
    pub fdp: u64,
    /// SSE control and status.
    pub mxcsr: u32,
    /// Bits of MXCSR that exist; output only.
    pub mxcsr_mask: u32,
    /// ST0 to ST7.
    pub st: [u128; 8],
    /// XMM0 to XMM15.
    pub xmm: [u128; 16],
}

impl Default for Fpu {
    fn default() -> Self {
        Fpu {
            fcw: fcw::INIT,
            fsw: 0,
            ftw: 0,
            fop: 0,
            fip: 0,
            fdp: 0,
            mxcsr: mxcsr::RESET,
            mxcsr_mask: 0,
            st: [0; 8],
            xmm: [0; 16],
        }
    }
}

/// One instruction and what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Case {
    /// 64, or 32 for compatibility mode.
    pub bits: u32,
    /// Bytes of `code` that count.
    pub code_len: u32,
    /// The instruction.
    pub code: [u8; 16],
    /// Where it lies; bytes behind a code page do not exist.
    pub at: u64,
    /// RAX to R15 in encoding order.
    pub gpr: [u64; 16],
    /// RFLAGS: status flags, DF, TF and AC.
    pub rflags: u64,
    /// Base of FS; 64-bit code only.
    pub fs_base: u64,
    /// Base of GS; 64-bit code only.
    pub gs_base: u64,
    /// x87 and SSE state.
    pub fpu: Fpu,
    /// Bits 255:128 of YMM0 to YMM15.
    pub ymm_high: [u128; 16],
    /// How many of `patch_lines` count.
    pub patches: u32,
    /// Lines that do not hold the background.
    pub patch_lines: [u16; PATCHES],
    /// What they hold.
    pub patch_bytes: [[u8; LINE]; PATCHES],
}

impl Case {
    /// No instruction, zeroes, and a stack pointer that can be used.
    pub fn new(bits: u32) -> Self {
        let mut gpr = [0; 16];
        gpr[satori_state::reg::RSP] = page(2);
        Case {
            bits,
            code_len: 0,
            code: [0; 16],
            at: page(8),
            gpr,
            rflags: 0,
            fs_base: 0,
            gs_base: 0,
            fpu: Fpu::default(),
            ymm_high: [0; 16],
            patches: 0,
            patch_lines: [0; PATCHES],
            patch_bytes: [[0; LINE]; PATCHES],
        }
    }

    /// The instruction's bytes.
    pub fn code(&self) -> &[u8] {
        &self.code[..self.code_len.min(16) as usize]
    }

    /// Sets the instruction.
    pub fn set_code(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(16);
        self.code = [0; 16];
        self.code[..len].copy_from_slice(&bytes[..len]);
        self.code_len = len as u32;
    }

    /// The lines that are set, and what they hold.
    pub fn patches(&self) -> impl Iterator<Item = (usize, &[u8; LINE])> {
        let count = PATCHES.min(self.patches as usize);
        self.patch_lines[..count].iter().map(|line| usize::from(*line)).zip(&self.patch_bytes)
    }

    /// Makes the x87 control and status words such as the processor can hold; without AVX there are
    /// no upper halves.
    pub fn make_possible(&mut self) {
        if !is_x86_feature_detected!("avx") {
            self.ymm_high = [0; 16];
        }
        let fpu = &mut self.fpu;
        fpu.fcw = fpu.fcw & fcw::WRITABLE | fcw::FIXED;
        fpu.fsw &= !(fsw::ES | fsw::B);
        if fpu.fsw & fsw::FLAGS & !fpu.fcw != 0 {
            fpu.fsw |= fsw::ES | fsw::B;
        } else {
            // Without a pending exception AMD's processors do not load the pointers.
            (fpu.fop, fpu.fip, fpu.fdp) = (0, 0, 0);
        }
    }

    /// Sets a line, if there is room for one more.
    pub fn patch(&mut self, line: usize, bytes: [u8; LINE]) {
        let count = self.patches as usize;
        if let Some(at) = self.patch_lines[..count].iter().position(|l| usize::from(*l) == line) {
            self.patch_bytes[at] = bytes;
        } else if count < PATCHES {
            self.patch_lines[count] = line as u16;
            self.patch_bytes[count] = bytes;
            self.patches += 1;
        }
    }

    /// Takes a set line away.
    pub fn unpatch(&mut self, at: usize) {
        self.patch_lines.copy_within(at + 1.., at);
        self.patch_bytes.copy_within(at + 1.., at);
        self.patches -= 1;
    }
}

/// How a case ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Ending {
    /// It was not executed.
    #[default]
    NotRun,
    /// With an exception, INT3 behind the instruction among them.
    Exception,
    /// It went on for too long.
    RanOn,
    /// The process died, or the engine left for the machine.
    Left,
}

/// What a case left behind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Outcome {
    /// How it ended; the rest counts for [`Ending::Exception`] only.
    pub ending: Ending,
    /// Vector of the exception.
    pub vector: u32,
    /// Its error code.
    pub error: u64,
    /// CR2, with a page fault.
    pub cr2: u64,
    /// RAX to R15.
    pub gpr: [u64; 16],
    /// RIP as the handler finds it.
    pub rip: u64,
    /// RFLAGS as the handler finds it.
    pub rflags: u64,
    /// Base of FS.
    pub fs_base: u64,
    /// Base of GS.
    pub gs_base: u64,
    /// ES, CS, SS, DS, FS, GS.
    pub selectors: [u16; 6],
    /// x87 and SSE state.
    pub fpu: Fpu,
    /// Bits 255:128 of YMM0 to YMM15.
    pub ymm_high: [u128; 16],
    /// A bit for each line that does not hold the background.
    pub changed: [u64; LINES / 64],
    /// What such lines hold; the others mean nothing.
    pub lines: [[u8; LINE]; LINES],
}

impl Outcome {
    /// Nothing yet.
    pub fn new() -> Box<Self> {
        Box::new(Outcome {
            ending: Ending::NotRun,
            vector: 0,
            error: 0,
            cr2: 0,
            gpr: [0; 16],
            rip: 0,
            rflags: 0,
            fs_base: 0,
            gs_base: 0,
            selectors: [0; 6],
            fpu: Fpu::default(),
            ymm_high: [0; 16],
            changed: [0; LINES / 64],
            lines: [[0; LINE]; LINES],
        })
    }

    /// Whether `line` does not hold the background.
    pub fn has(&self, line: usize) -> bool {
        self.changed[line / 64] & 1 << (line % 64) != 0
    }
}
