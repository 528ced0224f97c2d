//! First touch of a piece of RAM.

use satori_engine::Resume;
use satori_memory::Gpa;

use crate::Context;

/// The large page that backs a violation is this big.
const PIECE: u64 = 2 << 20;

/// Marks the piece of RAM that holds `gpa` as there: its first page, or where the region begins
/// later, the region's.
pub(crate) fn violation(context: &mut Context<'_>, gpa: u64) -> Resume {
    let memory = &context.platform.memory;
    let region = memory.regions().find(|region| gpa.wrapping_sub(region.start.0) < region.len);
    if let Some(region) = region
        && let Some(page) = memory.page(Gpa((gpa & !(PIECE - 1)).max(region.start.0)))
    {
        page.state.touch();
    }
    Resume::Done
}
