//! What the comparison with the real processor leaves out: environments, deferred exceptions,
//! the record of the last instruction.

use satori_defs::fpu::{fcw, fsw};
use satori_defs::x86::{cr0, vector};
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::reg;

use super::{is_pending, top};
use crate::cpu::{Cpu, Exec};
use crate::insn::handler;
use crate::testing::{Machine, SCRATCH, decode, execute, fault_of, machine, machine64};

const FNINIT: [u8; 2] = [0xdb, 0xe3];
const FNCLEX: [u8; 2] = [0xdb, 0xe2];
const WAIT: [u8; 1] = [0x9b];
const FLD1: [u8; 2] = [0xd9, 0xe8];
const FLDZ: [u8; 2] = [0xd9, 0xee];
const FDIVP: [u8; 2] = [0xde, 0xf9];
const FADD_ST1: [u8; 2] = [0xd8, 0xc1];
const FNSTSW_AX: [u8; 2] = [0xdf, 0xe0];
// The operand of all these is [RAX].
const FLDCW: [u8; 2] = [0xd9, 0x28];
const FNSTENV: [u8; 2] = [0xd9, 0x30];
const FLDENV: [u8; 2] = [0xd9, 0x20];
const FNSAVE: [u8; 2] = [0xdd, 0x30];
const FRSTOR: [u8; 2] = [0xdd, 0x20];
const FISTP_M16: [u8; 2] = [0xdf, 0x18];
const FLD_M64: [u8; 2] = [0xdd, 0x00];
const FSTP_M80: [u8; 2] = [0xdb, 0x38];

fn run(cpu: &mut Cpu, bytes: &[u8]) -> Exec<()> {
    let insn = decode(cpu, bytes);
    execute(cpu, &insn, handler(&insn))
}

fn fine(cpu: &mut Cpu, bytes: &[u8]) {
    run(cpu, bytes).unwrap_or_else(|_| panic!("{bytes:02x?} raised {:?}", cpu.pending.fault));
}

fn fault(cpu: &mut Cpu, bytes: &[u8]) -> Exception {
    let outcome = run(cpu, bytes);
    fault_of(cpu, outcome)
}

fn initialised() -> Machine {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RAX] = SCRATCH;
    fine(&mut cpu, &FNINIT);
    cpu
}

fn put(cpu: &Cpu, bytes: &[u8]) {
    cpu.memory.write(Gpa(SCRATCH), bytes).expect("scratch memory is RAM");
}

fn take<const N: usize>(cpu: &Cpu) -> [u8; N] {
    let mut bytes = [0; N];
    cpu.memory.read(Gpa(SCRATCH), &mut bytes).expect("scratch memory is RAM");
    bytes
}

#[test]
fn an_unmasked_exception_waits_for_the_next_waiting_instruction() {
    let mut cpu = initialised();
    put(&cpu, &0x37bu16.to_le_bytes());
    fine(&mut cpu, &FLDCW);
    fine(&mut cpu, &FLD1);
    fine(&mut cpu, &FLDZ);
    let before = cpu.state.fpu.st;
    let rip = cpu.state.rip;
    fine(&mut cpu, &FDIVP);
    assert_eq!(cpu.state.fpu.st, before, "an unmasked division by zero changes no register");
    assert_eq!(top(&cpu.state.fpu), 6, "and pops none");
    assert_eq!((cpu.state.fpu.fip, cpu.state.fpu.fop), (rip, 0x6f9));
    let at = cpu.state.rip;
    for code in [&WAIT[..], &FLD1, &FLDCW, &FRSTOR] {
        assert_eq!(fault(&mut cpu, code), Exception::new(vector::MF));
        assert_eq!(cpu.state.rip, at);
    }
    fine(&mut cpu, &FNSTSW_AX);
    assert_eq!(cpu.state.gpr[reg::RAX] & 0x80ff, 0x8084);
    fine(&mut cpu, &FNCLEX);
    fine(&mut cpu, &WAIT);
    fine(&mut cpu, &FLD1);
}

#[test]
fn a_ninth_push_is_a_stack_fault() {
    let mut cpu = initialised();
    for _ in 0..8 {
        fine(&mut cpu, &FLD1);
    }
    assert_eq!((cpu.state.fpu.ftw, cpu.state.fpu.fsw & 0x7f), (0xff, 0));
    fine(&mut cpu, &FLD1);
    assert_eq!(cpu.state.fpu.fsw & 0x27f, fsw::IE | fsw::SF | fsw::C1, "an overflow");
    assert_eq!(cpu.state.fpu.st[0], 0xffff_c000_0000_0000_0000, "the indefinite");
    fine(&mut cpu, &FNINIT);
    fine(&mut cpu, &FADD_ST1);
    assert_eq!(cpu.state.fpu.fsw & 0x27f, fsw::IE | fsw::SF, "an underflow");
}

#[test]
fn an_unmasked_exception_keeps_a_store_from_memory() {
    let mut cpu = initialised();
    put(&cpu, &1e10f64.to_le_bytes());
    fine(&mut cpu, &FLD_M64);
    put(&cpu, &0x37eu16.to_le_bytes());
    fine(&mut cpu, &FLDCW);
    put(&cpu, &[0xaa; 4]);
    fine(&mut cpu, &FISTP_M16);
    assert_eq!(take(&cpu), [0xaa; 4]);
    assert!(is_pending(&cpu.state.fpu));
    assert_eq!(top(&cpu.state.fpu), 7, "nothing is popped");
    fine(&mut cpu, &FNINIT);
    put(&cpu, &1e10f64.to_le_bytes());
    fine(&mut cpu, &FLD_M64);
    fine(&mut cpu, &FISTP_M16);
    assert_eq!(take(&cpu), 0x8000u16.to_le_bytes(), "masked, the integer indefinite is stored");
    assert_eq!(cpu.state.fpu.fdp, SCRATCH);
}

#[test]
fn a_faulting_store_pops_nothing() {
    let mut cpu = initialised();
    fine(&mut cpu, &FLD1);
    let before = cpu.state.fpu.clone();
    cpu.state.gpr[reg::RAX] = 0x1_0000_0000 - 4;
    assert_eq!(fault(&mut cpu, &FSTP_M80).vector, vector::PF);
    assert_eq!(cpu.state.fpu, before);
}

#[test]
fn environments_have_the_protected_mode_format() {
    let mut cpu = initialised();
    fine(&mut cpu, &FLD1);
    fine(&mut cpu, &FLDZ);
    let fip = cpu.state.fpu.fip as u32;
    let before = cpu.state.fpu.clone();
    fine(&mut cpu, &FNSTENV);
    let fields: Vec<u32> = take::<28>(&cpu)
        .chunks(4)
        .map(|field| u32::from_le_bytes([field[0], field[1], field[2], field[3]]))
        .collect();
    assert_eq!(fields, [0xffff_037f, 0xffff_3000, 0xffff_1fff, fip, 0, 0, 0xffff_0000]);
    assert_eq!(cpu.state.fpu.fcw & fcw::MASKS, fcw::MASKS);
    fine(&mut cpu, &FNINIT);
    fine(&mut cpu, &FLDENV);
    assert_eq!(cpu.state.fpu, before, "registers keep their physical places");
}

#[test]
fn fnsave_and_frstor_keep_everything() {
    let mut cpu = initialised();
    for code in [FLD1, FLDZ, FLD1] {
        fine(&mut cpu, &code);
    }
    let before = cpu.state.fpu.clone();
    fine(&mut cpu, &FNSAVE);
    assert_eq!((cpu.state.fpu.ftw, cpu.state.fpu.fsw, cpu.state.fpu.fcw), (0, 0, fcw::INIT));
    let area = take::<108>(&cpu);
    assert_eq!(area[28..38], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    assert_eq!(area[38..48], [0; 10]);
    fine(&mut cpu, &FRSTOR);
    assert_eq!(cpu.state.fpu, before);
}

#[test]
fn real_mode_environments_carry_linear_pointers_and_the_opcode() {
    let mut cpu = machine();
    cpu.state.cr0 &= !cr0::PE;
    for segment in &mut cpu.state.seg {
        segment.base = 0;
    }
    cpu.mode_changed();
    // FNSTENV [BX], with BX = 0x8000.
    cpu.state.gpr[reg::RBX] = 0x8000;
    cpu.state.fpu.fip = 0x5_4321;
    cpu.state.fpu.fdp = 0x9_8765;
    cpu.state.fpu.fop = 0x6f9;
    let before = cpu.state.fpu.clone();
    fine(&mut cpu, &[0xd9, 0x37]);
    let mut words = [0; 14];
    cpu.memory.read(Gpa(0x8000), &mut words).expect("low memory is RAM");
    assert_eq!(words[6..], [0x21, 0x43, 0xf9, 0x56, 0x65, 0x87, 0, 0x90]);
    cpu.state.fpu.fip = 0;
    cpu.state.fpu.fop = 0;
    fine(&mut cpu, &[0xd9, 0x27]);
    assert_eq!(cpu.state.fpu, before);
}

#[test]
fn task_switched_and_emulation_forbid_the_fpu() {
    let cases: [(u64, &[u8], bool); 6] = [
        (cr0::TS, &FLD1, true),
        (cr0::EM, &FNINIT, true),
        (cr0::EM, &WAIT, false),
        (cr0::TS, &WAIT, false),
        (cr0::TS | cr0::MP, &WAIT, true),
        (cr0::MP, &WAIT, false),
    ];
    for (bits, code, refused) in cases {
        let mut cpu = machine64();
        cpu.state.cr0 = cpu.state.cr0 & !(cr0::TS | cr0::EM | cr0::MP) | bits;
        cpu.mode_changed();
        let outcome = run(&mut cpu, code);
        assert_eq!(outcome.is_err(), refused, "{code:02x?} with CR0 bits {bits:#x}");
        if refused {
            assert_eq!(fault_of(&mut cpu, outcome), Exception::new(vector::NM));
        }
    }
}
