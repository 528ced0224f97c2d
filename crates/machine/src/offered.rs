//! What a machine's processors would be, without making one.

use satori_bus::Clock;
use satori_cpuid::msrs::{PlatformMsrs, Setup};
use satori_cpuid::{CpuidTable, Feature, PHYSICAL_BITS, Params};

use crate::engines::Chosen;
use crate::life::DEVICE_HOLE;
use crate::{ClockMode, Config, Error, RealClock, VirtualClock};

/// What CPUID and the MSRs of a machine answer.
#[derive(Clone, Debug)]
pub struct OfferedCpu {
    /// The layered table.
    pub cpuid: CpuidTable,
    /// The MSRs of one vCPU as firmware leaves them.
    pub msrs: PlatformMsrs,
    /// Frequency of the TSC in Hz.
    pub tsc_hz: u64,
}

impl OfferedCpu {
    /// The processors that a machine of `config` has.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let tsc_hz = match config.clock {
            ClockMode::Real => RealClock::new(config.tsc_hz).counter_hz(),
            ClockMode::Virtual { rate } => VirtualClock::new(rate, config.tsc_hz).counter_hz(),
        };
        let cpuid = table(config, &crate::EngineKind::choose(config, None)?, tsc_hz)?;
        let setup =
            Setup { cpuid: &cpuid, tsc_hz, physical_bits: PHYSICAL_BITS, uncached: Some(DEVICE_HOLE) };
        let msrs = PlatformMsrs::new(&setup);
        Ok(OfferedCpu { cpuid, msrs, tsc_hz })
    }
}

/// The processors' CPUID on an engine.
fn table(config: &Config, engine: &Chosen, tsc_hz: u64) -> Result<CpuidTable, Error> {
    Ok(CpuidTable::new(Params {
        cpu: &config.cpu_model.as_deref().unwrap_or("max").parse()?,
        engine_features: engine.features,
        host_lacks: &engine.host_lacks,
        topology: config.topology,
        tsc_hz,
        crystal_hz: config.apic_timer_hz(tsc_hz, engine.keeps_apics()),
        physical_bits: PHYSICAL_BITS,
        hypervisor: config.personalities(tsc_hz),
    })?)
}

/// Whether the processors of `config` have long mode.
pub(crate) fn long_mode(config: &Config, engine: &Chosen) -> Result<bool, Error> {
    // The frequency is in other leaves.
    Ok(table(config, engine, 1_000_000_000)?.has(Feature::Lm))
}
