//! The binary `satori`: parses, does, and exits with the status of what happened.

use std::io::{Write, stdout};

use anyhow::Result;
use clap::Parser;
use satori::cli::{Cli, Command, What};
use satori::demo::cache::{self, Wanted};
use satori::say::{line, say};
use satori::status::Status;
use satori::{
    bench, costs, cpu, demo, doctor, engines, explain, hyperv, msrs, pages, probe, reports, run, terminal,
    top, usage,
};

fn main() {
    leave_cleanly_on_panic();
    let command = std::env::args_os().nth(1);
    // No row of the table: completions and man pages would show it.
    if let Some(told) = command.as_deref().and_then(|command| probe::run(command.to_str()?)) {
        let _ = writeln!(stdout(), "{told}");
        return;
    }
    let status = match Cli::try_parse() {
        Ok(cli) => perform(cli.command),
        Err(error) if usage::is_help(&error) => {
            let _ = error.print();
            Status::Ok
        }
        Err(error) if usage::is_empty(&error) => {
            let _ = error.print();
            Status::Usage
        }
        Err(error) => {
            let command = command.as_deref().and_then(|command| command.to_str());
            say(format_args!("{}", usage::line(&error, command)));
            Status::Usage
        }
    };
    std::process::exit(status.code().into());
}

fn perform(command: Command) -> Status {
    match command {
        Command::Run(flags) => run::run(&flags),
        Command::Demo(flags) => demo::demo(&flags),
        Command::Bench(flags) => match bench::bench(&flags) {
            Ok(status) => status,
            Err(error) => done(Err(error)),
        },
        Command::Fetch(fetch) => {
            let wanted = match (fetch.what, &fetch.series) {
                (What::Kernel, None) => Ok(Wanted::Kernel),
                (What::Kernel, Some(series)) if cache::is_series(series) => Ok(Wanted::Series(series)),
                (What::Kernel, Some(other)) => {
                    Err(anyhow::anyhow!("'{other}' is no kernel series: write two numbers such as 6.12"))
                }
                (What::Busybox, None) => Ok(Wanted::Busybox),
                (What::Memtest, None) => Ok(Wanted::Memtest),
                (What::Busybox | What::Memtest, Some(_)) => {
                    Err(anyhow::anyhow!("only kernels have a series: leave it out"))
                }
            };
            done(wanted.and_then(|wanted| {
                let path = cache::get(wanted, fetch.refresh)?;
                Ok(writeln!(stdout(), "{}", path.display())?)
            }))
        }
        Command::Cpu(flags) => done(cpu::show(&flags, &mut stdout())),
        Command::Msrs(flags) => done(msrs::show(&flags, &mut stdout())),
        Command::Hyperv(command) => done(hyperv::perform(&command, &mut stdout())),
        Command::Top(flags) => done(top::top(&flags, &mut stdout())),
        Command::Report(command) => done(reports::perform(&command, &mut stdout())),
        Command::Costs(command) => done(costs::perform(&command, &mut stdout())),
        Command::Advise(flags) => done(reports::advise(&flags, &mut stdout())),
        Command::Explain { name, format } => done(explain::show(&name, format, &mut stdout())),
        Command::Doctor { format } => {
            doctor::show(format, &mut stdout()).unwrap_or_else(|error| done(Err(error)))
        }
        Command::Engines { format } => done(engines::show(format, &mut stdout())),
        Command::Completions { shell } => done(pages::completions(shell, &mut stdout()).map_err(Into::into)),
        Command::Man { command } => done(pages::man(command.as_deref(), &mut stdout())),
    }
}

/// The status of a command that runs no guest.
fn done(result: Result<()>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        // `satori man | head` is no failure of anybody, and with pipefail it shall not look like one.
        Err(error) if is_closed_pipe(&error) => Status::Ok,
        Err(error) => run::refuse(&error),
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// A panic on any thread is our own failure: the terminal is given back, one line says what
/// happened, and nobody waits for a vCPU that is no more.
fn leave_cleanly_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        terminal::restore();
        line(format_args!("satori: internal error, please report it: {info}"));
        std::process::exit(Status::Internal.code().into());
    }));
}
