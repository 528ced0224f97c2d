//! Every snippet that the talks print, through the built binary: what is well-formed runs as it stands, and a
//! guest of a few bytes sees in CPUID what it asks for; the rest is refused with the right spelling, and its
//! corrected copy runs. `talks/` holds libvirt's snippets byte for byte, hard spaces and all.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{Ended, file, pvh, satori};
use satori_hyperv::Enlightenment;

macro_rules! snippet {
    ($name:literal) => {
        include_str!(concat!("../../libvirt/talks/", $name, ".xml"))
    };
}

/// Prints registers of CPUID in binary, a line each, and ends with status 3: leaf 1 ECX, then of leaf
/// 40000003h EAX, EBX, EDX, then 40000004h EAX.
fn teller() -> Vec<u8> {
    let cpuid = |leaf: u32| [&[0xb8], &leaf.to_le_bytes()[..], &[0x0f, 0xa2]].concat();
    // EDI = EAX, ESI = EDX; EBX stays.
    let keep = [0x89, 0xc7, 0x89, 0xd6];
    // mov $32, ecx; 1: shl REG; mov $'0', al; adc $0, al; mov $0x3f8, dx; out; loop 1b; and a line feed
    let print = |shl: u8| {
        let digit = [0xd1, shl, 0xb0, b'0', 0x14, 0, 0x66, 0xba, 0xf8, 0x03, 0xee, 0xe2, 0xf3];
        [&[0xb9, 32, 0, 0, 0][..], &digit, &[0xb0, b'\n', 0xee]].concat()
    };
    let (edi, esi, ebx) = (0xe7, 0xe6, 0xe3);
    let mut code = [cpuid(1), vec![0x89, 0xcf], print(edi)].concat();
    code.extend([&cpuid(0x4000_0003)[..], &keep, &print(edi), &print(ebx), &print(esi)].concat());
    code.extend([&cpuid(0x4000_0004)[..], &keep, &print(edi)].concat());
    // mov $1, al; mov $0xf4, dx; out
    code.extend([0xb0, 1, 0x66, 0xba, 0xf4, 0, 0xee]);
    pvh::kernel(&code)
}

/// What the guest saw: leaf 1 ECX, leaf 3 EAX, EBX, EDX, leaf 4 EAX.
fn seen(ended: &Ended) -> [u32; 5] {
    assert_eq!(ended.status, 3, "{ended:?}");
    let lines: Vec<_> = ended.console.lines().map(|line| u32::from_str_radix(line.trim(), 2)).collect();
    let numbers: Result<Vec<_>, _> = lines.into_iter().collect();
    numbers.ok().and_then(|numbers| numbers.try_into().ok()).unwrap_or_else(|| panic!("{ended:?}"))
}

static COUNT: AtomicU32 = AtomicU32::new(0);

fn xml(text: &str) -> String {
    file(&format!("{}.xml", COUNT.fetch_add(1, Ordering::Relaxed)), text.as_bytes())
}

/// `satori run` with `options` and the guest that tells.
fn run(options: &[&str]) -> Ended {
    let kernel = file(&format!("teller-{}", COUNT.fetch_add(1, Ordering::Relaxed)), &teller());
    satori(
        &[&["run", "--kernel", &kernel, "-m", "128M", "--timeout", "1m", "--report", "off"], options]
            .concat(),
    )
}

/// The warnings of a run.
fn warnings(ended: &Ended) -> Vec<&str> {
    ended.messages.lines().filter(|line| line.contains("warning: ")).collect()
}

/// Runs under `options`: the guest sees the bits of `names`, what guests need for them, and no others.
fn offers(options: &[&str], names: &[&str]) -> Ended {
    let ended = run(options);
    let [one, low, high, features, hints] = seen(&ended);
    assert_eq!(one >> 31, 1, "a hypervisor: {ended:?}");
    let on = |one: &Enlightenment| ["base", "vpindex"].contains(&one.name()) || names.contains(&one.name());
    for name in names {
        assert!(Enlightenment::by_name(name).is_some(), "{name}");
    }
    let registers = [("privilege", low), ("high", high), ("feature", features), ("hint", hints)];
    let bits = |wanted: bool| {
        let all = Enlightenment::ALL.iter().filter(move |one| on(one) == wanted);
        all.flat_map(|one| one.row().cpuid.iter().map(move |bit| (one, bit)))
    };
    let place = |bit: &satori_hyperv::CpuidBit| match (bit.leaf, format!("{:?}", bit.register).as_str()) {
        (0x4000_0003, "Eax") => Some(0),
        (0x4000_0003, "Ebx") => Some(1),
        (0x4000_0003, "Edx") => Some(2),
        (0x4000_0004, "Eax") => Some(3),
        _ => None,
    };
    let mut expected = [0u32; 4];
    for (_, bit) in bits(true) {
        let taken = bit.unless.is_some_and(|other| on(&other));
        if let (Some(place), false) = (place(bit), taken) {
            expected[place] |= 1 << bit.bit;
        }
    }
    // Also a bit that no row of the table owns would be one too many.
    for ((name, register), expected) in registers.iter().zip(expected) {
        assert_eq!(*register, expected, "{name} bits under {options:?}: {register:#034b}, {expected:#034b}");
    }
    ended
}

/// A file of `--libvirt` that offers `names`; gives the run's warnings without the file's name.
fn file_offers(text: &str, names: &[&str]) -> Vec<String> {
    let path = xml(text);
    let ended = offers(&["--libvirt", &path], names);
    assert_eq!(satori(&["hyperv", "check", "--libvirt", &path]).status, 0);
    warnings(&ended).iter().map(|line| line.replace(&path, "FILE").replace("satori: warning: ", "")).collect()
}

/// The lines that refuse `options`, of `run` and `check` the same: where `check` only warns, as it reads other
/// hosts' choices too, it is of what no guest of ours can have; and it accepts what takes `--nested vmx` here.
fn refused(options: &[&str]) -> Vec<String> {
    let ended = run(options);
    assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{ended:?}");
    let check = satori(&[&["hyperv", "check"], options].concat());
    if ended.messages.contains("say --nested vmx") {
        assert_eq!((check.status, check.messages.as_str()), (0, ""), "other hosts' guests may run guests");
    } else {
        let warned = check.status == 0 && check.messages.contains("cannot be had");
        let said = if warned { check.messages.replace("warning: ", "") } else { check.messages };
        assert_eq!((warned || check.status == 2, &said), (true, &ended.messages), "run and check differ");
    }
    let lines = ended.messages.lines();
    lines.map(|line| line.strip_prefix("satori: ").unwrap_or(line).to_string()).collect()
}

#[test]
fn the_first_talks_files_run_as_they_stand() {
    for (text, names) in [
        (snippet!("relaxed"), &["relaxed"][..]),
        (snippet!("vapic"), &["vapic"]),
        (snippet!("spinlocks"), &["spinlocks"]),
        (snippet!("vpindex"), &[]),
        (snippet!("runtime"), &["runtime"]),
        (snippet!("crash"), &["crash"]),
        (snippet!("synic"), &["synic"]),
        (snippet!("tlbflush"), &["tlbflush"]),
        (snippet!("ipi"), &["ipi"]),
        (snippet!("vendorid"), &["vendor_id"]),
        (snippet!("reset"), &["reset"]),
        (snippet!("reenlightenment"), &["frequencies", "reenlightenment", "time"]),
    ] {
        let told = file_offers(text, names);
        // What a name needs and the file leaves out is added, and said.
        assert!(told.iter().all(|line| line.ends_with(": added")), "{text}: {told:?}");
    }
    const LOCALTIME: &str = "offset='localtime' is not honoured";
    for (text, names) in
        [(snippet!("time"), &["time"][..]), (snippet!("stimer"), &["synic", "stimer", "time"])]
    {
        let told = file_offers(text, names);
        assert!(told.iter().any(|line| line.contains(LOCALTIME) && line.starts_with("FILE:")), "{told:?}");
    }
    let told = file_offers(snippet!("stimerdirect"), &["stimer_direct", "stimer", "synic", "time"]);
    let today = "today's form is <stimer state='on'><direct state='on'/></stimer>";
    assert!(told.iter().any(|line| line.contains(today)), "{told:?}");
    let told = refused(&["--libvirt", &xml(snippet!("evmcs"))]);
    assert!(
        told.len() == 1 && told[0].contains("hv-evmcs is for guests that run guests: say --nested vmx"),
        "{told:?}"
    );
}

#[test]
fn the_second_talks_files_are_put_right_and_run() {
    let none = xml(snippet!("none-set"));
    let told = refused(&["--libvirt", &none]);
    let places: Vec<_> =
        told.iter().map(|line| line.strip_prefix(&format!("{none}:")).unwrap_or(line)).collect();
    assert_eq!(places.len(), 2, "{told:#?}");
    assert!(places[0].starts_with("4:3: ") && places[0].ends_with("write <pae/>"), "{told:#?}");
    assert!(
        places[1].starts_with("6:3: ") && places[1].ends_with("write <kvm><hidden state='on'/></kvm>"),
        "{told:#?}"
    );

    let all = xml(snippet!("all-set"));
    let told = refused(&["--libvirt", &all]);
    let wanted = [
        ("4:3", "<pae/>"),
        ("6:3", "<kvm><hidden state='on'/></kvm>"),
        ("13:5", "<synic state='on'/>"),
        ("15:5", "<stimer state='on'><direct state='on'/></stimer>"),
        ("17:3", "<hyperv><reset state='on'/></hyperv>"),
        ("18:3", "<hyperv><vendor_id state='on' value='KVM Hv'/></hyperv>"),
        ("19:3", "<hyperv><frequencies state='on'/></hyperv>"),
        ("20:3", "<hyperv><reenlightenment state='on'/></hyperv>"),
        ("21:3", "<hyperv><tlbflush state='on'/></hyperv>"),
        ("22:3", "<hyperv><ipi state='on'/></hyperv>"),
    ];
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    for (line, (place, spelling)) in told.iter().zip(wanted) {
        assert!(
            line.starts_with(&format!("{all}:{place}: ")) && line.ends_with(&format!("write {spelling}")),
            "{line}"
        );
    }

    // The copies, put right by the messages alone: each wrong element replaced by what is to be written.
    let right = |text: &str| {
        text.replace("<paef/>", "<pae/>")
            .replace("<kvm-hidden state='on' /></kvm-hidden>", "<kvm><hidden state='on'/></kvm>")
            .replace("<syncic state='on' />", "<synic state='on'/>")
            .replace("<stimer state='on' />\n", "")
            .replace("<direct state='on' />", "<stimer state='on'><direct state='on'/></stimer>")
            .replace("  </hyperv>\n", "")
            .replace("<ipi state='on' />\n", "<ipi state='on' />\n  </hyperv>\n")
    };
    let ended = run(&["--libvirt", &xml(&right(snippet!("none-set")))]);
    // No <hyperv>: none of it. A leaf that there is not shows what the last basic one does, on Intel's.
    let [_, privileges, _, _, hints] = seen(&ended);
    assert_eq!((privileges, hints), (0, 0), "{ended:?}");
    let told = file_offers(
        &right(snippet!("all-set")),
        &[
            "relaxed",
            "vapic",
            "spinlocks",
            "runtime",
            "synic",
            "stimer",
            "stimer_direct",
            "reset",
            "vendor_id",
            "frequencies",
            "reenlightenment",
            "tlbflush",
            "ipi",
            "time",
        ],
    );
    assert!(told.iter().any(|line| line.contains("<pmu> is not honoured")), "{told:?}");

    let ended = run(&["--libvirt", &xml(snippet!("hidden"))]);
    assert_eq!(seen(&ended)[0] >> 31, 0, "the hypervisor is hidden: {ended:?}");
    let processors = satori(&["cpu", "--libvirt", &xml(snippet!("hidden")), "--vcpu", "19"]);
    assert_eq!(processors.status, 0, "ten cores with two threads each: {processors:?}");
}

/// QEMU's flags as the first talk's slides have them, without hyphens, and what they were.
const FLAGS: &[(&str, &str, &[&str])] = &[
    ("....,hvrelaxed", "max,hv-relaxed", &["relaxed"]),
    ("....,hvvapic", "max,hv-vapic", &["vapic"]),
    ("....,hvspinlocks=4096", "max,hv-spinlocks=4096", &["spinlocks"]),
    ("....,hvvpindex", "max,hv-vpindex", &[]),
    ("....,hvruntime", "max,hv-runtime", &["runtime"]),
    ("....,hvcrash", "max,hv-crash", &["crash"]),
    ("....,hvtime", "max,hv-time", &["time"]),
    ("....,hvsynic", "max,hv-synic", &["synic"]),
    ("....,hvtime,hvsynic,hvstimer", "max,hv-time,hv-synic,hv-stimer", &["time", "synic", "stimer"]),
    ("....,hvvpindex,hvtlbflush", "max,hv-vpindex,hv-tlbflush", &["tlbflush"]),
    ("....,hvvpindex,hvipi", "max,hv-vpindex,hv-ipi", &["ipi"]),
    ("....,hvvendorid='KVM Hv'", "max,hv-vendor-id=KVM Hv", &["vendor_id"]),
    ("....,hvreset", "max,hv-reset", &["reset"]),
    (
        "....,hvfrequencies,hvreenlightenment",
        "max,hv-frequencies,hv-reenlightenment",
        &["frequencies", "reenlightenment", "time"],
    ),
    ("....,hvstimerdirect", "max,hv-stimer-direct", &["stimer_direct", "stimer", "synic", "time"]),
];

#[test]
fn qemus_flags_without_hyphens_are_told_and_with_them_run() {
    for (printed, meant, names) in FLAGS {
        let told = refused(&["--cpu", printed]);
        for word in meant.split(',').skip(1) {
            let name = word.split('=').next().unwrap_or(word);
            let messages = told.iter().filter(|line| line.contains(name)).count();
            assert_eq!(messages, 1, "{printed}: one message names {name}: {told:#?}");
        }
        assert!(told.iter().all(|line| line.starts_with("--cpu, column ")), "the column: {told:#?}");
        offers(&["--hyperv", "off", "--cpu", meant], names);
    }
    for (printed, meant) in [("max,hv-tlblush", "hv-tlbflush"), ("max,hv-evmcs", "guests that run guests")] {
        let told = refused(&["--cpu", printed]);
        assert!(told.len() == 1 && told[0].contains(meant), "{told:?}");
    }
}

#[test]
fn what_is_converted_runs_the_same() {
    for text in [snippet!("stimer"), snippet!("tlbflush"), snippet!("spinlocks"), snippet!("crash")] {
        let path = xml(text);
        let before = seen(&run(&["--libvirt", &path]));
        for spelling in ["qemu", "libvirt", "satori"] {
            let written = satori(&["hyperv", "convert", "--to", spelling, "--libvirt", &path]);
            assert_eq!(written.status, 0, "{written:?}");
            let written = written.console.trim_end();
            let after = match spelling {
                "libvirt" => run(&["--libvirt", &xml(written)]),
                "qemu" => {
                    run(&["--hyperv", "off", "--cpu", word(written.strip_prefix("-cpu ").expect(written))])
                }
                _ => {
                    let (cpu, list) = written.split_once(" --hyperv ").expect(written);
                    run(&["--cpu", word(cpu.strip_prefix("--cpu ").expect(cpu)), "--hyperv", word(list)])
                }
            };
            assert_eq!(seen(&after), before, "{spelling}: {written}");
        }
    }
}

/// A word as a shell reads it.
fn word(text: &str) -> &str {
    text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).unwrap_or(text)
}

#[test]
fn what_options_come_to_is_shown() {
    let ended =
        satori(&["hyperv", "check", "--hyperv", "auto", "--cpu", "max,hv-crash=off", "--format", "json"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let json: serde_json::Value = serde_json::from_str(&ended.console).unwrap();
    let rows = json["enlightenments"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(row("crash")["on"], false);
    assert!(row("crash")["by"].as_str().unwrap().contains("--cpu"), "{}", row("crash"));
    assert!(
        row("time")["on"] == true && row("time")["by"].as_str().unwrap().contains("auto"),
        "{}",
        row("time")
    );
    let ended = satori(&["hyperv", "check", "--hyperv", "off,time"]);
    assert_eq!((ended.status, ended.console.as_str()), (2, ""), "a contradiction in one option: {ended:?}");

    let list = satori(&["hyperv", "list", "--format", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list.console).unwrap();
    assert_eq!(list["enlightenments"].as_array().unwrap().len(), Enlightenment::ALL.len());
    for name in ["stimer", "hv-stimer"] {
        let page = satori(&["explain", name]);
        assert_eq!(page.status, 0, "{page:?}");
        assert!(page.console.contains("synic") && page.console.contains("time"), "its needs: {page:?}");
    }
    let page = satori(&["explain", "stymer"]);
    assert!(page.status == 2 && page.messages.contains("'stimer'"), "{page:?}");
    assert_eq!(satori(&["hyperv", "convert", "--to", "xen"]).status, 2);
    let missing = satori(&["run", "--libvirt", "/nonexistent.xml"]);
    assert!(missing.status == 2 && missing.messages.contains("--libvirt /nonexistent.xml"), "{missing:?}");
}

#[test]
fn the_doctor_looks_at_everything() {
    let ended = satori(&["doctor", "--format", "json"]);
    assert_eq!(ended.status, 0, "guests run where the tests do: {ended:?}");
    let json: serde_json::Value = serde_json::from_str(&ended.console).unwrap();
    assert_eq!(json["runs"], true);
    let findings = json["findings"].as_array().unwrap();
    let text = satori(&["doctor"]).console;
    for finding in findings {
        let name = finding["name"].as_str().unwrap();
        assert!(text.contains(name), "{name}: {text}");
        // What is not good says what it costs.
        assert_eq!(finding["state"] == "good", finding["costs"] == "", "{finding}");
    }
    for words in ["TSC", "clocksource", "/dev/kvm", "memory", "seccomp", "userfaultfd"] {
        assert!(text.to_lowercase().contains(&words.to_lowercase()), "no {words}: {text}");
    }
}
