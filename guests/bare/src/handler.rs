//! Handlers that are functions: for guests that live with interrupts, where a subject would end by the first one.

use crate::cpu::{Cpu, Gate};

/// Makes the function `$function` of the guest a handler, whose address is that of `$name`:
/// `handler!(tick_handler, "tick_handler", tick, "tick");`. It runs with interrupts off, on the stack that was
/// interrupted, and ends them itself. With a vector behind, the function is given that.
#[macro_export]
macro_rules! handler {
    ($name:ident, $label:literal, $function:ident, $symbol:literal) => {
        $crate::handler!(@ $name, $label, $symbol);
        const _: extern "C" fn() = $function;
    };
    ($name:ident, $label:literal, $function:ident, $symbol:literal, $vector:expr) => {
        $crate::handler!(@ $name, $label, $symbol, "mov edi, {vector}", vector = const $vector);
        const _: extern "C" fn(u8) = $function;
    };
    (@ $name:ident, $label:literal, $symbol:literal $(, $given:literal, $operand:ident = const $value:expr)?) => {
        ::core::arch::global_asm!(
            ".pushsection .text.handler, \"ax\"",
            concat!(".globl ", $label),
            concat!($label, ":"),
            "push rax",
            "push rcx",
            "push rdx",
            "push rsi",
            "push rdi",
            "push r8",
            "push r9",
            "push r10",
            "push r11",
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 512",
            "and rsp, -16",
            "fxsave64 [rsp]",
            "cld",
            $($given,)?
            concat!("call ", $symbol),
            "fxrstor64 [rsp]",
            "mov rsp, rbp",
            "pop rbp",
            "pop r11",
            "pop r10",
            "pop r9",
            "pop r8",
            "pop rdi",
            "pop rsi",
            "pop rdx",
            "pop rcx",
            "pop rax",
            "iretq",
            ".popsection",
            $($operand = const $value,)?
        );
        unsafe extern "C" {
            /// The handler's first instruction; it is no function that could be called.
            static $name: u8;
        }
    };
}

/// Lets `vector` come to the handler at `address` on this vCPU.
pub fn install(vector: u8, address: *const u8) {
    Cpu::this().idt[usize::from(vector)] = Gate::interrupt(address as u64);
}
