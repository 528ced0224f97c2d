//! PSCI 1.0 (Arm DEN 0022): what a guest asks of firmware.

/// What a call asks of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// The machine ends.
    Off,
    /// It begins anew.
    Reset,
    /// The calling vCPU goes off.
    CpuOff,
    /// It waits for an interrupt.
    Suspend,
    /// The vCPU with this affinity begins at this address, with this in X0.
    CpuOn {
        /// MPIDR_EL1's affinity.
        target: u64,
        /// Where it begins.
        entry: u64,
        /// What it finds in X0.
        context: u64,
    },
    /// Whether the vCPU with this affinity is on.
    Affinity(u64),
}

/// A call's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// X0.
    Answer(u64),
    /// The machine does something, and knows X0.
    Power(Power),
}

/// NOT_SUPPORTED.
const NOT_SUPPORTED: u64 = -1_i64 as u64;

/// A call by the SMC calling convention with these X0 to X3.
pub fn psci(x: [u64; 4]) -> Call {
    // Bit 30 chooses 64-bit arguments, which these calls have in common.
    let function = x[0] as u32 & !(1 << 30);
    match function {
        0x8400_0000 => Call::Answer(0x1_0000),
        0x8400_0001 => Call::Power(Power::Suspend),
        0x8400_0002 => Call::Power(Power::CpuOff),
        0x8400_0003 => {
            Call::Power(Power::CpuOn { target: x[1] & 0xff_00ff_ffff, entry: x[2], context: x[3] })
        }
        0x8400_0004 => Call::Power(Power::Affinity(x[1] & 0xff_00ff_ffff)),
        // There is no trusted OS that could migrate.
        0x8400_0006 => Call::Answer(2),
        0x8400_0008 => Call::Power(Power::Off),
        0x8400_0009 => Call::Power(Power::Reset),
        0x8400_000a => match x[1] as u32 & !(1 << 30) {
            0x8400_0000..=0x8400_0004 | 0x8400_0006 | 0x8400_0008..=0x8400_000a => Call::Answer(0),
            // SMCCC_VERSION among them: the convention is 1.0, and nothing beyond PSCI is there.
            _ => Call::Answer(NOT_SUPPORTED),
        },
        _ => Call::Answer(NOT_SUPPORTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart() {
        assert_eq!(psci([0x8400_0000, 0, 0, 0]), Call::Answer(0x1_0000));
        let on = Power::CpuOn { target: 0x101, entry: 0x4000, context: 7 };
        assert_eq!(psci([0xc400_0003, 0x8000_0101, 0x4000, 7]), Call::Power(on));
        assert_eq!(psci([0x8400_000a, 0x8000_0000, 0, 0]), Call::Answer(NOT_SUPPORTED));
        assert_eq!(psci([0x8400_000a, 0xc400_0003, 0, 0]), Call::Answer(0));
        assert_eq!(psci([0x1234, 0, 0, 0]), Call::Answer(NOT_SUPPORTED));
    }
}
