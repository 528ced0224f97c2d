//! The results as a chart: how many times as long as the host each row takes.

use satori_report::svg::{Element, element};

use crate::results::{Line, Results, Table};

/// One colour a subject, the host's left out: Satori's, then the peers'. They differ in lightness, too.
const COLOURS: [&str; 6] = ["#0b6e4f", "#d1495b", "#edae49", "#66a1d2", "#8d6a9f", "#999999"];

const LEFT: f64 = 120.0;
const WIDTH: f64 = 640.0;
const BAR: f64 = 7.0;
const TOP: f64 = 64.0;

/// The chart as an SVG file, a part for each table.
pub fn svg(results: &Results) -> String {
    let guests = results.subjects.len().saturating_sub(1);
    let row = (guests as f64 * BAR + 6.0).max(16.0);
    let mut body = String::new();
    let mut top = 20.0;
    // Where it comes from.
    for told in [&results.host, &format!("{}; guests: {}", results.date, results.kernel)] {
        text(&mut body, LEFT, top).with("fill", "#555555").text(told);
        top += 14.0;
    }
    top += 8.0;
    for table in &results.tables {
        top = part(&mut body, results, table, top, row);
        top = boots(&mut body, results, table, top);
    }
    let (width, height) = (LEFT + WIDTH + 70.0, top + 10.0);
    let mut drawing = String::new();
    let root = element(&mut drawing, "svg").with("xmlns", "http://www.w3.org/2000/svg");
    let root = root.px("width", width).px("height", height);
    let root = root.with("viewBox", format_args!("0 0 {width:.2} {height:.2}"));
    root.with("font-family", "sans-serif").with("font-size", 11).holds(|out| {
        element(out, "rect").with("width", "100%").with("height", "100%").with("fill", "white").empty();
        out.push_str(&body);
    });
    drawing.push('\n');
    drawing
}

fn text(body: &mut String, x: f64, y: f64) -> Element<'_> {
    // A line for each, so that a difference of two charts shows which.
    body.push('\n');
    element(body, "text").px("x", x).px("y", y)
}

fn bar<'a>(body: &'a mut String, at: (f64, f64), width: f64, height: f64, colour: &str) -> Element<'a> {
    body.push('\n');
    let rect = element(body, "rect").px("x", at.0).px("y", at.1).px("width", width);
    rect.px("height", height).with("fill", colour)
}

/// Draws one table from `top` on, and tells where it ends.
fn part(body: &mut String, results: &Results, table: &Table, top: f64, row: f64) -> f64 {
    let lines: Vec<&Line> = table.lines.iter().filter(|line| line.native().is_some()).collect();
    let ratios = |line: &Line| -> Vec<Option<f64>> {
        let native = line.native().unwrap_or(f64::NAN);
        line.cells.iter().skip(1).map(|cell| Some(cell.ns()? / native).filter(|r| *r > 0.0)).collect()
    };
    let highest = lines.iter().flat_map(|line| ratios(line)).flatten().fold(10.0, f64::max);
    // A guest can be faster than its host, as in CPUID on a host that is a guest itself.
    let lowest = lines.iter().flat_map(|line| ratios(line)).flatten().fold(0.5, f64::min);
    let decades = (highest / lowest).log10();
    let x = |ratio: f64| LEFT + (ratio / lowest).log10() / decades * WIDTH;
    // A line with the group's name before its rows.
    let mut places = Vec::new();
    let (mut end, mut group) = (top + TOP, None);
    for line in &lines {
        if group != Some(line.row.group) {
            group = Some(line.row.group);
            let name = line.row.group.name();
            text(body, 6.0, end + 11.0).with("font-weight", "bold").text(name);
            end += 16.0;
        }
        places.push(end);
        end += row;
    }

    let title = format!("times as long as native, {} (less is better)", table.setting.name());
    text(body, LEFT, top + 8.0).with("font-size", 14).text(&title);
    for (index, name) in results.subjects.iter().skip(1).enumerate() {
        let (at, colour) = (LEFT + index as f64 * 120.0, COLOURS[index % COLOURS.len()]);
        let y = top + 22.0;
        bar(body, (at, y), 10.0, 10.0, colour).empty();
        text(body, at + 14.0, y + 9.0).text(name);
    }
    let mut mark = 10f64.powf(lowest.log10().ceil());
    while mark <= highest {
        body.push('\n');
        let line = element(body, "line").px("x1", x(mark)).px("y1", top + TOP - 6.0).px("x2", x(mark));
        let colour = if (mark - 1.0).abs() < 1e-9 { "#333333" } else { "#dddddd" };
        line.px("y2", end).with("stroke", colour).empty();
        text(body, x(mark), top + TOP - 10.0).with("text-anchor", "middle").text(&mark.to_string());
        mark *= 10.0;
    }
    for (line, y) in lines.iter().zip(places) {
        let noisy = if line.noisy() { " ~" } else { "" };
        let label = text(body, LEFT - 6.0, y + row / 2.0 + 2.0).with("text-anchor", "end");
        label.text(&format!("{}{noisy}", line.row.name));
        for (guest, ratio) in ratios(line).into_iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let (from, to) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
            // As long as the host is no bar at all: it begins a little before the line.
            let (from, to) = if to - from < 4.0 { (from - 2.0, from + 2.0) } else { (from, to) };
            let above = y + guest as f64 * BAR;
            text(body, to + 3.0, above + 7.5).with("font-size", 8).text(&format!("{ratio:.2}"));
            let colour = COLOURS[guest % COLOURS.len()];
            let rect = bar(body, (from, above + 2.0), (to - from).max(1.0), BAR - 1.0, colour);
            let rect = if line.noisy() { rect.with("opacity", 0.4) } else { rect };
            rect.titled(&format!("{} {}: {ratio:.2}", results.subjects[guest + 1], line.row.name));
        }
    }
    end + 30.0
}

/// The boots, in milliseconds from the command's start to its end; bars from nought.
fn boots(body: &mut String, results: &Results, table: &Table, top: f64) -> f64 {
    let booted: Vec<_> = table.boots.iter().filter_map(|boot| Some((boot, boot.whole()?))).collect();
    if booted.is_empty() {
        return top;
    }
    let longest = booted.iter().map(|(_, ms)| *ms).fold(1.0, f64::max);
    let title = format!("boot: the whole command in ms, {} (less is better)", table.setting.name());
    text(body, LEFT, top + 8.0).with("font-size", 14).text(&title);
    let mut y = top + 18.0;
    for (boot, ms) in booted {
        let name = format!("{} {}", results.subjects[boot.subject], boot.entry.name());
        let (width, noisy) = (ms / longest * WIDTH, if boot.noisy() { " ~" } else { "" });
        let colour = COLOURS[boot.subject.saturating_sub(1) % COLOURS.len()];
        text(body, LEFT - 6.0, y + 9.5).with("text-anchor", "end").text(&name);
        bar(body, (LEFT, y), width, 11.0, colour).empty();
        text(body, LEFT + width + 4.0, y + 9.5).text(&format!("{ms:.0}{noisy}"));
        y += 16.0;
    }
    y + 24.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Boot;
    use crate::results::tests::{line, results};
    use crate::subject::Entry;

    #[test]
    fn each_guest_has_a_bar_in_each_row() {
        let mut failed = line("crc32", &[&[10.0], &[20.0], &[90.0], &[80.0]]);
        failed.cells[1].failed = Some("took too long".into());
        let mut results = results(vec![line("fib", &[&[10.0], &[20.0], &[900.0], &[80.0]]), failed]);
        results.subjects[2] = "a<b".into();
        let chart = svg(&results);
        assert_eq!(chart.matches("<title>").count(), 5);
        assert!(chart.contains("<title>satori fib: 2.00</title>") && chart.contains("a&lt;b fib: 90.00"));
        // Every element that is opened is closed.
        for name in ["svg", "text", "title"] {
            let (open, close) = (format!("<{name}"), format!("</{name}>"));
            assert_eq!(chart.matches(&open).count(), chart.matches(&close).count(), "{name}");
        }
    }

    #[test]
    fn groups_values_host_date_and_boots_are_there() {
        let mut results = results(vec![line("fib", &[&[10.0], &[10.0], &[900.0], &[80.0]])]);
        let mut boot = Boot::new(1, Entry::Pvh);
        boot.add(512.0, 300.0, 3);
        results.tables[0].boots.push(boot);
        let chart = svg(&results);
        for part in [
            ">integer</text>",
            ">90.00</text>",
            "a host",
            "2026-01-02 03:04:05 UTC; guests: 6.1<",
            "boot: the whole command in ms",
            ">512</text>",
        ] {
            assert!(chart.contains(part), "{part}: {chart}");
        }
        let bar = chart.lines().find(|line| line.contains("<title>satori fib: 1.00")).expect("a bar");
        assert!(bar.contains("width=\"4.00\""), "what takes as long as on the host is seen: {bar}");
    }

    #[test]
    fn longer_bars_are_longer_times() {
        let chart = svg(&results(vec![line("fib", &[&[10.0], &[20.0], &[900.0], &[80.0]])]));
        let widths: Vec<f64> = chart
            .lines()
            .filter(|line| line.contains("<title>"))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(widths[0] < widths[2] && widths[2] < widths[1], "{widths:?}");
    }

    #[test]
    fn without_rows_there_is_still_a_chart() {
        assert!(svg(&results(Vec::new())).ends_with("</svg>\n"));
    }
}
