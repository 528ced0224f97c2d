//! The binary `satori`: parses, does, and exits with the status of what happened.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::Result;
use clap::Parser;
use satori::cli::{Cli, Command};
use satori::commands::{
    bench, costs, cpu, demo, doctor, engines, explain, fetch, hyperv, initrd, kvm, msrs, offers, pages,
    reports, run, test, top, xen,
};
use satori::say::{Out, line, say, unwritten};
use satori::status::Status;
use satori::{probe, qemu, terminal, usage};
use satori_host::heap;

fn main() {
    leave_cleanly_on_panic();
    heap::one_for_all();
    if let Some(words) = qemu::called() {
        std::process::exit(qemu::main(&words).into());
    }
    let command = std::env::args_os().nth(1);
    // No row of the table: completions and man pages would show it.
    if let Some(told) = command.as_deref().and_then(|command| probe::run(command.to_str()?)) {
        let _ = writeln!(Out, "{told}");
        return;
    }
    if command.as_deref() == Some(satori_files::COMMAND.as_ref()) {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        std::process::exit(satori_files::main(&arguments));
    }
    if command.as_deref() == Some(satori_net::COMMAND.as_ref()) {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        std::process::exit(satori_net::main(&arguments));
    }
    if command.as_deref() == Some(satori_vsock::COMMAND.as_ref()) {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        std::process::exit(satori_vsock::main(&arguments));
    }
    let code = match Cli::try_parse() {
        Ok(cli) => {
            let bisect = cli.command.machine().is_some_and(|machine| machine.bisect);
            let status = match cli.command.places().check() {
                Ok(()) => perform(cli.command),
                Err(error) => run::refuse(&error),
            };
            let status = flushed(status);
            if bisect { status.for_bisect() } else { status.code() }
        }
        Err(error) if usage::is_help(&error, &std::env::args_os().skip(1).collect::<Vec<_>>()) => {
            flushed(done(Out.write_all(help(&error).as_bytes()).map_err(Into::into))).code()
        }
        Err(error) if usage::is_empty(&error) => {
            let _ = error.print();
            Status::Usage.code()
        }
        Err(error) => {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            say(format_args!("{}", usage::line(&error, &words)));
            // Flags that are not understood judge no revision.
            let bisect = words.iter().take_while(|word| *word != "--").any(|word| word == "--bisect");
            if bisect { Status::Usage.for_bisect() } else { Status::Usage.code() }
        }
    };
    std::process::exit(code.into());
}

/// The text of a help or a version, with colours where standard output is a terminal.
fn help(error: &clap::Error) -> String {
    let styled = error.render();
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        styled.ansi().to_string()
    } else {
        styled.to_string()
    }
}

/// The status, once what was printed has left.
fn flushed(status: Status) -> Status {
    match Out.flush() {
        Ok(()) => status,
        Err(error) if status == Status::Ok => done(Err(error.into())),
        Err(_) => status,
    }
}

fn perform(command: Command) -> Status {
    match command {
        Command::Run(mut flags) => run::run(&mut flags),
        Command::Demo(flags) => demo::demo(flags),
        Command::Bench(flags) => match bench::bench(&flags) {
            Ok(status) => status,
            Err(error) => done(Err(error)),
        },
        Command::Test(flags) => test::test(&flags).unwrap_or_else(|error| done(Err(error))),
        Command::Qemu { words } => Status::Guest(qemu::main(&words)),
        Command::Fetch(flags) => done(fetch::perform(&flags, &mut Out)),
        Command::Initrd(flags) => done(initrd::perform(&flags)),
        Command::Cpu(flags) => done(cpu::show(&flags, &mut Out)),
        Command::Msrs(flags) => done(msrs::show(&flags, &mut Out)),
        Command::Hyperv(command) => done(offers::perform::<hyperv::Hyperv>(&command, &mut Out)),
        Command::Kvm(command) => done(offers::perform::<kvm::Kvm>(&command, &mut Out)),
        Command::Xen(command) => done(offers::perform::<xen::Xen>(&command, &mut Out)),
        Command::Top(flags) => top::top(&flags, &mut Out).unwrap_or_else(|error| done(Err(error))),
        Command::Report(command) => done(reports::perform(&command, &mut Out)),
        Command::Costs(command) => done(costs::perform(&command, &mut Out)),
        Command::Advise(flags) => done(reports::advise(&flags, &mut Out)),
        Command::Explain { name, format } => done(explain::show(&name, format, &mut Out)),
        Command::Doctor { format } => doctor::show(format, &mut Out).unwrap_or_else(|error| done(Err(error))),
        Command::Engines { format } => done(engines::show(format, &mut Out)),
        Command::Completions { shell } => done(pages::completions(shell, &mut Out).map_err(Into::into)),
        Command::Man { command } => done(pages::man(command.as_deref(), &mut Out)),
    }
}

/// The status of a command that runs no guest.
fn done(result: Result<()>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(error) => match unwritten(&error) {
            // `satori man | head` is no failure of anybody, and with pipefail it shall not look like one.
            Some((ErrorKind::BrokenPipe, _)) => Status::Ok,
            Some((_, why)) => {
                say(format_args!("{why}: make room, or name another place"));
                Status::Internal
            }
            None => run::refuse(&error),
        },
    }
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
