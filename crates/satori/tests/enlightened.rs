//! The Hyper-V interface, proved by guests that know nothing of the monitor but what CPUID tells them: each
//! bare-metal program runs under many choices of enlightenments, and checks that what is offered behaves as
//! the specification says and what is not offered is refused.

mod common;

use common::bare::passes;
use satori_hyperv::Enlightenment;

/// Runs `guest` with nothing, everything, and each enlightenment by itself with what it needs.
fn under_every_choice(guest: &str, cpus: u32) {
    for choice in ["off", "auto"] {
        passes(guest, cpus, &["--hyperv", choice]);
    }
    for one in Enlightenment::ALL.iter().filter(|one| one.row().refused.is_none()) {
        passes(guest, cpus, &["--hyperv", one.name()]);
    }
}

#[test]
fn registers_exist_as_offered() {
    under_every_choice("hv_msrs", 1);
    passes("hv_msrs", 4, &["--hyperv", "auto"]);
    passes("hv_msrs", 4, &["--hyperv", "auto", "--clock", "virtual"]);
}

#[test]
fn overlays_cover_and_give_back() {
    for choice in ["off", "vapic", "time", "auto"] {
        passes("hv_overlays", 1, &["--hyperv", choice]);
    }
}
