//! Symbols from files: vmlinux, System.map, a saved /proc/kallsyms.

use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::{Error, Symbols};

/// What Debian's System.map says instead of symbols.
const STUB: &str = "The real System.map is in the linux-image-";

impl Symbols {
    /// Reads a file's content, whichever of the kinds it is; `origin` is what the table is called.
    pub fn parse(content: &[u8], origin: &str) -> Result<Self, Error> {
        let table = match content.starts_with(b"\x7fELF") {
            true => elf(content, origin)?,
            false => text(content, origin)?,
        };
        if table.is_empty() { Err(Error::Empty) } else { Ok(table) }
    }
}

fn elf(content: &[u8], origin: &str) -> Result<Symbols, Error> {
    let file = ElfFile64::<object::Endianness>::parse(content).map_err(|e| Error::Elf(e.to_string()))?;
    if file.symbols().next().is_none() {
        return Err(Error::Stripped);
    }
    let functions = file.symbols().filter(ObjectSymbol::is_definition);
    let rows = functions.filter_map(|symbol| {
        // Functions of assembly often have no type, and are told by their section.
        let named = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown);
        let kind = if named { 't' } else { 'd' };
        Some((symbol.address(), kind, symbol.name().ok()?.to_owned()))
    });
    Ok(Symbols::new(rows, origin))
}

fn text(content: &[u8], origin: &str) -> Result<Symbols, Error> {
    let mut rows = Vec::new();
    let mut zero = true;
    for (line, at) in content.split(|&byte| byte == b'\n').zip(1..) {
        let wrong = Error::Text { line: at };
        let line = std::str::from_utf8(line).map_err(|_| wrong.clone())?.trim_end();
        if line.is_empty() {
            continue;
        }
        if line.contains(STUB) {
            return Err(Error::Stub);
        }
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(wrong);
        };
        let address = u64::from_str_radix(address, 16).map_err(|_| wrong.clone())?;
        let mut kinds = kind.chars();
        let (Some(kind), None) = (kinds.next(), kinds.next()) else { return Err(wrong) };
        zero &= address == 0;
        // /proc/kallsyms has the module's name in brackets behind its functions.
        let name = match words.next() {
            Some(module) => format!("{name}{module}"),
            None => name.to_owned(),
        };
        rows.push((address, kind, name));
    }
    if zero && !rows.is_empty() {
        return Err(Error::Hidden);
    }
    Ok(Symbols::new(rows, origin))
}
