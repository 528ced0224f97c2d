//! Who waits for frames: the cable's own thread, or, for the time that an answer mostly takes, a vCPU that has nothing else to do. Then
//! neither that thread nor the vCPU has to be woken for an answer, of which each takes longer than a frame.

use std::sync::atomic::Ordering;

use satori_host::spin::for_a_moment;
use satori_host::watch::EventFlags;
use satori_lock::lock;

use crate::Cable;
use crate::plug::{End, Sending};

impl Cable {
    /// Has the thread wait for what is of use, while the cable is `still` or not.
    pub(crate) fn settle(&self, sending: &Sending, still: bool) {
        let mut wanted = EventFlags::empty();
        if !self.starving.load(Ordering::SeqCst) && !sending.attended {
            wanted |= EventFlags::IN;
        }
        if !sending.outgoing.is_empty() {
            wanted |= EventFlags::OUT;
        }
        // An end that is closed is always ready, which is of no use while the guest has no room.
        self.watch.want(if still { EventFlags::empty() } else { wanted });
    }

    /// The caller, a vCPU, has nothing to do until `give_up` says so: if the guest sent something since he waited last in vain,
    /// he waits for an answer for as long as one mostly takes.
    pub fn attend_here(&self, give_up: &dyn Fn() -> bool) {
        let End::Stream { .. } = &self.end else { return };
        {
            let mut sending = lock(&self.sending);
            let waits = sending.asked && sending.outgoing.is_empty();
            let free = !sending.attended && self.source.get().is_none() && !self.dead();
            if !waits || !free || self.starving.load(Ordering::SeqCst) || !sending.spins.now() {
                return;
            }
            sending.attended = true;
            self.settle(&sending, false);
        }
        let came = self.spin(give_up);
        let mut sending = lock(&self.sending);
        sending.attended = false;
        if let Some(came) = came {
            sending.spins.done(came);
            sending.asked = came;
        }
        self.settle(&sending, false);
    }

    /// Whether something came; nothing if somebody else has the cable, or `give_up` told so.
    fn spin(&self, give_up: &dyn Fn() -> bool) -> Option<bool> {
        let (End::Stream { socket, .. }, Some(card)) = (&self.end, self.card()) else { return None };
        let mut work = self.work.try_lock().ok()?;
        let poll = || {
            if work.still || give_up() {
                return Some(None);
            }
            match self.receive(socket, &*card, &mut work) {
                Ok(true) => Some(Some(true)),
                // The guest has no room for it: its doorbell has the thread look.
                Ok(false) if self.starving.load(Ordering::SeqCst) => Some(None),
                Ok(false) => None,
                Err(why) => {
                    self.died(&why);
                    Some(None)
                }
            }
        };
        for_a_moment(poll).unwrap_or(Some(false))
    }
}
