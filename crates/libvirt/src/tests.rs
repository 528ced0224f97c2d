//! Every snippet of libvirt's that the talks print, as printed; see `shared/talks`.

use proptest::prelude::*;
use satori_cpuid::{CpuSpec, Topology};
use satori_hyperv::choice::{self, Choice};
use satori_hyperv::{Config, Enlightenment};

use super::*;

fn read_it(text: &str) -> Result<Domain, Vec<String>> {
    read("d.xml", text, &|feature| feature != satori_cpuid::Feature::Vmx)
        .map_err(|mistakes| mistakes.0.iter().map(ToString::to_string).collect())
}

/// What a file comes to: the names that are on, and the warnings.
fn comes_to(text: &str) -> (Vec<&'static str>, Vec<String>) {
    let domain = read_it(text).unwrap_or_else(|mistakes| panic!("{text}: {mistakes:#?}"));
    let mut choice = Choice::default();
    choice.apply("d.xml", &domain.wishes).unwrap();
    let chosen = choice.finish().unwrap();
    let names = chosen.config.set.iter().map(Enlightenment::name).collect();
    (names, domain.warnings.iter().map(ToString::to_string).collect())
}

fn mistakes(text: &str) -> Vec<String> {
    read_it(text).expect_err("must be refused")
}

fn features(inner: &str) -> String {
    format!("<features>\n     <hyperv>\n          ...\n          {inner}\n     </hyperv>\n</features>\n")
}

/// The names of `off` with `more`.
fn only(more: &[&'static str]) -> Vec<&'static str> {
    let wanted = |name: &&str| ["base", "vpindex"].contains(name) || more.contains(name);
    Enlightenment::ALL.iter().map(|one| one.name()).filter(wanted).collect()
}

const CLOCK: &str =
    "<clock offset='localtime'>\n    ...\n    <timer name='hypervclock' present='yes'/>\n</clock>\n";
const LOCALTIME: &str = "d.xml:1:8: offset='localtime' is not honoured: the guest's clock shows UTC";

#[test]
fn what_the_first_talk_prints_is_read_as_it_stands() {
    for (inner, names) in [
        ("<relaxed state='on' />", &["relaxed"][..]),
        ("<vapic state='on' />", &["vapic"]),
        ("<spinlocks state='on' retries='4096'/>", &["spinlocks"]),
        ("<vpindex state='on'/>", &[]),
        ("<runtime state='on' />", &["runtime"]),
        ("<synic state='on'/>", &["synic"]),
        ("<vpindex state='on'/> \n\n <tlbflush state='on'/>", &["tlbflush"]),
        ("<vpindex state='on'/> \n\n <ipi state='on'/>", &["ipi"]),
        ("<vendor_id state='on' value='KVM Hv'/>", &["vendor_id"]),
        ("<reset state='on' />", &["reset"]),
        (
            "<frequencies state='on'/>\n\n<reenlightenment state='on'/>",
            &["frequencies", "reenlightenment", "time"],
        ),
    ] {
        for text in [features(inner), features(inner).replace(' ', "\u{a0}")] {
            assert_eq!(comes_to(&text), (only(names), vec![]), "{text}");
        }
    }
    assert_eq!(
        comes_to("<devices>\n\n  ...\n\n  <panic model='hyperv'/>\n\n</devices>"),
        (only(&["crash"]), vec![])
    );
    assert_eq!(comes_to(CLOCK), (only(&["time"]), vec![LOCALTIME.into()]));
    let stimer = format!("{CLOCK}{}", features("<synic state='on'/>\n\n<stimer state='on'/>"));
    assert_eq!(comes_to(&stimer), (only(&["synic", "stimer", "time"]), vec![LOCALTIME.into()]));
    // It is for hypervisors: refused, with the reason and its place, if the guest cannot be one.
    let text = features("<vapic state='on'/>\n\n          <evmcs state='on'/>");
    let domain = read_it(&text).unwrap();
    let mut choice = Choice::default();
    choice.apply("d.xml", &domain.wishes).unwrap();
    let nested = choice.clone().finish().unwrap_err().to_string();
    assert!(nested.starts_with("d.xml:6:11: hv-evmcs is for guests that run guests"), "{nested}");
    assert!(choice.nested(true).finish().unwrap().config.set.has(Enlightenment::Evmcs));
}

#[test]
fn the_proposed_form_of_direct_timers_runs_with_a_warning() {
    let (names, warnings) = comes_to(&features("<stimer_direct state='on'/>"));
    assert_eq!(names, only(&["stimer_direct", "stimer", "synic", "time"]));
    assert_eq!(
        warnings,
        [
            "d.xml:4:11: <stimer_direct> was a proposal; today's form is <stimer state='on'><direct state='on'/></stimer>"
        ]
    );
    let today = comes_to(&features("<stimer state='on'><direct state='on'/></stimer>"));
    assert_eq!(today, (names, vec![]));
}

const NONE_SET: &str = include_str!("../talks/none-set.xml");

const ALL_SET: &str = include_str!("../talks/all-set.xml");

const HIDDEN: &str = include_str!("../talks/hidden.xml");

#[test]
fn what_the_second_talk_misprints_is_told_with_the_right_spelling() {
    let first = [
        "d.xml:4:3: libvirt has no <paef>: write <pae/>",
        "d.xml:6:3: <kvm-hidden> is closed twice, by '/>' and by </kvm-hidden>, and libvirt calls it otherwise: write \
         <kvm><hidden state='on'/></kvm>",
    ];
    assert_eq!(mistakes(NONE_SET), first);
    let rest = [
        "d.xml:13:5: libvirt has no <syncic>: write <synic state='on'/>",
        "d.xml:15:5: <direct> stands in <stimer>, not in <hyperv>: write <stimer state='on'><direct \
         state='on'/></stimer>",
        "d.xml:17:3: <reset> stands in <hyperv>, not in <features>: write <hyperv><reset state='on'/></hyperv>",
        "d.xml:18:3: <vendor_id> stands in <hyperv>, not in <features>: write <hyperv><vendor_id state='on' \
         value='KVM Hv'/></hyperv>",
        "d.xml:19:3: <frequencies> stands in <hyperv>, not in <features>: write <hyperv><frequencies \
         state='on'/></hyperv>",
        "d.xml:20:3: <reenlightenment> stands in <hyperv>, not in <features>: write <hyperv><reenlightenment \
         state='on'/></hyperv>",
        "d.xml:21:3: <tlbflush> stands in <hyperv>, not in <features>: write <hyperv><tlbflush state='on'/></hyperv>",
        "d.xml:22:3: <ipi> stands in <hyperv>, not in <features>: write <hyperv><ipi state='on'/></hyperv>",
    ];
    let all: Vec<_> = first.iter().chain(&rest).copied().collect();
    assert_eq!(mistakes(ALL_SET), all);
}

/// The two as one would put them right by what the messages say.
fn put_right(text: &str) -> String {
    let text = text
        .replace("<paef/>", "<pae/>")
        .replace("<kvm-hidden state='on' /></kvm-hidden>", "<kvm><hidden state='on'/></kvm>")
        .replace("<syncic", "<synic")
        .replace("    <stimer state='on' />\n", "")
        .replace("<direct state='on' />", "<stimer state='on'><direct state='on'/></stimer>");
    match text.split_once("  </hyperv>\n") {
        Some((before, after)) => {
            format!("{before}{}", after.replace("</features>", "  </hyperv>\n</features>"))
        }
        None => text,
    }
}

#[test]
fn the_corrected_copies_run() {
    const PMU: &str = "d.xml:5:3: <pmu> is not honoured: the processor has no performance counters yet";
    assert_eq!(comes_to(&put_right(NONE_SET)), (vec![], vec![PMU.into()]));
    let all = only(&[
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
    ]);
    assert_eq!(comes_to(&put_right(ALL_SET)), (all, vec![PMU.into()]));
}

#[test]
fn the_hypervisor_can_be_hidden() {
    let domain = read_it(HIDDEN).unwrap();
    assert_eq!(domain.cpu.words().as_deref(), Some("max,-hypervisor"));
    assert_eq!(domain.topology.unwrap().0, Topology { sockets: 1, dies: 1, cores: 10, threads: 2 });
    assert!(domain.wishes.is_empty());
    let warnings: Vec<_> = domain.warnings.iter().map(ToString::to_string).collect();
    let passed = "d.xml:1:6: mode='host-passthrough': the guest gets the software CPU, max, not the host's";
    assert_eq!(warnings, [passed]);
}

#[test]
fn the_fourth_talks_lines_are_fragments_too() {
    let domain = read_it("<vcpupin vcpu='0' cpuset='8'/>").unwrap();
    let place = Place { line: Some(1), column: 19 };
    assert_eq!(domain.pins, [Pin { whose: Whose::Vcpu(0), cpus: vec![8], place }]);
    let driver = read_it("<driver name='vhost' txmode='iothread' ioeventfd='on' queues='2'/>").unwrap();
    let warnings: Vec<_> = driver.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["d.xml:1:9: name='vhost': a thread of Satori's own serves the card, not the host's kernel"]
    );
}

const WHOLE: &str = "<?xml version='1.0'?>
<domain type='kvm'>
  <name>guest</name>
  <memory unit='MiB'>512</memory>
  <currentMemory unit='MiB'>512</currentMemory>
  <vcpu placement='static'>4</vcpu>
  <cputune>
    <vcpupin vcpu='0' cpuset='0'/>
    <vcpupin vcpu='1' cpuset='0-3,^2'/>
    <emulatorpin cpuset='1'/>
  </cputune>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/boot/vmlinuz</kernel>
    <initrd>/boot/initrd.img</initrd>
    <cmdline>console=ttyS0 a&lt;b</cmdline>
  </os>
  <features>
    <acpi/>
    <hyperv mode='passthrough'><reset state='off'/></hyperv>
  </features>
  <cpu mode='custom'>
    <model fallback='allow'>x86-64-v2</model>
    <vendor>AMD</vendor>
    <topology sockets='2' cores='1' threads='2'/>
    <feature policy='require' name='rdrand'/>
    <feature policy='optional' name='vmx'/>
  </cpu>
  <clock offset='utc'>
    <timer name='tsc' frequency='2000000000' mode='native'/>
    <timer name='kvmclock' present='no'/>
  </clock>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <serial type='pty'/>
    <interface type='network'><source network='default'/></interface>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'/>
</domain>
";

#[test]
fn a_whole_domain_is_read() {
    let domain = read_it(WHOLE).unwrap();
    assert_eq!(domain.memory.unwrap().0, 512 << 20);
    assert_eq!(domain.vcpus.unwrap().0, 4);
    assert_eq!(domain.cpu.words().as_deref(), Some("x86-64-v2,+rdrand,vendor=AuthenticAMD"));
    assert_eq!(domain.kernel.as_deref(), Some("/boot/vmlinuz"));
    assert_eq!(domain.initrd.as_deref(), Some("/boot/initrd.img"));
    assert_eq!(domain.cmdline.as_deref(), Some("console=ttyS0 a<b"));
    assert_eq!((domain.tsc_hz, domain.on_reboot), (Some(2_000_000_000), Some(OnReboot::Destroy)));
    let pins: Vec<_> = domain.pins.iter().map(|pin| (pin.whose, pin.cpus.clone())).collect();
    let wanted = [(Whose::Vcpu(0), vec![0]), (Whose::Vcpu(1), vec![0, 1, 3]), (Whose::Emulator, vec![1])];
    assert_eq!(pins, wanted);
    let lines: Vec<_> = domain.warnings.iter().map(|warning| warning.place.unwrap().line.unwrap()).collect();
    assert_eq!(lines, [13, 36, 38, 41], "{:#?}", domain.warnings);
    let mut all = Config::all().set.iter().map(Enlightenment::name).collect::<Vec<_>>();
    all.retain(|name| *name != "reset");
    assert_eq!(comes_to(WHOLE).0, all);
    // A whole domain that says nothing of Hyper-V has none of it.
    assert_eq!(comes_to("<domain><memory>524288</memory></domain>").0, Vec::<&str>::new());
}

#[test]
fn each_mistake_has_its_place_and_the_right_spelling() {
    for (text, wanted) in [
        ("", "d.xml:1:1: there is no element"),
        ("<features>\n<hyperv>", "d.xml:1:1: <features> is not closed"),
        (
            "<features><hyperv></features>",
            "d.xml:1:11: <hyperv> is not closed: write </hyperv>, or <hyperv/>",
        ),
        ("<features></features></hyperv>", "d.xml:1:22: </hyperv> closes nothing"),
        ("<hyperv><relaxed state=on/></hyperv>", "a value without quotes: write name='value'"),
        ("<hyperv><relaxed state=\u{2019}on\u{2019}/></hyperv>", "typeset quotes: write '"),
        ("<hyperv><relaxed state/></hyperv>", "an attribute without a value"),
        ("<hyperv><relaxed/></hyperv>", "d.xml:1:9: <relaxed> needs a state: write state='on'"),
        ("<hyperv><relaxed sate='on'/></hyperv>", "d.xml:1:18: <relaxed> has no attribute sate: write state"),
        ("<hyperv><relaxed state='yes'/></hyperv>", "d.xml:1:18: state is on or off, not 'yes'"),
        ("<hyperv><spinlocks state='on'/></hyperv>", "<spinlocks> needs retries: write retries='4096'"),
        ("<hyperv><spinlocks state='on' retries='10'/></hyperv>", "takes 4095 (0xfff)"),
        ("<hyperv><vendor_id state='on' value='thirteen char'/></hyperv>", "more than 12"),
        ("<hyperv mode='all'/>", "d.xml:1:9: mode is custom, passthrough or host-model"),
        ("<hyperv><tlblush state='on'/></hyperv>", "libvirt has no <tlblush>: write <tlbflush state='on'/>"),
        ("<hyperv><hv-ipi state='on'/></hyperv>", "libvirt has no <hv-ipi>: write <ipi state='on'/>"),
        (
            "<hyperv><time state='on'/></hyperv>",
            "write <clock><timer name='hypervclock' present='yes'/></clock>",
        ),
        ("<hyperv><warp state='on'/></hyperv>", "libvirt has no <warp> in <hyperv>: leave it out"),
        ("<hyperv><stimer state='on'><fast state='on'/></stimer></hyperv>", "no <fast> in <stimer>"),
        ("<features><timer name='hypervclock'/></features>", "<timer> stands in <clock>, not in <features>"),
        (
            "<clock><timer name='hyperclock' present='yes'/></clock>",
            "d.xml:1:15: there is no timer 'hyperclock': write name='hypervclock'",
        ),
        ("<clock><timer name='hypervclock' present='on'/></clock>", "present is yes or no"),
        ("<clock offset='local'/>", "write offset='utc'"),
        ("<cpu mode='host-passthru'/>", "write mode='host-passthrough'"),
        (
            "<cpu><feature name='hypervizor'/></cpu>",
            "d.xml:1:15: unknown CPU feature 'hypervizor': write hypervisor",
        ),
        ("<cpu><feature name='vmx'/></cpu>", "the engine has no 'vmx'"),
        ("<cpu><feature policy='off' name='popcnt'/></cpu>", "policy is force, require"),
        ("<cpu><topology sockets='1' cores='4'/></cpu>", "<topology> needs threads"),
        ("<cpu><topology sockets='16' cores='16' threads='1'/></cpu>", "256 processors are too many"),
        ("<vcpu>0</vcpu>", "write 1 to 255"),
        (
            "<vcpu>3</vcpu><cpu><topology sockets='1' cores='4' threads='1'/></cpu>",
            "1:20: 4 vCPUs: sockets=1,dies=1,cores=4,threads=1, but <vcpu> has 3",
        ),
        ("<memory unit='GBi'>1</memory>", "takes b, KiB"),
        ("<memory>lots</memory>", "'lots' is no size"),
        ("<vcpupin vcpu='0' cpuset='3-1'/>", "d.xml:1:19: '3-1' is no set of processors"),
        ("<vcpupin vcpu='0' cpuset='1,^1'/>", "leaves no processor"),
        ("<vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='0' cpuset='1'/>", "pinned twice"),
        ("<devices><panic model='hyper-v'/></devices>", "write model='hyperv'"),
        ("<devices><memballon/></devices>", "write <memballoon/>"),
        ("<numatune><memory nodeset='a'/></numatune>", "'a' is no set of nodes"),
        ("<numatune><memnode nodeset='0'/></numatune>", "<memnode> needs cellid"),
        ("<numatune><memnode cellid='1' nodeset='0'/></numatune>", "there is no cell 1"),
        ("<domain><feature/></domain>", "stands in <cpu>, not in <domain>"),
        ("<os><type arch='arm'>hvm</type></os>", "write x86_64"),
        ("<on_reboot>reset</on_reboot>", "write restart"),
        ("hv_relaxed", "text outside of elements, 'hv_relaxed'"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><features/>", "a document type: leave it out"),
        ("<vcpu>&b;</vcpu>", "unknown entity '&b;'"),
        ("<features", "no XML from here on"),
    ] {
        let told = mistakes(text);
        assert!(told.iter().any(|one| one.contains(wanted)), "{text}: {told:#?}");
    }
    let deep = "<features>".repeat(100);
    assert!(mistakes(&deep).iter().any(|one| one.contains("deeper than 32")));
    assert!(read_it(&"<a/>".repeat(100_000)).unwrap_err().len() == 1);
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "(<|>|/|'|\"| |=|&|;|[a-z]{1,3}|<features>|<hyperv>|<stimer state='on'|\\PC|\n){0,60}") {
        let _ = read_it(&text);
    }

    #[test]
    fn what_is_written_is_read_again(bits in any::<u64>(), retries in 4095u32.., vendor in "[ -~]{1,12}", sockets in 1u32..4, threads in 1u32..3) {
        let words: Vec<_> = Config::all()
            .set
            .iter()
            .enumerate()
            .filter(|(index, one)| bits >> index & 1 != 0 && one.row().libvirt.is_some())
            .map(|(_, one)| one.name())
            .collect();
        let mut config: Config = match words.is_empty() {
            true => Config::off(),
            false => words.join(",").parse().unwrap(),
        };
        if config.set.has(Enlightenment::Spinlocks) {
            config.spin_retries = retries;
        }
        if config.set.has(Enlightenment::VendorId) {
            config.vendor = choice::vendor(&vendor).unwrap();
        }
        let topology = Topology { sockets, dies: 1, cores: 2, threads };
        let spec: CpuSpec = "max,-hypervisor,+rdrand".parse().unwrap();
        let written = write(&spec, topology, &config);
        let domain = read_it(&written.text).unwrap();
        let mut choice = Choice::default();
        choice.apply("d.xml", &domain.wishes).unwrap();
        prop_assert_eq!(choice.finish().unwrap().config, config, "{}", written.text);
        prop_assert_eq!(domain.topology.map(|(topology, _)| topology), Some(topology));
        prop_assert_eq!(domain.cpu.words(), Some("max,-hypervisor,+rdrand".to_string()));
    }
}

#[test]
fn anothers_domain_is_looked_at_with_warnings() {
    let text = "<domain type='kvm'>\n<features><hyperv><vapic state='on'/><evmcs state='on'/></hyperv></features>\n\
                <cpu><feature policy='require' name='topoext'/><feature policy='require' name='newer-than-us'/></cpu>\n\
                <vcpu>512</vcpu>\n<novelty/>\n</domain>";
    let all = |feature| feature != satori_cpuid::Feature::Topoext;
    assert_eq!(read("d.xml", text, &all).unwrap_err().0.len(), 4, "to run it all of that must go");
    let domain = read_foreign("d.xml", text, &all).unwrap();
    let told: Vec<_> = domain.warnings.iter().map(ToString::to_string).collect();
    for (at, part) in [("3:", "topoext"), ("3:", "newer-than-us"), ("4:", "512"), ("5:", "novelty")] {
        assert!(
            told.iter().any(|one| one.contains(part) && one.starts_with(&format!("d.xml:{at}"))),
            "{part}: {told:?}"
        );
    }
    let misspelt = "<features><hyperv><vapik state='on'/></hyperv></features>";
    assert!(read_foreign("d.xml", misspelt, &all).is_err(), "what nobody has is a mistake");
}
