//! What a guest holds by 9P, as plain data.

use satori_save::{Error, Value};
use serde::{Deserialize, Serialize};

use super::{FIDS, Fid, MOST, Opened, Plan9, VALUE};
use crate::saved::{Session, unless};

/// The least that may be agreed upon as the longest message.
const LEAST: usize = 4096;

/// A guest's fids.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedFids {
    most: usize,
    all: Vec<(u32, Fid)>,
}

impl Session for Plan9 {
    fn save(&mut self) -> Result<Value, Error> {
        let mut all: Vec<_> = self.fids.iter().map(|(number, fid)| (*number, fid.clone())).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        self.server.saved(Some(SavedFids { most: self.most, all }))
    }

    fn restore(&mut self, value: &Value) -> Result<(), Error> {
        self.fids.clear();
        let fids = self.server.take_back(value)?;
        let SavedFids { most, all } =
            fids.ok_or_else(|| crate::saved::unfit("the guest spoke another protocol"))?;
        unless((LEAST..=MOST).contains(&most) && all.len() <= FIDS, "it counts fids otherwise")?;
        let fits = |opened: &Opened| match opened {
            Opened::Attribute { size, value, .. } => *size <= VALUE && value.len() <= *size,
            _ => true,
        };
        unless(all.iter().all(|(_, fid)| fits(&fid.opened)), "an attribute is longer than any")?;
        (self.most, self.fids) = (most, all.into_iter().collect());
        Ok(())
    }
}
