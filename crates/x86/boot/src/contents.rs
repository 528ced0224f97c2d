//! A file's bytes, wherever they are.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes that are shared and not changed: in memory, or mapped from a file.
#[derive(Clone)]
pub struct Contents(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Contents {
    /// Those of `bytes`.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Contents(Arc::new(bytes))
    }
}

impl From<Vec<u8>> for Contents {
    fn from(bytes: Vec<u8>) -> Self {
        Contents::new(bytes)
    }
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Contents {}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
