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

/// The interrupt controller's phandle, and the serial port's clock's.
const GIC: u32 = 1;
const CLOCK: u32 = 2;

/// Interrupt cells: kinds and flags.
const SPI: u32 = 0;
const PPI: u32 = 1;
const LEVEL_HIGH: u32 = 4;

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
        fdt.end_node(gic)?;
        let clock = fdt.begin_node("apb-pclk")?;
        fdt.property_string("compatible", "fixed-clock")?;
        fdt.property_u32("#clock-cells", 0)?;
        fdt.property_u32("clock-frequency", 24_000_000)?;
        fdt.property_string("clock-output-names", "clk24mhz")?;
        fdt.property_phandle(CLOCK)?;
        fdt.end_node(clock)?;
        for (name, base, interrupt) in
            [("pl011", map::SERIAL, Some(map::SERIAL_SPI)), ("pl031", map::RTC, None)]
        {
            let node = fdt.begin_node(&format!("{name}@{base:x}"))?;
            fdt.property_string_list("compatible", vec![format!("arm,{name}"), "arm,primecell".into()])?;
            fdt.property_array_u64("reg", &[base, 0x1000])?;
            if let Some(interrupt) = interrupt {
                fdt.property_array_u32("interrupts", &[SPI, interrupt, LEVEL_HIGH])?;
                fdt.property_array_u32("clocks", &[CLOCK, CLOCK])?;
                fdt.property_string_list("clock-names", vec!["uartclk".into(), "apb_pclk".into()])?;
            } else {
                fdt.property_array_u32("clocks", &[CLOCK])?;
                fdt.property_string("clock-names", "apb_pclk")?;
            }
            fdt.end_node(node)?;
        }
        Ok(())
    }
}
