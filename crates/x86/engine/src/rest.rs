//! What a vCPU of one engine hands to one of another, beside its registers.

use satori_save::{Error, State};
use serde::{Deserialize, Serialize};

use crate::{Event, Exception};

/// A vCPU between two instructions: no answer waits for one that is half done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtRest {
    /// Instructions that it retired, as far as its engine counts them.
    pub retired: u64,
    /// What was injected and is not delivered yet.
    pub injected: Option<Event>,
}

impl State for AtRest {
    const NAME: &'static str = "vCPU between two instructions";
    const VERSION: u32 = 1;
}

impl AtRest {
    /// A count that no run reaches, and from which none overflows.
    const COUNT: u64 = 1 << 62;

    /// Refuses what no vCPU can have come to.
    pub fn check(&self) -> Result<(), Error> {
        let vector = match self.injected {
            Some(Event::Exception(Exception { vector, .. })) => vector,
            _ => 0,
        };
        Error::unless(vector < 32, Self::NAME, "an exception has no vector from 32 on")?;
        Error::unless(self.retired < Self::COUNT, Self::NAME, "a count is beyond all that is counted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let injected = |vector| Some(Event::Exception(Exception::new(vector)));
        assert_eq!(AtRest { injected: injected(31), ..AtRest::default() }.check(), Ok(()));
        assert!(AtRest { injected: injected(32), ..AtRest::default() }.check().is_err());
        assert!(AtRest { retired: u64::MAX, injected: None }.check().is_err());
    }
}
