//! The program of a batch: an ELF file without sections.

use crate::Case;

/// Where the code is, and where the records are. The ELF header is in front of the code.
pub(crate) const CODE: u64 = 0x40_0000;
pub(crate) const RECORDS: u64 = 0x1000_0000;
/// In front of the records and behind them is room for accesses that miss their window.
pub(crate) const MARGIN: u64 = 0x1_0000;
/// A record: X0 to X30, SP at 248, NZCV at 256, FPCR at 264, FPSR at 272, V0 to V31 at 512, and the window at 1024.
pub(crate) const RECORD: usize = 2048;
const WINDOW: usize = 1024;
pub(crate) const MIDDLE: u64 = 1408;

/// Cases that run as one program.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The cases.
    pub cases: Vec<Case>,
}

const fn ldp_x(first: u32, second: u32, offset: u32) -> u32 {
    0xa940_0000 | (offset / 8) << 15 | second << 10 | first
}
const fn stp_x(first: u32, second: u32, offset: u32) -> u32 {
    0xa900_0000 | (offset / 8) << 15 | second << 10 | first
}
const fn ldr_x(register: u32, offset: u32) -> u32 {
    0xf940_0000 | (offset / 8) << 10 | register
}
const fn str_x(register: u32, offset: u32) -> u32 {
    0xf900_0000 | (offset / 8) << 10 | register
}
const fn ldp_q(first: u32, offset: u32) -> u32 {
    0xad40_0000 | (offset / 16) << 15 | (first + 1) << 10 | first
}
const fn stp_q(first: u32, offset: u32) -> u32 {
    0xad00_0000 | (offset / 16) << 15 | (first + 1) << 10 | first
}
/// op1 of 3: NZCV, FPCR, FPSR, TPIDR_EL0.
const NZCV: u32 = 0x001b_4200;
const FPCR: u32 = 0x001b_4400;
const FPSR: u32 = 0x001b_4420;
const TPIDR: u32 = 0x001b_d040;
const fn msr(system: u32, register: u32) -> u32 {
    0xd500_0000 | system | register
}
const fn mrs(system: u32, register: u32) -> u32 {
    0xd520_0000 | system | register
}
/// ADD X0, X0, #512 and its opposite.
const UP: u32 = 0x9108_0000;
const DOWN: u32 = 0xd108_0000;

/// Words of `register = value` for values of 32 bits.
fn constant(register: u32, value: u64) -> [u32; 2] {
    let half = |at: u32| (value >> at & 0xffff) as u32;
    [0xd280_0000 | half(0) << 5 | register, 0xf2a0_0000 | half(16) << 5 | register]
}

impl Batch {
    /// Random cases, as many as `count`, of rows whose name contains `only`.
    pub fn random(seed: u64, count: usize, only: Option<&str>) -> Batch {
        let mut random = crate::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let record = |index: usize| RECORDS + MARGIN + (index * RECORD) as u64;
        let cases = (0..count).map(|index| Case::any(&mut random, only, record(index) + MIDDLE)).collect();
        Batch { cases }
    }

    /// The records before the program runs, margins included.
    pub(crate) fn records(&self) -> Vec<u8> {
        let mut bytes = vec![0; MARGIN as usize * 2 + self.cases.len() * RECORD];
        for (index, case) in self.cases.iter().enumerate() {
            let record = &mut bytes[MARGIN as usize + index * RECORD..][..RECORD];
            for (register, value) in case.x.iter().enumerate() {
                record[register * 8..][..8].copy_from_slice(&value.to_le_bytes());
            }
            record[256..264].copy_from_slice(&case.nzcv.to_le_bytes());
            record[264..272].copy_from_slice(&case.fpcr.to_le_bytes());
            for (register, value) in case.v.iter().enumerate() {
                record[512 + register * 16..][..16].copy_from_slice(&value.to_le_bytes());
            }
            record[WINDOW..].copy_from_slice(&case.window);
        }
        bytes
    }

    /// The code: all cases, then write(1, records) and exit(0).
    pub(crate) fn code(&self) -> Vec<u32> {
        let mut code = Vec::new();
        for (index, case) in self.cases.iter().enumerate() {
            let record = RECORDS + MARGIN + (index * RECORD) as u64;
            code.extend(constant(0, record + MIDDLE));
            // MOV SP, X0: in the middle of the window.
            code.push(0x9100_001f);
            code.extend(constant(0, record));
            code.extend([ldr_x(1, 256), msr(NZCV, 1), ldr_x(1, 264), msr(FPCR, 1), msr(FPSR, 31)]);
            code.push(UP);
            code.extend((0..16).map(|pair| ldp_q(pair * 2, pair * 32)));
            code.push(DOWN);
            code.extend((1..15).map(|pair| ldp_x(pair * 2, pair * 2 + 1, pair * 16)));
            code.extend([ldr_x(30, 240), ldp_x(0, 1, 0)]);
            code.push(case.word);
            code.push(msr(TPIDR, 0));
            code.extend(constant(0, record));
            code.extend((1..15).map(|pair| stp_x(pair * 2, pair * 2 + 1, pair * 16)));
            code.extend([str_x(30, 240), str_x(1, 8), mrs(TPIDR, 1), str_x(1, 0)]);
            // MOV X1, SP
            code.extend([0x9100_03e1, str_x(1, 248)]);
            code.extend([
                mrs(NZCV, 1),
                str_x(1, 256),
                mrs(FPCR, 1),
                str_x(1, 264),
                mrs(FPSR, 1),
                str_x(1, 272),
            ]);
            code.push(UP);
            code.extend((0..16).map(|pair| stp_q(pair * 2, pair * 32)));
        }
        // write(1, RECORDS, length), again until all is written; exit_group(0).
        let length = self.records().len() as u64;
        code.extend(constant(19, RECORDS));
        code.extend(constant(20, length));
        code.extend(constant(0, 1));
        code.extend([0xaa13_03e1, 0xaa14_03e2]);
        code.extend(constant(8, 64));
        code.push(0xd400_0001);
        // ADD X19, X19, X0; SUBS X20, X20, X0; B.NE back to the third constant.
        code.extend([0x8b00_0273, 0xeb00_0294, 0x5400_0001 | (-9_i32 as u32 & 0x7ffff) << 5]);
        code.extend(constant(0, 0));
        code.extend(constant(8, 94));
        code.push(0xd400_0001);
        code
    }

    /// The file that QEMU runs.
    pub(crate) fn elf(&self) -> Vec<u8> {
        let code: Vec<u8> = self.code().iter().flat_map(|word| word.to_le_bytes()).collect();
        let records = self.records();
        let mut file = Vec::new();
        file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
        let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
        let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
        half(&mut file, 2);
        half(&mut file, 183);
        word(&mut file, 1);
        [CODE, 64, 0].iter().for_each(|&value| long(&mut file, value));
        word(&mut file, 0);
        [64_u16, 56, 2, 0, 0, 0].iter().for_each(|&value| half(&mut file, value));
        let code_at = 0x1_0000_u64;
        let records_at = (code_at + code.len() as u64).next_multiple_of(0x1_0000);
        let segments =
            [(5, code_at, CODE, code.len() as u64), (6, records_at, RECORDS, records.len() as u64)];
        for (flags, offset, address, length) in segments {
            word(&mut file, 1);
            word(&mut file, flags);
            [offset, address, address, length, length, 0x1_0000].iter().for_each(|&v| long(&mut file, v));
        }
        file.resize(code_at as usize, 0);
        file.extend(code);
        file.resize(records_at as usize, 0);
        file.extend(records);
        file
    }
}
