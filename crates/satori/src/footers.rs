//! What stands above and below the flags in the help texts of commands.

use crate::{escape, status};

/// Of 'satori fetch'.
pub(crate) const FETCH_ABOUT: &str = "Fetch what the demo boots, and print where it is.

Packages come through this machine's own apt: its sources, its mirror, its signature checks. It \
needs no root, installs nothing, and keeps what it fetched in satori/ under $XDG_CACHE_HOME (or \
~/.cache).";

/// Of 'satori advise'.
pub(crate) const ADVISE_FOOTER: &str = "\
Without --hyperv, --cpu and --libvirt the configuration is what the report itself tells. A text may be quoted as in a mail; what
libvirt or QEMU has and Satori does not is a warning.

Examples:
  satori run --kernel vmlinuz --initrd initrd.img --report json --report-file r.json
  satori advise r.json
  perf kvm stat report | satori advise - --libvirt domain.xml";

/// Of 'satori demo'.
pub(crate) const DEMO_FOOTER: &str = "\
Packages come through this machine's own apt: its sources, its mirror, its signature checks. The
demo needs no root, installs nothing, and keeps what it fetched in satori/ under $XDG_CACHE_HOME (or
~/.cache). Without apt or a network give it --kernel FILE and --busybox FILE.

Examples:
  satori demo                            boot, show, power off, report
  satori demo --kernel 6.12 --cpus 4     the newer kernel on four vCPUs
  satori demo --system                   a whole Debian with systemd, to its login, reached by ssh
  satori demo --interactive              end in a shell; 'poweroff -f' or Ctrl-A x leaves it";

/// Of 'satori run', with the table of exit statuses.
pub(crate) fn run_footer() -> String {
    format!(
        "\
Standard output carries the guest's console (its first serial port) and nothing else; messages and the
report go to standard error. The end of standard input does not end the guest; a closed output does.

On a terminal: {}

{}

Examples:
  satori run --kernel vmlinuz --initrd initrd.img -m 1G --cpus 4
  satori run --kernel vmlinuz --initrd init.cpio --append quiet --timeout 90s --report json
  satori run --kernel vmlinuz --initrd init.cpio --clock virtual </dev/null
  satori run -- make check               in the newest kernel, on this machine's files
  satori run --kernel 6.1 --rwdir . -- bash",
        escape::HELP,
        status::TABLE
    )
}
