//! `satori test`: commands in many kernels and configurations, several at a time.

mod case;
pub mod flags;
mod matrix;
mod pool;
mod tell;

use std::io::{IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cli::Form;
use crate::late::{LateFile, plain};
use crate::say::{Out, say};
use crate::status::Status;

use case::{Attempt, Ended, Place, Verdict};
use flags::{Step, Test};
use matrix::{Case, cases};
use pool::How;

/// Does what `satori test` was told.
pub fn test(flags: &Test) -> Result<Status> {
    match &flags.step {
        Some(Step::Plan { file, only, format }) => plan(&chosen(file, only)?, *format),
        Some(Step::Exec { file, case, out }) => exec(&cases(file)?, case, out),
        Some(Step::Merge { file, results, junit, format }) => {
            merge(&cases(file)?, results, junit.as_deref(), *format)
        }
        None => whole(flags),
    }
}

fn chosen(file: &Path, only: &[String]) -> Result<Vec<Case>> {
    let mut all = cases(file)?;
    all.retain(|case| only.is_empty() || only.iter().any(|text| case.name.contains(text.as_str())));
    if all.is_empty() {
        bail!(
            "no case's name contains '{}': 'satori test plan {}' lists them",
            only.join("' or '"),
            file.display()
        );
    }
    Ok(all)
}

/// All cases here.
fn whole(flags: &Test) -> Result<Status> {
    let Some(file) = &flags.file else { bail!("no file was named: write 'satori test FILE.toml'") };
    let cases = chosen(file, &flags.only)?;
    let junit = flags.junit.as_deref().map(|path| LateFile::open("--junit", path)).transpose()?;
    let (place, temporary) = match &flags.out {
        Some(folder) => (kept(folder)?, None),
        None => {
            let temporary = Temporary::new()?;
            (Place { folder: temporary.0.clone(), keep: false }, Some(temporary))
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = flags.jobs.map_or(processors, |jobs| jobs as usize);
    let how = How { jobs, repeat: flags.repeat, place, bar: std::io::stderr().is_terminal() };
    let begun = Instant::now();
    let all = pool::run(&cases, &how, &mut |ended| {
        if let Some(case) = cases.iter().find(|case| case.number == ended.number).filter(|_| how.place.keep) {
            ended.write(&how.place.folder, case)?;
        }
        match flags.format {
            Form::Text => Ok(Out.write_all(tell::line(ended).as_bytes()).and_then(|()| Out.flush())?),
            Form::Json => Ok(()),
        }
    })?;
    drop(temporary);
    let Some(all) = all else {
        if let Some(junit) = junit {
            junit.take_back();
        }
        say(format_args!("interrupted: guests were ended"));
        return Ok(Status::User);
    };
    told(&all, flags.format, Some(begun), flags.repeat > 1, junit)
}

/// Prints and writes what became of all cases.
fn told(
    all: &[Ended],
    format: Form,
    begun: Option<Instant>,
    repeated: bool,
    junit: Option<LateFile>,
) -> Result<Status> {
    match format {
        Form::Text => Out.write_all(tell::summary(all, begun.map(|begun| begun.elapsed())).as_bytes())?,
        Form::Json => writeln!(Out, "{}", tell::object(all))?,
    }
    let bad = tell::count(all, Verdict::Failed) > 0 || repeated && tell::count(all, Verdict::Flaky) > 0;
    let status = if bad { Status::Short } else { Status::Ok };
    if let Some(junit) = junit
        && let Err(why) = junit.begin().write_all(tell::xml(all, repeated).as_bytes())
    {
        say(format_args!("--junit cannot be written ({}): make room, or name another place", plain(&why)));
        return Ok(status.or_lost(true));
    }
    Ok(status)
}

fn plan(cases: &[Case], format: Form) -> Result<Status> {
    match format {
        Form::Text => cases.iter().try_for_each(|case| writeln!(Out, "{}\t{}", case.number, case.name))?,
        Form::Json => {
            let all: Vec<_> = cases
                .iter()
                .map(|case| {
                    serde_json::json!({
                        "number": case.number, "name": case.name, "options": case.options, "words": case.words,
                        "dir": case.dir.display().to_string(), "expect": case.expect, "ktap": case.ktap, "retries": case.retries,
                    })
                })
                .collect();
            writeln!(
                Out,
                "{}",
                serde_json::json!({ "format": "satori-test-plan", "version": 1, "cases": all })
            )?;
        }
    }
    Ok(Status::Ok)
}

/// One case here, for a machine among many.
fn exec(cases: &[Case], wanted: &str, out: &Path) -> Result<Status> {
    let by_number =
        wanted.parse().ok().and_then(|number: usize| cases.iter().find(|case| case.number == number));
    let Some(case) = cases.iter().find(|case| case.name == wanted).or(by_number) else {
        bail!(
            "there is no case '{wanted}': 'satori test plan' lists numbers 1 to {} and their names",
            cases.len()
        );
    };
    let how = How { jobs: 1, repeat: 1, place: kept(out)?, bar: false };
    let one = std::slice::from_ref(case);
    let all = pool::run(one, &how, &mut |ended| {
        ended.write(&how.place.folder, case)?;
        Ok(Out.write_all(tell::line(ended).as_bytes())?)
    })?;
    Ok(match all {
        None => {
            say(format_args!("interrupted: the guest was ended, and there is no result"));
            Status::User
        }
        Some(all) if tell::count(&all, Verdict::Failed) > 0 => Status::Short,
        Some(_) => Status::Ok,
    })
}

/// What became of all cases, wherever they ran.
fn merge(cases: &[Case], folders: &[PathBuf], junit: Option<&Path>, format: Form) -> Result<Status> {
    let junit = junit.map(|path| LateFile::open("--junit", path)).transpose()?;
    let mut found: Vec<(Ended, std::time::SystemTime)> = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder).map_err(|why| {
            anyhow::anyhow!(
                "cannot read {} ({}): name the folder of 'exec --out'",
                folder.display(),
                plain(&why)
            )
        })?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "json")
                && let Some(ended) = Ended::read(&path)?
            {
                found.push((ended, path.metadata()?.modified()?));
            }
        }
    }
    // Of a case that ran on several machines the last run decides.
    found.sort_by_key(|(_, time)| *time);
    let mut all = Vec::new();
    for case in cases {
        let mut attempts = Vec::new();
        for (ended, _) in found.iter().filter(|(ended, _)| ended.number == case.number) {
            if ended.name != case.name || ended.words != case.words {
                bail!(
                    "the results are not of this file: its case {} is '{}', theirs '{}'; name the file that they were made with",
                    case.number,
                    case.name,
                    ended.name
                );
            }
            attempts.extend(ended.attempts.iter().cloned());
        }
        if attempts.is_empty() {
            let why = Some("there is no result of it: it did not run, or did not end".to_owned());
            attempts.push(Attempt { why, seconds: 0.0, status: None, told: String::new(), results: None });
        }
        all.push(Ended::new(case, attempts));
    }
    if format == Form::Text {
        all.iter().try_for_each(|ended| Out.write_all(tell::line(ended).as_bytes()))?;
    }
    told(&all, format, None, false, junit)
}

/// A folder in which results stay.
fn kept(folder: &Path) -> Result<Place> {
    std::fs::create_dir_all(folder).map_err(|why| {
        anyhow::anyhow!("cannot make --out {} ({}): name another place", folder.display(), plain(&why))
    })?;
    Ok(Place { folder: folder.to_path_buf(), keep: true })
}

/// A folder that is gone at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Temporary> {
        let path = std::env::temp_dir().join(format!("satori-test-{}", std::process::id()));
        // Somebody else's is not used.
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| {
            format!("cannot make {}: remove it, or name a folder with --out", path.display())
        })?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
