//! What a guest sends, and what it gets.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{HEADER, Header, PAYLOAD_MAX, Store, kind, quota};

fn ask(store: &mut Store, kind: u32, transaction: u32, payload: &[u8]) -> (u32, Vec<u8>) {
    let header = Header { kind, request: 7, transaction, len: payload.len() as u32 };
    let answer = store.request(header, payload);
    let got = Header::new(answer[..HEADER].try_into().unwrap());
    assert_eq!((got.request, got.transaction, got.len as usize), (7, transaction, answer.len() - HEADER));
    (got.kind, answer[HEADER..].to_vec())
}

fn text(store: &mut Store, kind: u32, transaction: u32, payload: &str) -> String {
    let (got, payload) = ask(store, kind, transaction, payload.as_bytes());
    let text = String::from_utf8(payload).unwrap();
    if got == kind::ERROR { format!("!{}", text.trim_end_matches('\0')) } else { text }
}

fn event(store: &mut Store) -> Option<String> {
    store.event().map(|event| String::from_utf8(event[HEADER..].to_vec()).unwrap())
}

/// With a home of the guest's.
fn store() -> Store {
    let mut store = Store::default();
    store.set("/local/domain/1", "");
    store.give("/local/domain/1", false);
    store.set("/local/domain/1/data", "");
    store.give("/local/domain/1/data", true);
    store.set("/vm/x", "y");
    store
}

#[test]
fn what_is_written_is_read_where_it_may_be() {
    let mut store = store();
    assert_eq!(text(&mut store, kind::WRITE, 0, "data/a/b\0value"), "OK\0");
    assert_eq!(text(&mut store, kind::READ, 0, "/local/domain/1/data/a/b\0"), "value");
    assert_eq!(text(&mut store, kind::READ, 0, "data/a\0"), "");
    assert_eq!(text(&mut store, kind::DIRECTORY, 0, "data\0"), "a\0");
    assert_eq!(text(&mut store, kind::GET_PERMS, 0, "data/a\0"), "n1\0");
    assert_eq!(text(&mut store, kind::WRITE, 0, "other\0value"), "!EACCES");
    assert_eq!(text(&mut store, kind::READ, 0, "other\0"), "!ENOENT");
    assert_eq!(text(&mut store, kind::READ, 0, "/vm/x\0"), "y", "the root lets everybody read");
    assert_eq!(text(&mut store, kind::SET_PERMS, 0, "data/a\0n1\0r0\0"), "OK\0");
    assert_eq!(text(&mut store, kind::SET_PERMS, 0, "data/a\0n0\0"), "!EPERM", "it is not given away");
    assert_eq!(text(&mut store, kind::SET_PERMS, 0, "/vm\0n1\0"), "!EACCES");
    assert_eq!(text(&mut store, kind::RM, 0, "data/a\0"), "OK\0");
    assert_eq!(text(&mut store, kind::RM, 0, "data/a\0"), "OK\0", "it is gone");
    assert_eq!(text(&mut store, kind::RM, 0, "/\0"), "!EINVAL");
    assert_eq!(text(&mut store, kind::MKDIR, 0, "data/c\0"), "OK\0");
    assert_eq!(text(&mut store, kind::GET_DOMAIN_PATH, 0, "1\0"), "/local/domain/1\0");
    assert_eq!(text(&mut store, kind::IS_DOMAIN_INTRODUCED, 0, "2\0"), "F\0");
    for wrong in ["", "\0", "a", "//a\0", "a//b\0", "/a/\0", "a b\0", "@x\0", "é\0"] {
        assert_eq!(text(&mut store, kind::READ, 0, wrong), "!EINVAL", "{wrong:?}");
    }
    for kind in kind::HOSTS {
        assert_eq!(text(&mut store, kind, 0, "1\0"), "!EACCES");
    }
    assert_eq!(text(&mut store, 20, 0, "a\0"), "!ENOSYS");
    assert_eq!(text(&mut store, u32::MAX, 0, "a\0"), "!ENOSYS");
}

#[test]
fn watches_tell_at_once_and_of_what_lies_below() {
    let mut store = store();
    assert_eq!(text(&mut store, kind::WATCH, 0, "data\0one\0"), "OK\0");
    assert_eq!(event(&mut store).unwrap(), "data\0one\0");
    assert_eq!(text(&mut store, kind::WATCH, 0, "data\0one\0"), "!EEXIST");
    assert_eq!(text(&mut store, kind::WATCH, 0, "/local/domain/1/data/a/b\0two\0"), "OK\0");
    assert_eq!(event(&mut store).unwrap(), "/local/domain/1/data/a/b\0two\0");
    assert_eq!(text(&mut store, kind::WATCH, 0, "@introduceDomain\0three\0"), "OK\0");
    assert_eq!(event(&mut store).unwrap(), "@introduceDomain\0three\0");
    text(&mut store, kind::WRITE, 0, "data/a/b\0x");
    assert_eq!(event(&mut store).unwrap(), "data/a/b\0one\0");
    assert_eq!(event(&mut store).unwrap(), "/local/domain/1/data/a/b\0two\0");
    text(&mut store, kind::RM, 0, "data/a\0");
    let mut told = [event(&mut store).unwrap(), event(&mut store).unwrap()];
    told.sort();
    assert_eq!(told, ["/local/domain/1/data/a/b\0two\0", "data/a\0one\0"]);
    store.set("/local/domain/1/data/c", "by the host");
    assert_eq!(event(&mut store).unwrap(), "data/c\0one\0");
    assert_eq!(event(&mut store), None);
    assert_eq!(text(&mut store, kind::UNWATCH, 0, "data\0one\0"), "OK\0");
    assert_eq!(text(&mut store, kind::UNWATCH, 0, "data\0one\0"), "!ENOENT");
    assert_eq!(text(&mut store, kind::RESET_WATCHES, 0, "\0"), "OK\0");
    text(&mut store, kind::WRITE, 0, "data/a/b\0x");
    assert_eq!(event(&mut store), None);
}

#[test]
fn transactions_are_whole_or_come_again() {
    let mut store = store();
    let begin = |store: &mut Store| -> u32 {
        text(store, kind::TRANSACTION_START, 0, "\0").trim_end_matches('\0').parse().unwrap()
    };
    text(&mut store, kind::WATCH, 0, "data\0w\0");
    event(&mut store);
    let (one, two) = (begin(&mut store), begin(&mut store));
    text(&mut store, kind::WRITE, one, "data/a\x001");
    assert_eq!(text(&mut store, kind::READ, 0, "data/a\0"), "!ENOENT");
    assert_eq!(text(&mut store, kind::READ, one, "data/a\0"), "1");
    assert_eq!(text(&mut store, kind::READ, two, "data/a\0"), "!ENOENT");
    assert_eq!(event(&mut store), None);
    assert_eq!(text(&mut store, kind::TRANSACTION_END, one, "T\0"), "OK\0");
    assert_eq!(event(&mut store).unwrap(), "data/a\0w\0");
    assert_eq!(text(&mut store, kind::TRANSACTION_END, two, "T\0"), "!EAGAIN", "it saw that there is none");
    assert_eq!(text(&mut store, kind::TRANSACTION_END, two, "T\0"), "!ENOENT");
    let three = begin(&mut store);
    text(&mut store, kind::RM, three, "data/a\0");
    assert_eq!(text(&mut store, kind::TRANSACTION_END, three, "F\0"), "OK\0");
    assert_eq!(text(&mut store, kind::READ, 0, "data/a\0"), "1");
    for _ in 0..quota::TRANSACTIONS {
        begin(&mut store);
    }
    assert_eq!(text(&mut store, kind::TRANSACTION_START, 0, "\0"), "!ENOSPC");
    assert_eq!(text(&mut store, kind::TRANSACTION_START, 99, "\0"), "!EINVAL");
    store.disconnect();
    begin(&mut store);
}

#[test]
fn nobody_gets_more_than_the_quota() {
    let mut store = store();
    let full = (0..2000).find(|n| text(&mut store, kind::MKDIR, 0, &format!("data/{n}\0")) != "OK\0");
    assert_eq!(full, Some(quota::NODES as i32 - 1), "with 'data' itself");
    assert_eq!(text(&mut store, kind::MKDIR, 0, "data/more\0"), "!ENOSPC");
    let value = "v".repeat(quota::VALUE + 1);
    assert_eq!(text(&mut store, kind::WRITE, 0, &format!("data\0{value}")), "!ENOSPC");
    let all = (0..200).find(|n| text(&mut store, kind::WATCH, 0, &format!("data\0{n}\0")) != "OK\0");
    assert_eq!(all, Some(quota::WATCHES as i32));
    for n in 0..1000 {
        text(&mut store, kind::WRITE, 0, &format!("data\0{n}"));
    }
    assert!(store.events() <= quota::EVENTS);
    assert_eq!(text(&mut store, kind::SET_PERMS, 0, "data\0n1\0r0\0r2\0r3\0r4\0r5\0"), "!ENOSPC");
    for n in 0..300 {
        text(&mut store, kind::RM, 0, &format!("data/{n}\0"));
        text(&mut store, kind::MKDIR, 0, &format!("data/{}{n}\0", "long".repeat(10)));
    }
    assert_eq!(text(&mut store, kind::DIRECTORY, 0, "data\0"), "!E2BIG");
    let (mut names, mut stamps) = (String::new(), Vec::new());
    loop {
        let part = text(&mut store, kind::DIRECTORY_PART, 0, &format!("data\0{}\0", names.len()));
        let (stamp, rest) = part.split_once('\0').unwrap();
        stamps.push(stamp.to_string());
        names.push_str(rest);
        if rest.ends_with("\0\0") || rest == "\0" {
            break;
        }
    }
    assert_eq!(names.matches('\0').count(), quota::NODES - 1 + 1);
    assert!(stamps.iter().all(|stamp| *stamp == stamps[0]) && stamps.len() > 2);
    assert_eq!(text(&mut store, kind::DIRECTORY_PART, 0, "data\x0099999\0"), "!EINVAL");
    let (got, _) = ask(&mut store, kind::WRITE, 0, &vec![b'a'; PAYLOAD_MAX + 1]);
    assert_eq!(got, kind::ERROR);
}

/// What the store has below 'data', as a model: values by path.
type Model = BTreeMap<String, String>;

fn model_write(model: &mut Model, path: &str, value: &str) {
    let mut at = String::new();
    for part in path.split('/') {
        at = if at.is_empty() { part.into() } else { format!("{at}/{part}") };
        model.entry(at.clone()).or_default();
    }
    model.insert(path.into(), value.into());
}

fn model_remove(model: &mut Model, path: &str) {
    model.retain(|one, _| one != path && !one.starts_with(&format!("{path}/")));
}

#[derive(Clone, Debug)]
enum Step {
    Write(String, String),
    Remove(String),
    Begin,
    In(usize, Box<Step>),
    End(usize, bool),
}

fn paths() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]", 1..4).prop_map(|parts| format!("data/{}", parts.join("/")))
}

fn changes() -> impl Strategy<Value = Step> {
    prop_oneof![(paths(), "[0-9]").prop_map(|(p, v)| Step::Write(p, v)), paths().prop_map(Step::Remove)]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => changes(),
        1 => Just(Step::Begin),
        3 => (0..3usize, changes()).prop_map(|(at, step)| Step::In(at, Box::new(step))),
        1 => (0..3usize, any::<bool>()).prop_map(|(at, commit)| Step::End(at, commit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Transactions that are not refused have happened at once, where they ended; and all that there is survives saving.
    #[test]
    fn a_random_guest_finds_what_a_model_has(steps in prop::collection::vec(steps(), 1..60)) {
        let mut store = store();
        let mut model = Model::from([("data".into(), String::new())]);
        let mut open: Vec<(u32, Vec<Step>)> = Vec::new();
        let one = |store: &mut Store, transaction: u32, step: &Step| match step {
            Step::Write(path, value) => text(store, kind::WRITE, transaction, &format!("{path}\0{value}")),
            Step::Remove(path) => text(store, kind::RM, transaction, &format!("{path}\0")),
            _ => unreachable!(),
        };
        let apply = |model: &mut Model, step: &Step| match step {
            Step::Write(path, value) => model_write(model, path, value),
            Step::Remove(path) => model_remove(model, path),
            _ => unreachable!(),
        };
        for step in steps {
            match step {
                Step::Begin if open.len() < 3 => {
                    let number = text(&mut store, kind::TRANSACTION_START, 0, "\0");
                    open.push((number.trim_end_matches('\0').parse().unwrap(), Vec::new()));
                }
                Step::Begin => {}
                Step::In(at, step) => if let Some((number, list)) = open.get_mut(at)
                    && one(&mut store, *number, &step) == "OK\0" {
                    list.push(*step);
                },
                Step::End(at, commit) => if at < open.len() {
                    let (number, list) = open.remove(at);
                    let end = text(&mut store, kind::TRANSACTION_END, number, if commit { "T\0" } else { "F\0" });
                    prop_assert!(end == "OK\0" || commit && end == "!EAGAIN", "{end}");
                    if commit && end == "OK\0" {
                        list.iter().for_each(|step| apply(&mut model, step));
                    }
                },
                step => if one(&mut store, 0, &step) == "OK\0" {
                    apply(&mut model, &step);
                },
            }
            prop_assert!(store.fits());
        }
        for (path, value) in &model {
            prop_assert_eq!(&text(&mut store, kind::READ, 0, &format!("{path}\0")), value);
        }
        let mut seen = vec!["data".to_string()];
        let mut at = 0;
        while let Some(path) = seen.get(at).cloned() {
            let names = text(&mut store, kind::DIRECTORY, 0, &format!("{path}\0"));
            seen.extend(names.split_terminator('\0').map(|name| format!("{path}/{name}")));
            at += 1;
        }
        seen.sort();
        prop_assert_eq!(seen, model.keys().cloned().collect::<Vec<_>>());
        store.take_changed();
        let again: Store = serde_json::from_str(&serde_json::to_string(&store).unwrap()).unwrap();
        prop_assert_eq!(again, store);
    }

    /// Whatever bytes it sends, it gets an answer, and the store stays one.
    #[test]
    fn nonsense_gets_an_answer(messages in prop::collection::vec(
        (0u32..24, 0u32..3, prop::collection::vec(prop_oneof![Just(0u8), Just(b'/'), Just(b'a'), Just(b'@'), any::<u8>()], 0..40)),
        1..40,
    )) {
        let mut store = store();
        for (kind, transaction, payload) in messages {
            ask(&mut store, kind, transaction, &payload);
            prop_assert!(store.fits());
        }
    }
}
