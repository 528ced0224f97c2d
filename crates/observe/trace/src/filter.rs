//! What is traced: the words behind `--trace FILE`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use satori_seam::Reason;

use crate::Kind;

/// A word that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no file to write to.
    #[error("no file is named: FILE[,events=exit+msr+hypercall+interrupt][,vcpu=N+N][,reason=NAME+NAME]")]
    NoFile,
    /// A word that is no `NAME=VALUES`.
    #[error("'{0}' is not one of events=, vcpu= and reason=")]
    Word(String),
    /// A kind of event that there is not.
    #[error("events={0}: use exit, msr, hypercall and interrupt, joined by +")]
    Event(String),
    /// No number of a vCPU.
    #[error("vcpu={0}: use numbers from 0, joined by +")]
    Vcpu(String),
    /// No name of an exit reason.
    #[error("reason={0}: use names as the report has them, such as HLT and MSR_WRITE, joined by +")]
    Reason(String),
}

/// Which events are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Exits, as slices.
    pub exit: bool,
    /// Accesses of system registers that exit, with register and value.
    pub msr: bool,
    /// Hypercalls, with code, input and result.
    pub hypercall: bool,
    /// Injected interrupts and NMIs.
    pub interrupt: bool,
    vcpus: Option<Vec<u32>>,
    reasons: Option<Vec<Reason>>,
}

impl Default for Filter {
    fn default() -> Self {
        Filter { exit: true, msr: true, hypercall: true, interrupt: true, vcpus: None, reasons: None }
    }
}

impl Filter {
    /// Whether anything of this vCPU is.
    pub fn vcpu(&self, index: u32) -> bool {
        self.vcpus.as_ref().is_none_or(|vcpus| vcpus.contains(&index))
    }

    /// Whether exits of this reason are.
    pub fn reason(&self, reason: Reason) -> bool {
        self.exit && self.reasons.as_ref().is_none_or(|reasons| reasons.contains(&reason))
    }

    /// Whether requests of this kind are.
    pub(crate) fn inner(&self, kind: Kind) -> bool {
        match kind {
            Kind::Register => self.msr,
            Kind::Hypercall => self.hypercall,
        }
    }

    /// Adds a word; reasons are of a table.
    fn add(&mut self, word: &str, table: &[Reason]) -> Result<(), Error> {
        let (name, values) = word.split_once('=').ok_or_else(|| Error::Word(word.to_owned()))?;
        let values = || values.split('+');
        match name {
            "events" => {
                let none =
                    Filter { exit: false, msr: false, hypercall: false, interrupt: false, ..self.clone() };
                *self = none;
                for value in values() {
                    match value {
                        "exit" => self.exit = true,
                        "msr" => self.msr = true,
                        "hypercall" => self.hypercall = true,
                        "interrupt" => self.interrupt = true,
                        other => return Err(Error::Event(other.to_owned())),
                    }
                }
            }
            "vcpu" => {
                let number = |text: &str| text.parse().map_err(|_| Error::Vcpu(text.to_owned()));
                self.vcpus = Some(values().map(number).collect::<Result<_, _>>()?);
            }
            "reason" => {
                let find =
                    |text: &str| Reason::named(table, text).ok_or_else(|| Error::Reason(text.to_owned()));
                self.reasons = Some(values().map(find).collect::<Result<_, _>>()?);
            }
            _ => return Err(Error::Word(word.to_owned())),
        }
        Ok(())
    }
}

/// `FILE[,NAME=VALUES]..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where the trace goes.
    pub file: PathBuf,
    /// What of it.
    pub filter: Filter,
}

impl Spec {
    /// What `text` says, whose reasons are of a table; the file's name need not be UTF-8.
    pub fn of(text: &OsStr, table: &[Reason]) -> Result<Self, Error> {
        let mut words = text.as_bytes().split(|byte| *byte == b',');
        let file = words.next().filter(|file| !file.is_empty()).ok_or(Error::NoFile)?;
        let mut filter = Filter::default();
        words.try_for_each(|word| filter.add(&String::from_utf8_lossy(word), table))?;
        Ok(Spec { file: OsStr::from_bytes(file).into(), filter })
    }
}
