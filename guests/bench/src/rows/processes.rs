//! Processes: switches, fork, exec, a shell.

use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use super::fail;
use crate::measure::Meter;
use crate::sys::{self, Forked};

pub fn pipe(m: &mut Meter) {
    let pair = || std::io::pipe().unwrap_or_else(|e| fail("pipe", &e));
    let ((mut here, mut there_out), (mut there, mut here_out)) = (pair(), pair());
    if let Ok(Forked::Child) = sys::fork() {
        drop((here, here_out));
        let mut byte = [0];
        while matches!(there.read(&mut byte), Ok(1)) && there_out.write_all(&byte).is_ok() {}
        sys::exit(0);
    }
    drop((there, there_out));
    let mut wrong = 0;
    m.batches(|n| {
        let rounds = n.div_ceil(2);
        for round in 0..rounds {
            let mut byte = [round as u8];
            let told = here_out.write_all(&byte).and_then(|()| here.read_exact(&mut byte));
            wrong += u64::from(told.is_err() || byte != [round as u8]);
        }
        rounds * 2
    });
    m.sum = Some(wrong);
}

pub fn futex(m: &mut Meter) {
    let (turn, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let other = std::thread::spawn({
        let (turn, stop) = (turn.clone(), stop.clone());
        move || {
            while !stop.load(SeqCst) {
                hand_over(&turn, 1);
            }
        }
    });
    m.batches(|n| {
        let rounds = n.div_ceil(2);
        for _ in 0..rounds {
            hand_over(&turn, 0);
        }
        rounds * 2
    });
    stop.store(true, SeqCst);
    // It may be waiting for its turn.
    turn.store(1, SeqCst);
    sys::futex_wake(&turn);
    m.sum = Some(u64::from(other.join().is_ok()));
}

/// Waits for the turn of `me`, and gives it to the other.
fn hand_over(turn: &AtomicU32, me: u32) {
    while turn.load(SeqCst) != me {
        sys::futex_wait(turn, 1 - me);
    }
    turn.store(1 - me, SeqCst);
    sys::futex_wake(turn);
}

pub fn fork(m: &mut Meter) {
    m.each(|| match sys::fork() {
        Ok(Forked::Child) => sys::exit(7),
        Ok(Forked::Parent(pid)) => sys::wait(pid).unwrap_or(0) as u64,
        Err(error) => fail("fork", &error),
    });
}

/// This program.
const SELF: &CStr = c"/proc/self/exe";
/// The argument with which it only exits, with status 5.
pub const EXIT: &CStr = c"exit";

pub fn exec(m: &mut Meter) {
    m.each(|| match sys::fork() {
        Ok(Forked::Child) => {
            sys::exec(SELF, &[c"satori-bench", EXIT]);
            sys::exit(1)
        }
        Ok(Forked::Parent(pid)) => sys::wait(pid).unwrap_or(0) as u64,
        Err(error) => fail("fork", &error),
    });
}

const SCRIPT: &str = r#"
i=0
while [ $i -lt 300 ]; do i=$((i + 1)); case $i in *7) s=$((s + i * i % 11));; esac; done
for n in 1 2 3 4; do s=$s$( (echo $n; exit 3) | { read x; echo $((x + 1)); } ); done
"$0" true && "$0" echo $s
"#;

pub fn shell(m: &mut Meter, busybox: Option<&str>) {
    let Some(busybox) = busybox else {
        m.absent = Some("no busybox was given".into());
        return;
    };
    m.each(|| {
        let told = Command::new(busybox)
            .arg0("busybox")
            .args(["sh", "-c", SCRIPT, busybox])
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .unwrap_or_else(|e| fail(busybox, &e));
        told.stdout.iter().fold(told.status.code().unwrap_or(99) as u64, |sum, &b| sum * 31 + u64::from(b))
    });
}
