//! The cable itself: its two kinds of ends, its thread, and the card that is plugged in.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use satori_defs::cable::BEGUN;
use satori_defs::virtio::net::{DATA_VALID, HEADER};
use satori_host::io_thread::IoThread;
use satori_host::spin::Spins;
use satori_host::watch::Watch;
use satori_journal::{Journal, Source};
use satori_lock::lock;

use crate::frames::{Frames, LONGEST, Message, SHORTEST};
use crate::tap::{Coming, TapCard};
use crate::{Outgoing, bring_all, checksum};

/// Bytes of frames that may wait for the other side before the guest does.
const BACKLOG: usize = 1 << 20;
/// Most pairs of queues that a card has.
pub const PAIRS_MAX: u16 = 8;
/// The largest packet of our own user network, which has no cable to care for: as large as IPv4 has them, in 8s.
pub const MTU: u16 = 65_520;

/// Why a card cannot be had; the text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Config(String),
    /// The host refused something that it needs.
    #[error("cannot prepare a network card: {0}")]
    Host(#[from] std::io::Error),
}

/// A network card, and its cable.
#[derive(Debug)]
pub struct Nic {
    /// Its address.
    pub mac: [u8; 6],
    /// Pairs of queues, up to 8.
    pub pairs: u16,
    /// Frames, each behind its length as a big-endian word of 32 bits.
    pub socket: UnixStream,
    /// The other side ends every flow itself, within this machine: it takes packets of [`MTU`] bytes and TCP that is not
    /// cut, looks at no checksum, and sends right ones.
    pub ours: bool,
}

/// What became of a frame for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The guest has it, or nobody wants it.
    Done,
    /// The guest has no room yet: [`Cable::look`] tells when.
    Wait,
}

/// A card, as its cable sees it. It is called on the cable's thread.
pub trait Card: Send + Sync {
    /// A frame for the guest, behind its header; from this queue of a tap, which has one for each pair.
    fn deliver(&self, header: [u8; HEADER], queue: Option<u16>, frame: &[u8]) -> Delivery;
    /// The other side has room again, after [`Cable::has_room`] said no.
    fn go_on(&self);
    /// The other side is gone.
    fn gone(&self);
}

/// Where frames go.
pub(crate) enum End {
    /// It is another process.
    Stream { socket: UnixStream, ours: bool },
    /// It is the host's kernel.
    Tap(TapCard),
}

#[derive(Default)]
pub(crate) struct Sending {
    pub outgoing: Outgoing,
    /// The card waits until the other side has taken what there is.
    pub stalled: bool,
    /// The guest sent something, to which there may be an answer.
    pub asked: bool,
    /// A vCPU waits for frames itself, and how often that was of use.
    pub attended: bool,
    pub spins: Spins,
}

/// What the thread has in its hands.
#[derive(Default)]
pub(crate) struct Work {
    pub frames: Frames,
    pub coming: Coming,
    /// The machine is saved or restored: nothing may happen that the guest sees.
    pub still: bool,
    /// The last question's number, and that of the answer before which frames are those of another guest.
    pub asked: u32,
    pub awaited: Option<u32>,
}

/// The cable.
pub struct Cable {
    mac: [u8; 6],
    /// Pairs of queues that the card is to have.
    pairs: u16,
    pub(crate) end: End,
    /// On whose processors its own thread runs.
    thread: IoThread,
    /// Rings for the thread, which waits for the other end.
    bell: UnixStream,
    pub(crate) watch: Watch,
    /// Locked before whatever its card locks, and before the next.
    pub(crate) work: Mutex<Work>,
    pub(crate) sending: Mutex<Sending>,
    card: Mutex<Option<Weak<dyn Card>>>,
    running: AtomicBool,
    /// By which everything comes, where the run is recorded or played again: then there is no thread, and nobody waits for room.
    pub(crate) source: OnceLock<Source>,
    /// The thread waits for a buffer of the guest's.
    pub(crate) starving: AtomicBool,
    /// The other side is gone.
    dead: AtomicBool,
    me: Weak<Cable>,
}

impl Cable {
    /// That of `nic`, whose thread runs on the processors of `thread`.
    pub fn stream(nic: Nic, thread: IoThread) -> Result<Arc<Self>, Error> {
        let Nic { mac, pairs, socket, ours } = nic;
        socket.set_nonblocking(true)?;
        Cable::with(mac, pairs, End::Stream { socket, ours }, thread)
    }

    /// One that ends in a tap.
    pub fn tap(card: TapCard, thread: IoThread) -> Result<Arc<Self>, Error> {
        let pairs = u16::try_from(card.queues.len()).unwrap_or(u16::MAX);
        Cable::with(card.mac, pairs, End::Tap(card), thread)
    }

    fn with(mac: [u8; 6], pairs: u16, end: End, thread: IoThread) -> Result<Arc<Self>, Error> {
        if !(1..=PAIRS_MAX).contains(&pairs) {
            return Err(Error::Config(format!(
                "a network card has 1 to {PAIRS_MAX} pairs of queues, not {pairs}: use fewer"
            )));
        }
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(Error::Config("a card's address is no group's: begin it with 52:54:00".into()));
        }
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let watch = match &end {
            End::Stream { socket, .. } => Watch::new(rung, &[socket.as_fd()])?,
            End::Tap(card) => Watch::new(rung, &card.queues.iter().map(AsFd::as_fd).collect::<Vec<_>>())?,
        };
        // Before the sandbox.
        let sending = Sending { spins: Spins::here(), ..Sending::default() };
        Ok(Arc::new_cyclic(|me| Cable {
            mac,
            pairs,
            end,
            thread,
            bell,
            watch,
            work: Mutex::default(),
            sending: sending.into(),
            card: Mutex::default(),
            running: AtomicBool::new(false),
            source: OnceLock::new(),
            starving: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            me: me.clone(),
        }))
    }

    /// The card's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Pairs of queues that the card is to have.
    pub fn pairs(&self) -> u16 {
        self.pairs
    }

    /// Whether the other side looks at no checksum, cuts TCP itself, and takes packets of [`MTU`] bytes.
    pub fn ours(&self) -> bool {
        matches!(self.end, End::Stream { ours: true, .. })
    }

    /// Whether TCP that was not cut may be sent.
    pub fn takes_segments(&self) -> bool {
        self.ours() || self.is_tap()
    }

    /// Whether the other side is a tap, which gives TCP that was not cut to a guest that takes it.
    pub fn is_tap(&self) -> bool {
        matches!(self.end, End::Tap(_))
    }

    /// Whether the other side is gone.
    pub fn dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Descriptors of the host that it needs.
    pub fn files(&self) -> Vec<RawFd> {
        let mut files = self.watch.files();
        files.push(self.bell.as_raw_fd());
        match &self.end {
            End::Stream { socket, .. } => files.push(socket.as_raw_fd()),
            End::Tap(card) => files.extend(card.queues.iter().map(AsRawFd::as_raw_fd)),
        }
        files
    }

    /// Tells the other side what the guest can do itself: checksums, and TCP of IPv4 and of IPv6 that was not cut.
    pub fn offload(&self, csum: bool, tso4: bool, tso6: bool) {
        if let End::Tap(card) = &self.end {
            card.tell(csum, tso4, tso6);
        }
    }

    /// Has everything come by `journal`; false where the other end is nobody whose words can be written down.
    pub fn journalled(&self, journal: &Journal) -> bool {
        if self.is_tap() {
            return false;
        }
        let (source, me) = (journal.source("network"), self.me.clone());
        source.to(move |bytes| me.upgrade().iter().for_each(|cable| cable.come(bytes)));
        self.source.set(source).is_ok()
    }

    /// Bytes of the other side, on the thread that runs the machine.
    fn come(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return self.died("it closed its connection");
        }
        lock(&self.work).frames.put(bytes);
        self.hand_out_all();
    }

    /// Hands out all that came, as far as the guest has room.
    fn hand_out_all(&self) {
        let Some(card) = self.card() else { return };
        let handed = self.hand_out(&*card, &mut lock(&self.work));
        if let Err(why) = handed {
            self.died(&why);
        }
    }

    /// Plugs `card` in, instead of another, and begins to bring it frames.
    pub fn plug(&self, card: Weak<dyn Card>) {
        *lock(&self.card) = Some(card);
        if self.running.swap(true, Ordering::AcqRel) {
            self.look();
            return;
        }
        if let (Some(source), End::Stream { socket, .. }) = (self.source.get(), &self.end) {
            let source = source.clone();
            if !source.replays() {
                let started = socket
                    .try_clone()
                    .and_then(|socket| self.thread.spawn("net", move || bring_all(&socket, &source)));
                if let Err(error) = started {
                    self.died(&format!("no thread for it: {error}"));
                }
            }
            return;
        }
        let me = self.me.clone();
        // Detached, as the other side may never say anything again.
        if let Err(error) = self.thread.spawn("net", move || run(&me)) {
            self.died(&format!("no thread for it: {error}"));
        }
    }

    /// Whether the other side takes frames. If not, the card is told when it does again.
    pub fn has_room(&self) -> bool {
        if self.source.get().is_some() {
            return true;
        }
        let mut sending = lock(&self.sending);
        sending.stalled |= sending.outgoing.len() > BACKLOG;
        !sending.stalled
    }

    /// Puts a frame of the guest's, sent by this pair of queues, behind the others; nothing that is none. [`Cable::send`] sends it.
    pub fn put(&self, header: &[u8; HEADER], frame: &mut [u8], pair: u16) {
        if !(SHORTEST..=LONGEST).contains(&frame.len()) || self.dead() {
            return;
        }
        match &self.end {
            End::Tap(card) => return card.put(header, frame, pair),
            End::Stream { ours: false, .. } => checksum::finish(header, frame),
            End::Stream { ours: true, .. } => {}
        }
        let outgoing = &mut lock(&self.sending).outgoing;
        outgoing.put(&(frame.len() as u32).to_be_bytes());
        outgoing.put(frame);
    }

    /// Sends what the other side takes without waiting; the thread sends the rest.
    pub fn send(&self) {
        let End::Stream { socket, .. } = &self.end else { return };
        let mut sending = lock(&self.sending);
        if let Some(source) = self.source.get() {
            // Who does not take it is gone, which the other direction tells.
            if source.replays() || sending.outgoing.send_all(socket).is_err() {
                sending.outgoing = Outgoing::default();
            }
            return;
        }
        // The thread comes here as well, with nothing or with what is left.
        sending.asked |= !sending.outgoing.is_empty();
        match sending.outgoing.send(socket) {
            Ok(true) if !sending.stalled => {}
            Ok(_) => self.look(),
            Err(why) => {
                sending.outgoing = Outgoing::default();
                // The thread tells: this one may be the vCPU's.
                if !self.dead() {
                    tracing::debug!("a frame could not be sent: {why}");
                }
                self.look();
            }
        }
    }

    /// The guest added room for frames: tells the thread, if it waits for that.
    pub fn room_added(&self) {
        if self.starving.load(Ordering::SeqCst) {
            self.look();
        }
    }

    /// Has the thread look again, as the guest has room, or its driver went.
    pub fn look(&self) {
        if self.source.get().is_some() {
            return self.hand_out_all();
        }
        // A bell that rings already is enough.
        let _ = (&self.bell).write(&[1]);
    }

    pub(crate) fn card(&self) -> Option<Arc<dyn Card>> {
        lock(&self.card).as_ref().and_then(Weak::upgrade)
    }

    /// The other side is gone: the guest's card has no carrier any more.
    pub(crate) fn died(&self, why: &str) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::warn!("the network is gone ({why}): the guest's card has no carrier from now on");
        lock(&self.sending).outgoing = Outgoing::default();
        self.card().iter().for_each(|card| card.gone());
    }

    /// Does what can be done; the error is why there is nothing to be done any more.
    fn attend(&self, card: &dyn Card) -> Result<(), String> {
        self.watch.hush();
        // Held to the end: whoever holds the cable still waits for all that the guest sees of this.
        let mut work = lock(&self.work);
        if work.still {
            return Ok(());
        }
        match &self.end {
            End::Stream { socket, .. } => _ = self.receive(socket, card, &mut work)?,
            End::Tap(tap) => self.receive_tap(tap, card, &mut work.coming)?,
        }
        self.send();
        let room = {
            let mut sending = lock(&self.sending);
            sending.outgoing.len() <= BACKLOG / 2 && std::mem::take(&mut sending.stalled)
        };
        if room {
            card.go_on();
        }
        Ok(())
    }

    /// Takes all frames that are there and that the guest has room for, and tells whether something came.
    pub(crate) fn receive(
        &self,
        socket: &UnixStream,
        card: &dyn Card,
        work: &mut Work,
    ) -> Result<bool, String> {
        let mut some = false;
        loop {
            if !self.hand_out(card, work)? {
                return Ok(some);
            }
            match work.frames.read(socket) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(_) => some = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(some),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Hands out what came; false if the guest has no room for more.
    fn hand_out(&self, card: &dyn Card, work: &mut Work) -> Result<bool, String> {
        let mut header = [0; HEADER];
        if self.ours() {
            header[0] = DATA_VALID;
        }
        while let Some(message) = work.frames.peek()? {
            match message {
                Message::Frame(_) if work.awaited.is_some() => {}
                Message::Frame(frame) => {
                    // Set before the queue is looked at: who adds a buffer then rings the bell.
                    self.starving.store(true, Ordering::SeqCst);
                    if let Delivery::Wait = card.deliver(header, None, frame) {
                        return Ok(false);
                    }
                }
                Message::Note(..) if !self.ours() => {
                    return Err("it sent a frame that is longer than any".into());
                }
                Message::Note(BEGUN, number, _) if work.awaited == Some(number) => work.awaited = None,
                // An answer that was read where it was waited for.
                Message::Note(..) => {}
            }
            work.frames.pass();
        }
        self.starving.store(false, Ordering::SeqCst);
        Ok(true)
    }
}

/// Waits for the other side and for the bell until the card is gone, or the other side is.
fn run(me: &Weak<Cable>) {
    loop {
        let Some(cable) = me.upgrade() else { return };
        let Some(card) = cable.card() else { return };
        if let Err(why) = cable.attend(&*card) {
            cable.died(&why);
            return;
        }
        let still = lock(&cable.work).still;
        cable.settle(&lock(&cable.sending), still);
        let watch = cable.watch.clone();
        drop((card, cable));
        watch.wait();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.look();
    }
}
