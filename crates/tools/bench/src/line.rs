//! What the program says, line by line.

use serde_json::Value;

use crate::catalog::MARK;

/// One row, measured once.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Nanoseconds an operation: the least of the samples.
    pub ns: f64,
    /// The median of the samples.
    pub median: f64,
    /// How many samples there were.
    pub samples: u64,
    /// How many operations there were in a sample.
    pub operations: u64,
    /// What each operation resulted in.
    pub sum: Option<String>,
    /// Operations had different results.
    pub differing: bool,
    /// What two threads gained over one.
    pub gain: Option<f64>,
}

/// A line of results.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// What the program found where it runs.
    Found {
        /// The kernel's release.
        kernel: String,
        /// The clock source that the kernel chose.
        clocksource: String,
        /// Processors that it uses.
        cpus: u64,
    },
    /// A row begins.
    Start(String),
    /// A row ended.
    Row(String, Reading),
    /// A row cannot be had there, and why.
    Absent(String, String),
    /// A row went wrong, and how.
    Failed(String, String),
    /// All rows are done.
    End,
    /// Init was reached; the frequency of the time-stamp counter in kHz.
    Init(u64),
    /// The program did not understand its command line.
    Refused(String),
}

/// Reads a line of a console; none if it is not one of ours. A kernel may have printed before it.
pub fn parse(line: &str) -> Option<Line> {
    let value: Value = serde_json::from_str(line.split_once(MARK)?.1.trim()).ok()?;
    let text = |key: &str| value[key].as_str().map(str::to_string);
    if let Some(row) = text("row") {
        if let Some(why) = text("absent") {
            return Some(Line::Absent(row, why));
        }
        if let Some(why) = text("failed") {
            return Some(Line::Failed(row, why));
        }
        let number = |key: &str| value[key].as_f64().filter(|n| n.is_finite() && *n >= 0.0);
        let reading = Reading {
            ns: number("ns")?,
            median: number("median")?,
            samples: value["samples"].as_u64()?,
            operations: value["operations"].as_u64()?,
            sum: text("sum"),
            differing: value["differing"].as_bool()?,
            gain: number("gain"),
        };
        return Some(Line::Row(row, reading));
    }
    if let Some(kernel) = text("kernel") {
        let cpus = value["cpus"].as_u64()?;
        return Some(Line::Found { kernel, clocksource: text("clocksource")?, cpus });
    }
    if let Some(row) = text("start") {
        return Some(Line::Start(row));
    }
    if let Some(why) = text("refused") {
        return Some(Line::Refused(why));
    }
    match (value["end"].as_bool(), value["init"].as_bool()) {
        (Some(true), _) => Some(Line::End),
        (_, Some(true)) => Some(Line::Init(value["tsc_khz"].as_u64().unwrap_or(0))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_understood() {
        let line = "[ 1.2] satori-bench: {\"row\":\"fib\",\"ns\":3.5,\"median\":4.0,\"samples\":9,\"operations\":7,\
                    \"differing\":false,\"sum\":\"00ff\"}\r";
        let Some(Line::Row(row, reading)) = parse(line) else { panic!("{:?}", parse(line)) };
        assert_eq!((row.as_str(), reading.ns, reading.samples), ("fib", 3.5, 9));
        assert_eq!((reading.sum.as_deref(), reading.gain), (Some("00ff"), None));
        assert_eq!(parse("satori-bench: {\"start\":\"fib\"}"), Some(Line::Start("fib".into())));
        assert_eq!(parse("satori-bench: {\"end\":true}"), Some(Line::End));
        assert_eq!(parse("satori-bench: {\"init\":true,\"tsc_khz\":5}"), Some(Line::Init(5)));
    }

    #[test]
    fn what_a_broken_guest_prints_is_not_believed() {
        for line in [
            "",
            "satori-bench: ",
            "satori-bench: {\"row\":\"fib\"}",
            "satori-bench: {\"row\":\"fib\",\"ns\":-1,\"median\":1,\"samples\":1,\"operations\":1,\"differing\":false}",
            "satori-bench: {\"row\":\"fib\",\"ns\":1e999,\"median\":1,\"samples\":1,\"operations\":1}",
            "satori-bench: [1",
            "{\"end\":true}",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
