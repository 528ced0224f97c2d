//! `satori demo`: from nothing to a booted Debian kernel and its report.

mod system;

use std::io::{IsTerminal, stdin};

use anyhow::{Result, bail};
use satori_machine::{Cmdline, Module, ProtocolChoice};

use crate::commands::run::{self, Boot};
use crate::debian::cache::{self, Wanted};
use crate::say::say;
use crate::status::Status;
use crate::{choose, cli, terminal};
use crate::{initramfs, inputs};

/// Does what `satori demo` was told.
pub fn demo(mut flags: cli::Demo) -> Status {
    let prepared = choose::machine(&flags.machine).and_then(|chosen| {
        let boot = if flags.system { system::prepare(&mut flags)? } else { prepare(&flags)? };
        Ok((boot, chosen))
    });
    match prepared {
        Ok((boot, chosen)) => run::start(boot, &flags.machine, &chosen),
        Err(error) => run::refuse(&error),
    }
}

fn prepare(flags: &cli::Demo) -> Result<Boot> {
    if flags.interactive && !stdin().is_terminal() {
        say(format_args!("--interactive without a terminal: the shell reads standard input as it comes"));
    }
    let kernel = match &flags.kernel {
        None => cache::get(Wanted::Kernel, flags.refresh)?,
        Some(file) => match cache::series(file) {
            Some(series) => cache::get(Wanted::Series(series), flags.refresh)?,
            None => file.clone(),
        },
    };
    let busybox = match &flags.busybox {
        None => cache::get(Wanted::Busybox, flags.refresh)?,
        Some(file) => file.clone(),
    };
    flags.places().reads("the kernel", [&kernel]).reads("busybox", [&busybox]).check()?;
    let program = inputs::read("--busybox", &busybox)?;
    if !program.starts_with(b"\x7fELF") {
        bail!("--busybox {} is no ELF program: name a statically linked busybox", busybox.display());
    }
    say(format_args!("kernel {}", kernel.display()));
    say(format_args!("busybox {}", busybox.display()));
    Ok(Boot {
        kernel: inputs::read("--kernel", &kernel)?,
        kernel_name: kernel.display().to_string(),
        initrds: vec![Module {
            data: initramfs::build(&program, &init_script(flags.interactive), &[]),
            ..Module::default()
        }],
        cmdline: match terminal::size().filter(|_| flags.interactive) {
            Some(size) => Cmdline::On(flags.append.clone().unwrap_or_default(), size),
            None => Cmdline::Added(flags.append.clone().unwrap_or_default()),
        },
        protocol: ProtocolChoice::Auto,
    })
}

const INIT: &str = include_str!("demo/init.sh");
const POWEROFF: &str = "poweroff -f\n";
// cttyhack gives the shell a controlling terminal, so that Ctrl-C and job control work.
const SHELL: &str = "for word in $(cat /proc/cmdline); do
  case $word in systemd.tty.rows.ttyS0=*) stty rows ${word##*=};; systemd.tty.columns.ttyS0=*) stty cols ${word##*=};; esac
done
echo 'A shell in the guest; poweroff -f ends it.'\nsetsid cttyhack sh\npoweroff -f\n";

/// The init script of the demo.
pub fn init_script(interactive: bool) -> String {
    format!("{INIT}{}", if interactive { SHELL } else { POWEROFF })
}
