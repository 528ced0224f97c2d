//! A 16550A UART (National PC16550D) whose transmitter is infinitely fast.
//!
//! Not vm-superio's: that one only ever raises its interrupt, has no FIFO control, no trigger level
//! and no modem status changes, all of which Linux's 8250 driver probes and relies on.
//!
//! The line and the sink are called with the lock held; nothing behind them calls back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use satori_bus::{ByteSink, InterruptLine, PortDevice};
use satori_defs::chipset::uart::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::{lock, read_bytes, write_bytes};

/// Called when the guest has made room for input that was refused.
type Room = Box<dyn Fn() + Send + Sync>;

/// Told how many bytes the guest is ready to take, whenever that changes.
type Wants = Box<dyn Fn(usize) + Send>;

/// Reads of the line status in a row, without any other access, that are taken for a wait for input. Linux reads
/// it once or twice before it writes a character.
const POLLS: u32 = 16;

struct State {
    ier: u8,
    lcr: u8,
    mcr: u8,
    scr: u8,
    divisor: u16,
    /// The last FIFO control register; bit 0 says whether there are FIFOs.
    fcr: u8,
    received: VecDeque<u8>,
    /// How many of `received` come before a break, which is a zero among them (PC16550D, 8.6.3).
    breaks: VecDeque<usize>,
    /// The break at the front of the FIFO was told by a read of the line status.
    break_told: bool,
    /// Reads of the line status since the last other access.
    polls: u32,
    /// The guest used the UART after it last set it up: turning the FIFO on, as Linux does behind IER, empties it.
    settled: bool,
    /// What `wants` was told last.
    wanted: usize,
    wants: Option<Wants>,
    overrun: bool,
    /// Modem status changes since the last read, MSR bits 3:0.
    modem_changes: u8,
    /// The transmitter became empty and nobody has looked.
    thre_pending: bool,
    level: bool,
    refused: bool,
    sink: Box<dyn ByteSink>,
}

impl State {
    fn fifo(&self) -> bool {
        self.fcr & FCR_ENABLE != 0
    }

    fn capacity(&self) -> usize {
        if self.fifo() { FIFO_SIZE } else { 1 }
    }

    /// Bytes at which received data interrupts: FCR bits 7:6.
    fn trigger(&self) -> usize {
        if self.fifo() { [1, 4, 8, 14][usize::from(self.fcr >> 6)] } else { 1 }
    }

    fn receive(&mut self, byte: u8) {
        if self.received.len() < self.capacity() {
            self.received.push_back(byte);
        } else {
            self.overrun = true;
        }
    }

    /// A break is at the front of the FIFO, and was not told yet.
    fn broken(&self) -> bool {
        self.breaks.front() == Some(&0) && !self.break_told
    }

    fn clear(&mut self) {
        self.received.clear();
        self.breaks.clear();
        self.break_told = false;
    }

    fn pop(&mut self) -> u8 {
        if self.breaks.front() == Some(&0) {
            self.breaks.pop_front();
            self.break_told = false;
        }
        self.breaks.iter_mut().for_each(|before| *before = before.saturating_sub(1));
        self.received.pop_front().unwrap_or(0)
    }

    /// How many bytes the guest is ready to take: none unless it has taken all, and hears of more by an interrupt
    /// or looks for it all the time.
    fn ready(&self) -> usize {
        let steady = self.fifo() || self.settled;
        let interrupts = self.ier & IER_ERBFI != 0 && self.mcr & MCR_OUT2 != 0 && steady;
        let looped = self.mcr & MCR_LOOP != 0;
        let waits = !looped && self.received.is_empty() && (interrupts || self.polls >= POLLS);
        if waits { self.capacity() } else { 0 }
    }

    /// The pending interrupt of the highest priority.
    fn iir(&self) -> u8 {
        let enabled = |bit| self.ier & bit != 0;
        if enabled(IER_ELSI) && (self.overrun || self.broken()) {
            IIR_LINE
        } else if enabled(IER_ERBFI) && self.received.len() >= self.trigger() {
            IIR_DATA
        } else if enabled(IER_ERBFI) && !self.received.is_empty() {
            // No more is coming for now, or it would be here: the character timeout has passed.
            IIR_TIMEOUT
        } else if enabled(IER_ETBEI) && self.thre_pending {
            IIR_THRE
        } else if enabled(IER_EDSSI) && self.modem_changes != 0 {
            IIR_MODEM
        } else {
            IIR_NONE
        }
    }

    /// MSR bits 7:4: a peer that is always there, or in loopback our own outputs.
    fn modem_lines(&self) -> u8 {
        if self.mcr & MCR_LOOP == 0 {
            return MSR_DCD | MSR_DSR | MSR_CTS;
        }
        [(MCR_RTS, MSR_CTS), (MCR_DTR, MSR_DSR), (MCR_OUT1, MSR_RI), (MCR_OUT2, MSR_DCD)]
            .iter()
            .fold(0, |lines, &(output, line)| if self.mcr & output != 0 { lines | line } else { lines })
    }

    fn write_mcr(&mut self, value: u8) {
        let before = self.modem_lines();
        self.mcr = value & 0x1f;
        let after = self.modem_lines();
        let changed = (before ^ after) >> 4;
        // The ring indicator only tells of its end.
        let rising_ring = if after & MSR_RI != 0 { MSR_TERI } else { 0 };
        self.modem_changes |= changed & !rising_ring;
    }

    fn read(&mut self, register: u16) -> u8 {
        self.polls = if register == LSR { self.polls.saturating_add(1) } else { 0 };
        self.settled |= matches!(register, LSR | IIR);
        let dlab = self.lcr & LCR_DLAB != 0;
        match register {
            DATA if dlab => self.divisor as u8,
            DATA => self.pop(),
            IER if dlab => (self.divisor >> 8) as u8,
            IER => self.ier,
            IIR => {
                let iir = self.iir();
                if iir == IIR_THRE {
                    self.thre_pending = false;
                }
                iir | if self.fifo() { IIR_FIFO } else { 0 }
            }
            LCR => self.lcr,
            MCR => self.mcr,
            LSR => {
                let ready = if self.received.is_empty() { 0 } else { LSR_DR };
                let overrun = if std::mem::take(&mut self.overrun) { LSR_OE } else { 0 };
                let broken = if self.broken() { LSR_BI } else { 0 };
                self.break_told |= broken != 0;
                LSR_THRE | LSR_TEMT | ready | overrun | broken
            }
            MSR => self.modem_lines() | std::mem::take(&mut self.modem_changes),
            _ => self.scr,
        }
    }

    fn write(&mut self, register: u16, value: u8) {
        self.polls = 0;
        self.settled &= register == DATA;
        let dlab = self.lcr & LCR_DLAB != 0;
        match register {
            DATA if dlab => self.divisor = self.divisor & 0xff00 | u16::from(value),
            DATA => {
                if self.mcr & MCR_LOOP != 0 {
                    self.receive(value);
                } else {
                    self.sink.put(&[value]);
                }
                self.thre_pending = true;
            }
            IER if dlab => self.divisor = self.divisor & 0xff | u16::from(value) << 8,
            IER => {
                // Enabling it while the transmitter is empty interrupts at once.
                if value & !self.ier & IER_ETBEI != 0 {
                    self.thre_pending = true;
                }
                self.ier = value & 0x0f;
            }
            FCR => {
                // Turning the FIFOs on or off clears them.
                if value & FCR_CLEAR_RX != 0 || (value ^ self.fcr) & FCR_ENABLE != 0 {
                    self.clear();
                }
                self.fcr = if value & FCR_ENABLE != 0 { value & 0xc9 } else { 0 };
            }
            LCR => self.lcr = value,
            MCR => self.write_mcr(value),
            // LSR and MSR are for the factory.
            LSR | MSR => {}
            _ => self.scr = value,
        }
    }
}

/// A UART, at eight ports.
pub struct Uart {
    state: Mutex<State>,
    line: Arc<dyn InterruptLine>,
    room: Mutex<Option<Room>>,
}

impl Uart {
    /// A UART that transmits to `sink`.
    pub fn new(line: Arc<dyn InterruptLine>, sink: Box<dyn ByteSink>) -> Arc<Self> {
        let state = State {
            ier: 0,
            lcr: 0,
            mcr: 0,
            scr: 0,
            divisor: 12,
            fcr: 0,
            received: VecDeque::with_capacity(FIFO_SIZE),
            breaks: VecDeque::new(),
            break_told: false,
            polls: 0,
            settled: false,
            wanted: 0,
            wants: None,
            overrun: false,
            modem_changes: 0,
            thre_pending: false,
            level: false,
            refused: false,
            sink,
        };
        Arc::new(Uart { state: Mutex::new(state), line, room: Mutex::new(None) })
    }

    /// Receives as many of `bytes` as there is room for, and says how many. The rest waits outside
    /// until the guest has read, which [`Uart::on_room`] tells. In loopback nothing is received.
    pub fn offer(&self, bytes: &[u8]) -> usize {
        let mut state = lock(&self.state);
        let looped = state.mcr & MCR_LOOP != 0;
        let room = if looped { 0 } else { state.capacity().saturating_sub(state.received.len()) };
        let accepted = room.min(bytes.len());
        state.received.extend(&bytes[..accepted]);
        state.refused |= accepted < bytes.len();
        self.drive(&mut state);
        accepted
    }

    /// Receives a break, as [`Uart::offer`] does bytes; whether there was room for it.
    pub fn offer_break(&self) -> bool {
        let mut state = lock(&self.state);
        let room = state.mcr & MCR_LOOP == 0 && state.received.len() < state.capacity();
        if room {
            let before = state.received.len();
            state.breaks.push_back(before);
            state.received.push_back(0);
        }
        state.refused |= !room;
        self.drive(&mut state);
        room
    }

    /// How many bytes the guest is ready to take: it has taken all there were, and waits for more. An
    /// [`Uart::offer`] of so many is taken whole.
    pub fn ready(&self) -> usize {
        lock(&self.state).ready()
    }

    /// Sets who is told of [`Uart::ready`], now and at each change, with the lock held.
    pub fn on_ready(&self, wants: impl Fn(usize) + Send + 'static) {
        let mut state = lock(&self.state);
        state.wanted = state.ready();
        wants(state.wanted);
        state.wants = Some(Box::new(wants));
    }

    /// Sets what is called, with no lock of the UART's state held, once the guest has emptied the
    /// receiver after an [`Uart::offer`] was not accepted whole.
    pub fn on_room(&self, room: impl Fn() + Send + Sync + 'static) {
        *lock(&self.room) = Some(Box::new(room));
    }

    fn drive(&self, state: &mut State) {
        let ready = state.ready();
        if ready != state.wanted {
            state.wanted = ready;
            if let Some(wants) = &state.wants {
                wants(ready);
            }
        }
        let through = state.mcr & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2;
        let level = through && state.iir() != IIR_NONE;
        if level != state.level {
            state.level = level;
            self.line.set(level);
        }
    }

    fn access<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, room) = {
            let mut state = lock(&self.state);
            let result = f(&mut state);
            self.drive(&mut state);
            let room = state.refused && state.received.is_empty() && state.mcr & MCR_LOOP == 0;
            state.refused &= !room;
            (result, room)
        };
        if room && let Some(room) = &*lock(&self.room) {
            room();
        }
        result
    }
}

impl PortDevice for Uart {
    fn read(&self, offset: u16, size: u8) -> u32 {
        self.access(|state| read_bytes(offset, size, |register| state.read(register & 7)))
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        self.access(|state| {
            write_bytes(offset, size, value, |register, byte| state.write(register & 7, byte))
        });
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedUart {
    /// IER, LCR, MCR, SCR, FCR.
    registers: [u8; 5],
    divisor: u16,
    received: VecDeque<u8>,
    breaks: VecDeque<usize>,
    break_told: bool,
    polls: u32,
    settled: bool,
    wanted: usize,
    overrun: bool,
    modem_changes: u8,
    thre_pending: bool,
    level: bool,
    refused: bool,
}

impl satori_save::State for SavedUart {
    const NAME: &'static str = "16550A";
    const VERSION: u32 = 1;
}

impl Save for Uart {
    fn save(&self) -> Result<Value, Error> {
        let state = lock(&self.state);
        Value::of(&SavedUart {
            registers: [state.ier, state.lcr, state.mcr, state.scr, state.fcr],
            divisor: state.divisor,
            received: state.received.clone(),
            breaks: state.breaks.clone(),
            break_told: state.break_told,
            polls: state.polls,
            settled: state.settled,
            wanted: state.wanted,
            overrun: state.overrun,
            modem_changes: state.modem_changes,
            thre_pending: state.thre_pending,
            level: state.level,
            refused: state.refused,
        })
    }

    /// Whoever is told how many bytes the guest is ready to take is told now.
    fn restore(&self, value: &Value) -> Result<(), Error> {
        let saved: SavedUart = value.state()?;
        let [ier, lcr, mcr, scr, fcr] = saved.registers;
        let exist =
            ier & !0x0f == 0 && mcr & !0x1f == 0 && fcr & !0xc9 == 0 && saved.modem_changes & !0x0f == 0;
        let breaks = saved.breaks.iter().all(|before| *before < saved.received.len());
        let fits = exist && breaks && saved.received.len() <= FIFO_SIZE && saved.wanted <= FIFO_SIZE;
        Error::unless(fits, "16550A", "a register or a FIFO holds what it cannot hold")?;
        let mut state = lock(&self.state);
        (state.ier, state.lcr, state.mcr, state.scr, state.fcr) = (ier, lcr, mcr, scr, fcr);
        state.divisor = saved.divisor;
        (state.received, state.breaks, state.break_told) = (saved.received, saved.breaks, saved.break_told);
        (state.polls, state.settled, state.wanted) = (saved.polls, saved.settled, saved.wanted);
        (state.overrun, state.modem_changes) = (saved.overrun, saved.modem_changes);
        (state.thre_pending, state.level, state.refused) = (saved.thre_pending, saved.level, saved.refused);
        if let Some(wants) = &state.wants {
            wants(state.wanted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bytes, Wire};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn uart() -> (Arc<Uart>, Arc<Wire>, Bytes) {
        let (wire, bytes) = (Wire::new(), Bytes::default());
        let uart = Uart::new(wire.clone(), Box::new(bytes.clone()));
        uart.write(MCR, 1, MCR_OUT2.into());
        (uart, wire, bytes)
    }

    #[test]
    fn linux_finds_a_16550a() {
        let (uart, ..) = uart();
        for (value, back) in [(0, 0), (0xff, 0x0f), (0, 0)] {
            uart.write(IER, 1, value);
            assert_eq!(uart.read(IER, 1), back);
        }
        uart.write(MCR, 1, (MCR_LOOP | 0x0a).into());
        assert_eq!(uart.read(MSR, 1) & 0xf0, 0x90, "8250_port.c's loopback test");
        uart.write(MCR, 1, 0);
        assert_eq!(uart.read(IIR, 1) >> 6, 0);
        uart.write(FCR, 1, 1);
        assert_eq!(uart.read(IIR, 1) >> 6, 3);
        uart.write(LCR, 1, LCR_DLAB.into());
        uart.write(DATA, 2, 0x1234);
        assert_eq!(uart.read(DATA, 2), 0x1234);
    }

    #[test]
    fn transmission_interrupts_until_iir_is_read() {
        let (uart, wire, bytes) = uart();
        uart.write(IER, 1, IER_ETBEI.into());
        assert!(wire.level(), "empty when enabled");
        assert_eq!(uart.read(IIR, 1), u32::from(IIR_THRE));
        assert!(!wire.level());
        assert_eq!(uart.read(IIR, 1), u32::from(IIR_NONE));
        uart.write(DATA, 1, b'a'.into());
        assert!(wire.level());
        uart.write(MCR, 1, 0);
        assert!(!wire.level(), "OUT2 cuts the line");
        assert_eq!(uart.read(LSR, 1), 0x60);
        assert_eq!(bytes.take(), b"a");
    }

    #[test]
    fn input_is_taken_as_far_as_there_is_room() {
        let (uart, wire, _) = uart();
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        uart.on_room(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        uart.write(FCR, 1, 0x81);
        uart.write(IER, 1, IER_ERBFI.into());
        assert_eq!(uart.offer(b"1234567"), 7);
        assert!(wire.level());
        assert_eq!(uart.read(IIR, 1), 0xcc, "fewer than the trigger level");
        assert_eq!(uart.offer(&[b'x'; 20]), 9);
        assert_eq!(uart.read(IIR, 1), 0xc4);
        for _ in 0..16 {
            assert_eq!(told.load(Ordering::Relaxed), 0);
            assert_eq!(uart.read(LSR, 1) & 1, 1);
            uart.read(DATA, 1);
        }
        assert!(!wire.level());
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert_eq!(uart.read(LSR, 1) & 1, 0);
    }

    #[test]
    fn a_guest_is_ready_that_took_all_and_waits() {
        let (uart, ..) = uart();
        let told = Arc::new(Mutex::new(Vec::new()));
        let seen = told.clone();
        uart.on_ready(move |room| lock(&seen).push(room));
        uart.write(MCR, 1, 0);
        uart.write(IER, 1, IER_ERBFI.into());
        assert_eq!(uart.ready(), 0, "OUT2 cuts the interrupt off, as while Linux probes");
        uart.write(MCR, 1, MCR_OUT2.into());
        assert_eq!(uart.ready(), 0, "Linux turns the FIFO on now, which empties it");
        uart.read(LSR, 1);
        assert_eq!(uart.ready(), 1);
        uart.write(FCR, 1, 1);
        assert_eq!(uart.ready(), FIFO_SIZE);
        uart.offer(b"ab");
        uart.read(DATA, 1);
        assert_eq!(uart.ready(), 0, "one is left");
        uart.read(DATA, 1);
        assert_eq!(*lock(&told), [0, 1, 16, 0, 16]);
        uart.write(IER, 1, 0);
        for _ in 0..POLLS {
            assert_eq!(uart.ready(), 0, "a look or two is for the transmitter");
            uart.read(LSR, 1);
        }
        assert_eq!(uart.ready(), FIFO_SIZE, "who looks on and on waits for input");
        uart.write(DATA, 1, b'x'.into());
        assert_eq!(uart.ready(), 0);
    }

    #[test]
    fn a_break_is_told_once_in_its_place() {
        let (uart, wire, _) = uart();
        uart.write(FCR, 1, 1);
        uart.write(IER, 1, (IER_ERBFI | IER_ELSI).into());
        uart.offer(b"a");
        assert!(uart.offer_break());
        uart.offer(b"h");
        assert_eq!(uart.read(LSR, 1) & 0x11, 1, "the break is not at the front");
        assert_eq!(uart.read(DATA, 1), u32::from(b'a'));
        assert_eq!(uart.read(IIR, 1) & 0x0f, u32::from(IIR_LINE));
        assert_eq!(uart.read(LSR, 1) & 0x11, 0x11);
        assert_eq!(uart.read(LSR, 1) & 0x11, 1);
        assert_eq!(uart.read(DATA, 1), 0);
        assert_eq!((uart.read(LSR, 1) & 0x11, uart.read(DATA, 1)), (1, b'h'.into()));
        assert!(!wire.level());
        uart.offer(&[b'x'; FIFO_SIZE]);
        assert!(!uart.offer_break(), "there is no room");
    }

    #[test]
    fn loopback_receives_and_overruns() {
        let (uart, _, bytes) = uart();
        uart.write(IER, 1, 0x0f);
        uart.write(MCR, 1, (MCR_LOOP | MCR_OUT2).into());
        uart.write(DATA, 1, 0x41);
        uart.write(DATA, 1, 0x42);
        assert_eq!(uart.read(IIR, 1), u32::from(IIR_LINE));
        assert_eq!(uart.read(LSR, 1), 0x63);
        assert_eq!(uart.read(DATA, 1), 0x41);
        assert!(bytes.take().is_empty());
        assert_eq!(uart.offer(b"z"), 0);
    }
}
