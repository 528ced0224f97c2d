use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::reg;

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
    let until = Until { counter: None, instructions: Some(BLOCKS as u64) };
    assert_eq!(cpu.run(until), Exit::Budget);
    assert!(cpu.blocks.storage.len() >= BLOCKS);
    let least = cpu.blocks.storage.len() * (size_of::<Block>() + size_of::<Op>() + 2 + OVERHEAD);
    assert_eq!(cpu.blocks.memory, least);
}

#[test]
fn blocks_are_forgotten_when_they_take_too_much() {
    let mut cpu = machine64();
    cpu.memory.write(Gpa(CODE), &[0xeb, 0].repeat(8)).unwrap();
    cpu.state.rip = CODE;
    cpu.blocks.memory = MAX_MEMORY + 1;
    assert_eq!(cpu.run(Until { counter: None, instructions: Some(4) }), Exit::Budget);
    assert_eq!(cpu.blocks.counts.resets, 1);
    assert!(cpu.blocks.memory < MAX_MEMORY && !cpu.blocks.storage.is_empty());
}

#[test]
fn overwritten_blocks_are_freed_and_others_kept() {
    const OTHER: u64 = CODE + 0x1000;
    let mut cpu = machine64();
    let mut run = |code: u64, text: &[u8], at_once: bool| {
        cpu.memory.write(Gpa(code), &text.repeat(8)).unwrap();
        cpu.state.rip = code;
        cpu.blocks.sweep_at = if at_once { 0 } else { usize::MAX };
        let before = cpu.blocks.counts;
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(4) }), Exit::Budget);
        // SAFETY: the blocks in storage live.
        let sizes = cpu.blocks.storage.iter().map(|&block| unsafe { (*block).memory() });
        assert_eq!(cpu.blocks.memory, sizes.sum::<usize>());
        let after = cpu.blocks.counts;
        (after.decoded - before.decoded, after.swept - before.swept, cpu.blocks.table.len())
    };
    // JMP to what follows, a block each; the same with a NOP before.
    assert_eq!(run(OTHER, &[0xeb, 0], false), (4, 0, 4));
    assert_eq!(run(CODE, &[0xeb, 0], false), (4, 0, 8));
    assert_eq!(run(CODE, &[0x66, 0x90, 0xeb, 0], true), (2, 4, 6));
}

#[test]
fn what_something_was_made_of_stays_when_the_rest_makes_room() {
    let mut cpu = machine64();
    // JMP to what follows, a block each.
    cpu.memory.write(Gpa(CODE), &[0xeb, 0].repeat(9)).unwrap();
    let run = |cpu: &mut crate::testing::Machine| {
        cpu.state.rip = CODE;
        let before = cpu.blocks.counts.decoded;
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(8) }), Exit::Budget);
        cpu.blocks.counts.decoded - before
    };
    assert_eq!((run(&mut cpu), run(&mut cpu)), (8, 0));
    let needed: Addresses = cpu.blocks.storage.iter().skip(2).take(3).copied().collect();
    cpu.blocks.age(&needed);
    assert_eq!(cpu.blocks.storage.iter().copied().collect::<Addresses>(), needed);
    assert_eq!((cpu.blocks.table.len(), cpu.blocks.counts.swept, cpu.blocks.counts.aged), (3, 5, 1));
    // SAFETY: the blocks in storage live.
    let sizes = cpu.blocks.storage.iter().map(|&block| unsafe { (*block).memory() });
    assert_eq!(cpu.blocks.memory, sizes.sum::<usize>());
    assert_eq!((run(&mut cpu), run(&mut cpu)), (5, 0));
}

#[test]
fn a_block_beside_what_was_written_is_not_decoded_again() {
    let mut cpu = machine64();
    // INC EAX; JMP back.
    cpu.memory.write(Gpa(CODE), &[0xff, 0xc0, 0xeb, 0xfc]).unwrap();
    let mut run = |at: u64, byte: u8| {
        cpu.memory.write(Gpa(at), &[byte]).unwrap();
        (cpu.state.rip, cpu.state.gpr[reg::RAX]) = (CODE, 0);
        let before = cpu.blocks.counts;
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(6) }), Exit::Budget);
        let after = cpu.blocks.counts;
        let changes = (after.decoded - before.decoded, after.same - before.same, after.stale - before.stale);
        (changes, cpu.state.gpr[reg::RAX] as u32, cpu.blocks.storage.len())
    };
    let page_end = CODE + 0xfff;
    assert_eq!(run(page_end, 1), ((1, 0, 0), 3, 1));
    assert_eq!(run(page_end, 2), ((0, 1, 0), 3, 1));
    // DEC EAX, in the place of the first block; and back, with the same byte once more.
    assert_eq!(run(CODE + 1, 0xc8), ((1, 0, 1), 0u32.wrapping_sub(3), 1));
    assert_eq!(run(CODE + 1, 0xc0), ((1, 0, 1), 3, 1));
    assert_eq!(run(CODE + 1, 0xc0), ((0, 1, 0), 3, 1));
}
