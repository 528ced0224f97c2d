//! Loads the modules that the initramfs holds, in the order given.

use std::fs::File;

use crate::sys;

/// Loads each; what went wrong, in words. One that is there already is nothing wrong.
pub fn load(modules: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    for module in modules {
        let (path, options) = module.split_once(' ').unwrap_or((module, ""));
        let loaded = File::open(path).and_then(|file| {
            // The kernel unpacks these itself (MODULE_DECOMPRESS).
            sys::load_module(&file, options, path.ends_with(".xz"))
        });
        match loaded {
            Err(why) if why.kind() != std::io::ErrorKind::AlreadyExists => {
                wrong.push(format!("the module {path} was not loaded ({why})"));
            }
            _ => {}
        }
    }
    wrong
}
