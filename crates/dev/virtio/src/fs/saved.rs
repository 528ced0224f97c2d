//! A shared folder's device as plain data, with the session that its server has.
//!
//! Every request that was taken is answered before: the server answers one after the other, so that all replies are there once it has told
//! its session.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use satori_defs::share::{KIND, NOTE, NUMBER, REFUSED, TAKE, TAKEN, TELL, TOLD};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use super::Fs;
use crate::stream::Come;
use crate::{Link, lock};

/// How long the server may send and take nothing: a request to a folder that is far away takes its time.
const ANSWER: Duration = Duration::from_secs(10);

/// The device's state. The bytes of its value are those of the session's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedShare {
    tag: String,
    /// What the server told, unless it is gone.
    session: Option<Value>,
}

impl State for SavedShare {
    const NAME: &'static str = "shared folder";
    const VERSION: u32 = 1;
}

impl Fs {
    /// Its state, while it is held still.
    pub(super) fn saved(&self) -> Result<Value, Error> {
        let refused = |why: String| Error::refused(format!("the shared folder '{}'", self.tag), why);
        let mut session = None;
        if !lock(&self.state).dead {
            match self.ask(TELL, &[]).map_err(|why| refused(format!("its server: {why}; try again")))? {
                (TOLD, told) => session = Some(Value::unpack(&told, SavedShare::NAME)?),
                (REFUSED, why) => return Err(refused(String::from_utf8_lossy(&why).into())),
                (kind, _) => return Err(refused(format!("its server gave answer {kind}; try again"))),
            }
        }
        if !lock(&self.state).pending.is_empty() {
            return Err(refused("its server left requests unanswered; try again".into()));
        }
        let bytes = session.as_mut().map(Value::take_bytes).unwrap_or_default();
        Value::with_bytes(&SavedShare { tag: self.tag.clone(), session }, bytes)
    }

    /// Takes a state back, for the driver of `link`.
    pub(super) fn take_back(&self, link: &Arc<Link>, value: &Value) -> Result<(), Error> {
        let SavedShare { tag, session } = value.state()?;
        let unfit = |why: &str| Error::unfit(SavedShare::NAME, why);
        Error::unless(tag == self.tag, SavedShare::NAME, "it has another tag")?;
        let dead = lock(&self.state).dead;
        match (session, dead) {
            (Some(_), true) => return Err(unfit("the server of the folder is gone")),
            (Some(mut session), false) => {
                session.set_bytes(value.bytes().to_vec());
                self.give(&session.pack()?)?;
            }
            (None, _) => self.died(&mut lock(&self.state), "it was when the machine was saved"),
        }
        let mut state = lock(&self.state);
        // What was offered and not taken: nobody rings for it again.
        let queues = 0..self.dialect.queues().len() as u16;
        state.stalled = queues.map(|queue| (link.clone(), queue)).collect();
        Ok(())
    }

    /// Gives the server a session.
    fn give(&self, packed: &[u8]) -> Result<(), Error> {
        let unfit = |why: &str| Error::unfit(SavedShare::NAME, why);
        match self.ask(TAKE, packed).map_err(|why| unfit(&format!("its server: {why}")))? {
            (TAKEN, _) => Ok(()),
            (REFUSED, why) => Err(unfit(&String::from_utf8_lossy(&why))),
            (kind, _) => Err(unfit(&format!("its server gave answer {kind}"))),
        }
    }

    /// Sends the server a note, and waits for the answer to it. The replies that come before it go to the guest.
    fn ask(&self, kind: u32, told: &[u8]) -> Result<(u32, Vec<u8>), String> {
        let mut work = lock(&self.work);
        // The largest number and kind have no more than 31 bits.
        work.asked = (work.asked + NUMBER) & !NOTE & !KIND;
        let number = work.asked;
        {
            let outgoing = &mut lock(&self.state).outgoing;
            outgoing.put(&(NOTE | number | kind).to_le_bytes());
            outgoing.put(&(told.len() as u64).to_le_bytes());
            outgoing.put(told);
        }
        let mut since = Instant::now();
        loop {
            let waits = {
                let outgoing = &mut lock(&self.state).outgoing;
                let before = outgoing.len();
                outgoing.send(&self.socket).map_err(|why| why.to_string())?;
                if outgoing.len() < before {
                    since = Instant::now();
                }
                !outgoing.is_empty()
            };
            match work.replies.read(&self.socket) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(_) => since = Instant::now(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error.to_string()),
            }
            while let Some(come) = work.replies.next()? {
                match come {
                    Come::Reply(reply) => self.replied(reply),
                    Come::Note(word, told) if word & !KIND == number => {
                        return Ok((word & KIND, told.to_vec()));
                    }
                    // The answer to a question before, which was not waited for so long.
                    Come::Note(..) => {}
                }
            }
            let left = ANSWER.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err("it does not answer".into());
            }
            let wanted = if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.socket, wanted)], Some(&timeout));
        }
    }
}
