//! `docs/bisect.md`'s script under a real `git bisect run`.

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use common::{SATORI, pvh};

fn git(folder: &Path, words: &[&str]) -> String {
    let path =
        format!("{}:{}", folder.with_file_name("bisect-bin").display(), std::env::var("PATH").unwrap());
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=n",
            "-c",
            "user.email=e",
            "-c",
            "init.defaultBranch=main",
            "-c",
            "commit.gpgsign=false",
        ])
        .args(words)
        .current_dir(folder)
        .env("PATH", path)
        .env("INITRD", folder.join("image"))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env_remove("GIT_DIR")
        .output()
        .expect("git is needed for this test: install git");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_first_bad_commit_is_found_behind_one_that_cannot_be_judged() {
    let folder = common::scratch("bisect").with_file_name("bisect-tree");
    let bin = folder.with_file_name("bisect-bin");
    for folder in [&folder, &bin] {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).unwrap();
    }
    symlink(SATORI, bin.join("satori")).unwrap();
    // A tree whose kernel is built by copying.
    let make = "#!/bin/sh\nmkdir -p arch/x86/boot && cp image arch/x86/boot/bzImage\n";
    std::fs::write(bin.join("make"), make).unwrap();
    std::fs::set_permissions(bin.join("make"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let page = include_str!("../../../docs/bisect.md");
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the script");
    let path = bin.join("bisect.sh");
    std::fs::write(&path, script).unwrap();

    git(&folder, &["init", "-q"]);
    let good = |number: u8| pvh::power_off(&format!("revision {number}\n"));
    let bad = |number: u8| pvh::print(&format!("revision {number}\nKernel panic - not syncing: no\n"));
    let refused = b"no kernel".to_vec();
    // The middle is tried first, and is the one that is refused.
    let images = [good(0), good(1), good(2), refused, good(4), bad(5), bad(6)];
    let mut commits = Vec::new();
    for (number, image) in images.iter().enumerate() {
        std::fs::write(folder.join("image"), image).unwrap();
        git(&folder, &["add", "image"]);
        git(&folder, &["commit", "-q", "-m", &format!("revision {number}")]);
        commits.push(git(&folder, &["rev-parse", "HEAD"]).trim().to_string());
    }
    git(&folder, &["bisect", "start", &commits[6], &commits[0]]);
    let told = git(&folder, &["bisect", "run", "sh", path.to_str().unwrap()]);
    assert!(told.contains(&format!("{} is the first bad commit", commits[5])), "{told}");
    assert!(git(&folder, &["bisect", "log"]).contains(&format!("git bisect skip {}", commits[3])), "{told}");
}
