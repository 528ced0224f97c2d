//! Whether /dev/kvm works and the sandbox can be had: tried, never believed.
//!
//! Some hosts have a device that opens and cannot run a guest. This runs in a child process, which
//! [`crate::commands::engines`] gives a time limit.

use std::io::Write as _;

use satori_host::kvm;
use satori_sandbox::{Mode, Needs};

/// The hidden command that tries /dev/kvm.
pub const KVM: &str = "probe-kvm";
/// The hidden command that enters the sandbox.
pub const SANDBOX: &str = "probe-sandbox";
/// What begins a line that tells what [`KVM`] tries next.
pub const STEP: &str = "step: ";
/// What [`KVM`] says first if all went well.
pub const WORKS: &str = "it runs guests";

/// What the hidden command `name` found out, in words; nothing if there is no such command.
pub fn run(name: &str) -> Option<String> {
    match name {
        KVM => Some(match kvm::attempt(&told) {
            Ok(()) => format!("{WORKS}\n{}", kvm::capabilities()),
            Err(why) => format!("{why}\n{}", kvm::capabilities()),
        }),
        SANDBOX => Some(sandbox()),
        _ => None,
    }
}

/// Tells at once what is tried next: nothing may come behind it.
fn told(step: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{STEP}{step}").and_then(|()| out.flush());
}

/// The measures of the sandbox, a line each: `had NAME`, or `not NAME (reason)`.
fn sandbox() -> String {
    let needs = Needs::default();
    let measures = match satori_sandbox::enter(Mode::Auto, &needs) {
        Ok(measures) => measures,
        Err(error) => return error.to_string(),
    };
    let lines = measures.iter().map(|measure| match &measure.outcome {
        Ok(_) => format!("had {}", measure.name),
        Err(why) => format!("not {} ({why})", measure.name),
    });
    lines.collect::<Vec<_>>().join("\n")
}
