//! Interrupt messages: what an MSI or an IPI puts on the way to the local APICs.

use satori_bus::Msi;
use satori_defs::apic::DEFAULT_BASE;

/// How a message is delivered (SDM Vol. 3A 12.11.2, 12.6.1): the delivery mode field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// 000: the vector, to every destination.
    Fixed,
    /// 001: the vector, to one of the destinations.
    LowestPriority,
    /// 010: a system management interrupt.
    Smi,
    /// 100: a non-maskable interrupt; the vector is ignored.
    Nmi,
    /// 101: INIT.
    Init,
    /// 110: start-up, only as an IPI; the vector is the page.
    StartUp,
    /// 111: the vector comes from the PIC.
    ExtInt,
}

impl DeliveryMode {
    /// The mode of the three-bit field; `None` for the reserved 011.
    pub fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits & 7 {
            0 => DeliveryMode::Fixed,
            1 => DeliveryMode::LowestPriority,
            2 => DeliveryMode::Smi,
            4 => DeliveryMode::Nmi,
            5 => DeliveryMode::Init,
            6 => DeliveryMode::StartUp,
            7 => DeliveryMode::ExtInt,
            _ => return None,
        })
    }

    fn bits(self) -> u32 {
        match self {
            DeliveryMode::Fixed => 0,
            DeliveryMode::LowestPriority => 1,
            DeliveryMode::Smi => 2,
            DeliveryMode::Nmi => 4,
            DeliveryMode::Init => 5,
            DeliveryMode::StartUp => 6,
            DeliveryMode::ExtInt => 7,
        }
    }
}

/// One interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptMessage {
    /// The message destination address (MDA): an APIC ID, or a logical set of them.
    pub destination: u32,
    /// Destination mode: `destination` is a logical set.
    pub logical: bool,
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The vector.
    pub vector: u8,
    /// Level-triggered: the local APIC sets the vector's TMR bit and broadcasts its EOI.
    pub level: bool,
}

impl InterruptMessage {
    /// Decodes a message signalled interrupt (SDM Vol. 3A 12.11). `None` if `address` is outside
    /// 0xFEEx_xxxx or the delivery mode is reserved.
    ///
    /// Address bits 11:5 carry destination ID bits 14:8, the extended destination ID that KVM and
    /// Hyper-V guests know; they are zero in guests that do not.
    pub fn from_msi(Msi { address, data }: Msi) -> Option<Self> {
        if address >> 20 != DEFAULT_BASE >> 20 {
            return None;
        }
        let address = address as u32;
        Some(InterruptMessage {
            destination: (address >> 12 & 0xff) | (address >> 5 & 0x7f) << 8,
            logical: address & 1 << 2 != 0,
            mode: DeliveryMode::from_bits((data >> 8) as u8)?,
            vector: data as u8,
            level: data & 1 << 15 != 0,
        })
    }

    /// The write that [`InterruptMessage::from_msi`] takes for this message; bits of the destination beyond 15 have no place.
    pub(crate) fn to_msi(self) -> Msi {
        let logical = if self.logical { 1 << 2 } else { 0 };
        let destination = (self.destination & 0xff) << 12 | (self.destination >> 8 & 0x7f) << 5;
        let level = if self.level { 1 << 15 | 1 << 14 } else { 0 };
        Msi {
            address: DEFAULT_BASE | u64::from(destination | logical),
            data: u32::from(self.vector) | self.mode.bits() << 8 | level,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msi_fields_are_where_the_manual_has_them() {
        let of = |address, data| InterruptMessage::from_msi(Msi { address, data });
        let message = of(0xfee0_300c, 0xc141).unwrap();
        let expected = InterruptMessage {
            destination: 3,
            logical: true,
            mode: DeliveryMode::LowestPriority,
            vector: 0x41,
            level: true,
        };
        assert_eq!(message, expected);
        assert_eq!(expected.to_msi(), Msi { address: 0xfee0_3004, data: 0xc141 });
        let far = InterruptMessage { destination: 0x101, logical: false, mode: DeliveryMode::Nmi, ..message };
        assert_eq!(InterruptMessage::from_msi(far.to_msi()), Some(far));
        assert_eq!(of(0xfee0_1020, 0x30).map(|m| m.destination), Some(0x101));
        assert_eq!(of(0xfee0_0000, 0x0300), None);
        assert_eq!(of(0x1_fee0_0000, 0x30), None);
    }
}
