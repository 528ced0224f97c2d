//! `--trace`: what is in the file agrees with the report, and a run under the virtual clock leaves the same bytes.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::bare::run;
use common::scratch;
use serde_json::Value;

/// A run of a guest on two processors: the trace's text, and the report.
fn traced(name: &str, filter: &str, more: &[&str]) -> (String, Value) {
    let (trace, report) = (scratch(&format!("{name}.trace")), scratch(&format!("{name}.json")));
    let spec = format!("{}{filter}", trace.display());
    let flags = ["--trace", &spec, "--report", "json", "--report-file", report.to_str().expect("UTF-8")];
    let ended = run("exits", 2, "", &[&flags[..], more].concat());
    assert_eq!(ended.status, 1, "{}\n{}", ended.console, ended.messages);
    assert!(ended.messages.contains("trace: "), "{}", ended.messages);
    let read = |path| std::fs::read_to_string(path).expect("a text");
    (read(&trace), serde_json::from_str(&read(&report)).expect("JSON"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Exits by reason of each vCPU, with nanoseconds; slices of a track are in order and do not overlap.
fn exits(trace: &Value) -> BTreeMap<(u64, String), (u64, f64)> {
    let mut sums: BTreeMap<_, (u64, f64)> = BTreeMap::new();
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    let events = trace["traceEvents"].as_array().expect("events");
    for event in events.iter().filter(|event| event["cat"] == "exit") {
        let (track, begin, length) =
            (event["tid"].as_u64().unwrap(), number(&event["ts"]), number(&event["dur"]));
        let end = ends.entry(track).or_default();
        assert!(begin + 1e-6 >= *end, "{event} begins before the one before it has ended");
        *end = begin + length;
        let sum = sums.entry((track - 1, event["name"].as_str().unwrap().to_owned())).or_default();
        *sum = (sum.0 + 1, sum.1 + length * 1e3);
    }
    sums
}

fn agree(trace: &Value, report: &Value) {
    let traced = exits(trace);
    let mut reported = 0;
    for table in report["vcpus"].as_array().expect("tables") {
        let vcpu = table["vcpu"].as_u64().unwrap();
        for row in table["exits"].as_array().unwrap() {
            let reason = row["reason"].as_str().unwrap();
            let (count, time) = traced.get(&(vcpu, reason.to_owned())).copied().unwrap_or_default();
            assert_eq!(Some(count), row["samples"].as_u64(), "{reason} of vCPU {vcpu}");
            // The file has whole nanoseconds as fractions of microseconds.
            assert!(
                (time - number(&row["total_ns"])).abs() < 1.0 + count as f64 * 0.01,
                "{reason}: {time}, {row}"
            );
            reported += 1;
        }
    }
    assert_eq!(traced.len(), reported, "the trace has what the report has not: {traced:?}");
}

#[test]
fn a_trace_agrees_with_the_report() {
    let (text, report) = traced("real", "", &[]);
    agree(&serde_json::from_str(&text).expect("JSON"), &report);
    let exact = ["--clock", "virtual"];
    let (text, report) = traced("virtual", "", &exact);
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    agree(&trace, &report);
    assert_eq!(trace["otherData"]["dropped"], "0");
    for kind in ["exit", "msr", "interrupt"] {
        let mut events = trace["traceEvents"].as_array().unwrap().iter();
        assert!(events.any(|event| event["cat"] == kind), "no {kind}");
    }
    assert!(traced("again", "", &exact).0 == text, "two runs under the virtual clock leave different traces");
}

#[test]
fn only_what_is_asked_for_is_in_the_file() {
    let (text, report) = traced("filtered", ",events=exit,vcpu=0,reason=CPUID", &["--clock", "virtual"]);
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let wanted = report["vcpus"][0]["exits"].as_array().unwrap().iter().find(|row| row["reason"] == "CPUID");
    let exits = exits(&trace);
    assert_eq!(exits.len(), 1, "{exits:?}");
    assert_eq!(exits.values().next().map(|sum| sum.0), wanted.unwrap()["samples"].as_u64());
}

#[test]
fn a_trace_that_cannot_be_written_is_refused() {
    let ended = run("exits", 1, "", &["--trace", "/nowhere/trace.json"]);
    assert_eq!(ended.status, 2);
    assert!(ended.messages.contains("cannot write --trace /nowhere/trace.json"), "{}", ended.messages);
    let ended = run("exits", 1, "", &["--trace", "t,reason=HALT"]);
    assert_eq!(ended.status, 2);
    assert!(ended.messages.contains("reason=HALT"), "{}", ended.messages);
}

/// What the browser is asked: its developer tools read the file, and tell how many slices of each name are on each track.
const ASK: &str = r#"(async () => {
    const tools = await import("devtools://devtools/bundled/models/trace/trace.js");
    const model = tools.TraceModel.Model.createWithAllHandlers();
    await model.parse(JSON.parse(TEXT).traceEvents, { isFreshRecording: false, metadata: {} });
    const data = model.parsedTrace(0).data;
    const tracks = {};
    for (const [, process] of data.Renderer.processes)
        for (const [, track] of process.threads) {
            const names = tracks[track.name] = {};
            for (const slice of track.entries) {
                const sum = names[slice.name] ??= [0, 0];
                sum[0] += 1;
                sum[1] += slice.dur;
            }
        }
    return JSON.stringify({ process: [...data.Meta.processNames].map(([, event]) => event.args.name), tracks });
})()"#;

/// The chromium whose developer tools have what is asked for. It is no interface: those of a later one may have it elsewhere.
const KNOWN: u32 = 156;

/// How long the browser may take until its page is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser that is spoken to through its pipe (the Chrome DevTools Protocol).
struct Browser {
    child: std::process::Child,
    /// The first number of its version.
    version: u32,
    said: Vec<u8>,
    number: u64,
}

impl Browser {
    /// None if there is none here.
    fn start() -> Option<Browser> {
        use std::process::{Command, Stdio};
        let folder = scratch("viewer");
        let _ = std::fs::remove_dir_all(&folder);
        let told = Command::new("chromium").arg("--version").output().ok()?.stdout;
        let told = String::from_utf8_lossy(&told);
        let version = told.split([' ', '.']).find_map(|word| word.parse().ok())?;
        let flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe about:blank";
        // The pipe is the descriptors 3 and 4.
        let line =
            format!("exec chromium --user-data-dir='{}' {flags} 3<&0 4>&1 </dev/null >&2", folder.display());
        let mut command = Command::new("sh");
        command.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().expect("a shell");
        Some(Browser { child, version, said: Vec::new(), number: 0 })
    }

    fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        use std::io::{Read, Write};
        self.number += 1;
        let mut message = serde_json::json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            while let Some(end) = self.said.iter().position(|byte| *byte == 0) {
                let one: Vec<u8> = self.said.drain(..=end).collect();
                let answer: Value = serde_json::from_slice(&one[..end]).expect("JSON");
                if answer["id"] == self.number {
                    return answer["result"].clone();
                }
            }
            let mut bytes = [0; 65536];
            let count = self.child.stdout.as_mut().expect("a pipe").read(&mut bytes).expect("it answers");
            assert!(count > 0, "the browser ended");
            self.said.extend_from_slice(&bytes[..count]);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reader that knows nothing of us: the developer tools of Debian's chromium, which read the same format as Perfetto's viewer.
#[test]
fn a_browser_opens_the_trace() {
    let Some(mut browser) = Browser::start() else {
        assert!(std::env::var_os("SATORI_BROWSER").is_none(), "the gate has a browser");
        return eprintln!("no chromium here: apt-get install chromium");
    };
    let (text, report) = traced("viewed", ",events=exit", &["--clock", "virtual"]);
    let page = "devtools://devtools/bundled/devtools_app.html";
    let target = browser.call(None, "Target.createTarget", serde_json::json!({ "url": page }));
    let whom = serde_json::json!({ "targetId": target["targetId"], "flatten": true });
    let session =
        browser.call(None, "Target.attachToTarget", whom)["sessionId"].as_str().expect("one").to_owned();
    let ask = ASK.replace("TEXT", &Value::from(text).to_string());
    let words = serde_json::json!({ "expression": ask, "awaitPromise": true, "returnByValue": true });
    let begun = Instant::now();
    // The page is not there at once, and until then nothing may be imported.
    let answer = loop {
        let answer = browser.call(Some(&session), "Runtime.evaluate", words.clone());
        if answer["exceptionDetails"].is_null() || begun.elapsed() > PATIENCE {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    if !answer["exceptionDetails"].is_null() && browser.version > KNOWN {
        return eprintln!(
            "not tried: chromium {} does not answer as {KNOWN} does: {answer}",
            browser.version
        );
    }
    let seen = answer["result"]["value"].as_str().unwrap_or_else(|| panic!("not opened: {answer}"));
    let seen: Value = serde_json::from_str(seen).expect("JSON");
    assert_eq!(seen["process"], serde_json::json!(["satori"]));
    let tables = report["vcpus"].as_array().expect("tables");
    assert_eq!(seen["tracks"].as_object().expect("tracks").len(), tables.len());
    for table in tables {
        let track = &seen["tracks"][format!("vCPU {}", table["vcpu"])];
        let rows = table["exits"].as_array().expect("rows");
        assert_eq!(track.as_object().expect("a track").len(), rows.len(), "{track}");
        for row in rows {
            let slices = &track[row["reason"].as_str().expect("a name")];
            assert_eq!(slices[0], row["samples"], "{row}");
            let (us, ns) = (number(&slices[1]), number(&row["total_ns"]));
            assert!((us * 1e3 - ns).abs() < 1.0 + number(&slices[0]) * 0.01, "{slices} {row}");
        }
    }
}
