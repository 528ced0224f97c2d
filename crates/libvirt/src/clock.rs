//! `<clock>` and its timers.

use satori_hyperv::choice::What;

use crate::names::{Spelled, by_spelling};
use crate::reader::Reader;
use crate::tree::Node;

pub(crate) fn clock(reader: &mut Reader, node: &Node) {
    if let Some(offset) = node.attribute("offset").filter(|offset| offset.value != "utc") {
        let known = ["localtime", "timezone", "variable", "absolute"];
        match known.contains(&offset.value.as_str()) {
            true => reader.warn(
                offset.at,
                format!("offset='{}' is not honoured: the guest's clock shows UTC", offset.value),
            ),
            false => reader.wrong(
                offset.at,
                format!("offset is utc, {}, not '{}': write offset='utc'", known.join(", "), offset.value),
            ),
        }
    }
    reader.no_text(node);
    reader.children(node, "clock");
}

pub(crate) fn timer(reader: &mut Reader, node: &Node) {
    reader.only(node, &["name", "present", "tickpolicy", "track", "frequency", "mode"]);
    let Some(name) = node.attribute("name") else {
        return reader.wrong(node.at, "<timer> needs a name: write name='hypervclock'".into());
    };
    let present = match node.attribute("present").map(|present| (present.value.as_str(), present.at)) {
        None => None,
        Some(("yes", _)) => Some(true),
        Some(("no", _)) => Some(false),
        Some((other, at)) => {
            return reader.wrong(at, format!("present is yes or no, not '{other}': write present='yes'"));
        }
    };
    const KNOWN: [&str; 8] =
        ["hypervclock", "kvmclock", "tsc", "pit", "rtc", "hpet", "platform", "armvtimer"];
    let (time, known) =
        (by_spelling(Spelled::Timer("hypervclock")), KNOWN.iter().find(|known| **known == name.value));
    match (known.copied(), time) {
        (Some("hypervclock"), Some(time)) => reader.wish(What::Set(time, present.unwrap_or(true)), node),
        (Some("kvmclock"), _) if present == Some(true) => {
            reader.warn(node.at, "kvmclock is not honoured: KVM's own interface is not offered".into());
        }
        (Some("tsc"), _) => tsc(reader, node),
        (Some("pit" | "rtc" | "hpet"), _) if present == Some(false) => {
            reader.warn(node.at, format!("present='no' is not honoured: the {} is always there", name.value));
        }
        (Some("pit" | "rtc" | "hpet"), _) => {
            if let Some(policy) = node.attribute("tickpolicy").filter(|policy| policy.value != "delay") {
                reader.warn(
                    policy.at,
                    format!("tickpolicy='{}' is not honoured: late ticks come late", policy.value),
                );
            }
        }
        (Some("platform" | "armvtimer"), _) => {
            reader.warn(node.at, format!("the timer {} is not honoured: there is none", name.value));
        }
        (Some(_), _) => {}
        (None, _) => {
            let short: String = name.value.chars().take(40).collect();
            let near = KNOWN.iter().min_by_key(|known| satori_cpuid::distance(known, &short)).copied();
            let near = near.unwrap_or("hypervclock");
            reader.wrong(name.at, format!("there is no timer '{}': write name='{near}'", name.value));
        }
    }
}

fn tsc(reader: &mut Reader, node: &Node) {
    if let Some(frequency) = node.attribute("frequency") {
        // Slower ones cannot carry Hyper-V's reference time, faster ones do not exist.
        match frequency.value.parse().ok().filter(|hz| (10_000_000..=100_000_000_000).contains(hz)) {
            Some(hz) => reader.domain.tsc_hz = Some(hz),
            None => reader.wrong(
                frequency.at,
                format!("frequency is in Hz, 10000000 to 100000000000, not '{}'", frequency.value),
            ),
        }
    }
    if let Some(mode) =
        node.attribute("mode").filter(|mode| !["auto", "native"].contains(&mode.value.as_str()))
    {
        reader.warn(mode.at, format!("mode='{}' is not honoured: RDTSC takes no exit", mode.value));
    }
}
