//! In the making.
use satori_engine::Exception;

use crate::cpu::{Cpu, Handler};
pub struct Shutdown;
pub enum InterruptKind {
    External,
    Software,
    Nmi,
}
pub fn handler(_insn: &iced_x86::Instruction) -> Option<Handler> {
    None
}
pub fn raise_fault(_cpu: &mut Cpu, _e: Exception) -> Result<(), Shutdown> {
    Err(Shutdown)
}
pub fn interrupt(_cpu: &mut Cpu, _vector: u8, _kind: InterruptKind) -> Result<(), Shutdown> {
    Err(Shutdown)
}
