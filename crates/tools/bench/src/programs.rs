//! Real programs: Debian's packages as they come, dynamic and at random addresses, in a userland of their own.
//!
//! The same folder of packages is the guests' initramfs and, entered with chroot(1), the host's. A shell script ([`script`]) is the
//! guest's init there and here the program; it says what the static program of the other rows says, so that [`crate::measure`] runs both.

use std::fmt::Write;

use crate::catalog::{Group, Row};

/// A row of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    row: Row,
    /// Commands before, which are not measured.
    prepare: &'static str,
    /// What is measured. Its output has to be the host's.
    body: &'static str,
}

const fn program(
    name: &'static str,
    operation: &'static str,
    prepare: &'static str,
    body: &'static str,
) -> Program {
    program_of(Group::Programs, name, operation, prepare, body)
}

/// A program of a group.
pub(crate) const fn program_of(
    group: Group,
    name: &'static str,
    operation: &'static str,
    prepare: &'static str,
    body: &'static str,
) -> Program {
    Program { row: Row { name, group, several: false, operation }, prepare, body }
}

/// The same on several processors.
pub(crate) const fn several(mut program: Program) -> Program {
    program.row.several = true;
    program
}

/// The packages, with which apt brings all that they depend on.
pub const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "bzip2",
    "coreutils",
    "dash",
    "gcc",
    "gcc-multilib",
    "grep",
    "gzip",
    "libc6-dev",
    "make",
    "mawk",
    "musl-tools",
    "openssl",
    "p7zip",
    "perl",
    "python3",
    "rt-tests",
    "sed",
    "sqlite3",
    "xz-utils",
    "zstd",
];

/// What no program needs of them, and would only have to be loaded.
pub const LEFT_OUT: &[&str] = &[
    "libx32",
    "usr/libx32",
    "usr/lib/gcc/x86_64-linux-gnu/12/x32",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "var",
];

/// The guests' memory: the packages lie in it.
pub const MEMORY: u64 = 2 << 30;

const PROGRAMS: &[Program] = &[
    program(
        "execs",
        "fork and exec of /bin/true, 100 times",
        "true",
        "for i in {1..100}; do /bin/true || return; done; echo $i",
    ),
    program(
        "pipeline",
        "echo | cat | cat in a shell, 50 times",
        "true",
        "for i in {1..50}; do echo $i | cat | cat; done",
    ),
    program(
        "python",
        "start and end of python3, 5 times",
        "true",
        "for i in {1..5}; do python3 -c 'print(1)'; done",
    ),
    program(
        "perl",
        "start and end of perl, 20 times",
        "true",
        "for i in {1..20}; do perl -e 'print 1'; done",
    ),
    program(
        "gcc",
        "gcc -O2 -c of ten lines, 3 times",
        "sources 3",
        "for i in 0 1 2; do gcc -O2 -c src/f$i.c -o f.o && sha256sum <f.o || return; done",
    ),
    program(
        "cc1",
        "gcc's cc1 -O2 of 30 times ten lines",
        "sources 30; cat src/f{0..29}.c | gcc -E - >big.i",
        "$(gcc -print-prog-name=cc1) -quiet -O2 -fpreprocessed big.i -o big.s && sha256sum <big.s",
    ),
    program(
        "configure",
        "what configure scripts do: 10 compiled and run tests in a shell",
        "true",
        "for i in {1..10}; do printf 'int main(void){return %d;}\\n' $i >c.c; gcc c.c -o c 2>c.log; ./c; echo $? | sed s/^/is-/ | grep is; done",
    ),
    program(
        "json",
        "python: JSON, zlib, SHA-256 and a dictionary of 200,000 insertions",
        "true",
        "python3 -c 'import json,zlib,hashlib\nd={}\nfor i in range(200000): d[i%5003]=d.get(i%5003,0)+i\n\
         t=json.dumps(d)\nfor i in range(8): t=json.dumps(json.loads(t))\n\
         print(hashlib.sha256(zlib.decompress(zlib.compress(t.encode()))).hexdigest())'",
    ),
    program(
        "words",
        "perl: the words of 2 MiB counted and sorted",
        "text",
        "perl -ne '$n{lc $&}++ while /[a-z_]+/gi; END { print \"$_ $n{$_}\\n\" for sort keys %n }' text",
    ),
    program(
        "sqlite",
        "sqlite3: 30,000 insertions, an index, 300 questions",
        "true",
        "sqlite3 :memory: \"create table t(a integer, b text); with recursive c(n) as (select 1 union all select n+1 from c where n<30000) \
         insert into t select (n*7919)%30011, printf('row %d', n) from c; create index i on t(b); \
         select sum(a), count(*), max(b) from t where b like 'row 1%'; with recursive c(n) as (select 1 union all select n+1 from c where n<300) \
         select sum((select a from t where b=printf('row %d', n))) from c;\"",
    ),
    program(
        "openssl",
        "SHA-256, AES-256-CBC and ChaCha20 of 2 MiB, 4 times each",
        "text",
        "for i in {1..4}; do openssl dgst -sha256 text; for c in aes-256-cbc chacha20; do \
         openssl enc -$c -K 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff \
         -iv 000102030405060708090a0b0c0d0e0f -in text | sha256sum; done; done",
    ),
    program(
        "7z",
        "7zr: 2 MiB packed on one thread, and unpacked",
        "text",
        "rm -f t.7z; 7zr a -mx=3 -mmt=1 -bd t.7z text >7z.log && 7zr e -so t.7z 2>7z.log | sha256sum",
    ),
    program(
        "zstd",
        "zstd -3 of 2 MiB and back, 4 times",
        "text",
        "for i in {1..4}; do zstd -q -3 -c text | zstd -q -d -c | sha256sum; done",
    ),
    program("xz", "xz -3 of 2 MiB and back", "text", "xz -3 -T1 -c text | xz -d -c | sha256sum"),
    program("gzip", "gzip -6 of 2 MiB and back", "text", "gzip -6 -n -c text | gzip -d -c | sha256sum"),
    program("bzip2", "bzip2 -6 of 2 MiB and back", "text", "bzip2 -6 -c text | bzip2 -d -c | sha256sum"),
    program(
        "awk",
        "awk and sort: the words of 2 MiB counted and sorted",
        "text",
        "mawk '{ for (i = 1; i <= NF; i++) n[$i]++ } END { for (w in n) print n[w], w }' text | sort | sha256sum",
    ),
    program(
        "grep-sed",
        "grep -E and sed of 2 MiB, 4 times",
        "text",
        "for i in {1..4}; do grep -cE '(self|def)[._ ]+[a-z]{3,}' text; sed -E 's/([a-z]+)_([a-z]+)/\\2-\\1/g' text | sha256sum; done",
    ),
    program(
        "hackbench",
        "hackbench: 2 groups of 40 tasks, 20 messages each",
        "true",
        "hackbench -g 2 -l 20 >hackbench.log && head -1 hackbench.log",
    ),
    program("c-musl", "the C program of 64 bits, static with musl", "machine_code -musl", "./mix-musl"),
    program(
        "c-64",
        "a C program of 64 bits: integers, sort, strings, floats",
        "machine_code -m64",
        "./mix-m64",
    ),
    program("c-32", "the same of 32 bits (i386)", "machine_code -m32", "./mix-m32"),
    several(program(
        "make-2",
        "make -j2 of 30 objects",
        "sources 30; printf 'O=$(patsubst %%.c,%%.o,$(wildcard src/*.c))\\nall: $(O)\\n' >Makefile",
        "rm -f src/*.o; make -s -j2 CC=gcc CFLAGS=-O2 all && cat src/*.o | sha256sum",
    )),
];

/// All rows, in the order in which they run.
pub static ROWS: [Row; PROGRAMS.len()] = rows_of(PROGRAMS);

/// The rows of programs.
pub(crate) const fn rows_of<const N: usize>(programs: &[Program]) -> [Row; N] {
    let mut rows = [programs[0].row; N];
    let mut at = 0;
    while at < N {
        rows[at] = programs[at].row;
        at += 1;
    }
    rows
}

/// The script that runs them.
pub fn script() -> String {
    script_of("", PROGRAMS)
}

/// The script that runs `programs` behind `helpers`.
pub(crate) fn script_of(helpers: &str, programs: &[Program]) -> String {
    let mut text = [include_str!("programs/driver.sh"), helpers].concat();
    for Program { row, prepare, body } in programs {
        // Writing to a String cannot fail.
        let _ = write!(text, "\nprepare-{0}() {{\n{prepare}\n}}\nrow-{0}() {{\n{body}\n}}\n", row.name);
    }
    text + "main\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{Line, parse};
    use std::process::Command;

    /// What the driver says of rows that need nothing but a shell.
    #[test]
    fn the_script_speaks_as_the_static_program_does() {
        let folder = std::env::temp_dir().join(format!("satori-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("driver");
        let extra = "prepare-yes() {\ntrue\n}\nrow-yes() {\necho yes\n}\nprepare-no() {\ntrue\n}\nrow-no() {\nreturn 3\n}\n";
        let text = script().replace("/tmp", &folder.display().to_string());
        let text = text.strip_suffix("main\n").unwrap().to_owned() + extra + "main\n";
        std::fs::write(&path, text).unwrap();
        let said =
            Command::new("bash").arg(&path).args(["run", "--rows", "yes,no", "--budget", "1"]).output();
        let said = String::from_utf8(said.unwrap().stdout).unwrap();
        let lines: Vec<_> = said.lines().filter_map(parse).collect();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(lines.first(), Some(Line::Found { .. })), "{said}");
        let row = lines.iter().find_map(|line| match line {
            Line::Row(name, reading) if name == "yes" => Some(reading),
            _ => None,
        });
        let row = row.unwrap_or_else(|| panic!("{said}"));
        assert!(row.samples >= 3 && row.ns > 0.0 && !row.differing && row.sum.is_some(), "{row:?}");
        assert!(lines.contains(&Line::Failed("no".into(), "it ended with status 3".into())), "{said}");
        assert_eq!(lines.last(), Some(&Line::End));
    }

    #[test]
    fn names_are_unique_and_those_of_functions() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            assert!(row.name.len() <= 12, "{}", row.name);
            assert!(ROWS[..at].iter().chain(crate::catalog::ROWS).all(|other| other.name != row.name));
            assert_eq!(script().matches(&format!("\nrow-{}() {{", row.name)).count(), 1);
        }
    }
}
