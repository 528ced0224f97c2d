//! A small client of GDB's remote protocol, and what it does with a guest.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Ended, SATORI, file, pvh};

/// A guest's code, at [`pvh::BASE`]: counts in memory and leaves with status 7 once a debugger
/// has set the flag at `FLAG`.
///
/// ```text
/// 00  mov ebx, DATA
/// 05  inc dword [ebx]         the loop
/// 07  mov eax, [ebx+4]        FLAG
/// 0a  nop
/// 0b  test eax, eax
/// 0d  jz 05
/// 0f  mov al, 3; mov dx, 0xf4; out dx, al
/// ```
pub(crate) const CODE: [u8; 22] = [
    0xbb, 0x00, 0x08, 0x10, 0x00, 0xff, 0x03, 0x8b, 0x43, 0x04, 0x90, 0x85, 0xc0, 0x74, 0xf6, 0xb0, 0x03,
    0x66, 0xba, 0xf4, 0x00, 0xee,
];
pub(crate) const BASE: u64 = pvh::BASE as u64;
pub(crate) const DATA: u64 = BASE + 0x800;
pub(crate) const FLAG: u64 = DATA + 4;
pub(crate) const STATUS: i32 = 7;

/// Places of registers in the `g` packet: 8 bytes each up to RIP.
pub(crate) const RAX: usize = 0;
pub(crate) const RBX: usize = 1;
pub(crate) const RSP: usize = 7;
pub(crate) const RIP: usize = 16;

/// Starts satori on the guest, and finds where it listens.
pub(crate) fn start(name: &str, arguments: &[&str]) -> (Child, String) {
    launch(&file(name, &pvh::kernel(&CODE)), arguments)
}

pub(crate) fn launch(kernel: &str, arguments: &[&str]) -> (Child, String) {
    let mut child = Command::new(SATORI)
        .args(["run", "--kernel", kernel, "-m", "128M", "--report", "off", "--timeout", "120s"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("satori runs");
    let mut messages = BufReader::new(child.stderr.take().expect("piped"));
    let address = loop {
        let mut line = String::new();
        assert!(messages.read_line(&mut line).expect("messages") > 0, "it ended");
        if let Some((_, rest)) = line.split_once("'target remote ") {
            break rest.split('\'').next().expect("an address").to_owned();
        }
    };
    child.stderr = Some(messages.into_inner());
    (child, address)
}

/// One side of the protocol.
pub(crate) struct Client {
    pub(crate) stream: Box<dyn Wire>,
    buffer: Vec<u8>,
}

pub(crate) trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

impl Client {
    pub(crate) fn connect(address: &str) -> Client {
        let timeout = Some(Duration::from_secs(60));
        let stream: Box<dyn Wire> = if address.starts_with('/') {
            let stream = UnixStream::connect(address).expect("a socket");
            stream.set_read_timeout(timeout).unwrap();
            Box::new(stream)
        } else {
            let stream = TcpStream::connect(address).expect("a listener");
            stream.set_read_timeout(timeout).unwrap();
            Box::new(stream)
        };
        let mut client = Client { stream, buffer: Vec::new() };
        let features = client.ask("qSupported:multiprocess+;swbreak+;hwbreak+;vContSupported+");
        assert!(features.contains("PacketSize="), "{features}");
        client
    }

    pub(crate) fn send(&mut self, packet: &str) {
        let sum = packet.bytes().fold(0u8, u8::wrapping_add);
        write!(self.stream, "${packet}#{sum:02x}").expect("a connection");
    }

    pub(crate) fn byte(&mut self) -> u8 {
        if self.buffer.is_empty() {
            let mut buffer = [0; 4096];
            let length = self.stream.read(&mut buffer).expect("an answer in time");
            assert!(length > 0, "the connection was closed");
            self.buffer.extend(&buffer[..length]);
        }
        self.buffer.remove(0)
    }

    /// The next packet, run-length decoded, acknowledged.
    pub(crate) fn packet(&mut self) -> String {
        while self.byte() != b'$' {}
        let mut text = Vec::new();
        loop {
            match self.byte() {
                b'#' => break,
                b'*' => {
                    let times = self.byte() - 29;
                    let last = *text.last().expect("something to repeat");
                    text.extend(std::iter::repeat_n(last, times.into()));
                }
                byte => text.push(byte),
            }
        }
        self.byte();
        self.byte();
        let told = self.stream.write_all(b"+");
        // Who told of the guest's end waits for nobody.
        assert!(told.is_ok() || text.starts_with(b"W"), "{told:?}: {}", String::from_utf8_lossy(&text));
        String::from_utf8_lossy(&text).into_owned()
    }

    pub(crate) fn ask(&mut self, packet: &str) -> String {
        self.send(packet);
        self.packet()
    }

    pub(crate) fn ok(&mut self, packet: &str) {
        assert_eq!(self.ask(packet), "OK", "{packet}");
    }

    pub(crate) fn registers(&mut self) -> Vec<u8> {
        unhex(&self.ask("g"))
    }

    pub(crate) fn register(&mut self, number: usize) -> u64 {
        let registers = self.registers();
        u64::from_le_bytes(registers[8 * number..][..8].try_into().unwrap())
    }

    pub(crate) fn memory(&mut self, at: u64) -> u32 {
        u32::from_le_bytes(unhex(&self.ask(&format!("m{at:x},4")))[..4].try_into().unwrap())
    }

    /// Continues until something happens.
    pub(crate) fn go(&mut self) -> String {
        self.ask("vCont;c")
    }

    pub(crate) fn monitor(&mut self, command: &str) -> String {
        let mut text = String::new();
        let mut answer = self.ask(&format!("qRcmd,{}", hex(command.as_bytes())));
        while answer != "OK" {
            text += &String::from_utf8_lossy(&unhex(answer.trim_start_matches('O')));
            answer = self.packet();
        }
        text
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2) && text.is_ascii(), "{text}");
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..][..2], 16).expect("hex digits")).collect()
}

pub(crate) fn end(child: Child) -> Ended {
    child.wait_with_output().expect("an end").into()
}

/// What a debugger does with a guest that waits for it. Without `reads` it cannot stop at reads alone.
pub(crate) fn session(name: &str, arguments: &[&str], reads: bool) {
    let (child, address) = start(name, &[&["-S", "--gdb"], arguments].concat());
    let mut gdb = Client::connect(&address);
    assert!(gdb.ask("?").starts_with('T') || gdb.ask("?").starts_with('S'));
    assert_eq!((gdb.register(RIP), gdb.memory(BASE)), (BASE, 0x1008_00bb), "nothing was executed");

    // One step, of this vCPU alone.
    assert!(gdb.ask("vCont;s:p1.1").contains("thread:"));
    assert_eq!((gdb.register(RIP), gdb.register(RBX)), (BASE + 5, DATA));

    // Software and hardware breakpoints: memory is the guest's own.
    gdb.ok(&format!("Z0,{:x},1", BASE + 0xa));
    let stop = gdb.go();
    assert!(stop.contains("swbreak"), "{stop}");
    assert_eq!((gdb.register(RIP), gdb.memory(DATA)), (BASE + 0xa, 1));
    assert_eq!(gdb.memory(BASE + 8) >> 16, 0x8590, "the breakpoint is not to be seen");
    gdb.ok(&format!("z0,{:x},1", BASE + 0xa));
    gdb.ok(&format!("Z1,{:x},1", BASE + 5));
    let stop = gdb.go();
    assert!(stop.contains("hwbreak"), "{stop}");
    assert_eq!((gdb.register(RIP), gdb.memory(DATA)), (BASE + 5, 1));
    gdb.ok(&format!("z1,{:x},1", BASE + 5));

    // Watchpoints: writes, reads, both.
    gdb.ok(&format!("Z2,{DATA:x},4"));
    let stop = gdb.go();
    assert!(stop.contains(&format!("watch:{DATA:x};")) && !stop.contains("rwatch"), "{stop}");
    assert_eq!((gdb.register(RIP), gdb.memory(DATA)), (BASE + 7, 2));
    gdb.ok(&format!("z2,{DATA:x},4"));
    for (kind, word) in [(3, "rwatch"), (4, "awatch")] {
        if kind == 3 && !reads {
            assert_eq!(gdb.ask(&format!("Z{kind},{FLAG:x},4")), "E16", "no register stops at reads alone");
            continue;
        }
        gdb.ok(&format!("Z{kind},{FLAG:x},4"));
        let stop = gdb.go();
        assert!(stop.contains(&format!("{word}:{FLAG:x};")), "{stop}");
        assert_eq!(gdb.register(RIP), BASE + 0xa);
        gdb.ok(&format!("z{kind},{FLAG:x},4"));
    }

    // A range: from the TEST out of the two instructions behind it.
    gdb.ask(&format!("vCont;r{:x},{:x}:p1.1", BASE + 0xa, BASE + 0xf));
    assert_eq!(gdb.register(RIP), BASE + 5, "the jump left the range");

    // Ctrl-C, on a busy host perhaps before it has run.
    let begun = Instant::now();
    let counted = loop {
        gdb.send("vCont;c");
        std::thread::sleep(Duration::from_millis(200));
        gdb.stream.write_all(&[3]).unwrap();
        let stop = gdb.packet();
        assert!(stop.starts_with("T02"), "{stop}");
        match gdb.memory(DATA) {
            0..=3 => assert!(begun.elapsed() < Duration::from_secs(60), "it does not run"),
            counted => break counted,
        }
    };
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(gdb.memory(DATA), counted, "and does not now");

    // A register and memory are written; monitor commands answer.
    let mut registers = gdb.registers();
    registers[8 * RAX..][..8].copy_from_slice(&0x1234u64.to_le_bytes());
    gdb.ok(&format!("G{}", hex(&registers)));
    assert_eq!(gdb.register(RAX), 0x1234);
    assert_eq!(gdb.ask("m300000000,4"), "E0e", "nothing is there");
    assert!(gdb.monitor("help").contains("monitor regs"));
    assert!(gdb.monitor("info").contains("CPU#0 running"));
    assert!(gdb.monitor("regs").contains("CR0 00000011"));
    assert!(gdb.monitor("nonsense").contains("no command"));
    assert_eq!(gdb.monitor("translate 0 0x1234"), "0x1234\n", "without paging");

    // Code written by the debugger is what runs: the loop's NOP becomes another.
    gdb.ok(&format!("M{:x},1:f8", BASE + 0xa));
    gdb.ok(&format!("M{FLAG:x},4:01000000"));
    let exited = gdb.go();
    assert!(exited.starts_with(&format!("W{STATUS:02x}")), "{exited}");
    let ended = end(child);
    assert_eq!(ended.status, STATUS, "{ended:?}");
}
