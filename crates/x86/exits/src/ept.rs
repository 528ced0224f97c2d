//! First touch of a piece of RAM.

use satori_engine::{BACKED, Resume};
use satori_memory::Gpa;

use crate::Context;

/// Marks the piece of RAM that holds `gpa` as there.
pub(crate) fn violation(context: &mut Context<'_>, gpa: u64) -> Resume {
    if let Some(piece) = context.platform.memory.piece(Gpa(gpa), BACKED) {
        piece.state.touch();
    }
    Resume::Done
}
