//! `satori engines`: which engines there are, and which of them work here.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use satori_machine::EngineKind;

use crate::{cli, probe};

/// How long /dev/kvm may take to show that it works. Some hang.
const PATIENCE: Duration = Duration::from_secs(2);

/// An engine, and what is known of it here.
struct Engine {
    name: &'static str,
    usable: bool,
    why: String,
}

/// Does what `satori engines` was told.
pub fn show(format: cli::Form, out: &mut dyn Write) -> Result<()> {
    let translator = EngineKind::translator_works();
    let kvm = probe(probe::KVM);
    let engines = [
        Engine {
            name: "translator",
            usable: translator.is_ok(),
            why: match translator {
                Ok(()) => "Satori's software CPU; code that runs often becomes host code".into(),
                Err(error) => format!("this host gives no memory for code ({error})"),
            },
        },
        Engine {
            name: "interpreter",
            usable: true,
            why: "Satori's software CPU, one instruction at a time; works on every host".into(),
        },
        Engine {
            name: "kvm",
            usable: kvm.starts_with(probe::WORKS),
            why: format!(
                "the host's processor by /dev/kvm, for who asks for it by --engine kvm; tried: {}",
                kvm.lines().next().unwrap_or_default()
            ),
        },
    ];
    let auto = engines.iter().find(|engine| engine.usable).map_or("none", |engine| engine.name);
    match format {
        cli::Form::Text => {
            for Engine { name, usable, why } in &engines {
                writeln!(out, "{name:<12} {:<11} {why}", if *usable { "usable" } else { "not usable" })?;
            }
            writeln!(out, "{:<12} {auto}", "auto")?;
        }
        cli::Form::Json => {
            let list: Vec<_> = engines
                .iter()
                .map(|Engine { name, usable, why }| json!({ "name": name, "usable": usable, "why": why }))
                .collect();
            writeln!(out, "{:#}", json!({ "engines": list, "auto": auto }))?;
        }
    }
    Ok(())
}

/// What is found out by the hidden command `probe`, in a process of its own: what is tried may hang, or kill who asks.
pub fn probe(command: &str) -> String {
    match std::env::current_exe() {
        Ok(program) => answer(Command::new(program).arg(command)),
        Err(error) => format!("the probe cannot be started ({error})"),
    }
}

/// What `command` prints, or what came instead within [`PATIENCE`].
fn answer(command: &mut Command) -> String {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return format!("the probe cannot be started ({error})"),
    };
    match ended(&mut child, PATIENCE) {
        Some(status) => {
            let mut text = String::new();
            if let Some(mut out) = child.stdout.take() {
                let _ = out.read_to_string(&mut text);
            }
            match text.trim() {
                "" => format!("it killed the process that tried it ({status})"),
                told => told.into(),
            }
        }
        None => {
            let _ = child.kill();
            // A process that the kernel keeps does not end by it: it is left, and not waited for.
            let _ = ended(&mut child, Duration::from_millis(100));
            format!("it did not answer within {} seconds", PATIENCE.as_secs())
        }
    }
}

/// How `child` ended, if it does so within `patience`.
fn ended(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_given_up_and_what_is_killed_is_told() {
        assert_eq!(answer(Command::new("sleep").arg("1000")), "it did not answer within 2 seconds");
        let killed = answer(Command::new("sh").args(["-c", "kill -9 $$"]));
        assert!(killed.starts_with("it killed the process that tried it"), "{killed}");
        assert_eq!(answer(Command::new("echo").arg("it runs")), "it runs");
    }
}
