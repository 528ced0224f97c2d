//! The console: a ring of the guest's in a page, and the hypervisor's own.

use satori_defs::xen::console::{IN, IN_BYTES, IN_CONS, IN_PROD, OUT, OUT_BYTES, OUT_CONS, OUT_PROD};
use satori_defs::xen::errno::ENOSYS;
use satori_memory::{Gpa, PAGE_SIZE};

use crate::domain::{CONSOLE_GFN, State};
use crate::hypercall::{Caller, Served, done};
use crate::{Domain, Vcpu};

/// Bytes that one console_io takes.
const AT_ONCE: u64 = 1 << 16;

const fn page(offset: u64) -> Gpa {
    Gpa(CONSOLE_GFN * PAGE_SIZE + offset)
}

impl Domain {
    pub(crate) fn console_io(
        &self,
        _: &mut Vcpu,
        caller: &Caller<'_>,
        [command, count, at, ..]: [u64; 5],
    ) -> Served {
        match command as u32 {
            0 => {
                let mut bytes = vec![0; (count & 0xffff_ffff).min(AT_ONCE) as usize];
                self.copy_in(caller, at, &mut bytes)?;
                self.host.console(&bytes);
                done(0)
            }
            // Nobody types there: what is typed comes by the ring.
            1 => done(0),
            _ => Err(ENOSYS),
        }
    }

    /// Takes what the guest has put into the ring. Indices run freely; what a guest claims beyond the ring's size is nothing.
    pub(crate) fn serve_console(&self, state: &mut State) {
        let index = |at| self.memory.load_u32(page(at)).unwrap_or(0);
        let (taken, given) = (index(OUT_CONS), index(OUT_PROD));
        let waiting = given.wrapping_sub(taken);
        if waiting == 0 || waiting > OUT_BYTES {
            // It may have made room for what is typed.
            self.host.console(&[]);
            return;
        }
        let mut ring = vec![0; OUT_BYTES as usize];
        if self.memory.read(page(OUT), &mut ring).is_err() {
            return;
        }
        let bytes: Vec<u8> =
            (0..waiting).map(|at| ring[(taken.wrapping_add(at) % OUT_BYTES) as usize]).collect();
        self.host.console(&bytes);
        // The page is part of the machine for good.
        let _ = self.memory.store_u32(page(OUT_CONS), given);
        let port = state.console_port;
        self.raise(state, port, None);
    }

    /// Gives the guest what was typed, as far as there is room; returns how much it took. A guest that has not written to its
    /// console does not listen there.
    pub fn offer(&self, bytes: &[u8]) -> usize {
        let mut state = self.state();
        let index = |at| self.memory.load_u32(page(at)).unwrap_or(0);
        let (taken, given) = (index(IN_CONS), index(IN_PROD));
        let room = IN_BYTES.saturating_sub(given.wrapping_sub(taken)) as usize;
        let few = &bytes[..bytes.len().min(room)];
        for (at, byte) in (0u32..).zip(few) {
            let place = given.wrapping_add(at) % IN_BYTES;
            // The page is part of the machine for good.
            let _ = self.memory.write(page(IN + u64::from(place)), &[*byte]);
        }
        if !few.is_empty() {
            let _ = self.memory.store_u32(page(IN_PROD), given.wrapping_add(few.len() as u32));
            let port = state.console_port;
            self.raise(&mut state, port, None);
        }
        few.len()
    }

    /// Whether the guest uses the ring.
    pub fn has_console(&self) -> bool {
        self.memory.load_u32(page(OUT_PROD)).is_ok_and(|given| given != 0)
    }
}
