//! Who waits for the server's replies: the device's own thread, or, for the time that a reply mostly takes, the vCPU that asks, or one that
//! has nothing else to do. For each request of a guest that waits for it two threads less have to be woken then, of which each takes longer
//! than what was asked for.

use std::time::Duration;

use satori_host::spin::{MOMENT, SHORT, Spins, within};
use satori_host::watch::EventFlags;

use super::{Fs, State};
use crate::lock;

/// Replies with more room than this are mostly of files' contents that are read ahead: the guest goes on meanwhile.
const SMALL: usize = 16 << 10;

impl Fs {
    /// Has the thread wait for what is of use, while the device is `still` or not.
    pub(super) fn settle(&self, state: &State, still: bool) {
        let wanted = match state.outgoing.is_empty() {
            _ if still => EventFlags::empty(),
            // A server says nothing of its own accord.
            true if state.attended || state.pending.is_empty() => EventFlags::empty(),
            true => EventFlags::IN,
            false => EventFlags::IN | EventFlags::OUT,
        };
        self.watch.want(wanted);
    }

    /// Waits for a reply, if there is one to come, for as long as one mostly takes and `give_up` does not say that there is something
    /// else to do.
    pub(super) fn attend_here(&self, give_up: &dyn Fn() -> bool) {
        let begin = |state: &mut State| !state.pending.is_empty() && state.spins.now();
        self.attend_for(MOMENT, begin, |state| &mut state.spins, give_up);
    }

    /// The guest asked, and will most likely wait for the reply: one to a question that is the only one, and small.
    pub(super) fn attend_at_once(&self) {
        let begin = |state: &mut State| {
            let mut pending = state.pending.values();
            let only = pending.next().filter(|_| pending.next().is_none());
            only.is_some_and(|pending| pending.chain.writable_bytes() <= SMALL) && state.at_once.now()
        };
        self.attend_for(SHORT, begin, |state| &mut state.at_once, &|| false);
    }

    fn attend_for(
        &self,
        time: Duration,
        begin: impl FnOnce(&mut State) -> bool,
        spins: fn(&mut State) -> &mut Spins,
        give_up: &dyn Fn() -> bool,
    ) {
        {
            let mut state = lock(&self.state);
            if self.source.get().is_some() {
                return;
            }
            if state.attended || !state.outgoing.is_empty() || !begin(&mut state) {
                return self.settle(&state, false);
            }
            state.attended = true;
            self.settle(&state, false);
        }
        let came = self.spin(time, give_up);
        let mut state = lock(&self.state);
        state.attended = false;
        if let Some(came) = came {
            spins(&mut state).done(came);
        }
        self.settle(&state, false);
    }

    /// Whether a reply came; nothing if somebody else has the device, or `give_up` told so.
    fn spin(&self, time: Duration, give_up: &dyn Fn() -> bool) -> Option<bool> {
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
        within(time, poll).unwrap_or(Some(false))
    }
}
