//! RFLAGS.RF while it masks nothing.
//!
//! RF keeps the guest's breakpoints off one instruction (SDM 17.3.1.1), and whoever returns from a page fault loads it. Where a
//! breakpoint on an instruction is armed, that one is executed by itself. Where none is, RF is dropped before the instruction
//! runs, as its end would drop it, so that it may be one of a block. Whoever comes before it has been retired after all, a look
//! around or the end of the run, finds RF set again.

use satori_defs::x86::rflags;

use super::Cpu;

/// Instructions retired when RF was dropped, while the next one may still be found with it.
#[derive(Default)]
pub(crate) struct Resumption(Option<u64>);

impl Cpu {
    /// Drops RF before the instruction that is executed next, behind `retired` ones, if it masks nothing. A nested guest keeps it:
    /// VM exits tell of it.
    #[inline]
    pub fn drop_resume(&mut self, retired: u64) {
        if self.state.rflags & rflags::RF != 0 && !self.debug.code_armed() && !self.vmx.guest {
            self.state.rflags &= !rflags::RF;
            self.resume = Resumption(Some(retired));
        }
    }

    /// Gives RF back if the instruction that it was dropped for has not been retired.
    #[inline]
    pub(crate) fn return_resume(&mut self) {
        if self.resume.0.take() == Some(self.count.retired) {
            self.state.rflags |= rflags::RF;
            self.windows.attention = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use satori_defs::x86::rflags::RF;
    use satori_engine::{Exit, Resume, Until};
    use satori_memory::Gpa;

    use crate::testing::{Machine, machine64};

    const CODE: u64 = 0x5_0000;
    const NOP: u8 = 0x90;
    const CPUID: [u8; 2] = [0x0f, 0xa2];

    /// A machine about to execute `bytes` with RF set.
    fn resuming(bytes: &[u8]) -> Machine {
        let mut cpu = machine64();
        cpu.memory.write(Gpa(CODE), bytes).unwrap();
        cpu.memory.page(Gpa(0)).unwrap().state.touch();
        cpu.state.rip = CODE;
        cpu.state.rflags |= RF;
        cpu.windows.attention = true;
        cpu
    }

    fn rf(cpu: &Machine) -> bool {
        cpu.state.rflags & RF != 0
    }

    #[test]
    fn what_masks_nothing_needs_no_instruction_by_itself() {
        let mut cpu = resuming(&[&[NOP; 3], &CPUID[..]].concat());
        assert!(matches!(cpu.run(Until::default()), Exit::Cpuid { .. }));
        assert_eq!((cpu.count.retired, rf(&cpu), cpu.decoded.steps), (3, false, 0));
    }

    #[test]
    fn an_exit_of_the_instruction_itself_finds_it_set() {
        let mut cpu = resuming(&[&CPUID[..], &[NOP; 2]].concat());
        assert!(matches!(cpu.run(Until::default()), Exit::Cpuid { .. }));
        assert!(rf(&cpu), "CPUID has not been executed");
        cpu.resume(Resume::Cpuid(Default::default()));
        assert_eq!(cpu.run(Until { instructions: Some(1), ..Until::default() }), Exit::Budget);
        assert_eq!((cpu.state.rip, rf(&cpu)), (CODE + 2, false));
    }

    #[test]
    fn whoever_comes_before_the_instruction_finds_it_set() {
        let mut cpu = resuming(&[NOP; 4]);
        let retired = cpu.count.retired;
        cpu.drop_resume(retired);
        assert!(!rf(&cpu));
        cpu.kick().kick();
        assert_eq!(cpu.run(Until::default()), Exit::ExternalInterrupt);
        assert_eq!((cpu.state.rip, rf(&cpu)), (CODE, true));
        // Behind the instruction it is gone for good.
        let retired = cpu.count.retired;
        cpu.drop_resume(retired);
        assert_eq!(cpu.run(Until { instructions: Some(1), ..Until::default() }), Exit::Budget);
        assert_eq!((cpu.state.rip, rf(&cpu)), (CODE + 1, false));
    }
}
