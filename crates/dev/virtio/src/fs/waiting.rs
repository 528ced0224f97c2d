//! Who waits for the server's replies: the device's own thread, or, for the time that a reply mostly takes, a vCPU that has nothing else to
//! do. For each request of a guest that waits for it two threads less have to be woken then, of which each takes longer than what was
//! asked for.

use satori_host::spin::for_a_moment;
use satori_host::watch::EventFlags;

use super::{Fs, State};
use crate::lock;

impl Fs {
    /// Has the thread wait for what is of use, while the device is `still` or not.
    pub(super) fn settle(&self, state: &State, still: bool) {
        let wanted = match state.outgoing.is_empty() {
            _ if still => EventFlags::empty(),
            true if state.attended => EventFlags::empty(),
            true => EventFlags::IN,
            false => EventFlags::IN | EventFlags::OUT,
        };
        self.watch.want(wanted);
    }

    /// Waits for a reply, if there is one to come, for as long as one mostly takes and `give_up` does not say that there is something
    /// else to do.
    pub(super) fn attend_here(&self, give_up: &dyn Fn() -> bool) {
        {
            let mut state = lock(&self.state);
            let waits = !state.pending.is_empty() && state.outgoing.is_empty() && self.source.get().is_none();
            if !waits || state.attended || !state.spins.now() {
                return;
            }
            state.attended = true;
            self.settle(&state, false);
        }
        let came = self.spin(give_up);
        let mut state = lock(&self.state);
        state.attended = false;
        if let Some(came) = came {
            state.spins.done(came);
        }
        self.settle(&state, false);
    }

    /// Whether a reply came; nothing if somebody else has the device, or `give_up` told so.
    fn spin(&self, give_up: &dyn Fn() -> bool) -> Option<bool> {
        let mut work = self.work.try_lock().ok()?;
        let poll = || {
            if work.still || give_up() {
                return Some(None);
            }
            match self.receive(&mut work.replies) {
                Ok(true) => Some(Some(true)),
                Ok(false) => None,
                Err(why) => {
                    self.died(&mut lock(&self.state), &why);
                    Some(None)
                }
            }
        };
        for_a_moment(poll).unwrap_or(Some(false))
    }
}
