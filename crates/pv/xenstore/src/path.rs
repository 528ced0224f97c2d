//! Paths: which ones there are, and how they lie to each other.

use crate::GUEST;
use crate::store::Errno;

/// Bytes of the longest path, and of the longest relative one.
const LONGEST: usize = 3072;
const LONGEST_RELATIVE: usize = 2048;

/// Where the guest's own nodes are, which its relative paths begin at.
pub(crate) fn home() -> String {
    format!("/local/domain/{GUEST}")
}

/// The absolute path that a guest names; the root is the empty one.
pub(crate) fn absolute(text: &[u8]) -> Result<String, Errno> {
    let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let known = |c: char| c.is_ascii_alphanumeric() || "-/_@".contains(c);
    if text.is_empty() || !text.chars().all(known) || text.contains("//") {
        return Err(Errno::EINVAL);
    }
    if text == "/" {
        return Ok(String::new());
    }
    let most = if text.starts_with('/') { LONGEST } else { LONGEST_RELATIVE };
    if text.ends_with('/') || text.len() > most || text.starts_with('@') {
        return Err(Errno::EINVAL);
    }
    Ok(if text.starts_with('/') { text.into() } else { format!("{}/{text}", home()) })
}

/// The path of the node above this one, unless it is the root.
pub(crate) fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

/// Whether `path` is `above`, or below it.
pub(crate) fn within(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
