//! What all elements share: where they stand, what is told of them, and where the next one is read.

use satori_cpuid::Feature;
use satori_hyperv::choice::{Base, Mistake, Mistakes, Place, What, Wish};

use crate::domain::{Domain, Placement};
use crate::place::Lines;
use crate::schema;
use crate::tree::Node;
use crate::{devices, hyperv};

/// A file that is being read.
pub(crate) struct Reader<'r> {
    name: &'r str,
    lines: Lines<'r>,
    offered: &'r dyn Fn(Feature) -> bool,
    /// The domain is another program's, and is only looked at.
    foreign: bool,
    pub(crate) domain: Domain,
    pub(crate) mistakes: Vec<Mistake>,
    /// Where the file begins to say which enlightenments there are: nothing is on that it does not name.
    pub(crate) base: Option<(String, Place)>,
    /// What `<memnode>` says, by the numbers of cells that may come later.
    pub(crate) memnodes: Vec<(usize, Placement, Place)>,
}

impl<'r> Reader<'r> {
    /// Begins to read `text`, the content of the file `name`.
    pub(crate) fn new(
        name: &'r str,
        text: &'r str,
        offered: &'r dyn Fn(Feature) -> bool,
        foreign: bool,
    ) -> Reader<'r> {
        let (lines, domain) = (Lines::new(text), Domain::default());
        Reader {
            name,
            lines,
            offered,
            foreign,
            domain,
            mistakes: Vec::new(),
            base: None,
            memnodes: Vec::new(),
        }
    }
}

impl Reader<'_> {
    pub(crate) fn place(&self, at: usize) -> Place {
        self.lines.place(at)
    }

    fn mistake(&self, at: usize, text: String) -> Mistake {
        Mistake { within: self.name.into(), place: Some(self.place(at)), text }
    }

    /// The same where only the place is known.
    pub(crate) fn wrong_at(&mut self, place: Place, text: String) {
        self.mistakes.push(Mistake { within: self.name.into(), place: Some(place), text });
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
    pub(crate) fn root(&mut self, root: &Node) {
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

    /// What was read, or all that is wrong with it.
    pub(crate) fn finish(mut self) -> Result<Domain, Mistakes> {
        devices::finish(&mut self);
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
