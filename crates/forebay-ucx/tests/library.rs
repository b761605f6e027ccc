//! Finding and configuring UCX.

mod common;

use std::path::Path;

use common::{library, over_each_fabric};
use forebay_ucx::{Context, Error, Library, Options, Worker};

#[test]
fn the_library_says_its_version_its_file_and_its_transports() {
    let Some(library) = library() else { return };
    println!("UCX {} at {}", library.version(), library.path().display());
    assert!(library.version().is_usable());
    assert!(library.path().is_file());
    let transports = library.transports().unwrap();
    println!("{}", transports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    assert!(common::has(&transports, "tcp"));
}

#[test]
fn a_second_library_is_refused_and_the_same_one_is_not() {
    let Some(library) = library() else { return };
    assert!(std::ptr::eq(Library::load(Some(library.path())).unwrap(), library));
    let error = Library::load(Some(Path::new("/nowhere/libucp.so.0"))).unwrap_err();
    assert!(matches!(error, Error::OtherLibrary { .. }), "{error}");
}

#[test]
fn a_missing_library_is_named_with_the_remedy() {
    // In a process of its own: this one has a library already.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["a_process_without_a_library", "--exact", "--ignored", "--nocapture"])
        .env("FOREBAY_UCX_LIBRARY", "/nowhere/libucp.so.0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("cannot load /nowhere/libucp.so.0") && text.contains("FOREBAY_UCX_LIBRARY"), "{text}");
}

#[test]
#[ignore = "a process of other tests"]
fn a_process_without_a_library() {
    if let Err(error) = Library::load(None) {
        println!("{error}");
    }
}

#[test]
fn an_unknown_option_is_named_and_a_preferred_one_is_passed_over() {
    let Some(library) = library() else { return };
    let options = Options::new().transports(["tcp", "posix"]);
    for key in ["NO_SUCH_OPTION", "TCP_NO_SUCH_OPTION"] {
        let error = Context::new(library, &options.clone().set(key, "y")).unwrap_err();
        assert_eq!(error, Error::UnknownOption { key: key.to_owned(), version: library.version() });
    }
    let context = Context::new(library, &options.prefer("UCX_NO_SUCH_OPTION", "y")).unwrap();
    assert_eq!(context.unknown_options(), ["NO_SUCH_OPTION"]);
}

#[test]
fn a_wrong_value_and_a_missing_device_are_named() {
    let Some(library) = library() else { return };
    let error = Context::new(library, &Options::new().set("RNDV_THRESH", "many")).unwrap_err();
    assert_eq!(error, Error::InvalidOption { key: "RNDV_THRESH".to_owned(), value: "many".to_owned() });
    let options = Options::new().transports(["tcp"]).devices(["mlx5_17:1"]);
    let text = Context::new(library, &options).unwrap_err().to_string();
    assert!(text.contains("tcp on mlx5_17:1") && text.contains("ucx_info -d"), "{text}");
}

#[test]
fn the_tuned_options_are_known_and_choose_what_they_say() {
    over_each_fabric(|context| async move {
        // Of the versions that this was written with, 1.13 lacks one.
        let unknown = context.unknown_options();
        assert!(unknown.is_empty() || unknown == ["TCP_USER_TIMEOUT"], "{unknown:?}");
        assert!(context.resources().iter().all(|resource| resource.transport != "tcp" || resource.device == "lo"));
    });
}

#[test]
fn shared_memory_is_found_by_its_name_not_by_a_descriptor_that_may_be_another_by_then() {
    let Some(library) = library() else { return };
    let context = Context::new(library, &Options::tuned().transports(["posix", "tcp"])).unwrap();
    let _worker = Worker::new(&context).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_named = |line: &&str| line.contains("/ucx_shm_posix_") && !line.ends_with("(deleted)");
    assert!(maps.lines().any(|line| is_named(&line)), "{maps}");
}
