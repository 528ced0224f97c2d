//! Messages to local APICs that KVM keeps.
//!
//! A message is one call (KVM_SIGNAL_MSI), from whichever thread, and no vCPU comes out for it. That the guest ended a level-triggered
//! interrupt KVM tells of if the message is among its routes (Linux arch/x86/kvm/irq_comm.c, `kvm_scan_ioapic_routes`), which it takes
//! for those of an I/O APIC's pins: so each such message becomes one before it is sent first.

use std::io;
use std::sync::{Arc, Mutex};

use kvm_bindings::{
    KVM_IRQ_ROUTING_MSI, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_msi, kvm_irq_routing_msi__bindgen_ty_1, kvm_msi,
};
use kvm_ioctls::VmFd;
use satori_bus::{Msi, MsiSink};
use satori_defs::apic::DEFAULT_BASE;
use satori_lock::lock;

/// How many level-triggered messages KVM knows; the one that was sent longest ago makes room. An I/O APIC has 24 pins.
pub(crate) const LEVELS: usize = 256;
/// Bit of a message's data: level-triggered.
const LEVEL: u32 = 1 << 15;

/// Where messages of a VM go.
#[derive(Debug)]
pub(crate) struct Routes {
    vm: Arc<VmFd>,
    /// Level-triggered ones that KVM knows, in the order of their last sending.
    levels: Mutex<Levels>,
}

impl Routes {
    pub(crate) fn new(vm: Arc<VmFd>) -> Self {
        Routes { vm, levels: Mutex::default() }
    }

    /// Has KVM tell of the end of `msi`'s interrupt.
    pub(crate) fn watch(&self, msi: Msi) -> io::Result<()> {
        let mut levels = lock(&self.levels);
        if !levels.touch(msi) {
            return Ok(());
        }
        let entries: Vec<_> = (0..).zip(&levels.0).map(|(gsi, msi)| entry(gsi, *msi)).collect();
        let table =
            KvmIrqRouting::from_entries(&entries).map_err(|why| io::Error::other(format!("{why:?}")))?;
        Ok(self.vm.set_gsi_routing(&table)?)
    }

    fn send(&self, msi: Msi) -> io::Result<()> {
        if msi.data & LEVEL != 0 {
            self.watch(msi)?;
        }
        let [low, high] = halves(msi);
        self.vm.signal_msi(kvm_msi {
            address_lo: low,
            address_hi: high,
            data: msi.data,
            ..Default::default()
        })?;
        Ok(())
    }
}

impl MsiSink for Routes {
    fn signal(&self, msi: Msi) {
        if msi.address >> 20 != DEFAULT_BASE >> 20 {
            return;
        }
        // One that nobody accepts is lost, as on hardware; what else fails shows as an interrupt that does not come.
        if let Err(why) = self.send(msi) {
            tracing::debug!("an interrupt message ({:#x}, {:#x}) is lost: {why}", msi.address, msi.data);
        }
    }
}

/// Level-triggered messages that KVM knows.
#[derive(Debug, Default)]
struct Levels(Vec<Msi>);

impl Levels {
    /// Notes that `msi` is sent; whether KVM does not know it.
    fn touch(&mut self, msi: Msi) -> bool {
        if self.0.last() == Some(&msi) {
            return false;
        }
        if let Some(at) = self.0.iter().position(|known| *known == msi) {
            // The table that KVM has keeps its order.
            let known = self.0.remove(at);
            self.0.push(known);
            return false;
        }
        if self.0.len() == LEVELS {
            self.0.remove(0);
        }
        self.0.push(msi);
        true
    }
}

/// The address as KVM takes it: bits 14:8 of a destination, which the guest has in bits 11:5, are in its high half
/// (KVM_X2APIC_API_USE_32BIT_IDS).
fn halves(msi: Msi) -> [u32; 2] {
    let low = msi.address as u32;
    [low & !0xfe0, (low >> 5 & 0x7f) << 8]
}

fn entry(gsi: u32, msi: Msi) -> kvm_irq_routing_entry {
    let [address_lo, address_hi] = halves(msi);
    let __bindgen_anon_1 = kvm_irq_routing_msi__bindgen_ty_1::default();
    let msi = kvm_irq_routing_msi { address_lo, address_hi, data: msi.data, __bindgen_anon_1 };
    let u = kvm_irq_routing_entry__bindgen_ty_1 { msi };
    kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_MSI, u, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(vector: u32) -> Msi {
        Msi { address: DEFAULT_BASE, data: LEVEL | vector }
    }

    #[test]
    fn a_message_is_told_of_once_and_the_oldest_makes_room() {
        let mut levels = Levels::default();
        assert!((0..LEVELS as u32).all(|vector| levels.touch(level(vector))));
        assert!(!levels.touch(level(0)) && !levels.touch(level(0)), "it is known, and now the latest");
        assert!(levels.touch(level(1000)));
        assert!(!levels.touch(level(0)) && levels.touch(level(1)), "1 was the oldest");
        assert_eq!(levels.0.len(), LEVELS);
    }

    #[test]
    fn a_far_destination_goes_into_the_high_half() {
        assert_eq!(halves(Msi { address: 0xfee0_1020, data: 0 }), [0xfee0_1000, 0x100]);
        assert_eq!(halves(Msi { address: 0xfeef_f00c, data: 0 }), [0xfeef_f00c, 0]);
    }
}
