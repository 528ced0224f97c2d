//! `<domain>`, and the smaller elements in it.

use satori_cpuid::{Feature, Topology};
use satori_hyperv::Enlightenment;
use satori_hyperv::choice::{Base, Mistake, Mistakes, Place, What, Wish};

use crate::hyperv;
use crate::names::{Spelled, by_spelling};
use crate::place::Lines;
use crate::schema;
use crate::tree::{self, Node};
use crate::values::{count, cpuset, size};

/// What a file says of a machine. What it does not say is none, or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Bytes of memory, and where that stands.
    pub memory: Option<(u64, Place)>,
    /// Virtual processors, and where that stands.
    pub vcpus: Option<(u32, Place)>,
    /// How they make up cores, dies and sockets.
    pub topology: Option<(Topology, Place)>,
    /// Model and features.
    pub cpu: Cpu,
    /// The kernel's file.
    pub kernel: Option<String>,
    /// The initial ramdisk's file.
    pub initrd: Option<String>,
    /// The kernel's command line.
    pub cmdline: Option<String>,
    /// What is asked of Hyper-V; empty if the file says nothing about it.
    pub wishes: Vec<Wish>,
    /// Which of the host's processors threads may use.
    pub pins: Vec<Pin>,
    /// What a reset does.
    pub on_reboot: Option<OnReboot>,
    /// Frequency of the TSC in Hz.
    pub tsc_hz: Option<u64>,
    /// What cannot be honoured.
    pub warnings: Vec<Mistake>,
}

/// `<cpu>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// The model's name.
    pub model: Option<&'static str>,
    /// The vendor of CPUID leaf 0.
    pub vendor: Option<String>,
    /// Features on and off.
    pub features: Vec<(Feature, bool)>,
}

impl Cpu {
    /// The words that `--cpu` has for it; none if the file does not say anything of it.
    pub fn words(&self) -> Option<String> {
        if *self == Cpu::default() {
            return None;
        }
        let mut words = self.model.unwrap_or("max").to_string();
        for (feature, on) in &self.features {
            words += &format!(",{}{}", if *on { '+' } else { '-' }, feature.name());
        }
        if let Some(vendor) = &self.vendor {
            words += &format!(",vendor={vendor}");
        }
        Some(words)
    }
}

/// Threads, and the processors of the host that they may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Whose threads.
    pub whose: Whose,
    /// The host's processors.
    pub cpus: Vec<u32>,
    /// Where that stands.
    pub place: Place,
}

/// A thread of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of a virtual processor.
    Vcpu(u32),
    /// Those of all virtual processors of which nothing else is said.
    Vcpus,
    /// That of the devices' timers.
    Emulator,
}

/// What a reset of the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReboot {
    /// The machine starts again.
    Restart,
    /// The run ends.
    Destroy,
}

/// The largest file that is read.
const LARGEST: usize = 1 << 18;

/// Reads `text`, the content of the file `name`. `offered` tells which features the engine has.
pub fn read(name: &str, text: &str, offered: &dyn Fn(Feature) -> bool) -> Result<Domain, Mistakes> {
    read_as(name, text, offered, false)
}

/// Reads the domain of a guest that another program runs, to look at it: what libvirt has and Satori does not is a warning.
pub fn read_foreign(name: &str, text: &str, offered: &dyn Fn(Feature) -> bool) -> Result<Domain, Mistakes> {
    read_as(name, text, offered, true)
}

fn read_as(
    name: &str,
    text: &str,
    offered: &dyn Fn(Feature) -> bool,
    foreign: bool,
) -> Result<Domain, Mistakes> {
    if text.len() > LARGEST {
        let text = format!("more than {LARGEST} bytes: that is no domain");
        return Err(Mistakes(vec![Mistake { within: name.into(), place: None, text }]));
    }
    let text = tree::plain_spaces(text);
    let forest = tree::parse(&text);
    let mut reader = Reader {
        name,
        lines: Lines::new(&text),
        offered,
        foreign,
        domain: Domain::default(),
        mistakes: Vec::new(),
        base: None,
    };
    for (at, text) in forest.wrong {
        reader.wrong(at, text);
    }
    if forest.roots.is_empty() && reader.mistakes.is_empty() {
        reader.wrong(
            0,
            "there is no element: name a file with <domain>, or a part of one as <features>".into(),
        );
    }
    for root in &forest.roots {
        reader.root(root);
    }
    reader.finish()
}

/// A file that is being read.
pub(crate) struct Reader<'r> {
    name: &'r str,
    lines: Lines<'r>,
    offered: &'r dyn Fn(Feature) -> bool,
    /// The domain is another program's, and is only looked at.
    foreign: bool,
    pub(crate) domain: Domain,
    mistakes: Vec<Mistake>,
    /// Where the file begins to say which enlightenments there are: nothing is on that it does not name.
    base: Option<(String, Place)>,
}

impl Reader<'_> {
    pub(crate) fn place(&self, at: usize) -> Place {
        self.lines.place(at)
    }

    fn mistake(&self, at: usize, text: String) -> Mistake {
        Mistake { within: self.name.into(), place: Some(self.place(at)), text }
    }

    pub(crate) fn wrong(&mut self, at: usize, text: String) {
        self.mistakes.push(self.mistake(at, text));
    }

    /// What is right in libvirt, and cannot be had here.
    pub(crate) fn not_ours(&mut self, at: usize, text: String) {
        if self.foreign { self.warn(at, text) } else { self.wrong(at, text) }
    }

    pub(crate) fn warn(&mut self, at: usize, text: String) {
        self.domain.warnings.push(self.mistake(at, text));
    }

    pub(crate) fn offered(&self, feature: Feature) -> bool {
        (self.offered)(feature)
    }

    pub(crate) fn wish(&mut self, what: What, node: &Node) {
        let place = self.place(node.at);
        self.base.get_or_insert((node.tag(), place));
        self.domain.wishes.push(Wish { what, words: node.tag(), place: Some(place) });
    }

    /// Refuses attributes that `node` does not have.
    pub(crate) fn only(&mut self, node: &Node, known: &[&str]) {
        for attribute in &node.attributes {
            // Namespaces are none of ours.
            if known.contains(&attribute.name.as_str())
                || attribute.name.contains(':')
                || attribute.name == "xmlns"
            {
                continue;
            }
            let short: String = attribute.name.chars().take(40).collect();
            let near = known.iter().map(|known| (satori_cpuid::distance(known, &short), known)).min();
            let right = match near {
                Some((far, known)) if far <= 2 => format!("write {known}"),
                _ if known.is_empty() => "leave it out".into(),
                _ => format!("known are {}", known.join(", ")),
            };
            let text = format!("<{}> has no attribute {}: {right}", node.name, attribute.name);
            // A newer libvirt's, where it resembles nothing.
            match near {
                Some((far, _)) if far <= 2 => self.wrong(attribute.at, text),
                _ => self.not_ours(attribute.at, text),
            }
        }
    }

    /// The value of the attribute `state`.
    pub(crate) fn state(&mut self, node: &Node) -> Option<bool> {
        match node.attribute("state").map(|state| (state.value.as_str(), state.at)) {
            Some(("on", _)) => Some(true),
            Some(("off", _)) => Some(false),
            Some((other, at)) => {
                self.wrong(at, format!("state is on or off, not '{other}': write state='on'"));
                None
            }
            // Another name was written for it, which has been told.
            None if !node.attributes.is_empty()
                && node.attributes.iter().any(|a| satori_cpuid::distance("state", &a.name) <= 2) =>
            {
                None
            }
            None => {
                self.wrong(node.at, format!("<{}> needs a state: write state='on'", node.name));
                None
            }
        }
    }

    /// Tells of text where only elements mean something; dots stand for what is left out.
    pub(crate) fn no_text(&mut self, node: &Node) {
        let text = node.text.trim();
        if text.split_whitespace().any(|word| !word.trim_matches(['.', '\u{2026}']).is_empty()) {
            let short: String = text.chars().take(20).collect();
            self.warn(node.at, format!("the text in <{}>, '{short}', means nothing", node.name));
        }
    }

    /// Goes through the children of `node`, which are those of a `parent`.
    pub(crate) fn children(&mut self, node: &Node, parent: &str) {
        for child in &node.children {
            self.child(child, parent);
        }
    }

    fn child(&mut self, child: &Node, parent: &str) {
        match schema::find(parent, &child.name) {
            Some(schema::What::Read(read)) => read(self, child),
            Some(schema::What::Silent) => {}
            Some(schema::What::Not(why)) => {
                self.warn(child.at, format!("<{}> is not honoured: {why}", child.name))
            }
            None => self.unknown(child, parent),
        }
    }

    /// An element that does not stand here.
    pub(crate) fn unknown(&mut self, node: &Node, parent: &str) {
        let name = &node.name;
        if node.told {
            return;
        }
        // Of another namespace: qemu:commandline and the like.
        if name.contains(':') {
            return self.warn(node.at, format!("<{name}> is not honoured: it speaks to another program"));
        }
        let parents = schema::parents(name);
        // As it should be written, with what is right of it.
        let called = |right: &str| {
            let end = if node.children.is_empty() && node.text.trim().is_empty() { "/>" } else { ">" };
            node.tag().replacen(name, right, 1).replace('>', end)
        };
        const ELSEWHERE: [&str; 5] = ["hyperv", "features", "domain", "clock", "devices"];
        let elsewhere = || ELSEWHERE.iter().find_map(|within| Some((within, schema::near(within, name, 1)?)));
        let text = if let Some(right) = schema::renamed(name) {
            format!("libvirt has no <{name}>: write {right}")
        } else if let Some(right) = parents.first() {
            let state = if ["stimer", "tlbflush"].contains(right) { " state='on'" } else { "" };
            let whole = format!("<{right}{state}>{}</{right}>", called(name));
            format!("<{name}> stands in <{right}>, not in <{parent}>: write {whole}")
        } else if let Some(near) = schema::near(parent, name, 2) {
            format!("libvirt has no <{name}>: write {}", called(near))
        } else if let Some((within, near)) = elsewhere() {
            format!("libvirt has no <{name}>: write {}, in <{within}>", called(near))
        } else {
            return self.not_ours(node.at, format!("libvirt has no <{name}> in <{parent}>: leave it out"));
        };
        self.wrong(node.at, text);
    }

    /// The outermost element: `<domain>`, or any element of one.
    fn root(&mut self, root: &Node) {
        match root.name.as_str() {
            "domain" => {
                self.base = Some((root.tag(), self.place(root.at)));
                let kind = root.attribute("type").map_or("kvm", |kind| &kind.value);
                if !["kvm", "qemu", "hvf", "xen"].contains(&kind) {
                    self.warn(root.at, format!("type='{kind}': Satori runs what kvm and qemu are for"));
                }
                self.no_text(root);
                self.children(root, "domain");
            }
            "hyperv" => self.child(root, "features"),
            name if schema::parents(name).first().is_some_and(|parent| *parent != "hyperv") => {
                let parent = schema::parents(name)[0];
                match schema::find(parent, name) {
                    Some(_) => self.child(root, parent),
                    // A child of a child of <hyperv>.
                    None => self.unknown(root, "domain"),
                }
            }
            _ => {
                if !hyperv::alone(self, root) {
                    self.unknown(root, "domain");
                }
            }
        }
    }

    fn finish(mut self) -> Result<Domain, Mistakes> {
        if let (Some((vcpus, _)), Some((topology, place))) = (self.domain.vcpus, self.domain.topology)
            && topology.cpus() != vcpus
        {
            let text = format!("{topology}, but <vcpu> has {vcpus}: make them agree");
            self.mistakes.push(Mistake { within: self.name.into(), place: Some(place), text });
        }
        let based = self.domain.wishes.iter().any(|wish| matches!(wish.what, What::Base(_)));
        if let (Some((words, place)), false) = (self.base, based) {
            let what = What::Base(Base::Nothing);
            self.domain.wishes.insert(0, Wish { what, words, place: Some(place) });
        }
        if self.mistakes.is_empty() {
            return Ok(self.domain);
        }
        self.mistakes.sort_by_key(|mistake| mistake.place);
        Err(Mistakes(self.mistakes))
    }
}

pub(crate) fn memory(reader: &mut Reader, node: &Node) {
    reader.only(node, &["unit", "dumpCore"]);
    match size(&node.text, node.attribute("unit").map(|unit| unit.value.as_str())) {
        Ok(bytes) => reader.domain.memory = Some((bytes, reader.place(node.at))),
        Err(text) => reader.wrong(node.at, text),
    }
}

pub(crate) fn current_memory(reader: &mut Reader, node: &Node) {
    reader.only(node, &["unit"]);
    match size(&node.text, node.attribute("unit").map(|unit| unit.value.as_str())) {
        Ok(bytes) if reader.domain.memory.is_some_and(|(whole, _)| bytes < whole) => {
            reader.warn(
                node.at,
                "<currentMemory> is not honoured: there is no balloon, the guest has all".into(),
            );
        }
        Ok(_) => {}
        Err(text) => reader.wrong(node.at, text),
    }
}

pub(crate) fn vcpu(reader: &mut Reader, node: &Node) {
    reader.only(node, &["placement", "cpuset", "current"]);
    let wrong = |text: &str| format!("'{}' is no number of processors: write 1 to 255", text.trim());
    match count(&node.text).filter(|number| *number <= satori_cpuid::MAX_CPUS) {
        Some(number) => reader.domain.vcpus = Some((number, reader.place(node.at))),
        None if count(&node.text).is_some() => return reader.not_ours(node.at, wrong(&node.text)),
        None => return reader.wrong(node.at, wrong(&node.text)),
    }
    if let Some(current) = node.attribute("current") {
        match count(&current.value) {
            Some(now) if reader.domain.vcpus.is_some_and(|(all, _)| now == all) => {}
            Some(_) => reader.warn(
                current.at,
                "current is not honoured: processors cannot be plugged in later, all are there".into(),
            ),
            None => reader.wrong(current.at, wrong(&current.value)),
        }
    }
    if let Some(set) = node.attribute("cpuset") {
        reader.pin(Whose::Vcpus, &set.value, set.at);
    }
}

impl Reader<'_> {
    fn pin(&mut self, whose: Whose, set: &str, at: usize) {
        match cpuset(set) {
            Ok(cpus) => {
                let place = self.place(at);
                self.domain.pins.push(Pin { whose, cpus, place });
            }
            Err(text) => self.wrong(at, text),
        }
    }
}

pub(crate) fn cputune(reader: &mut Reader, node: &Node) {
    reader.no_text(node);
    reader.children(node, "cputune");
}

pub(crate) fn vcpupin(reader: &mut Reader, node: &Node) {
    reader.only(node, &["vcpu", "cpuset"]);
    let (Some(vcpu), Some(set)) = (node.attribute("vcpu"), node.attribute("cpuset")) else {
        return reader
            .wrong(node.at, "<vcpupin> needs vcpu and cpuset: write <vcpupin vcpu='0' cpuset='8'/>".into());
    };
    match vcpu.value.trim().parse() {
        Ok(index) if reader.domain.pins.iter().any(|pin| pin.whose == Whose::Vcpu(index)) => {
            reader.wrong(vcpu.at, format!("vCPU {index} is pinned twice: leave one out"));
        }
        Ok(index) => reader.pin(Whose::Vcpu(index), &set.value, set.at),
        Err(_) => reader.wrong(vcpu.at, format!("'{}' is no vCPU: write a number from 0", vcpu.value)),
    }
}

pub(crate) fn emulatorpin(reader: &mut Reader, node: &Node) {
    reader.only(node, &["cpuset"]);
    match node.attribute("cpuset") {
        Some(set) => reader.pin(Whose::Emulator, &set.value, set.at),
        None => reader.wrong(node.at, "<emulatorpin> needs a cpuset: write <emulatorpin cpuset='0'/>".into()),
    }
}

pub(crate) fn os(reader: &mut Reader, node: &Node) {
    if let Some(firmware) = node.attribute("firmware") {
        reader
            .warn(firmware.at, "firmware is not honoured: there is none, kernels are booted directly".into());
    }
    reader.no_text(node);
    reader.children(node, "os");
}

pub(crate) fn os_type(reader: &mut Reader, node: &Node) {
    reader.only(node, &["arch", "machine"]);
    if !["hvm", ""].contains(&node.text.trim()) {
        reader.not_ours(node.at, format!("the type '{}' is none of ours: write hvm", node.text.trim()));
    }
    if let Some(arch) =
        node.attribute("arch").filter(|arch| !["x86_64", "i686"].contains(&arch.value.as_str()))
    {
        reader.not_ours(arch.at, format!("the architecture '{}' is not there: write x86_64", arch.value));
    }
    if let Some(machine) = node.attribute("machine") {
        reader.warn(
            machine.at,
            format!("machine='{}' is not honoured: the machine is Satori's own", machine.value),
        );
    }
}

fn file(reader: &mut Reader, node: &Node) -> Option<String> {
    let path = node.text.trim();
    if path.is_empty() {
        reader.wrong(node.at, format!("<{}> names no file: write its path", node.name));
        return None;
    }
    Some(path.into())
}

pub(crate) fn kernel(reader: &mut Reader, node: &Node) {
    reader.domain.kernel = file(reader, node);
}

pub(crate) fn initrd(reader: &mut Reader, node: &Node) {
    reader.domain.initrd = file(reader, node);
}

pub(crate) fn cmdline(reader: &mut Reader, node: &Node) {
    reader.domain.cmdline = Some(node.text.trim().into());
}

pub(crate) fn features(reader: &mut Reader, node: &Node) {
    let place = reader.place(node.at);
    reader.base.get_or_insert((node.tag(), place));
    reader.no_text(node);
    reader.children(node, "features");
}

pub(crate) fn apic(reader: &mut Reader, node: &Node) {
    reader.only(node, &["eoi"]);
    if let Some(eoi) = node.attribute("eoi").filter(|eoi| eoi.value == "on") {
        reader.warn(
            eoi.at,
            "eoi='on' is not honoured: KVM's own interface is not offered; <vapic> has another".into(),
        );
    }
}

pub(crate) fn pmu(reader: &mut Reader, node: &Node) {
    reader.only(node, &["state"]);
    let on = match node.attribute("state") {
        Some(_) => reader.state(node),
        None => Some(true),
    };
    if on == Some(true) {
        reader.warn(node.at, "<pmu> is not honoured: the processor has no performance counters yet".into());
    }
}

pub(crate) fn kvm(reader: &mut Reader, node: &Node) {
    reader.no_text(node);
    reader.children(node, "kvm");
}

pub(crate) fn hidden(reader: &mut Reader, node: &Node) {
    reader.only(node, &["state"]);
    if reader.state(node) == Some(false) {
        reader
            .warn(node.at, "<hidden state='off'> is not honoured: KVM's own interface is not offered".into());
    }
}

/// What is not there, and may be said not to be.
pub(crate) fn must_be_off(reader: &mut Reader, node: &Node) {
    if node.attribute("state").is_none_or(|state| state.value != "off") {
        reader.warn(node.at, format!("<{}> is not honoured: there is nothing of the kind", node.name));
    }
}

pub(crate) fn clock(reader: &mut Reader, node: &Node) {
    if let Some(offset) = node.attribute("offset").filter(|offset| offset.value != "utc") {
        let known = ["localtime", "timezone", "variable", "absolute"];
        match known.contains(&offset.value.as_str()) {
            true => reader.warn(
                offset.at,
                format!("offset='{}' is not honoured: the guest's clock shows UTC", offset.value),
            ),
            false => reader.wrong(
                offset.at,
                format!("offset is utc, {}, not '{}': write offset='utc'", known.join(", "), offset.value),
            ),
        }
    }
    reader.no_text(node);
    reader.children(node, "clock");
}

pub(crate) fn timer(reader: &mut Reader, node: &Node) {
    reader.only(node, &["name", "present", "tickpolicy", "track", "frequency", "mode"]);
    let Some(name) = node.attribute("name") else {
        return reader.wrong(node.at, "<timer> needs a name: write name='hypervclock'".into());
    };
    let present = match node.attribute("present").map(|present| (present.value.as_str(), present.at)) {
        None => None,
        Some(("yes", _)) => Some(true),
        Some(("no", _)) => Some(false),
        Some((other, at)) => {
            return reader.wrong(at, format!("present is yes or no, not '{other}': write present='yes'"));
        }
    };
    const KNOWN: [&str; 8] =
        ["hypervclock", "kvmclock", "tsc", "pit", "rtc", "hpet", "platform", "armvtimer"];
    let (time, known) =
        (by_spelling(Spelled::Timer("hypervclock")), KNOWN.iter().find(|known| **known == name.value));
    match (known.copied(), time) {
        (Some("hypervclock"), Some(time)) => reader.wish(What::Set(time, present.unwrap_or(true)), node),
        (Some("kvmclock"), _) if present == Some(true) => {
            reader.warn(node.at, "kvmclock is not honoured: KVM's own interface is not offered".into());
        }
        (Some("tsc"), _) => tsc(reader, node),
        (Some("pit" | "rtc" | "hpet"), _) if present == Some(false) => {
            reader.warn(node.at, format!("present='no' is not honoured: the {} is always there", name.value));
        }
        (Some("pit" | "rtc" | "hpet"), _) => {
            if let Some(policy) = node.attribute("tickpolicy").filter(|policy| policy.value != "delay") {
                reader.warn(
                    policy.at,
                    format!("tickpolicy='{}' is not honoured: late ticks come late", policy.value),
                );
            }
        }
        (Some("platform" | "armvtimer"), _) => {
            reader.warn(node.at, format!("the timer {} is not honoured: there is none", name.value));
        }
        (Some(_), _) => {}
        (None, _) => {
            let short: String = name.value.chars().take(40).collect();
            let near = KNOWN.iter().min_by_key(|known| satori_cpuid::distance(known, &short)).copied();
            let near = near.unwrap_or("hypervclock");
            reader.wrong(name.at, format!("there is no timer '{}': write name='{near}'", name.value));
        }
    }
}

fn tsc(reader: &mut Reader, node: &Node) {
    if let Some(frequency) = node.attribute("frequency") {
        // Slower ones cannot carry Hyper-V's reference time, faster ones do not exist.
        match frequency.value.parse().ok().filter(|hz| (10_000_000..=100_000_000_000).contains(hz)) {
            Some(hz) => reader.domain.tsc_hz = Some(hz),
            None => reader.wrong(
                frequency.at,
                format!("frequency is in Hz, 10000000 to 100000000000, not '{}'", frequency.value),
            ),
        }
    }
    if let Some(mode) =
        node.attribute("mode").filter(|mode| !["auto", "native"].contains(&mode.value.as_str()))
    {
        reader.warn(mode.at, format!("mode='{}' is not honoured: RDTSC takes no exit", mode.value));
    }
}

fn life(reader: &mut Reader, node: &Node, here: &str) -> bool {
    let known = ["destroy", "restart", "preserve", "rename-restart", "coredump-destroy", "coredump-restart"];
    let wanted = node.text.trim();
    if !known.contains(&wanted) {
        reader
            .wrong(node.at, format!("<{}> is {}, not '{wanted}': write {here}", node.name, known.join(", ")));
    }
    wanted == here
}

pub(crate) fn on_poweroff(reader: &mut Reader, node: &Node) {
    if !life(reader, node, "destroy") {
        reader.warn(node.at, "<on_poweroff> is not honoured: the run ends".into());
    }
}

pub(crate) fn on_reboot(reader: &mut Reader, node: &Node) {
    if life(reader, node, "restart") {
        reader.domain.on_reboot = Some(OnReboot::Restart);
    } else {
        reader.domain.on_reboot = Some(OnReboot::Destroy);
        if node.text.trim() != "destroy" {
            reader.warn(node.at, "<on_reboot> is taken for destroy: the run ends".into());
        }
    }
}

pub(crate) fn on_crash(reader: &mut Reader, node: &Node) {
    if !life(reader, node, "destroy") {
        reader.warn(node.at, "<on_crash> is not honoured: the run ends, with a report".into());
    }
}

pub(crate) fn devices(reader: &mut Reader, node: &Node) {
    reader.no_text(node);
    reader.children(node, "devices");
}

pub(crate) fn memballoon(reader: &mut Reader, node: &Node) {
    if node.attribute("model").is_none_or(|model| model.value != "none") {
        reader.warn(node.at, "<memballoon> is not honoured: there is no such device yet".into());
    }
}

pub(crate) fn panic(reader: &mut Reader, node: &Node) {
    reader.only(node, &["model"]);
    let Some(model) = node.attribute("model") else { return };
    let one: Option<Enlightenment> = by_spelling(Spelled::Panic("hyperv"));
    match (model.value.as_str(), one) {
        ("hyperv", Some(one)) => reader.wish(What::Set(one, true), node),
        ("isa" | "pvpanic", _) => {}
        ("s390" | "pseries", _) => reader.warn(model.at, "it belongs to another kind of machine".into()),
        (other, _) => {
            reader.wrong(model.at, format!("the model is hyperv or isa, not '{other}': write model='hyperv'"))
        }
    }
}
