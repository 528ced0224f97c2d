//! `satori initrd`: a folder, busybox and modules, packed into an initramfs that a kernel boots.

mod tree;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueHint};

use crate::command::kernel;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::inputs::read;
use crate::late::plain;
use crate::say::say;

/// The init of archives that have none of their own, for busybox' shell.
const INIT: &str = include_str!("initrd/init.sh");
/// The program of `guests/init/src/bin/satori-exit.rs`, and why it was not built.
const EXIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/exit"));
const MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/init-missing"));

/// What a guest's programs and our init expect.
const DIRECTORIES: [&str; 14] = [
    "bin",
    "dev",
    "etc",
    "lib",
    "lib/modules",
    "proc",
    "root",
    "run",
    "sbin",
    "sys",
    "tmp",
    "usr",
    "usr/bin",
    "usr/sbin",
];

/// Examples below the flags.
pub const FOOTER: &str = "\
Without an init of its own the archive has one that mounts /proc, /sys and /dev, loads the modules, does what --run says or gives a
shell, and powers off. /bin/satori-exit N ends the guest with N at its debug exit; 'satori fetch exit' has it, too. Owners
are root, times are none: the same files are the same bytes.

Examples:
  satori initrd --busybox -o shell.cpio
  satori initrd --busybox --run 'uname -a; satori-exit 3' -o uname.cpio
  satori initrd --busybox --kernel 6.1 --module virtio_blk --module ext4 -o disk.cpio";

/// `satori initrd`.
#[derive(Debug, Args)]
pub struct Initrd {
    /// The folder that becomes the guest's root [default: nothing]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
    /// Where the archive goes
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Add busybox, whose commands the guest finds in /bin: Debian's busybox-static, or the static one that is named
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, value_hint = ValueHint::FilePath)]
    pub busybox: Option<Option<PathBuf>>,
    /// The archive's /init: a program or script, instead of DIR's and ours
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub init: Option<PathBuf>,
    /// What our init does instead of giving a shell: a shell's commands
    #[arg(long, value_name = "COMMANDS", conflicts_with = "init")]
    pub run: Option<String>,
    /// A module that our init loads, behind all that it needs, with its parameters: "NAME PARAMETER=VALUE". May be given several times
    #[arg(long, value_name = "NAME")]
    pub module: Vec<String>,
    /// The kernel whose modules they are: a FILE, a series such as 6.12, a package's file (.deb) or a build tree [default: the newest
    /// that was fetched]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "module")]
    pub kernel: Option<PathBuf>,
    /// Where its modules are [default: beside the kernel, in its package, its build tree or /lib/modules]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "module")]
    pub modules: Option<PathBuf>,
}

/// Packs what the flags say, and says how much it was.
pub fn perform(flags: &Initrd) -> Result<()> {
    inside(flags)?;
    let bytes = pack(flags)?;
    let shown = flags.output.display();
    let written = std::fs::File::create(&flags.output).and_then(|mut file| file.write_all(&bytes));
    written.map_err(|why| anyhow!("cannot write --output {shown} ({}): name another place", plain(&why)))?;
    say(format_args!("{shown}: {} bytes", bytes.len()));
    Ok(())
}

/// Refuses an archive that would hold itself.
fn inside(flags: &Initrd) -> Result<()> {
    let folder = flags.folder.as_deref().and_then(|folder| folder.canonicalize().ok());
    let parent = flags.output.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    match (folder, parent.canonicalize()) {
        (Some(folder), Ok(parent)) if parent.starts_with(&folder) => bail!(
            "--output {} lies in {}, and would be packed the next time: name another place",
            flags.output.display(),
            folder.display()
        ),
        _ => Ok(()),
    }
}

/// The archive.
fn pack(flags: &Initrd) -> Result<Vec<u8>> {
    let has = |name: &str| flags.folder.as_ref().is_some_and(|f| f.join(name).symlink_metadata().is_ok());
    let own_init = flags.init.is_some() || has("init");
    if !own_init && flags.busybox.is_none() && !has("bin/busybox") {
        bail!(
            "the archive has no init: add one to the folder, name one with --init, or add --busybox, whose shell runs ours"
        );
    }
    if own_init && flags.run.is_some() {
        bail!("--run is for our own init, and the folder has one: take it out, or leave --run out");
    }
    let modules = modules(flags)?;
    let mut cpio = Cpio::new();
    if let Some(folder) = &flags.folder {
        tree::add(&mut cpio, folder)?;
    }
    // Behind the folder's own: one of them may be a link, as Debian's lib, which what comes below follows.
    for name in DIRECTORIES.iter().filter(|name| !has(name)) {
        cpio.directory(name);
    }
    // What init's streams are, before anything could be mounted.
    for (name, mode, minor, major) in [("dev/console", 0o600, 1, 5), ("dev/null", 0o666, 3, 1)] {
        if !has(name) {
            cpio.device(name, mode, major, minor);
        }
    }
    if let Some(wanted) = &flags.busybox {
        let path = match wanted {
            None => cache::get(Wanted::Busybox, false)?,
            Some(file) => file.clone(),
        };
        let program = read("--busybox", &path)?;
        if !program.starts_with(b"\x7fELF") {
            bail!("--busybox {} is no ELF program: name a statically linked busybox", path.display());
        }
        cpio.file("bin/busybox", 0o755, &program);
        if !has("bin/sh") {
            cpio.link("bin/sh", "busybox");
        }
    }
    if !EXIT.is_empty() && !has("bin/satori-exit") {
        cpio.file("bin/satori-exit", 0o755, EXIT);
    }
    let mut order = String::new();
    for (name, options, bytes) in &modules {
        cpio.file(format!("lib/modules/{name}"), 0o644, bytes);
        order += format!("/lib/modules/{name} {options}").trim_end();
        order.push('\n');
    }
    if !modules.is_empty() {
        cpio.file("lib/modules/load", 0o644, order.as_bytes());
    }
    if let Some(commands) = &flags.run {
        cpio.file("etc/satori-run", 0o644, format!("{commands}\n").as_bytes());
    }
    if let Some(path) = &flags.init {
        cpio.file("init", 0o755, &read("--init", path)?);
    } else if !own_init {
        cpio.file("init", 0o755, INIT.as_bytes());
    }
    Ok(cpio.finish())
}

/// Name, parameters and bytes of each module to load, in order; unpacked, since busybox' insmod does not.
fn modules(flags: &Initrd) -> Result<Vec<(String, String, Vec<u8>)>> {
    if flags.module.is_empty() {
        return Ok(Vec::new());
    }
    let found =
        kernel::with_modules(crate::cli::Arch::X86, flags.kernel.as_deref(), flags.modules.as_deref())?;
    let release = found.release.unwrap_or_else(|| "of an unknown release".into());
    let Some(modules) = found.modules else {
        bail!("the modules of kernel {release} were not found: name their folder with --modules DIR");
    };
    let wanted: Vec<_> = flags.module.iter().map(|text| text.split_once(' ').unwrap_or((text, ""))).collect();
    let names: Vec<_> = wanted.iter().map(|(name, _)| *name).collect();
    let (loaded, missing) = modules.closure(&names)?;
    if let Some(name) = missing.first() {
        bail!("--module: kernel {release} has no module {name}: look for its name in lib/modules/{release}");
    }
    let mut all = Vec::new();
    for module in loaded {
        let (name, bytes) = module.plain()?;
        let is = |wanted: &str| wanted.replace('-', "_") == name.trim_end_matches(".ko").replace('-', "_");
        let options = wanted.iter().find(|(wanted, _)| is(wanted)).map_or("", |(_, options)| options);
        all.push((name, options.to_owned(), bytes));
    }
    Ok(all)
}

/// Puts the program that ends a guest into the cache, and tells where it is.
pub fn exit_program() -> Result<PathBuf> {
    if EXIT.is_empty() {
        bail!("this build has no satori-exit: {MISSING}; then build Satori again");
    }
    let path = cache::place(&format!("satori-exit-{}", env!("CARGO_PKG_VERSION")))?;
    if std::fs::read(&path).is_ok_and(|bytes| bytes == EXIT) {
        return Ok(path);
    }
    use std::os::unix::fs::PermissionsExt;
    let work = path.with_extension(format!("{}", std::process::id()));
    let made = std::fs::write(&work, EXIT)
        .and_then(|()| std::fs::set_permissions(&work, PermissionsExt::from_mode(0o755)))
        .and_then(|()| std::fs::rename(&work, &path));
    made.map_err(|why| anyhow!("cannot write {} ({}): make room", path.display(), plain(&why)))?;
    Ok(path)
}
