//! INTx: the line that a function without MSI-X interrupts by.

use std::sync::{Arc, Mutex};

use satori_bus::InterruptLine;
use serde::{Deserialize, Serialize};

use crate::lock;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// What the device asks for: the interrupt status bit of its status register.
    pending: bool,
    /// The command register forbids to assert it.
    disabled: bool,
}

/// A function's interrupt pin (PCI 3.0, 2.2.6): level-triggered, shared with others.
pub struct Intx {
    state: Mutex<State>,
    line: Arc<dyn InterruptLine>,
}

impl Intx {
    /// A pin that drives `line`.
    pub fn new(line: Arc<dyn InterruptLine>) -> Arc<Self> {
        Arc::new(Intx { state: Mutex::default(), line })
    }

    /// The device has something to tell, or has told it.
    pub fn set(&self, pending: bool) {
        let mut state = lock(&self.state);
        state.pending = pending;
        self.line.set(state.pending && !state.disabled);
    }

    pub(crate) fn disable(&self, disabled: bool) {
        let mut state = lock(&self.state);
        state.disabled = disabled;
        self.line.set(state.pending && !state.disabled);
    }

    pub(crate) fn save(&self) -> State {
        lock(&self.state).clone()
    }

    /// Takes a state back; the line, which has its own, is not driven.
    pub(crate) fn restore(&self, saved: State) {
        *lock(&self.state) = saved;
    }

    pub(crate) fn pending(&self) -> bool {
        lock(&self.state).pending
    }
}
