//! What 'satori initrd' packs, and that it boots.

mod common;

use common::{fetch, satori, scratch};

/// Packs `words` into a scratch file; its path and its bytes.
fn pack(name: &str, words: &[&str]) -> (String, Vec<u8>) {
    let path = scratch(name).to_str().unwrap().to_owned();
    let ended = satori(&[&["initrd", "-o", &path], words].concat());
    assert_eq!(ended.status, 0, "{ended:?}");
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn a_folder_modules_and_commands_boot_and_end_with_their_status() {
    let kernel = fetch(&["kernel", "6.1"]);
    let folder = scratch("root").with_file_name("initrd-root");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("data")).unwrap();
    std::fs::write(folder.join("data/greeting"), "hello from the folder\n").unwrap();
    let folder = folder.to_str().unwrap();
    let run = "cat /data/greeting; cut -d' ' -f1 /proc/modules | sort | tr '\\n' ' '; \
        cat /sys/module/loop/parameters/max_loop; satori-exit; echo usage $?; satori-exit 7; echo lives on";
    let more = ["--module", "loop max_loop=5", "--module", "virtio-blk", "--kernel", "6.1"];
    let words = [&[folder, "--busybox", "--run", run][..], &more].concat();
    let (path, bytes) = pack("one.cpio", &words);
    assert!(bytes == pack("two.cpio", &words).1, "the same files are the same bytes");
    let ended = satori(&[
        "run",
        "--kernel",
        &kernel,
        "--initrd",
        &path,
        "--append",
        "quiet",
        "--testdev",
        "exit=value",
        "--timeout",
        "120s",
        "--report",
        "off",
        "--console-newlines",
        "lf",
    ]);
    assert_eq!(ended.status, 7, "{ended:?}");
    let told = "hello from the folder\nloop virtio virtio_blk virtio_ring 5\n";
    assert!(ended.console.contains(told), "{ended:?}");
    assert!(ended.console.contains("usage 2\n") && !ended.console.contains("lives on"), "{ended:?}");
}

#[test]
fn an_init_of_the_folders_is_kept_and_mistakes_are_told() {
    let folder = scratch("own").with_file_name("initrd-own");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("init"), "#!/bin/busybox sh\n").unwrap();
    let own = folder.to_str().unwrap();
    let (_, bytes) = pack("own.cpio", &[own]);
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("init\0\0#!/bin/busybox sh\n") && !text.contains("satori initrd"), "{text}");
    let output = scratch("refused.cpio");
    let _ = std::fs::remove_file(&output);
    let out = output.to_str().unwrap();
    let inside = folder.join("self.cpio");
    for (words, told) in [
        (&["-o", out][..], "no init"),
        (&["-o", out, "/nowhere", "--busybox"], "is no folder"),
        (&["-o", out, own, "--run", "true"], "the folder has one"),
        (&["-o", inside.to_str().unwrap(), own], "would be packed the next time"),
        (&["-o", out, "--busybox", "--module", "nosuch", "--kernel", "6.1"], "no module nosuch"),
        (&["-o", out, "--busybox=/etc/passwd"], "no ELF program"),
    ] {
        let ended = satori(&[&["initrd"], words].concat());
        assert!(ended.status == 2 && ended.messages.contains(told), "{words:?} {ended:?}");
        assert!(!output.exists() && !inside.exists(), "a refusal leaves no file behind");
    }
}

#[test]
fn the_program_that_ends_a_guest_is_fetched() {
    let program = std::fs::read(fetch(&["exit"])).unwrap();
    assert!(program.starts_with(b"\x7fELF"));
    // Started where there is no right to ports, or no debug exit, it says so; as root it would write to port 0xf4 of the host.
    let usage = std::process::Command::new(fetch(&["exit"])).arg("256").output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}
