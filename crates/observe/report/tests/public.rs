//! The rules against tables that people published, and what somebody who knows KVM says to each.
//!
//! `public/tables.json` were at hand while the rules were written. `public/held-out.json` were not looked at before; what was said
//! to them was written down before the rules saw them, and neither it nor the rules were changed afterwards for their sake.

use std::collections::BTreeSet;

use satori_report::advise::{Rule, Setting, advise};
use satori_report::{Report, Row, Table};
use serde::Deserialize;

#[derive(Deserialize)]
struct Exit {
    reason: String,
    count: u64,
    /// Microseconds on average, where they are told.
    us: Option<f64>,
}

#[derive(Deserialize)]
struct Public {
    name: String,
    /// Where it was published.
    from: String,
    rows: Vec<Exit>,
    /// What an expert says to it.
    says: String,
    /// The rules that say so.
    must: Vec<String>,
    /// Rules that would say something wrong.
    never: Vec<String>,
}

fn read(text: &str) -> Vec<Public> {
    let tables: Vec<Public> = serde_json::from_str(text).unwrap();
    let names: BTreeSet<_> = tables.iter().map(|one| &one.name).collect();
    assert_eq!(names.len(), tables.len(), "a name twice");
    for one in &tables {
        assert!(
            one.from.len() > 10 && one.says.len() > 5,
            "{}: say where it is from and what it tells",
            one.name
        );
        for rule in one.must.iter().chain(&one.never) {
            assert!(Rule::by_name(rule).is_some(), "{}: there is no rule {rule}", one.name);
        }
        assert!(!one.must.is_empty(), "{}: an expert says something", one.name);
    }
    tables
}

fn report(table: &Public) -> Report {
    let mut all = Table::default();
    for row in &table.rows {
        let ns = (row.us.unwrap_or(0.0) * 1e3).round() as u64;
        let exits = vec![Row {
            reason: row.reason.clone(),
            samples: row.count,
            total_ns: ns * row.count,
            min_ns: ns,
            max_ns: ns,
            mean_ns: ns as f64,
            ..Row::default()
        }];
        all.add(&Table { samples: row.count, total_ns: ns * row.count, exits, ..Table::default() });
    }
    Report { all, ..Report::default() }
}

/// What the rules miss of what must be said, and what they say that must not be.
fn wrong(table: &Public) -> Option<String> {
    let advice = advise(&report(table), &Setting::default());
    let fired: Vec<_> = advice.findings.iter().map(|one| one.rule).collect();
    let missed: Vec<_> = table.must.iter().filter(|rule| !fired.contains(&rule.as_str())).collect();
    let wrong: Vec<_> = table.never.iter().filter(|rule| fired.contains(&rule.as_str())).collect();
    (!missed.is_empty() || !wrong.is_empty())
        .then(|| format!("{}: missed {missed:?}, wrong {wrong:?}; fired {fired:?}", table.name))
}

#[test]
fn the_rules_say_of_public_tables_what_an_expert_does() {
    let tables = read(include_str!("public/tables.json"));
    assert!(tables.len() >= 35);
    let wrong: Vec<_> = tables.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rate_on_tables_that_were_held_out_is_that_of_the_docs() {
    let tables = read(include_str!("public/held-out.json"));
    let wrong: Vec<_> = tables.iter().filter_map(wrong).collect();
    let rate = format!("{} of {}", tables.len() - wrong.len(), tables.len());
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/advise.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    assert!(docs.contains(&format!("held out: {rate}")), "{rate}\n{}", wrong.join("\n"));
    // Nothing that is in both was held out.
    let known = read(include_str!("public/tables.json"));
    assert!(tables.iter().all(|one| known.iter().all(|other| other.name != one.name)));
    assert!(tables.len() >= 10 && tables.len() + known.len() >= 50, "{} and {}", tables.len(), known.len());
}
