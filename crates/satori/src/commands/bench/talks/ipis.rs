//! Interprocessor interrupts to one, some and all of the other processors, with and without the hypercall.

use anyhow::Result;
use satori_bench::statistics::median;
use serde_json::{Value, json};

use super::{Case, Talks, case, number, word};
use crate::say::say;

const ROWS: [(&str, &str); 3] = [("ipi-one", "one"), ("ipi-some", "half"), ("ipi-all", "all")];
/// Interrupts of a run.
const COUNT: u32 = 300;

/// Processors, and the way in which Linux sends without the hypercall.
struct Machine {
    name: &'static str,
    cpus: u32,
    cases: [Case; 2],
}

const MACHINES: [Machine; 2] = [
    Machine {
        name: "x2APIC",
        cpus: 4,
        cases: [case("without ipi", "", "max,hv-ipi=off", "auto"), case("with ipi", "", "max", "auto")],
    },
    // From 9 processors on Linux sends one by one.
    Machine {
        name: "xAPIC",
        cpus: 12,
        cases: [
            case("without ipi", "nox2apic", "max,hv-ipi=off", "auto"),
            case("with ipi", "nox2apic", "max", "auto"),
        ],
    },
];

impl Talks<'_> {
    pub(super) fn ipis(&self) -> Result<Option<Value>> {
        let names = ROWS.map(|(row, _)| row).join(",");
        let mut table = Vec::new();
        for machine in &MACHINES {
            let mut times = [const { [const { Vec::new() }; 2] }; ROWS.len()];
            for round in 0..self.rounds() {
                say(format_args!("IPIs, {}, round {} of {}", machine.name, round + 1, self.rounds()));
                for (which, case) in machine.cases.iter().enumerate() {
                    let words = format!("--rows {names} --exactly {COUNT}");
                    let Some(run) = self.run(*case, machine.cpus, "real", &words)? else { return Ok(None) };
                    for ((row, _), times) in ROWS.iter().zip(&mut times) {
                        times[which].push(run.rows.get(*row).copied().unwrap_or(f64::NAN));
                    }
                }
            }
            for ((row, to), times) in ROWS.iter().zip(&times) {
                let mut exits = Vec::new();
                for case in machine.cases {
                    let words = |count: u32| format!("--rows {row} --exactly {count}");
                    let counted = self.exits(case, machine.cpus, &words(COUNT), &words(2 * COUNT))?;
                    let Some(counted) = counted else { return Ok(None) };
                    let of = |reason: &str| counted.get(reason).copied().unwrap_or(0) as f64;
                    let sent = of("MSR_WRITE") + of("APIC_ACCESS") + of("APIC_WRITE") + of("VMCALL");
                    exits.push(sent / f64::from(COUNT));
                }
                let faster = times[0].iter().zip(&times[1]).filter(|(without, with)| with < without).count();
                table.push(json!({
                    "machine": machine.name, "vcpus": machine.cpus, "to": to,
                    "us": times.each_ref().map(|all| median(all).map(|ns| ns / 1000.0)), "exits": exits,
                    "pairs": self.rounds(), "faster_with": faster,
                }));
            }
        }
        Ok(Some(table.into()))
    }
}

/// The table.
pub(super) fn text(rows: &[Value]) -> String {
    let mut text = format!(
        "\nIPIs to other processors, and their answers (the talk gives no figures)\n  {:<24}{:>16}{:>10}{:>28}{:>8}{:>16}\n",
        "", "without ipi, us", "with", "exits to send, without", "with", "pairs faster"
    );
    for row in rows {
        text += &format!(
            "  {:<24}{:>16.1}{:>10.1}{:>28.2}{:>8.2}{:>16}\n",
            format!("{}, {} vCPUs, to {}", word(&row["machine"]), row["vcpus"], word(&row["to"])),
            number(&row["us"][0]),
            number(&row["us"][1]),
            number(&row["exits"][0]),
            number(&row["exits"][1]),
            format!("{} of {}", row["faster_with"], row["pairs"]),
        );
    }
    text
}
