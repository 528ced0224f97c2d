//! PL011, the serial port (Arm DDI 0183): what is sent leaves at once, what comes waits in a queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use satori_bus::{ByteSink, MmioDevice};
use satori_lock::Held;

/// Interrupts: of the receiver, its timeout, the transmitter.
const RX: u32 = 1 << 4;
const TX: u32 = 1 << 5;
const RT: u32 = 1 << 6;
/// Break error, in UARTDR.
const BREAK: u16 = 1 << 10;

/// Bytes that wait for the guest.
const ROOM: usize = 16;

const ID: [u8; 8] = [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

#[derive(Default)]
struct State {
    received: VecDeque<u16>,
    raw: u32,
    mask: u32,
    /// UARTIBRD, UARTFBRD, UARTLCR_H, UARTCR, UARTIFLS as they were written.
    kept: [u32; 5],
    level: bool,
}

type Line = Box<dyn Fn(bool) + Send + Sync>;
type Notice = Box<dyn Fn() + Send>;

/// The serial port.
pub struct Pl011 {
    state: Mutex<State>,
    sink: Mutex<Box<dyn ByteSink>>,
    line: Line,
    on_room: Mutex<Option<Notice>>,
}

impl Pl011 {
    /// One that sends to `sink` and signals by `line`.
    pub fn new(sink: Box<dyn ByteSink>, line: Line) -> Arc<Self> {
        let state = State { kept: [0, 0, 0, 0x300, 0x12], ..State::default() };
        Arc::new(Pl011 { state: Mutex::new(state), sink: Mutex::new(sink), line, on_room: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().held()
    }

    /// Who is told when there is room for input again.
    pub fn on_room(&self, told: impl Fn() + Send + 'static) {
        *self.on_room.lock().held() = Some(Box::new(told));
    }

    /// How many bytes the guest waits for: it listens, and has taken all there were.
    pub fn waits(&self) -> usize {
        let state = self.lock();
        if state.mask & (RX | RT) != 0 && state.received.is_empty() { ROOM } else { 0 }
    }

    /// Hands `bytes` to the guest; how many it takes now.
    pub fn offer(&self, bytes: &[u8]) -> usize {
        let mut state = self.lock();
        let room = if state.mask & (RX | RT) == 0 { 0 } else { ROOM.saturating_sub(state.received.len()) };
        let taken = room.min(bytes.len());
        state.received.extend(bytes[..taken].iter().map(|&byte| u16::from(byte)));
        self.signal(state);
        taken
    }

    /// A break on the line; whether the guest took it.
    pub fn offer_break(&self) -> bool {
        let mut state = self.lock();
        let room = state.received.len() < ROOM;
        if room {
            state.received.push_back(BREAK);
            self.signal(state);
        }
        room
    }

    fn signal(&self, mut state: MutexGuard<'_, State>) {
        match state.received.is_empty() {
            true => state.raw &= !(RX | RT),
            false => state.raw |= RX | RT,
        }
        let level = state.raw & state.mask != 0;
        let changed = std::mem::replace(&mut state.level, level) != level;
        drop(state);
        if changed {
            (self.line)(level);
        }
    }

    fn kept(offset: u64) -> Option<usize> {
        Some(match offset {
            0x24 => 0,
            0x28 => 1,
            0x2c => 2,
            0x30 => 3,
            0x34 => 4,
            _ => return None,
        })
    }
}

impl MmioDevice for Pl011 {
    fn read(&self, offset: u64, _size: u8) -> u64 {
        let mut state = self.lock();
        let value = match offset {
            0 => {
                let value = state.received.pop_front().unwrap_or(0);
                let drained = state.received.is_empty();
                self.signal(state);
                if drained && let Some(told) = &*self.on_room.lock().held() {
                    told();
                }
                return value.into();
            }
            // UARTFR: the transmitter is empty; so is the receiver, or not.
            0x18 => 1 << 7 | u32::from(state.received.is_empty()) << 4,
            0x38 => state.mask,
            0x3c => state.raw,
            0x40 => state.raw & state.mask,
            0xfe0..=0xffc => ID[((offset - 0xfe0) / 4) as usize].into(),
            _ => Self::kept(offset).map_or(0, |at| state.kept[at]),
        };
        value.into()
    }

    fn write(&self, offset: u64, _size: u8, value: u64) {
        let value = value as u32;
        match offset {
            0 => {
                self.sink.lock().held().put(&[value as u8]);
                let mut state = self.lock();
                state.raw |= TX;
                self.signal(state);
            }
            0x38 => {
                let mut state = self.lock();
                state.mask = value & 0x7ff;
                self.signal(state);
                if let Some(told) = &*self.on_room.lock().held() {
                    told();
                }
            }
            0x44 => {
                let mut state = self.lock();
                state.raw &= !value;
                self.signal(state);
            }
            _ => {
                if let Some(at) = Self::kept(offset) {
                    self.lock().kept[at] = value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Bytes(Arc<Mutex<Vec<u8>>>);

    impl ByteSink for Bytes {
        fn put(&mut self, bytes: &[u8]) {
            self.0.lock().unwrap().extend(bytes);
        }
    }

    #[test]
    fn bytes_go_out_at_once_and_come_in_with_an_interrupt() {
        let (sent, level) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let line = level.clone();
        let sink = Box::new(Bytes(sent.clone()));
        let uart = Pl011::new(sink, Box::new(move |on| line.store(on, Ordering::SeqCst)));
        uart.write(0, 1, b'a'.into());
        assert_eq!(*sent.lock().unwrap(), [b'a']);
        assert_eq!(uart.offer(b"x"), 0, "nobody listens yet");
        uart.write(0x44, 4, 0x7ff);
        uart.write(0x38, 4, RX.into());
        assert_eq!((uart.waits(), uart.offer(b"xyz")), (ROOM, 3));
        assert!(level.load(Ordering::SeqCst));
        assert_eq!(uart.read(0x18, 4) & 0x10, 0);
        assert_eq!([uart.read(0, 4), uart.read(0, 4), uart.read(0, 4)], [b'x', b'y', b'z'].map(u64::from));
        assert!(!level.load(Ordering::SeqCst));
        assert_eq!(uart.read(0xfe0, 4), 0x11);
    }
}
