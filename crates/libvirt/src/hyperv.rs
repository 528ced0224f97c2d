//! `<hyperv>`.

use satori_hyperv::Enlightenment;
use satori_hyperv::choice::{Base, What, retries, vendor};

use crate::names::{self, Spelled, by_spelling};
use crate::reader::Reader;
use crate::schema;
use crate::tree::Node;

pub(crate) fn hyperv(reader: &mut Reader, node: &Node) {
    reader.only(node, &["mode", "state"]);
    match node.attribute("mode").map(|mode| (mode.value.as_str(), mode.at)) {
        None | Some(("custom", _)) => {}
        Some(("passthrough" | "host-model", _)) => reader.wish(What::Base(Base::All), node),
        Some((other, at)) => reader.wrong(
            at,
            format!("mode is custom, passthrough or host-model, not '{other}': write mode='custom'"),
        ),
    }
    reader.no_text(node);
    for child in &node.children {
        if names::in_hyperv().any(|known| known == child.name) {
            element(reader, child);
        } else if child.name == "stimer_direct" {
            // As it was proposed before libvirt took it.
            proposed(reader, child);
        } else {
            reader.unknown(child, "hyperv");
        }
    }
}

/// An element of `<hyperv>`.
pub(crate) fn element(reader: &mut Reader, node: &Node) {
    let (allowed, value): (&[&str], _) = match node.name.as_str() {
        "spinlocks" => (&["state", "retries"], "retries='4096'"),
        "vendor_id" => (&["state", "value"], "value='KVM Hv'"),
        _ => (&["state"], ""),
    };
    reader.only(node, allowed);
    reader.no_text(node);
    let Some(on) = reader.state(node) else { return };
    let outer = names::in_hyperv().find(|known| *known == node.name);
    let Some(one) = outer.and_then(|outer| by_spelling(Spelled::Hyperv { outer, inner: None })) else {
        return;
    };
    set(reader, node, one, on);
    // The element's own number or name, without which libvirt refuses it.
    if let (true, [_, name]) = (on, allowed) {
        let parsed = node.attribute(name).map(|attribute| {
            let what = match *name {
                "retries" => retries(&attribute.value).map(What::Retries),
                _ => vendor(&attribute.value).map(What::Vendor),
            };
            (what, attribute.at)
        });
        match parsed {
            Some((Ok(what), _)) => reader.wish(what, node),
            Some((Err(text), at)) => reader.wrong(at, text),
            None => reader.wrong(node.at, format!("<{}> needs {name}: write {value}", node.name)),
        }
    }
    for child in &node.children {
        let inner = names::within(&node.name).find(|inner| *inner == child.name);
        match (outer, inner) {
            (Some(outer), Some(_)) => {
                reader.only(child, &["state"]);
                let on = reader.state(child);
                if let (Some(on), Some(one)) = (on, by_spelling(Spelled::Hyperv { outer, inner })) {
                    set(reader, child, one, on);
                }
            }
            _ => reader.unknown(child, &node.name),
        }
    }
}

/// The form in which direct timers were first proposed to libvirt.
pub(crate) fn proposed(reader: &mut Reader, node: &Node) {
    reader.only(node, &["state"]);
    let Some(on) = reader.state(node) else { return };
    let state = if on { "on" } else { "off" };
    reader.warn(
        node.at,
        format!("<stimer_direct> was a proposal; today's form is <stimer state='on'><direct state='{state}'/></stimer>"),
    );
    if let Some(one) = by_spelling(Spelled::Hyperv { outer: "stimer", inner: Some("direct") }) {
        set(reader, node, one, on);
    }
}

fn set(reader: &mut Reader, node: &Node, one: Enlightenment, on: bool) {
    match (one.row().refused, on) {
        (Some(why), true) => {
            reader.not_ours(node.at, format!("<{}> cannot be had: {why}; leave it out", node.name))
        }
        // As it is.
        (Some(_), false) => {}
        (None, on) => reader.wish(What::Set(one, on), node),
    }
}

/// A child of `<hyperv>` that stands alone, as a fragment.
pub(crate) fn alone(reader: &mut Reader, node: &Node) -> bool {
    match schema::parents(&node.name).contains(&"hyperv") {
        true => element(reader, node),
        false if node.name == "stimer_direct" => proposed(reader, node),
        false => return false,
    }
    true
}
