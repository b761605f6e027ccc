//! Has the library stay loaded: its threads go on after `dlclose`, and so do the handlers of forks.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
