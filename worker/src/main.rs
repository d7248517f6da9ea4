//! The worker process: everything that needs a graphics driver happens here, so that a driver can take down no more
//! than this. The engine starts it, talks to it over standard input and output, and computes itself whatever the worker
//! does not deliver.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use twinband_protocol::Exit;

mod backend;
mod serve;

fn main() -> ExitCode {
    let exit = if std::env::args_os().len() > 1 || io::stdin().is_terminal() {
        eprintln!("{} is started by twinband, not by hand", twinband_protocol::WORKER_PROGRAM);
        Exit::Usage
    } else {
        serve::serve(&mut io::stdin().lock(), &mut io::stdout().lock())
    };
    ExitCode::from(exit.code())
}
