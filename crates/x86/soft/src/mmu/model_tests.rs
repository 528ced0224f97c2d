//! A slow model of paging, written from SDM 4.3 to 4.8 alone: it shares no code with the walk
//! that it checks, and no constants beyond those of the tests' tables.

/// Everything that decides about an access, one field for each bit of the manual's text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Controls {
    pub wp: bool,
    pub pae: bool,
    pub long: bool,
    pub nxe: bool,
    pub smep: bool,
    pub smap: bool,
    pub pke: bool,
    pub pse: bool,
    pub pkru: u32,
    pub ac: bool,
}

/// An access. `implicit` is one of the processor's own, to a system structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub write: bool,
    pub fetch: bool,
    pub cpl3: bool,
    pub implicit: bool,
}

/// The entries that translate an address, from the highest level down. What is behind a leaf or a
/// fault does not matter. With PAE paging, without the PDPTE.
pub(super) type Entries = Vec<u64>;

/// What must come out: an error code or none, and the entries afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub error: Option<u32>,
    pub entries: Entries,
}

const MAXPHYADDR: u32 = 46;

fn bit(entry: u64, n: u32) -> bool {
    (entry >> n) % 2 == 1
}

/// Whether any of bits `high`:`low` is set.
fn any(entry: u64, high: u32, low: u32) -> bool {
    (low..=high).any(|n| bit(entry, n))
}

/// The reserved bits of a present entry, table by table. `left` is how many levels remain below.
fn reserved(c: &Controls, entry: u64, left: usize) -> bool {
    match (c.long, c.pae, left) {
        // Table 4-15: PML4E.
        (true, _, 3) => bit(entry, 7) || any(entry, 51, MAXPHYADDR) || (bit(entry, 63) && !c.nxe),
        // Tables 4-16 and 4-17: PDPTE, with and without a 1-GByte page.
        (true, _, 2) if bit(entry, 7) => {
            any(entry, 29, 13) || any(entry, 51, MAXPHYADDR) || (bit(entry, 63) && !c.nxe)
        }
        // Tables 4-18 and 4-19: PDE.
        (true, _, 1) if bit(entry, 7) => {
            any(entry, 20, 13) || any(entry, 51, MAXPHYADDR) || (bit(entry, 63) && !c.nxe)
        }
        (true, _, _) => any(entry, 51, MAXPHYADDR) || (bit(entry, 63) && !c.nxe),
        // Table 4-9: PAE PDE of a 2-MByte page.
        (_, true, 1) if bit(entry, 7) => {
            any(entry, 20, 13) || any(entry, 62, MAXPHYADDR) || (bit(entry, 63) && !c.nxe)
        }
        // Tables 4-10 and 4-11.
        (_, true, _) => any(entry, 62, MAXPHYADDR) || (bit(entry, 63) && !c.nxe),
        // Table 4-4: PDE of a 4-MByte page.
        (_, _, 1) if bit(entry, 7) && c.pse => bit(entry, 21),
        _ => false,
    }
}

/// Section 4.6.1, paragraph by paragraph.
fn permitted(c: &Controls, asked: &Asked, path: &[u64]) -> bool {
    let user_mode_address = path.iter().all(|entry| bit(*entry, 2));
    let read_write = path.iter().all(|entry| bit(*entry, 1));
    let execute_disable = c.nxe && (c.pae || c.long) && path.iter().any(|entry| bit(*entry, 63));
    let supervisor_access = !asked.cpl3 || asked.implicit;
    match (supervisor_access, asked.fetch, asked.write) {
        (true, true, _) if user_mode_address => !c.smep && !execute_disable,
        (true, true, _) => !execute_disable,
        (true, false, false) if user_mode_address => !c.smap || (c.ac && !asked.implicit),
        (true, false, false) => true,
        (true, false, true) => {
            let smap_allows = !user_mode_address || !c.smap || (c.ac && !asked.implicit);
            smap_allows && (!c.wp || read_write)
        }
        (false, true, _) => user_mode_address && !execute_disable,
        (false, false, false) => user_mode_address,
        (false, false, true) => user_mode_address && read_write,
    }
}

/// Section 4.6.2: whether the protection key forbids the access.
fn forbidden_by_key(c: &Controls, asked: &Asked, path: &[u64]) -> bool {
    let user_mode_address = path.iter().all(|entry| bit(*entry, 2));
    if !(c.long && c.pke && user_mode_address) || asked.fetch {
        return false;
    }
    let key = path.last().map_or(0, |leaf| leaf << 1 >> 60);
    let (ad, wd) = (c.pkru >> (2 * key) & 1 == 1, c.pkru >> (2 * key + 1) & 1 == 1);
    let user_mode_access = asked.cpl3 && !asked.implicit;
    ad || (wd && asked.write && (user_mode_access || c.wp))
}

/// Translates through `entries`.
pub(super) fn translate(c: &Controls, asked: &Asked, entries: &Entries) -> Outcome {
    let mut entries = entries.clone();
    // Section 4.7: the bits of the error code that tell of the access.
    let mut code = 0;
    if asked.write {
        code += 2;
    }
    if asked.cpl3 && !asked.implicit {
        code += 4;
    }
    if asked.fetch && (c.smep || (c.nxe && (c.pae || c.long))) {
        code += 16;
    }
    let levels = if c.long { 4 } else { 2 };
    for index in 0..entries.len() {
        let (entry, left) = (entries[index], levels - 1 - index);
        if !bit(entry, 0) {
            return Outcome { error: Some(code), entries };
        }
        if reserved(c, entry, left) {
            return Outcome { error: Some(code + 1 + 8), entries };
        }
        let large = bit(entry, 7) && matches!(left, 1 | 2) && (c.long || c.pae || c.pse);
        if left > 0 && !large {
            // Section 4.8: it is used in a translation from here on.
            entries[index] |= 1 << 5;
            continue;
        }
        let path = &entries[..=index];
        let by_key = forbidden_by_key(c, asked, path);
        if by_key || !permitted(c, asked, path) {
            return Outcome { error: Some(code + 1 + if by_key { 32 } else { 0 }), entries };
        }
        entries[index] |= 1 << 5 | if asked.write { 1 << 6 } else { 0 };
        return Outcome { error: None, entries };
    }
    unreachable!("the last level has a leaf or a fault")
}
