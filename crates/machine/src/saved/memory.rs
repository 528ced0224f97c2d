//! Guest memory: which pages hold something, what, and which pieces the guest has touched.

use satori_memory::{Gpa, GuestMemory, PAGE_SIZE};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

/// The bytes of the value are those of `pages`, one behind the other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMemory {
    /// Where RAM begins, and how long it is.
    regions: Vec<(u64, u64)>,
    /// Pages that are not all zero, as runs: where each begins, and how many pages it has.
    pages: Vec<(u64, u64)>,
    /// Pages that the guest has touched: another touch of them is no exit.
    touched: Vec<u64>,
}

impl State for SavedMemory {
    const NAME: &'static str = "memory";
    const VERSION: u32 = 1;
}

const PAGE: usize = PAGE_SIZE as usize;

fn regions(memory: &GuestMemory) -> Vec<(u64, u64)> {
    memory.regions().map(|region| (region.start.0, region.len)).collect()
}

fn pages(regions: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    regions.iter().flat_map(|&(start, len)| (start..start + len).step_by(PAGE))
}

fn ours(error: satori_memory::Error) -> Error {
    Error::refused("memory", error.to_string())
}

pub(super) fn save(memory: &GuestMemory) -> Result<Value, Error> {
    let mut saved = SavedMemory { regions: regions(memory), pages: Vec::new(), touched: Vec::new() };
    let (mut bytes, mut page) = (Vec::new(), [0; PAGE]);
    for at in pages(&saved.regions) {
        if memory.page(Gpa(at)).is_some_and(|page| page.state.touched()) {
            saved.touched.push(at);
        }
        memory.read(Gpa(at), &mut page).map_err(ours)?;
        if page == [0; PAGE] {
            continue;
        }
        bytes.extend_from_slice(&page);
        match saved.pages.last_mut() {
            Some((start, count)) if *start + *count * PAGE_SIZE == at => *count += 1,
            _ => saved.pages.push((at, 1)),
        }
    }
    Value::with_bytes(&saved, bytes)
}

/// Everything that was not saved is zero afterwards.
pub(super) fn restore(memory: &GuestMemory, value: &Value) -> Result<(), Error> {
    let saved: SavedMemory = value.state()?;
    let unless = |fits, why| Error::unless(fits, SavedMemory::NAME, why);
    unless(
        saved.regions == regions(memory),
        "it is of another size: use the --memory that it was saved with",
    )?;
    let mut next = 0;
    for &(start, count) in &saved.pages {
        let ordered = start >= next && start.is_multiple_of(PAGE_SIZE) && count > 0;
        let len = count.checked_mul(PAGE_SIZE).filter(|len| ordered && memory.has(Gpa(start), *len));
        unless(len.is_some(), "there are no such pages")?;
        next = start + len.unwrap_or(0);
    }
    let total = saved.pages.iter().map(|(_, count)| *count as usize * PAGE).sum::<usize>();
    unless(total == value.bytes().len(), "the contents of some pages are missing")?;
    let mut runs =
        saved.pages.iter().flat_map(|&(start, count)| (start..).step_by(PAGE).take(count as usize));
    let mut kept = runs.by_ref().zip(value.bytes().as_chunks::<PAGE>().0).peekable();
    let mut now = [0; PAGE];
    for at in pages(&saved.regions) {
        let wanted = kept.next_if(|(page, _)| *page == at).map_or(&[0; PAGE], |(_, bytes)| bytes);
        memory.read(Gpa(at), &mut now).map_err(ours)?;
        // What is not written is not allocated.
        if now != *wanted {
            memory.write(Gpa(at), wanted).map_err(ours)?;
        }
        if let Some(page) = memory.page(Gpa(at)) {
            page.state.set_touched(saved.touched.binary_search(&at).is_ok());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use satori_memory::Region;

    use super::*;

    fn memory() -> GuestMemory {
        let region = |start, len| Region { start: Gpa(start), len };
        GuestMemory::new(&[region(0, 0x8000), region(1 << 32, 0x4000)]).unwrap()
    }

    #[test]
    fn memory_comes_back_page_by_page_and_what_was_there_is_gone() {
        let (one, other) = (memory(), memory());
        for at in [0x1010, 0x2fff, 0x3000, 0x1_0000_3fff] {
            one.write(Gpa(at), &[at as u8 | 1]).unwrap();
        }
        one.page(Gpa(0x4000)).unwrap().state.touch();
        other.write(Gpa(0), &[7; 0x8000]).unwrap();
        other.page(Gpa(0)).unwrap().state.touch();
        let value = save(&one).unwrap();
        assert_eq!(value.bytes().len(), 4 * PAGE);
        restore(&other, &value).unwrap();
        assert_eq!(save(&other), Ok(value));
        assert!(other.page(Gpa(0x4000)).unwrap().state.touched());
        assert!(!other.page(Gpa(0)).unwrap().state.touched());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let one = memory();
        one.write(Gpa(0x1000), &[1; 0x2000]).unwrap();
        let value = save(&one).unwrap();
        for (pointer, number) in [
            ("/regions/0/1", 0x4000),
            ("/pages/0/0", 0x7000),
            ("/pages/0/0", 1),
            ("/pages/0/1", 3),
            ("/pages/0/1", 0),
            ("/pages/0/1", u64::MAX),
            ("/pages/0/0", u64::MAX - 0xfff),
        ] {
            let mut value = value.clone();
            *value.tree_mut().pointer_mut(pointer).unwrap() = number.into();
            let refused = restore(&one, &value);
            assert!(matches!(refused, Err(Error::Unfit { .. })), "{pointer} {number:#x}: {refused:?}");
        }
    }
}
