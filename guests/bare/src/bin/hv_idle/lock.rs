//! A queued spinlock whose waiters go idle, step by step that of Linux on Hyper-V (kernel/locking/qspinlock.c and
//! qspinlock_paravirt.h): bytes, words and the double word of one lock are changed by locked operations of
//! each size, by XCHG and by plain stores at the same time, and a waiter that went idle is woken by one IPI only.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicUsize, Ordering::*};

use satori_guests::insn;

use crate::wait;

const LOCKED: u32 = 1;
const PENDING: u32 = 1 << 8;
/// In the place of LOCKED: the holder finds its successor in [`Lock::hashed`], and wakes it.
const SLOW: u8 = 3;

const RUNNING: u8 = 0;
const HALTED: u8 = 1;
const HASHED: u8 = 2;

/// Who may wait: a vCPU, and its handlers.
pub const CONTEXTS: usize = 2;

/// What the others see of one who waits.
pub struct Node {
    /// It is the head of the queue.
    locked: AtomicU32,
    /// The number of its successor, and 1; 0 if there is none yet.
    next: AtomicUsize,
    state: AtomicU8,
}

impl Node {
    pub const fn new() -> Node {
        Node { locked: AtomicU32::new(0), next: AtomicUsize::new(0), state: AtomicU8::new(RUNNING) }
    }
    /// For those who look for what is wrong.
    pub fn tell(&self) -> (u32, usize, u8) {
        (self.locked.load(SeqCst), self.next.load(SeqCst), self.state.load(SeqCst))
    }
}

pub struct Lock {
    word: AtomicU32,
    /// The number of whom the holder wakes, and 1.
    hashed: AtomicUsize,
}

impl Lock {
    pub const fn new() -> Lock {
        Lock { word: AtomicU32::new(0), hashed: AtomicUsize::new(0) }
    }

    pub fn tell(&self) -> (u32, usize) {
        (self.word.load(SeqCst), self.hashed.load(SeqCst))
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: a byte of the word; on the guest's processor all are atomic.
        unsafe { AtomicU8::from_ptr(self.word.as_ptr().cast::<u8>().add(at)) }
    }

    fn half(&self, at: usize) -> &AtomicU16 {
        // SAFETY: half of the word.
        unsafe { AtomicU16::from_ptr(self.word.as_ptr().cast::<u16>().add(at)) }
    }

    fn steal(&self) -> bool {
        self.word.load(Relaxed) & (0xff | PENDING) == 0
            && self.byte(0).compare_exchange(0, LOCKED as u8, SeqCst, Relaxed).is_ok()
    }

    /// Takes it as `me`, a number of `nodes`. Who waits looks `tries` times before it goes idle.
    pub fn lock(&self, nodes: &[Node], me: usize, tries: u32) {
        if self.word.compare_exchange(0, LOCKED, SeqCst, Relaxed).is_ok() {
            return;
        }
        let node = &nodes[me];
        node.locked.store(0, Relaxed);
        node.next.store(0, Relaxed);
        node.state.store(RUNNING, Relaxed);
        if self.steal() {
            return;
        }
        let tail = me as u16 + 1;
        let before = self.half(1).swap(tail, SeqCst);
        if before != 0 {
            nodes[usize::from(before) - 1].next.store(me + 1, Release);
            node.become_head(tries);
        }
        self.be_head(node, me, tries);
        // Nobody behind: the tail goes, and nobody has to be told.
        let alone = |word: u32| (word >> 16 == u32::from(tail)).then_some(LOCKED);
        if self.word.fetch_update(SeqCst, Relaxed, alone).is_ok() {
            return;
        }
        let next = loop {
            match node.next.load(Acquire) {
                0 => insn::pause(),
                next => break next - 1,
            }
        };
        let successor = &nodes[next];
        successor.locked.store(1, Release);
        // It sleeps, or is about to: whoever unlocks wakes it.
        if successor.state.compare_exchange(HALTED, HASHED, SeqCst, Relaxed).is_ok() {
            self.byte(0).store(SLOW, Relaxed);
            self.hashed.store(next + 1, SeqCst);
        }
    }

    fn be_head(&self, node: &Node, me: usize, tries: u32) {
        let mut hashed = node.state.load(SeqCst) == HASHED;
        loop {
            node.state.store(RUNNING, Relaxed);
            self.byte(1).store(1, Relaxed);
            for _ in 0..tries {
                if self.byte(0).load(Relaxed) == 0
                    && self.half(0).compare_exchange(PENDING as u16, LOCKED as u16, SeqCst, Relaxed).is_ok()
                {
                    return;
                }
                insn::pause();
            }
            self.byte(1).store(0, Relaxed);
            if !hashed {
                self.hashed.store(me + 1, SeqCst);
                hashed = true;
                if self.byte(0).swap(SLOW, SeqCst) == 0 {
                    // It was just given up.
                    self.byte(0).store(LOCKED as u8, Relaxed);
                    self.hashed.store(0, SeqCst);
                    return;
                }
            }
            node.state.store(HASHED, Relaxed);
            wait(self.byte(0), SLOW);
        }
    }

    /// Gives it up; the number of whom to wake, if somebody sleeps.
    #[must_use]
    pub fn unlock(&self) -> Option<usize> {
        if self.byte(0).compare_exchange(LOCKED as u8, 0, SeqCst, Relaxed).is_ok() {
            return None;
        }
        let next = self.hashed.swap(0, SeqCst);
        self.byte(0).store(0, Release);
        Some(next - 1)
    }
}

impl Node {
    fn become_head(&self, tries: u32) {
        loop {
            for _ in 0..tries {
                if self.locked.load(Acquire) != 0 {
                    return;
                }
                insn::pause();
            }
            self.state.swap(HALTED, SeqCst);
            if self.locked.load(Relaxed) == 0 {
                wait(&self.state, HALTED);
            }
            // HASHED stays: whoever held the lock has noted us already.
            let _ = self.state.compare_exchange(HALTED, RUNNING, SeqCst, Relaxed);
            if self.locked.load(Acquire) != 0 {
                return;
            }
        }
    }
}
