//! A table of symbols, and what is at an address.

use std::fmt;

/// Where Linux has modules on x86-64 (Documentation/arch/x86/x86_64/mm.rst).
const MODULES: std::ops::Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;
/// The lowest address that a kernel may have there.
const KERNEL: u64 = 0xffff_8000_0000_0000;
/// Further behind the last function than this is nothing of it.
const LONGEST: u64 = 1 << 20;

/// Functions of a guest's kernel, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Sorted; of one address the first that was told.
    rows: Vec<(u64, u32, u16)>,
    names: String,
    origin: String,
    /// Where the kernel's text ends, if that was told.
    end: Option<u64>,
}

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A function, and the distance from its begin.
    Function(&'a str, u64),
    /// A module, whose functions the kernel's own table does not have.
    Module,
    /// The kernel's half of the address space, and nothing known.
    Kernel,
    /// A program, or what runs before the kernel is mapped.
    Low,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Function(name, offset) => write!(f, "{name}+{offset:#x}"),
            Place::Module => f.write_str("[module]"),
            Place::Kernel => f.write_str("[kernel]"),
            Place::Low => f.write_str("[user]"),
        }
    }
}

/// Characters of a name that are kept: what is longer is not Linux's (KSYM_NAME_LEN is 512).
const NAME: usize = 512;

impl Symbols {
    /// A table of `(address, type, name)`, which need not be sorted; data is left out.
    pub(crate) fn new<N: AsRef<str>>(
        symbols: impl IntoIterator<Item = (u64, char, N)>,
        origin: impl Into<String>,
    ) -> Self {
        let mut table = Symbols { origin: origin.into(), ..Symbols::default() };
        for (address, kind, name) in symbols {
            let name = name.as_ref();
            if name == "_etext" {
                table.end = Some(address);
            }
            // 't', 'T', and weak functions; absolute ones are offsets in per-CPU data.
            if !matches!(kind, 't' | 'T' | 'w' | 'W' | 'i') || name.is_empty() || name.len() > NAME {
                continue;
            }
            let Ok(at) = u32::try_from(table.names.len()) else { break };
            // A guest's text: what could command a terminal is not kept.
            table.names.extend(name.chars().map(|c| if c.is_ascii_graphic() { c } else { '.' }));
            table.rows.push((address, at, (table.names.len() - at as usize) as u16));
        }
        table.rows.sort_by_key(|row| row.0);
        table.rows.dedup_by_key(|row| row.0);
        table
    }

    /// Where they come from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is at `address`.
    pub fn resolve(&self, address: u64) -> Place<'_> {
        let after = self.rows.partition_point(|row| row.0 <= address);
        let found = after.checked_sub(1).and_then(|at| self.rows.get(at));
        let ends = match (self.rows.get(after), self.end) {
            (None, Some(end)) => end,
            _ => u64::MAX,
        };
        match found {
            Some(&(begin, at, len)) if address - begin < LONGEST && address < ends => {
                let at = at as usize;
                let name = self.names.get(at..at + usize::from(len)).unwrap_or_default();
                Place::Function(name, address - begin)
            }
            _ if MODULES.contains(&address) => Place::Module,
            _ if address >= KERNEL => Place::Kernel,
            _ => Place::Low,
        }
    }
}
