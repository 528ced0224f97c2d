//! Where things are, in memory and in a processor's area.

/// The Image's header.
pub(crate) const HEADER: usize = 64;
/// A word behind the last instruction: UDF #0xe0d.
pub(crate) const END_OF_CODE: u32 = 0x0e0d;
/// Where the Image lies: 2 MiB into the RAM of QEMU's `virt`, as QEMU puts nothing before that.
pub(crate) const TEXT_OFFSET: u64 = 0x20_0000;
pub(crate) const IMAGE: u64 = 0x4000_0000 + TEXT_OFFSET;
/// The processors' areas.
pub(crate) const AREAS_OFFSET: usize = 0x10_0000;
pub(crate) const AREAS: u64 = IMAGE + AREAS_OFFSET as u64;
pub(crate) const AREA_BITS: u32 = 16;
/// The guest's block of 2 MiB, and where the guest has it.
pub(crate) const GUEST_OFFSET: usize = 0x20_0000;
pub(crate) const GUEST: u64 = IMAGE + GUEST_OFFSET as u64;
pub(crate) const GUEST_IPA: u64 = 0x2000_0000;
pub(crate) const IMAGE_SIZE: usize = 0x40_0000;

/// The machine's devices.
pub(crate) const GICD: u64 = 0x0800_0000;
pub(crate) const GICR: u64 = 0x080a_0000;
pub(crate) const UART: u64 = 0x0900_0000;
/// The guest's: its distributor, which the kernel emulates, and what the program does.
pub(crate) const VGICD: u64 = 0x0800_0000;
pub(crate) const DEVICE: u64 = 0x0a00_0000;

/// What a processor and its vCPU have, by offset in the processor's area.
pub(crate) mod area {
    /// The guest's X0 to X30, PC and PSTATE.
    pub(crate) const X: usize = 0;
    pub(crate) const PC: usize = 0x100;
    pub(crate) const PSTATE: usize = 0x108;
    /// Why the guest was left: [`TRAP`] or [`INTERRUPT`], ESR, and FAR with HPFAR behind it.
    pub(crate) const EXIT: usize = 0x110;
    pub(crate) const ESR: usize = 0x118;
    pub(crate) const FAR: usize = 0x120;
    /// X19 to X30 of the host, its PC with PSTATE behind it.
    pub(crate) const HOST_X: usize = 0x140;
    pub(crate) const HOST_PC: usize = 0x1a0;
    /// What keeps a vCPU from being entered.
    pub(crate) const REQUESTS: usize = 0x1c0;
    pub(crate) const SIGNAL: usize = 0x1c8;
    /// The vector registers are the guest's.
    pub(crate) const FP_LOADED: usize = 0x1d0;
    /// The interrupt that another vCPU sent, or 0.
    pub(crate) const PENDING: usize = 0x1d8;
    /// The virtual CPU interface: list registers in use, the first, VMCR with AP0R0 and AP1R0 behind it.
    pub(crate) const USED_LRS: usize = 0x1e0;
    pub(crate) const LR0: usize = 0x1e8;
    pub(crate) const VMCR: usize = 0x1f0;
    pub(crate) const ELRSR: usize = 0x208;
    /// The guest's timer.
    pub(crate) const TIMER_CTL: usize = 0x218;
    pub(crate) const TIMER_CVAL: usize = 0x220;
    pub(crate) const TIMER_OFFSET: usize = 0x228;
    /// What the kernel asks of the program: [`MMIO`], an address, the data, the guest's register.
    pub(crate) const REASON: usize = 0x240;
    pub(crate) const ADDRESS: usize = 0x248;
    pub(crate) const DATA: usize = 0x250;
    pub(crate) const RT: usize = 0x258;
    /// The program's device.
    pub(crate) const DEVICE: usize = 0x260;
    /// This processor's redistributor, its frame of private interrupts.
    pub(crate) const REDISTRIBUTOR: usize = 0x268;
    /// System registers.
    pub(crate) const GUEST_SYS: usize = 0x280;
    pub(crate) const HOST_SYS: usize = 0x380;
    /// The emulated distributor: CTLR, TYPER.
    pub(crate) const VGICD: usize = 0x480;
    /// Vector registers, FPSR and FPCR behind them.
    pub(crate) const GUEST_FP: usize = 0x600;
    pub(crate) const HOST_FP: usize = 0x900;
    /// Ends of the stacks of EL2 in split mode, and of the kernel.
    pub(crate) const HYP_STACK: u64 = 0x6000;
    pub(crate) const KERNEL_STACK: u64 = 0x8000;

    pub(crate) const TRAP: u64 = 2;
    pub(crate) const INTERRUPT: u64 = 1;
    pub(crate) const MMIO: u64 = 6;
}
