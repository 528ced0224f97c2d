//! The engines, by name: what each is, and what its processor can execute.

use std::sync::Arc;

use satori_cpuid::Feature::{self, *};
use satori_cpuid::{CpuSpec, crystal_hz};
use satori_engine::{Capability, CodeWatcher, Engine, X86};
use satori_jit::Translator;
use satori_kvm_engine::Kvm;
use satori_soft::{Interpreter, host_lacks};

use crate::{Apics, ClockMode, Config, EngineKind, Error};

/// What the interpreter executes. Speculation and its repairs do not exist on it.
const INTERPRETER: &[Feature] = &[
    Fpu, Vme, De, Pse, Tsc, Msr, Pae, Cx8, Sep, Pge, Cmov, Pse36, Clflush, Mmx, Fxsr, Sse, Sse2, Ss, Sse3,
    Ssse3, Cx16, Pcid, Sse4_1, Sse4_2, Movbe, Popcnt, Fsgsbase, Bmi1, Smep, Bmi2, Erms, Invpcid, Adx, Smap,
    Umip, Pku, Fsrm, LahfLm, Abm, Prefetchw, Syscall, Nx, Pdpe1gb, Rdtscp, Lm, Aes, Pclmulqdq, ShaNi, Rdrand,
    Rdseed, Rdpid, Clflushopt, Clwb, Cldemote, Wbnoinvd, Serialize, Xsave, Xsaveopt, Xsavec, Xgetbv1, Xsaves,
    Avx, Avx2, Fma, F16c, Vaes, Vpclmulqdq, Vmx, Svm,
];

const KVM: &str = "kvm: the guest runs on this host's processor, with Satori's local APICs";
const KVM_APICS: &str = "kvm: the guest runs on this host's processor, with the kernel's local APICs";

impl Config {
    /// What it asks for, by the option's name, that the host's processor does not give.
    pub fn beyond_kvm(&self) -> Option<&'static str> {
        let asks = |feature: Feature| {
            let spec = self.cpu_model.as_deref().and_then(|model| model.parse::<CpuSpec>().ok());
            spec.is_some_and(|spec| spec.asks(feature))
        };
        let beyond = [
            (matches!(self.clock, ClockMode::Virtual { .. }), "--clock virtual counts instructions"),
            (!self.tsc_changes.is_empty(), "--tsc-change scales the TSC"),
            (self.engine_stats, "--engine-stats counts what a software engine does"),
            (asks(Vmx), "--nested vmx keeps the state of guests' guests"),
            (asks(Svm), "--nested svm keeps the state of guests' guests"),
        ];
        beyond.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what)
    }
}

impl Config {
    /// Who is to keep the local APICs on KVM: its own, unless the machine has to see what they do.
    pub fn apics_on_kvm(&self) -> Result<Apics, Error> {
        let needs = [
            (self.xen.is_some(), "Xen's events pass no local APIC"),
            (!self.kvm.set.is_empty(), "KVM's interface looks at the local APIC"),
        ];
        match (self.apics, needs.iter().find(|(needs, _)| *needs)) {
            (Apics::Machine, _) | (Apics::Auto, Some(_)) => Ok(Apics::Machine),
            (Apics::Kernel, Some((_, why))) => Err(Error::Capability(format!(
                "--apic kernel: {why}, which is Satori's then; leave the option out"
            ))),
            (_, None) => Ok(Apics::Kernel),
        }
    }

    /// The clock of the local APICs' timers, where `kernel` says that the host's kernel keeps them or could: in Hz.
    pub(crate) fn apic_timer_hz(&self, tsc_hz: u64, kernel: bool) -> u64 {
        if kernel || self.apics == Apics::Kernel { Apics::KERNEL_HZ } else { crystal_hz(tsc_hz) }
    }

    /// The interface, by its option, whose guests make hypercalls by an instruction of their own.
    fn calls_by_instruction(&self) -> Option<&'static str> {
        let xen = self.xen.as_ref().map(|xen| match xen.kind {
            satori_xen::Kind::Pvh => "--guest xen-pvh",
            satori_xen::Kind::Hvm => "--guest xen-hvm",
        });
        xen.or((!self.kvm.set.is_empty()).then_some("--guest kvm"))
    }
}

/// What a machine that is to have a virtual clock, or not, needs of its engine; the error says what is missing.
pub(crate) fn suffices(engine: &dyn Engine<X86>, virtual_clock: bool) -> Result<(), Error> {
    use Capability::{ExactStop, GivesPriority};
    let has = |what| engine.capabilities().has(what);
    let lacks = |what: Capability, needs: &str| {
        let (name, what) = (engine.name(), what.text());
        Err(Error::Capability(format!(
            "{needs} needs an engine that {what}, which {name} does not; use --engine translator"
        )))
    };
    if virtual_clock && !has(ExactStop) {
        return lacks(ExactStop, "--clock virtual");
    }
    if !has(GivesPriority) {
        return lacks(GivesPriority, "the machine's local APIC");
    }
    Ok(())
}

/// An engine and what goes with it.
pub(crate) struct Chosen {
    pub engine: Arc<dyn Engine<X86>>,
    pub features: &'static [Feature],
    /// Those of them that the host would execute and does not have.
    pub host_lacks: Vec<Feature>,
    /// What it is and why it runs, in one line.
    pub why: &'static str,
}

impl Chosen {
    /// Whether it keeps the local APICs.
    pub(crate) fn keeps_apics(&self) -> bool {
        self.engine.capabilities().has(Capability::KeepsInterruptController)
    }
}

impl EngineKind {
    /// The better of the software engines that work here.
    pub fn best() -> Self {
        if Self::translator_works().is_ok() { EngineKind::Translator } else { EngineKind::Interpreter }
    }

    /// Whether this host lets code be made; else why not.
    pub fn translator_works() -> std::io::Result<()> {
        Translator::works()
    }

    /// The engine that `config` names; it tells `watcher` of the code that it makes.
    pub(crate) fn choose(config: &Config, watcher: Option<Arc<dyn CodeWatcher>>) -> Result<Chosen, Error> {
        let without = &config.host_without[..];
        let made = |translator: Translator| {
            Arc::new(translator.counting(config.engine_stats).watched(watcher).without(without))
        };
        Ok(match config.engine {
            EngineKind::Kvm => {
                if let Some(what) = config.beyond_kvm() {
                    return Err(Error::Capability(format!(
                        "{what}, which kvm does not; use --engine translator, or leave it out"
                    )));
                }
                let kvm = match config.apics_on_kvm()? {
                    Apics::Kernel => Kvm::open_with_apics(config.apics == Apics::Kernel)?,
                    _ => Kvm::open()?,
                };
                let kvm = kvm.tracing(config.kvm_exits);
                if let (false, Some(guest)) = (kvm.tells_of_hypercalls(), config.calls_by_instruction()) {
                    return Err(Error::Capability(format!(
                        "{guest} needs to be told of VMCALL, which this host's KVM was not built for (CONFIG_KVM_XEN); use --engine translator"
                    )));
                }
                Chosen {
                    host_lacks: kvm.lacks(INTERPRETER)?,
                    why: if kvm.keeps_apics() { KVM_APICS } else { KVM },
                    engine: Arc::new(kvm),
                    features: INTERPRETER,
                }
            }
            EngineKind::Translator => Chosen {
                engine: made(Translator::default()),
                features: INTERPRETER,
                host_lacks: host_lacks(without),
                why: "translator, Satori's software CPU: code that runs often becomes host code",
            },
            EngineKind::EagerTranslator => Chosen {
                engine: made(Translator::eager()),
                features: INTERPRETER,
                host_lacks: host_lacks(without),
                why: "translator, Satori's software CPU: all code becomes host code before it runs",
            },
            EngineKind::Interpreter => Chosen {
                engine: Arc::new(Interpreter),
                features: INTERPRETER,
                host_lacks: host_lacks(without),
                why: "interpreter, Satori's software CPU: one instruction at a time",
            },
        })
    }
}
