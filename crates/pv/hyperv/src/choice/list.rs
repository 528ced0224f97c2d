//! The value of `--hyperv`.

use super::words::{meant, number, plain, retries, vendor};
use super::{Base, Mistake, Mistakes, Place, What, Wish};
use crate::{Config, Enlightenment};

const OPTION: &str = "--hyperv";

/// Reads `auto`, `off`, `all`, or a list: of these words and `NAME` or `+NAME`, which add, `-NAME`, which
/// takes away, `vendor_id=TEXT` and `spinlocks=N`. A list that begins with a sign changes what was there
/// before; any other replaces it.
pub fn list(text: &str) -> Result<Vec<Wish>, Mistakes> {
    let (mut wishes, mut mistakes) = (Vec::new(), Vec::new());
    let mut at = 0;
    for part in text.split(',') {
        let word = part.trim();
        let place = Some(Place::column(text, at + part.len() - part.trim_start().len()));
        at += part.len() + 1;
        match wish(word, text) {
            Ok(whats) => {
                wishes.extend(whats.into_iter().map(|what| Wish { what, words: word.into(), place }));
            }
            Err(text) => mistakes.push(Mistake { within: OPTION.into(), place, text }),
        }
    }
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes));
    }
    let changes = text.trim_start().starts_with(['+', '-']);
    let based = wishes.iter().any(|wish| matches!(wish.what, What::Base(_)));
    if !changes && !based {
        wishes.insert(0, Wish { what: What::Base(Base::Nothing), words: text.into(), place: None });
    }
    Ok(wishes)
}

fn wish(word: &str, whole: &str) -> Result<Vec<What>, String> {
    match word {
        "off" | "none" if whole.trim() == word => return Ok(vec![What::Base(Base::Nothing)]),
        "off" | "none" => return Err("'off' stands alone: name only what you want".into()),
        "auto" => return Ok(vec![What::Base(Base::Auto)]),
        "all" => return Ok(vec![What::Base(Base::All)]),
        "" => return Err(format!("a name is missing between two commas; known are {}", known())),
        _ => {}
    }
    if let Some(name) = word.strip_prefix('-') {
        return Ok(vec![What::Set(named(name)?, false)]);
    }
    let word = word.strip_prefix('+').unwrap_or(word);
    let Some((name, value)) = word.split_once('=') else {
        return Ok(vec![What::Set(named(word)?, true)]);
    };
    let one = named(name)?;
    let set = What::Set(one, true);
    match (plain(one.name()).as_str(), value) {
        ("vendor-id", value) => Ok(vec![set, What::Vendor(vendor(value)?)]),
        ("spinlocks", value) => Ok(vec![set, What::Retries(retries(value)?)]),
        (_, "on") => Ok(vec![set]),
        (_, "off") => Ok(vec![What::Set(one, false)]),
        (name, _) if number(value).is_some() => Err(format!("'{name}' takes no number: write {name}")),
        (name, _) => Err(format!("'{name}' takes no value: write {name} or -{name}")),
    }
}

fn known() -> String {
    let names: Vec<_> = Config::all_nested().set.iter().map(Enlightenment::name).collect();
    format!("auto, off, all, {}", names.join(", "))
}

fn named(name: &str) -> Result<Enlightenment, String> {
    match (Enlightenment::by_name(name), meant(name)) {
        (Some(one), _) => refuse(one).map_or(Ok(one), Err),
        (None, Some(near)) => Err(format!("unknown enlightenment '{name}': write {}", near.name())),
        (None, None) => Err(format!("unknown enlightenment '{name}'; known are {}", known())),
    }
}

/// Why `one` cannot be had, if it cannot.
pub(super) fn refuse(one: Enlightenment) -> Option<String> {
    let why = one.row().refused?;
    Some(format!("'{}' cannot be had: {why}; leave it out", one.name()))
}
