//! How front end and back end find each other: two folders of the store, and a state in each (public/io/xenbus.h).

use satori_lock::lock;
use satori_xen::{Domain, Store};
use std::sync::Mutex;

/// States, as the store has them.
pub(crate) const INITIALISING: u8 = 1;
pub(crate) const INIT_WAIT: u8 = 2;
pub(crate) const INITIALISED: u8 = 3;
pub(crate) const CONNECTED: u8 = 4;
pub(crate) const CLOSING: u8 = 5;
pub(crate) const CLOSED: u8 = 6;

/// What a kind of device does for its connection.
pub(crate) trait Ends: Send + Sync {
    /// What the front end has to know before it sets itself up.
    fn offer(&self) -> Vec<(&'static str, String)>;
    /// What it has to know once it is connected.
    fn tell(&self) -> Vec<(&'static str, String)>;
    /// Takes the rings that the front end named in the store's folder `front`. The error is what is wrong with them.
    fn connect(&self, domain: &Domain, front: &str) -> Result<(), String>;
    /// Leaves them.
    fn disconnect(&self, domain: &Domain);
}

/// One device's two folders.
pub(crate) struct Connection {
    pub front: String,
    pub back: String,
    /// The back end's state.
    state: Mutex<u8>,
}

impl Connection {
    /// Makes the folders of device `number` of `kind`, with these values in the front end's.
    pub(crate) fn new(store: &mut Store, kind: &str, number: u32, facts: &[(&str, String)]) -> Self {
        let front = format!("/local/domain/1/device/{kind}/{number}");
        let back = format!("/local/domain/0/backend/{kind}/1/{number}");
        for (path, owned) in [(&front, true), (&back, false)] {
            store.set(path, "");
            store.give(path, owned);
        }
        let own =
            [("backend", back.clone()), ("backend-id", "0".into()), ("state", INITIALISING.to_string())];
        for (name, value) in own.iter().chain(facts) {
            store.set(&format!("{front}/{name}"), value);
        }
        for (name, value) in [("frontend", &*front), ("frontend-id", "1"), ("online", "1"), ("state", "1")] {
            store.set(&format!("{back}/{name}"), value);
        }
        Connection { front, back, state: Mutex::new(INITIALISING) }
    }

    /// The device's name among saved states.
    pub(crate) fn name(&self) -> String {
        format!("xen/{}", self.front.trim_start_matches("/local/domain/1/device/"))
    }

    pub(crate) fn state(&self) -> u8 {
        *lock(&self.state)
    }

    /// Goes on as a restored machine was.
    pub(crate) fn set_state(&self, state: u8) {
        *lock(&self.state) = state;
    }

    /// The front end's state may have changed: follows it.
    pub(crate) fn follow(&self, domain: &Domain, ends: &dyn Ends) {
        let mut state = lock(&self.state);
        let front = domain.with_store(|store| store.read::<u8>(&format!("{}/state", self.front)));
        let next = match (*state, front) {
            (INIT_WAIT, Some(INITIALISING)) => return,
            (_, Some(INITIALISING)) => {
                ends.disconnect(domain);
                self.publish(domain, &ends.offer());
                INIT_WAIT
            }
            (INIT_WAIT, Some(INITIALISED | CONNECTED)) => match ends.connect(domain, &self.front) {
                Ok(()) => {
                    self.publish(domain, &ends.tell());
                    CONNECTED
                }
                Err(why) => {
                    tracing::warn!("Xen's device {}: {why}", self.front);
                    let error = format!("22 {why}");
                    domain.with_store(|store| store.set(&format!("{}/error", self.back), &error));
                    CLOSING
                }
            },
            (CLOSING | CLOSED, Some(CLOSING)) => return,
            (CLOSED, Some(CLOSED) | None) => return,
            (_, Some(CLOSING)) => {
                ends.disconnect(domain);
                CLOSING
            }
            (_, Some(CLOSED) | None) => {
                ends.disconnect(domain);
                CLOSED
            }
            _ => return,
        };
        *state = next;
        domain.with_store(|store| store.set(&format!("{}/state", self.back), &next.to_string()));
    }

    fn publish(&self, domain: &Domain, facts: &[(&'static str, String)]) {
        domain.with_store(|store| {
            facts.iter().for_each(|(name, value)| store.set(&format!("{}/{name}", self.back), value));
        });
    }
}
