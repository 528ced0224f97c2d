//! How long an operation takes, in cycles of the guest's TSC, as the talk's programs measure it.

use std::arch::x86_64::{__cpuid, _rdtsc};

use crate::{Failure, sys};

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Amount {
    /// For so long.
    pub budget_ms: u64,
    /// Or one sample of so many operations, without any before it: for those who count exits.
    pub exactly: Option<u64>,
}

impl Default for Amount {
    fn default() -> Self {
        Amount { budget_ms: 200, exactly: None }
    }
}

/// The row of this name, as JSON.
pub fn row(name: &str, amount: &Amount) -> Result<String, Failure> {
    match name {
        "cpuid-l1" => samples(name, amount, 128, |count| {
            for _ in 0..count {
                std::hint::black_box(__cpuid(1));
            }
            Ok(())
        }),
        "clock-l1" | "clock-l2" => samples(name, amount, 128, |count| {
            for _ in 0..count {
                std::hint::black_box(sys::realtime());
            }
            Ok(())
        }),
        _ => Err(format!("there is no row '{name}'")),
    }
}

fn cycles() -> u64 {
    // SAFETY: every processor of 64 bits has RDTSC.
    unsafe { _rdtsc() }
}

/// Samples of what `operations` does so many times, `fewest` or more: the least, and the median.
pub fn samples(
    name: &str,
    amount: &Amount,
    fewest: u64,
    mut operations: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut sample = |count: u64| -> Result<(f64, u64), Failure> {
        let (ns, before) = (sys::monotonic(), cycles());
        operations(count)?;
        let (after, end) = (cycles(), sys::monotonic());
        Ok((after.wrapping_sub(before) as f64 / count as f64, end.saturating_sub(ns)))
    };
    if let Some(count) = amount.exactly {
        let (each, _) = sample(count.max(1))?;
        return Ok(format!(
            r#"{{"row":{name:?},"cycles":{each:.1},"median":{each:.1},"operations":{count}}}"#
        ));
    }
    // As many as take 2 ms, so that a sample is shorter than what a scheduler gives at a time.
    let mut count = fewest;
    while sample(count)?.1 < 2_000_000 && count < 1 << 24 {
        count *= 2;
    }
    let begun = sys::monotonic();
    let mut all = Vec::new();
    while all.len() < 9 || sys::monotonic().saturating_sub(begun) < amount.budget_ms * 1_000_000 {
        all.push(sample(count)?.0);
    }
    all.sort_unstable_by(f64::total_cmp);
    let (least, median) = (all[0], all[all.len() / 2]);
    Ok(format!(
        r#"{{"row":{name:?},"cycles":{least:.1},"median":{median:.1},"operations":{}}}"#,
        count * all.len() as u64
    ))
}
