//! Virtio ports by their names.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::sys;

/// How long a port is waited for: its name comes on the console's control queue, after the device.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the port of this name for both directions.
pub fn open(name: &str) -> Result<File, String> {
    let begun = Instant::now();
    loop {
        if let Some(path) = find(name) {
            match File::options().read(true).write(true).open(&path) {
                Ok(file) => return Ok(file),
                Err(why) if begun.elapsed() > PATIENCE => return Err(format!("{}: {why}", path.display())),
                Err(_) => {}
            }
        } else if begun.elapsed() > PATIENCE {
            return Err(format!("no port is called {name}"));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Gives the host the moment that it takes to connect: a port that it has left looks as one that it has not found yet.
pub fn await_host(port: &File, patience: Duration) {
    let begun = Instant::now();
    while !sys::connected(port) && begun.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes all to a port whose writes do not wait: one that waits would wait for ever for a host that has left.
pub fn put(mut port: &File, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        if !sys::writable(port) {
            return Err(Error::from(ErrorKind::BrokenPipe));
        }
        match port.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// The device's file of the port of this name.
fn find(name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|text| text.trim_end() == name) {
            return Some(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    None
}
