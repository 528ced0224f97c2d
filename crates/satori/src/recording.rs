//! `--record` and `--replay`: a run with all that came from outside, and the same once more.

use anyhow::{Result, anyhow, bail};
use satori_machine::Config;
use satori_machine::journal::{Heading, Journal};
use satori_report::Origin;

use crate::cli;
use crate::inputs::Room;
use crate::opened::Opened;

/// By this the initial ramdisk is found again, which a command's environment is a part of.
const RAMDISK: &str = "initial ramdisk";
/// And by this what the report begins with.
const ORIGIN: &str = "origin of the report";
/// The largest record that is read.
const MOST: u64 = 4 << 30;

/// The journal of a run.
#[derive(Clone)]
pub(crate) struct Recording {
    journal: Journal,
    /// What was written of the run that is played again; of one that is recorded, what its report tells of where it comes from.
    heading: Heading,
}

impl Recording {
    /// That of the flags, if they ask for one.
    pub(crate) fn open(flags: &cli::Machine, opened: &mut Opened) -> Result<Option<Recording>> {
        if let Some(path) = &flags.record {
            let journal = Journal::record(opened.private("--record", path)?);
            return Ok(Some(Recording { journal, heading: Heading::new() }));
        }
        let Some(path) = &flags.replay else { return Ok(None) };
        let bytes = Room { bytes: MOST, of: "a record may have" }.read("--replay", path)?;
        let read = Journal::replay(&bytes[..]);
        let (journal, heading) = read.map_err(|why| anyhow!("--replay {}: {why}", path.display()))?;
        Ok(Some(Recording { journal, heading }))
    }

    /// What devices take it by.
    pub(crate) fn journal(&self) -> Journal {
        self.journal.clone()
    }

    /// The initial ramdisk of the run that is played again.
    pub(crate) fn ramdisk(&self) -> Option<Vec<u8>> {
        self.heading.iter().find(|(name, _)| name == RAMDISK).map(|(_, value)| value.clone())
    }

    /// Where the report says that it comes from: of a run that is played again, from the first.
    pub(crate) fn settle(&mut self, origin: Origin) -> Origin {
        if self.journal.replays() {
            let told = self.heading.iter().find(|(name, _)| name == ORIGIN);
            return told.and_then(|(_, value)| serde_json::from_slice(value).ok()).unwrap_or(origin);
        }
        let value = serde_json::to_vec(&origin).unwrap_or_default();
        self.heading = vec![(ORIGIN.to_owned(), value)];
        origin
    }

    /// Begins a run of `config`, whose devices are there. `words` are those of the command, if there is one: the ramdisk is ours then.
    pub(crate) fn begin(
        &self,
        config: &mut Config,
        flags: &cli::Machine,
        words: &[std::ffi::OsString],
    ) -> Result<()> {
        let mut heading = heading(config, flags, words, &self.journal);
        if !self.journal.replays() {
            heading.extend(self.heading.iter().cloned());
        }
        if let Err(why) = self.journal.begin(&heading) {
            match (&flags.replay, &flags.record) {
                (Some(path), _) => bail!("--replay {}: {why}", path.display()),
                (_, Some(path)) => bail!("--record {}: {why}", path.display()),
                (None, None) => bail!("{why}"),
            }
        }
        config.journal = Some(self.journal.clone());
        Ok(())
    }
}

/// What makes a run the same one, by the names of which one that differs is told.
fn heading(
    config: &Config,
    flags: &cli::Machine,
    words: &[std::ffi::OsString],
    journal: &Journal,
) -> Heading {
    let text = |text: String| text.into_bytes();
    let ramdisks: Vec<u8> = config.initrds.iter().flat_map(|module| module.data.iter().copied()).collect();
    let disks: Vec<_> = flags.disk.iter().map(|disk| format!("{disk:?}")).collect();
    let others = (
        (&config.protocol, &config.processor, config.host_tick, config.tsc_hz, &config.on_reset),
        (config.guest_timeout, &config.tsc_changes, &config.panic_pattern, config.testdev),
        (flags.rng, flags.balloon, flags.vmbus, &flags.smbios, &flags.serial, flags.charge_costs),
    );
    let all = [
        ("version of Satori", text(env!("CARGO_PKG_VERSION").into())),
        ("kernel", sum(&config.kernel)),
        ("command", text(format!("{words:?}"))),
        (RAMDISK, if words.is_empty() { sum(&ramdisks) } else { ramdisks }),
        ("command line", text(format!("{:?}", config.cmdline))),
        ("memory", text(config.memory.to_string())),
        ("number of processors", text(format!("{:?} {:?}", config.topology, config.numa))),
        ("model of the processor", text(format!("{:?}", config.cpu_model))),
        ("interface of a hypervisor", text(format!("{:?} {:?} {:?}", config.hyperv, config.kvm, config.xen))),
        ("list of devices", text(format!("{}; {disks:?}", journal.sources()))),
        ("input", sum(&config.input)),
        ("list of other options", text(format!("{others:?}"))),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What tells one file from another.
fn sum(bytes: &[u8]) -> Vec<u8> {
    // FNV-1a: the same in every process.
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    [sum.to_le_bytes(), (bytes.len() as u64).to_le_bytes()].concat()
}
