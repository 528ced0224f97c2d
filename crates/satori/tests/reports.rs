//! Reports of real runs and of others: the published schema, `satori report` and `satori advise`, and the page in
//! a browser.

mod common;

use std::process::Command;

use common::{fetch, file, pvh, satori, scratch};
use serde_json::Value;

/// The words of JSON Schema that `docs/report.schema.json` uses; another one is a failure.
fn validate(schema: &Value, root: &Value, value: &Value, at: &str) {
    for (word, wanted) in schema.as_object().expect("a schema is an object") {
        match word.as_str() {
            "$schema" | "$defs" | "title" | "description" => {}
            "$ref" => {
                let path = wanted.as_str().unwrap().trim_start_matches('#');
                validate(root.pointer(path).expect("a definition"), root, value, at);
            }
            "const" => assert_eq!(value, wanted, "{at}"),
            "minimum" => assert!(value.is_null() || value.as_f64() >= wanted.as_f64(), "{at}: {value}"),
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "number" => value.is_number(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                };
                let fits = wanted.as_array().map_or_else(|| is(wanted), |names| names.iter().any(is));
                assert!(fits, "{at}: {value} is no {wanted}");
            }
            "required" => {
                for name in wanted.as_array().unwrap() {
                    assert!(!value[name.as_str().unwrap()].is_null(), "{at}: no {name}");
                }
            }
            "properties" => {
                for (name, schema) in wanted.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        validate(schema, root, value, &format!("{at}.{name}"));
                    }
                }
            }
            "additionalProperties" => {
                for (name, value) in value.as_object().unwrap() {
                    validate(wanted, root, value, &format!("{at}.{name}"));
                }
            }
            "items" => {
                value.as_array().unwrap().iter().for_each(|value| validate(wanted, root, value, at));
            }
            other => panic!("{at}: the word {other}"),
        }
    }
}

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn talk(name: &str) -> String {
    format!("{}/../observe/report/tests/talk/{name}.txt", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn real_reports_keep_the_schema_and_are_read_again() {
    let kernel = file("kernel", &pvh::debug_exit(0));
    let report = scratch("report.json").display().to_string();
    let run = ["run", "--kernel", &kernel, "-m", "128M", "--report", "json", "--report-file", &report];
    assert_eq!(satori(&run).status, 1);
    let text = std::fs::read_to_string(&report).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    validate(&schema(), &schema(), &value, "report");
    assert!(value["all"]["samples"].as_u64() > Some(0), "{text}");

    let shown = satori(&["report", "show", &report, "--format", "json"]);
    let again: Value = serde_json::from_str(&shown.console).unwrap();
    validate(&schema(), &schema(), &again, "shown");
    assert_eq!(again["all"]["samples"], value["all"]["samples"]);
    let advice = satori(&["advise", &report]);
    assert!(advice.status == 0 && advice.console.contains("unused: "), "{advice:?}");

    let imported = satori(&["report", "import", &talk("all")]);
    let imported: Value = serde_json::from_str(&imported.console).unwrap();
    validate(&schema(), &schema(), &imported, "imported");
    assert_eq!(imported["all"]["samples"], 659_276);
}

#[test]
fn reports_are_compared_and_advised_on() {
    let told = satori(&["report", "diff", &talk("none"), &talk("all")]);
    let first: Vec<_> = told.console.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(first[..3], ["EPT_MISCONFIG", "893519", "0"]);
    // The four pasted in together, without a word on their configurations.
    let four = ["none", "all", "hidden", "repaired"].map(|name| std::fs::read_to_string(talk(name)).unwrap());
    let four = file("four.txt", four.concat().as_bytes());
    let told = satori(&["advise", &four]);
    let order: Vec<_> = told.console.lines().filter(|line| line.contains(" of the most ")).collect();
    assert!(
        order.len() == 4 && order[0].starts_with("table 4 ") && order[0].contains("as-repaired"),
        "{told:?}"
    );
    assert!(
        order[2].starts_with("table 2 ") && order[2].contains("auto-eoi-apicv, apic-access-hint"),
        "{told:?}"
    );
    let told = satori(&["advise", &four, "--apicv", "no"]);
    assert!(told.status == 0 && !told.console.contains("auto-eoi-apicv"), "{told:?}");
    let told = satori(&["advise", &four, "--hyperv", "all"]);
    assert!(told.status == 2 && told.messages.contains("choose it with --table"), "{told:?}");
    let told = satori(&["advise", &talk("all"), "--hyperv", "all,-apicv"]);
    let told = if told.status == 0 {
        told
    } else {
        satori(&["advise", &talk("all"), "--cpu", "max,hv-passthrough,hv-apicv=off"])
    };
    assert!(told.console.contains("auto-eoi-apicv: "), "{told:?}");
    let page = satori(&["explain", "auto-eoi-apicv"]);
    assert!(
        page.console.starts_with("rule auto-eoi-apicv\n") && page.console.contains("  source "),
        "{page:?}"
    );
}

/// As people have them: quoted in a mail, of a guest on AMD of which libvirt knows more than Satori does.
#[test]
fn anothers_table_and_domain_are_advised_on() {
    let domain = "<domain type='kvm'><features><hyperv><vapic state='on'/><evmcs state='on'/></hyperv></features>\
                  <cpu mode='host-passthrough'><feature policy='require' name='topoext'/></cpu></domain>";
    let domain = file("domain.xml", domain.as_bytes());
    let table = "> > VM-EXIT Samples Samples% Time% Min Time Max Time Avg time\n> > hlt 9000 50% 97% 1us 9000us 900us\n\
                 > > io 8000 50% 3% 4us 90us 6.5us\n";
    let table = file("quoted.txt", table.as_bytes());
    let told = satori(&["advise", &table, "--libvirt", &domain]);
    assert!(
        told.status == 0 && told.messages.contains("warning: ") && told.messages.contains("topoext"),
        "{told:?}"
    );
    for part in [
        "user-space-timer: ",
        "quotation marks",
        "<vpindex state='on'/>",
        "<timer name='hpet' present='no'/>",
    ] {
        assert!(told.console.contains(part), "{part}: {told:?}");
    }
    assert_eq!(satori(&["hyperv", "check", "--libvirt", &domain]).status, 0);
    let ran = satori(&["run", "--libvirt", &domain, "--kernel", "/dev/null"]);
    assert!(ran.status == 2 && ran.messages.contains("topoext"), "{ran:?}");
    let rules = satori(&["advise", "--rules"]);
    assert!(rules.status == 0 && rules.console.contains("memory-faults "), "{rules:?}");
    let nosuch = satori(&["explain", "nosuch"]);
    assert!(nosuch.status == 2 && nosuch.messages.contains("satori advise --rules"), "{nosuch:?}");
}

/// Real crashes of a real run, and one of Windows that was kept.
#[test]
fn crashes_are_grouped() {
    let folder = scratch("crashes");
    std::fs::create_dir_all(&folder).unwrap();
    let report = folder.join("real.json").display().to_string();
    let kernel = file("kernel", &pvh::debug_exit(0));
    let run = ["run", "--kernel", &kernel, "-m", "128M", "--report", "json", "--report-file", &report];
    assert_eq!(satori(&run).status, 1);
    let value: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    validate(&schema(), &schema(), &value, "report");
    assert!(value["origin"]["command"].as_str().unwrap().contains("--report-file"), "{value}");
    for (name, address) in [("one", 0xffff_f801_0000_0000_u64), ("two", 0xffff_f802_0000_0000)] {
        let crash = serde_json::json!({ "parameters": [0xd1, address, 2, 0, 7], "message": null });
        let told = serde_json::json!({ "all": { "samples": 0, "total_ns": 0, "exits": [] }, "crash": crash });
        std::fs::write(folder.join(name).with_extension("json"), told.to_string()).unwrap();
    }
    let told = satori(&["report", "crashes", &folder.display().to_string()]);
    assert!(told.status == 0 && told.console.contains("    2 x  0x000000d1"), "{told:?}");
    assert!(told.console.contains("2 crashes of 1 kinds; 1 reports without one"), "{told:?}");
    let empty = satori(&["report", "crashes", "/nowhere"]);
    assert!(empty.status == 2 && empty.messages.contains("name one with reports in it"), "{empty:?}");
}

/// Panics of stock kernels, told by messages that lie elsewhere in each: two kinds, of which one was seen with two kernels.
#[test]
fn panics_of_linux_are_grouped_by_what_was_said_and_where() {
    let folder = scratch("panics");
    std::fs::create_dir_all(&folder).unwrap();
    let busybox = std::fs::read(fetch(&["busybox"])).unwrap();
    let mount = "#!/bin/sh\n/bin/busybox mount -t proc proc /proc\n";
    for (name, series, then) in [
        ("old", "6.1", "echo c >/proc/sysrq-trigger"),
        ("new", "6.12", "echo c >/proc/sysrq-trigger"),
        ("init", "6.12", "exit 3"),
    ] {
        let script = format!("{mount}{then}\n");
        let initramfs = file("panic.cpio", &satori::initramfs::build(&busybox, &script, &[]));
        let kernel = fetch(&["kernel", series]);
        let report = folder.join(name).with_extension("json").display().to_string();
        let fixed =
            ["run", "--kernel", &kernel, "--initrd", &initramfs, "--timeout", "5m", "--report", "json"];
        let ended = satori(&[&fixed[..], &["--report-file", &report]].concat());
        assert_eq!(ended.status, 120, "{name}: {ended:?}");
    }
    let told = satori(&["report", "crashes", &folder.display().to_string()]);
    for part in [
        "    2 x  Kernel panic - not syncing: sysrq triggered crash\n",
        "  at          sysrq_handle_crash < __handle_sysrq < write_sysrq_trigger < ",
        "    1 x  Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000300\n",
        "  at          do_exit < do_group_exit < ",
        "3 crashes of 2 kinds; 0 reports without one",
    ] {
        assert!(told.console.contains(part), "{part}: {}", told.console);
    }
    assert!(!told.console.contains("parameters"), "a message's place is no parameter: {}", told.console);
}

/// One column of the table says it everywhere.
#[test]
fn apicvs_default_is_told_the_same_everywhere() {
    let list = satori(&["hyperv", "list"]).console;
    assert!(list.lines().any(|line| line.starts_with("apicv ") && line.contains("on with APICv")), "{list}");
    let explained = satori(&["explain", "apicv"]).console;
    assert!(explained.contains("default     on with APICv: "), "{explained}");
    for (processor, state) in [("haswell", "on"), ("no-apicv", "off")] {
        let checked = satori(&["hyperv", "check", "--processor", processor]).console;
        let row = checked.lines().find(|line| line.starts_with("apicv ")).unwrap_or_default();
        assert_eq!(row.split_whitespace().nth(1), Some(state), "{checked}");
    }
}

#[test]
fn what_is_no_report_is_refused_with_its_line() {
    for (name, bytes, told) in [
        ("prose", &b"hello\nworld\n"[..], "line 2: no report"),
        ("cut", b"{\n\"all\": {", "line 2: EOF"),
        ("newer", b"{\"format\": \"satori-report\", \"version\": 99}", "newer than 1"),
        ("binary", b"VM-EXIT\n\xff\xfe", "line 2: no text in UTF-8"),
        ("wrong", b"{\"all\":\n{\"samples\": -1}}", "line 2: invalid value"),
    ] {
        let path = file(name, bytes);
        for command in [&["report", "show", &path][..], &["advise", &path]] {
            let ended = satori(command);
            assert_eq!(ended.status, 2, "{ended:?}");
            assert!(ended.messages.contains(told) && ended.messages.contains(&path), "{ended:?}");
            assert_eq!(ended.messages.lines().count(), 1, "{ended:?}");
        }
    }
}

/// What Debian's chromium shows of the page: one bar a reason and run, on one scale, and the tables' figures.
#[test]
fn a_browser_shows_the_page() {
    let page = scratch("page.html").display().to_string();
    let [none, all, hidden, repaired] = ["none", "all", "hidden", "repaired"].map(talk);
    let made = satori(&["report", "html", &none, &all, &hidden, &repaired, "-o", &page]);
    assert_eq!(made.status, 0, "{made:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    for fetched in ["http://", "https://", "src=", "<script", "@import", "url("] {
        assert!(!text.contains(fetched), "{fetched}: the page is not self-contained");
    }
    let probe = "<script>const w=[0,1,2,3].map(run=>[...document.querySelectorAll(`#cost .bar[data-run=\"${run}\"]`)]\
        .reduce((sum,bar)=>sum+bar.getBoundingClientRect().width,0));\
        document.body.setAttribute('data-seen',JSON.stringify({w,tables:[...document.querySelectorAll('table')]\
        .map(t=>t.innerText.length>0&&t.offsetHeight>0),over:document.documentElement.scrollWidth>innerWidth}))</script>";
    // Only the copy that is looked at has a script.
    let probed = file("probed.html", text.replace("</body>", &format!("{probe}</body>")).as_bytes());
    let browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--dump-dom"])
        .arg(format!("file://{probed}"))
        .output();
    let Ok(browser) = browser else {
        assert!(std::env::var_os("SATORI_BROWSER").is_none(), "the gate has a browser");
        return eprintln!("no chromium here: apt-get install chromium");
    };
    let dom = String::from_utf8_lossy(&browser.stdout);
    assert!(dom.contains("1,238,237") && dom.contains("EPT_MISCONFIG"), "{dom:.500}");
    let seen = dom.split("data-seen=\"").nth(1).expect("the probe ran").split('"').next().unwrap();
    let seen: Value = serde_json::from_str(&seen.replace("&quot;", "\"")).unwrap();
    let widths: Vec<f64> = seen["w"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).collect();
    // The talk's times: 6.56 : 1.30 : 0.72 : 0.68 s.
    for (width, seconds) in widths.iter().zip([6.564, 1.303, 0.719, 0.683]) {
        assert!((width / widths[0] - seconds / 6.564).abs() < 0.01, "{widths:?}");
    }
    assert!(widths[0] > 500.0, "{widths:?}");
    assert_eq!(seen["tables"], serde_json::json!([true, true, true, true, true]));
    assert_eq!(seen["over"], false, "the page is wider than its window");
}
