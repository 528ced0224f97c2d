//! A guest that `satori top` starts itself.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use satori_lock::Held;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{self, Cli, Run};
use crate::late::plain;
use crate::say::say;

/// How often is looked whether the socket is there.
const LOOK: Duration = Duration::from_millis(5);
/// How long a guest that answers no more may take to end, and to tell its report.
const PATIENCE: Duration = Duration::from_secs(10);

/// The guest that `words` start, as far as they are right; the guest itself tells what is not.
pub fn guest(words: &[OsString]) -> Result<Option<Run>> {
    let rest = words_of(words)?;
    let line = ["satori", "run"].into_iter().map(OsString::from).chain(rest.iter().cloned());
    match Cli::try_parse_from(line) {
        Ok(Cli { command: cli::Command::Run(run) }) if run.machine.stats_socket.is_some() => {
            bail!("--stats-socket is chosen here: leave it out, or start 'satori run' by itself")
        }
        Ok(Cli { command: cli::Command::Run(run) }) => Ok(Some(run)),
        _ => Ok(None),
    }
}

fn words_of(words: &[OsString]) -> Result<&[OsString]> {
    match words {
        [program, run, rest @ ..] if is_satori(program) && run == "run" => Ok(rest),
        [run, rest @ ..] if run == "run" => Ok(rest),
        _ => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            bail!("'{}' is no guest: write 'satori top -- run' and its options", words.join(" "))
        }
    }
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, or by its user, with this status.
    Own(u8),
    /// Since it was not to be watched any longer.
    Ours,
}

/// The guest, and what it says.
pub struct Own {
    child: Arc<Mutex<Child>>,
    folder: Folder,
    /// Removed as soon as it is open.
    messages: File,
    console: Option<JoinHandle<()>>,
}

/// The folder of the socket, which goes as soon as somebody is connected, or with its value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Own {
    /// Starts `satori run` with these words, and waits until it can be watched.
    pub fn start(words: &[OsString], console: Option<&Path>) -> Result<Own> {
        guest(words)?;
        let rest = words_of(words)?;
        let console =
            match console {
                None => None,
                Some(path) => Some(File::create(path).with_context(|| {
                    format!("cannot write --console {}: name another place", path.display())
                })?),
            };
        let path = std::env::temp_dir().join(format!("satori-top-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}: set TMPDIR to another place", path.display()))?;
        let folder = Folder(path);
        let (child, messages) = spawn(rest, &folder.0).context("cannot start the guest")?;
        let child = Arc::new(Mutex::new(child));
        let copying = lock(&child).stdout.take();
        // The guest's console ends in this process, so that the guest ends when this process is killed.
        let console = copying.and_then(|from| {
            std::thread::Builder::new().name("console".into()).spawn(move || copy(from, console)).ok()
        });
        let mut own = Own { child, folder, messages, console };
        let socket = own.socket();
        // It is there a moment before it can be reached, and still when the guest has ended.
        while UnixStream::connect(&socket).is_err() {
            if lock(&own.child).try_wait()?.is_some() {
                if socket.exists() {
                    break;
                }
                let said = own.said();
                bail!("the guest did not start: {}", said.trim().trim_start_matches("satori: "));
            }
            std::thread::sleep(LOOK);
        }
        Ok(own)
    }

    /// Where it is watched, until [`Own::connected`].
    pub fn socket(&self) -> PathBuf {
        self.folder.0.join("socket")
    }

    /// Removes what only a connection needed.
    pub fn connected(&self) {
        let _ = std::fs::remove_dir_all(&self.folder.0);
    }

    /// What ends it from another thread.
    pub fn ender(&self) -> impl Fn() + Send + use<> {
        let (child, folder) = (self.child.clone(), self.folder.0.clone());
        move || {
            end(&mut lock(&child));
            let _ = std::fs::remove_dir_all(&folder);
        }
    }

    fn said(&mut self) -> String {
        let mut text = Vec::new();
        let _ = self.messages.rewind().and_then(|()| self.messages.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Ends the guest, if it has not ended, and tells its last words and its report. `over` says that it does not
    /// answer any more: its process is about to end by itself, with a status of its own.
    pub fn finish(mut self, over: bool, out: &mut dyn Write) -> Result<End> {
        let begin = Instant::now();
        while over && begin.elapsed() < PATIENCE && matches!(lock(&self.child).try_wait(), Ok(None)) {
            std::thread::sleep(LOOK);
        }
        let (ours, status) = end(&mut lock(&self.child));
        self.console.take().map(JoinHandle::join);
        write!(out, "{}", self.said())?;
        Ok(match status.and_then(|status| status.code()) {
            _ if ours => End::Ours,
            Some(code) => End::Own(u8::try_from(code).unwrap_or(u8::MAX)),
            // A signal killed it.
            None => End::Own(crate::status::Status::Internal.code()),
        })
    }
}

/// Ends `child` if it runs; whether that was our doing, and its status.
fn end(child: &mut Child) -> (bool, Option<ExitStatus>) {
    let runs = matches!(child.try_wait(), Ok(None));
    if runs && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It is ours and was not waited for, so the number is still its own. The report comes then.
        let _ = kill_process(pid, Signal::TERM);
    }
    (runs, child.wait().ok())
}

fn lock(child: &Mutex<Child>) -> std::sync::MutexGuard<'_, Child> {
    child.lock().held()
}

fn spawn(words: &[OsString], folder: &Path) -> std::io::Result<(Child, File)> {
    let path = folder.join("messages");
    let messages = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg("run").args(words).arg("--stats-socket").arg(folder.join("socket"));
    let said = messages.try_clone()?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said).spawn()?;
    Ok((child, messages))
}

/// Takes what the guest prints to its file, if there is one.
fn copy(mut from: impl Read, mut to: Option<File>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if let Some(file) = &mut to
            && let Err(why) = file.write_all(&buffer[..length])
        {
            say(format_args!("--console: the rest is lost ({})", plain(&why)));
            to = None;
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        end(&mut lock(&self.child));
    }
}

fn is_satori(word: &OsStr) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "satori")
}
