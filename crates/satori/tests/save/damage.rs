//! States that somebody damaged: each is refused, or the machine lives with it.

use std::time::Duration;

use satori_bus::ByteSink;
use satori_machine::{Config, EngineKind, Event, Saved};
use serde_json::Value;

use crate::guests::GUESTS;
use crate::trial::{Random, asked, machine};

struct Nowhere;

impl ByteSink for Nowhere {
    fn put(&mut self, _bytes: &[u8]) {}
}

/// Numbers that are the ends of something.
const HOSTILE: [u64; 9] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];

/// Who is damaged, and when: VPs with synthetic timers, and a hypervisor whose guest sleeps.
const STATES: [(&str, Duration); 2] =
    [("synic", Duration::from_millis(20)), ("vmx", Duration::from_micros(800))];

/// Damages `count` values; tells how many states were refused.
pub(crate) fn run(seed: u64, count: u64) -> String {
    let mut random = Random::new(seed);
    let told = STATES.map(|(name, at)| one(name, at, &mut random, count / STATES.len() as u64));
    told.join("; ")
}

fn one(name: &str, at: Duration, random: &mut Random, count: u64) -> String {
    let guest = GUESTS.iter().find(|guest| guest.name == name).expect("there is one");
    let config = |engine| Config {
        engine,
        // Nobody waits for what it does afterwards.
        guest_timeout: Some(at + Duration::from_millis(5)),
        ..(guest.config)()
    };
    let first = machine(config(EngineKind::Translator), Nowhere);
    let handle = first.handle();
    let asks = asked(first.handle(), at);
    let thread = std::thread::spawn(move || first.run());
    assert!(asks.join().expect("its thread"), "it runs longer");
    let saved = handle.save().expect("its state");
    handle.stop();
    thread.join().expect("its thread");
    let (mut refused, mut lived) = (0, 0);
    for number in 0..count {
        let mut hostile = saved.clone();
        let what = damage(&mut hostile, random);
        let engine = if number % 2 == 0 { EngineKind::Translator } else { EngineKind::Interpreter };
        match machine(config(engine), Nowhere).restored(hostile) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
            Ok(machine) => {
                let event = machine.run().event;
                assert!(!matches!(event, Event::Failed(_)), "{what}: {event:?}");
                lived += 1;
            }
        }
    }
    assert!(count < 100 || refused > count / 20 && lived > count / 20, "{refused} refused, {lived} not");
    format!("{refused} of {count} damaged states of {name} were refused, machines lived with {lived}")
}

/// Puts something else into one place of `saved`, and tells where.
fn damage(saved: &mut Saved, random: &mut Random) -> String {
    let places = saved.iter().count() as u64;
    let chosen = (random.next() % places) as usize;
    let Some((place, value)) = saved.iter_mut().nth(chosen) else { return String::new() };
    let place = place.to_string();
    let mut leaves = leaves(value.tree());
    let leaf = random.next() % leaves.max(1);
    let with = match random.next() % 12 {
        0 => Value::Null,
        1 => Value::String("hostile".into()),
        2 => Value::Array(Vec::new()),
        3 => Value::Bool(random.next() & 1 != 0),
        4..8 => random.next().into(),
        _ => HOSTILE[(random.next() % HOSTILE.len() as u64) as usize].into(),
    };
    let text = format!("{place}, leaf {leaf} of {leaves}: {with}");
    leaves = leaf;
    replace(value.tree_mut(), &mut leaves, with);
    text
}

fn leaves(tree: &Value) -> u64 {
    match tree {
        Value::Array(items) => items.iter().map(leaves).sum::<u64>().max(1),
        Value::Object(fields) => fields.values().map(leaves).sum::<u64>().max(1),
        _ => 1,
    }
}

/// Replaces the leaf of that number; `left` is less by the leaves that were passed.
fn replace(tree: &mut Value, left: &mut u64, with: Value) {
    let below = match tree {
        Value::Array(items) if !items.is_empty() => items.iter_mut().collect::<Vec<_>>(),
        Value::Object(fields) if !fields.is_empty() => fields.values_mut().collect(),
        leaf => {
            *leaf = with;
            return;
        }
    };
    for item in below {
        let here = leaves(item);
        if *left < here {
            return replace(item, left, with);
        }
        *left -= here;
    }
}
