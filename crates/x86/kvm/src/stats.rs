//! What KVM counts of a vCPU itself, by KVM_GET_STATS_FD: exits that it handled, without times and without reasons.
//!
//! The file tells its own layout: a header, a descriptor for each counter with its name, and the values (Linux
//! Documentation/virt/kvm/api.rst, 4.134). Whoever has it may read it, root or not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{kvm_stats_desc, kvm_stats_header};
use kvm_ioctls::VcpuFd;
use satori_engine::{Counts, Stat};

use crate::exits::Exits;
use crate::raw;

/// Counters of KVM's that tell of exits: its name and ours. Which of them there are depends on the kernel.
const KNOWN: &[(&str, &str)] = &[
    ("exits", ALL),
    ("irq_exits", "by KVM: host's interrupts"),
    ("insn_emulation", "by KVM: instructions emulated"),
    ("hypercalls", "by KVM: hypercalls"),
    ("pf_fixed", "by KVM: faults of guest memory, mapped"),
    ("pf_emulate", "by KVM: faults of guest memory, emulated"),
    ("pf_guest", "by KVM: faults handed to the guest"),
    ("invlpg", "by KVM: INVLPG"),
    ("tlb_flush", "by KVM: TLB flushes"),
    ("nested_run", "by KVM: entries to nested guests"),
];
/// All of its exits, and those of them that did not come to the machine.
const ALL: &str = "by KVM: VM exits";
const OWN: &str = "by KVM: VM exits that it handled itself";

/// More than any kernel has of counters, and of bytes of a name.
const MOST: u32 = 1024;

/// The file of a vCPU, and where in it the counters are that are known.
#[derive(Debug)]
pub(crate) struct Statistics {
    file: File,
    places: Vec<(&'static str, u64)>,
    /// Exits that came to the machine.
    came: AtomicU64,
    /// What tracepoints tell, of all vCPUs.
    exits: Option<Arc<Exits>>,
}

impl Statistics {
    /// Those of `vcpu`, and with them what tracepoints tell.
    pub(crate) fn new(vcpu: &VcpuFd, exits: Option<Arc<Exits>>) -> io::Result<Self> {
        let file = raw::statistics(vcpu)?;
        let mut header = [0; size_of::<kvm_stats_header>()];
        file.read_exact_at(&mut header, 0)?;
        let Layout { name_size, count, descriptors, values } = Layout::of(&header)?;
        let each = size_of::<kvm_stats_desc>() + name_size;
        let mut bytes = vec![0; each * count];
        file.read_exact_at(&mut bytes, descriptors)?;
        let places = bytes.chunks_exact(each).filter_map(place).map(|(name, at)| (name, values + at));
        let places = places.collect();
        Ok(Statistics { file, places, came: AtomicU64::new(0), exits })
    }

    /// An exit came to the machine.
    pub(crate) fn exit(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
    }

    /// The file, which a sandbox has to keep open.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Counts for Statistics {
    fn counts(&self) -> Vec<Stat> {
        let came = self.came.load(Ordering::Relaxed);
        let read = |&(name, at): &(&'static str, u64)| {
            let mut value = [0; 8];
            self.file.read_exact_at(&mut value, at).ok()?;
            Some((name, u64::from_le_bytes(value)))
        };
        let mut counts: Vec<Stat> = self.places.iter().filter_map(read).collect();
        if let Some(at) = counts.iter().position(|(name, _)| *name == ALL) {
            counts.insert(at + 1, (OWN, counts[at].1.saturating_sub(came)));
        }
        counts.extend(self.exits.iter().flat_map(|exits| exits.counts()));
        counts
    }
}

/// What the header says.
struct Layout {
    name_size: usize,
    count: usize,
    descriptors: u64,
    values: u64,
}

impl Layout {
    fn of(header: &[u8; size_of::<kvm_stats_header>()]) -> io::Result<Self> {
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (name_size, count) = (word(4), word(8));
        if name_size == 0 || name_size > MOST || count > MOST {
            return Err(io::Error::other("KVM's statistics have another form than Linux 5.14 gave them"));
        }
        Ok(Layout {
            name_size: name_size as usize,
            count: count as usize,
            descriptors: word(16).into(),
            values: word(20).into(),
        })
    }
}

/// Our name of a descriptor's counter, and its place among the values; none if it is not known.
fn place(descriptor: &[u8]) -> Option<(&'static str, u64)> {
    let (fixed, name) = descriptor.split_at_checked(size_of::<kvm_stats_desc>())?;
    let name = name.split(|byte| *byte == 0).next()?;
    let offset = u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    let (_, ours) = KNOWN.iter().find(|(kernels, _)| kernels.as_bytes() == name)?;
    Some((ours, offset.into()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn counters_are_found_by_the_names_that_the_file_has() {
        let descriptor = |name: &[u8], offset: u32| {
            let mut bytes = vec![0; size_of::<kvm_stats_desc>() + 16];
            bytes[8..12].copy_from_slice(&offset.to_le_bytes());
            bytes[16..16 + name.len()].copy_from_slice(name);
            bytes
        };
        assert_eq!(place(&descriptor(b"exits", 24)), Some((ALL, 24)));
        assert_eq!(place(&descriptor(b"exit", 24)), None);
        assert_eq!(place(&[1; 3]), None);
        let path = std::env::temp_dir().join(format!("satori-stats-{}", std::process::id()));
        let mut written = File::create(&path).unwrap();
        written.write_all(&[0; 8]).unwrap();
        written.write_all(&70_u64.to_le_bytes()).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let statistics = Statistics { file, places: vec![(ALL, 8)], came: AtomicU64::new(0), exits: None };
        (0..30).for_each(|_| statistics.exit());
        assert_eq!(statistics.counts(), [(ALL, 70), (OWN, 40)]);
    }

    #[test]
    fn another_form_is_refused() {
        let mut header = [0; size_of::<kvm_stats_header>()];
        assert!(Layout::of(&header).is_err());
        (header[4], header[8], header[16], header[20]) = (48, 60, 24, 200);
        let layout = Layout::of(&header).unwrap();
        assert_eq!((layout.name_size, layout.count, layout.descriptors, layout.values), (48, 60, 24, 200));
        header[7] = 1;
        assert!(Layout::of(&header).is_err());
    }
}
