//! Who waits for a request that a disk's thread does, and for how long.

use std::cell::Cell;
use std::sync::mpsc::channel;
use std::thread::{available_parallelism, scope, yield_now};

use super::*;
use crate::{Access, Store};

/// A file of zeroes whose writes wait until they are let through, one by one.
#[derive(Debug, Default)]
struct Gate {
    /// Writes that have begun, and how many may end.
    writes: Mutex<(u32, u32)>,
    bell: Condvar,
}

impl Gate {
    fn let_through(&self) {
        lock(&self.writes).1 += 1;
        self.bell.notify_all();
    }
}

impl Store for Gate {
    fn len(&self) -> u64 {
        1 << 20
    }
    fn set_len(&self, _len: u64) -> IoResult<()> {
        Ok(())
    }
    fn read(&self, _at: u64, data: &mut [u8]) -> IoResult<()> {
        data.fill(0);
        Ok(())
    }
    fn write(&self, _at: u64, _data: &[u8]) -> IoResult<()> {
        let mut writes = lock(&self.writes);
        writes.0 += 1;
        let number = writes.0;
        while writes.1 < number {
            writes = self.bell.wait(writes).held();
        }
        Ok(())
    }
    fn punch(&self, _at: u64, _len: u64) -> IoResult<()> {
        Ok(())
    }
    fn sync(&self) -> IoResult<()> {
        Ok(())
    }
}

fn disk() -> (Arc<Gate>, Requests) {
    let gate = Arc::new(Gate::default());
    let image = Image::raw("gate", gate.clone(), Access::Write).unwrap();
    let requests = Requests::new(image, IoThread::new(Vec::new()));
    requests.start();
    (gate, requests)
}

fn write(requests: &Requests, answer: impl FnOnce() + Send + 'static) {
    let done = |result: IoResult<Vec<u8>>| {
        result.unwrap();
        answer();
    };
    requests.take(Request::Write { at: 0, data: vec![1; 512] }, Box::new(done));
}

/// How often the caller looks, who is told by `give_up` whether there is something else to do, by the number of the look.
fn looks(requests: &Requests, give_up: impl Fn(u32) -> bool) -> u32 {
    let count = Cell::new(0);
    requests.attend(&|| {
        count.set(count.get() + 1);
        give_up(count.get())
    });
    count.get()
}

/// Nobody waits without sleeping where nobody could answer meanwhile.
fn several() -> bool {
    available_parallelism().unwrap().get() > 1
}

#[test]
fn who_asked_waits_for_a_moment_and_after_one_in_vain_not_at_once() {
    let (gate, requests) = disk();
    assert_eq!(looks(&requests, |_| false), 0, "nothing was asked for");
    write(&requests, || ());
    let another = scope(|scope| scope.spawn(|| looks(&requests, |_| false)).join().unwrap());
    assert_eq!(another, 0, "it is not his");
    assert_eq!(looks(&requests, |_| false) > 0, several(), "it does not come within the moment");
    assert_eq!(looks(&requests, |_| false), 0, "one is left out");
    for _ in 0..3 {
        assert_eq!(looks(&requests, |_| true), u32::from(several()), "there is something else to do");
    }
    gate.let_through();
    requests.idle();
    assert_eq!(looks(&requests, |_| false), 0, "it was answered");
}

#[test]
fn what_is_done_within_the_moment_ends_it() {
    let (gate, requests) = disk();
    // On a busy host not each time: after one in vain the next is left out.
    let (mut before, mut useful) = (0, !several());
    for _ in 0..100_000 {
        write(&requests, || ());
        let looked = looks(&requests, |look| {
            if look == 1 {
                gate.let_through();
            }
            false
        });
        if looked == 0 {
            gate.let_through();
        }
        requests.idle();
        useful |= before > 0 && looked > 0;
        before = looked;
        if useful {
            return;
        }
    }
    panic!("nothing came within a moment");
}

#[test]
fn what_is_forgotten_is_not_waited_for() {
    let (gate, requests) = disk();
    let (told, heard) = channel();
    for number in 0..3 {
        let told = told.clone();
        write(&requests, move || told.send(number).unwrap());
    }
    while lock(&gate.writes).0 == 0 {
        yield_now();
    }
    scope(|scope| {
        scope.spawn(|| requests.clear());
        while !lock(&requests.shared.state).waiting.is_empty() {
            yield_now();
        }
        gate.let_through();
    });
    assert_eq!(looks(&requests, |_| false), 0);
    drop(requests);
    drop(told);
    assert_eq!(heard.iter().collect::<Vec<_>>(), [0], "what the thread had in its hands was answered");
}
