//! `forebay.h` is what cbindgen makes of the crate.

use std::path::Path;

/// In the order in which they are declared.
const SOURCES: [&str; 6] = ["error", "client", "file", "read", "write", "view"];

#[test]
fn the_header_declares_what_the_library_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        builder.with_src(root.join("src").join(source).with_extension("rs"))
    });
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let (header, made) = (root.join("include/forebay.h"), String::from_utf8(made).unwrap());
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    assert!(
        std::fs::read_to_string(&header).unwrap() == made,
        "{} is old; renew it with `FOREBAY_BLESS=1 cargo test -p forebay-c --test header`",
        header.display()
    );
}
