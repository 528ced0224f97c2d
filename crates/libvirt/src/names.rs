//! How libvirt spells an enlightenment, from the snippet in its row of the table.

use satori_hyperv::Enlightenment;

/// Where libvirt has an enlightenment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelled {
    /// `<features><hyperv><outer><inner>`.
    Hyperv {
        /// The element in `<hyperv>`.
        outer: &'static str,
        /// The element in that.
        inner: Option<&'static str>,
    },
    /// `<clock><timer name=''>`.
    Timer(&'static str),
    /// `<devices><panic model=''>`.
    Panic(&'static str),
}

/// libvirt's spelling of `one`.
pub(crate) fn spelled(one: Enlightenment) -> Option<Spelled> {
    let snippet = one.row().libvirt?;
    let mut tags = snippet.split('<').filter(|tag| !tag.is_empty() && !tag.starts_with('/'));
    let name = |tag: &'static str| tag.split([' ', '/', '>']).next();
    let quoted = |tag: &'static str| tag.split('\'').nth(1).unwrap_or_default();
    let tag = tags.next()?;
    Some(match name(tag)? {
        "timer" => Spelled::Timer(quoted(tag)),
        "panic" => Spelled::Panic(quoted(tag)),
        outer => Spelled::Hyperv { outer, inner: tags.next().and_then(name) },
    })
}

/// The enlightenment that is spelled so.
pub(crate) fn by_spelling(wanted: Spelled) -> Option<Enlightenment> {
    Enlightenment::ALL.iter().copied().find(|one| spelled(*one) == Some(wanted))
}

/// The elements that may stand in `<hyperv>`.
pub(crate) fn in_hyperv() -> impl Iterator<Item = &'static str> {
    Enlightenment::ALL.iter().filter_map(|one| match spelled(*one) {
        Some(Spelled::Hyperv { outer, inner: None }) => Some(outer),
        _ => None,
    })
}

/// The elements that may stand in the `outer` of `<hyperv>`.
pub(crate) fn within(outer: &str) -> impl Iterator<Item = &'static str> {
    Enlightenment::ALL.iter().filter_map(move |one| match spelled(*one) {
        Some(Spelled::Hyperv { outer: other, inner }) if other == outer => inner,
        _ => None,
    })
}
