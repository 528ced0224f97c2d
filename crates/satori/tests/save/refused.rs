//! A machine whose shared folder's server gives no session: it is refused by the folder's name, and goes on.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use satori_defs::share::{KIND, NOTE_HEADER, REFUSED, TELL};
use satori_machine::{ClockMode, Config, DeviceConfig, Devices, Dialect, Error, Event, Share};
use satori_save::Error::Refused;

use crate::guests::REAL;
use crate::trial::{Console, machine};

/// Refuses whatever it is asked.
fn refuses(mut server: UnixStream) {
    let mut note = [0; NOTE_HEADER];
    while server.read_exact(&mut note).is_ok() {
        assert_eq!(u32::from(note[0]), TELL & KIND);
        note[0] = REFUSED as u8;
        note[4..].copy_from_slice(&2_u64.to_le_bytes());
        server.write_all(&[&note[..], b"no"].concat()).expect("the device");
    }
}

/// Tries it; tells if it was not refused, or did not go on. By the real clock, as a folder has no other.
pub(crate) fn run() -> Result<String, String> {
    let guest = &REAL[0];
    let (socket, server) = UnixStream::pair().expect("a pair of sockets");
    std::thread::spawn(move || refuses(server));
    let shares = vec![Share { tag: "files".into(), dialect: Dialect::Fuse, socket }];
    let devices = Devices::new(DeviceConfig { shares, ..DeviceConfig::default() });
    let devices = devices.map_err(|error| error.to_string())?;
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
        Err(Error::Saved(Refused { what, why })) if what == "the shared folder 'files'" && why == "no" => {}
        other => return Err(format!("{:?}", other.map(drop))),
    }
    match event {
        Event::DebugExit(0) => Ok("by the folder's name, and the machine went on".into()),
        event => Err(format!("it went on to {event:?}:\n{}", console.text())),
    }
}
