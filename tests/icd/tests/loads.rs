//! The library can be opened. With this test `cargo test --workspace` builds it for all others.

use std::path::PathBuf;

use libloading::os::unix::Library;
use twinband_fake_icd as _;

/// The folder of the test programs, where cargo puts the library too.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.with_file_name("libtwinband_fake_icd.so")
}

#[test]
#[allow(unsafe_code, reason = "opens a library of ours")]
fn the_driver_has_the_functions_of_a_driver() {
    // SAFETY: nothing runs when it is opened.
    let library = unsafe { Library::new(library()) }.expect("cargo has built it");
    for name in ["vk_icdNegotiateLoaderICDInterfaceVersion", "vk_icdGetInstanceProcAddr"] {
        // SAFETY: the function is looked for, not called.
        let function = unsafe { library.get::<unsafe extern "system" fn()>(name.as_bytes()) };
        assert!(function.is_ok(), "{name}");
    }
}
