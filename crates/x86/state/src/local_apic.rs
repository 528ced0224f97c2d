//! A local APIC as its registers show it: what whoever keeps one hands to whoever keeps it next.

/// The registers of one local APIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalApic {
    /// Those of the page, each of 32 bits at a multiple of 16 bytes (SDM table 11-1).
    registers: [u32; 64],
    /// IA32_APIC_BASE.
    pub base: u64,
    /// IA32_TSC_DEADLINE; 0 without one.
    pub deadline: u64,
}

impl LocalApic {
    /// With all registers 0 but these.
    pub fn new(base: u64, deadline: u64) -> Self {
        LocalApic { registers: [0; 64], base, deadline }
    }

    /// The register at `offset` of the page; 0 beyond it.
    pub fn get(&self, offset: u16) -> u32 {
        self.registers.get(usize::from(offset >> 4)).copied().unwrap_or(0)
    }

    /// Has the register at `offset` of the page hold `value`.
    pub fn set(&mut self, offset: u16, value: u32) {
        if let Some(register) = self.registers.get_mut(usize::from(offset >> 4)) {
            *register = value;
        }
    }

    /// Eight registers from `offset` on: a bit a vector.
    pub fn vectors(&self, offset: u16) -> [u32; 8] {
        std::array::from_fn(|word| self.get(offset + 16 * word as u16))
    }
}
