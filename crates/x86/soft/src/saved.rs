//! What a vCPU has beside its registers, saved and taken back.
//!
//! Everything else follows from registers and memory: translations, decoded and translated code, what the TLB holds. A vCPU that was
//! restored begins without any of it. So a guest that changed a page table and has not flushed yet may find the change sooner
//! than it would have; architecture lets it (SDM 4.10.2.3).

use satori_engine::{AtRest, Event, Resume};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::cpu::Cpu;
use crate::{svm, vmx};

/// More answers than any instruction asks for: the longest areas that XSAVE writes to a device, eight bytes an answer.
const ANSWERS: usize = 1024;
/// A count that no run reaches, and from which none overflows.
const COUNT: u64 = 1 << 62;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beside {
    retired: u64,
    /// Answers to the exits of the instruction at RIP, in order.
    answers: Vec<Resume>,
    injected: Option<Event>,
    task_switches: u32,
    /// PAUSEs in a row, and when the last one was.
    pauses: u32,
    last_pause: u64,
    /// The guest holds the debug registers, and held them until the last exit.
    owned: bool,
    lent: bool,
    /// The last stop was no VM exit.
    continued: bool,
    /// RIP of a repeated string instruction between two of its iterations.
    repeating: u64,
    /// Accesses of IA32_SPEC_CTRL pass through.
    speculation_passed: bool,
    /// What RDRAND and RDSEED go on from, if their numbers follow from anything.
    seed: Option<u64>,
    /// What it has as the processor of a hypervisor.
    vmx: vmx::Saved,
    svm: svm::Saved,
}

impl State for Beside {
    const NAME: &'static str = "software vCPU";
    const VERSION: u32 = 5;
}

impl Beside {
    /// What of it no vCPU can have come to.
    fn unfit(&self) -> Option<&'static str> {
        let mut faults = self.answers.iter().filter_map(|answer| match answer {
            Resume::Fault(exception) => Some(*exception),
            _ => None,
        });
        let event = match self.injected {
            Some(Event::Exception(exception)) => Some(exception),
            _ => None,
        };
        if faults.any(|exception| exception.vector > 31)
            || event.is_some_and(|exception| exception.vector > 31)
        {
            return Some("an exception has no vector from 32 on");
        }
        if self.answers.len() > ANSWERS {
            return Some("no instruction takes so many answers");
        }
        let few = self.task_switches < 1 << 16 && self.pauses < 1 << 31;
        (self.retired >= COUNT || !few).then_some("a count is beyond all that is counted")
    }
}

/// What `cpu` has beside its registers.
pub(crate) fn save(cpu: &Cpu) -> Result<Value, Error> {
    let (pauses, last_pause) = cpu.count.pauses();
    Value::of(&Beside {
        retired: cpu.count.retired,
        answers: cpu.pending.answers().to_vec(),
        injected: cpu.pending.injected,
        task_switches: cpu.pending.task_switches,
        pauses,
        last_pause,
        owned: cpu.debug.owned,
        lent: cpu.debug.lent,
        continued: cpu.controls.continued,
        repeating: cpu.debug.repeating(),
        speculation_passed: cpu.speculation_passed,
        seed: cpu.seed(),
        vmx: vmx::save(&cpu.vmx),
        svm: svm::save(cpu),
    })
}

/// What another engine's vCPU goes on from in place of `saved`, which is the state of one of this engine's.
pub fn at_rest(saved: &Value) -> Result<Value, Error> {
    let beside: Beside = saved.state()?;
    if !beside.answers.is_empty() || beside.task_switches != 0 {
        return Err(Error::refused(
            "vCPU",
            "an instruction waits for its answers: suspend the machine again",
        ));
    }
    Value::of(&AtRest { retired: beside.retired, injected: beside.injected })
}

/// What a vCPU of this engine is that goes on from another engine's.
fn continued(cpu: &Cpu, rest: AtRest) -> Result<Beside, Error> {
    let fresh: Beside = save(cpu)?.state()?;
    let AtRest { retired, injected } = rest;
    Ok(Beside { retired, injected, answers: Vec::new(), task_switches: 0, ..fresh })
}

/// Takes it back.
pub(crate) fn restore(cpu: &mut Cpu, value: &Value) -> Result<(), Error> {
    let beside: Beside = match value.name() == AtRest::NAME {
        true => continued(cpu, value.state()?)?,
        false => value.state()?,
    };
    if let Some(why) = beside.unfit() {
        return Err(Error::unfit(Beside::NAME, why));
    }
    let Beside { retired, answers, injected, task_switches, pauses, last_pause, .. } = beside;
    cpu.count.go_on_from(retired);
    cpu.pending.go_on_with(answers, injected, task_switches);
    cpu.count.set_pauses((pauses, last_pause));
    (cpu.debug.owned, cpu.debug.lent) = (beside.owned, beside.lent);
    cpu.debug.repeats(beside.repeating, true);
    cpu.controls.continued = beside.continued;
    cpu.speculation_passed = beside.speculation_passed;
    cpu.windows.behind_sti = 0;
    vmx::restore(cpu, beside.vmx)?;
    svm::restore(cpu, beside.svm)?;
    if let Some(seed) = beside.seed {
        cpu.entropy().set_seed(seed);
    }
    cpu.flush_tlb(false);
    cpu.forget_spaces(|_| true, true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use satori_engine::{Exception, Exit, Until};
    use satori_memory::Gpa;
    use satori_state::reg;

    use super::*;
    use crate::testing::{Machine, machine64};

    const CODE: u64 = 0x5_0000;

    /// CPUID; ADD EAX, EBX.
    fn at_code() -> Machine {
        let mut cpu = machine64();
        cpu.memory.write(Gpa(CODE), &[0x0f, 0xa2, 0x01, 0xd8]).unwrap();
        cpu.state.rip = CODE;
        cpu
    }

    fn one(cpu: &mut Machine) -> Exit {
        cpu.run(Until { counter: None, instructions: Some(2) })
    }

    #[test]
    fn an_answer_that_waits_is_taken_behind_the_restoring() {
        let (mut cpu, mut other) = (at_code(), at_code());
        while let Exit::EptViolation { .. } = one(&mut cpu) {
            cpu.resume(Resume::Done);
        }
        let answer = satori_engine::CpuidResult { eax: 5, ebx: 7, ecx: 0, edx: 0 };
        cpu.resume(Resume::Cpuid(answer));
        let saved = save(&cpu).unwrap();
        restore(&mut other, &saved).unwrap();
        other.state = cpu.state.clone();
        for cpu in [&mut cpu, &mut other] {
            while let Exit::EptViolation { .. } = one(cpu) {
                cpu.resume(Resume::Done);
            }
            assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.rip), (12, CODE + 4));
        }
        assert_eq!(cpu.count.retired, other.count.retired);
        assert_eq!(save(&cpu), save(&other));
    }

    #[test]
    fn another_engines_vcpu_goes_on_between_two_instructions() {
        let (mut cpu, mut other) = (at_code(), at_code());
        let answer = satori_engine::CpuidResult::default();
        while let Exit::EptViolation { .. } = one(&mut cpu) {
            cpu.resume(Resume::Done);
        }
        cpu.resume(Resume::Cpuid(answer));
        let refused = at_rest(&save(&cpu).unwrap()).unwrap_err().to_string();
        assert!(refused.contains("waits for its answers"), "{refused}");
        one(&mut cpu);
        let rest = at_rest(&save(&cpu).unwrap()).unwrap();
        let retired = cpu.count.retired;
        assert_eq!(rest.state(), Ok(AtRest { retired, injected: None }));
        restore(&mut other, &rest).unwrap();
        assert_eq!(other.count.retired, retired);
        let injected = Some(Event::Exception(Exception::new(40)));
        let damaged = Value::of(&AtRest { retired, injected }).unwrap();
        assert!(matches!(restore(&mut other, &damaged), Err(Error::Unfit { .. })));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut cpu = at_code();
        let hostile = [
            Beside { answers: vec![Resume::Fault(Exception::new(0xff))], ..beside() },
            Beside { injected: Some(Event::Exception(Exception::new(32))), ..beside() },
            Beside { answers: vec![Resume::Done; ANSWERS + 1], ..beside() },
            Beside { retired: u64::MAX, ..beside() },
            Beside { pauses: u32::MAX, ..beside() },
        ];
        assert_eq!(restore(&mut cpu, &Value::of(&beside()).unwrap()), Ok(()));
        for state in hostile {
            let refused = restore(&mut cpu, &Value::of(&state).unwrap());
            assert!(matches!(refused, Err(Error::Unfit { .. })), "{state:?}");
        }
    }

    fn beside() -> Beside {
        Value::state(&save(&at_code()).unwrap()).unwrap()
    }
}
