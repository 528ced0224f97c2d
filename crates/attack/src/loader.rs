//! Files of other people's: kernels and what is in them.

use std::cell::RefCell;

use satori_boot::{Cmdline, Config, Initrd, Kernel, Module, acpi, load};
use satori_memory::{Gpa, GuestMemory, Region};

/// Largest kernel that is unpacked: enough for every path, little enough for many runs.
const KERNEL_MAX: u64 = 16 << 20;
/// RAM to load into.
const RAM: u64 = 64 << 20;

thread_local! {
    static MEMORY: RefCell<Option<GuestMemory>> = const { RefCell::new(None) };
}

/// Parses `data` as a kernel and loads what was understood.
pub fn loader(data: &[u8]) {
    let Ok(kernel) = Kernel::parse(data.to_vec(), KERNEL_MAX) else { return };
    MEMORY.with_borrow_mut(|memory| {
        let memory = memory.get_or_insert_with(|| {
            let ram = Region { start: Gpa(0), len: RAM };
            GuestMemory::new(&[ram]).expect("64 MiB can be reserved")
        });
        let config = Config {
            cmdline: Cmdline::Whole("console=ttyS0".into()),
            initrd: Initrd::new(vec![Module {
                cmdline: "initrd".into(),
                data: data[..data.len().min(4096)].to_vec(),
            }]),
            platform: acpi::Platform { apic_ids: vec![0, 1], cores: 2, ..acpi::Platform::default() },
            ..Config::default()
        };
        if let Ok(loaded) = load(memory, &kernel, &config) {
            let initrd = loaded.initrd.expect("one was given");
            assert!(initrd.start.0 + initrd.len <= RAM, "{initrd:?} lies outside RAM");
        }
    });
}
