//! What kind of processor this is.

use std::arch::x86_64::__cpuid;
use std::sync::OnceLock;

use iced_x86::DecoderOptions;
use satori_cpuid::Vendor;
use satori_defs::cpuid;

/// Whose processor this is; the guest is offered one of the same vendor.
pub fn vendor() -> Vendor {
    static VENDOR: OnceLock<Vendor> = OnceLock::new();
    *VENDOR.get_or_init(|| {
        let leaf = __cpuid(cpuid::VENDOR);
        let mut string = [0; 12];
        for (chunk, word) in string.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Vendor::of(&string)
    })
}

/// How the decoder reads this processor's instructions.
pub fn decoder_options() -> u32 {
    if vendor() == Vendor::Amd { DecoderOptions::AMD } else { DecoderOptions::NONE }
}
