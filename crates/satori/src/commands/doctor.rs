//! `satori doctor`: what this host has of what Satori wants, and what each missing thing costs.

mod host;

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use crate::cli::Form;
use crate::status::Status;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Good,
    /// Guests run; something is slower or less safe.
    Worse,
    /// No guest runs.
    Missing,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Worse => "worse",
            State::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// How it is to be taken.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it costs that it is so, and what can be done; empty if it is good.
    pub costs: String,
}

/// Looks at everything and prints it. Status 2 if something is missing without which no guest runs.
pub fn show(form: Form, out: &mut dyn Write) -> Result<Status> {
    let findings = host::findings();
    let missing = findings.iter().any(|finding| finding.state == State::Missing);
    match form {
        Form::Text => {
            for Finding { name, state, found, costs } in &findings {
                writeln!(out, "{:<8} {name:<16} {found}", state.name())?;
                if !costs.is_empty() {
                    writeln!(out, "{:25} {costs}", "")?;
                }
            }
            let worse = findings.iter().filter(|finding| finding.state == State::Worse).count();
            let verdict = match (missing, worse) {
                (true, _) => "Guests cannot run here: see what is missing above.".into(),
                (false, 0) => "Guests run here, and nothing is amiss.".into(),
                (false, worse) => {
                    format!("Guests run here; {worse} of {} findings could be better.", findings.len())
                }
            };
            writeln!(out, "\n{verdict}")?;
        }
        Form::Json => {
            let list: Vec<_> = findings
                .iter()
                .map(|Finding { name, state, found, costs }| {
                    json!({ "name": name, "state": state.name(), "found": found, "costs": costs })
                })
                .collect();
            writeln!(out, "{:#}", json!({ "findings": list, "runs": !missing }))?;
        }
    }
    Ok(if missing { Status::Usage } else { Status::Ok })
}
