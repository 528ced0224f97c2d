//! `--ktap`, `--junit` and `satori test`: results of tests in guests, and what they come to.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use common::{Ended, SATORI, fetch, satori, scratch};

/// A folder of this test's, with a file of tests.
fn folder(name: &str, tests: &str) -> PathBuf {
    let path = scratch(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("t.toml"), tests).unwrap();
    path
}

fn test(folder: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(SATORI);
    command.arg("test").args(words).current_dir(folder).stdin(Stdio::null());
    command.output().expect("satori runs").into()
}

/// Two kernels' worth of boots are for the soak: one kernel, all that can become of a case.
const MATRIX: &str = "
[[kernel]]
name = '6.12'
[[config]]
name = 'one'
[[config]]
name = 'two'
options = ['--cpus', '2']

[[test]]
name = 'cpus'
command = 'test $(nproc) = 2'
[[test]]
name = 'told'
command = 'echo KTAP version 1; echo 1..2; echo ok 1 a; echo ok 2 b \\# SKIP'
ktap = true
configs = ['one']
[[test]]
name = 'flaky'
command = ['sh', '-c', 'if [ -e was ]; then exit 7; fi; touch was; exit 1']
options = ['--rwdir', 'FOLDER']
expect = 7
retries = 2
configs = ['one']
[[test]]
name = 'dies'
command = 'echo KTAP version 1; echo 1..3; echo ok 1 a; sleep 0.5; echo c > /proc/sysrq-trigger; sleep 100'
ktap = true
configs = ['two']
";

#[test]
fn a_matrix_is_run_told_and_merged() {
    let path = folder("matrix", "");
    let text = MATRIX.replace("FOLDER", path.to_str().unwrap());
    // Only root's writes reach the kernel's trigger.
    let root = rustix::process::getuid().is_root();
    let text =
        if root { text } else { text.replace("echo c > /proc/sysrq-trigger; sleep 100", "kill -9 $$") };
    std::fs::write(path.join("t.toml"), text).unwrap();
    let planned = test(&path, &["plan", "t.toml"]);
    let names = "1\tcpus/6.12/one\n2\tcpus/6.12/two\n3\ttold/6.12/one\n4\tflaky/6.12/one\n5\tdies/6.12/two\n";
    assert_eq!((planned.console.as_str(), planned.status), (names, 0), "{}", planned.messages);

    let ended = test(&path, &["t.toml", "--out", "out", "--junit", "j.xml", "-j", "2"]);
    assert_eq!(ended.status, 1, "{ended:?}");
    let console = &ended.console;
    for said in [
        "FAIL   cpus/6.12/one",
        "exit status 1\n",
        "ok     cpus/6.12/two",
        "2 tests, 1 skipped\n",
        "1 of 2 runs failed",
        "not ok: results 2 to 3 (did not come: 3 were promised, 1 came)",
        "2 passed, 1 flaky (flaky/6.12/one), 2 failed (cpus/6.12/one, dies/6.12/two)",
    ] {
        assert!(console.contains(said), "'{said}' is missing: {console}");
    }
    if root {
        assert!(console.contains("the guest panicked"), "{console}");
    }
    let xml = std::fs::read_to_string(path.join("j.xml")).unwrap();
    assert!(xml.contains("tests=\"9\" failures=\"3\" errors=\"0\" skipped=\"1\""), "{xml}");
    assert!(xml.contains("<flakyFailure message=\"exit status 1 instead of 7\"/>"), "{xml}");

    // What 'exec' would have left on other machines; one of them died.
    std::fs::remove_file(path.join("out/0002-cpus_6.12_two.json")).unwrap();
    let merged = test(&path, &["merge", "t.toml", "out", "--format", "json"]);
    let value: Value = serde_json::from_str(&merged.console).unwrap();
    assert_eq!(
        (merged.status, value["passed"].as_u64(), value["flaky"].as_u64(), value["failed"].as_u64()),
        (1, Some(1), Some(1), Some(3))
    );
    assert_eq!(
        value["cases"][1]["attempts"][0]["why"],
        "there is no result of it: it did not run, or did not end"
    );
    let again = test(&path, &["exec", "t.toml", "2", "--out", "more"]);
    assert_eq!(again.status, 0, "{again:?}");
    let merged = test(&path, &["merge", "t.toml", "out", "more", "--junit", "m.xml"]);
    assert!(merged.console.contains("2 passed, 1 flaky"), "{}", merged.console);
}

#[test]
fn a_single_run_is_judged_by_its_results() {
    let kernel = fetch(&["kernel", "6.12"]);
    let file = scratch("one.xml");
    let file = file.to_str().unwrap();
    let run = |options: &[&str], script: &str| {
        let run = ["run", "--kernel", &kernel, "--timeout", "5m"];
        satori(&[&run[..], options, &["--", "sh", "-c", script]].concat())
    };
    let told = "printf 'TAP version 13\\n1..2\\nok 1 fine\\nnot ok 2 <bad>\\n'";
    let ended = run(&["--junit", file], told);
    assert_eq!(
        (ended.console.as_str(), ended.status),
        ("TAP version 13\n1..2\nok 1 fine\nnot ok 2 <bad>\n", 1)
    );
    assert_eq!(ended.messages, "satori: 2 tests, 1 failed:\n  <bad>\n");
    let xml = std::fs::read_to_string(file).unwrap();
    assert!(xml.contains("name=\"&lt;bad&gt;\">\n      <failure"), "{xml}");
    // The command's own status comes first, and a command without results has none to judge.
    assert_eq!(run(&["--ktap"], &format!("{told}; exit 7")).status, 7);
    let ended = run(&["--ktap"], "echo hello");
    assert_eq!((ended.console.as_str(), ended.status), ("hello\n", 1));
    assert!(ended.messages.contains("there were no results"), "{}", ended.messages);
    assert_eq!(run(&["--junit", file], "echo hello").status, 0);
}

#[test]
fn a_guests_console_is_judged_too() {
    let (kernel, file) = (fetch(&["kernel", "6.12"]), scratch("ktap.cpio"));
    let file = file.to_str().unwrap();
    let script = "echo '<4>KTAP version 1' > /dev/kmsg; for l in 1..2 'ok 1 a' 'ok 2 b'; do echo \"<4>$l\" > /dev/kmsg; done; poweroff -f";
    let made = satori(&["initrd", "--busybox", "--run", script, "-o", file]);
    assert_eq!(made.status, 0, "{}", made.messages);
    let run = [
        "run",
        "--kernel",
        &kernel,
        "--initrd",
        file,
        "--report",
        "off",
        "--timeout",
        "5m",
        "--ktap",
        "--junit",
    ];
    let xml = scratch("console.xml");
    let ended = satori(&[&run[..], &[xml.to_str().unwrap()]].concat());
    assert_eq!(ended.status, 0, "{ended:?}");
    let xml = std::fs::read_to_string(xml).unwrap();
    assert!(xml.contains("<testsuites name=\"satori\" tests=\"3\" failures=\"0\""), "{xml}");
}

#[test]
fn a_wrong_file_is_refused_before_anything_runs() {
    let path = folder("wrong", "[[test]]\nname = 'a'\ncommand = 'true'\noptions = ['--nonsense']\n");
    for (words, said) in [
        (&["t.toml", "--junit", "j.xml"][..], "case 'a': "),
        (&["plan", "nowhere.toml"], "nowhere.toml"),
        (&["exec", "ok.toml", "9", "--out", "o"], "there is no case '9'"),
        (&["merge", "ok.toml", "nowhere"], "cannot read nowhere"),
        (&["ok.toml", "--only", "x"], "no case's name contains 'x'"),
        (&["ok.toml", "--junit", "ok.toml"], "which it would destroy"),
        (&["ok.toml", "-j", "0"], "satori test --help"),
    ] {
        std::fs::write(path.join("ok.toml"), "[[test]]\nname = 'a'\ncommand = 'true'\n").unwrap();
        let ended = test(&path, words);
        assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{words:?}: {ended:?}");
        assert!(ended.messages.contains(said) && ended.messages.lines().count() == 1, "{words:?}: {ended:?}");
        assert!(!path.join("j.xml").exists() && !path.join("o").exists(), "{words:?}");
    }
}

/// Runs what docs/test.md prints behind `heading` on four cases, of which two fail.
fn as_the_page_says(name: &str, heading: &str) {
    let tests: String =
        (1..=4).map(|n| format!("[[test]]\nname = 't{n}'\ncommand = 'exit $(({n} % 2))'\n")).collect();
    let path = folder(name, &tests);
    let page = include_str!("../../../docs/test.md");
    let (_, block) = page.split_once(heading).expect("the page has it");
    let block = block.split("```").nth(1).expect("a block").strip_prefix("sh\n").expect("of a shell");
    let block = block.replace("tests.toml", "t.toml");
    let folder = Path::new(SATORI).parent().unwrap().display().to_string();
    let path_of_programs = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &block]).env("PATH", path_of_programs).current_dir(&path).stdin(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(1), "satori test merge tells of two failures");
    assert!(std::fs::read_to_string(path.join("results.xml")).unwrap().contains("failures=\"2\""));
    let merged = test(&path, &["merge", "t.toml", "results"]);
    assert!(merged.console.contains("2 passed, 2 failed (t1, t3)"), "{merged:?}");
}

/// Needs Debian's package parallel; the soak runs it.
#[test]
#[ignore = "needs GNU parallel"]
fn gnu_parallel_runs_the_cases() {
    as_the_page_says("parallel", "GNU parallel, on this machine");
}

/// Needs Debian's Slurm, which `tools/slurm` starts; the soak runs it.
#[test]
#[ignore = "needs a Slurm: tools/slurm starts one"]
fn a_slurm_array_runs_the_cases() {
    as_the_page_says("slurm", "A Slurm array:");
}
