//! A vCPU of AArch64 as a debugger sees it: one table of registers for the target description and every packet.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::LazyLock;

use gdbstub::arch::{Arch, RegId, Registers};
use satori_arm_state::{CpuState, El, Pstate, SP, Sys};
use satori_memory::GuestMemory;

use super::vcpu::ArmVcpu;
use crate::gdb::{Change, Debugged, Target, map, tid};

/// gdb's numbers of registers: X0 to X30, SP, PC, CPSR; V0 to V31, FPSR, FPCR (gdb's manual, AArch64 features).
const SP_NUMBER: usize = 31;
const PC: usize = 32;
const CPSR: usize = 33;
const V: usize = 34;
const FPSR: usize = V + 32;
const FPCR: usize = FPSR + 1;
/// Behind them system registers, which are shown and not set.
const SYSTEM: usize = FPCR + 1;
const SHOWN: [(&str, Sys); 14] = [
    ("SCTLR_EL1", Sys::SCTLR_EL1),
    ("TTBR0_EL1", Sys::TTBR0_EL1),
    ("TTBR1_EL1", Sys::TTBR1_EL1),
    ("TCR_EL1", Sys::TCR_EL1),
    ("VBAR_EL1", Sys::VBAR_EL1),
    ("ESR_EL1", Sys::ESR_EL1),
    ("FAR_EL1", Sys::FAR_EL1),
    ("ELR_EL1", Sys::ELR_EL1),
    ("SPSR_EL1", Sys::SPSR_EL1),
    ("HCR_EL2", Sys::HCR_EL2),
    ("VBAR_EL2", Sys::VBAR_EL2),
    ("ESR_EL2", Sys::ESR_EL2),
    ("ELR_EL2", Sys::ELR_EL2),
    ("MPIDR_EL1", Sys::MPIDR_EL1),
];
const COUNT: usize = SYSTEM + SHOWN.len();

/// Bytes of a register.
fn size(number: usize) -> usize {
    match number {
        CPSR | FPSR | FPCR => 4,
        V..FPSR => 16,
        _ => 8,
    }
}

fn get(state: &CpuState, number: usize) -> u128 {
    match number {
        0..=SP_NUMBER => state.x[number].into(),
        PC => state.pc.into(),
        CPSR => (state.pstate.to_spsr() as u32).into(),
        V..FPSR => state.v[number - V],
        FPSR => state.fpsr.into(),
        FPCR => state.fpcr.into(),
        _ => SHOWN.get(number - SYSTEM).map_or(0, |(_, sys)| state.get(*sys).into()),
    }
}

/// Changes a register. Of the process state the flags and masks alone: level and stack pointer hang on the rest.
fn set(state: &mut CpuState, number: usize, value: u128) {
    match number {
        0..=SP_NUMBER => state.x[number] = value as u64,
        PC => state.pc = value as u64,
        CPSR => {
            state.pstate.nzcv = value as u32 & 0xf000_0000;
            state.pstate.daif = value as u32 & Pstate::DAIF;
        }
        V..FPSR => state.v[number - V] = value,
        // The cumulative flags and QC.
        FPSR => state.fpsr = value as u32 & 0x0800_009f,
        // AHP, DN, FZ, RMode and FZ16.
        FPCR => state.fpcr = value as u32 & 0x07c8_0000,
        _ => {}
    }
}

const _: () = assert!(SP == SP_NUMBER);

const FPU_TYPES: &str = r#"
<vector id="v2d" type="ieee_double" count="2"/><vector id="v2u" type="uint64" count="2"/>
<vector id="v4f" type="ieee_single" count="4"/><vector id="v4u" type="uint32" count="4"/>
<vector id="v8u" type="uint16" count="8"/><vector id="v16u" type="uint8" count="16"/>
<union id="aarch64v"><field name="d" type="v2d"/><field name="u" type="v2u"/><field name="f" type="v4f"/>
<field name="s" type="v4u"/><field name="h" type="v8u"/><field name="b" type="v16u"/>
<field name="q" type="uint128"/></union>"#;

fn description() -> String {
    let mut xml = String::from(
        r#"<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target version="1.0"><architecture>aarch64</architecture><feature name="org.gnu.gdb.aarch64.core">"#,
    );
    (0..31).for_each(|number| _ = write!(xml, r#"<reg name="x{number}" bitsize="64"/>"#));
    xml += r#"<reg name="sp" bitsize="64" type="data_ptr"/><reg name="pc" bitsize="64" type="code_ptr"/><reg name="cpsr" bitsize="32"/>"#;
    xml += r#"</feature><feature name="org.gnu.gdb.aarch64.fpu">"#;
    xml += FPU_TYPES;
    (0..32).for_each(|number| _ = write!(xml, r#"<reg name="v{number}" bitsize="128" type="aarch64v"/>"#));
    xml += r#"<reg name="fpsr" bitsize="32"/><reg name="fpcr" bitsize="32"/></feature>"#;
    xml += r#"<feature name="org.satori.aarch64.system">"#;
    for (name, _) in SHOWN {
        let _ = write!(xml, r#"<reg name="{name}" bitsize="64"/>"#);
    }
    xml + "</feature></target>"
}

/// The register file in gdb's eyes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Image(CpuState);

impl Default for Image {
    fn default() -> Self {
        Image(CpuState::reset(El::One, 0))
    }
}

impl Registers for Image {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.0.pc
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for number in 0..COUNT {
            let bytes = get(&self.0, number).to_le_bytes();
            bytes[..size(number)].iter().for_each(|byte| write_byte(Some(*byte)));
        }
    }

    fn gdb_deserialize(&mut self, mut bytes: &[u8]) -> Result<(), ()> {
        for number in 0..COUNT {
            let (value, rest) = bytes.split_at_checked(size(number)).ok_or(())?;
            set(&mut self.0, number, whole(value));
            bytes = rest;
        }
        Ok(())
    }
}

fn whole(bytes: &[u8]) -> u128 {
    let mut value = [0; 16];
    value[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(value)
}

/// A register's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(usize);

impl RegId for Number {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        (id < COUNT).then(|| (Number(id), NonZeroUsize::new(size(id))))
    }
}

/// AArch64 with some system registers.
#[derive(Debug)]
pub(crate) enum Aarch64 {}

impl Arch for Aarch64 {
    type Usize = u64;
    type Registers = Image;
    type BreakpointKind = usize;
    type RegId = Number;

    fn target_description_xml() -> Option<&'static str> {
        static XML: LazyLock<String> = LazyLock::new(description);
        Some(&XML)
    }
}

const HELP: &str = "\
monitor help                  this list
monitor info                  the machine's vCPUs and time
monitor dirty-log start|stop  logs which pages of RAM are written, by the guest and its devices, or no more
monitor dirty-log take        the ranges that were, since the start or the last take
monitor ram                   where the guest has RAM
monitor step-events on|off    whether interrupts are taken while a vCPU is stepped [off]
";

fn info(target: &Target<ArmVcpu>) -> String {
    let mut text = format!("time {} ns\n", target.clock.now());
    for vcpu in 0..target.control.vcpus() {
        if let Ok(state) = target.state(tid(vcpu)) {
            let (activity, level) = (ArmVcpu::activity(&state), state.pstate.el as u8);
            let _ = writeln!(text, "CPU#{vcpu} {activity}, PC {:#x}, EL{level}", state.pc);
        }
    }
    text
}

impl Debugged for ArmVcpu {
    type State = CpuState;
    type Image = Image;
    type Number = Number;
    type Arch = Aarch64;

    fn copy(&mut self) -> CpuState {
        self.registers().clone()
    }

    fn change(&mut self, change: Change<CpuState>) {
        self.change_state(change);
    }

    fn linear_pc(state: &CpuState) -> u64 {
        state.pc
    }

    fn activity(state: &CpuState) -> &'static str {
        if state.off { "off" } else { "on" }
    }

    fn image(state: CpuState) -> Image {
        Image(state)
    }

    fn state_of(image: Image) -> CpuState {
        image.0
    }

    fn read(Number(number): Number, state: &CpuState, buffer: &mut [u8]) -> Option<usize> {
        let size = size(number);
        buffer.get_mut(..size)?.copy_from_slice(&get(state, number).to_le_bytes()[..size]);
        Some(size)
    }

    fn write(Number(number): Number, state: &mut CpuState, bytes: &[u8]) -> Option<()> {
        set(state, number, whole(bytes.get(..size(number))?));
        Some(())
    }

    fn translate(&self, address: u64) -> Option<u64> {
        self.peek(address)
    }

    fn memory(&self) -> &GuestMemory {
        self.ram()
    }

    fn monitor(target: &mut Target<ArmVcpu>, command: &str) -> String {
        match command.split_whitespace().collect::<Vec<_>>()[..] {
            [] | ["help"] => HELP.into(),
            ["info"] => info(target),
            ["dirty-log", ref asked @ ..] => map::dirty_log(&target.control, asked),
            ["ram"] => map::ram(&target.control, &[]),
            ["step-events", word @ ("on" | "off")] => {
                target.control.set_step_events(word == "on");
                let not = if word == "on" { "" } else { "not " };
                format!("interrupts are {not}taken while a vCPU is stepped\n")
            }
            _ => format!("'{command}' is no command, or not all of one; 'monitor help' lists them\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_can_be_written_back_and_the_level_stays() {
        let mut state = CpuState::reset(El::One, 3);
        (state.pc, state.x[30], state.x[SP]) = (0xffff_8000_0801_0000, 30, 0x1000);
        state.v[31] = u128::MAX - 5;
        (state.fpsr, state.fpcr) = (0x10, 0x0100_0000);
        let mut bytes = Vec::new();
        Image(state.clone()).gdb_serialize(|byte| bytes.push(byte.unwrap()));
        assert_eq!(bytes.len(), (0..COUNT).map(size).sum::<usize>());
        let mut image = Image(CpuState::reset(El::One, 3));
        image.gdb_deserialize(&bytes).unwrap();
        assert_eq!(image.0, state);
        assert_eq!(image.gdb_deserialize(&bytes[1..]), Err(()));
        image.gdb_deserialize(&vec![0xff; bytes.len()]).unwrap();
        assert_eq!((image.0.pstate.el, image.0.pstate.own_sp), (El::One, state.pstate.own_sp));
        assert_eq!(image.0.get(Sys::SCTLR_EL1), state.get(Sys::SCTLR_EL1));
    }

    #[test]
    fn numbers_follow_the_description() {
        let xml = Aarch64::target_description_xml().unwrap();
        let names: Vec<_> =
            xml.split("<reg name=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(names.len(), COUNT);
        assert_eq!([names[PC], names[CPSR], names[V], names[FPCR]], ["pc", "cpsr", "v0", "fpcr"]);
        assert!(Number::from_raw_id(COUNT).is_none());
    }
}
