//! The experiment as text and as JSON.

use std::fmt::Write;

use satori_report::html::grouped;
use serde_json::{Value, json};

use super::{Frames, Results, Shown, Swept, TALK, TALK_SECONDS, ordered};

/// A number of a run of `ms` as the talk's tables would have it.
fn as_long(number: u64, ms: u64) -> u64 {
    number.saturating_mul(TALK_SECONDS * 1000) / ms.max(1)
}

fn seconds(ns: u64, ms: u64) -> f64 {
    as_long(ns, ms) as f64 / 1e9
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Which of the talk's neighbours have changed places.
fn flips(values: &[u64; 4]) -> Vec<String> {
    let pairs = values.windows(2).zip(TALK.windows(2));
    pairs
        .filter(|(values, _)| values[0] <= values[1])
        .map(|(_, talk)| format!("{} <= {}", talk[0].name, talk[1].name))
        .collect()
}

/// The whole report.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    let (plan, ms) = (&results.plan, results.plan.ms);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "The traps of using Hyper-V features in KVM: {} vCPUs on a modelled {}, {} ms of guest time each, virtual \
         clock.\nExits of the guest's start and end are left out. Modelled costs are those of 'satori costs show'.",
        plan.parameters.get("vcpus"),
        plan.processor,
        ms
    );
    for one in &results.four {
        let timer = one.run.told.get("timer").map_or("?", String::as_str);
        let _ = write!(out, "\n{}: {}; its timer is {timer}", one.name, one.what);
        out += satori_report::text(&one.run.report, None).trim_end();
        out.push('\n');
    }
    totals(&mut out, results);
    frame_times(&mut out, results);
    further(&mut out, results);
    ladder(&mut out, results);
    witness(&mut out, results);
    sweep(&mut out, results);
    out
}

fn totals(out: &mut String, results: &Results) {
    let ms = results.plan.ms;
    let _ = writeln!(out, "\nTotals of {TALK_SECONDS} s, which a table of the talk is, and ratios to none\n");
    let _ = writeln!(
        out,
        "{:<10} {:>11} {:>11} {:>7} {:>7}   {:>9} {:>7} {:>7} {:>7}   {:>9}",
        "", "exits", "the talk's", "ratio", "talk's", "modelled", "talk's", "ratio", "talk's", "here"
    );
    let first = (results.exits()[0] as f64, results.costs()[0] as f64);
    for (one, talk) in results.four.iter().zip(&TALK) {
        let (exits, cost) = (one.run.exits(), one.cost_ns);
        let _ = writeln!(
            out,
            "{:<10} {:>11} {:>11} {:>7.3} {:>7.3}   {:>7.2} s {:>5.2} s {:>7.3} {:>7.3}   {:>7.2} s",
            one.name,
            grouped(as_long(exits, ms)),
            grouped(talk.exits),
            ratio(exits as f64, first.0),
            ratio(talk.exits as f64, TALK[0].exits as f64),
            seconds(cost, ms),
            talk.seconds,
            ratio(cost as f64, first.1),
            ratio(talk.seconds, TALK[0].seconds),
            one.run.elapsed.as_secs_f64(),
        );
    }
    let told = |values: &[u64]| if ordered(values) { "the talk's" } else { "NOT the talk's" };
    let _ = writeln!(
        out,
        "\nThe order of exits is {}, that of modelled cost is {}. 'here' is what the run took on this machine: it says \
         nothing about hardware.",
        told(&results.exits()),
        told(&results.costs())
    );
}

fn frame_times(out: &mut String, results: &Results) {
    let _ = writeln!(
        out,
        "\nFrames, measured by the guest in its own time, in which each exit takes its modelled cost; native: where exits take \
         none.\nThe talk, with all against bare metal: 1 FPS less on average, the share above 55 FPS down by 10%.\n\n{:<16} {:>10} {:>9} {:>9} {:>9}",
        "", "average", "FPS", "> 55 FPS", "frames"
    );
    let mut row = |name: &str, Frames { count, average_ms, above_55 }| {
        let fps = 1e3 / average_ms;
        let _ = writeln!(out, "{name:<16} {average_ms:>7.2} ms {fps:>9.2} {above_55:>8.1}% {count:>9}");
    };
    row("native", results.native);
    for one in results.four.iter().chain(&results.further) {
        one.frames.into_iter().for_each(|frames| row(one.name, frames));
    }
}

fn further(out: &mut String, results: &Results) {
    if results.further.is_empty() {
        return;
    }
    let ms = results.plan.ms;
    let _ = writeln!(out, "\nFurther configurations, of {TALK_SECONDS} s\n");
    for one in &results.further {
        let _ = writeln!(
            out,
            "{:<16} {:>11} exits {:>8.3} s  {:<14}  {}",
            one.name,
            grouped(as_long(one.run.exits(), ms)),
            seconds(one.cost_ns, ms),
            one.run.told.get("timer").map_or("", String::as_str),
            one.what
        );
    }
}

fn ladder(out: &mut String, results: &Results) {
    if results.ladder.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nA tick of each timer, armed again where it is armed for one tick\n");
    for rung in &results.ladder {
        let exits: Vec<_> = rung.exits.iter().map(|(reason, count)| format!("{count:.2} {reason}")).collect();
        let _ = writeln!(out, "{:<16} {:>8.2} us  {}", rung.timer, rung.cost_ns / 1e3, exits.join(", "));
    }
    let told = if results.ladder_ordered() { "the talk's" } else { "NOT the talk's" };
    let _ = writeln!(out, "\nThe order is {told}: local APIC and stimer, HPET, RTC.");
}

fn witness(out: &mut String, results: &Results) {
    if results.linux.is_empty() {
        return;
    }
    let plays = results.plan.linux.as_ref().is_some_and(|linux| linux.plays);
    let ms = results.plan.ms;
    let cpus = results.plan.linux.as_ref().map_or(0, |linux| linux.cpus);
    let _ = match plays {
        true => writeln!(
            out,
            "\nLinux on {cpus} vCPUs, whose programs read the clock and interrupt two others as often as the guest above does on as \
             many:\nexits of {TALK_SECONDS} s, its start and end left out\n"
        ),
        false => writeln!(
            out,
            "\nLinux on {cpus} vCPUs, your ramdisk, from its start to its end: most of it is the kernel's start, whose order need not \
             be the talk's\n"
        ),
    };
    for one in &results.linux {
        let (exits, cost) = (one.run.exits(), one.run.cost());
        let (exits, cost) = if plays { (as_long(exits, ms), as_long(cost, ms)) } else { (exits, cost) };
        let _ = writeln!(
            out,
            "{:<13} {:>11} exits {:>8.3} s  {}",
            one.name,
            grouped(exits),
            cost as f64 / 1e9,
            one.what
        );
        let mut rows: Vec<_> = one.run.report.all.exits.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
        let rows = rows.iter().take(6).map(|row| {
            let count = if plays { as_long(row.samples, ms) } else { row.samples };
            format!("{} {}", grouped(count), row.reason)
        });
        let _ = writeln!(out, "{:15}{}", "", rows.collect::<Vec<_>>().join(", "));
    }
    if plays {
        let [exits, cost] =
            results.linux_ordered().map(|holds| if holds { "holds" } else { "does NOT hold" });
        let _ = writeln!(
            out,
            "\nnone > all > hidden and repaired: of exits it {exits}, of modelled cost it {cost}. Hidden and repaired differ by their\n\
             IPIs alone, one exit each: a write of the ICR, or a hypercall at the cost of the talk's, which were long spin waits."
        );
    }
    let inhibited: u64 = results.linux.iter().map(|one| one.inhibited).sum();
    let _ = writeln!(
        out,
        "Exits while a SINT with auto-EOI kept APICv off: {}. {}",
        grouped(inhibited),
        match inhibited {
            0 =>
                "Linux sets a SINT up for the VMBus alone, which is not here, so that trap is\nWindows'. 'all' is dearer than \
                 'repaired' by the other one: told to reach the APIC by MSRs, Linux ends each interrupt by an exit.",
            _ => "Linux fell into the talk's trap.",
        }
    );
}

fn sweep(out: &mut String, results: &Results) {
    if results.sweep.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\nSweep: each parameter by -50, -25, +25 and +50 %, runs of {} ms; where the talk's order flips\n",
        results.plan.sweep_ms
    );
    let mut names: Vec<&str> = results.sweep.iter().map(|point| point.name.as_str()).collect();
    names.dedup();
    for name in names {
        let points: Vec<_> = results.sweep.iter().filter(|point| point.name == name).collect();
        let tell = |of: &dyn Fn(&Swept) -> [u64; 4]| {
            let flipped = points.iter().filter_map(|point| {
                let flips = flips(&of(point));
                (!flips.is_empty())
                    .then(|| format!("{:+} % ({}): {}", point.percent, point.value, flips.join(", ")))
            });
            let flipped: Vec<_> = flipped.collect();
            if flipped.is_empty() { "holds".to_string() } else { format!("flips at {}", flipped.join("; ")) }
        };
        let _ = writeln!(
            out,
            "{name:<13} exits: {}   cost: {}",
            tell(&|point| point.exits),
            tell(&|point| point.cost_ns)
        );
    }
}

/// The same for programs.
pub fn json(results: &Results) -> Value {
    let plan = &results.plan;
    let ms = plan.ms;
    let frames = |Frames { count, average_ms, above_55 }| json!({ "count": count, "average_ms": average_ms, "above_55_fps_percent": above_55 });
    let shown = |one: &Shown| {
        json!({
            "name": one.name,
            "what": one.what,
            "timer": one.run.told.get("timer"),
            "exits": one.run.exits(),
            "modelled_ns": one.cost_ns,
            "elapsed_ns": u64::try_from(one.run.elapsed.as_nanos()).unwrap_or(u64::MAX),
            "frames": one.frames.map(frames),
            "report": one.run.report.to_json(),
        })
    };
    let four = results.four.iter().zip(&TALK).map(|(one, talk)| {
        let mut value = shown(one);
        value["talk"] = json!({ "exits": talk.exits, "seconds": talk.seconds });
        value
    });
    let ladder = results.ladder.iter().map(|rung| {
        let exits: serde_json::Map<_, _> =
            rung.exits.iter().map(|(reason, count)| (reason.clone(), json!(count))).collect();
        json!({ "timer": rung.timer, "modelled_ns": rung.cost_ns, "exits": exits })
    });
    let sweep = results.sweep.iter().map(|point| {
        json!({
            "parameter": point.name, "percent": point.percent, "value": point.value,
            "exits": point.exits, "modelled_ns": point.cost_ns,
            "exits_flip": flips(&point.exits), "cost_flips": flips(&point.cost_ns),
        })
    });
    let linux = results.linux.iter().map(|one| {
        json!({
            "name": one.name,
            "what": one.what,
            "exits": one.run.exits(),
            "modelled_ns": one.run.cost(),
            "without_apicv": one.inhibited,
            "report": one.run.report.to_json(),
        })
    });
    json!({
        "format": "satori-bench-traps",
        "version": 1,
        "processor": plan.processor,
        "guest_time_ns": ms * 1_000_000,
        "parameters": plan.parameters.iter().map(|(n, v)| (n.to_string(), json!(v))).collect::<serde_json::Map<_, _>>(),
        "order": { "exits": ordered(&results.exits()), "modelled": ordered(&results.costs()), "ladder": results.ladder_ordered(), "linux": results.linux_ordered() },
        "native_frames": frames(results.native),
        "configurations": four.collect::<Vec<_>>(),
        "further": results.further.iter().map(shown).collect::<Vec<_>>(),
        "ladder": ladder.collect::<Vec<_>>(),
        "linux": linux.collect::<Vec<_>>(),
        "sweep": sweep.collect::<Vec<_>>(),
    })
}
