//! What a vCPU knows of a guest of its guest, for whoever looks from outside.

/// A guest and its hypervisor as one vCPU has them: what describes the guest, and the registers of the one of the two that does not
/// execute.
#[derive(Clone, Debug)]
pub struct NestedView<State> {
    /// What describes the guest: its kind, and its guest-physical address.
    pub form: &'static str,
    /// See `form`.
    pub at: u64,
    /// The guest executes; else its hypervisor.
    pub inside: bool,
    /// Its fields: group, name, value.
    pub fields: Vec<(&'static str, String, u64)>,
    /// The registers of who does not execute, those of them that the description has.
    pub other: State,
    /// The root of the tables by which the guest's physical addresses are found; nothing where it has its hypervisor's.
    pub tables: Option<u64>,
}

/// Physical addresses of a guest's guest that follow each other, and lead to physical ones of the guest that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first of the guest's guest.
    pub inner: u64,
    /// Where that is for the guest.
    pub outer: u64,
    /// Bytes.
    pub len: u64,
}
