//! The targets without a fuzzer: fixed seeds, and every input that once failed.

use std::path::Path;

use super::*;

/// A small generator; what matters is only that it repeats.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn many(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 24) as u8).collect()
    }
}

fn random(target: Target, runs: u64, longest: u64) {
    random_from(0, target, runs, longest);
}

fn random_from(first: u64, target: Target, runs: u64, longest: u64) {
    for run in first..first + runs {
        let mut bytes = Bytes(0x9e37_79b9_7f4a_7c15 ^ run << 20 | 1);
        let len = bytes.next() % longest;
        let data = bytes.many(len as usize);
        let outcome = std::panic::catch_unwind(|| target(&data));
        assert!(outcome.is_ok(), "run {run}: {data:02x?}");
    }
}

#[test]
fn every_regression_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for (name, target) in TARGETS {
        let Ok(files) = std::fs::read_dir(folder.join(name)) else { continue };
        for file in files {
            let path = file.expect("a folder can be read").path();
            let data = std::fs::read(&path).expect("a file can be read");
            let outcome = std::panic::catch_unwind(|| target(&data));
            assert!(outcome.is_ok(), "{}", path.display());
        }
    }
}

#[test]
fn random_instructions_end_alike_in_blocks_and_steps() {
    random(instructions, 2_000, 400);
}

#[test]
fn random_requests_leave_no_shared_folder() {
    random(files, 400, 900);
}

#[test]
fn random_frames_leave_no_cable() {
    random(net, 400, 3_000);
}

#[test]
fn random_accesses_move_functions_and_lose_none() {
    random(pci, 400, 2_000);
}

#[test]
fn random_guests_of_guests_end_alike_in_blocks_and_steps() {
    random(nested, 2_000, 700);
}

/// As long as it is told, in runs: for who looks for more. `SATORI_RUNS=1000000 cargo test -p satori-attack -- --ignored many_guests`.
#[test]
#[ignore = "it lasts as long as it is told"]
fn many_guests_of_guests_end_alike() {
    let number = |name, unless| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(unless);
    let (seed, runs): (u64, u64) = (number("SATORI_SEED", 1), number("SATORI_RUNS", 100_000));
    random_from(seed << 32, nested, runs, 700);
}

/// The same of any target: `SATORI_TARGET=files SATORI_SEED=7 SATORI_RUNS=100000 cargo test -p satori-attack -- --ignored many_inputs`.
#[test]
#[ignore = "it lasts as long as it is told"]
fn many_inputs_of_a_target() {
    let told = |name, unless: &str| std::env::var(name).unwrap_or_else(|_| unless.into());
    let number = |name, unless| told(name, unless).parse::<u64>().expect("a number");
    let name = told("SATORI_TARGET", "files");
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    random_from(number("SATORI_SEED", "1") << 32, *target, number("SATORI_RUNS", "10000"), 3_000);
}

#[test]
fn random_code_at_page_ends_decodes_alike() {
    random(decoder, 2_000, 80);
}

#[test]
fn random_code_that_gets_hot_ends_alike_on_both_engines() {
    random(translator, 600, 400);
    // INC of RAX and no more, in the loop that it gets.
    let code = [&[0; 150][..], &[0x48, 0xff, 0xc0].repeat(40)].concat();
    assert!(translator::entries(&code).is_ok_and(|entries| entries > 0));
}

#[test]
fn random_guests_end() {
    random(guest, 200, 600);
}

#[test]
fn random_files_are_refused_or_loaded() {
    random(loader, 2_000, 20_000);
    // From good kernels, with a few words changed.
    for run in 0..3_000 {
        let mut bytes = Bytes(0x1234_5678_9abc_def1 ^ run << 17);
        let len = bytes.next() % 24;
        let mut data = bytes.many(1 + len as usize);
        data[0] |= 1;
        loader(&data);
    }
}

#[test]
fn random_options_and_domains_are_refused_or_written_again() {
    random(options, 4_000, 40);
    random(domain, 4_000, 80);
}

#[test]
fn random_calls_and_registers_leave_the_interface_whole() {
    random(hyperv, 4_000, 1_200);
}

#[test]
fn random_images_are_refused_or_used() {
    random(image, 1_500, 600);
}

#[test]
fn random_drivers_leave_devices_that_work() {
    random(virtio, 2_000, 2_000);
}

#[test]
fn the_loaders_good_kernels_are_good() {
    for which in 1..=3 {
        // With nothing changed, each is understood.
        assert!(loader::understood(&[which]), "kernel {which}");
    }
}
