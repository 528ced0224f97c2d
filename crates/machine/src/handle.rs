//! A machine from outside, while it runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use satori_save::Saved;
use satori_seam::Space;

use crate::Error;
use crate::control::Control;
use crate::runs::Runs;
use crate::shared::Shared;

/// The control plane of a machine of any instruction set, as somebody outside of it needs it.
trait Plane: Send + Sync {
    fn shared(&self) -> &Shared;
    fn suspend(&self);
    fn suspend_at(&self, at: Duration) -> bool;
    fn go_on(&self);
    fn still(&self, work: &mut dyn FnMut(&dyn Space));
    fn save(&self) -> Result<Saved, Error>;
    fn restore(&self, saved: Saved) -> Result<(), Error>;
}

impl<V: Runs> Plane for Control<V> {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn suspend(&self) {
        Control::suspend(self);
    }

    fn suspend_at(&self, at: Duration) -> bool {
        Control::suspend_at(self, at.as_nanos().try_into().unwrap_or(u64::MAX))
    }

    fn go_on(&self) {
        Control::go_on(self);
    }

    fn still(&self, work: &mut dyn FnMut(&dyn Space)) {
        Control::still(self, work);
    }

    fn save(&self) -> Result<Saved, Error> {
        Ok(V::save_machine(self)?)
    }

    fn restore(&self, saved: Saved) -> Result<(), Error> {
        Ok(V::restore_machine(self, saved)?)
    }
}

/// A way to reach a machine while it runs; clones reach the same one.
#[derive(Clone)]
pub struct Handle(Arc<dyn Plane>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.shared().fmt(f)
    }
}

impl Handle {
    /// That of the machine with this control plane.
    pub(crate) fn new<V: Runs + 'static>(control: Arc<Control<V>>) -> Self {
        Handle(control)
    }

    /// Ends the run with [`Event::Stopped`](crate::Event::Stopped), unless it has ended already.
    pub fn stop(&self) {
        self.0.shared().stop();
    }

    /// Has all vCPUs and the machine's real clock stand still; returns when they do, or the machine has ended. They
    /// go on when everybody who suspended them says so.
    pub fn suspend(&self) {
        self.0.suspend();
    }

    /// Under a virtual clock: the same between the first two rounds of turns from guest time `at` on, which is the same place in
    /// every run. Returns false if the machine has ended before.
    pub fn suspend_at(&self, at: Duration) -> bool {
        self.0.suspend_at(at)
    }

    /// The state of a machine that is suspended. It goes on as if nothing were.
    pub fn save(&self) -> Result<Saved, Error> {
        self.0.save()
    }

    /// Gives a machine that is suspended the state of one of the same configuration, or an earlier one of its own. One that refuses
    /// it ends, as half of it may have taken it.
    pub fn restore(&self, saved: Saved) -> Result<(), Error> {
        self.0.restore(saved)
    }

    /// Lets go on what [`Handle::suspend`] stopped. The guest has not seen that time passed.
    pub fn go_on(&self) {
        self.0.go_on();
    }

    /// Does `work` on the guest's memory, its map and its log of writes while all vCPUs stand still; nothing if no guest
    /// lives now. A guest that is reset lives on with other memory: as at its start, and not logged.
    ///
    /// Call it from no thread of the machine's.
    pub fn still<R>(&self, work: impl FnOnce(&dyn Space) -> R) -> Option<R> {
        let (mut work, mut result) = (Some(work), None);
        self.0.still(&mut |space| result = work.take().map(|work| work(space)));
        result
    }

    /// Offers bytes to the guest's serial port; returns how many were taken, in order. The rest
    /// has to be offered again once the guest has read some.
    pub fn input(&self, bytes: &[u8]) -> usize {
        self.0.shared().offer_input(bytes)
    }

    /// Sends a break to the guest's serial port, behind the bytes that were taken.
    pub fn send_break(&self) {
        self.0.shared().offer_break();
    }

    /// Presses the power button, by which ACPI asks a guest to power off; it decides what follows. False if the machine has none, or
    /// does not live yet.
    pub fn press_power_button(&self) -> bool {
        self.0.shared().press_power_button()
    }

    /// A number that grows whenever the guest sends something to a console or a port, or a disk or folder answers it.
    pub fn moved(&self) -> u64 {
        self.0.shared().moved.load(Ordering::Relaxed)
    }

    /// How many bytes the guest is ready to take: it has taken all there were, and waits for more.
    pub fn ready(&self) -> usize {
        self.0.shared().ready()
    }

    /// Sets who is told, by a thread of the machine that must not wait, that [`Handle::ready`] became more than
    /// none.
    pub fn on_ready(&self, told: impl Fn() + Send + 'static) {
        self.0.shared().on_ready(told);
    }
}
