//! The platform devices: where they are, which interrupt they own, and their register bits.

/// Guest physical addresses of the platform's MMIO devices.
pub mod mmio {
    /// I/O APIC (82093AA 3.0: its power-on address).
    pub const IOAPIC: u64 = 0xfec0_0000;
    /// Bytes of the I/O APIC's page.
    pub const IOAPIC_SIZE: u64 = 0x1000;
    /// HPET (IA-PC HPET 1.0a 2.3.1: its usual address).
    pub const HPET: u64 = 0xfed0_0000;
    /// Bytes of the HPET's register block.
    pub const HPET_SIZE: u64 = 0x400;
    /// PCI Express enhanced configuration space of bus 0 (ACPI's MCFG names it).
    pub const ECAM: u64 = 0xe000_0000;
    /// Bytes of enhanced configuration space of one bus: 32 devices of 8 functions of 4 KiB.
    pub const ECAM_SIZE: u64 = 1 << 20;
    /// pc-testdev's storage.
    pub const TESTDEV: u64 = 0xff00_0000;
    /// Bytes of pc-testdev's storage.
    pub const TESTDEV_SIZE: u64 = 0x1_0000;
}

/// I/O ports, each the first of its device.
pub mod port {
    /// Master 8259A.
    pub const PIC_MASTER: u16 = 0x20;
    /// 8254 counters; the control word is at +3.
    pub const PIT: u16 = 0x40;
    /// i8042 data; status and command are at +4.
    pub const I8042_DATA: u16 = 0x60;
    /// System control port B: speaker gate, OUT2, refresh.
    pub const SYSTEM_CONTROL_B: u16 = 0x61;
    /// i8042 status and command.
    pub const I8042_COMMAND: u16 = 0x64;
    /// RTC index; data is at +1.
    pub const RTC: u16 = 0x70;
    /// System control port A: fast A20 and reset.
    pub const SYSTEM_CONTROL_A: u16 = 0x92;
    /// Slave 8259A.
    pub const PIC_SLAVE: u16 = 0xa0;
    /// pc-testdev's four bytes of storage.
    pub const TESTDEV_DATA: u16 = 0xe0;
    /// pc-testdev's port to flush a page of the host's; four bytes.
    pub const TESTDEV_FLUSH: u16 = 0xe4;
    /// pc-testdev's storage again, byte by byte.
    pub const TESTDEV_BYTES: u16 = 0xe8;
    /// Debug console, as Bochs and QEMU have it.
    pub const DEBUGCON: u16 = 0xe9;
    /// isa-debug-exit where kernels' tests expect it.
    pub const DEBUG_EXIT: u16 = 0xf4;
    /// COM4.
    pub const COM4: u16 = 0x2e8;
    /// COM2.
    pub const COM2: u16 = 0x2f8;
    /// COM3.
    pub const COM3: u16 = 0x3e8;
    /// COM1.
    pub const COM1: u16 = 0x3f8;
    /// Edge/level control registers of both 8259As.
    pub const ELCR: u16 = 0x4d0;
    /// pvpanic, as QEMU has it.
    pub const PVPANIC: u16 = 0x505;
    /// QEMU's fw_cfg: selector, and data at +1.
    pub const FW_CFG: u16 = 0x510;
    /// ACPI PM1a event block: status, enable.
    pub const PM1A_EVT: u16 = 0x600;
    /// ACPI PM1a control block.
    pub const PM1A_CNT: u16 = 0x604;
    /// ACPI PM timer block.
    pub const PM_TMR: u16 = 0x608;
    /// PCI configuration address.
    pub const PCI_ADDRESS: u16 = 0xcf8;
    /// Reset control register, which hides inside the PCI configuration address.
    pub const RESET_CONTROL: u16 = 0xcf9;
    /// PCI configuration data.
    pub const PCI_DATA: u16 = 0xcfc;
    /// pc-testdev's interrupt lines, one port each.
    pub const TESTDEV_IRQ: u16 = 0x2000;
}

/// Items of QEMU's fw_cfg (docs/specs/fw_cfg.rst); integers are little-endian unless it says so.
pub mod fw_cfg {
    /// "QEMU".
    pub const SIGNATURE: u16 = 0x00;
    /// u32, interfaces: bit 0 the ports, bit 1 DMA.
    pub const ID: u16 = 0x01;
    /// u64, bytes of RAM.
    pub const RAM_SIZE: u16 = 0x03;
    /// u16, whether there is no screen.
    pub const NOGRAPHIC: u16 = 0x04;
    /// u16, processors.
    pub const NB_CPUS: u16 = 0x05;
    /// u16, the most processors that there can be.
    pub const MAX_CPUS: u16 = 0x0f;
    /// u32, big-endian, named files.
    pub const FILE_DIR: u16 = 0x19;
    /// Value of [`SIGNATURE`].
    pub const SIGNATURE_VALUE: [u8; 4] = *b"QEMU";
    /// [`ID`]: the ports.
    pub const ID_PORTS: u32 = 1;
}

/// ISA interrupt numbers.
pub mod irq {
    /// PIT counter 0, or HPET timer 0 with legacy replacement.
    pub const PIT: u8 = 0;
    /// Keyboard side of the i8042.
    pub const KEYBOARD: u8 = 1;
    /// The slave 8259A's input on the master.
    pub const CASCADE: u8 = 2;
    /// COM2 and COM4.
    pub const COM2: u8 = 3;
    /// COM1 and COM3.
    pub const COM1: u8 = 4;
    /// RTC, or HPET timer 1 with legacy replacement.
    pub const RTC: u8 = 8;
    /// ACPI's system control interrupt.
    pub const SCI: u8 = 9;
}

/// 8259A programmable interrupt controller (Intel 231468).
pub mod pic {
    /// In the command port: this is ICW1.
    pub const ICW1: u8 = 1 << 4;
    /// ICW1: an ICW4 will follow.
    pub const ICW1_IC4: u8 = 1 << 0;
    /// ICW1: single, no ICW3 follows.
    pub const ICW1_SNGL: u8 = 1 << 1;
    /// ICW4: 8086 mode.
    pub const ICW4_8086: u8 = 1 << 0;
    /// ICW4: automatic end of interrupt.
    pub const ICW4_AEOI: u8 = 1 << 1;
    /// ICW4: special fully nested mode.
    pub const ICW4_SFNM: u8 = 1 << 4;
    /// In the command port: this is OCW3.
    pub const OCW3: u8 = 1 << 3;
    /// OCW3: read register selected by RIS.
    pub const OCW3_RR: u8 = 1 << 1;
    /// OCW3: read ISR rather than IRR.
    pub const OCW3_RIS: u8 = 1 << 0;
    /// OCW3: poll command.
    pub const OCW3_P: u8 = 1 << 2;
    /// OCW3: SMM is meant.
    pub const OCW3_ESMM: u8 = 1 << 6;
    /// OCW3: special mask mode.
    pub const OCW3_SMM: u8 = 1 << 5;
    /// ELCR bits that may be level-triggered on the master: not 0, 1, 2.
    pub const ELCR_MASTER: u8 = 0xf8;
    /// ELCR bits that may be level-triggered on the slave: not 8, 13.
    pub const ELCR_SLAVE: u8 = 0xde;
}

/// 8254 programmable interval timer (Intel 231164).
pub mod pit {
    /// Control word: low byte of the count only.
    pub const ACCESS_LOW: u8 = 1 << 4;
    /// Control word: low byte of the count, then high byte.
    pub const ACCESS_BOTH: u8 = 3 << 4;
    /// Its input clock in Hz.
    pub const HZ: u64 = 1_193_182;
    /// System control port B: gate of counter 2.
    pub const PORT_B_GATE2: u8 = 1 << 0;
    /// System control port B: the bits software writes.
    pub const PORT_B_WRITABLE: u8 = 0x0f;
    /// System control port B: refresh toggle.
    pub const PORT_B_REFRESH: u8 = 1 << 4;
    /// System control port B: OUT of counter 2.
    pub const PORT_B_OUT2: u8 = 1 << 5;
    /// Nanoseconds between toggles of the refresh bit.
    pub const REFRESH_NANOS: u64 = 15_085;
}

/// I/O APIC (82093AA).
pub mod ioapic {
    /// Its input pins.
    pub const PINS: usize = 24;
    /// The pin that takes ISA interrupt 0: pin 0 was the 8259A's.
    pub const PIT_PIN: usize = 2;
    /// Version: an 82093AA, without the EOI register.
    pub const VERSION: u32 = 0x11;
    /// Window: register select.
    pub const IOREGSEL: u64 = 0x00;
    /// Window: data.
    pub const IOWIN: u64 = 0x10;
    /// Register: identification.
    pub const IOAPICID: u8 = 0;
    /// Register: version and number of entries.
    pub const IOAPICVER: u8 = 1;
    /// Register: arbitration.
    pub const IOAPICARB: u8 = 2;
    /// Register: the first half of the first redirection table entry.
    pub const IOREDTBL: u8 = 0x10;
    /// Redirection entry: vector.
    pub const VECTOR: u64 = 0xff;
    /// Redirection entry: first bit of the delivery mode.
    pub const DELIVERY_MODE_SHIFT: u32 = 8;
    /// Redirection entry: logical destination.
    pub const DESTINATION_MODE: u64 = 1 << 11;
    /// Redirection entry: delivery status, read-only.
    pub const DELIVERY_STATUS: u64 = 1 << 12;
    /// Redirection entry: remote IRR, read-only.
    pub const REMOTE_IRR: u64 = 1 << 14;
    /// Redirection entry: level-triggered.
    pub const TRIGGER_MODE: u64 = 1 << 15;
    /// Redirection entry: masked.
    pub const MASK: u64 = 1 << 16;
    /// Redirection entry: first of the seven bits that hold destination ID bits 14:8 for guests that know them.
    pub const EXTENDED_DESTINATION_SHIFT: u32 = 49;
    /// Redirection entry: first bit of the destination.
    pub const DESTINATION_SHIFT: u32 = 56;
}

/// High precision event timer (IA-PC HPET 1.0a).
pub mod hpet {
    /// Its comparators.
    pub const TIMERS: usize = 3;
    /// Nanoseconds of a tick.
    pub const TICK_NANOS: u64 = 10;
    /// General capabilities: revision 1, three timers, 64 bits, legacy replacement, Intel, 10^7 fs a tick.
    pub const GCAP_ID_VALUE: u64 =
        1 | (TIMERS as u64 - 1) << 8 | 1 << 13 | 1 << 15 | 0x8086 << 16 | (TICK_NANOS * 1_000_000) << 32;
    /// General capabilities and ID.
    pub const GCAP_ID: u64 = 0x000;
    /// General configuration.
    pub const GEN_CONF: u64 = 0x010;
    /// General interrupt status.
    pub const GINTR_STA: u64 = 0x020;
    /// Main counter value.
    pub const MAIN_CNT: u64 = 0x0f0;
    /// The first timer's block.
    pub const TIMER: u64 = 0x100;
    /// Bytes from a timer's block to the next.
    pub const TIMER_STRIDE: u64 = 0x20;
    /// In a timer's block: configuration and capabilities.
    pub const TN_CONF: u64 = 0x00;
    /// In a timer's block: comparator.
    pub const TN_COMP: u64 = 0x08;
    /// General configuration: the counter runs and interrupts are allowed.
    pub const ENABLE_CNF: u64 = 1 << 0;
    /// General configuration: timers 0 and 1 replace the PIT and the RTC.
    pub const LEG_RT_CNF: u64 = 1 << 1;
    /// Timer: level-triggered.
    pub const TN_INT_TYPE_CNF: u64 = 1 << 1;
    /// Timer: interrupt enabled.
    pub const TN_INT_ENB_CNF: u64 = 1 << 2;
    /// Timer: periodic.
    pub const TN_TYPE_CNF: u64 = 1 << 3;
    /// Timer: can be periodic.
    pub const TN_PER_INT_CAP: u64 = 1 << 4;
    /// Timer: is 64 bits wide.
    pub const TN_SIZE_CAP: u64 = 1 << 5;
    /// Timer: the next comparator write sets the accumulator too.
    pub const TN_VAL_SET_CNF: u64 = 1 << 6;
    /// Timer: behaves as 32 bits wide.
    pub const TN_32MODE_CNF: u64 = 1 << 8;
    /// Timer: first bit of the I/O APIC pin.
    pub const TN_INT_ROUTE_SHIFT: u32 = 9;
    /// Timer: the five bits of the I/O APIC pin.
    pub const TN_INT_ROUTE_CNF: u64 = 0x1f << TN_INT_ROUTE_SHIFT;
    /// The first of the I/O APIC pins that timers may use.
    pub const FIRST_PIN: u8 = 20;
    /// How many pins timers may use.
    pub const PIN_COUNT: usize = 4;
    /// Timer: the allowed I/O APIC pins, 20 to 23.
    pub const TN_INT_ROUTE_CAP: u64 = 0x00f0_0000 << 32;
}

/// MC146818A real-time clock and CMOS memory.
pub mod rtc {
    /// Seconds.
    pub const SECONDS: u8 = 0x00;
    /// Seconds of the alarm.
    pub const SECONDS_ALARM: u8 = 0x01;
    /// Minutes.
    pub const MINUTES: u8 = 0x02;
    /// Minutes of the alarm.
    pub const MINUTES_ALARM: u8 = 0x03;
    /// Hours.
    pub const HOURS: u8 = 0x04;
    /// Hours of the alarm.
    pub const HOURS_ALARM: u8 = 0x05;
    /// Day of the week, 1 is Sunday.
    pub const DAY_OF_WEEK: u8 = 0x06;
    /// Day of the month.
    pub const DAY_OF_MONTH: u8 = 0x07;
    /// Month.
    pub const MONTH: u8 = 0x08;
    /// Year of the century.
    pub const YEAR: u8 = 0x09;
    /// Register A.
    pub const A: u8 = 0x0a;
    /// Register B.
    pub const B: u8 = 0x0b;
    /// Register C, cleared by reading.
    pub const C: u8 = 0x0c;
    /// Register D.
    pub const D: u8 = 0x0d;
    /// Century, where the FADT says.
    pub const CENTURY: u8 = 0x32;
    /// Register A: update in progress.
    pub const A_UIP: u8 = 1 << 7;
    /// Register A: rate selection.
    pub const A_RS: u8 = 0x0f;
    /// Register A: the time base of 32,768 Hz.
    pub const A_DV_32768: u8 = 2 << 4;
    /// Register B: updates are held.
    pub const B_SET: u8 = 1 << 7;
    /// Register B: periodic interrupt enable.
    pub const B_PIE: u8 = 1 << 6;
    /// Register B: alarm interrupt enable.
    pub const B_AIE: u8 = 1 << 5;
    /// Register B: update-ended interrupt enable.
    pub const B_UIE: u8 = 1 << 4;
    /// Register B: binary rather than BCD.
    pub const B_DM: u8 = 1 << 2;
    /// Register B: 24 hours.
    pub const B_24: u8 = 1 << 1;
    /// Register C: an enabled flag is set.
    pub const C_IRQF: u8 = 1 << 7;
    /// Register C: periodic flag.
    pub const C_PF: u8 = 1 << 6;
    /// Register C: alarm flag.
    pub const C_AF: u8 = 1 << 5;
    /// Register C: update-ended flag.
    pub const C_UF: u8 = 1 << 4;
    /// Register D: the memory kept its contents.
    pub const D_VRT: u8 = 1 << 7;
    /// Alarm: both bits set match anything.
    pub const ALARM_ANY: u8 = 0xc0;
    /// In 12-hour mode: afternoon.
    pub const PM: u8 = 1 << 7;
    /// How long before the update UIP is set: 244 µs.
    pub const UIP_NANOS: u64 = 244_000;
    /// CMOS: KiB of base memory, two bytes.
    pub const BASE_MEMORY: u8 = 0x15;
    /// CMOS: KiB above 1 MiB, two bytes.
    pub const EXTENDED_MEMORY: u8 = 0x17;
    /// CMOS: KiB above 1 MiB as found by the power-on test, two bytes.
    pub const EXTENDED_MEMORY_TESTED: u8 = 0x30;
    /// CMOS: 64-KiB units from 16 MiB to 4 GiB, two bytes (Bochs).
    pub const MEMORY_ABOVE_16M: u8 = 0x34;
    /// CMOS: 64-KiB units above 4 GiB, three bytes (Bochs).
    pub const MEMORY_ABOVE_4G: u8 = 0x5b;
}

/// ACPI fixed hardware (ACPI 6.5, 4.8.3).
pub mod pm {
    /// PM timer's clock in Hz.
    pub const TIMER_HZ: u64 = 3_579_545;
    /// PM1 status and enable: the PM timer's most significant bit changed.
    pub const TMR: u16 = 1 << 0;
    /// PM1 status and enable: global lock released.
    pub const GBL: u16 = 1 << 5;
    /// PM1 status and enable: power button.
    pub const PWRBTN: u16 = 1 << 8;
    /// PM1 status and enable: sleep button.
    pub const SLPBTN: u16 = 1 << 9;
    /// PM1 status and enable: RTC alarm.
    pub const RTC: u16 = 1 << 10;
    /// PM1 status: woke.
    pub const WAK_STS: u16 = 1 << 15;
    /// PM1 control: the machine is in ACPI mode.
    pub const SCI_EN: u16 = 1 << 0;
    /// PM1 control: first bit of the sleep type.
    pub const SLP_TYP_SHIFT: u32 = 10;
    /// PM1 control: go to sleep, write-only.
    pub const SLP_EN: u16 = 1 << 13;
    /// The sleep type that the DSDT's \_S3 gives.
    pub const SLP_TYP_S3: u16 = 1;
    /// The sleep type that the DSDT's \_S5 gives.
    pub const SLP_TYP_S5: u16 = 5;
}

/// 16550A UART (National PC16550D).
pub mod uart {
    /// Receiver buffer, transmitter holding, divisor low.
    pub const DATA: u16 = 0;
    /// Interrupt enable, divisor high.
    pub const IER: u16 = 1;
    /// Interrupt identification (read).
    pub const IIR: u16 = 2;
    /// FIFO control (write).
    pub const FCR: u16 = 2;
    /// Line control.
    pub const LCR: u16 = 3;
    /// Modem control.
    pub const MCR: u16 = 4;
    /// Line status.
    pub const LSR: u16 = 5;
    /// Modem status.
    pub const MSR: u16 = 6;
    /// Scratch.
    pub const SCR: u16 = 7;
    /// Ports of one UART.
    pub const PORTS: u16 = 8;
    /// Bytes of the receive FIFO.
    pub const FIFO_SIZE: usize = 16;
    /// IER: received data available.
    pub const IER_ERBFI: u8 = 1 << 0;
    /// IER: transmitter holding register empty.
    pub const IER_ETBEI: u8 = 1 << 1;
    /// IER: receiver line status.
    pub const IER_ELSI: u8 = 1 << 2;
    /// IER: modem status.
    pub const IER_EDSSI: u8 = 1 << 3;
    /// IIR: modem status.
    pub const IIR_MODEM: u8 = 0x00;
    /// IIR: nothing is pending.
    pub const IIR_NONE: u8 = 0x01;
    /// IIR: transmitter holding register empty.
    pub const IIR_THRE: u8 = 0x02;
    /// IIR: received data available.
    pub const IIR_DATA: u8 = 0x04;
    /// IIR: receiver line status.
    pub const IIR_LINE: u8 = 0x06;
    /// IIR: fewer bytes than the trigger level, and no more coming.
    pub const IIR_TIMEOUT: u8 = 0x0c;
    /// IIR: FIFOs enabled.
    pub const IIR_FIFO: u8 = 0xc0;
    /// FCR: FIFO enable.
    pub const FCR_ENABLE: u8 = 1 << 0;
    /// FCR: clear the receive FIFO.
    pub const FCR_CLEAR_RX: u8 = 1 << 1;
    /// LCR: divisor latch access.
    pub const LCR_DLAB: u8 = 1 << 7;
    /// MCR: data terminal ready.
    pub const MCR_DTR: u8 = 1 << 0;
    /// MCR: request to send.
    pub const MCR_RTS: u8 = 1 << 1;
    /// MCR: OUT1.
    pub const MCR_OUT1: u8 = 1 << 2;
    /// MCR: OUT2, which lets a PC's interrupt line through.
    pub const MCR_OUT2: u8 = 1 << 3;
    /// MCR: loopback.
    pub const MCR_LOOP: u8 = 1 << 4;
    /// LSR: the line was held low for longer than a character: a break.
    pub const LSR_BI: u8 = 1 << 4;
    /// LSR: data ready.
    pub const LSR_DR: u8 = 1 << 0;
    /// LSR: overrun.
    pub const LSR_OE: u8 = 1 << 1;
    /// LSR: transmitter holding register empty.
    pub const LSR_THRE: u8 = 1 << 5;
    /// LSR: transmitter empty.
    pub const LSR_TEMT: u8 = 1 << 6;
    /// MSR: trailing edge of the ring indicator.
    pub const MSR_TERI: u8 = 1 << 2;
    /// MSR: clear to send.
    pub const MSR_CTS: u8 = 1 << 4;
    /// MSR: data set ready.
    pub const MSR_DSR: u8 = 1 << 5;
    /// MSR: ring indicator.
    pub const MSR_RI: u8 = 1 << 6;
    /// MSR: data carrier detect.
    pub const MSR_DCD: u8 = 1 << 7;
}

/// i8042 keyboard controller.
pub mod i8042 {
    /// Status: output buffer full.
    pub const STATUS_OBF: u8 = 1 << 0;
    /// Status: self-test passed.
    pub const STATUS_SYS: u8 = 1 << 2;
    /// Status: the last write went to the command port.
    pub const STATUS_COMMAND: u8 = 1 << 3;
    /// Status: keyboard not inhibited.
    pub const STATUS_UNLOCKED: u8 = 1 << 4;
    /// Status: the device did not answer in time.
    pub const STATUS_TIMEOUT: u8 = 1 << 6;
    /// Command byte: keyboard interrupt enabled.
    pub const CTR_KBD_INT: u8 = 1 << 0;
    /// Command byte: keyboard clock off.
    pub const CTR_KBD_DISABLE: u8 = 1 << 4;
    /// Command byte: auxiliary clock off.
    pub const CTR_AUX_DISABLE: u8 = 1 << 5;
    /// Command byte: scan codes are translated to set 1.
    pub const CTR_XLATE: u8 = 1 << 6;
    /// Command: read the command byte; 0x20 to 0x3f read the controller's memory.
    pub const READ_RAM: u8 = 0x20;
    /// Command: write the command byte; 0x60 to 0x7f write the controller's memory.
    pub const WRITE_RAM: u8 = 0x60;
    /// Command: disable the auxiliary port.
    pub const AUX_DISABLE: u8 = 0xa7;
    /// Command: enable the auxiliary port.
    pub const AUX_ENABLE: u8 = 0xa8;
    /// Command: test the auxiliary port.
    pub const AUX_TEST: u8 = 0xa9;
    /// Command: self-test.
    pub const SELF_TEST: u8 = 0xaa;
    /// Command: test the keyboard port.
    pub const KBD_TEST: u8 = 0xab;
    /// Command: disable the keyboard port.
    pub const KBD_DISABLE: u8 = 0xad;
    /// Command: enable the keyboard port.
    pub const KBD_ENABLE: u8 = 0xae;
    /// Command: read the input port.
    pub const READ_INPUT: u8 = 0xc0;
    /// Command: read the output port.
    pub const READ_OUTPUT: u8 = 0xd0;
    /// Command: write the output port.
    pub const WRITE_OUTPUT: u8 = 0xd1;
    /// Command: A20 off.
    pub const A20_OFF: u8 = 0xdd;
    /// Command: A20 on.
    pub const A20_ON: u8 = 0xdf;
    /// Command: give a byte back as if the keyboard had sent it.
    pub const KBD_LOOP: u8 = 0xd2;
    /// Command: give a byte back as if the auxiliary device had sent it.
    pub const AUX_LOOP: u8 = 0xd3;
    /// Command: send a byte to the auxiliary device.
    pub const AUX_SEND: u8 = 0xd4;
    /// Commands 0xf0 to 0xff pulse the output port's low bits that are 0.
    pub const PULSE_OUTPUT: u8 = 0xf0;
    /// Self-test's good answer.
    pub const SELF_TEST_OK: u8 = 0x55;
    /// A port test's answer: the clock line is stuck low, which is to say that nothing is there.
    pub const PORT_TEST_CLOCK_LOW: u8 = 0x01;
    /// What the controller gives when the device does not answer.
    pub const RESEND: u8 = 0xfe;
    /// Output port: 0 holds the processor in reset.
    pub const OUTPUT_NO_RESET: u8 = 1 << 0;
    /// Output port: A20.
    pub const OUTPUT_A20: u8 = 1 << 1;
}

/// Resets.
pub mod reset {
    /// Port 0xcf9: hard reset rather than INIT.
    pub const SYS_RST: u8 = 1 << 1;
    /// Port 0xcf9: reset, when it goes from 0 to 1.
    pub const RST_CPU: u8 = 1 << 2;
    /// Port 0xcf9: power cycle.
    pub const FULL_RST: u8 = 1 << 3;
    /// What the FADT tells the guest to write to port 0xcf9.
    pub const ACPI_RESET_VALUE: u8 = SYS_RST | RST_CPU;
    /// Port 0x92: reset, when it goes from 0 to 1.
    pub const PORT_A_RESET: u8 = 1 << 0;
    /// Port 0x92: A20.
    pub const PORT_A_A20: u8 = 1 << 1;
}

/// pvpanic (QEMU docs/specs/pvpanic).
pub mod pvpanic {
    /// The guest panicked.
    pub const PANICKED: u8 = 1 << 0;
    /// The guest panicked and its crash kernel takes over.
    pub const CRASH_LOADED: u8 = 1 << 1;
}

/// The text screen of a VGA in its first mode: a character and its attribute for each cell.
pub mod text_screen {
    /// Where it begins.
    pub const START: u64 = 0xb_8000;
    /// Cells in a row.
    pub const COLUMNS: usize = 80;
    /// Rows.
    pub const ROWS: usize = 25;
}
