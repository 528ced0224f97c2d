//! sched_op: yield, block, poll, shutdown.

use satori_bus::{Nanos, PowerEvent};
use satori_defs::xen::errno::{EINVAL, ENOSYS};

use crate::hypercall::{Bytes, Caller, Outcome, Served, done};
use crate::{Domain, Vcpu};

/// Ports that one poll may name.
const POLLED: u32 = 128;

impl Domain {
    pub(crate) fn sched_op(
        &self,
        this: &mut Vcpu,
        caller: &Caller<'_>,
        [command, at, ..]: [u64; 5],
    ) -> Served {
        match command as u32 {
            0 => Ok((0, Outcome::Yield)),
            // Until an event comes: a poll of no port without an end.
            1 => {
                this.polling = Some((Vec::new(), Nanos::MAX));
                self.state().vcpus[this.index as usize].polling = true;
                Ok((0, Outcome::Sleep))
            }
            2 => {
                /// The guest goes on with all that it had, as after a checkpoint of `xl save -c`.
                const GOES_ON: i64 = 1;
                let asked: Bytes<4> = self.structure(caller, at)?;
                Ok((
                    0,
                    Outcome::Power(match asked.u32(0) {
                        0 => PowerEvent::PowerOff,
                        1 | 5 => PowerEvent::Reset("Xen's sched_op"),
                        2 => return done(GOES_ON),
                        3 => PowerEvent::Panic("Xen's sched_op"),
                        4 => PowerEvent::Panic("Xen's watchdog"),
                        _ => return Err(EINVAL),
                    }),
                ))
            }
            3 => {
                let asked: Bytes<24> = self.structure(caller, at)?;
                let (list, count, until) = (asked.u64(0), asked.u32(8), asked.u64(16));
                if count > POLLED {
                    return Err(EINVAL);
                }
                let mut bytes = vec![0; count as usize * 4];
                self.copy_in(caller, list, &mut bytes)?;
                let ports =
                    bytes.as_chunks::<4>().0.iter().map(|port| u32::from_le_bytes(*port)).collect::<Vec<_>>();
                let mut state = self.state();
                if ports.iter().any(|port| *port as usize >= state.ports.len()) {
                    return Err(EINVAL);
                }
                if self.any_pending(&state, &ports) {
                    return done(0);
                }
                state.vcpus[this.index as usize].polling = true;
                this.polling = Some((ports, if until == 0 { Nanos::MAX } else { until }));
                Ok((0, Outcome::Sleep))
            }
            _ => Err(ENOSYS),
        }
    }
}
