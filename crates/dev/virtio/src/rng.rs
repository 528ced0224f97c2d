//! Entropy source (virtio 1.2, 5.4).

use std::sync::{Arc, Mutex};

use satori_defs::virtio::kind;

use crate::{Device, Link, lock};

/// Bytes that one request gets at most: a guest that wants more asks again.
const MOST: usize = 4096;

/// Gives random bytes, as many as the driver asks for, at once.
pub struct Rng(Mutex<Source>);

type Source = Box<dyn FnMut(bool, &mut [u8]) -> bool + Send>;

impl Rng {
    /// A device whose bytes come from `fill`, which is told whether they have to be the same in every run, and tells
    /// whether it has any.
    pub fn new(fill: impl FnMut(bool, &mut [u8]) -> bool + Send + 'static) -> Arc<Self> {
        Arc::new(Rng(Mutex::new(Box::new(fill))))
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
            let had = (lock(&self.0))(link.determined(), &mut bytes);
            let given = if had { &bytes[..] } else { &[] };
            link.give(queue, &chain, |chain, memory| chain.write(memory, 0, given));
        }
    }

    fn reset(&self) {}
}
