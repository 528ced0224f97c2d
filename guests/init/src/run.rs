//! Runs the command, and waits for it.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::control::{Control, Request};
use crate::spec::Spec;
use crate::streams::{self, Streams};
use crate::{Failure, internal, sys};

/// As shells have it: found and not executed, and not found.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs it to its end, and tells the host of that.
pub fn command(spec: &Spec, control: &Control) -> Result<(), Failure> {
    let Some((program, arguments)) = spec.arguments.split_first() else {
        return Err(internal("no command is described".into()));
    };
    let Streams { command: [input, output, error], carriers, terminal } =
        streams::make(spec).map_err(internal)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(spec.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(error));
    let (uid, gid, groups, umask) = (spec.uid, spec.gid, spec.groups.clone(), spec.umask);
    let (root, folder, on_terminal) = (sys::path("/".as_ref()), sys::path(&spec.folder), terminal.is_some());
    let become_caller = move || {
        sys::new_session(on_terminal)?;
        sys::become_user(uid, gid, &groups)?;
        sys::set_umask(umask);
        // A folder that the guest does not have is told of below.
        let _ = sys::change_folder(&root);
        let _ = sys::change_folder(&folder);
        Ok(())
    };
    // SAFETY: only system calls are made between fork and exec, nothing is allocated or locked.
    unsafe { command.pre_exec(become_caller) };
    if !Path::new(&spec.folder).is_dir() {
        control.note(&format!("there is no {} in the guest: the command begins in /", spec.folder.display()));
    }
    let child = command.spawn().map_err(|why| {
        let hidden = why.kind() == ErrorKind::PermissionDenied && !is_seen(program, spec);
        let status = if why.kind() == ErrorKind::NotFound || hidden { NOT_FOUND } else { NOT_EXECUTABLE };
        (status, format!("cannot execute '{}' ({why})", program.display()))
    })?;
    // With it our copies of its streams go.
    drop(command);
    control.tell("started");
    let pid = child.id() as i32;
    let served = control.clone();
    std::thread::spawn(move || {
        served.serve(|request| match request {
            Request::Signal(signal) => sys::kill_group(pid, signal),
            Request::Size(rows, columns) => {
                if let Some(terminal) = &terminal {
                    let _ = sys::set_size(terminal, rows, columns);
                }
            }
        });
    });
    let ended = wait(pid);
    // Whoever was left behind holds the streams open.
    sys::kill_all();
    while sys::wait_any().is_some() {}
    carriers.into_iter().for_each(|carrier| drop(carrier.join()));
    sys::sync();
    control.tell(&match ended {
        sys::Ended::Exited(status) => format!("exited {status}"),
        sys::Ended::Killed(signal) => format!("killed {signal}"),
    });
    Ok(())
}

/// Whether the caller sees a file of this name on its PATH. execvp(3) tells of a folder that may not be searched as it
/// tells of a file that may not be executed; to shells the former holds nothing.
fn is_seen(program: &OsStr, spec: &Spec) -> bool {
    let Some((_, path)) = spec.environment.iter().find(|(name, _)| name == "PATH") else { return true };
    if program.as_bytes().contains(&b'/') || spec.uid == 0 {
        return true;
    }
    let may_search = |folder: &Path| {
        folder.metadata().is_ok_and(|folder| {
            let shift = if folder.uid() == spec.uid {
                6
            } else if folder.gid() == spec.gid || spec.groups.contains(&folder.gid()) {
                3
            } else {
                0
            };
            folder.is_dir() && folder.mode() >> shift & 1 != 0
        })
    };
    let folders = std::env::split_paths(path).map(|folder| Path::new(&spec.folder).join(folder));
    let mut searched = folders.filter(|folder| folder.ancestors().all(may_search));
    searched.any(|folder| folder.join(program).is_file())
}

/// Reaps whatever ends until the command does.
fn wait(pid: i32) -> sys::Ended {
    loop {
        match sys::wait_any() {
            Some((who, ended)) if who == pid => return ended,
            Some(_) => {}
            // It has no children, and so not the command either.
            None => return sys::Ended::Exited(125),
        }
    }
}
