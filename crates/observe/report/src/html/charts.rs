//! The parts of the page that show one run: when its exits happened, and where in the guest.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Palette, drawing, grouped, light, time};
use crate::svg::{Element, element, escape};
use crate::{Hot, Report};

/// Width of every chart.
const WIDE: f64 = 1080.0;
/// Where the timeline's columns stand, and how high they may be.
const FLOOR: f64 = 184.0;
const HIGH: f64 = 166.0;
/// Rows of the table of addresses.
const PLACES: usize = 20;

/// A round number of at least a quarter of `most`: the step of a scale.
fn step(most: f64) -> f64 {
    let rough = (most / 4.0).max(f64::MIN_POSITIVE);
    let magnitude = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| nice * magnitude >= rough);
    nice.unwrap_or(10.0) * magnitude
}

/// Columns over time, stacked by reason; the most frequent ones at the bottom.
pub(super) fn timeline(body: &mut String, name: &str, run: &Report, palette: &Palette) {
    let Some(line) = run.timeline.as_ref().filter(|line| !line.exits.is_empty()) else { return };
    let length = line.exits.values().map(Vec::len).max().unwrap_or(0).max(1);
    let mut sums = vec![0u64; length];
    for counts in line.exits.values() {
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
    // Both are above zero.
    let seconds = line.bucket_ns.max(1) as f64 / 1e9;
    let highest = sums.iter().copied().max().unwrap_or(0).max(1);
    let scale = clipped(&sums).unwrap_or(highest);
    let most = scale as f64 / seconds;
    let (whole, marks) = (seconds * length as f64, step(most));
    let title = format!("{}: exits a second, over guest time", escape(name));
    drawing(body, ("class", "timeline"), &title, 210, |out| {
        for mark in (1..=4).map(|n| f64::from(n) * marks).filter(|mark| *mark <= most) {
            let y = FLOOR - mark / most * HIGH;
            let line = element(out, "line").with("class", "mark").with("x1", 0).px("x2", WIDE);
            line.px("y1", y).px("y2", y).empty();
            soft(out, 2.0, y - 3.0).text(&grouped(mark as u64));
        }
        columns(out, run, palette, most, length);
        let width = WIDE / length as f64;
        for at in (0..length).filter(|at| sums[*at] > scale) {
            let x = (at as f64 + 0.5) * width;
            let arrow = format!("M{:.2} 16 L{:.2} 16 L{x:.2} 6 Z", x - 5.0, x + 5.0);
            let told = format!("{} exits, beyond the scale", grouped(sums[at]));
            element(out, "path").with("d", arrow).with("fill", "#c2556b").titled(&told);
        }
        let ticks = step(whole);
        for tick in (0..=4).map(|n| f64::from(n) * ticks).filter(|tick| *tick <= whole) {
            let x = tick / whole * WIDE;
            let anchor = if tick == 0.0 {
                "start"
            } else if x > WIDE - 30.0 {
                "end"
            } else {
                "middle"
            };
            let line = element(out, "line").with("class", "mark").px("x1", x).px("x2", x);
            line.px("y1", FLOOR).px("y2", FLOOR + 6.0).empty();
            let told = if tick == 0.0 { "0".into() } else { time((tick * 1e9) as u64) };
            soft(out, x, 204.0).with("text-anchor", anchor).text(&told);
        }
    });
    let beyond = match sums.iter().filter(|sum| **sum > scale).count() {
        0 => String::new(),
        count => format!(
            " {count} of them are higher than the scale, up to {} a second, and cut off there: see the marks.",
            grouped((highest as f64 / seconds) as u64)
        ),
    };
    // Writing to a String cannot fail, here and below.
    let _ = write!(body, "<p class=\"below\">Columns of {}.{beyond}</p></section>", time(line.bucket_ns));
}

/// A text beside what it explains.
fn soft(out: &mut String, x: f64, y: f64) -> Element<'_> {
    element(out, "text").with("class", "soft").px("x", x).px("y", y)
}

/// The columns themselves, of which `most` exits a second reach the top.
fn columns(out: &mut String, run: &Report, palette: &Palette, most: f64, length: usize) {
    let Some(line) = &run.timeline else { return };
    let seconds = line.bucket_ns.max(1) as f64 / 1e9;
    let width = WIDE / length as f64;
    let mut base = vec![FLOOR; length];
    let mut order: Vec<_> = line.exits.iter().collect();
    order.sort_by_key(|(reason, counts)| {
        (std::cmp::Reverse(counts.iter().fold(0u64, |a, b| a.saturating_add(*b))), *reason)
    });
    for (reason, counts) in order {
        for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            // A column that is higher than the scale ends there.
            let room = (base[at] - (FLOOR - HIGH)).max(0.0);
            let height = (*count as f64 / seconds / most * HIGH).min(room);
            base[at] -= height;
            let from = time(line.bucket_ns.saturating_mul(at as u64));
            let bar = element(out, "rect").px("x", at as f64 * width).px("y", base[at]);
            let bar = bar.px("width", (width - 0.4).max(0.4)).px("height", height);
            let told = format!("{reason}: {} exits from {from} on", grouped(*count));
            bar.with("fill", palette.get(reason)).titled(&told);
        }
    }
}

/// Where the scale ends, if a few columns would flatten all others: at twice what all but one in twenty keep below.
fn clipped(sums: &[u64]) -> Option<u64> {
    let mut sorted: Vec<u64> = sums.iter().copied().filter(|sum| *sum > 0).collect();
    sorted.sort_unstable();
    let usual = *sorted.get(sorted.len().checked_sub(1)? * 19 / 20)?;
    let end = usual.saturating_mul(2);
    (*sorted.last()? > usual.saturating_mul(4)).then_some(end)
}

/// `name` of `name+0x10`.
fn function(symbol: &str) -> &str {
    symbol.rsplit_once("+0x").map_or(symbol, |(name, _)| name)
}

fn place(one: &Hot) -> String {
    one.symbol.as_deref().map_or_else(|| format!("{:#x}", one.rip), |symbol| function(symbol).to_owned())
}

/// Reasons, and below each the guest's functions that it came from; widths are counts of all exits.
pub(super) fn flame(body: &mut String, name: &str, run: &Report, palette: &Palette) {
    if run.hot.is_empty() || run.all.samples == 0 {
        return;
    }
    let mut tree: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    for one in &run.hot {
        let known = tree.entry(&one.reason).or_default().entry(place(one)).or_default();
        *known = known.saturating_add(one.samples);
    }
    let whole = run.all.samples as f64;
    let wide = |samples: u64| samples as f64 / whole * WIDE;
    let cell = |out: &mut String, x: f64, y: u32, fill: &str, what: &str, samples: u64| {
        let width = wide(samples).min(WIDE - x).max(0.0);
        let room = (width / 7.5) as usize;
        let label: String = if room > 3 { what.chars().take(room - 1).collect() } else { String::new() };
        element(out, "g").holds(|out| {
            let rect = element(out, "rect").px("x", x).with("y", y).px("width", width).with("height", 28);
            let rect =
                rect.with("rx", 2).with("fill", fill).with("fill-opacity", if y == 0 { "1" } else { ".4" });
            let share = samples as f64 / whole * 100.0;
            let told = format!("{what}: {} exits, {share:.1} %", grouped(samples));
            rect.with("stroke", "var(--card)").titled(&told);
            let class = match (y, light(fill)) {
                (0, false) => "on",
                (0, true) => "dark",
                _ => "",
            };
            element(out, "text").with("class", class).px("x", x + 5.0).with("y", y + 19).text(&label);
        });
    };
    let title = format!("{}: exits by reason and guest function", escape(name));
    drawing(body, ("class", "flame"), &title, 64, |out| {
        let mut x = 0.0;
        for row in &run.all.exits {
            cell(out, x, 0, palette.get(&row.reason), &row.reason, row.samples);
            let mut at = x;
            let mut functions: Vec<_> = tree.remove(row.reason.as_str()).into_iter().flatten().collect();
            functions.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
            let known = functions.iter().fold(0u64, |sum, (_, samples)| sum.saturating_add(*samples));
            if let Some(rest) = row.samples.checked_sub(known).filter(|rest| *rest > 0) {
                functions.push(("elsewhere".into(), rest));
            }
            for (function, samples) in functions {
                cell(out, at, 32, palette.get(&row.reason), &function, samples);
                at += wide(samples);
            }
            x += wide(row.samples);
        }
    });
    places(body, run, palette);
    *body += "</section>";
}

/// The addresses that exit most.
fn places(body: &mut String, run: &Report, palette: &Palette) {
    *body += "<table class=\"places\"><tr><th>Function</th><th>RIP</th><th class=\"left\">VM-EXIT</th><th>Samples</th><th>Samples%</th><th>Average</th></tr>";
    for one in run.hot.iter().take(PLACES) {
        let _ = write!(
            body,
            "<tr><td>{}</td><td>{:#x}</td><td class=\"left\"><i class=\"key\" style=\"background:{}\"></i>{}</td><td>{}</td><td>{:.2}%</td><td>{}</td></tr>",
            escape(one.symbol.as_deref().unwrap_or("-")),
            one.rip,
            palette.get(&one.reason),
            escape(&one.reason),
            grouped(one.samples),
            one.samples as f64 / run.all.samples.max(1) as f64 * 100.0,
            time(one.total_ns / one.samples.max(1)),
        );
    }
    *body += "</table>";
}

/// What was offered of Hyper-V: what the guest used as a table, the rest in a sentence.
pub(super) fn offered(body: &mut String, name: &str, run: &Report) {
    let (used, idle): (Vec<_>, Vec<_>) =
        run.hyperv.iter().filter(|(_, one)| one.offered || one.used > 0).partition(|(_, one)| one.used > 0);
    if used.is_empty() && idle.is_empty() {
        return;
    }
    let _ = write!(body, "<section class=\"hyperv\"><h2>{}: Hyper-V, offered and used</h2>", escape(name));
    if !used.is_empty() {
        *body +=
            "<table><tr><th>Enlightenment</th><th>Used</th><th>First at</th><th class=\"left\">How</th></tr>";
    }
    for (name, one) in &used {
        let mut ways: Vec<_> = one.ways.iter().collect();
        ways.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let ways: Vec<_> = ways.iter().map(|(way, count)| format!("{way} {}", grouped(**count))).collect();
        let _ = write!(
            body,
            "<tr><td>{}{}</td><td>{}</td><td>{}</td><td class=\"left soft\">{}</td></tr>",
            escape(name),
            if one.offered { "" } else { " (not offered)" },
            grouped(one.used),
            one.first_ns.map_or("-".into(), time),
            escape(&ways.join(", "))
        );
    }
    if !used.is_empty() {
        *body += "</table>";
    }
    if !idle.is_empty() {
        let names: Vec<_> = idle.iter().map(|(name, _)| name.as_str()).collect();
        let _ =
            write!(body, "<p class=\"below\">Offered, and no use seen: {}.</p>", escape(&names.join(", ")));
    }
    *body += "</section>";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_steps() {
        for (most, wanted) in [(1.0, 0.5), (4.0, 1.0), (37_500.0, 10_000.0), (990.0, 500.0), (0.02, 0.005)] {
            assert!((step(most) / wanted - 1.0).abs() < 1e-9, "{most}: {}", step(most));
        }
    }

    #[test]
    fn one_spike_does_not_flatten_the_rest() {
        let mut sums = vec![10; 99];
        assert_eq!(clipped(&sums), None);
        sums.push(10_000);
        assert_eq!(clipped(&sums), Some(20));
        assert_eq!(clipped(&[]), None);
        assert_eq!(clipped(&[0, 7]), None);
    }

    #[test]
    fn functions_are_names_without_their_offsets() {
        assert_eq!(function("native_write_msr+0x4"), "native_write_msr");
        assert_eq!(function("[user]"), "[user]");
    }
}
