//! Virtio ports by their names.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

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

/// The device's file of the port of this name.
fn find(name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|text| text.trim_end() == name) {
            return Some(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    None
}
