//! One controller: its registers, and the messages that wait.

use std::collections::VecDeque;

use satori_defs::hyperv::PAGE_ENABLE;
use satori_defs::hyperv::synic::{
    EVENT_FLAGS, FIRST_VECTOR, PORT_BUFFERS, SCONTROL_ENABLE, SINT_AUTO_EOI, SINT_MASKED, SINT_POLLING,
    SINT_VECTOR, SINTS, SLOT_BYTES,
};
use satori_defs::msr::Gp;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};
use serde::{Deserialize, Serialize};

use super::{Message, Refusal};
use crate::overlay::{Content, Kind, Overlays, blank};

/// Synthetic timers of a processor.
const TIMERS: u8 = 4;

/// Whose buffer a waiting message is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The host's, of which there are as many as a port has.
    Host,
    /// A port's.
    Port(u32),
    /// The one of a synthetic timer.
    Timer(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    sint: u8,
    source: Source,
    message: Message,
}

/// Where a timer's message has the time of its delivery (HV_TIMER_MESSAGE_PAYLOAD).
pub(super) const DELIVERY_TIME: usize = 16;

/// The controller of one virtual processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Controller {
    pub control: u64,
    pub siefp: u64,
    pub simp: u64,
    pub sints: [u64; SINTS],
    /// In the order of their posting.
    queue: VecDeque<Waiting>,
    /// The two pages, while they cover nothing.
    messages: Option<Content>,
    event_flags: Option<Content>,
}

impl Default for Controller {
    fn default() -> Self {
        Controller {
            control: 0,
            siefp: 0,
            simp: 0,
            sints: [SINT_MASKED; SINTS],
            queue: VecDeque::new(),
            messages: None,
            event_flags: None,
        }
    }
}

impl Controller {
    /// Whether registers, waiting messages and pages are such as writes of a guest could have made.
    pub(crate) fn fits(&self) -> bool {
        let sint = |value: &u64| value & SINT_MASKED != 0 || value & SINT_VECTOR >= FIRST_VECTOR;
        let page = |held: &Option<Content>| held.as_ref().is_none_or(|page| page.len() as u64 == PAGE_SIZE);
        let waiting = |(index, one): (usize, &Waiting)| {
            let earlier = self.queue.iter().take(index).filter(|other| other.source == one.source).count();
            let room = match one.source {
                Source::Timer(number) => usize::from(number < TIMERS),
                Source::Host | Source::Port(_) => PORT_BUFFERS,
            };
            usize::from(one.sint) < SINTS && one.message.fits() && earlier < room
        };
        self.sints.iter().all(sint)
            && page(&self.messages)
            && page(&self.event_flags)
            && self.queue.iter().enumerate().all(waiting)
    }

    pub(crate) fn enabled(&self) -> bool {
        self.control & SCONTROL_ENABLE != 0
    }

    /// SINTx. A vector that no interrupt can have is refused unless the source is masked, so that
    /// the value after reset can be written.
    pub(crate) fn write_sint(&mut self, sint: usize, value: u64) -> Result<(), Gp> {
        if value & SINT_MASKED == 0 && value & SINT_VECTOR < FIRST_VECTOR {
            return Err(Gp);
        }
        self.sints[sint] = value;
        Ok(())
    }

    fn sint(&self, sint: u8) -> u64 {
        self.sints.get(usize::from(sint)).copied().unwrap_or(SINT_MASKED)
    }

    /// The vector with which `sint` interrupts.
    pub(crate) fn vector(&self, sint: u8) -> Option<u8> {
        let value = self.sint(sint);
        (value & (SINT_MASKED | SINT_POLLING) == 0).then_some((value & SINT_VECTOR) as u8)
    }

    /// The sources that are not masked and have this vector, as bits.
    pub(crate) fn with_vector(&self, vector: u8) -> u32 {
        let has = |sint: &u8| self.vector(*sint) == Some(vector);
        (0..SINTS as u8).filter(has).fold(0, |bits, sint| bits | 1 << sint)
    }

    /// The vectors that are ended when they are delivered, as bits.
    pub(crate) fn auto_eoi(&self) -> [u32; 8] {
        let mut vectors = [0; 8];
        for sint in (0..SINTS as u8).filter(|&sint| self.sint(sint) & SINT_AUTO_EOI != 0) {
            if let Some(vector) = self.vector(sint) {
                vectors[usize::from(vector >> 5)] |= 1 << (vector & 31);
            }
        }
        vectors
    }

    /// SIEFP and SIMP: moves the page, with what it holds.
    pub(crate) fn write_page(
        &mut self,
        kind: Kind,
        value: u64,
        overlays: &mut Overlays,
        memory: &GuestMemory,
    ) {
        let (register, held) = match kind {
            Kind::EventFlags(_) => (&mut self.siefp, &mut self.event_flags),
            _ => (&mut self.simp, &mut self.messages),
        };
        *register = value;
        let content = overlays.uncover(memory, kind).or(held.take()).unwrap_or_else(blank);
        let gpa = Gpa(value & !(PAGE_SIZE - 1));
        let shown = value & PAGE_ENABLE != 0 && overlays.cover(memory, kind, gpa, &content).is_ok();
        *held = (!shown).then_some(content);
    }

    /// Whether a message may be posted.
    fn takes_messages(&self) -> bool {
        self.enabled() && self.simp & PAGE_ENABLE != 0
    }

    /// Whether an event of `sint` may be signalled.
    pub(crate) fn takes_events(&self, sint: u8) -> bool {
        let heard = self.sint(sint) & SINT_MASKED == 0 || self.sint(sint) & SINT_POLLING != 0;
        self.enabled() && self.siefp & PAGE_ENABLE != 0 && heard
    }

    /// Takes a message into one of its source's buffers. A timer's waits also where nobody else
    /// could post.
    pub(crate) fn enqueue(&mut self, sint: u8, source: Source, message: Message) -> Result<(), Refusal> {
        let buffers = match source {
            Source::Timer(_) => 1,
            _ if !self.takes_messages() => return Err(Refusal::Off),
            Source::Host | Source::Port(_) => PORT_BUFFERS,
        };
        if self.queue.iter().filter(|waiting| waiting.source == source).count() >= buffers {
            return Err(Refusal::Full);
        }
        self.queue.push_back(Waiting { sint, source, message });
        Ok(())
    }

    /// Forgets what waits from `source`.
    pub(crate) fn withdraw(&mut self, source: Source) {
        self.queue.retain(|waiting| waiting.source != source);
    }

    pub(crate) fn holds(&self, source: Source) -> bool {
        self.queue.iter().any(|waiting| waiting.source == source)
    }

    /// Whether a message waits for `sint`.
    pub(crate) fn has(&self, sint: u8) -> bool {
        self.queue.iter().any(|waiting| waiting.sint == sint)
    }

    /// The sources for which a message waits, as bits.
    pub(crate) fn waiting(&self) -> u32 {
        self.queue.iter().fold(0, |bits, waiting| bits | 1 << waiting.sint)
    }

    /// Puts the first message that waits for `sint` into its slot of the message page at `page`;
    /// returns whether that was done. `now` is reference time, for timers.
    pub(crate) fn deliver(
        &mut self,
        memory: &GuestMemory,
        page: Gpa,
        sint: u8,
        now: impl Fn() -> u64,
    ) -> bool {
        if !self.takes_messages() {
            return false;
        }
        let mut of_sint = (0..).zip(&mut self.queue).filter(|(_, waiting)| waiting.sint == sint);
        let Some((index, waiting)) = of_sint.next() else { return false };
        let more = of_sint.next().is_some();
        if let Source::Timer(_) = waiting.source {
            waiting.message.patch(DELIVERY_TIME, &now().to_le_bytes());
        }
        let slot = page.add(u64::from(sint) * SLOT_BYTES);
        // An overlay lies in memory, so an error does not come; if one did, the message would wait.
        let put = waiting.message.put(memory, slot, more).unwrap_or(false);
        if put {
            self.queue.remove(index);
        }
        put
    }
}

/// Sets event flag `flag` of `sint` in the page at `page`; returns whether it was clear.
pub(super) fn set_flag(memory: &GuestMemory, page: Gpa, sint: u8, flag: u32) -> bool {
    let flag = flag % EVENT_FLAGS;
    let word = page.add(u64::from(sint) * SLOT_BYTES + u64::from(flag / 32) * 4);
    let bit = 1 << (flag % 32);
    // An overlay lies in memory, so an error does not come.
    memory.fetch_or_u32(word, bit).is_ok_and(|before| before & bit == 0)
}
