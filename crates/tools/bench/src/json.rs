//! The results for programs.

use serde_json::{Value, json};

use crate::check::Verdict;
use crate::groups::GROUPS;
use crate::results::{Cell, Line, Results, Table};
use crate::statistics::median;

/// One object with everything.
pub fn json(results: &Results, verdicts: &[Verdict]) -> Value {
    let above: Vec<_> =
        results.above.iter().map(|all| json!({ "median": median(all), "runs": all })).collect();
    let stumbles = results
        .stumbles
        .iter()
        .map(|(subject, how)| json!({ "subject": results.subjects[*subject], "how": how }));
    json!({
        "host": results.host,
        "date": results.date,
        "kernel": results.kernel,
        "notes": results.notes,
        "begun_again": stumbles.collect::<Vec<_>>(),
        "subjects": results.subjects,
        "repetitions": results.repetitions,
        "budget_ms": results.budget_ms,
        "cpus": results.cpus,
        "memory": results.memory,
        "tables": results.tables.iter().map(|t| table(t, results)).collect::<Vec<_>>(),
        "resident_above_guest": named(results, above),
        "bounds": verdicts.iter().map(verdict).collect::<Vec<_>>(),
    })
}

/// `values`, one a subject, under the subjects' names.
fn named(results: &Results, values: Vec<Value>) -> Value {
    Value::Object(results.subjects.iter().cloned().zip(values).collect())
}

fn table(table: &Table, results: &Results) -> Value {
    let boots = table.boots.iter().map(|boot| {
        json!({
            "subject": results.subjects[boot.subject],
            "entry": boot.entry.name(),
            "command_ms": boot.whole(),
            "init_ms": median(&boot.to_init),
            "runs_ms": boot.runs,
            "failed": boot.failed,
        })
    });
    let groups = GROUPS.iter().map(|&group| {
        let (counted, all) = table.ratios(group, Line::to_native);
        let object = json!({
            "to_native": table.mean(group, Line::to_native),
            "to_faster_peer": table.mean(group, Line::to_peer),
            "rows": all,
            "quoted": counted.len(),
        });
        (group.name().to_string(), object)
    });
    json!({
        "setting": table.setting.name(),
        "rows": table.lines.iter().map(|line| row(line, results)).collect::<Vec<_>>(),
        "groups": Value::Object(groups.collect()),
        "boots": boots.collect::<Vec<_>>(),
    })
}

fn row(line: &Line, results: &Results) -> Value {
    let cells = line.cells.iter().enumerate().map(|(i, one)| cell(one, line.wrong(i))).collect();
    json!({
        "row": line.row.name,
        "group": line.row.group.name(),
        "operation": line.row.operation,
        "subjects": named(results, cells),
        "to_native": line.to_native(),
        "to_faster_peer": line.to_peer(),
        "faster_peer": line.peer().map(|(index, _)| &results.subjects[index]),
        "noisy": line.noisy(),
    })
}

fn cell(cell: &Cell, wrong: Option<String>) -> Value {
    json!({
        "ns": cell.ns(),
        "spread": cell.spread(),
        "runs": cell.runs,
        "runs_ns": cell.readings.iter().map(|r| r.ns).collect::<Vec<_>>(),
        "sample_medians_ns": cell.readings.iter().map(|r| r.median).collect::<Vec<_>>(),
        "sum": cell.readings.first().and_then(|r| r.sum.clone()),
        "gain": cell.gain(),
        "absent": cell.absent,
        "failed": cell.failed,
        "wrong": wrong,
    })
}

fn verdict(verdict: &Verdict) -> Value {
    json!({
        "setting": verdict.setting,
        "what": verdict.what,
        "value": verdict.value,
        "at_least": verdict.more.then_some(verdict.least),
        "at_most": (!verdict.more).then_some(verdict.least),
        "possible": verdict.possible,
        "reached": verdict.reached(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::results::tests::{line, results};

    #[test]
    fn every_figure_has_a_key() {
        let results = results(vec![line("fib", &[&[10.0, 11.0], &[20.0], &[90.0], &[80.0]])]);
        let value = json(&results, &check(&results));
        let row = &value["tables"][0]["rows"][0];
        assert_eq!(row["subjects"]["native"]["runs_ns"], json!([10.0, 11.0]));
        assert_eq!((&row["faster_peer"], &row["to_faster_peer"]), (&json!("tcg-qemu64"), &json!(4.0)));
        assert_eq!(value["tables"][0]["groups"]["integer"]["quoted"], 1);
        assert_eq!(value["resident_above_guest"]["satori"]["median"], 61e6);
        assert_eq!(value["bounds"][1]["at_most"], 1.9);
    }
}
