//! Machines under the real clock: what follows cannot be compared byte by byte, but the guest judges it itself.

use std::time::Duration;

use satori_machine::{ClockMode, Config, Event};

use crate::guests::Guest;
use crate::trial::{Console, Random, machine};

/// No machine is waited for longer than half of this before it is saved.
const PATIENCE: Duration = Duration::from_secs(4);
/// Runs the guest alone, then again with a new machine at random moments of the host's time; tells what is not as it was. No moment
/// is too late: a machine that had ended by then has been through fewer of them.
pub(crate) fn run(guest: &Guest, times: usize, random: &mut Random) -> Result<String, String> {
    let config = || Config { engine: guest.engine, clock: ClockMode::Real, ..(guest.config)() };
    let alone = Console::default();
    let outcome = machine(config(), alone.clone()).run();
    let longest = outcome.elapsed.min(PATIENCE) / 2;
    let (console, mut saved, mut left, mut thrown) = (Console::default(), None, times, 0);
    let event = loop {
        let mut machine = machine(config(), console.clone());
        if let Some(saved) = saved.take() {
            machine = machine.restored(saved).map_err(|error| error.to_string())?;
        }
        let handle = machine.handle();
        let thread = std::thread::spawn(move || machine.run());
        if left > 0 {
            left -= 1;
            std::thread::sleep(longest.mul_f64((random.next() % 1000) as f64 / 1000.0));
            handle.suspend();
            match handle.save() {
                Ok(state) if !thread.is_finished() => saved = Some(state),
                // It is over.
                _ => left = 0,
            }
            match saved {
                Some(_) => handle.stop(),
                None => handle.go_on(),
            }
        }
        let event = thread.join().expect("the machine's thread").event;
        match (&saved, event) {
            (Some(_), Event::Stopped) => thrown += 1,
            // It ended by itself while it was asked to stand still.
            (_, event) => break event,
        }
    };
    let (told, before) = (console.text(), alone.text());
    if event != outcome.event || told.contains("BAD") {
        return Err(format!("it ended by {event:?}, alone by {:?}; its console:\n{told}", outcome.event));
    }
    let names = |text: &str| {
        text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect::<Vec<_>>()
    };
    if names(&told) != names(&before) {
        return Err(format!("its console:\n{told}\nalone:\n{before}"));
    }
    Ok(format!("under the real clock, thrown away {thrown} times: it ends by {event:?} as alone"))
}
