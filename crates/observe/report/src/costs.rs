//! What an exit costs on hardware, by a model: a file of costs by reason and processor.
//!
//! The file's format is JSON; each entry tells its source. Ours (`data/costs.json`) has the tables of the
//! talk on traps; a user's comes before it, entry by entry.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::model::is_reason;
use crate::{Error, Report, Table};

/// The name under which what exits cost without APICv is looked for, whichever the processor is.
pub const WITHOUT_APICV: &str = "without-apicv";

const BUILT_IN: &str = include_str!("../data/costs.json");
/// The version of the format.
const VERSION: u64 = 1;
/// An exit that takes longer than this is a mistake in its unit.
const MOST_NS: f64 = 1e12;

/// The cost of one exit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Entry {
    /// The exit's reason.
    pub reason: String,
    /// The modelled processor, as `--processor` names it; none for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Nanoseconds.
    pub ns: f64,
    /// Where that is from.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    reason: String,
    #[serde(default)]
    processor: Option<String>,
    #[serde(default)]
    ns: Option<f64>,
    #[serde(default)]
    cycles: Option<f64>,
    #[serde(default)]
    mhz: Option<f64>,
    source: String,
}

impl TryFrom<Raw> for Entry {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let Raw { reason, processor, ns, cycles, mhz, source } = raw;
        if !is_reason(&reason) {
            return Err(format!("'{}' is no name of an exit", reason.escape_debug()));
        }
        if let Some(name) = processor.as_ref().filter(|name| !is_processor(name)) {
            return Err(format!("'{}' is no name of a processor", name.escape_debug()));
        }
        if source.trim().is_empty() || source.chars().any(char::is_control) {
            return Err(format!("{reason}: its source is to be one line that says where the cost is from"));
        }
        let ns = match (ns, cycles, mhz) {
            (Some(ns), None, None) => ns,
            (None, Some(cycles), Some(mhz)) if mhz > 0.0 => cycles * 1e3 / mhz,
            _ => return Err(format!("{reason}: give ns, or cycles and mhz")),
        };
        if !(0.0..=MOST_NS).contains(&ns) {
            return Err(format!("{reason}: a cost is from 0 to {MOST_NS:e} ns"));
        }
        Ok(Entry { reason, processor, ns, source })
    }
}

/// Whether `text` may name a processor: `skylake`, `no-apicv`.
pub fn is_processor(text: &str) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    !text.is_empty() && text.len() <= 64 && text.bytes().all(letters)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u64,
    entries: Vec<Entry>,
}

/// Costs of exits, the preferred ones first.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    layers: Vec<Vec<Entry>>,
}

impl Costs {
    /// What Satori comes with.
    pub fn built_in() -> Costs {
        // A test reads it.
        Costs { layers: parse(BUILT_IN).into_iter().collect() }
    }

    /// A user's file, and what Satori comes with for what it does not have.
    pub fn with(text: &str) -> Result<Costs, Error> {
        let mut costs = Costs::built_in();
        costs.layers.insert(0, parse(text)?);
        Ok(costs)
    }

    /// What an exit of `reason` costs on a processor: an entry that names it comes before one for all.
    pub fn of(&self, reason: &str, processor: Option<&str>) -> Option<&Entry> {
        self.first(reason, &[processor, None])
    }

    /// The same while APICv was not in force: an entry for that comes first.
    pub fn without_apicv(&self, reason: &str, processor: Option<&str>) -> Option<&Entry> {
        self.first(reason, &[Some(WITHOUT_APICV), processor, None])
    }

    fn first(&self, reason: &str, whose: &[Option<&str>]) -> Option<&Entry> {
        let of = |layer: &'_ [Entry], whose: &Option<&str>| {
            layer.iter().position(|one| one.reason == reason && one.processor.as_deref() == *whose)
        };
        self.layers
            .iter()
            .find_map(|layer| whose.iter().find_map(|whose| of(layer, whose)).map(|at| &layer[at]))
    }

    /// The entries, those of the user's file first. What these hide is left out.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.layers.iter().flatten().filter(|one| self.of(&one.reason, one.processor.as_deref()) == Some(one))
    }

    /// A cost file of what a host was measured with: the averages of `report`.
    ///
    /// The time of a HLT is mostly idling, so its shortest stands for it.
    pub fn calibrate(report: &Report, processor: Option<&str>, from: &str) -> Costs {
        let entry = |row: &crate::Row| {
            let hlt = row.reason.eq_ignore_ascii_case("hlt");
            let (ns, what) =
                if hlt { (row.min_ns as f64, "the least") } else { (row.mean_ns, "the average") };
            let from: String = from.chars().filter(|c| !c.is_control()).collect();
            Entry {
                reason: row.reason.clone(),
                processor: processor.map(Into::into),
                ns: (ns * 10.0).round() / 10.0,
                source: format!("measured: {what} of {} in {from}", row.samples),
            }
        };
        Costs { layers: vec![report.all.exits.iter().map(entry).collect()] }
    }

    /// The costs as a file.
    pub fn to_json(&self) -> String {
        let entries = self.entries().cloned().collect();
        let file = File { format: "satori-costs".into(), version: VERSION, entries };
        // Strings and finite numbers.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }

    /// The costs as a table.
    pub fn to_text(&self) -> String {
        let mut out = format!("{:<22} {:<16} {:>10}  source\n", "VM-EXIT", "processor", "ns");
        for Entry { reason, processor, ns, source } in self.entries() {
            let processor = processor.as_deref().unwrap_or("any");
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{reason:<22} {processor:<16} {ns:>10.1}  {source}");
        }
        out
    }
}

fn parse(text: &str) -> Result<Vec<Entry>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let file: File = serde_json::from_str(text).map_err(|why| {
        let what = why.to_string();
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        Error::line(why.line().max(1), format!("{what} (column {})", why.column()))
    })?;
    if file.format != "satori-costs" {
        let other = file.format.escape_debug();
        return Err(Error::line(1, format!("its format is '{other}', not satori-costs")));
    }
    if file.version != VERSION {
        return Err(Error::line(
            1,
            format!("version {} of cost files is not known: {VERSION} is", file.version),
        ));
    }
    let mut known = BTreeSet::new();
    for one in &file.entries {
        if !known.insert((&one.reason, &one.processor)) {
            let whose = one.processor.as_deref().unwrap_or("any processor");
            let at = text.lines().position(|line| line.contains(&one.reason)).map_or(1, |at| at + 1);
            return Err(Error::line(at, format!("a second entry of {} for {whose}", one.reason)));
        }
    }
    Ok(file.entries)
}

/// What a table costs by a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modelled {
    /// Nanoseconds of all exits whose cost is known.
    pub ns: u64,
    /// Exits whose cost is not known.
    pub unknown: u64,
}

impl Table {
    /// The modelled cost of all rows; none where no row has one.
    pub fn modelled(&self) -> Option<Modelled> {
        let mut sum = Modelled::default();
        for row in &self.exits {
            match row.modelled_ns {
                Some(ns) => sum.ns = sum.ns.saturating_add(ns),
                None => sum.unknown = sum.unknown.saturating_add(row.samples),
            }
        }
        self.exits.iter().any(|row| row.modelled_ns.is_some()).then_some(sum)
    }

    fn model(&mut self, costs: &Costs, processor: Option<&str>) {
        for row in &mut self.exits {
            let bare = row.without_apicv.min(row.samples);
            let of = |count: u64, entry: Option<&Entry>| match count {
                0 => Some(0.0),
                _ => entry.map(|entry| entry.ns * count as f64),
            };
            let rest = of(row.samples - bare, costs.of(&row.reason, processor));
            let sum = of(bare, costs.without_apicv(&row.reason, processor)).zip(rest);
            // A float's conversion saturates.
            row.modelled_ns = sum.map(|(bare, rest)| (bare + rest).round() as u64);
        }
    }
}

impl Report {
    /// Gives every row its modelled cost. The processor is the report's own, where it tells one.
    pub fn model(&mut self, costs: &Costs) {
        let processor = self.processor.clone();
        // Features with a sign may stand behind the name.
        let name = processor.as_deref().and_then(|text| text.split(',').next());
        std::iter::once(&mut self.all).chain(&mut self.vcpus).for_each(|table| table.model(costs, name));
    }

    /// Gives every row its modelled cost, if none has one yet.
    pub fn model_if_missing(&mut self) {
        if self.all.modelled().is_none() {
            self.model(&Costs::built_in());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Row, Which, read};

    fn wrong(entry: &str) -> String {
        let text = format!("{{\"format\":\"satori-costs\",\"version\":1,\"entries\":[\n{entry}]}}");
        Costs::with(&text).unwrap_err().to_string()
    }

    #[test]
    fn the_built_in_file_is_whole_and_has_its_sources() {
        let costs = parse(BUILT_IN).unwrap();
        assert!(costs.len() > 20 && costs.iter().all(|one| one.source.len() > 20));
        assert_eq!(Costs::with(&Costs::built_in().to_json()).unwrap().layers[0], costs);
    }

    #[test]
    fn a_users_entry_comes_first_and_a_processors_before_that_for_all() {
        let user = r#"{"format":"satori-costs","version":1,"entries":[
            {"reason":"CPUID","cycles":4000,"mhz":2000,"source":"my host"},
            {"reason":"CPUID","processor":"skylake","ns":1,"source":"my other host"}]}"#;
        let costs = Costs::with(user).unwrap();
        let ns = |reason: &str, processor| costs.of(reason, processor).map(|entry| entry.ns);
        assert_eq!(ns("CPUID", None), Some(2000.0));
        assert_eq!(ns("CPUID", Some("skylake")), Some(1.0));
        assert_eq!(ns("CPUID", Some("haswell")), Some(2000.0));
        let bare = |reason: &str| costs.without_apicv(reason, Some("skylake")).map(|entry| entry.ns);
        assert_eq!(
            (bare("EXTERNAL_INTERRUPT"), bare("CPUID"), bare("HLT")),
            (Some(1563.0), Some(1.0), Some(3803.0))
        );
        assert_eq!(ns("EXTERNAL_INTERRUPT", Some("no-apicv")), Some(3803.0));
        assert_eq!(ns("EXTERNAL_INTERRUPT", Some("haswell")), Some(3803.0));
        assert_eq!(ns("SIPI_SIGNAL", None), None);
        assert_eq!(costs.entries().filter(|one| one.reason == "CPUID").count(), 2);
    }

    #[test]
    fn exits_without_apicv_cost_what_they_cost_there() {
        let row = |reason: &str, samples, without_apicv| Row {
            reason: reason.into(),
            samples,
            without_apicv,
            ..Row::default()
        };
        let exits = vec![row("EXTERNAL_INTERRUPT", 10, 4), row("SIPI_SIGNAL", 3, 0)];
        let all = Table { samples: 13, exits, ..Table::default() };
        let mut report = Report { all, processor: Some("haswell,-ple".into()), ..Report::default() };
        report.model(&Costs::built_in());
        assert_eq!(report.all.modelled(), Some(Modelled { ns: 4 * 1563 + 6 * 3803, unknown: 3 }));
    }

    #[test]
    fn a_host_calibrates_by_its_own_table() {
        let text = "VM-EXIT Samples Samples% Time% Min Time Max Time Avg time\n\
                    CPUID 2 50% 50% 1.00us 3.00us 2.00us ( +- 50.00% )\nHLT 2 50% 50% 5.00us 900.00us 400.00us\n";
        let report = read(text, Which::Only).unwrap();
        let costs = Costs::calibrate(&report, Some("skylake"), "a.txt");
        let again = Costs::with(&costs.to_json()).unwrap();
        assert_eq!(again.layers[0], costs.layers[0]);
        assert_eq!(again.of("CPUID", Some("skylake")).unwrap().ns, 2000.0);
        assert_eq!(again.of("HLT", Some("skylake")).unwrap().ns, 5000.0);
        assert_eq!(again.of("HLT", None).unwrap().ns, 3803.0, "the built-in one");
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (entry, told) in [
            (r#"{"reason":"A B","ns":1,"source":"x"}"#, "no name of an exit"),
            (r#"{"reason":"HLT","ns":1}"#, "missing field `source`"),
            (r#"{"reason":"HLT","ns":1,"source":" "}"#, "its source"),
            (r#"{"reason":"HLT","source":"x"}"#, "give ns, or cycles and mhz"),
            (r#"{"reason":"HLT","cycles":1,"source":"x"}"#, "give ns"),
            (r#"{"reason":"HLT","cycles":1,"mhz":0,"source":"x"}"#, "give ns"),
            (r#"{"reason":"HLT","ns":-1,"source":"x"}"#, "a cost is from 0"),
            (r#"{"reason":"HLT","ns":1e300,"source":"x"}"#, "a cost is from 0"),
            (r#"{"reason":"HLT","ns":1,"price":2,"source":"x"}"#, "unknown field `price`"),
            (r#"{"reason":"HLT","ns":1,"processor":"a b","source":"x"}"#, "no name of a processor"),
            (
                "{\"reason\":\"HLT\",\"ns\":1,\"source\":\"x\"},{\"reason\":\"HLT\",\"ns\":2,\"source\":\"y\"}",
                "a second entry of HLT",
            ),
        ] {
            let why = wrong(entry);
            assert!(why.contains(told) && why.starts_with("line 2: "), "{entry}: {why}");
        }
        let other = |text: &str| Costs::with(text).unwrap_err().to_string();
        assert!(other(r#"{"format":"x","version":1,"entries":[]}"#).contains("not satori-costs"));
        assert!(other(r#"{"format":"satori-costs","version":9,"entries":[]}"#).contains("version 9"));
        assert!(other("hello").starts_with("line 1: "));
    }
}
