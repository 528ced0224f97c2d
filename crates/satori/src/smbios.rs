//! `--smbios`: what the SMBIOS tables tell, in QEMU's words.

use std::path::Path;

use satori_machine::Smbios;

/// One `--smbios`: what it says, one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told(Vec<(Field, String)>);

/// Where a text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Manufacturer,
    Product,
    Version,
    Serial,
    Uuid,
    Sku,
    Family,
    Oem,
}

const FIELDS: &[(&str, Field)] = &[
    ("manufacturer", Field::Manufacturer),
    ("product", Field::Product),
    ("version", Field::Version),
    ("serial", Field::Serial),
    ("uuid", Field::Uuid),
    ("sku", Field::Sku),
    ("family", Field::Family),
];

/// The most that a file may hold: more than the tables have room for.
const FILE_MOST: u64 = 1 << 16;

/// Reads one.
pub fn told(text: &str) -> Result<Told, String> {
    let parts = parts(text);
    let pairs = parts.iter().map(|part| part.split_once('=').unwrap_or((part, "")));
    let pairs: Vec<_> = pairs.collect();
    let of = |kind: &str| pairs.first() == Some(&("type", kind));
    let mut told = Vec::new();
    for &(name, value) in pairs.get(1..).unwrap_or_default() {
        let (field, value) = match (name, FIELDS.iter().find(|(known, _)| *known == name)) {
            (_, Some((_, field))) if of("1") => (*field, value.to_string()),
            ("value", _) if of("11") => (Field::Oem, value.to_string()),
            ("path", _) if of("11") => (Field::Oem, read(value)?),
            _ if of("1") => {
                let names: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
                return Err(format!("type=1 has no '{name}', but {}", names.join(", ")));
            }
            _ if of("11") => return Err(format!("type=11 has no '{name}', but value=TEXT and path=FILE")),
            _ => break,
        };
        if field == Field::Uuid && uuid(&value).is_none() {
            return Err(format!("'{value}' is no UUID such as 12345678-9abc-def0-1234-56789abcdef0"));
        }
        if field == Field::Oem && value.is_empty() || value.contains('\0') {
            return Err(format!("{name} is a text without NULs that is not empty"));
        }
        told.push((field, value));
    }
    match told.is_empty() {
        true => Err("write type=1 and what the machine is to be called, or type=11,value=TEXT; other types are Satori's own".into()),
        false => Ok(Told(told)),
    }
}

/// What stands between commas, of which two are one in a text.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

fn read(path: &str) -> Result<String, String> {
    let path = Path::new(path);
    let failed =
        |why: &dyn std::fmt::Display| format!("{} cannot be read ({why}): name a text", path.display());
    let file = std::fs::File::open(path).map_err(|why| failed(&why))?;
    let text = std::io::read_to_string(std::io::Read::take(file, FILE_MOST)).map_err(|why| failed(&why))?;
    // As editors end a text.
    Ok(text.strip_suffix('\n').map(str::to_string).unwrap_or(text))
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    let digits = text.replace('-', "");
    if groups != [8, 4, 4, 4, 12] || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// All of them together; the last of a kind counts, and every OEM string.
pub fn all(told: &[Told]) -> Smbios {
    let mut all = Smbios::default();
    for (field, text) in told.iter().flat_map(|Told(fields)| fields).cloned() {
        let system = &mut all.system;
        let place = match field {
            Field::Manufacturer => &mut system.manufacturer,
            Field::Product => &mut system.product,
            Field::Version => &mut system.version,
            Field::Serial => &mut system.serial,
            Field::Sku => &mut system.sku,
            Field::Family => &mut system.family,
            Field::Uuid => {
                system.uuid = uuid(&text);
                continue;
            }
            Field::Oem => {
                all.oem.push(text);
                continue;
            }
        };
        *place = Some(text);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemus_words_are_understood() {
        let words = [
            "type=1,manufacturer=A,,B,serial=7=8,uuid=00112233-4455-6677-8899-AABBCCDDEEFF",
            "type=11,value=io.systemd.credential:x=1,,2,value=y",
            "type=1,manufacturer=C",
        ];
        let all = all(&words.map(|word| told(word).unwrap()));
        assert_eq!(all.oem, ["io.systemd.credential:x=1,2", "y"]);
        assert_eq!(all.system.manufacturer.as_deref(), Some("C"));
        assert_eq!(all.system.serial.as_deref(), Some("7=8"));
        assert_eq!(all.system.uuid.map(|uuid| uuid[15]), Some(0xff));
        assert_eq!(parts("type=1,a=,,b"), ["type=1", "a=,b"]);
    }

    #[test]
    fn mistakes_are_told() {
        for (word, said) in [
            ("", "write type=1"),
            ("type=3,asset=x", "write type=1"),
            ("type=1", "write type=1"),
            ("type=1,asset=x", "no 'asset'"),
            ("type=1,uuid=7", "no UUID"),
            ("type=1,uuid=0011223344556677-8899-AABBCCDDEEFF-", "no UUID"),
            ("type=11,value=", "not empty"),
            ("type=11,serial=x", "no 'serial'"),
            ("type=11,path=/nonexistent/file", "cannot be read"),
        ] {
            let why = told(word).unwrap_err();
            assert!(why.contains(said), "{word}: {why}");
        }
    }
}
