//! From the configuration's files to a loaded guest.

use std::cell::Cell;

use satori_boot::acpi::{Node, Platform};
use satori_boot::{BootProtocol, Contents, Initrd, KERNEL_MAX, Kernel, layout, load, needs_long_mode};
use satori_cpuid::Topology;
use satori_memory::Region;

use crate::engines::Chosen;
use crate::life::{Begin, Loader};
use crate::offered::long_mode;
use crate::{Config, Devices, Error, NumaNode};

/// What the tables announce: the processors, and every device that a life has.
fn platform(
    topology: Topology,
    nodes: Vec<Node>,
    devices: &Devices,
    serials: usize,
    xen: Option<satori_xen::Kind>,
) -> Platform {
    Platform {
        apic_ids: topology.apic_ids().collect(),
        sockets: topology.sockets,
        cores: topology.dies * topology.cores,
        // Xen's platform device is on the bus.
        pci_devices: devices.has_pci() || xen == Some(satori_xen::Kind::Hvm),
        vmbus: devices.vmbus().is_some(),
        // Linux leaves neither VMBus nor Xen's interface as a machine finds them that begins anew.
        suspend: devices.vmbus().is_none() && xen.is_none(),
        more_serials: serials,
        nodes,
        ..Platform::default()
    }
}

/// What of RAM is whose, in the nodes' order.
fn nodes(numa: &[NumaNode], topology: Topology, regions: &[Region]) -> Vec<Node> {
    let node = |(node, memory): (&NumaNode, Vec<(u64, u64)>)| Node {
        apic_ids: node.cpus.iter().map(|cpu| topology.apic_id(*cpu)).collect(),
        memory,
        distances: node.distances.clone(),
    };
    numa.iter().zip(shares(numa, regions)).map(node).collect()
}

/// What of RAM is each node's, as place and length.
pub(crate) fn shares(numa: &[NumaNode], regions: &[Region]) -> Vec<Vec<(u64, u64)>> {
    let mut left = regions.iter().map(|region| (region.start.0, region.len)).collect::<Vec<_>>();
    left.reverse();
    let mut share = |mut bytes: u64| {
        let mut memory = Vec::new();
        while let Some((start, len)) = left.pop_if(|_| bytes > 0) {
            let taken = len.min(bytes);
            memory.push((start, taken));
            bytes -= taken;
            if taken < len {
                left.push((start + taken, len - taken));
            }
        }
        memory
    };
    numa.iter().map(|node| share(node.memory)).collect()
}

/// Parses and unpacks what is to be booted. Gives the guest's RAM, and what loads it: once now,
/// and again after each reset.
pub(crate) fn prepare(config: Config, engine: &Chosen) -> Result<(Vec<Region>, Loader), Error> {
    let long_mode = long_mode(&config, engine)?;
    let regions = layout::ram_regions(config.memory)?;
    let (file, unpacked_max) = (Contents::from(config.kernel), config.memory.min(KERNEL_MAX));
    let parse = move |known| {
        Kernel::parse_known(file.clone(), known, unpacked_max)
            .map_err(|why| satori_boot::Error::Kernel { name: "the kernel".into(), why })
    };
    let kernel = parse(config.kernel_unpacked)?;
    if !long_mode && needs_long_mode(&kernel, config.protocol) {
        // Its first step into long mode would be a fault that nothing handles yet.
        return Err(Error::NoLongMode);
    }
    if kernel.info.wants_video {
        tracing::warn!("the kernel's multiboot header asks for a video mode, and there is no screen");
    }
    let boot = satori_boot::Config {
        kernel_name: config.kernel_name,
        cmdline: config.cmdline,
        initrd: Initrd::new(config.initrds),
        platform: platform(
            config.topology,
            nodes(&config.numa, config.topology, &regions),
            &config.devices,
            config.serials.count(),
            config.xen.map(|xen| xen.kind),
        ),
        smbios: config.smbios,
        protocol: config.protocol,
    };
    // Unpacked it is several times as large as the file, so each life unpacks its own.
    let first = Cell::new(Some(kernel));
    let loader: Loader = Box::new(move |memory| {
        let kernel = first.take().map_or_else(|| parse(None), Ok)?;
        let loaded = load(memory, &kernel, &boot)?;
        tracing::info!(protocol = loaded.protocol.name(), rip = loaded.entry.rip, "guest loaded");
        // A kernel that multiboot loads was made for a loader that firmware started.
        let firmware = loaded.protocol == BootProtocol::Multiboot;
        Ok(Begin { facs: loaded.facs(), state: loaded.entry, firmware, map: loaded.map })
    });
    Ok((regions, loader))
}
