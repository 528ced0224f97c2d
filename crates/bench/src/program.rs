//! The benchmark program, which `build.rs` built.

use crate::Error;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program"));
const MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/missing"));

/// The program's bytes: a static ELF file.
pub fn bytes() -> Result<&'static [u8], Error> {
    if PROGRAM.is_empty() { Err(Error::NoProgram(MISSING)) } else { Ok(PROGRAM) }
}
