use super::*;
use iced_x86::{Decoder, DecoderOptions};

fn text(write: impl FnOnce(&mut Asm)) -> String {
    let mut asm = Asm::new(0x1000);
    write(&mut asm);
    asm.resolve();
    let mut decoder = Decoder::with_ip(64, &asm.code, asm.origin, DecoderOptions::NONE);
    let mut all = Vec::new();
    while decoder.can_decode() {
        all.push(decoder.decode().to_string());
    }
    all.join("; ")
}

#[test]
fn every_register_has_its_encoding_in_every_place() {
    let names = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    let at = |offset| field(GS_AT + offset);
    for (i, a) in names.iter().enumerate() {
        for (j, b) in names.iter().enumerate() {
            let (x, y) = (Reg(i as u8), Reg(j as u8));
            assert_eq!(text(|asm| asm.mov(x, y)), format!("mov {a},{b}"));
            assert_eq!(text(|asm| asm.load(x, Mem::at(y, 0x12))), format!("mov {a},[{b}+12h]"));
            assert_eq!(text(|asm| asm.store(Mem::at(y, 0), x)), format!("mov [{b}],{a}"));
            if i != 4 {
                let expected = format!("lea {b},[{b}+{a}-1234h]");
                assert_eq!(text(|asm| asm.lea(y, Mem::sum(y, x, -0x1234))), expected);
            }
        }
        let x = Reg(i as u8);
        assert_eq!(text(|asm| asm.load(x, at(0x40))), format!("mov {a},gs:[40h]"));
        assert_eq!(text(|asm| asm.alu_imm(Alu::Sub, x, 7)), format!("sub {a},7"));
        assert_eq!(text(|asm| asm.constant(x, u64::MAX)), format!("mov {a},0FFFFFFFFFFFFFFFFh"));
        assert_eq!(text(|asm| asm.push(x)), format!("push {a}"));
    }
    let widths = [(Width::Sse, "", "xmm"), (Width::Low, "v", "xmm"), (Width::Whole, "v", "ymm")];
    for (i, (width, v, name)) in (0..16).flat_map(|i| widths.map(|width| (i, width))) {
        let load = |asm: &mut Asm| asm.load_vector(i, at(8), width);
        assert_eq!(text(load), format!("{v}movups {name}{i},gs:[8]"));
        let store = |asm: &mut Asm| asm.store_vector(at(8), i, width);
        assert_eq!(text(store), format!("{v}movups gs:[8],{name}{i}"));
    }
    assert_eq!(text(|asm| asm.load_mxcsr(at(8))), "ldmxcsr gs:[8]");
    assert_eq!(text(|asm| asm.store_mxcsr(at(8))), "stmxcsr gs:[8]");
    assert_eq!(text(|asm| asm.save_state(at(0x40))), "xsave64 gs:[40h]");
    assert_eq!(text(|asm| asm.restore_state(at(0x40))), "xrstor64 gs:[40h]");
    assert_eq!(text(|asm| asm.store_byte(at(8), 1)), "mov byte ptr gs:[8],1");
    let cmp = |asm: &mut Asm| asm.alu_mem(Alu::Cmp, Reg(15), Mem::table(Reg(0), GS_AT + 0x40));
    assert_eq!(text(|asm| asm.alu_imm32(Alu::And, Reg(0), 0x1_ffc0)), "and eax,1FFC0h");
    assert_eq!(text(|asm| asm.alu_imm(Alu::Cmp, Reg(0), 0x1_ffc0)), "cmp rax,1FFC0h");
    assert_eq!(text(cmp), "cmp r15,gs:[rax+40h]");
}

#[test]
fn labels_reach_in_both_directions() {
    let code = |asm: &mut Asm| {
        let (back, ahead) = (asm.bound(), asm.label());
        asm.jcc(cc::NE, ahead);
        asm.jmp(back);
        asm.bind(ahead);
        asm.ret();
    };
    // Which of the decoder's formatters there is depends on what else is built.
    let text = text(code).replace("near ptr ", "");
    assert_eq!(text, "jne 000000000000100Bh; jmp 0000000000001000h; ret");
}
