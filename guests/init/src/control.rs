//! The port on which host and init talk.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::sync::{Arc, Condvar, Mutex};

use crate::ports;

/// The open port; all threads have the same.
#[derive(Clone, Debug)]
pub struct Control(Arc<File>, Arc<(Mutex<bool>, Condvar)>);

/// What the host asks for.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Send the command a signal.
    Signal(i32),
    /// The terminal has another size: rows and columns.
    Size(u16, u16),
}

impl Control {
    /// Waits for the port, which comes a moment after its device.
    pub fn open() -> Result<Control, String> {
        ports::open("satori.control").map(|file| Control(Arc::new(file), Arc::default()))
    }

    /// Tells the host a line.
    pub fn tell(&self, line: &str) {
        let line = format!("{}\n", line.replace('\n', " "));
        let _ = (&*self.0).write_all(line.as_bytes());
    }

    /// Tells of something that could not be had.
    pub fn note(&self, text: &str) {
        self.tell(&format!("note {text}"));
    }

    /// Does what the host asks for, until it closes.
    pub fn serve(&self, mut perform: impl FnMut(Request)) {
        for line in BufReader::new(&*self.0).lines() {
            let Ok(line) = line else { return };
            let mut words = line.split(' ');
            let word = words.next();
            let mut number = || words.next().and_then(|word| word.parse::<u16>().ok());
            match word {
                Some("signal") => {
                    if let Some(signal) = number() {
                        perform(Request::Signal(signal.into()));
                    }
                }
                Some("size") => {
                    if let (Some(rows), Some(columns)) = (number(), number()) {
                        perform(Request::Size(rows, columns));
                    }
                }
                Some("over") => {
                    if let Ok(mut over) = self.1.0.lock() {
                        *over = true;
                        self.1.1.notify_all();
                    }
                }
                _ => {}
            }
        }
    }

    /// Waits until the host has all that was written, however slow its readers are: what a device that is shut down has
    /// not taken yet is lost.
    pub fn wait_for_host(&self) {
        let (over, bell) = &*self.1;
        if let Ok(over) = over.lock() {
            drop(bell.wait_while(over, |over| !*over));
        }
    }
}

/// Tells whoever reads the kernel's console, where the host cannot be told otherwise.
pub fn console(text: &str) {
    if let Ok(mut console) = File::options().write(true).open("/dev/console") {
        let _ = writeln!(console, "satori-init: {text}");
    }
}
