//! The results as a chart: how many times as long as the host each row takes.

use std::fmt::Write;

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
    for table in &results.tables {
        top = part(&mut body, results, table, top, row);
    }
    let (width, height) = (LEFT + WIDTH + 70.0, top + 10.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 \
         {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" \
         height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
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
    let end = top + TOP + lines.len() as f64 * row;

    let title = escape(&format!("times as long as native, {} (less is better)", table.setting.name()));
    let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"14\">{title}</text>", top + 8.0);
    for (index, name) in results.subjects.iter().skip(1).enumerate() {
        let (at, colour) = (LEFT + index as f64 * 120.0, COLOURS[index % COLOURS.len()]);
        let y = top + 22.0;
        let _ =
            writeln!(body, "<rect x=\"{at:.0}\" y=\"{y:.0}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(body, "<text x=\"{:.0}\" y=\"{:.0}\">{}</text>", at + 14.0, y + 9.0, escape(name));
    }
    let mut mark = 10f64.powf(lowest.log10().ceil());
    while mark <= highest {
        let _ = writeln!(
            body,
            "<line x1=\"{0:.1}\" y1=\"{1:.0}\" x2=\"{0:.1}\" y2=\"{end:.0}\" stroke=\"{2}\"/><text x=\"{0:.1}\" \
             y=\"{3:.0}\" text-anchor=\"middle\">{mark}</text>",
            x(mark),
            top + TOP - 6.0,
            if (mark - 1.0).abs() < 1e-9 { "#333333" } else { "#dddddd" },
            top + TOP - 10.0
        );
        mark *= 10.0;
    }
    for (index, line) in lines.iter().enumerate() {
        let y = top + TOP + index as f64 * row;
        let noisy = if line.noisy() { " ~" } else { "" };
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}{noisy}</text>",
            LEFT - 6.0,
            y + row / 2.0 + 2.0,
            escape(line.row.name)
        );
        for (guest, ratio) in ratios(line).into_iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let (from, to) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
            let _ = writeln!(
                body,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"{}><title>{} {}: \
                 {ratio:.2}</title></rect>",
                y + guest as f64 * BAR + 2.0,
                (to - from).max(1.0),
                BAR - 1.0,
                COLOURS[guest % COLOURS.len()],
                if line.noisy() { " opacity=\"0.4\"" } else { "" },
                escape(&results.subjects[guest + 1]),
                escape(line.row.name)
            );
        }
    }
    end + 30.0
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{line, results};

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
