//! The program of `satori bench nested`: init of a guest that has guests (L1), and the monitor of its guest (L2).
//!
//! In L1 it measures, loads KVM, and runs a guest in real mode ([`bare`]). Lines of results begin with [`MARK`] and are JSON.
//!
//! ```text
//! satori-nested l1 --rows A,B [--budget MS] [--exactly N]
//! satori-nested l2 --rows A,B [--budget MS]        init of a Linux that is L2
//! satori-nested host --rows A,B [--budget MS]      the rows of L1 on the host
//! satori-nested peers [--scale N]                  what tools/l2 compares with other machines, in L1 and in L2
//! ```

mod bare;
mod kvm;
mod linux;
mod measure;
mod peers;
mod sys;

use measure::Amount;

/// What a line of results begins with.
pub const MARK: &str = "satori-nested ";

/// Rows that are measured in L1.
const L1: [&str; 2] = ["cpuid-l1", "clock-l1"];

/// Rows that are measured in an L2 that is a Linux.
const L2: [&str; 1] = ["clock-l2"];

/// What the command line asks for.
pub struct Options {
    rows: Vec<String>,
    amount: Amount,
    /// How much more than the least work is done.
    scale: u64,
}

/// What one is told who starts it by hand.
const ALONE: &str = "it is the init of a guest: 'satori bench nested' starts it";

/// What went wrong, for a person.
pub type Failure = String;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let role = words.first().cloned().unwrap_or_default();
    let options = options(words.get(1..).unwrap_or_default());
    if std::process::id() != 1 {
        let done = options.and_then(|options| match role.as_str() {
            "host" => rows_of_l1(&options),
            "peers" => peers::l1(&options),
            _ => Err(ALONE.into()),
        });
        let Err(why) = done else { return };
        eprintln!("satori-nested: {why}");
        std::process::exit(2);
    }
    for (kind, target) in [(c"proc", c"/proc"), (c"sysfs", c"/sys"), (c"devtmpfs", c"/dev")] {
        // What is missing is told by the first who needs it.
        let _ = sys::mount(kind, target);
    }
    let done = options.and_then(|options| match role.as_str() {
        "l1" => l1(&options),
        "peer" => peers::l2(&options),
        "l2" => {
            say(&about());
            rows(&options, &L2)
        }
        _ => Err(format!("unknown role '{role}': l1 or l2")),
    });
    match done {
        Ok(()) => say(r#"{"end":true}"#),
        Err(why) => say(&format!(r#"{{"failed":{why:?}}}"#)),
    }
    sys::power_off();
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options { rows: Vec::new(), amount: Amount::default(), scale: 1 };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word} {value} is no number"));
        match word.as_str() {
            "--rows" => options.rows = value.split(',').map(str::to_string).collect(),
            "--budget" => options.amount.budget_ms = number()?,
            "--scale" => options.scale = number()?,
            "--exactly" => options.amount.exactly = Some(number()?),
            _ => return Err(format!("unknown flag {word}")),
        }
    }
    Ok(options)
}

/// A line on the console, in one write, so that no other comes between.
pub fn say(json: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(format!("{MARK}{json}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Kernel and clock.
fn about() -> String {
    format!(
        r#"{{"kernel":{:?},"clocksource":{:?}}}"#,
        read("/proc/sys/kernel/osrelease"),
        read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )
}

fn of<'a>(options: &'a Options, known: &'a [&str]) -> impl Iterator<Item = &'a String> {
    options.rows.iter().filter(|row| known.contains(&row.as_str()))
}

fn rows_of_l1(options: &Options) -> Result<(), Failure> {
    rows(options, &L1)
}

fn rows(options: &Options, known: &[&str]) -> Result<(), Failure> {
    of(options, known).try_for_each(|row| measure::row(row, &options.amount).map(|line| say(&line)))
}

fn l1(options: &Options) -> Result<(), Failure> {
    say(&about());
    rows_of_l1(options)?;
    let bare: Vec<_> = of(options, &bare::ROWS).collect();
    let mut modules: Vec<_> =
        std::fs::read_dir("/modules").into_iter().flatten().flatten().map(|e| e.path()).collect();
    // Their names begin with their places in the order.
    modules.sort();
    for module in modules {
        let bytes = std::fs::read(&module).map_err(|why| format!("{}: {why}", module.display()))?;
        sys::load_module(&bytes).map_err(|why| format!("{}: {why}", module.display()))?;
    }
    let log = sys::kernel_log();
    say(&format!(r#"{{"evmcs":{}}}"#, log.contains("using Hyper-V Enlightened VMCS")));
    let kvm = kvm::Kvm::open()?;
    say(&format!(r#"{{"stable_clock":{}}}"#, bare::stable_clock(&kvm)?));
    for row in bare {
        say(&bare::row(&kvm, row, &options.amount)?);
    }
    Ok(())
}
