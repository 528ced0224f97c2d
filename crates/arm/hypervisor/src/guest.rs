//! The guest: it does one thing again and again, and adds up what came of it.

use satori_arm_state::Sys;

use crate::Benchmark;
use crate::asm::{Asm, Cond, X};
use crate::layout::{DEVICE, GUEST_IPA, VGICD};

/// The hypercall that ends it; X1 is the sum.
pub(crate) const DONE: u64 = 0xd0ce;
/// PSCI_VERSION, and how a guest of Linux ends: SYSTEM_OFF.
const VERSION: u64 = 0x8400_0000;
const SYSTEM_OFF: u64 = 0x8400_0008;
/// Where the vCPU that is interrupted counts.
const COUNT: u64 = GUEST_IPA + 0x10_0000;
/// The interrupt that it is sent.
const SGI: u64 = 3;

/// A guest that does `rounds` of each, one behind the other. It begins with the vCPU's number in X0.
pub(crate) fn guest(benchmarks: &[Benchmark], rounds: u32) -> Result<Vec<u8>, String> {
    let mut a = Asm::new();
    let receives = benchmarks.iter().any(|benchmark| benchmark.vcpus() > 1);
    a.set(X(21), COUNT);
    if receives {
        a.cbnz(X(0), "receiver");
    }
    for benchmark in benchmarks {
        repeat(&mut a, *benchmark, rounds);
    }
    a.set(X(0), DONE);
    a.mov(X(1), X(20));
    a.hvc();
    a.set(X(0), SYSTEM_OFF);
    a.hvc();
    if receives {
        receiver(&mut a);
    }
    a.finish()
}

fn repeat(a: &mut Asm, benchmark: Benchmark, rounds: u32) {
    let (round, waits) = (a.fresh(), a.fresh());
    a.set(X(19), rounds.into());
    a.set(X(20), 0);
    a.set(X(22), 0);
    match benchmark {
        Benchmark::IoKernel => a.set(X(2), VGICD),
        Benchmark::IoUser => a.set(X(2), DEVICE),
        // To the vCPU of affinity 1, which has to be there first.
        Benchmark::Ipi => {
            a.set(X(2), SGI << 24 | 1 << 1);
            a.label("not_there");
            a.yield_();
            a.ldr(X(1), X(21), 8);
            a.cbz(X(1), "not_there");
        }
        Benchmark::Hypercall | Benchmark::Fp => {}
    }
    a.label(&round);
    a.add_imm(X(22), X(22), 1);
    match benchmark {
        Benchmark::Hypercall => {
            a.set(X(0), VERSION);
            a.hvc();
            a.add(X(20), X(20), X(0));
        }
        Benchmark::IoKernel => {
            a.ldr_word(X(0), X(2), 4);
            a.add(X(20), X(20), X(0));
        }
        Benchmark::IoUser => {
            a.ldr_word(X(0), X(2), 0);
            a.add(X(20), X(20), X(0));
        }
        Benchmark::Ipi => {
            a.msr(Sys::ICC_SGI1R_EL1, X(2));
            a.label(&waits);
            a.yield_();
            a.ldr(X(20), X(21), 0);
            a.cmp(X(20), X(22));
            a.b_if(Cond::Below, &waits);
        }
        Benchmark::Fp => {
            a.fmov_in(0, X(22));
            a.set(X(0), VERSION);
            a.hvc();
            a.fmov_out(X(0), 0);
            a.add(X(20), X(20), X(0));
        }
    }
    a.subs_imm(X(19), X(19), 1);
    a.b_if(Cond::NotEqual, &round);
}

/// It is there, and executes; its handler counts.
fn receiver(a: &mut Asm) {
    a.label("receiver");
    a.adr(X(1), "vectors");
    a.msr(Sys::VBAR_EL1, X(1));
    a.set(X(1), 0xf0);
    a.msr(Sys::ICC_PMR_EL1, X(1));
    a.set(X(1), 1);
    a.msr(Sys::ICC_IGRPEN1_EL1, X(1));
    a.isb();
    a.unmask_irqs();
    a.str(X(1), X(21), 8);
    a.label("executes");
    a.yield_();
    a.b("executes");
    a.align(0x800);
    a.label("vectors");
    let start = a.here();
    a.at(start + 0x280);
    a.mrs(X(2), Sys::ICC_IAR1_EL1);
    a.ldr(X(3), X(21), 0);
    a.add_imm(X(3), X(3), 1);
    a.str(X(3), X(21), 0);
    a.msr(Sys::ICC_EOIR1_EL1, X(2));
    a.eret();
}
