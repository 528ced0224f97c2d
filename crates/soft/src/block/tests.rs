use satori_engine::{Exit, Until};
use satori_memory::Gpa;

use super::blocks::{MAX_MEMORY, OVERHEAD};
use super::*;
use crate::testing::machine64;

const CODE: u64 = 0x10_0000;

#[test]
fn the_smallest_blocks_count_with_all_that_they_take() {
    const BLOCKS: usize = 1000;
    let mut cpu = machine64();
    // JMP to what follows, a block each.
    cpu.memory.write(Gpa(CODE), &[0xeb, 0].repeat(BLOCKS + 1)).unwrap();
    cpu.state.rip = CODE;
    let until = Until { tsc: None, instructions: Some(BLOCKS as u64) };
    assert_eq!(cpu.run(until), Exit::Budget);
    assert!(cpu.blocks.storage.len() >= BLOCKS);
    let least = cpu.blocks.storage.len() * (size_of::<Block>() + size_of::<Op>() + OVERHEAD);
    assert_eq!(cpu.blocks.memory, least);
}

#[test]
fn blocks_are_forgotten_when_they_take_too_much() {
    let mut cpu = machine64();
    cpu.memory.write(Gpa(CODE), &[0xeb, 0].repeat(8)).unwrap();
    cpu.state.rip = CODE;
    cpu.blocks.memory = MAX_MEMORY + 1;
    assert_eq!(cpu.run(Until { tsc: None, instructions: Some(4) }), Exit::Budget);
    assert_eq!(cpu.blocks.counts.resets, 1);
    assert!(cpu.blocks.memory < MAX_MEMORY && !cpu.blocks.storage.is_empty());
}
