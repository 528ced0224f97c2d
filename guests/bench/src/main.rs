//! The program of `satori bench`.
//!
//! Started on a host it measures the rows it is asked for; started as a guest's init it first mounts
//! what they need, and ends the machine afterwards. Each row runs in a process of its own, so that one
//! that fails or hangs costs only itself. Lines of results begin with [`catalog::MARK`] and are JSON.
//!
//! ```text
//! satori-bench run [--rows A,B] [--budget MS] [--limit S] [--cpus N] [--busybox FILE] [--disk FILE] [--qcow2 FILE] [--folder DIR] [--host ADDRESS:PORT] [--linger MS] [--exactly N] [--reset]
//! satori-bench boot [--reset]     says that init was reached, and ends
//! satori-bench play [--cpus N] [--ms MS] [--ipis N] [--reads N]    the talk's load (`satori bench traps --kernel`)
//! satori-bench exit               exits with status 5: what the row exec starts
//! ```

mod catalog;
mod measure;
mod play;
mod rows;
mod sys;

use std::time::Duration;

use catalog::MARK;
use measure::Meter;
use sys::Forked;

/// What the command line asks for.
struct Options {
    rows: Vec<String>,
    budget_ms: u64,
    limit_s: u32,
    cpus: u32,
    places: rows::Places,
    linger_ms: u64,
    /// One sample of so many operations, and the interrupts that came meanwhile.
    exactly: Option<u64>,
    reset: bool,
    /// Of `play`.
    ms: u64,
    ipis: u64,
    reads: u64,
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let init = std::process::id() == 1;
    if init {
        mount();
    }
    let command = if words.is_empty() { String::new() } else { words.remove(0) };
    let done = match (command.as_str(), options(&words)) {
        ("exit", _) => sys::exit(5),
        ("boot", Ok(options)) => {
            say(&format!(r#"{{"init":true,"tsc_khz":{}}}"#, if init { 0 } else { sys::tsc_khz() }));
            Ok(options)
        }
        ("run", Ok(options)) => {
            run(&options);
            Ok(options)
        }
        ("play", Ok(options)) => {
            let Options { cpus, ms, ipis, reads, .. } = options;
            play::play(play::Load { cpus, ms, ipis, reads }, &say).map(|()| options)
        }
        (_, Err(wrong)) => Err(wrong),
        _ => Err(format!("unknown command '{command}': run, boot, play or exit")),
    };
    if let Err(wrong) = &done {
        say(&format!(r#"{{"refused":{wrong:?}}}"#));
    }
    if init {
        sys::end_machine(done.is_ok_and(|options| options.reset));
        // Whatever is left to try: a kernel whose init ends panics.
        sys::end_machine(true);
    } else if done.is_err() {
        sys::exit(2);
    }
}

fn options(words: &[String]) -> Result<Options, String> {
    let mut options = Options {
        rows: catalog::ROWS.iter().filter(|r| !r.several).map(|r| r.name.to_string()).collect(),
        budget_ms: 200,
        limit_s: 60,
        cpus: 1,
        places: rows::Places::default(),
        linger_ms: 0,
        exactly: None,
        reset: false,
        ms: 0,
        ipis: 0,
        reads: 0,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--reset" {
            options.reset = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u32>().map_err(|_| format!("{word} {value} is no number"));
        match word.as_str() {
            "--rows" => options.rows = value.split(',').map(str::to_string).collect(),
            "--budget" => options.budget_ms = number()?.into(),
            "--limit" => options.limit_s = number()?,
            "--cpus" => options.cpus = number()?,
            "--busybox" => options.places.busybox = Some(value.clone()),
            "--disk" => options.places.disk = Some(value.clone()),
            "--qcow2" => options.places.qcow2 = Some(value.clone()),
            "--folder" => options.places.folder = Some(value.clone()),
            "--host" => options.places.host = Some(value.clone()),
            "--exactly" => options.exactly = Some(number()?.into()),
            "--ms" => options.ms = number()?.into(),
            "--ipis" => options.ipis = number()?.into(),
            "--reads" => options.reads = number()?.into(),
            "--linger" => options.linger_ms = number()?.into(),
            _ => return Err(format!("unknown flag {word}")),
        }
    }
    Ok(options)
}

/// What programs expect of a system, as far as the rows need it.
fn mount() {
    for (kind, target) in [(c"proc", c"/proc"), (c"sysfs", c"/sys"), (c"tmpfs", c"/tmp")] {
        if let Err(error) = sys::mount(kind, target) {
            println!("satori-bench: cannot mount {target:?}: {error}");
        }
    }
    let _ = std::env::set_current_dir("/tmp");
    if let Ok(modules) = std::fs::read_dir(catalog::MODULES) {
        let mut modules: Vec<_> = modules.flatten().map(|entry| entry.path()).collect();
        modules.sort();
        devices(&modules);
    }
}

/// Loads modules, and finds disk, folder and card. What is not there makes rows absent, or fail with their own words.
fn devices(modules: &[std::path::PathBuf]) {
    use sys::devices::{load_module, mount_from, network};
    let complain = |what: &str, why: std::io::Error| println!("satori-bench: {what}: {why}");
    for path in modules {
        let compressed = path.extension().is_some_and(|end| end == "xz");
        let loaded = std::fs::File::open(path).and_then(|file| load_module(&file, compressed));
        loaded.unwrap_or_else(|why| complain(&path.display().to_string(), why));
    }
    sys::mount(c"devtmpfs", c"/dev").unwrap_or_else(|why| complain("/dev", why));
    let _ = std::fs::create_dir(catalog::FOLDER);
    let tag = std::ffi::CString::new(catalog::TAG).unwrap_or_default();
    let folder = std::ffi::CString::new(catalog::FOLDER).unwrap_or_default();
    let mounted = mount_from(&tag, c"virtiofs", &folder, c"")
        .or_else(|_| mount_from(&tag, c"9p", &folder, c"trans=virtio,version=9p2000.L,msize=512000"));
    mounted.unwrap_or_else(|why| complain(catalog::FOLDER, why));
    for name in ["lo", "eth0"] {
        let address = if name == "lo" { [127, 0, 0, 1] } else { catalog::ADDRESS };
        network(name, address.into()).unwrap_or_else(|why| complain(name, why));
    }
}

fn say(json: &str) {
    // One write, so that no other line comes between.
    use std::io::Write;
    let _ = std::io::stdout().write_all(format!("{MARK}{json}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

fn run(options: &Options) {
    let cpus = sys::keep_to(options.cpus);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    say(&format!(
        r#"{{"kernel":{:?},"clocksource":{:?},"cpus":{cpus}}}"#,
        read("/proc/sys/kernel/osrelease"),
        read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ));
    for row in &options.rows {
        say(&format!(r#"{{"start":{row:?}}}"#));
        let before = options.exactly.map(|_| interrupts());
        match sys::fork() {
            Ok(Forked::Child) => {
                sys::begin_group();
                sys::alarm(options.limit_s);
                perform(row, options);
                sys::exit(0);
            }
            Ok(Forked::Parent(pid)) => {
                let status = sys::wait(pid).unwrap_or(-1);
                // A row that was ended may have left processes, which would disturb the next.
                sys::end_group(pid);
                match status {
                    0 => {}
                    status if status & 0x7f == sys::SIGALRM => fail(row, "took too long"),
                    status if status & 0x7f != 0 => fail(row, &format!("ended by signal {}", status & 0x7f)),
                    status => fail(row, &format!("ended with status {}", status >> 8 & 0xff)),
                }
            }
            Err(error) => fail(row, &format!("cannot fork: {error}")),
        }
        if let Some(before) = before {
            let [tlb, calls, again] = std::array::from_fn(|i| interrupts()[i] - before[i]);
            say(&format!(r#"{{"interrupts":{row:?},"tlb":{tlb},"calls":{calls},"reschedule":{again}}}"#));
        }
    }
    say(r#"{"end":true}"#);
    std::thread::sleep(Duration::from_millis(options.linger_ms));
}

/// Inter-processor interrupts that the kernel has taken, on all processors: to flush TLBs, to call a
/// function, and to schedule again.
fn interrupts() -> [u64; 3] {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    ["TLB:", "CAL:", "RES:"].map(|kind| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(kind)).unwrap_or_default();
        line.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum()
    })
}

fn fail(row: &str, why: &str) {
    say(&format!(r#"{{"row":{row:?},"failed":{why:?}}}"#));
}

fn perform(row: &str, options: &Options) {
    let mut m = Meter::new(options.budget_ms * 1_000_000).exactly(options.exactly);
    if !rows::measure(row, &mut m, &options.places) {
        return fail(row, "unknown row");
    }
    if let Some(why) = m.absent {
        return say(&format!(r#"{{"row":{row:?},"absent":{why:?}}}"#));
    }
    m.samples.sort_unstable_by(f64::total_cmp);
    let (least, median) = (m.samples[0], m.samples[m.samples.len() / 2]);
    let sum = m.sum.map_or(String::new(), |sum| format!(r#","sum":"{sum:016x}""#));
    let more = m.more.map_or(String::new(), |(name, value)| format!(r#","{name}":{value:.4}"#));
    say(&format!(
        r#"{{"row":{row:?},"ns":{least:.3},"median":{median:.3},"samples":{},"operations":{},"differing":{}{sum}{more}}}"#,
        m.samples.len(),
        m.operations,
        m.differing,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_catalogue_measures_something() {
        for row in catalog::ROWS.iter().chain(catalog::DEVICES).filter(|row| row.name != "shell") {
            let mut m = Meter::new(1_000_000);
            assert!(
                rows::measure(row.name, &mut m, &rows::Places::default()),
                "{} has no operation",
                row.name
            );
            assert!(m.absent.is_some() || !m.samples.is_empty(), "{}", row.name);
            assert!(!m.differing, "{}", row.name);
        }
    }
}
