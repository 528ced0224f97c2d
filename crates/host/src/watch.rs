//! What a device's own thread waits for: a bell, and other ends, of which only what is of use at the time.

use std::io::{Read, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

pub use rustix::event::epoll::EventFlags;
use rustix::event::epoll::{self, CreateFlags, Event, EventData};
use satori_lock::lock;

/// It; clones are the same one.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    epoll: OwnedFd,
    /// Another end writes to it.
    bell: UnixStream,
    ends: Vec<OwnedFd>,
    /// What of the ends is waited for.
    wanted: Mutex<EventFlags>,
}

impl Watch {
    /// For `bell`, which does not block, and for these ends. To begin with, they are waited for until they can be read.
    pub fn new(bell: UnixStream, ends: &[BorrowedFd<'_>]) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let ends = ends.iter().map(BorrowedFd::try_clone_to_owned).collect::<Result<Vec<_>>>()?;
        let watched = Watched { epoll, bell, ends, wanted: Mutex::new(EventFlags::IN) };
        epoll::add(&watched.epoll, &watched.bell, EventData::new_u64(0), EventFlags::IN)?;
        for end in &watched.ends {
            epoll::add(&watched.epoll, end, EventData::new_u64(1), EventFlags::IN)?;
        }
        Ok(Watch(Arc::new(watched)))
    }

    /// The descriptors that it needs.
    pub fn files(&self) -> Vec<RawFd> {
        let own = [self.0.epoll.as_fd(), self.0.bell.as_fd()];
        own.into_iter().chain(self.0.ends.iter().map(AsFd::as_fd)).map(|file| file.as_raw_fd()).collect()
    }

    /// The bell rang: it is silent again.
    pub fn hush(&self) {
        let mut rung = [0; 64];
        while matches!((&self.0.bell).read(&mut rung), Ok(1..)) {}
    }

    /// Waits until something is to be done.
    pub fn wait(&self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        let _ = epoll::wait(&self.0.epoll, &mut events, None);
    }

    /// From here on `wanted` of the ends is waited for; of one that is closed nothing, once nothing is wanted.
    pub fn want(&self, wanted: EventFlags) {
        // An end that is closed would be told of whatever is asked for, but for once.
        let flags = if wanted.is_empty() { EventFlags::ONESHOT } else { wanted };
        let mut before = lock(&self.0.wanted);
        if *before == flags {
            return;
        }
        let tell = |end| epoll::modify(&self.0.epoll, end, EventData::new_u64(1), flags);
        if self.0.ends.iter().all(|end| tell(end).is_ok()) {
            *before = flags;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::*;

    /// Whether it waits for longer than a moment; then the bell ends that.
    fn waits(watch: &Watch, bell: &mut UnixStream) -> bool {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                watch.wait();
                begun.elapsed()
            });
            std::thread::sleep(Duration::from_millis(100));
            bell.write_all(&[1]).unwrap();
            let took = waiting.join().unwrap();
            watch.hush();
            took >= Duration::from_millis(100)
        })
    }

    #[test]
    fn what_is_not_wanted_wakes_nobody() {
        let (mut bell, rung) = UnixStream::pair().unwrap();
        let (mut other, end) = UnixStream::pair().unwrap();
        rung.set_nonblocking(true).unwrap();
        let watch = Watch::new(rung, &[end.as_fd()]).unwrap();
        assert!(waits(&watch, &mut bell), "there is nothing");
        other.write_all(&[1]).unwrap();
        assert!(!waits(&watch, &mut bell));
        watch.want(EventFlags::empty());
        assert!(waits(&watch, &mut bell), "nobody wants to know");
        watch.want(EventFlags::IN);
        assert!(!waits(&watch, &mut bell));
        watch.want(EventFlags::empty());
        drop(other);
        // That the end is closed is told once at most.
        waits(&watch, &mut bell);
        assert!(waits(&watch, &mut bell), "that it is closed, neither");
    }
}
