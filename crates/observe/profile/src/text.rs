//! The counters as text.

use std::fmt::Write;

use crate::Profile;

impl Profile {
    /// The counters, one a line; empty without any.
    pub fn stats_text(&self) -> String {
        let width = self.stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, value) in &self.stats {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{name:<width$} {value:>16}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_one_name_are_summed() {
        let mut profile = Profile::default();
        profile.add_stats(&[("instructions", 10), ("blocks", 1)]);
        profile.add_stats(&[("instructions", 32)]);
        assert_eq!(profile.stats_text(), "instructions               42\nblocks                      1\n");
    }
}
