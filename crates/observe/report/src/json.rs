//! Satori's own reports, `docs/report.schema.json`.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Error, Report};

/// The version of the schema that this Satori writes; older ones are read, 0 being that without a number.
pub const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    version: u64,
}

pub(crate) fn read(text: &str) -> Result<Report, Error> {
    // serde_json counts lines from 1; its text ends with the place, which we tell first.
    let wrong = |error: serde_json::Error| {
        let what = error.to_string();
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        Error::line(error.line().max(1), format!("{what} (column {})", error.column()))
    };
    let header: Header = serde_json::from_str(text).map_err(wrong)?;
    if let Some(other) = header.format.filter(|format| format != "satori-report") {
        return Err(Error::line(1, format!("its format is '{}', not satori-report", other.escape_debug())));
    }
    if header.version > VERSION {
        let version = header.version;
        return Err(Error::line(
            1,
            format!("version {version} of the schema is newer than {VERSION}: take a newer Satori"),
        ));
    }
    let report: Report = serde_json::from_str(text).map_err(wrong)?;
    for table in std::iter::once(&report.all).chain(&report.vcpus) {
        let (samples, total) = table.exits.iter().fold((0u64, 0u64), |(samples, total), row| {
            (samples.saturating_add(row.samples), total.saturating_add(row.total_ns))
        });
        if (samples, total) != (table.samples, table.total_ns) {
            let whose = table.vcpu.map_or("all".into(), |vcpu| format!("vCPU {vcpu}"));
            let at = text.lines().position(|line| line.contains("\"exits\"")).map_or(1, |at| at + 1);
            let what = format!(
                "the table of {whose} does not add up: its rows have {samples} samples and {total} ns"
            );
            return Err(Error::line(at, what));
        }
    }
    Ok(report)
}

impl Report {
    /// The report as Satori's JSON.
    pub fn to_json(&self) -> Value {
        // Strings and numbers under string keys.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["format"] = json!("satori-report");
        value["version"] = json!(VERSION);
        value
    }
}
