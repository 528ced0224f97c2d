//! Reports as one self-contained HTML file: no script, nothing fetched, charts as SVG.

mod charts;

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Report, Table};

const STYLE: &str = "\
:root{--ink:#1c2430;--soft:#5f6b7a;--line:#dfe4ea;--back:#f5f7f9;--card:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--line:#2e3743;--back:#12161c;--card:#1a2029}}\
*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);font:15px/1.45 system-ui,'DejaVu Sans',sans-serif}\
main{max-width:1120px;margin:0 auto;padding:28px 20px}h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:0 0 12px}\
p{margin:0 0 14px;color:var(--soft)}section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:18px;margin:16px 0;overflow-x:auto}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px}.card{border-left:4px solid #3d7ea6;padding:2px 12px}\
.card b{display:block;font-size:24px}.card span{color:var(--soft)}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{text-align:right;padding:4px 10px;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:600}\
th:first-child,td:first-child{text-align:left}svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font-size:13px}\
svg .soft{fill:var(--soft)}svg .on{fill:#fff}svg .mark{stroke:var(--line)}.below{margin:10px 0 0}.soft{color:var(--soft)}\
th.left,td.left{text-align:left}.places{margin-top:14px}.places td:nth-child(2){font-family:monospace}.key{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}\
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:10px}";

const COLOURS: [&str; 12] = [
    "#3d7ea6", "#e08e45", "#5c9e6f", "#c2556b", "#8a6fb0", "#b59b3b", "#4fa8a8", "#9c6b4e", "#6b7fd1",
    "#a3a3a3", "#d07fb8", "#7fae3f",
];

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c if c.is_control() => out.push('.'),
            c => out.push(c),
        }
    }
    out
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} us", ns / 1e3),
    }
}

/// A colour for each reason, the same in every chart; the most frequent ones differ.
struct Palette(BTreeMap<String, &'static str>);

impl Palette {
    fn of(runs: &[(String, Report)]) -> Self {
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for row in runs.iter().flat_map(|(_, run)| &run.all.exits) {
            let known = most.entry(&row.reason).or_default();
            *known = known.saturating_add(row.total_ns);
        }
        let mut order: Vec<_> = most.into_iter().collect();
        order.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let colours = COLOURS.iter().chain(std::iter::repeat(&COLOURS[9]));
        Palette(order.into_iter().map(|(reason, _)| reason.to_string()).zip(colours.copied()).collect())
    }

    fn get(&self, reason: &str) -> &'static str {
        self.0.get(reason).copied().unwrap_or(COLOURS[9])
    }
}

/// The page of these runs, each with its name.
pub fn page(runs: &[(String, Report)]) -> String {
    let palette = Palette::of(runs);
    let mut body = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(body, "<section id=\"totals\"><h2>Totals</h2><div class=\"cards\">");
    for (name, run) in runs {
        let _ = write!(
            body,
            "<div class=\"card\"><span>{}</span><b>{}</b><span>exits, {} in them{}{}</span></div>",
            escape(name),
            grouped(run.all.samples),
            time(run.all.total_ns),
            run.all
                .row("HLT")
                .map_or_else(String::new, |row| { format!(", {} of it halted", time(row.total_ns)) }),
            run.guest_time_ns.map_or_else(String::new, |ns| format!(", guest time {}", time(ns)))
        );
    }
    body += "</div></section>";
    bars(
        &mut body,
        "count",
        "Exits by reason",
        runs,
        &palette,
        |run, reason| run.all.samples_of(&[reason]),
        grouped,
    );
    bars(
        &mut body,
        "cost",
        "Time in exits by reason",
        runs,
        &palette,
        |run, reason| run.all.time_of(&[reason]),
        time,
    );
    if runs.iter().any(|(_, run)| run.all.modelled().is_some()) {
        bars(
            &mut body,
            "modelled",
            "Modelled hardware cost by reason",
            runs,
            &palette,
            |run, reason| run.all.row(reason).and_then(|row| row.modelled_ns).unwrap_or(0),
            time,
        );
    }
    for (index, (name, run)) in runs.iter().enumerate() {
        exits(&mut body, name, run, &palette);
        vcpus(&mut body, &format!("vcpus-{index}"), name, run, &palette);
        charts::timeline(&mut body, name, run, &palette);
        charts::flame(&mut body, name, run, &palette);
        charts::offered(&mut body, name, run);
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Exits: {}</title><style>{STYLE}</style></head><body><main>\
         <h1>Where the time goes</h1><p>Exits of the guest, by reason; made by Satori.</p>{body}</main></body></html>\n",
        escape(&runs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "))
    )
}

/// One stacked bar for each run, all on one scale.
fn bars(
    body: &mut String,
    id: &str,
    title: &str,
    runs: &[(String, Report)],
    palette: &Palette,
    of: impl Fn(&Report, &str) -> u64,
    told: impl Fn(u64) -> String,
) {
    let sum =
        |run: &Report| run.all.exits.iter().fold(0u64, |sum, row| sum.saturating_add(of(run, &row.reason)));
    let most = runs.iter().map(|(_, run)| sum(run)).max().unwrap_or(0).max(1);
    let height = runs.len() * 40 + 4;
    let _ =
        write!(body, "<section id=\"{id}\"><h2>{title}</h2><svg viewBox=\"0 0 1080 {height}\" role=\"img\">");
    for (index, (name, run)) in runs.iter().enumerate() {
        let y = index * 40;
        let label: String = name.chars().take(22).collect();
        let _ = write!(body, "<text x=\"0\" y=\"{}\">{}</text>", y + 24, escape(&label));
        let mut x = 190.0;
        for row in &run.all.exits {
            let value = of(run, &row.reason);
            let width = value as f64 / most as f64 * 760.0;
            let _ = write!(
                body,
                "<rect class=\"bar\" data-run=\"{index}\" x=\"{x:.2}\" y=\"{}\" width=\"{width:.2}\" height=\"28\" fill=\"{}\"><title>{}: {}</title></rect>",
                y + 5,
                palette.get(&row.reason),
                escape(&row.reason),
                told(value)
            );
            x += width;
        }
        let _ = write!(body, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 8.0, y + 24, told(sum(run)));
    }
    *body += "</svg><div class=\"legend\">";
    let mut shown: Vec<_> = palette
        .0
        .keys()
        .map(|reason| (runs.iter().map(|(_, run)| of(run, reason)).max().unwrap_or(0), reason))
        .collect();
    shown.sort_by(|a, b| b.cmp(a));
    for (_, reason) in shown.iter().filter(|(most, _)| *most > 0).take(COLOURS.len()) {
        let _ = write!(
            body,
            "<span><i class=\"key\" style=\"background:{}\"></i>{}</span>",
            palette.get(reason),
            escape(reason)
        );
    }
    *body += "</div></section>";
}

/// More vCPUs are no chart that anybody reads.
const MOST_VCPUS: usize = 64;

/// A bar for each vCPU, where there are several.
fn vcpus(body: &mut String, id: &str, name: &str, run: &Report, palette: &Palette) {
    if !(2..=MOST_VCPUS).contains(&run.vcpus.len()) {
        return;
    }
    let of = |table: &Table| Report { all: table.clone(), ..Report::default() };
    let each = run
        .vcpus
        .iter()
        .zip(0..)
        .map(|(table, at)| (format!("vCPU {}", table.vcpu.unwrap_or(at)), of(table)));
    let title = format!("{}: exits by vCPU", escape(name));
    bars(
        body,
        id,
        &title,
        &each.collect::<Vec<_>>(),
        palette,
        |run, reason| run.all.samples_of(&[reason]),
        grouped,
    );
}

fn exits(body: &mut String, name: &str, run: &Report, palette: &Palette) {
    let _ = write!(
        body,
        "<section class=\"exits\"><h2>{}: exits</h2><table><tr><th>VM-EXIT</th><th>Samples</th><th>Samples%</th><th>Time%</th>\
         <th>Min</th><th>Max</th><th>Average</th><th>+-</th><th>Modelled</th></tr>",
        escape(name)
    );
    let percent = |part: u64, whole: u64| part as f64 / whole.max(1) as f64 * 100.0;
    for row in &run.all.exits {
        let _ = write!(
            body,
            "<tr><td><i class=\"key\" style=\"background:{}\"></i>{}</td><td>{}</td><td>{:.2}%</td><td>{:.2}%</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}%</td><td>{}</td></tr>",
            palette.get(&row.reason),
            escape(&row.reason),
            grouped(row.samples),
            percent(row.samples, run.all.samples),
            percent(row.total_ns, run.all.total_ns),
            time(row.min_ns),
            time(row.max_ns),
            time(row.mean_ns as u64),
            row.deviation_percent,
            row.modelled_ns.map_or("-".into(), time)
        );
    }
    *body += "</table></section>";
}
