//! XML as a tree with offsets, forgiving enough to tell every mistake of a file at once.
//!
//! Documents and slides bring no-break spaces into what is copied from them; they are read as spaces.

use quick_xml::events::attributes::AttrError;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// An element.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Offset of its `<`.
    pub(crate) at: usize,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) children: Vec<Node>,
    /// The text directly in it.
    pub(crate) text: String,
    /// What is wrong with it has been told: that it is unknown need not be.
    pub(crate) told: bool,
}

/// An attribute.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) at: usize,
}

impl Node {
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    /// The start tag as one would write it.
    pub(crate) fn tag(&self) -> String {
        let attributes: String = self
            .attributes
            .iter()
            .map(|Attribute { name, value, .. }| format!(" {name}='{value}'"))
            .collect();
        format!("<{}{attributes}>", self.name)
    }
}

/// Elements within elements that are followed; no domain has as many.
const DEEPEST: usize = 32;
/// Mistakes that are told; who made as many looks at the first ones.
const MOST: usize = 100;

/// What was found: the outermost elements, and what was wrong at which offset.
#[derive(Debug, Default)]
pub(crate) struct Forest {
    pub(crate) roots: Vec<Node>,
    pub(crate) wrong: Vec<(usize, String)>,
}

/// `text` with plain spaces for those that documents are typeset with. Same number of characters.
pub(crate) fn plain_spaces(text: &str) -> String {
    text.replace(['\u{a0}', '\u{202f}', '\u{2007}'], " ").trim_start_matches('\u{feff}').into()
}

/// Reads `text`, which [`plain_spaces`] made.
pub(crate) fn parse(text: &str) -> Forest {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    // Told here, all of them, instead of ending at the first.
    config.check_end_names = false;
    config.allow_unmatched_ends = true;
    config.allow_dangling_amp = true;
    let mut growing = Growing::default();
    loop {
        let at = offset(reader.buffer_position());
        if growing.forest.wrong.len() >= MOST {
            break;
        }
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                let node = growing.node(&start, at);
                if growing.open.len() >= DEEPEST {
                    growing.wrong(at, format!("elements deeper than {DEEPEST}: leave the inner ones out"));
                    break;
                }
                growing.open.push(node);
            }
            Ok(Event::Empty(start)) => {
                let node = growing.node(&start, at);
                growing.close(node);
            }
            Ok(Event::End(end)) => growing.end(end.name().as_ref(), at),
            Ok(Event::Text(part)) => growing.text(&part.xml10_content(), at),
            Ok(Event::CData(part)) => growing.text(&part.xml10_content(), at),
            Ok(Event::GeneralRef(part)) => match resolve(&part) {
                Some(text) => growing.text(&text, at),
                None => growing
                    .wrong(at, format!("unknown entity '&{};': write &amp; for &", &*part.xml10_content())),
            },
            Ok(Event::DocType(_)) => growing.wrong(at, "a document type: leave it out".into()),
            Ok(Event::Comment(_) | Event::Decl(_) | Event::PI(_)) => {}
            Ok(Event::Eof) => break,
            Err(error) => {
                let at = offset(reader.error_position());
                growing.wrong(at, format!("no XML from here on ({error}): put it right"));
                break;
            }
        }
    }
    growing.finish()
}

/// Of a text in memory, so no larger than usize.
fn offset(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

fn resolve(part: &quick_xml::events::BytesRef) -> Option<String> {
    if let Ok(Some(letter)) = part.resolve_char_ref() {
        return Some(letter.into());
    }
    quick_xml::escape::resolve_predefined_entity(&part.xml10_content()).map(Into::into)
}

#[derive(Default)]
struct Growing {
    open: Vec<Node>,
    forest: Forest,
    /// The empty element that was closed last, where its parent is still open: an end tag of its name
    /// is a part of the same mistake.
    emptied: Option<String>,
}

impl Growing {
    fn wrong(&mut self, at: usize, text: String) {
        self.forest.wrong.push((at, text));
    }

    fn node(&mut self, start: &BytesStart, at: usize) -> Node {
        let name = start.name();
        let name: &str = name.as_ref();
        let mut node = Node { name: name.into(), at, ..Node::default() };
        let origin = name.as_ptr() as usize;
        for attribute in start.attributes() {
            match attribute {
                Ok(attribute) => {
                    let key: &str = attribute.key.as_ref();
                    // Both are parts of one tag, whose name is one byte behind its '<'.
                    let place = at + 1 + (key.as_ptr() as usize).saturating_sub(origin);
                    match attribute.normalized_value(XmlVersion::Implicit1_0) {
                        Ok(value) => {
                            let value = value.into_owned();
                            node.attributes.push(Attribute { name: key.into(), value, at: place });
                        }
                        Err(error) => self.wrong(place, format!("{key}: {error}: write &amp; for &")),
                    }
                }
                Err(error) => {
                    let (within, what) = told(&error, start);
                    self.wrong(at + 1 + within, format!("<{name}>: {what}"));
                }
            }
        }
        self.emptied = None;
        node
    }

    fn close(&mut self, node: Node) {
        self.emptied = Some(node.name.clone());
        match self.open.last_mut() {
            Some(parent) => parent.children.push(node),
            None => self.forest.roots.push(node),
        }
    }

    fn end(&mut self, name: &str, at: usize) {
        let Some(index) = self.open.iter().rposition(|node| node.name == name) else {
            match self.emptied.take() {
                // Only the name is right or wrong then: told where the element is looked at.
                Some(emptied) if emptied == name => self.stray(name, at, true),
                _ => self.stray(name, at, false),
            }
            return;
        };
        while self.open.len() > index + 1 {
            if let Some(inner) = self.open.pop() {
                self.wrong(inner.at, format!("<{0}> is not closed: write </{0}>, or <{0}/>", inner.name));
                self.close(inner);
            }
        }
        if let Some(node) = self.open.pop() {
            self.close(node);
        }
        self.emptied = None;
    }

    fn stray(&mut self, name: &str, at: usize, twice: bool) {
        let siblings = match self.open.last_mut() {
            Some(parent) => &mut parent.children,
            None => &mut self.forest.roots,
        };
        let Some(last) = siblings.last_mut().filter(|_| twice) else {
            return self.wrong(at, format!("</{name}> closes nothing: leave it out"));
        };
        last.told = true;
        let (at, closed) = (last.at, format!("<{name}> is closed twice, by '/>' and by </{name}>"));
        let text = match crate::schema::renamed(name) {
            Some(right) => format!("{closed}, and libvirt calls it otherwise: write {right}"),
            None => format!("{closed}: write {}/>", last.tag().trim_end_matches('>')),
        };
        self.wrong(at, text);
    }

    fn text(&mut self, text: &str, at: usize) {
        // A list that goes on is "..." in documents.
        let means = text.trim().trim_matches(['.', '\u{2026}']);
        if let Some(parent) = self.open.last_mut() {
            parent.text += text;
        } else if !means.trim().is_empty() {
            let short: String = means.trim().chars().take(20).collect();
            let at = at + text.len() - text.trim_start().len();
            self.wrong(at, format!("text outside of elements, '{short}': leave it out"));
        }
        if !means.is_empty() {
            self.emptied = None;
        }
    }

    fn finish(mut self) -> Forest {
        while let Some(node) = self.open.pop() {
            self.wrong(node.at, format!("<{0}> is not closed: write </{0}> behind it", node.name));
            self.close(node);
        }
        self.forest.wrong.sort();
        self.forest
    }
}

/// What is wrong with an attribute, and where in the tag.
fn told(error: &AttrError, start: &BytesStart) -> (usize, String) {
    let typeset = start.attributes_raw().contains(['\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}']);
    let (at, text) = match error {
        AttrError::ExpectedEq(at) => (*at, "an attribute without a value: write name='value'"),
        AttrError::ExpectedValue(at) => (*at, "a value is missing: write name='value'"),
        AttrError::UnquotedValue(at) => (*at, "a value without quotes: write name='value'"),
        AttrError::ExpectedQuote(at, _) => (*at, "a quote is missing at the end of a value: close it"),
        AttrError::Duplicated(at, _) => (*at, "an attribute given twice: leave one out"),
    };
    let text = if typeset { "typeset quotes: write ' for them" } else { text };
    (at, text.into())
}
