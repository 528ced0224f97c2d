//! The programs that `build.rs` built.

use crate::Error;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program"));
const MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/program-missing"));
const SPIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spin"));
const SPIN_MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/spin-missing"));

/// The program's bytes: a static ELF file.
pub fn bytes() -> Result<&'static [u8], Error> {
    if PROGRAM.is_empty() { Err(Error::NoProgram(MISSING)) } else { Ok(PROGRAM) }
}

/// The bare-metal guest whose processors contend for one lock: an ELF file to boot.
pub fn spin() -> Result<&'static [u8], Error> {
    if SPIN.is_empty() { Err(Error::NoProgram(SPIN_MISSING)) } else { Ok(SPIN) }
}

const GAME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/game"));
const GAME_MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/game-missing"));

/// The bytes of `guests/bare/src/bin/game/`: a kernel with a PVH note.
pub fn game() -> Result<&'static [u8], Error> {
    if GAME.is_empty() { Err(Error::NoProgram(GAME_MISSING)) } else { Ok(GAME) }
}

const RAPID: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rapid"));
const RAPID_MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/rapid-missing"));

/// The bytes of `guests/src/bin/rapid.rs`: a kernel with a PVH note.
pub fn rapid() -> Result<&'static [u8], Error> {
    if RAPID.is_empty() { Err(Error::NoProgram(RAPID_MISSING)) } else { Ok(RAPID) }
}

const NESTED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nested"));
const NESTED_MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/nested-missing"));

/// The bytes of `guests/bench/src/bin/nested/`: a static ELF file, init of guests and of their guests.
pub fn nested() -> Result<&'static [u8], Error> {
    if NESTED.is_empty() { Err(Error::NoProgram(NESTED_MISSING)) } else { Ok(NESTED) }
}
