//! hvm_op: parameters, and vectors for events.

use satori_defs::xen::errno::{EINVAL, ENOENT, ENOSYS, EPERM, ESRCH};
use satori_defs::xen::{DOMID_SELF, param};

use crate::domain::{CONSOLE_GFN, STORE_GFN};
use crate::hypercall::{Bytes, Caller, Served, done};
use crate::leaves::DOMID;
use crate::{Domain, Feature, Vcpu};

impl Domain {
    pub(crate) fn hvm_op(&self, this: &mut Vcpu, caller: &Caller<'_>, [command, at, ..]: [u64; 5]) -> Served {
        let ours = |domain: u16| if matches!(domain, DOMID_SELF | DOMID) { Ok(()) } else { Err(ESRCH) };
        match command as u32 {
            0 => {
                let asked: Bytes<16> = self.structure(caller, at)?;
                ours(asked.u16(0))?;
                match (asked.u32(4), asked.u64(8)) {
                    (param::CALLBACK_IRQ, value) => {
                        self.set_callback(&mut self.state(), value, this.index);
                    }
                    (param::VIRIDIAN, _) => return Err(ENOSYS),
                    _ => return Err(EPERM),
                }
                done(0)
            }
            1 => {
                let mut asked: Bytes<16> = self.structure(caller, at)?;
                ours(asked.u16(0))?;
                let value = match asked.u32(4) {
                    param::CALLBACK_IRQ => self.state().callback,
                    param::CONSOLE_PFN => CONSOLE_GFN,
                    param::CONSOLE_EVTCHN => self.state().console_port.into(),
                    param::STORE_PFN => STORE_GFN,
                    param::STORE_EVTCHN => self.state().store_port.into(),
                    param::VIRIDIAN => return Err(ENOSYS),
                    _ => return Err(EPERM),
                };
                asked.set_u64(8, value);
                self.copy_out(caller, at, &asked.0)?;
                done(0)
            }
            23 if self.config.has(Feature::UpcallVector) => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                let (vcpu, vector) = (asked.u32(0), asked.0[4]);
                if vector < 0x10 {
                    return Err(EINVAL);
                }
                let mut state = self.state();
                state.vcpus.get_mut(vcpu as usize).ok_or(ENOENT)?.vector = vector;
                // The line does not tell of its events any more.
                self.drive(&state);
                self.interrupt_late(&state, vcpu, Some(this.index));
                done(0)
            }
            _ => Err(ENOSYS),
        }
    }
}
