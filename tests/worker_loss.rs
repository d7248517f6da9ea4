//! The engine with the real worker program, built beside it by `cargo test`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use twinband::gpu::{Client, Error};
use twinband_protocol::{FaultCode, WORKER_PROGRAM};

fn worker() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_twinband")).with_file_name(WORKER_PROGRAM);
    let path = beside.with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        path.exists(),
        "{} is missing: test with `cargo test --workspace`, which builds it",
        path.display()
    );
    path
}

#[test]
fn a_worker_without_a_backend_says_so() {
    match Client::start(&worker(), Duration::from_secs(20)) {
        Err(Error::Fault(fault)) => {
            assert_eq!(fault.code, FaultCode::NoBackend);
            assert!(fault.text.contains("without a backend"), "{fault:?}");
        }
        other => panic!("{other:?}"),
    }
}
