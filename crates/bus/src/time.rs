//! Guest time and one-shot timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, Weak};

use satori_lock::Held;

/// Nanoseconds of guest time since the machine started.
pub type Nanos = u64;

/// The machine's one source of time; real or virtual, it never goes backwards.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the machine started.
    fn now(&self) -> Nanos;
    /// The partition's counter, as its instruction set reads the clock: what a guest finds in its own before a vCPU's offset.
    fn counter(&self) -> u64;
    /// Frequency of [`Clock::counter`] in Hz.
    fn counter_hz(&self) -> u64;
    /// What a guest's counter shows at [`Clock::counter`] `counter`: the same, until its
    /// frequency was changed.
    fn to_guest(&self, counter: u64) -> u64 {
        counter
    }
    /// The first [`Clock::counter`] at which a guest's counter shows `guest`, as it runs now.
    fn of_guest(&self, guest: u64) -> u64 {
        guest
    }
    /// What a guest's counter shows now.
    fn guest_counter(&self) -> u64 {
        self.to_guest(self.counter())
    }
    /// Frequency of [`Clock::guest_counter`] in Hz.
    fn guest_counter_hz(&self) -> u64 {
        self.counter_hz()
    }
    /// Has the guest's counter go on at another frequency, as on the processor that a migration leads
    /// to. Deadlines stay where they are in [`Clock::counter`]. `begin` is given that counter and the guest's at the
    /// change, of which nobody has read a later one by the old frequency, and says at what the guest's goes on;
    /// never below where it was.
    fn set_guest_counter_hz(&self, _hz: u64, _begin: &mut dyn FnMut(u64, u64) -> u64) {}
    /// Wall clock at machine start, in nanoseconds since the Unix epoch.
    fn epoch(&self) -> u64;
}

/// Something a [`TimerQueue`] calls when its time has come.
pub trait Timer: Send + Sync {
    /// Called at or after the armed time, from the thread that runs the queue.
    fn expired(&self, now: Nanos);
}

/// A time for which a timer is armed, and its rank among all that were armed.
pub type Armed = (Nanos, u64);

/// Whether both are of one timer.
fn same(a: &Weak<dyn Timer>, b: &Weak<dyn Timer>) -> bool {
    std::ptr::addr_eq(a.as_ptr(), b.as_ptr())
}

struct Entry {
    at: Nanos,
    order: u64,
    timer: Weak<dyn Timer>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Default)]
struct Inner {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
}

/// One-shot timers of the platform devices, ordered by time and then by arming order.
///
/// There is no disarm: a device that changed its mind ignores an expiry that comes before its
/// own current deadline. A device whose deadline a guest sets uses [`TimerQueue::replace`], so that
/// no guest can fill the queue. Whoever runs the machine (a thread in real time, the scheduler loop in
/// virtual time) asks for [`TimerQueue::next`] and calls [`TimerQueue::run`].
#[derive(Default)]
pub struct TimerQueue {
    inner: Mutex<Inner>,
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl TimerQueue {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets what is called when an earlier deadline than any before was armed.
    pub fn on_earlier(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock().held() = Some(Box::new(wake));
    }

    /// Arms `timer` for `at`. A timer dropped before that is forgotten.
    pub fn arm(&self, at: Nanos, timer: Weak<dyn Timer>) {
        let earlier = {
            let mut inner = self.inner.lock().held();
            let earlier = inner.heap.peek().is_none_or(|first| at < first.0.at);
            inner.order = inner.order.saturating_add(1);
            let order = inner.order;
            inner.heap.push(Reverse(Entry { at, order, timer }));
            earlier
        };
        if earlier && let Some(wake) = &*self.wake.lock().held() {
            wake();
        }
    }

    /// Arms `timer` for `at`, in place of everything it was armed for before: the queue then holds
    /// one entry for it, however often a guest changes its mind.
    pub fn replace(&self, at: Nanos, timer: Weak<dyn Timer>) {
        {
            let mut inner = self.inner.lock().held();
            inner.heap.retain(|Reverse(entry)| !same(&entry.timer, &timer));
        }
        self.arm(at, timer);
    }

    /// When `timer` is armed for, and which came first of what is armed for one time: for whoever saves it.
    pub fn armed(&self, timer: &Weak<dyn Timer>) -> Vec<Armed> {
        let inner = self.inner.lock().held();
        let own = inner.heap.iter().filter(|Reverse(entry)| same(&entry.timer, timer));
        let mut armed: Vec<_> = own.map(|Reverse(entry)| (entry.at, entry.order)).collect();
        armed.sort_unstable();
        armed
    }

    /// Arms `timer` as it was when [`TimerQueue::armed`] told, and no more for anything else. The order among timers is right again
    /// once all of them were restored.
    pub fn restore(&self, timer: &Weak<dyn Timer>, armed: &[Armed]) {
        let mut inner = self.inner.lock().held();
        inner.heap.retain(|Reverse(entry)| !same(&entry.timer, timer));
        for &(at, order) in armed {
            inner.order = inner.order.max(order);
            inner.heap.push(Reverse(Entry { at, order, timer: timer.clone() }));
        }
    }

    /// The earliest armed time.
    pub fn next(&self) -> Option<Nanos> {
        let inner = self.inner.lock().held();
        inner.heap.peek().map(|entry| entry.0.at)
    }

    /// Calls every timer due at `now`, in order, without holding the queue's lock.
    pub fn run(&self, now: Nanos) {
        loop {
            let due = {
                let mut inner = self.inner.lock().held();
                match inner.heap.peek() {
                    Some(entry) if entry.0.at <= now => inner.heap.pop(),
                    _ => None,
                }
            };
            let Some(Reverse(entry)) = due else { return };
            if let Some(timer) = entry.timer.upgrade() {
                timer.expired(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex as M;

    struct Log(M<Vec<Nanos>>);
    impl Timer for Log {
        fn expired(&self, now: Nanos) {
            self.0.lock().unwrap().push(now);
        }
    }

    #[test]
    fn due_timers_run_once_and_dropped_ones_never() {
        let queue = TimerQueue::new();
        let log = Arc::new(Log(M::default()));
        let kept: Arc<dyn Timer> = log.clone();
        queue.arm(10, Arc::downgrade(&kept));
        queue.arm(5, Arc::downgrade(&kept));
        {
            let gone: Arc<dyn Timer> = Arc::new(Log(M::default()));
            queue.arm(1, Arc::downgrade(&gone));
        }
        assert_eq!(queue.next(), Some(1));
        queue.run(7);
        assert_eq!(*log.0.lock().unwrap(), [7]);
        queue.run(20);
        queue.run(30);
        assert_eq!(*log.0.lock().unwrap(), [7, 20]);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn restored_timers_expire_in_the_order_in_which_they_were_armed() {
        let log = Arc::new(M::new(Vec::new()));
        struct Named(char, Arc<M<Vec<char>>>);
        impl Timer for Named {
            fn expired(&self, _now: Nanos) {
                self.1.lock().unwrap().push(self.0);
            }
        }
        let timers = "abc".chars().map(|name| Arc::new(Named(name, log.clone())) as Arc<dyn Timer>);
        let timers: Vec<_> = timers.collect();
        let weak: Vec<_> = timers.iter().map(Arc::downgrade).collect();
        let queue = TimerQueue::new();
        for (at, timer) in [(10, 2), (10, 0), (10, 1), (7, 0)] {
            queue.arm(at, weak[timer].clone());
        }
        let armed: Vec<_> = weak.iter().map(|timer| queue.armed(timer)).collect();
        assert_eq!(armed, [vec![(7, 4), (10, 2)], vec![(10, 3)], vec![(10, 1)]]);
        let other = TimerQueue::new();
        other.arm(1, weak[1].clone());
        weak.iter().zip(&armed).for_each(|(timer, armed)| other.restore(timer, armed));
        other.arm(10, weak[0].clone());
        other.run(10);
        assert_eq!(*log.lock().unwrap(), ['a', 'c', 'a', 'b', 'a']);
    }

    #[test]
    fn replacing_leaves_one_entry_a_timer() {
        let queue = TimerQueue::new();
        let log = Arc::new(Log(M::default()));
        let timer: Arc<dyn Timer> = log.clone();
        for at in (1..1000).rev() {
            queue.replace(at, Arc::downgrade(&timer));
        }
        queue.replace(50, Arc::downgrade(&timer));
        assert_eq!(queue.inner.lock().unwrap().heap.len(), 1);
        queue.run(49);
        assert!(log.0.lock().unwrap().is_empty());
        queue.run(50);
        assert_eq!(*log.0.lock().unwrap(), [50]);
    }
}
