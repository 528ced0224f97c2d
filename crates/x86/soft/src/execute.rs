//! The loop that executes blocks, whoever executes them.

use std::ptr::NonNull;

use satori_engine::{Exit, Stat, Until};

use crate::block::{BLOCK_RIP, Block, Blocks, Flow, Found};
use crate::cpu::{Cpu, Stop};
use crate::run::Horizon;

/// A processor with what it has decoded, and perhaps made of that.
pub trait Executor: Send {
    /// Instructions between two looks at the clock.
    const INTERVAL: u64;

    /// The processor.
    fn cpu(&self) -> &Cpu;

    /// What it has decoded.
    fn blocks(&self) -> &Blocks;

    /// Both, to be changed.
    fn parts(&mut self) -> (&mut Cpu, &mut Blocks);

    /// A run begins.
    fn begin(&mut self) {}

    /// Executes `block`, which was just found at RIP, in a better way than by its operations, if there is one.
    #[inline(always)]
    fn run_hot(&mut self, _block: *mut Block, _horizon: &Horizon) -> Ran {
        Ran::Not
    }

    /// Frees blocks until [`Blocks::wants_room`] no more.
    fn make_room(&mut self);

    /// Forgets all that it decoded and made, without freeing it. It runs no more.
    fn abandon(&mut self) {
        self.parts().1.abandon();
    }

    /// Counters of its own.
    fn stats(&self, _stats: &mut Vec<Stat>) {}
}

/// What came of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Nothing: its operations are to be executed.
    Not,
    /// RIP says where to go on.
    On,
    /// The machine is needed.
    Exit(Exit),
}

impl From<Option<Exit>> for Ran {
    #[inline(always)]
    fn from(exit: Option<Exit>) -> Self {
        exit.map_or(Ran::On, Ran::Exit)
    }
}

/// The processor and its blocks, and nothing else.
pub struct Interpreting {
    /// The processor.
    pub cpu: Cpu,
    /// What it has decoded.
    pub blocks: Blocks,
}

impl Interpreting {
    /// Nothing is decoded yet.
    pub fn new(cpu: Cpu) -> Self {
        Interpreting { cpu, blocks: Blocks::new() }
    }
}

impl Executor for Interpreting {
    const INTERVAL: u64 = 8192;

    #[inline(always)]
    fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    #[inline(always)]
    fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Cpu, &mut Blocks) {
        (&mut self.cpu, &mut self.blocks)
    }

    fn make_room(&mut self) {
        self.blocks.sweep(&Default::default());
        if self.blocks.is_full() {
            self.blocks.reset();
        }
    }
}

/// Executes until something needs the machine.
pub fn run<E: Executor>(executor: &mut E, until: Until) -> Exit {
    let (cpu, _) = executor.parts();
    let mut horizon = cpu.begin_run(until, E::INTERVAL);
    let executing = cpu.parallel().then(|| cpu.seat().enter());
    executor.begin();
    let exit = run_inner(executor, &mut horizon);
    executor.parts().0.account(&exit);
    drop(executing);
    executor.parts().0.end_run(exit);
    exit
}

fn run_inner<E: Executor>(executor: &mut E, horizon: &mut Horizon) -> Exit {
    if let Some(exit) = executor.parts().0.go_on() {
        return exit;
    }
    let mut before = None;
    loop {
        let (cpu, blocks) = executor.parts();
        if cpu.windows.attention || cpu.kick().pending() || cpu.count.retired >= horizon.look {
            cpu.leave_block();
            before = None;
            let steps = cpu.decoded.steps;
            if let Some(exit) = cpu.look_around(horizon) {
                return exit;
            }
            // It may have executed an instruction: what that left, and what its shadow held
            // back, has to be looked at before the next one.
            if cpu.decoded.steps != steps || cpu.special() || cpu.count.retired >= horizon.look {
                continue;
            }
        }
        let found = match before.take() {
            Some((block, rip)) => blocks.find_next(cpu, block, rip),
            None => blocks.find(cpu),
        };
        let stopped = match found {
            Ok(Found::Block(block)) => match executor.run_hot(block, horizon) {
                Ran::Not => match interpret(executor.parts(), block, horizon) {
                    Interpreted::Whole(rip) => {
                        before = Some((block, rip));
                        continue;
                    }
                    Interpreted::Stopped(exit) => exit,
                },
                Ran::On => continue,
                Ran::Exit(exit) => return exit,
            },
            Ok(Found::Alone) => cpu.step(),
            Ok(Found::NoRoom) => {
                cpu.leave_block();
                cpu.return_resume();
                executor.make_room();
                None
            }
            Err(stop) => {
                cpu.leave_block();
                cpu.stopped(stop)
            }
        };
        if let Some(exit) = stopped {
            return exit;
        }
    }
}

enum Interpreted {
    /// All of the block, which stood at this address.
    Whole(u64),
    /// Only what is counted; perhaps the machine is needed.
    Stopped(Option<Exit>),
}

/// Executes the operations of `block`, which was just found at RIP.
#[inline(always)]
fn interpret((cpu, blocks): (&mut Cpu, &mut Blocks), block: *mut Block, horizon: &Horizon) -> Interpreted {
    // SAFETY: blocks are freed only to make room, and none runs then.
    let (place, instructions, mut op) = unsafe {
        let place = NonNull::new_unchecked(block);
        (place, (*block).instructions, (*block).ops())
    };
    if cpu.count.retired + u64::from(instructions) > horizon.look {
        return Interpreted::Stopped(cpu.step());
    }
    let rip = cpu.state.rip;
    cpu.state.gpr[BLOCK_RIP] = rip;
    // SAFETY: as above; before room is made, `Cpu::leave_block` is called.
    unsafe { cpu.enter_block(place) };
    blocks.counts.executed += 1;
    let flow = loop {
        // SAFETY: the last operation of a block never returns Next.
        let flow = unsafe { ((*op).run.get())(cpu, &*op) };
        if flow != Flow::Next {
            break flow;
        }
        // SAFETY: as above, so another operation follows.
        op = unsafe { op.add(1) };
    };
    if flow == Flow::Jump {
        cpu.count.retired += u64::from(instructions);
        return Interpreted::Whole(rip);
    }
    cpu.settle_block();
    Interpreted::Stopped(match flow {
        Flow::Fault => cpu.stopped(Stop::Fault),
        Flow::Exit => cpu.stopped(Stop::Exit),
        Flow::Generic => cpu.step(),
        Flow::Next | Flow::Jump | Flow::Stale => None,
    })
}
