//! A choice in the spelling of another tool.

/// What was written, and what the spelling has no words for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The words.
    pub text: String,
    /// What is not in them, each with the reason.
    pub left_out: Vec<String>,
}
