//! `satori engines`: which engines there are, and which of them work here.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use satori_machine::EngineKind;

use crate::engine::{of_auto, tried_now};
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
    let kvm = tried_now();
    let engines = [
        Engine {
            name: "kvm",
            usable: kvm.works(),
            why: format!("the host's processor by /dev/kvm; tried: {}", kvm.first()),
        },
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
    ];
    let auto = match of_auto(kvm.works())? {
        EngineKind::Kvm => "kvm",
        EngineKind::Translator | EngineKind::EagerTranslator => "translator",
        EngineKind::Interpreter => "interpreter",
    };
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

/// What a probe told.
pub struct Answer {
    /// Its words, or what is to be said of it.
    pub text: String,
    /// Whether it was given up.
    pub hung: bool,
}

impl Answer {
    fn told(text: impl Into<String>) -> Self {
        Answer { text: text.into(), hung: false }
    }

    /// Whether /dev/kvm runs guests.
    pub fn works(&self) -> bool {
        self.text.starts_with(probe::WORKS)
    }

    /// Its first line.
    pub fn first(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }
}

/// What is found out by the hidden command `probe`, in a process of its own: what is tried may hang, or kill who asks.
pub fn probe(command: &str) -> Answer {
    match std::env::current_exe() {
        Ok(program) => answer(Command::new(program).arg(command)),
        Err(error) => Answer::told(format!("the probe cannot be started ({error})")),
    }
}

/// What `command` prints, or what came instead within [`PATIENCE`].
fn answer(command: &mut Command) -> Answer {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Answer::told(format!("the probe cannot be started ({error})")),
    };
    let lines = lines(child.stdout.take());
    match ended(&mut child, PATIENCE) {
        Some(status) => {
            let (mut text, mut at) = (Vec::new(), String::new());
            for line in lines {
                match line.strip_prefix(probe::STEP) {
                    Some(step) => at = format!(", at {step}"),
                    None => text.push(line),
                }
            }
            match text.join("\n").trim() {
                "" => Answer::told(format!("it killed the process that tried it ({status}){at}")),
                told => Answer::told(told),
            }
        }
        None => {
            let _ = child.kill();
            // A process that the kernel keeps does not end by it: it is left, and not waited for.
            let _ = ended(&mut child, Duration::from_millis(100));
            let step =
                lines.try_iter().filter_map(|line| line.strip_prefix(probe::STEP).map(str::to_owned)).last();
            let at = step.map_or_else(String::new, |step| format!(": it hung at {step}"));
            let text = format!("it did not answer within {} seconds{at}", PATIENCE.as_secs());
            Answer { text, hung: true }
        }
    }
}

/// The lines of `out` as they come, read by a thread of their own: nobody waits for a process that does not end.
fn lines(out: Option<ChildStdout>) -> Receiver<String> {
    let (tell, told) = channel();
    let read = move || {
        let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok));
        lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
    };
    // Without a thread the answer is empty, which is told.
    let _ = std::thread::Builder::new().name("probe".into()).spawn(read);
    told
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
        let slept = answer(Command::new("sleep").arg("1000"));
        assert_eq!((&*slept.text, slept.hung), ("it did not answer within 2 seconds", true));
        let at = format!("echo '{0}making a VM'; echo '{0}CPUID'; exec sleep 1000", probe::STEP);
        let stuck = answer(Command::new("sh").args(["-c", &at]));
        assert_eq!(stuck.text, "it did not answer within 2 seconds: it hung at CPUID");
        let killed = answer(Command::new("sh").args(["-c", "kill -9 $$"]));
        assert!(killed.first().starts_with("it killed the process that tried it"), "{}", killed.text);
        let runs = answer(Command::new("echo").arg(probe::WORKS));
        assert!(runs.works() && !runs.hung);
    }
}
