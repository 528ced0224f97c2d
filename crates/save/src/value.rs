//! One part's state.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;

/// A structure that is somebody's whole state.
///
/// Whoever changes its fields or what they mean raises [`State::VERSION`].
pub trait State: Serialize + DeserializeOwned {
    /// What it is the state of.
    const NAME: &'static str;
    /// Which form of it this is.
    const VERSION: u32;
}

/// One part's state, under its name and version. As a field of another state it comes without its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    name: Cow<'static, str>,
    version: u32,
    tree: serde_json::Value,
    /// What is too much for a tree: the contents of memory.
    #[serde(skip)]
    bytes: Vec<u8>,
}

impl Value {
    /// The value of `state`.
    pub fn of<S: State>(state: &S) -> Result<Self, Error> {
        Self::with_bytes(state, Vec::new())
    }

    /// The value of `state` and `bytes` that belong to it.
    pub fn with_bytes<S: State>(state: &S, bytes: Vec<u8>) -> Result<Self, Error> {
        let tree = serde_json::to_value(state).map_err(|error| Error::refused(S::NAME, error.to_string()))?;
        Ok(Value { name: S::NAME.into(), version: S::VERSION, tree, bytes })
    }

    /// A value as somebody wrote it down.
    pub fn from_parts(name: String, version: u32, tree: serde_json::Value, bytes: Vec<u8>) -> Self {
        Value { name: name.into(), version, tree, bytes }
    }

    /// The structure that it is of, as it stands there: nobody has looked whether that can be.
    pub fn state<S: State>(&self) -> Result<S, Error> {
        if self.name != S::NAME {
            return Err(Error::Name { found: self.name.clone().into(), wanted: S::NAME });
        }
        if self.version != S::VERSION {
            return Err(Error::Version { name: S::NAME, found: self.version, wanted: S::VERSION });
        }
        S::deserialize(&self.tree).map_err(|error| Error::Damaged { name: S::NAME, why: error.to_string() })
    }

    /// What it is the state of.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of its form.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Its fields.
    pub fn tree(&self) -> &serde_json::Value {
        &self.tree
    }

    /// Its fields, for whoever damages them.
    pub fn tree_mut(&mut self) -> &mut serde_json::Value {
        &mut self.tree
    }

    /// Takes the bytes that belong to it away, for whoever has it as a field.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Gives it bytes that belong to it.
    pub fn set_bytes(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// The bytes that belong to it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of it in one piece, for another process: the text of its fields behind that text's length, then its bytes.
    pub fn pack(&self) -> Result<Vec<u8>, Error> {
        let text = serde_json::to_vec(self).map_err(|why| Error::refused(&*self.name, why.to_string()))?;
        Ok([&(text.len() as u64).to_le_bytes()[..], &text, &self.bytes].concat())
    }

    /// What [`Value::pack`] made, or somebody else; of the part `name`.
    pub fn unpack(packed: &[u8], name: &'static str) -> Result<Self, Error> {
        let damaged = |why: &str| Error::Damaged { name, why: why.into() };
        let (len, rest) = packed.split_first_chunk().ok_or_else(|| damaged("it has no length"))?;
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (text, bytes) = rest.split_at_checked(len).ok_or_else(|| damaged("it is too short"))?;
        let value: Value = serde_json::from_slice(text).map_err(|why| damaged(&why.to_string()))?;
        Ok(Value { bytes: bytes.to_vec(), ..value })
    }
}
