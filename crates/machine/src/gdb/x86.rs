//! A vCPU of x86 as a debugger sees it.

use satori_memory::GuestMemory;
use satori_state::CpuState;

use super::registers::{Image, Number, X86};
use super::{Change, Debugged, Target, monitor};
use crate::x86::MachineVcpu;

impl Debugged for MachineVcpu {
    type State = CpuState;
    type Image = Image;
    type Number = Number;
    type Arch = X86;

    fn copy(&mut self) -> CpuState {
        self.registers().clone()
    }

    fn change(&mut self, change: Change<CpuState>) {
        self.change_state(change);
    }

    fn linear_pc(state: &CpuState) -> u64 {
        if state.code64() { state.rip } else { state.rip.wrapping_add(state.seg[1].base) & 0xffff_ffff }
    }

    fn activity(state: &CpuState) -> &'static str {
        monitor::activity(state)
    }

    fn image(state: CpuState) -> Image {
        Image(state)
    }

    fn state_of(image: Image) -> CpuState {
        image.0
    }

    fn read(number: Number, state: &CpuState, buffer: &mut [u8]) -> Option<usize> {
        number.read(state, buffer)
    }

    fn write(number: Number, state: &mut CpuState, bytes: &[u8]) -> Option<()> {
        number.write(state, bytes)
    }

    fn translate(&self, address: u64) -> Option<u64> {
        self.vcpu().translate(address)
    }

    fn memory(&self) -> &GuestMemory {
        self.memory()
    }

    fn other(&self) -> Option<CpuState> {
        self.vcpu().nested().map(|view| view.other)
    }

    fn translate_other(&self, address: u64) -> Option<u64> {
        self.vcpu().translate_other(address)
    }

    fn other_is(&self) -> String {
        match self.vcpu().nested() {
            Some(view) if view.inside => "[the hypervisor, at its VM exit]".into(),
            Some(view) => format!("[the guest of the {} at {:#x}, at its VM entry]", view.form, view.at),
            None => "[gone]".into(),
        }
    }

    fn monitor(target: &mut Target<MachineVcpu>, command: &str) -> String {
        monitor::command(target, command)
    }
}
