use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use satori_seam::{Class, Reason, ReasonRow};
use serde_json::Value;

use crate::{Error, Filter, Inner, Kind, QUEUE, Spec, Tracer};

static ROWS: [ReasonRow; 4] = [
    ReasonRow { number: 12, name: "HLT", class: Class::Idle },
    ReasonRow { number: 18, name: "VMCALL", class: Class::Hypercall },
    ReasonRow { number: 32, name: "MSR_WRITE", class: Class::RegisterWrite },
    ReasonRow { number: 40, name: "PAUSE_INSTRUCTION", class: Class::Pause },
];
const HLT: Reason = Reason::of(&ROWS[0]);
const VMCALL: Reason = Reason::of(&ROWS[1]);
const MSR_WRITE: Reason = Reason::of(&ROWS[2]);
const PAUSE: Reason = Reason::of(&ROWS[3]);
const ALL: &[Reason] = &[HLT, VMCALL, MSR_WRITE, PAUSE];

fn place() -> String {
    "\"pc\":\"0xffffffff81000000\"".into()
}

fn inner(kind: Kind, name: &str) -> Option<Inner> {
    Some(Inner { kind, name: name.into(), args: "\"value\":\"0x5\"".into() })
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Three exits and an interrupt on vCPU 0, one on vCPU 1.
fn run(filter: Filter) -> (String, Value) {
    let file = Memory::default();
    let tracer = Tracer::start(file.clone(), filter, 2, true).unwrap();
    if let Some(mut vcpu) = tracer.vcpu(0) {
        vcpu.exit(Some(MSR_WRITE), place, 1_500);
        vcpu.handled(|| inner(Kind::Register, "WRMSR HV_X64_MSR_ICR"), 1_800);
        vcpu.entry(2_100);
        vcpu.exit(Some(HLT), place, 3_000);
        vcpu.handled(|| None, 3_000);
        vcpu.injected("interrupt", 0x31, 9_000);
        vcpu.entry(9_000);
        vcpu.exit(Some(VMCALL), place, 9_500);
        vcpu.handled(|| inner(Kind::Hypercall, "hypercall"), 9_400);
        vcpu.entry(9_300);
        // What the modelled processor does not exit for leaves no slice.
        vcpu.exit(None, || unreachable!("nobody reads it"), 9_600);
        vcpu.entry(9_700);
    }
    if let Some(mut vcpu) = tracer.vcpu(1) {
        vcpu.exit(Some(PAUSE), place, 4_000);
        vcpu.entry(4_001);
    }
    let told = tracer.finish();
    assert_eq!((told.dropped, told.error), (0, None));
    let text = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(trace["otherData"]["events"], told.written.to_string());
    (text, trace)
}

fn names(trace: &Value) -> Vec<&str> {
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["ph"] != "M").map(|event| event["name"].as_str().unwrap()).collect()
}

#[test]
fn slices_nest_and_times_are_exact() {
    let (text, trace) = run(Filter::default());
    assert_eq!(run(Filter::default()).0, text, "the same events leave the same bytes");
    let events: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
    let time = |event: &Value| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
    assert_eq!(time(events[0]), (1.5, 0.6));
    assert_eq!(events[0]["args"]["pc"], "0xffffffff81000000");
    assert_eq!((time(events[1]), &events[1]["cat"]), ((1.5, 0.3), &"msr".into()), "in the exit's slice");
    assert_eq!(events[1]["args"]["value"], "0x5");
    assert_eq!(time(events[2]), (3.0, 6.0));
    assert_eq!(time(events[3]).1, 0.0, "a clock that went back leaves no negative time");
    for track in [1, 2] {
        let mut open: Vec<f64> = Vec::new();
        for event in events.iter().filter(|event| event["tid"] == track) {
            let (begin, length) = time(event);
            open.retain(|&end| end > begin || length == 0.0 && end == begin);
            assert!(
                open.iter().all(|&end| begin + length <= end + 1e-9),
                "{event} leaves the slice it is in"
            );
            open.push(begin + length);
        }
    }
}

#[test]
fn only_what_the_filter_names_is_written() {
    let filter = |text: &str| Spec::of(text.as_ref(), ALL).unwrap().filter;
    assert_eq!(names(&run(filter("f,events=interrupt,vcpu=0")).1), ["interrupt 0x31"]);
    assert_eq!(names(&run(filter("f,events=exit,vcpu=1+7")).1), ["PAUSE_INSTRUCTION"]);
    assert_eq!(names(&run(filter("f,events=exit,reason=hlt")).1), ["HLT"]);
    assert_eq!(names(&run(filter("f,events=msr+hypercall")).1).len(), 2);
    assert_eq!(Spec::of("".as_ref(), ALL), Err(Error::NoFile));
    assert_eq!(Spec::of("f,events=".as_ref(), ALL), Err(Error::Event(String::new())));
    assert_eq!(Spec::of("f,vcpu=x".as_ref(), ALL), Err(Error::Vcpu("x".into())));
    assert_eq!(Spec::of("f,reason=NONE".as_ref(), ALL), Err(Error::Reason("NONE".into())));
    assert_eq!(Spec::of("f,all".as_ref(), ALL), Err(Error::Word("all".into())));
}

/// A disk that takes nothing until it is told to.
struct Stuck(Receiver<()>, Memory);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.recv();
        self.1.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_slow_disk_costs_events_and_not_the_guest() {
    let (go, wait): (Sender<()>, _) = channel();
    let file = Memory::default();
    let tracer = Tracer::start(Stuck(wait, file.clone()), Filter::default(), 1, false).unwrap();
    let mut vcpu = tracer.vcpu(0).unwrap();
    let exits = (QUEUE as u64 + 40) * 1000;
    for at in 0..exits {
        vcpu.exit(Some(HLT), place, at * 10);
        vcpu.entry(at * 10 + 1);
    }
    drop(vcpu);
    drop(go);
    let told = tracer.finish();
    assert!(told.dropped > 0 && told.written > 0, "{told:?}");
    assert_eq!(told.written + told.dropped, exits);
    let text = file.0.lock().unwrap().clone();
    let trace: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(trace["otherData"]["dropped"], told.dropped.to_string());
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told() {
    let tracer = Tracer::start(Full, Filter::default(), 1, false).unwrap();
    let mut vcpu = tracer.vcpu(0).unwrap();
    vcpu.injected("NMI", 2, 1);
    drop(vcpu);
    let told = tracer.finish();
    assert_eq!((told.written, told.dropped, told.error.is_some()), (0, 1, true));
}
