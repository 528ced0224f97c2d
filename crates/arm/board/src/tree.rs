//! The device tree.

use vm_fdt::{Error, FdtWriter};

use crate::map;

/// What the tree tells of a machine.
pub(crate) struct Tree<'a> {
    pub memory: u64,
    pub cmdline: &'a str,
    pub initrd: Option<(u64, u64)>,
    /// MPIDR_EL1's affinity of each vCPU.
    pub cpus: &'a [u64],
    /// EL2 is the kernel's, so firmware is called by SMC.
    pub el2: bool,
}

/// Phandles: of the interrupt controller, the serial port's clock, the frame of messages, the pins.
const GIC: u32 = 1;
const CLOCK: u32 = 2;
const MESSAGES: u32 = 3;
const PINS: u32 = 4;

/// Interrupt cells: kinds and flags.
const SPI: u32 = 0;
const PPI: u32 = 1;
const LEVEL_HIGH: u32 = 4;

/// Linux's input code of the key.
const KEY_POWER: u32 = 116;

impl Tree<'_> {
    /// The tree as the kernel finds it in memory.
    pub(crate) fn write(&self) -> Result<Vec<u8>, Error> {
        let mut fdt = FdtWriter::new()?;
        let root = fdt.begin_node("")?;
        fdt.property_string("compatible", "linux,dummy-virt")?;
        fdt.property_string("model", "satori")?;
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_u32("interrupt-parent", GIC)?;
        self.chosen(&mut fdt)?;
        let memory = fdt.begin_node(&format!("memory@{:x}", map::RAM))?;
        fdt.property_string("device_type", "memory")?;
        fdt.property_array_u64("reg", &[map::RAM, self.memory])?;
        fdt.end_node(memory)?;
        self.processors(&mut fdt)?;
        self.devices(&mut fdt)?;
        fdt.end_node(root)?;
        fdt.finish()
    }

    fn chosen(&self, fdt: &mut FdtWriter) -> Result<(), Error> {
        let chosen = fdt.begin_node("chosen")?;
        fdt.property_string("bootargs", self.cmdline)?;
        fdt.property_string("stdout-path", &format!("/pl011@{:x}", map::SERIAL))?;
        if let Some((start, end)) = self.initrd {
            fdt.property_u64("linux,initrd-start", start)?;
            fdt.property_u64("linux,initrd-end", end)?;
        }
        fdt.end_node(chosen)
    }

    fn processors(&self, fdt: &mut FdtWriter) -> Result<(), Error> {
        let cpus = fdt.begin_node("cpus")?;
        fdt.property_u32("#address-cells", 1)?;
        fdt.property_u32("#size-cells", 0)?;
        for &affinity in self.cpus {
            let cpu = fdt.begin_node(&format!("cpu@{affinity:x}"))?;
            fdt.property_string("device_type", "cpu")?;
            fdt.property_string("compatible", "arm,armv8")?;
            fdt.property_string("enable-method", "psci")?;
            fdt.property_u32("reg", affinity as u32)?;
            fdt.end_node(cpu)?;
        }
        fdt.end_node(cpus)?;
        let psci = fdt.begin_node("psci")?;
        fdt.property_string_list("compatible", vec!["arm,psci-1.0".into(), "arm,psci-0.2".into()])?;
        fdt.property_string("method", if self.el2 { "smc" } else { "hvc" })?;
        fdt.end_node(psci)?;
        let timer = fdt.begin_node("timer")?;
        fdt.property_string("compatible", "arm,armv8-timer")?;
        fdt.property_null("always-on")?;
        // Secure physical, physical, virtual, EL2 physical, EL2 virtual.
        let cells: Vec<u32> = [13, 14, 11, 10, 12].iter().flat_map(|&ppi| [PPI, ppi, LEVEL_HIGH]).collect();
        fdt.property_array_u32("interrupts", &cells)?;
        fdt.end_node(timer)
    }

    fn devices(&self, fdt: &mut FdtWriter) -> Result<(), Error> {
        let gic = fdt.begin_node(&format!("intc@{:x}", map::GICD))?;
        fdt.property_string("compatible", "arm,gic-v3")?;
        fdt.property_u32("#interrupt-cells", 3)?;
        fdt.property_null("interrupt-controller")?;
        let frames = 0x2_0000 * self.cpus.len() as u64;
        fdt.property_array_u64("reg", &[map::GICD, 0x1_0000, map::GICR, frames])?;
        fdt.property_array_u32("interrupts", &[PPI, 9, LEVEL_HIGH])?;
        fdt.property_phandle(GIC)?;
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_null("ranges")?;
        let frame = fdt.begin_node(&format!("v2m@{:x}", map::MESSAGES))?;
        fdt.property_string("compatible", "arm,gic-v2m-frame")?;
        fdt.property_null("msi-controller")?;
        fdt.property_array_u64("reg", &[map::MESSAGES, 0x1000])?;
        fdt.property_phandle(MESSAGES)?;
        fdt.end_node(frame)?;
        fdt.end_node(gic)?;
        let clock = fdt.begin_node("apb-pclk")?;
        fdt.property_string("compatible", "fixed-clock")?;
        fdt.property_u32("#clock-cells", 0)?;
        fdt.property_u32("clock-frequency", 24_000_000)?;
        fdt.property_string("clock-output-names", "clk24mhz")?;
        fdt.property_phandle(CLOCK)?;
        fdt.end_node(clock)?;
        for (name, base, interrupt) in [
            ("pl011", map::SERIAL, Some(map::SERIAL_SPI)),
            ("pl031", map::RTC, None),
            ("pl061", map::GPIO, Some(map::GPIO_SPI)),
        ] {
            let node = fdt.begin_node(&format!("{name}@{base:x}"))?;
            fdt.property_string_list("compatible", vec![format!("arm,{name}"), "arm,primecell".into()])?;
            fdt.property_array_u64("reg", &[base, 0x1000])?;
            if let Some(interrupt) = interrupt {
                fdt.property_array_u32("interrupts", &[SPI, interrupt, LEVEL_HIGH])?;
            }
            if name == "pl061" {
                fdt.property_null("gpio-controller")?;
                fdt.property_u32("#gpio-cells", 2)?;
                fdt.property_phandle(PINS)?;
            }
            if name == "pl011" {
                fdt.property_array_u32("clocks", &[CLOCK, CLOCK])?;
                fdt.property_string_list("clock-names", vec!["uartclk".into(), "apb_pclk".into()])?;
            } else {
                fdt.property_array_u32("clocks", &[CLOCK])?;
                fdt.property_string("clock-names", "apb_pclk")?;
            }
            fdt.end_node(node)?;
        }
        self.key(fdt)?;
        self.pci(fdt)
    }

    /// The power key, as gpio-keys has it.
    fn key(&self, fdt: &mut FdtWriter) -> Result<(), Error> {
        let keys = fdt.begin_node("gpio-keys")?;
        fdt.property_string("compatible", "gpio-keys")?;
        let key = fdt.begin_node("poweroff")?;
        fdt.property_string("label", "GPIO Key Poweroff")?;
        fdt.property_u32("linux,code", KEY_POWER)?;
        fdt.property_array_u32("gpios", &[PINS, crate::POWER_KEY.into(), 0])?;
        fdt.end_node(key)?;
        fdt.end_node(keys)
    }

    /// Bus 0 (Linux, Documentation/devicetree/bindings/pci/host-generic-pci.yaml).
    fn pci(&self, fdt: &mut FdtWriter) -> Result<(), Error> {
        let bus = fdt.begin_node(&format!("pcie@{:x}", map::ECAM))?;
        fdt.property_string("compatible", "pci-host-ecam-generic")?;
        fdt.property_string("device_type", "pci")?;
        fdt.property_u32("#address-cells", 3)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_u32("#interrupt-cells", 1)?;
        fdt.property_array_u32("bus-range", &[0, 0])?;
        fdt.property_u32("linux,pci-domain", 0)?;
        fdt.property_null("dma-coherent")?;
        fdt.property_u32("msi-parent", MESSAGES)?;
        fdt.property_array_u64("reg", &[map::ECAM, 1 << 20])?;
        // Memory of 32 bits, at the same addresses on both sides; all of these have no upper half.
        let (base, size) = (map::PCI as u32, (map::PCI_END - map::PCI) as u32);
        fdt.property_array_u32("ranges", &[0x0200_0000, 0, base, 0, base, 0, size])?;
        // Pin INTA of each device; the numbers of devices count by their lowest two bits.
        fdt.property_array_u32("interrupt-map-mask", &[3 << 11, 0, 0, 7])?;
        let pins = (0..4_u8).flat_map(|slot| {
            [u32::from(slot) << 11, 0, 0, 1, GIC, 0, 0, SPI, map::pci_interrupt(slot), LEVEL_HIGH]
        });
        fdt.property_array_u32("interrupt-map", &pins.collect::<Vec<_>>())?;
        fdt.end_node(bus)
    }
}
