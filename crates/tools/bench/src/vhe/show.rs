//! The experiment as text and as JSON.

use std::fmt::Write;

use satori_arm_hypervisor::Benchmark;
use serde_json::{Value, json};

use super::{Cell, Results, Row, TALK};

/// Columns of the anatomy: a heading, and the events that are added up in it.
const ANATOMY: [(&str, &[&str]); 11] = [
    ("instr.", &["instructions"]),
    ("levels", &["exceptions", "returns"]),
    ("EL1", &["read_el1", "write_el1"]),
    ("EL2", &["read_el2", "write_el2"]),
    ("traps", &["read_traps", "write_traps", "read_stage2", "write_stage2"]),
    ("syndr.", &["read_syndrome", "write_syndrome"]),
    ("timer", &["read_timer", "write_timer"]),
    ("vGIC", &["read_virtual_gic", "write_virtual_gic"]),
    ("GIC", &["read_gic", "write_gic", "device_reads", "device_writes"]),
    ("other", &["read_debug", "write_debug", "read_thread", "write_thread", "read_other", "write_other"]),
    ("barr.", &["barriers", "tlbi"]),
];

fn anatomy(cell: &Cell) -> [f64; ANATOMY.len()] {
    ANATOMY.map(|(_, events)| events.iter().map(|event| cell.count(event)).sum())
}

/// The whole report.
pub fn text(results: &Results) -> String {
    let mut out = format!(
        "To EL2, and beyond: switches between worlds by a hypervisor of our own, {} rounds each, virtual clock.\nCounts are exact. Cycles are a \
         model of them (crates/tools/bench/data/vhe.conf); the talk's are an AMD Seattle's, with a GICv2 and all of Linux.\n",
        results.plan.rounds
    );
    cycles(&mut out, results, true);
    cycles(&mut out, results, false);
    for benchmark in [Benchmark::Hypercall, Benchmark::IoUser] {
        table_of_counts(&mut out, results, benchmark);
    }
    why(&mut out, results);
    witness(&mut out, results);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out);
    for verdict in results.verdicts() {
        let _ = writeln!(
            out,
            "{} {}",
            if verdict.holds { "as in the talk:  " } else { "NOT as the talk: " },
            verdict.said
        );
    }
    out
}

fn cycles(out: &mut String, results: &Results, slow: bool) {
    let head = match slow {
        true => "Modelled cycles with a GICv2, whose virtual interface is slow memory",
        false => "Modelled cycles with a GICv3, whose virtual interface is system registers",
    };
    let _ = writeln!(out, "\n{head}\n");
    let _ = write!(out, "{:<18}", "");
    for benchmark in Benchmark::ALL {
        let _ = write!(out, "{:>15}", benchmark.name());
    }
    let _ = writeln!(out);
    let row =
        |row: &Row| -> Vec<f64> { row.cells.iter().map(|cell| cell.cycles(&results.costs, slow)).collect() };
    for one in &results.rows {
        let _ = write!(out, "{:<18}", one.name);
        for cycles in row(one) {
            let _ = write!(out, "{cycles:>15.0}");
        }
        let _ = writeln!(out);
    }
    let (Some(first), Some(last)) = (results.rows.first(), results.rows.last()) else { return };
    let _ = write!(out, "{:<18}", "split / all five");
    for (split, all) in row(first).into_iter().zip(row(last)) {
        let _ = write!(out, "{:>15.2}", split / all);
    }
    let _ = writeln!(out);
    if slow {
        the_talks(out);
    }
}

fn the_talks(out: &mut String) {
    for (place, name) in
        ["talk: split mode", "talk: VHE", "talk: optimised", "talk: x86"].into_iter().enumerate()
    {
        let _ = write!(out, "{name:<18}");
        for (_, figures) in TALK {
            let _ = write!(out, "{:>15}", figures[place].map_or("-".into(), |figure| figure.to_string()));
        }
        let _ = writeln!(out);
    }
    let ratios = TALK.map(|(_, [split, _, all, _])| match (split, all) {
        (Some(split), Some(all)) => format!("{:.2}", f64::from(split) / f64::from(all)),
        _ => "-".into(),
    });
    let _ = writeln!(out, "{:<18}{}", "talk: the ratio", ratios.map(|ratio| format!("{ratio:>15}")).concat());
}

fn table_of_counts(out: &mut String, results: &Results, benchmark: Benchmark) {
    let _ = writeln!(
        out,
        "\nWhat one round of {} is: instructions, changes of level, accesses to registers by group, barriers\n",
        benchmark.name()
    );
    let _ = writeln!(out, "{:<18}{}", "", ANATOMY.map(|(name, _)| format!("{name:>8}")).concat());
    for row in &results.rows {
        for cell in row.cells.iter().filter(|cell| cell.benchmark == benchmark) {
            let counts = anatomy(cell).map(|count| format!("{count:>8.1}"));
            let _ = writeln!(out, "{:<18}{}", row.name, counts.concat());
        }
    }
}

/// Why I/O in user space does not become cheaper.
fn why(out: &mut String, results: &Results) {
    let find =
        |row: &Row, benchmark: Benchmark| row.cells.iter().find(|cell| cell.benchmark == benchmark).cloned();
    let (Some(vhe), Some(all)) = (results.rows.get(1), results.rows.last()) else { return };
    let beyond = |row: &Row| {
        let (user, call) = (find(row, Benchmark::IoUser)?, find(row, Benchmark::Hypercall)?);
        let registers = |cell: &Cell| anatomy(cell)[2..10].iter().sum::<f64>();
        let cycles = |cell: &Cell| cell.cycles(&results.costs, true);
        Some((registers(&user) - registers(&call), cycles(&user) - cycles(&call)))
    };
    if let (Some((few, cheap)), Some((many, dear))) = (beyond(vhe), beyond(all)) {
        let _ = writeln!(
            out,
            "\nI/O in user space leaves the kernel, so the vCPU is put and loaded: what the optimisations took out of each switch is done \
             here.\nBeyond a hypercall it costs {dear:.0} cycles and {many:.0} accesses to registers with all five, {cheap:.0} and {few:.0} \
             with VHE alone."
        );
    }
}

/// What Linux does, and why its two ways differ by less.
fn witness(out: &mut String, results: &Results) {
    let [vhe, split] = results.linux.as_slice() else { return };
    let headings = ANATOMY.map(|(name, _)| format!("{name:>9}")).concat();
    let _ = writeln!(
        out,
        "\nLinux's own KVM with the same guest: what one round is, and modelled cycles with a GICv3\n"
    );
    let _ = writeln!(out, "{:<26}{headings}{:>9}", "", "cycles");
    for row in &results.linux {
        for cell in &row.cells {
            let counts = anatomy(cell).map(|count| format!("{count:>9.1}"));
            let name = format!("{}, {}", row.name, cell.benchmark.name());
            let _ = writeln!(out, "{name:<26}{}{:>9.0}", counts.concat(), cell.cycles(&results.costs, false));
        }
    }
    let (Some(one), Some(two)) = (vhe.cells.first(), split.cells.first()) else { return };
    let ratio = |of: &dyn Fn(&Cell) -> f64| of(two) / of(one);
    let _ = writeln!(
        out,
        "\nWithout VHE a hypercall of Linux's is {:.2} times as many instructions, and {:.2} times as many modelled cycles. That is less than the \
         talk's {:.1}:\nwhat Linux does around the switch is the same in both and more than our hypervisor's, its split mode has since left the timer, the \
         vGIC and most traps alone, too\n(EL1's registers are what still moves), and list registers are no longer slow memory.",
        ratio(&|cell| cell.count("instructions")),
        ratio(&|cell| cell.cycles(&results.costs, false)),
        3181.0 / 752.0,
    );
}

/// The same for programs.
pub fn json(results: &Results) -> Value {
    let row = |row: &Row| {
        let cells = row.cells.iter().map(|cell| {
            let talk = TALK.iter().find(|(benchmark, _)| *benchmark == cell.benchmark);
            json!({
                "benchmark": cell.benchmark.name(),
                "exits": cell.exits,
                "events": cell.events,
                "modelled_cycles": { "gicv2": cell.cycles(&results.costs, true), "gicv3": cell.cycles(&results.costs, false) },
                "talk": talk.map(|(_, [split, vhe, all, x86])| json!({ "split": split, "vhe": vhe, "optimised": all, "x86": x86 })),
            })
        });
        json!({ "design": row.name, "benchmarks": cells.collect::<Vec<_>>() })
    };
    let verdicts = results.verdicts();
    let verdicts = verdicts.iter().map(|verdict| json!({ "said": verdict.said, "holds": verdict.holds }));
    json!({
        "format": "satori-bench-vhe",
        "version": 1,
        "rounds": results.plan.rounds,
        "costs": results.costs.iter().map(|(name, cycles)| (name.to_string(), json!(cycles))).collect::<serde_json::Map<_, _>>(),
        "designs": results.rows.iter().map(row).collect::<Vec<_>>(),
        "linux": results.linux.iter().map(row).collect::<Vec<_>>(),
        "verdicts": verdicts.collect::<Vec<_>>(),
    })
}
