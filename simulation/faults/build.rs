//! The program's own `clock_gettime`, `getrandom` and `epoll_wait` must be found by code that looks for them by name at
//! run time, as the crate `getrandom` does: executables export nothing by themselves.

fn main() {
    for symbol in ["clock_gettime", "getrandom", "epoll_wait"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
