//! Elements of a drawing, for the pages of reports and the charts of the benchmark.
//!
//! What is told goes into attributes and texts escaped, whoever it comes from: names are a guest's, or of a file.

use std::fmt::{Display, Write};

/// One element that is being written: its name stands, and attributes follow until [`Element::empty`] or one of those that
/// put something between its tags.
#[must_use]
#[derive(Debug)]
pub struct Element<'a> {
    out: &'a mut String,
    name: &'static str,
}

/// Begins `<name` behind what is in `out`.
pub fn element<'a>(out: &'a mut String, name: &'static str) -> Element<'a> {
    out.push('<');
    out.push_str(name);
    Element { out, name }
}

impl Element<'_> {
    /// An attribute.
    pub fn with(self, name: &str, value: impl Display) -> Self {
        // Writing to a String cannot fail, here and below.
        let _ = write!(self.out, " {name}=\"{}\"", escape(&value.to_string()));
        self
    }

    /// An attribute that is a length or a place, to a hundredth of a pixel.
    pub fn px(self, name: &str, value: f64) -> Self {
        let _ = write!(self.out, " {name}=\"{value:.2}\"");
        self
    }

    /// Nothing between its tags.
    pub fn empty(self) {
        self.out.push_str("/>");
    }

    /// A text between its tags.
    pub fn text(self, text: &str) {
        let _ = write!(self.out, ">{}</{}>", escape(text), self.name);
    }

    /// A title, which browsers show where the pointer rests on it.
    pub fn titled(self, title: &str) {
        self.holds(|out| element(out, "title").text(title));
    }

    /// Other elements between its tags.
    pub fn holds(self, others: impl FnOnce(&mut String)) {
        self.out.push('>');
        others(self.out);
        let _ = write!(self.out, "</{}>", self.name);
    }
}

/// `text` as HTML and SVG have it, in an attribute too, without characters that nobody sees.
pub fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c if c.is_control() => out.push('.'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_nest_and_what_is_told_stays_inside_them() {
        let mut out = String::new();
        element(&mut out, "g").with("id", "a\"b").holds(|out| {
            element(out, "rect").px("x", 1.005).titled("<b>");
            element(out, "line").empty();
            element(out, "text").with("x", 2).text("a&\u{1b}");
        });
        let wanted = "<g id=\"a&quot;b\"><rect x=\"1.00\"><title>&lt;b&gt;</title></rect><line/><text x=\"2\">a&amp;.</text></g>";
        assert_eq!(out, wanted);
    }
}
