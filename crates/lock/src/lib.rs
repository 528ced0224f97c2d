//! What a lock gives when a thread panicked that held it.
//!
//! A panic is our own failure and ends the process (`main` sees to that), but the threads beside it still run until then, and
//! those that end the run need what the locks guard. So every lock is taken all the same. What makes that right is the rule
//! for whoever holds one: between any two statements, what it guards is valid.

#![forbid(unsafe_code)]

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, TryLockError};

/// The guard of a lock, whoever held it before.
pub trait Held<G> {
    /// The guard, also behind a panic.
    fn held(self) -> G;
}

impl<G> Held<G> for LockResult<G> {
    fn held(self) -> G {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks `mutex`, also behind a thread that panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().held()
}

/// The same where nobody waits: none while another thread holds it.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(left)) => Some(left.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, RwLock};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_panic_left_is_there() {
        let kept = Arc::new((Mutex::new(1), RwLock::new(2)));
        let its = kept.clone();
        let panicked = std::thread::spawn(move || {
            let (mut number, mut other) = (lock(&its.0), its.1.write().held());
            (*number, *other) = (3, 4);
            panic!("on purpose");
        });
        panicked.join().expect_err("it panicked");
        assert!(kept.0.is_poisoned() && kept.1.is_poisoned());
        assert_eq!((*lock(&kept.0), *kept.1.read().held()), (3, 4));
        assert_eq!(try_lock(&kept.0).map(|mut number| std::mem::replace(&mut *number, 5)), Some(3));
        let holding = lock(&kept.0);
        assert!(try_lock(&kept.0).is_none());
        drop(holding);
        let waited = Condvar::new().wait_timeout(lock(&kept.0), Duration::ZERO).held();
        assert_eq!(*waited.0, 5);
    }
}
