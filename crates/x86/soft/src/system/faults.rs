//! Exceptions that meet exceptions: double fault and shutdown (SDM 6.15, interrupt 8).

use satori_cpuid::Vendor;
use satori_defs::x86::{dr6, dr7, vector};
use satori_engine::Exception;

use super::deliver::{Delivery, deliver};
use crate::cpu::{Cpu, Exec, Stop};
use crate::vmx;

/// Why an event was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// The processor gave up: a triple fault.
    Shutdown,
    /// A guest's hypervisor gets it: [`Vmx::exit`](crate::vmx::Vmx::exit).
    Left,
}

/// Where an interrupt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptKind {
    /// An interrupt controller.
    External,
    /// The NMI pin.
    Nmi,
}

/// What an exception does to one that is being delivered (SDM table 6-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    PageFault,
    DoubleFault,
}

fn class(vector: u8) -> Class {
    match vector {
        vector::DE | vector::TS | vector::NP | vector::SS | vector::GP => Class::Contributory,
        vector::PF => Class::PageFault,
        vector::DF => Class::DoubleFault,
        _ => Class::Benign,
    }
}

/// What is delivered when `second` occurs during the delivery of an event of class `first`
/// (SDM table 6-5).
fn combine(first: Class, second: Exception) -> Result<Exception, Undelivered> {
    if second == vmx::EXIT {
        return Err(Undelivered::Left);
    }
    match (first, class(second.vector)) {
        (Class::DoubleFault, Class::Contributory | Class::PageFault) => Err(Undelivered::Shutdown),
        (Class::Contributory, Class::Contributory)
        | (Class::PageFault, Class::Contributory | Class::PageFault) => {
            Ok(Exception::with_code(vector::DF, 0))
        }
        _ => Ok(second),
    }
}

/// Whether RFLAGS.RF is set in what `exception` pushes. Those of the fault class set it, so that the instruction's breakpoints do not hit
/// again. Traps, and instruction breakpoints themselves, push it as it is (SDM 17.3.1.1).
pub fn pushes_resume(exception: Exception) -> bool {
    match exception.vector {
        vector::BP | vector::OF => false,
        vector::DB => exception.payload & dr6::BD != 0,
        _ => true,
    }
}

impl Cpu {
    /// Whether error codes call exceptions external to the program: Intel's processors do.
    pub(crate) fn exceptions_external(&self) -> bool {
        self.isa.offered.vendor != Vendor::Amd
    }
}

fn deliver_exception(cpu: &mut Cpu, exception: Exception) -> Exec<()> {
    match exception.vector {
        vector::PF => cpu.state.cr2 = exception.payload,
        vector::DB => {
            // The rest of DR6 is sticky.
            cpu.state.dr6 = cpu.state.dr6 & !dr6::HITS | exception.payload;
            cpu.state.dr7 &= !dr7::GD;
        }
        _ => {}
    }
    let event = Delivery {
        vector: exception.vector,
        code: exception.code,
        software: false,
        external: cpu.exceptions_external(),
        resume: pushes_resume(exception),
        rip: cpu.state.rip,
    };
    cpu.state.rip = deliver(cpu, &event)?;
    Ok(())
}

/// The exception behind the last [`Stop::Fault`], in a delivery. One of a guest that its hypervisor wants leaves it before it can
/// turn into a double fault (SDM 27.2.4). A page fault is in CR2 even if it does: Linux tells a stack overflow by that.
fn nested(cpu: &mut Cpu, stop: Stop) -> Result<Exception, Undelivered> {
    debug_assert_eq!(stop, Stop::Fault, "nothing is asked of the machine during delivery");
    let exception = cpu.pending.fault.take().unwrap_or(Exception::ud());
    if exception != vmx::EXIT && cpu.exception_leaves(exception) {
        return Err(Undelivered::Left);
    }
    if exception.vector == vector::PF {
        cpu.state.cr2 = exception.payload;
    }
    Ok(exception)
}

/// Delivers `exception`, and what its delivery raises.
pub fn raise_fault(cpu: &mut Cpu, mut exception: Exception) -> Result<(), Undelivered> {
    // Each failed delivery either makes the class graver or is benign first, so this ends: the only
    // benign fault that a delivery raises is an alignment check.
    loop {
        if cpu.vmx.guest {
            cpu.guest_exception(exception)?;
        }
        match deliver_exception(cpu, exception) {
            Ok(()) => return Ok(()),
            Err(stop) => {
                let next = combine(class(exception.vector), nested(cpu, stop)?)?;
                if (exception.vector, next.vector) == (vector::AC, vector::AC) {
                    // A processor never comes out of this: a handler at privilege level 3 whose
                    // stack is misaligned. Here the instruction tries for ever, so that the machine
                    // comes in between, as it does under KVM, which intercepts #AC for that.
                    return Ok(());
                }
                exception = next;
            }
        }
    }
}

/// Delivers an interrupt, and what its delivery raises.
pub fn interrupt(cpu: &mut Cpu, vector: u8, kind: InterruptKind) -> Result<(), Undelivered> {
    let vector = match kind {
        InterruptKind::External => vector,
        InterruptKind::Nmi => vector::NMI,
    };
    let event =
        Delivery { vector, code: None, software: false, external: true, resume: false, rip: cpu.state.rip };
    inject(cpu, &event, false)
}

/// Delivers `event`, and what its delivery raises; `fault`: it is a hardware exception, which may make that a double fault.
pub fn inject(cpu: &mut Cpu, event: &Delivery, fault: bool) -> Result<(), Undelivered> {
    match deliver(cpu, event) {
        Ok(rip) => {
            cpu.state.rip = rip;
            Ok(())
        }
        // Interrupts are benign: what their delivery raises is delivered in their place.
        Err(stop) => {
            let first = if fault { class(event.vector) } else { Class::Benign };
            let exception = combine(first, nested(cpu, stop)?)?;
            raise_fault(cpu, exception)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_double_fault_table_is_the_manuals() {
        let (benign, contributory, page) = (Exception::ud(), Exception::gp(0), Exception::pf(1, 2));
        let double = Exception::with_code(vector::DF, 0);
        for (first, second, expected) in [
            (Class::Benign, benign, Ok(benign)),
            (Class::Benign, contributory, Ok(contributory)),
            (Class::Benign, page, Ok(page)),
            (Class::Contributory, benign, Ok(benign)),
            (Class::Contributory, contributory, Ok(double)),
            (Class::Contributory, page, Ok(page)),
            (Class::PageFault, benign, Ok(benign)),
            (Class::PageFault, contributory, Ok(double)),
            (Class::PageFault, page, Ok(double)),
            (Class::DoubleFault, contributory, Err(Undelivered::Shutdown)),
            (Class::DoubleFault, page, Err(Undelivered::Shutdown)),
        ] {
            assert_eq!(combine(first, second), expected, "{first:?} then {second:?}");
        }
    }
}
