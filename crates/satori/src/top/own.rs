//! A guest that `satori top` starts itself.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often is looked whether the socket is there.
const LOOK: Duration = Duration::from_millis(5);

/// The guest, and a folder for its socket and its messages.
pub struct Own {
    child: Child,
    folder: PathBuf,
}

impl Own {
    /// Starts `satori run` with these words, and waits until it can be watched.
    pub fn start(words: &[String], console: Option<&Path>) -> Result<Own> {
        let words = match words {
            [program, run, rest @ ..] if is_satori(program) && run == "run" => rest,
            [run, rest @ ..] if run == "run" => rest,
            _ => bail!("'{}' is no guest: write 'satori top -- run' and its options", words.join(" ")),
        };
        if words.iter().any(|word| word == "--stats-socket" || word.starts_with("--stats-socket=")) {
            bail!("--stats-socket is chosen here: leave it out, or start 'satori run' by itself");
        }
        let console = match console {
            None => Stdio::null(),
            Some(path) => File::create(path)
                .with_context(|| format!("cannot write --console {}: name another place", path.display()))?
                .into(),
        };
        let folder = std::env::temp_dir().join(format!("satori-top-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| format!("cannot make {}: set TMPDIR to another place", folder.display()))?;
        let child = File::create(folder.join("messages")).and_then(|messages| {
            let program = std::env::current_exe()?;
            let mut command = Command::new(program);
            command.arg("run").args(words).arg("--stats-socket").arg(folder.join("socket"));
            command.stdin(Stdio::null()).stdout(console).stderr(messages).spawn()
        });
        let child = match child {
            Ok(child) => child,
            Err(why) => {
                let _ = std::fs::remove_dir_all(&folder);
                bail!("cannot start the guest ({why})");
            }
        };
        let mut own = Own { child, folder };
        while !own.socket().exists() {
            if own.child.try_wait()?.is_some() {
                let said = own.messages();
                bail!("the guest did not start: {}", said.trim().trim_start_matches("satori: "));
            }
            std::thread::sleep(LOOK);
        }
        Ok(own)
    }

    /// Where it is watched.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn messages(&self) -> String {
        std::fs::read_to_string(self.folder.join("messages")).unwrap_or_default()
    }

    /// Ends the guest, if it has not ended, and tells its last words and its report.
    pub fn finish(mut self, out: &mut dyn Write) -> Result<()> {
        self.end();
        write!(out, "{}", self.messages())?;
        Ok(())
    }

    fn end(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // It is ours and was not waited for, so the number is still its own. The report comes then.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn is_satori(word: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "satori")
}
