//! How many processors there are, and how their APIC IDs are made (SDM volume 3, 10.9).
//!
//! An APIC ID is a field for the thread in its core, one for the core in its die, one for the die
//! in its package and one for the package. Each field is as wide as the largest number in it asks
//! for, so IDs have gaps where a count is no power of two.

use std::str::FromStr;

use crate::Error;

/// Sockets, dies in each, cores in each of these, threads in each of those; all at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is what its name says")]
pub struct Topology {
    pub sockets: u32,
    pub dies: u32,
    pub cores: u32,
    pub threads: u32,
}

/// Most vCPUs of a machine. xAPIC IDs end at 254, as 255 is the broadcast.
pub const MAX_CPUS: u32 = 255;

impl Default for Topology {
    fn default() -> Self {
        Topology::flat(1)
    }
}

/// Bits that number `count` things.
const fn bits(count: u32) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

impl Topology {
    /// One socket with `cpus` cores of one thread each.
    pub const fn flat(cpus: u32) -> Self {
        Topology { sockets: 1, dies: 1, cores: cpus, threads: 1 }
    }

    /// All processors.
    pub const fn cpus(self) -> u32 {
        self.sockets * self.package()
    }

    /// Processors in a die.
    pub const fn die(self) -> u32 {
        self.cores * self.threads
    }

    /// Processors in a package.
    pub const fn package(self) -> u32 {
        self.dies * self.die()
    }

    /// Right shift of an APIC ID that gives its core's number.
    pub const fn core_shift(self) -> u32 {
        bits(self.threads)
    }

    /// Right shift of an APIC ID that gives its die's number.
    pub const fn die_shift(self) -> u32 {
        self.core_shift() + bits(self.cores)
    }

    /// Right shift of an APIC ID that gives its package's number.
    pub const fn package_shift(self) -> u32 {
        self.die_shift() + bits(self.dies)
    }

    /// The APIC ID of processor `index`: threads of a core come first, then the cores of a die.
    pub const fn apic_id(self, index: u32) -> u32 {
        let (thread, core) = (index % self.threads, index / self.threads);
        let (core, die) = (core % self.cores, core / self.cores);
        let (die, package) = (die % self.dies, die / self.dies);
        package << self.package_shift() | die << self.die_shift() | core << self.core_shift() | thread
    }

    /// The APIC IDs of all processors, in their order.
    pub fn apic_ids(self) -> impl Iterator<Item = u32> {
        (0..self.cpus()).map(move |index| self.apic_id(index))
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Topology { sockets, dies, cores, threads } = self;
        write!(f, "{} vCPUs: sockets={sockets},dies={dies},cores={cores},threads={threads}", self.cpus())
    }
}

/// `N`, or `[cpus=]N,sockets=N,dies=N,cores=N,threads=N` with QEMU's rules for `-smp`: what is
/// missing is worked out, cores before sockets, sockets before threads.
impl FromStr for Topology {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Topology(why);
        let mut given: [Option<u32>; 6] = [None; 6];
        const NAMES: [&str; 6] = ["cpus", "sockets", "dies", "cores", "threads", "maxcpus"];
        for (at, part) in text.split(',').enumerate() {
            let (name, value) = match part.split_once('=') {
                Some(pair) => pair,
                None if at == 0 => ("cpus", part),
                None if part.parse::<u32>().is_ok() => {
                    return Err(wrong(format!("a plain number comes first: write cpus={part} here")));
                }
                None => return Err(wrong(format!("'{part}' has no value: write {part}=N"))),
            };
            let Some(index) = NAMES.iter().position(|known| *known == name) else {
                return Err(wrong(format!(
                    "'{name}' is not known: use cpus, sockets, dies, cores and threads"
                )));
            };
            let number = value.parse().ok().filter(|n| (1..=MAX_CPUS).contains(n));
            let number = number.ok_or_else(|| wrong(format!("{name} is a number from 1 to {MAX_CPUS}")))?;
            if given[index].replace(number).is_some() {
                return Err(wrong(format!("{name} is given twice")));
            }
        }
        let [cpus, sockets, dies, cores, threads, maxcpus] = given;
        if maxcpus.is_some_and(|most| cpus.is_some_and(|cpus| cpus != most)) {
            return Err(wrong("processors cannot be plugged in later: leave maxcpus out".into()));
        }
        let cpus = cpus.or(maxcpus);
        let dies = dies.unwrap_or(1);
        // What is left for the one number that is worked out.
        let rest = |others: [Option<u32>; 2]| match cpus {
            Some(cpus) => others.iter().fold(cpus / dies, |left, part| left / part.unwrap_or(1)).max(1),
            None => 1,
        };
        let topology = match (sockets, cores, threads) {
            (_, None, _) => {
                let cores = rest([sockets, threads]);
                Topology { sockets: sockets.unwrap_or(1), dies, cores, threads: threads.unwrap_or(1) }
            }
            (None, Some(cores), _) => {
                let sockets = rest([Some(cores), threads]);
                Topology { sockets, dies, cores, threads: threads.unwrap_or(1) }
            }
            (Some(sockets), Some(cores), _) => {
                let threads = threads.unwrap_or_else(|| rest([Some(sockets), Some(cores)]));
                Topology { sockets, dies, cores, threads }
            }
        };
        let Topology { sockets, cores, threads, .. } = topology;
        let product: u64 = [sockets, dies, cores, threads].into_iter().map(u64::from).product();
        if let Some(cpus) = cpus.filter(|&cpus| u64::from(cpus) != product) {
            let sum = format!("{sockets} sockets * {dies} dies * {cores} cores * {threads} threads");
            return Err(wrong(format!("{sum} are {product}, not {cpus}: make them agree or leave some out")));
        }
        if product > MAX_CPUS.into() {
            return Err(wrong(format!("{product} processors are too many: use at most {MAX_CPUS}")));
        }
        Ok(topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> [u32; 4] {
        let Topology { sockets, dies, cores, threads } = text.parse().unwrap();
        [sockets, dies, cores, threads]
    }

    #[test]
    fn what_is_missing_is_worked_out_as_qemu_does() {
        for (text, wanted) in [
            ("1", [1, 1, 1, 1]),
            ("255", [1, 1, 255, 1]),
            ("cpus=4", [1, 1, 4, 1]),
            ("8,sockets=2", [2, 1, 4, 1]),
            ("8,threads=2", [1, 1, 4, 2]),
            ("8,cores=2", [4, 1, 2, 1]),
            ("8,cores=2,threads=2", [2, 1, 2, 2]),
            ("8,sockets=2,cores=2", [2, 1, 2, 2]),
            ("8,sockets=2,threads=2", [2, 1, 2, 2]),
            ("sockets=2,cores=2,threads=2", [2, 1, 2, 2]),
            ("sockets=3", [3, 1, 1, 1]),
            ("cores=3,threads=2", [1, 1, 3, 2]),
            ("12,sockets=2,dies=2,cores=3,threads=1", [2, 2, 3, 1]),
            ("16,dies=2,threads=2", [1, 2, 4, 2]),
            ("4,maxcpus=4", [1, 1, 4, 1]),
        ] {
            assert_eq!(parsed(text), wanted, "{text}");
        }
    }

    #[test]
    fn contradictions_and_nonsense_are_refused() {
        for (text, word) in [
            ("8,sockets=3", "3 sockets * 1 dies * 2 cores * 1 threads are 6, not 8"),
            ("4,cores=8", "make them agree"),
            ("4,sockets=1,cores=1,threads=1", "not 4"),
            ("0", "from 1 to 255"),
            ("256", "from 1 to 255"),
            ("", "from 1 to 255"),
            ("-1", "from 1 to 255"),
            ("two", "from 1 to 255"),
            ("4294967297", "from 1 to 255"),
            ("sockets=255,cores=255,threads=255,dies=255", "too many"),
            ("4,cpus=4", "twice"),
            ("4,cores", "cores=N"),
            ("4,maxcpus=8", "maxcpus"),
            ("4,clusters=2", "'clusters'"),
        ] {
            let error = text.parse::<Topology>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn apic_ids_have_a_field_for_each_level() {
        let topology: Topology = "18,sockets=2,cores=3,threads=3".parse().unwrap();
        let ids: Vec<_> = topology.apic_ids().collect();
        assert_eq!(ids, [0, 1, 2, 4, 5, 6, 8, 9, 10, 16, 17, 18, 20, 21, 22, 24, 25, 26]);
        let topology = Topology { sockets: 2, dies: 2, cores: 1, threads: 2 };
        assert_eq!(topology.apic_ids().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Topology::flat(255).apic_ids().last(), Some(254));
        for cpus in 1..=MAX_CPUS {
            for threads in (1..=cpus).filter(|t| cpus % t == 0) {
                let topology = Topology { sockets: 1, dies: 1, cores: cpus / threads, threads };
                let mut ids: Vec<_> = topology.apic_ids().collect();
                assert!(ids.is_sorted());
                ids.dedup();
                assert_eq!(ids.len(), cpus as usize);
            }
        }
    }
}
