//! Where the host's files are, as plain data: places are a table, in which each is a name in the root or in one before it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{Key, Place, Pool, Slot};
use crate::saved::unless;
use crate::wire::component;

/// A place in the table: the number of the directory's, if that is not the root, and the name.
pub(crate) type SavedPlace = (Option<u32>, Vec<u8>);

/// One of the host's files. Without a place nobody finds it again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSlot {
    pub key: Key,
    place: Option<u32>,
}

/// The table while it is made.
#[derive(Debug, Default)]
pub(crate) struct Places {
    numbers: HashMap<*const Place, u32>,
    pub all: Vec<SavedPlace>,
}

impl Places {
    /// The number of a place; none of the root.
    fn number(&mut self, place: &Rc<Place>) -> Option<u32> {
        let new = |place: &Rc<Place>| !self.numbers.contains_key(&Rc::as_ptr(place));
        let mut path: Vec<_> = place.ancestors().take_while(new).collect();
        while let Some(place) = path.pop() {
            // The root is the only one without a name.
            let Some((parent, name)) = place.0.borrow().clone() else { continue };
            let parent = self.numbers.get(&Rc::as_ptr(&parent)).copied();
            self.numbers.insert(Rc::as_ptr(&place), self.all.len() as u32);
            self.all.push((parent, name));
        }
        self.numbers.get(&Rc::as_ptr(place)).copied()
    }

    pub(crate) fn save(&mut self, slot: &Slot) -> SavedSlot {
        SavedSlot { key: slot.key, place: slot.place().and_then(|place| self.number(&place)) }
    }

    /// The places of a table, in a folder whose root is at `top`.
    pub(crate) fn restore(
        saved: Vec<SavedPlace>,
        top: &Rc<Place>,
    ) -> Result<Vec<Rc<Place>>, satori_save::Error> {
        let mut all: Vec<Rc<Place>> = Vec::new();
        for (parent, name) in saved {
            unless(component(&name).is_ok(), "a name in it is none")?;
            let parent = parent.map_or(Some(top), |parent| all.get(parent as usize)).cloned();
            let parent = parent.ok_or_else(|| crate::saved::unfit("a directory is behind what is in it"))?;
            all.push(Place::new(parent, &name));
        }
        Ok(all)
    }
}

impl Pool {
    /// A handle that is opened when it is needed.
    pub(crate) fn closed_slot(
        self: &Rc<Pool>,
        saved: &SavedSlot,
        places: &[Rc<Place>],
    ) -> Result<Rc<Slot>, satori_save::Error> {
        let place = saved.place.map(|number| places.get(number as usize).cloned());
        unless(!matches!(place, Some(None)), "a file is nowhere")?;
        Ok(Rc::new(Slot {
            fd: RefCell::default(),
            key: saved.key,
            place: RefCell::new(place.flatten()),
            used: Cell::new(false),
            pool: self.clone(),
        }))
    }
}
