//! Values: sizes, numbers, sets of processors.

/// Most processors of a host that a set may name: those of Linux's `cpu_set_t`.
const PROCESSORS: u32 = 1024;

/// Bytes of `number` of `unit` (libvirt's scaled integers: 1024 where the unit ends in iB or is one
/// letter, 1000 where it ends in B; without one KiB).
pub(crate) fn size(number: &str, unit: Option<&str>) -> Result<u64, String> {
    let wants = "takes b, KiB, MiB, GiB, TiB, or KB, MB, GB, TB";
    let scale: u64 = match unit.unwrap_or("KiB") {
        "b" | "byte" | "bytes" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "k" | "K" | "KiB" => 1 << 10,
        "m" | "M" | "MiB" => 1 << 20,
        "g" | "G" | "GiB" => 1 << 30,
        "t" | "T" | "TiB" => 1 << 40,
        other => return Err(format!("unit {wants}, not '{other}'")),
    };
    let number = number.trim();
    let parsed = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    parsed.ok_or_else(|| format!("'{number}' is no size: write a number such as 524288"))
}

/// A number from 1 on.
pub(crate) fn count(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|number| *number > 0)
}

/// The processors of `0-3,^2,8`, in order.
pub(crate) fn cpuset(text: &str) -> Result<Vec<u32>, String> {
    let wrong = |part: &str| format!("'{part}' is no set of processors: write 0-3,8 or 0-3,^2");
    let mut set = std::collections::BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        let (out, range) = match part.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, part),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number < PROCESSORS);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => {
                for cpu in first..=last {
                    if out {
                        set.remove(&cpu)
                    } else {
                        set.insert(cpu)
                    };
                }
            }
            _ => return Err(wrong(part)),
        }
    }
    if set.is_empty() {
        Err(format!("'{text}' leaves no processor: name one"))
    } else {
        Ok(set.into_iter().collect())
    }
}
