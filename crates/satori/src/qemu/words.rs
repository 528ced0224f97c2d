//! QEMU's options one by one, and the `satori run` that they come to.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use anyhow::{Result, bail};

use super::chars::{Char, WantedPort};
use super::devices::{Card, Drive};
use super::folders::{Folder, Mount};
use super::machine;
use super::numa::Numa;

/// What the words ask for.
#[derive(Debug)]
pub(super) struct Wishes {
    /// Where the first serial port goes.
    pub(super) console: Char,
    /// What is the same for `satori run` already.
    pub(super) plain: Vec<OsString>,
    pub(super) drives: Vec<Drive>,
    /// By the names of their `-netdev`.
    pub(super) networks: BTreeMap<String, String>,
    pub(super) cards: Vec<Card>,
    pub(super) chars: BTreeMap<String, Char>,
    /// As they were written, since what they name may come later.
    serials: Vec<String>,
    pub(super) ports: Vec<WantedPort>,
    /// Folders by the names of their `-fsdev`, and how they reach the guest.
    pub(super) folders: BTreeMap<String, Folder>,
    pub(super) mounts: Vec<Mount>,
    pub(super) snapshot: bool,
    pub(super) rng: bool,
    /// A memory balloon.
    pub(super) balloon: bool,
    pub(super) suite: bool,
    pub(super) accels: Vec<String>,
    /// By the names of their `-object iothread`.
    pub(super) io_threads: Vec<String>,
    numa: Numa,
    kernel: bool,
    append: OsString,
    memory: Option<u64>,
    nographic: bool,
    display: bool,
    cpu: Option<String>,
}

/// Options without a value that change nothing here.
const NOTHING: &[&str] = &["nodefaults", "no-user-config", "no-hpet", "no-fd-bootchk", "usb", "no-shutdown"];

/// Options with a value that changes nothing here.
const ANYTHING: &[&str] = &["name", "L", "uuid", "boot", "rtc", "audiodev", "vga", "msg", "k"];

/// Options with a value that is not had, and what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("hda", "write -drive file=FILE,format=raw,if=virtio: there is no IDE, and the guest's disk is /dev/vda"),
    ("hdb", "write -drive file=FILE,format=raw,if=virtio: there is no IDE"),
    ("cdrom", "write -drive file=FILE,format=raw,if=virtio,readonly=on: there is no IDE"),
    ("qmp-pretty", "write -qmp, whose answers are lines"),
    ("blockdev", "write -drive file=FILE,format=raw|qcow2,if=virtio"),
    ("incoming", "a guest does not come from elsewhere"),
    ("loadvm", "there are no snapshots of machines"),
    ("fw_cfg", "there is no fw_cfg for the guest's own use"),
    ("pidfile", "the shell tells the process's number"),
    ("d", "write 'satori run --trace FILE'"),
    ("D", "write 'satori run --trace FILE'"),
    ("plugin", "write 'satori run --trace FILE'"),
    ("icount", "write 'satori run --clock virtual'"),
    ("watchdog", "there is no watchdog"),
    ("dtb", "there is no device tree on x86"),
    ("pflash", "there is no UEFI: kernels are booted by -kernel"),
];

/// The rest.
const UNDERSTOOD: &str = "\
-kernel FILE, -initrd FILE, -append TEXT, -m SIZE, -smp N[,..], -cpu MODEL[,..], -machine|-M pc|q35[,accel=..], -accel NAME,
-nographic, -display none, -serial stdio|mon:stdio|null|none|file:FILE|unix:PATH,server=on|chardev:ID, -monitor none, -parallel none,
-chardev stdio|null|file|socket,id=ID[,path=..|,host=..,port=..], -mon chardev=ID, -fsdev local,id=ID,path=DIR,security_model=none[,readonly=on],
-virtfs local,path=DIR,mount_tag=TAG,security_model=none, -drive file=FILE,format=raw|qcow2,if=virtio|none[,id=ID,readonly=on,snapshot=on],
-smbios type=1|11,NAME=TEXT.., -bios FILE, -snapshot, -netdev user,id=ID[,hostfwd=..,restrict=on], -nic user|none, -net nic|user|none, -device NAME[,..] ('-device help' lists them),
-object rng-random,id=ID, -object iothread,id=ID, -object memory-backend-ram|memory-backend-memfd,id=ID,size=SIZE,
-numa node[,cpus=N-N][,mem=SIZE|memdev=ID], -numa dist,src=N,dst=N,val=N, -qmp unix:PATH,server=on,wait=off, -no-reboot, -gdb tcp::PORT, -s, -S";

pub(super) fn help() -> String {
    format!(
        "QEMU emulator version {}: a front of Satori's for tools that call QEMU\nusage: qemu-system-x86_64 [options]\n\nUnderstood:\n{UNDERSTOOD}\n\
         Without effect: -{}, -{} VALUE\nRefused by name: everything else\n",
        super::VERSION,
        NOTHING.join(", -"),
        ANYTHING.join(" VALUE, -")
    )
}

impl Wishes {
    /// Reads all words.
    pub(super) fn read(words: &[OsString]) -> Result<Wishes> {
        let mut wishes = Wishes {
            console: Char::Null,
            plain: Vec::new(),
            drives: Vec::new(),
            networks: BTreeMap::new(),
            cards: Vec::new(),
            chars: BTreeMap::new(),
            serials: Vec::new(),
            ports: Vec::new(),
            folders: BTreeMap::new(),
            mounts: Vec::new(),
            snapshot: false,
            rng: false,
            balloon: false,
            suite: false,
            accels: Vec::new(),
            io_threads: Vec::new(),
            numa: Numa::default(),
            kernel: false,
            append: OsString::new(),
            memory: None,
            nographic: false,
            display: true,
            cpu: None,
        };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let text = word.to_string_lossy();
            if text.is_empty() {
                // Scripts of tools leave such behind.
                continue;
            }
            let Some(name) = text.strip_prefix("--").or(text.strip_prefix('-')) else {
                bail!("'{text}' is an image without a flag: write -drive file={text},format=raw,if=virtio");
            };
            if wishes.alone(name) {
                continue;
            }
            let Some(value) = rest.next() else {
                bail!("-{name} is not understood, or its value is missing: see 'satori qemu --help'");
            };
            wishes.option(name, value)?;
        }
        wishes.finish()
    }

    /// An option without a value.
    fn alone(&mut self, name: &str) -> bool {
        match name {
            _ if NOTHING.contains(&name) => {}
            "nographic" => self.nographic = true,
            "no-reboot" => self.plain.extend(["--on-reset", "exit"].map(OsString::from)),
            "snapshot" => self.snapshot = true,
            // Tools say so wherever there is a /dev/kvm, and not each one works.
            "enable-kvm" => self.accels.extend(["kvm".into(), "tcg".into()]),
            "s" | "S" => self.plain.push(format!("-{name}").into()),
            _ => return false,
        }
        true
    }

    fn option(&mut self, name: &str, value: &OsStr) -> Result<()> {
        let text = || {
            let text = value.to_str();
            text.ok_or_else(|| anyhow::anyhow!("-{name} {}: write it in UTF-8", value.display()))
        };
        // In one word, as a value may begin with a dash.
        let mut pass = |flag: &str| self.plain.push(joined(flag, value));
        match name {
            _ if ANYTHING.contains(&name) => {}
            "kernel" => {
                self.kernel = true;
                pass("--kernel");
            }
            // QEMU's commas divide what Satori takes one by one.
            "initrd" => pass("--initrd"),
            "append" => self.append = value.to_owned(),
            "gdb" => pass("--gdb"),
            "smp" => pass("--cpus"),
            "bios" => machine::firmware(value)?,
            "smbios" => {
                text()?;
                pass("--smbios");
            }
            "m" => self.memory = Some(machine::memory(text()?)?),
            "cpu" => self.cpu = Some(machine::cpu(text()?)?),
            "machine" | "M" => self.accels.extend(machine::machine(text()?)?),
            "accel" => self.accels.push(text()?.split(',').next().unwrap_or_default().into()),
            "global" if text()?.starts_with("kvm-pit.") => {}
            "echr" if text()? == "1" => {}
            "display" if text()? == "none" => self.display = false,
            "monitor" | "parallel" if matches!(text()?, "none" | "null" | "/dev/null") => {}
            "serial" => self.serials.push(text()?.to_owned()),
            "mon" => self.monitor(text()?)?,
            "qmp" => self.plain.push(joined("--qmp", crate::qmp::of_qemu(text()?)?.as_ref())),
            "fsdev" => self.fsdev(text()?)?,
            "virtfs" => self.virtfs(text()?)?,
            "chardev" => self.chardev(text()?)?,
            "drive" => self.drive(value)?,
            "netdev" => self.netdev(text()?)?,
            "nic" => self.nic(text()?)?,
            "net" => self.net(text()?)?,
            "device" => self.device(text()?)?,
            "object" if self.io_thread(text()?)? => {}
            "object" if text()?.starts_with("rng-") || self.numa.object(text()?)? => {}
            "numa" => self.numa.read(text()?)?,
            _ => match REFUSED.iter().find(|(known, _)| *known == name) {
                Some((_, why)) => bail!("-{name} {}: {why}", value.display()),
                None => bail!("-{name} {} is not understood: see 'satori qemu --help'", value.display()),
            },
        }
        Ok(())
    }

    /// `-object iothread,id=ID`; false if it is another object.
    fn io_thread(&mut self, text: &str) -> Result<bool> {
        let (kind, parts) = Wishes::parts(text);
        if kind != "iothread" {
            return Ok(false);
        }
        let (mut id, mut odd) = (None, None);
        for (key, value) in parts {
            match key {
                "id" if !value.is_empty() => id = Some(value),
                // How long QEMU's own thread looks before it sleeps, and how many helpers it has.
                "poll-max-ns" | "poll-grow" | "poll-shrink" | "aio-max-batch" | "thread-pool-min"
                | "thread-pool-max" => {}
                _ => odd = Some(key),
            }
        }
        match (id, odd) {
            (_, Some(odd)) => bail!("-object {text}: '{odd}' is not understood here: leave it out"),
            (None, None) => bail!("-object {text}: write id=ID"),
            (Some(id), None) if self.io_threads.iter().any(|other| other == id) => {
                bail!("-object {text}: there is one with id={id} already: name another")
            }
            (Some(id), None) => self.io_threads.push(id.to_owned()),
        }
        Ok(true)
    }

    /// The parts of `NAME[,KEY[=VALUE]]..`.
    pub(super) fn parts(text: &str) -> (&str, Vec<(&str, &str)>) {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        (name, parts.map(|part| part.split_once('=').unwrap_or((part, "on"))).collect())
    }

    /// What belongs together is put together, and what contradicts itself refused.
    fn finish(mut self) -> Result<Wishes> {
        if !self.kernel {
            bail!("name a kernel with -kernel: there is no firmware that looks for one on a disk");
        }
        self.plain.extend(["--engine", self.engine()?].map(OsString::from));
        let serials = std::mem::take(&mut self.serials);
        let serials = serials.iter().map(|text| self.char_of(text)).collect::<Result<Vec<_>>>()?;
        let mut serials = serials.into_iter();
        self.console = match serials.next() {
            Some(first) => first,
            None if self.nographic => Char::Stdio,
            None if !self.display => Char::Null,
            None => bail!(
                "there is no display: write -nographic for the console on standard output, or -display none"
            ),
        };
        if let Char::Socket(path) = &self.console {
            bail!(
                "-serial unix:{}: only further serial ports lead to sockets; write stdio or file:FILE",
                path.display()
            );
        }
        if let Char::Tcp(place) = &self.console {
            bail!("-serial: only monitors are at TCP ports such as {place}; write stdio or file:FILE");
        }
        for end in serials {
            let end: OsString = match end {
                Char::Null => "none".into(),
                Char::File(path) => path.into_os_string(),
                Char::Socket(path) => [OsStr::new("unix:"), path.as_os_str()].iter().copied().collect(),
                Char::Tcp(place) => {
                    bail!(
                        "-serial: only monitors are at TCP ports such as {place}; write unix:PATH,server=on,wait=off"
                    )
                }
                Char::Stdio => bail!("-serial stdio: only the first serial port can be on standard output"),
            };
            self.plain.extend([OsString::from("--serial"), end]);
        }
        Ok(self)
    }

    /// The engine for the accelerators that are asked for: as with QEMU, none is one in software.
    fn engine(&self) -> Result<&'static str> {
        let asks = |name: &str| self.accels.iter().any(|accel| accel == name);
        match (asks("kvm"), asks("tcg") || self.accels.is_empty()) {
            (true, true) => Ok("auto"),
            (true, false) => Ok("kvm"),
            (false, true) => Ok("software"),
            (false, false) => {
                bail!("only {} is asked for: add -accel kvm or -accel tcg", self.accels.join(" or "))
            }
        }
    }

    /// The words behind `satori run`.
    pub(super) fn run(&self) -> Result<Vec<OsString>> {
        let mut all = self.plain.clone();
        all.push(joined("--cmdline", &self.append));
        let memory = self.memory.unwrap_or(machine::MEMORY);
        all.extend([OsString::from("--memory"), format!("{}M", memory >> 20).into()]);
        let model = self.cpu.as_deref().unwrap_or("max");
        all.extend(["--cpu", model].map(OsString::from));
        // As QEMU: no report, no Hyper-V but for what -cpu asks for, and a panic is the guest's affair.
        all.extend(["--report", "off", "--hyperv", "off", "--panic-pattern", ""].map(OsString::from));
        // A port that leads there reads it then.
        if self.console != Char::Stdio {
            all.extend(["--input", "none"].map(OsString::from));
        }
        self.numa.put(&mut all)?;
        self.put_folders(&mut all)?;
        self.check_ports()?;
        self.put_devices(&mut all)?;
        Ok(all)
    }
}

/// `FLAG=VALUE`.
fn joined(flag: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(flag);
    word.push("=");
    word.push(value);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<String, String> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let run = Wishes::read(&words).and_then(|wishes| wishes.run()).map_err(|why| why.to_string())?;
        Ok(run.join(OsStr::new(" ")).to_string_lossy().into_owned())
    }

    const ALWAYS: &str = "--report off --hyperv off --panic-pattern ";

    #[test]
    fn what_tools_write_becomes_a_run() {
        // kunit.py.
        let kunit = "-nodefaults -m 1024 -kernel b/bzImage -append console=ttyS0 -no-reboot -nographic -accel kvm -accel tcg -serial stdio  -bios qboot.rom";
        assert_eq!(
            run(kunit).unwrap(),
            format!(
                "--kernel=b/bzImage --on-reset exit --engine auto --cmdline=console=ttyS0 --memory 1024M --cpu max {ALWAYS}"
            )
        );
        // LAVA and tuxrun, with a disk that is virtio's.
        let lava = "-cpu Nehalem -machine q35 -nographic -nic none -kernel k -append x -monitor none -m 64 -drive file=d.img,if=virtio,format=raw -smp 2";
        assert_eq!(
            run(lava).unwrap(),
            format!(
                "--kernel=k --cpus=2 --engine software --cmdline=x --memory 128M --cpu x86-64-v2 {ALWAYS} --disk d.img,format=raw"
            )
        );
        // syzkaller, with a monitor at a TCP port.
        let syzkaller = "-m 512 -smp 2 -chardev socket,id=SOCKSYZ,server=on,wait=off,host=localhost,port=51727 -mon chardev=SOCKSYZ,mode=control -display none -serial stdio -no-reboot -kernel k -append x";
        assert_eq!(
            run(syzkaller).unwrap(),
            format!(
                "--cpus=2 --qmp=tcp:localhost:51727 --on-reset exit --kernel=k --engine software --cmdline=x --memory 512M --cpu max {ALWAYS}"
            )
        );
        // virtme-ng, with a folder by 9P and ports that come before what they name.
        let vng = "-name virtme-ng -m 1G -fsdev local,id=virtfs5,path=/,security_model=none,readonly=on,multidevs=remap \
             -device virtio-9p-pci,fsdev=virtfs5,mount_tag=/dev/root -machine q35 -cpu max -parallel none -net none -smp 2 -vga none \
             -display none -serial chardev:console -chardev file,id=console,path=/dev/null -chardev stdio,id=stdin,signal=on,mux=off \
             -device virtio-serial-pci -device virtserialport,name=virtme.stdin,chardev=stdin -no-reboot -kernel k -append x";
        assert_eq!(
            run(&vng.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap(),
            format!(
                "--cpus=2 --on-reset exit --kernel=k --engine software --cmdline=x --memory 1024M --cpu max {ALWAYS} --input none --share /:/dev/root,ro,9p"
            )
        );
        // syzkaller, with what is on virtio.
        let syzkaller = "-m 2G -smp 2 -display none -serial stdio -no-reboot -name VM-0 -device virtio-rng-pci -enable-kvm -accel tcg \
             -cpu host,migratable=off -device virtio-net-pci,netdev=net0 -netdev user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:10022-:22 \
             -drive file=i,format=qcow2,if=virtio -snapshot -kernel k -append root=/dev/vda";
        assert_eq!(
            run(&syzkaller.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap(),
            format!(
                "--cpus=2 --on-reset exit --kernel=k --engine auto --cmdline=root=/dev/vda --memory 2048M --cpu max {ALWAYS} --disk i,format=qcow2,snapshot \
                 --net user,restrict,forward=tcp:127.0.0.1:10022:22 --rng"
            )
        );
    }

    /// mkosi, and others that start systemd.
    #[test]
    fn credentials_go_through_smbios() {
        let words = "-kernel k -append x -display none -smbios type=11,value=io.systemd.credential:a=b,,c -smbios type=1,serial=7 -bios /dev/null";
        let line = run(words).unwrap();
        assert!(
            line.contains("--smbios=type=11,value=io.systemd.credential:a=b,,c --smbios=type=1,serial=7 "),
            "{line}"
        );
    }

    #[test]
    fn nodes_are_nodes_and_one_is_none() {
        let one = run(
            "-kernel k -nographic -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem",
        );
        assert!(!one.as_ref().unwrap().contains("numa"), "{one:?}");
        let two = run(
            "-kernel k -nographic -m 1G -smp 4 -numa node,cpus=0,cpus=2-3,memdev=a -numa node,nodeid=1,cpus=1,mem=256 \
             -object memory-backend-ram,id=a,size=805306368 -numa dist,src=1,dst=0,val=33",
        )
        .unwrap();
        let words =
            "--numa=memory=786432K,cpus=0:2-3,distances=10:33 --numa=memory=262144K,cpus=1,distances=33:10";
        assert!(two.contains(words), "{two}");
    }

    #[test]
    fn what_is_not_had_is_refused_by_name() {
        for (line, said) in [
            ("-nographic", "name a kernel"),
            ("-kernel k", "there is no display"),
            ("-kernel k -nographic -accel hvf", "only hvf is asked for"),
            ("-kernel k -nographic -hda d", "-hda d: write -drive"),
            (
                "-kernel k -nographic -bios /nonexistent/qboot.rom",
                "-bios /nonexistent/qboot.rom cannot be read",
            ),
            ("-kernel k -nographic -bios unheard.rom", "unheard.rom cannot be read"),
            ("-kernel k -nographic -device e1000,netdev=n", "e1000"),
            ("-kernel k -nographic -device virtio-9p-pci,fsdev=f,mount_tag=t", "no -fsdev with id=f"),
            (
                "-kernel k -nographic -fsdev local,id=f,path=/,security_model=mapped-xattr",
                "security_model=none",
            ),
            ("-kernel k -nographic -fsdev synth,id=f", "write local"),
            ("-kernel k -nographic -device virtserialport,chardev=c", "name=NAME"),
            ("-kernel k -nographic -device virtserialport,name=n,chardev=c", "no -chardev with id=c"),
            (
                "-kernel k -nographic -chardev stdio,id=c -mon chardev=c,mode=control",
                "its -chardev is a socket",
            ),
            ("-kernel k -nographic -mon chardev=c", "no -chardev with id=c"),
            ("-kernel k -nographic -chardev socket,id=c,host=localhost,port=1", "server=on"),
            (
                "-kernel k -nographic -chardev socket,id=c,port=x,server=on,wait=off -mon chardev=c,mode=control",
                "tcp:127.0.0.1:PORT",
            ),
            (
                "-kernel k -nographic -chardev socket,id=c,port=1,server=on,wait=off -serial chardev:c",
                "only monitors are at TCP ports",
            ),
            (
                "-kernel k -nographic -chardev socket,id=c,port=1,server=on,wait=off -device virtserialport,name=n,chardev=c",
                "only monitors are at TCP ports",
            ),
            ("-kernel k -nographic -device virtio-scsi-pci", "virtio-scsi-pci"),
            ("-kernel k -nographic -drive file=d,if=ide,format=raw", "there is no IDE"),
            ("-kernel k -nographic -device virtio-net-pci,netdev=n", "no -netdev with id=n"),
            ("-kernel k -nographic -qmp unix:x", "server=on"),
            ("-kernel k -nographic -nonsense x", "-nonsense x is not understood"),
            ("-kernel k -nographic -nonsense", "its value is missing"),
            ("-kernel k -nographic -serial unix:s,server=on,wait=off", "only further serial ports"),
            ("-kernel k -nographic -serial chardev:c", "no -chardev with id=c"),
            ("-kernel k -nographic -machine virt", "'virt'"),
            ("-kernel k -nographic -cpu Unheard", "'Unheard'"),
            ("-kernel k -nographic -m much", "-m much"),
            ("-kernel k -nographic -device isa-debug-exit", "iobase=0xf4"),
            ("-kernel k -nographic -drive if=none,id=a,file=d,format=raw", "no -device uses it"),
            ("-kernel k -nographic -numa node,memdev=m -numa node", "there is no -object with id=m"),
            ("-kernel k -nographic -numa node -numa node,nodeid=3", "the next is nodeid=1"),
            ("-kernel k -nographic -numa dist,src=0,dst=1,val=30", "there are 0 nodes"),
            ("-kernel k -nographic -numa cpu,node-id=0", "write node or dist"),
            ("-kernel k -nographic -object memory-backend-file,id=m,size=1G", "is not understood"),
            ("-kernel k -nographic -object iothread", "write id=ID"),
            ("-kernel k -nographic -object iothread,id=a,pin=1", "'pin' is not understood"),
            ("-kernel k -nographic -object iothread,id=a -object iothread,id=a", "already"),
            (
                "-kernel k -nographic -drive if=none,id=a,file=d,format=raw -device virtio-blk-pci,drive=a,iothread=t",
                "no -object iothread with id=t",
            ),
            ("disk.img", "is an image without a flag"),
        ] {
            let why = run(line).unwrap_err();
            assert!(why.contains(said), "{line}: {why}");
        }
    }
}
