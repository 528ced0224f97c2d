//! Reports as one self-contained HTML file: no script, nothing fetched, charts as SVG.

mod charts;
mod nested;

use std::collections::BTreeMap;
use std::fmt::Write;

use satori_seam::Class;

use crate::reasons::is;
use crate::svg::{element, escape};
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
th:first-child,td:first-child{text-align:left}th,td{white-space:nowrap}td.left.soft{white-space:normal}svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font-size:13px}\
svg .soft{fill:var(--soft)}svg .on{fill:#fff}svg .dark{fill:#1c2430}svg .mark{stroke:var(--line)}.below{margin:10px 0 0}.soft{color:var(--soft)}\
th.left,td.left{text-align:left}.places{margin-top:14px}.places td:nth-child(2){font-family:monospace}.key{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}\
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:10px}\
.origin+.origin{margin-top:16px}.origin tr:first-child td{font-weight:600}.origin td{white-space:normal}.origin td:first-child{color:var(--soft);white-space:nowrap;vertical-align:top}.origin td{text-align:left;overflow-wrap:anywhere}\
@media(max-width:700px){main{padding:12px 8px}section{padding:12px}section>svg{min-width:860px}h1{font-size:20px}th,td{padding:3px 6px}}\
@media print{:root{--ink:#000;--soft:#444;--line:#bbb;--back:#fff;--card:#fff}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}\
main{max-width:none;padding:0}section{overflow:visible;padding:12px;break-inside:avoid;border-color:#bbb}section.exits,#ratios,#origin{break-inside:auto}\
table{font-size:10px}th,td{padding:2px 5px}tr{break-inside:avoid}thead{display:table-header-group}svg text{font-size:17px}}";

/// The colour of each reason, whatever else is on the page, so that pages can be laid side by side. AMD's names have those of Intel's.
const COLOURS: &[(&str, &[&str])] = &[
    ("#3d7ea6", &["EPT_MISCONFIG", "npf", "DABT_LOW"]),
    ("#e08e45", &["IO_INSTRUCTION", "io"]),
    ("#c2556b", &["EXTERNAL_INTERRUPT", "interrupt", "IRQ"]),
    ("#5c9e6f", &["MSR_WRITE", "msr", "SYS64"]),
    ("#8a6fb0", &["APIC_WRITE", "avic_unaccelerated_access"]),
    ("#b59b3b", &["EPT_VIOLATION", "IABT_LOW"]),
    ("#4fa8a8", &["VMCALL", "hypercall", "HVC64"]),
    ("#b7bec8", &["HLT", "hlt", "idle-halt", "WFx"]),
    ("#6b7fd1", &["MSR_READ"]),
    ("#9c6b4e", &["CPUID", "cpuid"]),
    ("#d07fb8", &["INTERRUPT_WINDOW", "PENDING_INTERRUPT", "vintr"]),
    ("#7fae3f", &["PREEMPTION_TIMER"]),
    ("#a03c8c", &["TPR_BELOW_THRESHOLD", "write_cr8"]),
    ("#2f5d50", &["APIC_ACCESS", "avic_incomplete_ipi"]),
    ("#d9b44a", &["EOI_INDUCED"]),
    ("#7a2e2e", &["PAUSE_INSTRUCTION", "pause"]),
    ("#27496d", &["DR_ACCESS", "read_dr7", "write_dr7"]),
    ("#94c5cc", &["CR_ACCESS"]),
    ("#c7e05a", &["XSETBV", "xsetbv"]),
    ("#e3a6a1", &["EXCEPTION_NMI", "nmi"]),
    ("#51504f", &["VMRESUME", "vmrun"]),
];
/// What is the guest's own rest.
const IDLE: &[Class] = &[Class::Idle];
/// That of all others.
const OTHER: &str = "#8d8d8d";

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
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

/// How many times `base` it is, with as many digits as a person reads.
fn times(own: u64, base: u64) -> String {
    match own as f64 / base as f64 {
        _ if base == 0 && own == 0 => "-".into(),
        _ if base == 0 => "new".into(),
        ratio if ratio >= 100.0 => grouped(ratio.round() as u64),
        ratio if ratio >= 10.0 => format!("{ratio:.1}"),
        ratio if own > 0 && ratio < 0.005 => "<0.01".into(),
        ratio => format!("{ratio:.2}"),
    }
}

/// Nanoseconds in exits that are no idling.
fn busy(run: &Report) -> u64 {
    let idle = run.all.exits.iter().filter(|row| is(&row.reason, IDLE));
    run.all.total_ns.saturating_sub(idle.fold(0u64, |sum, row| sum.saturating_add(row.total_ns)))
}

/// Whether the text on this colour (`#rrggbb`) is to be dark: by its luminance (ITU-R BT.601).
fn light(colour: &str) -> bool {
    let part = |at: usize| {
        f64::from(colour.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0))
    };
    0.299 * part(1) + 0.587 * part(3) + 0.114 * part(5) > 140.0
}

fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} us", ns / 1e3),
    }
}

/// The reasons of all runs in one order, that of the most time, which every chart and the legend keep.
struct Palette(Vec<String>);

impl Palette {
    fn of(runs: &[(String, Report)]) -> Self {
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for row in runs.iter().flat_map(|(_, run)| &run.all.exits) {
            let known = most.entry(&row.reason).or_default();
            *known = known.saturating_add(row.total_ns);
        }
        let mut order: Vec<_> = most.into_iter().collect();
        order.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        Palette(order.into_iter().map(|(reason, _)| reason.to_string()).collect())
    }

    /// The reasons that are work: idling is no cost, and would dwarf all others.
    fn busy(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter(|reason| !is(reason, IDLE))
    }

    fn get(&self, reason: &str) -> &'static str {
        COLOURS.iter().find(|(_, names)| names.contains(&reason)).map_or(OTHER, |(colour, _)| colour)
    }

    /// What each colour means, once for the whole page.
    fn legend(&self, body: &mut String) {
        *body += "<section id=\"legend\"><h2>Reasons, by time in all runs</h2><div class=\"legend\">";
        for reason in &self.0 {
            let _ = write!(
                body,
                "<span><i class=\"key\" style=\"background:{}\"></i>{}</span>",
                self.get(reason),
                escape(reason)
            );
        }
        *body += "</div></section>";
    }
}

/// Where each report comes from, as far as anybody told.
fn origins(body: &mut String, runs: &[(String, Report)]) {
    if runs.iter().all(|(_, run)| run.origin.is_none() && run.notes.is_empty() && run.processor.is_none()) {
        return;
    }
    *body += "<section id=\"origin\"><h2>Where this comes from</h2>";
    for (name, run) in runs {
        let origin = run.origin.clone().unwrap_or_default();
        let rows = [
            ("run", name.clone()),
            ("kernel", origin.kernel),
            ("command", origin.command),
            ("date", origin.date),
            ("Satori", origin.satori),
            ("modelled processor", run.processor.clone().unwrap_or_default()),
            ("exit status", run.status.map_or_else(String::new, |status| status.to_string())),
            ("host", origin.host),
            ("passed over", run.notes.join("; ")),
        ];
        *body += "<table class=\"origin\">";
        for (what, told) in rows.iter().filter(|(_, told)| !told.is_empty()) {
            let _ = write!(body, "<tr><td>{what}</td><td>{}</td></tr>", escape(told));
        }
        *body += "</table>";
    }
    *body += "</section>";
}

/// Each run's time by reason, and how many times that of the first.
fn ratios(body: &mut String, runs: &[(String, Report)], palette: &Palette) {
    let [(first, base), others @ ..] = runs else { return };
    if others.is_empty() {
        return;
    }
    let _ = write!(
        body,
        "<section id=\"ratios\"><h2>Time in exits, and as so many times that of {}</h2><table><tr><th>VM-EXIT</th><th>{}</th>",
        escape(first),
        escape(first)
    );
    for (name, _) in others {
        let _ = write!(body, "<th>{}</th><th>ratio</th>", escape(name));
    }
    *body += "</tr>";
    let shown = |ns: u64| if ns == 0 { "-".into() } else { time(ns) };
    let mut row = |reason: &str, key: &str, of: &dyn Fn(&Report) -> u64| {
        let base = of(base);
        let _ = write!(body, "<tr><td>{key}{}</td><td>{}</td>", escape(reason), shown(base));
        for (_, run) in others {
            let own = of(run);
            let _ = write!(body, "<td>{}</td><td>{}</td>", shown(own), times(own, base));
        }
        *body += "</tr>";
    };
    let key = |reason: &str| format!("<i class=\"key\" style=\"background:{}\"></i>", palette.get(reason));
    for reason in palette.busy() {
        row(reason, &key(reason), &|run| run.all.time_of(&[reason]));
    }
    row("all of these", "", &busy);
    for reason in palette.0.iter().filter(|reason| is(reason, IDLE)) {
        row(&format!("{reason} (idle)"), &key(reason), &|run| run.all.time_of(&[reason]));
    }
    *body += "</table></section>";
}

/// The page of these runs, each with its name.
pub fn page(runs: &[(String, Report)]) -> String {
    let palette = Palette::of(runs);
    let mut body = String::new();
    // Writing to a String cannot fail, here and below.
    origins(&mut body, runs);
    let _ = write!(body, "<section id=\"totals\"><h2>Exits and the time in them</h2><div class=\"cards\">");
    for (name, run) in runs {
        let _ = write!(
            body,
            "<div class=\"card\"><span>{}</span><b>{}</b><span>exits, {} in them{}{}</span></div>",
            escape(name),
            grouped(run.all.samples),
            time(busy(run)),
            match run.all.total_ns.saturating_sub(busy(run)) {
                0 => String::new(),
                idle => format!(", and {} idle", time(idle)),
            },
            run.guest_time_ns.map_or_else(String::new, |ns| format!("; guest time {}", time(ns)))
        );
    }
    body += "</div></section>";
    palette.legend(&mut body);
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
        "Time in exits by reason, without idling",
        runs,
        &palette,
        |run, reason| if is(reason, IDLE) { 0 } else { run.all.time_of(&[reason]) },
        time,
    );
    if runs.len() > 1 {
        // Runs of unlike size: each one's own whole.
        shares(&mut body, runs, &palette);
        ratios(&mut body, runs, &palette);
    }
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
        nested::section(&mut body, name, run);
        vcpus(&mut body, &format!("vcpus-{index}"), name, run, &palette);
        charts::timeline(&mut body, name, run, &palette);
        charts::flame(&mut body, name, run, &palette);
        charts::offered(&mut body, name, run);
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Exits: {}</title><style>{STYLE}</style></head><body><main>\
         <h1>{}</h1><p>How often the guest left for the monitor, why, and how long that took.</p>{body}</main></body></html>\n",
        escape(&runs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")),
        escape(&heading(runs))
    )
}

/// What the page shows, in a line.
fn heading(runs: &[(String, Report)]) -> String {
    let names: Vec<_> = runs.iter().map(|(name, _)| name.as_str()).collect();
    match runs {
        [(name, run)] => {
            let origin = run.origin.clone().unwrap_or_default();
            let of = origin.kernel.rsplit('/').next().filter(|kernel| !kernel.is_empty());
            format!(
                "VM exits of {}{}",
                of.unwrap_or(name),
                if origin.date.is_empty() { String::new() } else { format!(", {}", origin.date) }
            )
        }
        _ => format!("VM exits compared: {}", names.join(", ")),
    }
}

/// Begins a section, which `attribute` names, with a drawing; whoever calls ends the section. `title` is HTML.
fn drawing(
    body: &mut String,
    attribute: (&str, &str),
    title: &str,
    height: usize,
    draw: impl FnOnce(&mut String),
) {
    let _ = write!(body, "<section {}=\"{}\"><h2>{title}</h2>", attribute.0, attribute.1);
    element(body, "svg").with("viewBox", format_args!("0 0 1080 {height}")).with("role", "img").holds(draw);
}

/// The time by reason as parts of each run's own whole.
fn shares(body: &mut String, runs: &[(String, Report)], palette: &Palette) {
    let title = "Time in exits by reason, without idling, as parts of each run's own";
    drawing(body, ("id", "shares"), title, runs.len() * 40 + 4, |out| {
        for (index, (name, run)) in runs.iter().enumerate() {
            let y = index * 40;
            label(out, name, y);
            let mut x = 190.0;
            for reason in palette.busy() {
                let part = run.all.time_of(&[reason]) as f64 / busy(run).max(1) as f64;
                let width = part * 860.0;
                if width < 0.01 {
                    continue;
                }
                let bar =
                    element(out, "rect").px("x", x).with("y", y + 5).px("width", width).with("height", 28);
                let told = format!("{reason}: {:.1} %", part * 100.0);
                bar.with("fill", palette.get(reason)).titled(&told);
                if width > 46.0 {
                    let class = if light(palette.get(reason)) { "dark" } else { "on" };
                    let text = element(out, "text").with("class", class).px("x", x + 6.0).with("y", y + 24);
                    text.text(&format!("{:.0} %", part * 100.0));
                }
                x += width;
            }
        }
    });
    *body += "</section>";
}

/// The name of a run before its bar.
fn label(out: &mut String, name: &str, y: usize) {
    let label: String = name.chars().take(22).collect();
    element(out, "text").with("x", 0).with("y", y + 24).text(&label);
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
    drawing(body, ("id", id), title, runs.len() * 40 + 4, |out| {
        for (index, (name, run)) in runs.iter().enumerate() {
            let y = index * 40;
            label(out, name, y);
            let mut x = 190.0;
            for reason in &palette.0 {
                let value = of(run, reason);
                if value == 0 {
                    continue;
                }
                let width = value as f64 / most as f64 * 760.0;
                let bar = element(out, "rect").with("class", "bar").with("data-run", index).px("x", x);
                let bar = bar.with("y", y + 5).px("width", width).with("height", 28);
                bar.with("fill", palette.get(reason)).titled(&format!("{reason}: {}", told(value)));
                x += width;
            }
            element(out, "text").px("x", x + 8.0).with("y", y + 24).text(&told(sum(run)));
        }
    });
    *body += "</section>";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_stand_on_one_page_have_a_colour_each() {
        let intel = |name: &&str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        for (colour, names) in COLOURS {
            let mut own: Vec<_> = names.iter().copied().filter(intel).collect();
            // The same reason before and after Linux 5.6, and those of ARM's processors.
            own.retain(|name| !["PENDING_INTERRUPT", "DABT_LOW", "IABT_LOW", "IRQ"].contains(name));
            assert!(own.len() <= 1, "{colour}: {own:?}");
            assert_eq!(COLOURS.iter().filter(|(other, _)| other == colour).count(), 1, "{colour}");
        }
    }
}
