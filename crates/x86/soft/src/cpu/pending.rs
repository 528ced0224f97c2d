//! How the instruction at RIP stopped, what it was answered, and what is delivered before the next one.

use iced_x86::Instruction;
use satori_engine::{Event, Exception, Exit, Resume};

use super::{Exec, Handler, Stop};

/// An instruction that asked the machine, as it was decoded: with the answer it is executed again.
#[derive(Clone, Copy)]
pub struct Asking {
    /// Its address.
    pub rip: u64,
    /// The mode that it was decoded for ([`Derived::code_mode`](super::Derived::code_mode)).
    pub code_mode: u64,
    /// Its generic implementation.
    pub handler: Handler,
    /// The instruction.
    pub insn: Instruction,
}

/// See the module.
pub(crate) struct Pending {
    /// The exception of the last [`Stop::Fault`].
    pub(crate) fault: Option<Exception>,
    /// The exit of the last [`Stop::Exit`].
    pub(crate) wanted: Exit,
    /// The instruction that wants it, unless a block of the interpreter had it.
    pub asking: Option<Asking>,
    /// Answers to the exits of the instruction at RIP, in order.
    answers: Vec<Resume>,
    /// Of those, how many the instruction has taken since it began anew.
    taken: usize,
    /// Event to deliver before the next instruction.
    pub(crate) injected: Option<Event>,
    /// An event is being delivered: nothing can be asked of the machine.
    pub(crate) delivering: bool,
    /// Task switches whose exit has not been raised.
    pub(crate) task_switches: u32,
    /// The instruction at RIP is executed by itself, and forgets its answers when it ends.
    pub(crate) by_itself: bool,
    /// An exit that was answered at once left something for the machine to look at, before the next instruction.
    pub(crate) comes_out: bool,
}

impl Default for Pending {
    fn default() -> Self {
        Pending {
            fault: None,
            wanted: Exit::Budget,
            asking: None,
            answers: Vec::new(),
            taken: 0,
            injected: None,
            delivering: false,
            task_switches: 0,
            by_itself: false,
            comes_out: false,
        }
    }
}

impl Pending {
    /// Records an exception; the instruction ends with the returned value as its error.
    #[cold]
    pub(crate) fn raise(&mut self, exception: Exception) -> Stop {
        self.fault = Some(exception);
        Stop::Fault
    }

    /// Asks the machine. The first time the instruction stops here; executed again, it finds
    /// the answer. A fault as the answer is raised at once.
    pub(crate) fn ask(&mut self, exit: Exit) -> Exec<Resume> {
        if self.delivering {
            return Ok(Resume::Value(u64::MAX));
        }
        match self.answers.get(self.taken) {
            Some(answer) => {
                self.taken += 1;
                match *answer {
                    Resume::Fault(exception) => Err(self.raise(exception)),
                    answer => Ok(answer),
                }
            }
            None => Err(self.exit(exit)),
        }
    }

    /// Whether the instruction asks what it was not answered yet.
    pub(super) fn next_is_new(&self) -> bool {
        self.answers.len() <= self.taken
    }

    /// Whether no exit may be answered at once: answers are replayed, or nothing can be asked.
    pub(super) fn answers_nothing(&self) -> bool {
        self.delivering || !self.next_is_new()
    }

    /// Leaves for the machine with the state as it is.
    #[cold]
    pub(crate) fn exit(&mut self, exit: Exit) -> Stop {
        self.wanted = exit;
        self.asking = None;
        Stop::Exit
    }

    /// Starts an instruction: answers are replayed from the first.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.taken = 0;
    }

    /// Whether the instruction at RIP was answered.
    #[inline(always)]
    pub(crate) fn answered(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The answers of the instruction at RIP, in order.
    pub(crate) fn answers(&self) -> &[Resume] {
        &self.answers
    }

    /// One more answer.
    pub(crate) fn answer(&mut self, answer: Resume) {
        self.answers.push(answer);
    }

    /// The instruction at RIP is another one, or ended: no answer is its.
    #[inline(always)]
    pub(crate) fn forget_answers(&mut self) {
        self.answers.clear();
    }

    /// Goes on with what another vCPU had: answers and what is to be delivered.
    pub(crate) fn go_on_with(&mut self, answers: Vec<Resume>, injected: Option<Event>, task_switches: u32) {
        (self.answers, self.asking) = (answers, None);
        (self.injected, self.task_switches) = (injected, task_switches);
    }
}
