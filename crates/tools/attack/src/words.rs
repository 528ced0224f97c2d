//! What a person writes: options, and files of libvirt's.
//!
//! Half of the inputs are taken as they are, half choose from words that mean something, so that
//! random bytes also get behind the first check.

use satori_cpuid::{CpuSpec, Topology};
use satori_hyperv::choice::{self, Choice, Mistakes, convert};
use satori_hyperv::{Config, Enlightenment, SPIN_NEVER};

/// Text made of `data`.
fn text(data: &[u8], words: &[&str], names: &[String]) -> String {
    let Some((how, data)) = data.split_first() else { return String::new() };
    if how & 1 == 0 {
        return String::from_utf8_lossy(data).into_owned();
    }
    let mut text = String::new();
    for byte in data {
        let index = usize::from(*byte);
        match words.get(index) {
            Some(word) => text += word,
            None => text += &names[(index - words.len()) % names.len()],
        }
    }
    text
}

/// Every name of the table, as a list and as QEMU has it.
fn names() -> Vec<String> {
    let rows = Enlightenment::ALL.iter().map(|one| one.row());
    rows.flat_map(|row| [Some(row.name.to_string()), row.qemu.map(String::from)]).flatten().collect()
}

const OPTIONS: &[&str] = &[
    ",",
    ",",
    ",",
    ",,",
    "=",
    "=on",
    "=off",
    "=auto",
    "=4096",
    "=0xffffffff",
    "=1",
    "=KVM Hv",
    "+",
    "-",
    "hv-",
    "hv_",
    "hv",
    "auto",
    "off",
    "all",
    "max",
    "....",
    "hv-passthrough",
    "hv-version-id-minor=",
    "-popcnt",
    "model-id=a",
    "'",
    " ",
    "\u{e4}",
];

/// The values of `--hyperv` and `--cpu`: whatever comes of them is, written in each spelling, the same
/// again.
pub fn options(data: &[u8]) {
    let text = text(data, OPTIONS, &names());
    let at = text.find('\n').unwrap_or(text.len());
    let (list, cpu) = (&text[..at], text[at..].trim_start_matches('\n'));
    let cpu = if cpu.is_empty() { list } else { cpu };
    for (list, cpu) in [(Some(list), None), (None, Some(cpu)), (Some(list), Some(cpu))] {
        let Ok((rest, config)) = chosen(list, cpu) else { continue };
        let qemu = convert::to_qemu("max", &config).text;
        let (_, again) = chosen(Some("off"), Some(&value(&qemu, "-cpu "))).expect("what was written is read");
        // QEMU's defaults need no words.
        let implied = ["vendor_id", "version_id"];
        let known = |config: &Config| -> Vec<_> {
            config
                .set
                .iter()
                .filter(|one| one.row().qemu.is_some() && !implied.contains(&one.name()))
                .collect()
        };
        // What is known may need what is not named.
        assert!(known(&config).iter().all(|one| again.set.has(*one)), "{text:?}: {qemu}");
        let satori = convert::to_satori("max", &config).text;
        let (cpu, list) = satori.split_once(" --hyperv ").expect("both options");
        let again = chosen(Some(&value(&format!("x{list}"), "x")), Some(&value(cpu, "--cpu ")));
        let (_, again) = again.expect("what was written is read");
        assert_eq!(again.leaves(4), config.leaves(4), "{text:?}: {satori}");
        let _ = rest.parse::<CpuSpec>();
    }
}

/// What a shell makes of the value behind `option`.
fn value(text: &str, option: &str) -> String {
    let value = text.strip_prefix(option).expect("the option");
    match value.strip_prefix('\'').and_then(|value| value.strip_suffix('\'')) {
        Some(quoted) => quoted.replace("'\\''", "'"),
        None => value.into(),
    }
}

fn chosen(list: Option<&str>, cpu: Option<&str>) -> Result<(String, Config), Mistakes> {
    let mut choice = Choice::default();
    let mut rest = "max".to_string();
    if let Some(list) = list {
        choice.apply("--hyperv", &choice::list(list)?)?;
    }
    if let Some(cpu) = cpu {
        let option = choice::cpu_option(cpu)?;
        choice.apply("--cpu", &option.wishes)?;
        rest = option.rest;
    }
    Ok((rest, choice.finish()?.config))
}

const XML: &[&str] = &[
    "<",
    ">",
    "/>",
    "</",
    "='",
    "'",
    "\"",
    " state='on'",
    " state='off'",
    " name='",
    " value='KVM Hv'",
    " retries='4096'",
    " mode='passthrough'",
    " policy='disable'",
    " vcpu='0' cpuset='0-3,^2'",
    " sockets='2' cores='2' threads='1'",
    "<domain>",
    "</domain>",
    "<features>",
    "</features>",
    "<hyperv>",
    "</hyperv>",
    "<cpu>",
    "</cpu>",
    "<clock>",
    "</clock>",
    "<devices>",
    "</devices>",
    "<os>",
    "</os>",
    "<kernel>k</kernel>",
    "<vcpu>4</vcpu>",
    "<memory>1</memory>",
    "<timer name='hypervclock' present='yes'/>",
    "<panic model='hyperv'/>",
    "<cputune>",
    "</cputune>",
    "<vcpupin",
    "<topology",
    "<feature",
    "<spinlocks",
    "<vendor_id",
    "<stimer state='on'>",
    "</stimer>",
    "<direct state='on'/>",
    "<stimer_direct state='on'/>",
    "<pae/>",
    "<paef/>",
    "&amp;",
    "&x;",
    "&#x41;",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "<?",
    "?>",
    "<!DOCTYPE",
    "\n",
    " ",
    "...",
    "\u{a0}",
];

/// A file of `--libvirt`: what is read is, written again, the same.
pub fn domain(data: &[u8]) {
    let text = text(data, XML, &names());
    let read = |text: &str| satori_libvirt::read("fuzz.xml", text, &|_| true);
    let domain = match read(&text) {
        Ok(domain) => domain,
        Err(Mistakes(mistakes)) => {
            let lines = text.lines().count().max(1) + 1;
            for mistake in &mistakes {
                let line = mistake.place.and_then(|place| place.line);
                assert!(line.is_none_or(|line| (1..=lines).contains(&line)), "{text:?}: {mistake}");
            }
            assert!(!mistakes.is_empty());
            return;
        }
    };
    let mut choice = Choice::default();
    let Ok(()) = choice.apply("fuzz.xml", &domain.wishes) else { return };
    let Ok(chosen) = choice.finish() else { return };
    let mut config = chosen.config;
    if !config.set.has(Enlightenment::Spinlocks) || config.spin_retries < 0xfff {
        config.spin_retries = SPIN_NEVER;
    }
    let topology = domain.topology.map_or(Topology::default(), |(topology, _)| topology);
    let cpu: CpuSpec =
        domain.cpu.words().unwrap_or_else(|| "max".into()).parse().expect("words of a processor");
    let written = satori_libvirt::write(&cpu, topology, &config);
    let again = read(&written.text).expect("what was written is read");
    let mut choice = Choice::default();
    choice.apply("fuzz.xml", &again.wishes).expect("no contradiction");
    let again = choice.finish().expect("nothing is missing").config;
    if written.left_out.is_empty() {
        assert_eq!(again.leaves(4), config.leaves(4), "{text:?}: {}", written.text);
    }
}
