//! The host code of some hundreds of guest instructions, as text that is kept (`golden.txt`): a sequence that
//! becomes longer or slower shows in a diff.
//!
//! A line is the guest's bytes, what they say, and the host's code behind the look at the budget; what
//! seldom runs is told by its size. `p` in front of the bytes: other vCPUs run at the same time. After a
//! wanted change, or with new bytes at the end of the file, the text is made again by
//! `SATORI_GOLDEN=write cargo test -p satori-jit golden`.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::sync::{Arc, Mutex};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction, IntelFormatter, OpKind, SymbolResolver,
    SymbolResult,
};
use satori_engine::{CodeWatcher, Made, Origin, Until};
use satori_memory::Gpa;
use satori_state::{CpuState, Segment, seg};

use crate::Host;
use crate::Translating;
use crate::asm::GS_AT;
use crate::homes::Homes;
use crate::stubs::Stubs;
use crate::testing::machine64;
use crate::{Context, Jit, Manner, Pool};
use satori_soft::mmu::Tlb;
use satori_soft::testing::SCRATCH;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lower/golden.txt");

/// Keeps what was made: address and bytes.
#[derive(Debug, Default)]
struct Keep(Mutex<Vec<(u64, Vec<u8>)>>);

impl CodeWatcher for Keep {
    fn made(&self, made: &Made<'_>) {
        if let Origin::Guest { .. } = made.origin {
            self.0.lock().unwrap().push((made.address, made.code.to_vec()));
        }
    }
}

/// Names for what host code refers to.
struct Names {
    fields: Vec<(String, usize, usize)>,
    places: Vec<(&'static str, u64)>,
    /// The code that seldom runs, and the other.
    seldom: std::ops::Range<u64>,
    often: std::ops::Range<u64>,
}

fn fields() -> Vec<(String, usize, usize)> {
    let mut all = Vec::new();
    let mut add = |name: String, at: usize, size: usize| all.push((name, at, size));
    let state = offset_of!(Translating, cpu.state);
    let registers = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    for (i, name) in registers.iter().enumerate() {
        add(format!("g.{name}"), state + offset_of!(CpuState, gpr) + 8 * i, 8);
    }
    for (i, name) in ["es", "cs", "ss", "ds", "fs", "gs"].iter().enumerate() {
        let segment = state + offset_of!(CpuState, seg) + i * size_of::<Segment>();
        add(format!("g.{name}"), segment, size_of::<Segment>());
        add(format!("{name}base"), offset_of!(Translating, cpu.derived.segment_base) + 8 * i, 8);
    }
    macro_rules! state {
        ($($field:ident),*) => { $(add(
            format!("g.{}", stringify!($field)),
            state + offset_of!(CpuState, $field),
            size(|state: &CpuState| &state.$field),
        );)* };
    }
    state!(
        rip,
        rflags,
        kernel_gs_base,
        fpu,
        cr0,
        cr2,
        cr3,
        cr4,
        efer,
        xcr0,
        tsc_offset,
        tsc_aux,
        pkru,
        star,
        lstar,
        fmask
    );
    macro_rules! context {
        ($($field:ident),*) => { $(add(
            stringify!($field).to_owned(),
            offset_of!(Translating, context) + offset_of!(Context, $field),
            size(|context: &Context| &context.$field),
        );)* };
    }
    context!(
        flags,
        reason,
        budget,
        left,
        kick,
        temporary,
        computed,
        stored,
        nested_entries,
        host_mxcsr,
        vectors,
        x87_loaded
    );
    context!(x87_stored, met, spare, x87, windows, tables);
    add("mode".into(), offset_of!(Translating, cpu.derived.mode), 1);
    add("code_mode".into(), offset_of!(Translating, cpu.derived.code_mode), 8);
    add("interrupt_window".into(), offset_of!(Translating, cpu.windows.interrupt), 1);
    add("behind_sti".into(), offset_of!(Translating, cpu.windows.behind_sti), 4);
    add("due".into(), offset_of!(Translating, cpu.windows.due), 1);
    add(
        "tlb".into(),
        offset_of!(Translating, cpu.mmu.tlb) + Tlb::ENTRIES_OFFSET,
        size_of::<Tlb>() - Tlb::ENTRIES_OFFSET,
    );
    all
}

/// The size of a field, by a way to it.
fn size<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        insn: &Instruction,
        _operand: u32,
        at: Option<u32>,
        address: u64,
        _size: u32,
    ) -> Option<SymbolResult<'_>> {
        let text = |text: String| Some(SymbolResult::with_string(address, text));
        if self.seldom.contains(&address) {
            return text("cold".into());
        }
        if self.often.contains(&address) {
            return text(format!("hot+{:#x}", address - self.often.start));
        }
        if let Some((name, _)) = self.places.iter().find(|(_, place)| *place == address) {
            return text((*name).into());
        }
        let memory = at.is_some_and(|operand| insn.op_kind(operand) == OpKind::Memory);
        if memory && insn.segment_prefix() == iced_x86::Register::GS {
            let offset = (address as i32).wrapping_add(GS_AT as i32) as usize;
            let (name, begin, _) =
                self.fields.iter().find(|(_, at, size)| (*at..at + size).contains(&offset))?;
            return text(match offset - begin {
                0 => name.clone(),
                more => format!("{name}+{more:#x}"),
            });
        }
        // The host's addresses, which are others in each run.
        (address >> 32 != 0 && address < 1 << 47).then(|| SymbolResult::with_str(address, "host"))
    }
}

fn places(stubs: &Stubs) -> Vec<(&'static str, u64)> {
    vec![
        ("leave", stubs.leave),
        ("miss", stubs.miss),
        ("branch", stubs.branch),
        ("link", stubs.link),
        ("generic", stubs.generic),
        ("wrote", stubs.wrote),
        ("poll", stubs.poll),
        ("load_vectors", stubs.load_vectors),
        ("load_x87", stubs.load_x87),
        ("range", stubs.range),
        ("step", stubs.step),
        ("alone", stubs.alone),
    ]
}

fn intel() -> IntelFormatter {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_memory_size_options(iced_x86::MemorySizeOptions::Minimal);
    options.set_rip_relative_addresses(false);
    formatter
}

/// `code`, decoded and written down. The first so many instructions are left out.
fn text(code: &[u8], address: u64, skip: usize, mut formatter: IntelFormatter) -> Vec<String> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut lines = Vec::new();
    while decoder.can_decode() {
        let insn = decoder.decode();
        let mut line = String::new();
        formatter.format(&insn, &mut line);
        lines.push(line);
    }
    lines.drain(..skip.min(lines.len()));
    lines
}

/// What stands behind the bytes of an entry: `guest | host`. Nothing if the host lacks an instruction.
fn entry(bytes: &[u8], parallel: bool, narrow: bool) -> Option<String> {
    let mut cpu = machine64();
    if narrow {
        cpu.state.seg[seg::CS] = Segment::flat(8, 0xc09b);
        cpu.mode_changed();
    }
    cpu.set_parallel(parallel);
    let at = cpu.state.rip;
    let mut decoder = Decoder::with_ip(if narrow { 32 } else { 64 }, bytes, at, DecoderOptions::NONE);
    let (mut guest, mut ends) = (String::new(), false);
    while decoder.can_decode() {
        let insn = decoder.decode();
        if !insn.cpuid_features().iter().all(|feature| Host::default().has(*feature)) {
            return None;
        }
        ends = insn.flow_control() != FlowControl::Next;
        let separator = if guest.is_empty() { "" } else { "; " };
        guest += separator;
        intel().format(&insn, &mut guest);
    }
    // Behind it a jump to the next instruction, so that something ends the block.
    let code = [bytes, &[0xeb, 0][..]].concat();
    cpu.memory().write(Gpa(at), &code).expect("it is RAM");
    cpu.state.gpr.iter_mut().take(16).for_each(|register| *register = SCRATCH);
    cpu.state.cr4 |= satori_defs::x86::cr4::OSXSAVE | satori_defs::x86::cr4::SMAP;
    cpu.state.xcr0 = 7;
    let kept = Arc::new(Keep::default());
    let manner = Manner { hot: 0, counting: false, watcher: Some(kept.clone()), host: Host::default() };
    cpu.put(Some(Jit::new(&Pool::default(), manner).expect("the host gives memory for code")));
    let _ = cpu.run(Until { counter: None, instructions: Some(1) });
    let made = std::mem::take(&mut *kept.0.lock().unwrap());
    let [(often, code), (seldom, rest), ..] = &made[..] else { panic!("{bytes:02x?} is not translated") };
    let range = |at: u64, code: &[u8]| at..at + code.len() as u64;
    let names = Names {
        fields: fields(),
        places: places(&cpu.jit().expect("it was put there").stubs),
        seldom: range(*seldom, rest),
        often: range(*often, code),
    };
    let mut formatter = IntelFormatter::with_options(Some(Box::new(names)), None);
    *formatter.options_mut() = intel().options().clone();
    // The look at the budget, and at the page's state.
    let alone = bytes == [0xeb, 0];
    let mut lines = text(code, *often, 0, formatter);
    let budget = lines.iter().position(|line| line.starts_with("sub r11")).expect("blocks are paid for");
    if !alone {
        lines.drain(..budget + 2);
        if !ends {
            lines.pop();
        }
    }
    let mut line = guest;
    let _ = write!(line, " | {} | {} + {}", lines.join("; "), lines.len(), rest.len());
    Some(line)
}

#[test]
fn host_code_is_what_golden_txt_says() {
    assert_eq!(Homes::USUAL.all().count(), 12, "golden.txt names registers");
    if !Host::default().bmi2 {
        eprintln!("skipped: golden.txt is of a host with BMI2");
        return;
    }
    let before = std::fs::read_to_string(FILE).expect("golden.txt is there");
    let mut after = String::new();
    let mut differences = Vec::new();
    for line in before.lines() {
        let mut made = line.to_owned();
        if !line.is_empty() && !line.starts_with('#') {
            let key = line.split('|').next().unwrap_or_default().trim();
            let (kind, hex) = key.split_at(if key.starts_with(['p', 'n']) { 2 } else { 0 });
            let bytes: Vec<u8> = hex
                .split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).expect("golden.txt has bytes in front"))
                .collect();
            if let Some(text) = entry(&bytes, kind == "p ", kind == "n ") {
                made = format!("{key} | {text}");
            }
        }
        if made != line {
            differences.push(format!("- {line}\n+ {made}"));
        }
        after += &made;
        after.push('\n');
    }
    if std::env::var_os("SATORI_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(FILE, after).expect("golden.txt can be written");
        return;
    }
    assert!(
        differences.is_empty(),
        "{} differences; if they are wanted, SATORI_GOLDEN=write cargo test -p satori-jit golden\n{}",
        differences.len(),
        differences.join("\n")
    );
}
