#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_fuzz_targets::run::staging_handing(bytes));
