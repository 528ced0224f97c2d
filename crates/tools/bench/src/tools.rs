//! What others measure devices with, as Debian has it: fio on disks, git and tar on a folder, iperf3 on a network.

use crate::catalog::{Group, Row};
use crate::programs::{self, Program, program_of, rows_of, several};

/// The packages, with which apt brings all that they depend on.
pub const PACKAGES: &[&str] =
    &["base-files", "bash", "coreutils", "findutils", "fio", "git", "grep", "iperf3", "mawk", "sed", "tar"];

/// The part of the folder that holds a kernel's tree, in git's care.
pub const TREE: &str = "tree";

/// What git keeps of it and `untar` unpacks, made on the host in the folder of rows.
pub const PREPARE: &str = "cd /tmp/rows/folder && tar -cf include.tar -C tree include && cd tree && \
    export HOME=/tmp && git init -q . && git config core.checkStat minimal && git add -A && \
    git -c user.name=n -c user.email=e commit -q -m tree && git status --porcelain";

const fn tool(name: &'static str, operation: &'static str, body: &'static str) -> Program {
    program_of(Group::Tools, name, operation, "true", body)
}

const TOOLS: &[Program] = &[
    tool("fio-read", "fio: 4 KiB read at a random place", "requests randread 4 1 psync $disk"),
    tool("fio-read-32", "the same, one of 32 that are under way", "requests randread 4 32 libaio $disk"),
    tool("fio-write", "fio: 4 KiB written at a random place", "requests randwrite 4 1 psync $disk"),
    tool("fio-sync", "the same, and fdatasync", "requests randwrite 4 1 psync $disk --fdatasync=1"),
    tool("fio-1m-read", "fio: 1 MiB read behind the last one", "requests read 1024 1 psync $disk"),
    tool("fio-1m-write", "fio: 1 MiB written behind the last one", "requests write 1024 1 psync $disk"),
    tool(
        "fio-qcow2",
        "4 KiB read at a random place of a qcow2 image (natively of a raw one)",
        "requests randread 4 1 psync $qcow2",
    ),
    tool(
        "git-status",
        "git status of a kernel's tree of 9,400 files that the guest does not know yet",
        "git -C $folder/tree status --porcelain && git -C $folder/tree rev-parse HEAD^{tree}",
    ),
    tool(
        "git-grep",
        "git grep in the same tree: each file read",
        "git -C $folder/tree grep -c EXPORT_SYMBOL | sha256sum",
    ),
    tool(
        "untar",
        "tar -x of its include folder, and its removal",
        "mkdir $folder/out && tar -xf $folder/include.tar -C $folder/out && find $folder/out | wc -l && rm -r $folder/out",
    ),
    tool("iperf-send", "iperf3: 1 MiB to the host", "stream"),
    tool("iperf-recv", "iperf3: 1 MiB from the host", "stream -R"),
    several(tool("iperf-send-2", "1 MiB to the host, on two connections", "stream -P 2")),
    several(tool("iperf-recv-2", "1 MiB from the host, on two connections", "stream -P 2 -R")),
];

/// All rows, in the order in which they run.
pub static ROWS: [Row; TOOLS.len()] = rows_of(TOOLS);

/// The script that runs them.
pub fn script() -> String {
    programs::script_of(include_str!("programs/tools.sh"), TOOLS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_script_is_one_and_its_rows_are_named_once() {
        let check = Command::new("bash").args(["-n", "-c", &script()]).stdin(Stdio::null()).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
        for (at, row) in ROWS.iter().enumerate() {
            assert!(row.name.len() <= 12 && row.group == Group::Tools, "{}", row.name);
            let others = ROWS[..at].iter().chain(&programs::ROWS).chain(crate::catalog::DEVICES);
            assert!(others.chain(crate::catalog::ROWS).all(|other| other.name != row.name), "{}", row.name);
        }
    }
}
