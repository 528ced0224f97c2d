#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| satori_attack::net(data));
