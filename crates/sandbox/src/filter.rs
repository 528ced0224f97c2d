//! The system call filters, from the tables of [`calls`](crate::calls).

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use crate::calls::{ALLOWED, ANSWERED, DEADLY, Row, When};
use crate::{Needs, kvm};

/// Rules of one system call: any of them suffices, none at all permits everything.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Installs the filters on every thread. The kernel takes the strictest answer of them all.
pub(crate) fn install(needs: &Needs) -> Result<&'static str, String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let answered = ANSWERED.iter().map(|&(call, error)| {
        program(unconditional(&[call]), SeccompAction::Allow, SeccompAction::Errno(error.unsigned_abs()))
    });
    let deadly = program(unconditional(DEADLY), SeccompAction::Allow, SeccompAction::KillProcess);
    let rest =
        rules(ALLOWED, needs).and_then(|rules| program(rules, SeccompAction::Trap, SeccompAction::Allow));
    for filter in answered.chain([deadly, rest]) {
        apply_filter_all_threads(&filter.map_err(text)?).map_err(|error| error.to_string())?;
    }
    Ok("an allow-list on every thread")
}

/// Installs filters that permit what `rows` say and nothing else.
pub(crate) fn install_rows(rows: &[Row]) -> Result<&'static str, String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let nobody = Needs::default();
    let deadly = program(unconditional(DEADLY), SeccompAction::Allow, SeccompAction::KillProcess);
    let rest =
        rules(rows, &nobody).and_then(|rules| program(rules, SeccompAction::Trap, SeccompAction::Allow));
    for filter in [deadly, rest] {
        apply_filter_all_threads(&filter.map_err(text)?).map_err(|error| error.to_string())?;
    }
    Ok("an allow-list")
}

/// Installs filters that permit `calls` and nothing else.
pub(crate) fn install_list(calls: &[c_long]) -> Result<&'static str, String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let deadly = program(unconditional(DEADLY), SeccompAction::Allow, SeccompAction::KillProcess);
    let rest = program(unconditional(calls), SeccompAction::Trap, SeccompAction::Allow);
    for filter in [deadly, rest] {
        apply_filter_all_threads(&filter.map_err(text)?).map_err(|error| error.to_string())?;
    }
    Ok("an allow-list")
}

fn program(
    rules: Rules,
    unlisted: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, unlisted, listed, arch)?.try_into()
}

fn unconditional(calls: &[c_long]) -> Rules {
    calls.iter().map(|&call| (call, Vec::new())).collect()
}

fn rules(rows: &[Row], needs: &Needs) -> Result<Rules, seccompiler::BackendError> {
    let own = u64::from(std::process::id());
    let whole = SeccompCmpArgLen::Qword;
    let masked = |(at, mask, value): (u8, u64, u64)| {
        SeccompCondition::new(at, whole.clone(), SeccompCmpOp::MaskedEq(mask), value)
    };
    let mut rules = Rules::new();
    let more = if needs.kvm { kvm::ALLOWED } else { &[] };
    for &(call, when, _) in rows.iter().chain(more) {
        let any = match when {
            When::Always => Vec::new(),
            When::Listening if needs.listening => Vec::new(),
            When::Pinned if needs.pinned => vec![equal(0, 0)?],
            When::Placed if needs.placed => vec![],
            When::Listening | When::Pinned | When::Placed => continue,
            When::Masked(at, mask, value) => vec![SeccompRule::new(vec![masked((at, mask, value))?])?],
            When::Both(one, other) => vec![SeccompRule::new(vec![masked(one)?, masked(other)?])?],
            // The kernel looks at 32 bits of a request, a process number and an option.
            When::Own => vec![equal(0, own)?],
            When::OneOf(at, values) => {
                values.iter().map(|&value| equal(at, value)).collect::<Result<_, _>>()?
            }
        };
        // A call of both tables is permitted as either says; none is without conditions in one of them only.
        rules.entry(call).or_default().extend(any);
    }
    Ok(rules)
}

fn equal(at: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = SeccompCondition::new(at, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
    SeccompRule::new(vec![condition])
}
