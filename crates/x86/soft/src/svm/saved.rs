//! SVM as a value: what a processor keeps beside its registers, and beside what is in memory.

use satori_cpuid::Feature;
use satori_save::Error;
use satori_state::{DescriptorTable, Segment};
use satori_svm::{Vmcb, check};
use satori_vmx::event::Interruption;
use serde::{Deserialize, Serialize};

use super::enter::{Host, copy};
use super::{Account, RATIO, Svm};
use crate::cpu::Cpu;

/// What a vCPU has of SVM between two instructions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    gif: bool,
    held_nmi: bool,
    ratio: u64,
    /// Of the guest that executes, if one does.
    guest: Option<SavedGuest>,
    /// Entries, those that failed, exits by their places.
    account: (u64, u64, Vec<u64>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedGuest {
    at: u64,
    /// The VMCB as VMRUN read it.
    vmcb: Vec<u8>,
    host: SavedHost,
    pauses: u64,
    paused: u64,
    /// The event that is being delivered, the length of the instruction behind it, and the vector of an interrupt that left the guest.
    vectoring: (u32, u32, u32),
    held: Option<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedHost {
    /// CR0, CR3, CR4, EFER, PAT, RFLAGS, RIP, RSP, RAX.
    registers: [u64; 9],
    segments: [Segment; 4],
    gdtr: DescriptorTable,
    idtr: DescriptorTable,
    nmi_blocked: bool,
}

/// A count that no run reaches.
const COUNT: u64 = 1 << 62;

/// What a vCPU has of SVM.
pub(crate) fn save(cpu: &Cpu) -> Saved {
    // Whoever adds a field decides here whether it is state.
    let Svm { guest, gif, at, vmcb, host, exit: _, held_nmi, pauses, paused, ratio, account } = &*cpu.svm;
    let Account { entries, failed, exits } = account;
    let vmx = &cpu.vmx;
    Saved {
        gif: *gif,
        held_nmi: *held_nmi,
        ratio: *ratio,
        guest: guest.then(|| SavedGuest {
            at: *at,
            vmcb: vmcb.bytes().to_vec(),
            host: SavedHost {
                registers: [
                    host.cr0,
                    host.cr3,
                    host.cr4,
                    host.efer,
                    host.pat,
                    host.rflags,
                    host.rip,
                    host.rsp,
                    host.rax,
                ],
                segments: host.segments,
                gdtr: host.gdtr,
                idtr: host.idtr,
                nmi_blocked: host.nmi_blocked,
            },
            pauses: *pauses,
            paused: *paused,
            vectoring: (vmx.vectoring.info, vmx.vectoring.code, vmx.vectoring_length),
            held: vmx.held,
        }),
        account: (*entries, *failed, exits.clone()),
    }
}

/// Gives `cpu`, whose registers and VMX operation are restored, what is behind them.
pub(crate) fn restore(cpu: &mut Cpu, saved: Saved) -> Result<(), Error> {
    let unless = |fits, why| Error::unless(fits, "SVM", why);
    let (entries, failed, exits) = saved.account;
    let counts = exits.iter().chain([&entries, &failed]).all(|count| *count < COUNT);
    unless(exits.len() == Account::default().exits.len() && counts, "a count is none that is kept")?;
    let plain = saved.gif && !saved.held_nmi && saved.guest.is_none() && saved.ratio == RATIO;
    unless(plain || cpu.offers(Feature::Svm), "SVM is not offered (--nested svm)")?;
    *cpu.svm = Svm {
        gif: saved.gif,
        held_nmi: saved.held_nmi,
        ratio: saved.ratio,
        account: Account { entries, failed, exits },
        ..Svm::default()
    };
    if let Some(guest) = saved.guest {
        unless(!cpu.vmx.on, "a guest of VMRUN in VMX operation")?;
        unless(guest.at & 0xfff == 0 && guest.at >> crate::mmu::MAXPHYADDR == 0, "no VMCB can be there")?;
        let vmcb: Vmcb = copy(guest.vmcb).ok_or_else(|| Error::unfit("SVM", "a VMCB of another length"))?;
        let [cr0, cr3, cr4, efer, pat, rflags, rip, rsp, rax] = guest.host.registers;
        let SavedHost { segments, gdtr, idtr, nmi_blocked, .. } = guest.host;
        let svm = &mut *cpu.svm;
        svm.host =
            Host { cr0, cr3, cr4, efer, pat, rflags, rip, rsp, rax, segments, gdtr, idtr, nmi_blocked };
        (svm.guest, svm.at, svm.vmcb) = (true, guest.at, vmcb);
        (svm.pauses, svm.paused) = (guest.pauses, guest.paused);
        let around = cpu.around_svm();
        unless(check::accepts(&cpu.svm.vmcb, around), "VMRUN accepts no such VMCB")?;
        unless(efer & !around.efer == 0 && cr4 & !around.cr4 == 0 && cr0 >> 32 == 0, "a host that is none")?;
        let (info, code, length) = guest.vectoring;
        let vmx = &mut *cpu.vmx;
        (vmx.vectoring, vmx.vectoring_length, vmx.held) = (Interruption { info, code }, length, guest.held);
        vmx.guest = true;
    }
    cpu.choose_windows();
    Ok(())
}
