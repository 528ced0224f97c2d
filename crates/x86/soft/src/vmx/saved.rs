//! VMX operation as a value: what a processor keeps beside its registers, and beside what is in memory.

use satori_cpuid::Feature;
use satori_save::Error;
use satori_vmx::Field::{ExitControls, PinControls, ProcControls};
use satori_vmx::check::{self, Around};
use satori_vmx::control::exit;
use satori_vmx::event::Interruption;
use satori_vmx::evmcs::{self, Page};
use satori_vmx::{Field, Vmcs};
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::enlightened::Enlightened;
use super::{NONE, Vmx};
use crate::cpu::Cpu;

/// What [`Vmx`] has of a vCPU between two instructions. The controls in force are those of the VMCS; an exit that is told of has
/// happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    /// Of VMX operation, if the vCPU is in it.
    operation: Option<Operation>,
    /// Counters that are not 0, by their places.
    account: Vec<(u32, u64)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    /// The VMXON region.
    region: u64,
    /// The current VMCS, if there is one.
    current: Option<u64>,
    /// Its fields that are not 0, by their encodings: memory has them once it is current no more.
    fields: Vec<(u16, u64)>,
    launched: bool,
    /// It is a shadow VMCS.
    shadow: bool,
    /// In VMX non-root operation.
    guest: bool,
    /// The event that is being delivered, and the length of the instruction behind it.
    vectoring: (u32, u32, u32),
    nmi_unblocked: bool,
    host_nmi_blocked: bool,
    /// The partition's TSC at which the preemption timer expires.
    timer: Option<u64>,
    in_ss_shadow: bool,
    trap: bool,
    /// The vector of an interrupt that an exit did not acknowledge.
    held: Option<u8>,
    /// Offset and size of a write of the virtual-APIC page that has had no effect yet.
    written: Option<(u64, u64)>,
    /// A virtual interrupt is recognized.
    recognized: bool,
    pauses: (u64, u64),
    served: bool,
    /// The enlightened VMCS in use, and the bytes of it that were read last.
    enlightened: Option<(u64, Vec<u8>)>,
}

/// What a vCPU has of VMX.
pub(crate) fn save(vmx: &Vmx) -> Saved {
    // Whoever adds a field decides here whether it is state.
    let Vmx {
        on,
        region,
        current,
        vmcs,
        guest,
        pin: _,
        proc: _,
        proc2: _,
        exit: _,
        vectoring,
        vectoring_length,
        nmi_unblocked,
        host_nmi_blocked,
        timer,
        in_ss_shadow,
        trap,
        held,
        written,
        recognized,
        pauses,
        served,
        enlightened,
        account,
    } = vmx;
    let fields = Field::ALL.iter().map(|field| (field.encoding(), vmcs.get(*field)));
    let operation = on.then(|| Operation {
        region: *region,
        current: (*current != NONE).then_some(*current),
        fields: fields.filter(|(_, value)| *value != 0).collect(),
        launched: vmcs.launched,
        shadow: vmcs.shadow,
        guest: *guest,
        vectoring: (vectoring.info, vectoring.code, *vectoring_length),
        nmi_unblocked: *nmi_unblocked,
        host_nmi_blocked: *host_nmi_blocked,
        timer: *timer,
        in_ss_shadow: *in_ss_shadow,
        trap: *trap,
        held: *held,
        written: *written,
        recognized: *recognized,
        pauses: *pauses,
        served: *served,
        enlightened: enlightened.as_ref().map(|one| (one.at, one.page.bytes().to_vec())),
    });
    Saved { operation, account: account.save() }
}

/// Gives `cpu`, whose registers are restored, what is behind them.
pub(crate) fn restore(cpu: &mut Cpu, saved: Saved) -> Result<(), Error> {
    let account = Account::restored(&saved.account)
        .ok_or_else(|| unfit("a count is none that is kept, or too large"))?;
    let vmx = match saved.operation {
        None => Vmx::default(),
        Some(operation) => operation.restored(cpu)?,
    };
    *cpu.vmx = Vmx { account, ..vmx };
    cpu.choose_windows();
    Ok(())
}

fn unfit(why: &str) -> Error {
    Error::unfit("VMX operation", why)
}

impl Operation {
    fn restored(self, cpu: &Cpu) -> Result<Vmx, Error> {
        if !cpu.offers(Feature::Vmx) {
            return Err(unfit("VMX is not offered (--nested vmx)"));
        }
        let mut addresses = [Some(self.region), self.current].into_iter().flatten();
        if !addresses.all(Cpu::region_address) {
            return Err(unfit("no VMCS can be at such an address"));
        }
        let mut vmcs = Vmcs::default();
        (vmcs.launched, vmcs.shadow) = (self.launched, self.shadow);
        for (encoding, value) in self.fields {
            let Some((field, false)) = Field::find(encoding.into()) else {
                return Err(unfit("no field of a VMCS has such an encoding"));
            };
            vmcs.set(field, value);
        }
        let enlightened = self.enlightened.map(|(at, bytes)| match <[u8; evmcs::SIZE]>::try_from(bytes) {
            Ok(bytes) if Cpu::region_address(at) => Ok(Box::new(Enlightened { at, page: Page::new(bytes) })),
            _ => Err(unfit("no enlightened VMCS is so, or can be there")),
        });
        let (info, code, vectoring_length) = self.vectoring;
        let mut vmx = Vmx {
            on: true,
            region: self.region,
            current: self.current.unwrap_or(NONE),
            vmcs,
            vectoring: Interruption { info, code },
            vectoring_length,
            nmi_unblocked: self.nmi_unblocked,
            host_nmi_blocked: self.host_nmi_blocked,
            timer: self.timer,
            in_ss_shadow: self.in_ss_shadow,
            trap: self.trap,
            held: self.held,
            written: self.written,
            recognized: self.recognized && self.guest,
            pauses: self.pauses,
            served: self.served,
            enlightened: enlightened.transpose()?,
            ..Vmx::default()
        };
        if self.guest {
            vmx.go_on_as_guest(cpu)?;
        }
        Ok(vmx)
    }
}

impl Vmx {
    /// The guest of the current VMCS executes: its controls are in force.
    fn go_on_as_guest(&mut self, cpu: &Cpu) -> Result<(), Error> {
        let vmcs = &self.vmcs;
        // The mode of whoever entered it is that to which an exit returns.
        let around = Around { lma: vmcs.get32(ExitControls) & exit::HOST_64 != 0, ..cpu.around() };
        let named = self.current != NONE || self.enlightened.is_some();
        if !named || !check::controls(vmcs, around) || !check::host(vmcs, around) {
            return Err(unfit("no VM entry accepts such a VMCS"));
        }
        (self.pin, self.proc) = (vmcs.get32(PinControls), vmcs.get32(ProcControls));
        self.proc2 = check::secondary(vmcs);
        self.guest = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine64;

    /// In root operation, without a current VMCS.
    fn root() -> Saved {
        let operation = Operation {
            region: 0x1000,
            current: None,
            fields: vec![(Field::GuestRip.encoding(), 0x1234)],
            launched: false,
            shadow: false,
            guest: false,
            vectoring: (0, 0, 0),
            nmi_unblocked: false,
            host_nmi_blocked: false,
            timer: None,
            in_ss_shadow: false,
            trap: false,
            held: None,
            written: None,
            recognized: false,
            pauses: (0, 0),
            served: false,
            enlightened: None,
        };
        Saved { operation: Some(operation), account: vec![(0, 76), (1, 5), (80, 3)] }
    }

    #[test]
    fn what_is_restored_is_saved_again() {
        let mut cpu = machine64();
        restore(&mut cpu, root()).unwrap();
        assert!(cpu.vmx.on && cpu.vmx.current == NONE && cpu.vmx.vmcs.get(Field::GuestRip) == 0x1234);
        let again = save(&cpu.vmx);
        assert_eq!(again.account, root().account);
        assert_eq!(format!("{again:?}"), format!("{:?}", root()));
        restore(&mut cpu, Saved { operation: None, account: vec![(0, 0)] }).unwrap();
        assert!(!cpu.vmx.on && cpu.vmx.account.entries == 0);
    }

    #[test]
    fn no_operation_that_cannot_be_is_taken() {
        let mut cpu = machine64();
        let mut refuses = |what: &str, change: &dyn Fn(&mut Operation)| {
            let mut saved = root();
            change(saved.operation.as_mut().unwrap());
            assert!(matches!(restore(&mut cpu, saved), Err(Error::Unfit { .. })), "{what}");
        };
        refuses("a misaligned region", &|one| one.region += 8);
        refuses("a VMCS beyond memory", &|one| one.current = Some(1 << 60));
        refuses("an unknown field", &|one| one.fields.push((0xfffe, 1)));
        refuses("half a field", &|one| one.fields.push((Field::TscOffset.encoding() | 1, 1)));
        refuses("a guest of nobody", &|one| one.guest = true);
        refuses("a guest without controls", &|one| (one.guest, one.current) = (true, Some(0x2000)));
        refuses("a short enlightened VMCS", &|one| one.enlightened = Some((0x3000, vec![0; 8])));
        let mut counts = |account: &[(u32, u64)]| {
            restore(&mut cpu, Saved { operation: None, account: account.to_vec() }).is_err()
        };
        assert!(counts(&[]) && counts(&[(0, 77)]), "a reason that is none");
        assert!(counts(&[(0, 1), (3, 1), (2, 1)]), "out of order");
        assert!(counts(&[(0, 1), (100_000, 1)]), "beyond all");
        assert!(counts(&[(0, 1), (2, u64::MAX)]), "more than is counted");
    }
}
