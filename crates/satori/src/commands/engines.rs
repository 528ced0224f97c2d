//! `satori engines`: which engines there are, and which of them work here.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use satori_machine::EngineKind;

use crate::{cli, probe};

/// How long /dev/kvm may take to show that it works. Some hang.
const PATIENCE: Duration = Duration::from_secs(3);

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
    let child = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .arg(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return format!("the probe cannot be started ({error})"),
    };
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let mut text = String::new();
                if let Some(mut out) = child.stdout.take() {
                    let _ = out.read_to_string(&mut text);
                }
                return match text.trim() {
                    "" => format!("it killed the process that tried it ({status})"),
                    told => told.into(),
                };
            }
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return format!("it did not answer within {} seconds", PATIENCE.as_secs());
            }
        }
    }
}
