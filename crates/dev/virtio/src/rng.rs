//! Entropy source (virtio 1.2, 5.4).

use std::sync::{Arc, Mutex};

use satori_defs::virtio::kind;
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::{Device, Link, lock};

/// Bytes that one request gets at most: a guest that wants more asks again.
const MOST: usize = 4096;

/// Gives random bytes, as many as the driver asks for, at once.
pub struct Rng(Mutex<Source>);

type Source = Box<dyn RandomBytes>;

/// Where random bytes come from.
pub trait RandomBytes: Send {
    /// Fills in bytes, which have to be the same in every run if it is `determined`; tells whether it had any.
    fn fill(&mut self, determined: bool, bytes: &mut [u8]) -> bool;
    /// What all bytes of a determined run that are to come follow from.
    fn seed(&self) -> u64;
    /// Goes on from a [`RandomBytes::seed`].
    fn set_seed(&mut self, seed: u64);
}

impl Rng {
    /// A device whose bytes come from `source`.
    pub fn new(source: impl RandomBytes + 'static) -> Arc<Self> {
        Arc::new(Rng(Mutex::new(Box::new(source))))
    }
}

impl Device for Rng {
    fn kind(&self) -> u16 {
        kind::ENTROPY
    }

    fn class(&self) -> u32 {
        0x10_00_00
    }

    fn queues(&self) -> Vec<u16> {
        vec![64]
    }

    fn start(&self, _link: &Arc<Link>) {}

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        while let Some(chain) = link.pop(queue) {
            let mut bytes = vec![0; chain.writable_bytes().min(MOST)];
            let had = lock(&self.0).fill(link.determined(), &mut bytes);
            let given = if had { &bytes[..] } else { &[] };
            link.give(queue, &chain, |chain, memory| chain.write(memory, 0, given));
        }
    }

    fn reset(&self) {}

    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedRng { seed: lock(&self.0).seed() })
    }

    fn restore(&self, _link: &Arc<Link>, value: &Value) -> Result<(), Error> {
        lock(&self.0).set_seed(value.state::<SavedRng>()?.seed);
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRng {
    seed: u64,
}

impl State for SavedRng {
    const NAME: &'static str = "entropy source";
    const VERSION: u32 = 1;
}
