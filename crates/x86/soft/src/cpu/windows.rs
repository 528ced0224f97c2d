//! What makes a vCPU look around before it goes on.

/// Windows that are waited for, and whatever else asks for a look before the next block.
#[derive(Default)]
pub struct Windows {
    /// Look around before the next block.
    pub attention: bool,
    /// Somebody waits for an interrupt window: the machine, or the hypervisor above a nested guest
    /// ([`Cpu::choose_windows`](crate::cpu::Cpu::choose_windows)). Translated code looks at this.
    pub interrupt: bool,
    /// The machine asked for [`Exit::InterruptWindow`](satori_engine::Exit::InterruptWindow).
    pub(crate) machine: bool,
    /// The machine asked for [`Exit::NmiWindow`](satori_engine::Exit::NmiWindow).
    pub nmi: bool,
    /// A signal waits until VMX operation or GIF lets it in ([`Cpu::signal`](crate::cpu::Cpu::signal)).
    pub(crate) signal: bool,
    /// The lower half of the address behind the last STI that translated code executed, or 0. Such an STI keeps no interrupt
    /// shadow; a run that ends at that address gives the guest one ([`Cpu::keep_shadow`](crate::cpu::Cpu::keep_shadow)).
    pub behind_sti: u32,
    /// The partition's counter at which the run is left for a timer.
    pub(crate) until: Option<u64>,
    /// A guest read a time at which a timer is due: it comes behind the instruction that did. Translated code looks at this.
    pub due: bool,
}
