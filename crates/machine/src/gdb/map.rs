//! The `monitor` commands on the map of guest memory and its log of writes.

use std::fmt::Write;

use satori_memory::{Error, Gpa, Region};
use satori_seam::Space;

use super::monitor::parse_address;
use crate::control::Control;
use crate::runs::Runs;

/// What is to be done to the map.
type Change = Box<dyn FnOnce(&dyn Space) -> Result<(), Error>>;

const GONE: &str = "the guest is gone\n";

fn list(regions: impl IntoIterator<Item = Region>) -> String {
    regions.into_iter().fold(String::new(), |mut text, region| {
        let _ = writeln!(text, "{region}");
        text
    })
}

/// `dirty-log`.
pub(crate) fn dirty_log<V: Runs>(control: &Control<V>, asked: &[&str]) -> String {
    let answer = control.still(|space| match asked {
        ["start"] if space.start_dirty_log() => "writes are logged\n".into(),
        ["start"] => "writes are logged already\n".into(),
        ["stop"] if space.stop_dirty_log() => "writes are not logged any more\n".into(),
        ["take"] => match space.take_dirty_log() {
            Some(written) if written.is_empty() => "nothing was written\n".into(),
            Some(written) => list(written),
            None => "writes are not logged: 'monitor dirty-log start' begins it\n".into(),
        },
        ["stop"] => "writes were not logged\n".into(),
        _ => "'dirty-log' needs start, take or stop\n".into(),
    });
    answer.unwrap_or_else(|| GONE.into())
}

/// `ram`.
pub(crate) fn ram<V: Runs>(control: &Control<V>, asked: &[&str]) -> String {
    let address = |text: &str| parse_address(text).map(Gpa);
    let wrong = || format!("'ram {}' is no command: 'monitor help' lists them\n", asked.join(" "));
    let change: Change = match *asked {
        [] => Box::new(|_| Ok(())),
        ["add", start, bytes] => match (address(start), parse_address(bytes)) {
            (Some(start), Some(len)) => Box::new(move |space| space.add_ram(Region { start, len })),
            _ => return wrong(),
        },
        ["move", start, to] => match (address(start), address(to)) {
            (Some(start), Some(to)) => Box::new(move |space| space.relocate_ram(start, to)),
            _ => return wrong(),
        },
        ["remove", start] => match address(start) {
            Some(start) => Box::new(move |space| space.remove_ram(start)),
            None => return wrong(),
        },
        _ => return wrong(),
    };
    let answer = control.still(|space| match change(space) {
        Ok(()) => list(space.memory().regions()),
        Err(error) => format!("{error}\n"),
    });
    answer.unwrap_or_else(|| GONE.into())
}
