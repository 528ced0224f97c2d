//! Machines with devices whose other half is in other processes: they are refused by name, and go on.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use satori_machine::{ClockMode, Config, DeviceConfig, Devices, Dialect, Error, Event, Share};
use satori_save::Error::Refused;

use crate::guests::REAL;
use crate::trial::{Console, machine};

/// Each such device, and what the refusal calls it. The second value is the cable's other end.
fn devices() -> [(&'static str, DeviceConfig, UnixStream); 2] {
    let share = |dialect| {
        let (socket, other) = UnixStream::pair().expect("a pair of sockets");
        (
            DeviceConfig {
                shares: vec![Share { tag: "files".into(), dialect, socket }],
                ..DeviceConfig::default()
            },
            other,
        )
    };
    let (virtio, its_server) = share(Dialect::Fuse);
    let (plan9, its_other_server) = share(Dialect::Plan9);
    [("a shared folder", virtio, its_server), ("a shared folder", plan9, its_other_server)]
}

/// Tries each; tells what was not refused, or did not go on. By the real clock, as a folder has no other.
pub(crate) fn run() -> Result<String, String> {
    let guest = &REAL[0];
    let all = devices();
    let tried = all.len();
    for (name, devices, _other_end) in all {
        let devices = Devices::new(devices).map_err(|error| error.to_string())?;
        let config = Config { engine: guest.engine, clock: ClockMode::Real, devices, ..(guest.config)() };
        let console = Console::default();
        let machine = machine(config, console.clone());
        let handle = machine.handle();
        let thread = std::thread::spawn(move || machine.run());
        let answer = loop {
            handle.suspend();
            let answer = handle.save();
            handle.go_on();
            match answer {
                // It has not begun yet.
                Err(Error::Saved(Refused { what, .. }))
                    if what == "a machine that runs" && !thread.is_finished() =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                answer => break answer,
            }
        };
        let event = thread.join().expect("the machine's thread").event;
        match answer {
            Err(Error::Saved(Refused { what, .. })) if what == name => {}
            other => return Err(format!("with {name}: {:?}", other.map(drop))),
        }
        if event != Event::DebugExit(0) {
            return Err(format!("with {name}: it went on to {event:?}:\n{}", console.text()));
        }
    }
    Ok(format!("{tried} devices, each by its name, and the machines went on"))
}
