//! Streams as kernels and programs write them, and what they come to.

use std::time::Duration;

use crate::junit::{Suite, write};
use crate::{Counts, Outcome, Reader, Results};

fn read(text: &str) -> Option<Results> {
    let mut reader = Reader::default();
    // In pieces of any size.
    text.as_bytes().chunks(7).for_each(|piece| reader.feed(piece));
    reader.finish()
}

fn counted(text: &str) -> (usize, usize, usize, usize) {
    let Counts { passed, failed, skipped, known } = read(text).expect("there is KTAP in it").counts();
    (passed, failed, skipped, known)
}

fn failures(text: &str) -> Vec<String> {
    let results = read(text).expect("there is KTAP in it");
    results.failures().into_iter().map(|(name, why)| format!("{name}: {why}")).collect()
}

/// KUnit's form on a kernel's console, with stamps and lines of others.
const KUNIT: &str = "\
[    0.000000] Linux version 6.12.0 (x@y)
[    0.213456] KTAP version 1\r
[    0.213457] 1..2\r
[    0.213460]     KTAP version 1
[    0.213461]     # Subtest: lists
[    0.213462]     # module: list_test
[    0.213463]     1..3
[    0.213470]     ok 1 list_add
[    0.213471] usb 1-1: new device
[    0.213480]     # list_del: EXPECTATION FAILED at lib/list-test.c:20
[    0.213481]     Expected a == b
[    0.213482]     not ok 2 list_del
[    0.213490]         KTAP version 1
[    0.213491]         # Subtest: list_each
[    0.213492]         ok 1 forwards
[    0.213493]         ok 2 backwards # SKIP no such list
[    0.213494]     ok 3 list_each
[    0.213495] # lists: pass:2 fail:1 skip:0 total:3
[    0.213496] not ok 1 lists
[    0.213500]     KTAP version 1
[    0.213501]     # Subtest: strings
[    0.213502]     1..1
[    0.213503]     ok 1 - copy # a diagnostic
[    0.213504] ok 2 strings
[    0.313504] reboot: Power down
";

#[test]
fn kunit_on_a_console_is_read_with_its_stamps() {
    assert_eq!(counted(KUNIT), (3, 1, 1, 0));
    assert_eq!(failures(KUNIT), ["lists > list_del: "]);
    let results = read(KUNIT).unwrap();
    let told = &results.tests[0].parts[1].told;
    assert!(told.iter().any(|line| line.contains("EXPECTATION FAILED")), "{told:?}");
    assert_eq!(results.tests[1].parts[0].name, "copy");
}

#[test]
fn a_kernel_that_dies_leaves_failures_for_what_it_promised() {
    let cut = &KUNIT[..KUNIT.find("[    0.213482]").unwrap()];
    assert_eq!(
        failures(cut),
        [
            "lists > results 2 to 3: did not come: 3 were promised, 1 came",
            "results 2 to 2: did not come: 2 were promised, 1 came"
        ]
        .map(|line| line.replace("results 2 to 2", "result 2"))
    );
    // Whole groups, but not all that were promised.
    assert_eq!(
        failures("KTAP version 1\n1..3\nok 1 a\n"),
        ["results 2 to 3: did not come: 3 were promised, 1 came"]
    );
    assert_eq!(failures("KTAP version 1\n"), ["results: none came"]);
    assert_eq!(
        failures("KTAP version 1\n1..1\nok 1\nok 2\n"),
        ["results beyond the plan: 1 were promised, 2 came"]
    );
    assert_eq!(failures("TAP version 13\n1..2\nok 1\nBail out! no disk\n"), ["Bail out!: no disk"]);
}

#[test]
fn selftests_behind_hashes_are_parts() {
    let text = "\
TAP version 13
1..3
# timeout set to 45
# selftests: timers: nanosleep
# TAP version 13
# 1..2
# ok 1 CLOCK_REALTIME
# not ok 2 CLOCK_TAI
# # Totals: pass:1 fail:1 xfail:0 xpass:0 skip:0 error:0
not ok 1 selftests: timers: nanosleep # exit=1
# selftests: timers: freq
# ok, so this is prose
# ok 1 of no group
ok 2 selftests: timers: freq # SKIP needs root
not ok 3 selftests: timers: raw_skew # TIMEOUT 45 seconds
";
    assert_eq!(counted(text), (1, 2, 1, 0));
    let failed = failures(text);
    assert_eq!(
        failed,
        ["selftests: timers: nanosleep > CLOCK_TAI: ", "selftests: timers: raw_skew: 45 seconds"]
    );
}

#[test]
fn directives_are_those_of_ktap_and_of_tap() {
    let text = "1..8\nok 1 - a # skip\nnot ok 2 b # TODO later\nok 3 # SKIP: no b\nnot ok 4 c # XFAIL\nok 5 d \\# SKIP\n\
                not ok 6 e # SKIP\nok 7 f # ERROR lost\nok 8 - # todo done\n";
    let results = read(text).unwrap();
    let outcomes: Vec<_> = results.tests.iter().map(|test| (test.name.as_str(), test.outcome)).collect();
    use Outcome::{Failed, Known, Passed, Skipped};
    assert_eq!(
        outcomes,
        [
            ("a", Skipped),
            ("b", Known),
            ("3", Skipped),
            ("c", Known),
            ("d \\# SKIP", Passed),
            ("e", Skipped),
            ("f", Failed),
            ("8", Passed)
        ]
    );
    assert_eq!(results.tests[2].why, "no b");
    assert_eq!(counted("TAP version 13\n1..0 # SKIP no such device\n"), (0, 0, 1, 0));
    // What is known to fail fails by its parts, too.
    assert_eq!(counted("KTAP version 1\n1..1\n  1..1\n  not ok 1 x\nnot ok 1 y # TODO\n"), (0, 0, 0, 1));
    // Its parts are well, and it is not.
    assert_eq!(failures("KTAP version 1\n1..1\n  1..1\n  ok 1 x\nnot ok 1 y # exit=139\n"), ["y: exit=139"]);
}

#[test]
fn other_programs_print_no_results() {
    for text in ["", "ok 1\nnot ok 2\n", "see 1..3\n", "1..3 of them\n", "The TAP version 13\n", "1..\n"] {
        assert_eq!(read(text), None, "{text}");
    }
    assert_eq!(counted("hello\n1..1\nnot okay\nok\nokay\n"), (1, 0, 0, 0));
    // One program after another.
    assert_eq!(
        counted("TAP version 13\n1..1\nok 1 a\nTAP version 13\n1..2\nok 1 b\nnot ok 2 c\n"),
        (2, 1, 0, 0)
    );
}

#[test]
fn a_hostile_stream_is_bounded() {
    let deep: String = (0..5000)
        .map(|depth| format!("{}KTAP version 1\n{}1..9\n", " ".repeat(depth % 900), " ".repeat(depth)))
        .collect();
    assert!(read(&deep).unwrap().counts().failed > 0);
    let long = format!(
        "KTAP version 1\n1..18446744073709551615\nok 18446744073709551615 {}\nok\n",
        "x".repeat(1 << 20)
    );
    let results = read(&long).unwrap();
    assert!(results.tests.iter().all(|test| test.name.len() <= 1000));
    assert_eq!(results.counts().failed, 1);
    for bytes in 0..=255_u8 {
        let mut reader = Reader::default();
        for head in [
            "KTAP version 1\n1..2\n",
            "[",
            "[ 1.2] KTAP version 1\n",
            "ok 1 # ",
            "not ok ",
            "  # ",
            "1..1 #",
            "<6>",
        ] {
            reader.feed(head.as_bytes());
            reader.feed(&[bytes, bytes, b'\n', bytes]);
        }
        let _ = reader.finish();
    }
    let mut reader = Reader::default();
    reader.feed(b"KTAP version 1\n");
    (0..200_010).for_each(|_| reader.feed(b"ok x\n"));
    let counts = reader.finish().unwrap().counts();
    assert_eq!((counts.passed, counts.failed), (200_000, 1));
}

#[test]
fn junit_counts_what_the_results_count() {
    let results = read(KUNIT).unwrap();
    let suite = Suite {
        name: "kunit <6.12>",
        time: Duration::from_millis(1500),
        outcome: Outcome::Passed,
        why: "",
        told: "",
        flaky: &["exit status 3".into()],
        results: Some(&results),
    };
    let text = write(&[suite]);
    assert!(text.contains("<testsuites name=\"satori\" tests=\"6\" failures=\"1\" errors=\"0\" skipped=\"1\" time=\"1.500\">"), "{text}");
    assert!(text.contains("classname=\"kunit &lt;6.12&gt;.lists\" name=\"list_del\">"), "{text}");
    assert!(text.contains("EXPECTATION FAILED"), "{text}");
    assert!(text.contains("<flakyFailure message=\"exit status 3\"/>"), "{text}");
    assert!(
        !write(&[Suite {
            name: "\u{1b}[1m",
            time: Duration::ZERO,
            outcome: Outcome::Failed,
            why: "a\u{0}b",
            told: "",
            flaky: &[],
            results: None
        }])
        .contains(['\u{1b}', '\u{0}'])
    );
}
