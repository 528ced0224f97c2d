//! `--io-threads`: how many threads do devices' work, and on which processors of this host.

use anyhow::Result;
use satori_machine::Pins;

use crate::{cli, pins};

/// Most threads: more than anybody has disks for.
const MOST: usize = 64;
/// Processors that a host may have: those of Linux's `cpu_set_t`.
const PROCESSORS: u32 = 1024;

/// One `--io-threads`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoThreadsSpec {
    count: usize,
    /// The host's processors: none, one set for all threads, or one for each.
    cpus: Vec<Vec<u32>>,
}

/// Reads `N[,cpus=N-N:N..]..`.
///
/// Errors with what to write instead.
pub fn spec(text: &str) -> Result<IoThreadsSpec, String> {
    let mut parts = text.split(',');
    let number = parts.next().unwrap_or_default();
    let count = number.parse().ok().filter(|count| (1..=MOST).contains(count));
    let count = count.ok_or_else(|| format!("'{number}' is no number from 1 to {MOST}"))?;
    let mut spec = IoThreadsSpec { count, cpus: Vec::new() };
    for part in parts {
        match part.split_once('=') {
            Some(("cpus", value)) => spec.cpus.push(cpus(value)?),
            _ => return Err(format!("'{part}' is not cpus=0-1, processors of this host")),
        }
    }
    match spec.cpus.len() {
        0 | 1 => Ok(spec),
        sets if sets == count => Ok(spec),
        sets => Err(format!("there are {count} threads and {sets} times cpus=: write it once, or for each")),
    }
}

/// `0-1:4`.
pub(crate) fn cpus(text: &str) -> Result<Vec<u32>, String> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (first <= last && last < PROCESSORS).then_some(first..=last)
    };
    let ranges = text.split(':').map(range).collect::<Option<Vec<_>>>();
    let ranges = ranges.ok_or("cpus are numbers of this host's processors, such as 0, 0-3 or 0-1:4")?;
    Ok(ranges.into_iter().flatten().collect())
}

/// Puts the threads of the flags into `shared`, instead of those of a file.
pub(crate) fn share_out(shared: &mut Pins, flags: &cli::Machine) -> Result<()> {
    let Some(spec) = &flags.io_threads else { return Ok(()) };
    pins::on_this_host("--io-threads", &spec.cpus)?;
    let of = |index: usize| spec.cpus.get(index).or(spec.cpus.first()).cloned().unwrap_or_default();
    shared.io = (0..spec.count).map(of).collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_a_number_and_sets_of_processors() {
        assert_eq!(spec("3").unwrap(), IoThreadsSpec { count: 3, cpus: vec![] });
        assert_eq!(spec("2,cpus=0-1:4").unwrap().cpus, [vec![0, 1, 4]]);
        assert_eq!(spec("2,cpus=1,cpus=0").unwrap().cpus, [vec![1], vec![0]]);
        for (wrong, said) in [
            ("", "'' is no number from 1 to 64"),
            ("0", "from 1 to 64"),
            ("65", "from 1 to 64"),
            ("1,cpus=", "such as 0, 0-3"),
            ("1,cpus=2-1", "such as 0, 0-3"),
            ("1,cpus=1024", "such as 0, 0-3"),
            ("1,pin=0", "'pin=0' is not cpus=0-1"),
            ("3,cpus=0,cpus=1", "there are 3 threads and 2 times cpus="),
        ] {
            let why = spec(wrong).unwrap_err();
            assert!(why.contains(said), "{wrong}: {why}");
        }
    }
}
