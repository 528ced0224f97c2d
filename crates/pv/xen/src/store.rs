//! The store's ring: a guest's messages in a page that it shares with the host, and answers and events back.

use std::collections::VecDeque;

use satori_defs::xen::store::{
    BYTES, CONNECTION, ERROR, ERROR_INDEX, ERROR_MESSAGE, FEATURES, FEATURES_VALUE, RECONNECT, REQUEST,
    REQUEST_CONS, REQUEST_PROD, RESPONSE, RESPONSE_CONS, RESPONSE_PROD,
};
use satori_memory::{Gpa, PAGE_SIZE};
use satori_xenstore::{HEADER, Header, PAYLOAD_MAX, Store};
use serde::{Deserialize, Serialize};

use crate::Domain;
use crate::domain::{CONSOLE_GFN, STORE_GFN, State};
use crate::leaves::DOMID;

/// Bytes of answers that may wait for the guest before its next message does.
const BACKLOG: usize = 64 << 10;
/// How often one notification has the ring looked at: another vCPU that fills it meanwhile notifies by itself.
const ROUNDS: usize = 8;

/// What was taken from the ring, and what goes there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pipe {
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
    /// The guest wrote what makes no sense: nothing is understood until it connects anew.
    broken: bool,
}

const fn page(offset: u64) -> Gpa {
    Gpa(STORE_GFN * PAGE_SIZE + offset)
}

impl Pipe {
    pub(crate) fn fits(&self) -> bool {
        self.incoming.len() <= HEADER + PAYLOAD_MAX
            && self.outgoing.len() <= BACKLOG + 2 * (HEADER + PAYLOAD_MAX)
    }

    /// The next whole message. The error is that there is none that can be.
    fn message(&mut self) -> Result<Option<(Header, Vec<u8>)>, ()> {
        let Some((head, rest)) = self.incoming.split_first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::new(*head);
        let len = header.len as usize;
        if len > PAYLOAD_MAX {
            return Err(());
        }
        let Some(payload) = rest.get(..len).map(<[u8]>::to_vec) else { return Ok(None) };
        self.incoming.drain(..HEADER + len);
        Ok(Some((header, payload)))
    }
}

impl Domain {
    /// Puts what a domain finds at its beginning into the store.
    pub(crate) fn begin_store(&self, state: &mut State) {
        // The page is part of the machine for good.
        let _ = self.memory.store_u32(page(FEATURES), FEATURES_VALUE);
        let home = format!("/local/domain/{DOMID}");
        let kib = self.ram_pages() * (PAGE_SIZE / 1024);
        let (console, store) = (state.console_port, state.store_port);
        let (vcpus, own) = (state.vcpus.len(), &mut state.store);
        own.set(&home, "");
        own.give(&home, false);
        let facts = [
            ("name", "satori".to_string()),
            ("domid", DOMID.to_string()),
            ("vm", "/vm/00000000-0000-0000-0000-000000000001".into()),
            ("memory/static-max", kib.to_string()),
            ("memory/target", kib.to_string()),
            ("console/ring-ref", CONSOLE_GFN.to_string()),
            ("console/port", console.to_string()),
            ("console/type", "xenconsoled".into()),
            ("store/ring-ref", STORE_GFN.to_string()),
            ("store/port", store.to_string()),
            ("control/platform-feature-xs_reset_watches", "1".into()),
            ("device", String::new()),
        ];
        for (name, value) in facts {
            own.set(&format!("{home}/{name}"), &value);
        }
        for vcpu in 0..vcpus {
            own.set(&format!("{home}/cpu/{vcpu}/availability"), "online");
        }
        for name in [
            "control/shutdown",
            "control/feature-poweroff",
            "control/feature-reboot",
            "control/feature-suspend",
            "control/feature-halt",
            "control/sysrq",
            "data",
            "drivers",
            "feature",
            "attr",
            "error",
        ] {
            let path = format!("{home}/{name}");
            own.set(&path, "");
            own.give(&path, true);
        }
        own.set("/vm/00000000-0000-0000-0000-000000000001/name", "satori");
        own.set("/local/domain/0/domid", "0");
        own.set("/tool/xenstored", "");
    }

    /// Lets the host read and change the store; the guest then hears of it.
    pub fn with_store<R>(&self, work: impl FnOnce(&mut Store) -> R) -> R {
        let mut state = self.state();
        let result = work(&mut state.store);
        if self.flush_store(&mut state) {
            let port = state.store_port;
            self.raise(&mut state, port, None);
        }
        result
    }

    /// Asks the guest to power off, if its kernel listens for that.
    pub fn ask_to_power_off(&self) -> bool {
        let path = |name: &str| format!("/local/domain/{DOMID}/control/{name}");
        self.with_store(|store| {
            let listens = store.get(&path("feature-poweroff")) == Some(b"1");
            if listens {
                store.set(&path("shutdown"), "poweroff");
            }
            listens
        })
    }

    /// The guest notified the store: takes its messages, and answers. Then back ends hear what it changed.
    pub(crate) fn serve_store(&self, own: Option<u32>) {
        let changed = {
            let mut state = self.state();
            let mut moved = false;
            for _ in 0..ROUNDS {
                let some = self.take_messages(&mut state) | self.flush_store(&mut state);
                moved |= some;
                if !some {
                    break;
                }
            }
            if moved {
                let port = state.store_port;
                self.raise(&mut state, port, own);
            }
            state.store.take_changed()
        };
        if let Some(back_ends) = self.back_ends.get().filter(|_| !changed.is_empty()) {
            back_ends.changed(&changed);
        }
    }

    fn break_store(&self, state: &mut State, why: u32) {
        state.pipe.broken = true;
        // The page is part of the machine for good.
        let _ = self.memory.store_u32(page(ERROR), why);
    }

    /// Takes what is in the ring, as far as answers do not pile up; whether there was something.
    fn take_messages(&self, state: &mut State) -> bool {
        let index = |at| self.memory.load_u32(page(at)).unwrap_or(0);
        if index(CONNECTION) == RECONNECT {
            state.store.disconnect();
            state.pipe = Pipe::default();
            for at in [REQUEST_CONS, REQUEST_PROD, RESPONSE_CONS, RESPONSE_PROD, ERROR, CONNECTION] {
                let _ = self.memory.store_u32(page(at), 0);
            }
            return true;
        }
        if state.pipe.broken {
            return false;
        }
        let (taken, given) = (index(REQUEST_CONS), index(REQUEST_PROD));
        let there = given.wrapping_sub(taken);
        if there > BYTES {
            self.break_store(state, ERROR_INDEX);
            return false;
        }
        let room = (HEADER + PAYLOAD_MAX).saturating_sub(state.pipe.incoming.len());
        let take = (there as usize).min(room) as u32;
        let mut ring = vec![0; BYTES as usize];
        if self.memory.read(page(REQUEST), &mut ring).is_err() {
            return false;
        }
        state.pipe.incoming.extend((0..take).map(|at| ring[(taken.wrapping_add(at) % BYTES) as usize]));
        let _ = self.memory.store_u32(page(REQUEST_CONS), taken.wrapping_add(take));
        let mut some = take > 0;
        while state.pipe.outgoing.len() < BACKLOG {
            match state.pipe.message() {
                Ok(Some((header, payload))) => {
                    let answer = state.store.request(header, &payload);
                    state.pipe.outgoing.extend(answer);
                    some = true;
                }
                Ok(None) => break,
                Err(()) => {
                    self.break_store(state, ERROR_MESSAGE);
                    break;
                }
            }
        }
        some
    }

    /// Puts answers, and behind them events, into the ring as far as there is room; whether there was something.
    fn flush_store(&self, state: &mut State) -> bool {
        if state.pipe.broken {
            return false;
        }
        let index = |at| self.memory.load_u32(page(at)).unwrap_or(0);
        let (taken, mut given) = (index(RESPONSE_CONS), index(RESPONSE_PROD));
        let mut room = match given.wrapping_sub(taken) {
            used if used <= BYTES => BYTES - used,
            _ => {
                self.break_store(state, ERROR_INDEX);
                return false;
            }
        };
        let mut some = false;
        while room > 0 {
            if state.pipe.outgoing.is_empty() {
                let Some(event) = state.store.event() else { break };
                state.pipe.outgoing.extend(event);
            }
            let count = (state.pipe.outgoing.len() as u32).min(room);
            for byte in state.pipe.outgoing.drain(..count as usize) {
                // The page is part of the machine for good.
                let _ = self.memory.write(page(RESPONSE + u64::from(given % BYTES)), &[byte]);
                given = given.wrapping_add(1);
            }
            room -= count;
            some = true;
        }
        if some {
            let _ = self.memory.store_u32(page(RESPONSE_PROD), given);
        }
        some
    }
}
