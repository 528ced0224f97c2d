//! Event channels: what a port is bound to, and how it becomes pending by the two-level ABI; [`crate::fifo`] has the other.

use satori_defs::xen::errno::{EEXIST, EINVAL, ENOSPC, ENOSYS, ESRCH};
use satori_defs::xen::{DOMID_SELF, fifo, shared_info, virq};
use satori_memory::{Gpa, GuestMemory};
use serde::{Deserialize, Serialize};

use crate::domain::{State, VcpuShared};
use crate::hypercall::{Bytes, Caller, Served, done};
use crate::leaves::DOMID;
use crate::{Domain, Vcpu};

/// Ports that the two-level ABI has.
pub(crate) const PORTS: u32 = 4096;

/// What a port is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Port {
    /// Nothing.
    Free,
    /// It waits for a domain's bind.
    Unbound { remote: u16, vcpu: u32 },
    /// Another port of this domain.
    Loop { port: u32, vcpu: u32 },
    /// The host's end of the console.
    Console { vcpu: u32 },
    /// The host's end of the store.
    Store { vcpu: u32 },
    /// A back end of the host's.
    Back { back: u32, vcpu: u32 },
    /// A virtual interrupt.
    Virq { virq: u32, vcpu: u32 },
    /// An interrupt from one vCPU to another.
    Ipi { vcpu: u32 },
}

impl Port {
    pub(crate) fn host_console() -> Self {
        Port::Console { vcpu: 0 }
    }

    pub(crate) fn vcpu(&self) -> Option<u32> {
        match *self {
            Port::Free => None,
            Port::Unbound { vcpu, .. }
            | Port::Loop { vcpu, .. }
            | Port::Console { vcpu }
            | Port::Store { vcpu }
            | Port::Back { vcpu, .. }
            | Port::Virq { vcpu, .. }
            | Port::Ipi { vcpu } => Some(vcpu),
        }
    }
}

/// Virtual interrupts that belong to one vCPU and stay there.
fn per_vcpu(virq: u32) -> bool {
    matches!(virq, virq::TIMER | virq::DEBUG | virq::PMU)
}

fn ours(domain: u16) -> Result<(), i64> {
    if matches!(domain, DOMID_SELF | DOMID) { Ok(()) } else { Err(ESRCH) }
}

impl State {
    pub(crate) fn port(&self, port: u32) -> Result<&Port, i64> {
        let bound = self.ports.get(port as usize).filter(|_| port != 0).ok_or(EINVAL)?;
        if *bound == Port::Free { Err(EINVAL) } else { Ok(bound) }
    }

    /// Binds the first free port.
    fn bind(&mut self, memory: &GuestMemory, what: Port) -> Result<u32, i64> {
        let linked = |at: usize| self.fifo.as_ref().is_some_and(|fifo| fifo.linked(memory, at as u32));
        let free = |(at, port): &(usize, &Port)| **port == Port::Free && !linked(*at);
        let at = self.ports.iter().enumerate().skip(1).find(free).map_or(self.ports.len(), |(at, _)| at);
        if at as u32 >= if self.fifo.is_some() { fifo::PORTS } else { PORTS } {
            return Err(ENOSPC);
        }
        match self.ports.get_mut(at) {
            Some(place) => *place = what,
            None => self.ports.push(what),
        }
        Ok(at as u32)
    }

    pub(crate) fn vcpu_exists(&self, vcpu: u32) -> Result<(), i64> {
        if (vcpu as usize) < self.vcpus.len() { Ok(()) } else { Err(satori_defs::xen::errno::ENOENT) }
    }
}

impl Domain {
    /// Makes `port` pending, and interrupts its vCPU if that has to look; `own` is the vCPU whose thread asks, if one does.
    pub(crate) fn raise(&self, state: &mut State, port: u32, own: Option<u32>) {
        let Some(vcpu) = state.ports.get(port as usize).and_then(Port::vcpu) else { return };
        if let Some(fifo) = &mut state.fifo {
            let ready = fifo.raise(&self.memory, vcpu, port);
            self.wake_polls(state);
            if ready {
                self.upcall(state, vcpu, own);
            }
            return;
        }
        let Some(page) = state.shared_info.filter(|_| port < PORTS) else { return };
        let (word, bit) = (u64::from(port / 32) * 4, 1 << (port % 32));
        let before = self.memory.fetch_or_u32(Gpa(page + shared_info::EVTCHN_PENDING + word), bit);
        self.wake_polls(state);
        let masked = self.memory.load_u32(Gpa(page + shared_info::EVTCHN_MASK + word));
        if before.is_ok_and(|before| before & bit == 0) && masked.is_ok_and(|masked| masked & bit == 0) {
            self.select(state, vcpu, port, own);
        }
    }

    /// Who polls a port waits for its pending bit, masked or not.
    fn wake_polls(&self, state: &State) {
        let polling = |(at, one): (usize, &VcpuShared)| one.polling.then_some(at as u32);
        state.vcpus.iter().enumerate().filter_map(polling).for_each(|vcpu| self.host.wake(vcpu));
    }

    /// Sets the selector's bit of `port`, and what follows from that.
    fn select(&self, state: &State, vcpu: u32, port: u32, own: Option<u32>) {
        let Some(info) = state.vcpu_info(vcpu) else { return };
        let selected = port / 64;
        let word = Gpa(info.0 + shared_info::PENDING_SEL + u64::from(selected / 32) * 4);
        let bit = 1 << (selected % 32);
        if self.memory.fetch_or_u32(word, bit).is_ok_and(|before| before & bit == 0) {
            self.upcall(state, vcpu, own);
        }
    }

    /// Tells `vcpu` to look at its selector.
    pub(crate) fn upcall(&self, state: &State, vcpu: u32, own: Option<u32>) {
        let Some(info) = state.vcpu_info(vcpu) else { return };
        let before = self.memory.fetch_or_u32(Gpa(info.0 + shared_info::UPCALL_PENDING), 1);
        if before.is_ok_and(|before| before & 0xff == 0) {
            self.interrupt(state, vcpu, own);
        }
    }

    /// Raises `virq` where it is bound: at `vcpu`, if it belongs to one.
    pub(crate) fn raise_virq(&self, state: &mut State, virq: u32, vcpu: u32, own: Option<u32>) {
        let bound = |port: &Port| matches!(*port, Port::Virq { virq: v, vcpu: at } if v == virq && (at == vcpu || !per_vcpu(v)));
        if let Some(port) = state.ports.iter().position(bound) {
            self.raise(state, port as u32, own);
        }
    }

    /// Whether one of `ports` is pending.
    pub(crate) fn any_pending(&self, state: &State, ports: &[u32]) -> bool {
        ports.iter().any(|port| match &state.fifo {
            Some(fifo) => fifo.pending(&self.memory, *port),
            None => self.pending_bit(state, *port),
        })
    }

    /// The commands that bind a port and tell its number.
    fn bind(&self, this: &Vcpu, caller: &Caller<'_>, command: u64, at: u64) -> Served {
        let mut state = self.state();
        let answer = |port: u32, offset: u64| {
            self.copy_out(caller, at.wrapping_add(offset), &port.to_le_bytes())?;
            done(0)
        };
        match command as u32 {
            0 => {
                let asked: Bytes<12> = self.structure(caller, at)?;
                let (domain, remote) = (asked.u16(0), asked.u32(4));
                ours(domain)?;
                let Port::Unbound { remote: whose, vcpu } = *state.port(remote)? else { return Err(EINVAL) };
                // One that waits for a back end is not for the domain itself.
                ours(whose).map_err(|_| EINVAL)?;
                let port = state.bind(&self.memory, Port::Loop { port: remote, vcpu: 0 })?;
                state.ports[remote as usize] = Port::Loop { port, vcpu };
                // What was sent before is not lost.
                self.raise(&mut state, port, Some(this.index));
                answer(port, 8)
            }
            1 => {
                let asked: Bytes<12> = self.structure(caller, at)?;
                let (virq, vcpu) = (asked.u32(0), asked.u32(4));
                state.vcpu_exists(vcpu)?;
                if virq >= virq::COUNT || !per_vcpu(virq) && vcpu != 0 {
                    return Err(EINVAL);
                }
                let what = Port::Virq { virq, vcpu };
                if state.ports.contains(&what) {
                    return Err(EEXIST);
                }
                let port = state.bind(&self.memory, what)?;
                answer(port, 8)
            }
            6 => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                ours(asked.u16(0))?;
                let port = state.bind(&self.memory, Port::Unbound { remote: asked.u16(2), vcpu: 0 })?;
                answer(port, 4)
            }
            7 => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                state.vcpu_exists(asked.u32(0))?;
                let port = state.bind(&self.memory, Port::Ipi { vcpu: asked.u32(0) })?;
                answer(port, 4)
            }
            _ => Err(ENOSYS),
        }
    }

    pub(crate) fn event_channel_op(
        &self,
        this: &mut Vcpu,
        caller: &Caller<'_>,
        [command, at, ..]: [u64; 5],
    ) -> Served {
        match command as u32 {
            0 | 1 | 6 | 7 => return self.bind(this, caller, command, at),
            11..=13 => return self.fifo_op(this, caller, command, at),
            _ => {}
        }
        let own = Some(this.index);
        let mut state = self.state();
        match command as u32 {
            3 => {
                let asked: Bytes<4> = self.structure(caller, at)?;
                self.close(&mut state, asked.u32(0))?;
                done(0)
            }
            4 => {
                let asked: Bytes<4> = self.structure(caller, at)?;
                let port = asked.u32(0);
                match *state.port(port)? {
                    Port::Loop { port: other, .. } => self.raise(&mut state, other, own),
                    Port::Ipi { .. } => self.raise(&mut state, port, own),
                    Port::Console { .. } => self.serve_console(&mut state),
                    Port::Store { .. } => {
                        drop(state);
                        self.serve_store(own);
                    }
                    Port::Back { back, .. } => {
                        drop(state);
                        self.back_ends.get().iter().for_each(|back_ends| back_ends.notified(back));
                    }
                    Port::Unbound { .. } => {}
                    Port::Virq { .. } | Port::Free => return Err(EINVAL),
                }
                done(0)
            }
            5 => {
                let mut asked: Bytes<24> = self.structure(caller, at)?;
                ours(asked.u16(0))?;
                let bound = state.ports.get(asked.u32(4) as usize).ok_or(EINVAL)?;
                let (kind, first, second) = match *bound {
                    Port::Free => (0, 0, 0),
                    Port::Unbound { remote, .. } => (1, u32::from(remote), 0),
                    Port::Loop { port, .. } => (2, DOMID.into(), port),
                    Port::Console { .. } | Port::Store { .. } | Port::Back { .. } => (2, 0, 0),
                    Port::Virq { virq, .. } => (4, virq, 0),
                    Port::Ipi { .. } => (5, 0, 0),
                };
                asked.set_u32(8, kind);
                asked.set_u32(12, bound.vcpu().unwrap_or(0));
                asked.set_u32(16, first);
                asked.set_u32(20, second);
                self.copy_out(caller, at, &asked.0)?;
                done(0)
            }
            8 => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                let (port, to) = (asked.u32(0), asked.u32(4));
                state.vcpu_exists(to)?;
                state.port(port)?;
                match &mut state.ports[port as usize] {
                    Port::Virq { virq, .. } if per_vcpu(*virq) => return Err(EINVAL),
                    Port::Ipi { .. } | Port::Free => return Err(EINVAL),
                    Port::Unbound { vcpu, .. }
                    | Port::Loop { vcpu, .. }
                    | Port::Console { vcpu }
                    | Port::Store { vcpu }
                    | Port::Back { vcpu, .. }
                    | Port::Virq { vcpu, .. } => *vcpu = to,
                }
                done(0)
            }
            9 => {
                let asked: Bytes<4> = self.structure(caller, at)?;
                self.unmask(&mut state, asked.u32(0), own)?;
                done(0)
            }
            10 => {
                let asked: Bytes<2> = self.structure(caller, at)?;
                ours(asked.u16(0))?;
                for port in 1..state.ports.len() as u32 {
                    if !matches!(
                        state.ports[port as usize],
                        Port::Console { .. } | Port::Store { .. } | Port::Free
                    ) {
                        self.close(&mut state, port)?;
                    }
                }
                state.fifo = None;
                state.ports.truncate(PORTS as usize);
                done(0)
            }
            // bind_pirq and what else there is.
            _ => Err(ENOSYS),
        }
    }

    /// Binds back end `back` to `port`, which the guest made for it; false if it did not.
    pub fn bind_back(&self, port: u32, back: u32) -> bool {
        let mut state = self.state();
        let Some(place) = state.ports.get_mut(port as usize) else { return false };
        let Port::Unbound { remote: 0, vcpu } = *place else { return false };
        *place = Port::Back { back, vcpu };
        true
    }

    /// Back end `back` leaves `port`, if it still is there.
    pub fn leave_back(&self, port: u32, back: u32) {
        let mut state = self.state();
        if let Some(place) = state.ports.get_mut(port as usize)
            && let Port::Back { back: at, vcpu } = *place
            && at == back
        {
            *place = Port::Unbound { remote: 0, vcpu };
        }
    }

    /// Back end `back` notifies the guest by `port`; of a port that it no longer is at nothing comes.
    pub fn notify(&self, port: u32, back: u32) {
        let mut state = self.state();
        if matches!(state.ports.get(port as usize), Some(Port::Back { back: at, .. }) if *at == back) {
            self.raise(&mut state, port, None);
        }
    }

    fn close(&self, state: &mut State, port: u32) -> Result<(), i64> {
        if let Port::Loop { port: other, .. } = *state.port(port)? {
            let vcpu = state.ports[other as usize].vcpu().unwrap_or(0);
            state.ports[other as usize] = Port::Unbound { remote: DOMID, vcpu };
        }
        state.ports[port as usize] = Port::Free;
        if let Some(fifo) = &mut state.fifo {
            fifo.clear(&self.memory, port);
        } else if let Some(page) = state.shared_info {
            let word = Gpa(page + shared_info::EVTCHN_PENDING + u64::from(port / 32) * 4);
            // The page was in memory when it was mapped, and memory does not shrink.
            let _ = self.memory.fetch_clear_u32(word, 1 << (port % 32));
        }
        Ok(())
    }

    fn unmask(&self, state: &mut State, port: u32, own: Option<u32>) -> Result<(), i64> {
        let vcpu = state.port(port)?.vcpu().unwrap_or(0);
        if let Some(fifo) = &state.fifo {
            if fifo.unmask(&self.memory, port) {
                self.raise(state, port, own);
            }
            return Ok(());
        }
        let Some(page) = state.shared_info else { return Ok(()) };
        let (word, bit) = (u64::from(port / 32) * 4, 1 << (port % 32));
        let before = self.memory.fetch_clear_u32(Gpa(page + shared_info::EVTCHN_MASK + word), bit);
        let pending = self.memory.load_u32(Gpa(page + shared_info::EVTCHN_PENDING + word));
        if before.is_ok_and(|before| before & bit != 0) && pending.is_ok_and(|pending| pending & bit != 0) {
            self.select(state, vcpu, port, own);
        }
        Ok(())
    }
}
