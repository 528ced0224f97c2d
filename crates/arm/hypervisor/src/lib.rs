//! A hypervisor for EL2 as a program that can be read in an hour, and its guest: what "To EL2, and beyond!" (C. Dall, SFO17-403) did
//! to KVM/ARM, step by step, without Linux around it.
//!
//! [`Design`] says how worlds are switched: in split mode, where the host's kernel is at EL1 and calls EL2 for each entry of the guest;
//! by VHE, the kernel at EL2, with everything done as in split mode; and with each of the talk's five optimisations. [`image`] makes
//! an arm64 Image of one design and one [`Benchmark`], that any machine of QEMU's `virt` with EL2 and a GICv3 boots:
//!
//! * `switch` is the switch between worlds: what is saved, armed and restored at each entry, and what when a vCPU is loaded and put;
//! * `host` is the host's kernel: boot, the loop that runs a vCPU, its exits, the emulated interrupt controller; and the program that
//!   emulates a device, at EL0;
//! * `guest` is the guest;
//! * `monitor` is a program that runs the same guest under Linux's KVM;
//! * `asm` makes words of the one table of instructions, so that nobody needs another compiler.
//!
//! Both kernels run with their MMU off; the guest is behind stage 2 translation. Where a word of Linux's KVM exists for a thing, it is used.

#![forbid(unsafe_code)]

mod asm;
mod design;
mod guest;
mod host;
mod layout;
mod monitor;
mod switch;

pub use design::{Benchmark, DESIGNS, Design};

use asm::Asm;
use layout::{GUEST_OFFSET, HEADER, IMAGE_SIZE};

/// Code that is being made, and of what.
pub(crate) struct Program {
    pub(crate) a: Asm,
    pub(crate) design: Design,
    pub(crate) benchmark: Benchmark,
    /// Parts of the switch that are functions of their own, and have yet to be made.
    pub(crate) parts: Vec<switch::Part>,
}

/// An Image of the hypervisor with a guest that does `rounds` of `benchmark` and turns the machine off. It says `sum` and a number in
/// hexadecimal, which is [`Benchmark::sum`] if all went well.
pub fn image(design: Design, benchmark: Benchmark, rounds: u32) -> Result<Vec<u8>, String> {
    let mut program = Program { a: Asm::new(), design, benchmark, parts: Vec::new() };
    program.a.b("boot");
    program.a.at(HEADER);
    program.boot();
    program.kernel();
    program.exits();
    program.world_switch();
    program.program();
    program.vectors();
    program.tables();
    let mut image = program.a.finish()?;
    let guest = guest::guest(&[benchmark], rounds)?;
    if image.len() > layout::AREAS_OFFSET {
        return Err("the hypervisor is too long".into());
    }
    image.resize(GUEST_OFFSET, 0);
    image.extend(guest);
    // Documentation/arch/arm64/booting.rst: offset, size, little-endian with pages of 4 KiB anywhere, magic number.
    image[8..16].copy_from_slice(&layout::TEXT_OFFSET.to_le_bytes());
    image[16..24].copy_from_slice(&(IMAGE_SIZE as u64).to_le_bytes());
    image[24..32].copy_from_slice(&0xa_u64.to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    Ok(image)
}

/// A static program of Linux, to be a machine's init: its guest under KVM does `rounds` of what needs one vCPU, a benchmark behind the
/// other; then it says `vmm:well` and turns the machine off.
pub fn monitor(rounds: u32) -> Result<Vec<u8>, String> {
    monitor::program(&guest::guest(&[Benchmark::Hypercall, Benchmark::IoKernel, Benchmark::IoUser], rounds)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_design_is_made_for_every_benchmark_of_words_that_decode() {
        for (name, design) in DESIGNS {
            for benchmark in Benchmark::ALL {
                let image = image(*design, benchmark, 1000).unwrap();
                let words =
                    image[HEADER..].chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
                let code = words.take_while(|word| *word != layout::END_OF_CODE);
                for (at, word) in code.enumerate().filter(|(_, word)| *word != 0) {
                    assert!(
                        satori_arm_isa::decode(word).is_some(),
                        "{name}, {benchmark:?}: {at:#x}: {word:08x}"
                    );
                }
            }
        }
    }
}
