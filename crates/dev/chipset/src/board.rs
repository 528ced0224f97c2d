//! The board: every device at its place, from a handful of parts.

use std::sync::{Arc, Mutex};

use satori_bus::{
    ByteSink, Clock, InterruptLine, MmioMap, MsiSink, Overlap, PortDevice, PortMap, PowerSink, TimerQueue,
};
use satori_defs::chipset::{hpet, ioapic, irq, mmio, port, uart};
use satori_pci::PciBus;
use satori_save::Save;

use crate::support::lock;
use crate::*;

/// What the devices are wired to.
pub struct Parts {
    /// The machine's time.
    pub clock: Arc<dyn Clock>,
    /// The queue that the machine runs.
    pub timers: Arc<TimerQueue>,
    /// Where power-off, reset, debug exit and panic are announced.
    pub power: Arc<dyn PowerSink>,
    /// The local APICs, for messages of the I/O APIC.
    pub interrupts: Arc<dyn MsiSink>,
    /// LINT0 of the bootstrap processor, for the PIC's INTR.
    pub intr: Arc<dyn InterruptLine>,
    /// Address line 20 of the processors: true when it is theirs.
    pub a20: Arc<dyn InterruptLine>,
    /// What COM1 transmits.
    pub com1: Box<dyn ByteSink>,
    /// What may be left out.
    pub options: Options,
}

/// Devices that may be left out; what is left out does not exist.
pub struct Options {
    /// For CMOS.
    pub memory: MemorySizes,
    /// The HPET.
    pub hpet: bool,
    /// The keyboard controller.
    pub i8042: bool,
    /// pvpanic.
    pub pvpanic: bool,
    /// Enhanced configuration space, which an MCFG table must then announce.
    pub ecam: bool,
    /// isa-debug-exit.
    pub debug_exit: Option<DebugExitPorts>,
    /// The debug console's sink; pc-testdev takes its port.
    pub debugcon: Option<Box<dyn ByteSink>>,
    /// pc-testdev and fw_cfg, for bare-metal suites: the number of processors.
    pub testdev: Option<u32>,
    /// Whether the devices begin as firmware leaves them, and not as at power-on.
    pub post: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory: MemorySizes::default(),
            hpet: true,
            i8042: true,
            pvpanic: true,
            ecam: false,
            debug_exit: Some(DebugExitPorts::default()),
            debugcon: None,
            testdev: None,
            post: false,
        }
    }
}

/// Where isa-debug-exit is: QEMU's iobase and iosize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugExitPorts {
    /// The first port.
    pub base: u16,
    /// How many ports, at least 1.
    pub size: u16,
}

impl Default for DebugExitPorts {
    fn default() -> Self {
        DebugExitPorts { base: port::DEBUG_EXIT, size: 4 }
    }
}

/// The four serial ports of a PC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Com {
    /// Port 0x3f8, IRQ 4.
    Com1,
    /// Port 0x2f8, IRQ 3.
    Com2,
    /// Port 0x3e8, IRQ 4.
    Com3,
    /// Port 0x2e8, IRQ 3.
    Com4,
}

impl Com {
    fn place(self) -> (&'static str, u16, u8) {
        match self {
            Com::Com1 => ("COM1", port::COM1, irq::COM1),
            Com::Com2 => ("COM2", port::COM2, irq::COM2),
            Com::Com3 => ("COM3", port::COM3, irq::COM1),
            Com::Com4 => ("COM4", port::COM4, irq::COM2),
        }
    }
}

/// Why a board cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Two devices at one address.
    #[error("{refused} and {taken_by} want the same addresses: move or leave out one of them")]
    Overlap {
        /// The range that was already taken.
        taken_by: &'static str,
        /// The range that was refused.
        refused: &'static str,
    },
    /// isa-debug-exit must have a port.
    #[error(
        "isa-debug-exit at {base:#x} with {size} ports does not fit into port space: give it 1 to 4 ports"
    )]
    DebugExitPorts {
        /// The first port asked for.
        base: u16,
        /// The number of ports asked for.
        size: u16,
    },
}

impl From<Overlap> for Error {
    fn from(overlap: Overlap) -> Self {
        Error::Overlap { taken_by: overlap.taken_by, refused: overlap.refused }
    }
}

/// The devices of a machine, mapped and wired. The maps own them.
pub struct Chipset {
    /// Port space.
    pub ports: PortMap,
    /// Physical memory space.
    pub mmio: MmioMap,
    /// The PIC, for interrupt acknowledge cycles.
    pub pic: Arc<Pic>,
    /// The I/O APIC, for EOI broadcasts.
    pub ioapic: Arc<IoApic>,
    /// Interrupt lines for further devices.
    pub router: Arc<IrqRouter>,
    /// The PM registers, for the power button.
    pub pm: Arc<AcpiPm>,
    /// The real-time clock.
    pub rtc: Arc<Rtc>,
    /// COM1, for input.
    pub com1: Arc<Uart>,
    /// PCI bus 0, for further functions.
    pub pci: Arc<PciBus>,
    saved: Parted,
}

/// Devices that have state, in the order in which they are saved and take theirs back.
#[derive(Default)]
struct Parted(Mutex<Vec<(&'static str, Arc<dyn Save>)>>);

impl Parted {
    /// Remembers `device`, and hands it on.
    fn keep<D: Save + 'static>(&self, name: &'static str, device: Arc<D>) -> Arc<D> {
        lock(&self.0).push((name, device.clone()));
        device
    }
}

impl Chipset {
    /// Puts the board together.
    pub fn new(parts: Parts) -> Result<Self, Error> {
        let Parts { clock, timers, power, interrupts, intr, a20, com1, options } = parts;
        let saved = Parted::default();
        let a20 = saved.keep("A20", A20::new(a20));
        let pic = saved.keep("PIC", Pic::new(intr));
        let ioapic = saved.keep("I/O APIC", IoApic::new(interrupts));
        let router = saved.keep("lines", Arc::new(IrqRouter::new(&pic, &ioapic)));
        let gate = LegacyGate::new();
        let pm = AcpiPm::new(clock.clone(), timers.clone(), router.isa(irq::SCI), power.clone());
        let pit = Pit::new(clock.clone(), timers.clone(), gate.line(router.isa(irq::PIT)));
        let pit = saved.keep("PIT", pit);
        let irq8 = Arc::new(Alarm { irq: gate.line(router.isa(irq::RTC)), pm: pm.clone() });
        let rtc = saved.keep("RTC", Rtc::new(clock.clone(), timers.clone(), irq8, options.memory));
        let pm = saved.keep("PM", pm);
        let pci = saved.keep("PCI", PciBus::new());

        let ports = PortMap::default();
        let add = |name, first, last, device: Arc<dyn PortDevice>| ports.add(name, first, last, device);
        add("PIC master", port::PIC_MASTER, port::PIC_MASTER + 1, pic.ports(0))?;
        add("PIC slave", port::PIC_SLAVE, port::PIC_SLAVE + 1, pic.ports(1))?;
        add("ELCR", port::ELCR, port::ELCR + 1, pic.elcr())?;
        add("PIT", port::PIT, port::PIT + 3, pit.clone())?;
        add("system control B", port::SYSTEM_CONTROL_B, port::SYSTEM_CONTROL_B, pit.port_b())?;
        let control = saved.keep("system control A", system_control_a(a20.clone(), power.clone()));
        add("system control A", port::SYSTEM_CONTROL_A, port::SYSTEM_CONTROL_A, control)?;
        add("RTC", port::RTC, port::RTC + 1, rtc.clone())?;
        add("ACPI PM", port::PM1A_EVT, port::PM_TMR + 3, pm.clone())?;
        // One port each: the reset control register hides in the middle of the address register,
        // which takes only dwords.
        add("PCI address", port::PCI_ADDRESS, port::PCI_ADDRESS, pci.address_port())?;
        let control = saved.keep("reset control", reset_control(power.clone()));
        add("reset control", port::RESET_CONTROL, port::RESET_CONTROL, control)?;
        add("PCI data", port::PCI_DATA, port::PCI_DATA + 3, pci.data_port())?;
        if options.i8042 {
            let i8042 = saved.keep("i8042", I8042::new(router.isa(irq::KEYBOARD), a20, power.clone()));
            add("i8042 data", port::I8042_DATA, port::I8042_DATA, i8042.data())?;
            add("i8042 command", port::I8042_COMMAND, port::I8042_COMMAND, i8042.command())?;
        }
        if let Some(DebugExitPorts { base, size }) = options.debug_exit {
            let last = size.checked_sub(1).and_then(|more| base.checked_add(more));
            let last = last.ok_or(Error::DebugExitPorts { base, size })?;
            add("isa-debug-exit", base, last, DebugExit::new(power.clone()))?;
        }
        if options.testdev.is_none()
            && let Some(sink) = options.debugcon
        {
            add("debug console", port::DEBUGCON, port::DEBUGCON, DebugConsole::new(sink))?;
        }
        if options.pvpanic {
            add("pvpanic", port::PVPANIC, port::PVPANIC, Pvpanic::new(power))?;
        }
        let com1 = map_uart(&ports, &router, &saved, Com::Com1, com1)?;

        let mmio = MmioMap::default();
        mmio.add("I/O APIC", mmio::IOAPIC, mmio::IOAPIC + (mmio::IOAPIC_SIZE - 1), ioapic.clone())?;
        if options.hpet {
            let pin = |n: u8| router.line(hpet::FIRST_PIN + n);
            if let (Some(a), Some(b), Some(c), Some(d)) = (pin(0), pin(1), pin(2), pin(3)) {
                let legacy = [router.isa(irq::PIT), router.isa(irq::RTC)];
                let hpet = Hpet::new(clock, timers, HpetLines { legacy, pins: [a, b, c, d] }, gate);
                let hpet = saved.keep("HPET", hpet);
                mmio.add("HPET", mmio::HPET, mmio::HPET + (mmio::HPET_SIZE - 1), hpet)?;
            }
        }
        if options.ecam {
            mmio.add("PCI ECAM", mmio::ECAM, mmio::ECAM + (mmio::ECAM_SIZE - 1), pci.ecam())?;
        }
        if let Some(cpus) = options.testdev {
            map_testdev(&ports, &mmio, &router, &saved)?;
            let memory = options.memory.below_4g.saturating_add(options.memory.above_4g);
            let fw_cfg = saved.keep("fw_cfg", FwCfg::new(cpus, memory));
            ports.add("fw_cfg", port::FW_CFG, port::FW_CFG + 1, fw_cfg)?;
        }
        if options.post {
            post::post(&ports);
        }
        Ok(Chipset { ports, mmio, pic, ioapic, router, pm, rtc, com1, pci, saved })
    }

    /// Adds another serial port that transmits to `sink`.
    pub fn add_uart(&self, com: Com, sink: Box<dyn ByteSink>) -> Result<Arc<Uart>, Error> {
        map_uart(&self.ports, &self.router, &self.saved, com, sink)
    }

    /// The devices that have state, each with its place, in the order in which they take theirs back.
    pub fn parts(&self) -> Vec<(&'static str, Arc<dyn Save>)> {
        lock(&self.saved.0).clone()
    }
}

/// IRQ 8, which the PM registers see wherever it is led.
struct Alarm {
    irq: Arc<dyn InterruptLine>,
    pm: Arc<AcpiPm>,
}

impl InterruptLine for Alarm {
    fn set(&self, asserted: bool) {
        self.irq.set(asserted);
        if asserted {
            self.pm.ring_alarm();
        }
    }
}

fn map_testdev(ports: &PortMap, mmio: &MmioMap, router: &IrqRouter, saved: &Parted) -> Result<(), Error> {
    let data = saved.keep("pc-testdev", TestPorts::new());
    ports.add("pc-testdev", port::TESTDEV_DATA, port::TESTDEV_DATA + 3, data.clone())?;
    ports.add("pc-testdev flush", port::TESTDEV_FLUSH, port::TESTDEV_FLUSH + 3, Arc::new(TestFlush))?;
    ports.add("pc-testdev bytes", port::TESTDEV_BYTES, port::TESTDEV_BYTES + 3, data)?;
    let lines: Vec<_> = (0..ioapic::PINS as u8).filter_map(|pin| router.line(pin)).collect();
    let last = port::TESTDEV_IRQ + (lines.len() as u16 - 1);
    ports.add("pc-testdev lines", port::TESTDEV_IRQ, last, TestLines::new(lines))?;
    let memory = saved.keep("pc-testdev memory", TestMemory::new(mmio::TESTDEV_SIZE));
    mmio.add("pc-testdev memory", mmio::TESTDEV, mmio::TESTDEV + (mmio::TESTDEV_SIZE - 1), memory)?;
    Ok(())
}

fn map_uart(
    ports: &PortMap,
    router: &IrqRouter,
    saved: &Parted,
    com: Com,
    sink: Box<dyn ByteSink>,
) -> Result<Arc<Uart>, Error> {
    let (name, base, irq) = com.place();
    let device = saved.keep(name, Uart::new(router.isa(irq), sink));
    ports.add(name, base, base + (uart::PORTS - 1), device.clone())?;
    Ok(device)
}
