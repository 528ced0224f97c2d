//! xen_version: what the hypervisor says of itself.

use satori_defs::xen::errno::{EINVAL, ENOSYS};

use crate::hypercall::{Bytes, Caller, Served, done};
use crate::{Domain, Feature, Vcpu};

/// The version that is told: interfaces of 4.17 are what is offered.
pub(crate) const MAJOR: u32 = 4;
/// Its second part.
pub(crate) const MINOR: u32 = 17;

/// Features of the first map: writable page tables, guest frames are the guest's own, and a clock that is right on each vCPU.
const ALWAYS: u32 = 1 | 1 << 2 | 1 << 9;
/// Events may come by a callback vector.
const CALLBACK_VECTOR: u32 = 1 << 8;

impl Domain {
    pub(crate) fn xen_version(
        &self,
        _: &mut Vcpu,
        caller: &Caller<'_>,
        [command, to, ..]: [u64; 5],
    ) -> Served {
        let text = |text: &str, len: usize| {
            let mut bytes = vec![0; len];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            bytes
        };
        let answer = match command as u32 {
            0 => return done(i64::from(MAJOR << 16 | MINOR)),
            1 => text(".0", 16),
            // Compiler, who, where, and when: nobody built a Xen here.
            2 => text("", 64 + 16 + 32 + 32),
            3 => text("hvm-3.0-x86_64 hvm-3.0-x86_32p hvm-3.0-x86_32", 1024),
            4 => text("unavailable", 64),
            5 => vec![0; 8],
            6 => {
                let mut asked: Bytes<8> = self.structure(caller, to)?;
                match asked.u32(0) {
                    0 if self.config.has(Feature::CallbackVector) => {
                        asked.set_u32(4, ALWAYS | CALLBACK_VECTOR)
                    }
                    0 => asked.set_u32(4, ALWAYS),
                    1 => asked.set_u32(4, 0),
                    _ => return Err(EINVAL),
                }
                asked.0.to_vec()
            }
            7 => return done(4096),
            8 => vec![0; 16],
            _ => return Err(ENOSYS),
        };
        self.copy_out(caller, to, &answer)?;
        done(0)
    }
}
