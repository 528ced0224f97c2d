//! Grant tables: entries of the guest's that let the host's back ends reach single pages of it, in both versions.
//!
//! The frames with the entries are pages of the guest's memory that it placed by add_to_physmap. An entry is looked at each time that it
//! is used: the bits that say so are set first, in one atomic operation, and what was there then counts. A back end gets an address and
//! no mapping, so what a guest does to an entry meanwhile changes nothing for it.

use std::collections::BTreeMap;

use satori_defs::xen::errno::{EBUSY, EFAULT, EINVAL, ENOSYS};
use satori_defs::xen::{DOMID_SELF, grant};
use satori_memory::{Gpa, GuestMemory, PAGE_SIZE};
use serde::{Deserialize, Serialize};

use crate::domain::{CONSOLE_GFN, STORE_GFN, State};
use crate::hypercall::{Bytes, Caller, Served, done};
use crate::leaves::DOMID;
use crate::{Domain, Vcpu};

/// The domain of back ends.
const HOST: u16 = 0;
/// Structures that one call may bring.
const AT_ONCE: u64 = 1024;

/// What the host keeps of a guest's grant table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grants {
    version: u32,
    /// Where each frame with entries is, and each with the states of version 2.
    pub frames: Vec<Option<u64>>,
    pub states: Vec<Option<u64>>,
    /// How often each reference is used now: to read, and to write.
    used: BTreeMap<u32, (u32, u32)>,
}

impl Default for Grants {
    fn default() -> Self {
        let none = || vec![None; grant::FRAMES as usize];
        Grants { version: 1, frames: none(), states: none(), used: BTreeMap::new() }
    }
}

/// A page that a reference leads to, and which of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Granted {
    page: u64,
    first: u16,
    len: u16,
}

impl Grants {
    /// Where the entry of `reference` is.
    fn entry(&self, reference: u32) -> Option<Gpa> {
        let size = if self.version == 1 { grant::ENTRY_1 } else { grant::ENTRY_2 };
        let at = u64::from(reference) * size;
        let frame = self.frames.get((at / PAGE_SIZE) as usize).copied().flatten()?;
        Some(Gpa(frame + at % PAGE_SIZE))
    }

    /// The word in which bits say that `reference` is used, and how far up they are.
    fn use_word(&self, reference: u32, entry: Gpa) -> Option<(Gpa, u32)> {
        if self.version == 1 {
            return Some((entry, 0));
        }
        let at = u64::from(reference) * 2;
        let frame = self.states.get((at / PAGE_SIZE) as usize).copied().flatten()?;
        Some((Gpa((frame + at % PAGE_SIZE) & !3), (reference & 1) * 16))
    }

    /// Begins to use `reference`, which is `domain`'s to use.
    fn begin(
        &mut self,
        memory: &GuestMemory,
        reference: u32,
        domain: u16,
        write: bool,
    ) -> Result<Granted, i16> {
        let entry = self.entry(reference).ok_or(grant::BAD_REFERENCE)?;
        let (word, shift) = self.use_word(reference, entry).ok_or(grant::BAD_REFERENCE)?;
        let bits = u32::from(grant::READING | if write { grant::WRITING } else { 0 }) << shift;
        memory.fetch_or_u32(word, bits).map_err(|_| grant::GENERAL)?;
        let used = self.used.entry(reference).or_default();
        (used.0, used.1) = (used.0.saturating_add(1), used.1.saturating_add(write.into()));
        let granted = self.look(memory, entry, domain, write);
        if granted.is_err() {
            self.end(memory, reference, write);
        }
        granted
    }

    /// What the entry at `entry` permits.
    fn look(&self, memory: &GuestMemory, entry: Gpa, domain: u16, write: bool) -> Result<Granted, i16> {
        let head = memory.load_u32(entry).map_err(|_| grant::GENERAL)?;
        let (flags, of) = (head as u16, (head >> 16) as u16);
        if flags & grant::TYPE != grant::ACCESS || of != domain {
            return Err(grant::BAD_REFERENCE);
        }
        if write && flags & grant::READ_ONLY != 0 {
            return Err(grant::DENIED);
        }
        let word = |at| memory.load_u32(Gpa(entry.0 + at)).map_err(|_| grant::GENERAL);
        let (frame, first, len) = match self.version {
            1 => (u64::from(word(4)?), 0, PAGE_SIZE as u16),
            _ => {
                let frame = u64::from(word(8)?) | u64::from(word(12)?) << 32;
                match flags & grant::SUB_PAGE != 0 {
                    true => (frame, word(4)? as u16, (word(4)? >> 16) as u16),
                    false => (frame, 0, PAGE_SIZE as u16),
                }
            }
        };
        let page = frame.checked_mul(PAGE_SIZE).filter(|at| memory.has(Gpa(*at), PAGE_SIZE));
        let within = u64::from(first) + u64::from(len) <= PAGE_SIZE;
        Ok(Granted { page: page.filter(|_| within).ok_or(grant::BAD_PAGE)?, first, len })
    }

    /// Ends what [`Grants::begin`] began.
    fn end(&mut self, memory: &GuestMemory, reference: u32, write: bool) {
        let Some(used) = self.used.get_mut(&reference) else { return };
        (used.0, used.1) = (used.0.saturating_sub(1), used.1.saturating_sub(write.into()));
        let (reads, writes) = *used;
        let mut over = if writes == 0 { grant::WRITING } else { 0 };
        if reads == 0 {
            over |= grant::READING;
            self.used.remove(&reference);
        }
        let word = self.entry(reference).and_then(|entry| self.use_word(reference, entry));
        if let Some((word, shift)) = word {
            // The frame was in memory when it was placed; a guest that took it away since has nothing to be told.
            let _ = memory.fetch_clear_u32(word, u32::from(over) << shift);
        }
    }

    /// Whether it can be of a machine with this memory.
    pub(crate) fn fits(&self) -> bool {
        let sized = |frames: &Vec<Option<u64>>| {
            frames.len() == grant::FRAMES as usize
                && frames.iter().flatten().all(|at| at.is_multiple_of(PAGE_SIZE) && *at < 1 << 52)
        };
        matches!(self.version, 1 | 2) && sized(&self.frames) && sized(&self.states)
    }
}

impl Domain {
    /// Begins to use the page that the guest grants the host by `reference`, to read or also to write it: where the page is.
    /// The error is Xen's status.
    pub fn grant(&self, reference: u32, write: bool) -> Result<Gpa, i16> {
        let granted = self.state().grants.begin(&self.memory, reference, HOST, write)?;
        if u64::from(granted.len) == PAGE_SIZE {
            return Ok(Gpa(granted.page));
        }
        // A part of a page is for copies alone.
        self.end_grant(reference, write);
        Err(grant::BAD_REFERENCE)
    }

    /// Ends that.
    pub fn end_grant(&self, reference: u32, write: bool) {
        self.state().grants.end(&self.memory, reference, write);
    }

    /// Reads or writes bytes of a page that is granted by `reference`, from its byte `at` on.
    pub fn grant_copy(&self, reference: u32, at: usize, bytes: Copied<'_>) -> Result<(), i16> {
        let write = matches!(bytes, Copied::ToGuest(_));
        let mut state = self.state();
        let granted = state.grants.begin(&self.memory, reference, HOST, write)?;
        let len = match &bytes {
            Copied::ToGuest(bytes) => bytes.len(),
            Copied::FromGuest(bytes) => bytes.len(),
        };
        let fits = at >= usize::from(granted.first)
            && at
                .checked_add(len)
                .is_some_and(|end| end <= usize::from(granted.first) + usize::from(granted.len));
        let place = Gpa(granted.page.wrapping_add(at as u64));
        let result = match bytes {
            _ if !fits => Err(grant::CROSSES),
            Copied::ToGuest(bytes) => self.memory.write(place, bytes).map_err(|_| grant::GENERAL),
            Copied::FromGuest(bytes) => self.memory.read(place, bytes).map_err(|_| grant::GENERAL),
        };
        state.grants.end(&self.memory, reference, write);
        result
    }

    /// Puts a frame with entries, or with states of version 2, at `to`; it keeps what it holds.
    pub(crate) fn place_grants(&self, state: &mut State, index: u64, to: Gpa) -> Result<(), i64> {
        let states = index & grant::STATES != 0;
        let number = index & !grant::STATES;
        if number >= u64::from(grant::FRAMES) || states && state.grants.version != 2 {
            return Err(EINVAL);
        }
        self.populate(state, to)?;
        let frames = if states { &mut state.grants.states } else { &mut state.grants.frames };
        let mut page = vec![0; PAGE_SIZE as usize];
        match frames[number as usize] {
            Some(before) => self.memory.read(Gpa(before), &mut page).map_err(|_| EINVAL)?,
            None if index == 0 && state.grants.version == 1 => {
                for (at, gfn) in [(0, CONSOLE_GFN), (8, STORE_GFN)] {
                    page[at..at + 2].copy_from_slice(&grant::ACCESS.to_le_bytes());
                    page[at + 4..at + 8].copy_from_slice(&(gfn as u32).to_le_bytes());
                }
            }
            None => {}
        }
        self.memory.write(to, &page).map_err(|_| EINVAL)?;
        frames[number as usize] = Some(to.0);
        Ok(())
    }

    /// Frames that are placed, in their order, as far as a guest asks for them.
    fn frames_told(
        &self,
        caller: &Caller<'_>,
        frames: &[Option<u64>],
        count: u32,
        list: u64,
    ) -> Result<i16, i64> {
        if count > grant::FRAMES {
            return Ok(grant::GENERAL);
        }
        for (index, frame) in (0..).zip(frames.iter().take(count as usize)) {
            let gfn = frame.map_or(u64::MAX, |at| at / PAGE_SIZE);
            self.copy_out(caller, list.wrapping_add(index * 8), &gfn.to_le_bytes())?;
        }
        Ok(0)
    }

    pub(crate) fn grant_table_op(
        &self,
        _: &mut Vcpu,
        caller: &Caller<'_>,
        [command, at, count, ..]: [u64; 5],
    ) -> Served {
        let own = |domain: u16| matches!(domain, DOMID_SELF | DOMID);
        let state = || self.state();
        // Those that take several have a size, and where their status is.
        let several = match command as u32 {
            0 => Some((32, 16)),
            1 | 7 => Some((24, 20)),
            5 => Some((40, 36)),
            11 => Some((12, 8)),
            _ => None,
        };
        if let Some((size, status)) = several {
            if count > AT_ONCE {
                return Err(EINVAL);
            }
            for index in 0..count {
                let at = at.checked_add(index * size).ok_or(EFAULT)?;
                let result: i16 = match command as u32 {
                    // There is no other domain whose pages a guest could map; and its own have one place.
                    0 => grant::BAD_DOMAIN,
                    1 | 7 => grant::BAD_HANDLE,
                    5 => self.copy(&self.structure::<40>(caller, at)?),
                    _ => {
                        let asked: Bytes<12> = self.structure(caller, at)?;
                        self.swap(asked.u32(0), asked.u32(4))
                    }
                };
                self.copy_out(caller, at.wrapping_add(status), &result.to_le_bytes())?;
            }
            return done(0);
        }
        match command as u32 {
            2 => {
                let asked: Bytes<24> = self.structure(caller, at)?;
                let frames = state().grants.frames.clone();
                let status = match own(asked.u16(0)) {
                    true => self.frames_told(caller, &frames, asked.u32(4), asked.u64(16))?,
                    false => grant::BAD_DOMAIN,
                };
                self.copy_out(caller, at.wrapping_add(8), &status.to_le_bytes())?;
            }
            6 => {
                let mut asked: Bytes<16> = self.structure(caller, at)?;
                let status = if own(asked.u16(0)) { 0 } else { grant::BAD_DOMAIN };
                let placed = state().grants.frames.iter().flatten().count() as u32;
                asked.set_u32(4, placed.max(1));
                asked.set_u32(8, grant::FRAMES);
                asked.0[12..14].copy_from_slice(&status.to_le_bytes());
                self.copy_out(caller, at, &asked.0)?;
            }
            8 => {
                let asked: Bytes<4> = self.structure(caller, at)?;
                self.set_version(asked.u32(0))?;
            }
            9 => {
                let asked: Bytes<16> = self.structure(caller, at)?;
                let (version, frames) = {
                    let state = state();
                    (state.grants.version, state.grants.states.clone())
                };
                let status = match (own(asked.u16(4)), version) {
                    (false, _) => grant::BAD_DOMAIN,
                    (true, 1) => grant::GENERAL,
                    (true, _) => self.frames_told(caller, &frames, asked.u32(0), asked.u64(8))?,
                };
                self.copy_out(caller, at.wrapping_add(6), &status.to_le_bytes())?;
            }
            10 => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                if !own(asked.u16(0)) {
                    return Err(satori_defs::xen::errno::ESRCH);
                }
                let version = state().grants.version;
                self.copy_out(caller, at.wrapping_add(4), &version.to_le_bytes())?;
            }
            _ => return Err(ENOSYS),
        }
        done(0)
    }

    /// Another layout of the entries, if nobody uses one. Those that are there are taken over as empty.
    fn set_version(&self, version: u32) -> Result<(), i64> {
        let mut state = self.state();
        let grants = &mut state.grants;
        if !matches!(version, 1 | 2) {
            return Err(EINVAL);
        }
        if version != grants.version {
            if !grants.used.is_empty() {
                return Err(EBUSY);
            }
            for frame in grants.frames.iter().flatten() {
                // The frame was in memory when it was placed.
                let _ = self.memory.write(Gpa(*frame), &[0; PAGE_SIZE as usize]);
            }
            grants.version = version;
            grants.states.fill(None);
        }
        Ok(())
    }

    /// Two entries change places, if nobody uses either.
    fn swap(&self, one: u32, other: u32) -> i16 {
        let state = self.state();
        let grants = &state.grants;
        let (Some(a), Some(b)) = (grants.entry(one), grants.entry(other)) else {
            return grant::BAD_REFERENCE;
        };
        if grants.used.contains_key(&one) || grants.used.contains_key(&other) {
            return grant::AGAIN;
        }
        let size = if grants.version == 1 { grant::ENTRY_1 } else { grant::ENTRY_2 } as usize;
        let (mut first, mut second) = (vec![0; size], vec![0; size]);
        let moved = self.memory.read(a, &mut first).and_then(|()| self.memory.read(b, &mut second));
        let moved =
            moved.and_then(|()| self.memory.write(a, &second)).and_then(|()| self.memory.write(b, &first));
        if moved.is_ok() { 0 } else { grant::GENERAL }
    }

    /// A copy within the guest: of a frame, or of what it grants to itself.
    fn copy(&self, asked: &Bytes<40>) -> i16 {
        let (len, flags) = (usize::from(asked.u16(32)), asked.u16(34));
        let mut state = self.state();
        let mut begin = |at: usize, by_reference: bool, write: bool| {
            if !matches!(asked.u16(at + 8), DOMID_SELF | DOMID) {
                return Err(grant::BAD_DOMAIN);
            }
            let offset = usize::from(asked.u16(at + 10));
            let granted = if by_reference {
                let own = DOMID;
                state.grants.begin(&self.memory, asked.u32(at), own, write)?
            } else {
                let page = asked.u64(at).checked_mul(PAGE_SIZE);
                let page = page.filter(|page| self.memory.has(Gpa(*page), PAGE_SIZE));
                Granted { page: page.ok_or(grant::BAD_PAGE)?, first: 0, len: PAGE_SIZE as u16 }
            };
            if by_reference {
                state.grants.end(&self.memory, asked.u32(at), write);
            }
            let (first, most) = (usize::from(granted.first), usize::from(granted.len));
            let fits = offset >= first && offset + len <= first + most;
            if fits { Ok(Gpa(granted.page + offset as u64)) } else { Err(grant::CROSSES) }
        };
        let places =
            begin(0, flags & 1 != 0, false).and_then(|from| Ok((from, begin(16, flags & 2 != 0, true)?)));
        let (from, to) = match places {
            Ok(places) => places,
            Err(status) => return status,
        };
        let mut bytes = vec![0; len];
        let copied = self.memory.read(from, &mut bytes).and_then(|()| self.memory.write(to, &bytes));
        if copied.is_ok() { 0 } else { grant::GENERAL }
    }
}

/// Which way bytes go.
pub enum Copied<'a> {
    /// These go to the guest.
    ToGuest(&'a [u8]),
    /// These come from the guest.
    FromGuest(&'a mut [u8]),
}
