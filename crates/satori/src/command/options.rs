//! The options of a command: which folders it sees, and what does not go with it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use satori_files::Mode;

use super::initramfs::Way;
use super::user::User;
use super::{busybox, refused};
use crate::cli;
use crate::output::Newlines;
use crate::shares::{self, Folder, existing};

/// The root's tag.
const ROOT: &str = "satori-root";
/// That of a folder with the modules of the kernel.
const MODULES: &str = "satori-modules";

/// A folder that the guest gets.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// What is served.
    pub folder: Folder,
    /// Where our init mounts it; none if the guest does that itself.
    pub at: Option<PathBuf>,
}

/// What the command finds of folders and users.
#[derive(Clone, Debug)]
pub(super) struct Folders {
    /// The root first.
    all: Vec<Place>,
    /// Where the command begins.
    pub cwd: PathBuf,
    /// Who it is.
    pub user: User,
}

impl Folders {
    /// The folders that the options ask for.
    pub(super) fn of(flags: &cli::Run) -> Result<Folders> {
        let (arch, flags, machine) = (flags.arch, &flags.command, &flags.machine);
        let mode = if flags.rw { Mode::Rw } else { Mode::Cow };
        let root = match &flags.root {
            Some(path) => existing("--root", path)?,
            None if arch == cli::Arch::Arm64 => busybox::root()?,
            None => PathBuf::from("/"),
        };
        let foreign = root != Path::new("/");
        let user = User::of(flags.user.as_deref(), &root)?;
        // Elsewhere a command would remove or write other files than it was told to.
        let cwd = match std::env::current_dir() {
            Ok(cwd) => cwd,
            Err(_) if foreign => "/".into(),
            Err(error) => anyhow::bail!(
                "the working directory is no more ({error}): change to one that is there, as the command begins in it"
            ),
        };
        let inside = root.join(cwd.strip_prefix("/").unwrap_or(&cwd));
        let cwd = if foreign && !inside.is_dir() { "/".into() } else { cwd };
        // A tree that somebody made without being root, where root's files are the maker's own.
        let made = |meta: std::fs::Metadata| meta.uid() == rustix::process::geteuid().as_raw();
        let as_root = flags.root.is_some() && user.uid == 0 && root.metadata().is_ok_and(made);
        let mut folder = Folder::new(ROOT, root, mode);
        folder.share.as_root = as_root;
        let mut all = vec![Place { folder, at: Some("/".into()) }];
        for (path, number) in flags.rwdir.iter().zip(1..) {
            let path = existing("--rwdir", path)?;
            let folder = Folder::new(format!("satori-rw{number}"), path.clone(), Mode::Rw);
            all.push(Place { folder, at: Some(path) });
        }
        let shares = shares::folders(all.iter().map(|place| &place.folder), machine)?;
        all.extend(shares.into_iter().map(|folder| Place { folder, at: None }));
        Ok(Folders { all, cwd, user })
    }

    /// Serves a folder of modules beside the others, read-only: for a root that has not this machine's files, or may not be changed.
    pub(super) fn add_modules<'a>(&mut self, folder: &Path) -> Way<'a> {
        let share = Folder::new(MODULES, folder.to_path_buf(), Mode::Ro);
        self.all.push(Place { folder: share, at: None });
        let kept = self.all.first().is_some_and(|root| root.folder.share.mode == Mode::Rw);
        Way::Share { tag: MODULES, kept }
    }

    /// All folders, the root first.
    pub(super) fn all(&self) -> &[Place] {
        &self.all
    }
}

/// Refuses options that say nothing with a command.
pub(super) fn check(flags: &cli::Run) -> Result<()> {
    let machine = &flags.machine;
    if !flags.initrd.is_empty() || !flags.module.is_empty() {
        refused("--initrd", "the initial ramdisk is Satori's own")?;
    }
    if flags.boot != cli::Boot::Auto {
        refused("--boot", "how the kernel is entered is Satori's choice")?;
    }
    let recorded = machine.record.is_some() || machine.replay.is_some();
    if machine.clock == cli::Clock::Virtual && !recorded {
        refused(
            "--clock virtual",
            "shared folders are not the same every time: --record writes down what they say",
        )?;
    }
    if machine.console_newlines != Newlines::Raw {
        refused("--console-newlines", "a command's output is as it writes it")?;
    }
    crate::commands::run::report_of(machine, machine.processor.cpus.unwrap_or_default().cpus())
}
