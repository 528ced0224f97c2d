//! PID 1 of `satori run -- COMMAND`.
//!
//! It is the init of an initramfs with what its folder `/satori` holds: a description of the command (`spec`)
//! and the modules that the kernel needs before it can reach its root. It mounts the shared folder that is the
//! guest's root, runs the command there as the user who called, passes streams and signals on, and tells the
//! host on the port `satori.control` how the command ended, a line each:
//!
//! ```text
//! clock            the guest's clock waits to be set
//! started          the command runs
//! exited N         the command's own status
//! killed N         the signal that ended it
//! failed N TEXT    why it did not run, and the status that a shell would give
//! note TEXT        what could not be set up, and the command ran all the same
//! ```
//!
//! The host's lines are `signal N`, `size ROWS COLUMNS`, `time SECONDS NANOSECONDS`, which answers `clock` and comes after a
//! stop of the whole guest, and `over` when it has heard the end.

mod control;
mod modules;
mod mounts;
mod network;
mod ports;
mod run;
mod spec;
mod streams;
mod sys;
mod wanted;

use control::Control;
use spec::Spec;

/// Where the description lies.
const SPEC: &str = "/satori/spec";
/// The status of what is Satori's own failure.
const INTERNAL: u8 = 125;

fn main() {
    std::panic::set_hook(Box::new(|info| {
        control::console(&format!("internal error: {info}"));
        sys::power_off();
    }));
    if std::process::id() != 1 {
        eprintln!("satori-init is the init of a guest: 'satori run -- COMMAND' starts it");
        std::process::exit(2);
    }
    let mut control = None;
    if let Err((status, why)) = work(&mut control) {
        match &control {
            Some(control) => {
                let served = control.clone();
                std::thread::spawn(move || served.serve(|_| {}));
                control.tell(&format!("failed {status} {why}"));
            }
            None => control::console(&why),
        }
    }
    sys::sync();
    control.iter().for_each(Control::wait_for_host);
    sys::power_off();
}

/// A status and a reason.
type Failure = (u8, String);

fn internal(why: String) -> Failure {
    (INTERNAL, why)
}

/// Everything; what ends it early. `control` is there as soon as the host can be told.
fn work(control: &mut Option<Control>) -> Result<(), Failure> {
    mounts::early();
    let bytes = std::fs::read(SPEC).map_err(|why| internal(format!("{SPEC} is missing ({why})")))?;
    let spec = Spec::parse(&bytes).map_err(internal)?;
    let wrong = modules::load(&spec.modules);
    let control = control.insert(Control::open().map_err(|why| {
        let modules = wrong.join("; ");
        internal(format!(
            "there is no port for the host ({why}): the kernel lacks virtio_console or virtio_pci. {modules}"
        ))
    })?);
    wrong.iter().for_each(|why| control.note(why));
    control.set_clock();
    mounts::root(&spec).map_err(internal)?;
    mounts::inside(&spec).iter().for_each(|why| control.note(why));
    run::command(&spec, control)
}
