//! The interface as a guest sees it: leaves, registers, areas and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use satori_bus::Clock;
use satori_defs::kvm::{call, msr};
use satori_defs::msr::Gp;
use satori_defs::x86::{cr0, efer};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::{CpuState, reg, seg};

use crate::choice::{self, Choice};
use crate::{Config, Feature, Outcome, Saved, Vcpu, Vm};

#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn counter(&self) -> u64 {
        2 * self.now()
    }
    fn counter_hz(&self) -> u64 {
        2_000_000_000
    }
    fn epoch(&self) -> u64 {
        7_000_000_005
    }
}

fn of(config: Config) -> (Vm, Arc<Ticks>, GuestMemory, Arc<AtomicU64>) {
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x1_0000 }]).unwrap();
    let (clock, woken) = (Arc::new(Ticks::default()), Arc::new(AtomicU64::new(0)));
    let wakes = woken.clone();
    let wake = Arc::new(move |vcpu: u32| _ = wakes.fetch_or(1 << vcpu, Ordering::SeqCst));
    let vm = Vm::new(config, memory.clone(), clock.clone(), vec![0, 1, 4], wake);
    (vm, clock, memory, woken)
}

fn chosen(text: &str) -> Config {
    let mut choice = Choice::new(Config::auto(), "the default");
    choice.apply("--kvm", &choice::list(text).unwrap()).unwrap();
    choice.finish().unwrap().config
}

fn call(vm: &Vm, number: u64, arguments: [u64; 4], long: bool, cpl: u16) -> (u64, Outcome) {
    let mut cpu = CpuState { cr0: cr0::PE | cr0::PG, ..CpuState::default() };
    if long {
        cpu.efer = efer::LMA | efer::LME;
    }
    cpu.seg[seg::CS].rights = if long { 0xa09b } else { 0xc09b };
    cpu.seg[seg::SS].rights = 0xc093 | u32::from(cpl) << 5;
    cpu.gpr[reg::RAX] = number;
    for (at, value) in [reg::RBX, reg::RCX, reg::RDX, reg::RSI].into_iter().zip(arguments) {
        cpu.gpr[at] = value;
    }
    let outcome = vm.hypercall(&mut Vcpu::new(0), &mut cpu);
    (cpu.gpr[reg::RAX], outcome)
}

#[test]
fn leaves_tell_what_the_set_has() {
    let leaves = Config::auto().leaves(0x4000_0100);
    assert_eq!(
        (leaves[0].leaf, leaves[0].value.eax, leaves[0].value.ebx),
        (0x4000_0100, 0x4000_0101, 0x4b4d_564b)
    );
    assert_eq!(leaves[1].value.eax, 0x0100_2aeb);
    assert_eq!(leaves[1].value.edx, 0);
    assert_eq!(chosen("all").leaves(0x4000_0000)[1].value.edx, 1);
    assert!(Config::off().leaves(0x4000_0000).is_empty());
}

#[test]
fn no_two_rows_claim_the_same() {
    for (index, one) in Feature::ALL.iter().enumerate() {
        assert_eq!(Feature::by_name(one.name()), Some(*one));
        for other in &Feature::ALL[index + 1..] {
            let (a, b) = (one.row(), other.row());
            assert!(!a.cpuid.iter().any(|bit| b.cpuid.contains(bit)), "{} {}", a.name, b.name);
            assert!(!a.msrs.iter().any(|msr| b.msrs.contains(msr)), "{} {}", a.name, b.name);
            assert!(!a.calls.iter().any(|call| b.calls.contains(call)), "{} {}", a.name, b.name);
        }
    }
}

#[test]
fn what_is_not_offered_is_refused() {
    let (vm, ..) = of(chosen("base"));
    for register in [0x11, 0x12].into_iter().chain(msr::FIRST..=msr::LAST) {
        assert_eq!(vm.msr_read(&Vcpu::new(0), register), Err(Gp), "{register:#x}");
        assert_eq!(vm.msr_write(&mut Vcpu::new(0), register, 0, 0), Err(Gp), "{register:#x}");
    }
    assert_eq!(call(&vm, call::SEND_IPI, [7, 0, 0, 0x30], true, 0), (-1000i64 as u64, Outcome::Done));
    assert_eq!(call(&vm, 77, [0; 4], false, 0).0, 0xffff_fc18);
    assert_eq!(call(&vm, call::VAPIC_POLL_IRQ, [0; 4], true, 0).0, 0);
    assert_eq!(call(&vm, call::VAPIC_POLL_IRQ, [0; 4], true, 3).0, u64::MAX);
}

#[test]
fn time_is_written_where_the_guest_says() {
    let (vm, clock, memory, _) = of(Config::auto());
    let mut vcpu = Vcpu::new(1);
    clock.0.store(1_000, Ordering::SeqCst);
    assert_eq!(vm.msr_write(&mut vcpu, msr::SYSTEM_TIME, 0x1041, 500), Ok(()));
    assert_eq!(vm.msr_read(&vcpu, msr::SYSTEM_TIME_OLD), Ok(0x1041));
    let word = |at: u64| memory.read_u32(Gpa(0x1040 + at)).unwrap();
    assert_eq!((word(0), word(8), word(16), word(24), word(28)), (2, 500, 0, 1 << 31, 0x100));
    vm.tsc_moved(1, 600);
    assert_eq!(word(8), 600);
    vm.tsc_changed(1_000_000_000, 2_000);
    assert_eq!((word(8), word(16), word(28) & 0xff), (2_600, 1_000, 1));
    assert_eq!(vm.msr_write(&mut vcpu, msr::WALL_CLOCK, 0x2000, 0), Ok(()));
    assert_eq!((memory.read_u32(Gpa(0x2004)).unwrap(), memory.read_u32(Gpa(0x2008)).unwrap()), (7, 5));
    for hostile in [u64::MAX, 0xfff1, 0xffff_ffff_ffff_ffe1, 3] {
        assert_eq!(vm.msr_write(&mut vcpu, msr::SYSTEM_TIME, hostile, 0), Ok(()));
        assert_eq!(vm.msr_write(&mut vcpu, msr::WALL_CLOCK_OLD, hostile, 0), Ok(()));
    }
    assert_eq!(call(&vm, call::CLOCK_PAIRING, [0x3000, 0, 0, 0], true, 0).0, 0);
    assert_eq!(memory.read_u64(Gpa(0x3000)).unwrap(), 7);
    assert_eq!(call(&vm, call::CLOCK_PAIRING, [0xfff0, 0, 0, 0], true, 0).0, -14i64 as u64);
    assert_eq!(call(&vm, call::CLOCK_PAIRING, [0x3000, 1, 0, 0], true, 0).0, -95i64 as u64);
}

#[test]
fn stolen_time_is_what_neither_ran_nor_slept() {
    let (vm, clock, memory, _) = of(Config::auto());
    let mut vcpu = Vcpu::new(0);
    assert_eq!(vm.msr_write(&mut vcpu, msr::STEAL_TIME, 0x1003, 0), Err(Gp));
    assert_eq!(vm.msr_write(&mut vcpu, msr::STEAL_TIME, 0x1001, 0), Ok(()));
    let stolen = || memory.read_u64(Gpa(0x1000)).unwrap();
    assert!(!vm.enters(&mut vcpu, || 0));
    clock.0.store(10_000_000, Ordering::SeqCst);
    assert!(!vm.enters(&mut vcpu, || 7_000_000));
    assert_eq!((stolen(), memory.read_u32(Gpa(0x1008)).unwrap() % 2), (3_000_000, 0));
    vm.sleeps(&mut vcpu);
    vm.sleeps(&mut vcpu);
    assert_eq!(memory.read_u32(Gpa(0x1010)).unwrap(), 1);
    memory.fetch_or_u32(Gpa(0x1010), 2).unwrap();
    clock.0.store(30_000_000, Ordering::SeqCst);
    assert!(vm.enters(&mut vcpu, || 7_000_000), "the TLB is flushed");
    assert_eq!((stolen(), memory.read_u32(Gpa(0x1010)).unwrap()), (3_000_000, 0));
    assert!(!vm.enters(&mut vcpu, || 7_000_000));
    // Beyond memory nothing is written, and nothing fails.
    assert_eq!(vm.msr_write(&mut vcpu, msr::STEAL_TIME, 0x8000_0001, 0), Ok(()));
    vm.sleeps(&mut vcpu);
    assert!(!vm.enters(&mut vcpu, || 0));
}

#[test]
fn an_eoi_is_spared_by_clearing_the_bit() {
    let (vm, _, memory, _) = of(Config::auto());
    let mut vcpu = Vcpu::new(0);
    for refused in [0x1003, 0x1_0001, u64::MAX] {
        assert_eq!(vm.msr_write(&mut vcpu, msr::PV_EOI_EN, refused, 0), Err(Gp), "{refused:#x}");
    }
    assert_eq!(vm.msr_write(&mut vcpu, msr::PV_EOI_EN, 0x1005, 0), Ok(()));
    vm.spare_eoi(&mut vcpu);
    assert_eq!(memory.read_u32(Gpa(0x1004)).unwrap(), 1);
    assert!(!vm.take_spared_eoi(&mut vcpu));
    vm.spare_eoi(&mut vcpu);
    memory.fetch_clear_u32(Gpa(0x1004), 1).unwrap();
    assert!(vm.take_spared_eoi(&mut vcpu) && !vm.take_spared_eoi(&mut vcpu));
}

#[test]
fn kicks_and_ipis_reach_whom_they_name() {
    let (vm, _, _, woken) = of(Config::auto());
    assert_eq!(call(&vm, call::KICK_CPU, [0, 4, 0, 0], true, 0), (0, Outcome::Yield));
    assert_eq!(call(&vm, call::KICK_CPU, [0, 3, 0, 0], true, 0), (0, Outcome::Yield));
    assert_eq!(woken.load(Ordering::SeqCst), 1 << 2);
    assert!(vm.take_kick(2) && !vm.take_kick(2) && !vm.take_kick(9));
    let ipi = |vcpus: &[u32], vector| Outcome::Ipi { vcpus: vcpus.into(), vector };
    assert_eq!(call(&vm, call::SEND_IPI, [0b1_0010, 0, 0, 0x42], true, 0), (2, ipi(&[1, 2], Some(0x42))));
    assert_eq!(call(&vm, call::SEND_IPI, [0, u64::MAX, u64::MAX, 0x42], true, 0).0, 0);
    assert_eq!(call(&vm, call::SEND_IPI, [0b1001, 0, 1, 0x400], true, 0), (2, ipi(&[1, 2], None)));
    for icr in [1 << 11, 1 << 18, 0x500, 0x600] {
        assert_eq!(call(&vm, call::SEND_IPI, [1, 0, 0, icr], true, 0), (-22i64 as u64, Outcome::Done));
    }
    assert_eq!(call(&vm, call::SCHED_YIELD, [0; 4], true, 0), (0, Outcome::Done));
    assert_eq!(call(&vm, call::SCHED_YIELD, [4, 0, 0, 0], true, 0), (0, Outcome::Yield));
    assert_eq!(call(&vm, call::SCHED_YIELD, [99, 0, 0, 0], true, 0), (0, Outcome::Done));
}

#[test]
fn options_say_what_they_come_to() {
    assert_eq!(chosen("+poll-control").set, Config::auto().set.with(Feature::PollControl));
    assert_eq!(
        chosen("pv-tlb-flush").set.iter().collect::<Vec<_>>(),
        [Feature::Base, Feature::StealTime, Feature::PvTlbFlush]
    );
    assert!(!chosen("-clock").set.has(Feature::StableBit), "goes with what it needs");
    for (text, words) in [
        ("asyncpf", "cannot be had"),
        ("pv-eio", "write pv-eoi"),
        ("auto,off", "stands alone"),
        ("warp-drive", "satori kvm list"),
    ] {
        assert!(choice::list(text).unwrap_err().to_string().contains(words), "{text}");
    }
    let mut choice = Choice::new(Config::auto(), "the default");
    let text = "max,kvm-pv-eoi=off,kvm_steal_time=off,+avx,kvm-asyncpf=off,-kvm-hint-dedicated";
    let (rest, wishes) = choice::cpu_option(text, text).unwrap();
    assert_eq!((rest.as_str(), wishes.len()), ("max,+avx", 3));
    choice.apply("--cpu", &wishes).unwrap();
    let set = choice.finish().unwrap().config.set;
    assert!(!set.has(Feature::PvEoi) && !set.has(Feature::PvTlbFlush) && set.has(Feature::Clock));
    let mut hidden = Choice::new(Config::auto(), "the default");
    hidden.apply("--cpu", &choice::cpu_option("max,kvm=off", "max,kvm=off").unwrap().1).unwrap();
    assert!(hidden.finish().unwrap().config.set.is_empty());
    for text in ["kvm-pv-eoi=maybe", "+kvm-pv-eoi=on", "kvm-warp", "kvm-pv-enforce-cpuid=off", "kvm-asyncpf"]
    {
        assert!(choice::cpu_option(text, text).is_err(), "{text}");
    }
}

#[test]
fn what_a_guest_has_set_survives_saving() {
    let (vm, _, memory, _) = of(Config::auto());
    let mut vcpu = Vcpu::new(1);
    for (register, value) in [(msr::SYSTEM_TIME, 0x1041), (msr::WALL_CLOCK, 0x2000), (msr::PV_EOI_EN, 0x3001)]
    {
        assert_eq!(vm.msr_write(&mut vcpu, register, value, 0), Ok(()));
    }
    let _ = call(&vm, call::KICK_CPU, [0, 4, 0, 0], true, 0);
    let text = serde_json::to_string(&(vm.save(), &vcpu)).unwrap();
    let (again, ..) = of(Config::auto());
    let (saved, vcpu_again): (Saved, Vcpu) = serde_json::from_str(&text).unwrap();
    assert!(again.restore(saved.clone()) && vcpu_again == vcpu);
    assert_eq!(again.save(), saved);
    assert!(again.take_kick(2));
    assert_eq!(memory.read_u32(Gpa(0x1040)).unwrap(), 2);
}
