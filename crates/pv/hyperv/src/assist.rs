//! The EOI assist: an interrupt is ended without an exit (TLFS 10.3.3).
//!
//! Before a virtual processor executes, the host may set "no EOI required" in its VP assist page:
//! if only one interrupt is in service, it is an edge, and nothing else waits. The guest then
//! clears the bit instead of writing the EOI register. When the processor comes out, for whatever
//! reason, the bit is taken back, and if the guest had cleared it, the interrupt is ended. An
//! interrupt that is requested meanwhile brings the processor out, so that an EOI that would
//! have let a lower one through is not missed for longer than that.

use satori_defs::hyperv::{NO_EOI_REQUIRED, PAGE_ENABLE};
use satori_memory::Gpa;

use crate::{Enlightenment, Partition, Vp};

impl Vp {
    /// Whether it has a page in which an EOI can be spared.
    pub fn spares_eoi(&self) -> bool {
        self.assist & PAGE_ENABLE != 0
    }

    /// Where its VP assist page is, while that is enabled.
    pub fn assist(&self) -> Option<u64> {
        (self.assist & PAGE_ENABLE != 0).then(|| self.assist_page().0)
    }

    fn assist_page(&self) -> Gpa {
        Gpa(self.assist).page()
    }
}

impl Partition {
    /// Tells the guest that the EOI of the interrupt in service is not required, unless a message
    /// may wait for it.
    pub fn spare_eoi(&self, vp: &mut Vp) {
        if self.messages_wait(vp.index()) {
            return;
        }
        let told = self.memory.fetch_or_u32(vp.assist_page(), NO_EOI_REQUIRED);
        // The page was in memory when it was enabled, and memory does not shrink.
        vp.eoi_spared = told.is_ok();
    }

    /// Takes that back; returns whether the guest has ended the interrupt.
    pub fn take_spared_eoi(&self, vp: &mut Vp) -> bool {
        if !std::mem::take(&mut vp.eoi_spared) {
            return false;
        }
        let before = self.memory.fetch_clear_u32(vp.assist_page(), NO_EOI_REQUIRED);
        let ended = before.is_ok_and(|before| before & NO_EOI_REQUIRED == 0);
        if ended {
            self.used(Enlightenment::Vapic);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::msr::tests::partition;
    use satori_defs::hyperv::msr;

    #[test]
    fn the_guest_ends_an_interrupt_by_clearing_the_bit() {
        let (partition, _, memory) = partition("vapic");
        let vp = &mut Vp::new(0);
        assert!(!vp.spares_eoi() && !partition.take_spared_eoi(vp));
        assert_eq!(partition.msr_write(vp, msr::VP_ASSIST_PAGE, 0x7001), Ok(Outcome::Done));
        assert!(vp.spares_eoi());
        memory.write(Gpa(0x7000), &[0xf0]).unwrap();
        partition.spare_eoi(vp);
        assert_eq!(memory.read_u32(Gpa(0x7000)).unwrap(), 0xf1);
        assert!(!partition.take_spared_eoi(vp), "not ended");
        assert_eq!(memory.read_u32(Gpa(0x7000)).unwrap(), 0xf0, "the bit is taken back");
        partition.spare_eoi(vp);
        memory.write(Gpa(0x7000), &[0]).unwrap();
        assert!(partition.take_spared_eoi(vp));
        assert!(!partition.take_spared_eoi(vp), "once");
        let used = partition.usage();
        assert!(used.iter().any(|used| used.name == Enlightenment::Vapic.name() && used.count == 2));
    }
}
