//! Says what a kernel file is and where it would be put: `inspect KERNEL [INITRD]..`.

use std::path::PathBuf;
use std::time::Instant;

use satori_boot::{Config, Initrd, KERNEL_MAX, Kernel, ProtocolChoice, layout, load};
use satori_memory::GuestMemory;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let path = paths.next().ok_or("usage: inspect KERNEL [INITRD]..")?;
    let start = Instant::now();
    let kernel = Kernel::open(&path, KERNEL_MAX)?;
    println!("{:?} in {:?}", kernel.info, start.elapsed());
    let initrd = Initrd::open(&paths.collect::<Vec<_>>(), 1 << 30)?;
    for &protocol in &kernel.info.protocols {
        let memory = GuestMemory::new(&layout::ram_regions(512 << 20)?)?;
        let config =
            Config { initrd: initrd.clone(), protocol: ProtocolChoice::Only(protocol), ..Config::default() };
        let start = Instant::now();
        match load(&memory, &kernel, &config) {
            Err(error) => println!("{}: {error}", protocol.name()),
            Ok(loaded) => {
                println!("{}: rip {:#x} in {:?}", protocol.name(), loaded.entry.rip, start.elapsed());
                println!("  initrd {:x?}", loaded.initrd);
                for entry in loaded.map {
                    println!("  {:#011x}..{:#011x} type {}", entry.start, entry.end, entry.kind);
                }
            }
        }
    }
    Ok(())
}
