//! The bare-metal guests of `guests/`: built here, run on the built binary, one test each.

mod common;

use common::bare::{passes, run};

#[test]
fn exceptions() {
    passes("exceptions", 1, &[]);
}

#[test]
fn paging() {
    passes("paging", 1, &[]);
}

#[test]
fn litmus() {
    passes("litmus", 4, &[]);
    passes("litmus", 4, &["--clock", "virtual"]);
}

#[test]
fn traps() {
    passes("traps", 1, &[]);
}

/// What is not said to run on one engine runs on the translator; these are about what the interpreter
/// does by itself.
#[test]
fn the_interpreter_passes_too() {
    for (guest, cpus) in
        [("exceptions", 1), ("traps", 1), ("modes", 1), ("debug", 1), ("smc", 2), ("litmus", 4)]
    {
        passes(guest, cpus, &["--engine", "interpreter"]);
    }
}

/// Of short programs hardly anything would get hot enough to be translated.
#[test]
fn code_that_is_translated_at_once_passes_too() {
    for (guest, cpus) in [
        ("exceptions", 1),
        ("paging", 1),
        ("traps", 1),
        ("modes", 1),
        ("debug", 1),
        ("avx", 1),
        ("features", 1),
        ("msrs", 2),
        ("smc", 2),
        ("litmus", 4),
        ("apic", 4),
    ] {
        passes(guest, cpus, &["--engine", "eager"]);
    }
    passes("smc", 2, &["--engine", "eager", "--clock", "virtual"]);
    passes("apic", 8, &["--engine", "eager", "--clock", "virtual"]);
}

#[test]
fn pages_have_no_nx_bit_where_the_processor_has_none() {
    for guest in ["paging", "modes"] {
        passes(guest, 1, &["--cpu", "max,-nx"]);
    }
}

#[test]
fn features_as_cpuid_says() {
    for cpu in [
        "max",
        "x86-64-v1",
        "x86-64-v2",
        "x86-64-v3",
        "max,-xsave",
        "max,-avx,-xsavec",
        "max,-avx2,-fma,-vaes",
        "max,-smap,-pku,-pcid,-fsgsbase,-umip",
        "max,-nx",
        "max,vendor=AuthenticAMD",
        "x86-64-v1,vendor=AuthenticAMD",
    ] {
        passes("features", 1, &["--cpu", cpu]);
    }
    passes("features", 4, &["--hyperv", "auto"]);
    passes("traps", 1, &["--cpu", "max,vendor=AuthenticAMD"]);
}

#[test]
fn vectors_of_256_bits() {
    for cpu in ["max", "x86-64-v3", "x86-64-v2", "max,vendor=AuthenticAMD"] {
        passes("avx", 1, &["--cpu", cpu]);
    }
}

#[test]
fn debug_registers() {
    passes("debug", 1, &[]);
    passes("debug", 1, &["--cpu", "max,vendor=AuthenticAMD"]);
}

#[test]
fn model_specific_registers() {
    passes("msrs", 2, &[]);
    passes("msrs", 1, &["--cpu", "x86-64-v1"]);
    passes("msrs", 1, &["--cpu", "max,vendor=AuthenticAMD"]);
    passes("msrs", 1, &["--cpu", "max,-x2apic,-tsc-adjust,-xsave"]);
    passes("msrs", 2, &["--hyperv", "auto"]);
}

#[test]
fn guests_of_a_guest() {
    for engine in ["translator", "eager", "interpreter"] {
        passes("vmx", 1, &["--nested", "vmx", "--engine", engine]);
    }
    passes("vmx", 2, &["--nested", "vmx", "--clock", "virtual"]);
    passes("vmx", 2, &["--nested", "vmx"]);
    for engine in ["translator", "eager", "interpreter"] {
        passes("svm", 1, &["--nested", "svm", "--engine", engine]);
    }
    passes("svm", 1, &["--nested", "svm", "--clock", "virtual"]);
}

#[test]
fn modes() {
    passes("modes", 1, &[]);
}

#[test]
fn real_mode_as_firmware_leaves_it() {
    passes("real_mode", 1, &[]);
    for engine in ["translator", "eager", "interpreter"] {
        let few = ["--clock", "virtual", "--timeout", "4m", "--engine", engine];
        let ended = run("real_mode", 1, "ticks=3", &few);
        assert_eq!(ended.status, 1, "{engine}: {}", ended.console);
    }
    let ended = run("real_mode", 1, "only=reset end=reset", &["--on-reset", "exit", "--timeout", "1m"]);
    assert_eq!(ended.status, 118, "{ended:?}");
}

#[test]
fn code_that_is_written() {
    passes("smc", 2, &[]);
    passes("smc", 2, &["--clock", "virtual"]);
}

#[test]
fn interrupts_and_clocks() {
    passes("apic", 4, &[]);
    passes("apic", 8, &["--clock", "virtual"]);
}

#[test]
fn triple_faults() {
    for case in ["empty_idt", "double_fault_gate", "double_fault_stack", "page_fault_stack"] {
        let ended = run("shutdown", 1, &format!("only={case}"), &["--timeout", "1m"]);
        assert_eq!(ended.status, 122, "{case}: {ended:?}");
    }
}

/// What a hostile guest may end with: any status but Satori's own failure, and not by a signal.
fn survives(case: &str, seed: u32) {
    let ended = run("hostile", 2, &format!("only={case} seed={seed}"), &["--timeout", "10s"]);
    let (status, messages) = (ended.status, &ended.messages);
    let listed =
        matches!(status, 0 | 118 | 120 | 122 | 124) || (status > 0 && status % 2 == 1 && status != 125);
    assert!(listed && !messages.contains("panicked at"), "{case} {seed}: {status}\n{messages}");
}

#[test]
fn hostile_accesses() {
    for case in ["ports", "msrs", "mmio", "cpuid", "page_tables", "descriptors", "controls", "spin"] {
        survives(case, 1);
    }
}

#[test]
fn hostile_code() {
    for seed in 1..=3 {
        for case in ["nowhere", "random_code", "random_user_code"] {
            survives(case, seed);
        }
    }
}
