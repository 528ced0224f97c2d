//! Why a state cannot be saved or taken back.

/// Why a state cannot be saved or taken back; a saved state may come from anywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A part of the machine cannot be saved.
    #[error("{what} cannot be saved: {why}")]
    Refused {
        /// The part.
        what: String,
        /// What of it, and what to do.
        why: String,
    },
    /// The machine has a part of which there is no state.
    #[error("the saved state has nothing of '{place}': give the machine the options that it was saved with")]
    Missing {
        /// The part's place.
        place: String,
    },
    /// There is state of a part that the machine does not have.
    #[error(
        "the machine has no '{place}', of which there is saved state: give it the options that it was saved with"
    )]
    Unknown {
        /// The part's place.
        place: String,
    },
    /// A value is of something else.
    #[error(
        "the saved state has '{found}' where a '{wanted}' was looked for: give the machine the options that it was saved with"
    )]
    Name {
        /// The name of the value.
        found: String,
        /// The name of the part.
        wanted: &'static str,
    },
    /// A value is of another version.
    #[error(
        "the saved '{name}' is of version {found}, and this Satori reads version {wanted}: use the one that saved it"
    )]
    Version {
        /// The part.
        name: &'static str,
        /// The version of the value.
        found: u32,
        /// The one that is understood.
        wanted: u32,
    },
    /// A value is not of the form that its name and version say.
    #[error("the saved '{name}' is damaged: {why}")]
    Damaged {
        /// The part.
        name: &'static str,
        /// What of it.
        why: String,
    },
    /// No part of this kind can have come to that state, or not the one of this machine.
    #[error("the saved '{name}' cannot be: {why}; it is damaged, or of a machine with other options")]
    Unfit {
        /// The part.
        name: &'static str,
        /// What of it.
        why: String,
    },
}

impl Error {
    /// A refusal to save.
    pub fn refused(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Refused { what: what.into(), why: why.into() }
    }

    /// A refusal to take back.
    pub fn unfit(name: &'static str, why: impl Into<String>) -> Self {
        Error::Unfit { name, why: why.into() }
    }

    /// [`Error::unfit`] unless `fits`.
    pub fn unless(fits: bool, name: &'static str, why: &str) -> Result<(), Self> {
        if fits { Ok(()) } else { Err(Self::unfit(name, why)) }
    }
}
