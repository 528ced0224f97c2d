//! What `satori top` shows, as text and on a terminal.

use std::fmt::Write;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};

use super::rates::{Rate, Rates};

/// Rows of each list in the text.
const ROWS: usize = 12;

fn head(rates: &Rates) -> String {
    format!("guest time {:.1} s, {} vCPUs, {:.0} exits a second", rates.now, rates.vcpus.len(), rates.sum)
}

fn list(out: &mut String, title: &str, rates: &[Rate]) {
    if rates.is_empty() {
        return;
    }
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "\n{:>12} {:>14}  {title}", "a second", "total");
    for rate in rates.iter().take(ROWS) {
        let _ = writeln!(out, "{:>12.1} {:>14}  {}", rate.a_second, rate.total, rate.name.trim_end());
    }
}

/// All of it, for `--batch`.
pub(super) fn text(rates: &Rates) -> String {
    let mut out = format!("satori top: {}\n", head(rates));
    let _ = writeln!(out, "\n{:>12} {:>14} {:>6}  exits by reason", "a second", "total", "time%");
    for rate in &rates.exits {
        let _ = writeln!(
            out,
            "{:>12.1} {:>14} {:>6.2}  {}",
            rate.a_second,
            rate.total,
            rate.share * 100.0,
            rate.name
        );
    }
    let _ = writeln!(
        out,
        "\n{:>5} {:>12} {:>12} {:>7} {:>7}  most",
        "vCPU", "exits/s", "interrupts/s", "halted%", "exits%"
    );
    for (index, vcpu) in rates.vcpus.iter().enumerate() {
        let line = format!(
            "{index:>5} {:>12.1} {:>12.1} {:>7.2} {:>7.2}  {}",
            vcpu.exits,
            vcpu.interrupts,
            vcpu.halted * 100.0,
            vcpu.exiting * 100.0,
            vcpu.most
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    list(&mut out, "enlightenments", &rates.hyperv);
    list(&mut out, "hypercalls", &rates.hypercalls);
    list(&mut out, "counted by the engine", &rates.engine);
    list(&mut out, "interrupts by vector", &rates.interrupts);
    list(&mut out, "guest addresses that exit: reason, RIP, function", &rates.hot);
    out
}

/// A number as people read it: 1,234 or 12.3.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

const SOFT: Style = Style::new().fg(Color::DarkGray);
const LOUD: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn block(title: &str) -> Block<'static> {
    Block::bordered().border_style(SOFT).title(Span::styled(format!(" {title} "), LOUD))
}

/// What happens often is bright, what happened once is not.
fn style(rate: &Rate) -> Style {
    if rate.a_second > 0.0 { Style::new() } else { SOFT }
}

fn rates_table(frame: &mut Frame<'_>, area: Rect, title: &str, rates: &[Rate]) {
    let rows = rates.iter().map(|rate| {
        Row::new([
            right(short(rate.a_second)),
            right(short(rate.total as f64)),
            Cell::from(rate.name.clone()),
        ])
        .style(style(rate))
    });
    let widths = [Constraint::Length(8), Constraint::Length(8), Constraint::Min(10)];
    let header = Row::new([right("/s".into()), right("total".into()), Cell::from("")]).style(SOFT);
    frame.render_widget(Table::new(rows, widths).header(header).block(block(title)), area);
}

fn exits_table(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let rows = rates.exits.iter().map(|rate| {
        let part = if rates.sum > 0.0 { rate.a_second / rates.sum } else { 0.0 };
        let bar = "█".repeat((part * 14.0).round() as usize);
        Row::new([
            right(short(rate.a_second)),
            right(short(rate.total as f64)),
            right(format!("{:.2}", rate.share * 100.0)),
            Cell::from(rate.name.clone()),
            Cell::from(Span::styled(bar, Style::new().fg(Color::Cyan))),
        ])
        .style(style(rate))
    });
    let widths = [8, 8, 7, 22, 14].map(Constraint::Length);
    let header = Row::new([
        right("/s".into()),
        right("total".into()),
        right("time%".into()),
        Cell::from("reason"),
        Cell::from(""),
    ])
    .style(SOFT);
    frame.render_widget(Table::new(rows, widths).header(header).block(block("exits")), area);
}

fn vcpus_table(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let rows = rates.vcpus.iter().enumerate().map(|(index, vcpu)| {
        Row::new([
            right(index.to_string()),
            right(short(vcpu.exits)),
            right(short(vcpu.interrupts)),
            right(format!("{:.1}", vcpu.halted * 100.0)),
            right(format!("{:.1}", vcpu.exiting * 100.0)),
            Cell::from(vcpu.most.clone()),
        ])
    });
    let widths = [4, 8, 8, 7, 7, 20].map(Constraint::Length);
    let names = ["vCPU", "exits/s", "intr/s", "halted%", "exits%"];
    let header = names.map(|name| right(name.into())).into_iter().chain([Cell::from("most")]);
    frame.render_widget(
        Table::new(rows, widths).header(Row::new(header).style(SOFT)).block(block("vCPUs")),
        area,
    );
}

/// All of it on a terminal. `state` is said in the first line.
pub(super) fn draw(frame: &mut Frame<'_>, rates: &Rates, state: &str) {
    let [first, upper, lower, last] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let [exits, right] = Layout::horizontal([Constraint::Length(66), Constraint::Fill(1)]).areas(upper);
    let [vcpus, hyperv, calls] =
        Layout::vertical([Constraint::Fill(3), Constraint::Fill(3), Constraint::Fill(2)]).areas(right);
    let [hot, interrupts] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(30)]).areas(lower);
    let title =
        Line::from(vec![Span::styled("satori top  ", LOUD), Span::raw(head(rates)), Span::raw(state)]);
    frame.render_widget(Paragraph::new(title), first);
    exits_table(frame, exits, rates);
    vcpus_table(frame, vcpus, rates);
    rates_table(frame, hyperv, "enlightenments", &rates.hyperv);
    rates_table(frame, calls, "hypercalls", &rates.hypercalls);
    let hot = match rates.engine.is_empty() {
        true => hot,
        false => {
            let halves = [Constraint::Fill(1), Constraint::Length(52)];
            let [hot, engine] = Layout::horizontal(halves).areas(hot);
            rates_table(frame, engine, "counted by the engine", &rates.engine);
            hot
        }
    };
    rates_table(frame, hot, "guest addresses that exit", &rates.hot);
    rates_table(frame, interrupts, "interrupts", &rates.interrupts);
    frame.render_widget(Paragraph::new("q quit   space pause   + - interval").style(SOFT), last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::rates::Vcpu;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn rates() -> Rates {
        let rate = |name: &str, a_second| Rate { name: name.into(), a_second, total: 12_345, share: 0.25 };
        Rates {
            now: 3.0,
            sum: 1500.0,
            exits: vec![rate("MSR_WRITE", 1500.0), rate("HLT", 0.0)],
            vcpus: vec![Vcpu { exits: 1500.0, most: "MSR_WRITE".into(), ..Vcpu::default() }],
            hyperv: vec![rate("stimer", 250.0)],
            interrupts: vec![rate("0xec", 250.0)],
            hypercalls: vec![rate("HvCallSendSyntheticClusterIpi", 7.0)],
            hot: vec![rate("MSR_WRITE 0xffffffff81000000 native_write_msr+0x4", 1500.0)],
            engine: vec![rate("by KVM: VM exits", 900.0)],
        }
    }

    #[test]
    fn every_list_is_on_the_screen_and_in_the_text() {
        let rates = rates();
        let mut terminal = Terminal::new(TestBackend::new(180, 40)).unwrap();
        terminal.draw(|frame| draw(frame, &rates, "")).unwrap();
        let screen = terminal.backend().to_string();
        for text in [screen, text(&rates)] {
            for word in [
                "MSR_WRITE",
                "HLT",
                "stimer",
                "0xec",
                "HvCallSendSyntheticClusterIpi",
                "native_write_msr+0x4",
                "by KVM: VM exits",
            ] {
                assert!(text.contains(word), "no {word}:\n{text}");
            }
            assert!(text.contains("1 vCPUs, 1500 exits a second"), "{text}");
        }
    }

    #[test]
    fn a_small_terminal_is_no_mistake() {
        for (width, height) in [(1, 1), (20, 5), (66, 8)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &rates(), "")).unwrap();
        }
    }
}
