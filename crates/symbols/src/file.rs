//! Symbols from files: vmlinux, System.map, a saved /proc/kallsyms.

use elf::endian::AnyEndian;
use elf::file::Class;
use elf::{ElfBytes, abi};

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
    let wrong = |error: elf::ParseError| Error::Elf(error.to_string());
    let file = ElfBytes::<AnyEndian>::minimal_parse(content).map_err(wrong)?;
    if file.ehdr.class != Class::ELF64 {
        return Err(Error::Elf("it is of 32 bits".into()));
    }
    let Some((symbols, names)) = file.symbol_table().map_err(wrong)? else { return Err(Error::Stripped) };
    // The first entry of every table is no symbol.
    if symbols.len() < 2 {
        return Err(Error::Stripped);
    }
    let rows = symbols.iter().skip(1).filter_map(|symbol| {
        // Nothing of this file, or, as constants and common blocks, at no address.
        let special = symbol.st_shndx == abi::SHN_UNDEF || symbol.st_shndx >= abi::SHN_LORESERVE;
        if special && symbol.st_shndx != abi::SHN_XINDEX {
            return None;
        }
        let kind = match symbol.st_symtype() {
            // Functions of assembly often have no type, and are told by their section.
            abi::STT_FUNC | abi::STT_NOTYPE => 't',
            abi::STT_OBJECT => 'd',
            _ => return None,
        };
        let name = names.get(symbol.st_name as usize).ok()?;
        // Mapping symbols tell a disassembler where data is among code.
        let mapping = symbol.st_bind() == abi::STB_LOCAL && name.starts_with('$');
        (!mapping).then(|| (symbol.st_value, kind, name.to_owned()))
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
