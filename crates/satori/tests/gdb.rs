//! `satori run --gdb`, by a small client of GDB's remote protocol, and by gdb itself where it is
//! installed.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use common::gdb::{
    BASE, CODE, Client, DATA, FLAG, RAX, RIP, RSP, STATUS, end, hex, launch, session, start, unhex,
};
use common::{bare, file, pvh};

#[test]
fn a_debugger_controls_a_guest() {
    session("gdb-real", &["tcp::0"], true);
}

#[test]
fn a_debugger_controls_a_guest_under_virtual_time() {
    session("gdb-virtual", &["tcp::0", "--clock", "virtual"], true);
}

#[test]
fn all_vcpus_stop_and_each_is_a_thread() {
    for clock in ["real", "virtual"] {
        let (child, address) =
            start(&format!("gdb-cpus-{clock}"), &["--gdb", "tcp::0", "--cpus", "3", "--clock", clock]);
        let mut gdb = Client::connect(&address);
        let threads = gdb.ask("qfThreadInfo");
        assert_eq!(threads.matches("p").count(), 3, "{threads}");
        let extra = unhex(&gdb.ask("qThreadExtraInfo,p1.3"));
        assert_eq!(String::from_utf8_lossy(&extra), "CPU#2 [waits for SIPI]");
        let counted = gdb.memory(DATA);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(gdb.memory(DATA), counted, "it stopped when the debugger came");
        gdb.ok(&format!("M{FLAG:x},4:01000000"));
        gdb.ok("D;1");
        assert_eq!(end(child).status, STATUS, "{clock}: it went on alone");
    }
}

#[test]
fn a_lost_connection_lets_the_guest_run_and_another_may_come() {
    let path = common::scratch("gdb.socket");
    let address = format!("unix:{}", path.display());
    let (child, address) = start("gdb-lost", &["--gdb", &address, "-S"]);
    let mut first = Client::connect(&address);
    first.ok(&format!("Z0,{:x},1", BASE + 5));
    first.go();
    drop(first);
    // Who comes stops it, perhaps before it went on.
    let begun = Instant::now();
    let mut second = loop {
        std::thread::sleep(Duration::from_millis(200));
        let mut next = Client::connect(&address);
        if next.memory(DATA) > 1 {
            break next;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "its breakpoint is not gone");
    };
    second.ok(&format!("M{FLAG:x},4:01000000"));
    drop(second);
    assert_eq!(end(child).status, STATUS);
}

#[test]
fn a_debugger_kills_a_guest() {
    let (child, address) = start("gdb-kill", &["--gdb", "tcp::0"]);
    let mut gdb = Client::connect(&address);
    gdb.send("vKill;1");
    assert_eq!(end(child).status, 130);
}

#[test]
fn garbage_on_the_socket_harms_nobody() {
    let (child, address) = start("gdb-garbage", &["--gdb", "tcp::0", "-S"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n$$$#00$m#6d$vCont;s:p9.99#00\x03\x03").unwrap();
    stream.write_all(&[0xff; 100_000]).unwrap();
    drop(stream);
    let mut gdb = Client::connect(&address);
    gdb.ok(&format!("M{FLAG:x},4:01000000"));
    gdb.ok("D;1");
    assert_eq!(end(child).status, STATUS);
}

#[test]
fn who_asks_without_end_and_reads_nothing_is_left() {
    let (child, address) = start("gdb-flood", &["--gdb", "tcp::0"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    // More than every buffer between the two holds, of questions and of answers.
    let questions = b"$g#67+".repeat(10_000);
    let sent = (0..2000).take_while(|_| stream.write_all(&questions).is_ok()).count();
    assert!(sent < 2000, "it was given up");
    Client::connect(&address).send("vKill;1");
    assert_eq!(end(child).status, 130);
}

#[test]
fn addresses_that_cannot_be_served_are_refused() {
    let kernel = file("gdb-refused", &pvh::kernel(&CODE));
    for (arguments, hint) in [
        (&["--gdb", "1234"][..], "tcp::PORT"),
        (&["--gdb", "tcp:203.0.113.1:1"], "cannot listen"),
        (&["--gdb-wait"], "add --gdb"),
    ] {
        let ended = common::satori(&[&["run", "--kernel", &kernel], arguments].concat());
        assert_eq!(ended.status, 2, "{ended:?}");
        assert!(ended.messages.contains(hint), "{ended:?}");
    }
}

/// A guest of AArch64 that waits for the virtual timer's first interrupt, whose vector ends it. Vectors are at 0x800 of the Image.
///
/// ```text
/// 040  adr x1, vectors; msr vbar_el1, x1
/// 048  mov x0, #0x08000000; mov w2, #2; str w2, [x0]                GICD_CTLR
/// 054  mov x0, #0x080a0000; str wzr, [x0, #0x14]                    GICR_WAKER
/// 05c  add x0, x0, #0x10000; mov w2, #-1; str w2, [x0, #0x80]       GICR_IGROUPR0
/// 068  mov w2, #0x08000000; str w2, [x0, #0x100]                    GICR_ISENABLER0: INTID 27
/// 070  mov x2, #0xf0; msr icc_pmr_el1, x2; mov x2, #1; msr icc_igrpen1_el1, x2
/// 080  mov x3, #1000; msr cntv_tval_el0, x3; msr cntv_ctl_el0, x2; msr daifclr, #2
/// 090  add x20, x20, #1; b 090
/// a80  add x21, x21, #1; mov w0, #8; movk w0, #0x8400, lsl #16; hvc #0      PSCI's SYSTEM_OFF
/// ```
const CODE_ARM64: [u32; 22] = [
    0x1000_3e01,
    0xd518_c001,
    0xd2a1_0000,
    0x5280_0042,
    0xb900_0002,
    0xd2a1_0140,
    0xb900_141f,
    0x9140_4000,
    0x1280_0002,
    0xb900_8002,
    0x52a1_0002,
    0xb901_0002,
    0xd280_1e02,
    0xd518_4602,
    0xd280_0022,
    0xd518_cce2,
    0xd280_7d03,
    0xd51b_e303,
    0xd51b_e322,
    0xd503_42ff,
    0x9100_0694,
    0x17ff_ffff,
];
const VECTOR_ARM64: [u32; 4] = [0x9100_06b5, 0x5280_0100, 0x72b0_8000, 0xd400_0002];

/// Linux's arm64 Image of it.
fn image() -> Vec<u8> {
    let mut image = vec![0; 0x2000];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0x1400_0010_u32.to_le_bytes());
    put(16, &0x2000_u64.to_le_bytes());
    put(24, &[0xa]);
    put(56, b"ARM\x64");
    for (at, words) in [(0x40, &CODE_ARM64[..]), (0xa80, &VECTOR_ARM64)] {
        put(at, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    }
    image
}

#[test]
fn an_arm64_guest_is_stopped_at_its_interrupts_vector() {
    const RAM: u64 = 0x4000_0000;
    // Places in the g packet: x20, x21 and the program counter.
    let (x20, x21, pc) = (20, 21, 32);
    for clock in ["real", "virtual"] {
        let kernel = file(&format!("gdb-arm64-{clock}"), &image());
        let flags = ["--arch", "arm64", "--cpus", "2", "--clock", clock, "--gdb", "tcp::0", "-S"];
        let (child, address) = launch(&kernel, &flags);
        let mut gdb = Client::connect(&address);
        assert!(gdb.ask("qXfer:features:read:target.xml:0,ff").contains("aarch64"));
        assert_eq!((gdb.register(pc), gdb.memory(RAM)), (RAM, 0x1400_0010), "nothing was executed");
        assert!(gdb.ask("vCont;s:p1.1").contains("thread:"));
        assert_eq!(gdb.register(pc), RAM + 0x40);
        gdb.ok(&format!("Z0,{:x},4", RAM + 0x90));
        assert!(gdb.go().contains("swbreak"));
        assert_eq!((gdb.register(pc), gdb.register(x20)), (RAM + 0x90, 0));
        gdb.ok(&format!("z0,{:x},4", RAM + 0x90));
        // Stepped, it takes no interrupt, though one is due.
        for _ in 0..10 {
            gdb.ask("vCont;s:p1.1");
        }
        assert_eq!((gdb.register(pc), gdb.register(x20)), (RAM + 0x90, 5));
        gdb.ok(&format!("Z1,{:x},4", RAM + 0xa80));
        let stop = gdb.go();
        assert!(stop.contains("hwbreak"), "{stop}");
        assert_eq!(
            (gdb.register(pc), gdb.register(x21)),
            (RAM + 0xa80, 0),
            "its first instruction is to come"
        );
        gdb.ask("vCont;s:p1.1");
        assert_eq!((gdb.register(pc), gdb.register(x21)), (RAM + 0xa84, 1));
        // A register is written; there is no watchpoint, no memory at 0, and a list of vCPUs.
        let mut registers = gdb.registers();
        registers[8 * x21..][..8].copy_from_slice(&0x1234_u64.to_le_bytes());
        gdb.ok(&format!("G{}", hex(&registers)));
        assert_eq!(gdb.register(x21), 0x1234);
        assert_eq!(gdb.ask(&format!("Z2,{RAM:x},4")), "E16");
        assert_eq!(gdb.ask("m0,4"), "E0e");
        let info = gdb.monitor("info");
        assert!(info.contains("CPU#0 on, PC 0x40000a84, EL1") && info.contains("CPU#1 off"), "{info}");
        assert!(gdb.go().starts_with('W'), "it powers off");
        assert_eq!(end(child).status, 0);
    }
}

/// The numbers that a guest of a guest tells before it waits: where its code is, where its page, and where that is for its hypervisor.
fn told(console: &mut impl BufRead) -> [u64; 3] {
    let mut line = String::new();
    console.read_line(&mut line).unwrap();
    let numbers = line.trim().split("0x").skip(1).map(|rest| {
        u64::from_str_radix(rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap(), 16).unwrap()
    });
    numbers.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}"))
}

/// Where an enlightened VMCS has the TSC's offset (TLFS, HV_VMX_ENLIGHTENED_VMCS).
const TSC_OFFSET: u64 = 0x190;

/// What 'monitor vmcs' says of the field `name`.
fn value(vmcs: &str, name: &str) -> u64 {
    let row = vmcs.lines().find(|line| line.split_whitespace().next() == Some(name));
    let word = row.and_then(|row| row.split("0x").nth(1)).unwrap_or_else(|| panic!("{name}: {vmcs}"));
    u64::from_str_radix(word, 16).unwrap()
}

/// A guest of a guest, by an enlightened VMCS, that executes three instructions in a loop: a debugger finds it, its hypervisor, and
/// what is between the two.
#[test]
fn a_guest_of_the_guest_is_a_thread_beside_its_hypervisor() {
    for (clock, engine) in [("virtual", "translator"), ("real", "interpreter")] {
        let kernel = bare::program("hv_nested");
        let flags = ["--nested", "vmx", "--hyperv", "evmcs", "--clock", clock, "--engine", engine];
        let words = ["--cmdline", "hv_nested cpus=1 only=waits wait=yes", "--gdb", "tcp::0"];
        let (mut child, address) = launch(kernel.to_str().unwrap(), &[&flags[..], &words].concat());
        let mut console = BufReader::new(child.stdout.take().unwrap());
        let [code, page, elsewhere] = told(&mut console);
        let mut gdb = Client::connect(&address);
        gdb.ok(&format!("Z0,{code:x},1"));
        // Nobody but the guest is there, so a breakpoint for its hypervisor alone stops nothing.
        gdb.monitor("level 1");
        gdb.send("vCont;c");
        std::thread::sleep(Duration::from_millis(300));
        gdb.stream.write_all(b"\x03").unwrap();
        let stop = gdb.packet();
        assert!(!stop.contains("swbreak"), "{stop}");
        assert!(gdb.monitor("level 2").contains("the guest's own guests"));
        assert!(gdb.go().contains("swbreak"));
        assert_eq!(gdb.register(RIP), code);
        let vmcs = gdb.monitor("vmcs 0");
        let value = |name: &str| value(&vmcs, name);
        assert!(
            vmcs.starts_with("CPU#0 enlightened VMCS at 0x") && vmcs.contains("its guest executes"),
            "{vmcs}"
        );
        assert_eq!((value("GUEST_RIP"), value("GUEST_CS"), value("HOST_CS")), (code, 8, 8));
        assert!(value("EPTP") & 0xfff == 0x1e && value("PROC_CONTROLS2") & 2 != 0, "{vmcs}");
        // The thread behind that of the vCPU is the hypervisor, where its guest's exit will have it.
        assert_eq!(gdb.ask("qfThreadInfo").matches('p').count(), 2);
        let extra = |gdb: &mut Client| unhex(&gdb.ask("qThreadExtraInfo,p1.2"));
        assert_eq!(extra(&mut gdb), b"CPU#0 [the hypervisor, at its VM exit]");
        gdb.ok(&format!("M{page:x},4:00000000"));
        gdb.ok("Hgp1.2");
        assert_eq!((gdb.register(RIP), gdb.register(RSP)), (value("HOST_RIP"), value("HOST_RSP")));
        // MOV RSP,[RSP] is there.
        assert_eq!(gdb.memory(value("HOST_RIP")), 0x2424_8b48);
        assert_eq!(gdb.ask(&format!("m{page:x},4")), "E0e", "it has no such page");
        assert!(
            gdb.ask(&format!("P10={}", hex(&code.to_le_bytes()))).starts_with('E'),
            "nor registers to change"
        );
        // What it writes to its own page is what its guest waits for.
        gdb.ok(&format!("M{elsewhere:x},4:01000000"));
        gdb.ok("Hgp1.1");
        assert_eq!(gdb.memory(page), 1);
        // Behind the exit the hypervisor executes, and its guest is the other one.
        gdb.ok(&format!("z0,{code:x},1"));
        gdb.monitor("level 1");
        gdb.ok(&format!("Z0,{:x},1", value("HOST_RIP")));
        assert!(gdb.go().contains("swbreak"));
        assert_eq!(gdb.register(RIP), value("HOST_RIP"));
        assert!(
            String::from_utf8(extra(&mut gdb))
                .unwrap()
                .starts_with("CPU#0 [the guest of the enlightened VMCS at 0x")
        );
        // What the hypervisor writes to the structure is what its next entry would find.
        let structure = vmcs.split("0x").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let offset = u64::from_str_radix(structure, 16).unwrap() + TSC_OFFSET;
        gdb.ok(&format!("M{offset:x},4:78563412"));
        gdb.ok("Hgp1.2");
        assert_eq!(gdb.memory(page), 1);
        let vmcs = gdb.monitor("vmcs");
        assert!(vmcs.contains("its hypervisor executes"), "{vmcs}");
        assert_eq!((self::value(&vmcs, "EXIT_REASON"), self::value(&vmcs, "TSC_OFFSET")), (0xa, 0x1234_5678));
        let loop_end = gdb.register(RIP);
        assert!((code..code + 16).contains(&loop_end), "{loop_end:#x}");
        gdb.ok("D;1");
        let mut rest = String::new();
        console.read_to_string(&mut rest).unwrap();
        assert!(rest.contains(" 0 failed"), "{rest}");
        assert_eq!(end(child).status, 1);
    }
}

/// The same by a VMCB and nested paging: of a guest of SVM its hypervisor has RAX and RSP in the VMCB.
#[test]
fn a_guest_of_svm_is_a_thread_beside_its_hypervisor() {
    for (clock, engine) in [("virtual", "translator"), ("real", "interpreter")] {
        let kernel = bare::program("svm");
        let flags = ["--nested", "svm", "--clock", clock, "--engine", engine, "--gdb", "tcp::0"];
        let words = ["--cmdline", "svm cpus=1 only=waits wait=yes"];
        let (mut child, address) = launch(kernel.to_str().unwrap(), &[&flags[..], &words].concat());
        let mut console = BufReader::new(child.stdout.take().unwrap());
        let [code, page, elsewhere] = told(&mut console);
        let mut gdb = Client::connect(&address);
        gdb.ok(&format!("Z0,{code:x},1"));
        assert!(gdb.monitor("level 2").contains("the guest's own guests"));
        assert!(gdb.go().contains("swbreak"));
        assert_eq!((gdb.register(RIP), gdb.register(RAX)), (code, page));
        let vmcb = gdb.monitor("vmcb 0");
        assert!(vmcb.starts_with("CPU#0 VMCB at 0x") && vmcb.contains("its guest executes"), "{vmcb}");
        assert_eq!((value(&vmcb, "RIP"), value(&vmcb, "RAX"), value(&vmcb, "NESTED")), (code, page, 1));
        assert_eq!((value(&vmcb, "INTERCEPTS_3"), value(&vmcb, "INTERCEPTS_4")), (1 << 31 | 1 << 18, 1));
        let number = |gdb: &mut Client| gdb.ask("qfThreadInfo").matches('p').count();
        let extra = |gdb: &mut Client| String::from_utf8(unhex(&gdb.ask("qThreadExtraInfo,p1.2"))).unwrap();
        assert_eq!((number(&mut gdb), &*extra(&mut gdb)), (2, "CPU#0 [the hypervisor, at its VM exit]"));
        gdb.ok(&format!("M{page:x},4:00000000"));
        gdb.ok("Hgp1.2");
        // POP RBP and POP RBX are behind VMRUN, and CLGI is before it.
        let (host, stack) = (gdb.register(RIP), gdb.register(RSP));
        assert_eq!((gdb.memory(host) & 0xffff, gdb.memory(host - 6)), (0x5b5d, 0x0fdd_010f));
        assert_eq!(gdb.ask(&format!("m{page:x},4")), "E0e", "it has no such page");
        gdb.ok(&format!("M{elsewhere:x},4:01000000"));
        gdb.ok("Hgp1.1");
        assert_eq!(gdb.memory(page), 1);
        // Behind the exit the hypervisor executes, and its guest is the other one.
        gdb.ok(&format!("z0,{code:x},1"));
        gdb.monitor("level 1");
        gdb.ok(&format!("Z0,{host:x},1"));
        assert!(gdb.go().contains("swbreak"));
        assert_eq!((gdb.register(RIP), gdb.register(RSP)), (host, stack));
        let vmcb = gdb.monitor("vmcb");
        assert!(vmcb.contains("its hypervisor executes"), "{vmcb}");
        assert_eq!((value(&vmcb, "EXIT_CODE"), value(&vmcb, "RIP")), (0x72, code + 8), "CPUID");
        let other = extra(&mut gdb);
        assert!(other.starts_with("CPU#0 [the guest of the VMCB at 0x"), "{other}");
        gdb.ok("Hgp1.2");
        assert_eq!((gdb.register(RIP), gdb.register(RAX), gdb.memory(page)), (code + 8, page, 1));
        assert_eq!(gdb.register(RSP), value(&vmcb, "RSP"));
        gdb.ok("D;1");
        let mut rest = String::new();
        console.read_to_string(&mut rest).unwrap();
        assert!(rest.contains(" 0 failed"), "{rest}");
        assert_eq!(end(child).status, 1);
    }
}

#[test]
fn gdb_itself_finds_its_way() {
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("gdb is not installed: only our own client was used");
        return;
    }
    let (child, address) = start("gdb-gdb", &["--gdb", "tcp::0", "-S"]);
    let script = format!(
        "set pagination off\nset architecture i386:x86-64\ntarget remote {address}\n\
         hbreak *{:#x}\ncontinue\nprintf \"at %#lx\\n\", $rip\nstepi\nprintf \"then %#lx\\n\", $rip\n\
         delete\nwatch *(int*){DATA:#x}\ncontinue\ninfo registers cr0 eflags mxcsr fs_base\n\
         info threads\nmonitor info\ndelete\nset var *(int*){FLAG:#x} = 1\ncontinue\n",
        BASE + 7
    );
    let script = file("script.gdb", script.as_bytes());
    let output = Command::new("gdb").args(["-q", "-nx", "-batch", "-x", &script]).output().expect("gdb runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    for expected in ["at 0x100007", "then 0x10000a", "New value = 2", "CPU#0", "exited with code 07"] {
        assert!(text.contains(expected), "{expected:?} is missing in:\n{text}");
    }
    assert_eq!(end(child).status, STATUS);
}
