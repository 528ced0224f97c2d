//! A run is written down and played; what is not the same is told.

use super::*;

/// A file that stays readable.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn heading() -> Heading {
    vec![("kernel".into(), b"k".to_vec())]
}

fn heard(source: &Source) -> Arc<Mutex<Vec<Vec<u8>>>> {
    let all = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let own = all.clone();
    source.to(move |bytes| lock(&own).push(bytes.to_vec()));
    all
}

fn recorded() -> Vec<u8> {
    let file = File::default();
    let journal = Journal::record(file.clone());
    journal.begin(&heading()).unwrap();
    let (net, typed) = (journal.source("net"), journal.source("typed"));
    let (frames, bytes) = (heard(&net), heard(&typed));
    journal.turn(10).unwrap();
    assert!(!journal.has_come());
    net.bring(b"one");
    typed.bring(b"a");
    net.bring(b"");
    journal.turn(30).unwrap();
    journal.turn(40).unwrap();
    typed.bring(b"b");
    journal.turn(55).unwrap();
    journal.end(60, "powered off", 99).unwrap();
    assert_eq!((lock(&frames).len(), lock(&bytes).concat()), (2, b"ab".to_vec()));
    std::mem::take(&mut *lock(&file.0))
}

#[test]
fn what_came_comes_again_in_the_same_rounds() {
    let file = recorded();
    let (journal, told) = Journal::replay(&file[..]).unwrap();
    assert_eq!(told, heading());
    journal.begin(&heading()).unwrap();
    let other = vec![("kernel".into(), b"l".to_vec())];
    assert!(journal.begin(&other).unwrap_err().starts_with("its kernel is not"));
    let (net, typed) = (journal.source("net"), journal.source("typed"));
    assert_eq!(journal.sources(), "machine, net, typed");
    let (frames, bytes) = (heard(&net), heard(&typed));
    net.bring(b"of now, which is not then");
    assert_eq!(journal.next(), Next::Later);
    journal.turn(10).unwrap();
    assert_eq!((journal.next(), lock(&frames).len()), (Next::At(30), 0));
    journal.turn(30).unwrap();
    assert_eq!(*lock(&frames), [b"one".to_vec(), vec![]]);
    journal.turn(40).unwrap();
    assert_eq!(lock(&bytes).concat(), b"a");
    journal.turn(55).unwrap();
    assert_eq!((journal.next(), lock(&bytes).concat()), (Next::Nothing, b"ab".to_vec()));
    assert_eq!(journal.end(60, "powered off", 7), Ok(99));
}

#[test]
fn another_run_is_told_from_the_recorded_one() {
    let file = recorded();
    let begin = || {
        let journal = Journal::replay(&file[..]).unwrap().0;
        let (net, typed) = (journal.source("net"), journal.source("typed"));
        for source in [&net, &typed] {
            heard(source);
        }
        journal.turn(10).unwrap();
        journal
    };
    let why = begin().turn(31).unwrap_err();
    assert!(why.contains("here at 31 instructions: there at 30 something came"), "{why}");
    let why = begin().end(12, "reset", 0).unwrap_err();
    assert!(why.contains("it went on to 30"), "{why}");
    let journal = begin();
    [30, 40, 55].iter().for_each(|count| journal.turn(*count).unwrap());
    let why = journal.end(60, "reset", 0).unwrap_err();
    assert!(why.contains("it ended at 60 (powered off)"), "{why}");
    let alone = Journal::replay(&file[..]).unwrap().0;
    alone.turn(10).unwrap();
    assert!(alone.turn(30).unwrap_err().contains("names a source"));
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let file = recorded();
    for end in 0..file.len() {
        let why = Journal::replay(&file[..end]).unwrap_err();
        assert!(matches!(why, Error::Short | Error::Foreign), "{end}: {why}");
    }
    for at in 18..file.len() {
        let mut other = file.clone();
        other[at] ^= 0x10;
        let why = Journal::replay(&other[..]).unwrap_err();
        assert!(matches!(why, Error::Short | Error::Damaged), "{at}: {why}");
    }
    let mut newer = file.clone();
    newer[14] = 9;
    assert!(matches!(Journal::replay(&newer[..]).unwrap_err(), Error::Version(9)));
    assert!(matches!(Journal::replay(&b"#!/bin/sh\nexit 0\n"[..]).unwrap_err(), Error::Foreign));
}
