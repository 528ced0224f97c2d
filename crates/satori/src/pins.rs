//! `--pin`: on which processors of this host vCPUs run.

use anyhow::{Result, bail};
use satori_machine::{Pins, host_processors};

use crate::{cli, io_threads};

/// One `--pin`: a set for all vCPUs, or one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinSpec(Vec<Vec<u32>>);

/// Reads `N-N:N[,N-N:N..]`.
///
/// Errors with what to write instead.
pub fn spec(text: &str) -> Result<PinSpec, String> {
    text.split(',').map(io_threads::cpus).collect::<Result<_, _>>().map(PinSpec)
}

/// Refuses processors that this process may not use.
pub(crate) fn on_this_host(flag: &str, sets: &[Vec<u32>]) -> Result<()> {
    let here = host_processors();
    if let Some(missing) = sets.iter().flatten().find(|cpu| !here.contains(cpu)) {
        let have: Vec<_> = here.iter().map(u32::to_string).collect();
        bail!(
            "{flag}: this process may not use processor {missing} of the host: name some of {}",
            have.join(", ")
        );
    }
    Ok(())
}

/// Puts what the flags say of `cpus` vCPUs into `pins`, instead of what a file says.
pub(crate) fn share_out(pins: &mut Pins, flags: &cli::Machine, cpus: u32) -> Result<()> {
    let Some(PinSpec(sets)) = &flags.pin else { return Ok(()) };
    on_this_host("--pin", sets)?;
    pins.vcpus = match &sets[..] {
        [all] => vec![all.clone(); cpus as usize],
        each if each.len() == cpus as usize => each.to_vec(),
        each => bail!(
            "--pin: there are {cpus} vCPUs and {} sets of processors: write one set, or one for each, with commas between them",
            each.len()
        ),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_for_all_and_several_are_for_each() {
        assert_eq!(spec("0-1:4"), Ok(PinSpec(vec![vec![0, 1, 4]])));
        assert_eq!(spec("0,2-3"), Ok(PinSpec(vec![vec![0], vec![2, 3]])));
        for wrong in ["", "a", "1-0", "0,", "1024", "0;1"] {
            assert!(spec(wrong).is_err_and(|why| why.contains("such as 0, 0-3")), "{wrong}");
        }
    }
}
