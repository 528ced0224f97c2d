//! Hyper-V's interface by itself: hypercalls, MSRs, messages and timers, from several processors of a
//! partition whose memory is small, so that pages cover each other and blocks meet its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arbitrary::{Result, Unstructured};
use satori_bus::{Clock, Nanos};
use satori_defs::hyperv::msr;
use satori_defs::x86::{cr0, efer};
use satori_hyperv::{Config, Hypercall, Input, Interrupts, Message, Partition, Vp};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::{CpuState, Segment, reg, seg};

/// The guest's memory: eight pages.
const MEMORY: u64 = 0x8000;
const PROCESSORS: u32 = 4;
/// More takes longer than it teaches.
const STEPS_MAX: usize = 200;

/// Time that goes on when it is told to.
struct Still(AtomicU64);

impl Clock for Still {
    fn now(&self) -> Nanos {
        self.counter() / 2
    }
    fn counter(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn counter_hz(&self) -> u64 {
        2_000_000_000
    }
    fn epoch(&self) -> u64 {
        0
    }
}

/// Local APICs that keep what is requested until it is taken.
#[derive(Default)]
struct Apics(Mutex<Vec<(u32, u8)>>);

impl Apics {
    fn requests(&self) -> std::sync::MutexGuard<'_, Vec<(u32, u8)>> {
        self.0.lock().expect("no panic")
    }
}

impl Interrupts for Apics {
    fn request(&self, vp: u32, vector: u8, _own: bool) {
        assert!(vp < PROCESSORS && vector >= 16, "vector {vector} for processor {vp}");
        let mut requests = self.requests();
        if !requests.contains(&(vp, vector)) {
            requests.push((vp, vector));
        }
    }
    fn requested(&self, vp: u32, vector: u8) -> bool {
        self.requests().contains(&(vp, vector))
    }
    fn set_auto_eoi(&self, vp: u32, _vectors: [u32; 8]) {
        assert!(vp < PROCESSORS);
    }
}

struct Rig {
    partition: Partition,
    clock: Arc<Still>,
    memory: GuestMemory,
    apics: Arc<Apics>,
    vps: Vec<Vp>,
}

/// A number that is often one that matters: small, near a page's or the memory's end, or with few bits.
fn number(u: &mut Unstructured) -> Result<u64> {
    Ok(match u.int_in_range(0..=6u8)? {
        0 => u.int_in_range(0..=31)?,
        1 => u64::from(u.int_in_range(0..=9u8)?) * 0x1000 + u64::from(u.int_in_range(0..=3u8)?),
        2 => (u64::from(u.int_in_range(1..=9u8)?) * 0x1000)
            .wrapping_sub(8 * u64::from(u.int_in_range(0..=4u8)?)),
        3 => 1 << u.int_in_range(0..=63u8)?,
        4 => u64::MAX << u.int_in_range(0..=63u8)?,
        5 => u64::from(u.arbitrary::<u16>()?) << u.int_in_range(0..=16u8)?,
        _ => u.arbitrary()?,
    })
}

/// Takes what `data` says of a partition and does it.
pub fn hyperv(data: &[u8]) {
    let mut u = Unstructured::new(data);
    // The end of the input is the end of the guest.
    let _ = guest(&mut u);
}

fn guest(u: &mut Unstructured) -> Result<()> {
    let words = ["all", "auto", "all,-hv-apicv", "off", "tlbflush", "ipi", "synic", "stimer", "vapic"];
    // A list takes no minus everywhere; those that are refused leave `all`.
    let config: Config = u.choose(&words)?.parse().unwrap_or_else(|_| Config::all());
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: MEMORY }]).expect("eight pages");
    let clock = Arc::new(Still(AtomicU64::new(1)));
    let apics = Arc::new(Apics::default());
    let partition = Partition::new(config, memory.clone(), clock.clone(), 1_000_000_000)
        .expect("the frequency is a good one")
        .with_synic(PROCESSORS, apics.clone())
        .with_processors((0..PROCESSORS).map(|_| Box::new(|| ()) as _).collect());
    let mut rig = Rig { partition, clock, memory, apics, vps: (0..PROCESSORS).map(Vp::new).collect() };
    if u.ratio(7, 8)? {
        let _ = rig.partition.msr_write(&mut rig.vps[0], msr::GUEST_OS_ID, 1);
    }
    for _ in 0..STEPS_MAX {
        if u.is_empty() {
            break;
        }
        rig.step(u)?;
    }
    rig.kept();
    Ok(())
}

impl Rig {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        let vp = u.int_in_range(0..=PROCESSORS - 1)? as usize;
        match u.int_in_range(0..=9u8)? {
            0..=2 => self.call(u, vp),
            3..=5 => {
                let register = u.int_in_range(msr::FIRST..=msr::LAST)?;
                let value = number(u)?;
                let before = self.partition.msr_read(&self.vps[vp], register);
                let wrote = self.partition.msr_write(&mut self.vps[vp], register, value);
                if !self.partition.offers(register) {
                    assert!(before.is_err() && wrote.is_err(), "{register:#x} is not offered");
                }
                Ok(())
            }
            6 => {
                let at = number(u)? % MEMORY;
                let bytes = number(u)?.to_le_bytes();
                let _ = self.memory.write(Gpa(at), &bytes);
                Ok(())
            }
            7 => {
                self.clock.0.fetch_add(number(u)? & 0xffff_ffff, Ordering::SeqCst);
                self.partition.run_timers(&mut self.vps[vp]);
                self.partition.set_timer_deadline(&mut self.vps[vp]);
                Ok(())
            }
            8 => {
                // An interrupt is taken and ended.
                let taken = {
                    let mut requests = self.apics.requests();
                    requests.iter().position(|(of, _)| *of as usize == vp).map(|at| requests.remove(at))
                };
                if let Some((of, vector)) = taken {
                    self.partition.spare_eoi(&mut self.vps[vp]);
                    self.partition.end_of_interrupt(of, vector);
                    self.partition.take_spared_eoi(&mut self.vps[vp]);
                }
                Ok(())
            }
            _ => {
                let (to, sint) = (u.int_in_range(0..=PROCESSORS)?, u.int_in_range(0..=16u8)?);
                let payload = [u.arbitrary::<u8>()?; 256];
                let length = usize::from(u.arbitrary::<u8>()?);
                if let Some(message) = Message::new(u.arbitrary()?, u.arbitrary()?, &payload[..length]) {
                    let _ = self.partition.post_from_host(to, sint, message);
                }
                let _ = self.partition.signal(to, sint, u.arbitrary::<u32>()? % 4096);
                Ok(())
            }
        }
    }

    fn call(&mut self, u: &mut Unstructured, vp: usize) -> Result<()> {
        let codes =
            [1u16, 2, 3, 8, 0xb, 0x13, 0x14, 0x15, 0x57, 0x58, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x8001, 0x8002];
        let mut cpu = CpuState { cr0: cr0::PE | cr0::PG, ..CpuState::default() };
        let long = u.ratio(3, 4)?;
        if long {
            cpu.efer = efer::LMA | efer::LME;
        }
        cpu.seg[seg::CS] = Segment::flat(8, if long { 0xa09b } else { 0xc09b });
        cpu.seg[seg::SS] = Segment::flat(16, 0xc093);
        let code = if u.ratio(7, 8)? { *u.choose(&codes)? } else { u.arbitrary()? };
        let mut input = u64::from(code) | u64::from(u.int_in_range(0..=1u8)?) << 16;
        input |= u64::from(u.int_in_range(0..=5u8)?) << 17;
        input |= u64::from(u.int_in_range(0..=12u8)?) << 32 | u64::from(u.int_in_range(0..=3u8)?) << 48;
        if u.ratio(1, 8)? {
            input ^= number(u)?;
        }
        let (first, second) = (number(u)?, number(u)?);
        for (at, value) in [(reg::RCX, input), (reg::RDX, first), (reg::R8, second)] {
            cpu.gpr[at] = value;
        }
        if !long {
            // EDX:EAX, EBX:ECX, EDI:ESI.
            let pairs =
                [(reg::RDX, reg::RAX, input), (reg::RBX, reg::RCX, first), (reg::RDI, reg::RSI, second)];
            for (high, low, value) in pairs {
                (cpu.gpr[high], cpu.gpr[low]) = (value >> 32, value & 0xffff_ffff);
            }
        }
        let mut last = None;
        // A list goes on where it was left, and comes to its end.
        for _ in 0..=0xfff {
            let before = cpu.clone();
            match self.partition.hypercall(&mut self.vps[vp], &mut cpu) {
                Err(_) => {
                    assert_eq!(before, cpu, "#UD changes nothing");
                    return Ok(());
                }
                Ok(Hypercall::Done(_)) => {
                    let result = match long {
                        true => cpu.gpr[reg::RAX],
                        false => cpu.gpr[reg::RDX] << 32 | cpu.gpr[reg::RAX] & 0xffff_ffff,
                    };
                    assert_eq!(result & !0xfff_0000_ffff, 0, "reserved bits of the result: {result:#x}");
                    assert!(result >> 32 <= u64::from(Input(input).reps()), "{input:#x}: {result:#x}");
                    let known = [0, 2, 3, 4, 5, 6, 7, 8, 11, 13, 14, 17, 18, 19];
                    assert!(known.contains(&(result & 0xffff)), "{input:#x}: status {}", result & 0xffff);
                    return Ok(());
                }
                Ok(Hypercall::Again(_)) => {
                    let now = if long { cpu.gpr[reg::RCX] } else { cpu.gpr[reg::RDX] << 32 };
                    assert_ne!(last.replace(now), Some(now), "a list that stays where it is: {input:#x}");
                }
            }
        }
        panic!("a list without an end: {input:#x}");
    }

    /// What is saved and restored reads the same.
    fn kept(&self) {
        let read = |partition: &Partition| -> Vec<_> {
            let all = msr::FIRST..=msr::LAST;
            self.vps.iter().flat_map(|vp| all.clone().map(|one| partition.msr_read(vp, one).ok())).collect()
        };
        let before = read(&self.partition);
        assert_eq!(self.partition.restore(self.partition.save()), Ok(()), "its own state was refused");
        assert!(before == read(&self.partition), "a register was lost");
    }
}
