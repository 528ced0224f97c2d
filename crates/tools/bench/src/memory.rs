//! How much of a monitor's resident memory is not the guest's.

use std::path::Path;

/// Resident memory of a process, in bytes. A page that is mapped twice, as code that is written through one
/// mapping and executed through another, counts once (`Pss` of proc(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// All of it.
    pub all: u64,
    /// What the guest's memory has of it.
    pub guest: u64,
}

impl Resident {
    /// What is not the guest's.
    pub fn above(self) -> u64 {
        self.all - self.guest
    }
}

/// Resident memory of process `pid`, whose guest has `memory` bytes; none where that may not be seen.
pub fn of(pid: u32, memory: u64) -> Option<Resident> {
    let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("smaps")).ok()?;
    parse(&text, memory)
}

/// One mapping of `smaps`.
struct Mapping {
    /// Device, inode and name; a file that is mapped twice has the same.
    file: String,
    named: bool,
    size: u64,
    resident: u64,
}

/// The guest's memory is the largest mapping with content that is no larger than the guest's memory with
/// its holes could be, and every other mapping of the same file.
fn parse(text: &str, memory: u64) -> Option<Resident> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, _, _, device, inode, name @ ..] if range.contains('-') && !range.ends_with(':') => {
                let (start, end) = range.split_once('-')?;
                let number = |text| u64::from_str_radix(text, 16).ok();
                let file = format!("{device} {inode} {}", name.join(" "));
                let size = number(end)?.checked_sub(number(start)?)?;
                mappings.push(Mapping { file, named: *inode != "0", size, resident: 0 });
            }
            ["Pss:", kib, "kB"] => mappings.last_mut()?.resident = kib.parse::<u64>().ok()? << 10,
            _ => {}
        }
    }
    let all = mappings.iter().map(|m| m.resident).sum();
    // Parts of the guest's memory can have different rights, and so be mappings of their own.
    let largest = mappings.iter().filter(|m| m.size >= memory / 4).max_by_key(|m| m.resident)?;
    let guest = match largest.named {
        true => {
            let of_file = mappings.iter().filter(|m| m.file == largest.file);
            of_file.map(|m| m.resident).sum()
        }
        false => largest.resident,
    };
    Some(Resident { all, guest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_one_mapping() {
        let text = "\
55d0c0000000-55d0c0100000 r-xp 00000000 fe:01 12 /usr/bin/satori
Size:               1024 kB
Pss:                 600 kB
7f0000000000-7f0020000000 rw-p 00000000 00:00 0 
Pss:              100000 kB
7f0040000000-7f0060000000 rw-p 00000000 00:00 0 
Pss:                 400 kB
7ffd0000000-7ffd0010000 rw-p 00000000 00:00 0 [stack]
Pss:                  24 kB
";
        let resident = parse(text, 512 << 20).unwrap();
        assert_eq!(resident, Resident { all: 101_024 << 10, guest: 100_000 << 10 });
        assert_eq!(resident.above(), 1_024 << 10);
    }

    #[test]
    fn a_file_that_is_mapped_twice_is_the_guests_both_times() {
        let text = "\
7f0000000000-7f0020000000 rw-s 00000000 00:01 77 /memfd:guest (deleted)
Pss:              100000 kB
7f1000000000-7f1020000000 r--s 00000000 00:01 77 /memfd:guest (deleted)
Pss:               50000 kB
7f2000000000-7f2020000000 rwxs 00000000 00:01 78 /memfd:code (deleted)
Pss:                3000 kB
";
        assert_eq!(parse(text, 512 << 20).unwrap().above(), 3_000 << 10);
    }

    #[test]
    fn without_a_guest_nothing_is_told() {
        assert_eq!(
            parse("55d0c0000000-55d0c0100000 r-xp 00000000 fe:01 12 /x\nPss: 600 kB\n", 512 << 20),
            None
        );
    }
}
