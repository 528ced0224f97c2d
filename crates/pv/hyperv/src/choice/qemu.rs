//! QEMU's properties in the value of `--cpu`: `max,hv-relaxed,hv-spinlocks=4096,hv_time=on`.

use super::list::refuse;
use super::words::{VersionField, meant, number, plain, property, retries, vendor};
use super::{Base, Mistake, Mistakes, Place, What, Wish};
use crate::{Enlightenment, SPIN_NEVER};

const OPTION: &str = "--cpu";

/// The value of `--cpu`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOption {
    /// Model, features and identity: all that is not Hyper-V's.
    pub rest: String,
    /// What it asks of Hyper-V.
    pub wishes: Vec<Wish>,
}

/// Takes Hyper-V's properties out of the value of `--cpu`.
///
/// A comma within a value is written twice, as QEMU has it.
pub fn cpu_option(text: &str) -> Result<CpuOption, Mistakes> {
    let (option, mut mistakes, not_ours) = read(text);
    mistakes.extend(not_ours);
    mistakes.sort_by_key(|mistake| mistake.place);
    if mistakes.is_empty() { Ok(option) } else { Err(Mistakes(mistakes)) }
}

/// The same of a configuration that another program runs: what that has and this one does not is told beside the option.
pub fn foreign_cpu_option(text: &str) -> Result<(CpuOption, Vec<Mistake>), Mistakes> {
    match read(text) {
        (option, mistakes, not_ours) if mistakes.is_empty() => Ok((option, not_ours)),
        (_, mistakes, _) => Err(Mistakes(mistakes)),
    }
}

/// The option, what is wrong in it, and what is right and cannot be had here.
fn read(text: &str) -> (CpuOption, Vec<Mistake>, Vec<Mistake>) {
    let (mut rest, mut wishes, mut mistakes, mut not_ours) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, (at, part)) in split(text).into_iter().enumerate() {
        let place = Some(Place::column(text, at));
        // Slides and documents leave the model out with dots.
        if index == 0 && part.starts_with('.') && part.chars().all(|c| c == '.') {
            let text = format!("'{part}' stands for a model: write one, such as max");
            mistakes.push(Mistake { within: OPTION.into(), place, text });
            continue;
        }
        match wish(&part, index) {
            None => rest.push(part),
            Some(Ok(whats)) => {
                wishes.extend(whats.into_iter().map(|what| Wish { what, words: part.clone(), place }));
            }
            Some(Err(text)) => {
                let name = part.trim_start_matches(['+', '-']).split('=').next().unwrap_or_default();
                let refused = Enlightenment::by_name(name).is_some_and(|one| one.row().refused.is_some());
                let list = if refused { &mut not_ours } else { &mut mistakes };
                list.push(Mistake { within: OPTION.into(), place, text });
            }
        }
    }
    (CpuOption { rest: rest.join(","), wishes }, mistakes, not_ours)
}

/// The parts between single commas, with where each begins; a double comma is a comma.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut parts = vec![(0, String::new())];
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        if letter == ',' && letters.next_if(|(_, next)| *next == ',').is_none() {
            parts.push((at + 1, String::new()));
        } else if let Some((_, part)) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

/// What `part` asks for; nothing if it is not Hyper-V's.
fn wish(part: &str, index: usize) -> Option<Result<Vec<What>, String>> {
    let (sign, word) = match part.strip_prefix(['+', '-']) {
        Some(word) => (Some(part.starts_with('+')), word),
        None => (None, part),
    };
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let Some(bare) = property(name) else { return lost_its_prefix(name, index).map(Err) };
    Some(match (sign, value) {
        (Some(_), Some(value)) => Err(format!("a sign and a value at once: write {name}={value}")),
        (Some(on), None) => switch(name, bare, if on { "on" } else { "off" }),
        (None, value) => switch(name, bare, value.unwrap_or("on")),
    })
}

/// Whether a property that is none of the processor's was meant for one of these, as `hvrelaxed` on
/// slides that lost their hyphens, or `hy-synic`.
fn lost_its_prefix(name: &str, index: usize) -> Option<String> {
    if index == 0 || !plain(name).starts_with('h') || satori_cpuid::Feature::by_name(name).is_some() {
        return None;
    }
    let bare: String = plain(name).chars().filter(char::is_ascii_alphanumeric).collect();
    let bare = bare
        .strip_prefix("hv")
        .or_else(|| bare.strip_prefix("hy"))
        .or_else(|| plain(name).strip_prefix("hyper-v-").map(|_| bare.trim_start_matches("hyperv")))?;
    for special in ["passthrough", "enforcecpuid"] {
        if bare == special {
            let right = if special == "passthrough" { "hv-passthrough" } else { "hv-enforce-cpuid" };
            return Some(format!("unknown property '{name}': write {right}"));
        }
    }
    Some(format!("unknown property '{name}': write {}", meant(bare)?.property()))
}

fn switch(name: &str, bare: &str, value: &str) -> Result<Vec<What>, String> {
    let bare = plain(bare);
    match bare.as_str() {
        "passthrough" => {
            return match on(name, value)? {
                true => Ok(vec![What::Base(Base::All)]),
                false => Ok(vec![]),
            };
        }
        "enforce-cpuid" => {
            return match on(name, value)? {
                true => Ok(vec![]),
                false => Err(format!("{name}={value}: what is not offered is always refused: leave it out")),
            };
        }
        _ => {}
    }
    if let Some(field) = bare.strip_prefix("version-id-") {
        return version(name, field, value);
    }
    let Some(one) = Enlightenment::by_name(&format!("hv-{bare}")) else {
        return Err(match meant(&bare) {
            Some(near) => format!("unknown property '{name}': write {}", near.property()),
            None => format!("unknown property '{name}'; 'satori hyperv list' names all"),
        });
    };
    let asked = match plain(one.name()).as_str() {
        "vendor-id" if !matches!(value, "" | "on" | "off") => {
            return Ok(vec![What::Set(one, true), What::Vendor(vendor(value)?)]);
        }
        "spinlocks" if !matches!(value, "off" | "no" | "false" | "n") => {
            let retries = retries(value)?;
            return Ok(vec![What::Set(one, retries != SPIN_NEVER), What::Retries(retries)]);
        }
        "vendor-id" if value != "off" => {
            return Err(format!("{name} takes a name of at most twelve characters: write {name}=KVM Hv"));
        }
        _ if value == "auto" && one.row().value.is_some_and(|value| value.contains("auto")) => {
            one.row().default.on(true)
        }
        _ => on(name, value)?,
    };
    // QEMU's `hv-evmcs=off` asks for what is so.
    match refuse(one) {
        Some(why) if asked => Err(why),
        Some(_) => Ok(vec![]),
        None => Ok(vec![What::Set(one, asked)]),
    }
}

fn version(name: &str, field: &str, value: &str) -> Result<Vec<What>, String> {
    let Some((field, _, most)) = VersionField::ALL.iter().copied().find(|(_, known, _)| *known == field)
    else {
        let known: Vec<_> =
            VersionField::ALL.iter().map(|(_, known, _)| format!("hv-version-id-{known}")).collect();
        return Err(format!("unknown property '{name}': write one of {}", known.join(", ")));
    };
    let number = number(value).filter(|number| *number <= u64::from(most));
    match number.and_then(|number| u32::try_from(number).ok()) {
        Some(number) => Ok(vec![What::Set(Enlightenment::VersionId, true), What::Version(field, number)]),
        None => Err(format!("{name} takes a number from 0 to {most}, not '{value}'")),
    }
}

/// QEMU's words for on and off.
fn on(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" | "yes" | "true" | "y" => Ok(true),
        "off" | "no" | "false" | "n" => Ok(false),
        _ => Err(format!("{name} takes on or off, not '{value}': write {name}=on")),
    }
}
